"""Adopt stages: append everything they hold in one commit."""

from collections.abc import Iterator

from msgspec.structs import replace

from forebay.core.api.jobs import Job, PushJobs
from forebay.core.api.stages import Adopt
from forebay.core.bounds import (
    ADOPTIONS_MAX,
    BATCH_MAX,
    QUERIES_MAX,
    STAGED_MS_MAX,
    STAGES_MAX,
    check_name,
    check_range,
)
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.core.jobs import check as job_check, push as job_push
from forebay.core.log import log as logs
from forebay.core.log.bodies import body_slices
from forebay.core.log.numbers import end_of, fits, id_at, number_of
from forebay.core.log.runs import pack_runs
from forebay.core.push.checks import check_ordered
from forebay.core.push.push import before_append, reached, schedule, wake_readers
from forebay.core.push.room import check_size
from forebay.core.records import codec, keyspace, stages as stage_records
from forebay.core.shard.shard import Shard
from forebay.core.stages.expire import drop_adopted, forget_query, forget_stage
from forebay.core.stages.write import gone_back
from forebay.core.state import Adopted, Identity, Part, Partition, Queue, Run, Scheduled, Segment, Stage
from forebay.core.words import FSYNC, PUSHED


def adopt(shard: Shard, command: Adopt, now: int) -> Adopted:
    """Append all messages of some stages, in order, or none."""
    check_name("query", command.query)
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("stages", len(command.stages), 0, STAGES_MAX)
    if len(set(command.stages)) < len(command.stages):
        raise Invalid("stages", "a list that names each stage once")
    if command.count is not None:
        check_range("count", command.count, 0, BATCH_MAX)
    if command.keep_ms is not None:
        check_range("keep_ms", command.keep_ms, 1_000, STAGED_MS_MAX)
    queue = shard.names.queues.get((command.tenant, command.queue))
    if queue is not None:
        known = queue.adopted.get(command.query, {})
        if command.batch in known:
            first = known[command.batch]
            _check_again(command, first)
            drop_adopted(shard, queue, command)
            return replace(first, repeated=True)
        if known and command.batch < max(known):
            raise gone_back(command.query, command.batch, max(known))
    elif command.stages:
        shard.names.known(command.tenant, command.queue)
    stages = _stages(queue, command)
    durability = _check_adopt(shard, queue, command, stages, now)
    queue = shard.made(command.tenant, command.queue)
    begun: dict[str, int] = {}
    duplicates = 0
    for stage in stages:
        forget_stage(shard, queue, stage)
        for part in stage.parts:
            partition = queue.partitions.get(part.partition) or shard.add_partition(queue, part.partition)
            begun.setdefault(partition.name, partition.log.end)
            if part.keys:
                pushed = PushJobs(command.tenant, queue.name, _jobs(part), command.durability)
                duplicates += len(job_push.apply(shard, pushed, now).duplicates)
            else:
                _adopt_part(shard, queue, partition, part, durability, now)
    queue.room = 0
    ranges = tuple(each for name, first in begun.items() for each in _ranges(queue.partitions[name], first))
    until = 0 if command.keep_ms is None else now + command.keep_ms
    count = sum(each for *_, each in ranges)
    adopted = Adopted(now, count, ranges, durability, duplicates, until)
    _remember(shard, queue, command, adopted)
    drop_adopted(shard, queue, command)
    if durability == FSYNC:
        shard.changes.must_sync = True
    return adopted


def _check_again(command: Adopt, first: Adopted) -> None:
    """Raise if the batch was adopted before with another number of messages."""
    had = first.count + first.duplicates
    if command.count is not None and command.count != had:
        other = Conflict(
            f"batch {command.batch} of query {command.query} was adopted with {had} messages, and has "
            f"{command.count} now, so it is another one: was an old checkpoint restored, or a part of it "
            "lost? Take a new one, and a new query"
        )
        other.place = "count"
        raise other


def _stages(queue: Queue | None, command: Adopt) -> list[Stage]:
    """Return the named stages; raise unless all exist and are complete."""
    found: list[Stage] = []
    for name in command.stages:
        stage = queue.stages.get(name) if queue is not None else None
        if stage is None:
            raise NotFound(
                f"there is no stage {name}: it expired, was dropped, or never came; stage the batch again"
            )
        if stage.query is not None and (stage.query, stage.batch) != (command.query, command.batch):
            raise Conflict(f"stage {name} is there for another query or batch")
        found.append(stage)
    count = sum(stage.count for stage in found)
    if command.count is not None and command.count != count:
        raise Conflict(f"the stages have {count} messages, not {command.count}: stage the batch again")
    return found


def _check_adopt(shard: Shard, queue: Queue | None, command: Adopt, stages: list[Stage], now: int) -> str:
    """Return the durability of an adoption; raise unless all its messages may be appended."""
    durability = reached(queue, command.durability, shard.reach)
    if queue is None:
        shard.names.check_new(command.tenant, command.queue)
    plan = job_check.Plan()
    counts: dict[str, int] = {}
    new = 0
    for stage in stages:
        for part in stage.parts:
            counts[part.partition] = counts.get(part.partition, 0) + part.count
            new += 0 if part.keys else part.count
            for _, attributes in part.runs:
                check_ordered(queue, attributes)
            if part.keys:
                pushed = PushJobs(command.tenant, command.queue, _jobs(part), command.durability)
                job_check.check(shard, pushed, now, plan, room=False)
    known = queue.partitions if queue is not None else {}
    numbers = sum(name not in known or not fits(known[name], count) for name, count in counts.items())
    shard.check_room(command.tenant, command.queue, queue, set(counts), numbers)
    check_size(queue, new + plan.messages[command.queue])
    return durability


def _jobs(part: Part) -> list[Job]:
    """Return the messages of a part with unique keys as jobs."""
    assert part.body is not None, "what has keys is in memory"
    payloads = body_slices(part.body, part.count, 0, part.count)
    attributes = [each for count, each in part.runs for _ in range(count)]
    return [
        Job(payload, part.partition, having, None if key is None else Identity(key))
        for payload, having, key in zip(payloads, attributes, part.keys, strict=True)
    ]


def _adopt_part(
    shard: Shard, queue: Queue, partition: Partition, part: Part, durability: str, now: int
) -> None:
    """Append a staged body as the next segment of a log."""
    log = partition.log
    before_append(shard, queue, partition, part.count, durability, now)
    shard.changes.seal_now(queue, partition)
    created_at = max(now, log.time)
    packed = pack_runs([Run(count, created_at, attributes) for count, attributes in part.runs], created_at)
    about = (part.count, part.size, created_at, part.body_name)
    runs = (packed.spread, packed.sets, packed.which, packed.aside)
    segment = Segment(log.end, *about, *runs, body=part.body)
    logs.adopt(log, segment)
    shard.changes.change_log.note(PUSHED, queue, "", partition, segment.base, segment.count)
    if queue.stored:
        key = keyspace.header_key(queue.prefix, partition.key, segment.base)
        shard.changes.put((key, codec.pack_header(segment)))
        if segment.body is not None:
            shard.changes.sealed.append((log, segment))
    shard.changes.touch()
    shard.changes.count_segment(queue, partition)
    offset = segment.base
    for count, attributes in part.runs:
        if not attributes.in_line:
            run = Scheduled(created_at + attributes.delay_ms, offset, count, attributes.level)
            schedule(shard, queue, partition, run, now)
        offset += count
    if segment.aside < segment.count:
        wake_readers(shard, queue, partition)


def _ranges(partition: Partition, first: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield (partition, first id, first offset, count) of messages from ``first`` on."""
    while first < partition.log.end:
        number, _ = number_of(partition, first)
        end = end_of(partition, number)
        yield partition.name, id_at(partition, first), first, end - first
        first = end


def _remember(shard: Shard, queue: Queue, command: Adopt, adopted: Adopted) -> None:
    """Remember the reply of an adoption."""
    query = command.query
    batches = queue.adopted.pop(query, {})
    if batches and batches[max(batches)].until:
        shard.timers.staged.remove(batches[max(batches)].until, (queue.prefix, False, query))
    queue.adopted[query] = batches  # it is the last that adopted
    batches[command.batch] = adopted
    if adopted.until:
        shard.timers.staged.add(adopted.until, (queue.prefix, False, query))
        shard.timers.alarm.sooner(adopted.until)
    key = stage_records.adopted_key(queue.prefix, query, command.batch)
    shard.changes.put_row(queue, key, stage_records.pack_adopted(adopted))
    if len(batches) > ADOPTIONS_MAX:
        oldest = min(batches)
        del batches[oldest]
        shard.changes.put_row(queue, stage_records.adopted_key(queue.prefix, query, oldest), None)
    if len(queue.adopted) > QUERIES_MAX:
        # Those that are forgotten anyway go first: a stream may come back after any time.
        others = (each for each in queue.adopted if each != query)
        brief = (each for each in others if queue.adopted[each][max(queue.adopted[each])].until)
        forget_query(shard, queue, next(brief, next(iter(queue.adopted))))
