"""The parts of a shard beside its queues: crons, values, named limits, events, watched messages."""

from collections import Counter

from forebay.core.state import Cron, EmittedEvent, EventLog, Limiter, NamedLimit, Tally, Values


class Crons:
    """The crons of a shard's tenants."""

    __slots__ = ("by_tenant", "bytes", "held")

    def __init__(self) -> None:
        self.by_tenant: dict[str, dict[str, Cron]] = {}
        """By tenant and name."""
        self.bytes: Counter[str] = Counter()
        """Payload bytes, by tenant."""
        self.held: set[str] = set()
        """Tenants whose crons do not fire now: they are suspended."""


class ValueStore:
    """The keys and values of a shard's tenants."""

    __slots__ = ("by_tenant", "is_watched", "touched")

    def __init__(self) -> None:
        self.by_tenant: dict[str, Values] = {}
        self.is_watched = False
        """Whether anybody watches keys."""
        self.touched: dict[tuple[str, bytes], None] = {}
        """Keys that changed while there were watchers, with their tenants."""


class NamedLimits:
    """The limits that queues of a tenant share, by tenant and name."""

    __slots__ = ("limiters", "limits")

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, NamedLimit]] = {}
        """As they were set."""
        self.limiters: dict[str, dict[str, Limiter]] = {}
        """What they hold back now."""


class Events:
    """The event log of a shard, and its counters."""

    __slots__ = ("emitted", "listening", "log", "tallies")

    def __init__(self) -> None:
        self.log: EventLog | None = None
        """None before the first event."""
        self.tallies: dict[bytes, Tally] = {}
        """Counters since the shard was loaded, by queue prefix."""
        self.listening = False
        """Whether there are subscribers of events."""
        self.emitted: list[EmittedEvent] = []
        """Events of the last seal, if there are subscribers."""


class WatchedMessages:
    """Messages whose end a client waits for."""

    __slots__ = ("by_partition", "changed")

    def __init__(self) -> None:
        self.by_partition: dict[int, set[int]] = {}
        """Their offsets, by partition key."""
        self.changed: list[tuple[int, int]] = []
        """Partition key and offset of those that changed, which are watched no more."""

    def add(self, partition: int, offset: int) -> None:
        self.by_partition.setdefault(partition, set()).add(offset)

    def remove(self, partition: int, offset: int) -> None:
        offsets = self.by_partition.get(partition)
        if offsets is not None:
            offsets.discard(offset)
            if not offsets:
                del self.by_partition[partition]

    def notify(self, partition: int, first: int, end: int) -> None:
        """Report watched messages of [first, end), which changed and may have ended."""
        watched = self.by_partition.get(partition)
        if watched:
            few = watched if len(watched) < end - first else range(first, end)
            hit = [each for each in few if first <= each < end and each in watched]
            self.changed += [(partition, each) for each in hit]
            watched.difference_update(hit)
            if not watched:
                del self.by_partition[partition]
