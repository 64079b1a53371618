"""Cancel messages for one group, or for every group that exists or will exist."""

from collections.abc import Iterator

from forebay.core.api.commands import Cancel, Settle, Settled
from forebay.core.bounds import Limits
from forebay.core.delivery.settle import take_cancelled
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.ids import Range, ranges
from forebay.core.shard.addresses import Located, locate
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Track
from forebay.core.structures.spans import Span, outside, union
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.tracks.places import Taken, take_out
from forebay.core.tracks.withdrawn import withdraw_unless
from forebay.core.words import CANCELLED

RUNS_MAX = 20_000
"""Scheduled runs that one command may cut, over all groups."""
SCATTERED_MAX = 2_000
"""Ranges of consecutive ids per command: about 100 ms."""


def check_ids(limits: Limits, ids: list[int]) -> None:
    if not 1 <= len(ids) <= limits.batch_max:
        raise Invalid("ids", f"a list of 1 to {limits.batch_max} ids")
    if len(ids) > SCATTERED_MAX and len(ranges(ids)) > SCATTERED_MAX:
        raise Invalid("ids", f"at most {SCATTERED_MAX} stretches of consecutive ids; send several commands")


def check_runs(shard: Shard, tenant: str, wanted_ranges: list[Range]) -> None:
    """Raise if the messages lie in too many scheduled runs for one command."""
    runs = 0
    for wanted in wanted_ranges:
        found = locate(shard, tenant, wanted)
        for group in found.place.queue.groups.values() if found is not None else ():
            assert found is not None
            track = group.tracks[found.place.partition.key]
            runs += track.schedule.count_runs(found.first, found.end)
            runs += min(max(found.end - max(found.first, track.planned), 0), track.unplanned)
    if runs > RUNS_MAX:
        raise Invalid("ids", f"fewer: these are {runs} scheduled runs, and one command takes {RUNS_MAX}")


def cancel(shard: Shard, command: Cancel, wanted_ranges: list[Range], now: int) -> Settled:
    """Cancel the messages that are neither settled nor dead."""
    done = 0
    refused: list[int] = []
    for wanted in wanted_ranges:
        found = locate(shard, command.tenant, wanted)
        changed = _cancel(shard, command, found, now) if found is not None else []
        if found is not None and changed:
            shard.changes.sync_for(found.place.queue)
            shard.timers.plan_sweep(found.place.queue, now)
        done += sum(high - low for low, high in changed)
        refused += without_changed(wanted, found, changed)
    return Settled(done, refused)


def without_changed(wanted: Range, found: Located | None, changed: list[Span]) -> list[int]:
    """Return the ids of a range that were not changed."""
    ids = range(wanted.first, wanted.first + wanted.length)
    if found is None:
        return list(ids)
    hit = {offset + found.shift for low, high in changed for offset in range(low, high)}
    return [each for each in ids if each not in hit]


def _cancel(shard: Shard, command: Cancel, found: Located, now: int) -> list[Span]:
    """Cancel messages for one group, or for every present and future one; return the spans changed."""
    place = found.place
    groups = place.queue.groups
    if command.group is not None:
        group = groups.get(command.group)
        return _cancel_in(shard, group.tracks[place.partition.key], found, now) if group else []
    return cancel_everywhere(shard, found, now)


def cancel_everywhere(shard: Shard, found: Located, now: int) -> list[Span]:
    """Cancel messages for every present and future group; return the spans changed."""
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
        withdraw_unless(shard, place, low, high, now)
    return union(changed)


def cancel_parked(shard: Shard, place: Place, first: int, end: int, now: int) -> list[Span]:
    """Cancel the parked messages of [first, end) for every group; return their spans."""
    parked = shard.take_parked(place.queue, place.partition, first, end)
    for low, high in parked:
        for group in place.queue.groups.values():
            record_outcome(shard, group.tracks[place.partition.key], low, high, CANCELLED, now)
        withdraw_unless(shard, place, low, high, now)
    return parked


def _cancel_in(shard: Shard, track: Track, meant: Located, now: int) -> list[Span]:
    """Cancel fresh, scheduled and leased messages of one group; return their spans."""
    place, first, end, shift = meant
    settle = Settle(place.queue.tenant, group=track.group.name)

    def leased(low: int, high: int) -> Iterator[Taken]:
        for found in take_cancelled(shard, settle, Range(low + shift, high - low)):
            yield Taken(found.id - shift, found.length, now)

    changed = [taken.span for taken in take_out(shard, track, "cancel", first, end, now, leased=leased)]
    for low, high in changed:
        record_outcome(shard, track, low, high, CANCELLED, now)
    if changed:
        shard.reconsider(track, now)
    return changed


def check_changed(
    shard: Shard, tenant: str, done: Settled, wanted_ranges: list[Range], otherwise: str
) -> None:
    """Raise if nothing changed."""
    if not done.count:
        if not any(locate(shard, tenant, each) for each in wanted_ranges):
            raise NotFound("there is no such message, or it is no longer kept")
        raise Conflict(otherwise)
