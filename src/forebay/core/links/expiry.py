"""Expire messages whose end has consequences.

A message with a tie and a ttl ends when the ttl is over, whether or not anyone pops it: its unique key must
become free, and its dependents must be notified.
"""

from msgspec.structs import replace

from forebay.core.links.cleanup import DROPS_MAX, drop_kept
from forebay.core.links.ties import NO_TIE, tie, tied_over, untie
from forebay.core.log import log as logs
from forebay.core.shard.ends import Ended
from forebay.core.shard.shard import Shard
from forebay.core.state import Partition, Queue, Track
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.tracks.places import take_out
from forebay.core.words import DEFAULT, EXPIRED


def watch_ttl(shard: Shard, queue: Queue, partition: Partition, first: int, end: int) -> None:
    """Expire messages that others wait for when their ttl ends."""
    log = partition.log
    if not log.mixed:
        return
    for offset in range(first, end):
        if not logs.has(log, offset):
            continue
        segment = log.segments[logs.find(log, offset)]
        _, created_at, attributes = segment.run_at(offset - segment.base)
        tied = partition.ties.get(offset, NO_TIE)
        if attributes.ttl_ms and not tied.expires_at:
            if tied is not NO_TIE:
                untie(shard, queue, partition, offset)
            expires_at = created_at + attributes.ttl_ms
            tie(shard, queue, partition, offset, replace(tied, expires_at=expires_at))


def expire_tied(shard: Shard, now: int) -> None:
    """Expire tied messages whose ttl has ended, and drop those that were kept for long enough.

    Of very many that are kept equally long, the next tick drops more.
    """
    left = DROPS_MAX
    while left and (places := shard.timers.expiry.first_due(now)):
        for key, offset in places:
            place = shard.places[key]
            if place.partition.ties[offset].completed_at:
                if not left:
                    break
                left -= 1
                drop_kept(shard, place.queue, place.partition, offset)
            else:
                _expire(shard, place.queue, place.partition, offset, now)


def _expire(shard: Shard, queue: Queue, partition: Partition, offset: int, now: int) -> None:
    group = queue.groups.get(DEFAULT)
    track = group.tracks[partition.key] if group is not None else None
    if partition.parked_over(offset, offset + 1):
        for span in shard.take_parked(queue, partition, offset, offset + 1):
            for each in queue.groups.values():
                record_outcome(shard, each.tracks[partition.key], *span, EXPIRED, now)
    elif track is not None:
        held = next((run for _, run in leased_runs(shard, track, offset, offset + 1)), None)
        if held is not None:
            # A consumer works on it. Check again when its lease ends: if it returns, it has expired.
            rest = untie(shard, queue, partition, offset)
            tie(shard, queue, partition, offset, replace(rest, expires_at=max(held.expires_at, now + 1)))
            return
        _expire_in(shard, track, offset, now)
    if track is None:
        shard.ends.append(Ended(queue, partition, offset, offset + 1, EXPIRED))
    # It ended, now or just before. The rest of the tie is settled with that end; clear the timer only.
    rest = untie(shard, queue, partition, offset)
    tie(shard, queue, partition, offset, replace(rest, expires_at=0))


def _expire_in(shard: Shard, track: Track, offset: int, now: int) -> None:
    """Settle a waiting message of a track as expired."""
    if not take_out(shard, track, "expire", offset, offset + 1, now):
        return  # it ended otherwise
    record_outcome(shard, track, offset, offset + 1, EXPIRED, now)
    shard.timers.plan_sweep(track.queue, now)
    shard.reconsider(track, now)


def come_back(shard: Shard, track: Track, first: int, count: int, now: int) -> None:
    """Check returned messages whose ttl has ended soon."""
    queue, partition = track.queue, track.partition
    for offset in tied_over(partition, first, first + count):
        tied = partition.ties[offset]
        is_open = not tied.completed_at  # a group may return what the group default has completed
        if is_open and tied.expires_at > now + 1 and _expired_at(partition, offset) <= now:
            untie(shard, queue, partition, offset)
            tie(shard, queue, partition, offset, replace(tied, expires_at=now + 1))


def _expired_at(partition: Partition, offset: int) -> int:
    segment = partition.log.segments[logs.find(partition.log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    return created_at + attributes.ttl_ms
