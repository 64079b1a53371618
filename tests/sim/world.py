"""The real core and the model side by side: every step is done by both and compared."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from penstock.core import carve, commands as c, log as logs, look, merge as merges, records
from penstock.core.carve import Carved, Carving
from penstock.core.errors import Conflict, Invalid, NotFound
from penstock.core.ids import OFFSET_BITS
from penstock.core.log import Piece
from penstock.core.merge import Joined, Merge
from penstock.core.model import (
    PLAIN,
    Attributes,
    Log,
    Partition,
    Queue,
    Segment,
)
from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from penstock.store.rocks import RocksStore
from tests.sim import model as m
from tests.sim.checks import SHARDS, TENANT, Checks, load, runs_of, snapshot

__all__ = ["SHARDS", "World", "load", "snapshot"]


class World(Checks):
    """One life of a few queues."""

    def __init__(
        self, store: Store, reopen: Callable[[Store], Store] = lambda store: store, *, every: int = 1
    ) -> None:
        """``reopen`` closes a store and opens what it left, if it leaves anything.

        Answers are compared at every step, the whole state at each ``every``-th: it takes most of the time.
        """
        super().__init__(store, every)
        self._reopen = reopen
        self.payloads = 0
        self.merging: tuple[Merge, Joined] | None = None
        """A merge that was planned and joined, and not applied yet."""
        self.merges = 0
        """Merges that were applied."""
        self.carving: tuple[Carving, list[Carved]] | None = None
        """A carving that was planned and joined, and not applied yet."""
        self.carvings = 0
        """Carvings that were applied."""
        self.shelf: list[tuple[Log, Segment]] = []
        """Segments whose bodies are, or were, in memory and in the store."""
        self._must_sync = False
        """Whether something was confirmed since the last commit that has to survive power loss."""
        self.unread: list[c.Popped] = []
        """Pops with something that could not be read, which the core was not told yet."""

    # Steps. Each is done by the core and by the model.

    def push(
        self,
        queue: str,
        partition: str,
        count: int,
        durability: str | None = None,
        attributes: Attributes = PLAIN,
    ) -> None:
        payloads = [self._payload() for _ in range(count)]
        marked = self._is_marked(queue, partition)
        command = c.Push(TENANT, queue, payloads, partition, durability, attributes)
        if self._breaks_order(queue, attributes):
            self._refused(command, Invalid)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Pushed)
        assert (reply.count, reply.durability) == (count, durability or "fsync")
        assert reply.first >> OFFSET_BITS == self._partition(queue, partition).numbers[-1][0]
        self._must_sync |= durability != "os" or not marked
        self.model.push(queue, partition, payloads, reply.first, reply.created_at, attributes, self.now)
        self._check(queue)

    def _breaks_order(self, queue: str, attributes: Attributes) -> bool:
        """Whether a queue may not have such messages."""
        return self.model.queue(queue).ordered and bool(attributes.priority or attributes.lifo)

    def _payload(self) -> bytes:
        """Mostly one that no other message has; now and then nothing at all."""
        self.payloads += 1
        return b'{"n":%d}' % self.payloads if self.payloads % 4 else b""

    def push_many(self, queue: str, parts: list[tuple[str, Attributes]]) -> None:
        pushes = [(name, [b'"%s"' % name.encode()], attributes) for name, attributes in parts]
        if any(self._breaks_order(queue, attributes) for _, attributes in parts):
            self._refused(c.PushMany(TENANT, queue, pushes), Invalid)
            return
        replies = self._apply(c.PushMany(TENANT, queue, pushes))
        assert isinstance(replies, list)
        for (name, payloads, attributes), reply in zip(pushes, replies, strict=True):
            self.model.push(queue, name, payloads, reply.first, reply.created_at, attributes, self.now)
        self._must_sync = True
        self._check(queue)

    def pop(
        self,
        queue: str,
        group: str = "default",
        count: int = 1,
        min_count: int = 1,
        partition: str | None = None,
        lease_ms: int | None = None,
        start: int | str = "all",
        owner: int = 0,
        *,
        unheard: bool = False,
        damaged: bool = False,
    ) -> str | None:
        """The token of the lease, if anything was popped and its consumer has heard of it.

        If it is ``damaged``, the body of the first segment that is not in memory can't be read; the bodies of
        the queue leave memory first.
        """
        if damaged and (TENANT, queue) in self.engine.queues:
            self._forget(self.engine.queues[TENANT, queue])
        pop = c.Pop(TENANT, queue, group, count, min_count, partition, lease_ms, start, 0, owner)
        self._before_pop(queue, group)
        reply = self._apply(pop)
        assert isinstance(reply, c.Popped)
        self._trim(queue)
        self.model.group(queue, group, start)
        planned = self._planned(reply.queue, group)
        wanted = self.model.pop(queue, group, count, min_count, partition, lease_ms, self.now, planned)
        lacking = self._damaged(reply) if damaged else None
        got = list(self._taken(reply, lacking))
        assert got == wanted, (got, wanted)
        assert reply.lease is not None or not got
        if reply.lease is not None:
            self.model.lease(reply.lease, queue, group, owner, wanted)
        most = c.Pop(TENANT, queue, group, 1_000, 1_000, partition)
        counted = self.model.counted(queue, group, partition, self.now, planned)
        assert self.engine.deliverable(most) == counted
        if len(got) < count:
            self._note_look(queue, group, partition)
        self._check(queue)
        if lacking is not None and not unheard:
            self.unread.append(reply)
        if unheard and reply.lease is not None:
            self.engine.give_back(reply)
            self.model.give_back(reply.lease, self.now)
            self._check(queue)
            return None
        return reply.lease

    def _forget(self, queue: Queue) -> None:
        """Have the bodies of a queue that are in the store leave memory."""
        mine = [partition.log for partition in queue.partitions.values()]
        for log, segment in self.shelf:
            if log in mine:
                logs.let_go(log, segment)
        self.shelf = [each for each in self.shelf if each[0] not in mine]

    def _damaged(self, reply: c.Popped) -> Segment | None:
        """A segment whose body the core has not at hand; as if it could not be read."""
        return next((each.segment for each in reply.deliveries if not each.segment.present), None)

    def _before_pop(self, queue: str, group: str) -> None:
        """What was told before a pop looks is told for it."""
        known, found = self.model.queues.get(queue), self.engine.queues.get((TENANT, queue))
        if known is None or found is None or not (known.gated or known.ordered):
            return
        self._tick(queue)
        self._hear()

    def _note_look(self, queue: str, group: str, partition: str | None) -> None:
        """A pop got all there was, or too little."""
        known = self.model.queues[queue]
        if known.paused_until <= self.now and not self.engine.queues[TENANT, queue].groups[group].unplanned:
            names = [partition] if partition is not None else list(known.messages)
            self._looked.update((queue, group, name) for name in names)
            if (queue, group) in self._open and (known.gated or known.ordered):
                left = self.model.deliverable(queue, group, partition, self.now, {})
                self._open[queue, group].update(left)

    def put_off(self) -> None:
        """The core hears what of a pop could not be read, however late."""
        if not self.unread:
            return
        reply = self.unread.pop(0)
        name = reply.queue.name
        assert reply.lease is not None
        self._tick(name)
        lacking = look.lacking(reply)
        lease = self.model.leases.get(reply.lease)
        if lease is not None:
            rest = [self._rest(reply.queue, lease.group, each) for each in lacking]
            unread = {(each.partition, each.offset + at) for each in lacking for at in range(each.count)}
            self.model.put_off(reply.lease, unread & lease.cells, self.now)
            if not self.model.queues[name].ordered:
                for each, cells in zip(lacking, rest, strict=True):
                    self.model.step_over(cells, each.expires_at)
            self._must_sync |= bool(unread & lease.cells)
        self.engine.put_off(reply)
        self._check(name)

    def _rest(self, queue: Queue, group: str, lacking: c.Delivery) -> list[m.Cell]:
        """What goes the way of messages that can't be read: of their segment, what the group has met.

        But for runs that reach into another segment, and what it does not see yet.
        """
        segment, name = lacking.segment, lacking.partition
        track = queue.groups[group].tracks[queue.partitions[name].key]
        known = self.model.queues[queue.name]
        inside = range(segment.base, segment.end)
        left = {
            at
            for run in runs_of(track.schedule)
            if run.first not in inside or run.first + run.count > segment.end
            for at in range(run.first, run.first + run.count)
        }
        left |= {at for at in inside if at >= track.planned and not known.messages[name][at].in_line}
        cells = known.groups[group].cells[name]
        met = segment.base < track.cursor
        return [cells[at] for at in inside if at not in left and (met or cells[at].kind != m.FRESH)]

    def _taken(self, reply: c.Popped, lacking: Segment | None) -> Iterator[m.Taken]:
        """What was popped; what lacks its payload has that of the model."""
        for each in reply.deliveries:
            messages = self.model.queues[reply.queue.name].messages[each.partition]
            payloads: Iterable[bytes | memoryview] = (
                message.payload for message in messages[each.offset : each.offset + each.count]
            )
            if each.segment is not lacking:
                self._fetch(reply.queue, each)
                payloads = each.payloads()
            for at, payload in enumerate(payloads):
                yield m.Taken(
                    each.partition,
                    each.offset + at,
                    bytes(payload),
                    each.first + at,
                    each.created_at,
                    each.deliveries,
                    each.failures,
                    each.expires_at,
                    each.priority,
                )

    def _fetch(self, queue: Queue, piece: Piece) -> None:
        """Read the body of a header-only segment, as the node does."""
        if not piece.segment.present:
            piece.segment.body = self._body(queue, piece.segment)

    def _body(self, queue: Queue, segment: Segment) -> bytes:
        """The body of a sealed segment, from memory or from the store."""
        if segment.body is not None:
            return segment.body
        (body,) = self.store.bodies([records.body_key(queue.prefix, segment.body_name)])
        assert isinstance(body, bytes), body
        assert records.is_whole(body, segment.count, segment.size)
        return body

    def _partition(self, queue: str, partition: str) -> Partition:
        return self.engine.queues[TENANT, queue].partitions[partition]

    def _is_marked(self, queue: str, partition: str) -> bool:
        known = self.engine.queues.get((TENANT, queue))
        return known is not None and partition in known.partitions and known.partitions[partition].os_marked

    def settle_lease(self, verb: str, token: str, delay_ms: int | None = None) -> None:
        """Ack or nack a whole lease; a token that is not live is refused and changes nothing."""
        lease = self.model.leases.get(token)
        command: c.Ack | c.Nack = c.Ack(TENANT, token)
        if verb == "nack":
            command = c.Nack(TENANT, token, error="no", delay_ms=delay_ms)
        if lease is None:
            self._refused(command)
            return
        places = set(lease.cells)
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert (reply.count, list(reply.refused)) == (len(places), [])
        if verb == "ack":
            self.model.ack(token, places)
        else:
            self.model.nack(token, places, "no", delay_ms, self.now)
        self._must_sync = True
        self._check(lease.queue)

    def settle_ids(
        self,
        verb: str,
        queue: str,
        places: list[m.Place],
        token: str | None,
        group: str | None,
        owner: int,
        delay_ms: int | None = None,
    ) -> None:
        """Ack or nack messages by id, leased or not."""
        ids = self._ids(queue, places)
        command: c.Ack | c.Nack = c.Ack(TENANT, token, ids, group, owner, partial=True)
        if verb == "nack":
            command = c.Nack(TENANT, token, ids, group, owner, partial=True, delay_ms=delay_ms)
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or group not in (None, lease.group)):
            self._refused(command)
            return
        meant: dict[str, set[m.Place]] = {}
        refused: set[int] = set()
        for place, message in zip(places, ids, strict=True):
            held = self.model.find(queue, place, token, group, owner)
            if held is None:
                refused.add(message)
            else:
                meant.setdefault(held, set()).add(place)
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert reply.count == sum(map(len, meant.values())), (command, reply, meant)
        assert sorted(reply.refused) == sorted(refused)
        for held, theirs in meant.items():
            if verb == "ack":
                self.model.ack(held, theirs)
            else:
                self.model.nack(held, theirs, "", delay_ms, self.now)
        self._must_sync |= bool(meant)
        self._check(queue)

    def _ids(self, queue: str, places: list[m.Place]) -> list[int]:
        messages = self.model.queues[queue].messages
        return [messages[partition][offset].id for partition, offset in places]

    def extend(self, token: str, lease_ms: int | None) -> None:
        lease = self.model.leases.get(token)
        command = c.Extend(TENANT, token, lease_ms=lease_ms)
        if lease is None and token not in self.model.emptied:
            self._refused(command)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Extended)
        if lease is None:
            assert (reply.expires_at, reply.count, reply.cancelled) == (self.now, 0, True)
            return
        assert reply.expires_at == self.model.extend(token, lease_ms, self.now)
        assert (reply.count, reply.cancelled) == (len(lease.cells), lease.cancelled), (reply, lease)
        self._check(lease.queue)

    def extend_ids(
        self,
        queue: str,
        places: list[m.Place],
        token: str | None,
        group: str | None,
        lease_ms: int | None,
    ) -> None:
        """Extend the leases of messages by id, leased or not."""
        ids = self._ids(queue, places)
        command = c.Extend(TENANT, token, ids, group, lease_ms=lease_ms)
        if token in self.model.emptied:
            assert self._apply(command) == c.Extended(self.now, 0, ids, cancelled=True)
            return
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or group not in (None, lease.group)):
            self._refused(command)
            return
        self._tick(queue)
        held = [self.model.find(queue, place, token, group, 0) for place in places]
        tokens = {each for each in held if each is not None}
        reader = self.model.queues[queue].groups.get(lease.group if lease else group or "default")
        if lease is not None and lease.queue != queue:
            reader = None
        refused = [place for place, each in zip(places, held, strict=True) if each is None]
        cancelled = reader is not None and any(
            reader.cells[name][at].kind == m.CANCELLED for name, at in refused
        )
        if not tokens and not cancelled:
            self._refused(command)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Extended)
        ends = [self.model.extend(each, lease_ms, self.now) for each in tokens]
        assert reply.expires_at == min(ends, default=self.now)
        assert reply.count == len(places) - len(refused)
        assert sorted(reply.refused) == sorted(self._ids(queue, refused))
        assert reply.cancelled == cancelled
        self._check(queue)

    def cancel(self, chosen: dict[str, list[m.Place]], group: str | None) -> None:
        """Cancel messages of some queues."""
        ids = [each for queue, places in chosen.items() for each in self._ids(queue, places)]
        self._tick(*chosen)
        refused = [
            self.model.queues[queue].messages[place[0]][place[1]].id
            for queue, places in chosen.items()
            for place in places
            if not self.model.cancel(queue, place, group, self.now)
        ]
        self._change(c.Cancel(TENANT, ids, group), chosen, refused)

    def move(
        self,
        chosen: dict[str, list[m.Place]],
        group: str,
        delay_ms: int | None,
        priority: int | None,
        *,
        only_delayed: bool = False,
    ) -> None:
        """Move messages of some queues."""
        ids = [each for queue, places in chosen.items() for each in self._ids(queue, places)]
        command = c.Move(TENANT, ids, group, delay_ms, priority, only_delayed)
        self._tick(*chosen)
        if priority and any(self._is_ordered_at(queue, places) for queue, places in chosen.items()):
            self._refused(command, Invalid)
            return
        refused: list[int] = []
        for queue, places in chosen.items():
            first = self.model.queues[queue].first
            messages = self.model.queues[queue].messages
            if group not in self.model.queues[queue].groups:
                kept = [messages[name][at] for name, at in places if at >= first[name]]
                if all(each.withdrawn_at or (only_delayed and each.due_at <= self.now) for each in kept):
                    refused += self._ids(queue, places)
                    continue
                self.model.group(queue, group, "all")
            for place in places:
                how = (delay_ms, priority, self.now)
                if not self.model.move(queue, place, group, *how, only_delayed=only_delayed):
                    refused += self._ids(queue, [place])
        self._change(command, chosen, refused)

    def _is_ordered_at(self, queue: str, places: list[m.Place]) -> bool:
        """Whether messages that are still kept are in strict order."""
        known = self.model.queues[queue]
        return known.ordered and any(map(known.has, places))

    def _change(
        self, command: c.Cancel | c.Move, chosen: dict[str, list[m.Place]], refused: list[int]
    ) -> None:
        """Have the core do what the model did to all ids but those it ``refused``."""
        if len(refused) == len(command.ids):
            kept = any(any(map(self.model.queues[queue].has, places)) for queue, places in chosen.items())
            self._refused(command, Conflict if kept else NotFound)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert reply.count == len(command.ids) - len(refused)
        assert sorted(reply.refused) == sorted(refused)
        self._must_sync = True
        for queue in chosen:
            self._check(queue)

    def bury(self, verb: str, queue: str, group: str, places: list[m.Place] | None) -> None:
        """Requeue, purge, or only count dead letters."""
        self._tick(queue)
        ids = None if places is None else self._ids(queue, places)
        dead = self.model.dead(queue, group)
        meant = dead if places is None else [place for place in places if place in dead]
        command: c.Requeue | c.Purge = c.Requeue(TENANT, queue, group, ids)
        if verb != "requeue":
            command = c.Purge(TENANT, queue, group, ids, dry_run=verb == "count")
        if places is not None and not meant:
            self._refused(command, NotFound)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Buried)
        refused = [place for place in places or () if place not in dead]
        assert sorted(reply.refused) == sorted(self._ids(queue, refused))
        for place in meant:
            if verb == "requeue":
                self.model.requeue(queue, place, group, self.now)
            elif verb == "purge":
                self.model.purge(queue, place, group, self.now)
        assert (reply.count, reply.left) == (len(meant), len(self.model.dead(queue, group)))
        self._must_sync |= bool(meant) and verb != "count"
        self._check(queue)

    def list_dead(self, queue: str, group: str, count: int, skip: int) -> None:
        """LISTDEAD and the model agree."""
        reply = self._apply(c.ListDead(TENANT, queue, group, count, skip))
        assert isinstance(reply, c.DeadFound)
        dead = self.model.dead(queue, group)
        got: list[object] = []
        for each in reply.deliveries:
            self._fetch(reply.queue, each)
            told = (each.created_at, each.deliveries, each.failures, each.dead_at, each.error, each.priority)
            for at, payload in enumerate(each.payloads()):
                got.append((each.partition, each.offset + at, each.first + at, bytes(payload), *told))
        wanted: list[object] = []
        for partition, offset in dead[skip : skip + count]:
            message = self.model.queues[queue].messages[partition][offset]
            cell = self.model.queues[queue].groups[group].cells[partition][offset]
            past = (cell.deliveries, cell.failures, cell.due_at, cell.error, -(cell.level // 2))
            wanted.append((partition, offset, message.id, message.payload, message.created_at, *past))
        assert (reply.total, got) == (len(dead), wanted)

    def pause(self, queue: str, ms: int | None) -> None:
        until = None if ms is None else self.now + ms
        reply = self._apply(c.Pause(TENANT, queue, until))
        assert reply == c.Paused(True, until)
        self.model.queue(queue).paused_until = until or m.FOREVER
        self._must_sync = True
        self._check(queue)

    def resume(self, queue: str) -> None:
        assert self._apply(c.Resume(TENANT, queue)) == c.Paused(False)
        self.model.queues[queue].paused_until = 0
        self._must_sync = True
        self._check(queue)

    def configure(self, queue: str, **options: Any) -> None:
        """Set some options of a queue; its ordering only as long as it has had no messages."""
        known = self.model.queue(queue)
        command, before = c.Configure(TENANT, queue, **options), known.options
        if options.get("ordering", before.ordering) != before.ordering and any(known.messages.values()):
            self._refused(command)
            return
        self._apply(command)
        known.options = replace(before, **options)
        self._must_sync = True
        self._check(queue)

    def show(self, queue: str, places: list[m.Place], group: str) -> None:
        """GETJOBSBATCH and the model agree; of what is not there nothing is shown."""
        self._tick(queue)
        known = self.model.queues[queue]
        ids = self._ids(queue, places)
        reply = self._apply(c.Show(TENANT, [*ids, max(ids) + 1_000_000], group))
        assert isinstance(reply, c.ShownAll)
        got: list[object] = []
        for each in reply.deliveries:
            self._fetch(each.queue, each)
            (payload,) = each.payloads()
            got.append((each.queue.name, (each.partition, each.offset), bytes(payload), each.state))
        wanted: list[object] = []
        for partition, at in places:
            if known.has((partition, at)):
                message = known.messages[partition][at]
                state = self._state(message, queue, partition, at, group)
                wanted.append((queue, (partition, at), message.payload, state))
        assert got == wanted, (got, wanted)

    def read(self, queue: str, partition: str, offset: int, max_count: int, max_bytes: int) -> None:
        reply = self._apply(c.Read(TENANT, queue, offset, partition, max_count, max_bytes))
        assert isinstance(reply, c.Log)
        self._trim(queue)
        messages = self.model.queues[queue].messages[partition]
        first = max(offset, self.model.queues[queue].first[partition])
        assert reply.end == len(messages)
        at = first
        for run in reply.runs:
            self._fetch(reply.queue, run)
            for payload in run.payloads():
                wanted = messages[at]
                assert (bytes(payload), run.created_at) == (wanted.payload, wanted.created_at)
                assert run.first + at - run.offset == wanted.id
                at += 1
        assert at == reply.next
        assert at - first <= max_count
        assert at > first or first == len(messages)

    def wait(self, ms: int) -> None:
        """Time passes; now and then the node's timer rings, now and then it is late."""
        assert self.engine.next_due_at() <= self._next_due_at()
        self.now += ms
        self.model.advance(self.now)
        if ms % 2:
            self._tick()

    def _next_due_at(self) -> int:
        """When, as the model sees it, something happens by itself."""
        coming = [queue.paused_until for queue in self.model.queues.values() if queue.paused_until]
        for queue in self.model.queues:
            for group in self.model.queues[queue].groups.values():
                planned = self._planned(self.engine.queues[TENANT, queue], group.name)
                coming += [
                    cell.due_at
                    for name, cells in group.cells.items()
                    for at, cell in enumerate(cells)
                    if cell.kind in (m.SCHEDULED, m.LEASED)
                    and cell.due_at > self.now
                    and (at < planned[name] or self.model.queues[queue].messages[name][at].in_line)
                ]
        return min(coming, default=m.FOREVER)

    def commit(self) -> None:
        """Keep what changed, as the node does."""
        self._hear()
        commits = self.engine.seal(self.now)
        assert self.engine.must_sync or not self._must_sync
        self._must_sync = False
        if commits:
            self.store.commit(commits, sync=self.engine.must_sync)
        self.shelf += self.engine.take_sealed()

    def restart(self, *, clean: bool = True) -> None:
        """The process ends after a commit and starts again: nothing about it can be seen from outside.

        Unless it does not end ``clean``: partitions with ids that were confirmed as ``os`` go on under a
        fresh number.
        """
        self._tick()
        if clean:
            self.engine.clear_marks()
        self.commit()
        self.merging = self.carving = None
        self.shelf = []
        marked = {
            partition.key: list(partition.numbers)
            for queue in self.engine.queues.values()
            for partition in queue.partitions.values()
            if partition.os_marked
        }
        assert not (clean and marked)
        before = snapshot(self.engine)
        used = [set(shard.places) for shard in self.engine.shards]
        self._check_stored()
        self.store = self._reopen(self.store)
        self.engine = load(self.store, self.limits, self.now)
        assert not self.engine.damaged, self.engine.damaged
        self._check_fresh(marked, used)
        assert snapshot(self.engine, marked) == before
        assert self.engine.next_due_at() <= self._next_due_at()
        self.model.restart()
        self._open.clear()
        self._woken.clear()
        self._looked.clear()
        self.unread.clear()

    def _check_fresh(self, marked: dict[int, list[tuple[int, int]]], used: list[set[int]]) -> None:
        """Those that were marked, and no others, have a number that nothing ever had, from their end on."""
        for queue in self.engine.queues.values():
            for partition in queue.partitions.values():
                assert not partition.os_marked
                if partition.key in marked:
                    *old, (number, base) = partition.numbers
                    assert old == marked[partition.key]
                    assert base == partition.log.end
                    assert number % SHARDS == queue.shard
                    assert number > max(used[queue.shard])
                    used[queue.shard].add(number)

    def _check_stored(self) -> None:
        """The store has the body of every segment and no other."""
        wanted = {
            records.body_key(queue.prefix, segment.body_name)
            for queue in self.engine.queues.values()
            for partition in queue.partitions.values()
            for segment in partition.log.segments
        }
        if isinstance(self.store, MemoryStore):
            assert self.store._bodies.keys() == wanted
        elif isinstance(self.store, RocksStore):
            assert set(self.store.body_keys()) == wanted

    # What nobody outside should notice.

    def plan_merge(self, at_least: int) -> None:
        """Choose small segments and join them, however few there are."""
        for queue in self.engine.queues.values():
            shard = self.engine.shards[queue.shard]
            for partition in queue.partitions.values():
                shard.to_merge[partition.key] = (queue, partition)
        before = snapshot(self.engine)
        merge = self.engine.plan_merge(at_least)
        assert snapshot(self.engine) == before
        if merge is not None:
            bodies = [self._body(merge.queue, each) for each in merge.parts]
            self.merging = merge, merges.join(merge, bodies)

    def apply_merge(self) -> None:
        """Put the joined segments in place, if nothing happened to them meanwhile."""
        if self.merging is None:
            return
        merge, joined = self.merging
        self.merging = None
        log = merge.partition.log
        segments = len(log.segments)
        self.engine.apply_merge(merge, joined)
        assert len(log.segments) in (segments, segments - len(merge.parts) + 1)
        self.merges += len(log.segments) < segments
        self._tick()
        self._check(merge.queue.name)

    def plan_carving(self) -> None:
        """Choose an island and cut out what of it is wanted, however little that saves."""
        for queue in self.engine.queues.values():
            to_carve = self.engine.shards[queue.shard].to_carve
            for partition in queue.partitions.values():
                log = partition.log
                for segment in log.segments[: log.islands]:
                    to_carve[partition.key, segment.base] = (queue, partition, segment)
        before = snapshot(self.engine)
        carving = self.engine.plan_carving()
        assert snapshot(self.engine) == before
        for shard in self.engine.shards:
            shard.to_carve.clear()
        if carving is not None:
            self.carving = carving, carve.join(carving, [self._body(carving.queue, carving.island)])

    def apply_carving(self) -> None:
        """Put the parts of the island in its place, if it is still there."""
        if self.carving is None:
            return
        carving, carved = self.carving
        self.carving = None
        log = carving.partition.log
        there = logs.is_island(log, carving.island)
        assert self.engine.apply_carving(carving, carved) == there
        self.carvings += there
        self._tick()
        self._check(carving.queue.name)

    def let_go(self, at: int) -> None:
        """A body leaves memory, even if the log has forgotten its segment; the store has it."""
        if self.shelf:
            log, segment = self.shelf.pop(at % len(self.shelf))
            before = list(log.segments)
            logs.let_go(log, segment)
            assert segment.body is not None, "who holds the segment still has it"
            assert [each for each in log.segments if each not in before] == [
                each for each in log.segments if each.base == segment.base and segment in before
            ]
            self.check_all()
