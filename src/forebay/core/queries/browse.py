"""Browse the messages of a queue by their state in a group."""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from forebay.core import bounds
from forebay.core.api.queries import Browse, OfDead, Shown, ShownAll, State
from forebay.core.bounds import NEVER, Limits, check_name, check_range
from forebay.core.errors import Invalid
from forebay.core.log import log as logs
from forebay.core.log.numbers import id_at
from forebay.core.queries import describe, message_state
from forebay.core.queries.causes import Selected
from forebay.core.queries.unread import Part, asked, unread
from forebay.core.shard.shard import Shard
from forebay.core.state import Group, Partition, Queue, Track
from forebay.core.structures.spans import overlapping
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.dropped import dropped_count, dropped_over
from forebay.core.tracks.places import DEAD, LEASED, PARKED, completed, spans_in
from forebay.core.tracks.planning import unplanned_due
from forebay.core.words import OUTCOMES, STATES

SKIP_MAX = 1 << 62


def browse(limits: Limits, shard: Shard, queue: Queue, command: Browse, now: int) -> ShownAll:
    """Return messages in a state with their payloads; fewer if they are large."""
    check_range("limit", command.count, 1, bounds.SHOWN_MAX)
    check_range("skip", command.skip, 0, SKIP_MAX)
    check_name("group", command.group)
    if command.state is not None and command.state not in STATES:
        raise Invalid("state", f"one of {', '.join(STATES)}")
    if command.dead is not None and command.state != "dead":
        raise Invalid("state", "dead, or left out, with what only dead letters have")
    if command.dead is not None:
        Selected(command.dead)
    group = queue.groups.get(command.group)
    found = ShownAll([], _total(queue, group, command.state, now) if command.counted else 0)
    skip, bytes_left = command.skip, limits.read_bytes_max
    looked_at = 0
    for partition in _partitions(queue, command):
        at = command.after[1] if command.after is not None and command.after[0] == partition.key else 0
        spans = _spans(shard, group, partition, command, at, now)
        for low, high, is_asked in _matching(partition, _from(at, spans), command):
            looked_at += 1
            passed = min(skip, high - low) if is_asked else high - low
            skip -= passed if is_asked else 0
            if looked_at > command.effort:
                found.next = (partition.key, low)
                return found
            for offset in range(low + passed, high):
                if len(found.deliveries) == command.count or bytes_left <= 0:
                    found.next = (partition.key, offset)
                    return found
                shown = _shown(shard, queue, partition, offset, command, now)
                found.deliveries.append(shown)
                bytes_left -= logs.piece_bytes(shown)
    return found


def _total(queue: Queue, group: Group | None, state: str | None, now: int) -> int:
    """Count the messages in a state."""
    if state is None:
        kept = sum(logs.count_kept(partition.log) for partition in queue.partitions.values())
        return kept - sum(map(dropped_count, group.tracks.values())) if group is not None else kept
    found: int = getattr(describe.counts(queue, group, now), state)
    return found


def _partitions(queue: Queue, command: Browse) -> list[Partition]:
    """Return the partitions to scan, in order."""
    if command.partition is not None:
        return [describe.partition_of(queue, command.partition)]
    return describe.partitions_from(queue, command.after)


def _from(at: int, spans: Iterable[Part]) -> Iterator[Part]:
    """Cut spans to those at or past an offset."""
    return ((max(low, at), high, is_asked) for low, high, is_asked in spans if high > at)


def _matching(partition: Partition, spans: Iterable[Part], command: Browse) -> Iterator[Part]:
    """Cut spans where messages differ in tag or time, and match them."""
    if command.tag is None and command.since is None and command.before is None and command.task is None:
        yield from spans
        return
    since = command.since if command.since is not None else 0
    before = command.before if command.before is not None else NEVER
    log = partition.log
    for low, high, is_asked in spans:
        if not is_asked:
            yield low, high, False
            continue
        while low < high:
            segment = log.segments[logs.find(log, low)]
            end, created_at, attributes = segment.run_at(low - segment.base)
            end = min(segment.base + end, high)
            tagged = command.tag is None or command.tag in attributes.tags
            called = command.task is None or command.task == attributes.task
            yield low, end, tagged and called and since <= created_at < before
            low = end


def _shown(shard: Shard, queue: Queue, partition: Partition, offset: int, command: Browse, now: int) -> Shown:
    state = message_state.state(shard, State(command.tenant, id_at(partition, offset), command.group), now)
    log = partition.log
    segment = log.segments[logs.find(log, offset)]
    return Shown(segment, offset - segment.base, 1, state.created_at, queue, partition.name, state)


def _spans(
    shard: Shard, group: Group | None, partition: Partition, command: Browse, at: int, now: int
) -> Iterable[Part]:
    """Yield spans of a state in a group from an offset on, and spans scanned without a match."""
    log, state = partition.log, command.state
    track = group.tracks[partition.key] if group is not None else None
    if state is None:
        return _kept(partition, track, at)
    if track is None:
        return unread(partition, state, at, now)
    match state:
        case "parked":
            return asked(spans_in(shard, track, PARKED, at, log.end))
        case "waiting":
            line = asked(fresh(track, max(track.cursor, at), log.end))
            return merge(line, *_aside(track, at, lambda due_at: due_at <= now))
        case "delayed":
            return merge(*_aside(track, at, lambda due_at: due_at > now))
        case "active":
            return asked(spans_in(shard, track, LEASED, at, log.end))
        case "dead" if command.dead is not None:
            return _dead(track, command.dead, at)
        case "dead":
            return asked(spans_in(shard, track, DEAD, at, log.end))
        case "completed":
            return completed(shard, track, at)
    outcome = OUTCOMES.index(state)
    rows = overlapping(track.outcomes, at, log.end)
    return ((first, first + count, which == outcome) for first, count, which, _ in rows)


def _kept(partition: Partition, track: Track | None, at: int) -> Iterator[Part]:
    """Yield everything that is kept, without what a group has dropped."""
    for low, high in logs.kept_spans(partition.log):
        for first, end in dropped_over(track, low, high) if track is not None and high > at else ():
            if first > low:
                yield low, first, True
            yield first, end, False
            low = end
        if low < high:
            yield low, high, True


def _dead(track: Track, of: OfDead, at: int) -> Iterator[Part]:
    """Yield runs of dead letters from an offset on, and whether they are selected."""
    selected = Selected(of)
    for first, count in overlapping(track.dead, at, track.partition.log.end):
        yield first, first + count, selected.has(track.letters[first])


def _aside(track: Track, at: int, is_asked: Callable[[int], bool]) -> tuple[Iterator[Part], Iterator[Part]]:
    """Return scheduled and unplanned spans from an offset on."""
    ends = track.partition.log.end
    scheduled = ((low, high, is_asked(due_at)) for low, high, due_at in track.schedule.spans(at))
    rest = ((low, high, is_asked(due_at)) for low, high, due_at in unplanned_due(track, at, ends))
    return scheduled, rest
