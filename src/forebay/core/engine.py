"""The core as one value: all shards of a node, and the directory that leads to them.

    engine.apply(command, now) -> reply          or raises, and has changed nothing
    engine.next_due_at() -> when to call tick    lease expiry, due messages, sweeps
    engine.seal(now) -> commits                  what to store, atomically, before replies leave

Nothing here reads a clock, uses randomness or touches storage. ``now`` never goes backwards.
"""

from msgspec import Struct

from forebay.core import event_log
from forebay.core.api.commands import Command, Pop, Popped, Reply, Wake
from forebay.core.bounds import Limits
from forebay.core.delivery import settle
from forebay.core.delivery.limits import wake_limited
from forebay.core.delivery.pop import available
from forebay.core.delivery.settle import expire
from forebay.core.errors import Damaged
from forebay.core.handlers import HANDLERS
from forebay.core.ids import lease_token, parse_lease
from forebay.core.jobs import cron
from forebay.core.jobs.consequences import settle_consequences
from forebay.core.jobs.dependencies import go_on, recover
from forebay.core.keyvalue import store as kv_store
from forebay.core.links.dedup import forget_due_remembered
from forebay.core.links.expiry import expire_tied
from forebay.core.loading.build import load_queue
from forebay.core.loading.decode import decode_own
from forebay.core.queries import payloads
from forebay.core.queues import delete as queue_delete, named_limits
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit, Scan
from forebay.core.retention import carve, merge as merges
from forebay.core.retention.carve import Carved, Carving
from forebay.core.retention.merge import Joined, Merge
from forebay.core.retention.sweep import sweep_due
from forebay.core.shard import names as directories
from forebay.core.shard.addresses import require
from forebay.core.shard.domain import Domain, new_queue
from forebay.core.shard.limiters import attach, new_limiter
from forebay.core.shard.names import Directory
from forebay.core.stages.expire import forget_staged
from forebay.core.state import EmittedEvent, Segment, Values, segment
from forebay.core.words import SYSTEM

SWEEPS_MAX = 500
"""Queues swept per tick; the next tick, which follows at once, sweeps more."""
MERGE_MIN = 64
"""Tiny segments worth a merge."""
Watched = tuple[int, int, int]
"""Shard, partition key and offset of a watched message."""


class Engine(Domain):
    """State + command + now -> reply and records."""

    def __init__(self, limits: Limits, directory: Directory, shards: int) -> None:
        super().__init__(limits, directory, shards)
        self.must_sync = False
        """Whether the last seal's commits have to survive power loss before replies leave."""
        self._sealed: list[tuple[segment.Log, Segment]] = []

    # The whole interface.

    def apply(self, command: Command, now: int) -> Reply:
        """Apply a command at ``now``."""
        if now > self.now:
            self._go_on_to(now)
        reply: Reply = HANDLERS[type(command)](self, command, self.now)
        if self.closing:
            queue_delete.finish(self)
        if self.ends:
            settle_consequences(self, self.now)
        return reply

    def _go_on_to(self, now: int) -> None:
        """Advance the clock, and do what is due."""
        self.now = now
        if self.alarm.at <= now:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Do everything that is due by ``now``."""
        self.now = now = max(now, self.now)
        sweeps = SWEEPS_MAX
        for shard in self.shards:
            expire(shard, now)
            expire_tied(shard, now)
            forget_due_remembered(shard, now)
            forget_staged(shard, now)
            shard.fire_due(now)
            wake_limited(shard, now)
            if sweeps:
                sweeps = sweep_due(shard, now, sweeps)
        queue_delete.finish(self)
        settle_consequences(self, now)  # a cron may want the key of what ended just now
        cron.fire(self, now)
        settle_consequences(self, now)
        go_on(self, now)
        settle_consequences(self, now)
        at = min(kv_store.expire(self, now), *(shard.timers.next_at() for shard in self.shards))
        self.alarm.at = now if self.notifications else at

    def next_due_at(self) -> int:
        """Return when to call ``tick``; ``NEVER`` if nothing is due."""
        return self.alarm.at

    def seal(self, now: int) -> list[Commit]:
        """Return the changes since the last seal: one commit per changed shard."""
        assert not self.ends, "what follows from an end is kept with it"
        self.rows_notified = 0
        for shard in self.changed:
            if shard.changes.change_log.entries:
                event_log.keep(self, shard, now)
        commits = [self.directory.seal(now)] if self.directory.changes else []
        self.must_sync = self.wants_sync or bool(commits)
        self.wants_sync = False
        if self.changed:
            for shard in self.changed:
                self.must_sync |= shard.changes.must_sync
                commit = shard.changes.seal(now)
                self._sealed += shard.changes.sealed
                shard.changes.sealed = []
                if not commit.is_empty:
                    commits.append(commit)
                shard.changes.woken.clear()
            self.changed.clear()
        return commits

    def want_sync(self) -> None:
        """Make the next seal ask for a sync, whatever is in it."""
        self.wants_sync = True

    def take_sealed(self) -> list[tuple[segment.Log, Segment]]:
        """Return segments whose bodies are in memory and, with the last seal's commits, in the store."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def take_emitted(self) -> list[EmittedEvent]:
        """Return the events of the last seal's commits."""
        told, self.emitted = self.emitted, []
        return told

    @property
    def may_merge(self) -> bool:
        """Whether there are partitions left to check for merges."""
        return any(shard.changes.to_merge for shard in self.shards)

    def plan_merge(self, at_least: int = MERGE_MIN) -> Merge | None:
        """Return the next merge, if one is worth it."""
        for shard in self.shards:
            if shard.changes.to_merge:
                return merges.plan(shard, at_least)
        return None

    def plan_carving(self) -> Carving | None:
        """Return the next island to carve, if one is worth it."""
        for shard in self.shards:
            if shard.changes.to_carve and (carving := carve.plan(shard)) is not None:
                return carving
        return None

    def apply_carving(self, carving: Carving, carved: list[Carved]) -> bool:
        """Replace an island by its parts, unless it changed meanwhile; return whether it was done."""
        done = carve.apply(self.shards[carving.shard], carving, carved, self.now)
        settle_consequences(self, self.now)
        return done

    def apply_merge(self, merge: Merge, joined: Joined) -> bool:
        """Replace segments by their merge, unless they changed meanwhile; return whether it was done."""
        return merges.apply(self.shards[merge.shard], merge, joined) is not None

    def put_off(self, popped: Popped) -> None:
        """Remove unreadable messages from their lease; they are due when the lease would have expired."""
        assert popped.lease is not None
        number, name = parse_lease(popped.lease)
        lease = self.shards[number].leases.get(name)
        if lease is not None:
            settle.put_off(self.shards[number], lease, payloads.lacking(popped), self.now)
            settle_consequences(self, self.now)

    def give_back(self, popped: Popped, now: int) -> None:
        """Take back a lease whose reply could not be delivered."""
        assert popped.lease is not None
        if now > self.now:
            self._go_on_to(now)
        number, name = parse_lease(popped.lease)
        lease = self.shards[number].leases.get(name)
        if lease is not None:
            settle.give_back(self.shards[number], lease, self.now)
            queue_delete.finish(self)
            settle_consequences(self, self.now)

    def leased_to(self, tenant: str) -> list[Popped]:
        """Return every live lease of a tenant, as ``give_back`` takes it."""
        return [
            Popped(lease.queue, lease_token(shard.number, name), [])
            for shard in self.shards
            for name, lease in shard.leases.items()
            if lease.queue.tenant == tenant
        ]

    def unsettled(self, token: str) -> int | None:
        """Return how many messages a lease still holds; None if it has ended."""
        number, name = parse_lease(token)
        lease = self.shards[number].leases.get(name)
        return None if lease is None else sum(run.unsettled for run in lease.runs.values())

    def gain(self, ms: int) -> None:
        """Extend all leases by a time in which no consumer could settle, as after a restart."""
        for shard in self.shards:
            for lease in list(shard.leases.values()):
                gained = min(ms, lease.queue.options.lease_ms)
                for run in lease.runs.values():
                    run.expires_at += gained
                shard.timers.leases.remove(lease.due_at, lease.name)
                lease.due_at += gained
                shard.timers.leases.add(lease.due_at, lease.name)
                shard.changes.touch_lease(lease)

    def clear_marks(self) -> None:
        """Remove os marks at a clean stop: no confirmed id can be lost any more."""
        for shard in self.shards:
            shard.changes.clear_marks()

    def take_woken(self) -> list[Wake]:
        """Return what became deliverable since the last call or seal."""
        woken: list[Wake] = []
        for shard in self.changed:
            woken += shard.changes.woken
            shard.changes.woken.clear()
        return woken

    def has_group(self, tenant: str, queue: str, group: str) -> bool:
        known = self.queues.get((tenant, queue))
        return known is not None and group in known.groups

    def deliverable(self, command: Pop) -> int:
        """Count the messages that a pop could have now, no further than it needs."""
        queue = self.queues.get((command.tenant, command.queue))
        group = queue.groups.get(command.group) if queue is not None else None
        if queue is None or group is None:
            return 0
        return available(group, queue, command, self.now)

    def watch(self, tenant: str, message: int) -> Watched:
        """Watch a message: ``take_changed`` returns it when it may have ended."""
        shard = self.shard_of(message)
        (current,) = self.current([message])
        where = require(shard, tenant, current)
        key = where.place.partition.key
        shard.watched.setdefault(key, set()).add(where.first)
        return shard.number, key, where.first

    def unwatch(self, watched: Watched) -> None:
        number, key, offset = watched
        offsets = self.shards[number].watched.get(key)
        if offsets is not None:
            offsets.discard(offset)
            if not offsets:
                del self.shards[number].watched[key]

    def take_changed(self) -> list[Watched]:
        """Return the watched messages that changed, and stop watching them."""
        found: list[Watched] = []
        for shard in self.shards:
            found += [(shard.number, key, offset) for key, offset in shard.watched_changed]
            shard.watched_changed.clear()
        return found

    def take_owners(self, before: "Engine") -> None:
        """Restore which connections own the leases that survived a reload."""
        for old, new in zip(before.shards, self.shards, strict=True):
            for name, lease in new.leases.items():
                if name in old.leases:
                    lease.owner = old.leases[name].owner


class Taken(Struct, frozen=True):
    """A claimed shard."""

    epoch: int
    """Higher than every epoch before."""
    down_ms: int = 0
    """How long its leases could not be settled."""
    restored: int = 0
    """Names to skip after a restore: the backup does not know all that were given out."""


def load(
    limits: Limits,
    claims: list[Taken],
    meta_epoch: int,
    scan: Scan,
    now: int,
) -> Engine:
    """Return the engine of these records, with raised epochs. ``claims`` has one entry per shard.

    A queue whose records are damaged is left out and listed in ``damaged``.
    """
    shards = len(claims)
    directory, made = directories.load(shards, meta_epoch, limits, scan(*keyspace.meta_bounds()))
    engine = Engine(limits, directory, shards)
    engine.now = now
    for shard, claim, numbers in zip(engine.shards, claims, made, strict=True):
        shard.numbering.epoch, shard.numbering.made = claim.epoch, numbers
        if claim.restored:
            shard.skip_numbers(claim.restored)
    for tenant, known in directory.tenants.items():
        for name, (queue_id, number) in known.queues.items():
            queue = new_queue(tenant, name, keyspace.prefix(known.id, queue_id), number)
            found = scan(*keyspace.queue_bounds(queue.prefix))
            claim = claims[number]
            try:
                crons = load_queue(
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
                for each in crons:
                    cron.add(engine, engine.shards[number], each)
        try:
            _load_own(engine, tenant, known.id, scan, now)
        except Damaged as error:
            engine.lost[tenant] = error.message
        theirs = list(engine.of_tenant(tenant))
        is_whole = not any((tenant, name) in engine.damaged for name in known.queues)
        if is_whole and not all(queue.stored for queue in theirs):
            recover(engine, theirs, now)
            settle_consequences(engine, now)
    for place in [place for place, queue in engine.queues.items() if queue.closing_at]:
        queue = engine.closing[place] = engine.queues.pop(place)
        engine.emptied[queue.prefix] = queue
    for queue in engine.of_tenant(SYSTEM):
        if event_log.is_log(queue):
            event_log.restore(engine, queue, now)
    engine.tick(now)
    return engine


def _load_own(engine: Engine, tenant: str, number: int, scan: Scan, now: int) -> None:
    """Load keys, values and named limits of a tenant. Limits start without tokens: they may be spent."""
    entries, limits = decode_own(scan(*keyspace.own_bounds(keyspace.own_prefix(number))))
    engine.values[tenant] = Values(entries)
    engine.named_limits[tenant] = limits
    named = engine.limiters[tenant] = {name: new_limiter(limits[name], None, now) for name in limits}
    for queue in engine.of_tenant(tenant):
        if queue.limited or any(partition.lane for partition in queue.partitions.values()):
            attach(queue, named, now)
            for name in queue.options.limits:
                if name in named:
                    named[name].active += named_limits.leased(queue)
