"""Pushes of messages that have something for themselves: a key, an id, others they depend on.

Each is checked against what the queue knows, in this order: the idempotency key of the whole request, then
of each message its transaction id, its custom id and its unique key. What is known already is not appended
again; the answer has the id of the first.
"""

from collections import Counter

from msgspec import Struct, field
from msgspec.structs import replace

from forebay.core import dependents, log as logs, records
from forebay.core.cancel import cancel_everywhere, check_made
from forebay.core.commands import Job, PushedJobs, PushJobs
from forebay.core.domain import Domain
from forebay.core.errors import Busy, Conflict, Invalid
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, address
from forebay.core.jobdata import DEBOUNCE, DROP, MODES, REPLACE, THROTTLE, Particulars
from forebay.core.leased import Meant, Range, meant
from forebay.core.limiters import attach_track
from forebay.core.limits import (
    DELAY_MS_MAX,
    ONCE_MAX,
    TIED_BYTES_MAX,
    TRANSACTIONS_MAX,
    UNDELIVERED_KEYS_MAX,
    check_name,
    check_range,
    check_request,
)
from forebay.core.look import state
from forebay.core.model import PLAIN, Attributes, Once, Partition, Queue, Tie
from forebay.core.numbers import fits, number_of
from forebay.core.order import check_ordered
from forebay.core.push import check_payloads, check_size, make_room, push, reached
from forebay.core.questions import OPEN, State
from forebay.core.retry import check_attributes
from forebay.core.shard import Place, Shard
from forebay.core.ties import forget_taken, free, tie, untie
from forebay.core.update import check_update, update


def waiting_for(attributes: Attributes, ids: list[int]) -> Attributes:
    """Attributes of a message that waits for others, too."""
    before = [each for first, count in attributes.depends_on for each in range(first, first + count)]
    return replace(attributes, depends_on=dependents.spans_of([*before, *ids]))


REQUEST, SEEN = b"r", b"t"
"""Kinds of what pushes answered: to a request with an idempotency key, to one that throttles."""
WAITING = Attributes(depends_on=((0, 1),))
"""What a message has at least that waits for others."""


class Plan(Struct, eq=False):
    """What several pushes need in all, if they are carried out together."""

    messages: Counter[str] = field(default_factory=Counter)
    """By queue."""
    partitions: dict[str, set[str]] = {}
    """By queue."""
    freed: Counter[str] = field(default_factory=Counter)
    """Messages that are settled first, by queue."""
    tied: Counter[str] = field(default_factory=Counter)
    """Payload bytes that ties will hold, by queue."""
    seen: set[tuple[str, ...]] = set()
    """Keys and ids of the messages, and their queues."""
    settled: set[tuple[int, int]] = set()
    """Partition and offset of what will have been settled for the work queue."""


def check(
    domain: Domain, command: PushJobs, now: int, plan: Plan | None = None, *, room: bool = True
) -> None:
    """Raise unless the jobs may be pushed: all that can be wrong is found here.

    With a plan, they have to fit together with what is in it, and are entered there. Without ``room``, only
    that is looked at which would be wrong at any time: the queue may be full right now.
    """
    limits, jobs = domain.limits, command.jobs
    check_range("jobs", len(jobs), 1, limits.batch_max)
    check_payloads(limits, [job.payload for job in jobs])
    queue = domain.queues.get((command.tenant, command.queue))
    names: set[str] = set()
    checked, tied, replacing = PLAIN, 0, False
    for job in jobs:
        names.add(job.partition)
        attributes, own = job.attributes, job.own
        if attributes is not PLAIN and attributes is not checked:
            check_attributes(limits, attributes)
            check_ordered(queue, attributes)
            if attributes.depends_on:
                dependents.check(domain, command.tenant, attributes)
            checked = attributes
        if own is not None:
            _check_own(job, own)
            if own.keys:
                tied += len(job.payload) * len(own.keys)
            replacing = replacing or own.dedup in (REPLACE, DEBOUNCE)
    if command.request is not None:
        check_request(*command.request, command.known_ms)
    reached(queue, command.durability, domain.reach)
    if queue is not None and command.request is not None and _once(queue, command, now) is not None:
        return
    if plan is None and command.then is not None:
        plan = Plan()
    new = len(jobs)
    if queue is not None and queue.options.max_size:
        new = _count_new(domain, queue, jobs, plan or Plan(), now)
    if plan is not None:
        plan.messages[command.queue] += new
        plan.tied[command.queue] += tied
        names |= plan.partitions.get(command.queue, set())
        plan.partitions[command.queue] = names
        tied = plan.tied[command.queue]
        _check_new(domain, command.tenant, plan)
    known = queue.partitions if queue is not None else {}
    # Every partition may need a number, and a flow that many more: there are billions.
    numbers = 0
    for name in names:
        if name not in known or not fits(known[name], len(jobs)):
            numbers += 1
    if queue is None or numbers:
        domain.check_room(command.tenant, command.queue, queue, names, numbers)
    if room and plan is not None:
        check_size(queue, plan.messages[command.queue] - plan.freed[command.queue])
    elif room:
        make_room(queue, new)
    if queue is not None and room and (tied or replacing):
        _check_held(queue, tied, replacing)
    if command.then is not None:
        name, job = command.then
        check(domain, PushJobs(command.tenant, name, [job]), now, plan)
        check_waiting(job)
        mine = names_of(job)
        if name == command.queue and mine and any(each in mine for other in jobs for each in names_of(other)):
            raise Invalid("on_complete", "a message with keys and ids that none of the batch has")
        check_ordered(domain.queues.get((command.tenant, name)), WAITING)


def _check_new(domain: Domain, tenant: str, plan: Plan) -> None:
    """Raise unless a tenant may have all the queues that a plan makes."""
    new = sum((tenant, name) not in domain.queues for name in plan.messages)
    known = domain.directory.tenants.get(tenant)
    if new and (len(known.queues) if known is not None else 0) + new > domain.limits.queues_max:
        raise Busy(f"a tenant has at most {domain.limits.queues_max} queues")


def _count_new(domain: Domain, queue: Queue, jobs: list[Job], plan: Plan, now: int) -> int:
    """How many of the jobs take room: those that repeat neither what is known, nor each other."""
    pushing = _Pushing(domain, domain.shards[queue.shard], queue, "", now)
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


def _without_freed(queue: Queue, own: Particulars, settled: set[tuple[int, int]]) -> Particulars:
    """What a job has for itself, without a key that will be free when its holder is settled."""
    if own.dedup == DROP and own.unique_key is not None and queue.uniques.get(own.unique_key) in settled:
        return replace(own, unique_key=None)
    return own


def names_of(job: Job) -> list[tuple[str, ...]]:
    """What a job goes by in its queue: no two have the same."""
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
    """Raise unless a job may wait for others than it names."""
    if job.own is not None and job.own.dedup == DEBOUNCE:
        raise Invalid("dedup", f"another than {DEBOUNCE}: the message waits for others")


def _once(queue: Queue, command: PushJobs, now: int) -> Once | None:
    """What a request was answered that is made again, if it is known."""
    once = queue.once.get(_request(command)) if command.request is not None else None
    return once if once is not None and once.until > now else None


def _request(command: PushJobs) -> bytes:
    assert command.request is not None
    return REQUEST + "\0".join(command.request).encode()


def _check_own(job: Job, own: Particulars) -> None:
    if own.unique_key is not None:
        check_name("unique_key", own.unique_key)
        if own.is_key_alone:
            return
    for name, value in (("job_id", own.job_id), ("transaction_id", own.transaction_id)):
        if value is not None:
            check_name(name, value)
    if len(own.keys) > UNDELIVERED_KEYS_MAX:
        raise Invalid("keys_if_undelivered", f"a list of at most {UNDELIVERED_KEYS_MAX} keys")
    if own.dedup not in MODES:
        raise Invalid("dedup", f"one of {', '.join(MODES)}")
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
        raise Invalid("delay and depends_on", f"left out: {DEBOUNCE} says when the message is delivered")


def _check_held(queue: Queue, size: int, replacing: bool) -> None:
    """Raise if what a queue holds forbids jobs right now that replace others, or tie so many bytes more."""
    if size and queue.tied_bytes + size > TIED_BYTES_MAX:
        raise Busy(
            f"queue {queue.name} has {queue.tied_bytes} bytes of messages with keys_if_undelivered that have "
            f"not ended, and may have {TIED_BYTES_MAX}"
        )
    if replacing:
        for name in queue.groups:
            check_made(queue, name)


def apply(domain: Domain, command: PushJobs, now: int) -> PushedJobs:
    """Push checked jobs."""
    queue = domain.made(command.tenant, command.queue)
    shard = domain.shards[queue.shard]
    durability = reached(queue, command.durability, domain.reach)
    if command.request is not None:
        once = _once(queue, command, now)
        if once is not None:
            ids = [each for first, count in once.ids for each in range(first, first + count)]
            known = list(range(len(ids)))
            return PushedJobs(ids, once.durability, known, then=once.then, throttled=list(once.throttled))
    pushing = _Pushing(domain, shard, queue, durability, now)
    for job in command.jobs:
        pushing.add(job)
    pushing.append()
    pushed = PushedJobs(pushing.ids, durability, pushing.duplicates, pushing.replaced)
    pushed.throttled = pushing.throttled
    if command.then is not None:
        where, job = command.then
        job = replace(job, attributes=waiting_for(job.attributes, pushing.ids))
        (pushed.then,) = apply(domain, PushJobs(command.tenant, where, [job]), now).ids
    if command.request is not None:
        until = now + (command.known_ms or queue.options.dedup_window_ms)
        throttled = tuple(pushing.throttled)
        once = Once(until, _in_order(pushing.ids), durability, pushed.then, throttled)
        _remember(shard, queue, _request(command), once, now)
    return pushed


def push_key(domain: Domain, command: PushJobs, now: int) -> PushedJobs | None:
    """Push one message that has nothing but a unique key, to where messages were pushed before.

    That is the usual single push, and here it comes without a detour. None if there is more to it.
    """
    (job,) = command.jobs
    own, queue = job.own, domain.queues.get((command.tenant, command.queue))
    if own is None or queue is None or job.attributes is not PLAIN or queue.options.max_size:
        return None
    if command.request is not None or command.then is not None or job.lane or not own.is_key_alone:
        return None
    partition, key = queue.partitions.get(job.partition), own.unique_key
    if partition is None or key is None or key in queue.uniques or not fits(partition, 1):
        return None
    payloads = [job.payload]
    lengths = check_payloads(domain.limits, payloads)
    check_name("unique_key", key)
    durability = reached(queue, command.durability, domain.reach)
    shard = domain.shards[queue.shard]
    tie(shard, queue, partition, partition.log.end, Tie(key))
    pushed = push(shard, queue, partition, payloads, lengths, durability, PLAIN, now)
    return PushedJobs([pushed.first], durability)


def _in_order(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Ids as (first, count), in the order they came.

    >>> _in_order([8, 9, 4, 8])
    ((8, 2), (4, 1), (8, 1))
    """
    found: list[tuple[int, int]] = []
    for each in ids:
        if found and sum(found[-1]) == each:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((each, 1))
    return tuple(found)


def _remember(shard: Shard, queue: Queue, name: bytes, once: Once, now: int) -> None:
    """Have an answer known for a while."""
    if once.until <= now:
        return
    forget_once(shard, queue, name)
    queue.once[name] = once
    shard.onces.add(once.until, (queue.prefix, name))
    shard.alarm.sooner(once.until)
    shard.keep_row(queue, records.once_key(queue.prefix, name), records.pack_once(once))
    if len(queue.once) > ONCE_MAX:
        forget_once(shard, queue, next(iter(queue.once)))


def forget_once(shard: Shard, queue: Queue, name: bytes) -> None:
    once = queue.once.pop(name, None)
    if once is not None:
        shard.onces.remove(once.until, (queue.prefix, name))
        shard.keep_row(queue, records.once_key(queue.prefix, name), None)


def forget_due(shard: Shard, now: int) -> None:
    """Forget the answers whose time is over."""
    while names := shard.onces.first_due(now):
        for prefix, name in names:
            forget_once(shard, shard.queues[prefix], name)


def known(domain: Domain, tenant: str, name: str, job: Job, now: int, plan: Plan | None = None) -> int | None:
    """The id of the message that a job would repeat, if it does; with a plan, when that is carried out."""
    queue = domain.queues.get((tenant, name))
    if queue is None or job.own is None:
        return None
    pushing = _Pushing(domain, domain.shards[queue.shard], queue, "", now)
    own = job.own if plan is None else _without_freed(queue, job.own, plan.settled)
    return pushing.find(queue.partitions.get(job.partition), own)


class _Pushing(Struct, eq=False):
    """Jobs on their way into a queue: those that share partition and attributes are appended together."""

    domain: Domain
    shard: Shard
    queue: Queue
    durability: str
    now: int
    ids: list[int] = []
    duplicates: list[int] = []
    """Places of those that are known already."""
    throttled: list[int] = []
    """Places of those of them that came too soon."""
    replaced: list[int] = []
    """Places of those that took the place of others."""
    payloads: list[bytes] = []
    transactions: list[tuple[int, str]] = []
    """Offsets and transaction ids of the payloads."""
    partition: Partition | None = None
    attributes: Attributes = PLAIN

    def add(self, job: Job) -> None:
        """Take one job: it is known, or takes the place of another, or is appended with the next."""
        queue, own, attributes = self.queue, job.own, job.attributes
        partition = queue.partitions.get(job.partition)
        is_new = own is None or (own.is_key_alone and own.unique_key not in queue.uniques)
        if own is not None and not is_new:
            known = self.find(partition, own)
            if known is not None:
                self.duplicates.append(len(self.ids))
                self.ids.append(known)
                return
        if partition is None or (job.lane and not partition.lane):
            partition = self._made(job)
        if own is not None and not is_new:
            if own.dedup == DEBOUNCE:
                attributes = replace(attributes, delay_ms=own.window_ms)
            takes_key = own.unique_key is not None and own.dedup != THROTTLE
            if takes_key and self._replace(partition, job, own, attributes):
                return
        if partition is not self.partition or (
            attributes is not self.attributes and attributes != self.attributes
        ):
            self.append()
            # A log is plain as long as nothing in it has attributes.
            self.partition = partition
            self.attributes = attributes if attributes is PLAIN or attributes != PLAIN else PLAIN
        waiting = len(self.payloads)
        if not fits(partition, waiting + 1):
            self.append()
            self.shard.renumber(queue, partition)
            waiting = 0
        offset = partition.log.end + waiting
        number, base = partition.numbers[-1]
        self.payloads.append(job.payload)
        message = number << OFFSET_BITS | offset - base
        self.ids.append(message)
        if own is not None:
            self._enter(partition, offset, message, job, own)

    def _made(self, job: Job) -> Partition:
        """The partition of a job; made, and made a lane, as it needs it."""
        queue = self.queue
        partition = queue.partitions.get(job.partition) or self.shard.add_partition(queue, job.partition)
        if job.lane and not partition.lane:
            partition.lane = True
            self.shard.touch_partition(queue, partition)
            for group in queue.groups.values():
                attach_track(group.tracks[partition.key])
        return partition

    def find(self, partition: Partition | None, own: Particulars) -> int | None:
        """The id of the message that a job repeats, if it does."""
        queue, window = self.queue, self.queue.options.dedup_window_ms
        if own.transaction_id is not None and partition is not None:
            offset, at = partition.transactions.get(own.transaction_id, (-1, 0))
            if offset >= 0 and at > self.now - window:
                return self._id(partition, offset)
        if own.job_id is not None and own.job_id in queue.named:
            key, offset = queue.named[own.job_id]
            return self._id(self.shard.places[key].partition, offset)
        if own.unique_key is None:
            return None
        if own.dedup == THROTTLE:
            once = queue.once.get(SEEN + own.unique_key.encode())
            if once is None or once.until <= self.now:
                return None
            self.throttled.append(len(self.ids))
            return once.ids[0][0]
        holder = self._holder(own.unique_key)
        if holder is None or own.dedup != DROP:
            return None
        return self._id(*holder)

    def _holder(self, key: str) -> tuple[Partition, int] | None:
        """The message that holds a unique key, unless its time is over."""
        held = self.queue.uniques.get(key)
        if held is None:
            return None
        partition = self.shard.places[held[0]].partition
        is_over = held[1] < partition.log.end and not self._is_open(partition, held[1])
        return None if is_over else (partition, held[1])

    def _is_open(self, partition: Partition, offset: int) -> bool:
        """Whether a message is kept and has not ended, as it is shown."""
        number, base = number_of(partition, offset)
        asked = State(self.queue.tenant, address(number, offset - base))
        return logs.has(partition.log, offset) and state(self.shard, asked, self.now).state in OPEN

    def _id(self, partition: Partition, offset: int) -> int:
        """The id as which a message is shown."""
        if offset < partition.log.end and logs.has(partition.log, offset):
            origin = logs.attributes_at(partition.log, offset).origin
            if origin is not None:
                return origin[0]
        number, base = number_of(partition, offset)
        return address(number, offset - base)

    def _replace(self, partition: Partition, job: Job, own: Particulars, attributes: Attributes) -> bool:
        """Let a job take the place of the one that holds its key; whether that is all there is to do."""
        assert own.unique_key is not None
        if own.unique_key in self.queue.uniques and self._holder(own.unique_key) is None:
            free(self.shard, self.queue, own.unique_key)
        if own.dedup not in (REPLACE, DEBOUNCE) or own.unique_key not in self.queue.uniques:
            return False
        self.append()
        key, offset = self.queue.uniques[own.unique_key]
        holder = self.shard.places[key].partition
        number, base = number_of(holder, offset)
        message = address(number, offset - base)
        where = meant(self.shard, self.queue.tenant, Range(message, 1))
        if where is not None and self._waits(where):
            if holder is partition and not attributes.depends_on:
                attributes = self._put_off(where, own, attributes)
                untie(self.shard, self.queue, holder, offset)
                pushed = update(
                    self.shard, where, message, job.payload, self.durability, self.now, own=attributes
                )
                self.replaced.append(len(self.ids))
                self.ids.append(pushed.first)
                self._enter(partition, partition.log.end - 1, pushed.first, job, own)
                if self.transactions:
                    self._take(partition)
                return True
            cancel_everywhere(self.shard, where, self.now)
            self.shard.plan_sweep(self.queue, self.now)
        if own.unique_key in self.queue.uniques:
            free(self.shard, self.queue, own.unique_key)
        return False

    def _waits(self, where: Meant) -> bool:
        """Whether nobody has had a message yet."""
        if where.place.partition.parked_messages and self._is_parked(where):
            return True
        try:
            check_update(self.shard, where, self.now)
        except Conflict:
            return False
        return True

    def _is_parked(self, where: Meant) -> bool:
        number, base = number_of(where.place.partition, where.first)
        asked = State(self.queue.tenant, address(number, where.first - base))
        return state(self.shard, asked, self.now).state == "parked"

    def _put_off(self, where: Meant, own: Particulars, attributes: Attributes) -> Attributes:
        """With debounce, the message is put off again, but not for ever."""
        if own.dedup != DEBOUNCE or not own.max_ms:
            return attributes
        log = where.place.partition.log
        segment = log.segments[logs.find(log, where.first)]
        _, created_at, had = segment.run_at(where.first - segment.base)
        began_at = had.origin[1] if had.origin is not None else created_at
        left = max(began_at + own.max_ms - self.now, 0)
        return replace(attributes, delay_ms=min(attributes.delay_ms, left))

    def _enter(self, partition: Partition, offset: int, message: int, job: Job, own: Particulars) -> None:
        """Have a message found by its key and ids, and its end have the consequences it asks for."""
        queue, shard, attributes = self.queue, self.shard, job.attributes
        if own.is_key_alone and not attributes.ttl_ms:
            assert own.unique_key is not None
            tie(shard, queue, partition, offset, Tie(own.unique_key))
            return
        if own.unique_key is not None and own.dedup == THROTTLE:
            once = Once(self.now + own.window_ms, ((message, 1),), self.durability)
            _remember(shard, queue, SEEN + own.unique_key.encode(), once, self.now)
        held = own.unique_key if own.unique_key is not None and own.dedup != THROTTLE else ""
        if held or own.keys:
            expires_at = max(self.now, partition.log.time) + attributes.ttl_ms if attributes.ttl_ms else 0
            payload = bytes(job.payload) if own.keys else b""
            tie(shard, queue, partition, offset, Tie(held, own.keys, payload, expires_at))
        if own.job_id is not None:
            first = self._first(partition, offset, message)
            before = partition.job_ids.get(first)
            if before is not None:
                del queue.named[before]
            partition.job_ids[first] = own.job_id
            queue.named[own.job_id] = (partition.key, first)
            key = records.job_id_key(queue.prefix, partition.key, first)
            shard.keep_row(queue, key, own.job_id.encode())
        if own.transaction_id is not None:
            partition.transactions[own.transaction_id] = (offset, self.now)
            self.transactions.append((offset, own.transaction_id))

    def _first(self, partition: Partition, offset: int, message: int) -> int:
        """The offset of the message as which one is shown."""
        place = self.shard.places.get(message >> OFFSET_BITS)
        return offset if place is None else place.first + (message & OFFSET_MASK)

    def append(self) -> None:
        """Append what has come together."""
        if not self.payloads:
            return
        partition, payloads = self.partition, self.payloads
        assert partition is not None
        first = partition.log.end
        lengths = list(map(len, payloads))
        common = (self.durability, self.attributes, self.now)
        push(self.shard, self.queue, partition, payloads, lengths, *common)
        self.payloads = []
        if self.attributes.depends_on:
            place = Place(self.queue, partition, 0)
            dependents.depend(self.domain, place, first, len(payloads), self.attributes, self.now)
        if self.transactions:
            self._take(partition)

    def _take(self, partition: Partition) -> None:
        """Keep the transaction ids of what was appended to a partition."""
        taken, self.transactions = self.transactions, []
        first = taken[0][0]
        partition.taken[first] = (self.now, taken)
        key = records.taken_key(self.queue.prefix, partition.key, first)
        self.shard.keep_row(self.queue, key, records.pack_taken(self.now, taken))
        while len(partition.transactions) > TRANSACTIONS_MAX and len(partition.taken) > 1:
            forget_taken(self.shard, self.queue, partition, next(iter(partition.taken)))


def sweep_taken(shard: Shard, queue: Queue, now: int) -> int:
    """Forget transaction ids that were taken long enough ago; when there are more to forget."""
    again_at = 1 << 62
    window = queue.options.dedup_window_ms
    for partition in queue.partitions.values():
        while partition.taken:
            first, (at, _) = next(iter(partition.taken.items()))
            if at > now - window:
                again_at = min(again_at, at + window)
                break
            forget_taken(shard, queue, partition, first)
    return again_at
