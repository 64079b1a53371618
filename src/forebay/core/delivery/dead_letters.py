"""Find the dead letters that a command names, and purge them. ``jobs.requeue`` requeues them."""

from collections.abc import Iterator
from itertools import islice

from forebay.core.api.commands import Buried, Purge, Requeue
from forebay.core.bounds import Limits, check_name
from forebay.core.delivery.cancel import check_ids
from forebay.core.errors import Conflict, NotFound
from forebay.core.ids import ranges
from forebay.core.log import log as logs
from forebay.core.shard.addresses import locate, split
from forebay.core.shard.shard import Shard
from forebay.core.state import LOST, Dead, Group, Queue, Track
from forebay.core.tracks.dead_letters import cut_dead, dead_over
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.words import DEFAULT, DISCARDED

RUNS_MAX = 2_000
"""Runs of dead letters per command; the next command takes more."""

Part = tuple[Track, Dead, int, int]
"""Dead letters [low, high) of a run."""


def check(limits: Limits, command: Requeue | Purge) -> None:
    check_name("group", command.group)
    if command.ids is not None:
        check_ids(limits, command.ids)


def purge(shard: Shard, queue: Queue, command: Purge, now: int) -> Buried:
    """Settle dead letters as discarded."""
    group = queue.groups.get(command.group)
    parts, refused = meant(shard, queue, group, command)
    for track, run, low, high in () if command.dry_run else parts:
        cut_dead(shard, track, run, low, high)
        record_outcome(shard, track, low, high, DISCARDED, now)
        shard.timers.plan_sweep(queue, now)
    return reply(shard, queue, group, parts, refused)


def reply(shard: Shard, queue: Queue, group: Group | None, parts: list[Part], refused: list[int]) -> Buried:
    if shard.changes.dirty:
        shard.changes.sync_for(queue)
    left = sum(track.dead_messages for track in group.tracks.values()) if group is not None else 0
    return Buried(sum(high - low for _, _, low, high in parts), left, refused)


def meant(
    shard: Shard, queue: Queue, group: Group | None, command: Requeue | Purge
) -> tuple[list[Part], list[int]]:
    """Return the dead letters that a command names, and the ids that are none."""
    if command.ids is None:
        return list(islice(_all(group, command), RUNS_MAX)), []
    parts: list[Part] = []
    refused: list[int] = []
    is_lost = False
    for wanted in split(shard, ranges(command.ids)):
        found = locate(shard, command.tenant, wanted)
        reached = wanted.first
        if found is not None and found.place.queue is queue and group is not None:
            track = group.tracks[found.place.partition.key]
            for run in dead_over(track, found.first, found.end):
                if not _may(command, run):
                    is_lost = True
                    continue
                low, high = max(run.first, found.first), min(run.first + run.count, found.end)
                parts.append((track, run, low, high))
                refused += range(reached, low + found.shift)
                reached = high + found.shift
        refused += range(reached, wanted.first + wanted.length)
    if not parts and is_lost:
        raise Conflict("it depends on a message that was cancelled or purged, or has expired: push it again")
    if not parts:
        raise NotFound("none of these is a dead letter of the group")
    return parts, refused


def is_bound(track: Track, low: int, high: int) -> bool:
    """Whether messages [low, high) have dependencies, or others depend on them: a copy would have neither."""
    partition = track.partition
    if any(stretch.attributes.depends_on for stretch in logs.stretches(partition.log, low, high)):
        return True
    return track.group.name == DEFAULT and partition.is_waited_for(low, high)


def _all(group: Group | None, command: Requeue | Purge) -> Iterator[Part]:
    for track in group.tracks.values() if group is not None else ():
        for first, count in track.dead:
            if _may(command, track.letters[first]):
                yield track, track.letters[first], first, first + count


def _may(command: Requeue | Purge, run: Dead) -> bool:
    """Whether a command may be carried out: what depends on a lost message can't be requeued."""
    return run.unmet != LOST or isinstance(command, Purge)
