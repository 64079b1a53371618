"""Requeue dead letters.

What died by itself is scheduled, due now, as if it had never been delivered. What died of a dependency is
parked again until its dependencies are completed, and so is what died of a requeued message.
"""

from collections import deque

from forebay.core.api.commands import Buried, Requeue
from forebay.core.delivery.dead_letters import Part, meant, reply
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK
from forebay.core.jobs.dependencies import failed_over, first_unmet, revive, tell_revived
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Dead, Queue, Scheduled, Track
from forebay.core.tracks.dead_letters import cut_dead
from forebay.core.tracks.planning import finish_plan
from forebay.core.words import DEFAULT, REQUEUED

COUNTED_MAX = 1_000
"""Dependents that a reply counts: about 5 ms. More are revived, and not counted."""


def requeue(shard: Shard, queue: Queue, command: Requeue, now: int) -> Buried:
    """Deliver dead letters again; a dry run only counts."""
    group = queue.groups.get(command.group)
    parts, refused = meant(shard, queue, group, command)
    is_work = command.group == DEFAULT
    revived = _count_revived(shard, parts) if is_work and command.dependents else 0
    for track, run, low, high in () if command.dry_run else parts:
        place = Place(queue, track.partition, 0)
        if run.unmet >= 0:
            revive(shard, place, run, low, high, now)
        else:
            _schedule(shard, track, run, low, high, now)
            if is_work:
                tell_revived(shard, place, low, high, revives=command.dependents)
    queue.room = 0
    done = reply(shard, queue, group, parts, refused)
    done.dependents = revived
    return done


def _schedule(shard: Shard, track: Track, run: Dead, low: int, high: int, now: int) -> None:
    """Schedule dead letters [low, high) of a run as if they had never been delivered."""
    if high > track.planned:
        finish_plan(shard, track, now)  # while it is dead, it is not planned
    cut_dead(shard, track, run, low, high)
    shard.schedule(track, Scheduled(now, low, high - low, run.level), now)
    shard.changes.change_log.note(REQUEUED, track.queue, track.group.name, track.partition, low, high - low)


def _count_revived(shard: Shard, parts: list[Part]) -> int:
    """Count dead letters that are parked again because they died of these, or of one that did."""
    count = looked_at = 0
    seen = {(track.partition.key, run.first) for track, run, _, _ in parts}
    left = deque((track.partition, low, high) for track, _, low, high in parts)
    while left:
        partition, low, high = left.popleft()
        for row in partition.waiting_over(low, high) if partition.dependents.size else ():
            looked_at += 1
            if looked_at > COUNTED_MAX:
                return count
            at, dependent, length, waiting = row
            place = shard.places.get(dependent >> OFFSET_BITS)
            if place is None or first_unmet(partition, row, max(at, low), min(at + length, high)) is None:
                continue
            first = place.first + (dependent & OFFSET_MASK)
            for run in failed_over(place, first, first + waiting):
                if (place.partition.key, run.first) not in seen:
                    seen.add((place.partition.key, run.first))
                    left.append((place.partition, run.first, run.first + run.count))
                    count += run.count
    return count
