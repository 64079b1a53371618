"""Spread tenants: every queue lives in a shard of its own, so a command is about one queue.

What would join two queues of a spread tenant is refused, even if both happen to live in one shard: what a
tenant can do must not depend on a hash.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from forebay.core.api.commands import (
    AddNote,
    Arrive,
    Cancel,
    Command,
    Configure,
    Move,
    Push,
    Settle,
    TellProgress,
    Transact,
    Update,
)
from forebay.core.api.jobs import CronDelete, CronPut, FlowJob, Job, KvWrite, LimitPut, PushFlow, PushJobs
from forebay.core.api.queries import (
    Await,
    Children,
    GetAttempts,
    GetNotes,
    KvGet,
    KvList,
    KvWatch,
    LimitList,
    Show,
    State,
)
from forebay.core.api.stages import StageWrite
from forebay.core.errors import Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, parse_lease
from forebay.core.routing.placement import home_of, shard_of_queue
from forebay.core.shard.shard import Shard
from forebay.core.state import Attributes, Queue

WHY = "the queues of this tenant are spread over shards"
OF_HOME = (KvGet, KvList, KvWatch, LimitList)
"""Commands about what a tenant has beside its queues; it lies in the tenant's home shard."""
BY_ID = (Update, AddNote, TellProgress, State, GetNotes, GetAttempts, Await, Children)


IsMine = Callable[[int, int | None, int | None], bool]
"""Whether something of a shard is the tenant's: a partition number, or the name of a lease."""


class Touched(Struct):
    """What a command is about."""

    field: str = "queue"
    """The field to name if it is about too much."""
    queues: set[str] = set()
    numbers: set[int] = set()
    """Partition numbers of messages."""
    leases: set[tuple[int, int]] = set()
    """Shards and names of leases."""
    has_values: bool = False
    """Whether it is about what the tenant has beside its queues."""
    is_spread: bool = True
    """Whether the tenant is, so that some commands are refused."""

    def shards_of_names(self, tenant: str, shards: int) -> set[int]:
        """Return the shards of the queues and values that the command names."""
        found = {shard_of_queue(tenant, queue, shards) for queue in self.queues}
        return found | {home_of(tenant, shards)} if self.has_values else found

    def shards_of_ids(self, shards: int, is_mine: IsMine) -> Iterator[tuple[int, bool]]:
        """Yield the shards that ids and leases lead to, and whether they are the tenant's there."""
        for number in self.numbers:
            yield number % shards, is_mine(number % shards, number, None)
        for number, name in self.leases:
            if number < shards:
                yield number, is_mine(number, None, name)

    def refuse(self) -> Invalid:
        return Invalid(self.field, f"about one queue: {WHY}; send one command per queue")

    def check(self, tenant: str, shard: Shard) -> None:
        """Raise if the command joins two queues that live in one shard."""
        mine = [queue_of(shard, tenant, number, None) for number in self.numbers]
        mine += [
            queue_of(shard, tenant, None, name) for number, name in self.leases if number == shard.number
        ]
        if len(self.queues | {queue.name for queue in mine if queue is not None}) > 1:
            raise self.refuse()


def queue_of(shard: Shard, tenant: str, partition: int | None, lease: int | None) -> Queue | None:
    """Return the queue of a partition number or of a lease, if it is the tenant's."""
    queue = None
    if partition is not None and partition in shard.places:
        queue = shard.places[partition].queue
    elif lease is not None and lease in shard.leases:
        queue = shard.leases[lease].queue
    return queue if queue is not None and queue.tenant == tenant else None


def touched(command: Command, *, is_spread: bool = True) -> Touched:
    """Return what a command is about; raise if no command of a spread tenant may do it, and it is one."""
    found = Touched(is_spread=is_spread)
    _add(found, command)
    if is_spread and found.has_values and (found.queues or found.numbers or found.leases):
        raise Invalid("ops", f"about one queue or about values: {WHY}, and values live elsewhere")
    return found


def _add(found: Touched, command: Command) -> None:
    match command:
        case Transact():
            for op in command.ops:
                _add(found, op)
            found.field = "ops"
        case Arrive():
            _add(found, command.push)
        case PushFlow():
            for node in _walk(command.root):
                _add_job(found, node.queue, node.job)
            found.field = "children"
        case PushJobs():
            for job in command.jobs:
                _add_job(found, command.queue, job)
            if command.then is not None:
                _add_job(found, *command.then)
                found.field = "then"
        case CronPut():
            if (
                found.is_spread and not command.name.startswith(f"{command.queue}/")
            ) or command.name.endswith("/"):
                why = f"{WHY}, and a cron is found by its queue"
                raise Invalid("name", f"{command.queue}/ and more: {why}")
            _add_job(found, command.queue, command.job)
        case CronDelete() if found.is_spread:
            found.queues.add(command.name.partition("/")[0])
        case CronDelete():
            pass  # the cron tells its queue
        case LimitPut() if not found.is_spread:
            found.has_values = True
        case LimitPut() if command.limit is None:
            raise NotFound(f"there is no limit {command.name}")
        case LimitPut():
            raise Invalid("limit", f"left out: {WHY}, and share none; set rate_limit or concurrency of each")
        case KvWrite():
            found.has_values = True
        case Settle():
            found.field = "ids"
            if command.lease is not None:
                found.leases.add(parse_lease(command.lease))
            found.numbers |= _numbers(command.ids or ())
        case Cancel() | Move() | Show():
            found.field = "ids"
            found.numbers |= _numbers(command.ids)
        case _ if isinstance(command, BY_ID):
            found.numbers.add(command.id >> OFFSET_BITS)
            if isinstance(command, AddNote | TellProgress) and command.lease is not None:
                found.leases.add(parse_lease(command.lease))
        case _ if isinstance(command, OF_HOME):
            found.has_values = True
        case _:
            _add_queue(found, command)


def _add_queue(found: Touched, command: Command) -> None:
    """Add a command that names its queue."""
    match command:
        case Configure() if found.is_spread and command.options.get("limits"):
            raise Invalid("limits", f"left out: {WHY}, and share none; set rate_limit or concurrency")
        case Push():
            _add_dependencies(found, command.attributes)
        case StageWrite():
            for _, attributes in command.runs:
                _add_dependencies(found, attributes)
    queue = getattr(command, "queue", None)
    assert isinstance(queue, str), f"{type(command).__name__} names no queue"
    found.queues.add(queue)
    ids = getattr(command, "ids", None)
    if ids:
        found.field = "ids"
        found.numbers |= _numbers(ids)


def _add_job(found: Touched, queue: str, job: Job) -> None:
    writes_values = job.own is not None and bool(job.own.keys)
    if found.is_spread and writes_values:
        raise Invalid("keys_if_undelivered", f"left out: {WHY}, and values live elsewhere; read its end")
    found.has_values |= writes_values
    found.queues.add(queue)
    _add_dependencies(found, job.attributes)


def _add_dependencies(found: Touched, attributes: Attributes) -> None:
    if attributes.depends_on:
        found.field = "depends_on"
        found.numbers |= {first >> OFFSET_BITS for first, _ in attributes.depends_on}


def _numbers(ids: Iterable[int]) -> set[int]:
    return {each >> OFFSET_BITS for each in ids}


def _walk(node: FlowJob) -> Iterator[FlowJob]:
    left = [node]
    while left:
        each = left.pop()
        yield each
        left += each.children
