"""Names and partition numbers that a shard gives out. None is ever given out twice."""

from forebay.core.bounds import NUMBERS_MAX
from forebay.core.errors import Busy
from forebay.core.ids import lease_name

SERIAL_BITS = 44
"""Bits of a serial within one epoch: enough for years, and for a million epochs."""


class Numbering:
    """The counters of a shard.

    A raised epoch is committed before a loaded shard names anything, so (epoch, counter) never repeats.
    """

    __slots__ = ("counter", "dirty", "epoch", "made", "number", "shards")

    def __init__(self, number: int, shards: int, epoch: int) -> None:
        self.number = number
        self.shards = shards
        self.epoch = epoch
        self.counter = 0
        """Names given out in this epoch."""
        self.made = 0
        """Partition numbers given out, ever."""
        self.dirty = False
        """Whether ``made`` changed since the last seal."""

    def next_name(self) -> int:
        """Return a name for a lease or a body that nothing else ever has."""
        self.counter += 1
        return lease_name(self.epoch, self.counter)

    def next_serial(self) -> int:
        """Return an integer greater than any before, across restarts."""
        self.counter += 1
        return self.epoch << SERIAL_BITS | self.counter

    def check(self, count: int) -> None:
        """Raise unless ``count`` partition numbers are left."""
        if (self.made + count) * self.shards + self.number >= NUMBERS_MAX:
            raise Busy("this shard has no partition numbers left")

    def next_number(self) -> int:
        """Return a partition number that leads back to this shard by arithmetic."""
        self.skip(1)
        return self.made * self.shards + self.number

    def skip(self, count: int) -> None:
        """Pass over partition numbers that may have been given out unknown to the records."""
        self.check(count)
        self.made += count
        self.dirty = True
