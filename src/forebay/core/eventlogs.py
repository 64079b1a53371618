"""What a shard knows of its log of events."""

from msgspec import Struct

from forebay.core.model import Partition, Queue


class Told(Struct, frozen=True, gc=False):
    """An event that is about to be kept."""

    shard: int
    offset: int
    kind: int
    tenant: str
    queue: str
    payload: bytes
    """JSON."""


class EventLog(Struct, eq=False):
    """The events of one shard."""

    queue: Queue
    partition: Partition
    tail: list[bytes]
    """Keys of the records that the open segment is kept in."""
