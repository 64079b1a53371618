"""Dead letters of a track."""

from msgspec.structs import replace

from forebay.core.bounds import NEVER
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Dead, Track
from forebay.core.structures.spans import overlapping
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.words import DEAD, DIED, DISCARDED


def add_dead(shard: Shard, track: Track, run: Dead) -> None:
    """Make a run dead, or discard it if its queue keeps no dead letters."""
    shard.changes.change_log.note(DEAD, track.queue, track.group.name, track.partition, run.first, run.count)
    if not track.queue.options.dead_letters:
        record_outcome(shard, track, run.first, run.first + run.count, DISCARDED, run.dead_at)
    else:
        shard.end(track, run.first, run.first + run.count, DIED)
        put_dead(shard, track, run)


def put_dead(shard: Shard, track: Track, run: Dead) -> None:
    """Add a run to the dead letters."""
    if shard.watched.by_partition:
        shard.watched.notify(track.partition.key, run.first, run.first + run.count)
    track.dead.add((run.first, run.count))
    track.letters[run.first] = run
    track.dead_messages += run.count
    shard.changes.put_row(track.queue, dead_letter_key(track, run.first), codec.pack_dead(run))


def remove_dead(shard: Shard, track: Track, run: Dead) -> None:
    """Remove a run from the dead letters."""
    track.dead.remove(run.first, run.count)
    del track.letters[run.first]
    track.dead_messages -= run.count
    shard.changes.put_row(track.queue, dead_letter_key(track, run.first), None)


def next_dead(track: Track, offset: int) -> int:
    """Return the first dead letter from an offset on; ``NEVER`` if there is none."""
    row = track.dead.upto(offset)
    if row is not None and row[0] + row[1] > offset:
        return offset
    row = track.dead.above(offset)
    return row[0] if row is not None else NEVER


def dead_over(track: Track, first: int, end: int) -> list[Dead]:
    """Return the runs of dead letters that reach into [first, end), by offset."""
    return [track.letters[row[0]] for row in overlapping(track.dead, first, end)]


def dead_letter_key(track: Track, first: int) -> bytes:
    return keyspace.dead_key(track.queue.prefix, track.group.number, track.partition.key, first)


def change_dead(shard: Shard, track: Track, run: Dead) -> None:
    """Replace a run of dead letters by one over the same messages."""
    track.letters[run.first] = run
    shard.changes.put_row(track.queue, dead_letter_key(track, run.first), codec.pack_dead(run))


def cut_dead(shard: Shard, track: Track, run: Dead, low: int, high: int) -> None:
    """Remove [low, high) from a run of dead letters."""
    now_dead = track.letters.get(run.first)
    if now_dead is None or low >= run.first + now_dead.count:
        # An earlier part of the same command cut it: what is left begins further up.
        (now_dead,) = dead_over(track, low, low + 1)
    remove_dead(shard, track, now_dead)
    if low > now_dead.first:
        put_dead(shard, track, replace(now_dead, count=low - now_dead.first))
    end = now_dead.first + now_dead.count
    if high < end:
        put_dead(shard, track, replace(now_dead, first=high, count=end - high))
