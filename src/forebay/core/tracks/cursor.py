"""The cursor of a track: fresh messages, and the skips it passes."""

from collections.abc import Iterator

from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Track
from forebay.core.structures.spans import Span, outside


def skip(shard: Shard, track: Track, first: int, end: int) -> None:
    """Skip fresh messages that moved to another place."""
    track.aside += end - first
    if first == track.cursor:
        pass_over(shard, track, end)
        return
    before = track.skips.below(first)
    if before is not None and before[0] + before[1] == first:
        track.skips.remove(*before)
        first = before[0]
    track.skips.add((first, end - first))
    shard.changes.put_row(track.queue, _skip_key(track, first), codec.pack_numbers((end - first,)))


def pass_over(shard: Shard, track: Track, end: int) -> None:
    """Move the cursor over messages that are not fresh."""
    track.aside -= end - track.cursor
    track.cursor = end
    shard.changes.touch_track(track)


def pass_skips(shard: Shard, track: Track) -> None:
    """Move the cursor over skips that start at it."""
    while track.skips:
        first, count = track.skips.head()
        if first > track.cursor:
            return
        assert first == track.cursor, "the cursor never stands within a skip"
        track.skips.remove(first, count)
        shard.changes.put_row(track.queue, _skip_key(track, first), None)
        pass_over(shard, track, first + count)


def _skip_key(track: Track, first: int) -> bytes:
    return keyspace.skip_key(track.queue.prefix, track.group.number, track.partition.key, first)


def fresh(track: Track, first: int, end: int) -> Iterator[Span]:
    """Yield the parts of [first, end) that are fresh."""
    for low, high in logs.in_line(track.partition.log, max(first, track.cursor), end):
        yield from outside(track.skips, low, high)
