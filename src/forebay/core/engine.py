"""The engine: routes each command to the shard of its tenant, ticks and seals the shards that it has.

    engine.apply(command, now) -> reply          or raises, and has changed nothing
    engine.next_due_at() -> when to call tick    lease expiry, due messages, sweeps
    engine.seal(now) -> commits                  what to store, atomically, before replies leave

A shard decides alone: only here is more than one of them seen at a time. An engine has all shards of a
store, or some: commands for the others raise ``Elsewhere``. A shard is taken and released while others work.

Nothing here reads a clock, uses randomness or touches storage. ``now`` never goes backwards.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeVar

from forebay.core import event_log
from forebay.core.api.commands import Command, Pop, Popped, Reply, TenantPut, Wake
from forebay.core.api.jobs import CronDelete, CronPut
from forebay.core.api.principals import Patterns
from forebay.core.api.queries import EventPositions, EventsPast, FindJob, Measure, MeasureQueues, Show
from forebay.core.bounds import NEVER, Limits
from forebay.core.delivery import give_back
from forebay.core.delivery.pop import available
from forebay.core.errors import Damaged, Elsewhere
from forebay.core.handlers import HANDLERS
from forebay.core.ids import lease_token, parse_lease
from forebay.core.jobs import cron
from forebay.core.jobs.dependencies import settle_consequences
from forebay.core.loading.shard import Taken as Taken
from forebay.core.loading.shards import Loaded, load_shards as load_shards
from forebay.core.queries import payloads
from forebay.core.queues import delete as queue_delete
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit, Record, Scan
from forebay.core.retention import carve, merge as merges
from forebay.core.retention.carve import Carved, Carving
from forebay.core.retention.merge import Joined, Merge
from forebay.core.routing import access, control as controls, tenancy
from forebay.core.routing.control import Control
from forebay.core.routing.gather import JOINS, gather
from forebay.core.routing.placement import home_of, shard_of_id, shard_of_queue
from forebay.core.routing.spread import queue_of, touched
from forebay.core.shard.addresses import current_ids, require
from forebay.core.shard.shard import Shard
from forebay.core.state import EmittedEvent, Lease, Queue, Segment, segment
from forebay.core.structures.agenda import Alarm
from forebay.core.tick import tick as tick
from forebay.core.words import FSYNC, is_own

K = TypeVar("K")
V = TypeVar("V")
SWEEPS_MAX = 500
"""Queues swept per tick; the next tick, which follows at once, sweeps more."""
MERGE_MIN = 64
"""Tiny segments worth a merge."""
Watched = tuple[int, int, int]
"""Shard, partition key and offset of a watched message."""


class Engine:
    """State + command + now -> reply and records."""

    def __init__(self, limits: Limits, count: int, control: Control, reach: str = FSYNC) -> None:
        self.limits = limits
        self.count = count
        """Number of shards of the store."""
        self.control = control
        self.reach = reach
        """The store's durability."""
        self.shards: dict[int, Shard] = {}
        """The shards that this engine has, by number."""
        self.damaged_shards: dict[int, str] = {}
        """Shards whose names are damaged, and why: commands for their tenants are refused."""
        self.listed_again: list[str] = []
        """Tenants whose control record was lost."""
        self.changed: list[Shard] = []
        """Shards to seal."""
        self.alarm = Alarm()
        self.must_sync = False
        """Whether the last seal's commits have to survive power loss before replies leave."""
        self.wants_sync = False
        """Whether the next seal must ask for a sync, whatever is in it."""
        self.now = 0
        self._listening = self._watching_keys = self._crons_wait = False
        self._routes: dict[str, Shard] = {}
        """Shards of known tenants that live in one."""
        self._sealed: list[tuple[segment.Log, Segment]] = []
        self._emitted: list[EmittedEvent] = []

    # Apply.

    def apply(self, command: Command, now: int) -> Reply:
        """Apply a command at ``now``."""
        if now > self.now:
            self._go_on_to(now)
        shard = self._routes.get(command.tenant)
        if shard is None:
            return self._route(command)
        # ``_apply_in`` inlined, with checks for what is seldom needed: every single push and ack runs this.
        reply: Reply = HANDLERS[type(command)](shard, command, self.now)
        if shard.emptied:
            queue_delete.finish(shard)
        if shard.ends:
            settle_consequences(shard, self.now)
        return reply

    def apply_forwarded(self, command: Command, now: int, version: int) -> Reply:
        """Apply a command that another engine routed here by control records of this version."""
        if version != self.control.version:
            raise Elsewhere(
                keyspace.CONTROL,
                f"routed by version {version} of the placement, and this is {self.control.version}: "
                "read the control records again",
            )
        return self.apply(command, now)

    def apply_part(self, query: Command, now: int) -> Reply:
        """Apply a query that is gathered to the shards that are here; ``gather.join`` joins such replies."""
        if now > self.now:
            self._go_on_to(now)
        own = [each for each in self.shards.values() if query.tenant in each.names.tenants]
        return self._gather(query, own)

    def _apply_in(self, shard: Shard, command: Command) -> Reply:
        reply: Reply = HANDLERS[type(command)](shard, command, self.now)
        queue_delete.finish(shard)
        settle_consequences(shard, self.now)
        return reply

    # Route.

    def _route(self, command: Command) -> Reply:
        """Apply a command whose tenant has no route yet, is spread, or is none."""
        if isinstance(command, tenancy.OfControl):
            return self._apply_to_control(command)
        if isinstance(command, EventsPast | MeasureQueues):
            return self._apply_in(self._owned(command.shard), command)
        if isinstance(command, Measure | EventPositions):
            return self._gather(command, list(self.shards.values()))
        tenant = command.tenant
        tenancy.check_use(self.control, self.limits, tenant)
        if self.control.is_spread(tenant):
            return self._apply_spread(command)
        shard = self._owned(self.home(tenant))
        if is_own(tenant) or tenant in self.control.tenants:
            self._routes[tenant] = shard
        elif not self.control.is_owner:
            # It may be spread: only the owner knows that there is no such tenant yet.
            why = "this node does not know the tenant: put it, or read the control records again"
            raise Elsewhere(keyspace.CONTROL, why)
        reply = self._apply_in(shard, command)
        if tenant in shard.names.tenants and tenant not in self._routes:
            # In the same seal: a tenant is listed before anything of it is stored.
            self.control.add(tenant, spread=False, now=self.now)
            self._routes[tenant] = shard
        return reply

    def _owned(self, number: int) -> Shard:
        shard = self.shards.get(number)
        if shard is None:
            if number in self.damaged_shards:
                why = self.damaged_shards[number]
                raise Damaged(f"shard {number} can't be read: {why}; stop the server and run forebay verify")
            raise Elsewhere(number)
        return shard

    def _apply_to_control(self, command: Command) -> Reply:
        reply = tenancy.apply(self.control, self.limits, command, self.now)
        if isinstance(command, TenantPut) and command.suspended is not None:
            self._routes.pop(command.name, None)  # what the tenant asks for is looked at, or not any more
            for shard in self.shards.values():
                cron.hold(shard, command.name, command.suspended)
        return reply

    check_values = staticmethod(access.check_values)

    def check_queues(self, command: Command, patterns: Patterns) -> None:
        """Raise unless a command is about queues only, and all of them match patterns.

        What is missing matches: the handler of the command says so.
        """
        if access.is_plain(command, patterns):
            return
        tenant, is_spread = command.tenant, self.control.is_spread(command.tenant)
        about = access.about(command, patterns, is_spread=is_spread)
        access.check(about.queues, patterns)
        home = self.home(tenant)
        places: list[tuple[int, int | None, int | None]] = []
        places += ((each % self.count if is_spread else home, each, None) for each in about.numbers)
        places += ((shard, None, name) for shard, name in about.leases)
        for number, partition, lease in places:
            if (shard := self.shards.get(number)) is not None:
                queue = queue_of(shard, tenant, partition, lease)
                access.check([queue.name] if queue is not None else (), patterns)
        if isinstance(command, CronPut | CronDelete) and (shard := self.shards.get(home)) is not None:
            access.check(cron.queues_of(shard, tenant, command.name), patterns)

    def _apply_spread(self, command: Command) -> Reply:
        """Apply a command of a tenant whose queues live in several shards."""
        tenant = command.tenant
        if type(command) in JOINS and not (isinstance(command, FindJob) and command.queue is not None):
            return self._gather(command, self._of_spread(command))
        about = touched(command)
        places, missing = about.shards_of_names(tenant, self.count), set[int]()
        for number, is_mine in about.shards_of_ids(self.count, partial(self._is_of, tenant)):
            (places if is_mine else missing).add(number)
        if len(places) > 1:
            raise about.refuse()
        if not places:  # any shard of the tenant can say that it is missing; one of others is not asked
            own = (each for each, shard in self.shards.items() if tenant in shard.names.tenants)
            places = {next((each for each in own if each in missing), self.home(tenant))}
        (number,) = places
        shard = self._owned(number)
        about.check(tenant, shard)
        return self._apply_in(shard, command)

    def _is_of(self, tenant: str, number: int, partition: int | None, lease: int | None) -> bool:
        """Whether a partition or lease of a shard is the tenant's; if the shard is not here, it may be."""
        shard = self.shards.get(number)
        return shard is None or queue_of(shard, tenant, partition, lease) is not None

    def _of_spread(self, command: Command) -> list[Shard]:
        """Return the shards in which a spread tenant may have what a query asks for, or none of them: an
        answer that lacks a shard would be wrong."""
        found: Iterable[int] = range(self.count)
        if isinstance(command, Show):
            found = sorted({shard_of_id(each, self.count) for each in command.ids})
        own = [each for each in map(self._owned, found) if command.tenant in each.names.tenants]
        return own or [self._owned(self.home(command.tenant))]

    def _gather(self, command: Command, shards: list[Shard]) -> Reply:
        asks = [partial(self._apply_in, shard, command) for shard in shards]
        return gather(self.limits, command, asks)

    def home(self, tenant: str) -> int:
        """Return the number of the shard of a tenant; of a spread one, of what it has beside its queues."""
        return home_of(tenant, self.count)

    def shard_of(self, tenant: str, queue: str) -> int:
        """Return the number of the shard in which a queue lives, or would."""
        if self.control.is_spread(tenant):
            return shard_of_queue(tenant, queue, self.count)
        return self.home(tenant)

    def _shard_of_message(self, tenant: str, message: int) -> Shard:
        spread = self.control.is_spread(tenant)
        return self._owned(shard_of_id(message, self.count) if spread else self.home(tenant))

    # Time.

    def _go_on_to(self, now: int) -> None:
        """Advance the clock, and do what is due."""
        self.now = now
        if self.alarm.at <= now:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Do everything that is due by ``now``; a shard with nothing due is not looked at."""
        self.now = now = max(now, self.now)
        sweeps = SWEEPS_MAX
        shards = self.shards.values()
        for shard in shards:
            if shard.timers.alarm.at <= now:
                sweeps = tick(shard, now, sweeps)
        self.alarm.at = min((shard.timers.alarm.at for shard in shards), default=NEVER)

    def hold_crons(self, wait: bool) -> None:
        """Have crons that are due wait from now on, as the store may not grow, or fire.

        Their slots are then late: what fires for them is up to ``missed`` of each.
        """
        if wait != self._crons_wait:
            self._crons_wait = wait
            for shard in self.shards.values():
                shard.timers.hold_crons(wait)

    def next_due_at(self) -> int:
        """Return when to call ``tick``; ``NEVER`` if nothing is due."""
        return self.alarm.at

    # Seal.

    def seal(self, now: int) -> list[Commit]:
        """Return the changes since the last seal: one commit per changed shard."""
        for shard in self.changed:
            assert not shard.ends, "what follows from an end is kept with it"
            shard.rows_notified = shard.kept_dropped = 0
            if shard.changes.change_log.entries:
                event_log.keep(shard, now)
        commits = [self.control.seal(now)] if self.control.changed else []
        self.must_sync = self.wants_sync or bool(commits)
        self.wants_sync = False
        if self.changed:
            for shard in self.changed:
                self.must_sync |= shard.changes.must_sync
                commit = shard.changes.seal(now)
                self._sealed += shard.changes.sealed
                shard.changes.sealed = []
                if shard.events.emitted:
                    self._emitted += shard.events.emitted
                    shard.events.emitted = []
                if not commit.is_empty:
                    commits.append(commit)
                shard.changes.woken.clear()
            self.changed.clear()
        return commits

    @property
    def has_changes(self) -> bool:
        """Whether there is something to seal."""
        return bool(self.changed) or self.control.changed

    def want_sync(self) -> None:
        """Make the next seal ask for a sync, whatever is in it."""
        self.wants_sync = True

    def take_sealed(self) -> list[tuple[segment.Log, Segment]]:
        """Return segments whose bodies are in memory and, with the last seal's commits, in the store."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def take_emitted(self) -> list[EmittedEvent]:
        """Return the events of the last seal's commits."""
        told, self._emitted = self._emitted, []
        return told

    # Take shards, and release them.

    def take(self, claims: Mapping[int, Taken], scan: Scan, now: int) -> None:
        """Load claimed shards, and adopt them."""
        self.adopt(load_shards(self.limits, self.count, claims, scan, max(now, self.now), self.reach))

    def adopt(self, loaded: Loaded) -> None:
        """Add loaded shards to those that are here, which may have worked on while these were loaded."""
        numbers = {shard.number for shard in loaded.shards}
        assert not numbers & self.shards.keys(), "a shard is released before it is taken again"
        for shard in loaded.shards:
            self._list_tenants(shard)
            for tenant, known in self.control.tenants.items() if self.control.has_suspended else ():
                cron.hold(shard, tenant, known.suspended)
        self.damaged_shards |= loaded.damaged
        for shard in loaded.shards:
            shard.events.listening = self._listening
            shard.values.is_watched = self._watching_keys
            shard.timers.crons_wait = self._crons_wait
            shard.timers.alarm.on_sooner = self.alarm.sooner
            shard.changes.on_first = partial(self.changed.append, shard)
            if shard.changes.dirty:
                self.changed.append(shard)
        self.shards = dict(sorted((self.shards | {shard.number: shard for shard in loaded.shards}).items()))
        self.tick(max(self.now, loaded.now))

    def _list_tenants(self, shard: Shard) -> None:
        """List the tenants of a shard that are in no control record, because it was lost.

        One that is spread can't be among them: the version of the placement would not fit.
        """
        lost = [name for name in shard.names.tenants if name not in self.control.tenants and not is_own(name)]
        if lost and not self.control.is_owner:
            raise Elsewhere(keyspace.CONTROL, "the control records have changed: read them again")
        for name in lost:
            self.control.add(name, spread=False)
        self.listed_again += lost

    def release(self, number: int) -> None:
        """Forget a shard, all of whose changes are committed."""
        if self.damaged_shards.pop(number, None) is not None:
            return
        shard = self._owned(number)
        assert shard not in self.changed, "what changed is sealed before the shard is released"
        del self.shards[number]
        self._routes = {tenant: each for tenant, each in self._routes.items() if each is not shard}
        self.alarm.at = min((each.timers.alarm.at for each in self.shards.values()), default=NEVER)

    def read_control(self, found: Iterable[Record]) -> None:
        """Replace the control records by those that their owner has written since."""
        assert not self.control.is_owner, "the owner has the newest"
        self.control = controls.load(None, found)

    # Merge and carve in the background.

    @property
    def may_merge(self) -> bool:
        """Whether there are partitions left to check for merges."""
        return any(shard.changes.to_merge for shard in self.shards.values())

    def plan_merge(self, at_least: int = MERGE_MIN) -> Merge | None:
        """Return the next merge, if one is worth it."""
        for shard in self.shards.values():
            if shard.changes.to_merge:
                return merges.plan(shard, at_least)
        return None

    def plan_carving(self) -> Carving | None:
        """Return the next island to carve, if one is worth it."""
        for shard in self.shards.values():
            if shard.changes.to_carve and (carving := carve.plan(shard)) is not None:
                return carving
        return None

    def apply_carving(self, carving: Carving, carved: list[Carved]) -> bool:
        """Replace an island by its parts, unless it changed meanwhile; return whether it was done."""
        shard = self.shards.get(carving.shard)
        if shard is None:
            return False
        done = carve.apply(shard, carving, carved, self.now)
        settle_consequences(shard, self.now)
        return done

    def apply_merge(self, merge: Merge, joined: Joined) -> bool:
        """Replace segments by their merge, unless they changed meanwhile; return whether it was done."""
        shard = self.shards.get(merge.shard)
        return shard is not None and merges.apply(shard, merge, joined) is not None

    # Leases that clients do not settle themselves.

    def _leased(self, token: str) -> tuple[Shard, Lease] | None:
        """Return a live lease and its shard; None if it has ended, or its shard is not here any more."""
        number, name = parse_lease(token)
        shard = self.shards.get(number)
        lease = shard.leases.get(name) if shard is not None else None
        return (shard, lease) if shard is not None and lease is not None else None

    def put_off(self, popped: Popped) -> None:
        """Remove unreadable messages from their lease; they are due when the lease would have expired."""
        assert popped.lease is not None
        found = self._leased(popped.lease)
        if found is not None:
            give_back.put_off(*found, payloads.lacking(popped), self.now)
            settle_consequences(found[0], self.now)

    def give_back(self, popped: Popped, now: int) -> None:
        """Take back a lease whose reply could not be delivered."""
        assert popped.lease is not None
        if now > self.now:
            self._go_on_to(now)
        found = self._leased(popped.lease)
        if found is not None:
            give_back.give_back(*found, self.now)
            queue_delete.finish(found[0])
            settle_consequences(found[0], self.now)

    def leased_to(self, tenant: str) -> list[Popped]:
        """Return every live lease of a tenant, as ``give_back`` takes it."""
        shards = list(self.shards.values())
        if not self.control.is_spread(tenant):
            shards = [each for each in shards if each.number == self.home(tenant)]
        return [
            Popped(lease.queue, lease_token(shard.number, name), [])
            for shard in shards
            for name, lease in shard.leases.items()
            if lease.queue.tenant == tenant
        ]

    def unsettled(self, token: str) -> int | None:
        """Return how many messages a lease still holds; None if it has ended."""
        found = self._leased(token)
        return None if found is None else sum(run.unsettled for run in found[1].runs.values())

    def gain(self, ms: int) -> None:
        """Extend all leases by a time in which no consumer could settle, as after a restart."""
        for shard in self.shards.values():
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
        for shard in self.shards.values():
            shard.changes.clear_marks()

    def take_woken(self) -> list[Wake]:
        """Return what became deliverable since the last call or seal."""
        woken: list[Wake] = []
        for shard in self.changed:
            woken += shard.changes.woken
            shard.changes.woken.clear()
        return woken

    # Queues, and what is watched.

    def queue(self, tenant: str, name: str) -> Queue | None:
        """Return a queue, if there is one here."""
        shard = self._routes.get(tenant) or self.shards.get(self.shard_of(tenant, name))
        return shard.names.queues.get((tenant, name)) if shard is not None else None

    def has_group(self, tenant: str, queue: str, group: str) -> bool:
        known = self.queue(tenant, queue)
        return known is not None and group in known.groups

    def deliverable(self, command: Pop) -> int:
        """Count the messages that a pop could have now, no further than it needs."""
        queue = self.queue(command.tenant, command.queue)
        group = queue.groups.get(command.group) if queue is not None else None
        if queue is None or group is None:
            return 0
        return available(group, queue, command, self.now)

    @property
    def queues(self) -> dict[tuple[str, str], Queue]:
        """All queues, by tenant and name."""
        return _joined(shard.names.queues for shard in self.shards.values())

    @property
    def damaged(self) -> dict[tuple[str, str], str]:
        """Queues whose records are damaged, and why."""
        return _joined(shard.names.damaged for shard in self.shards.values())

    @property
    def lost(self) -> dict[str, str]:
        """Tenants whose keys, values and limits are damaged, and why."""
        return _joined(shard.names.lost for shard in self.shards.values())

    def listen(self, listening: bool) -> None:
        """Emit events from now on, or no more."""
        self._listening = listening
        for shard in self.shards.values():
            shard.events.listening = listening

    def watch(self, tenant: str, message: int) -> Watched:
        """Watch a message: ``take_changed`` returns it when it may have ended."""
        shard = self._shard_of_message(tenant, message)
        (current,) = current_ids(shard, [message])
        where = require(shard, tenant, current)
        key = where.place.partition.key
        shard.watched.add(key, where.first)
        return shard.number, key, where.first

    def unwatch(self, watched: Watched) -> None:
        number, key, offset = watched
        if number in self.shards:
            self.shards[number].watched.remove(key, offset)

    def take_changed(self) -> list[Watched]:
        """Return the watched messages that changed, and stop watching them."""
        found: list[Watched] = []
        for shard in self.shards.values():
            if shard.watched.changed:
                found += [(shard.number, key, offset) for key, offset in shard.watched.changed]
                shard.watched.changed.clear()
        return found

    def watch_keys(self, watching: bool) -> None:
        """Note the keys that are written from now on, or no more."""
        if watching != self._watching_keys:
            self._watching_keys = watching
            for shard in self.shards.values():
                shard.values.is_watched = watching
                shard.values.touched.clear()

    def take_touched_keys(self) -> list[tuple[str, bytes]]:
        """Return keys that changed while there were watchers, with their tenants."""
        found: list[tuple[str, bytes]] = []
        for shard in self.changed:
            found += shard.values.touched
            shard.values.touched.clear()
        return found

    def take_owners(self, before: "Engine") -> None:
        """Restore which connections own the leases that survived a reload."""
        for number, shard in self.shards.items():
            old = before.shards.get(number)
            for name, lease in shard.leases.items() if old is not None else ():
                if old is not None and name in old.leases:
                    lease.owner = old.leases[name].owner


def _joined(parts: Iterable[dict[K, V]]) -> dict[K, V]:
    return {key: value for part in parts for key, value in part.items()}


def load(
    limits: Limits,
    count: int,
    claims: Mapping[int, Taken],
    control: int | None,
    scan: Scan,
    now: int,
    reach: str = FSYNC,
    *,
    crons_wait: bool = False,
) -> Engine:
    """Return an engine with claimed shards of a store that has ``count`` of them.

    ``control`` is the epoch of the claimed control records; None for an engine that only reads them. A queue
    whose records are damaged is left out and listed in ``damaged``, a shard in ``damaged_shards``.
    """
    engine = Engine(limits, count, controls.load(control, scan(*keyspace.control_bounds())), reach)
    engine.hold_crons(crons_wait)
    engine.take(claims, scan, now)
    return engine
