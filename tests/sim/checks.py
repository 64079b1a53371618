"""What is compared after a step: every message of every group, every count, and who was told of what."""

from functools import partial

from msgspec.structs import replace

from forebay.core import engine as engines
from forebay.core.api import commands as c, queries
from forebay.core.bounds import NEVER, Limits
from forebay.core.engine import Engine
from forebay.core.errors import Conflict, NotFound
from forebay.core.ids import address, parse_lease
from forebay.core.log import log as logs
from forebay.core.log.numbers import number_of
from forebay.core.queries.describe import counts
from forebay.core.records.keyspace import CONTROL
from forebay.core.shard.shard import Shard
from forebay.core.shard.timers import next_sweep_at
from forebay.core.state import LOST, Attributes, Group, Partition, Queue, fresh_count
from forebay.core.tracks.dead_letters import dead_over
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.outcomes import outcome_at
from forebay.core.tracks.planning import count_unplanned
from forebay.core.words import DEFERRED_SINCE, DISCARDED, DROPPED, DROPS, OPEN, OUTCOMES, RESULT
from forebay.store.base import Store
from tests.sim import job_checks, model as m
from tests.sim.inside import notifying, values_of
from tests.sim.jobs_model import NEW, Core
from tests.sim.snapshot import runs_of as runs_of, snapshot as snapshot
from tests.sim.system_model import SystemModel

TENANT = "default"
SHARDS = 4
SHOWN_AS = {m.DONE: "completed", m.DROPPED: "completed", m.DISCARDED: "dead", m.DROPPED_DEAD: "dead"}
"""States that are called otherwise than the cells of the model."""


def load(store: Store, limits: Limits, now: int, down_ms: int = 0) -> Engine:
    """An engine from what a store has."""
    control = store.claim(CONTROL).epoch
    claims = {number: engines.Taken(store.claim(number).epoch, down_ms) for number in range(SHARDS)}
    return engines.load(limits, SHARDS, claims, control, store.scan, now)


class Checks:
    """The core and the model, and whether they agree."""

    def __init__(self, store: Store, every: int) -> None:
        self.every = every
        self.store = store
        self.limits = Limits(pop_creates_queues=True)
        self.now = 1_700_000_000_000
        self.engine = load(store, self.limits, self.now)
        self.model = SystemModel()
        self._takes_over = Core(*(getattr(self, f"_{name}") for name in Core._fields))
        self.slow = False
        """Whether those who wait are told little by little, with every command some."""
        self.steps = 0
        self._woken: set[c.Wake] = set()
        """What the core said of what became deliverable, and was not compared yet."""
        self._open: dict[tuple[str, str], dict[str, list[int]]] = {}
        """What was deliverable when that was last compared, by queue and group."""
        self._looked: set[tuple[str, str, str]] = set()
        """Queue, group and partition of which a pop got all there was, and that nobody was told of since."""
        self._plans: dict[tuple[str, str], int] = {}
        """Up to where work queues had looked before the last command, if that was not everywhere."""
        self._starved: dict[tuple[str, str, str | None], int] = {}
        """How many a pop wanted that limits did not let go, of a group or a partition of it, and nobody was
        told of since."""
        self._short: dict[tuple[str, str, str | None], int] = {}
        """The same of all there is, by what was asked for: where there was less than a pop wanted."""

    def _planned(self, queue: Queue, group: str) -> dict[str, int]:
        """Up to where a group sees what is not in line, by partition."""
        tracks = queue.groups[group].tracks
        return {name: tracks[partition.key].planned for name, partition in queue.partitions.items()}

    def _apply(self, command: c.Command) -> c.Reply:
        self.steps += 1
        timed = self.model.has_timers and not self.slow
        if self._swept() or (timed and self.engine.next_due_at() <= self.now):
            self._tick()
        self.model.advance(self.now)
        self._note_plans()
        return self.engine.apply(command, self.now)

    def _swept(self) -> list[str]:
        """The queues that are swept when the core is told the time: some because a lease ran out long ago."""
        late = {
            lease.queue.name
            for shard in self.engine.shards.values()
            for lease in shard.leases.values()
            if next_sweep_at(lease.due_at) <= self.now and lease.queue.options.max_wait_ms
        }
        return [
            name
            for (_, name), queue in self.engine.queues.items()
            if 0 < queue.sweep_at <= self.now or name in late
        ]

    def _refused(self, command: c.Command, error: type[Exception] = Conflict) -> None:
        """The command is refused, and changes nothing that could be seen."""
        if not self.slow:
            self._tick()
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
        swept = self._swept()
        planned = {name: self._all_planned(name) for name in swept}
        self._note_plans()
        self.engine.tick(self.now)
        self.model.advance(self.now)
        self.model.tick(self.now)
        for queue in swept:
            if self.model.queues[queue].options.max_wait_ms:
                self.model.sweep(queue, self.now, planned[queue])
        for queue in {*queues, *swept}:
            self._trim(queue)
        for queue in swept:
            self._check_swept(self.engine.queues[TENANT, queue], self.model.queues[queue])
        self._fire()
        self._follow()

    def _fire(self) -> None:
        """Crons come, each in a partition of its own."""
        due = self.model.due(self.now)
        for cron, slot in sorted(
            due, key=lambda each: self._partition(each[0].queue, each[0].job.partition).key
        ):
            ((kind, message),) = self.model.push_jobs(cron.queue, [cron.job], self.now, self._takes_over)
            assert kind != NEW or self.model.ids[message].created_at >= slot, (cron, slot)

    def _follow(self) -> None:
        """The model sees to what follows from what ended; the core may do so a little at a time."""
        ticks = 0
        while notifying(self.engine) and not self.slow:
            self.engine.tick(self.now)
            self.model.tick(self.now)
            ticks += 1
            assert ticks < 1_000, "those who wait are told at last"
        self.model.follow(self.now, self._takes_over)

    # What the model takes over.

    def _is_discarded(self, message: m.Message) -> bool:
        queue, (partition, offset) = self.engine.queues[TENANT, message.queue], message.place
        if "default" not in queue.groups:
            return False
        ended = outcome_at(queue.groups["default"].tracks[queue.partitions[partition].key], offset)
        return ended is not None and ended[0] == DISCARDED

    def _has_work_queue(self, queue: str) -> bool:
        return "default" in self.engine.queues[TENANT, queue].groups

    def _id_of(self, queue: str, partition: str, offset: int) -> int:
        number, base = number_of(self._partition(queue, partition), offset)
        return address(number, offset - base)

    def _created_at(self, queue: str, partition: str, offset: int) -> int:
        log = self._partition(queue, partition).log
        segment = log.segments[logs.find(log, offset)]
        return segment.run_at(offset - segment.base)[1]

    def _is_open(self, message: m.Message, looked: bool) -> bool:
        state = self._state(message, message.queue, *message.place, "default").state
        seen = (
            looked
            or message.in_line
            or message.place[1] < self._plans.get((message.queue, message.place[0]), NEVER)
        )
        if state == "evicted" and not seen:
            return message.over_at > self.now
        return state in OPEN

    def _note_plans(self) -> None:
        """Note up to where work queues have looked before something is done."""
        self._plans = {
            (queue.name, track.partition.name): track.planned
            for queue in self.engine.queues.values()
            if "default" in queue.groups
            for track in queue.groups["default"].unplanned.values()
        }

    def _is_seen(self, message: m.Message, group: str) -> bool:
        queue, (partition, offset) = self.engine.queues[TENANT, message.queue], message.place
        return offset < queue.groups[group].tracks[queue.partitions[partition].key].planned

    def _is_lost(self, message: m.Message) -> bool:
        """Whether a dead letter died of a message that can't complete any more."""
        queue, (partition, offset) = self.engine.queues[TENANT, message.queue], message.place
        track = queue.groups["default"].tracks[queue.partitions[partition].key]
        (run,) = dead_over(track, offset, offset + 1)
        assert (run.unmet == LOST) == (message.hopeless and run.error.startswith("it depends on"))
        return run.unmet == LOST

    def _is_awaited(self, message: m.Message) -> bool:
        """Whether somebody waits for a message, or did when it died."""
        partition, offset = message.place
        return bool(self._partition(message.queue, partition).waiting_over(offset, offset + 1))

    def _is_parked(self, message: m.Message) -> bool:
        partition, offset = message.place
        return bool(self._partition(message.queue, partition).parked_over(offset, offset + 1))

    def _error_of(self, message: m.Message) -> str | None:
        queue, (partition, offset) = self.engine.queues[TENANT, message.queue], message.place
        if "default" not in queue.groups:
            return None
        track = queue.groups["default"].tracks[queue.partitions[partition].key]
        return next((each.error for each in dead_over(track, offset, offset + 1)), None)

    def _is_telling(self) -> bool:
        return notifying(self.engine)

    def _version_of(self, key: bytes) -> int:
        return values_of(self.engine)[TENANT].entries[key].version

    def _partition(self, queue: str, partition: str) -> Partition:
        return self.engine.queues[TENANT, queue].partitions[partition]

    def _check_swept(self, queue: Queue, known: m.Queue) -> None:
        """A sweep has left nothing behind that could have gone."""
        options = known.options
        for name, partition in queue.partitions.items():
            log = partition.log
            sealed = [each for each in log.segments[log.islands :] if each.payloads is None]
            if not sealed:
                results = queue.notes.get(RESULT)
                kept = log.islands or log.segments or (results and partition.key in results.by_message)
                empty_ms = options.partition_retention_ms if name != "default" else 0
                since = partition.emptied_at or self.now
                assert kept or not empty_ms or self.now - since < empty_ms
                continue
            cells = {group.name: group.cells[name] for group in known.groups.values()}
            leased = any(cell.kind == m.LEASED for each in cells.values() for cell in each)
            if leased or not known.groups:
                continue
            assert not 0 < options.retention_ms < self.now - sealed[0].last_at
            if not options.completed_retention_ms and not options.retention_ms:
                holding = [group.name for group in known.holding(self.now)]
                waits = any(
                    cell.kind == m.FRESH or queue.groups[group].unplanned
                    for group in holding
                    for cell in cells[group]
                )
                assert waits, (queue.name, name)

    def _all_planned(self, name: str) -> dict[str, dict[str, int]]:
        """Up to where each group of a queue sees what is not in line, by partition."""
        queue = self.engine.queues[TENANT, name]
        return {group: self._planned(queue, group) for group in queue.groups}

    def check_all(self) -> None:
        self._tick()
        for queue, known in self.model.queues.items():
            self._trim(queue)
            self._check_queue(queue)
            for reader in self.engine.queues[TENANT, queue].groups.values():
                for track in reader.tracks.values():
                    assert runs_of(track.schedule) == list(track.schedule)
            self._check_messages(self.engine.queues[TENANT, queue], known)
            self._check_counts(self.engine.queues[TENANT, queue], known, None)
        job_checks.check_waiting(self.engine, self.model)
        job_checks.check_tenant(self.engine, self.model, self.now)
        assert {lease.name for shard in self.engine.shards.values() for lease in shard.leases.values()} == {
            parse_lease(token)[1] for token in self.model.leases
        }

    def _check(self, name: str) -> None:
        self._trim(name)
        self._follow()
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
            job_checks.check_partition(queue, partition, known, told=not notifying(self.engine))
            for group in queue.groups.values():
                self._check_track(shard, known, group, partition)
        for reader in queue.groups.values():
            assert reader.active_at == known.groups[reader.name].active_at
            assert reader.turn == known.groups[reader.name].turn
            job_checks.check_limits(reader, self.model, name)
            self._check_starved(name, reader.name)
        job_checks.check_queue(queue, known, self.now)
        if known.options.max_wait_ms:
            self._check_sweep(queue, known)
        self._hear()
        for name_ in queue.groups:
            self._check_counts(queue, known, name_)
            self._check_woken(queue, name_)
        self._woken = {wake for wake in self._woken if wake[0] is not queue}

    def _check_sweep(self, queue: Queue, known: m.Queue) -> None:
        """Where something waits that a sweep may evict, one comes."""
        planned = self._all_planned(queue.name)
        waits = any(
            cell.kind in m.WAITING and (at < planned[group.name][name] or known.messages[name][at].in_line)
            for group in known.groups.values()
            for name, cells in group.cells.items()
            for at, cell in enumerate(cells)
        )
        assert queue.sweep_at or not waits

    def _hear(self) -> None:
        """Note what the core says of what became deliverable."""
        woken = self.engine.take_woken()
        self._woken.update(woken)
        for queue, group, partition in woken:
            self._looked -= {
                each
                for each in self._looked
                if each[0] == queue.name and group in (None, each[1]) and partition in (None, each[2])
            }
            for each in list(self._starved):
                if each[0] == queue.name and group in (None, each[1]) and partition in (None, each[2]):
                    del self._starved[each]
            for each in list(self._short):
                told = partition is None or each[2] in (None, partition)
                if each[0] == queue.name and group in (None, each[1]) and told:
                    del self._short[each]

    def _check_starved(self, queue: str, group: str) -> None:
        """Whoever was held back by limits was told when they let go."""
        self._hear()
        reader = self.model.queues[queue].groups[group]
        for (_, _, partition), count in [
            each for each in self._starved.items() if each[0][:2] == (queue, group)
        ]:
            room = self.model.allowed(queue, reader, self.now)
            if partition is not None:
                room = self.model.partition_room(queue, reader, partition, self.now)
            planned = self._planned(self.engine.queues[TENANT, queue], group)
            left = self.model.deliverable(queue, group, partition, self.now, planned)
            assert room < count or not any(left.values()), (queue, group, partition)
        planned = self._planned(self.engine.queues[TENANT, queue], group)
        for (_, _, partition), count in [
            each for each in self._short.items() if each[0][:2] == (queue, group)
        ]:
            found = self.model.counted(queue, group, partition, self.now, planned)
            assert min(found, self.model.allowed(queue, reader, self.now)) < count, (queue, group, partition)

    def _check_log(self, partition: Partition) -> None:
        """Segments follow each other, none crosses a number, and what is settled is counted in whole ones."""
        log = partition.log
        assert log.bases == [segment.base for segment in log.segments]
        islands, rest = log.segments[: log.islands], log.segments[log.islands :]
        assert [log.first, *(segment.end for segment in rest)] == [*(each.base for each in rest), log.end]
        edges = [edge for each in islands for edge in (each.base, each.end)]
        assert [*edges, log.first] == sorted([*edges, log.first])
        assert log.strays == sum(segment.count for segment in islands)
        assert log.size == sum(segment.size for segment in log.segments)
        for segment in log.segments:
            assert number_of(partition, segment.base) == number_of(partition, segment.end - 1)
            assert sum(run.count for run in segment.runs) == segment.count
        settled = [segment for segment in rest if segment.end <= partition.settled_to]
        assert partition.settled_to == (settled[-1].end if settled else log.first)
        assert partition.settled_bytes == sum(segment.weight for segment in settled)

    def _check_messages(self, queue: Queue, known: m.Queue) -> None:
        """The log says of every message what was pushed."""
        for partition in queue.partitions.values():
            log, messages = partition.log, known.messages[partition.name]
            for segment in log.segments:
                at, end, aside = segment.base, 0, 0
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
            assert withdrawn == [each.withdrawn_at for each in messages]
            successors = {(partition.name, first): at for first, at in partition.successors}
            assert successors == {
                place: at for place, at in known.successors.items() if place[0] == partition.name
            }

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
            for at, cell in enumerate(self._cells(known, group, partition))
            if (at >= known.first[partition] if group is None else known.has((partition, at)))
        ]
        found = counts(queue, queue.groups[group] if group is not None else None, self.now)
        deferred = [
            cell.kind == m.SCHEDULED and cell.error.startswith(DEFERRED_SINCE)
            for partition in known.messages
            for at, cell in enumerate(self._cells(known, group, partition))
            if known.has((partition, at))
        ]
        assert found.deferred == sum(deferred)
        delayed = kept.count(m.SCHEDULED)
        waiting = kept.count(m.FRESH) + kept.count(m.DUE)
        assert (found.waiting, found.delayed) == (waiting, delayed)
        assert (found.active, found.dead) == (kept.count(m.LEASED), kept.count(m.DEAD))
        assert (found.completed, found.cancelled) == (kept.count(m.DONE), kept.count(m.CANCELLED))
        assert (found.expired, found.discarded) == (kept.count(m.EXPIRED), kept.count(m.DISCARDED))
        assert (found.evicted, found.parked) == (kept.count(m.EVICTED), kept.count(m.PARKED))

    def _check_woken(self, queue: Queue, group: str) -> None:
        """Whoever waits was told of everything that became deliverable.

        What a queue holds back it may tell of too early, and again only when somebody looked in vain. What
        was open and is held back for a while is no news afterwards: who looked had seen it, and wants more.
        """
        now_open = self.model.deliverable(queue.name, group, None, self.now, self._planned(queue, group))
        before = self._open.get((queue.name, group), now_open)
        known = self.model.queues[queue.name]
        for name, found in now_open.items():
            if not set(found) - set(before.get(name, ())):
                continue
            if known.gated or known.ordered:
                assert (queue.name, group, name) not in self._looked
            else:
                told = ((queue, None, None), (queue, None, name), (queue, group, name))
                assert not self._woken.isdisjoint(told), (queue.name, group, name)
        if known.options.window_buffer_ms:
            for name in [name for name, found in now_open.items() if not found]:
                cells = self._cells(known, group, name)
                now_open[name] = [at for at in before.get(name, ()) if _waits(cells, at)]
        self._open[queue.name, group] = now_open

    def _cells(self, known: m.Queue, group: str | None, partition: str) -> list[m.Cell]:
        if group is not None:
            return known.groups[group].cells[partition]
        return [m.begin_now(message) for message in known.messages[partition]]

    def _trim(self, name: str) -> None:
        """The model learns what was swept, and objects if it should not have been."""
        if name in self.model.queues and (TENANT, name) in self.engine.queues:
            queue = self.engine.queues[TENANT, name]
            for gone in self.model.queues[name].messages.keys() - queue.partitions.keys():
                self.model.removed(name, gone)
            for partition in queue.partitions.values():
                if partition.name not in self.model.queues[name].messages:
                    continue
                known, log = self.model.queues[name], partition.log
                islands = [(each.base, each.end) for each in log.segments[: log.islands]]
                seen = (known.first[partition.name], known.islands.get(partition.name, []))
                if seen != (log.first, islands):
                    traced = partial(self._leaves_a_trace, partition, name)
                    self.model.trimmed(name, partition.name, log.first, islands, traced)

    def _is_scheduled(self, message: m.Message, group: str) -> bool:
        """Whether the core has a message in the schedule of a group."""
        queue, (partition, offset) = self.engine.queues[TENANT, message.queue], message.place
        track = queue.groups[group].tracks[queue.partitions[partition].key]
        return track.schedule.find(offset) is not None

    def _leaves_a_trace(self, partition: Partition, queue: str, group: str, offset: int) -> bool:
        """The same, or whether it noted what became of it, or the pop that came with a sweep has taken it."""
        known = self.engine.queues[TENANT, queue]
        track = known.groups[group].tracks[partition.key]
        return (
            track.schedule.find(offset) is not None
            or outcome_at(track, offset) is not None
            or any(leased_runs(self.engine.shards[known.shard], track, offset, offset + 1))
        )

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
        for first, count, _ in partition.parked:
            _put(kinds, m.PARKED, first, count)
        for run in runs_of(track.schedule):
            _put(kinds, m.SCHEDULED, run.first, run.count)
            past = (run.level, run.due_at, run.deliveries, run.failures, run.error)
            _compare(past, cells[run.first : run.first + run.count])
        for letter in track.letters.values():
            _put(kinds, m.DEAD, letter.first, letter.count)
            past = (letter.level, letter.dead_at, letter.deliveries, letter.failures, letter.error)
            _compare(past, cells[letter.first : letter.first + letter.count])
        for first, count, outcome, at in track.outcomes:
            _put(kinds, m.DROPS[outcome - DROPPED] if outcome in DROPS else OUTCOMES[outcome], first, count)
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
        assert track.planned == NEVER or track.unplanned == count_unplanned(track)
        assert (track.planned != NEVER) == (partition.key in group.unplanned)
        assert kinds == [cell.kind for cell in cells], (group.name, partition.name)
        assert track.leased == kinds.count(m.LEASED)
        assert track.schedule.messages + unplanned == kinds.count(m.SCHEDULED)
        assert track.dead_messages == kinds.count(m.DEAD)
        assert [row[0] for row in track.dead] == sorted(track.letters)
        assert track.turn == known.groups[group.name].turns[partition.name]

    def check_state(self, queue: str, partition: str, offset: int, group: str) -> None:
        """GETSTATE and the model agree."""
        command = queries.State(TENANT, self.model.queues[queue].messages[partition][offset].id, group)
        self._tick(queue)
        _, offset = self.model.queues[queue].current((partition, offset))
        message = self.model.queues[queue].messages[partition][offset]
        if not self._shows(self.model.queues[queue], (partition, offset), group):
            self._refused(command, NotFound)
            return
        reply = self._apply(command)
        assert isinstance(reply, queries.StateFound)
        wanted = self._state(message, queue, partition, offset, group)
        assert job_checks.as_modelled(reply) == wanted, (reply, wanted)

    @staticmethod
    def _shows(known: m.Queue, place: m.Place, group: str) -> bool:
        """Whether a message is kept, and not dropped in a group."""
        reader = known.groups.get(group)
        return known.has(place) and (reader is None or reader.cells[place[0]][place[1]].kind not in m.DROPS)

    def _state(
        self, message: m.Message, queue: str, partition: str, offset: int, group: str
    ) -> queries.StateFound:
        """Where a message stands, as the model sees it."""
        found = queries.StateFound(*message.shown, "waiting", priority=message.attributes.priority)
        job_checks.show(found, self.model.queues[queue], message)
        reader = self.model.queues[queue].groups.get(group)
        cell = reader.cells[partition][offset] if reader else m.begin(message)
        if message.parked:
            found.state = "parked"
            if message.over_at <= self.now:
                found.state, found.ended_at = "expired", message.over_at
            return found
        if reader is None and message.withdrawn_at:
            found.state, found.ended_at = "cancelled", message.withdrawn_at
            return found
        if cell.kind in m.ENDED:
            found.state = SHOWN_AS.get(cell.kind, cell.kind)
            ended_at = {m.EXPIRED: message.over_at}.get(cell.kind, cell.due_at)
            found.ended_at = None if found.state == "completed" or cell.kind in m.DROPS else ended_at
            return found
        found.deliveries, found.failures, found.error = cell.deliveries, cell.failures, cell.error
        found.priority = -(cell.level // 2)
        if cell.kind == m.LEASED:
            found.state, found.lease_until = "active", cell.due_at
        elif cell.kind == m.DEAD:
            found.state, found.ended_at = "dead", cell.due_at
        else:
            self._show_waiting(found, queue, partition, offset, reader, cell)
        return found

    def _show_waiting(
        self,
        found: queries.StateFound,
        queue: str,
        partition: str,
        offset: int,
        reader: m.Group | None,
        cell: m.Cell,
    ) -> None:
        """Where a message stands that waits: for good, not yet, or too long."""
        known = self.model.queues[queue]
        message = known.messages[partition][offset]
        opens_at, evicts_at = cell.due_at, m.FOREVER
        if reader is not None:
            planned = self._planned(self.engine.queues[TENANT, queue], reader.name)[partition]
            opens_at = known.opens_at(partition, offset, cell)
            if offset < planned or message.in_line:
                evicts_at = known.evicts_at(partition, offset, cell)
        if evicts_at <= self.now:
            found.state, found.ended_at = "evicted", evicts_at - 1
        elif message.over_at <= self.now:
            found.state, found.ended_at = "expired", message.over_at
        elif opens_at > self.now:
            found.state, found.due_at = "delayed", opens_at


def _waits(cells: list[m.Cell], at: int) -> bool:
    return at < len(cells) and cells[at].kind in m.WAITING


def _put(kinds: list[str], kind: str, first: int, count: int) -> None:
    """Say what became of messages that nothing else was said of."""
    assert kinds[first : first + count] == [m.DONE] * count, (kind, first, count)
    kinds[first : first + count] = [kind] * count


def _compare(past: tuple[int, int, int, int, str], cells: list[m.Cell]) -> None:
    for cell in cells:
        told = (cell.level, cell.due_at, cell.deliveries, cell.failures, cell.error)
        assert told == past, (told, past)
