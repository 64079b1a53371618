"""Ended messages, and the queue of dependents still to be notified."""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from forebay.core.state import Partition, Queue

if TYPE_CHECKING:
    from forebay.core.shard.shard import Shard


class Ended(NamedTuple):
    """Messages [first, end) ended, for the work queue, in one way."""

    shard: "Shard"
    queue: Queue
    partition: Partition
    first: int
    end: int
    how: int


class Notification(Struct, eq=False):
    """Messages that ended, and how far their dependents have been told."""

    ended: Ended
    serial: int
    """Smaller than that of what ended later."""
    reached: tuple[int, int]
    """The row of ``Partition.dependents`` to go on with."""


class NotificationQueue(Struct, eq=False):
    """What ended in a partition, in order, and has dependents that are told of it a number at a time."""

    waiting: deque[Notification]
    later: dict[tuple[int, int], int] = {}
    """Rows of dependents made meanwhile: the newest serial there was. Nothing before that is theirs."""
