"""Cancel and move: what a group was to be given, and is not, or at another time or priority."""

from itertools import chain

from msgspec.structs import replace

from forebay.core import log as logs, records
from forebay.core.commands import Cancel, Discard, Move, Settle, Settled
from forebay.core.endings import bury, cut, fresh, outside, plan, settle_as, skip, union, unplanned
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.leased import Meant, Range, meant, ranges
from forebay.core.limits import DELAY_MS_MAX, PRIORITY_MAX, Limits, check_name, check_range
from forebay.core.model import CANCELLED, DEFAULT, IN_LINE, Dead, Queue, Track, level_of
from forebay.core.schedule import Scheduled
from forebay.core.settle import take_back, take_cancelled
from forebay.core.shard import Ended, Place, Shard
from forebay.core.ties import take_parked

ALL = 1 << 62
"""More runs than there are."""
PLANNED_AT_ONCE = 10_000
"""Messages that a command puts into the schedule of a group which is still being made."""
GIVEN_UP = "discarded"
RUNS_MAX = 20_000
"""Scheduled runs, over all groups, that one command takes apart."""
SCATTERED_MAX = 2_000
"""Stretches of consecutive ids that one command takes: some 100 ms."""

Span = tuple[int, int]


def check_ids(limits: Limits, ids: list[int]) -> None:
    if not 1 <= len(ids) <= limits.batch_max:
        raise Invalid("ids", f"a list of 1 to {limits.batch_max} ids")
    if len(ids) > SCATTERED_MAX and len(ranges(ids)) > SCATTERED_MAX:
        raise Invalid("ids", f"at most {SCATTERED_MAX} stretches of consecutive ids; send several commands")


def check_runs(tenant: str, by_shard: list[tuple[Shard, list[Range]]]) -> None:
    """Raise if messages lie in so many scheduled runs that it would take too long."""
    runs = 0
    for shard, theirs in by_shard:
        for wanted in theirs:
            found = meant(shard, tenant, wanted)
            for group in found.place.queue.groups.values() if found is not None else ():
                assert found is not None
                track = group.tracks[found.place.partition.key]
                runs += track.schedule.count_runs(found.first, found.end)
                runs += min(max(found.end - max(found.first, track.planned), 0), track.unplanned)
    if runs > RUNS_MAX:
        raise Invalid("ids", f"fewer: these are {runs} scheduled runs, and one command takes {RUNS_MAX}")


def check_move(limits: Limits, command: Move) -> None:
    """Raise unless the command's own fields are good."""
    check_ids(limits, command.ids)
    check_name("group", command.group)
    if command.delay_ms is not None:
        check_range("delay", command.delay_ms, 0, DELAY_MS_MAX)
    if command.priority is not None:
        check_range("priority", command.priority, -PRIORITY_MAX, PRIORITY_MAX)


def may_move(found: Meant, only_delayed: bool, now: int) -> bool:
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


def cancel(shard: Shard, command: Cancel, wanted_ranges: list[Range], now: int) -> Settled:
    """Cancel what is neither settled nor dead."""
    done = 0
    refused: list[int] = []
    for wanted in wanted_ranges:
        found = meant(shard, command.tenant, wanted)
        changed = _cancel(shard, command, found, now) if found is not None else []
        if found is not None and changed:
            shard.sync_for(found.place.queue)
            shard.plan_sweep(found.place.queue, now)
        done += sum(high - low for low, high in changed)
        refused += _without(wanted, found, changed)
    return Settled(done, refused)


def _without(wanted: Range, found: Meant | None, changed: list[Span]) -> list[int]:
    """The ids of a range that were not changed."""
    ids = range(wanted.first, wanted.first + wanted.length)
    if found is None:
        return list(ids)
    hit = {offset + found.shift for low, high in changed for offset in range(low, high)}
    return [each for each in ids if each not in hit]


def _cancel(shard: Shard, command: Cancel, found: Meant, now: int) -> list[Span]:
    """Cancel messages for one group, or for all there are and will be; what it changed."""
    place = found.place
    groups = place.queue.groups
    if command.group is not None:
        group = groups.get(command.group)
        return _cancel_in(shard, group.tracks[place.partition.key], found, now) if group else []
    return cancel_everywhere(shard, found, now)


def cancel_everywhere(shard: Shard, found: Meant, now: int) -> list[Span]:
    """Cancel messages for all groups there are and will be; what it changed."""
    place, first, end, _ = found
    groups = place.queue.groups
    changed: list[Span] = []
    if place.partition.parked_messages:
        changed += cancel_parked(shard, place, first, end, now)
    for group in groups.values():
        changed += _cancel_in(shard, group.tracks[place.partition.key], found, now)
    if not groups:
        changed += outside(place.partition.withdrawn, first, end)
    for low, high in union(changed):
        _withdraw(shard, place, low, high, now)
    return union(changed)


def cancel_parked(shard: Shard, place: Place, first: int, end: int, now: int) -> list[Span]:
    """Cancel what of [first, end) waits for others, for all groups there are and will be; what it changed."""
    parked = take_parked(shard, place.queue, place.partition, first, end)
    for low, high in parked:
        for group in place.queue.groups.values():
            settle_as(shard, group.tracks[place.partition.key], low, high, CANCELLED, now)
        _withdraw(shard, place, low, high, now)
    return parked


def _withdraw(shard: Shard, place: Place, low: int, high: int, now: int) -> None:
    """Cancel messages for groups that do not exist yet, unless they are cancelled already."""
    # What the log has left behind no group will read that does not exist yet.
    low = max(low, place.partition.log.first)
    for part in list(outside(place.partition.withdrawn, low, high)):
        withdraw(shard, place, *part, now)


def withdraw(shard: Shard, place: Place, first: int, end: int, now: int) -> None:
    """Cancel messages for groups that do not exist yet."""
    if first >= end:
        return
    if place.partition.concerned and DEFAULT not in place.queue.groups:
        shard.ends.append(Ended(shard, place.queue, place.partition, first, end, CANCELLED))
    if not place.queue.groups:
        shard.happened.note(CANCELLED, place.queue, "", place.partition, first, end - first)
    if shard.watched:
        shard.tell(place.partition.key, first, end)
    withdrawn = place.partition.withdrawn
    before = withdrawn.below(first)
    if before is not None and before[0] + before[1] == first and before[2] == now:
        withdrawn.remove(before[0], before[1])
        first = before[0]
    withdrawn.add((first, end - first, now))
    key = records.withdrawn_key(place.queue.prefix, place.partition.key, first)
    shard.keep_row(place.queue, key, records.pack_numbers((end - first, now)))


def _cancel_in(shard: Shard, track: Track, meant: Meant, now: int) -> list[Span]:
    """Cancel what a group has fresh, scheduled or leased; what that was."""
    place, first, end, shift = meant
    changed = list(fresh(track, first, end))
    for low, high in changed:
        skip(shard, track, low, high)
    changed += [cut(shard, track, run, first, end, now) for run in track.schedule.over(first, end)]
    settle = Settle(place.queue.tenant, group=track.group.name)
    for found in take_cancelled(shard, settle, Range(first + shift, end - first)):
        changed.append((found.id - shift, found.id - shift + found.length))
    for low, high in list(unplanned(track, first, end)):
        track.unplanned -= high - low
        changed.append((low, high))
    for low, high in changed:
        settle_as(shard, track, low, high, CANCELLED, now)
    if changed:
        shard.reconsider(track, now)
    return changed


def finish_plan(shard: Shard, track: Track, now: int) -> None:
    """Make the schedule of a track complete."""
    if track.partition.key in track.group.unplanned:
        plan(shard, track, ALL, now)
        del track.group.unplanned[track.partition.key]


def check_made(queue: Queue, name: str) -> None:
    """Raise unless the schedule of a group is complete, or can be made so in no time."""
    group = queue.groups.get(name)
    if group is not None:
        missing = sum(track.unplanned for track in group.unplanned.values())
    else:
        missing = sum(logs.count_aside(each.log, each.log.first) for each in queue.partitions.values())
    if missing > PLANNED_AT_ONCE:
        raise Busy(f"group {name} of queue {queue.name} has {missing} messages to sort first: pop from it")


def move(
    shard: Shard, command: Move, wanted_ranges: list[Range], tracks: dict[int, Track], now: int
) -> Settled:
    """Give messages another time or priority, or both; ``tracks`` has the group's by partition key."""
    done = 0
    refused: list[int] = []
    for wanted in wanted_ranges:
        found = meant(shard, command.tenant, wanted)
        changed: list[Span] = []
        if found is not None and found.place.partition.key in tracks:
            change = _discard if isinstance(command, Discard) else _move
            changed = change(shard, command, tracks[found.place.partition.key], found, now)
        if found is not None and changed:
            shard.sync_for(found.place.queue)
        done += sum(high - low for low, high in changed)
        refused += _without(wanted, found, changed)
    return Settled(done, refused)


def _move(shard: Shard, command: Move, track: Track, meant: Meant, now: int) -> list[Span]:
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
            low, high = cut(shard, track, run, first, end, now)
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


def _discard(shard: Shard, command: Move, track: Track, meant: Meant, now: int) -> list[Span]:
    """Have what a group has fresh, scheduled or leased end as dead letters."""
    place, first, end, shift = meant
    if any(unplanned(track, first, end)):
        finish_plan(shard, track, now)
    died: list[Dead] = []
    for low, high in list(fresh(track, first, end)):
        skip(shard, track, low, high)
        died.append(Dead(low, high - low, 0, 0, now, GIVEN_UP, IN_LINE))
    for run in track.schedule.over(first, end):
        low, high = cut(shard, track, run, first, end, now)
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
        bury(shard, track, dead)
    if died:
        shard.plan_sweep(place.queue, now)
        shard.reconsider(track, now)
    return [(dead.first, dead.first + dead.count) for dead in died]


def changed(
    parts: list[Settled], tenant: str, by_shard: list[tuple[Shard, list[Range]]], otherwise: str
) -> Settled:
    """What several shards changed; an error if that is nothing."""
    count = sum(part.count for part in parts)
    if not count:
        if not any(meant(shard, tenant, each) for shard, theirs in by_shard for each in theirs):
            raise NotFound("there is no such message, or it is no longer kept")
        raise Conflict(otherwise)
    return Settled(count, [each for part in parts for each in part.refused])
