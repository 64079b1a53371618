"""FLOW: a job and the jobs it waits for; TX: several commands in one commit."""

import msgspec
from msgspec import UNSET, Raw, Struct

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.bounds import FLOW_DEPTH_MAX
from forebay.core.errors import Invalid
from forebay.server.flashq import replies
from forebay.server.flashq.pop import Ack, AckBatch, Fail
from forebay.server.flashq.push import JobIn, Push, PushBatch, Pushing, is_known, job_of
from forebay.server.flashq.replies import shown, shown_all
from forebay.server.flashq.request import Context, Request
from forebay.server.flashq.values import KvAtomic, KvDelete, KvExpire, KvIncrement, KvSet, KvSetMany


class Child(JobIn, gc=False, kw_only=True):
    """A job that its parent waits for."""

    queue: str
    children: "list[Child]" = msgspec.field(default_factory=list)


class Flow(Pushing, tag="FLOW", gc=False, kw_only=True):
    data: Raw
    children: list[Child]

    def nested(self) -> tuple[int, int]:
        return _nested(self, 1)

    def command(self, context: Context) -> job_commands.PushFlow:
        if is_known(self):
            raise Invalid("idempotency_key", "left out: a flow has none; give its jobs a job_id")
        if not self.children:
            raise Invalid("children", "a list of one or more")
        job = job_of(self, self.data, waits=True)
        root = job_commands.FlowJob(self.queue, job, list(map(_child, self.children)))
        return job_commands.PushFlow(context.tenant, root, self.durability)

    def reply(self, reply: job_commands.FlowPushed, context: Context) -> Struct:
        return replies.OkFlow(
            ok=True,
            parent_id=shown(reply.parent),
            children_ids=shown_all(reply.children),
            durability=reply.durability,
            duplicate=True if reply.known else UNSET,
            reqId=self.reqId,
        )


def _nested(node: Child | Flow, wrapped: int) -> tuple[int, int]:
    """Return the levels of nesting around the payloads of a flow, and the length of the longest payload."""
    found = (wrapped, len(node.data))
    for child in node.children:
        inner = _nested(child, wrapped + 2)
        found = (max(found[0], inner[0]), max(found[1], inner[1]))
    return found


def _child(given: Child, depth: int = 1) -> job_commands.FlowJob:
    if depth > FLOW_DEPTH_MAX:
        raise Invalid("children", f"at most {FLOW_DEPTH_MAX} deep")
    if given.durability is not None:
        raise Invalid("durability", "given beside children: a flow is kept together")
    job = job_of(given, given.data, waits=bool(given.children))
    return job_commands.FlowJob(given.queue, job, [_child(each, depth + 1) for each in given.children])


Operation = (
    Push
    | PushBatch
    | Flow
    | Ack
    | AckBatch
    | Fail
    | KvSet
    | KvSetMany
    | KvDelete
    | KvExpire
    | KvIncrement
    | KvAtomic
)
"""Commands that a transaction may hold."""


class Tx(Request, tag="TX", gc=False, kw_only=True):
    ops: list[Operation]

    def nested(self) -> tuple[int, int]:
        inner = [op.nested() for op in self.ops] or [(0, 0)]
        return max(each[0] for each in inner) + 2, max(each[1] for each in inner)

    def command(self, context: Context) -> core.Command:
        return core.Transact(context.tenant, [_operation(op, context) for op in self.ops])

    def reply(self, reply: core.Transacted, context: Context) -> Struct:
        done = zip(self.ops, reply.replies, strict=True)
        results = [_result(op, each, context) for op, each in done]
        return replies.OkResults(ok=True, results=results, reqId=self.reqId)


def _result(op: Operation, reply: core.Reply, context: Context) -> Struct:
    """Return the reply to one command of a committed transaction; a debounced push is no error here."""
    if isinstance(op, Push):
        assert isinstance(reply, job_commands.PushedJobs)
        return op.known_or_not(reply)
    return op.reply(reply, context)  # type: ignore[arg-type]


def _operation(
    op: Operation, context: Context
) -> job_commands.PushJobs | job_commands.PushFlow | core.Ack | core.Nack | job_commands.KvWrite:
    if isinstance(op, Push | PushBatch):
        return op.jobs_command(context)
    command = op.command(context)
    assert isinstance(command, job_commands.PushFlow | core.Ack | core.Nack | job_commands.KvWrite)
    return command
