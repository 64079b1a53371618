"""Move messages to another due time or priority, or discard them to the dead letters."""

from itertools import chain

from msgspec.structs import replace

from forebay.core.api.commands import Discard, Move, Settle, Settled
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, Limits, check_name, check_range
from forebay.core.delivery.cancel import Span, check_ids, without_changed
from forebay.core.delivery.settle import take_back
from forebay.core.ids import Range
from forebay.core.log import log as logs
from forebay.core.shard.addresses import Located, locate
from forebay.core.shard.shard import Shard
from forebay.core.state import IN_LINE, Dead, Scheduled, Track, level_of
from forebay.core.structures.spans import outside
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.dead_letters import add_dead
from forebay.core.tracks.planning import cut_scheduled, finish_plan, unplanned

GIVEN_UP = "discarded"


def check_move(limits: Limits, command: Move) -> None:
    """Raise unless the command's own fields are good."""
    check_ids(limits, command.ids)
    check_name("group", command.group)
    if command.delay_ms is not None:
        check_range("delay", command.delay_ms, 0, DELAY_MS_MAX)
    if command.priority is not None:
        check_range("priority", command.priority, -PRIORITY_MAX, PRIORITY_MAX)


def may_move(found: Located, only_delayed: bool, now: int) -> bool:
    """Whether a group that does not exist yet would have something to move."""
    partition = found.place.partition
    if found.first < partition.log.first:
        return False  # it would begin further on
    kept = outside(partition.withdrawn, found.first, found.end)
    for low, high in chain.from_iterable(outside(partition.parked, *part) for part in kept):
        if not only_delayed:
            return True
        position = logs.find(partition.log, low)
        while low < high:
            segment = partition.log.segments[position]
            run_end, created_at, attributes = segment.run_at(low - segment.base)
            if created_at + attributes.delay_ms > now:
                return True
            low = segment.base + run_end
            position += low == segment.end
    return False


def move(
    shard: Shard, command: Move, wanted_ranges: list[Range], tracks: dict[int, Track], now: int
) -> Settled:
    """Give messages another time or priority, or both; ``tracks`` has the group's by partition key."""
    done = 0
    refused: list[int] = []
    for wanted in wanted_ranges:
        found = locate(shard, command.tenant, wanted)
        changed: list[Span] = []
        if found is not None and found.place.partition.key in tracks:
            change = _discard if isinstance(command, Discard) else _move
            changed = change(shard, command, tracks[found.place.partition.key], found, now)
        if found is not None and changed:
            shard.changes.sync_for(found.place.queue)
        done += sum(high - low for low, high in changed)
        refused += without_changed(wanted, found, changed)
    return Settled(done, refused)


def _move(shard: Shard, command: Move, track: Track, meant: Located, now: int) -> list[Span]:
    place, first, end, shift = meant
    if any(unplanned(track, first, end)) and (
        not command.only_delayed or may_move(meant, command.only_delayed, now)
    ):
        finish_plan(shard, track, now)
    moved: list[Scheduled] = []
    for low, high in [] if command.only_delayed else list(fresh(track, first, end)):
        skip(shard, track, low, high)
        moved.append(Scheduled(now, low, high - low, IN_LINE))
    for run in track.schedule.over(first, end):
        if run.due_at > now or not command.only_delayed:
            low, high = cut_scheduled(shard, track, run, first, end, now)
            moved.append(replace(run, first=low, count=high - low))
    if command.delay_ms is not None and not command.only_delayed:
        settle = Settle(place.queue.tenant, group=track.group.name)
        for found in take_back(shard, settle, Range(first + shift, end - first)):
            run_ = found.run
            past = (run_.deliveries - 1, run_.failures, run_.error)
            moved.append(Scheduled(now, found.id - shift, found.length, run_.level, *past))
    for run in moved:
        due_at = run.due_at if command.delay_ms is None else now + command.delay_ms
        level = run.level
        if command.priority is not None:
            level = level_of(command.priority, lifo=run.level % 2 == 0)
        shard.schedule(track, replace(run, due_at=due_at, level=level), now)
    return [(run.first, run.first + run.count) for run in moved]


def _discard(shard: Shard, command: Move, track: Track, meant: Located, now: int) -> list[Span]:
    """Have what a group has fresh, scheduled or leased end as dead letters."""
    place, first, end, shift = meant
    if any(unplanned(track, first, end)):
        finish_plan(shard, track, now)
    died: list[Dead] = []
    for low, high in list(fresh(track, first, end)):
        skip(shard, track, low, high)
        died.append(Dead(low, high - low, 0, 0, now, GIVEN_UP, IN_LINE))
    for run in track.schedule.over(first, end):
        low, high = cut_scheduled(shard, track, run, first, end, now)
        died.append(
            Dead(low, high - low, run.deliveries, run.failures, now, run.error or GIVEN_UP, run.level)
        )
    settle = Settle(place.queue.tenant, group=track.group.name)
    # They may be requeued one day: they have to be out of their leases for good.
    for found in take_back(shard, settle, Range(first + shift, end - first), cancelled=True):
        run_, low = found.run, found.id - shift
        counts = (run_.deliveries, run_.failures)
        died.append(Dead(low, found.length, *counts, now, run_.error or GIVEN_UP, run_.level))
    for dead in died:
        add_dead(shard, track, dead)
    if died:
        shard.timers.plan_sweep(place.queue, now)
        shard.reconsider(track, now)
    return [(dead.first, dead.first + dead.count) for dead in died]
