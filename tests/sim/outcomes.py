"""The queue as plain lists, continued: what is done to messages that wait, and what goes."""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from forebay.core.state import Attributes
from forebay.core.words import RESULT
from tests.sim.model import (
    CANCELLED,
    DEAD,
    DISCARDED,
    DONE,
    ENDED,
    FRESH,
    LEASED,
    OPEN,
    SCHEDULED,
    WAITING,
    Basics,
    Cell,
    Group,
    Message,
    Noted,
    Place,
    Queue,
    begin_now,
)

GIVEN_UP = "discarded"


class Model(Basics):
    """All queues of one tenant."""

    # Cancel, move, dead letters.

    def cancel(self, queue: str, place: Place, group: str | None, now: int) -> bool:
        """Cancel a message in a group, or in all and those to come; whether that changed anything."""
        known = self.queues[queue]
        partition, offset = place
        if not known.has(place):
            return False
        message = known.messages[partition][offset]
        if group is not None:
            return group in known.groups and self._cancel(known.groups[group], place, now)
        changed = [self._cancel(each, place, now, OPEN) for each in known.groups.values()]
        done = any(changed) if changed else not message.withdrawn_at
        if message.parked:
            message.parked = False
            message.unmet.clear()
        if done and not message.withdrawn_at and offset >= known.first[partition]:
            message.withdrawn_at = now
        return done

    def _cancel(
        self, group: Group, place: Place, now: int, kinds: Collection[str] = (FRESH, SCHEDULED, LEASED)
    ) -> bool:
        cell = group.cells[place[0]][place[1]]
        if cell.kind not in kinds:
            return False
        if cell.kind == LEASED:
            self._take_away(cell, place)
        cell.end(CANCELLED, now)
        return True

    def _take_away(self, cell: Cell, place: Place) -> None:
        """Take a message from its consumer, who is told when he asks."""
        self.leases[cell.lease].cancelled = True
        self._leave(cell.lease, [place])
        if cell.lease not in self.leases:
            self.emptied.add(cell.lease)

    def move(
        self,
        queue: str,
        place: Place,
        group: str,
        delay_ms: int | None,
        priority: int | None,
        now: int,
        *,
        only_delayed: bool = False,
    ) -> bool:
        """Give a message another time or priority in a group that exists; whether it could be."""
        cell = self.queues[queue].groups[group].cells[place[0]][place[1]]
        if cell.kind not in (FRESH, SCHEDULED, LEASED) or not self.queues[queue].has(place):
            return False
        if only_delayed and not (cell.kind == SCHEDULED and cell.due_at > now):
            return False
        if cell.kind == LEASED:
            if delay_ms is None:
                return False
            self._leave(cell.lease, [place])
            cell.deliveries -= 1
        if delay_ms is not None:
            cell.schedule(now + delay_ms)
        elif cell.kind == FRESH:
            cell.schedule(now)
        if priority is not None:
            cell.level = -2 * priority + cell.level % 2
        return True

    def dead(self, queue: str, group: str) -> list[Place]:
        """The dead letters of a group, by partition and offset."""
        known = self.queues[queue]
        return [
            (partition, at)
            for partition in (known.messages if group in known.groups else ())
            for at, cell in enumerate(known.groups[group].cells[partition])
            if cell.kind == DEAD
        ]

    def requeue(self, queue: str, place: Place, group: str, now: int, *, seen: bool) -> None:
        """A dead letter is delivered again as if for the first time.

        A group that has not ``seen`` it yet finds it where it was pushed.
        """
        known = self.queues[queue]
        cell = known.groups[group].cells[place[0]][place[1]]
        cell.schedule(now if seen else known.messages[place[0]][place[1]].due_at)
        cell.deliveries, cell.failures, cell.error = 0, 0, ""

    def purge(self, queue: str, place: Place, group: str, now: int) -> None:
        self.queues[queue].groups[group].cells[place[0]][place[1]].end(DISCARDED, now)

    def discard(self, queue: str, place: Place, group: str, now: int) -> bool:
        """Give a message up in a group that exists; whether it could be."""
        known = self.queues[queue]
        cell = known.groups[group].cells[place[0]][place[1]]
        if cell.kind not in (FRESH, SCHEDULED, LEASED):
            return False
        if cell.kind == LEASED:
            self._take_away(cell, place)
        self._die(cell, known.options, now, cell.error or GIVEN_UP)
        return True

    # Update.

    def may_update(self, queue: str, place: Place, now: int) -> bool:
        """Whether nobody has had a message that is kept."""
        known = self.queues[queue]
        message = known.messages[place[0]][place[1]]
        kinds = {group.cells[place[0]][place[1]].kind for group in known.groups.values()}
        waits = kinds <= set(WAITING) and (known.groups or not (message.withdrawn_at or message.parked))
        return bool(waits) and message.over_at > now

    def update(
        self, queue: str, place: Place, payload: bytes, new_id: int, created_at: int, now: int
    ) -> None:
        """Another message takes the place of one that may be updated."""
        known = self.queues[queue]
        partition, offset = place
        message = known.messages[partition][offset]
        own = message.attributes
        before = [(group, replace_cell(group.cells[partition][offset])) for group in known.groups.values()]
        remains = replace(
            own,
            delay_ms=max(message.due_at - now, 0) if own.delay_ms else 0,
            ttl_ms=message.over_at - now if own.ttl_ms else 0,
            origin=message.shown,
        )
        self.take_place(message, payload, new_id, created_at, remains, now)
        for group, cell in before:
            if cell.kind == SCHEDULED:
                group.cells[partition][-1] = cell

    def take_place(
        self, message: Message, payload: bytes, new_id: int, created_at: int, attributes: Attributes, now: int
    ) -> Message:
        """Put another message in the place of one; what is tied to that goes along."""
        known = self.queues[message.queue]
        partition, first = message.place[0], known.firsts(message.place)
        assert self.cancel(message.queue, message.place, None, now)
        pushed = (message.queue, partition, [payload], new_id, created_at, attributes, now)
        (successor,) = self.push(*pushed)
        known.successors[first] = successor.place[1]
        self.tie_to(message, successor)
        return successor

    def tie_to(self, message: Message, successor: Message) -> None:
        """What has to be done when a message ends is done when its successor does."""

    # Seek.

    def begins_at(self, queue: str, partition: str, start: int | str) -> int:
        """The offset that ``all``, ``new`` or a time means."""
        known = self.queues[queue]
        messages = known.messages[partition]
        found = [at for at in range(len(messages)) if self._begins(known, partition, at, start)]
        return min(found, default=len(messages))

    def seek(self, queue: str, group: str, partition: str, begin: int, now: int) -> None:
        """A group reads on in a partition from an offset on; below it, it has only what is dead or over.

        Who begins with the log keeps what lies below.
        """
        known = self.queues[queue]
        cells, first = known.groups[group].cells[partition], known.first[partition]
        for at, cell in enumerate(cells):
            if cell.kind == LEASED:
                self._leave(cell.lease, [(partition, at)])
                cell.schedule(now)
                cell.deliveries -= 1
            if cell.kind == DEAD and group == "default" and known.messages[partition][at].fallen:
                continue  # it was never delivered
            if at >= begin:
                cells[at] = begin_now(known.messages[partition][at])
            elif cell.kind in WAITING and not at < first == begin:
                cells[at] = Cell(DONE)

    # Clean.

    def clean(
        self,
        queue: str,
        group: str,
        states: Collection[str],
        before: int,
        left: int,
        now: int,
        went: Callable[[Place], bool],
    ) -> int:
        """Clear out up to ``left`` messages of a group, from before a time; how many it was.

        Of what is scheduled, which of too many they are is up to the core: they ``went``.
        """
        known = self.queues[queue]
        done = 0
        for name, cells in known.groups[group].cells.items() if group in known.groups else ():
            old = [at for at in range(len(cells)) if known.messages[name][at].created_at <= before]
            fresh = [at for at in old if cells[at].kind == FRESH and "waiting" in states][: left - done]
            done += len(fresh)
            scheduled = [
                at
                for at in old
                if cells[at].kind == SCHEDULED
                and ("waiting" if cells[at].due_at <= now else "delayed") in states
            ]
            if len(scheduled) > left - done:
                some = [at for at in scheduled if went((name, at))]
                assert len(some) == left - done
                scheduled = some
            done += len(scheduled)
            dead = [at for at, cell in enumerate(cells) if cell.kind == DEAD and cell.due_at <= before]
            dead = dead[: left - done] if "dead" in states else []
            done += len(dead)
            for at in (*fresh, *scheduled):
                cells[at].end(CANCELLED, now)
            for at in dead:
                cells[at].end(DISCARDED, now)
        return done

    # What is noted.

    def noted(self, queue: str, place: Place) -> Noted:
        """What is kept beside a message, whatever took its place."""
        known = self.queues[queue]
        return known.noted.setdefault(known.firsts(place), Noted())

    # What goes, and what is forgotten.

    def trimmed(
        self,
        queue: str,
        partition: str,
        first: int,
        islands: list[tuple[int, int]],
        traced: Callable[[str, int], bool],
    ) -> None:
        """The log begins at ``first``, and below it only ``islands`` are kept: what may go, is gone.

        Only what every group has dealt with may, unless it is too old or the group has been idle for long.
        Of what is kept below the log such a group still has what is scheduled and dead, and so is ``traced``.
        """
        known = self.queues[queue]
        kept = {at for low, high in islands for at in range(low, high)}
        below = {at for low, high in known.islands.get(partition, ()) for at in range(low, high)}
        passed = set(range(known.first[partition], first))
        assert kept <= below | passed, "what is gone does not come back"
        holding = known.holding(self.now)
        for offset in below | passed:
            message = known.messages[partition][offset]
            old = 0 < known.retention_ms(partition) < self.now - message.created_at
            assert known.groups or old, "nobody has read the queue, so nothing may go"
            message.withdrawn_at = 0
            if offset not in kept:
                assert old or not message.parked, (queue, partition, offset)
                self._go(message)
            for group in known.groups.values():
                cell = group.cells[partition][offset]
                told = (queue, partition, offset, group.name, cell.kind)
                may_go = cell.kind != LEASED and (old or group not in holding)
                if offset not in kept:
                    assert cell.kind in ENDED or may_go, told
                    cell.kind = DONE
                elif cell.kind == FRESH or (cell.kind == SCHEDULED and not traced(group.name, offset)):
                    assert offset in passed, told
                    assert may_go, told
                    cell.kind = DONE
        known.first[partition], known.islands[partition] = first, islands
        self._forget(known, partition)
        self.forget_names(known)
        if first == len(known.messages[partition]) and not islands:
            known.emptied[partition] = self.now

    def _forget(self, known: Queue, partition: str) -> None:
        """Nothing takes the place of another any more once it is gone; what was noted goes along."""
        known.successors = {
            first: at
            for first, at in known.successors.items()
            if first[0] != partition or known.has((partition, at)) or known.has(first)
        }
        for place, each in list(known.noted.items()):
            if place not in known.successors and not known.has(place):
                if RESULT in each.notes and place[0] in known.messages:
                    known.results[place] = each.notes[RESULT]
                del known.noted[place]

    def _go(self, message: Message) -> None:
        """A message is no longer kept."""
        group = self.queues[message.queue].groups.get("default") if message.queue in self.queues else None
        if group is not None and not message.gone:
            message.was = group.cells[message.place[0]][message.place[1]].kind
        message.gone, message.parked, message.fallen = True, False, False
        message.unmet.clear()

    def forget_names(self, known: Queue) -> None:
        """Forget ids of messages that are no longer kept."""

    def removed(self, queue: str, partition: str) -> None:
        """A partition is gone: it was empty for long enough."""
        known = self.queues[queue]
        empty_ms = known.options.partition_retention_ms
        assert partition != "default"
        assert 0 < empty_ms <= self.now - known.emptied.pop(partition)
        for message in known.messages[partition]:
            message.lost = True
        known.taken.pop(partition, None)
        known.results = {place: each for place, each in known.results.items() if place[0] != partition}
        known.lanes.discard(partition)
        del known.messages[partition], known.first[partition], known.islands[partition]
        for group in known.groups.values():
            del group.cells[partition], group.turns[partition]

    def obliterate(self, queue: str) -> int:
        """A queue is gone; how many messages it had."""
        known = self.queues.pop(queue)
        for token in [token for token, lease in self.leases.items() if lease.queue == queue]:
            del self.leases[token]
            self.ended.append(token)
        kept = sum(known.has((name, at)) for name, each in known.messages.items() for at in range(len(each)))
        for message in (message for each in known.messages.values() for message in each):
            self._go(message)
            message.lost = True
        return kept


def replace_cell(cell: Cell) -> Cell:
    """A copy of a cell."""
    return Cell(cell.kind, cell.level, cell.due_at, cell.deliveries, cell.failures, cell.error, cell.lease)
