"""Move messages to another due time or priority, or discard them to the dead letters."""

from collections.abc import Iterator
from itertools import chain

from forebay.core.api.commands import Discard, Move, Settle, Settled
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, Limits, check_name, check_range
from forebay.core.delivery.cancel import check_ids, without_changed
from forebay.core.delivery.give_back import take_back
from forebay.core.ids import Range
from forebay.core.log import log as logs
from forebay.core.shard.addresses import Located, locate
from forebay.core.shard.shard import Shard
from forebay.core.state import Dead, Scheduled, Track, level_of
from forebay.core.structures.spans import Span, outside
from forebay.core.tracks.dead_letters import add_dead
from forebay.core.tracks.places import Taken, take_out
from forebay.core.tracks.planning import finish_plan, unplanned

GIVEN_UP = "discarded"


def check_move(limits: Limits, command: Move) -> None:
    """Raise unless the command's fields are valid."""
    check_ids(limits, command.ids)
    check_name("group", command.group)
    if command.delay_ms is not None:
        check_range("delay_ms", command.delay_ms, 0, DELAY_MS_MAX)
    if command.priority is not None:
        check_range("priority", command.priority, -PRIORITY_MAX, PRIORITY_MAX)


def may_move(found: Located, only_delayed: bool, now: int) -> bool:
    """Whether a group that does not exist yet would have messages to move."""
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
    """Give messages another due time or priority. ``tracks`` are the group's, by partition key."""
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
    settle = Settle(place.queue.tenant, group=track.group.name)

    def leased(low: int, high: int) -> Iterator[Taken]:
        if command.delay_ms is None:
            return  # another priority leaves a consumer what it has
        for found in take_back(shard, settle, Range(low + shift, high - low)):
            run = found.run
            past = (run.deliveries - 1, run.failures, run.error)
            yield Taken(found.id - shift, found.length, now, run.level, *past)

    assert command.only_delayed or not any(unplanned(track, first, end)), "planned above"
    if command.only_delayed:
        moved = take_out(shard, track, "promote", first, end, now, due_after=now)
    else:
        moved = take_out(shard, track, "move", first, end, now, leased=leased)
    for taken in moved:
        due_at = taken.due_at if command.delay_ms is None else now + command.delay_ms
        level = taken.level
        if command.priority is not None:
            level = level_of(command.priority, lifo=taken.level % 2 == 0)
        past = (taken.deliveries, taken.failures, taken.error)
        shard.schedule(track, Scheduled(due_at, taken.first, taken.length, level, *past), now)
    return [taken.span for taken in moved]


def _discard(shard: Shard, command: Move, track: Track, meant: Located, now: int) -> list[Span]:
    """Make fresh, scheduled and leased messages of a group dead letters."""
    place, first, end, shift = meant
    if any(unplanned(track, first, end)):
        finish_plan(shard, track, now)
    settle = Settle(place.queue.tenant, group=track.group.name)

    def leased(low: int, high: int) -> Iterator[Taken]:
        # They may be requeued one day: they have to be out of their leases for good.
        for found in take_back(shard, settle, Range(low + shift, high - low), cancelled=True):
            run = found.run
            past = (run.deliveries, run.failures, run.error, found.lease.leased_at)
            yield Taken(found.id - shift, found.length, now, run.level, *past)

    died = take_out(shard, track, "discard", first, end, now, leased=leased)
    for taken in died:
        counts = (taken.deliveries, taken.failures)
        error = taken.error or GIVEN_UP
        past = (*counts, now, error, taken.level, taken.leased_at)
        add_dead(shard, track, Dead(taken.first, taken.length, *past))
    if died:
        shard.timers.plan_sweep(place.queue, now)
        shard.reconsider(track, now)
    return [taken.span for taken in died]
