"""Settle messages: ack, and how a lease loses messages.

An ack only removes messages from their lease; no record says "completed". What comes back instead is in
``give_back``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from forebay.core.api.commands import Ack, Cancel, Move, Nack, Purge, Requeue, Settle, Settled
from forebay.core.bounds import DELAY_MS_MAX, NOTES_MAX, Limits, check_name, check_range
from forebay.core.delivery import notes
from forebay.core.delivery.limits import release_slots
from forebay.core.errors import Conflict, Invalid
from forebay.core.ids import OFFSET_BITS, Range
from forebay.core.shard.addresses import (
    NOT_LEASED,
    Located,
    current_ids,
    first_offset,
    leased,
    settled_by,
)
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import list_ready
from forebay.core.state import Lease, LeaseRun, Queue, Track
from forebay.core.tracks.leased import LeasedSlice, find, find_all, hold_run
from forebay.core.words import AWAITED, COMPLETED, DEFAULT, RESULT, SETTLED

Given = dict[int, int]
"""Given ids, by the ids of their successors."""


def check_settle(limits: Limits, command: Settle) -> None:
    """Raise unless the command's fields are valid."""
    if command.ids is None:
        if command.lease is None:
            raise Invalid("lease", "given, or else ids")
    elif not 1 <= len(command.ids) <= limits.batch_max:
        raise Invalid("ids", f"a list of 1 to {limits.batch_max} ids")
    if command.group is not None:
        check_name("group", command.group)
    if isinstance(command, Ack) and command.results is not None:
        if command.ids is None or len(command.results) != len(command.ids):
            raise Invalid("results", "as many as there are ids; a lease alone takes none")
        if len(command.results) > NOTES_MAX:
            raise Invalid("results", f"at most {NOTES_MAX} in one command: a queue keeps no more")
        longest = max(map(len, command.results))
        if longest > limits.payload_bytes_max:
            raise Invalid("result", f"at most {limits.payload_bytes_max} bytes; one has {longest}")
    if isinstance(command, Nack) and command.delay_ms is not None:
        check_range("delay_ms", command.delay_ms, 0, DELAY_MS_MAX)
        if command.final:
            raise Invalid("delay_ms", "left out: what is final does not come again")
    if isinstance(command, Nack) and command.defer_ms is not None:
        check_range("defer_ms", command.defer_ms, 0, DELAY_MS_MAX)
        assert command.undelivered, "what is deferred did not fail"


def ack(shard: Shard, command: Ack, now: int) -> Settled:
    check_settle(shard.limits, command)
    if command.ids is None:
        return ack_lease(shard, leased(shard, command), now)
    given = resolve_successors(shard, command)
    token, ids = settled_by(shard, command)
    if command.results is not None:
        done = _ack_with_results(shard, command, token, ids, now)
    else:
        done = ack_ids(shard, token, ids, command, now)
    return check_settled(done, command, given)


def ack_lease(shard: Shard, lease: Lease, now: int) -> Settled:
    """Ack a whole lease."""
    shard.timers.plan_sweep(lease.queue, now)
    for run in lease.runs.values():
        track = lease.group.tracks[run.partition]
        for first, count in run.gaps():
            _done(shard, lease, track, first, count, now)
    return Settled(end_lease(shard, lease))


def _done(shard: Shard, lease: Lease, track: Track, first: int, count: int, now: int) -> None:
    """Record acked messages of a lease."""
    spent_ms = now - lease.leased_at if lease.leased_at else None
    change_log = shard.changes.change_log
    change_log.note(SETTLED, lease.queue, lease.group.name, track.partition, first, count, spent_ms)
    if first < track.completed_from:
        track.completed_from = first
    if track.partition.links_count:
        shard.end(track, first, first + count, COMPLETED)


def ack_ids(shard: Shard, token: Lease | None, ids: list[Range], command: Ack, now: int) -> Settled:
    """Ack messages by id."""
    found, refused = find_all(shard, command, token, ids)
    for each in found:
        shard.timers.plan_sweep(each.lease.queue, now)
        track = each.lease.group.tracks[each.run.partition]
        _done(shard, each.lease, track, each.offset, each.length, now)
        _take_out(shard, each)
    return Settled(sum(each.length for each in found), refused)


def _ack_with_results(shard: Shard, command: Ack, token: Lease | None, ids: list[Range], now: int) -> Settled:
    """Ack messages and store their results."""
    assert command.ids is not None
    assert command.results is not None
    found, _ = find_all(shard, command, token, ids)
    if any(each.lease.group.name != DEFAULT for each in found):
        raise Invalid("result", f"left out: only the group {DEFAULT} has results")
    came_of = dict(zip(command.ids, command.results, strict=True))
    done = ack_ids(shard, token, ids, command, now)
    kept: dict[tuple[bytes, int], tuple[Queue, list[tuple[int, int]], list[bytes]]] = {}
    for each in found:
        queue, offsets = each.lease.queue, list(_noted_at(shard, each))
        awaited = _awaited(shard, each, offsets[0])
        for kind, chosen in _by_kind(offsets, awaited):
            _, about, results = kept.setdefault((queue.prefix, kind), (queue, [], []))
            about += [(each.run.partition, offsets[at]) for at in chosen]
            results += [came_of[each.id + at] for at in chosen]
    for (_, kind), (queue, about, results) in kept.items():
        notes.add(shard, queue, kind, about, results, now)
    return done


def _by_kind(offsets: list[int], awaited: set[int]) -> Iterable[tuple[int, Sequence[int]]]:
    """Yield kinds of results, and which of the messages have one of that kind."""
    if not awaited:
        yield RESULT, range(len(offsets))
        return
    for kind in (RESULT, AWAITED):
        chosen = [at for at, offset in enumerate(offsets) if (offset in awaited) == (kind == AWAITED)]
        if chosen:
            yield kind, chosen


def _awaited(shard: Shard, found: LeasedSlice, noted_at: int) -> set[int]:
    """Return the offsets, as results are stored under them, of leased messages that others wait for.

    Later results of such a message join them, though nobody waits any more: so they stay in their order.
    """
    queue, partition = found.lease.queue, shard.places[found.id >> OFFSET_BITS].partition
    wanted = partition.waited_for(found.offset, found.offset + found.length)
    if found.length == 1 and wanted:
        wanted = {noted_at}
    if AWAITED in queue.notes:
        wanted |= notes.about(queue.notes[AWAITED], partition.key, noted_at, noted_at + found.length)
    return wanted


def _noted_at(shard: Shard, found: LeasedSlice) -> Iterable[int]:
    """Return the offsets under which results of leased messages are stored."""
    place = shard.places[found.id >> OFFSET_BITS]
    if found.length > 1:  # what took the place of another lies alone
        return range(found.offset, found.offset + found.length)
    return [first_offset(shard, Located(place, found.offset, found.offset + 1, found.id - found.offset))]


def resolve_successors(shard: Shard, command: Settle | Cancel | Move | Requeue | Purge) -> Given:
    """Replace the ids of updated messages by those of their successors."""
    given = command.ids
    if given is None or not shard.updated:
        return {}
    command.ids = current_ids(shard, given)
    return {now: then for now, then in zip(command.ids, given, strict=True) if now != then}


def as_given(refused: Sequence[int], given: Given) -> Sequence[int]:
    return [given.get(each, each) for each in refused] if given else refused


def check_settled(done: Settled, command: Settle, given: Given) -> Settled:
    """Return the reply with ids as they were given; raise a conflict if nothing was settled."""
    if not done.count and not command.partial:
        raise Conflict(NOT_LEASED)
    return Settled(done.count, as_given(done.refused, given))


# How a lease loses messages.


def end_lease(shard: Shard, lease: Lease) -> int:
    """End a lease; return how many messages were still in it."""
    name = lease.name
    del shard.leases[name]
    shard.timers.leases.remove(lease.due_at, name)
    left = 0
    tracks = lease.group.tracks
    for run in lease.runs.values():
        left += _unlease(shard, tracks[run.partition], run, name)
    lease.ended = True
    shard.changes.touch_lease(lease)
    if lease.queue.closing_at:
        shard.emptied[lease.queue.prefix] = lease.queue
    if lease.queue.ordered:
        _free(shard, lease, lease.runs.values())
    return left


def _free(shard: Shard, lease: Lease, runs: Iterable[LeaseRun]) -> None:
    """Make tracks in strict order deliverable again when their lease has ended."""
    for track in (lease.group.tracks[run.partition] for run in runs):
        if not track.leased:
            list_ready(track)
            shard.changes.woken[lease.queue, lease.group.name, track.partition.name] = None


def _unlease(shard: Shard, track: Track, run: LeaseRun, name: int) -> int:
    """Remove a leased run from its track; return how many messages were still in it."""
    if shard.watched.by_partition:
        shard.watched.notify(run.partition, run.first, run.first + run.count)
    if run.count == 1:
        del track.singles[run.first]
        track.leased -= 1
        for limiter in track.limits:  # release_slots inlined: every single ack runs this
            limiter.active -= 1
            if limiter.starved or limiter is track.own_limit:
                release_slots(shard, track, 0)
        return 1
    left = run.unsettled
    spans = track.spans
    at = bisect_left(spans, (run.first, run.count, name))
    assert spans[at][2] == name, "every leased run is on its track"
    del spans[at]
    track.leased -= left
    if track.limits:
        release_slots(shard, track, left)
    return left


def drop_runs(shard: Shard, lease: Lease, gone: list[LeaseRun]) -> None:
    """Remove runs from a lease; end the lease with its last run."""
    runs = lease.runs
    if len(gone) == len(runs):
        end_lease(shard, lease)
        return
    for run in gone:
        _unlease(shard, lease.group.tracks[run.partition], run, lease.name)
        del runs[run.partition, run.first]
    if next(iter(runs.values())).expires_at != lease.due_at:
        set_due(shard, lease)
    shard.changes.touch_lease(lease)
    if lease.queue.ordered:
        _free(shard, lease, gone)


def set_due(shard: Shard, lease: Lease) -> None:
    """Update ``due_at`` and its timer from the runs."""
    due_at = min(run.expires_at for run in lease.runs.values())
    if due_at != lease.due_at:
        shard.timers.leases.remove(lease.due_at, lease.name)
        lease.due_at = due_at
        shard.timers.leases.add(due_at, lease.name)
        shard.timers.alarm.sooner(due_at)


def _take_out(shard: Shard, found: LeasedSlice) -> None:
    """Remove messages from their lease."""
    lease, run = found.lease, found.run
    settled = run.settled | ((1 << found.length) - 1) << found.at
    if settled.bit_count() == run.count:
        drop_runs(shard, lease, [run])
        return
    if shard.watched.by_partition:
        shard.watched.notify(run.partition, found.offset, found.offset + found.length)
    track = lease.group.tracks[run.partition]
    track.leased -= found.length
    if track.limits:
        release_slots(shard, track, found.length)
    run.settled = settled
    shard.changes.touch_lease(lease)


def cut_out(shard: Shard, found: list[LeasedSlice]) -> None:
    """Remove messages of one run from their lease so that they can be leased again.

    An acked message never returns, so a bit marks it. A nacked one does, so its run is cut: no two leased
    runs of a track ever overlap.
    """
    lease, run = found[0].lease, found[0].run
    rest: list[LeaseRun] = []
    begin = 0
    for low, high in [*((each.at, each.at + each.length) for each in found), (run.count, run.count)]:
        count = low - begin
        part = replace(
            run, first=run.first + begin, count=count, settled=run.settled >> begin & (1 << count) - 1
        )
        if part.unsettled:
            rest.append(part)
        begin = high
    track = lease.group.tracks[run.partition]
    if not rest:
        drop_runs(shard, lease, [run])
        return
    _unlease(shard, track, run, lease.name)
    del lease.runs[run.partition, run.first]
    for part in rest:
        lease.runs[part.partition, part.first] = part
        hold_run(track, part, lease.name)
    shard.changes.touch_lease(lease)


def take_cancelled(shard: Shard, command: Settle, wanted: Range) -> list[LeasedSlice]:
    """Remove cancelled messages of a range from their leases; return them."""
    found = list(find(shard, command, None, wanted))
    for each in found:
        each.lease.cancelled = True
        _take_out(shard, each)
        if each.lease.ended:
            shard.remember_cancelled(each.lease.name, command.tenant)
    return found


def abandon(shard: Shard, track: Track) -> None:
    """Drop all leased runs of a track."""
    key = track.partition.key
    names = {name for _, _, name in track.spans} | set(track.singles.values())
    for lease in [shard.leases[name] for name in sorted(names)]:
        drop_runs(shard, lease, [run for run in lease.runs.values() if run.partition == key])
