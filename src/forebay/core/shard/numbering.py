"""Names and numbers that a shard gives out. None is ever given out twice."""

from forebay.core.bounds import NUMBERS_MAX
from forebay.core.errors import Busy
from forebay.core.ids import lease_name

SERIAL_BITS = 44
"""Bits of a serial within one epoch: enough for years, and for a million epochs."""


NAMES_SPARE = 100_000
"""Queue numbers kept in reserve: more than one command can use."""


class Numbering:
    """The counters of a shard.

    A raised epoch is committed before a loaded shard names anything, so (epoch, counter) never repeats.
    """

    __slots__ = ("counter", "dirty", "epoch", "made", "number", "queues_made", "stride", "tenants_made")

    def __init__(self, number: int, stride: int) -> None:
        self.number = number
        self.stride = stride
        """Number of shards: their numbers interleave."""
        self.epoch = 0
        self.counter = 0
        """Names given out in this epoch."""
        self.made = 0
        """Partition numbers given out, ever."""
        self.queues_made = 0
        self.tenants_made = 0
        """Numbers of queues and tenants given out, ever."""
        self.dirty = False
        """Whether a number was given out since the last seal."""

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
        if (self.made + count) * self.stride + self.number >= NUMBERS_MAX:
            raise Busy("this shard has no partition numbers left")

    def next_number(self) -> int:
        """Return a partition number that leads back to this shard by arithmetic."""
        self.skip(1)
        return self.made * self.stride + self.number

    def has_given(self, number: int) -> bool:
        """Whether a partition number was given out by this shard."""
        return number % self.stride == self.number and 1 <= number // self.stride <= self.made

    def skip(self, count: int) -> None:
        """Pass over partition numbers."""
        self.check(count)
        self.made += count
        self.dirty = True

    def skip_all(self, count: int) -> None:
        """Pass over numbers of all kinds that may have been given out unknown to the records."""
        self.skip(count)
        self.queues_made += count
        self.tenants_made += count

    # Numbers of queues and tenants lead to the shard in the same way, so that their prefixes are unique in a
    # store that several shards write to.

    def check_names(self, *, is_new_tenant: bool) -> None:
        """Raise unless there are numbers left for the queues of one command, and for a tenant that is new."""
        most = NUMBERS_MAX // self.stride
        if self.queues_made + NAMES_SPARE >= most or (is_new_tenant and self.tenants_made + 1 >= most):
            raise Busy("this shard has no numbers left for tenants or queues")

    def next_queue(self) -> int:
        self.queues_made += 1
        self.dirty = True
        return self.queues_made * self.stride + self.number

    def next_tenant(self) -> int:
        self.tenants_made += 1
        self.dirty = True
        return self.tenants_made * self.stride + self.number
