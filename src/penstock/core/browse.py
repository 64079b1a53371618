"""Browse: the messages of a queue by where they stand in a group."""

from collections.abc import Iterable, Iterator
from heapq import merge

from penstock.core import log as logs, look
from penstock.core.agenda import NEVER
from penstock.core.commands import Browse, Shown, ShownAll, State
from penstock.core.endings import Span, fresh, outside, unplanned
from penstock.core.errors import Invalid
from penstock.core.ids import address
from penstock.core.leased import gaps
from penstock.core.limits import Limits, check_name, check_range
from penstock.core.model import OUTCOMES, Group, Partition, Queue, Track
from penstock.core.numbers import number_of
from penstock.core.shard import Shard
from penstock.core.standing import rows_over

STATES = (
    "waiting",
    "delayed",
    "parked",
    "active",
    "completed",
    "dead",
    "expired",
    "cancelled",
    "evicted",
    "discarded",
)
SKIP_MAX = 1 << 62
LOOKED_AT_MAX = 100_000
"""Runs that one browse looks at for those that are asked for: what it has not seen then, the next will."""
NOWHERE = (1 << 62, 1 << 62)
"""Past the end of every log."""


def browse(limits: Limits, shard: Shard, queue: Queue, command: Browse, now: int) -> ShownAll:
    """Messages in a state, with their payloads; fewer if they are large."""
    check_range("limit", command.count, 1, look.SHOWN_MAX)
    check_range("offset", command.skip, 0, SKIP_MAX)
    check_name("group", command.group)
    if command.state is not None and command.state not in STATES:
        raise Invalid("state", f"one of {', '.join(STATES)}")
    group = queue.groups.get(command.group)
    counts = look.counts(queue, group, now)
    kept = sum(logs.count_kept(partition.log) for partition in queue.partitions.values())
    found = ShownAll([], kept if command.state is None else getattr(counts, command.state))
    skip, bytes_left = command.skip, limits.read_bytes_max
    looked_at = 0
    for partition in _partitions(queue, command):
        spans = _spans(shard, group, partition, command.state, now)
        for low, high, is_asked in _matching(partition, _from(spans, partition, command), command):
            looked_at += 1
            passed = min(skip, high - low) if is_asked else high - low
            skip -= passed if is_asked else 0
            if looked_at > LOOKED_AT_MAX:
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


def _partitions(queue: Queue, command: Browse) -> list[Partition]:
    """Where to look, in order."""
    if command.partition is not None:
        return [look.partition_of(queue, command.partition)]
    first = command.after[0] if command.after is not None else 0
    every = sorted(queue.partitions.values(), key=lambda partition: partition.key)
    return [partition for partition in every if partition.key >= first]


def _from(spans: Iterable[Span], partition: Partition, command: Browse) -> Iterator[Span]:
    """What of some spans lies at or past the place where a browse goes on."""
    at = command.after[1] if command.after is not None and command.after[0] == partition.key else 0
    for low, high in spans:
        if high > at:
            yield max(low, at), high


def _matching(
    partition: Partition, spans: Iterable[Span], command: Browse
) -> Iterator[tuple[int, int, bool]]:
    """Spans, cut where messages differ in what is asked for, and whether they are."""
    if command.tag is None and command.since is None and command.before is None:
        yield from ((low, high, True) for low, high in spans)
        return
    since = command.since if command.since is not None else 0
    before = command.before if command.before is not None else NEVER
    log = partition.log
    for low, high in spans:
        while low < high:
            segment = log.segments[logs.find(log, low)]
            end, created_at, attributes = segment.run_at(low - segment.base)
            end = min(segment.base + end, high)
            tagged = command.tag is None or command.tag in attributes.tags
            yield low, end, tagged and since <= created_at < before
            low = end


def _shown(shard: Shard, queue: Queue, partition: Partition, offset: int, command: Browse, now: int) -> Shown:
    number, base = number_of(partition, offset)
    state = look.state(shard, State(command.tenant, address(number, offset - base), command.group), now)
    log = partition.log
    segment = log.segments[logs.find(log, offset)]
    return Shown(segment, offset - segment.base, 1, state.created_at, queue, partition.name, state)


def _spans(
    shard: Shard, group: Group | None, partition: Partition, state: str | None, now: int
) -> Iterable[Span]:
    """Where messages are that stand so in a group, in order."""
    log = partition.log
    if state is None:
        return logs.kept_spans(log)
    if group is None:
        return _unread(partition, state, now)
    track = group.tracks[partition.key]
    match state:
        case "parked":
            return ((first, first + count) for first, count, _ in partition.parked)
        case "waiting":
            due = ((first, end) for first, end, due_at in track.schedule.spans() if due_at <= now)
            return merge(fresh(track, track.cursor, log.end), due, unplanned(track, log.first, log.end))
        case "delayed":
            return ((first, end) for first, end, due_at in track.schedule.spans() if due_at > now)
        case "active":
            return _leased(shard, track)
        case "dead":
            return ((first, first + count) for first, count in track.dead)
        case "completed":
            return _completed(shard, track)
    outcome = OUTCOMES.index(state)
    return ((first, first + count) for first, count, which, _ in track.outcomes if which == outcome)


def _unread(partition: Partition, state: str, now: int) -> Iterator[Span]:
    """The same for a group that does not exist: everything waits, is delayed, or was cancelled."""
    log = partition.log
    if state == "cancelled":
        yield from ((first, first + count) for first, count, _ in partition.withdrawn)
    if state == "parked":
        yield from rows_over(partition.parked, log.first, log.end)
    if state not in ("waiting", "delayed"):
        return
    for segment in log.segments[log.islands :]:
        start = 0
        while start < segment.count:
            end, created_at, attributes = segment.run_at(start)
            if (created_at + attributes.delay_ms > now) == (state == "delayed"):
                for low, high in outside(partition.withdrawn, segment.base + start, segment.base + end):
                    yield from outside(partition.parked, low, high)
            start = end


def _leased(shard: Shard, track: Track) -> list[Span]:
    key = track.partition.key
    found = [(offset, offset + 1) for offset in track.singles]
    for first, _, name in track.spans:
        run = shard.leases[name].runs[key, first]
        found += [(low, low + count) for low, count in gaps(run)]
    return sorted(found)


def _completed(shard: Shard, track: Track) -> Iterator[Span]:
    """What is neither of the others."""
    log = track.partition.log
    others: Iterator[Span] = merge(
        fresh(track, track.cursor, log.end),
        ((first, end) for first, end, _ in track.schedule.spans()),
        unplanned(track, log.first, log.end),
        _leased(shard, track),
        ((first, first + count) for first, count in track.dead),
        ((first, first + count) for first, count, _, _ in track.outcomes),
        ((first, first + count) for first, count, _ in track.partition.parked),
    )
    low, high = next(others, NOWHERE)
    for reached, end in logs.kept_spans(log):
        while low < end:
            if low > reached:
                yield reached, low
            reached = max(reached, high)
            if high > end:
                break
            low, high = next(others, NOWHERE)
        if reached < end:
            yield reached, end
