"""Validate a push of jobs: everything that can be wrong with it is found here."""

from collections import Counter

from msgspec import Struct, field
from msgspec.structs import replace

from forebay.core.api.checks import check_attributes
from forebay.core.api.jobs import Job, PushJobs
from forebay.core.bounds import (
    DELAY_MS_MAX,
    TIED_BYTES_MAX,
    UNDELIVERED_KEYS_MAX,
    check_name,
    check_range,
    check_request,
)
from forebay.core.errors import Busy, Invalid
from forebay.core.jobs import dependencies
from forebay.core.jobs.push import Pushing
from forebay.core.links.dedup import remembered
from forebay.core.log.numbers import fits
from forebay.core.push.checks import check_ordered, check_payloads
from forebay.core.push.push import reached
from forebay.core.push.room import check_size, make_room
from forebay.core.shard.shard import Shard
from forebay.core.state import PLAIN, Attributes, Identity, Queue
from forebay.core.tracks.planning import check_planned
from forebay.core.words import DEBOUNCE, DEDUP_MODES, DROP, REPLACE, THROTTLE

WAITING = Attributes(depends_on=((0, 1),))
"""Attributes of any message that waits for others."""


class Plan(Struct, eq=False):
    """What several pushes need in total, if they are applied together."""

    messages: Counter[str] = field(default_factory=Counter)
    """By queue."""
    partitions: dict[str, set[str]] = {}
    """By queue."""
    freed: Counter[str] = field(default_factory=Counter)
    """Messages settled by earlier operations, by queue."""
    tied: Counter[str] = field(default_factory=Counter)
    """Payload bytes that ties will keep, by queue."""
    seen: set[tuple[str, ...]] = set()
    """Names (keys and ids) of the messages, with their queues."""
    settled: set[tuple[int, int]] = set()
    """Partition and offset of messages that earlier operations settle in the group ``default``."""


def check(shard: Shard, command: PushJobs, now: int, plan: Plan | None = None, *, room: bool = True) -> None:
    """Raise unless the jobs may be pushed: everything that can be wrong is found here.

    With a plan, the jobs must fit together with what it already has, and are added to it. Without ``room``,
    only what is wrong at any time is checked: the queue may be full right now.
    """
    limits, jobs = shard.limits, command.jobs
    check_range("messages", len(jobs), 1, limits.batch_max)
    check_payloads(limits, [job.payload for job in jobs])
    queue = shard.names.queues.get((command.tenant, command.queue))
    names: set[str] = set()
    checked, tied, replacing = PLAIN, 0, False
    for job in jobs:
        names.add(job.partition)
        attributes, own = job.attributes, job.own
        if attributes is not PLAIN and attributes is not checked:
            check_attributes(limits, attributes)
            check_ordered(queue, attributes)
            if attributes.depends_on:
                dependencies.check(shard, command.tenant, attributes)
            checked = attributes
        if own is not None:
            _check_own(job, own)
            if own.keys:
                tied += len(job.payload) * len(own.keys)
            replacing = replacing or own.dedup in (REPLACE, DEBOUNCE)
    if command.request is not None:
        check_request(*command.request, command.known_ms)
    reached(queue, command.durability, shard.reach)
    if queue is not None and command.request is not None and remembered(queue, command, now) is not None:
        return
    if plan is None and command.then is not None:
        plan = Plan()
    new = len(jobs)
    if queue is not None and queue.options.max_size:
        new = _count_new(shard, queue, jobs, plan or Plan(), now)
    if plan is not None:
        plan.messages[command.queue] += new
        plan.tied[command.queue] += tied
        names |= plan.partitions.get(command.queue, set())
        plan.partitions[command.queue] = names
        tied = plan.tied[command.queue]
        _check_new(shard, command.tenant, plan)
    known = queue.partitions if queue is not None else {}
    # Every partition may need a number, and a flow that many more: there are billions.
    numbers = 0
    for name in names:
        if name not in known or not fits(known[name], len(jobs)):
            numbers += 1
    if queue is None or numbers:
        shard.check_room(command.tenant, command.queue, queue, names, numbers)
    if room and plan is not None:
        check_size(queue, plan.messages[command.queue] - plan.freed[command.queue])
    elif room:
        make_room(queue, new)
    if queue is not None and room and (tied or replacing):
        _check_held(queue, tied, replacing)
    if command.then is not None:
        name, job = command.then
        check(shard, PushJobs(command.tenant, name, [job]), now, plan)
        check_waiting(job)
        mine = names_of(job)
        if name == command.queue and mine and any(each in mine for other in jobs for each in names_of(other)):
            raise Invalid("on_complete", "a message with keys and ids that none of the batch has")
        check_ordered(shard.names.queues.get((command.tenant, name)), WAITING)


def _check_new(shard: Shard, tenant: str, plan: Plan) -> None:
    """Raise unless the tenant may create all queues of a plan."""
    new = sum((tenant, name) not in shard.names.queues for name in plan.messages)
    if new:
        shard.names.check_count(tenant, new)


def _count_new(shard: Shard, queue: Queue, jobs: list[Job], plan: Plan, now: int) -> int:
    """Count jobs that need room: neither known already nor duplicates of each other."""
    pushing = Pushing(shard, queue, "", now)
    new = 0
    for job in jobs:
        own = job.own
        if own is not None:
            names = {(queue.name, *name) for name in names_of(job)}
            again = names & plan.seen and own.dedup in (DROP, THROTTLE)
            left = _without_freed(queue, own, plan.settled)
            if again or pushing.find(queue.partitions.get(job.partition), left) is not None:
                continue
            plan.seen |= names
        new += 1
    return new


def _without_freed(queue: Queue, own: Identity, settled: set[tuple[int, int]]) -> Identity:
    """Return the identity of a job, without a unique key that an earlier operation frees."""
    if own.dedup == DROP and own.unique_key is not None and queue.uniques.get(own.unique_key) in settled:
        return replace(own, unique_key=None)
    return own


def names_of(job: Job) -> list[tuple[str, ...]]:
    """Return the names of a job that must be unique in its queue."""
    own = job.own
    if own is None:
        return []
    found: list[tuple[str, ...]] = []
    if own.unique_key is not None:
        found.append(("throttled" if own.dedup == THROTTLE else "unique_key", own.unique_key))
    if own.job_id is not None:
        found.append(("job_id", own.job_id))
    if own.transaction_id is not None:
        found.append(("transaction_id", job.partition, own.transaction_id))
    return found


def check_waiting(job: Job) -> None:
    """Raise unless a job may be made to wait for other messages."""
    if job.own is not None and job.own.dedup == DEBOUNCE:
        raise Invalid("dedup", f"another than {DEBOUNCE}: the message waits for others")


def _check_own(job: Job, own: Identity) -> None:
    if own.unique_key is not None:
        check_name("unique_key", own.unique_key)
        if own.is_key_alone:
            return
    for name, value in (("job_id", own.job_id), ("transaction_id", own.transaction_id)):
        if value is not None:
            check_name(name, value)
    if len(own.keys) > UNDELIVERED_KEYS_MAX:
        raise Invalid("keys_if_undelivered", f"a list of at most {UNDELIVERED_KEYS_MAX} keys")
    if own.dedup not in DEDUP_MODES:
        raise Invalid("dedup", f"one of {', '.join(DEDUP_MODES)}")
    timed = own.dedup in (DEBOUNCE, THROTTLE)
    if own.unique_key is None and (own.dedup != DROP or own.window_ms or own.max_ms):
        raise Invalid("unique_key", "given along with dedup, dedup_window_ms and dedup_max_ms")
    if timed:
        check_range("dedup_window_ms", own.window_ms, 1, DELAY_MS_MAX)
    elif own.window_ms:
        raise Invalid("dedup_window_ms", f"left out: only {DEBOUNCE} and {THROTTLE} have a window")
    if own.max_ms:
        if own.dedup != DEBOUNCE:
            raise Invalid("dedup_max_ms", f"left out: only {DEBOUNCE} has it")
        check_range("dedup_max_ms", own.max_ms, own.window_ms, DELAY_MS_MAX)
    if own.dedup == DEBOUNCE and (job.attributes.delay_ms or job.attributes.depends_on):
        raise Invalid(
            "delay_ms", f"left out, and dependencies too: {DEBOUNCE} says when the message is delivered"
        )


def _check_held(queue: Queue, size: int, replacing: bool) -> None:
    """Raise if the queue can't take jobs that replace others, or keep ``size`` more bytes, right now."""
    if size and queue.tied_bytes + size > TIED_BYTES_MAX:
        raise Busy(
            f"queue {queue.name} has {queue.tied_bytes} bytes of messages with keys_if_undelivered that have "
            f"not ended, and may have {TIED_BYTES_MAX}"
        )
    if replacing:
        for name in queue.groups:
            check_planned(queue, name)


def known(shard: Shard, tenant: str, name: str, job: Job, now: int, plan: Plan | None = None) -> int | None:
    """Return the id of the message that a job would duplicate, after the plan if there is one."""
    queue = shard.names.queues.get((tenant, name))
    if queue is None or job.own is None:
        return None
    pushing = Pushing(shard, queue, "", now)
    own = job.own if plan is None else _without_freed(queue, job.own, plan.settled)
    return pushing.find(queue.partitions.get(job.partition), own)
