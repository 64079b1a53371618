"""The queue as plain lists: what Penstock should do, written as simply as it can be said.

Every message of every group has a cell. Nothing here is clever, indexed or fast.
"""

from dataclasses import dataclass, field

FRESH, LEASED, SCHEDULED, DONE = "fresh", "leased", "scheduled", "done"


@dataclass
class Message:
    payload: bytes
    created_at: int
    id: int


@dataclass
class Cell:
    """What became of one message in one group."""

    kind: str
    due_at: int = 0
    deliveries: int = 0
    failures: int = 0
    error: str = ""
    lease: str = ""


@dataclass
class Lease:
    queue: str
    group: str
    owner: int
    expires_at: int
    cells: set[tuple[str, int]]
    """(partition, offset) of what is still in it."""


@dataclass
class Group:
    name: str
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    """By partition; the i-th cell is that of offset i."""
    turns: dict[str, int] = field(default_factory=dict)
    turn: int = 0


@dataclass
class Queue:
    lease_ms: int = 30_000
    messages: dict[str, list[Message]] = field(default_factory=dict)
    """By partition, in order of creation."""
    first: dict[str, int] = field(default_factory=dict)
    """Offset of the oldest message kept."""
    groups: dict[str, Group] = field(default_factory=dict)


@dataclass
class Taken:
    partition: str
    offset: int
    payload: bytes
    id: int
    created_at: int
    deliveries: int
    failures: int


class Model:
    """All queues of one tenant."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.leases: dict[str, Lease] = {}
        self.ended: list[str] = []
        """Tokens that are live no more."""
        self.ids: set[int] = set()
        """Every id that was ever given out."""

    def advance(self, now: int) -> None:
        """Leases whose time is up end, each at its own instant."""
        for token, lease in list(self.leases.items()):
            if lease.expires_at <= now:
                for place in sorted(lease.cells):
                    self._give_back(token, place, "lease expired", lease.expires_at)
                self._end(token)

    def push(self, queue: str, partition: str, payloads: list[bytes], first_id: int, created_at: int) -> None:
        known = self.queues.setdefault(queue, Queue())
        messages = known.messages.setdefault(partition, [])
        known.first.setdefault(partition, 0)
        assert not messages or created_at >= messages[-1].created_at
        ids = range(first_id, first_id + len(payloads))
        assert self.ids.isdisjoint(ids), "an id was given out twice"
        self.ids.update(ids)
        for at, payload in enumerate(payloads):
            messages.append(Message(payload, created_at, first_id + at))
        for group in known.groups.values():
            group.turns.setdefault(partition, 0)
            group.cells.setdefault(partition, []).extend(Cell(FRESH) for _ in payloads)

    def group(self, queue: str, name: str, start: int | str) -> Group:
        """The group; a new one begins where ``start`` says."""
        known = self.queues.setdefault(queue, Queue())
        if name not in known.groups:
            group = known.groups[name] = Group(name)
            for partition, messages in known.messages.items():
                group.turns[partition] = 0
                group.cells[partition] = [
                    Cell(FRESH if self._begins(known, partition, at, start) else DONE)
                    for at in range(len(messages))
                ]
        return known.groups[name]

    def _begins(self, queue: Queue, partition: str, at: int, start: int | str) -> bool:
        if start == "new" or at < queue.first[partition]:
            return False
        return start == "all" or queue.messages[partition][at].created_at >= int(start)

    def pop(
        self, queue: str, group: str, count: int, min_count: int, partition: str | None, start: int | str
    ) -> list[Taken]:
        """What a pop takes, in order; nothing is marked as taken yet."""
        reader = self.group(queue, group, start)
        messages = self.queues[queue].messages
        names = [partition] if partition is not None else list(messages)
        available = {name: self._deliverable(reader.cells.get(name, [])) for name in names}
        if sum(map(len, available.values())) < min_count:
            return []
        taken: list[Taken] = []
        order = list(messages)
        ready = sorted(
            (name for name in names if available[name]),
            key=lambda name: (reader.turns[name], order.index(name)),
        )
        for name in ready:
            offsets = available[name][: count - len(taken)]
            if not offsets:
                break
            reader.turn += 1
            reader.turns[name] = reader.turn
            for offset in offsets:
                cell, message = reader.cells[name][offset], messages[name][offset]
                counts = cell.deliveries + 1, cell.failures
                taken.append(Taken(name, offset, message.payload, message.id, message.created_at, *counts))
        return taken

    def _deliverable(self, cells: list[Cell]) -> list[int]:
        again = sorted((cell.due_at, at) for at, cell in enumerate(cells) if cell.kind == SCHEDULED)
        return [at for _, at in again] + [at for at, cell in enumerate(cells) if cell.kind == FRESH]

    def lease(
        self, token: str, queue: str, group: str, owner: int, expires_at: int, taken: list[Taken]
    ) -> None:
        assert token not in self.leases
        assert token not in self.ended
        reader = self.queues[queue].groups[group]
        for each in taken:
            cell = reader.cells[each.partition][each.offset]
            assert cell.kind in (FRESH, SCHEDULED)
            cell.kind, cell.lease = LEASED, token
            cell.deliveries += 1
        places = {(each.partition, each.offset) for each in taken}
        self.leases[token] = Lease(queue, group, owner, expires_at, places)

    def find(
        self, message: tuple[str, str, int], token: str | None, group: str | None, owner: int
    ) -> str | None:
        """The token of the live lease that an id means, if there is one."""
        queue, partition, offset = message
        groups = self.queues[queue].groups
        holding = {
            name: cells[partition][offset].lease
            for name, cells in ((name, reader.cells) for name, reader in groups.items())
            if partition in cells
            and offset < len(cells[partition])
            and cells[partition][offset].kind == LEASED
        }
        if token is not None:
            return token if token in holding.values() else None
        if group is None and owner:
            for held in holding.values():
                if self.leases[held].owner == owner:
                    return held
        return holding.get(group or "default")

    def ack(self, token: str, places: set[tuple[str, int]]) -> None:
        lease = self.leases[token]
        cells = self.queues[lease.queue].groups[lease.group].cells
        for partition, offset in places:
            cells[partition][offset].kind = DONE
        self._leave(token, places)

    def nack(self, token: str, places: set[tuple[str, int]], error: str, now: int) -> None:
        for place in places:
            self._give_back(token, place, error, now)
        self._leave(token, places)

    def _give_back(self, token: str, place: tuple[str, int], error: str, now: int) -> None:
        lease = self.leases[token]
        cell = self.queues[lease.queue].groups[lease.group].cells[place[0]][place[1]]
        cell.kind, cell.due_at, cell.error = SCHEDULED, now, error
        cell.failures += 1

    def _leave(self, token: str, places: set[tuple[str, int]]) -> None:
        self.leases[token].cells -= places
        if not self.leases[token].cells:
            self._end(token)

    def _end(self, token: str) -> None:
        del self.leases[token]
        self.ended.append(token)

    def trimmed(self, queue: str, partition: str, first: int) -> None:
        """Messages below ``first`` are gone; only what every group settled may go."""
        known = self.queues[queue]
        for offset in range(known.first[partition], first):
            assert known.groups, "nobody has read the queue, so nothing may go"
            for group in known.groups.values():
                assert group.cells[partition][offset].kind == DONE, (queue, partition, offset, group.name)
        known.first[partition] = first
