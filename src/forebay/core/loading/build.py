"""Build a queue from its decoded records.

All damage is found before the shard is touched: a damaged queue is left out, and the others never notice.
"""

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from forebay.core.bounds import NEVER
from forebay.core.delivery.notes import enter, new_notes
from forebay.core.errors import Damaged
from forebay.core.loading.check import check
from forebay.core.loading.decode import DecodedRecords, decode
from forebay.core.log import log as logs
from forebay.core.records.codec import PackedCursor, PackedPartition
from forebay.core.records.commit import Record
from forebay.core.shard.changes import MERGE_AT
from forebay.core.shard.ends import Ended, Notification, NotificationQueue
from forebay.core.shard.shard import Place, Shard
from forebay.core.shard.tracks import list_ready, new_track
from forebay.core.state import (
    IN_LINE,
    Cron,
    Group,
    Lease,
    LeaseRun,
    Log,
    Partition,
    Queue,
    Track,
    fresh_count,
)
from forebay.core.structures.table import Table
from forebay.core.tracks.leased import hold
from forebay.core.tracks.planning import count_unplanned


def load_queue(
    shard: Shard,
    queue: Queue,
    records_: Iterable[Record],
    *,
    now: int,
    down_ms: int = 0,
    renumber: bool = False,
) -> list[Cron]:
    """Fill an empty queue from its records, and add it to its shard; return its crons.

    ``down_ms`` is how long its leases could not be settled. ``renumber`` gives each partition a fresh number,
    because ids may have been given out that these records do not know.
    """
    found = decode(queue, records_)
    made = check(found)
    if queue.groups_made < max(found.groups, default=0):
        raise Damaged("a group has a number that was never given out")
    given = (number for packed in found.partitions.values() for number, _ in packed.numbers)
    if not all(map(shard.numbering.has_given, given)):
        raise Damaged("a partition has a number that was never given out")
    shard.queues[queue.prefix] = queue
    for key, packed in found.partitions.items():
        _add_partition(shard, queue, partition := _partition(key, packed, made[key], found))
        if packed.os_marked or renumber:
            shard.renumber(queue, partition)
    groups = {
        number: Group(number=number, name=packed.name, active_at=packed.active_at or now, tracks={}, ready=[])
        for number, packed in found.groups.items()
    }
    for group in groups.values():
        _add_group(queue, group, found.cursors)
    _add_rows(shard, groups, queue, found)
    _add_notes(queue, found)
    _add_ties(shard, queue, found)
    _add_stages(shard, queue, found)
    gained = min(down_ms, queue.options.lease_ms)
    for name_, number, runs, cancelled, leased_at, worker in found.leases:
        lease = Lease(name_, queue, groups[number], {}, 0, 0, leased_at, worker, True, cancelled=cancelled)
        _add_lease(shard, lease, runs, gained)
    for group in groups.values():
        for track in group.tracks.values():
            _start(shard, track, now)
    if queue.paused_until not in (0, NEVER):
        shard.timers.pauses.add(queue.paused_until, queue.prefix)
        shard.timers.alarm.sooner(queue.paused_until)
    shard.timers.plan_sweep(queue, now)
    for serial, how, key, first, end in sorted(found.ended):
        ended = Ended(queue, shard.places[key].partition, first, end, how)
        notifications = shard.notifications.setdefault(
            key, NotificationQueue(deque(), found.later.get(key, {}))
        )
        notifications.waiting.append(Notification(ended, serial, (first, 0)))
    return found.crons


def _add_rows(shard: Shard, groups: dict[int, Group], queue: Queue, found: DecodedRecords) -> None:
    """Add everything that is stored as runs."""
    for (number, key), rows in found.rows.items():
        track = groups[number].tracks[key]
        track.schedule, track.skips, track.outcomes = rows.schedule, rows.skips, rows.outcomes
        track.dead, track.letters, track.ended = rows.dead, rows.letters, rows.ended
        track.dead_messages = rows.dead_messages
    shard.updated |= {each.key for each in queue.partitions.values() if each.successors}


def _partition(key: int, packed: PackedPartition, log: Log, found: DecodedRecords) -> Partition:
    """Return a partition with everything that its records say."""
    dependents, parked, successors = found.dependents[key], found.parked[key], found.successors[key]
    ties, taken = found.ties.get(key, {}), found.taken.get(key, {})
    partition = Partition(
        key=key,
        name=packed.name,
        numbers=packed.numbers,
        log=log,
        marks=packed.marks,
        withdrawn=found.withdrawn[key],
        progress=found.progress.get(key, {}),
        successors=successors,
        parked=parked,
        dependents=dependents,
        spans=Table("qQ"),
        lengths=Table("qqI"),
        met=found.met.get(key, {}),
        led_to={successor: first for first, successor in successors},
        ties=ties,
        job_ids=found.job_ids.get(key, {}),
        transactions={},
        taken=dict(sorted(taken.items(), key=_taken_at)),
        parked_messages=sum(count for _, count, _ in parked),
        links_count=len(ties) + dependents.size,
        lane=packed.lane,
        retention=packed.retention,
        emptied_at=packed.emptied_at,
        settled_to=log.first,
        merged_to=[log.first, log.first],
    )
    for first, dependent, count, _ in dependents:
        if count > 1:
            partition.add_span(first, dependent, count)
    for at, ids in partition.taken.values():
        partition.transactions.update((name, (offset, at)) for offset, name in ids)
    return partition


def _add_ties(shard: Shard, queue: Queue, found: DecodedRecords) -> None:
    """Index the messages of a queue by unique key and custom id, and set the timers of ties."""
    kept: list[tuple[int, int, int]] = []
    for partition in queue.partitions.values():
        key = partition.key
        for offset, tie in partition.ties.items():
            if tie.completed_at and tie.cleanup is not None and tie.cleanup.keep_count:
                kept.append((tie.completed_at, key, offset))
            if tie.unique_key:
                queue.uniques[tie.unique_key] = (key, offset)
            if tie.expires_at:
                shard.timers.expiry.add(tie.expires_at, (key, offset))
            queue.tied_bytes += len(tie.payload) * len(tie.keys)
        for offset, name in partition.job_ids.items():
            queue.named[name] = (key, offset)
    queue.kept.update(((key, offset), None) for _, key, offset in sorted(kept))
    for request, once in found.remembered.items():
        queue.remembered[request] = once
        shard.timers.remembered.add(once.until, (queue.prefix, request))


def _add_stages(shard: Shard, queue: Queue, found: DecodedRecords) -> None:
    for stage in queue.stages.values():
        stage.parts.sort(key=attrgetter("at", "body_name"))
        for part in stage.parts:
            queue.staged.count(part)
        if stage.query is not None:
            queue.staged_for.setdefault(stage.query, {})[stage.name] = stage
        shard.timers.staged.add(stage.expires_at, (queue.prefix, True, stage.name))
    for query, batch, adopted in sorted(found.adopted, key=lambda each: (each[2].at, each[1])):
        queue.adopted[query] = {**queue.adopted.pop(query, {}), batch: adopted}
    for query, batches in queue.adopted.items():
        until = batches[max(batches)].until
        if until:
            shard.timers.staged.add(until, (queue.prefix, False, query))


def _taken_at(item: tuple[int, tuple[int, list[tuple[int, str]]]]) -> tuple[int, int]:
    return item[1][0], item[0]


def _add_notes(queue: Queue, found: DecodedRecords) -> None:
    for kind, segments in found.notes.items():
        notes = queue.notes[kind] = new_notes(kind)
        notes.log = logs.load(segments[0][0].base, [segment for segment, _ in segments])
        for segment, about in segments:
            enter(notes, segment.base, about)


def _start(shard: Shard, track: Track, now: int) -> None:
    """Count the messages of a track, and list it if it can deliver."""
    log = track.partition.log
    track.aside = logs.count_aside(log, track.cursor) + sum(count for _, count in track.skips)
    if track.planned != NEVER:
        track.unplanned = count_unplanned(track)
        track.group.unplanned[track.partition.key] = track
    level = track.schedule.ready_level(now)
    if fresh_count(track):
        list_ready(track, IN_LINE if level is None else min(level, IN_LINE))
    elif level is not None:
        list_ready(track, level)
    due_at = track.schedule.next_due_at(now)
    if due_at != NEVER:
        shard.timers.schedule_check(track, due_at)


def _add_partition(shard: Shard, queue: Queue, partition: Partition) -> None:
    partition.unmerged = len(partition.log.segments)
    if partition.unmerged >= MERGE_AT:
        shard.changes.to_merge[partition.key] = (queue, partition)
    queue.partitions[partition.name] = partition
    for number, base in partition.numbers:
        shard.places[number] = Place(queue, partition, base)


def _add_group(queue: Queue, group: Group, cursors: dict[tuple[int, int], PackedCursor]) -> None:
    queue.groups[group.name] = group
    for partition in queue.partitions.values():
        packed = cursors.get((group.number, partition.key)) or PackedCursor(partition.log.first, 0)
        track = new_track(queue, group, partition, packed.cursor)
        track.turn, track.planned = packed.turn, packed.planned
        group.turn = max(group.turn, track.turn)


def _add_lease(shard: Shard, lease: Lease, runs: list[LeaseRun], gained: int) -> None:
    """Restore a lease, extended by the downtime: an outage is not the consumer's failure."""
    for run in runs:
        run.expires_at += gained
        lease.runs[run.partition, run.first] = run
    if lease.leased_at:
        lease.leased_at += gained  # timeouts count from it
    lease.due_at = min(run.expires_at for run in runs)
    hold(shard, lease)
    if gained:
        shard.changes.touch_lease(lease)
