"""Ended messages, and the queue of dependents still to be notified."""

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from forebay.core.state import Partition, Queue


class Ended(NamedTuple):
    """Messages [first, end) that ended in the group ``default``, all in one way."""

    queue: Queue
    partition: Partition
    first: int
    end: int
    how: int


class Notification(Struct, eq=False):
    """Ended messages, and how far their dependents have been notified."""

    ended: Ended
    serial: int
    """Increases with every end."""
    reached: tuple[int, int]
    """The row of ``Partition.dependents`` to continue with."""


class NotificationQueue(Struct, eq=False):
    """FIFO of ended ranges of a partition whose dependents are notified in batches."""

    waiting: deque[Notification]
    later: dict[tuple[int, int], int] = {}
    """Rows of dependents added meanwhile, with the newest serial then: earlier ends are not for them."""
