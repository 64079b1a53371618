"""Write to a stage.

Many writers stage the parts of one batch, each under a name of its own. Whoever knows that all of them are
done adopts their stages under a query name and batch number. One commit, which moves no payload, then makes
all messages visible. Repeating an adoption changes nothing and returns the first reply.

A late writer finds its batch adopted and is refused. A stage that is never adopted is dropped when a later
run of its query stages again, or when it expires. So whatever crashes at whatever moment, a batch is there
once, or not at all.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from forebay.core.api.checks import check_attributes
from forebay.core.api.stages import Staged, StageWrite
from forebay.core.bounds import (
    BATCH_MAX,
    KEYED_BYTES_MAX,
    KEYED_MAX,
    SEGMENT_BYTES_MAX,
    STAGED_BYTES_MAX,
    STAGED_MS_MAX,
    STAGED_PARTS_MAX,
    STAGES_MAX,
    check_name,
    check_range,
)
from forebay.core.errors import Busy, Conflict, Invalid
from forebay.core.log import log as logs
from forebay.core.log.bodies import OFFSET_BYTES, body_ends, pack_body
from forebay.core.push.checks import check_ordered, check_payloads
from forebay.core.records import keyspace, stages as stage_records
from forebay.core.shard.shard import Shard
from forebay.core.stages.expire import drop_stage
from forebay.core.state import PLAIN, Attributes, Part, Queue, Stage, Sums


class Body(Struct, frozen=True, gc=False):
    """Messages to be staged."""

    body: bytes
    start: int
    """Index of its first message within the command."""
    count: int
    size: int


def write(shard: Shard, command: StageWrite, now: int) -> Staged:
    """Add messages to a stage; a missing stage or queue is created."""
    queue = shard.names.queues.get((command.tenant, command.queue))
    count = _check(shard, queue, command)
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
    bodies = _bodies(shard, command)
    former: list[Stage] = []
    if queue is not None:
        if stage is None:
            former = _former(queue, command)
        _check_room(queue, command, bodies, former)
    runs = command.runs or [(count, PLAIN)]
    if queue is None:
        shard.names.check_new(command.tenant, command.queue)
        queue = shard.made(command.tenant, command.queue)
    for each in former:
        drop_stage(shard, queue, each)
    if stage is None:
        stage = Stage(command.stage, command.query, command.batch, 0, command.run)
        queue.stages[stage.name] = stage
        if stage.query is not None:
            queue.staged_for.setdefault(stage.query, {})[stage.name] = stage
    else:
        shard.timers.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    stage.expires_at = max(stage.expires_at, now + command.expire_ms)
    shard.timers.staged.add(stage.expires_at, (queue.prefix, True, stage.name))
    shard.timers.alarm.sooner(stage.expires_at)
    for body in bodies:
        _keep(shard, queue, stage, command, body, _cut(runs, body.start, body.count))
    stage.writes += 1
    shard.changes.touch()
    return _staged(stage, stage.writes - 1)


def _staged(stage: Stage, part: int) -> Staged:
    return Staged(stage.name, part, stage.count, stage.size, stage.expires_at)


def _check(shard: Shard, queue: Queue | None, command: StageWrite) -> int:
    """Return the number of messages; raise unless the command is valid."""
    check_name("stage", command.stage)
    check_name("partition", command.partition)
    check_range("expire_ms", command.expire_ms, 1_000, STAGED_MS_MAX)
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("run", command.run, 0, BATCH_MAX)
    if command.query is not None:
        check_name("query", command.query)
    count = len(command.payloads) if command.body is None else command.count
    check_range("count", count, 1, shard.limits.batch_max)
    if command.part is not None:
        check_range("part", command.part, 0, BATCH_MAX)
    if command.runs and (
        sum(each for each, _ in command.runs) != count or min(each for each, _ in command.runs) < 1
    ):
        raise Invalid("runs", f"runs of 1 and more messages, {count} in all")
    checked = PLAIN
    for _, attributes in command.runs:
        if attributes is not PLAIN and attributes != checked:
            check_attributes(shard.limits, attributes)
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
    """Return the named stage, if it exists; raise unless it may be written to."""
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
            raise gone_back(command.query, command.batch, max(adopted))
    stage = queue.stages.get(command.stage)
    meant = (command.query, command.batch, command.run)
    if stage is not None and (stage.query, stage.batch, stage.run) != meant:
        raise Conflict(f"stage {stage.name} is there for another query, batch or run: take another name")
    return stage


def gone_back(query: str, batch: int, newest: int) -> Conflict:
    """Return the error for a batch older than the query's last adopted one."""
    error = Conflict(
        f"query {query} is at batch {newest}, so batch {batch} is over: was an old checkpoint restored, or a "
        "part of it lost? Take a new one, and a new query"
    )
    error.place = "query"
    return error


def _former(queue: Queue, command: StageWrite) -> list[Stage]:
    """Return the stages of earlier runs of a query; raise if there is a later run."""
    others = queue.staged_for.get(command.query, {}) if command.query is not None else {}
    run = next((stage.run for stage in others.values()), command.run)
    if run > command.run:
        raise Conflict(
            f"query {command.query} was started again, as run {run}, so this one, {command.run}, is over; if "
            "that is not so, because clocks differ, unstage what is staged for it"
        )
    return list(others.values()) if run < command.run else []


def _check_room(queue: Queue, command: StageWrite, bodies: list[Body], former: list[Stage]) -> None:
    """Raise unless there is room for more staged messages."""
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
    """Return which limit staging this would exceed, if any."""
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


def _bodies(shard: Shard, command: StageWrite) -> list[Body]:
    """Return the messages of a command as bodies; raise unless they are valid."""
    limits, body = shard.limits, command.body
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
    """Return the runs of ``count`` messages from the ``start``-th on.

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
        shard.numbering.next_name(),
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
        shard.changes.put((key, stage_records.pack_staged(stage, part)))
        if not part.keys:
            shard.changes.put_body((keyspace.body_key(queue.prefix, part.body_name), each.body))
            shard.changes.staged_now[1].append(part)
