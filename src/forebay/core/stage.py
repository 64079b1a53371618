"""Stages: messages that are kept and that nobody sees, until all of a batch are adopted in one commit.

Many writers stage what belongs together, each under a name of its own, as long as they like. Whoever knows
that all of them are done adopts their stages, in the name of a query and the number of its batch. Then all
the messages are there, in one commit that moves no payload; before it, none is. The same adoption again
changes nothing and is answered as the first was.

A writer that is late finds its batch adopted and is refused; a stage that nobody adopts goes when a later run
of its query stages anew, or expires. So whatever dies at whatever moment, each message of a batch is there
once, or the batch is not there at all.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from forebay.core import jobs, log as logs, records, stage_records
from forebay.core.bodies import OFFSET_BYTES, body_ends, body_slices, pack_body
from forebay.core.commands import Adopt, Job, PushJobs, Staged, StageWrite, Unstage, Unstaged
from forebay.core.domain import Domain
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.happenings import PUSHED
from forebay.core.ids import address
from forebay.core.jobdata import Particulars
from forebay.core.limits import (
    ADOPTIONS_MAX,
    KEYED_BYTES_MAX,
    KEYED_MAX,
    QUERIES_MAX,
    SEGMENT_BYTES_MAX,
    STAGED_BYTES_MAX,
    STAGED_MS_MAX,
    STAGED_PARTS_MAX,
    STAGES_MAX,
    check_name,
    check_range,
)
from forebay.core.model import FSYNC, PLAIN, Attributes, Partition, Queue, Run, Segment
from forebay.core.numbers import end_of, fits, number_of
from forebay.core.order import check_ordered
from forebay.core.push import check_payloads, check_size, expect, reached, schedule, tell
from forebay.core.retry import check_attributes
from forebay.core.runs import pack_runs
from forebay.core.schedule import Scheduled
from forebay.core.shard import MERGE_AT, Shard
from forebay.core.stagedata import Adopted, Part, Stage, Sums

BATCH_MAX = (1 << 63) - 1


class Body(Struct, frozen=True, gc=False):
    """Messages on their way into a stage."""

    body: bytes
    start: int
    """Which of the messages of the command is its first."""
    count: int
    size: int


def write(domain: Domain, command: StageWrite, now: int) -> Staged:
    """Add messages to a stage; made if it is missing, and so is the queue."""
    queue = domain.queues.get((command.tenant, command.queue))
    count = _check(domain, queue, command)
    stage = _stage_of(queue, command)
    if stage is not None and command.part is not None:
        if command.part < stage.writes:
            return _staged(stage, command.part)
        if command.part > stage.writes:
            raise Conflict(
                f"stage {stage.name} has {stage.writes} parts: part {command.part} can't be the next one"
            )
    elif command.part:
        raise Conflict(f"there is no stage {command.stage} that part {command.part} could be added to")
    bodies = _bodies(domain, command)
    former: list[Stage] = []
    if queue is not None:
        if stage is None:
            former = _former(queue, command)
        _check_room(queue, command, bodies, former)
    runs = command.runs or [(count, PLAIN)]
    if queue is None:
        domain.check_new(command.tenant, command.queue)
        queue = domain.made(command.tenant, command.queue)
    shard = domain.shards[queue.shard]
    for each in former:
        _drop(shard, queue, each)
    if stage is None:
        stage = Stage(command.stage, command.query, command.batch, 0, command.run)
        queue.stages[stage.name] = stage
        if stage.query is not None:
            queue.staged_for.setdefault(stage.query, {})[stage.name] = stage
    else:
        shard.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    stage.expires_at = max(stage.expires_at, now + command.expire_ms)
    shard.staged.add(stage.expires_at, (queue.prefix, True, stage.name))
    shard.alarm.sooner(stage.expires_at)
    for body in bodies:
        _keep(shard, queue, stage, command, body, _cut(runs, body.start, body.count))
    stage.writes += 1
    shard.touch()
    return _staged(stage, stage.writes - 1)


def _staged(stage: Stage, part: int) -> Staged:
    return Staged(stage.name, part, stage.count, stage.size, stage.expires_at)


def _check(domain: Domain, queue: Queue | None, command: StageWrite) -> int:
    """Raise unless a command is one at any time; its messages."""
    check_name("stage", command.stage)
    check_name("partition", command.partition)
    check_range("expire_ms", command.expire_ms, 1_000, STAGED_MS_MAX)
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("run", command.run, 0, BATCH_MAX)
    if command.query is not None:
        check_name("query", command.query)
    count = len(command.payloads) if command.body is None else command.count
    check_range("count", count, 1, domain.limits.batch_max)
    if command.part is not None:
        check_range("part", command.part, 0, BATCH_MAX)
    if command.runs and (
        sum(each for each, _ in command.runs) != count or min(each for each, _ in command.runs) < 1
    ):
        raise Invalid("runs", f"runs of 1 and more messages, {count} in all")
    checked = PLAIN
    for _, attributes in command.runs:
        if attributes is not PLAIN and attributes != checked:
            check_attributes(domain.limits, attributes)
            check_ordered(queue, attributes)
            if attributes.depends_on:
                raise Invalid("depends_on", "left out: what is staged waits for nothing")
            checked = attributes
    if sum(attributes.weight for _, attributes in command.runs) > SEGMENT_BYTES_MAX:
        raise Invalid(
            "headers", f"at most {SEGMENT_BYTES_MAX} bytes in one part: stage fewer messages at once"
        )
    if command.keys:
        if len(command.keys) != count:
            raise Invalid("unique_keys", f"a list of {count}, one for each message, or null")
        for key in command.keys:
            if key is not None:
                check_name("unique_key", key)
    return count


def _stage_of(queue: Queue | None, command: StageWrite) -> Stage | None:
    """The stage that is meant, if it is there; raise unless it may be written to, or made."""
    if queue is None:
        return None
    if command.query is not None:
        adopted = queue.adopted.get(command.query)
        if adopted is not None and max(adopted) == command.batch:
            over = Conflict(
                f"batch {command.batch} of query {command.query} is over: what is staged for it now would "
                "never be adopted"
            )
            over.place = "batch"
            raise over
        if adopted is not None and max(adopted) > command.batch:
            raise _gone_back(command.query, command.batch, max(adopted))
    stage = queue.stages.get(command.stage)
    meant = (command.query, command.batch, command.run)
    if stage is not None and (stage.query, stage.batch, stage.run) != meant:
        raise Conflict(f"stage {stage.name} is there for another query, batch or run: take another name")
    return stage


def _gone_back(query: str, batch: int, newest: int) -> Conflict:
    """A query has adopted later batches."""
    error = Conflict(
        f"query {query} is at batch {newest}, so batch {batch} is over: was an old checkpoint restored, or a "
        "part of it lost? Take a new one, and a new query"
    )
    error.place = "query"
    return error


def _former(queue: Queue, command: StageWrite) -> list[Stage]:
    """What earlier runs of a query have staged; raise if there is a later one."""
    others = queue.staged_for.get(command.query, {}) if command.query is not None else {}
    run = next((stage.run for stage in others.values()), command.run)
    if run > command.run:
        raise Conflict(
            f"query {command.query} was started again, as run {run}, so this one, {command.run}, is over; if "
            "that is not so, because clocks differ, UNSTAGE what is staged for it"
        )
    return list(others.values()) if run < command.run else []


def _check_room(queue: Queue, command: StageWrite, bodies: list[Body], former: list[Stage]) -> None:
    """Raise unless so much more may be staged."""
    is_new = command.stage not in queue.stages
    held = replace(queue.staged)
    _count(held, former, -1)
    told = _too_much(held, len(queue.stages) - len(former) + is_new, command, bodies)
    if told is None:
        return
    if command.query is not None:
        meant = (command.query, command.batch, command.run)
        known = queue.staged_for.get(command.query, {}).values()
        own = [each for each in known if (each.query, each.batch, each.run) == meant]
        held = Sums()
        _count(held, own)
        told_alone = _too_much(held, len(own) + is_new, command, bodies)
        if told_alone is not None:  # to wait is of no use
            raise Invalid("batch", f"smaller: with this it has {told_alone}")
    raise Busy(f"with this, queue {queue.name} has {told}: adopt or drop what is staged")


def _count(sums: Sums, stages: list[Stage], sign: int = 1) -> None:
    for stage in stages:
        for part in stage.parts:
            sums.count(part, sign)


def _too_much(held: Sums, stages: int, command: StageWrite, bodies: list[Body]) -> str | None:
    """What is too much if this is staged, too, and how much of it there may be."""
    size = sum(each.size for each in bodies)
    sums = [
        (stages, STAGES_MAX, "stages"),
        (held.bytes + size, STAGED_BYTES_MAX, "bytes staged"),
        (held.parts + len(bodies), STAGED_PARTS_MAX, "bodies staged"),
    ]
    if command.keys:
        count = sum(each.count for each in bodies)
        sums += [
            (held.keyed + count, KEYED_MAX, "messages with unique keys staged"),
            (held.keyed_bytes + size, KEYED_BYTES_MAX, "bytes with unique keys staged"),
        ]
    for found, most, what in sums:
        if found > most:
            return f"{found} {what}, and {most} are the most"
    return None


def _bodies(domain: Domain, command: StageWrite) -> list[Body]:
    """The messages of a command as bodies; raise unless they may be messages."""
    limits, body = domain.limits, command.body
    if body is None:
        payloads = command.payloads
        lengths = check_payloads(limits, payloads)
        return [
            Body(pack_body(payloads[start:end], lengths[start:end]), start, end - start, size)
            for start, end, size in logs.split(lengths)
        ]
    assert len(body) <= SEGMENT_BYTES_MAX or command.count == 1, "a body is checked before it comes here"
    size = len(body) - OFFSET_BYTES * (command.count + 1)
    longest = max(high - low for low, high in pairwise(body_ends(body, 0, command.count)))
    if longest > limits.payload_bytes_max:
        raise Invalid("payload", f"at most {limits.payload_bytes_max} bytes; one has {longest}")
    return [Body(body, 0, command.count, size)]


def _cut(runs: Sequence[tuple[int, Attributes]], start: int, count: int) -> list[tuple[int, Attributes]]:
    """The runs of ``count`` messages from the ``start``-th on.

    >>> [(length, each.priority) for length, each in _cut([(3, PLAIN), (2, Attributes(5))], 2, 2)]
    [(1, 0), (1, 5)]
    """
    if len(runs) == 1:
        return [(count, runs[0][1])]
    found: list[tuple[int, Attributes]] = []
    at, end = 0, start + count
    for length, attributes in runs:
        taken = min(at + length, end) - max(at, start)
        if taken > 0:
            found.append((taken, attributes))
        at += length
    return found


def _keep(
    shard: Shard,
    queue: Queue,
    stage: Stage,
    command: StageWrite,
    each: Body,
    runs: list[tuple[int, Attributes]],
) -> None:
    keys = command.keys[each.start : each.start + each.count]
    common = (
        stage.writes,
        command.partition,
        each.count,
        each.size,
        shard.next_name(),
        runs,
        keys,
        each.body,
    )
    part = Part(*common)
    stage.parts.append(part)
    stage.count += part.count
    stage.size += part.size
    queue.staged.count(part)
    if queue.stored:
        key = stage_records.staged_key(queue.prefix, part.body_name)
        shard.keep((key, stage_records.pack_staged(stage, part)))
        if not part.keys:
            shard.keep_body((records.body_key(queue.prefix, part.body_name), each.body))
            shard.staged_now[1].append(part)


def unstage(domain: Domain, command: Unstage, now: int) -> Unstaged:
    """Forget stages that nobody will adopt; those that are not there are passed over."""
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("stages", len(command.stages), 1 if command.query is None else 0, STAGES_MAX)
    queue = domain.known(command.tenant, command.queue)
    found = [queue.stages[name] for name in dict.fromkeys(command.stages) if name in queue.stages]
    if command.query is not None:
        named = set(command.stages)
        found += [each for each in _stages_of(queue, command.query, command.batch) if each.name not in named]
    for stage in found:
        _drop(domain.shards[queue.shard], queue, stage)
    return Unstaged(len(found), sum(stage.count for stage in found))


def _forget(shard: Shard, queue: Queue, stage: Stage) -> None:
    """Forget a stage, but for its bodies."""
    del queue.stages[stage.name]
    if stage.query is not None:
        of_query = queue.staged_for[stage.query]
        del of_query[stage.name]
        if not of_query:
            del queue.staged_for[stage.query]
    for part in stage.parts:
        queue.staged.count(part, -1)
    shard.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    if queue.stored:
        shard.deletes += [stage_records.staged_key(queue.prefix, part.body_name) for part in stage.parts]
    shard.touch()


def _drop(shard: Shard, queue: Queue, stage: Stage) -> None:
    """Forget a stage and everything in it."""
    _forget(shard, queue, stage)
    if queue.stored:
        named = [part.body_name for part in stage.parts if not part.keys]
        shard.deletes += [records.body_key(queue.prefix, name) for name in named]


def adopt(domain: Domain, command: Adopt, now: int) -> Adopted:
    """Append everything in some stages, in their order, or nothing."""
    check_name("query", command.query)
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("stages", len(command.stages), 0, STAGES_MAX)
    if len(set(command.stages)) < len(command.stages):
        raise Invalid("stages", "a list that names each stage once")
    if command.count is not None:
        check_range("count", command.count, 0, BATCH_MAX)
    if command.keep_ms is not None:
        check_range("keep_ms", command.keep_ms, 1_000, STAGED_MS_MAX)
    queue = domain.queues.get((command.tenant, command.queue))
    if queue is not None:
        known = queue.adopted.get(command.query, {})
        if command.batch in known:
            first = known[command.batch]
            _check_again(command, first)
            _drop_all(domain.shards[queue.shard], queue, command)
            return replace(first, repeated=True)
        if known and command.batch < max(known):
            raise _gone_back(command.query, command.batch, max(known))
    elif command.stages:
        domain.known(command.tenant, command.queue)
    stages = _stages(queue, command)
    durability = _check_adopt(domain, queue, command, stages, now)
    queue = domain.made(command.tenant, command.queue)
    shard = domain.shards[queue.shard]
    begun: dict[str, int] = {}
    duplicates = 0
    for stage in stages:
        _forget(shard, queue, stage)
        for part in stage.parts:
            partition = queue.partitions.get(part.partition) or shard.add_partition(queue, part.partition)
            begun.setdefault(partition.name, partition.log.end)
            if part.keys:
                pushed = PushJobs(command.tenant, queue.name, _jobs(part), command.durability)
                duplicates += len(jobs.apply(domain, pushed, now).duplicates)
            else:
                _adopt_part(shard, queue, partition, part, durability, now)
    queue.room = 0
    ranges = tuple(each for name, first in begun.items() for each in _ranges(queue.partitions[name], first))
    until = 0 if command.keep_ms is None else now + command.keep_ms
    count = sum(each for *_, each in ranges)
    adopted = Adopted(now, count, ranges, durability, duplicates, until)
    _remember(shard, queue, command, adopted)
    _drop_all(shard, queue, command)
    if durability == FSYNC:
        shard.must_sync = True
    return adopted


def _check_again(command: Adopt, first: Adopted) -> None:
    """Raise if a batch that was adopted was another one."""
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
    """The stages that are named; raise unless all are there, and whole."""
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


def _check_adopt(domain: Domain, queue: Queue | None, command: Adopt, stages: list[Stage], now: int) -> str:
    """Raise unless everything in some stages may be appended; what it will survive."""
    durability = reached(queue, command.durability, domain.reach)
    if queue is None:
        domain.check_new(command.tenant, command.queue)
    plan = jobs.Plan()
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
                jobs.check(domain, pushed, now, plan, room=False)
    known = queue.partitions if queue is not None else {}
    numbers = sum(name not in known or not fits(known[name], count) for name, count in counts.items())
    domain.check_room(command.tenant, command.queue, queue, set(counts), numbers)
    check_size(queue, new + plan.messages[command.queue])
    return durability


def _jobs(part: Part) -> list[Job]:
    """The messages of a part that have unique keys."""
    assert part.body is not None, "what has keys is in memory"
    payloads = body_slices(part.body, part.count, 0, part.count)
    attributes = [each for count, each in part.runs for _ in range(count)]
    return [
        Job(payload, part.partition, having, None if key is None else Particulars(key))
        for payload, having, key in zip(payloads, attributes, part.keys, strict=True)
    ]


def _adopt_part(
    shard: Shard, queue: Queue, partition: Partition, part: Part, durability: str, now: int
) -> None:
    """A staged body becomes the next segment of a log."""
    log = partition.log
    expect(shard, queue, partition, part.count, durability, now)
    shard.seal_now(queue, partition)
    created_at = max(now, log.time)
    packed = pack_runs([Run(count, created_at, attributes) for count, attributes in part.runs], created_at)
    about = (part.count, part.size, created_at, part.body_name)
    runs = (packed.spread, packed.sets, packed.which, packed.aside)
    segment = Segment(log.end, *about, *runs, body=part.body)
    logs.adopt(log, segment)
    shard.happened.note(PUSHED, queue, "", partition, segment.base, segment.count)
    if queue.stored:
        key = records.header_key(queue.prefix, partition.key, segment.base)
        shard.keep((key, records.pack_header(segment)))
        if segment.body is not None:
            shard.sealed.append((log, segment))
    shard.touch()
    partition.unmerged += 1
    if partition.unmerged >= MERGE_AT:
        shard.to_merge[partition.key] = (queue, partition)
    offset = segment.base
    for count, attributes in part.runs:
        if not attributes.in_line:
            run = Scheduled(created_at + attributes.delay_ms, offset, count, attributes.level)
            schedule(shard, queue, partition, run, now)
        offset += count
    if segment.aside < segment.count:
        tell(shard, queue, partition)


def _ranges(partition: Partition, first: int) -> Iterator[tuple[str, int, int, int]]:
    """(partition, first id, first offset, count) of messages from ``first`` on, by partition number."""
    while first < partition.log.end:
        number, base = number_of(partition, first)
        end = end_of(partition, number)
        yield partition.name, address(number, first - base), first, end - first
        first = end


def _remember(shard: Shard, queue: Queue, command: Adopt, adopted: Adopted) -> None:
    """Have an adoption answered the same way again."""
    query = command.query
    batches = queue.adopted.pop(query, {})
    if batches and batches[max(batches)].until:
        shard.staged.remove(batches[max(batches)].until, (queue.prefix, False, query))
    queue.adopted[query] = batches  # it is the last that adopted
    batches[command.batch] = adopted
    if adopted.until:
        shard.staged.add(adopted.until, (queue.prefix, False, query))
        shard.alarm.sooner(adopted.until)
    key = stage_records.adopted_key(queue.prefix, query, command.batch)
    shard.keep_row(queue, key, stage_records.pack_adopted(adopted))
    if len(batches) > ADOPTIONS_MAX:
        oldest = min(batches)
        del batches[oldest]
        shard.keep_row(queue, stage_records.adopted_key(queue.prefix, query, oldest), None)
    if len(queue.adopted) > QUERIES_MAX:
        # Those that are forgotten anyway go first: a stream may come back after any time.
        others = (each for each in queue.adopted if each != query)
        brief = (each for each in others if queue.adopted[each][max(queue.adopted[each])].until)
        _forget_query(shard, queue, next(brief, next(iter(queue.adopted))))


def _forget_query(shard: Shard, queue: Queue, query: str) -> None:
    batches = queue.adopted.pop(query)
    until = batches[max(batches)].until
    if until:
        shard.staged.remove(until, (queue.prefix, False, query))
    for batch in batches:
        shard.keep_row(queue, stage_records.adopted_key(queue.prefix, query, batch), None)


def _drop_all(shard: Shard, queue: Queue, command: Adopt) -> None:
    """Drop what nobody can adopt any more: the stages named, and others of the query up to this batch."""
    for stage in _stages_of(queue, command.query, command.batch):
        _drop(shard, queue, stage)
    for name in command.stages:
        if name in queue.stages and queue.stages[name].query is None:
            _drop(shard, queue, queue.stages[name])


def _stages_of(queue: Queue, query: str, batch: int) -> list[Stage]:
    """What is staged for the batches of a query up to this one."""
    return [each for each in queue.staged_for.get(query, {}).values() if each.batch <= batch]


def forget_staged(shard: Shard, now: int) -> None:
    """Forget the stages and answers whose time is over."""
    while items := shard.staged.first_due(now):
        for prefix, is_stage, name in items:
            queue = shard.queues[prefix]
            if is_stage:
                _drop(shard, queue, queue.stages[name])
            else:
                _forget_query(shard, queue, name)


def forget_stages(shard: Shard, queue: Queue) -> None:
    """A queue goes with everything in it."""
    for stage in queue.stages.values():
        shard.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    for query, batches in queue.adopted.items():
        until = batches[max(batches)].until
        if until:
            shard.staged.remove(until, (queue.prefix, False, query))
