"""What the model knows, field by field: messages, and a cell for each of them in every group."""

from dataclasses import dataclass, field
from functools import cached_property

from forebay.core.state import Attributes, Cleanup, QueueOptions
from tests.sim.labels import Labels

FRESH, LEASED, SCHEDULED, DEAD = "fresh", "leased", "scheduled", "dead"
PARKED = "parked"
"""It waits for other messages; it does so in every group."""
DONE, EXPIRED, CANCELLED, DISCARDED, EVICTED = "done", "expired", "cancelled", "discarded", "evicted"
DROPPED, DROPPED_DEAD = DROPS = "dropped", "dropped dead"
"""It was done, or dead, and is shown no longer."""
ENDED = (DONE, EXPIRED, CANCELLED, DISCARDED, EVICTED, *DROPS)
WAITING = (FRESH, SCHEDULED)
OPEN = (*WAITING, LEASED, PARKED)
DUE = "due"
"""What a scheduled message is called that may be delivered."""
FOREVER = 1 << 62
DAMAGED = "the message is damaged"
ACTIVE_MS = 60_000
"""How exactly it is known when a group last popped."""

Place = tuple[str, int]
"""Partition and offset."""

Said = tuple[int, list[int], int | None]
"""Until when a push is answered as it was, with which ids, and that of what waits for them."""


@dataclass
class Tied:
    """What has to be done when a message ends."""

    key: str = ""
    """The unique key that it holds and then frees."""
    keys: tuple[bytes, ...] = ()
    """Keys that get its payload if it dies."""
    watch_at: int = 0
    """When it is looked at because its time to live is over, or it was kept long enough; 0 if never."""
    cleanup: Cleanup | None = None
    completed_at: int = 0
    """When it was completed, if it is kept for a while since."""


@dataclass(eq=False)
class Message:
    payload: bytes
    created_at: int
    id: int
    pushed_at: int
    """A little after its time, which is that of the messages it is kept with; delays count from here."""
    attributes: Attributes
    withdrawn_at: int = 0
    """When it was cancelled for groups that do not exist yet; 0 if it was not."""
    queue: str = ""
    place: Place = ("", 0)
    parked: bool = False
    """Whether it waits for others."""
    unmet: "dict[int, Message]" = field(default_factory=dict)
    """Those it waits for, by id."""
    failed: "list[Message]" = field(default_factory=list)
    """Those it waited for, and that it fails with."""
    doomed: bool = False
    """Whether it is dead, or will be once it is told, of one that it depends on."""
    fallen: bool = False
    """Whether it died of that, and waits again once it is requeued."""
    hopeless: bool = False
    """Whether one that it depends on can't complete any more."""
    known_dead: "set[int]" = field(default_factory=set)
    """Those of ``unmet`` whose death it was told of, or will be."""
    mixed: bool = False
    """Whether it was doomed and saved while others were still told of it: the order is the core's."""
    tie: Tied | None = None
    gone: bool = False
    """Whether it is no longer kept."""
    was: str = ""
    """What it was for the work queue before it went."""
    lost: bool = False
    """Whether nothing of it is known any more: its partition is gone."""

    @property
    def shown(self) -> tuple[int, int]:
        """Id and time as which it is shown: those of the first, if it took the place of another."""
        return self.attributes.origin or (self.id, self.created_at)

    @property
    def labels(self) -> Labels:
        return self.attributes.headers, self.attributes.tags

    @cached_property
    def in_line(self) -> bool:
        own = self.attributes
        return own.priority == 0 and own.delay_ms == 0 and not own.lifo and not own.depends_on

    @property
    def level(self) -> int:
        return -2 * self.attributes.priority + (0 if self.attributes.lifo else 1)

    @property
    def due_at(self) -> int:
        delay_ms = self.attributes.delay_ms
        return self.pushed_at + delay_ms if delay_ms else self.created_at

    @property
    def over_at(self) -> int:
        """When its time to live ends."""
        return self.pushed_at + self.attributes.ttl_ms if self.attributes.ttl_ms else FOREVER


@dataclass
class Cell:
    """What became of one message in one group."""

    kind: str
    level: int = 1
    due_at: int = 0
    """When a scheduled message may be delivered, a leased one comes back, or an ended one ended."""
    deliveries: int = 0
    failures: int = 0
    error: str = ""
    lease: str = ""

    def end(self, kind: str, now: int) -> None:
        self.kind, self.due_at = kind, now

    def schedule(self, due_at: int) -> None:
        self.kind, self.due_at = SCHEDULED, due_at


@dataclass
class Lease:
    queue: str
    group: str
    owner: int
    cells: set[Place]
    """What is still in it."""
    cancelled: bool = False
    """Whether something in it was."""


@dataclass
class Group:
    name: str
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    """By partition; the i-th cell is that of offset i."""
    turns: dict[str, int] = field(default_factory=dict)
    turn: int = 0
    active_at: int = 0
    """When it last popped, to a minute."""


@dataclass
class Noted:
    """What is kept beside a message."""

    notes: dict[int, list[bytes]] = field(default_factory=dict)
    """By kind, oldest first."""
    progress: tuple[int, str, int] | None = None


@dataclass
class Queue:
    options: QueueOptions = field(default_factory=QueueOptions)
    messages: dict[str, list[Message]] = field(default_factory=dict)
    """By partition, in order of creation."""
    first: dict[str, int] = field(default_factory=dict)
    """By partition, where the log begins: reads, and groups that are made."""
    islands: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Offsets [low, high) below that, which are kept for the sake of what is scheduled or dead there."""
    groups: dict[str, Group] = field(default_factory=dict)
    paused_until: int = 0
    successors: dict[Place, int] = field(default_factory=dict)
    """Offset of what took the place of a message, by the first's."""
    results: dict[Place, list[bytes]] = field(default_factory=dict)
    """Results of messages that are no longer kept, by their first places."""
    noted: dict[Place, Noted] = field(default_factory=dict)
    """By the first's place."""
    emptied: dict[str, int] = field(default_factory=dict)
    """Since when a partition has had nothing, at least."""
    uniques: dict[str, Message] = field(default_factory=dict)
    """Who holds each unique key."""
    named: dict[str, Message] = field(default_factory=dict)
    """Who has each custom id: of what took the place of another, the first."""
    once: dict[tuple[str, ...], Said] = field(default_factory=dict)
    """How a push is answered that was answered before, by what it said."""
    taken: dict[str, list[list[tuple[Message, str, int]]]] = field(default_factory=dict)
    """By partition, transaction ids as they were pushed together."""
    lanes: set[str] = field(default_factory=set)
    """Partitions of which each group has one message at a time."""

    def current(self, place: Place) -> Place:
        """What has taken the place of a message; itself if nothing has."""
        return place[0], self.successors.get(place, place[1])

    def firsts(self, place: Place) -> Place:
        """The first of what a message took the place of; itself if it did not."""
        messages = self.messages[place[0]]
        first, _ = messages[place[1]].shown
        return place[0], next(at for at, message in enumerate(messages) if message.id == first)

    def size(self) -> int:
        """Messages that wait, are delayed or active, in the group that has most of them."""
        if not self.groups:
            kept = ((name, each[self.first[name] :]) for name, each in self.messages.items())
            return sum(not message.withdrawn_at for _, each in kept for message in each)
        return max(
            sum(cell.kind in OPEN for cells in group.cells.values() for cell in cells)
            for group in self.groups.values()
        )

    def holding(self, now: int) -> list[Group]:
        """The groups that keep messages from going: all that popped not long ago, all if none did."""
        idle_ms = self.options.group_idle_ms
        groups = list(self.groups.values())
        found = [
            each
            for each in groups
            if not idle_ms or each.name == "default" or now - each.active_at < idle_ms + ACTIVE_MS
        ]
        return found or groups

    def has(self, place: Place) -> bool:
        """Whether a message is still kept."""
        partition, offset = place
        islands = self.islands.get(partition, ())
        return offset >= self.first[partition] or any(low <= offset < high for low, high in islands)

    @property
    def ordered(self) -> bool:
        return self.options.ordering == "partition"

    @property
    def gated(self) -> bool:
        """Whether it holds messages back."""
        return self.options.delayed_processing_ms > 0 or self.options.window_buffer_ms > 0

    def retention_ms(self, partition: str) -> int:
        """How long messages of a partition are kept at most; 0 is for ever."""
        return self.options.retention_ms

    def opens_at(self, partition: str, at: int, cell: Cell) -> int:
        """From when on a message that waits may be delivered, as far as it goes by itself."""
        if cell.kind == SCHEDULED:
            return cell.due_at
        return self.messages[partition][at].created_at + self.options.delayed_processing_ms

    def evicts_at(self, partition: str, at: int, cell: Cell) -> int:
        """From when on a message that waits has waited too long."""
        most = self.options.max_wait_ms
        return self.opens_at(partition, at, cell) + most + 1 if most else FOREVER


@dataclass
class Taken:
    partition: str
    offset: int
    payload: bytes
    id: int
    created_at: int
    deliveries: int
    failures: int
    expires_at: int
    priority: int
    labels: Labels


def begin(message: Message) -> Cell:
    """The cell of a message that nothing has happened to."""
    if message.parked:
        return Cell(PARKED)
    if message.in_line:
        return Cell(FRESH)
    return Cell(SCHEDULED, message.level, message.due_at)


def begin_now(message: Message) -> Cell:
    """The same in a group that begins now."""
    if message.parked:
        return Cell(PARKED)
    return Cell(CANCELLED, due_at=message.withdrawn_at) if message.withdrawn_at else begin(message)
