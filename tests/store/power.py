"""Random lives of a store that end in power loss, and what must be left of them.

    python -m tests.store.power --runs 1000 --seed 1

Half of the lives are commits straight to the store, compared with plain dicts. The other half are commands to
the core, whose commits go to the store as the node sends them. Each life loses power several times, and goes
on from what was left.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from forebay.core import engine as engines
from forebay.core.api import commands as c, queries
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.ids import OFFSET_BITS
from forebay.core.loading import verify as verifies
from forebay.core.log.bodies import body_slices, is_whole
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import CONTROL
from forebay.core.retention import merge as merges
from forebay.core.state import PLAIN, Attributes, Partition, Queue
from forebay.core.words import DEFAULT, FSYNC, OS
from forebay.store.rocksdb.store import BATCH_BYTES
from tests.store.faults import PowerCut
from tests.store.staging import Staged, Staging

SHARDS = 3
LOSSES = 3
"""Power losses in one life."""
STEPS = 25
"""Commits between two of them."""
TENANT = "default"
PREFIX = keyspace.prefix(1, 1)
LOWEST, HIGHEST = PREFIX, PREFIX + b"\xff" * 32
BYTES_LOST = "bytes lost"
LARGE = random.Random(0).randbytes(BATCH_BYTES)


def run(seed: int) -> Counter[str]:
    """One life; how many bytes it lost in all, and what became of adoptions. Errors carry the seed."""
    rng = random.Random(seed)
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-power-") as home:
            life: Callable[[Path, random.Random], Counter[str]] = _store_life if seed % 2 else _engine_life
            return life(Path(home), rng)
    except BaseException as error:
        error.add_note(f"seed {seed}: python -m tests.store.power --runs 1 --seed {seed}")
        raise


@contextmanager
def opened(directory: Path) -> Iterator[PowerCut]:
    """The store in a directory; closed without a word if the test fails, or if its power was lost."""
    store = PowerCut(directory)
    try:
        yield store
    finally:
        store._close()


# Commits, against plain dicts.


class Kept:
    """What a store holds after some commits."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.times = dict.fromkeys(range(SHARDS), 0)

    def apply(self, group: list[Commit]) -> None:
        for commit in group:
            self.records.update(commit.puts)
            self.bodies.update(commit.bodies)
            self.times[commit.shard] = commit.at
        for commit in group:
            for key in commit.deletes:
                (self.bodies if keyspace.is_body(key) else self.records).pop(key, None)
            for lower, upper in commit.ranges:
                for key in [key for key in self.records if lower <= key < upper]:
                    del self.records[key]
            for lower, upper in commit.body_ranges:
                for key in [key for key in self.bodies if lower <= key < upper]:
                    del self.bodies[key]

    def as_found(self, store: PowerCut) -> "Kept":
        """What the store holds, in the same shape; ``self`` says nothing."""
        self.records = dict(store.scan(LOWEST, HIGHEST))
        keys = list(store.body_keys())
        for key, body in zip(keys, store.bodies(keys), strict=True):
            assert isinstance(body, bytes), (key, body)
            self.bodies[key] = body
        self.times = {shard: store.claim(shard).committed_at for shard in range(SHARDS)}
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _store_life(home: Path, rng: random.Random) -> Counter[str]:
    synced = Kept()
    later: list[list[Commit]] = []
    """Commits since."""
    lost = 0
    now = 0
    for number in range(LOSSES + 1):
        with opened(home / f"{number}") as store:
            assert store.shards(SHARDS) == SHARDS
            if number:
                synced = _what_survived(Kept().as_found(store), synced, later)
            later = []
            epochs = [store.claim(shard).epoch for shard in range(SHARDS)]
            store.sync()
            for _ in range(rng.randrange(1, STEPS)):
                now += 1
                group = _random_group(rng, epochs, now)
                sync = rng.random() < 0.3
                store.commit(group, sync=sync)
                later.append(group)
                if rng.random() < 0.1:
                    store.flush(bodies=rng.random() < 0.5)
                    sync = True
                if sync:
                    for each in later:
                        synced.apply(each)
                    later = []
            lost += store.lose(home / f"{number + 1}", rng)
    return Counter({BYTES_LOST: lost})


def _what_survived(found: Kept, synced: Kept, later: list[list[Commit]]) -> Kept:
    """The state that was found: the synced one, plus a beginning of what came later."""
    for group in later:
        if found == synced:
            return synced
        synced.apply(group)
    assert found == synced, "what was left is not a beginning of what was committed"
    return synced


def _random_group(rng: random.Random, epochs: list[int], now: int) -> list[Commit]:
    shards = rng.sample(range(SHARDS), rng.randrange(1, SHARDS + 1))
    return [_random_commit(rng, shard, epochs[shard], now) for shard in shards]


def _random_commit(rng: random.Random, shard: int, epoch: int, now: int) -> Commit:
    """Keys of a shard are its own, so the order within a group does not matter."""

    def key() -> bytes:
        return PREFIX + b"c%d%02d" % (shard, rng.randrange(30))

    def body(at: int, commit: int = now) -> bytes:
        return body_of(commit, shard, at)

    # A body is never written over: its name is given out once.
    puts = {key(): rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(6))}
    bodies = {body(at): rng.randbytes(rng.randrange(3_000)) for at in range(rng.randrange(3))}
    if rng.random() < 0.1:
        large = rng.randrange(2, 4)
        bodies = {body(at): LARGE[rng.randrange(BATCH_BYTES // 3) :] for at in range(large)}
    deletes = {key() for _ in range(rng.randrange(3))}
    deletes |= {body(rng.randrange(2), max(now - rng.randrange(1, 9), 0)) for _ in range(rng.randrange(3))}
    ranges = []
    if rng.random() < 0.1:
        low = rng.randrange(30)
        ranges = [(PREFIX + b"c%d%02d" % (shard, low), PREFIX + b"c%d%02d" % (shard, low + 5))]
        puts = {}
    body_ranges = []
    if rng.random() < 0.1:
        # All bodies that the shard wrote in a commit of before.
        low = max(now - rng.randrange(1, 9), 0)
        body_ranges = [(body_of(low, shard), body_of(low, shard + 1))]
    free = sorted(deletes - puts.keys() - bodies.keys())
    lists = (list(puts.items()), free, list(bodies.items()), ranges, body_ranges)
    return Commit(shard, epoch, now, *lists)


def body_of(commit: int, shard: int, at: int = 0) -> bytes:
    return keyspace.body_key(PREFIX, commit << 8 | shard << 4 | at)


# Commands, as the node carries them out.

QUEUES = ("q", "s")
"""Of a spread tenant they live in different shards."""
PARTITIONS = ("default", "other")
ADOPTED = "adopted"
"""A partition that gets nothing but what was staged."""
HAVING = (PLAIN, PLAIN, Attributes(priority=2), Attributes(delay_ms=3), Attributes(max_attempts=1))
"""What messages may have."""


class Told:
    """What the callers of a core were told, and whether it survives."""

    def __init__(self) -> None:
        self.messages: dict[int, bytes] = {}
        """Confirmed and synced, by id."""
        self.ids: set[int] = set()
        """Every id that was ever confirmed, lost ones included."""
        self.settled: dict[int, str] = {}
        """Confirmed and synced acks and cancels of the one group, by id."""
        self.maybe: dict[int, bytes] = {}
        self.maybe_settled: dict[int, str] = {}
        """Confirmed, not synced."""
        self.staged = Staged()

    def sync(self) -> None:
        self.staged.sync()
        self.messages.update(self.maybe)
        self.settled |= self.maybe_settled
        self.maybe, self.maybe_settled = {}, {}


class Core:
    """An engine and its store, committing as the node does."""

    def __init__(self, store: PowerCut, told: Told, rng: random.Random, now: int, spread: bool) -> None:
        self.store = store
        self.told = told
        self.now = now
        self._rng = rng
        store.shards(SHARDS)
        control = store.claim(CONTROL)
        found = {shard: store.claim(shard) for shard in range(SHARDS)}
        store.sync()
        claims = {shard: engines.Taken(each.epoch, 0, each.restored) for shard, each in found.items()}
        self.engine: Engine = engines.load(
            Limits(pop_creates_queues=True), SHARDS, claims, control.epoch, store.scan, now
        )
        self.engine.apply(c.TenantPut(TENANT, spread=spread), now)
        self._leases: list[tuple[str, list[int]]] = []
        self._answers: list[Callable[[], object]] = []
        self._stages = Staging(self.engine, told.staged, rng, self._payload, self._appended)

    def step(self) -> None:
        """A few commands, then the commit they form."""
        self.now += self._rng.randrange(1_000)
        usual = [*[self._push] * 3, self._pop, self._settle, *[self._stage] * 4, self._adopt, self._adopt]
        for _ in range(self._rng.randrange(1, 4)):
            self._unstage() if self._rng.random() < 0.02 else self._rng.choice(usual)()
        if self._rng.random() < 0.1:
            self._merge()
        self.commit()
        if self._rng.random() < 0.1:
            self.store.flush(bodies=self._rng.random() < 0.5)
            self.told.sync()

    def commit(self) -> None:
        commits = self.engine.seal(self.now)
        sync = self.engine.must_sync or self._rng.random() < 0.1
        self.store.commit(commits, sync=sync)
        self.engine.take_sealed()
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()
        self._stages.answer()
        if sync:
            self.told.sync()

    def _push(self) -> None:
        queue, partition = self._rng.choice(QUEUES), self._rng.choice(PARTITIONS)
        payloads = [self._payload() for _ in range(self._rng.randrange(1, 5))] + self._large()
        durability = self._rng.choice((FSYNC, OS, OS, OS))
        having = self._rng.choice(HAVING)
        reply = self.engine.apply(c.Push(TENANT, queue, payloads, partition, durability, having), self.now)
        assert isinstance(reply, c.Pushed)
        ids = range(reply.first, reply.first + reply.count)
        messages = dict(zip(ids, payloads, strict=True))
        self._answers.append(lambda: self._appended(messages, durability))

    def _appended(self, messages: dict[int, bytes], durability: str) -> None:
        """Messages are confirmed."""
        assert self.told.ids.isdisjoint(messages), "an id was given out twice"
        self.told.ids.update(messages)
        (self.told.messages if durability == FSYNC else self.told.maybe).update(messages)

    def _large(self) -> list[bytes]:
        """Mostly nothing, now and then payloads that one write does not take."""
        if self._rng.random() >= 0.05:
            return []
        return [LARGE[self._rng.randrange(BATCH_BYTES // 2) :] for _ in range(2)]

    def _stage(self) -> None:
        queue, partition = self._rng.choice(QUEUES), self._rng.choice((*PARTITIONS, ADOPTED))
        self._stages.write(TENANT, queue, partition, self._large(), self.now)

    def _adopt(self) -> None:
        self._stages.adopt(TENANT, self._rng.choice(QUEUES), self.now)

    def adopt_last(self) -> None:
        """Stage and adopt right before the power fails: little of it is synced."""
        for _ in range(self._rng.randrange(1, 5)):
            self._stage()
            if self._rng.random() < 0.5:
                self.commit()
            queue, durability = self._rng.choice(QUEUES), self._rng.choice((FSYNC, OS, OS))
            self._stages.adopt(TENANT, queue, self.now, durability)
            self.commit()

    def _unstage(self) -> None:
        self._stages.unstage(TENANT, self._rng.choice(QUEUES), self.now)

    def _payload(self) -> bytes:
        return b'{"n":%d,"r":"%s"}' % (self._rng.randrange(1 << 30), b"x" * self._rng.randrange(200))

    def _pop(self) -> None:
        command = c.Pop(
            TENANT, self._rng.choice(QUEUES), count=self._rng.randrange(1, 10), lease_ms=10_000_000
        )
        reply = self.engine.apply(command, self.now)
        assert isinstance(reply, c.Popped)
        ids = [each.first + at for each in reply.deliveries for at in range(each.count)]
        assert self.told.settled.keys().isdisjoint(ids), "a settled message was delivered again"
        if reply.lease is not None:
            self._leases.append((reply.lease, ids))

    def _settle(self) -> None:
        if not self._leases:
            return
        lease, ids = self._leases.pop(self._rng.randrange(len(self._leases)))
        if self._rng.random() < 0.3:
            self.engine.apply(c.Nack(TENANT, lease, error="no"), self.now)
            return
        cancel = self._rng.random() < 0.3
        self.engine.apply(c.Cancel(TENANT, ids, DEFAULT) if cancel else c.Ack(TENANT, lease), self.now)
        state = "cancelled" if cancel else "completed"
        self._answers.append(lambda: self.told.maybe_settled.update(dict.fromkeys(ids, state)))

    def _merge(self) -> None:
        for queue in self.engine.queues.values():
            for partition in queue.partitions.values():
                self.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
        merge = self.engine.plan_merge(2)
        if merge is None:
            return
        bodies = [
            self._body(keyspace.body_key(merge.queue.prefix, part.body_name))
            if part.body is None
            else part.body
            for part in merge.parts
        ]
        self.engine.apply_merge(merge, merges.join(merge, bodies))

    def _body(self, key: bytes) -> bytes:
        (body,) = self.store.bodies([key])
        assert isinstance(body, bytes), body
        return body

    # After a loss.

    def check(self) -> None:
        """Everything synced is there, the rest is a beginning of it, and nothing is left over."""
        assert not self.engine.damaged, self.engine.damaged
        found: dict[int, bytes] = {}
        names: set[bytes] = set()
        for queue in self.engine.queues.values():
            for partition in queue.partitions.values():
                self._read(queue, partition, found, names)
            for notes in queue.notes.values():  # of attempts: leases ran out
                names |= {keyspace.body_key(queue.prefix, each.body_name) for each in notes.log.segments}
        lost = self._stages.check(self._body, found, names)
        assert set(self.store.body_keys()) == names, "bodies that nobody knows"
        self._verify(names)
        told = self.told
        for id, payload in told.messages.items():
            assert found.get(id) == payload, f"message {id} is gone"
        for id, payload in found.items():
            assert payload == told.messages.get(id, told.maybe.get(id)), f"message {id} was never confirmed"
        for id, state in told.settled.items():
            reply = self.engine.apply(queries.State(TENANT, id), self.now)
            assert isinstance(reply, queries.StateFound)
            assert reply.state == state, f"{id} was {state}"
        told.messages, told.maybe = found, {}
        told.maybe_settled = {}
        self._stages.come_again(TENANT, lost, self.now)
        self._push_everywhere()

    def _verify(self, names: set[bytes]) -> None:
        found: set[bytes] = set()
        reports = list(verifies.verify(SHARDS, self.store.scan, self.store.bodies, found))
        assert not any(report.damage for report in reports), reports
        assert found == names

    def _read(self, queue: Queue, partition: Partition, found: dict[int, bytes], names: set[bytes]) -> None:
        log = partition.log
        keys = [keyspace.body_key(queue.prefix, segment.body_name) for segment in log.segments]
        names.update(keys)
        for segment, body in zip(log.segments, self.store.bodies(keys), strict=True):
            assert isinstance(body, bytes), f"a segment without its body: {body}"
            assert is_whole(body, segment.count, segment.size)
            for at, payload in enumerate(body_slices(body, segment.count, 0, segment.count)):
                offset = segment.base + at
                number, base = [each for each in partition.numbers if each[1] <= offset][-1]
                found[number << OFFSET_BITS | offset - base] = payload

    def _push_everywhere(self) -> None:
        """No partition gives out an id again, not even one that was lost."""
        for (tenant, name), queue in self.engine.queues.items():
            for partition in queue.partitions:
                reply = self.engine.apply(c.Push(tenant, name, [b"1"], partition), self.now)
                assert isinstance(reply, c.Pushed)
                self._answers.append(partial(self._appended, {reply.first: b"1"}, FSYNC))
        self.commit()


def _engine_life(home: Path, rng: random.Random) -> Counter[str]:
    told = Told()
    lost = 0
    now = 1_700_000_000_000
    spread = rng.random() < 0.5
    for number in range(LOSSES + 1):
        with opened(home / f"{number}") as store:
            core = Core(store, told, rng, now, spread)
            if number:
                core.check()
            for _ in range(rng.randrange(1, STEPS)):
                core.step()
            if rng.random() < 0.7:
                core.adopt_last()
            now = core.now
            lost += store.lose(home / f"{number + 1}", rng)
    return Counter({BYTES_LOST: lost}) + told.staged.told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.store.power", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    told: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.runs):
        told += run(seed)
    found = ", ".join(f"{count} {what}" for what, count in told.items())
    sys.stdout.write(f"{given.runs} lives, {given.runs * LOSSES} power losses, {found}\n")


if __name__ == "__main__":
    main()
