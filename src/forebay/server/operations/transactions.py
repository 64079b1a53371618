"""Transactions: several requests in one commit, or none of them."""

from msgspec import UNSET

from forebay.core.api import commands as core, jobs as job_commands
from forebay.core.api.principals import Principal
from forebay.core.errors import Invalid
from forebay.server.operations.carried import Carried, Context
from forebay.server.operations.flows import PushFlow
from forebay.server.operations.pop import Ack, Nack
from forebay.server.operations.push import Push
from forebay.server.operations.values import AddValue, DeleteValue, SetValue, WriteValues
from forebay.wire.operations import transactions as wire
from forebay.wire.operations.transactions import Transacted

AnyOp = Push | PushFlow | Ack | Nack | SetValue | DeleteValue | AddValue | WriteValues


class Transact(Carried, wire.Transact):
    ops: list[AnyOp]  # type: ignore[assignment]

    def nested(self) -> tuple[int, int]:
        inner = [op.nested() for op in self.ops] or [(0, 0)]
        return max(each[0] for each in inner) + 2, max(each[1] for each in inner)

    def check_allowed(self, principal: Principal) -> None:
        for op in self.ops:
            op.check_allowed(principal)

    def command(self, context: Context) -> core.Command:
        return core.Transact(context.tenant, [_at(at, op, context) for at, op in enumerate(self.ops)])

    def reply(self, reply: core.Transacted, context: Context) -> Transacted:
        done = zip(self.ops, reply.replies, strict=True)
        return Transacted(results=[op.reply(each, context) for op, each in done])  # type: ignore[arg-type]


Command = job_commands.PushJobs | job_commands.PushFlow | core.Ack | core.Nack | job_commands.KvWrite


def _at(at: int, op: AnyOp, context: Context) -> Command:
    """Return the command of one of the requests; an error says which it is."""
    try:
        if op.reqId is not UNSET:
            raise Invalid("reqId", "left out: the transaction is answered as a whole")
        if op.tenant is not UNSET:
            raise Invalid("tenant", "left out: the transaction is of one tenant, which it names itself")
        return op.jobs_command(context) if isinstance(op, Push) else op.command(context)
    except Invalid as error:
        raise Invalid(f"ops[{at}].{error.field}", error.accepted) from None
