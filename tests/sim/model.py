"""The queue as plain lists: what Forebay should do, written as simply as it can be said.

Every message of every group has a cell. Nothing here is clever, indexed or fast.

Some things are taken over from the core as they are, for they can be seen from outside: a message whose time
to live is over becomes ``expired`` when a pop meets it, and counts as waiting or delayed before; one that has
waited too long becomes ``evicted`` when a pop or a sweep meets it; and a group that was made behind many
messages that are not in line sees them little by little (``planned`` in ``pop``).
"""

from collections.abc import Iterable
from itertools import takewhile

from forebay.core.delivery import deferral
from forebay.core.state import Attributes, Backoff, QueueOptions
from tests.sim.state import (
    ACTIVE_MS as ACTIVE_MS,
    CANCELLED as CANCELLED,
    DAMAGED as DAMAGED,
    DEAD as DEAD,
    DISCARDED as DISCARDED,
    DONE as DONE,
    DROPPED as DROPPED,
    DROPPED_DEAD as DROPPED_DEAD,
    DROPS as DROPS,
    DUE as DUE,
    ENDED as ENDED,
    EVICTED as EVICTED,
    EXPIRED as EXPIRED,
    FOREVER as FOREVER,
    FRESH as FRESH,
    LEASED as LEASED,
    OPEN as OPEN,
    PARKED as PARKED,
    SCHEDULED as SCHEDULED,
    WAITING as WAITING,
    Cell as Cell,
    Group as Group,
    Lease as Lease,
    Message as Message,
    Noted as Noted,
    Place as Place,
    Queue as Queue,
    Said as Said,
    Taken as Taken,
    Tied as Tied,
    begin as begin,
    begin_now as begin_now,
)


class Basics:
    """All queues of one tenant: push, pop, and what becomes of a delivery."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.leases: dict[str, Lease] = {}
        self.ended: list[str] = []
        """Tokens that are live no more."""
        self.emptied: set[str] = set()
        """Those of them whose last message was cancelled, as long as the process lives."""
        self.now = 0
        self.ids: dict[int, Message] = {}
        """Every id that was ever given out."""

    def queue(self, name: str) -> Queue:
        return self.queues.setdefault(name, Queue())

    def advance(self, now: int) -> None:
        """Leased messages whose time is up come back, each at its own instant, and pauses end."""
        self.now = now
        for token, lease in list(self.leases.items()):
            requeue = self.queues[lease.queue].options.on_lease_expiry == "requeue"
            while lease.cells:
                at = min(self.cell(lease, place).due_at for place in lease.cells)
                if at > now:
                    break
                over = {place for place in lease.cells if self.cell(lease, place).due_at == at}
                self._give_up(token, over, "lease expired", at, None, requeue=requeue)
        for queue in self.queues.values():
            if queue.paused_until <= now:
                queue.paused_until = 0

    # What comes in, and who reads it.

    def push(
        self,
        queue: str,
        partition: str,
        payloads: list[bytes],
        first_id: int,
        created_at: int,
        attributes: Attributes,
        now: int,
        *,
        parked: bool = False,
    ) -> list[Message]:
        """What was pushed; if it is ``parked``, it waits for others."""
        known = self.queue(queue)
        messages = known.messages.setdefault(partition, [])
        known.first.setdefault(partition, 0)
        known.emptied.pop(partition, None)
        assert (messages[-1].created_at if messages else 0) <= created_at <= now
        ids = range(first_id, first_id + len(payloads))
        assert self.ids.keys().isdisjoint(ids), "an id was given out twice"
        new = [Message(each, created_at, first_id + at, now, attributes) for at, each in enumerate(payloads)]
        for at, message in enumerate(new, len(messages)):
            message.queue, message.place, message.parked = queue, (partition, at), parked
            self.ids[message.id] = message
        messages += new
        for group in known.groups.values():
            group.turns.setdefault(partition, 0)
            group.cells.setdefault(partition, []).extend(map(begin, new))
        return new

    def group(self, queue: str, name: str, start: int | str) -> Group:
        """The group; a new one begins where ``start`` says."""
        known = self.queue(queue)
        if name not in known.groups:
            group = known.groups[name] = Group(name, active_at=self.now)
            for partition, messages in known.messages.items():
                group.turns[partition] = 0
                group.cells[partition] = [Cell(DONE) for _ in messages]
                for at, message in enumerate(messages):
                    if message.parked or self._begins(known, partition, at, start):
                        group.cells[partition][at] = begin_now(message)
        return known.groups[name]

    def _begins(self, queue: Queue, partition: str, at: int, start: int | str) -> bool:
        if start == "new" or at < queue.first[partition]:
            return False
        return start == "all" or queue.messages[partition][at].created_at >= int(start)

    # Pop.

    def deliverable(
        self, queue: str, group: str, partition: str | None, now: int, planned: dict[str, int]
    ) -> dict[str, list[int]]:
        """By partition, what a pop may meet now; ``planned`` says how much of what is not in line it sees."""
        known = self.queues[queue]
        if known.paused_until > now:
            return {}
        return {
            name: self._open(known, known.groups[group], name, now, planned.get(name, FOREVER))
            for name in ([partition] if partition is not None else known.messages)
        }

    def _open(self, queue: Queue, group: Group, partition: str, now: int, planned: int) -> list[int]:
        cells, messages = group.cells.get(partition, []), queue.messages.get(partition, [])
        waiting = [at for at, cell in enumerate(cells) if cell.kind in WAITING]
        hidden = {at for at in waiting if at >= planned and not messages[at].in_line}
        newest = len(cells) - 1 if hidden else max(waiting, default=-1)
        window = queue.options.window_buffer_ms
        if window and waiting and messages[newest].created_at > now - window:
            return []
        found = [at for at in waiting if at not in hidden and queue.opens_at(partition, at, cells[at]) <= now]
        if not queue.ordered:
            return found
        if any(cell.kind == LEASED for cell in cells):
            return []
        seen = {at for at in found if at < planned or cells[at].kind == SCHEDULED}
        return list(takewhile(seen.__contains__, waiting))

    def counted(
        self, queue: str, group: str, partition: str | None, now: int, planned: dict[str, int]
    ) -> int:
        """How many messages ``min_count`` counts: nothing that has waited too long, or is over a limit."""
        known = self.queues[queue]
        reader = known.groups[group]
        total = 0
        for name, found in self.deliverable(queue, group, partition, now, planned).items():
            cells = reader.cells.get(name, [])
            here = sum(now < known.evicts_at(name, at, cells[at]) for at in found)
            total += min(here, self.partition_room(queue, reader, name, now))
        return total

    def pop(
        self,
        queue: str,
        group: str,
        count: int,
        min_count: int,
        partition: str | None,
        lease_ms: int | None,
        now: int,
        planned: dict[str, int],
        got: int = FOREVER,
    ) -> list[Taken]:
        """What a pop takes, in order. What it takes is not marked yet, what it finds over is.

        Where bytes are limited, it may have ``got`` enough before a message that is too large.
        """
        known = self.queues[queue]
        reader = known.groups[group]
        if now - reader.active_at >= ACTIVE_MS:
            reader.active_at = now
        left = self.deliverable(queue, group, partition, now, planned)
        taken: list[Taken] = []
        if min_count > 1 and self.counted(queue, group, partition, now, planned) < min_count:
            return taken
        order = list(known.messages)
        count = min(count, self.allowed(queue, reader, now))
        if count < min_count:
            return taken
        room = {name: self.partition_room(queue, reader, name, now) for name in left}
        bytes_left = self.bytes_allowed(queue, reader, now)
        while len(taken) < count and any(found and room[name] for name, found in left.items()):
            level, _, _, name = min(
                (
                    min(reader.cells[name][at].level for at in found),
                    reader.turns[name],
                    order.index(name),
                    name,
                )
                for name, found in left.items()
                if found and room[name]
            )
            before = len(taken)
            ordered = known.ordered
            for at in list(left[name]) if ordered else _line(reader.cells[name], level, left[name]):
                message, cell = known.messages[name][at], reader.cells[name][at]
                ended = self._ended(known, name, at, cell, now)
                size = len(message.payload)
                too_large = ended is None and size > bytes_left
                if bytes_left <= 0:
                    # What is empty may come along, if nothing is owed.
                    enough = too_large or ended is not None or len(taken) == got
                else:
                    enough = too_large and len(taken) == got
                if enough:
                    count = len(taken)
                if len(taken) == count or not room[name]:
                    break
                left[name].remove(at)
                if ended is not None:
                    cell.end(ended, now)
                    continue
                room[name] -= 1
                bytes_left -= size
                lasts = lease_ms or message.attributes.timeout_ms or known.options.lease_ms
                taken.append(
                    Taken(
                        name,
                        at,
                        message.payload,
                        *message.shown,
                        cell.deliveries + 1,
                        cell.failures,
                        now + lasts,
                        -(level // 2),
                        message.labels,
                    )
                )
            if len(taken) > before:
                reader.turn += 1
                reader.turns[name] = reader.turn
        return taken

    def allowed(self, queue: str, group: Group, now: int) -> int:
        """How many messages limits let a group have now."""
        return FOREVER

    def bytes_allowed(self, queue: str, group: Group, now: int) -> int:
        """How many bytes: one message may be more than is left of them."""
        return FOREVER

    def partition_room(self, queue: str, group: Group, partition: str, now: int) -> int:
        """How many of them from one partition."""
        return FOREVER

    def came_back(self, message: Message, now: int) -> None:
        """A delivery of a message ended, and it waits again."""

    def _ended(self, queue: Queue, partition: str, at: int, cell: Cell, now: int) -> str | None:
        """What a pop finds to be over; who has waited too long is evicted, expired or not."""
        if queue.evicts_at(partition, at, cell) <= now:
            return EVICTED
        return EXPIRED if queue.messages[partition][at].over_at <= now else None

    def sweep(self, queue: str, now: int, planned: dict[str, dict[str, int]]) -> None:
        """Evict what has waited too long; ``planned`` is that of each group."""
        known = self.queues[queue]
        for group in known.groups.values():
            for name, cells in group.cells.items():
                for at, cell in enumerate(cells):
                    seen = at < planned[group.name][name] or known.messages[name][at].in_line
                    if seen and cell.kind in WAITING and known.evicts_at(name, at, cell) <= now:
                        cell.end(EVICTED, now)

    def lease(self, token: str, queue: str, group: str, owner: int, taken: list[Taken]) -> None:
        assert token not in self.leases
        assert token not in self.ended
        reader = self.queues[queue].groups[group]
        for each in taken:
            cell = reader.cells[each.partition][each.offset]
            assert cell.kind in (FRESH, SCHEDULED)
            cell.kind, cell.lease, cell.due_at = LEASED, token, each.expires_at
            cell.deliveries += 1
        self.leases[token] = Lease(queue, group, owner, {(each.partition, each.offset) for each in taken})

    # What becomes of a delivery.

    def find(self, queue: str, place: Place, token: str | None, group: str | None, owner: int) -> str | None:
        """The token of the live lease that an id means, if there is one."""
        partition, offset = place
        holding = {
            name: reader.cells[partition][offset].lease
            for name, reader in self.queues[queue].groups.items()
            if reader.cells[partition][offset].kind == LEASED
        }
        if token is not None:
            return token if token in holding.values() else None
        if group is None and owner:
            for held in holding.values():
                if self.leases[held].owner == owner:
                    return held
        return holding.get(group or "default")

    def cell(self, lease: Lease, place: Place) -> Cell:
        return self.queues[lease.queue].groups[lease.group].cells[place[0]][place[1]]

    def ack(self, token: str, places: set[Place]) -> None:
        for place in places:
            self.cell(self.leases[token], place).kind = DONE
        self._leave(token, places)

    def nack(self, token: str, places: set[Place], error: str, delay_ms: int | None, now: int) -> None:
        self._give_up(token, places, error, now, delay_ms)

    def _give_up(
        self,
        token: str,
        places: set[Place],
        error: str,
        now: int,
        delay_ms: int | None,
        *,
        requeue: bool = False,
    ) -> None:
        """Deliveries failed; in strict order the first of each partition, and what is behind it comes back.

        If it is to ``requeue``, nothing counts as a failure.
        """
        lease = self.leases[token]
        failed = set(places)
        if self.queues[lease.queue].ordered:
            first = {name: min(at for other, at in places if other == name) for name, _ in places}
            failed = set(first.items())
            places = {place for place in lease.cells if place[1] >= first.get(place[0], FOREVER)}
        for place in places:
            if place in failed and not requeue:
                self._fail(lease, place, error, now, delay_ms)
            else:
                self._come_back(lease, place, now)
        self._leave(token, places)

    def put_off(self, token: str, places: set[Place], now: int) -> None:
        """What could not be read failed, and comes again when the lease would have ended.

        In strict order that is the first of ``places`` in each partition; the others come back.
        """
        lease = self.leases[token]
        failed = places
        if self.queues[lease.queue].ordered:
            failed = {min(place for place in places if place[0] == name) for name, _ in places}
        for place in places:
            if place in failed:
                self._fail(lease, place, DAMAGED, now, self.cell(lease, place).due_at - now)
            else:
                self._come_back(lease, place, now)
        self._leave(token, places)

    def step_over(self, cells: Iterable[Cell], due_at: int) -> None:
        """The rest of what could not be read comes along, if it waits and is due earlier."""
        for cell in cells:
            if cell.kind == FRESH:
                cell.schedule(due_at)
                cell.error = DAMAGED
            elif cell.kind == SCHEDULED:
                cell.due_at = max(cell.due_at, due_at)

    def give_back(self, token: str, now: int) -> None:
        """As if it had never been delivered."""
        places = set(self.leases[token].cells)
        for place in places:
            cell = self.cell(self.leases[token], place)
            cell.schedule(now)
            cell.deliveries -= 1
            self.came_back(self._message(self.leases[token], place), now)
        self._leave(token, places)

    def defer(self, token: str, places: set[Place], why: str, defer_ms: int, now: int) -> None:
        """Nobody can handle it yet. In strict order that is the first of each partition, and all go back."""
        lease = self.leases[token]
        first = {name: min(at for other, at in places if other == name) for name, _ in places}
        for place in places:
            cell = self.cell(lease, place)
            cell.deliveries -= 1
            if self.queues[lease.queue].ordered and place[1] != first[place[0]]:
                cell.schedule(now)
                self.came_back(self._message(lease, place), now)
                continue
            since = deferral.since(cell.error) or now
            cell.error = deferral.told(since, why)
            if now >= since + defer_ms:
                self._die(cell, self.queues[lease.queue].options, now, cell.error)
                continue
            cell.schedule(min(now + max(now - since, 1_000), now + 5_000, since + defer_ms))
            self.came_back(self._message(lease, place), now)
        self._leave(token, places)

    def extend(self, token: str, lease_ms: int | None, now: int) -> int:
        """The earliest end of the lease."""
        lease = self.leases[token]
        cells = {place: self.cell(lease, place) for place in lease.cells}
        for place, cell in cells.items():
            own_ms = self._message(lease, place).attributes.timeout_ms
            own_ms = lease_ms or own_ms or self.queues[lease.queue].options.lease_ms
            cell.due_at = max(cell.due_at, now + own_ms)
        return min(cell.due_at for cell in cells.values())

    def _fail(self, lease: Lease, place: Place, error: str, now: int, delay_ms: int | None) -> None:
        """One failure more: dead, or to be delivered again after a while."""
        cell, options = self.cell(lease, place), self.queues[lease.queue].options
        own = self.queues[lease.queue].messages[place[0]][place[1]].attributes
        cell.failures += 1
        cell.error = error
        most = options.max_attempts
        if own.max_attempts is not None:
            most = own.max_attempts
        elif own.backoff is not None and own.backoff.kind == "list":
            most = len(own.backoff.steps) + 1
        if 0 < most <= cell.failures:
            self._die(cell, options, now, error or "failed too often")
        else:
            wait = _wait(own.backoff or options.backoff, cell.failures) if delay_ms is None else delay_ms
            self._come_back(lease, place, now, wait, error or "failed too often")

    def _come_back(self, lease: Lease, place: Place, now: int, wait: int = 0, why: str = "") -> None:
        cell, options = self.cell(lease, place), self.queues[lease.queue].options
        if deferral.since(cell.error) is not None:
            cell.error = ""
        if 0 < options.max_deliveries <= cell.deliveries:
            self._die(cell, options, now, why or cell.error or "delivered too often")
        else:
            cell.schedule(now + wait)
            self.came_back(self._message(lease, place), now)

    def _message(self, lease: Lease, place: Place) -> Message:
        return self.queues[lease.queue].messages[place[0]][place[1]]

    def _die(self, cell: Cell, options: QueueOptions, now: int, why: str) -> None:
        cell.error = why
        cell.end(DEAD if options.dead_letters else DISCARDED, now)

    def _leave(self, token: str, places: Iterable[Place]) -> None:
        self.leases[token].cells -= set(places)
        if not self.leases[token].cells:
            del self.leases[token]
            self.ended.append(token)

    def restart(self) -> None:
        """The process forgets whose leases were whose, and which of those that ended were cancelled."""
        self.emptied.clear()
        for lease in self.leases.values():
            lease.owner = 0
        for queue in self.queues.values():
            for group in queue.groups.values():
                group.turn = max(group.turns.values(), default=0)


def _line(cells: list[Cell], level: int, found: list[int]) -> list[int]:
    """Those of a level in the order they are delivered: what was scheduled, then what is fresh."""
    line = [at for at in found if cells[at].level == level]
    if level % 2 == 0:
        return sorted(line, key=lambda at: (cells[at].due_at, at), reverse=True)
    return sorted(line, key=lambda at: (cells[at].kind == FRESH, cells[at].due_at, at))


def _wait(backoff: Backoff, failures: int) -> int:
    match backoff.kind:
        case "none":
            return 0
        case "fixed":
            return backoff.base_ms
        case "list":
            return backoff.steps[min(failures, len(backoff.steps)) - 1]
        case _:
            return int(min(backoff.base_ms * 2 ** (failures - 1), backoff.cap_ms))
