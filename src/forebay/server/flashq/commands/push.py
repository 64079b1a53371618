"""PUSH, PUSHB and FLOW."""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.api.queries import FindJob, ShownAll
from forebay.core.bounds import FLOW_DEPTH_MAX
from forebay.core.errors import NotFound
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import COMPLETED_MAX, Asked, Command, ask, shown
from forebay.server.flashq.commands.options import Options, is_plain, job_of, plain_attributes
from forebay.server.flashq.errors import Refused, debounced, duplicate
from forebay.server.tcp.codec import Ready, Services
from forebay.wire.types import RequestId

NULL = Raw(b"null")


class Push(Options, Command, tag_field="cmd", tag="PUSH", gc=False, kw_only=True):
    """One job. A custom id that is known already gives the job that has it; a unique key is refused."""

    reqId: RequestId | UnsetType | None = UNSET  # type: ignore[assignment]
    queue: str
    data: Raw

    @property
    def is_command(self) -> bool:  # type: ignore[override]
        """With both, it takes a second look to tell what was known: the custom id, or the unique key."""
        self.settle()
        return not self.job_id or not (self.unique_key or self.debounce_id)

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def _jobs(self, caller: Caller) -> job_commands.PushJobs:
        jobs = [job_of(self, bytes(self.data), caller.limits)]
        return job_commands.PushJobs(caller.tenant, self.queue, jobs, completed_count=COMPLETED_MAX)

    async def steps(self, services: Services, caller: Caller) -> job_commands.PushedJobs:
        pushed = await ask(services, caller, self._jobs(caller))
        assert isinstance(pushed, job_commands.PushedJobs)
        if pushed.duplicates and await self._is_named(services, caller, pushed.ids[0]):
            pushed.duplicates, pushed.throttled = [], []
        elif pushed.duplicates:
            self._refuse(pushed)
        return pushed

    async def _is_named(self, services: Services, caller: Caller, message: int) -> bool:
        """Return whether the job that is known already has the custom id of this one."""
        assert self.job_id is not None
        try:
            found = await ask(
                services, caller, FindJob(caller.tenant, self.job_id, self.queue, caller.queues)
            )
        except NotFound:
            return False
        assert isinstance(found, ShownAll)
        return [each.state.id for each in found.deliveries] == [message]

    def _refuse(self, pushed: job_commands.PushedJobs) -> None:
        """Raise if a key was held; a custom id that is known is no error."""
        if pushed.throttled and self.debounce_id is not None:
            raise debounced(self.debounce_id)
        if pushed.duplicates and self.unique_key is not None:
            raise duplicate(self.unique_key)

    def asked(self, caller: Caller) -> core.Command:
        if is_plain(self):
            return core.Push(
                caller.tenant,
                self.queue,
                [self.data],
                attributes=plain_attributes(caller.limits),
                completed_count=COMPLETED_MAX,
            )
        return self._jobs(caller)

    def reply(self, reply: core.Pushed | job_commands.PushedJobs, caller: Caller) -> Struct:
        if isinstance(reply, core.Pushed):
            return answers.WithId(id=shown(reply.first))
        self._refuse(reply)
        return answers.WithId(id=shown(reply.ids[0]))


class JobIn(Options, gc=False, kw_only=True):
    """One of the jobs of a PUSHB."""

    data: Raw = NULL


class PushBatch(Asked, tag="PUSHB", gc=False, kw_only=True):
    """Many jobs, all or none. One that is known already is not pushed again: its id is the known job's."""

    queue: str
    jobs: list[JobIn]

    def nested(self) -> tuple[int, int]:
        return 3, max((len(each.data) for each in self.jobs), default=0)

    def asked(self, caller: Caller) -> core.Command:
        if not self.jobs:
            raise Ready(job_commands.PushedJobs([], ""))
        if all(map(is_plain, self.jobs)):  # the usual batch: the core takes it as one
            payloads: list[bytes] = [each.data for each in self.jobs]
            return core.Push(
                caller.tenant,
                self.queue,
                payloads,
                attributes=plain_attributes(caller.limits),
                completed_count=COMPLETED_MAX,
            )
        jobs = [job_of(each, bytes(each.data), caller.limits) for each in self.jobs]
        return job_commands.PushJobs(caller.tenant, self.queue, jobs, completed_count=COMPLETED_MAX)

    def reply(self, reply: core.Pushed | job_commands.PushedJobs, caller: Caller) -> Struct:
        if isinstance(reply, core.Pushed):
            return answers.WithIds(ids=list(map(shown, range(reply.first, reply.first + reply.count))))
        return answers.WithIds(ids=list(map(shown, reply.ids)))


class Child(Options, gc=False, kw_only=True):
    """A job that its parent waits for."""

    queue: str
    data: Raw = NULL
    children: "list[Child] | None" = None


class Flow(Options, Command, tag_field="cmd", tag="FLOW", gc=False, kw_only=True):
    """A job and the jobs it waits for."""

    reqId: RequestId | UnsetType | None = UNSET  # type: ignore[assignment]
    queue: str
    data: Raw = NULL
    children: list[Child] = msgspec.field(default_factory=list)

    def nested(self) -> tuple[int, int]:
        return _nested(self, 1)

    def asked(self, caller: Caller) -> job_commands.PushFlow:
        root = _node(self, caller, 0)
        return job_commands.PushFlow(caller.tenant, root, completed_count=COMPLETED_MAX)

    def reply(self, reply: job_commands.FlowPushed, caller: Caller) -> Struct:
        return answers.Flow(parent_id=shown(reply.parent), children_ids=list(map(shown, reply.children)))


def _node(given: Child | Flow, caller: Caller, depth: int) -> job_commands.FlowJob:
    if depth > FLOW_DEPTH_MAX:
        raise Refused("children", f"Flows are at most {FLOW_DEPTH_MAX} deep")
    job = job_of(given, bytes(given.data), caller.limits)
    children = [_node(each, caller, depth + 1) for each in given.children or ()]
    return job_commands.FlowJob(given.queue, job, children)


def _nested(node: Child | Flow, wrapped: int) -> tuple[int, int]:
    """Return the levels of nesting around the payloads of a flow, and the length of the longest payload."""
    found = (wrapped, len(node.data))
    for child in node.children or ():
        inner = _nested(child, wrapped + 2)
        found = (max(found[0], inner[0]), max(found[1], inner[1]))
    return found
