"""PULL and PULLB, and what a worker says of a job: ACK, ACKB, FAIL, HEARTBEAT.

A job belongs to its worker until its time is over, not to a connection: SDKs pull over one connection of a
pool and answer over another. So nothing happens to a job when a connection is lost; a worker that crashed is
found out by the ``timeout`` or ``stall_timeout`` of the job, as in flashQ. Only an answer that could not be
sent any more gives its jobs back at once.
"""

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core
from forebay.core.errors import ForebayError, NotFound
from forebay.server.flashq import answers, job
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import COMPLETED_MAX, AboutJob, Asked, Whole, parse_ids
from forebay.server.flashq.errors import job_not_found
from forebay.server.tcp.codec import Ready
from forebay.wire.types import Id


class Pull(Asked, tag="PULL", gc=False, kw_only=True):
    queue: str
    timeout: Whole | None = None

    def asked(self, caller: Caller) -> core.Command:
        return self._pop(caller, 1)

    def _pop(self, caller: Caller, count: int) -> core.Pop:
        # Now, and not with the answer: a worker that waits for its first job works, too.
        name = caller.workers.pulled(caller.owner, self.queue, caller.tenant)
        wait_ms = caller.wait_ms(self.timeout)
        return core.Pop(
            caller.tenant,
            self.queue,
            count=count,
            wait_ms=wait_ms,
            owner=caller.owner,
            completed_count=COMPLETED_MAX,
            create=True,
            worker=name,
        )

    def reply(self, reply: core.Popped, caller: Caller) -> Struct:
        return answers.OneJob(job=next(job.pulled(reply, caller.limits.lease_ms_max), None))


class PullBatch(Pull, tag="PULLB", gc=False, kw_only=True):
    count: Whole

    def asked(self, caller: Caller) -> core.Command:
        if not self.count:
            raise Ready(None)
        return self._pop(caller, min(self.count, caller.limits.batch_max))

    def reply(self, reply: core.Popped | None, caller: Caller) -> Struct:
        jobs = [] if reply is None else list(job.pulled(reply, caller.limits.lease_ms_max))
        return answers.Jobs(jobs=jobs)


class Ack(AboutJob, tag="ACK", gc=False, kw_only=True):
    result: Raw | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        return (0, 0) if self.result is UNSET else (1, len(self.result))

    def asked(self, caller: Caller) -> core.Command:
        is_given = self.result is not UNSET and self.result != b"null"
        results = [bytes(self.result)] if is_given else None  # type: ignore[arg-type]
        return core.Ack(caller.tenant, ids=[self.number], owner=caller.owner, results=results)

    def reply(self, reply: core.Settled, caller: Caller) -> Struct:
        return answers.Answer()


class AckBatch(Asked, tag="ACKB", gc=False, kw_only=True):
    ids: list[Id]

    def asked(self, caller: Caller) -> core.Command:
        if not self.ids:
            raise Ready(core.Settled(0))
        return core.Ack(caller.tenant, ids=parse_ids(self.ids), owner=caller.owner, partial=True)

    def reply(self, reply: core.Settled, caller: Caller) -> Struct:
        return answers.WithIds(ids=[reply.count])

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.WithIds(ids=[0]) if isinstance(error, NotFound) else error


class Fail(AboutJob, tag="FAIL", gc=False, kw_only=True):
    error: str | None = None

    def asked(self, caller: Caller) -> core.Command:
        return core.Nack(caller.tenant, ids=[self.number], owner=caller.owner, error=self.error)

    def reply(self, reply: core.Settled, caller: Caller) -> Struct:
        return answers.Answer()


class Heartbeat(AboutJob, tag="HEARTBEAT", gc=False, kw_only=True):
    """A worker is alive: its job has its whole time again, and so have those that were pulled with it."""

    def asked(self, caller: Caller) -> core.Command:
        return core.Extend(caller.tenant, ids=[self.number], owner=caller.owner)

    def reply(self, reply: core.Extended, caller: Caller) -> Struct:
        if not reply.count:  # cancelled meanwhile
            raise job_not_found(self.id)
        return answers.Answer()
