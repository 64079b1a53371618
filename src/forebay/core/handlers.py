"""One handler per command: check everything, then change.

A handler takes the shard, a command and the time, and returns the reply. It raises before its first change,
or not at all.
"""

from collections.abc import Callable

from msgspec.structs import replace

from forebay.core import event_log, transact
from forebay.core.api.causes import CausesFound, GetCauses
from forebay.core.api.checks import check_attributes
from forebay.core.api.commands import (
    Ack,
    AddNote,
    Arrive,
    Buried,
    Cancel,
    Clean,
    Cleaned,
    Configure,
    Delete,
    Discard,
    Extend,
    GroupDelete,
    GroupPut,
    Move,
    Nack,
    Noted,
    Obliterate,
    Pause,
    Pop,
    Popped,
    Purge,
    Push,
    Pushed,
    PushMany,
    Reply,
    Requeue,
    Resume,
    Seek,
    Settle,
    Settled,
    Sought,
    TellProgress,
    Transact,
    Update,
)
from forebay.core.api.jobs import CronDelete, CronPut, KvWrite, LimitPut, PushedJobs, PushFlow, PushJobs
from forebay.core.api.principals import has_queue
from forebay.core.api.queries import (
    Await,
    Browse,
    Children,
    Counts,
    CronList,
    DeadFound,
    Describe,
    DescribeGroup,
    EventPositions,
    EventsPast,
    FindJob,
    GetAttempts,
    GetNotes,
    GroupCounts,
    GroupFound,
    KvGet,
    KvList,
    KvWatch,
    LimitList,
    ListDead,
    ListQueues,
    LogSlice,
    Measure,
    MeasureQueues,
    NotesFound,
    Offsets,
    OffsetsFound,
    Paused,
    QueueFound,
    QueuesFound,
    Read,
    Show,
    ShownAll,
    State,
    StateFound,
    Stats,
    StatsFound,
    WouldClean,
)
from forebay.core.api.stages import Adopt, StageWrite, Unstage
from forebay.core.bounds import NEVER, check_name, check_range
from forebay.core.delivery import cancel, dead_letters, extend, give_back, move, notes, settle
from forebay.core.delivery.groups import check_group, new_group
from forebay.core.delivery.pop import check_pop, pop
from forebay.core.delivery.settle import as_given, resolve_successors
from forebay.core.errors import Invalid
from forebay.core.ids import Range
from forebay.core.jobs import check as job_check, cron, dependencies, flows, push as job_push, requeue
from forebay.core.keyvalue import store as kv_store
from forebay.core.log.numbers import numbers_needed
from forebay.core.push.checks import check_ordered, check_payloads
from forebay.core.push.push import push, reached
from forebay.core.push.room import make_room
from forebay.core.push.update import check_update, update
from forebay.core.queries import (
    browse,
    causes,
    dead_letters as queries_dead_letters,
    describe,
    message_state,
    metrics,
    read,
)
from forebay.core.queries.oldest import oldest_at
from forebay.core.queues import clean, delete as queue_delete, groups as queue_groups, named_limits, seek
from forebay.core.queues.options import check_options, set_options
from forebay.core.records.keyspace import arrival_key
from forebay.core.shard.addresses import current_ids, first_offset, leased, locate, require, wanted
from forebay.core.shard.limiters import LIMITING
from forebay.core.shard.shard import Place, Shard
from forebay.core.stages import adopt as stage_adopt, expire as stage_expire, write as stage_write
from forebay.core.state import Attributes, Lease, Queue, Retention
from forebay.core.tracks import planning
from forebay.core.words import CONFIGURED, DEFAULT, PART, RESULT


def _push(shard: Shard, command: Push, now: int) -> Pushed:
    payloads = command.payloads
    lengths = check_payloads(shard.limits, payloads)
    attributes = check_attributes(shard.limits, command.attributes)
    queue = shard.names.queues.get((command.tenant, command.queue))
    check_ordered(queue, attributes)
    durability = reached(queue, command.durability, shard.reach)
    if attributes.depends_on:
        dependencies.check(shard, command.tenant, attributes)
    make_room(queue, len(payloads))
    partition = queue.partitions.get(command.partition) if queue is not None else None
    if queue is None or partition is None:
        shard.check_room(command.tenant, command.queue, queue, {command.partition}, 1)
        queue = shard.made(command.tenant, command.queue, command.completed_count)
        partition = shard.add_partition(queue, command.partition)
    pushed = push(shard, queue, partition, payloads, lengths, durability, attributes, now)
    if attributes.depends_on:
        first = partition.log.end - len(payloads)
        dependencies.depend(shard, Place(queue, partition, 0), first, len(payloads), attributes, now)
    return pushed


def _push_jobs(shard: Shard, command: PushJobs, now: int) -> PushedJobs:
    if len(command.jobs) == 1:
        pushed = job_push.push_key(shard, command, now)
        if pushed is not None:
            return pushed
    job_check.check(shard, command, now)
    return job_push.apply(shard, command, now)


def _arrive(shard: Shard, command: Arrive, now: int) -> Reply:
    pushing = command.push
    reply: Reply = HANDLERS[type(pushing)](shard, pushing, now)
    shard.changes.deletes += map(arrival_key, command.arrivals)
    shard.changes.must_sync = True
    shard.changes.touch()
    return reply


def _push_many(shard: Shard, command: PushMany, now: int) -> list[Pushed]:
    check_range("messages", sum(len(p) for _, p, _ in command.pushes), 1, shard.limits.batch_max)
    checked = [check_payloads(shard.limits, payloads) for _, payloads, _ in command.pushes]
    having = [check_attributes(shard.limits, attributes) for _, _, attributes in command.pushes]
    queue = shard.names.queues.get((command.tenant, command.queue))
    for attributes in having:
        check_ordered(queue, attributes)
        assert not attributes.depends_on, "such messages are pushed as jobs"
    durability = reached(queue, command.durability, shard.reach)
    names = {name for name, _, _ in command.pushes}
    numbers = numbers_needed(queue, command.pushes)
    shard.check_room(command.tenant, command.queue, queue, names, numbers)
    make_room(queue, sum(len(payloads) for _, payloads, _ in command.pushes))
    queue = shard.made(command.tenant, command.queue)
    pushed = []
    for (name, payloads, _), lengths, attributes in zip(command.pushes, checked, having, strict=True):
        partition = queue.partitions.get(name) or shard.add_partition(queue, name)
        pushed.append(push(shard, queue, partition, payloads, lengths, durability, attributes, now))
    return pushed


def _pop(shard: Shard, command: Pop, now: int) -> Popped:
    check_pop(shard.limits, command, now)
    queue = shard.names.queues.get((command.tenant, command.queue))
    group = queue.groups.get(command.group) if queue is not None else None
    if queue is None or group is None:
        if queue is None:
            if not (shard.limits.pop_creates_queues if command.create is None else command.create):
                shard.names.known(command.tenant, command.queue)  # it is not: this says so
            shard.names.check_new(command.tenant, command.queue)
        check_group(shard.limits, queue, command.group)
        queue = shard.made(command.tenant, command.queue, command.completed_count)
        group = new_group(shard, queue, command.group, command.start, now)
    return pop(shard, queue, group, command, now)


def _cancel(shard: Shard, command: Cancel, now: int) -> Settled:
    cancel.check_ids(shard.limits, command.ids)
    if command.group is not None:
        check_name("group", command.group)
    given = resolve_successors(shard, command)
    ids = wanted(shard, command.ids)
    cancel.check_runs(shard, command.tenant, ids)
    done = cancel.cancel(shard, command, ids, now)
    otherwise = "nothing to cancel: it is settled or dead, or the group is not there: ask for its state"
    cancel.check_changed(shard, command.tenant, done, ids, otherwise)
    return Settled(done.count, as_given(done.refused, given))


def _move(shard: Shard, command: Move, now: int) -> Settled:
    move.check_move(shard.limits, command)
    given = resolve_successors(shard, command)
    ids = wanted(shard, command.ids)
    cancel.check_runs(shard, command.tenant, ids)
    groups = [
        queue.groups.get(command.group) or new_group(shard, queue, command.group, "all", now)
        for queue in _queues_of(shard, command, ids, now)
    ]
    tracks = {key: track for group in groups for key, track in group.tracks.items()}
    done = move.move(shard, command, ids, tracks, now)
    otherwise = "nothing to move: in its state, which can be asked for, this can't be done to the message"
    cancel.check_changed(shard, command.tenant, done, ids, otherwise)
    return Settled(done.count, as_given(done.refused, given))


def _update(shard: Shard, command: Update, now: int) -> Pushed:
    notes.check_note(shard.limits, command.payload)
    (message,) = current_ids(shard, [command.id])
    where = require(shard, command.tenant, message)
    check_update(shard, where, now, command.headers)
    durability = reached(where.place.queue, None, shard.reach)
    return update(shard, where, message, command.payload, durability, now, headers=command.headers)


def _queues_of(shard: Shard, command: Move, ranges: list[Range], now: int) -> list[Queue]:
    """Return the queues with messages to move; their group may have to be created."""
    found = [locate(shard, command.tenant, each) for each in ranges]
    for each in found:
        if each is not None and command.priority:
            check_ordered(each.place.queue, Attributes(priority=command.priority))
    queues = {each.place.queue.prefix: each.place.queue for each in found if each is not None}
    missing = {prefix for prefix, queue in queues.items() if command.group not in queue.groups}
    # For a group that is made now, everything can be moved but what was cancelled.
    there = {
        each.place.queue.prefix
        for each in found
        if each is not None and move.may_move(each, command.only_delayed, now)
    }
    for prefix in there:
        planning.check_planned(queues[prefix], command.group)
        if prefix in missing:
            check_group(shard.limits, queues[prefix], command.group)
    return [queue for prefix, queue in queues.items() if prefix not in missing - there]


def _requeue(shard: Shard, command: Requeue, now: int) -> Buried:
    dead_letters.check(shard.limits, command)
    queue = shard.names.known(command.tenant, command.queue)
    given = resolve_successors(shard, command)
    done = requeue.requeue(shard, queue, command, now)
    return replace(done, refused=as_given(done.refused, given))


def _purge(shard: Shard, command: Purge, now: int) -> Buried:
    dead_letters.check(shard.limits, command)
    queue = shard.names.known(command.tenant, command.queue)
    given = resolve_successors(shard, command)
    done = dead_letters.purge(shard, queue, command, now)
    return replace(done, refused=as_given(done.refused, given))


def _seek(shard: Shard, command: Seek, now: int) -> Sought:
    queue = shard.names.known(command.tenant, command.queue)
    group = seek.check(queue, command, now)
    return seek.seek(shard, queue, group, command, now)


def _clean(shard: Shard, command: Clean, now: int) -> Cleaned:
    clean.check(command)
    queue = shard.names.known(command.tenant, command.queue)
    group = clean.group_of(queue, command)
    if group is None and {"waiting", "delayed"} & set(command.states):
        check_group(shard.limits, queue, command.group)
        clean.check_cancel(queue, command)
        group = new_group(shard, queue, command.group, "all", now)
    clean.check_cancel(queue, command)
    return clean.clean(shard, queue, group, command, now)


def _would_clean(shard: Shard, command: WouldClean, now: int) -> Cleaned:
    queue = shard.names.known(command.tenant, command.queue)
    clean.check(Clean(command.tenant, command.queue, command.states, command.group))
    clean.group_of(queue, command)
    return clean.would_clean(queue, command, now)


def _browse(shard: Shard, command: Browse, now: int) -> ShownAll:
    queue = shard.names.known(command.tenant, command.queue)
    return browse.browse(shard.limits, shard, queue, command, now)


def _list_dead(shard: Shard, command: ListDead, now: int) -> DeadFound:
    return queries_dead_letters.list_dead(
        shard.limits, shard.names.known(command.tenant, command.queue), command
    )


def _get_causes(shard: Shard, command: GetCauses, now: int) -> CausesFound:
    return causes.causes(shard.names.known(command.tenant, command.queue), command)


def _pause(shard: Shard, command: Pause, now: int) -> Paused:
    if command.until is not None and not now < command.until < NEVER:
        raise Invalid("until", "a time in ms that is in the future")
    if not command.create:
        queue = shard.names.known(command.tenant, command.queue)
    else:
        if (command.tenant, command.queue) not in shard.names.queues:
            shard.names.check_new(command.tenant, command.queue)
        queue = shard.made(command.tenant, command.queue, command.completed_count)
    shard.pause(queue, command.until or NEVER)
    return describe.paused(queue, now)


def _resume(shard: Shard, command: Resume, now: int) -> Paused:
    queue = shard.names.known(command.tenant, command.queue)
    shard.end_pause(queue)
    return describe.paused(queue, now)


def _read(shard: Shard, command: Read, now: int) -> LogSlice:
    shard.changes.ask_sync()
    return read.read(shard.limits, shard.names.known(command.tenant, command.queue), command)


def _offsets(shard: Shard, command: Offsets, now: int) -> OffsetsFound:
    shard.changes.ask_sync()
    return read.offsets(shard.names.known(command.tenant, command.queue), command)


def _configure(shard: Shard, command: Configure, now: int) -> QueueFound:
    known = shard.names.queues.get((command.tenant, command.queue))
    changes = check_options(shard.limits, known, command)
    if command.partition is not None:
        return _configure_partition(shard, command, command.partition, changes, now)
    if known is None:
        shard.names.check_new(command.tenant, command.queue)
    queue = shard.made(command.tenant, command.queue, command.completed_count)
    before = queue.options
    set_options(queue, replace(before, **changes))
    queue.room = 0
    if changes.keys() & set(LIMITING):
        named_limits.configure(shard, queue, before)
    shard.changes.touch_queue(queue)
    shard.changes.change_log.note_queue(CONFIGURED, queue)
    shard.recheck_queue(queue, now)
    shard.timers.plan_sweep(queue, now)
    return describe.describe(queue, now)


def _configure_partition(
    shard: Shard, command: Configure, name: str, changes: dict[str, object], now: int
) -> QueueFound:
    """Set the retention options of one partition."""
    queue = shard.names.known(command.tenant, command.queue)
    partition = describe.partition_of(queue, name)
    others = changes.keys() - set(Retention.__struct_fields__)
    if others:
        accepted = ", ".join(Retention.__struct_fields__)
        raise Invalid("options", f"for a partition only {accepted}; leave out {', '.join(sorted(others))}")
    partition.retention = replace(partition.retention, **changes)
    shard.changes.touch_partition(queue, partition)
    shard.changes.sync_for(queue)
    shard.timers.plan_sweep(queue, now)
    return describe.describe(queue, now)


def _describe(shard: Shard, command: Describe, now: int) -> QueueFound:
    return describe.describe(shard.names.known(command.tenant, command.queue), now)


def _group_counts(shard: Shard, command: GroupCounts, now: int) -> Counts:
    check_name("group", command.group)
    queue = shard.names.known(command.tenant, command.queue)
    return describe.counts(queue, queue.groups.get(command.group), now)


def _describe_group(shard: Shard, command: DescribeGroup, now: int) -> GroupFound:
    check_name("group", command.group)
    queue = shard.names.known(command.tenant, command.queue)
    group = queue.groups.get(command.group)
    counts, oldest = describe.counts(queue, group, now), oldest_at(queue, group, now)
    return GroupFound(command.group, counts, oldest)


def _list_queues(shard: Shard, command: ListQueues, now: int) -> QueuesFound:
    return QueuesFound([describe.queue_counts(queue, now) for queue in _queues_within(shard, command)])


def _queues_within(shard: Shard, command: ListQueues | Stats) -> list[Queue]:
    every = shard.names.of_tenant(command.tenant)
    return [queue for queue in every if has_queue(command.within, queue.name)] if command.within else every


def _stats(shard: Shard, command: Stats, now: int) -> StatsFound:
    every = [describe.queue_counts(queue, now) for queue in _queues_within(shard, command)]
    total = describe.total_of([each.counts for each in every])
    oldest = describe.earliest(each.oldest_at for each in every)
    groups = describe.summed(group for each in every for group in each.groups)
    return StatsFound(len(every), total, oldest, groups)


def _state(shard: Shard, command: State, now: int) -> StateFound:
    return message_state.last_known(shard, command, now)


def _add_note(shard: Shard, command: AddNote, now: int) -> Noted:
    notes.check_note(shard.limits, command.payload)
    token = _noting(shard, command)
    (message,) = current_ids(shard, [command.id])
    if command.kind == PART:
        where = notes.leased_now(shard, command.tenant, message, token, command.owner)
    else:
        where = require(shard, command.tenant, message)
    about = [(where.place.partition.key, first_offset(shard, where))]
    notes.add(shard, where.place.queue, command.kind, about, [command.payload], now)
    return Noted(command.id)


def _tell_progress(shard: Shard, command: TellProgress, now: int) -> Noted:
    check_range("progress", command.percent, 0, 100)
    token = _noting(shard, command)
    (message,) = current_ids(shard, [command.id])
    where = notes.leased_now(shard, command.tenant, message, token, command.owner)
    notes.tell_progress(shard, where, command.percent, command.message, now)
    return Noted(command.id)


def _noting(shard: Shard, command: AddNote | TellProgress) -> Lease | None:
    """Return the lease that the command names."""
    if command.lease is None:
        return None
    return leased(shard, Settle(command.tenant, command.lease, group=DEFAULT))


def _get_notes(shard: Shard, command: GetNotes, now: int) -> NotesFound:
    return message_state.notes(shard, command.tenant, command.id, command.kinds, DEFAULT, now)


def _get_attempts(shard: Shard, command: GetAttempts, now: int) -> NotesFound:
    return message_state.attempts(shard, command, now)


def _await(shard: Shard, command: Await, now: int) -> NotesFound:
    check_range("wait_ms", command.wait_ms, 0, shard.limits.wait_ms_max)
    return message_state.notes(shard, command.tenant, command.id, (RESULT,), command.group, now)


def _show(shard: Shard, command: Show, now: int) -> ShownAll:
    current = Show(command.tenant, current_ids(shard, command.ids), command.group, command.dropped)
    return message_state.show(shard, current, now)


HANDLERS: dict[type, Callable[..., Reply]] = {
    Push: _push,
    PushMany: _push_many,
    PushJobs: _push_jobs,
    Arrive: _arrive,
    Pop: _pop,
    Ack: settle.ack,
    Nack: give_back.nack,
    Extend: extend.extend,
    Cancel: _cancel,
    Move: _move,
    Update: _update,
    Discard: _move,
    Seek: _seek,
    Clean: _clean,
    WouldClean: _would_clean,
    Obliterate: queue_delete.obliterate,
    Delete: queue_delete.delete,
    GroupPut: queue_groups.put,
    GroupDelete: queue_groups.delete,
    Browse: _browse,
    Requeue: _requeue,
    Purge: _purge,
    ListDead: _list_dead,
    GetCauses: _get_causes,
    Pause: _pause,
    Resume: _resume,
    Read: _read,
    Offsets: _offsets,
    Configure: _configure,
    Describe: _describe,
    GroupCounts: _group_counts,
    DescribeGroup: _describe_group,
    ListQueues: _list_queues,
    Stats: _stats,
    Measure: metrics.measure,
    MeasureQueues: metrics.measure_queues,
    EventPositions: event_log.positions,
    EventsPast: event_log.past,
    State: _state,
    Show: _show,
    AddNote: _add_note,
    TellProgress: _tell_progress,
    GetNotes: _get_notes,
    GetAttempts: _get_attempts,
    Await: _await,
    KvGet: kv_store.get,
    KvList: kv_store.listed,
    KvWatch: kv_store.watch,
    KvWrite: kv_store.write,
    CronPut: cron.put,
    CronDelete: cron.delete,
    CronList: cron.listed,
    LimitPut: named_limits.put,
    LimitList: named_limits.listed,
    PushFlow: flows.push,
    Children: flows.children,
    FindJob: flows.find,
    Transact: transact.transact,
    StageWrite: stage_write.write,
    Adopt: stage_adopt.adopt,
    Unstage: stage_expire.unstage,
}
"""The handler of each command: a function of shard, command and now."""
