"""Flows: a message and the messages it waits for."""

from msgspec import Raw

from forebay.core import ids
from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.bounds import FLOW_DEPTH_MAX
from forebay.core.errors import Invalid
from forebay.server.operations.carried import Carried, Context, shown, shown_all
from forebay.server.operations.messages import seen
from forebay.server.operations.push import job_of
from forebay.wire.operations import flows as wire
from forebay.wire.operations.flows import Child, Children, FlowPushed


class PushFlow(Carried, wire.PushFlow):
    def nested(self) -> tuple[int, int]:
        return _nested(self, 1)

    def command(self, context: Context) -> job_commands.PushFlow:
        if not self.children:
            raise Invalid("children", "a list of one or more")
        job = job_of(self, self.payload, waits=True)
        root = job_commands.FlowJob(self.queue, job, list(map(_child, self.children)))
        return job_commands.PushFlow(context.tenant, root, self.durability)

    def reply(self, reply: job_commands.FlowPushed, context: Context) -> FlowPushed:
        return FlowPushed(
            id=shown(reply.parent),
            children=shown_all(reply.children),
            durability=reply.durability,
            duplicate=reply.known,
        )


def _nested(node: Child | wire.PushFlow, wrapped: int) -> tuple[int, int]:
    """Return the levels of nesting around the payloads of a flow, and the length of the longest payload."""
    found = (wrapped, len(node.payload))
    for child in node.children:
        inner = _nested(child, wrapped + 2)
        found = (max(found[0], inner[0]), max(found[1], inner[1]))
    return found


def _child(given: Child, depth: int = 1) -> job_commands.FlowJob:
    if depth > FLOW_DEPTH_MAX:
        raise Invalid("children", f"at most {FLOW_DEPTH_MAX} deep")
    job = job_of(given, given.payload, waits=bool(given.children))
    return job_commands.FlowJob(given.queue, job, [_child(each, depth + 1) for each in given.children])


class GetChildren(Carried, wire.GetChildren):
    def command(self, context: Context) -> core.Command:
        return queries.Children(context.tenant, ids.parse(self.id), context.queues)

    def reply(self, reply: queries.ChildrenFound, context: Context) -> Children:
        children = [seen(each, context) for each in reply.shown.deliveries]
        for child, found in zip(children, reply.results, strict=True):
            results = [result for kind in found.notes for result in kind if result.segment.present]
            if results:
                (payload,) = results[-1].payloads()
                child.result = Raw(payload)
        return Children(id=shown(reply.id), children=children, completed=reply.completed, total=reply.total)
