"""Random lives of limited queues against a plain model: never too much, never too little, all are woken."""

import random
from fractions import Fraction

import pytest

from forebay.core.api import jobs as job_commands, queries
from forebay.core.state import NamedLimit, Rate
from tests.core.harness import Core
from tests.core.limiting import active, got, ids_of

QUEUES = ("a", "b")
PARTITIONS = ("x", "y", "lane")
STEPS = 200
LEASE_MS = 5_000
MANY = 1 << 40


class Tokens:
    """A bucket as a child would count it."""

    def __init__(self, rate: Rate, now: int) -> None:
        self.rate, self.at, self.count = rate, now, Fraction(rate.capacity)

    def whole(self, now: int) -> int:
        more = Fraction((now - self.at) * self.rate.limit, self.rate.per_ms)
        self.count, self.at = min(self.count + more, Fraction(self.rate.capacity)), now
        return int(self.count)


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_gives_exactly_what_a_plain_one_gives(seed: int) -> None:
    rng = random.Random(seed)
    rate = Rate(rng.randint(1, 50), rng.choice([1, 7, 100, 1_000, 60_000]), rng.choice([0, 1, 3, 100]))
    core = Core()
    core.configure(rate_limit=rate, lease_ms=43_200_000)
    core.push(*[b"x"] * 20_000)
    tokens = Tokens(rate, core.now)
    for _ in range(STEPS):
        if rng.random() < 0.05:
            core.restart()
            tokens.count, tokens.at = Fraction(0), core.now
        core.wait(rng.choice([0, 1, 1, 5, 50, rate.per_ms // rate.limit, rate.per_ms]))
        asked = rng.randint(1, 60)
        expected = min(asked, tokens.whole(core.now))
        assert got(core, asked) == expected
        tokens.count -= expected


class Life:
    """Two queues that share a limit, have places of their own, and partitions that have some, too."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.core = Core()
        self.waiting = {(queue, partition): 0 for queue in QUEUES for partition in PARTITIONS}
        self.leased: dict[int, tuple[str, str, int]] = {}
        """Queue, partition and the end of the lease by id."""
        self.concurrency = dict.fromkeys(QUEUES, 0)
        self.width = dict.fromkeys(QUEUES, 0)
        self.shared = 0
        self.tokens: Tokens | None = None
        self.held: set[str] = set()
        """Queues in which a pop found nothing, and nobody was woken since."""
        for queue in QUEUES:
            self.core.configure(queue, limits=("n",), lease_ms=LEASE_MS)
            self.core.forgive(queue)
            self.core.pop(queue=queue)
        self.limit()

    def step(self) -> None:
        does = (self.push, self.pop, self.pop, self.settle, self.wait, self.limit, self.narrow, self.restart)
        self.rng.choices(does, (20, 30, 10, 20, 20, 2, 2, 2))[0]()
        self.check()

    # What happens.

    def push(self) -> None:
        queue, partition, count = self.rng.choice(QUEUES), self.rng.choice(PARTITIONS), self.rng.randint(1, 5)
        jobs = [job_commands.Job(b"x", partition, lane=partition == "lane") for _ in range(count)]
        self.core.ask(job_commands.PushJobs("default", queue, jobs), job_commands.PushedJobs)
        self.waiting[queue, partition] += count

    def pop(self) -> None:
        queue, asked = self.rng.choice(QUEUES), self.rng.randint(1, 8)
        expected = min(asked, self.deliverable(queue))
        popped = self.core.pop(asked, queue)
        assert len(ids_of(popped)) == expected
        for each in popped.deliveries:
            self.waiting[queue, each.partition] -= each.count
            for at in range(each.count):
                self.leased[each.first + at] = (queue, each.partition, self.core.now + LEASE_MS)
        if self.tokens is not None:
            self.tokens.count -= expected
        if not expected:
            self.core.engine.take_woken()
            self.held.add(queue)

    def settle(self) -> None:
        if not self.leased:
            return
        ids = self.rng.sample(sorted(self.leased), self.rng.randint(1, len(self.leased)))
        how = self.rng.choice(("ack", "nack", "cancel"))
        if how == "ack":
            self.core.ack(ids=ids)
        elif how == "nack":
            self.core.nack(ids=ids)
        else:
            self.core.cancel(*ids)
        for each in ids:
            queue, partition, _ = self.leased.pop(each)
            self.waiting[queue, partition] += how == "nack"

    def wait(self) -> None:
        """Time passes as a node lets it pass: from one thing that is due to the next."""
        until = self.core.now + self.rng.choice([1, 10, 100, 1_000, LEASE_MS])
        while (at := self.core.engine.next_due_at()) <= until:
            self.core.wait(max(at - self.core.now, 0))
            self.expire()
            self.check()
        self.core.wait(until - self.core.now)
        self.expire()

    def expire(self) -> None:
        for each, (queue, partition, ends_at) in list(self.leased.items()):
            if ends_at <= self.core.now:
                del self.leased[each]
                self.waiting[queue, partition] += 1

    def limit(self) -> None:
        """The shared limit changes."""
        self.shared = self.rng.choice([0, 1, 3, 6])
        rate = self.rng.choice([None, Rate(5), Rate(20, per_ms=700, burst=2)])
        if rate is None:
            self.tokens = None
        elif self.tokens is None or self.tokens.rate != rate:
            self.tokens = Tokens(rate, self.core.now)
        if self.shared or rate:
            limit = NamedLimit(rate, None, self.shared)
        else:
            limit = NamedLimit(concurrency=MANY)
        self.core.ask(job_commands.LimitPut("default", "n", limit), queries.LimitsFound)

    def narrow(self) -> None:
        """The limits of a queue change."""
        queue = self.rng.choice(QUEUES)
        self.concurrency[queue], self.width[queue] = self.rng.choice([0, 2, 5]), self.rng.choice([0, 1, 2])
        self.core.configure(
            queue, concurrency=self.concurrency[queue], partition_concurrency=self.width[queue]
        )

    def restart(self) -> None:
        self.core.restart()
        self.held.clear()  # nobody waits any more
        if self.tokens is not None:
            self.tokens.count, self.tokens.at = Fraction(0), self.core.now

    # What is so.

    def deliverable(self, queue: str) -> int:
        """How many messages a pop of a queue may have now."""
        found = 0
        for partition in PARTITIONS:
            width = 1 if partition == "lane" else self.width[queue] or MANY
            found += min(self.waiting[queue, partition], max(width - self.active(queue, partition), 0))
        found = min(found, max((self.concurrency[queue] or MANY) - self.active(queue), 0))
        found = min(found, max((self.shared or MANY) - len(self.leased), 0))
        return min(found, self.tokens.whole(self.core.now)) if self.tokens is not None else found

    def active(self, queue: str, partition: str | None = None) -> int:
        return sum(
            each[0] == queue and (partition is None or each[1] == partition) for each in self.leased.values()
        )

    def check(self) -> None:
        """The counts are right, and whoever was held back and could go on is woken."""
        assert active(self.core) == len(self.leased)
        for queue in QUEUES:
            counts = self.core.counts(queue)
            waiting = sum(self.waiting[queue, partition] for partition in PARTITIONS)
            assert (counts.active, counts.waiting + counts.delayed) == (self.active(queue), waiting)
        for woken, _, _ in self.core.engine.take_woken():
            self.held.discard(woken.name)
        for queue in self.held:
            assert not self.deliverable(queue), f"somebody waits in {queue} and was not woken"


@pytest.mark.parametrize("seed", range(12))
def test_limits_hold_and_hold_nothing_back_for_ever(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
