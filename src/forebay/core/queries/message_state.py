"""The state of single messages, with their payloads and notes."""

from collections.abc import Iterator

from msgspec.structs import replace

from forebay.core.api.queries import GetAttempts, Note, NotesFound, Show, Shown, ShownAll, State, StateFound
from forebay.core.bounds import NEVER, SHOWN_MAX, Limits, check_name
from forebay.core.delivery import attempts as delivery_attempts
from forebay.core.delivery.dead_letters import is_bound
from forebay.core.delivery.notes import of_message
from forebay.core.errors import Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range
from forebay.core.log import log as logs
from forebay.core.log.numbers import end_of
from forebay.core.shard.addresses import NOT_KEPT, Located, current_ids, first_offset, locate, require
from forebay.core.shard.shard import Shard
from forebay.core.state import LOST, Dead, Lease, LeaseRun, Partition, Scheduled, Track, priority_of
from forebay.core.tracks.dead_letters import dead_over
from forebay.core.tracks.dropped import is_dropped
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.outcomes import outcome_at
from forebay.core.tracks.places import FRESH, SCHEDULED, is_in
from forebay.core.words import DEFAULT, DISCARDED, DROPPED, DROPPED_DEAD, OUTCOMES, RESULT

STATE_OF = dict(enumerate(OUTCOMES)) | {
    DISCARDED: "dead",
    DROPPED: "completed",
    DROPPED_DEAD: "dead",
}
"""The state that a message with an outcome is shown in; notes of dropped messages are shown for a while."""


def state(shard: Shard, command: State, now: int) -> StateFound:
    """Return the state of a message in a group; for a missing group, everything waits."""
    check_name("group", command.group)
    where = require(shard, command.tenant, command.id)
    group = where.place.queue.groups.get(command.group)
    if group is not None and is_dropped(group.tracks[where.place.partition.key], where.first):
        raise NotFound(NOT_KEPT)
    return _state(shard, command, where, now)


def _state(shard: Shard, command: State, where: Located, now: int) -> StateFound:
    """Return the state of a message; of one that was dropped, the state that it had."""
    place, offset = where.place, where.first
    partition = place.partition
    log = partition.log
    segment = log.segments[logs.find(log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    found = StateFound(command.id, created_at, "waiting", priority=attributes.priority)
    if attributes.origin is not None:
        found.id, found.created_at = attributes.origin
    found.depends_on, found.attributes = attributes.depends_on, attributes
    if partition.job_ids or partition.progress:
        first = first_offset(shard, where)
        found.job_id, found.progress = partition.job_ids.get(first), partition.progress.get(first)
    if partition.dependents.size:
        found.parent = next((row[1] for row in partition.waiting_over(offset, offset + 1)), None)
    if offset in partition.ties:
        found.unique_key = partition.ties[offset].unique_key or None
    group = place.queue.groups.get(command.group)
    track = group.tracks[partition.key] if group is not None else None
    withdrawn_at = _withdrawn_at(partition, offset)
    if partition.parked_over(offset, offset + 1):
        found.state = "parked"
    elif track is None and withdrawn_at is None:
        _show_due(found, created_at + attributes.delay_ms, now)
    elif track is None:
        found.state, found.ended_at = "cancelled", withdrawn_at
    else:
        _show(shard, track, offset, found, created_at + attributes.delay_ms, now)
    expired_at = created_at + attributes.ttl_ms
    if attributes.ttl_ms and expired_at <= now and found.state in ("waiting", "delayed", "parked"):
        found.state, found.due_at = "expired", None
    if found.state == "expired":
        found.ended_at = expired_at
    return found


def notes(shard: Shard, tenant: str, asked: int, kinds: tuple[int, ...], group: str, now: int) -> NotesFound:
    """Return the notes of a message, and its state."""
    check_name("group", group)
    (message,) = current_ids(shard, [asked])
    where = locate(shard, tenant, Range(message, 1))
    if where is None:
        return _from_result(shard, State(tenant, message, group), kinds, shard.limits.read_bytes_max)
    stands = _state(shard, State(tenant, message, group), where, now)
    queue, partition, offset = where.place.queue, where.place.partition, where.first
    first = first_offset(shard, where)
    most = shard.limits.read_bytes_max
    found = [of_message(queue, kind, partition, first, most) for kind in kinds]
    segment = partition.log.segments[logs.find(partition.log, offset)]
    _, created_at, attributes = segment.run_at(offset - segment.base)
    waits = stands.state in ("waiting", "delayed", "parked")
    over_at = created_at + attributes.ttl_ms if attributes.ttl_ms and waits else NEVER
    return NotesFound(queue, stands, found, partition.progress.get(first), over_at)


def attempts(shard: Shard, command: GetAttempts, now: int) -> NotesFound:
    """Return the failed attempts of a message in a group, and its state there."""
    (message,) = current_ids(shard, [command.id])
    stands = state(shard, State(command.tenant, message, command.group), now)
    where = require(shard, command.tenant, message)
    queue, partition = where.place.queue, where.place.partition
    group = queue.groups.get(command.group)
    found: list[Note] = []
    if group is not None:
        most = shard.limits.read_bytes_max
        offsets = sorted({first_offset(shard, where), where.first})  # before an update, and since
        found = [
            note
            for offset in offsets
            for note in delivery_attempts.of_message(queue, group, partition, offset, most // len(offsets))
        ]
    return NotesFound(queue, stands, [found])


def last_known(shard: Shard, command: State, now: int) -> StateFound:
    """Return the state of a message; if that is asked for, also of one that is known by its result only."""
    (message,) = current_ids(shard, [command.id])
    try:
        return state(shard, replace(command, id=message), now)
    except NotFound:
        if not command.by_result:
            raise
        return _from_result(shard, command, (), shard.limits.read_bytes_max).state


def _from_result(shard: Shard, command: State, kinds: tuple[int, ...], bytes_max: int) -> NotesFound:
    """Return what is known of a message that is not shown, if its result is still kept: it was completed.

    ``command`` names the first id of a message that was updated: its notes are kept there.
    """
    place = shard.places.get(command.id >> OFFSET_BITS)
    if place is None or place.queue.tenant != command.tenant or command.group != DEFAULT:
        raise NotFound(NOT_KEPT)
    offset = place.first + (command.id & OFFSET_MASK)
    results = of_message(place.queue, RESULT, place.partition, offset, bytes_max)
    if not results or offset >= end_of(place.partition, command.id >> OFFSET_BITS):
        raise NotFound(NOT_KEPT)
    stands = StateFound(command.id, 0, "completed", ended_at=results[-1].created_at)
    return NotesFound(place.queue, stands, [results if kind == RESULT else [] for kind in kinds])


def show(shard: Shard, command: Show, now: int) -> ShownAll:
    """Return messages with their payloads; missing ones are left out."""
    if not 1 <= len(command.ids) <= SHOWN_MAX:
        raise Invalid("ids", f"a list of 1 to {SHOWN_MAX} ids")
    found = show_each(shard, command, now)
    check_shown(shard.limits, found)
    return ShownAll(found)


def check_shown(limits: Limits, found: list[Shown]) -> None:
    """Raise if messages exceed one reply."""
    if len(found) > 1 and sum(map(logs.piece_bytes, found)) > limits.read_bytes_max:
        raise Invalid("ids", f"fewer: their payloads are more than {limits.read_bytes_max} bytes")


def show_each(shard: Shard, command: Show, now: int) -> list[Shown]:
    """Return the messages that are kept, with their segments."""
    found: list[Shown] = []
    for message in command.ids:
        asked = State(command.tenant, message, command.group)
        try:
            if command.dropped:
                stands = _state(shard, asked, require(shard, command.tenant, message), now)
            else:
                stands = state(shard, asked, now)
        except NotFound:
            continue
        place = shard.places[message >> OFFSET_BITS]
        log, offset = place.partition.log, place.first + (message & OFFSET_MASK)
        segment = log.segments[logs.find(log, offset)]
        at = (segment, offset - segment.base, 1, stands.created_at)
        found.append(Shown(*at, place.queue, place.partition.name, stands))
    return found


def _withdrawn_at(partition: Partition, offset: int) -> int | None:
    row = partition.withdrawn.upto(offset)
    return row[2] if row is not None and offset < row[0] + row[1] else None


def _show_due(found: StateFound, due_at: int, now: int) -> None:
    if due_at > now:
        found.state, found.due_at = "delayed", due_at


def _show(shard: Shard, track: Track, offset: int, found: StateFound, due_at: int, now: int) -> None:
    """Fill in the state of a message in a track; ``due_at`` is when it is due by its attributes."""
    run = _out_of_line(track, offset)
    ended = outcome_at(track, offset)
    lease, leased = next(_leased(shard, track, offset), (None, None))
    if lease is not None and leased is not None:
        found.deliveries, found.failures, found.error = leased.deliveries, leased.failures, leased.error
        found.priority = priority_of(leased.level)
        found.state, found.leased_at = "active", lease.leased_at or None
        found.lease_until, found.worker = leased.expires_at, lease.worker
    elif run is not None:
        found.deliveries, found.failures, found.error = run.deliveries, run.failures, run.error
        found.priority = priority_of(run.level)
        if isinstance(run, Scheduled):
            _show_waiting(track, found, run.due_at, now)
        else:
            found.state, found.ended_at, found.leased_at = "dead", run.dead_at, run.leased_at or None
            found.bound, found.lost = is_bound(track, offset, offset + 1), run.unmet == LOST
            found.error_type = run.type
    elif ended is not None:
        found.state, found.ended_at = STATE_OF[ended[0]], ended[1] or None
    elif is_in(shard, track, SCHEDULED, offset):  # not planned yet, so it has no run
        _show_due(found, due_at, now)
    elif is_in(shard, track, FRESH, offset):
        _show_waiting(track, found, due_at + track.queue.options.delayed_processing_ms, now)
    else:
        found.state = "completed"


def _show_waiting(track: Track, found: StateFound, due_at: int, now: int) -> None:
    """Fill in a waiting message, or evicted if it waits for too long."""
    _show_due(found, due_at, now)
    max_wait_ms = track.queue.options.max_wait_ms
    if max_wait_ms and due_at + max_wait_ms < now:
        found.state, found.ended_at = "evicted", due_at + max_wait_ms


def _leased(shard: Shard, track: Track, offset: int) -> Iterator[tuple[Lease, LeaseRun]]:
    """Yield the live lease of a message and its run there, if it is leased."""
    for lease, run in leased_runs(shard, track, offset, offset + 1):
        if not run.settled >> offset - run.first & 1:
            yield lease, run


def _out_of_line(track: Track, offset: int) -> Scheduled | Dead | None:
    """Return the scheduled or dead run of a message, if there is one."""
    scheduled = track.schedule.find(offset)
    return scheduled if scheduled is not None else next(iter(dead_over(track, offset, offset + 1)), None)
