"""The core as one value: every shard a node owns, and the directory that leads to them.

    engine.apply(command, now) -> reply          or raises, and has changed nothing
    engine.next_due_at() -> when to call tick    leases run out, sweeps come up
    engine.seal(now) -> commits                  what to keep, atomically, before replies leave

Nothing here reads a clock, rolls dice or touches storage. ``now`` never goes backwards.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from penstock.core import directory as directories
from penstock.core import look, model, records, settle
from penstock.core import merge as merges
from penstock.core.commands import (
    Ack,
    Command,
    Configure,
    Counts,
    Describe,
    Extend,
    Extended,
    ListQueues,
    Log,
    Nack,
    Offsets,
    OffsetsFound,
    Pop,
    Popped,
    Push,
    Pushed,
    PushMany,
    QueueFound,
    QueuesFound,
    Read,
    Reply,
    Settle,
    Settled,
    State,
    StateFound,
    Stats,
    StatsFound,
    Wake,
)
from penstock.core.directory import Directory
from penstock.core.errors import Conflict, Damaged, Invalid, NotFound
from penstock.core.ids import OFFSET_BITS, parse_lease
from penstock.core.limits import Limits, check_queue_name, check_range
from penstock.core.load import load_queue
from penstock.core.merge import Joined, Merge
from penstock.core.model import FSYNC, MEMORY, OS, Lease, Queue, QueueOptions, Segment
from penstock.core.numbers import numbers_needed
from penstock.core.pop import available, check_group, check_pop, new_group, pop
from penstock.core.push import check_partitions, check_payloads, push, reached
from penstock.core.records import Commit, Record
from penstock.core.settle import Range, check_settle, expire
from penstock.core.shard import Shard, next_sweep_at
from penstock.core.sweep import sweep_due

SWEEPS_MAX = 500
"""Queues swept in one tick; the others are due in the next, which comes at once."""
MERGE_MIN = 64
"""Tiny segments worth a merge."""
DAY_MS = 86_400_000
RETENTION_MS_MAX = 3_650 * DAY_MS
RETENTION_BYTES_MAX = 1 << 60


class Engine:
    """State + command + now -> reply, and the records to keep."""

    def __init__(self, limits: Limits, directory: Directory, shards: int) -> None:
        self.limits = limits
        self.directory = directory
        self.changed: list[Shard] = []
        self.shards = [Shard(number, shards, 0, limits, self.changed) for number in range(shards)]
        self.queues: dict[tuple[str, str], Queue] = {}
        """By tenant and name."""
        self.damaged: dict[tuple[str, str], str] = {}
        """Queues whose records could not be read, and why: every command for one is refused."""
        self.reach = FSYNC
        """What a commit can survive at best: the store's durability."""
        self.must_sync = False
        """Whether the last seal's commits have to survive power loss before answers leave."""
        self._wants_sync = False
        """Whether the next seal has to ask for a sync, whatever is in it."""
        self._sealed: list[tuple[model.Log, Segment]] = []
        self.now = 0
        self._due_at = 0
        self._handlers: dict[type, Callable[..., Reply]] = {
            Push: self._push,
            PushMany: self._push_many,
            Pop: self._pop,
            Ack: self._ack,
            Nack: self._nack,
            Extend: self._extend,
            Read: self._read,
            Offsets: self._offsets,
            Configure: self._configure,
            Describe: self._describe,
            ListQueues: self._list_queues,
            Stats: self._stats,
            State: self._state,
        }

    # The whole interface.

    def apply(self, command: Command, now: int) -> Reply:
        """Carry out a command at ``now``."""
        if now > self.now:
            self.now = now
            if self._due_at <= now:
                self.tick(now)
        return self._handlers[type(command)](command, self.now)

    def tick(self, now: int) -> None:
        """Do everything that is due by ``now``."""
        self.now = now = max(now, self.now)
        sweeps = SWEEPS_MAX
        for shard in self.shards:
            expire(shard, now)
            if sweeps:
                sweeps = sweep_due(shard, now, sweeps)
        self._due_at = min(min(shard.agenda.next_at(), shard.sweeps.next_at()) for shard in self.shards)

    def next_due_at(self) -> int:
        """When to call ``tick``: never later than something is due, ``NEVER`` if nothing is."""
        return self._due_at

    def seal(self, now: int) -> list[Commit]:
        """What changed since the last seal, one commit a shard; nothing if nothing did."""
        commits = [self.directory.seal(now)] if self.directory.puts else []
        self.must_sync = self._wants_sync or bool(commits)
        self._wants_sync = False
        if self.changed:
            for shard in self.changed:
                self.must_sync |= shard.must_sync
                commit = shard.seal(now)
                self._sealed += shard.sealed
                shard.sealed = []
                if not commit.is_empty:
                    commits.append(commit)
                shard.woken.clear()
            self.changed.clear()
        return commits

    def want_sync(self) -> None:
        """Have the next seal ask for a sync, whatever is in it."""
        self._wants_sync = True

    @property
    def wants_sync(self) -> bool:
        return self._wants_sync

    def take_sealed(self) -> list[tuple[model.Log, Segment]]:
        """Segments whose bodies are in memory and, with the last seal's commits, in the store."""
        sealed, self._sealed = self._sealed, []
        return sealed

    @property
    def may_merge(self) -> bool:
        """Whether there are partitions that merging has not finished looking at."""
        return any(shard.to_merge for shard in self.shards)

    def plan_merge(self, at_least: int = MERGE_MIN) -> Merge | None:
        """Small segments worth putting together, if there are any."""
        for shard in self.shards:
            if shard.to_merge:
                return merges.plan(shard, at_least)
        return None

    def apply_merge(self, merge: Merge, joined: Joined) -> bool:
        """Put merged segments in place, unless they changed meanwhile; whether it was done."""
        return merges.apply(self.shards[merge.shard], merge, joined) is not None

    def put_off(self, popped: Popped) -> None:
        """Take what could not be read out of its lease: it comes again when the lease would have ended."""
        assert popped.lease is not None
        number, name = parse_lease(popped.lease)
        lease = self.shards[number].leases.get(name)
        if lease is not None:
            lacking = [each for each in popped.deliveries if not each.segment.present]
            settle.put_off(self.shards[number], lease, lacking)

    def clear_marks(self) -> None:
        """The process ends as it should: no id that was confirmed can be lost any more."""
        for shard in self.shards:
            shard.clear_marks()

    def take_woken(self) -> list[Wake]:
        """What became deliverable since this was last asked, or the last seal."""
        woken: list[Wake] = []
        for shard in self.changed:
            woken += shard.woken
            shard.woken.clear()
        return woken

    def deliverable(self, command: Pop) -> int:
        """How many messages a pop could have now, counted no further than it needs."""
        queue = self.queues.get((command.tenant, command.queue))
        group = queue.groups.get(command.group) if queue is not None else None
        return available(group, queue, command) if queue is not None and group is not None else 0

    def take_owners(self, before: "Engine") -> None:
        """Leases that were there before belong to the connections they belonged to."""
        for old, new in zip(before.shards, self.shards, strict=True):
            for name, lease in new.leases.items():
                if name in old.leases:
                    lease.owner = old.leases[name].owner

    # Finding and making queues.

    def _known(self, tenant: str, name: str) -> Queue:
        queue = self.queues.get((tenant, name))
        if queue is None:
            check_queue_name(name)
            self._check_damage(tenant, name)
            raise NotFound(f"there is no queue {name}")
        return queue

    def _check_new(self, tenant: str, name: str) -> None:
        """Raise unless a queue of that name could be made now."""
        self._check_damage(tenant, name)
        self.directory.check_new(tenant, name)

    def _check_damage(self, tenant: str, name: str) -> None:
        why = self.damaged.get((tenant, name))
        if why is not None:
            raise Damaged(f"queue {name} can't be read: {why}; stop the server and run penstock verify")

    def _made(self, tenant: str, name: str) -> Queue:
        """The queue; made if it is missing. Its name was checked."""
        queue = self.queues.get((tenant, name))
        if queue is None:
            prefix, shard = self.directory.create(tenant, name)
            queue = new_queue(tenant, name, prefix, shard)
            self.queues[tenant, name] = queue
            self.shards[shard].add_queue(queue)
        return queue

    def _check_room(
        self, tenant: str, name: str, queue: Queue | None, partitions: set[str], numbers: int
    ) -> None:
        """Raise unless a push may make what it needs: the queue, partitions of it, numbers for them."""
        if queue is None:
            self._check_new(tenant, name)
        check_partitions(self.limits, queue, partitions)
        shard = self.directory.next_shard(tenant) if queue is None else queue.shard
        if numbers:
            self.shards[shard].check_numbers(numbers)

    # Handlers: check all, then change.

    def _push(self, command: Push, now: int) -> Pushed:
        payloads = command.payloads
        lengths = check_payloads(self.limits, payloads)
        queue = self.queues.get((command.tenant, command.queue))
        durability = reached(queue, command.durability, self.reach)
        partition = queue.partitions.get(command.partition) if queue is not None else None
        if queue is None or partition is None:
            self._check_room(command.tenant, command.queue, queue, {command.partition}, 1)
            queue = self._made(command.tenant, command.queue)
            partition = self.shards[queue.shard].add_partition(queue, command.partition)
        return push(self.shards[queue.shard], queue, partition, payloads, lengths, durability, now)

    def _push_many(self, command: PushMany, now: int) -> list[Pushed]:
        check_range("messages", sum(len(p) for _, p in command.pushes), 1, self.limits.batch_max)
        checked = [check_payloads(self.limits, payloads) for _, payloads in command.pushes]
        queue = self.queues.get((command.tenant, command.queue))
        durability = reached(queue, command.durability, self.reach)
        names = {name for name, _ in command.pushes}
        numbers = numbers_needed(queue, command.pushes)
        self._check_room(command.tenant, command.queue, queue, names, numbers)
        queue = self._made(command.tenant, command.queue)
        shard = self.shards[queue.shard]
        pushed = []
        for (name, payloads), lengths in zip(command.pushes, checked, strict=True):
            partition = queue.partitions.get(name) or shard.add_partition(queue, name)
            pushed.append(push(shard, queue, partition, payloads, lengths, durability, now))
        return pushed

    def _pop(self, command: Pop, now: int) -> Popped:
        check_pop(self.limits, command, now)
        queue = self.queues.get((command.tenant, command.queue))
        group = queue.groups.get(command.group) if queue is not None else None
        if queue is None or group is None:
            if queue is None:
                self._check_new(command.tenant, command.queue)
            check_group(self.limits, queue, command.group)
            queue = self._made(command.tenant, command.queue)
            group = new_group(self.shards[queue.shard], queue, command, now)
            self._expect_sweep(queue.sweep_at)
        reply = pop(self.shards[queue.shard], queue, group, command, now)
        if reply.deliveries and reply.deliveries[0].expires_at < self._due_at:
            self._due_at = reply.deliveries[0].expires_at
        return reply

    def _ack(self, command: Ack, now: int) -> Settled:
        check_settle(self.limits, command)
        self._expect_sweep(next_sweep_at(now))
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.ack_lease(shard, lease, now)
        parts = [settle.ack_ids(*where, command, now) for where in self._by_shard(command)]
        return _together(parts, command)

    def _nack(self, command: Nack, now: int) -> Settled:
        check_settle(self.limits, command)
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.nack_lease(shard, lease, command.error, now)
        parts = [settle.nack_ids(*where, command, now) for where in self._by_shard(command)]
        return _together(parts, command)

    def _extend(self, command: Extend, now: int) -> Extended:
        check_settle(self.limits, command)
        if command.lease_ms is not None:
            check_range("lease_ms", command.lease_ms, 1, self.limits.lease_ms_max)
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.extend_lease(shard, lease, command.lease_ms, now)
        parts = [settle.extend_ids(*where, command, now) for where in self._by_shard(command)]
        together = _together([Settled(part.count, part.refused) for part in parts], command)
        return Extended(min(part.expires_at for part in parts), together.count, together.refused)

    def _expect_sweep(self, sweep_at: int) -> None:
        """Something was settled: a sweep will want to look at it."""
        if sweep_at < self._due_at:
            self._due_at = sweep_at

    def _leased(self, command: Settle) -> tuple[Shard, Lease]:
        """The live lease a command names, and its shard."""
        assert command.lease is not None
        number, name = parse_lease(command.lease)
        if number >= len(self.shards):
            raise Conflict(settle.NOT_LIVE)
        shard = self.shards[number]
        return shard, settle.live_lease(shard, command.tenant, name, command.group)

    def _by_shard(self, command: Settle) -> list[tuple[Shard, Lease | None, list[Range]]]:
        """The ids a command names, by shard, with the lease it names along."""
        assert command.ids is not None
        ranges = settle.ranges(command.ids)
        if command.lease is not None:
            return [(*self._leased(command), ranges)]
        count = len(self.shards)
        by_shard: dict[int, list[Range]] = {}
        for each in ranges:
            by_shard.setdefault((each.first >> OFFSET_BITS) % count, []).append(each)
        return [(self.shards[number], None, theirs) for number, theirs in by_shard.items()]

    def _read(self, command: Read, now: int) -> Log:
        self._wants_sync = True
        return look.read(self.limits, self._known(command.tenant, command.queue), command)

    def _offsets(self, command: Offsets, now: int) -> OffsetsFound:
        self._wants_sync = True
        return look.offsets(self._known(command.tenant, command.queue), command)

    def _configure(self, command: Configure, now: int) -> QueueFound:
        given = {
            "lease_ms": (command.lease_ms, 1, self.limits.lease_ms_max),
            "completed_retention_ms": (command.completed_retention_ms, 0, RETENTION_MS_MAX),
            "completed_retention_bytes": (command.completed_retention_bytes, 0, RETENTION_BYTES_MAX),
        }
        changes: dict[str, int | str] = {}
        for field, (value, low, high) in given.items():
            if isinstance(value, int):
                check_range(field, value, low, high)
                changes[field] = value
        known = self.queues.get((command.tenant, command.queue))
        if isinstance(command.durability, str):
            check_level(known, command.durability)
            changes["durability"] = command.durability
        if known is None:
            self._check_new(command.tenant, command.queue)
        queue = self._made(command.tenant, command.queue)
        queue.options = replace(queue.options, **changes)
        queue.stored = queue.options.durability != MEMORY
        self.shards[queue.shard].touch_queue(queue)
        return look.describe(queue)

    def _describe(self, command: Describe, now: int) -> QueueFound:
        return look.describe(self._known(command.tenant, command.queue))

    def _list_queues(self, command: ListQueues, now: int) -> QueuesFound:
        return QueuesFound([look.queue_counts(queue) for queue in self._of_tenant(command.tenant)])

    def _stats(self, command: Stats, now: int) -> StatsFound:
        total, queues = Counts(), self._of_tenant(command.tenant)
        for queue in queues:
            counts = look.queue_counts(queue).counts
            total.waiting += counts.waiting
            total.active += counts.active
            total.completed += counts.completed
        return StatsFound(len(queues), total)

    def _of_tenant(self, tenant: str) -> list[Queue]:
        known = self.directory.tenants.get(tenant)
        found = (self.queues.get((tenant, name)) for name in sorted(known.queues if known else ()))
        return [queue for queue in found if queue is not None]

    def _state(self, command: State, now: int) -> StateFound:
        if command.id < 0:
            raise Invalid("id", "a message id")
        return look.state(self.shards[(command.id >> OFFSET_BITS) % len(self.shards)], command)


def check_level(queue: Queue | None, durability: str) -> None:
    """Raise unless the queue may have this durability."""
    if durability not in (FSYNC, OS, MEMORY):
        raise Invalid("durability", f"{FSYNC}, {OS} or {MEMORY}")
    if queue is not None and (durability == MEMORY) == queue.stored:
        raise Conflict(f"a queue is {MEMORY} from its creation on, or never")


def _together(parts: list[Settled], command: Settle) -> Settled:
    """What several shards settled; a conflict if that is nothing and the command wants something."""
    count = sum(part.count for part in parts)
    if not count and not command.partial:
        raise Conflict(settle.NOT_LEASED)
    return Settled(count, [each for part in parts for each in part.refused])


def new_queue(tenant: str, name: str, prefix: bytes, shard: int) -> Queue:
    """A queue that knows only its name."""
    return Queue(
        tenant=tenant,
        name=name,
        prefix=prefix,
        shard=shard,
        options=QueueOptions(),
        partitions={},
        groups={},
    )


Scan = Callable[[bytes, bytes], Iterable[Record]]
"""Records from a lower bound up to, but not including, an upper one, in key order."""


class Taken(Struct, frozen=True):
    """What is known of a shard when it is loaded."""

    epoch: int
    """Above every epoch it had before."""
    down_ms: int = 0
    """How long nobody could settle its leases."""
    restored: int = 0
    """Names to pass over if the records are a backup's: some were given out that they know nothing of."""


def load(
    limits: Limits,
    claims: list[Taken],
    meta_epoch: int,
    scan: Scan,
    now: int,
) -> Engine:
    """The engine that left these records, but for a raised epoch. ``claims`` has one entry a shard.

    A queue whose records are damaged is left out and listed in ``damaged``.
    """
    shards = len(claims)
    directory, made = directories.load(shards, meta_epoch, limits, scan(*records.meta_bounds()))
    engine = Engine(limits, directory, shards)
    engine.now = now
    for shard, claim, numbers in zip(engine.shards, claims, made, strict=True):
        shard.epoch, shard.numbers_made = claim.epoch, numbers
        if claim.restored:
            shard.skip_numbers(claim.restored)
    for tenant, known in directory.tenants.items():
        for name, (queue_id, number) in known.queues.items():
            queue = new_queue(tenant, name, records.prefix(known.id, queue_id), number)
            found = scan(*records.queue_bounds(queue.prefix))
            claim = claims[number]
            try:
                load_queue(
                    engine.shards[number],
                    queue,
                    found,
                    now=now,
                    down_ms=claim.down_ms,
                    renumber=claim.restored > 0,
                )
            except Damaged as error:
                engine.damaged[tenant, name] = error.message
            else:
                engine.queues[tenant, name] = queue
    engine.tick(now)
    return engine
