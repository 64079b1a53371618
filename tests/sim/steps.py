"""The real core and the model side by side: what a client asks is done by both and compared."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from forebay.core.api import commands as c, queries
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS
from forebay.core.log import log as logs
from forebay.core.log.bodies import is_whole
from forebay.core.log.slices import SegmentSlice
from forebay.core.queries import payloads as queries_payloads
from forebay.core.records import keyspace
from forebay.core.retention.carve import Carved, Carving
from forebay.core.retention.merge import Joined, Merge
from forebay.core.state import PLAIN, Attributes, Log, Queue, Segment
from forebay.core.words import RESULT
from forebay.store.base import Store
from tests.sim import model as m
from tests.sim.checks import TENANT, runs_of
from tests.sim.inside import notifying
from tests.sim.labels import labels_of
from tests.sim.telling import Telling

DEFER_MS = 30_000
"""How long messages are deferred at most."""


class Steps(Telling):
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
        if self._is_full(queue, count):
            self._refused(command, self._why_full(queue, count))
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

    def _is_full(self, queue: str, count: int) -> bool:
        """Whether a queue has no room for so many more messages."""
        self._tick(queue)
        known = self.model.queue(queue)
        return 0 < known.options.max_size < known.size() + count

    def _why_full(self, queue: str, count: int) -> type[ForebayError]:
        """What is said of so many messages: that they never fit, or not now."""
        return Invalid if count > self.model.queue(queue).options.max_size else Busy

    def _payload(self) -> bytes:
        """Mostly one that no other message has; now and then nothing at all."""
        self.payloads += 1
        return b'{"n":%d}' % self.payloads if self.payloads % 4 else b""

    def push_many(self, queue: str, parts: list[tuple[str, Attributes]]) -> None:
        pushes = [(name, [b'"%s"' % name.encode()], attributes) for name, attributes in parts]
        if any(self._breaks_order(queue, attributes) for _, attributes in parts):
            self._refused(c.PushMany(TENANT, queue, pushes), Invalid)
            return
        if self._is_full(queue, len(pushes)):
            self._refused(c.PushMany(TENANT, queue, pushes), self._why_full(queue, len(pushes)))
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
        by_bytes = queue in self.model.queues and self.model.limits_bytes(queue)
        if by_bytes:
            self._remember(self.engine.queues[TENANT, queue])
        reply = self._apply(pop)
        assert isinstance(reply, c.Popped)
        self._trim(queue)
        self.model.group(queue, group, start)
        planned = self._planned(reply.queue, group)
        allowed = self.model.allowed(queue, self.model.queues[queue].groups[group], self.now)
        delivered = sum(each.count for each in reply.deliveries)
        how = (count, min_count, partition, lease_ms, self.now, planned, delivered)
        wanted = self.model.pop(queue, group, *how)
        lacking = self._damaged(reply) if damaged else None
        got = list(self._taken(reply, lacking))
        assert got == wanted, (got, wanted)
        assert reply.lease is not None or not got
        if reply.lease is not None:
            self.model.lease(reply.lease, queue, group, owner, wanted)
            self.model.spend(queue, group, wanted, self.now)
        self._follow()
        limited = by_bytes or self.model.limits_partitions(queue)
        self._compare_deliverable(queue, group, partition, planned)
        if min_count <= allowed and len(got) < min(count, allowed) and not limited:
            self._note_look(queue, group, partition)
        self._note_starved(queue, group, partition, min_count, len(got), count, allowed)
        self._check(queue)
        if lacking is not None and not unheard:
            self.unread.append(reply)
        if unheard and reply.lease is not None:
            self.engine.give_back(reply, self.now)
            self.model.give_back(reply.lease, self.now)
            self._check(queue)
            return None
        return reply.lease

    def _forget(self, queue: Queue) -> None:
        """Have the bodies of a queue that are in the store leave memory."""
        mine = [partition.log for partition in queue.partitions.values()]
        for log, segment in self.shelf:
            if log in mine:
                logs.drop_body(log, segment)
        self.shelf = [each for each in self.shelf if each[0] not in mine]

    def _remember(self, queue: Queue) -> None:
        """Have the bodies of a queue in memory: without them, messages count for the average of a segment."""
        for partition in queue.partitions.values():
            for segment in partition.log.segments:
                if not segment.present:
                    segment.body = self._body(queue, segment)

    def _damaged(self, reply: c.Popped) -> Segment | None:
        """A segment whose body the core has not at hand; as if it could not be read."""
        return next((each.segment for each in reply.deliveries if not each.segment.present), None)

    def put_off(self) -> None:
        """The core hears what of a pop could not be read, however late."""
        if not self.unread:
            return
        reply = self.unread.pop(0)
        name = reply.queue.name
        if not {each.partition for each in reply.deliveries} <= reply.queue.partitions.keys():
            # Nobody takes so long to read that the partition is removed meanwhile.
            return
        assert reply.lease is not None
        self._tick(name)
        lacking = queries_payloads.lacking(reply)
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
            for at, (payload, labels) in enumerate(zip(payloads, labels_of(each), strict=True)):
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
                    labels,
                )

    def _fetch(self, queue: Queue, piece: SegmentSlice) -> None:
        """Read the body of a header-only segment, as the node does."""
        if not piece.segment.present:
            piece.segment.body = self._body(queue, piece.segment)

    def _body(self, queue: Queue, segment: Segment) -> bytes:
        """The body of a sealed segment, from memory or from the store."""
        if segment.body is not None:
            return segment.body
        (body,) = self.store.bodies([keyspace.body_key(queue.prefix, segment.body_name)])
        assert isinstance(body, bytes), body
        assert is_whole(body, segment.count, segment.size)
        return body

    def _is_marked(self, queue: str, partition: str) -> bool:
        known = self.engine.queues.get((TENANT, queue))
        return known is not None and partition in known.partitions and known.partitions[partition].os_marked

    def settle_lease(self, verb: str, token: str, delay_ms: int | None = None) -> None:
        """Ack, nack or defer a whole lease; a token that is not live is refused and changes nothing."""
        lease = self.model.leases.get(token)
        command: c.Ack | c.Nack = c.Ack(TENANT, token)
        if verb == "nack":
            command = c.Nack(TENANT, token, error="no", delay_ms=delay_ms)
        if verb == "defer":
            command = c.Nack(TENANT, token, error="new", undelivered=True, defer_ms=DEFER_MS)
        if lease is None:
            self._refused(command)
            return
        places = set(lease.cells)
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert (reply.count, list(reply.refused)) == (len(places), [])
        if verb == "ack":
            self.model.ack(token, places)
        elif verb == "defer":
            self.model.defer(token, places, "new", DEFER_MS, self.now)
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
        *,
        with_results: bool = False,
    ) -> None:
        """Ack or nack messages by id, leased or not."""
        places, current = self._meant(queue, places)
        ids = self._ids(queue, places)
        results = [self._payload() for _ in ids] if with_results and verb == "ack" else None
        command: c.Ack | c.Nack = c.Ack(TENANT, token, ids, group, owner, partial=True, results=results)
        if verb == "nack":
            command = c.Nack(TENANT, token, ids, group, owner, partial=True, delay_ms=delay_ms)
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or group not in (None, lease.group)):
            self._refused(command)
            return
        if token is None and self.model.queues[queue].options.require_lease:
            self._refused(command, Invalid)
            return
        self._tick(queue)
        meant: dict[str, set[m.Place]] = {}
        refused: set[int] = set()
        for place, message in zip(current, ids, strict=True):
            held = self.model.find(queue, place, token, group, owner)
            if held is None:
                refused.add(message)
            else:
                meant.setdefault(held, set()).add(place)
        if results is not None and any(self.model.leases[held].group != "default" for held in meant):
            self._refused(command, Invalid)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert reply.count == sum(map(len, meant.values())), (command, reply, meant)
        assert sorted(reply.refused) == sorted(refused)
        for place, result in zip(current, results or (), strict=False):
            if any(place in theirs for theirs in meant.values()):
                self.model.noted(queue, place).notes.setdefault(RESULT, []).append(result)
        for held, theirs in meant.items():
            if verb == "ack":
                self.model.ack(held, theirs)
            else:
                self.model.nack(held, theirs, "", delay_ms, self.now)
        self._must_sync |= bool(meant)
        self._check(queue)

    def _meant(self, queue: str, places: list[m.Place]) -> tuple[list[m.Place], list[m.Place]]:
        """Messages, each once, and what has taken their places."""
        known = self.model.queues[queue]
        found = {known.current(place): place for place in places}
        return list(found.values()), list(found)

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
        places, current = self._meant(queue, places)
        ids = self._ids(queue, places)
        command = c.Extend(TENANT, token, ids, group, lease_ms=lease_ms)
        if token in self.model.emptied:
            assert self._apply(command) == c.Extended(self.now, 0, ids, cancelled=True)
            return
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or group not in (None, lease.group)):
            self._refused(command)
            return
        if token is None and self.model.queues[queue].options.require_lease:
            self._refused(command, Invalid)
            return
        self._tick(queue)
        held = [self.model.find(queue, place, token, group, 0) for place in current]
        tokens = {each for each in held if each is not None}
        reader = self.model.queues[queue].groups.get(lease.group if lease else group or "default")
        if lease is not None and lease.queue != queue:
            reader = None
        refused = [place for place, each in zip(places, held, strict=True) if each is None]
        ends = [place for place, each in zip(current, held, strict=True) if each is None]
        cancelled = reader is not None and any(
            reader.cells[name][at].kind in (m.CANCELLED, m.DEAD, m.DISCARDED, m.DROPPED_DEAD)
            for name, at in ends
        )
        if not tokens and not cancelled:
            self._refused(command)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Extended)
        until = [self.model.extend(each, lease_ms, self.now) for each in tokens]
        assert reply.expires_at == min(until, default=self.now)
        assert reply.count == len(places) - len(refused)
        assert sorted(reply.refused) == sorted(self._ids(queue, refused))
        assert reply.cancelled == cancelled
        self._check(queue)

    def cancel(self, chosen: dict[str, list[m.Place]], group: str | None) -> None:
        """Cancel messages of some queues."""
        chosen = {queue: self._meant(queue, places)[0] for queue, places in chosen.items()}
        ids = [each for queue, places in chosen.items() for each in self._ids(queue, places)]
        self._tick(*chosen)
        refused = [
            self.model.queues[queue].messages[place[0]][place[1]].id
            for queue, places in chosen.items()
            for place in places
            if not self.model.cancel(queue, self.model.queues[queue].current(place), group, self.now)
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
        discard: bool = False,
    ) -> None:
        """Move messages of some queues, or give them up."""
        chosen = {queue: self._meant(queue, places)[0] for queue, places in chosen.items()}
        ids = [each for queue, places in chosen.items() for each in self._ids(queue, places)]
        command = c.Move(TENANT, ids, group, delay_ms, priority, only_delayed)
        if discard:
            command = c.Discard(TENANT, ids, group)
        self._tick(*chosen)
        if priority and any(self._is_ordered_at(queue, places) for queue, places in chosen.items()):
            self._refused(command, Invalid)
            return
        refused: list[int] = []
        for queue, places in chosen.items():
            known = self.model.queues[queue]
            current = [known.current(place) for place in places]
            if group not in known.groups:
                kept = [known.messages[name][at] for name, at in current if at >= known.first[name]]
                there = [each for each in kept if not each.withdrawn_at and not each.parked]
                if all(only_delayed and each.due_at <= self.now for each in there):
                    refused += self._ids(queue, places)
                    continue
                self.model.group(queue, group, "all")
            for place, meant in zip(places, current, strict=True):
                if discard:
                    done = self.model.discard(queue, meant, group, self.now)
                else:
                    how = (delay_ms, priority, self.now)
                    done = self.model.move(queue, meant, group, *how, only_delayed=only_delayed)
                if not done:
                    refused += self._ids(queue, [place])
        self._change(command, chosen, refused)

    def _is_ordered_at(self, queue: str, places: list[m.Place]) -> bool:
        """Whether messages that are still kept are in strict order."""
        known = self.model.queues[queue]
        return known.ordered and any(known.has(known.current(place)) for place in places)

    def _change(
        self, command: c.Cancel | c.Move, chosen: dict[str, list[m.Place]], refused: list[int]
    ) -> None:
        """Have the core do what the model did to all ids but those it ``refused``."""
        if len(refused) == len(command.ids):
            kept = any(
                self.model.queues[queue].has(self.model.queues[queue].current(place))
                for queue, places in chosen.items()
                for place in places
            )
            self._refused(command, Conflict if kept else NotFound)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert reply.count == len(command.ids) - len(refused)
        assert sorted(reply.refused) == sorted(refused)
        self._must_sync = True
        for queue in chosen:
            self._check(queue)

    def bury(
        self, verb: str, queue: str, group: str, places: list[m.Place] | None, dependents: bool = True
    ) -> None:
        """Requeue, purge, or only count dead letters."""
        self._tick(queue)
        given, current = self._meant(queue, places or [])
        ids = None if places is None else self._ids(queue, given)
        dead = self.model.dead(queue, group)
        messages = self.model.queues[queue].messages
        lost = [
            place
            for place in dead
            if verb == "requeue" and group == "default" and self._is_lost(messages[place[0]][place[1]])
        ]
        named = dead if places is None else [place for place in current if place in dead]
        dead = [place for place in dead if place not in lost]
        meant = [place for place in named if place in dead]
        command: c.Requeue | c.Purge = c.Requeue(TENANT, queue, group, ids, dependents=dependents)
        if verb != "requeue":
            command = c.Purge(TENANT, queue, group, ids, dry_run=verb == "count")
        if places is not None and not meant:
            self._refused(command, Conflict if named else NotFound)
            return
        telling = notifying(self.engine)
        requeued = [messages[place[0]][place[1]] for place in meant] if verb == "requeue" else []
        fallen = self.model.fallen_of(requeued) if group == "default" and dependents else set()
        reply = self._apply(command)
        assert isinstance(reply, c.Buried)
        assert telling or reply.dependents == len(fallen)
        refused = [place for place, what in zip(given, current, strict=True) if what not in dead]
        assert sorted(reply.refused) == sorted(self._ids(queue, refused))
        for place in meant:
            if verb == "requeue":
                message = self.model.queues[queue].messages[place[0]][place[1]]
                seen = message.in_line or self._is_seen(message, group)
                self.model.requeue(queue, place, group, self.now, seen=seen)
                if group == "default" and self._is_awaited(message):
                    self.model.watch(message)
                if group == "default" and (dependents or message.parked):
                    self.model.save_dependents(message, notifying(self.engine))
            elif verb == "purge":
                self.model.purge(queue, place, group, self.now)
        assert (reply.count, reply.left) == (len(meant), len(self.model.dead(queue, group)))
        self._must_sync |= bool(meant) and verb != "count"
        self._check(queue)

    def list_dead(self, queue: str, group: str, count: int, skip: int) -> None:
        """LISTDEAD and the model agree."""
        reply = self._apply(queries.ListDead(TENANT, queue, group, count, skip))
        assert isinstance(reply, queries.DeadFound)
        dead = self.model.dead(queue, group)
        got: list[object] = []
        for each in reply.deliveries:
            self._fetch(reply.queue, each)
            told = (each.created_at, each.deliveries, each.failures, each.dead_at, each.error, each.priority)
            for at, (payload, labels) in enumerate(zip(each.payloads(), labels_of(each), strict=True)):
                place = (each.partition, each.offset + at)
                got.append((*place, each.first + at, bytes(payload), labels, *told))
        wanted: list[object] = []
        for partition, offset in dead[skip : skip + count]:
            message = self.model.queues[queue].messages[partition][offset]
            cell = self.model.queues[queue].groups[group].cells[partition][offset]
            past = (cell.deliveries, cell.failures, cell.due_at, cell.error, -(cell.level // 2))
            first, created_at = message.shown
            wanted.append((partition, offset, first, message.payload, message.labels, created_at, *past))
        assert (reply.total, got) == (len(dead), wanted)

    def pause(self, queue: str, ms: int | None) -> None:
        until = None if ms is None else self.now + ms
        reply = self._apply(c.Pause(TENANT, queue, until, create=True))
        assert reply == queries.Paused(True, until)
        self.model.queue(queue).paused_until = until or m.FOREVER
        self._must_sync = True
        self._check(queue)

    def resume(self, queue: str) -> None:
        assert self._apply(c.Resume(TENANT, queue)) == queries.Paused(False)
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
        self.model.forget_tokens()
        self._must_sync = True
        self._check(queue)
