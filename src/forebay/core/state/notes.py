"""Notes kept beside messages."""

from msgspec import Struct

from forebay.core.state.segment import Log
from forebay.core.structures.table import Table


class Notes(Struct, eq=False, kw_only=True):
    """All notes of one kind in a queue, oldest first, up to a limit.

    Notes are a log of their own, like messages: segments with bodies stored apart.
    """

    kind: int
    log: "Log"
    about: Table
    """(offset in the log, partition key, offset of the message)."""
    by_message: dict[int, Table]
    """*memory* (offset of the message, offset in the log), by partition key."""
