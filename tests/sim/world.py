"""The real core and the model side by side: every step is done by both and compared."""

from collections.abc import Callable, Container, Iterator
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from penstock.core import commands as c, engine as engines, log as logs, merge as merges, records
from penstock.core.agenda import NEVER
from penstock.core.directory import META_SHARD
from penstock.core.engine import Engine
from penstock.core.errors import Conflict, NotFound
from penstock.core.ids import OFFSET_BITS, parse_lease
from penstock.core.leased import leased_runs
from penstock.core.limits import Limits
from penstock.core.log import Piece
from penstock.core.look import counts
from penstock.core.merge import Joined, Merge
from penstock.core.model import (
    OUTCOMES,
    PLAIN,
    Attributes,
    Group,
    Log,
    Partition,
    Queue,
    Segment,
    fresh_count,
)
from penstock.core.numbers import number_of
from penstock.core.schedule import NO_PAST, Schedule, Scheduled
from penstock.core.shard import Shard
from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from penstock.store.rocks import RocksStore
from tests.sim import model as m

TENANT = "default"
SHARDS = 4


def load(store: Store, limits: Limits, now: int, down_ms: int = 0) -> Engine:
    """An engine from what a store has."""
    meta = store.claim(META_SHARD).epoch
    claims = [engines.Taken(store.claim(number).epoch, down_ms) for number in range(SHARDS)]
    return engines.load(limits, claims, meta, store.scan, now)


class World:
    """One life of a few queues."""

    def __init__(
        self, store: Store, reopen: Callable[[Store], Store] = lambda store: store, *, every: int = 1
    ) -> None:
        """``reopen`` closes a store and opens what it left, if it leaves anything.

        Answers are compared at every step, the whole state at each ``every``-th: it takes most of the time.
        """
        self.every = every
        self.store = store
        self._reopen = reopen
        self.limits = Limits()
        self.now = 1_700_000_000_000
        self.engine = load(store, self.limits, self.now)
        self.model = m.Model()
        self.steps = 0
        self.payloads = 0
        self.merging: tuple[Merge, Joined] | None = None
        """A merge that was planned and joined, and not applied yet."""
        self.merges = 0
        """Merges that were applied."""
        self.shelf: list[tuple[Log, Segment]] = []
        """Segments whose bodies are, or were, in memory and in the store."""
        self._woken: set[c.Wake] = set()
        """What the core said of what became deliverable, and was not compared yet."""
        self._open: dict[tuple[str, str], dict[str, list[int]]] = {}
        """What was deliverable when that was last compared, by queue and group."""
        self._must_sync = False
        """Whether something was confirmed since the last commit that has to survive power loss."""

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
        reply = self._apply(c.Push(TENANT, queue, payloads, partition, durability, attributes))
        assert isinstance(reply, c.Pushed)
        assert (reply.count, reply.durability) == (count, durability or "fsync")
        assert reply.first >> OFFSET_BITS == self._partition(queue, partition).numbers[-1][0]
        self._must_sync |= durability != "os" or not marked
        self.model.push(queue, partition, payloads, reply.first, reply.created_at, attributes, self.now)
        self._check(queue)

    def _payload(self) -> bytes:
        """Mostly one that no other message has; now and then nothing at all."""
        self.payloads += 1
        return b'{"n":%d}' % self.payloads if self.payloads % 4 else b""

    def push_many(self, queue: str, parts: list[tuple[str, Attributes]]) -> None:
        pushes = [(name, [b'"%s"' % name.encode()], attributes) for name, attributes in parts]
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
    ) -> str | None:
        """The token of the lease, if anything was popped and its consumer has heard of it."""
        pop = c.Pop(TENANT, queue, group, count, min_count, partition, lease_ms, start, 0, owner)
        reply = self._apply(pop)
        assert isinstance(reply, c.Popped)
        self._trim(queue)
        self.model.group(queue, group, start)
        planned = self._planned(reply.queue, group)
        wanted = self.model.pop(queue, group, count, min_count, partition, lease_ms, self.now, planned)
        got = list(self._taken(reply))
        assert got == wanted, (got, wanted)
        assert reply.lease is not None or not got
        if reply.lease is not None:
            self.model.lease(reply.lease, queue, group, owner, wanted)
        left = self.model.deliverable(queue, group, partition, self.now, planned)
        most = c.Pop(TENANT, queue, group, 1_000, 1_000, partition)
        assert self.engine.deliverable(most) == sum(map(len, left.values()))
        self._check(queue)
        if unheard and reply.lease is not None:
            self.engine.give_back(reply)
            self.model.give_back(reply.lease, self.now)
            self._check(queue)
            return None
        return reply.lease

    def _planned(self, queue: Queue, group: str) -> dict[str, int]:
        """Up to where a group sees what is not in line, by partition."""
        tracks = queue.groups[group].tracks
        return {name: tracks[partition.key].planned for name, partition in queue.partitions.items()}

    def _taken(self, reply: c.Popped) -> Iterator[m.Taken]:
        for each in reply.deliveries:
            self._fetch(reply.queue, each)
            for at, payload in enumerate(each.payloads()):
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
        first = self.model.queues[queue].first
        cancelled = reader is not None and any(
            at >= first[name] and reader.cells[name][at].kind == m.CANCELLED for name, at in refused
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
    ) -> None:
        """Move messages of some queues."""
        ids = [each for queue, places in chosen.items() for each in self._ids(queue, places)]
        self._tick(*chosen)
        refused: list[int] = []
        for queue, places in chosen.items():
            first = self.model.queues[queue].first
            messages = self.model.queues[queue].messages
            if group not in self.model.queues[queue].groups:
                kept = [place for place in places if place[1] >= first[place[0]]]
                if all(messages[partition][at].withdrawn_at for partition, at in kept):
                    refused += self._ids(queue, places)
                    continue
                self.model.group(queue, group, "all")
            for place in places:
                if not self.model.move(queue, place, group, delay_ms, priority, self.now):
                    refused += self._ids(queue, [place])
        self._change(c.Move(TENANT, ids, group, delay_ms, priority), chosen, refused)

    def _change(
        self, command: c.Cancel | c.Move, chosen: dict[str, list[m.Place]], refused: list[int]
    ) -> None:
        """Have the core do what the model did to all ids but those it ``refused``."""
        if len(refused) == len(command.ids):
            kept = any(
                offset >= self.model.queues[queue].first[partition]
                for queue, places in chosen.items()
                for partition, offset in places
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
        """Set some options of a queue."""
        self._apply(c.Configure(TENANT, queue, **options))
        known = self.model.queue(queue)
        known.options = replace(known.options, **options)
        self._must_sync = True
        self._check(queue)

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
            self.engine.tick(self.now)

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
        self._woken.update(self.engine.take_woken())
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
        self.engine.tick(self.now)
        if clean:
            self.engine.clear_marks()
        self.commit()
        self.merging = None
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
        self.engine.tick(self.now)
        self._check(merge.queue.name)

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

    # Checks.

    def _apply(self, command: c.Command) -> c.Reply:
        self.steps += 1
        self.model.advance(self.now)
        return self.engine.apply(command, self.now)

    def _refused(self, command: c.Command, error: type[Exception] = Conflict) -> None:
        """The command is refused, and changes nothing that could be seen."""
        self.engine.tick(self.now)
        # Where the schedule of a group is still to be made, whoever needs it makes it.
        planning = any(
            group.unplanned for queue in self.engine.queues.values() for group in queue.groups.values()
        )
        before = snapshot(self.engine)
        try:
            self._apply(command)
        except error:
            pass
        else:
            raise AssertionError(f"it was not refused: {command}")
        if not planning:
            assert snapshot(self.engine) == before

    def _tick(self, *queues: str) -> None:
        """Let both sides come to now, before something is asked of the model first."""
        self.engine.tick(self.now)
        self.model.advance(self.now)
        for queue in queues:
            self._trim(queue)

    def check_all(self) -> None:
        self.engine.tick(self.now)
        self.model.advance(self.now)
        for queue, known in self.model.queues.items():
            self._trim(queue)
            self._check_queue(queue)
            for reader in self.engine.queues[TENANT, queue].groups.values():
                for track in reader.tracks.values():
                    assert runs_of(track.schedule) == list(track.schedule)
            self._check_messages(self.engine.queues[TENANT, queue], known)
            self._check_counts(self.engine.queues[TENANT, queue], known, None)
        assert {lease.name for shard in self.engine.shards for lease in shard.leases.values()} == {
            parse_lease(token)[1] for token in self.model.leases
        }

    def _check(self, name: str) -> None:
        self._trim(name)
        if self.steps % self.every == 0:
            self._check_queue(name)

    def _check_queue(self, name: str) -> None:
        """Every message of every group is in exactly one place, and it is the one the model says."""
        queue = self.engine.queues[TENANT, name]
        shard = self.engine.shards[queue.shard]
        known = self.model.queues[name]
        assert list(queue.partitions) == list(known.messages)
        assert list(queue.groups) == list(known.groups)
        assert queue.options == known.options
        assert queue.paused_until == known.paused_until
        for partition in queue.partitions.values():
            assert partition.log.end == len(known.messages[partition.name])
            self._check_log(partition)
            for group in queue.groups.values():
                self._check_track(shard, known, group, partition)
        self._woken.update(self.engine.take_woken())
        for reader in queue.groups:
            self._check_counts(queue, known, reader)
            self._check_woken(queue, reader)
        self._woken = {wake for wake in self._woken if wake[0] is not queue}

    def _check_log(self, partition: Partition) -> None:
        """Segments follow each other, none crosses a number, and what is settled is counted in whole ones."""
        log = partition.log
        assert log.bases == [segment.base for segment in log.segments]
        assert [log.first, *(segment.end for segment in log.segments)] == [*log.bases, log.end]
        assert log.size == sum(segment.size for segment in log.segments)
        for segment in log.segments:
            assert number_of(partition, segment.base) == number_of(partition, segment.end - 1)
            assert sum(run.count for run in segment.runs) == segment.count
        settled = [segment for segment in log.segments if segment.end <= partition.settled_to]
        assert partition.settled_to == (settled[-1].end if settled else log.first)
        assert partition.settled_bytes == sum(segment.weight for segment in settled)

    def _check_messages(self, queue: Queue, known: m.Queue) -> None:
        """The log says of every message what was pushed."""
        for partition in queue.partitions.values():
            log, messages = partition.log, known.messages[partition.name]
            at = log.first
            for segment in log.segments:
                end, aside = 0, 0
                while end < segment.count:
                    start, (end, created_at, attributes) = end, segment.run_at(end)
                    for message in messages[at : at + end - start]:
                        assert message.created_at == created_at
                        self._check_attributes(message, attributes)
                        aside += not message.in_line
                    at += end - start
                assert segment.aside == aside
                if segment.payloads is None:
                    assert segment.runs[-1].attributes == attributes
            assert log.mixed == sum(segment.mixed for segment in log.segments)
            withdrawn = [0] * log.end
            for first, count, when in partition.withdrawn:
                withdrawn[first : first + count] = [when] * count
            assert withdrawn[log.first :] == [each.withdrawn_at for each in messages[log.first :]]

    def _check_attributes(self, message: m.Message, found: Attributes) -> None:
        """What is kept counts from the time of the message, and says the same."""
        told, late = message.attributes, message.pushed_at - message.created_at
        assert found.delay_ms == (told.delay_ms + late if told.delay_ms else 0)
        assert found.ttl_ms == (told.ttl_ms + late if told.ttl_ms else 0)
        assert replace(found, delay_ms=told.delay_ms, ttl_ms=told.ttl_ms) == told

    def _check_counts(self, queue: Queue, known: m.Queue, group: str | None) -> None:
        """As many messages stand where the model says; of a group that does not exist, if it is None."""
        kept = [
            m.DUE if cell.kind == m.SCHEDULED and cell.due_at <= self.now else cell.kind
            for partition in known.messages
            for cell in self._cells(known, group, partition)[known.first[partition] :]
        ]
        found = counts(queue, queue.groups[group] if group is not None else None, self.now)
        delayed = kept.count(m.SCHEDULED)
        waiting = kept.count(m.FRESH) + kept.count(m.DUE)
        if group is not None and queue.groups[group].unplanned:
            # What was not looked at yet counts as waiting, even if it is not due.
            assert found.waiting + found.delayed == waiting + delayed
            assert found.waiting >= waiting
        else:
            assert (found.waiting, found.delayed) == (waiting, delayed)
        assert (found.active, found.dead) == (kept.count(m.LEASED), kept.count(m.DEAD))
        assert (found.completed, found.cancelled) == (kept.count(m.DONE), kept.count(m.CANCELLED))
        assert (found.expired, found.discarded) == (kept.count(m.EXPIRED), kept.count(m.DISCARDED))

    def _check_woken(self, queue: Queue, group: str) -> None:
        """Whoever waits was told of everything that became deliverable."""
        now_open = self.model.deliverable(queue.name, group, None, self.now, self._planned(queue, group))
        before = self._open.get((queue.name, group), now_open)
        for name, found in now_open.items():
            if set(found) - set(before.get(name, ())):
                told = ((queue, None, None), (queue, None, name), (queue, group, name))
                assert not self._woken.isdisjoint(told), (queue.name, group, name)
        self._open[queue.name, group] = now_open

    def _cells(self, known: m.Queue, group: str | None, partition: str) -> list[m.Cell]:
        if group is not None:
            return known.groups[group].cells[partition]
        found = [m.begin(message) for message in known.messages[partition]]
        for cell, message in zip(found, known.messages[partition], strict=True):
            if message.withdrawn_at:
                cell.kind = m.CANCELLED
        return found

    def _trim(self, name: str) -> None:
        """The model learns what was swept, and objects if it should not have been."""
        if name in self.model.queues:
            for partition in self.engine.queues[TENANT, name].partitions.values():
                self.model.trimmed(name, partition.name, partition.log.first)

    def _check_track(self, shard: Shard, known: m.Queue, group: Group, partition: Partition) -> None:
        track, log = group.tracks[partition.key], partition.log
        cells, messages = known.groups[group.name].cells[partition.name], known.messages[partition.name]
        kinds = [m.DONE] * log.end
        for offset in range(track.cursor, log.end):
            if messages[offset].in_line:
                kinds[offset] = m.FRESH
        fresh = kinds.count(m.FRESH)
        for first, count in track.skips:
            assert first >= track.cursor
            assert kinds[first : first + count] == [m.FRESH] * count
            kinds[first : first + count] = [m.DONE] * count
            fresh -= count
        assert fresh_count(track) == fresh
        for run in runs_of(track.schedule):
            _put(kinds, m.SCHEDULED, run.first, run.count)
            past = (run.level, run.due_at, run.deliveries, run.failures, run.error)
            _compare(past, cells[run.first : run.first + run.count])
        for letter in track.letters.values():
            _put(kinds, m.DEAD, letter.first, letter.count)
            past = (letter.level, letter.dead_at, letter.deliveries, letter.failures, letter.error)
            _compare(past, cells[letter.first : letter.first + letter.count])
        for first, count, outcome, at in track.outcomes:
            _put(kinds, OUTCOMES[outcome], first, count)
            assert all(cell.due_at == at for cell in cells[first : first + count])
        for lease, leased in leased_runs(shard, track, 0, log.end):
            assert shard.leases[lease.name] is lease
            assert lease.due_at <= leased.expires_at
            past = (leased.level, leased.expires_at, leased.deliveries, leased.failures, leased.error)
            for at in range(leased.first, leased.first + leased.count):
                if not leased.settled >> at - leased.first & 1:
                    _put(kinds, m.LEASED, at, 1)
                    _compare(past, cells[at : at + 1])
                    assert parse_lease(cells[at].lease)[1] == lease.name
        unplanned = 0
        if track.planned < log.end:
            for offset in range(track.planned, log.end):
                if kinds[offset] == m.DONE and not messages[offset].in_line:
                    kinds[offset] = m.SCHEDULED
                    unplanned += 1
        assert track.unplanned == unplanned
        assert (track.planned != NEVER) == (partition.key in group.unplanned)
        assert kinds[log.first :] == [cell.kind for cell in cells[log.first :]], (group.name, partition.name)
        assert track.leased == kinds.count(m.LEASED)
        assert track.schedule.messages + unplanned == kinds.count(m.SCHEDULED)
        assert track.dead_messages == kinds.count(m.DEAD)
        assert [row[0] for row in track.dead] == sorted(track.letters)
        assert track.turn == known.groups[group.name].turns[partition.name]

    def check_state(self, queue: str, partition: str, offset: int, group: str) -> None:
        """GETSTATE and the model agree."""
        message = self.model.queues[queue].messages[partition][offset]
        command = c.State(TENANT, message.id, group)
        self.engine.tick(self.now)
        self._trim(queue)
        if offset < self.model.queues[queue].first[partition]:
            try:
                self._apply(command)
            except NotFound:
                return
            raise AssertionError("a message below the log's first offset was found")
        reply = self._apply(command)
        assert isinstance(reply, c.StateFound)
        wanted = self._state(message, queue, partition, offset, group)
        assert reply == wanted, (reply, wanted)

    def _state(self, message: m.Message, queue: str, partition: str, offset: int, group: str) -> c.StateFound:
        """Where a message stands, as the model sees it."""
        found = c.StateFound(message.id, message.created_at, "waiting", priority=message.attributes.priority)
        reader = self.model.queues[queue].groups.get(group)
        cell = reader.cells[partition][offset] if reader else m.begin(message)
        if reader is None and message.withdrawn_at:
            found.state, found.ended_at = "cancelled", message.withdrawn_at
            return found
        if cell.kind in m.ENDED:
            found.state = {m.DONE: "completed", m.DISCARDED: "dead"}.get(cell.kind, cell.kind)
            found.ended_at = {m.DONE: None, m.EXPIRED: message.over_at}.get(cell.kind, cell.due_at)
            return found
        found.deliveries, found.failures, found.error = cell.deliveries, cell.failures, cell.error
        found.priority = -(cell.level // 2)
        if cell.kind == m.LEASED:
            found.state = "active"
        elif cell.kind == m.DEAD:
            found.state, found.ended_at = "dead", cell.due_at
        elif message.over_at <= self.now:
            found.state, found.ended_at = "expired", message.over_at
        elif cell.kind == m.SCHEDULED and cell.due_at > self.now:
            found.state, found.due_at = "delayed", cell.due_at
        return found


def runs_of(schedule: Schedule) -> list[Scheduled]:
    """``list(schedule)``, in a tenth of the time: this is asked at every step."""
    found = [
        Scheduled(due_at, first, count, level, *schedule._past.get(first, NO_PAST))
        for level, line in schedule._lines.items()
        for due_at, first, count in line
    ]
    return sorted(found, key=attrgetter("first"))


def _put(kinds: list[str], kind: str, first: int, count: int) -> None:
    """Say what became of messages that nothing else was said of."""
    assert kinds[first : first + count] == [m.DONE] * count, (kind, first, count)
    kinds[first : first + count] = [kind] * count


def _compare(past: tuple[int, int, int, int, str], cells: list[m.Cell]) -> None:
    for cell in cells:
        told = (cell.level, cell.due_at, cell.deliveries, cell.failures, cell.error)
        assert told == past, (told, past)


def snapshot(engine: Engine, renumbered: Container[int] = ()) -> object:
    """Everything of an engine that is stored, in a form that can be compared.

    But for the last number of partitions that were ``renumbered``.
    """
    return {
        name: (
            queue.prefix,
            queue.shard,
            queue.options,
            queue.groups_made,
            queue.paused_until,
            [_partition(partition, renumbered) for partition in queue.partitions.values()],
            [_group(group) for group in queue.groups.values()],
            sorted(
                (
                    (lease.name, lease.group.name, lease.due_at, lease.cancelled),
                    sorted(map(_lease_run, lease.runs.values())),
                )
                for lease in engine.shards[queue.shard].leases.values()
                if lease.queue is queue
            ),
        )
        for name, queue in sorted(engine.queues.items())
    }


def _partition(partition: Partition, renumbered: Container[int]) -> object:
    log = partition.log
    segments = [
        (
            (each.base, each.count, each.size, each.created_at, each.body_name),
            (each.spread, each.sets, each.which, each.aside),
        )
        for each in log.segments
    ]
    numbers = partition.numbers[:-1] if partition.key in renumbered else partition.numbers
    kept = (list(partition.marks), list(partition.withdrawn), log.first, log.end, log.mixed)
    return (partition.key, partition.name, list(numbers), kept, segments)


def _group(group: Group) -> object:
    tracks = {
        key: (
            (track.cursor, track.turn, track.planned),
            (list(track.skips), runs_of(track.schedule), list(track.outcomes)),
            (list(track.dead), sorted(track.letters.items())),
            (track.leased, track.aside, track.unplanned, track.dead_messages, track.schedule.messages),
        )
        for key, track in group.tracks.items()
    }
    return (group.number, group.name, group.turn, tracks, list(group.unplanned))


def _lease_run(run: object) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in run.__struct_fields__)  # type: ignore[attr-defined]
