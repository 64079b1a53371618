"""One life of a few queues: the rest of what clients ask, and what time brings."""

from forebay.core.api import commands as c, queries
from forebay.core.bounds import NEVER
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.ids import address
from forebay.core.log import log as logs
from forebay.core.log.numbers import number_of
from forebay.core.records import keyspace
from forebay.core.retention import carve, merge as merges
from forebay.core.tracks.dropped import is_dropped
from forebay.core.words import LINE, PART, RESULT, STATES as STATES
from tests.sim import model as m
from tests.sim.checks import SHARDS, TENANT, load, snapshot
from tests.sim.job_checks import as_modelled
from tests.sim.labels import labels_of
from tests.sim.snapshot import differences
from tests.sim.steps import Steps

__all__ = ["SHARDS", "STATES", "World", "load", "snapshot"]


class World(Steps):
    """One life of a few queues."""

    def update(self, queue: str, place: m.Place) -> None:
        """Give a message another payload, if nobody has had it."""
        self._tick(queue)
        known = self.model.queues[queue]
        (message,) = self._ids(queue, [place])
        meant, payload = known.current(place), self._payload()
        command = c.Update(TENANT, message, payload)
        if not known.has(meant):
            self._refused(command, NotFound)
            return
        if not self.model.may_update(queue, meant, self.now):
            self._refused(command, Conflict)
            return
        shown = known.messages[meant[0]][meant[1]].shown
        reply = self._apply(command)
        assert isinstance(reply, c.Pushed)
        assert (reply.first, reply.created_at, reply.count) == (*shown, 1)
        partition = self._partition(queue, place[0])
        number, base = number_of(partition, partition.log.end - 1)
        successor = address(number, partition.log.end - 1 - base)
        self.model.update(queue, meant, payload, successor, partition.log.time, self.now)
        self._must_sync = True
        self._check(queue)

    def seek(
        self, queue: str, group: str, start: int | str, partition: str | None, offset: int | None = None
    ) -> None:
        """A group reads on from another place."""
        self._tick(queue)
        known = self.model.queues[queue]
        command = c.Seek(TENANT, queue, group, start, partition, offset)
        if group not in known.groups or (partition is not None and partition not in known.messages):
            self._refused(command, NotFound)
            return
        if offset is not None and partition is not None:
            begins, ends = known.first[partition], len(known.messages[partition])
            if not begins <= offset <= ends:
                self._refused(command, Invalid)
                return
        reply = self._apply(command)
        assert isinstance(reply, c.Sought)
        names = list(known.messages) if partition is None else [partition]
        assert list(reply.cursors) == names
        for name in names:
            begin = offset if offset is not None else self.model.begins_at(queue, name, start)
            self.model.seek(queue, group, name, begin, self.now)
            passed = known.groups[group].cells[name][begin : reply.cursors[name]]
            assert begin <= reply.cursors[name]
            assert all(cell.kind != m.FRESH for cell in passed)
        known.groups[group].active_at = self.now
        self._check(queue)

    def clean(
        self, queue: str, group: str, states: tuple[str, ...], grace_ms: int, count: int | None
    ) -> None:
        """Clear out what is old enough."""
        self._tick(queue)
        known = self.model.queues[queue]
        if {"waiting", "delayed"} & set(states):
            self.model.group(queue, group, "all")
        completed = self._completed(known, group)
        reply = self._apply(c.Clean(TENANT, queue, states, group, grace_ms, count))
        assert isinstance(reply, c.Cleaned)
        left = m.FOREVER if count is None else count
        # Completed ones are dropped last then: with them goes what was just settled.
        is_last = count is None and not grace_ms
        done = dropped = 0
        for drops in (False, True) if is_last else (True, False):
            if drops:
                dropped = self._drop(queue, group, completed, left, grace_ms) if "completed" in states else 0
                self._trim(queue)
                left = max(left - dropped, 0)
            else:
                old = (self.now - grace_ms, left, self.now)
                done = self.model.clean(
                    queue, group, states, *old, lambda place: self._went(queue, group, place)
                )
        assert (reply.count, reply.more) == (dropped + done, False), (reply, dropped, done)
        self._must_sync |= reply.count > 0 or reply.freed > 0
        self._check(queue)

    def _went(self, queue: str, group: str, place: m.Place) -> bool:
        """Whether the core has a message of a group no longer scheduled."""
        return not self._is_scheduled(self.model.queues[queue].messages[place[0]][place[1]], group)

    @staticmethod
    def _completed(known: m.Queue, group: str) -> list[m.Place]:
        """What a group has completed, and is still shown."""
        cells = known.groups[group].cells if group in known.groups else {}
        every = ((name, at) for name, each in cells.items() for at in range(len(each)))
        return [(name, at) for name, at in every if cells[name][at].kind == m.DONE and known.has((name, at))]

    def _drop(self, queue: str, group: str, completed: list[m.Place], most: int, grace_ms: int) -> int:
        """The model learns what a clean dropped: the first of each partition, and as many as it should."""
        found, known = self.engine.queues[TENANT, queue], self.model.queues[queue]
        by_partition: dict[str, list[bool]] = {}
        dropped = 0
        for name, at in completed:
            track = found.groups[group].tracks[found.partitions[name].key]
            is_gone = not logs.has(track.partition.log, at) or is_dropped(track, at)
            by_partition.setdefault(name, []).append(is_gone)
            if is_gone:
                known.groups[group].cells[name][at].end(m.DROPPED, 0)
                dropped += 1
        for gone in by_partition.values():
            assert sorted(gone, reverse=True) == gone, "the oldest go first"
        assert dropped <= most
        assert grace_ms or dropped == min(most, len(completed))
        self.model.forget_names(known)
        return dropped

    def obliterate(self, queue: str) -> None:
        """Remove a queue with all it has."""
        self._tick(queue)
        found = self.engine.queues[TENANT, queue]
        reply = self._apply(c.Obliterate(TENANT, queue))
        assert reply == c.Cleaned(self.model.obliterate(queue))
        assert (TENANT, queue) not in self.engine.queues
        self._must_sync = True
        self.unread = [each for each in self.unread if each.queue is not found]
        self._woken = {wake for wake in self._woken if wake[0] is not found}
        self._looked = {each for each in self._looked if each[0] != queue}
        self._starved = {key: each for key, each in self._starved.items() if key[0] != queue}
        self._short = {key: each for key, each in self._short.items() if key[0] != queue}
        self._open = {key: each for key, each in self._open.items() if key[0] != queue}
        self.check_all()

    def show(self, queue: str, places: list[m.Place], group: str) -> None:
        """GETJOBSBATCH and the model agree; of what is not there nothing is shown."""
        self._tick(queue)
        known = self.model.queues[queue]
        ids = self._ids(queue, places)
        reply = self._apply(queries.Show(TENANT, [*ids, max(ids) + 1_000_000], group))
        assert isinstance(reply, queries.ShownAll)
        got: list[object] = []
        for each in reply.deliveries:
            self._fetch(each.queue, each)
            (payload,) = each.payloads()
            told = (bytes(payload), *labels_of(each), as_modelled(each.state))
            got.append((each.queue.name, (each.partition, each.offset), *told))
        wanted: list[object] = []
        for partition, at in map(known.current, places):
            if self._shows(known, (partition, at), group):
                message = known.messages[partition][at]
                state = self._state(message, queue, partition, at, group)
                wanted.append((queue, (partition, at), message.payload, message.labels, state))
        assert got == wanted, (got, wanted)

    def read(self, queue: str, partition: str, offset: int, max_count: int, max_bytes: int) -> None:
        reply = self._apply(queries.Read(TENANT, queue, offset, partition, max_count, max_bytes))
        assert isinstance(reply, queries.LogSlice)
        self._trim(queue)
        messages = self.model.queues[queue].messages[partition]
        first = max(offset, self.model.queues[queue].first[partition])
        assert reply.end == len(messages)
        at = first
        for run in reply.runs:
            self._fetch(reply.queue, run)
            for payload, labels in zip(run.payloads(), labels_of(run), strict=True):
                wanted = messages[at]
                assert (bytes(payload), run.created_at) == (wanted.payload, wanted.created_at)
                assert labels == wanted.labels
                assert run.first + at - run.offset == wanted.id
                at += 1
        assert at == reply.next
        assert at - first <= max_count
        assert at > first or first == len(messages)

    def browse(self, queue: str, state: str | None, group: str, count: int, skip: int) -> None:
        """Messages by where they stand, as the model sees it."""
        self._tick(queue)
        known = self.model.queues[queue]
        reply = self._apply(queries.Browse(TENANT, queue, state, group, count, skip))
        assert isinstance(reply, queries.ShownAll)
        got: list[object] = []
        for each in reply.deliveries:
            self._fetch(each.queue, each)
            (payload,) = each.payloads()
            told = (bytes(payload), *labels_of(each), each.created_at, as_modelled(each.state))
            got.append((each.partition, each.offset, *told))
        places = [
            (name, at)
            for name, messages in known.messages.items()
            for at in range(len(messages))
            if self._stands(known, (name, at), state, group)
        ]
        wanted: list[object] = []
        for name, at in places[skip : skip + count]:
            message = known.messages[name][at]
            found = self._state(message, queue, name, at, group)
            wanted.append((name, at, message.payload, message.labels, message.shown[1], found))
        assert (reply.total, got) == (len(places), wanted), (state, got, wanted)

    def _stands(self, known: m.Queue, place: m.Place, state: str | None, group: str) -> bool:
        """Whether a message is kept and stands so in a group."""
        name, at = place
        if not self._shows(known, place, group):
            return False
        if state is None:
            return True
        reader = known.groups.get(group)
        if reader is None and at < known.first[name]:
            return False
        message = known.messages[name][at]
        cell = reader.cells[name][at] if reader is not None else m.begin_now(message)
        if cell.kind != m.SCHEDULED:
            return state == {m.FRESH: "waiting", m.LEASED: "active", m.DONE: "completed"}.get(
                cell.kind, cell.kind
            )
        return state == ("delayed" if cell.due_at > self.now else "waiting")

    # What is noted of a message.

    def note(self, queue: str, place: m.Place, kind: int | None, token: str | None) -> None:
        """Note a line or a part, or progress if it is None; all but lines need a delivery."""
        self._tick(queue)
        known = self.model.queues[queue]
        (message,) = self._ids(queue, [place])
        meant, payload = known.current(place), self._payload()
        percent = self.payloads % 101
        command: c.AddNote | c.TellProgress = c.TellProgress(TENANT, message, percent, "so far", token)
        if kind is not None:
            command = c.AddNote(TENANT, message, kind, payload, token)
        lease = self.model.leases.get(token) if token is not None else None
        if token is not None and (lease is None or lease.group != "default"):
            self._refused(command, Conflict)
            return
        if not known.has(meant):
            self._refused(command, NotFound)
            return
        if kind != LINE and self.model.find(queue, meant, token, "default", 0) is None:
            self._refused(command, Conflict)
            return
        assert self._apply(command) == c.Noted(message)
        noted = self.model.noted(queue, meant)
        if kind is None:
            noted.progress = (percent, "so far", self.now)
        else:
            noted.notes.setdefault(kind, []).append(payload)
        self._check(queue)

    def check_notes(self, queue: str, place: m.Place) -> None:
        """What was noted of a message is what is shown of it."""
        self._tick(queue)
        known = self.model.queues[queue]
        (message,) = self._ids(queue, [place])
        meant = known.current(place)
        command = queries.GetNotes(TENANT, message, (RESULT, LINE, PART))
        if not known.has(meant) and place not in known.results:
            self._refused(command, NotFound)
            return
        reply = self._apply(command)
        if not known.has(meant):
            assert isinstance(reply, queries.NotesFound)
            (result, *others) = reply.notes
            for each in result:
                self._fetch(reply.queue, each)
            found = [bytes(payload) for each in result for payload in each.payloads()]
            assert (reply.state.state, found, others) == ("completed", known.results[place], [[], []])
            return
        assert isinstance(reply, queries.NotesFound)
        got: list[list[bytes]] = []
        for kind in reply.notes:
            for each in kind:
                self._fetch(reply.queue, each)
            got.append([bytes(payload) for each in kind for payload in each.payloads()])
        noted = self.model.noted(queue, meant)
        assert got == [noted.notes.get(kind, []) for kind in (RESULT, LINE, PART)]
        told = reply.progress
        assert (told and (told.percent, told.message, told.at)) == noted.progress
        about = known.messages[meant[0]][meant[1]]
        assert as_modelled(reply.state) == self._state(about, queue, *meant, "default")
        waits = reply.state.state in ("waiting", "delayed", "parked")
        assert reply.over_at == (about.over_at if waits and about.attributes.ttl_ms else NEVER)

    # What time brings, and what nobody outside should notice.

    def wait(self, ms: int) -> None:
        """Time passes; now and then the node's timer rings, now and then it is late."""
        assert self.engine.next_due_at() <= self._next_due_at()
        self.now += ms
        self.model.advance(self.now)
        if ms % 2:
            self._tick()

    def catch_up(self) -> None:
        """Have sweeps that are due come first, so that what is chosen next is still there."""
        if self._swept():
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
        used = [set(shard.places) for shard in self.engine.shards.values()]
        self._check_stored()
        self.store = self._reopen(self.store)
        self.engine = load(self.store, self.limits, self.now)
        assert not self.engine.damaged, self.engine.damaged
        self._check_fresh(marked, used)
        found = list(differences(snapshot(self.engine, marked), before))
        assert not found, found
        assert self.engine.next_due_at() <= self._next_due_at()
        self._forget_process()

    def _forget_process(self) -> None:
        """Forget what was only in the memory of a process that ended."""
        self.model.restart()
        self._open.clear()
        self._woken.clear()
        self._looked.clear()
        self._starved.clear()
        self._short.clear()
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
            keyspace.body_key(queue.prefix, segment.body_name)
            for queue in self.engine.queues.values()
            for log in (
                *(partition.log for partition in queue.partitions.values()),
                *(notes.log for notes in queue.notes.values()),
            )
            for segment in log.segments
        }
        assert set(self.store.body_keys()) == wanted

    def plan_merge(self, at_least: int) -> None:
        """Choose small segments and join them, however few there are."""
        for queue in self.engine.queues.values():
            shard = self.engine.shards[queue.shard]
            for partition in queue.partitions.values():
                shard.changes.to_merge[partition.key] = (queue, partition)
        looks = self.steps % self.every == 0
        before = snapshot(self.engine) if looks else None
        merge = self.engine.plan_merge(at_least)
        assert not looks or snapshot(self.engine) == before
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
            to_carve = self.engine.shards[queue.shard].changes.to_carve
            for partition in queue.partitions.values():
                log = partition.log
                for segment in log.segments[: log.islands]:
                    to_carve[partition.key, segment.base] = (queue, partition, segment)
        looks = self.steps % self.every == 0
        before = snapshot(self.engine) if looks else None
        carving = self.engine.plan_carving()
        assert not looks or snapshot(self.engine) == before
        for shard in self.engine.shards.values():
            shard.changes.to_carve.clear()
        if carving is not None:
            self.carving = carving, carve.join(carving, [self._body(carving.queue, carving.island)])

    def apply_carving(self) -> None:
        """Put the parts of the island in its place, if it is still there."""
        if self.carving is None:
            return
        carving, carved = self.carving
        self.carving = None
        self._tick()
        log = carving.partition.log
        there = carving.queue in self.engine.queues.values() and logs.is_island(log, carving.island)
        assert self.engine.apply_carving(carving, carved) == there
        self.carvings += there
        self._trim(carving.queue.name)
        self._check(carving.queue.name)

    def let_go(self, at: int) -> None:
        """A body leaves memory, even if the log has forgotten its segment; the store has it."""
        if self.shelf:
            log, segment = self.shelf.pop(at % len(self.shelf))
            before = list(log.segments)
            logs.drop_body(log, segment)
            assert segment.body is not None, "who holds the segment still has it"
            assert [each for each in log.segments if each not in before] == [
                each for each in log.segments if each.base == segment.base and segment in before
            ]
            self.check_all()
