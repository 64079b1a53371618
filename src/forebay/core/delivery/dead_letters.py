"""Requeue dead letters, or purge them."""

from collections.abc import Iterator

from forebay.core.api.commands import Buried, Purge, Requeue
from forebay.core.bounds import Limits, check_name
from forebay.core.delivery.cancel import check_ids
from forebay.core.errors import NotFound
from forebay.core.ids import ranges
from forebay.core.links.expiry import watch_ttl
from forebay.core.shard.addresses import locate, split
from forebay.core.shard.shard import Shard
from forebay.core.state import Dead, Group, Queue, Scheduled, Track
from forebay.core.tracks.dead_letters import cut_dead, dead_over
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.tracks.planning import finish_plan
from forebay.core.words import DEFAULT, DISCARDED, REQUEUED

RUNS_MAX = 2_000
"""Runs of dead letters per command; the next command takes more."""

Part = tuple[Track, Dead, int, int]
"""Dead letters [low, high) of a run."""


def check(limits: Limits, command: Requeue | Purge) -> None:
    check_name("group", command.group)
    if command.ids is not None:
        check_ids(limits, command.ids)


def requeue(shard: Shard, queue: Queue, command: Requeue, now: int) -> Buried:
    """Put dead letters back into the schedule, due now, as if they had never been delivered."""
    group = queue.groups.get(command.group)
    parts, refused = _meant(shard, queue, group, command)
    for track, run, low, high in parts:
        if high > track.planned:
            finish_plan(shard, track, now)  # while it is dead, it is not planned
        cut_dead(shard, track, run, low, high)
        shard.schedule(track, Scheduled(now, low, high - low, run.level), now)
        shard.changes.change_log.note(REQUEUED, queue, command.group, track.partition, low, high - low)
        if command.group == DEFAULT:
            for first, _, count, _ in track.partition.waiting_over(low, high):
                watch_ttl(shard, queue, track.partition, max(first, low), min(first + count, high))
    queue.room = 0
    return _reply(shard, queue, group, parts, refused)


def purge(shard: Shard, queue: Queue, command: Purge, now: int) -> Buried:
    """Settle dead letters as discarded."""
    group = queue.groups.get(command.group)
    parts, refused = _meant(shard, queue, group, command)
    for track, run, low, high in () if command.dry_run else parts:
        cut_dead(shard, track, run, low, high)
        record_outcome(shard, track, low, high, DISCARDED, now)
        shard.timers.plan_sweep(queue, now)
    return _reply(shard, queue, group, parts, refused)


def _reply(shard: Shard, queue: Queue, group: Group | None, parts: list[Part], refused: list[int]) -> Buried:
    if shard.changes.dirty:
        shard.changes.sync_for(queue)
    left = sum(track.dead_messages for track in group.tracks.values()) if group is not None else 0
    return Buried(sum(high - low for _, _, low, high in parts), left, refused)


def _meant(
    shard: Shard, queue: Queue, group: Group | None, command: Requeue | Purge
) -> tuple[list[Part], list[int]]:
    """Return the dead letters that a command names, and the ids that are none."""
    if command.ids is None:
        return list(_all(group)), []
    parts: list[Part] = []
    refused: list[int] = []
    for wanted in split(shard, ranges(command.ids)):
        found = locate(shard, command.tenant, wanted)
        reached = wanted.first
        if found is not None and found.place.queue is queue and group is not None:
            track = group.tracks[found.place.partition.key]
            for run in dead_over(track, found.first, found.end):
                low, high = max(run.first, found.first), min(run.first + run.count, found.end)
                parts.append((track, run, low, high))
                refused += range(reached, low + found.shift)
                reached = high + found.shift
        refused += range(reached, wanted.first + wanted.length)
    if not parts:
        raise NotFound("none of these is a dead letter of the group")
    return parts, refused


def _all(group: Group | None) -> Iterator[Part]:
    left = RUNS_MAX
    for track in group.tracks.values() if group is not None else ():
        for first, count in track.dead:
            if not left:
                return
            left -= 1
            yield track, track.letters[first], first, first + count
