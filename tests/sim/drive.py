"""A long random life, replayable by its seed: ``make sim STEPS=1000000 SEED=7``."""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.core.model import PLAIN, Attributes, Backoff
from penstock.store.memory import MemoryStore
from tests.sim.model import SCHEDULED, Group, Place, Queue
from tests.sim.world import World

T = TypeVar("T")

QUEUES = ["a", "b", "c.d", "E-1"]
PARTITIONS = ["default", "x", "y"]
GROUPS = ["default", "audit", "late"]
PRIORITIES = [-1, 1, 2]
DELAYS = [0, 5, 40, 1_000, 20_000]
BACKOFFS = [
    Backoff("none"),
    Backoff("fixed", 5),
    Backoff("fixed", 40),
    Backoff("exponential", 5, 8),
    Backoff("exponential", 1_000),
    Backoff("list", steps=(0, 40)),
    Backoff("list", steps=(5,)),
]
EVERY = 5
"""Steps from one look at everything to the next: an error shows a little later, and is there far sooner."""
MESSAGES_MAX = 300
"""A queue that has more is given no new ones until some are gone: the model looks at each of them."""


class Driver:
    """Draws steps and has the world do them."""

    def __init__(
        self, seed: int, begin: Callable[[], World] = lambda: World(MemoryStore(), every=EVERY)
    ) -> None:
        """``begin`` makes a world in which nothing has happened."""
        self.random = random.Random(seed)
        self._begin = begin
        self.world = self.begin()
        self.merges = 0
        """Merges in all worlds but the last."""

    def run(self, steps: int) -> None:
        for step in range(steps):
            try:
                self.step()
            except BaseException as error:
                error.add_note(f"in step {step}")
                raise
        self.world.check_all()

    def step(self) -> None:
        chosen = self.random.random()
        for weight, action in (
            (0.17, self.push),
            (0.02, self.push_many),
            (0.18, self.pop),
            (0.11, self.settle_lease),
            (0.08, self.settle_ids),
            (0.03, self.extend),
            (0.03, self.cancel),
            (0.04, self.move),
            (0.03, self.bury),
            (0.01, self.pause),
            (0.02, self.configure),
            (0.01, self.read),
            (0.03, self.check_state),
            (0.01, self.list_dead),
            (0.10, self.wait),
            (0.07, self.world.commit),
            (0.03, self.merge),
            (0.02, self.let_go),
        ):
            if chosen < weight:
                action()
                return
            chosen -= weight
        self.world.restart(clean=self.random.random() < 0.5)

    def queue(self) -> str:
        """One of few: the more is in one, the more meets there."""
        return self.random.choices(QUEUES, [5, 4, 2, 1])[0]

    def group(self, queue: str) -> str:
        """The first queue has one group, the second two: where there are fewer, more is settled by all."""
        return self.random.choice(GROUPS[: 1 + QUEUES.index(queue)])

    def push(self) -> None:
        queue = self.queue()
        known = self.world.model.queues.get(queue)
        if known and sum(map(len, known.messages.values())) > MESSAGES_MAX:
            self.world.check_all()
            self.start_over()
            return
        partition, count = self.random.choice(PARTITIONS), self.random.choice([1, 1, 1, 2, 5, 12])
        durability = self.random.choice([None, None, None, "fsync", "os"])
        self.world.push(queue, partition, count, durability, self.attributes())

    def attributes(self) -> Attributes:
        """Mostly none; else mostly one or two, of few values, so that things meet."""
        pick = self.random
        if pick.random() < 0.4:
            return PLAIN
        some = pick.choice([0.15, 0.5])

        def one(values: Sequence[T], otherwise: T) -> T:
            return pick.choice(values) if pick.random() < some else otherwise

        delay_ms = one(DELAYS, 0)
        ttl_ms = one([0, 30, 1_000], 0)
        return Attributes(
            one(PRIORITIES, 0),
            delay_ms,
            one([True], False),
            ttl_ms if ttl_ms > delay_ms else 0,
            one([1, 20, 500], 0),
            one([0, 1, 2, 3], None),
            one(BACKOFFS, None),
        )

    def start_over(self) -> None:
        """Go on with an empty world: all of the old one was checked."""
        steps = self.world.steps
        self.merges += self.world.merges
        self.world = self.begin()
        self.world.steps = steps

    def begin(self) -> World:
        """A world whose first queues do not keep for long what is settled."""
        world = self._begin()
        for queue, kept in zip(QUEUES, [15_000, 0, 60_000], strict=False):
            world.configure(queue, completed_retention_ms=kept, lease_ms=self.random.choice([100, 30_000]))
        return world

    def push_many(self) -> None:
        partitions = self.random.choices(PARTITIONS, k=self.random.randint(1, 4))
        self.world.push_many(self.queue(), [(each, self.attributes()) for each in partitions])

    def pop(self) -> None:
        pick, queue = self.random, self.queue()
        count = pick.choice([1, 1, 2, 3, 10, 50, 100])
        self.world.pop(
            queue,
            self.group(queue),
            count,
            pick.choice([1, 1, 1, count]),
            pick.choice([None, None, None, *PARTITIONS]),
            pick.choice([None, None, 1, 5, 50, 1_000, 20_000]),
            self.start(),
            pick.choice([0, 1, 2]),
            unheard=pick.random() < 0.05,
        )

    def start(self) -> int | str:
        """Where a new group begins."""
        chosen = self.random.choice(["all", "all", "new", "time"])
        return self.world.now - self.random.randint(0, 200) if chosen == "time" else chosen

    def token(self) -> str | None:
        """A lease, live if there is one, now and then one that is over."""
        model = self.world.model
        live = list(model.leases)
        if model.ended and (not live or self.random.random() < 0.15):
            return self.random.choice(model.ended[-50:])
        return self.random.choice(live) if live else None

    def settle_lease(self) -> None:
        token = self.token()
        if token:
            self.world.settle_lease(self.random.choice(["ack", "ack", "ack", "nack"]), token, self.delay())

    def delay(self) -> int | None:
        return self.random.choice([None, None, *DELAYS])

    def settle_ids(self) -> None:
        pick, model = self.random, self.world.model
        token = self.token()
        queue = model.leases[token].queue if token in model.leases else pick.choice([*model.queues, ""])
        if token in model.leases and pick.random() < 0.7:
            chosen = self.some_of(token)
        else:
            chosen = self.places(queue)
        if not chosen:
            return
        given = token if token and pick.random() < 0.5 else None
        self.world.settle_ids(
            pick.choice(["ack", "nack"]),
            queue,
            chosen,
            given,
            pick.choice([None, None, *GROUPS]),
            pick.choice([0, 1, 2]),
            self.delay(),
        )

    def some_of(self, token: str) -> list[Place]:
        """Some of what a live lease holds."""
        cells = sorted(self.world.model.leases[token].cells)
        return self.random.sample(cells, self.random.randint(1, len(cells)))

    def places(self, queue: str) -> list[Place]:
        """Some messages of a queue, most of them next to each other; none if it has none."""
        pick, known = self.random, self.world.model.queues.get(queue, Queue())
        below = pick.choice([0, 0, 2])
        found = [
            (partition, offset)
            for partition, messages in known.messages.items()
            for offset in range(max(known.first[partition] - below, 0), len(messages))
        ]
        if not found:
            return []
        if pick.random() < 0.3:
            return pick.sample(found, min(len(found), pick.choice([1, 4, 20])))
        start = pick.randrange(len(found))
        return found[start : start + pick.choice([1, 2, 8, 30])]

    def soon(self, queue: str) -> list[Place]:
        """Of what a group is to get later, that which comes first."""
        known = self.world.model.queues.get(queue, Queue())
        group = known.groups.get(self.group(queue), Group(""))
        found = [
            (cell.due_at, partition, offset)
            for partition, cells in group.cells.items()
            for offset, cell in enumerate(cells)
            if cell.kind == SCHEDULED and cell.due_at > self.world.now
        ]
        return [(partition, offset) for _, partition, offset in sorted(found)[: self.random.randint(1, 3)]]

    def chosen(self) -> dict[str, list[Place]]:
        """Some messages of a queue or two."""
        if self.random.random() < 0.4:
            queue = self.queue()
            places = self.soon(queue)
            return {queue: places} if places else {}
        queues = self.random.choice([[self.queue()], QUEUES[:2]])
        found = {queue: self.places(queue) for queue in queues}
        return {queue: places for queue, places in found.items() if places}

    def extend(self) -> None:
        pick, model = self.random, self.world.model
        token, lasts = self.token(), pick.choice([None, 1, 10, 5_000])
        if model.emptied and pick.random() < 0.2:
            token = pick.choice(sorted(model.emptied))
        if token in model.leases and pick.random() < 0.5:
            lease = model.leases[token]
            chosen = self.some_of(token) if pick.random() < 0.5 else self.places(lease.queue)
            group = pick.choice([None, lease.group, lease.group, *GROUPS])
            self.world.extend_ids(lease.queue, chosen, pick.choice([None, token]), group, lasts)
        elif token:
            self.world.extend(token, lasts)
            queue = self.queue()
            chosen = self.places(queue)
            if chosen:
                self.world.extend_ids(queue, chosen, token, pick.choice([None, *GROUPS]), lasts)

    def cancel(self) -> None:
        chosen = self.chosen()
        if chosen:
            self.world.cancel(chosen, self.random.choice([None, *GROUPS]))

    def move(self) -> None:
        pick, chosen = self.random, self.chosen()
        if chosen:
            group = self.group(next(iter(chosen)))
            self.world.move(chosen, group, self.delay(), pick.choice([None, 0, *PRIORITIES]))

    def bury(self) -> None:
        pick, model = self.random, self.world.model
        queue = self.queue()
        group = self.group(queue)
        if queue in model.queues:
            dead = model.dead(queue, group)
            some = pick.sample(dead, pick.randint(1, len(dead))) if dead else []
            places = pick.choice([None, some, some, self.places(queue)])
            if places is None or places:
                self.world.bury(pick.choice(["requeue", "requeue", "purge", "count"]), queue, group, places)

    def list_dead(self) -> None:
        queue = self.queue()
        if queue in self.world.model.queues:
            count, skip = self.random.choice([1, 3, 100]), self.random.choice([0, 0, 1, 5])
            self.world.list_dead(queue, self.group(queue), count, skip)

    def pause(self) -> None:
        """Pause a queue; rather go on with one that is paused."""
        paused = [name for name, queue in self.world.model.queues.items() if queue.paused_until]
        if paused and self.random.random() < 0.7:
            self.world.resume(self.random.choice(paused))
        else:
            self.world.pause(self.queue(), self.random.choice([None, 1, 5, 40, 1_000]))

    def configure(self) -> None:
        pick = self.random
        options: dict[str, Sequence[object]] = {
            "lease_ms": [5, 100, 30_000],
            "completed_retention_ms": [0, 0, 15_000, 60_000],
            "completed_retention_bytes": [0, 200, 1 << 20],
            "max_attempts": [0, 1, 2, 3],
            "backoff": BACKOFFS,
            "max_deliveries": [0, 0, 2, 3],
            "dead_letters": [True, True, False],
            "on_lease_expiry": ["fail", "requeue"],
        }
        some = pick.sample(sorted(options), pick.randint(1, len(options)))
        self.world.configure(self.queue(), **{name: pick.choice(options[name]) for name in some})

    def read(self) -> None:
        pick, model = self.random, self.world.model
        queue = self.queue()
        if queue in model.queues and model.queues[queue].messages:
            partition = pick.choice(list(model.queues[queue].messages))
            end = len(model.queues[queue].messages[partition])
            self.world.read(
                queue, partition, pick.randint(0, end), pick.randint(1, 30), pick.choice([1, 40, 10_000])
            )

    def check_state(self) -> None:
        pick, model = self.random, self.world.model
        queue = self.queue()
        if queue in model.queues and any(model.queues[queue].messages.values()):
            partition = pick.choice([name for name, found in model.queues[queue].messages.items() if found])
            offset = pick.randrange(len(model.queues[queue].messages[partition]))
            self.world.check_state(queue, partition, offset, pick.choice([self.group(queue), *GROUPS]))

    def merge(self) -> None:
        if self.world.merging is None:
            self.world.plan_merge(self.random.randint(2, 4))
        if self.random.random() < 0.7:
            self.world.apply_merge()

    def let_go(self) -> None:
        """Let a body go; rather one that was merged into another meanwhile."""
        shelf = self.world.shelf
        gone = [at for at, (log, segment) in enumerate(shelf) if segment not in log.segments]
        self.world.let_go(self.random.choice([self.random.randrange(1_000), *gone[-3:]]))

    def wait(self) -> None:
        self.world.wait(self.random.choice([0, 1, 1, 2, 5, 7, 30, 40, 999, 11_000]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    driver, began, part = Driver(given.seed), time.perf_counter(), max(given.steps // 10, 1)
    for done in range(part, given.steps + 1, part):
        driver.run(part)
        print(f"{done:,} steps of seed {given.seed} in {time.perf_counter() - began:.0f} s", flush=True)
    print("core and model agreed at every step")


if __name__ == "__main__":
    main()
