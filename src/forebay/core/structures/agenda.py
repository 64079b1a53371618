"""Timers: a heap of instants, and the items due at each.

Leases of one duration expire in the order they were taken, and most end long before. A heap of leases would
keep ended ones until their time; here an item is removed at once, and only its instant stays in the heap.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from forebay.core.bounds import NEVER

T = TypeVar("T", bound=Hashable)
_SLACK = 64
"""Empty instants tolerated before the heap is rebuilt."""


class Agenda(Generic[T]):
    """Items by due time.

    >>> agenda = Agenda[str]()
    >>> agenda.add(20, "b"); agenda.add(10, "a"); agenda.remove(10, "a")
    >>> agenda.next_at(), agenda.first_due(19), agenda.first_due(20)
    (20, [], ['b'])
    """

    __slots__ = ("_at", "_instants")

    def __init__(self) -> None:
        self._instants: list[int] = []
        self._at: dict[int, dict[T, None]] = {}

    def add(self, at: int, item: T) -> None:
        items = self._at.get(at)
        if items is None:
            self._at[at] = {item: None}
            heappush(self._instants, at)
        else:
            items[item] = None

    def remove(self, at: int, item: T) -> None:
        items = self._at[at]
        del items[item]
        if not items:
            del self._at[at]
            if len(self._instants) > 2 * len(self._at) + _SLACK:
                self._forget_empty()

    def next_at(self) -> int:
        """Return the next due time; ``NEVER`` if there is none."""
        instants = self._instants
        while instants:
            if instants[0] in self._at:
                return instants[0]
            heappop(instants)
        return NEVER

    def first_due(self, now: int) -> list[T]:
        """Return the items of the earliest due time, if it has come; they stay until removed."""
        at = self.next_at()
        return list(self._at[at]) if at <= now else []

    def _forget_empty(self) -> None:
        self._instants = list(self._at)
        heapify(self._instants)


class Alarm:
    """The earliest due time of a shard, which also brings forward that of the engine.

    It starts as due, so that a new shard is looked at.

    >>> engine = Alarm(); shard = Alarm(engine.sooner)
    >>> engine.at = shard.at = 9
    >>> shard.sooner(7); shard.sooner(8)
    >>> shard.at, engine.at
    (7, 7)
    """

    __slots__ = ("at", "on_sooner")

    def __init__(self, on_sooner: Callable[[int], None] | None = None) -> None:
        self.at = 0
        self.on_sooner = on_sooner

    def sooner(self, at: int) -> None:
        if at < self.at:
            self.at = at
            if self.on_sooner is not None:
                self.on_sooner(at)
