"""Transactions: acks, nacks, pushes and key-value writes of one tenant in one commit, or none of them.

Each operation is checked against the state that the ones before it leave. After the checks nothing can fail.
"""

from collections.abc import Iterator

from forebay.core.api.commands import Ack, Nack, Purge, Reply, Settle, Transact, Transacted
from forebay.core.api.jobs import KvWrite, PushFlow, PushJobs
from forebay.core.bounds import OPERATIONS_MAX, check_range
from forebay.core.delivery import dead_letters
from forebay.core.delivery.give_back import nack
from forebay.core.delivery.settle import ack, check_settle, resolve_successors
from forebay.core.errors import Conflict, ForebayError, Invalid
from forebay.core.jobs import check as job_check, flows, push as job_push
from forebay.core.keyvalue import store as kv_store
from forebay.core.log.numbers import id_at
from forebay.core.shard.addresses import NOT_LEASED, leased, settled_by
from forebay.core.shard.shard import Shard
from forebay.core.state import Lease
from forebay.core.tracks.leased import find_all
from forebay.core.words import DEFAULT


def transact(shard: Shard, command: Transact, now: int) -> Transacted:
    """Apply several commands, all or none."""
    check_range("ops", len(command.ops), 1, OPERATIONS_MAX)
    pushed = sum(len(op.jobs) for op in command.ops if isinstance(op, PushJobs))
    if pushed > shard.limits.batch_max:
        raise Invalid("ops", f"at most {shard.limits.batch_max} messages together; there are {pushed}")
    plan = job_check.Plan()
    left: kv_store.Left = {}
    writes: dict[int, kv_store.Left] = {}
    settled: set[tuple[int, int, int]] = set()
    for at, op in enumerate(command.ops):
        assert op.tenant == command.tenant, "a transaction is one tenant's"
        try:
            match op:
                case PushJobs():
                    job_check.check(shard, op, now, plan)
                case PushFlow():
                    flows.check(shard, op, now, plan)
                case KvWrite():
                    writes[at] = kv_store.check(shard, op, now, left)
                    left |= writes[at]
                case Ack() | Nack():
                    _check_leased(shard, op, settled, plan)
                case Purge():
                    _check_dead(shard, op)
        except Invalid as error:
            raise Invalid(f"ops[{at}].{error.field}", error.accepted) from None
        except ForebayError as error:
            error.place = f"ops[{at}]"
            error.message = f"{error.place}: {error.message}"
            raise
    try:
        return Transacted([_apply(shard, op, writes.get(at), now) for at, op in enumerate(command.ops)])
    except ForebayError as error:
        raise AssertionError(f"what was checked can be carried out: {error}") from error


def _check_leased(
    shard: Shard, command: Settle, settled: set[tuple[int, int, int]], plan: job_check.Plan
) -> None:
    """Raise unless everything a command names is leased, and no earlier command settles it."""
    check_settle(shard.limits, command)
    resolve_successors(shard, command)
    mine: set[tuple[int, int, int]] = set()
    for lease, partition, first, end in _leased(shard, command):
        mine |= {(lease.name, partition, offset) for offset in range(first, end)}
        if isinstance(command, Ack) and len(lease.queue.groups) == 1:
            plan.freed[lease.queue.name] += end - first
        if lease.group.name == DEFAULT:
            plan.settled |= {(partition, offset) for offset in range(first, end)}
    if mine & settled:
        raise Invalid("ids", "about each message once; in strict order a nack is about all behind it, too")
    settled |= mine


def _check_dead(shard: Shard, command: Purge) -> None:
    """Raise unless everything a command names is a dead letter."""
    dead_letters.check(shard.limits, command)
    queue = shard.names.known(command.tenant, command.queue)
    resolve_successors(shard, command)
    parts, refused = dead_letters.meant(shard, queue, queue.groups.get(command.group), command)
    if refused:
        raise Conflict(f"message {refused[0]} is no dead letter of the group")
    for track, _, low, high in parts if command.unless_bound else ():
        if dead_letters.is_bound(track, low, high):
            which = id_at(track.partition, low)
            raise Conflict(f"message {which}, or one after it, has dependencies or others depend on it")


def _leased(shard: Shard, command: Settle) -> Iterator[tuple[Lease, int, int, int]]:
    """Yield lease, partition, first offset and end of what a command settles."""
    if command.ids is None:
        lease = leased(shard, command)
        for run in lease.runs.values():
            for first, count in run.gaps():
                yield lease, run.partition, first, first + count
        return
    token, ids = settled_by(shard, command)
    found, refused = find_all(shard, command, token, ids)
    if refused:
        raise Conflict(f"message {refused[0]} is {NOT_LEASED}")
    for each in found:
        if isinstance(command, Ack) and command.results and each.lease.group.name != DEFAULT:
            raise Invalid("result", f"left out: only the group {DEFAULT} has results")
        yield each.lease, each.run.partition, each.offset, each.offset + each.length
        if isinstance(command, Nack) and each.lease.queue.ordered:
            for run in each.lease.runs.values():
                if run.partition == each.run.partition and run.first + run.count > each.offset:
                    yield each.lease, run.partition, max(run.first, each.offset), run.first + run.count


def _apply(shard: Shard, op: object, left: kv_store.Left | None, now: int) -> Reply:
    match op:
        case PushJobs():
            return job_push.apply(shard, op, now)
        case PushFlow():
            return flows.apply(shard, op, now)
        case KvWrite():
            assert left is not None
            return kv_store.apply(shard, op.tenant, left)
        case Ack():
            return ack(shard, op, now)
        case Nack():
            return nack(shard, op, now)
        case Purge():
            return dead_letters.purge(shard, shard.names.known(op.tenant, op.queue), op, now)
    raise AssertionError(f"no transaction has a {type(op).__name__}")
