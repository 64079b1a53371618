"""Delivery attributes of a run: priority, delay, ttl, attempts, backoff, dependencies, labels."""

import struct
from functools import lru_cache

from msgspec import Struct, msgpack

from forebay.core.words import EXPONENTIAL, FAIL


class Backoff(Struct, frozen=True, gc=False, array_like=True):
    """How long to wait before the n-th retry."""

    kind: str = EXPONENTIAL
    base_ms: int = 1_000
    """Of fixed, the wait; of exponential, the first one, which then doubles."""
    cap_ms: int = 1_024_000
    """Of exponential: the longest wait."""
    jitter: float = 0.0
    """How much of the wait may be left out, so that what failed together does not return together."""
    steps: tuple[int, ...] = ()
    """Of list: the waits, one a retry; the last one repeats."""


class Attributes(Struct, frozen=True, gc=False, array_like=True):
    """What the messages of a run share besides their time."""

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
    """Of a message that took the place of another: id and time of the first, as which it is shown."""
    depends_on: tuple[tuple[int, int], ...] = ()
    """(first id, count) of messages that must be completed before it is delivered."""
    on_failed: str = FAIL
    """What becomes of it if one of them fails: it fails too, ignores that, or waits for a requeue."""
    headers: tuple[tuple[str, str], ...] = ()
    """What its producer says of it, for whoever delivers it: names and values."""
    tags: tuple[str, ...] = ()
    """What it is filed under."""

    @property
    def weight(self) -> int:
        """Bytes that headers and tags take up, about."""
        if not self.headers and not self.tags:
            return 0
        return sum(len(name) + len(value) for name, value in self.headers) + sum(map(len, self.tags))

    @property
    def in_line(self) -> bool:
        """Whether its messages are delivered in the order they came, unless something happens to them."""
        return not (self.priority or self.delay_ms or self.lifo or self.depends_on)

    @property
    def level(self) -> int:
        return level_of(self.priority, self.lifo)


PLAIN = Attributes()
_unpack_set = lru_cache(maxsize=4_096)(msgpack.Decoder(Attributes).decode)
_place = struct.Struct("=I").unpack_from
_bounds = struct.Struct("=II").unpack_from
PLACE_BYTES = 4
"""Bytes of one place in packed sets."""


def count_sets(sets: bytes) -> int:
    """How many sets of attributes a header has. They begin with where each of them begins, and their end."""
    first: int = _place(sets)[0]
    return first // PLACE_BYTES - 1


def set_at(sets: bytes, at: int) -> Attributes:
    """One of the sets of attributes that a header has."""
    low, high = _bounds(sets, PLACE_BYTES * at)
    return _unpack_set(sets[low:high])


IN_LINE = 1
"""The level of messages that are delivered as they came."""


def level_of(priority: int, lifo: bool) -> int:
    """Where in the order of service a priority is: the lowest level first, and ``IN_LINE`` is that of most.

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
"""The first wait of a backoff that does not say."""
DOUBLINGS = 10
"""How often an exponential backoff doubles when nobody says where it ends."""
