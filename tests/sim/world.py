"""The real core and the model side by side: every step is done by both and compared."""

from collections.abc import Callable, Container, Iterator

from penstock.core import commands as c
from penstock.core import engine as engines
from penstock.core import log as logs
from penstock.core import merge as merges
from penstock.core import records
from penstock.core.directory import META_SHARD
from penstock.core.engine import Engine
from penstock.core.errors import Conflict, NotFound
from penstock.core.ids import OFFSET_BITS, parse_lease
from penstock.core.limits import Limits
from penstock.core.log import Piece
from penstock.core.look import counts
from penstock.core.merge import Joined, Merge
from penstock.core.model import Group, Log, Partition, Queue, Segment
from penstock.core.numbers import number_of
from penstock.core.settle import leased_runs
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

    def __init__(self, store: Store, reopen: Callable[[Store], Store] = lambda store: store) -> None:
        """``reopen`` closes a store and opens what it left, if it leaves anything."""
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
        self._must_sync = False
        """Whether something was confirmed since the last commit that has to survive power loss."""

    # Steps. Each is done by the core and by the model.

    def push(self, queue: str, partition: str, count: int, durability: str | None = None) -> None:
        payloads = [self._payload() for _ in range(count)]
        marked = self._is_marked(queue, partition)
        reply = self._apply(c.Push(TENANT, queue, payloads, partition, durability))
        assert isinstance(reply, c.Pushed)
        assert (reply.count, reply.durability) == (count, durability or "fsync")
        assert reply.first >> OFFSET_BITS == self._partition(queue, partition).numbers[-1][0]
        self._must_sync |= durability != "os" or not marked
        self.model.push(queue, partition, payloads, reply.first, reply.created_at)
        self._check(queue)

    def _payload(self) -> bytes:
        """Mostly one that no other message has; now and then nothing at all."""
        self.payloads += 1
        return b'{"n":%d}' % self.payloads if self.payloads % 4 else b""

    def push_many(self, queue: str, partitions: list[str]) -> None:
        pushes = [(name, [b'"%s"' % name.encode()]) for name in partitions]
        replies = self._apply(c.PushMany(TENANT, queue, pushes))
        assert isinstance(replies, list)
        for (name, payloads), reply in zip(pushes, replies, strict=True):
            self.model.push(queue, name, payloads, reply.first, reply.created_at)
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
    ) -> str | None:
        """The token of the lease, if anything was popped."""
        pop = c.Pop(TENANT, queue, group, count, min_count, partition, lease_ms, start, 0, owner)
        reply = self._apply(pop)
        assert isinstance(reply, c.Popped)
        self._trim(queue)
        wanted = self.model.pop(queue, group, count, min_count, partition, start)
        got = list(self._taken(reply))
        assert got == wanted, (got, wanted)
        if reply.lease is not None:
            lasts = lease_ms or self.model.queues[queue].lease_ms
            assert {each.expires_at for each in reply.deliveries} == {self.now + lasts}
            self.model.lease(reply.lease, queue, group, owner, self.now + lasts, wanted)
        self._check(queue)
        return reply.lease

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

    def settle_lease(self, verb: str, token: str) -> None:
        """Ack or nack a whole lease; a token that is not live is refused and changes nothing."""
        lease = self.model.leases.get(token)
        command = c.Ack(TENANT, token) if verb == "ack" else c.Nack(TENANT, token, error="no")
        if lease is None:
            self._refused(command)
            return
        reply = self._apply(command)
        assert isinstance(reply, c.Settled)
        assert (reply.count, list(reply.refused)) == (len(lease.cells), [])
        places = set(lease.cells)
        if verb == "ack":
            self.model.ack(token, places)
        else:
            self.model.nack(token, places, "no", self.now)
        self._check(lease.queue)

    def settle_ids(
        self,
        verb: str,
        queue: str,
        places: list[tuple[str, int]],
        token: str | None,
        group: str | None,
        owner: int,
    ) -> None:
        """Ack or nack messages by id, leased or not."""
        messages = self.model.queues[queue].messages
        ids = [messages[partition][offset].id for partition, offset in places]
        kind = c.Ack if verb == "ack" else c.Nack
        command = kind(TENANT, token, ids, group, owner, partial=True)
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or group not in (None, lease.group)):
            self._refused(command)
            return
        meant: dict[str, set[tuple[str, int]]] = {}
        refused: set[int] = set()
        for place, message in zip(places, ids, strict=True):
            held = self.model.find((queue, *place), token, group, owner)
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
                self.model.nack(held, theirs, "", self.now)
        self._check(queue)

    def extend(self, token: str, lease_ms: int) -> None:
        lease = self.model.leases.get(token)
        command = c.Extend(TENANT, token, lease_ms=lease_ms)
        if lease is None:
            self._refused(command)
            return
        lease.expires_at = max(lease.expires_at, self.now + lease_ms)
        reply = self._apply(command)
        assert isinstance(reply, c.Extended)
        assert (reply.expires_at, reply.count) == (lease.expires_at, len(lease.cells))
        self._check(lease.queue)

    def extend_ids(self, queue: str, places: list[tuple[str, int]], group: str, lease_ms: int) -> None:
        """Extend the leases of messages by id, leased or not."""
        messages = self.model.queues[queue].messages
        ids = [messages[partition][offset].id for partition, offset in places]
        held = [self.model.find((queue, *place), None, group, 0) for place in places]
        command = c.Extend(TENANT, None, ids, group, lease_ms=lease_ms)
        tokens = {token for token in held if token is not None}
        if not tokens:
            self._refused(command)
            return
        for token in tokens:
            lease = self.model.leases[token]
            lease.expires_at = max(lease.expires_at, self.now + lease_ms)
        reply = self._apply(command)
        assert isinstance(reply, c.Extended)
        assert reply.expires_at == min(self.model.leases[token].expires_at for token in tokens)
        assert sorted(reply.refused) == sorted(
            message for message, token in zip(ids, held, strict=True) if token is None
        )
        self._check(queue)

    def configure(self, queue: str, lease_ms: int, retention_ms: int, retention_bytes: int) -> None:
        self._apply(c.Configure(TENANT, queue, lease_ms, retention_ms, retention_bytes))
        self.model.queues.setdefault(queue, m.Queue()).lease_ms = lease_ms
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
        self.now += ms
        if ms % 2:
            self.engine.tick(self.now)
        self.model.advance(self.now)

    def commit(self) -> None:
        """Keep what changed, as the node does."""
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
        for lease in self.model.leases.values():
            lease.owner = 0

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

    def _refused(self, command: c.Command) -> None:
        self.engine.tick(self.now)
        before = snapshot(self.engine)
        try:
            self._apply(command)
        except Conflict:
            pass
        else:
            raise AssertionError("a token that is not live was taken")
        assert snapshot(self.engine) == before

    def check_all(self) -> None:
        self.engine.tick(self.now)
        for queue in self.model.queues:
            self._check(queue)
        assert {lease.name for shard in self.engine.shards for lease in shard.leases.values()} == {
            parse_lease(token)[1] for token in self.model.leases
        }

    def _check(self, name: str) -> None:
        """Every message of every group is in exactly one place, and it is the one the model says."""
        queue = self.engine.queues[TENANT, name]
        shard = self.engine.shards[queue.shard]
        known = self.model.queues[name]
        self._trim(name)
        assert list(queue.partitions) == list(known.messages)
        assert list(queue.groups) == list(known.groups)
        for partition in queue.partitions.values():
            assert partition.log.end == len(known.messages[partition.name])
            self._check_log(partition)
            for group in queue.groups.values():
                self._check_track(shard, group, partition, known.groups[group.name])
        for group in queue.groups.values():
            self._check_counts(queue, group, known)

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

    def _check_counts(self, queue: Queue, group: Group, known: m.Queue) -> None:
        kept = [
            cell.kind
            for partition, cells in known.groups[group.name].cells.items()
            for cell in cells[known.first[partition] :]
        ]
        found = counts(queue, group)
        assert found.waiting == kept.count(m.FRESH) + kept.count(m.SCHEDULED)
        assert (found.active, found.completed) == (kept.count(m.LEASED), kept.count(m.DONE))

    def _trim(self, name: str) -> None:
        """The model learns what was swept, and objects if it should not have been."""
        if name in self.model.queues:
            for partition in self.engine.queues[TENANT, name].partitions.values():
                self.model.trimmed(name, partition.name, partition.log.first)

    def _check_track(self, shard: Shard, group: Group, partition: Partition, known: m.Group) -> None:
        track = group.tracks[partition.key]
        log = partition.log
        kinds = [""] * log.end
        for offset in range(track.cursor, log.end):
            kinds[offset] += m.FRESH
        for run in track.schedule:
            for offset in range(run.first, run.first + run.count):
                kinds[offset] += m.SCHEDULED
                cell = known.cells[partition.name][offset]
                assert (run.due_at, run.deliveries) == (cell.due_at, cell.deliveries)
                assert (run.failures, run.error) == (cell.failures, cell.error)
        for lease, leased in leased_runs(shard, track, 0, log.end):
            assert shard.leases[lease.name] is lease
            for at in range(leased.count):
                if not leased.settled >> at & 1:
                    kinds[leased.first + at] += m.LEASED
        cells = known.cells.get(partition.name, [])
        for offset in range(log.first, log.end):
            assert (kinds[offset] or m.DONE) == cells[offset].kind, (group.name, partition.name, offset)
        assert track.leased == sum(cell.kind == m.LEASED for cell in cells)
        assert track.scheduled == sum(cell.kind == m.SCHEDULED for cell in cells)
        assert track.turn == known.turns.get(partition.name, 0)

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
        reader = self.model.queues[queue].groups.get(group)
        cell = reader.cells[partition][offset] if reader else m.Cell(m.FRESH)
        kind = cell.kind
        shown = {m.FRESH: "waiting", m.SCHEDULED: "waiting", m.LEASED: "active", m.DONE: "completed"}
        assert reply.state == shown[kind]
        assert reply.created_at == message.created_at
        if kind != m.DONE:
            assert (reply.deliveries, reply.failures, reply.error) == (
                cell.deliveries,
                cell.failures,
                cell.error,
            )


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
            [_partition(partition, renumbered) for partition in queue.partitions.values()],
            [_group(group) for group in queue.groups.values()],
            sorted(
                (lease.name, lease.group.name, lease.due_at, sorted(map(_lease_run, lease.runs.values())))
                for lease in engine.shards[queue.shard].leases.values()
                if lease.queue is queue
            ),
        )
        for name, queue in sorted(engine.queues.items())
    }


def _partition(partition: Partition, renumbered: Container[int]) -> object:
    log = partition.log
    segments = [
        (each.base, each.count, each.size, each.created_at, each.spread, each.body_name)
        for each in log.segments
    ]
    numbers = partition.numbers[:-1] if partition.key in renumbered else partition.numbers
    return (partition.key, partition.name, list(numbers), list(partition.marks), log.first, log.end, segments)


def _group(group: Group) -> object:
    tracks = {
        key: (track.cursor, track.turn, sorted(track.schedule), track.leased, track.scheduled)
        for key, track in group.tracks.items()
    }
    return (group.number, group.name, group.turn, tracks)


def _lease_run(run: object) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in run.__struct_fields__)  # type: ignore[attr-defined]
