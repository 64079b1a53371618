"""Drop messages when they have ended, as they ask for themselves (``Attributes.cleanup``).

Most messages ask for nothing, and are dropped with their segment when their queue says so.
"""

from itertools import islice

from msgspec.structs import replace

from forebay.core.links.dedup import forget_job_id
from forebay.core.links.ties import NO_TIE, tie, tied_over, untie
from forebay.core.log import log as logs
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.state import Cleanup, Partition, Queue, Tie, Track
from forebay.core.structures.spans import offsets_in
from forebay.core.tracks.dropped import drop_completed, drop_dead
from forebay.core.words import COMPLETED, DEFAULT, DIED, DISCARDED

DROPS_MAX = 2_000
"""Kept messages that completions of one commit, or one tick, drop: about 15 ms."""


def tie_cleanup(
    shard: Shard, queue: Queue, partition: Partition, first: int, end: int, cleanup: Cleanup
) -> None:
    """Tie the cleanup of new messages to their end."""
    for offset in range(first, end):
        had = untie(shard, queue, partition, offset) if offset in partition.ties else NO_TIE
        tie(shard, queue, partition, offset, replace(had, cleanup=cleanup))


def clean_up(shard: Shard, ended: Ended, offset: int, tied: Tie, now: int) -> None:
    """Drop a message that has just ended, or tie to it when it is to be dropped."""
    queue, partition, cleanup = ended.queue, ended.partition, tied.cleanup
    if cleanup is None or not shard.has(queue, partition) or not logs.has(partition.log, offset):
        return  # in the same step its queue may have been deleted, or retention may have dropped it
    if ended.how in (DIED, DISCARDED) and cleanup.on_fail:
        _forget_job_id(shard, queue, partition, offset)
        drop_dead(shard, _track(queue, partition), offset, offset + 1)
        if ended.how == DIED:  # nobody can requeue it: who waits for that has waited for nothing
            shard.ends.append(Ended(queue, partition, offset, offset + 1, DISCARDED))
    elif ended.how == DIED:  # it may be requeued, and completed then
        tie(shard, queue, partition, offset, Tie(cleanup=cleanup))
    elif ended.how != COMPLETED:
        return
    elif cleanup.on_complete:
        _drop(shard, queue, partition, offset)
    elif cleanup.keep_ms or cleanup.keep_count:
        drop_at = now + cleanup.keep_ms if cleanup.keep_ms else 0
        tie(shard, queue, partition, offset, Tie(cleanup=cleanup, completed_at=now, expires_at=drop_at))
        surplus = len(queue.kept) - cleanup.keep_count if cleanup.keep_count else 0
        # What is more than a commit drops goes with the next completion.
        most = max(min(surplus, DROPS_MAX - shard.kept_dropped), 0)
        shard.kept_dropped += most
        for key, oldest in list(islice(queue.kept, most)):
            drop_kept(shard, queue, shard.places[key].partition, oldest)


def drop_kept(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    """Drop a message that was kept for a while since it was completed."""
    untie(shard, queue, partition, offset)
    _drop(shard, queue, partition, offset)


def drop_all(shard: Shard, track: Track, first: int, end: int) -> None:
    """Drop completed messages of a track, with what only kept messages have in the group ``default``."""
    queue, partition = track.queue, track.partition
    if track.group.name == DEFAULT:
        for offset in tied_over(partition, first, end) if partition.ties else ():
            untie(shard, queue, partition, offset)
        for offset in (*offsets_in(partition.job_ids, first, end), *offsets_in(partition.led_to, first, end)):
            _forget_job_id(shard, queue, partition, offset)
    drop_completed(shard, track, first, end)


def _drop(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    _forget_job_id(shard, queue, partition, offset)
    drop_completed(shard, _track(queue, partition), offset, offset + 1)


def _track(queue: Queue, partition: Partition) -> Track:
    return queue.groups[DEFAULT].tracks[partition.key]


def _forget_job_id(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    """Free the custom id of a message."""
    first = partition.led_to.get(offset, offset)
    if first in partition.job_ids:
        forget_job_id(shard, queue, partition, first)
