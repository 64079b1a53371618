"""Push jobs: messages with a dedup identity, an ordered lane, or dependencies.

Each job is looked up in this order: the idempotency key of the whole request, then the message's transaction
id, custom id and unique key. A known job is not appended again; the reply carries the id of the first one.
"""

from msgspec import Struct
from msgspec.structs import replace

from forebay.core import ids as core_ids
from forebay.core.api.jobs import Job, PushedJobs, PushJobs
from forebay.core.api.queries import State
from forebay.core.bounds import TRANSACTIONS_MAX, check_name
from forebay.core.delivery.cancel import cancel_everywhere
from forebay.core.errors import Conflict
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range
from forebay.core.jobs import dependencies
from forebay.core.links.dedup import SEEN, forget_job_id, forget_taken, remember, remembered, request_key
from forebay.core.links.ties import free, tie, untie
from forebay.core.log import log as logs
from forebay.core.log.numbers import fits, id_at
from forebay.core.push.checks import check_payloads
from forebay.core.push.push import push, reached
from forebay.core.push.update import check_update, update
from forebay.core.queries.message_state import state
from forebay.core.records import codec, keyspace
from forebay.core.shard.addresses import Located, current_ids, locate, offset_of
from forebay.core.shard.limiters import attach_track
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import PLAIN, Attributes, Identity, Partition, Queue, RememberedPush, Tie
from forebay.core.tracks.places import DEAD, is_in
from forebay.core.words import DEBOUNCE, DEFAULT, DROP, OPEN, REPLACE, THROTTLE


def waiting_for(attributes: Attributes, ids: list[int], *, in_order: bool = False) -> Attributes:
    """Return attributes with more dependencies; with ``in_order`` these come first, in their order.

    Otherwise they are sorted, as a batch may be large, and alternate between partitions.
    """
    before = (each for first, count in attributes.depends_on for each in range(first, first + count))
    spans_of = core_ids.spans_in_order if in_order else core_ids.spans_of
    return replace(attributes, depends_on=spans_of([*ids, *before]))


def apply(shard: Shard, command: PushJobs, now: int) -> PushedJobs:
    """Push checked jobs."""
    queue = shard.made(command.tenant, command.queue, command.completed_count)
    durability = reached(queue, command.durability, shard.reach)
    if command.request is not None:
        once = remembered(queue, command, now)
        if once is not None:
            ids = [each for first, count in once.ids for each in range(first, first + count)]
            known = list(range(len(ids)))
            return PushedJobs(ids, once.durability, known, then=once.then, throttled=list(once.throttled))
    pushing = Pushing(shard, queue, durability, now)
    for job in command.jobs:
        pushing.add(job)
    pushing.append()
    pushed = PushedJobs(pushing.ids, durability, pushing.duplicates, pushing.replaced)
    pushed.throttled = pushing.throttled
    if command.then is not None:
        where, job = command.then
        job = replace(job, attributes=waiting_for(job.attributes, pushing.ids))
        last = PushJobs(command.tenant, where, [job], completed_count=command.completed_count)
        (pushed.then,) = apply(shard, last, now).ids
    if command.request is not None:
        until = now + (command.known_ms or queue.options.dedup_window_ms)
        throttled = tuple(pushing.throttled)
        once = RememberedPush(until, _in_order(pushing.ids), durability, pushed.then, throttled)
        remember(shard, queue, request_key(command), once, now)
    return pushed


def push_key(shard: Shard, command: PushJobs, now: int) -> PushedJobs | None:
    """Push one message with only a unique key to an existing partition; None if there is more to it.

    This is the usual single push of a job: the fast path skips the plan.
    """
    (job,) = command.jobs
    own, queue = job.own, shard.names.queues.get((command.tenant, command.queue))
    if own is None or queue is None or job.attributes is not PLAIN or queue.options.max_size:
        return None
    if command.request is not None or command.then is not None or job.lane or not own.is_key_alone:
        return None
    partition, key = queue.partitions.get(job.partition), own.unique_key
    if partition is None or key is None or key in queue.uniques or not fits(partition, 1):
        return None
    payloads = [job.payload]
    lengths = check_payloads(shard.limits, payloads)
    check_name("unique_key", key)
    durability = reached(queue, command.durability, shard.reach)
    tie(shard, queue, partition, partition.log.end, Tie(key))
    pushed = push(shard, queue, partition, payloads, lengths, durability, PLAIN, now)
    return PushedJobs([pushed.first], durability)


def _in_order(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Return ids as (first, count) spans in the given order.

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


class Pushing(Struct, eq=False):
    """A push of jobs in progress: jobs with the same partition and attributes are appended together."""

    shard: Shard
    queue: Queue
    durability: str
    now: int
    ids: list[int] = []
    duplicates: list[int] = []
    """Indexes of known jobs."""
    throttled: list[int] = []
    """Indexes of throttled jobs."""
    replaced: list[int] = []
    """Indexes of jobs that replaced others."""
    payloads: list[bytes] = []
    transactions: list[tuple[int, str]] = []
    """Offsets and transaction ids of the payloads."""
    partition: Partition | None = None
    attributes: Attributes = PLAIN

    def add(self, job: Job) -> None:
        """Add one job: it is known, or replaces another, or is appended with the next ones."""
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
        """Return the partition of a job; create it, and make it a lane, if needed."""
        queue = self.queue
        partition = queue.partitions.get(job.partition) or self.shard.add_partition(queue, job.partition)
        if job.lane and not partition.lane:
            partition.lane = True
            self.shard.changes.touch_partition(queue, partition)
            for group in queue.groups.values():
                attach_track(group.tracks[partition.key])
        return partition

    def find(self, partition: Partition | None, own: Identity) -> int | None:
        """Return the id of the message that a job duplicates, if it does."""
        queue, window = self.queue, self.queue.options.dedup_window_ms
        if own.transaction_id is not None and partition is not None:
            offset, at = partition.transactions.get(own.transaction_id, (-1, 0))
            if offset >= 0 and at > self.now - window:
                return self._id(partition, offset)
        if own.job_id is not None and own.job_id in queue.named:
            key, offset = queue.named[own.job_id]
            named = self.shard.places[key].partition
            if not (own.retakes and self._is_withdrawn(named, offset)):
                return self._id(named, offset)
        if own.unique_key is None:
            return None
        if own.dedup == THROTTLE:
            once = queue.remembered.get(SEEN + own.unique_key.encode())
            if once is None or once.until <= self.now:
                return None
            self.throttled.append(len(self.ids))
            return once.ids[0][0]
        holder = self._holder(own.unique_key)
        if holder is None or own.dedup != DROP:
            return None
        return self._id(*holder)

    def _holder(self, key: str) -> tuple[Partition, int] | None:
        """Return the message that holds a unique key, unless it has expired."""
        held = self.queue.uniques.get(key)
        if held is None:
            return None
        partition = self.shard.places[held[0]].partition
        is_over = held[1] < partition.log.end and not self._is_open(partition, held[1])
        return None if is_over else (partition, held[1])

    def _is_open(self, partition: Partition, offset: int) -> bool:
        """Whether a message is kept and has not ended."""
        asked = State(self.queue.tenant, id_at(partition, offset))
        return logs.has(partition.log, offset) and state(self.shard, asked, self.now).state in OPEN

    def _is_withdrawn(self, partition: Partition, first: int) -> bool:
        """Whether a message, known by its first offset, ended neither completed nor as a dead letter."""
        if first >= partition.log.end:
            return False  # it is one of those that are pushed here
        (message,) = current_ids(self.shard, [id_at(partition, first)])
        stands = state(self.shard, State(self.queue.tenant, message), self.now).state
        if stands == "dead":
            track = self.queue.groups[DEFAULT].tracks[partition.key]
            return not is_in(self.shard, track, DEAD, offset_of(self.shard, message))
        return stands not in (*OPEN, "completed")

    def _id(self, partition: Partition, offset: int) -> int:
        """Return the id that a message is shown under."""
        if offset < partition.log.end and logs.has(partition.log, offset):
            origin = logs.attributes_at(partition.log, offset).origin
            if origin is not None:
                return origin[0]
        return id_at(partition, offset)

    def _replace(self, partition: Partition, job: Job, own: Identity, attributes: Attributes) -> bool:
        """Replace the message that holds the key of a job; return whether nothing is left to append."""
        assert own.unique_key is not None
        if own.unique_key in self.queue.uniques and self._holder(own.unique_key) is None:
            free(self.shard, self.queue, own.unique_key)
        if own.dedup not in (REPLACE, DEBOUNCE) or own.unique_key not in self.queue.uniques:
            return False
        self.append()
        key, offset = self.queue.uniques[own.unique_key]
        holder = self.shard.places[key].partition
        message = id_at(holder, offset)
        where = locate(self.shard, self.queue.tenant, Range(message, 1))
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
            self.shard.timers.plan_sweep(self.queue, self.now)
        if own.unique_key in self.queue.uniques:
            free(self.shard, self.queue, own.unique_key)
        return False

    def _waits(self, where: Located) -> bool:
        """Whether a message has never been delivered."""
        if where.place.partition.parked_messages and self._is_parked(where):
            return True
        try:
            check_update(self.shard, where, self.now)
        except Conflict:
            return False
        return True

    def _is_parked(self, where: Located) -> bool:
        asked = State(self.queue.tenant, id_at(where.place.partition, where.first))
        return state(self.shard, asked, self.now).state == "parked"

    def _put_off(self, where: Located, own: Identity, attributes: Attributes) -> Attributes:
        """Delay a debounced message again, within its ``max_ms``."""
        if own.dedup != DEBOUNCE or not own.max_ms:
            return attributes
        log = where.place.partition.log
        segment = log.segments[logs.find(log, where.first)]
        _, created_at, had = segment.run_at(where.first - segment.base)
        began_at = had.origin[1] if had.origin is not None else created_at
        left = max(began_at + own.max_ms - self.now, 0)
        return replace(attributes, delay_ms=min(attributes.delay_ms, left))

    def _enter(self, partition: Partition, offset: int, message: int, job: Job, own: Identity) -> None:
        """Index a message by its key and ids, and tie the consequences of its end."""
        queue, shard, attributes = self.queue, self.shard, job.attributes
        if own.is_key_alone and not attributes.ttl_ms:
            assert own.unique_key is not None
            self._tie(partition, offset, Tie(own.unique_key))
            return
        if own.unique_key is not None and own.dedup == THROTTLE:
            once = RememberedPush(self.now + own.window_ms, ((message, 1),), self.durability)
            remember(shard, queue, SEEN + own.unique_key.encode(), once, self.now)
        held = own.unique_key if own.unique_key is not None and own.dedup != THROTTLE else ""
        if held or own.keys:
            expires_at = max(self.now, partition.log.time) + attributes.ttl_ms if attributes.ttl_ms else 0
            payload = bytes(job.payload) if own.keys else b""
            self._tie(partition, offset, Tie(held, own.keys, payload, expires_at))
        if own.job_id is not None:
            first = self._first(partition, offset, message)
            before = partition.job_ids.get(first)
            if before is not None:
                del queue.named[before]
            if own.job_id in queue.named:
                key, withdrawn = queue.named[own.job_id]
                forget_job_id(shard, queue, shard.places[key].partition, withdrawn)
            partition.job_ids[first] = own.job_id
            queue.named[own.job_id] = (partition.key, first)
            row = keyspace.job_id_key(queue.prefix, partition.key, first)
            shard.changes.put_row(queue, row, own.job_id.encode())
        if own.transaction_id is not None:
            partition.transactions[own.transaction_id] = (offset, self.now)
            self.transactions.append((offset, own.transaction_id))

    def _tie(self, partition: Partition, offset: int, tied: Tie) -> None:
        """Tie consequences to the end of a message; one that replaced another may have its cleanup tied."""
        if offset in partition.ties:
            tied = replace(tied, cleanup=untie(self.shard, self.queue, partition, offset).cleanup)
        tie(self.shard, self.queue, partition, offset, tied)

    def _first(self, partition: Partition, offset: int, message: int) -> int:
        """Return the offset of the id that a message is shown under."""
        place = self.shard.places.get(message >> OFFSET_BITS)
        return offset if place is None else place.first + (message & OFFSET_MASK)

    def append(self) -> None:
        """Append the collected payloads."""
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
            dependencies.depend(self.shard, place, first, len(payloads), self.attributes, self.now)
        if self.transactions:
            self._take(partition)

    def _take(self, partition: Partition) -> None:
        """Store the transaction ids of appended messages."""
        taken, self.transactions = self.transactions, []
        first = taken[0][0]
        partition.taken[first] = (self.now, taken)
        key = keyspace.taken_key(self.queue.prefix, partition.key, first)
        self.shard.changes.put_row(self.queue, key, codec.pack_taken(self.now, taken))
        while len(partition.transactions) > TRANSACTIONS_MAX and len(partition.taken) > 1:
            forget_taken(self.shard, self.queue, partition, next(iter(partition.taken)))
