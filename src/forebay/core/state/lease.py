"""Leases."""

import re
from collections.abc import Iterator

from msgspec import Struct

from forebay.core.state.attributes import IN_LINE
from forebay.core.state.group import Group
from forebay.core.state.queue import Queue

_UNSET = re.compile("0+")


class LeaseRun(Struct, gc=False, eq=False):
    """Consecutive messages of a lease in one partition."""

    partition: int
    """The partition's key."""
    first: int
    count: int
    deliveries: int
    """This delivery included."""
    failures: int
    """Before this delivery."""
    expires_at: int
    error: str = ""
    """Error of the last failure before this delivery."""
    level: int = IN_LINE
    """Its level if it is rescheduled."""
    settled: int = 0
    """Bit i is set when message ``first + i`` was acked. (Where one is nacked, the run is cut.)"""

    @property
    def unsettled(self) -> int:
        return self.count - self.settled.bit_count()

    def gaps(self, low: int = 0, high: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (first offset, count) of the unsettled parts of a run, within [low, high) of it."""
        end = self.count if high is None else high
        if low >= end:
            return
        settled = self.settled >> low & (1 << end - low) - 1
        if not settled:
            yield self.first + low, end - low
            return
        # The bits as text, lowest first: a regular expression finds the gaps in one pass, however many there
        # are.
        bits = f"{settled:0{end - low}b}"[::-1]
        for gap in _UNSET.finditer(bits):
            yield self.first + low + gap.start(), gap.end() - gap.start()


class Lease(Struct, eq=False):
    """One delivery: what a consumer holds until it settles it or time runs out."""

    name: int
    queue: Queue
    group: Group
    runs: dict[tuple[int, int], LeaseRun]
    """By partition key and first offset. Runs of a track never overlap."""
    due_at: int
    """*memory* The earliest ``expires_at`` of its runs."""
    owner: int
    """*memory* The connection it was delivered to; 0 after a restart."""
    leased_at: int = 0
    """When it started; 0 if unknown."""
    worker: str = ""
    """Name of the consumer, if it told."""
    stored: bool = False
    """*memory* Whether a record of it exists."""
    dirty: bool = False
    """*memory* Changed since the last seal."""
    ended: bool = False
    """*memory* Whether it has ended."""
    cancelled: bool = False
    """Whether some of its messages were cancelled."""
