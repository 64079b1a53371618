"""Would the model notice? Bugs in what a queue holds back, gives up, or keeps in strict strict_order."""

import struct
from itertools import cycle

import pytest

from forebay.core.delivery import gates, give_back, move, pop, settle, strict_order, take
from forebay.core.push import checks, push
from forebay.core.queries import message_state
from forebay.core.queues import options
from forebay.core.retention import sweep
from forebay.core.shard.shard import Shard
from tests.sim.drive import QUEUES, Driver
from tests.sim.model import SCHEDULED, WAITING
from tests.sim.test_drive import PLANS
from tests.sim.test_mutants import CAUGHT, STEPS, Planted, planted

SEEDS = 24
"""As many as any of them needs, and few enough to see that they catch nothing else."""

MUTANTS: dict[str, Planted] = {
    # Gates.
    "a window is open for one millisecond too long": (gates.is_withheld, "> now - window", ">= now - window"),
    "a partition is not withheld for what is delayed": (
        gates._newest_at,
        "last.first + last.count - 1 if last is not None else -1",
        "-1",
    ),
    "a partition is withheld for what was cancelled": (
        gates._newest_at,
        "max(newest, _last_fresh(track))",
        "log.end - 1",
    ),
    "a queue with a window counts as one without": (
        options.set_options,
        "or options.window_buffer_ms or",
        "or",
    ),
    "a pop passes a window": (
        take.PopCursor._open_level,
        "if not gates.is_withheld(track, self.now):",
        "if True:",
    ),
    "a message is held back for one millisecond too long": (
        gates.old_enough,
        "now - delay + 1",
        "now - delay",
    ),
    "what is held back goes along with what is not": (
        take.PopCursor._take_fresh,
        "limit = min(limit, gates.old_enough(track, self.now))",
        "pass",
    ),
    "a message that is held back shows as waiting": (
        message_state._show,
        "due_at + track.queue.options.delayed_processing_ms",
        "due_at",
    ),
    "nobody is told that a window is over": (
        gates.opens_at,
        "_newest_at(track) + options.window_buffer_ms",
        "NEVER",
    ),
    "nobody is told that a message is old enough": (
        gates.opens_at,
        "options.delayed_processing_ms and fresh_count(track)",
        "False",
    ),
    "a pop that was held back does not look again": (
        take.PopCursor._hold_back,
        "self.shard.timers.schedule_check(track, opens_at)",
        "pass",
    ),
    "nobody is told that a window is over because of a cancel": (
        Shard.reconsider,
        "track.queue.options.window_buffer_ms or track.queue.ordered",
        "track.queue.ordered",
    ),
    # Eviction.
    "waiting counts while a message is held back": (
        gates.too_old,
        " - options.delayed_processing_ms",
        "",
    ),
    "a message is evicted one millisecond too early": (
        gates.too_old,
        "now - options.max_wait_ms",
        "now + 1 - options.max_wait_ms",
    ),
    "a retry is evicted one millisecond too early": (
        take.PopCursor._take_scheduled,
        "run.due_at + max_wait_ms < self.now",
        "run.due_at + max_wait_ms <= self.now",
    ),
    "a pop delivers what has waited too long": (
        take.PopCursor._take_fresh,
        "evicted = gates.too_old(track, self.now)",
        "evicted = 0",
    ),
    "what has waited too long counts for min_count": (
        pop._open_count,
        "max(track.cursor, gates.too_old(track, now))",
        "track.cursor",
    ),
    "a message that has waited too long shows as waiting": (
        message_state._show_waiting,
        "max_wait_ms and due_at + max_wait_ms < now",
        "False",
    ),
    "an evicted message is still in line": (gates.evict, "skip(shard, track, low, high)", "pass"),
    "a sweep evicts all that is due": (gates.evict, "now - max_wait_ms, most", "now, most"),
    "a sweep evicts nothing": (
        sweep.sweep,
        "_evict(shard, queue, now) if options.max_wait_ms else False",
        "False",
    ),
    "a sweep comes once": (sweep._evict, "fresh_count(track) > 0 or track.schedule.messages > 0", "False"),
    "a push does not have what waits swept": (
        push.before_append,
        "shard.timers.plan_sweep(queue, now)",
        "pass",
    ),
    # Strict order.
    "a partition has several leases": (strict_order.is_next, "if track.leased:", "if False:"),
    "what is not due goes along with what is before it": (
        take.PopCursor._take_ordered,
        "elif run.due_at <= self.now:",
        "else:",
    ),
    "what is fresh overtakes what is scheduled": (
        take.PopCursor._take_ordered,
        "min(track.schedule.lowest(), strict_order.fresh_end(track, self.now))",
        "strict_order.fresh_end(track, self.now)",
    ),
    "what is fresh overtakes what a group has not sorted yet": (
        strict_order.fresh_end,
        "min(old_enough(track, now), track.planned)",
        "old_enough(track, now)",
    ),
    "min_count counts what stands behind what is not due": (
        strict_order.deliverable,
        "if run.due_at > now",
        "if False",
    ),
    "lifo is taken in strict order": (
        checks.check_ordered,
        '("priority", "lifo", "depends_on")',
        '("priority", "depends_on")',
    ),
    "an ordering changes under messages": (options.check_change, "if any(", "if False and any("),
    "a nack leaves those behind it in the lease": (
        give_back.nack_ids,
        "_with_followers(_by_run(found))",
        "_by_run(found)",
    ),
    "a nack of several begins with the last of them": (
        give_back._with_followers,
        "parts[0].offset < first.offset",
        "parts[0].offset > first.offset",
    ),
    "a nack counts for those behind it, too": (give_back._all_back, "_Requeued(how.now, behind=True)", "how"),
    "a nack counts for the last of its messages": (
        give_back._all_back,
        "key=_offset)",
        "key=_offset, reverse=True)",
    ),
    "nobody is told that a lease is over": (
        settle.end_lease,
        "_free(shard, lease, lease.runs.values())",
        "pass",
    ),
    "nobody is told that a lease is over in a partition": (
        settle.drop_runs,
        "_free(shard, lease, gone)",
        "pass",
    ),
    # What can't be read.
    "what can't be read has not failed": (
        give_back.put_off,
        "_Failed(DAMAGED, now, part.run.expires_at - now)",
        "_Requeued(now)",
    ),
    "what can't be read is met message by message": (
        give_back.put_off,
        "_step_over(shard, lease, each, now)",
        "pass",
    ),
    "what can't be read comes earlier than it was due": (give_back._step_over, "run.due_at < due_at and", ""),
    "what was never delivered does not say what is wrong with it": (
        give_back._step_over,
        "error=DAMAGED",
        'error=""',
    ),
    # Promote, and show.
    "what waits is promoted": (
        move._move,
        '"promote"',
        '"move"',
    ),
    "what is due is promoted": (move._move, "due_after=now", "due_after=-1"),
    "what is leased is promoted": (
        move._move,
        '"promote", first, end, now, due_after=now',
        '"nack", first, end, now, leased=leased',
    ),
    "a group is made for nothing that is delayed": (
        move.may_move,
        "if created_at + attributes.delay_ms > now:",
        "if True:",
    ),
    "another message of the segment is shown": (message_state.show_each, "offset - segment.base, 1", "0, 1"),
    "another message is shown after an unclean stop": (
        message_state.show_each,
        "place.first + (message & OFFSET_MASK)",
        "(message & OFFSET_MASK)",
    ),
}


class Held(Driver):
    """Has to do mostly with queues that hold back or keep order, and with those who look there in vain."""

    messages_max = 80
    """Few: other options come with the next world."""

    def queue(self) -> str:
        return self.random.choices(QUEUES, [1, 1, 0, 0, 6, 6])[0]

    def step(self) -> None:
        self.world.catch_up()
        chosen = self.random.random()
        if chosen < 0.04:
            self.cancel_newest()
        elif chosen < 0.08:
            self.ack_partition()
        elif chosen < 0.11:
            self.wait_for_a_window()
        elif chosen < 0.12:
            self.wait_for_a_sweep()
        elif chosen < 0.14:
            self.wait_for_an_eviction()
        elif chosen < 0.17:
            self.lose_a_body()
        else:
            super().step()

    def cancel_newest(self) -> None:
        """A pop gets all there is; then the newest message of a partition is cancelled."""
        queue, group = "gated", self.group("gated")
        self.world.pop(queue, group, 100)
        cells = self.world.model.queues[queue].groups[group].cells
        found = {name: [at for at, each in enumerate(cells[name]) if each.kind in WAITING] for name in cells}
        newest = [(name, waiting[-1]) for name, waiting in found.items() if waiting]
        if newest:
            self.world.cancel({queue: [self.random.choice(newest)]}, None)

    def wait_for_a_window(self) -> None:
        """A pop comes at the very instant at which a partition is no longer withheld, or just before."""
        known = self.world.model.queues["gated"]
        window, now = known.options.window_buffer_ms, self.world.now
        ends = [each[-1].created_at + window - now for each in known.messages.values() if each]
        coming = [ms for ms in ends if ms > 0]
        if window and coming:
            self.world.wait(min(coming) - self.random.choice([0, 1]))
            self.world.pop("gated", self.group("gated"), 100)

    def wait_for_a_sweep(self) -> None:
        """Something waits for longer than it takes until a sweep comes."""
        self.world.push("gated", "default", 1)
        self.world.wait(10_001)
        self.world.check_all()

    def wait_for_an_eviction(self) -> None:
        """A pop comes at the last instant at which something that came back may be delivered."""
        known, now = self.world.model.queues["gated"], self.world.now
        most = known.options.max_wait_ms
        cells = [each for group in known.groups.values() for cells in group.cells.values() for each in cells]
        ends = [cell.due_at + most - now for cell in cells if cell.kind == SCHEDULED]
        coming = [ms for ms in ends if ms > 0]
        if most and coming:
            self.world.wait(min(coming))
            self.world.pop("gated", self.group("gated"), 100)

    def lose_a_body(self) -> None:
        """Something is delivered that can't be read, with more of its segment behind it."""
        queue = self.random.choice(["a", "a", "gated", "strict"])
        self.world.push(queue, "default", 5)
        self.world.commit()
        self.world.pop(queue, self.group(queue), self.random.choice([1, 2, 8]), damaged=True)
        self.world.put_off()

    def ack_partition(self) -> None:
        """A pop looks at partitions that are leased; then all that a lease holds of one of them is acked."""
        strict = [lease for lease in self.world.model.leases.values() if lease.queue == "strict"]
        found = [lease for lease in strict if len({partition for partition, _ in lease.cells}) > 1]
        if found:
            lease = self.random.choice(found)
            partition = self.random.choice(sorted(lease.cells))[0]
            self.world.pop("strict", lease.group)
            held = [place for place in sorted(lease.cells) if place[0] == partition]
            if held:
                self.world.settle_ids("ack", "strict", held, None, lease.group, 0)
            self.world.pop("strict", lease.group)
        else:
            self.world.pop("strict", self.group("strict"), self.nearly_all("strict", "default"))


def live(monkeypatch: pytest.MonkeyPatch, seeds: int = SEEDS) -> None:
    for seed, plans in zip(range(seeds), cycle([500, PLANS]), strict=False):
        monkeypatch.setattr(pop, "PLANS_MAX", plans)
        Held(seed).run(STEPS)


def test_without_a_bug_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    live(monkeypatch, 6)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(*MUTANTS[name]), pytest.raises((*CAUGHT, struct.error)):
        live(monkeypatch)
