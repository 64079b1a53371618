"""Would the model notice? Bugs in updates, seeks, notes, islands, and in what a queue keeps."""

from itertools import cycle

import pytest

from forebay.core.delivery import move, notes, pop, settle
from forebay.core.jobs import requeue
from forebay.core.links import successors
from forebay.core.log import log as logs
from forebay.core.push import room as push_room, update
from forebay.core.queries import browse, unread
from forebay.core.queues import clean, seek
from forebay.core.retention import carve, removal, sweep
from forebay.core.shard import addresses, changes
from forebay.core.tracks import dropped, leased, places, withdrawn
from tests.sim.drive import LIMITS, Driver
from tests.sim.test_drive import PLANS, WORTH
from tests.sim.test_mutants import CAUGHT, Planted, planted
from tests.sim.world import World

SEEDS, STEPS = 24, 4_000
"""As many as any of them needs, and few enough to see that they catch nothing else."""

MUTANTS: dict[str, Planted] = {
    # Update.
    "an update makes a message due": (update._go_on, "first=offset,", "first=offset, due_at=now,"),
    "a delay counts anew from an update": (
        update._remaining,
        "max(created_at + attributes.delay_ms - now, 0) if attributes.delay_ms else 0",
        "attributes.delay_ms",
    ),
    "a time to live counts anew from an update": (
        update._remaining,
        "created_at + attributes.ttl_ms - now if attributes.ttl_ms else 0",
        "attributes.ttl_ms",
    ),
    "where an updated message leads to is not stored": (
        update._lead,
        "shard.changes.put_row(queue, key, codec.pack_numbers((successor,)))",
        "shard.changes.touch()",
    ),
    "an updated message stays": (update.update, "cancel_everywhere(shard, where, now)", "pass"),
    "a second update is shown under another id": (
        update.update,
        "attributes.origin or (message, logs.created_at(partition.log, offset))",
        "(message, logs.created_at(partition.log, offset))",
    ),
    "a message leads to its first successor for ever": (
        update._lead,
        "successors.add((first, successor))",
        "successors.add(row or (first, successor))",
    ),
    "what is leased is updated": (
        update.check_update,
        "if not (is_in(shard, track, FRESH, offset) or is_in(shard, track, SCHEDULED, offset)):",
        "if False:",
    ),
    "what has expired is updated": (
        update.check_update,
        "attributes.ttl_ms and logs.created_at(partition.log, offset) + attributes.ttl_ms <= now",
        "False",
    ),
    "a successor is in line though it was moved": (
        update.update,
        "_go_on(shard, track, run, successor, now)",
        "pass",
    ),
    # Seek.
    "who seeks keeps what is leased": (seek.seek, "abandon(shard, track)", "pass"),
    "who seeks leaves records behind": (
        seek.seek,
        "shard.changes.clear_rows(queue, keyspace.row_bounds(queue.prefix, group.number, key))",
        "pass",
    ),
    "who seeks forwards keeps what lies below the log": (seek._strays, "if begin > first:", "if False:"),
    "who seeks back loses what lies below the log": (
        seek._strays,
        "for run in track.schedule.over(0, first)",
        "for run in ()",
    ),
    "a delivery that a seek took back counts": (seek._strays, "run.deliveries - 1", "run.deliveries"),
    "dead letters are not stored any more after a seek": (
        seek._begin_again,
        "store_again(shard, track)",
        "pass",
    ),
    "dead letters stay so though they are read again": (
        seek._begin_again,
        "clear_from(shard, track, begin)",
        "pass",
    ),
    "nobody is told of a seek": (
        seek.seek,
        "shard.changes.woken[queue, group.name, track.partition.name] = None",
        "pass",
    ),
    # Clean.
    "what waits is spared one millisecond too long": (clean._cancel, "before + 1", "before"),
    "what has just become due is not waiting": (
        clean._cancel,
        "each_due_before(now + 1)",
        "each_due_before(now)",
    ),
    "more than was asked for is cancelled": (clean._cancel, "end, run.first + left)", "end)"),
    "more of what is completed goes than was asked for": (
        sweep.drop_completed,
        "track, high = group.tracks[key], min(high, low + most - dropped.count)",
        "track = group.tracks[key]",
    ),
    "what was dropped is shown": (dropped.is_dropped, "ended[0] in DROPS", "False"),
    "what was dropped is browsed": (dropped.dropped_over, "if row[2] in DROPS:", "if False:"),
    "more dead letters than were asked for are discarded": (clean._up_to, "left -= high - low", "pass"),
    "dead letters are spared one millisecond too long": (
        clean._discard_dead,
        "letter.dead_at <= before",
        "letter.dead_at < before",
    ),
    # Browse.
    "a new group is shown what lies below the log": (
        unread.unread,
        "at = max(at, log.first)",
        "at = max(at, log.segments[0].base)",
    ),
    "what is completed is shown twice": (
        places.completed,
        "reached = max(reached, high)",
        "reached = max(reached, low)",
    ),
    "nothing is passed over": (browse.browse, "skip -= passed", "passed = 0"),
    "what has just become due is not shown": (browse._spans, "due_at <= now", "due_at < now"),
    "what was acked is shown as active": (
        leased.stretches,
        "in run.gaps(low, high):",
        "in [(run.first + low, high - low)]:",
    ),
    # Notes.
    "notes are forgotten too early": (
        notes.sweep_notes,
        "age_ms < NOTES_MS_MAX and",
        "False and",
    ),
    "results go with their messages": (
        notes.sweep_notes,
        "age_ms < own_ms or",
        "False or",
    ),
    "what was noted of an updated message is forgotten": (
        notes._is_kept,
        " or (row is not None and row[0] == offset)",
        "",
    ),
    "progress is not stored": (
        notes.tell_progress,
        "shard.changes.put_row(queue, key, codec.pack_progress(told))",
        "shard.changes.touch()",
    ),
    "progress of an updated message is lost": (
        notes.tell_progress,
        "first_offset(shard, where)",
        "where.first",
    ),
    "notes of the next message are shown, too": (notes._serials, "if about != offset:", "if False:"),
    "notes are not stored": (
        changes.Changes._seal_notes,
        "puts.append((key, codec.pack_notes(segment, about)))",
        "pass",
    ),
    "all results are the first": (
        settle._ack_with_results,
        "came_of[each.id + at]",
        "came_of[each.id]",
    ),
    # Islands.
    "dead letters are carved away": (
        carve.wanted,
        "spans_in(shard, track, DEAD, low, high)",
        "()",
    ),
    "scheduled messages are carved away": (
        carve.wanted,
        "spans_in(shard, track, SCHEDULED, low, high)",
        "()",
    ),
    "what became of carved messages is not forgotten": (
        carve.apply,
        "forget(shard, group.tracks[partition.key], gone, now)",
        "pass",
    ),
    "parts of an island have the attributes of its beginning": (
        carve.join,
        "_runs(island, start, start + count)",
        "_runs(island, 0, count)",
    ),
    "the header of a carved island stays": (carve.apply, "if parts[0].base != island.base:", "if False:"),
    "the body of a carved island stays": (
        carve.apply,
        "shard.changes.deletes.append(keyspace.body_key(prefix, island.body_name))",
        "pass",
    ),
    "messages of new islands are not counted": (
        logs.trim,
        "log.strays += sum(segment.count for segment in staying)",
        "pass",
    ),
    "messages of islands that go are counted": (
        logs.sink,
        "log.strays -= sum(segment.count for segment in gone)",
        "pass",
    ),
    "a carving saves nothing": (
        logs.carve,
        "log.size += sum(part.size for part in parts) - island.size",
        "pass",
    ),
    "islands are not counted after a restart": (logs.load, "log.strays += segment.count", "pass"),
    "what lies between islands is found": (logs.has, "offset < log.segments[position].end", "True"),
    "nobody finds what lies on an island": (
        addresses.locate,
        "if offset < log.first and logs.has(log, offset):",
        "if False:",
    ),
    "ids that begin on an island end there": (
        addresses.split,
        "for edge in (*edges, log.first):",
        "for edge in ():",
    ),
    # Discard.
    "whose message is discarded is not told": (move._discard, "cancelled=True", "cancelled=False"),
    "who is discarded forgets the last error": (move._discard, "taken.error or GIVEN_UP", "GIVEN_UP"),
    "what is leased is not discarded": (move._discard, ", leased=leased", ""),
    # What a queue keeps.
    "a message is too old one millisecond too early": (
        sweep._drop_old,
        "logs.offset_at(log, now - retention_ms)",
        "logs.offset_at(log, now - retention_ms + 1)",
    ),
    "what is leased is too old": (
        sweep._drop_old,
        "_lowest_leased(queue, partition)",
        "NEVER",
    ),
    "a partition is removed as soon as it is empty": (
        sweep._is_long_empty,
        "0 < empty_ms <= now - partition.emptied_at",
        "0 < empty_ms",
    ),
    "a removed partition stays in the store": (
        removal.remove_partitions,
        "shard.changes.deletes.append(keyspace.partition_key(queue.prefix, partition.key))",
        "pass",
    ),
    "the work queue may be idle": (sweep._holding, " or group.name == DEFAULT", ""),
    "a group is idle a minute too early": (sweep._holding, "idle_ms + ACTIVE_MS", "idle_ms"),
    "an idle group keeps messages": (sweep._holding, "return holding or groups", "return groups"),
    "when a group was active is not stored": (
        pop.pop,
        "shard.changes.put_row(queue, "
        "keyspace.group_key(queue.prefix, group.number), codec.pack_group(group))",
        "pass",
    ),
    "where an updated message leads to is forgotten": (
        successors.trim_successors,
        "if not logs.has(partition.log, row[1]) and not logs.has(partition.log, first):",
        "if True:",
    ),
    "what was withdrawn stays so below the log": (
        withdrawn.trim_withdrawn,
        "while withdrawn and withdrawn.first() < kept:",
        "while False:",
    ),
    "a full queue takes more": (push_room.make_room, "queue.room -= count", "pass"),
    "what is leased takes no room": (push_room.size, " + track.leased", ""),
    "what is requeued takes no room": (requeue.requeue, "queue.room = 0", "pass"),
    "no lease is required": (addresses.settled_by, "queue.options.require_lease and", "False and"),
    "bodies of a queue that was removed stay": (
        removal.remove_queue,
        "shard.changes.body_ranges.append(keyspace.body_bounds(queue.prefix))",
        "pass",
    ),
}


class Varied(Driver):
    """Does the rarer things often, in queues that keep little."""

    messages_max = 150

    def step(self) -> None:
        self.world.catch_up()
        rarer = [
            *(self.update, self.update, self.discard, self.clean, self.seek, self.browse, self.browse),
            *(self.note, self.check_notes, self.carve, self.carve, self.bury),
            *(self.discard_leased, self.ack_leased, self.long_wait),
        ]
        if self.random.random() < 0.35:
            self.random.choice(rarer)()
        else:
            super().step()

    def queue(self) -> str:
        return self.random.choice(["a", "a", "b", "b", "c.d", "gated", "strict"])

    def discard_leased(self) -> None:
        """Some of a lease is given up; its consumer asks, and somebody cleans up."""
        leases = self.world.model.leases
        if leases:
            token = self.random.choice(list(leases))
            queue, group = leases[token].queue, leases[token].group
            self.world.move({queue: self.some_of(token)}, group, None, None, discard=True)
            self.world.extend(token, None)
            if self.random.random() < 0.7:
                self.world.clean(queue, group, ("dead",), 0, self.random.choice([None, 1, 2]))
            else:
                self.requeue(queue, group)

    def requeue(self, queue: str, group: str) -> None:
        """Dead letters are delivered again; then as much is pushed as there was room for before."""
        self.world.push(queue, "default", 1)
        known = self.world.model.queues[queue]
        room = max(known.options.max_size - known.size(), 1)
        self.world.bury("requeue", queue, group, None)
        self.world.push(queue, "default", min(room, 10))

    def ack_leased(self) -> None:
        """Some of a lease is acked, with results; the rest is looked at."""
        leases = self.world.model.leases
        if leases and self.random.random() < 0.5:
            token = self.random.choice(list(leases))
            queue, places = leases[token].queue, self.some_of(token)
            self.world.settle_ids("ack", queue, places, token, None, 0, with_results=True)
            for place in places:
                self.world.check_notes(queue, place)
            self.world.browse(queue, "active", "default", 1_000, 0)

    def long_wait(self) -> None:
        """Some time passes, now and then until a message is as old as it may be."""
        world, now = self.world, self.world.now
        until_old = [
            message.created_at + known.options.retention_ms - now
            for known in world.model.queues.values()
            for messages in known.messages.values()
            for message in messages[-1:]
            if known.options.retention_ms
        ]
        coming = [ms for ms in until_old if ms > 0]
        if world.model.leases and self.random.random() < 0.3:
            world.extend(self.random.choice(list(world.model.leases)), 100_000)
        world.wait(self.random.choice([10_000, 11_001, 25_000, *coming]))

    def make(self, world: World, queue: str) -> None:
        super().make(world, queue)
        some = {name: self.random.choice(values) for name, values in LIMITS.items()}
        world.configure(queue, **some, completed_retention_ms=self.random.choice([0, 0, 15_000]))


def live(monkeypatch: pytest.MonkeyPatch, seeds: int = SEEDS) -> None:
    monkeypatch.setattr(carve, "PART_BYTES", WORTH)
    for seed, plans in zip(range(seeds), cycle([500, PLANS]), strict=False):
        monkeypatch.setattr(pop, "PLANS_MAX", plans)
        Varied(seed).run(STEPS)


def test_without_a_bug_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    live(monkeypatch, 6)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(*MUTANTS[name]), pytest.raises(CAUGHT):
        live(monkeypatch)
