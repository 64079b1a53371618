"""Flows: push a message together with the messages it waits for; queries about them."""

from collections.abc import Iterator
from itertools import accumulate, chain, islice

from msgspec.structs import replace

from forebay.core import bounds
from forebay.core.api.jobs import FlowJob, FlowPushed, PushedJobs, PushFlow, PushJobs
from forebay.core.api.principals import has_queue
from forebay.core.api.queries import Children, ChildrenFound, FindJob, Show, ShownAll, State
from forebay.core.bounds import FLOW_DEPTH_MAX, FLOW_MAX, check_name
from forebay.core.errors import Invalid, NotFound
from forebay.core.ids import Range
from forebay.core.jobs import check as job_check, push as job_push
from forebay.core.log import log as logs
from forebay.core.log.numbers import id_at
from forebay.core.push.checks import check_ordered
from forebay.core.push.push import reached
from forebay.core.queries import message_state
from forebay.core.shard.addresses import current_ids, locate, require
from forebay.core.shard.shard import Shard
from forebay.core.words import DEFAULT, RESULT


def push(shard: Shard, command: PushFlow, now: int) -> FlowPushed:
    check(shard, command, now)
    return apply(shard, command, now)


def check(shard: Shard, command: PushFlow, now: int, plan: job_check.Plan | None = None) -> None:
    """Raise unless the whole flow may be pushed, together with the plan."""
    root = command.root
    is_known = job_check.known(shard, command.tenant, root.queue, root.job, now, plan) is not None
    if plan is None or is_known:
        plan = job_check.Plan()
    names: set[tuple[str, ...]] = set()
    for count, (node, depth) in enumerate(_walk(command.root, 1), 1):
        if count > FLOW_MAX or depth > FLOW_DEPTH_MAX:
            raise Invalid("children", f"at most {FLOW_MAX} in all, and {FLOW_DEPTH_MAX} deep")
        alone = PushJobs(command.tenant, node.queue, [node.job], command.durability)
        job_check.check(shard, alone, now, plan, room=not is_known)
        for name in job_check.names_of(node.job):
            if (node.queue, *name) in names:
                field = "unique_key" if name[0] == "throttled" else name[0]
                raise Invalid(field, "another than that of any other job of the flow")
            names.add((node.queue, *name))
        if node.children:
            job_check.check_waiting(node.job)
            check_ordered(shard.names.queues.get((command.tenant, node.queue)), job_check.WAITING)


def _walk(node: FlowJob, depth: int) -> Iterator[tuple[FlowJob, int]]:
    yield node, depth
    for child in node.children:
        yield from _walk(child, depth + 1)


def apply(shard: Shard, command: PushFlow, now: int) -> FlowPushed:
    """Push a checked flow, children first. If the parent is known already, so is the flow."""
    root = command.root
    parent = job_check.known(shard, command.tenant, root.queue, root.job, now)
    if parent is not None:
        queue = shard.names.queues[command.tenant, root.queue]
        durability = reached(queue, command.durability, shard.reach)
        return FlowPushed(parent, _waited_for(shard, command.tenant, parent)[0], durability, known=True)
    ids = [_push(shard, command, child, now) for child in root.children]
    pushed = _push_one(shard, command, root, ids, now)
    return FlowPushed(pushed.ids[0], ids, pushed.durability)


def _push(shard: Shard, command: PushFlow, node: FlowJob, now: int) -> int:
    children = [_push(shard, command, child, now) for child in node.children]
    return _push_one(shard, command, node, children, now).ids[0]


def _push_one(shard: Shard, command: PushFlow, node: FlowJob, children: list[int], now: int) -> PushedJobs:
    job = node.job
    if children:
        job = replace(job, attributes=job_push.waiting_for(job.attributes, children, in_order=True))
    alone = PushJobs(command.tenant, node.queue, [job], command.durability)
    alone.completed_count = command.completed_count
    return job_push.apply(shard, alone, now)


def children(shard: Shard, command: Children, now: int) -> ChildrenFound:
    """Return the dependencies of a message, with their results."""
    (message,) = current_ids(shard, [command.id])
    require(shard, command.tenant, message)
    given, total = _waited_for(shard, command.tenant, command.id)
    asked = Show(command.tenant, current_ids(shard, given), dropped=True)
    found = message_state.show_each(shard, asked, now)
    open_ = sum(each.state.state != "completed" for each in found)
    found = [each for each in found if has_queue(command.within, each.queue.name)]
    sizes = accumulate(map(logs.piece_bytes, found))
    shown = found[: max(sum(size <= shard.limits.read_bytes_max for size in sizes), 1)]
    results = [
        message_state.notes(shard, command.tenant, each.state.id, (RESULT,), DEFAULT, now) for each in shown
    ]
    return ChildrenFound(command.id, ShownAll(shown), results, len(given) - open_, total)


def _waited_for(shard: Shard, tenant: str, message: int) -> tuple[list[int], int]:
    """Return the ids of a message's dependencies, up to one page, and their number.

    There are none if the message is no longer kept: a remembered push may outlive it.
    """
    (current,) = current_ids(shard, [message])
    where = locate(shard, tenant, Range(current, 1))
    if where is None:
        return [], 0
    spans = logs.attributes_at(where.place.partition.log, where.first).depends_on
    asked = chain.from_iterable(range(first, first + count) for first, count in spans)
    return list(islice(asked, bounds.SHOWN_MAX)), sum(count for _, count in spans)


def find(shard: Shard, command: FindJob, now: int) -> ShownAll:
    """Find the message with a custom id; the newest, if several queues have one."""
    check_name("job_id", command.job_id)
    if command.queue is not None:
        queues = [shard.names.known(command.tenant, command.queue)]
    else:
        every = shard.names.of_tenant(command.tenant)
        queues = [
            queue
            for queue in every
            if command.job_id in queue.named and has_queue(command.within, queue.name)
        ]
    ids: list[int] = []
    for queue in queues:
        place = queue.named.get(command.job_id)
        if place is not None:
            partition = shard.places[place[0]].partition
            ids.append(id_at(partition, place[1]))
    if not ids:
        raise NotFound(f"there is no message with the custom id {command.job_id}")
    found = [message_state.state(shard, State(command.tenant, each), now) for each in current_ids(shard, ids)]
    newest = max(found, key=lambda state: state.created_at)
    asked = Show(command.tenant, current_ids(shard, [newest.id]))
    return message_state.show(shard, asked, now)
