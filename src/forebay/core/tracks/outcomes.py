"""Outcomes: messages settled otherwise than by an ack."""

from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Track
from forebay.core.structures.spans import overlapping


def record_outcome(
    shard: Shard, track: Track, first: int, end: int, outcome: int, now: int, *, told: bool = False
) -> None:
    """Settle messages of a group with an outcome; ``told`` if no event is due, because it is old news."""
    if not told:
        shard.changes.change_log.note(
            outcome, track.queue, track.group.name, track.partition, first, end - first
        )
    if shard.watched.by_partition:
        shard.watched.notify(track.partition.key, first, end)
    if track.partition.links_count:
        shard.end(track, first, end, outcome)
    add_outcome(shard, track, first, end, outcome, now)


def add_outcome(shard: Shard, track: Track, first: int, end: int, outcome: int, now: int) -> None:
    """Add an outcome to those of a track, joined with the one before it if they are alike."""
    track.ended[outcome] += end - first
    before = track.outcomes.below(first)
    if before is not None and before[0] + before[1] == first and before[2:] == (outcome, now):
        track.outcomes.remove(before[0], before[1])
        first = before[0]
    track.outcomes.add((first, end - first, outcome, now))
    key = keyspace.outcome_key(track.queue.prefix, track.group.number, track.partition.key, first)
    shard.changes.put_row(track.queue, key, codec.pack_numbers((end - first, outcome, now)))


def erase_outcome(shard: Shard, track: Track, first: int, end: int, outcome: int) -> None:
    """Undo an outcome of the messages of [first, end) that have it."""
    for row in list(overlapping(track.outcomes, first, end)):
        low, count, which, at = row
        if which != outcome:
            continue
        track.outcomes.remove(low, count)
        track.ended[which] -= count
        key = keyspace.outcome_key(track.queue.prefix, track.group.number, track.partition.key, low)
        shard.changes.put_row(track.queue, key, None)
        for begin, limit in ((low, first), (end, low + count)):
            if begin < limit:
                add_outcome(shard, track, begin, limit, which, at)


def outcome_at(track: Track, offset: int) -> tuple[int, int] | None:
    """Return the outcome of a message and its time, if it has one."""
    row = track.outcomes.upto(offset)
    return (row[2], row[3]) if row is not None and offset < row[0] + row[1] else None
