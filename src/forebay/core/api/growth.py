"""Which commands make a store larger: those that are refused when its disk is nearly full."""

from forebay.core.api.commands import AddNote, Arrive, Command, Push, PushMany, Transact, Update
from forebay.core.api.jobs import CronPut, KvWrite, PushFlow, PushJobs
from forebay.core.api.stages import Adopt, StageWrite
from forebay.core.words import DELETE, EXPIRE

_GROWING = (
    AddNote,
    Adopt,
    Arrive,
    CronPut,
    Push,
    PushFlow,
    PushJobs,
    PushMany,
    StageWrite,
    Update,
)


def grows(command: Command) -> bool:
    """Whether a command adds messages, notes, values or crons.

    Everything that drains does not: pops, acks, nacks, moves, purges and deletes write a little at first,
    and free more in the end. Nor does a change of options, which may be a shorter retention.
    """
    if isinstance(command, Transact):
        return any(map(grows, command.ops))
    if isinstance(command, KvWrite):
        return any(change.kind not in (DELETE, EXPIRE) for change in command.changes)
    return isinstance(command, _GROWING)
