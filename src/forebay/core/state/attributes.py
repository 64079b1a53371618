"""Delivery attributes of a run: priority, delay, ttl, attempts, backoff, dependencies, labels."""

import struct
from functools import lru_cache

from msgspec import Struct, msgpack

from forebay.core.words import EXPONENTIAL, FAIL


class Backoff(Struct, frozen=True, gc=False, array_like=True):
    """How long to wait before the n-th retry."""

    kind: str = EXPONENTIAL
    base_ms: int = 1_000
    """The wait of a fixed backoff; the first wait of an exponential one, which doubles."""
    cap_ms: int = 1_024_000
    """Longest wait of an exponential backoff."""
    jitter: float = 0.0
    """Fraction of the wait to leave out at random, so that messages that failed together spread out."""
    steps: tuple[int, ...] = ()
    """Waits of a list backoff, one per retry; the last one repeats."""


class Cleanup(Struct, frozen=True, gc=False, array_like=True):
    """When a message is dropped after it has ended in the group ``default``, earlier than its queue says."""

    on_complete: bool = False
    """As soon as it is completed."""
    on_fail: bool = False
    """As soon as it would be a dead letter."""
    keep_ms: int = 0
    """This long after it was completed; 0 is no limit."""
    keep_count: int = 0
    """When more than so many messages of its queue that have such a number were completed; 0 is no limit."""


class Attributes(Struct, frozen=True, gc=False, array_like=True):
    """Attributes shared by the messages of a run."""

    priority: int = 0
    """Higher goes first."""
    delay_ms: int = 0
    """Not delivered before this has passed."""
    lifo: bool = False
    """Newest first, before the others of the same priority."""
    ttl_ms: int = 0
    """Not delivered once this has passed since it was pushed; 0 is no limit."""
    timeout_ms: int = 0
    """How long a delivery is leased when the pop does not say; 0 is the queue's lease_ms."""
    max_attempts: int | None = None
    """Failures that make it dead, 0 is no limit; the queue's if None."""
    backoff: Backoff | None = None
    """The queue's if None."""
    origin: tuple[int, int] | None = None
    """Of a successor: id and time of the first message, which it is shown under."""
    depends_on: tuple[tuple[int, int], ...] = ()
    """(first id, count) of messages that must be completed before it is delivered."""
    on_failed: str = FAIL
    """What happens if a dependency fails: fail too, ignore it, or wait for a requeue."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers from the producer: names and values."""
    tags: tuple[str, ...] = ()
    """Tags to browse by."""
    cleanup: Cleanup | None = None
    """When it is dropped after its end; None is when its queue says."""
    stall_ms: int = 0
    """A delivery that is not extended for this long has stalled, which is no failure; 0 is no limit."""
    task: str = ""
    """Name of the task that it is a call of: events, metrics and searches tell tasks apart."""

    @property
    def weight(self) -> int:
        """Approximate bytes of headers, tags and task."""
        if not self.headers and not self.tags:
            return len(self.task)
        labels = sum(len(name) + len(value) for name, value in self.headers) + sum(map(len, self.tags))
        return labels + len(self.task)

    @property
    def in_line(self) -> bool:
        """Whether its messages are delivered in log order."""
        return not (self.priority or self.delay_ms or self.lifo or self.depends_on)

    @property
    def level(self) -> int:
        return level_of(self.priority, self.lifo)


def are_treated_alike(one: Attributes, other: Attributes) -> bool:
    """Whether messages may share a scheduled run: the first stands for all when it is leased or retried."""
    return one is other or _treatment(one) == _treatment(other)


def _treatment(of: Attributes) -> tuple[object, ...]:
    return of.ttl_ms, of.timeout_ms, of.stall_ms, of.max_attempts, of.backoff


PLAIN = Attributes()
_unpack_set = lru_cache(maxsize=4_096)(msgpack.Decoder(Attributes).decode)
_place = struct.Struct("=I").unpack_from
_bounds = struct.Struct("=II").unpack_from
PLACE_BYTES = 4
"""Bytes of one position in packed sets."""


def count_sets(sets: bytes) -> int:
    """Count the sets of attributes in a header. Their positions come first."""
    first: int = _place(sets)[0]
    return first // PLACE_BYTES - 1


def set_at(sets: bytes, at: int) -> Attributes:
    """Return one set of attributes of a header."""
    low, high = _bounds(sets, PLACE_BYTES * at)
    return _unpack_set(sets[low:high])


IN_LINE = 1
"""Level of messages in log order."""


def level_of(priority: int, lifo: bool) -> int:
    """Return the level of a priority in the order of service; the lowest is served first.

    >>> level_of(5, False), level_of(5, True), level_of(0, False), level_of(-1, True)
    (-9, -10, 1, 2)
    """
    return -2 * priority + (not lifo)


def priority_of(level: int) -> int:
    """
    >>> [priority_of(level) for level in (-9, -10, 1, 2)]
    [5, 5, 0, -1]
    """
    return -(level // 2)


BASE_MS = 1_000
"""Default first wait of a backoff."""
DOUBLINGS = 10
"""Default number of doublings of an exponential backoff."""
