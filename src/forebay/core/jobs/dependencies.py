"""Dependencies: a message stays parked until every message it depends on is completed.

A parked run counts its unmet dependencies; a row beside the partition of each dependency says who waits for
it. When a dependency ends, its row is deleted and the count falls in one commit, so each is counted once. At
0 the message is released to every group. If a dependency fails, ``on_failed`` decides: fail too, ignore the
failure, or wait for a requeue.

A message that died of a dependency still counts what has not completed, and its rows stay. So a requeue parks
it again, whether that names it or the dependency: it never runs before everything it depends on is completed.
When a dependency ends that can't be requeued, the row goes, and the dead letter is marked as lost.
"""

from collections import Counter, deque

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.bounds import DEPENDENCIES_MAX, DEPENDENCY_RUNS_MAX, NEVER
from forebay.core.delivery.groups import new_group
from forebay.core.errors import Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range, ranges
from forebay.core.keyvalue import store as kv_store
from forebay.core.links.cleanup import clean_up
from forebay.core.links.expiry import watch_ttl
from forebay.core.links.ties import tied_over, untie
from forebay.core.log import log as logs
from forebay.core.log.numbers import end_of, id_at
from forebay.core.records.codec import pack_numbers
from forebay.core.records.keyspace import ended_key
from forebay.core.shard.addresses import current_ids
from forebay.core.shard.ends import Ended, Notification, NotificationQueue
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import (
    LOST,
    PLAIN,
    SPAN_MAX,
    Attributes,
    Dead,
    Partition,
    Queue,
    Scheduled,
    Track,
    Value,
    are_treated_alike,
)
from forebay.core.structures.spans import Span, union
from forebay.core.structures.table import Row
from forebay.core.tracks.dead_letters import add_dead, change_dead, cut_dead, dead_over
from forebay.core.tracks.outcomes import erase_outcome, record_outcome
from forebay.core.tracks.places import standing
from forebay.core.tracks.withdrawn import restore, withdraw
from forebay.core.words import (
    CANCELLED,
    COMPLETED,
    DEFAULT,
    DIED,
    DISCARDED,
    HOPELESS,
    IGNORE,
    REQUEUED,
    REVIVED,
    WAIT,
)

STEP = 300
"""Rows of dependents notified per tick: about 5 ms. The next tick notifies more."""
FAILING_ROWS = 8
"""Cost of failing one dependent, in rows notified."""
SCANNED_MAX = 100
"""Queued ends of a partition that are checked for overlap."""


def check(shard: Shard, tenant: str, attributes: Attributes) -> None:
    """Raise unless the dependencies of these attributes are valid and exist."""
    if sum(count for _, count in attributes.depends_on) > DEPENDENCIES_MAX:
        raise Invalid("depends_on", f"a list of at most {DEPENDENCIES_MAX} ids")
    if len(attributes.depends_on) > DEPENDENCY_RUNS_MAX:
        raise Invalid("depends_on", f"at most {DEPENDENCY_RUNS_MAX} stretches of consecutive ids")
    for first, count in attributes.depends_on:
        place = shard.places.get(first >> OFFSET_BITS)
        last = (first & OFFSET_MASK) + count
        if (
            place is None
            or place.queue.tenant != tenant
            or place.first + last > end_of(place.partition, first >> OFFSET_BITS)
        ):
            which = first if count == 1 else f"{first} to {first + count - 1}"
            raise NotFound(f"there is no message {which} to depend on, or it is long gone")


class _Wanted(Struct):
    """The dependencies of a push, by state."""

    pending: list[tuple[Place, Span]]
    """Dependencies that are open, or may still be completed by a requeue."""
    open: list[tuple[Place, Span]]
    """Open ones among them."""
    died: int | None = None
    """Id of a dependency that is dead, if the push fails because of that."""
    lost: int | None = None
    """Id of a dependency that ended otherwise, and can't be completed any more."""


def _wanted(shard: Shard, attributes: Attributes) -> _Wanted:
    found = _Wanted([], [])
    for each in _targets(shard, attributes.depends_on):
        place = shard.places.get(each.first >> OFFSET_BITS)
        if place is None:
            continue  # its partition is gone, and it long before
        first = place.first + (each.first & OFFSET_MASK)
        for low, high, how in standing(shard, place.queue, place.partition, first, first + each.length):
            if how is None:
                found.pending.append((place, (low, high)))
                found.open.append((place, (low, high)))
            elif how == COMPLETED or attributes.on_failed == IGNORE:
                continue
            elif how != DIED or _is_lost(place, low, high):
                found.lost = each.first + low - first
            else:
                found.pending.append((place, (low, high)))
                if attributes.on_failed != WAIT:
                    found.died = each.first + low - first
    return found


def _is_lost(place: Place, first: int, end: int) -> bool:
    """Whether any dead letter of [first, end) can't be requeued any more."""
    return any(run.unmet == LOST for run in dead_over(_work_track(place), first, end))


def _targets(shard: Shard, spans: tuple[tuple[int, int], ...]) -> list[Range]:
    """Return the ranges of the current successors of ids."""
    if not shard.updated:
        return [Range(first, count) for first, count in spans]
    ids = [each for first, count in spans for each in range(first, first + count)]
    return ranges(current_ids(shard, ids))


def depend(shard: Shard, place: Place, first: int, count: int, attributes: Attributes, now: int) -> None:
    """Park messages that were just appended, or release or fail them at once."""
    queue, partition = place.queue, place.partition
    wanted = _wanted(shard, attributes)
    unmet = sum(high - low for _, (low, high) in wanted.pending)
    span = (first, first + count)
    if wanted.lost is not None:
        fail(shard, queue, partition, span, wanted.lost, LOST, now)
        return
    if not unmet:
        release(shard, queue, partition, [span], now)
        return
    if wanted.died is not None:
        fail(shard, queue, partition, span, wanted.died, unmet, now)
        if not queue.options.dead_letters:
            return  # it is gone for good
    else:
        shard.park(queue, partition, first, count, unmet)
    dependent = id_at(partition, first)
    for target, (low, high) in wanted.pending:
        for begin in range(low, high, SPAN_MAX):
            row = (begin, dependent, min(SPAN_MAX, high - begin), count)
            shard.add_wait(target.queue, target.partition, row)
    for target, (low, high) in wanted.open:
        watch_ttl(shard, target.queue, target.partition, low, high)


def release(shard: Shard, queue: Queue, partition: Partition, spans: list[Span], now: int) -> None:
    """Schedule messages without open dependencies in every group."""
    for run in _runs(partition, union(spans), now):
        for group in queue.groups.values():
            track = group.tracks[partition.key]
            below = min(max(track.planned - run.first, 0), run.count)
            track.unplanned += run.count - below
            if below:
                shard.schedule(track, replace(run, count=below), now)


def _runs(partition: Partition, spans: list[Span], now: int) -> list[Scheduled]:
    """Return messages as scheduled runs, adjacent ones that are due and treated alike joined."""
    log, before = partition.log, PLAIN
    found: list[Scheduled] = []
    for low, high in spans:
        position, first = logs.find(log, low), low
        while first < high:
            segment = log.segments[position]
            run_end, created_at, attributes = segment.run_at(first - segment.base)
            end = min(segment.base + run_end, high)
            due_at, level = max(created_at + attributes.delay_ms, now), attributes.level
            last = found[-1] if found else None
            if (
                last is not None
                and (last.due_at, last.first + last.count, last.level) == (due_at, first, level)
                and are_treated_alike(attributes, before)
            ):
                found[-1] = replace(last, count=last.count + end - first)
            else:
                found.append(Scheduled(due_at, first, end - first, level))
            first, before = end, attributes
            position += first == segment.end
    return found


def fail(
    shard: Shard, queue: Queue, partition: Partition, span: Span, failed: int, unmet: int, now: int
) -> None:
    """Fail messages because a dependency failed: dead in the group ``default``, cancelled in others.

    ``unmet`` counts the dependencies that have not completed; ``LOST`` if one of them never will.
    """
    shard.rows_notified += FAILING_ROWS
    first, end = span
    group = queue.groups.get(DEFAULT)
    if group is None:
        group = new_group(shard, queue, DEFAULT, "all", now)
        if group.tracks[partition.key].planned <= first:
            group.tracks[partition.key].unplanned -= end - first
    track = group.tracks[partition.key]
    error = f"it depends on {failed}, which did not complete"
    for stretch in logs.stretches(partition.log, first, end):
        count = stretch.end - stretch.first
        past = (0, 0, now, error, stretch.attributes.level, 0, unmet)
        add_dead(shard, track, Dead(stretch.first, count, *past))
    if unmet == LOST:
        _tell_lost(shard, Place(queue, partition, 0), first, end)
    for other in queue.groups.values():
        if other is not group:
            record_outcome(shard, other.tracks[partition.key], first, end, CANCELLED, now)
    withdraw(shard, Place(queue, partition, 0), max(first, partition.log.first), end, now)
    shard.changes.sync_for(queue)
    shard.timers.plan_sweep(queue, now)


def _lose(shard: Shard, place: Place, run: Dead) -> None:
    """Mark a dead letter as lost: something it depends on can't complete any more."""
    change_dead(shard, _work_track(place), replace(run, unmet=LOST))
    _tell_lost(shard, place, run.first, run.first + run.count)


def _tell_lost(shard: Shard, place: Place, first: int, end: int) -> None:
    """End dead letters for good: they can't be requeued, so what waits for them waits in vain."""
    if place.partition.dependents.size:
        shard.ends.append(Ended(place.queue, place.partition, first, end, HOPELESS))


def revive(shard: Shard, place: Place, run: Dead, low: int, high: int, now: int) -> None:
    """Undo that [low, high) of a run died of a dependency: park it again, or release it if all completed.

    Its own dependents, which died of it, are revived in turn.
    """
    queue, partition = place.queue, place.partition
    shard.rows_notified += FAILING_ROWS
    cut_dead(shard, queue.groups[DEFAULT].tracks[partition.key], run, low, high)
    for group in queue.groups.values():
        if group.name != DEFAULT:
            erase_outcome(shard, group.tracks[partition.key], low, high, CANCELLED)
    restore(shard, place, low, high)
    shard.changes.change_log.note(REQUEUED, queue, DEFAULT, partition, low, high - low)
    if run.unmet:
        shard.park(queue, partition, low, high - low, run.unmet)
    else:
        release(shard, queue, partition, [(low, high)], now)
    tell_revived(shard, place, low, high)
    queue.room = 0
    shard.changes.sync_for(queue)


def tell_revived(shard: Shard, place: Place, low: int, high: int, *, revives: bool = True) -> None:
    """End requeued messages with their ttl if others wait, and revive those that died of them."""
    partition = place.partition
    if not partition.dependents.size:
        return
    for first, _, count, _ in partition.waiting_over(low, high):
        watch_ttl(shard, place.queue, partition, max(first, low), min(first + count, high))
    if revives:
        shard.ends.append(Ended(place.queue, partition, low, high, REVIVED))


# Consequences of messages that ended, and the dependents that are notified of them.


def settle_consequences(shard: Shard, now: int) -> None:
    """Settle the consequences of all ended messages, and of messages that end by that."""
    while shard.ends:
        ends = shard.ends[:]
        shard.ends.clear()
        for ended in ends:
            partition = ended.partition
            is_end = ended.how not in (REVIVED, HOPELESS)
            for offset in tied_over(partition, ended.first, ended.end) if partition.ties and is_end else ():
                if ended.how == COMPLETED and partition.ties[offset].completed_at:
                    continue  # old news
                tie = untie(shard, ended.queue, partition, offset)
                if tie.keys and ended.how in (DIED, DISCARDED):
                    left: kv_store.Left = {key: Value(tie.payload, kv_store.UNWRITTEN) for key in tie.keys}
                    kv_store.apply(shard, ended.queue.tenant, left)
                if tie.cleanup is not None:
                    clean_up(shard, ended, offset, tie, now)
            if partition.dependents.size:
                notify_dependents(shard, ended, now)


Released = dict[int, tuple[Queue, Partition, list[Span]]]
"""Runs to release, by partition key."""


def release_all(shard: Shard, released: Released, now: int) -> None:
    for queue, partition, spans in released.values():
        release(shard, queue, partition, spans, now)
        shard.changes.sync_for(queue)
    released.clear()


def notify_dependents(shard: Shard, ended: Ended, now: int) -> None:
    """Notify the dependents of ended messages, in order behind earlier ends of the same messages."""
    queue, partition, first, end, how = ended
    notification = Notification(ended, 0, (first, 0))
    notifications = shard.notifications.get(partition.key)
    if (
        shard.rows_notified < STEP
        and not _is_behind(notifications, ended)
        and _notify_some(shard, notification, {}, now)
    ):
        return
    if notifications is None:
        notifications = shard.notifications[partition.key] = NotificationQueue(deque())
    notification.serial = shard.numbering.next_serial()
    notifications.waiting.append(notification)
    shard.timers.alarm.sooner(now)
    if shard.has(ended.queue, ended.partition):
        key = ended_key(queue.prefix, how, partition.key, notification.serial)
        shard.changes.put_row(queue, key, pack_numbers((end, first)))
        return
    while partition.key in shard.notifications:
        _go_on(shard, partition.key, now)


def go_on(shard: Shard, now: int) -> None:
    """Notify up to ``STEP`` more dependents, one partition after another."""
    shard.rows_notified = 0
    while shard.notifications and shard.rows_notified < STEP:
        key = next(iter(shard.notifications))
        shard.notifications[key] = shard.notifications.pop(key)
        _go_on(shard, key, now)


def _go_on(shard: Shard, key: int, now: int) -> None:
    notifications = shard.notifications[key]
    notification = notifications.waiting[0]
    if _notify_some(shard, notification, notifications.later, now):
        notifications.waiting.popleft()
        if not notifications.waiting:
            del shard.notifications[key]
        ended = notification.ended
        if shard.has(ended.queue, ended.partition):
            name = ended_key(ended.queue.prefix, ended.how, key, notification.serial)
            shard.changes.put_row(ended.queue, name, None)


def _is_behind(notifications: NotificationQueue | None, ended: Ended) -> bool:
    """Whether an earlier end of the same messages is still being notified."""
    return notifications is not None and (
        len(notifications.waiting) > SCANNED_MAX
        or any(
            each.ended.first < ended.end and ended.first < each.ended.end for each in notifications.waiting
        )
    )


def _notify_some(
    shard: Shard, notification: Notification, later: dict[tuple[int, int], int], now: int
) -> bool:
    """Notify up to ``STEP`` more dependents that registered before this end; return True when done."""
    most = (
        max(STEP - shard.rows_notified, 1)
        if shard.has(notification.ended.queue, notification.ended.partition)
        else NEVER
    )
    rows, more = _rows(notification.ended, notification.reached, most)
    released: Released = {}
    for row in rows:
        if not later or later.get((row[0], row[1]), 0) < notification.serial:
            _notify_one(shard, notification.ended, row, released, now)
    release_all(shard, released, now)
    shard.rows_notified += max(len(rows), 1)
    if more is not None:
        notification.reached = more
    return more is None


def _rows(ended: Ended, reached: tuple[int, int], most: int) -> tuple[list[Row], tuple[int, int] | None]:
    """Return rows of dependents of ended messages, and where to continue if there are more."""
    found: list[Row] = ended.partition.rows_reaching_over(ended.first) if reached == (ended.first, 0) else []
    for row in ended.partition.dependents.since(*reached):
        if row[0] >= ended.end:
            break
        if len(found) >= most:
            return found, (row[0], row[1])
        found.append(row)
    return found, None


def _notify_one(
    shard: Shard,
    ended: Ended,
    row: Row,
    released: Released,
    now: int,
) -> None:
    """Notify the dependents of one row."""
    first, dependent, count, waiting = row
    place = shard.places.get(dependent >> OFFSET_BITS)
    offset = place.first + (dependent & OFFSET_MASK) if place is not None else 0
    parked = place.partition.parked_over(offset, offset + waiting) if place is not None else []
    died = failed_over(place, offset, offset + waiting) if place is not None else []
    if place is None or not (parked or died):
        shard.remove_wait(ended.queue, ended.partition, row)  # they were cancelled or purged
        return
    partition = place.partition
    low, high = max(first, ended.first), min(first + count, ended.end)
    waited_for = first_unmet(ended.partition, row, low, high)
    if waited_for is None:
        return
    if ended.how == REVIVED:
        # Those that are made dead again by another notification of this step are revived by a later one.
        for run in died:
            revive(shard, place, run, run.first, run.first + run.count, now)
        return
    policy = IGNORE
    if ended.how != COMPLETED:
        policy = logs.attributes_at(partition.log, parked[0][0] if parked else died[0].first).on_failed
    if ended.how == DIED and (policy == WAIT or not parked):
        return
    if policy != IGNORE:
        failed, is_lost = id_at(ended.partition, waited_for), ended.how != DIED
        if is_lost or not place.queue.options.dead_letters:
            shard.remove_wait(ended.queue, ended.partition, row)
        if parked and DEFAULT not in place.queue.groups:
            # What is parked or released is counted as such by a group that is made, and not again.
            release_all(shard, released, now)
            new_group(shard, place.queue, DEFAULT, "all", now)
        for begin, length, unmet in parked:
            shard.unpark(place.queue, partition, begin, length)
            span = (begin, begin + length)
            fail(shard, place.queue, partition, span, failed, LOST if is_lost else unmet, now)
        for run in died if is_lost else ():
            _lose(shard, place, run)
        return
    met = shard.mark_met(ended.queue, ended.partition, row, low, high)
    for run in died:
        change_dead(shard, _work_track(place), replace(run, unmet=run.unmet - met))
    for begin, length, unmet in parked:
        shard.unpark(place.queue, partition, begin, length)
        if unmet > met:
            shard.park(place.queue, partition, begin, length, unmet - met)
        else:
            mine = released.setdefault(partition.key, (place.queue, partition, []))
            mine[2].append((begin, begin + length))


def _work_track(place: Place) -> Track:
    return place.queue.groups[DEFAULT].tracks[place.partition.key]


def failed_over(place: Place, first: int, end: int) -> list[Dead]:
    """Return the dead letters in [first, end) that died of a dependency which may still complete."""
    if DEFAULT not in place.queue.groups or not _work_track(place).dead_messages:
        return []
    return [run for run in dead_over(_work_track(place), first, end) if run.unmet >= 0]


def recover(shard: Shard, queues: list[Queue], now: int) -> None:
    """After a restart, fail or release dependents of messages that were only in memory."""
    expected: dict[int, list[tuple[int, int, int]]] = {}
    for queue in queues:
        for partition in queue.partitions.values():
            for first, dependent, count, waiting in partition.dependents:
                place = shard.places.get(dependent >> OFFSET_BITS)
                if place is not None:
                    offset = place.first + (dependent & OFFSET_MASK)
                    unmet = count - partition.met.get((first, dependent), 0).bit_count()
                    expected.setdefault(place.partition.key, []).append((offset, offset + waiting, unmet))
    for queue in queues:
        for partition in queue.partitions.values():
            place, waited_for = Place(queue, partition, 0), expected.get(partition.key, [])
            if DEFAULT in queue.groups:
                _mark_lost(shard, place, waited_for)
            if partition.parked_messages:
                _recover(shard, queue, partition, waited_for, now)


def _recover(
    shard: Shard, queue: Queue, partition: Partition, expected: list[tuple[int, int, int]], now: int
) -> None:
    """The same for one partition; ``expected`` counts the dependencies that still exist."""
    still: Counter[int] = Counter()
    for first, end, count in expected:
        for low, _, _ in partition.parked_over(first, end):
            still[low] += count
    for first, count, unmet in list(partition.parked):
        lost = unmet - still[first]
        if lost <= 0:
            continue
        attributes = logs.attributes_at(partition.log, first)
        shard.unpark(queue, partition, first, count)
        if attributes.on_failed != IGNORE:
            named = [each for each, _ in attributes.depends_on]
            gone = next((each for each in named if not _is_known(shard, each)), named[0])
            fail(shard, queue, partition, (first, first + count), gone, LOST, now)
        elif still[first]:
            shard.park(queue, partition, first, count, still[first])
        else:
            release(shard, queue, partition, [(first, first + count)], now)


def _mark_lost(shard: Shard, place: Place, expected: list[tuple[int, int, int]]) -> None:
    """Mark dead letters as lost of which a dependency was only in memory."""
    still: Counter[int] = Counter()
    for first, end, count in expected:
        for run in failed_over(place, first, end):
            still[run.first] += count
    for run in failed_over(place, 0, place.partition.log.end):
        if run.unmet > still[run.first]:
            _lose(shard, place, run)


def _is_known(shard: Shard, message: int) -> bool:
    """Whether the partition of a message exists."""
    return message >> OFFSET_BITS in shard.places


def first_unmet(partition: Partition, row: Row, low: int, high: int) -> int | None:
    """Return the first unmet message of [low, high) of a row, if there is one."""
    unmet = ((1 << high - low) - 1 << low - row[0]) & ~partition.met.get((row[0], row[1]), 0)
    return row[0] + (unmet & -unmet).bit_length() - 1 if unmet else None
