"""Notes kept beside messages."""

from msgspec import Struct

from forebay.core.state.segment import Log
from forebay.core.structures.table import Table


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """A delivery that failed. Stored as JSON, once for all messages that failed with it."""

    deliveries: int
    """Of each of the messages, this one included."""
    error: str
    type: str = ""
    """Type of the error, if its consumer told."""
    traceback: str = ""
    worker: str = ""
    """Name of the consumer, if it told."""


class Notes(Struct, eq=False, kw_only=True):
    """All notes of one kind in a queue, oldest first, up to a limit.

    Notes are a log of their own, like messages: segments with bodies stored apart.
    """

    kind: int
    log: "Log"
    about: Table
    """(offset in the log, partition key, offset of the message). For attempts, the last is an offset and a
    count: ``delivery.attempts`` packs them."""
    by_message: dict[int, Table]
    """*memory* (last column of ``about``, offset in the log), by partition key."""
