"""A life of several tenants over several shards and engines, compared with the lives of each of them alone.

On one side are two engines over one store. Each has some of the shards, which are released and taken again at
any moment; tenants share shards, and one is spread. On the other side every tenant, and every queue of the
spread one, has an engine and a store of its own. All of them use the same names, and now and then the ids and
leases of each other. Whatever is asked, both sides must answer the same.

Ids, leases and versions differ: each is bound to its counterpart where both first appear, and must stay so.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from forebay.core import engine as engines
from forebay.core.api import commands as c, jobs, queries
from forebay.core.api.jobs import FlowJob, Job
from forebay.core.bounds import NEVER, Limits
from forebay.core.engine import Engine, Taken
from forebay.core.errors import Elsewhere, ForebayError, Invalid, NotFound
from forebay.core.ids import address, lease_token, parse_lease
from forebay.core.keyvalue.keys import pack
from forebay.core.loading.verify import verify
from forebay.core.log.slices import SegmentSlice
from forebay.core.records import keyspace
from forebay.core.records.keyspace import CONTROL, control_bounds
from forebay.core.routing.gather import join
from forebay.core.routing.placement import home_of, shard_of_queue
from forebay.core.state import Attributes, Identity, NamedLimit, Queue
from forebay.core.words import is_own
from forebay.store.memory import MemoryStore
from tests.sim.snapshot import differences, snapshot

SHARDS = 4
LIFE = 1_500
"""Steps of one life."""
BEGIN = 1_700_000_000_000
WIDE, LATE = SPREAD = ("wide", "late")
"""Tenants that are spread: from the beginning, and made in the midst of things."""
TENANTS = ("a", "b", "c", "d", "e", *SPREAD)
LIMITS = Limits(events_bytes_max=1 << 20, pop_creates_queues=True)
QUEUES = ("q", "r", "s")
GROUPS = ("default", "default", "other")
NAMES = ("one", "two")
MISSING = address(1 << 31, 7)
NO_LEASE = lease_token(SHARDS + 1, 1)
_NUMBERS = re.compile(r"\d{4,}")
World = tuple[str, str | None]
"""A tenant; of the spread one, a queue, or None for its values."""


class Pair(NamedTuple):
    """An id, a lease or a version on both sides."""

    together: Any
    alone: Any


class Ref(NamedTuple):
    """Something in a reply that differs between the sides."""

    kind: str
    value: Any


class Message(NamedTuple):
    world: World
    tenant: str
    id: Pair


class Leased(NamedTuple):
    world: World
    tenant: str
    token: Pair


class Together:
    """Two engines over one store; the first has the control records."""

    def __init__(self, random: Random, now: int, commit_all: Callable[[], None]) -> None:
        """``commit_all`` commits on both sides: a segment that is not sealed yet takes more messages."""
        self.store = MemoryStore()
        self.random, self.commit_all = random, commit_all
        self.engines = [self._load([0, 1], True, now), self._load([2, 3], False, now)]
        self.apply(c.TenantPut(WIDE, True), now, CONTROL)

    def _load(self, shards: list[int], control: bool, now: int) -> Engine:
        claims = {number: Taken(self.store.claim(number).epoch) for number in shards}
        epoch = self.store.claim(CONTROL).epoch if control else None
        return engines.load(LIMITS, SHARDS, claims, epoch, self.store.scan, now)

    def owner(self, shard: int) -> Engine:
        return next(each for each in self.engines if shard == CONTROL or shard in each.shards)

    def apply(self, command: c.Command, now: int, shard: int) -> c.Reply:
        """Ask the engine that has a shard; now and then another one before."""
        owner = self.owner(shard)
        if shard != CONTROL and self.random.random() < 0.1:
            other = next(each for each in self.engines if each is not owner)
            other.tick(now)
            before = list(other.changed), [_view(other, number) for number in other.shards]
            try:
                other.apply(command, now)
            except (Elsewhere, Invalid):
                pass
            else:
                raise AssertionError(f"a shard that is elsewhere has answered {command}")
            assert before == (list(other.changed), [_view(other, number) for number in other.shards])
        if shard == CONTROL:
            return owner.apply(command, now)
        try:
            return owner.apply_forwarded(command, now, self.engines[0].control.version)
        except Elsewhere as error:
            if error.shard != CONTROL:
                raise
        if command.tenant not in self.engines[0].control.tenants and command.tenant:
            self.engines[0].apply(c.TenantPut(command.tenant), now)
        self.commit_all()
        self.engines[1].read_control(self.store.scan(*control_bounds()))
        return owner.apply_forwarded(command, now, self.engines[0].control.version)

    def tick(self, now: int) -> None:
        for engine in self.engines:
            due = [shard.timers.next_at() for shard in engine.shards.values()]
            assert engine.next_due_at() <= min(due, default=NEVER), "the engine is told when to tick"
            engine.tick(now)

    def commit(self, now: int) -> None:
        for engine in self.engines:
            self.store.commit(engine.seal(now))
            engine.take_sealed()

    def reload(self, shard: int, taker: int, now: int) -> None:
        """Release a shard, and have an engine take it: it is as it was."""
        giver = self.owner(shard)
        giver.clear_marks()
        self.commit_all()
        before = _view(giver, shard)
        giver.release(shard)
        self.engines[1].read_control(self.store.scan(*control_bounds()))
        self.engines[taker].take({shard: Taken(self.store.claim(shard).epoch)}, self.store.scan, now)
        found = list(differences(_view(self.engines[taker], shard), before))
        assert not found, found


def _view(engine: Engine, shard: int) -> object:
    """What tenants have in a shard. (The end of an event log is sealed when it is loaded.)"""
    found = engine.shards[shard]
    queues = {place: queue for place, queue in found.names.queues.items() if not is_own(place[0])}
    return snapshot(SimpleNamespace(shards={shard: found}, queues=queues))  # type: ignore[arg-type]


class Alone:
    """One world with an engine, a shard and a store of its own."""

    def __init__(self, now: int) -> None:
        self.store = MemoryStore()
        self.load(now)

    def load(self, now: int) -> None:
        claims = {0: Taken(self.store.claim(0).epoch)}
        control = self.store.claim(CONTROL).epoch
        self.engine = engines.load(LIMITS, 1, claims, control, self.store.scan, now)

    def commit(self, now: int) -> None:
        self.store.commit(self.engine.seal(now))
        self.engine.take_sealed()

    def reload(self, now: int) -> None:
        self.engine.tick(now)
        self.engine.clear_marks()
        self.commit(now)
        self.load(now)


class ShardsLife:
    """Random steps of all tenants, each answered by both sides."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = BEGIN
        self.worlds: dict[World, Alone] = {}
        self.together = Together(Random(seed + 1), self.now, lambda: self.commit("", ""))
        self.bound: tuple[dict[tuple[Any, ...], Any], dict[tuple[Any, ...], Any]] = ({}, {})
        self.messages: list[Message] = []
        self.leases: list[Leased] = []
        self.payloads = self.steps = 0
        self.answers: dict[str, int] = {}
        """How often each kind of reply was compared."""

    # Both sides.

    def world_of(self, tenant: str, queue: str | None) -> World:
        return (tenant, queue if tenant in SPREAD else "")

    def shard_of(self, world: World) -> int:
        tenant, queue = world
        if tenant in SPREAD and queue is not None:
            return shard_of_queue(tenant, queue, SHARDS)
        return home_of(tenant, SHARDS)

    def alone(self, world: World) -> Alone:
        if world not in self.worlds:
            self.worlds[world] = Alone(self.now)
        return self.worlds[world]

    def ask(self, world: World, command: Callable[[int], c.Command]) -> None:
        """Ask both sides, and compare what they answer. ``command`` gets 0 for together, 1 for alone."""
        together = self._answer(
            lambda: self.together.apply(command(0), self.now, self.shard_of(world)),
            self.together.store,
            world,
        )
        other = self.alone(world)
        alone = self._answer(lambda: other.engine.apply(command(1), self.now), other.store, world)
        kind = together[0] if isinstance(together, tuple) and together else "none"
        self.answers[str(kind)] = self.answers.get(str(kind), 0) + 1
        self._same(together, alone, world, command)

    def _answer(self, apply: Callable[[], c.Reply], store: MemoryStore, world: World) -> Any:
        try:
            return _shown(apply(), store)
        except ForebayError as error:
            return (type(error).__name__, _NUMBERS.sub("#", error.message))

    def _same(self, one: Any, other: Any, world: World, command: Callable[[int], c.Command]) -> None:
        told = f"{command(0)}: {one} is not {other}"
        assert type(one) is type(other), told
        if isinstance(one, Ref):
            # No two shards give out one id or lease; a version is a tenant's own.
            whose = world if one.kind == "version" else None
            place, counterpart = (whose, one.kind, one.value), (other.kind, other.value)
            if place not in self.bound[0] and (world, *counterpart) not in self.bound[1]:
                self.bound[0][place] = (world, *counterpart)
                self.bound[1][world, *counterpart] = place
                self._met(Pair(one.value, other.value), one.kind, world)
            assert self.bound[0].get(place) == (world, *counterpart), told
        elif isinstance(one, tuple | list):
            assert len(one) == len(other), told
            for mine, theirs in zip(one, other, strict=True):
                self._same(mine, theirs, world, command)
        else:
            assert one == other, told

    def _met(self, pair: Pair, kind: str, world: World) -> None:
        """Something was seen for the first time: later steps may be about it."""
        tenant = world[0]
        if kind == "id":
            self.messages.append(Message(world, tenant, pair))
        elif kind == "lease":
            self.leases.append(Leased(world, tenant, pair))

    # Steps.

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.together.commit(self.now)
        for shard in range(SHARDS):
            self.move(shard)
        self.compare_all()
        self.verify()

    def verify(self) -> None:
        """The store is in order, every queue in its shard and every tenant in the control records."""
        self.together.commit(self.now)
        store = self.together.store
        damage = [report for report in verify(SHARDS, store.scan, store.bodies, set()) if report.damage]
        assert not damage, damage

    def step(self) -> None:
        self.steps += 1
        if self.steps == 150:
            self.together.apply(c.TenantPut(LATE, True), self.now, CONTROL)
        tenant, queue = self.random.choice(TENANTS), self.random.choice(QUEUES)
        if tenant == LATE and self.steps < 150:
            return
        kinds: list[tuple[int, Callable[[str, str], None]]] = [
            (8, self.push),
            (4, self.push_jobs),
            (8, self.pop),
            (8, self.settle),
            (4, self.change),
            (3, self.values),
            (2, self.crons),
            (2, self.limits),
            (3, self.transact),
            (2, self.flow),
            (3, self.ask_state),
            (2, self.intrude),
            (1, self.remove),
            (3, self.wait),
            (3, self.commit),
            (2, self.hand_over),
        ]
        (chosen,) = self.random.choices([each for _, each in kinds], [weight for weight, _ in kinds])
        chosen(tenant, queue)

    def payload(self) -> bytes:
        self.payloads += 1
        return b"%d" % self.payloads

    def mine(self, world: World) -> list[Message]:
        return [each for each in self.messages if each.world == world][-40:]

    def push(self, tenant: str, queue: str) -> None:
        world = self.world_of(tenant, queue)
        count, payload = self.random.randint(1, 3), self.payload()
        priority, delay = self.random.choice((0, 0, 0, 5)), self.random.choice((0, 0, 0, 400))
        known = self.mine(world)
        on = [self.random.choice(known)] if known and self.random.random() < 0.3 else []
        policy = self.random.choice(("fail", "ignore", "wait"))

        def command(side: int) -> c.Command:
            spans = tuple((each.id[side], 1) for each in on)
            having = Attributes(priority=priority, delay_ms=delay, depends_on=spans, on_failed=policy)
            return c.Push(tenant, queue, [payload] * count, attributes=having)

        self.ask(world, command)

    def push_jobs(self, tenant: str, queue: str) -> None:
        name, payload = self.random.choice(NAMES), self.payload()
        own = self.random.choice(
            (Identity(unique_key=name), Identity(job_id=name), Identity(transaction_id=name))
        )
        if tenant not in SPREAD and self.random.random() < 0.2:
            own = Identity(keys=(pack([name]),))
        self.ask(
            self.world_of(tenant, queue),
            lambda side: jobs.PushJobs(tenant, queue, [Job(payload, own=own), Job(payload)]),
        )

    def pop(self, tenant: str, queue: str) -> None:
        group, count = self.random.choice(GROUPS), self.random.randint(1, 4)
        lease_ms = self.random.choice((300, 5_000))
        self.ask(
            self.world_of(tenant, queue),
            lambda side: c.Pop(tenant, queue, group, count=count, lease_ms=lease_ms),
        )

    def settle(self, tenant: str, queue: str) -> None:
        leases = [each for each in self.leases if each.tenant == tenant]
        if not leases:
            return
        lease = self.random.choice(leases[-6:])
        known = self.mine(lease.world)
        few = self.random.sample(known, min(len(known), 2))
        how = self.random.choice((c.Ack, c.Ack, c.Nack, c.Extend))
        by_ids = bool(few) and self.random.random() < 0.4

        def command(side: int) -> c.Command:
            if by_ids:
                return how(tenant, None, [each.id[side] for each in few])
            return how(tenant, lease.token[side])

        self.ask(lease.world, command)

    def change(self, tenant: str, queue: str) -> None:
        """Cancel, move, update, requeue or note."""
        world = self.world_of(tenant, queue)
        known = self.mine(world)
        if not known:
            return
        few = self.random.sample(known, min(len(known), 2))
        payload = self.payload()
        makes: list[Callable[[int], c.Command]] = [
            lambda side: c.Cancel(tenant, [each.id[side] for each in few]),
            lambda side: c.Move(tenant, [each.id[side] for each in few], priority=3),
            lambda side: c.Update(tenant, few[0].id[side], payload),
            lambda side: c.Requeue(tenant, queue),
            lambda side: c.AddNote(tenant, few[0].id[side], 1, payload),
        ]
        self.ask(world, self.random.choice(makes))

    def values(self, tenant: str, queue: str) -> None:
        key, payload = pack([self.random.choice(NAMES)]), self.payload()
        ttl = self.random.choice((None, 500))
        changes = [jobs.KvChange(self.random.choice(("set", "sum", "delete")), key, payload, ttl)]
        makes: list[c.Command] = [
            jobs.KvWrite(tenant, changes),
            queries.KvGet(tenant, [key]),
            queries.KvList(tenant),
        ]
        chosen = self.random.choice(makes)
        self.ask(self.world_of(tenant, None), lambda side: chosen)

    def crons(self, tenant: str, queue: str) -> None:
        name = f"{queue}/{self.random.choice(NAMES)}"
        makes: list[c.Command] = [
            jobs.CronPut(tenant, name, queue, Job(self.payload()), every_ms=self.random.choice((700, 2_000))),
            jobs.CronDelete(tenant, name),
        ]
        chosen = self.random.choice(makes)
        self.ask(self.world_of(tenant, queue), lambda side: chosen)

    def limits(self, tenant: str, queue: str) -> None:
        name = self.random.choice(NAMES)
        makes: list[c.Command] = [
            jobs.LimitPut(tenant, name, NamedLimit(concurrency=self.random.randint(1, 3))),
            jobs.LimitPut(tenant, name, None),
            c.Configure(tenant, queue, limits=(name,)),
            c.Configure(tenant, queue, limits=(), max_attempts=self.random.choice((1, 3))),
        ]
        chosen = self.random.choice(makes)
        if tenant in SPREAD and (
            isinstance(chosen, jobs.LimitPut) or getattr(chosen, "options", {}).get("limits")
        ):
            self.refused(tenant, lambda: chosen)
        else:
            self.ask(self.world_of(tenant, queue), lambda side: chosen)

    def refused(self, tenant: str, command: Callable[[], c.Command]) -> None:
        """The spread tenant may not join two queues, and nothing is changed by trying."""
        for engine in self.together.engines:
            engine.tick(self.now)
            before = {number: _view(engine, number) for number in engine.shards}
            try:
                engine.apply(command(), self.now)
            except (Invalid, Elsewhere, NotFound):
                pass
            else:
                raise AssertionError(f"it was not refused: {command()}")
            assert before == {number: _view(engine, number) for number in engine.shards}

    def transact(self, tenant: str, queue: str) -> None:
        """Settle in one queue and push to another, and write a value along."""
        leases = [each for each in self.leases if each.tenant == tenant]
        other, payload = self.random.choice(QUEUES), self.payload()
        if not leases:
            return
        lease = self.random.choice(leases[-4:])
        key = pack([self.random.choice(NAMES)])

        def command(side: int) -> c.Transact:
            ops: list[Any] = [c.Ack(tenant, lease.token[side]), jobs.PushJobs(tenant, other, [Job(payload)])]
            if tenant not in SPREAD:
                ops.append(jobs.KvWrite(tenant, [jobs.KvChange("set", key, payload)]))
            return c.Transact(tenant, ops)

        is_live = any(engine.unsettled(lease.token[0]) for engine in self.together.engines)
        if tenant in SPREAD and other != lease.world[1]:
            if is_live:
                self.refused(tenant, lambda: command(0))
        else:
            self.ask(lease.world, command)

    def flow(self, tenant: str, queue: str) -> None:
        child, payload = (queue if tenant in SPREAD else self.random.choice(QUEUES)), self.payload()
        flow = FlowJob(queue, Job(payload), [FlowJob(child, Job(payload)), FlowJob(child, Job(payload))])
        self.ask(self.world_of(tenant, queue), lambda side: jobs.PushFlow(tenant, flow))

    def ask_state(self, tenant: str, queue: str) -> None:
        world = self.world_of(tenant, queue)
        known = self.mine(world)
        if known:
            few = self.random.sample(known, min(len(known), 4))
            group = self.random.choice(GROUPS)
            self.ask(world, lambda side: queries.State(tenant, few[0].id[side], group))
            if tenant not in SPREAD:
                self.ask(world, lambda side: queries.Show(tenant, [each.id[side] for each in few], group))
        self.ask(world, lambda side: queries.GroupCounts(tenant, queue, self.random.choice(("default",))))
        if tenant in SPREAD:
            self.gathered(tenant)
        else:
            for asked in (queries.ListQueues(tenant), queries.Stats(tenant), queries.CronList(tenant)):
                self.ask(world, lambda side, asked=asked: asked)  # type: ignore[misc]

    def gathered(self, tenant: str) -> None:
        """What both engines find of a spread tenant, joined, is what its queues have, each alone."""
        alone = [
            each for (whose, queue), each in self.worlds.items() if whose == tenant and queue is not None
        ]
        few = [each for each in self.messages if each.tenant == tenant][-9:]
        asked: list[tuple[c.Command, c.Command]] = [
            (queries.ListQueues(tenant), queries.ListQueues(tenant)),
            (queries.Stats(tenant), queries.Stats(tenant)),
            (queries.CronList(tenant), queries.CronList(tenant)),
        ]
        for one, other in asked:
            parts = [engine.apply_part(one, self.now) for engine in self.together.engines]
            together = str(join(LIMITS, one, parts))
            theirs = [each.engine.apply(other, self.now) for each in alone]
            assert together == str(join(LIMITS, other, theirs))
            for engine in self.together.engines:
                try:
                    assert str(engine.apply(one, self.now)) == together
                except Elsewhere:
                    assert len(engine.shards) < SHARDS
                    continue
                assert len(engine.shards) == SHARDS, "an answer lacks a shard"
        whole = next((each for each in self.together.engines if len(each.shards) == SHARDS), None)
        if whole is not None and few:
            found = whole.apply(queries.Show(tenant, [each.id[0] for each in few]), self.now)
            assert isinstance(found, queries.ShownAll)
            kept = {each.state.id for each in found.deliveries}
            for each in few:
                states = queries.State(tenant, each.id[1])
                try:
                    state = self.worlds[each.world].engine.apply(states, self.now)
                except NotFound:
                    continue
                assert isinstance(state, queries.StateFound)
                assert self.bound[1][each.world, "id", state.id][2] in kept

    def intrude(self, tenant: str, queue: str) -> None:
        """Ask for what another tenant has: it is as if it were nowhere."""
        world = self.world_of(tenant, queue)
        others = [each for each in self.messages if each.tenant != tenant]
        leases = [each for each in self.leases if each.tenant != tenant]
        if not others or not leases:
            return
        message, lease = self.random.choice(others).id[0], self.random.choice(leases).token[0]
        own = [each for each in self.leases if each.tenant == tenant]
        if own and self.random.random() < 0.5:  # a name that is right, in a shard that is not
            number, name = parse_lease(self.random.choice(own[-3:]).token[0])
            lease = lease_token((number + 1) % SHARDS, name)
        makes: list[Callable[[Any, Any], c.Command]] = [
            lambda id, token: queries.State(tenant, id),
            lambda id, token: queries.Show(tenant, [id]),
            lambda id, token: c.Cancel(tenant, [id]),
            lambda id, token: c.Ack(tenant, token),
            lambda id, token: c.Ack(tenant, None, [id]),
            lambda id, token: c.Extend(tenant, token),
            lambda id, token: c.Update(tenant, id, b"1"),
            lambda id, token: c.Push(tenant, queue, [b"1"], attributes=Attributes(depends_on=((id, 1),))),
            lambda id, token: c.Transact(tenant, [c.Ack(tenant, token)]),
        ]
        chosen = self.random.choice(makes)
        shard = self.shard_of(world)
        if tenant in SPREAD:
            self.intrude_spread(chosen(message, lease), chosen(MISSING, NO_LEASE))
            return
        together = self._answer(
            lambda: self.together.apply(chosen(message, lease), self.now, shard), self.together.store, world
        )
        alone = self.alone(world)
        missing = self._answer(
            lambda: alone.engine.apply(chosen(MISSING, NO_LEASE), self.now), alone.store, world
        )
        self._same(together, missing, world, lambda side: chosen(message, lease))

    def intrude_spread(self, command: c.Command, missing: c.Command) -> None:
        """What the spread tenant asks of others is as missing as what never was, in every engine."""
        for engine in self.together.engines:
            told = []
            for each in (command, missing):
                try:
                    told.append(_shown(engine.apply(each, self.now), self.together.store))
                except Elsewhere:
                    told.append(None)
                except Invalid:
                    assert len(engine.shards) < SHARDS, "what is another's joins nothing"
                    told.append(None)
                except ForebayError as error:
                    told.append((type(error).__name__, _NUMBERS.sub("#", error.message)))
            assert None in told or told[0] == told[1], (command, told)

    def remove(self, tenant: str, queue: str) -> None:
        command = self.random.choice((c.Obliterate, c.Delete))(tenant, queue)
        self.ask(self.world_of(tenant, queue), lambda side: command)

    def wait(self, tenant: str, queue: str) -> None:
        self.now += self.random.choice((1, 50, 400, 2_500))
        self.together.tick(self.now)
        for alone in self.worlds.values():
            alone.engine.tick(self.now)

    def commit(self, tenant: str, queue: str) -> None:
        self.together.commit(self.now)
        for alone in self.worlds.values():
            alone.commit(self.now)

    def hand_over(self, tenant: str, queue: str) -> None:
        self.move(self.random.randrange(SHARDS))

    def move(self, shard: int) -> None:
        """A shard is released and taken; who lives in it alone is loaded again as well."""
        taker = 0 if self.random.random() < 0.6 else 1
        self.together.tick(self.now)
        for alone in self.worlds.values():
            alone.engine.tick(self.now)
        self.together.reload(shard, taker, self.now)
        for world, alone in self.worlds.items():
            if self.shard_of(world) == shard:
                alone.reload(self.now)

    def compare_all(self) -> None:
        for each in self.messages:
            self.ask(each.world, lambda side, each=each: queries.State(each.tenant, each.id[side]))  # type: ignore[misc]
        for tenant in TENANTS:
            self.ask(self.world_of(tenant, None), lambda side, tenant=tenant: queries.KvList(tenant))  # type: ignore[misc]


# Replies in a form that can be compared.


def _shown(reply: Any, store: MemoryStore) -> Any:
    """A reply as nested tuples, with a ``Ref`` for everything that differs between the sides."""
    match reply:
        case c.Pushed():
            ids = tuple(Ref("id", reply.first + at) for at in range(reply.count))
            return ("pushed", ids, reply.created_at)
        case jobs.PushedJobs():
            return ("jobs", tuple(Ref("id", each) for each in reply.ids), reply.duplicates, reply.replaced)
        case jobs.FlowPushed():
            return ("flow", Ref("id", reply.parent), tuple(Ref("id", each) for each in reply.children))
        case c.Popped():
            lease = Ref("lease", reply.lease) if reply.lease else None
            return ("popped", lease, tuple(_delivery(reply.queue, each, store) for each in reply.deliveries))
        case c.Settled():
            return ("settled", reply.count, tuple(Ref("id", each) for each in reply.refused))
        case c.Extended():
            refused = tuple(Ref("id", each) for each in reply.refused)
            return ("extended", reply.expires_at, reply.count, refused, reply.cancelled)
        case c.Transacted():
            return ("transacted", tuple(_shown(each, store) for each in reply.replies))
        case jobs.KvWritten():
            return ("written", Ref("version", reply.version), tuple(map(_value, reply.values)), reply.deleted)
        case queries.KvFound():
            return ("values", tuple(map(_value, reply.values)))
        case queries.KvListed():
            return ("listed", tuple((key, _value(value)) for key, value in reply.entries))
        case queries.StateFound():
            return ("state", *_state(reply))
        case queries.ShownAll():
            return (
                "shown",
                tuple((_state(each.state), _payloads(each.queue, each, store)) for each in reply.deliveries),
            )
        case c.Noted():
            return ("noted", Ref("id", reply.id))
        case _:
            return (type(reply).__name__, str(reply))


def _delivery(queue: Queue, each: Any, store: MemoryStore) -> Any:
    ids = tuple(Ref("id", each.first + at) for at in range(each.count))
    facts = (each.partition, each.deliveries, each.failures, each.expires_at, each.priority)
    return (ids, facts, _payloads(queue, each, store))


def _payloads(queue: Queue, each: SegmentSlice, store: MemoryStore) -> tuple[bytes, ...]:
    if not each.segment.present:
        (body,) = store.bodies([keyspace.body_key(queue.prefix, each.segment.body_name)])
        assert isinstance(body, bytes)
        each.segment.body = body
    return tuple(bytes(payload) for payload in each.payloads())


def _value(value: Any) -> Any:
    return None if value is None else (value.data, Ref("version", value.version), value.expires_at)


def _state(found: queries.StateFound) -> Iterator[Any] | tuple[Any, ...]:
    error = _NUMBERS.sub("#", found.error)
    waits = tuple(Ref("id", first + at) for first, count in found.depends_on for at in range(count))
    facts = (found.created_at, found.state, found.deliveries, found.failures, error, found.priority)
    return (Ref("id", found.id), facts, found.due_at, found.ended_at, found.job_id, found.unique_key, waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for at in range(max(given.steps // LIFE, 1)):
        life = ShardsLife(given.seed + at)
        life.run(min(given.steps, LIFE))
        print(f"seed {given.seed + at}: {sum(life.answers.values()):,} answers are the same", flush=True)


if __name__ == "__main__":
    main()
