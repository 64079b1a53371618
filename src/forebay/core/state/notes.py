"""Notes kept beside messages."""

from msgspec import Struct

from forebay.core.state.segment import Log
from forebay.core.structures.table import Table


class Notes(Struct, eq=False, kw_only=True):
    """Everything of one kind that was noted of the messages of a queue, oldest first, up to a limit.

    What was noted lies in a log of its own, as messages do in a partition's: segments with bodies apart.
    """

    kind: int
    log: "Log"
    about: Table
    """(offset in the log, partition key, offset of the message)."""
    by_message: dict[int, Table]
    """*memory* (offset of the message, offset in the log), by partition key."""
