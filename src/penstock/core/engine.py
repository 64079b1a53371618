"""The core as one value: every shard a node owns, and the directory that leads to them.

    engine.apply(command, now) -> reply          or raises, and has changed nothing
    engine.next_due_at() -> when to call tick    leases run out, messages fall due, sweeps come up
    engine.seal(now) -> commits                  what to keep, atomically, before replies leave

Nothing here reads a clock, rolls dice or touches storage. ``now`` never goes backwards.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from penstock.core import cancel, dead, look, model, records, settle
from penstock.core import directory as directories
from penstock.core import merge as merges
from penstock.core.agenda import NEVER
from penstock.core.commands import (
    Ack,
    Buried,
    Cancel,
    Command,
    Configure,
    Counts,
    DeadFound,
    Describe,
    Extend,
    Extended,
    GroupCounts,
    ListDead,
    ListQueues,
    Log,
    Move,
    Nack,
    Offsets,
    OffsetsFound,
    Pause,
    Paused,
    Pop,
    Popped,
    Purge,
    Push,
    Pushed,
    PushMany,
    QueueFound,
    QueuesFound,
    Read,
    Reply,
    Requeue,
    Resume,
    Settle,
    Settled,
    Show,
    ShownAll,
    State,
    StateFound,
    Stats,
    StatsFound,
    Wake,
)
from penstock.core.directory import Directory
from penstock.core.errors import Conflict, Damaged, Invalid, NotFound
from penstock.core.ids import OFFSET_BITS, parse_lease
from penstock.core.leased import Range, meant, ranges
from penstock.core.limits import Limits, check_name, check_queue_name, check_range
from penstock.core.load import load_queue
from penstock.core.merge import Joined, Merge
from penstock.core.model import FSYNC, Attributes, Lease, Queue, QueueOptions, Segment
from penstock.core.numbers import numbers_needed
from penstock.core.options import check_options, set_options
from penstock.core.order import check_ordered
from penstock.core.pop import available, check_group, check_pop, new_group, pop
from penstock.core.push import check_partitions, check_payloads, push, reached
from penstock.core.records import Commit, Record
from penstock.core.retry import check_attributes
from penstock.core.settle import check_settle, expire
from penstock.core.shard import Alarm, Shard
from penstock.core.sweep import sweep_due

SWEEPS_MAX = 500
"""Queues swept in one tick; the others are due in the next, which comes at once."""
MERGE_MIN = 64
"""Tiny segments worth a merge."""


class Engine:
    """State + command + now -> reply, and the records to keep."""

    def __init__(self, limits: Limits, directory: Directory, shards: int) -> None:
        self.limits = limits
        self.directory = directory
        self.changed: list[Shard] = []
        self._alarm = Alarm()
        self.shards = [
            Shard(number, shards, 0, limits, self.changed, self._alarm) for number in range(shards)
        ]
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
        self._handlers: dict[type, Callable[..., Reply]] = {
            Push: self._push,
            PushMany: self._push_many,
            Pop: self._pop,
            Ack: self._ack,
            Nack: self._nack,
            Extend: self._extend,
            Cancel: self._cancel,
            Move: self._move,
            Requeue: self._requeue,
            Purge: self._purge,
            ListDead: self._list_dead,
            Pause: self._pause,
            Resume: self._resume,
            Read: self._read,
            Offsets: self._offsets,
            Configure: self._configure,
            Describe: self._describe,
            GroupCounts: self._group_counts,
            ListQueues: self._list_queues,
            Stats: self._stats,
            State: self._state,
            Show: self._show,
        }

    # The whole interface.

    def apply(self, command: Command, now: int) -> Reply:
        """Carry out a command at ``now``."""
        if now > self.now:
            self.now = now
            if self._alarm.at <= now:
                self.tick(now)
        return self._handlers[type(command)](command, self.now)

    def tick(self, now: int) -> None:
        """Do everything that is due by ``now``."""
        self.now = now = max(now, self.now)
        sweeps = SWEEPS_MAX
        for shard in self.shards:
            expire(shard, now)
            shard.ring(now)
            if sweeps:
                sweeps = sweep_due(shard, now, sweeps)
        self._alarm.at = min(shard.next_at() for shard in self.shards)

    def next_due_at(self) -> int:
        """When to call ``tick``: never later than something is due, ``NEVER`` if nothing is."""
        return self._alarm.at

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
            settle.put_off(self.shards[number], lease, lacking, self.now)

    def give_back(self, popped: Popped) -> None:
        """Take back what was leased to someone who never heard of it."""
        assert popped.lease is not None
        number, name = parse_lease(popped.lease)
        lease = self.shards[number].leases.get(name)
        if lease is not None:
            settle.give_back(self.shards[number], lease, self.now)

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
        if queue is None or group is None:
            return 0
        return available(group, queue, command, self.now)

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
        attributes = check_attributes(self.limits, command.attributes)
        queue = self.queues.get((command.tenant, command.queue))
        check_ordered(queue, attributes)
        durability = reached(queue, command.durability, self.reach)
        partition = queue.partitions.get(command.partition) if queue is not None else None
        if queue is None or partition is None:
            self._check_room(command.tenant, command.queue, queue, {command.partition}, 1)
            queue = self._made(command.tenant, command.queue)
            partition = self.shards[queue.shard].add_partition(queue, command.partition)
        shard = self.shards[queue.shard]
        return push(shard, queue, partition, payloads, lengths, durability, attributes, now)

    def _push_many(self, command: PushMany, now: int) -> list[Pushed]:
        check_range("messages", sum(len(p) for _, p, _ in command.pushes), 1, self.limits.batch_max)
        checked = [check_payloads(self.limits, payloads) for _, payloads, _ in command.pushes]
        having = [check_attributes(self.limits, attributes) for _, _, attributes in command.pushes]
        queue = self.queues.get((command.tenant, command.queue))
        for attributes in having:
            check_ordered(queue, attributes)
        durability = reached(queue, command.durability, self.reach)
        names = {name for name, _, _ in command.pushes}
        numbers = numbers_needed(queue, command.pushes)
        self._check_room(command.tenant, command.queue, queue, names, numbers)
        queue = self._made(command.tenant, command.queue)
        shard = self.shards[queue.shard]
        pushed = []
        for (name, payloads, _), lengths, attributes in zip(command.pushes, checked, having, strict=True):
            partition = queue.partitions.get(name) or shard.add_partition(queue, name)
            pushed.append(push(shard, queue, partition, payloads, lengths, durability, attributes, now))
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
            group = new_group(self.shards[queue.shard], queue, command.group, command.start, now)
        return pop(self.shards[queue.shard], queue, group, command, now)

    def _ack(self, command: Ack, now: int) -> Settled:
        check_settle(self.limits, command)
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.ack_lease(shard, lease, now)
        parts = [settle.ack_ids(*where, command, now) for where in self._by_shard(command)]
        return _together(parts, command)

    def _nack(self, command: Nack, now: int) -> Settled:
        check_settle(self.limits, command)
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.nack_lease(shard, lease, command, now)
        parts = [settle.nack_ids(*where, command, now) for where in self._by_shard(command)]
        return _together(parts, command)

    def _extend(self, command: Extend, now: int) -> Extended:
        check_settle(self.limits, command)
        if command.lease_ms is not None:
            check_range("lease_ms", command.lease_ms, 1, self.limits.lease_ms_max)
        if command.lease is not None and self._was_cancelled(command):
            return Extended(now, 0, command.ids or (), cancelled=True)
        if command.ids is None:
            shard, lease = self._leased(command)
            return settle.extend_lease(shard, lease, command.lease_ms, now)
        parts = [settle.extend_ids(*where, command, now) for where in self._by_shard(command)]
        cancelled = any(part.cancelled for part in parts)
        command.partial = command.partial or cancelled
        together = _together([Settled(part.count, part.refused) for part in parts], command)
        ends = min(part.expires_at for part in parts)
        return Extended(ends if ends != NEVER else now, together.count, together.refused, cancelled)

    def _was_cancelled(self, command: Settle) -> bool:
        """Whether all of the lease that a command names was cancelled, not long ago."""
        assert command.lease is not None
        number, name = parse_lease(command.lease)
        return number < len(self.shards) and self.shards[number].cancelled.get(name) == command.tenant

    def _cancel(self, command: Cancel, now: int) -> Settled:
        cancel.check_ids(self.limits, command.ids)
        if command.group is not None:
            check_name("group", command.group)
        by_shard = self._shards_of(command.ids)
        parts = [cancel.cancel(shard, command, theirs, now) for shard, theirs in by_shard]
        otherwise = "nothing to cancel: it is settled or dead, or the group is not there; GETSTATE tells"
        return cancel.changed(parts, command.tenant, by_shard, otherwise)

    def _move(self, command: Move, now: int) -> Settled:
        cancel.check_move(self.limits, command)
        parts: list[Settled] = []
        by_shard = self._shards_of(command.ids)
        made = [(shard, theirs, self._queues_of(shard, command, theirs)) for shard, theirs in by_shard]
        for shard, theirs, queues in made:
            groups = [
                queue.groups.get(command.group) or new_group(shard, queue, command.group, "all", now)
                for queue in queues
            ]
            tracks = {key: track for group in groups for key, track in group.tracks.items()}
            parts.append(cancel.move(shard, command, theirs, tracks, now))
        otherwise = "nothing to move: in its state this can't be done to the message; GETSTATE tells which"
        return cancel.changed(parts, command.tenant, by_shard, otherwise)

    def _queues_of(self, shard: Shard, command: Move, ranges: list[Range]) -> list[Queue]:
        """The queues in which a command has something to move, whose group may have to be made for it."""
        found = [meant(shard, command.tenant, each) for each in ranges]
        for each in found:
            if each is not None and command.priority:
                check_ordered(each.place.queue, Attributes(priority=command.priority))
        queues = {each.place.queue.prefix: each.place.queue for each in found if each is not None}
        missing = {prefix for prefix, queue in queues.items() if command.group not in queue.groups}
        # For a group that is made now, everything can be moved but what was cancelled.
        there = {
            each.place.queue.prefix
            for each in found
            if each is not None and cancel.may_move(each, command.only_delayed, self.now)
        }
        for prefix in there:
            cancel.check_made(queues[prefix], command.group)
            if prefix in missing:
                check_group(self.limits, queues[prefix], command.group)
        return [queue for prefix, queue in queues.items() if prefix not in missing - there]

    def _requeue(self, command: Requeue, now: int) -> Buried:
        dead.check(self.limits, command)
        queue = self._known(command.tenant, command.queue)
        return dead.requeue(self.shards[queue.shard], queue, command, now)

    def _purge(self, command: Purge, now: int) -> Buried:
        dead.check(self.limits, command)
        queue = self._known(command.tenant, command.queue)
        return dead.purge(self.shards[queue.shard], queue, command, now)

    def _list_dead(self, command: ListDead, now: int) -> DeadFound:
        return look.list_dead(self.limits, self._known(command.tenant, command.queue), command)

    def _pause(self, command: Pause, now: int) -> Paused:
        if command.until is not None and not now < command.until < NEVER:
            raise Invalid("until", "a time in ms that is in the future")
        if (command.tenant, command.queue) not in self.queues:
            self._check_new(command.tenant, command.queue)
        queue = self._made(command.tenant, command.queue)
        self.shards[queue.shard].pause(queue, command.until or NEVER)
        return look.paused(queue, now)

    def _resume(self, command: Resume, now: int) -> Paused:
        queue = self._known(command.tenant, command.queue)
        self.shards[queue.shard].end_pause(queue)
        return look.paused(queue, now)

    def _shards_of(self, ids: list[int]) -> list[tuple[Shard, list[Range]]]:
        """Ids by the shard they lead to."""
        count = len(self.shards)
        by_shard: dict[int, list[Range]] = {}
        for each in ranges(ids):
            by_shard.setdefault((each.first >> OFFSET_BITS) % count, []).append(each)
        return [(self.shards[number], theirs) for number, theirs in by_shard.items()]

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
        if command.lease is not None:
            return [(*self._leased(command), ranges(command.ids))]
        return [(shard, None, theirs) for shard, theirs in self._shards_of(command.ids)]

    def _read(self, command: Read, now: int) -> Log:
        self._wants_sync = True
        return look.read(self.limits, self._known(command.tenant, command.queue), command)

    def _offsets(self, command: Offsets, now: int) -> OffsetsFound:
        self._wants_sync = True
        return look.offsets(self._known(command.tenant, command.queue), command)

    def _configure(self, command: Configure, now: int) -> QueueFound:
        known = self.queues.get((command.tenant, command.queue))
        changes = check_options(self.limits, known, command)
        if known is None:
            self._check_new(command.tenant, command.queue)
        queue = self._made(command.tenant, command.queue)
        set_options(queue, replace(queue.options, **changes))
        self.shards[queue.shard].touch_queue(queue)
        return look.describe(queue, now)

    def _describe(self, command: Describe, now: int) -> QueueFound:
        return look.describe(self._known(command.tenant, command.queue), now)

    def _group_counts(self, command: GroupCounts, now: int) -> Counts:
        check_name("group", command.group)
        queue = self._known(command.tenant, command.queue)
        return look.counts(queue, queue.groups.get(command.group), now)

    def _list_queues(self, command: ListQueues, now: int) -> QueuesFound:
        return QueuesFound([look.queue_counts(queue, now) for queue in self._of_tenant(command.tenant)])

    def _stats(self, command: Stats, now: int) -> StatsFound:
        queues = self._of_tenant(command.tenant)
        each = [look.queue_counts(queue, now).counts for queue in queues]
        total = Counts(*(sum(getattr(one, field) for one in each) for field in Counts.__struct_fields__))
        return StatsFound(len(queues), total)

    def _of_tenant(self, tenant: str) -> list[Queue]:
        known = self.directory.tenants.get(tenant)
        found = (self.queues.get((tenant, name)) for name in sorted(known.queues if known else ()))
        return [queue for queue in found if queue is not None]

    def _state(self, command: State, now: int) -> StateFound:
        if command.id < 0:
            raise Invalid("id", "a message id")
        return look.state(self.shards[(command.id >> OFFSET_BITS) % len(self.shards)], command, now)

    def _show(self, command: Show, now: int) -> ShownAll:
        return look.show(self.limits, self.shards, command, now)


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
