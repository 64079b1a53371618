"""Transactions: acks, nacks, pushes and writes of values in one commit, or none of them."""

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType, field

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.errors import Invalid
from forebay.server.cursors import shown_version
from forebay.server.http.operation import Asked, Id, Request, addresses, longest, shown_all
from forebay.server.http.operations.push import Message, job_of
from forebay.server.http.operations.values import Check, Mutation, writing


class Op(Struct, tag_field="op", forbid_unknown_fields=True, gc=False, kw_only=True):
    """One command of a transaction."""

    def longest(self) -> int:
        return 0


class PushOp(Op, tag="push", kw_only=True):
    """Push messages to a queue."""

    queue: str
    messages: list[Message]
    durability: str | None = None

    def longest(self) -> int:
        return longest([each.payload for each in self.messages])


class AckOp(Op, tag="ack", kw_only=True):
    """Acknowledge messages."""

    lease: str | None = None
    ids: list[Id] | UnsetType = UNSET
    group: str | None = None
    results: list[Raw] | UnsetType = UNSET

    def longest(self) -> int:
        return 0 if self.results is UNSET else longest(self.results)


class NackOp(Op, tag="nack", kw_only=True):
    """Report messages as failed."""

    lease: str | None = None
    ids: list[Id] | UnsetType = UNSET
    group: str | None = None
    error: str | None = None
    delay_ms: int | None = None
    final: bool = False


class WriteOp(Op, tag="write", kw_only=True):
    """Change keys."""

    checks: list[Check] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)

    def longest(self) -> int:
        return longest([each.value for each in self.mutations if each.value is not UNSET])


AnyOp = PushOp | AckOp | NackOp | WriteOp


class Done(Struct, gc=False, omit_defaults=True, kw_only=True):
    """The reply to a command: ``ids`` of a push, ``count`` of an ack, ``version`` of a write."""

    ids: Sequence[Id] | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    duplicates: list[int] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    version: str | UnsetType = UNSET
    deleted: int | UnsetType = UNSET


class Results(Struct, gc=False, kw_only=True):
    """The replies to the commands, in their order."""

    results: list[Done]


class Transaction(Request, kw_only=True):
    """Carry out several commands in one commit, or none of them."""

    ops: list[AnyOp]

    def nested(self) -> tuple[int, int]:
        return 5, max((op.longest() for op in self.ops), default=0)

    def command(self, asked: Asked) -> core.Command:
        return core.Transact(asked.tenant, [_command(op, asked) for op in self.ops])

    def reply(self, reply: core.Transacted, asked: Asked) -> Struct:
        return Results(results=[_result(each) for each in reply.replies])


def _command(op: AnyOp, asked: Asked) -> job_commands.PushJobs | core.Ack | core.Nack | job_commands.KvWrite:
    match op:
        case PushOp():
            jobs = [job_of(each, each.payload) for each in op.messages]
            return job_commands.PushJobs(asked.tenant, op.queue, jobs, op.durability)
        case WriteOp():
            return writing(asked.tenant, op.checks, op.mutations)
    if op.ids is UNSET and op.lease is None:
        raise Invalid("lease", "given, or else ids")
    meant = None if op.ids is UNSET else addresses(op.ids)
    settled = (asked.tenant, op.lease, meant, op.group, asked.owner)
    if isinstance(op, AckOp):
        results = None if op.results is UNSET else list(map(bytes, op.results))
        return core.Ack(*settled, results=results)
    return core.Nack(*settled, error=op.error, delay_ms=op.delay_ms, final=op.final)


def _result(reply: core.Reply) -> Done:
    match reply:
        case job_commands.PushedJobs():
            return Done(
                ids=shown_all(reply.ids),
                durability=reply.durability,
                duplicates=reply.duplicates or UNSET,
            )
        case core.Settled():
            return Done(count=reply.count)
        case _:
            assert isinstance(reply, job_commands.KvWritten)
            return Done(version=shown_version(reply.version), deleted=reply.deleted)
