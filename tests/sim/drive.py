"""A long random life, replayable by its seed: ``make sim STEPS=1000000 SEED=7``."""

import argparse
import random
import time
from collections.abc import Callable

from penstock.store.memory import MemoryStore
from tests.sim.world import World

QUEUES = ["a", "b", "c.d", "E-1"]
PARTITIONS = ["default", "x", "y"]
GROUPS = ["default", "audit", "late"]
MESSAGES_MAX = 400
"""A queue that has more is given no new ones until some are gone: the model looks at each of them."""


class Driver:
    """Draws steps and has the world do them."""

    def __init__(self, seed: int, begin: Callable[[], World] = lambda: World(MemoryStore())) -> None:
        """``begin`` makes a world in which nothing has happened."""
        self.random = random.Random(seed)
        self._begin = begin
        self.world = begin()
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
            (0.20, self.push),
            (0.02, self.push_many),
            (0.19, self.pop),
            (0.14, self.settle_lease),
            (0.10, self.settle_ids),
            (0.04, self.extend),
            (0.01, self.configure),
            (0.03, self.read),
            (0.03, self.check_state),
            (0.09, self.wait),
            (0.10, self.world.commit),
            (0.03, self.merge),
            (0.01, self.let_go),
        ):
            if chosen < weight:
                action()
                return
            chosen -= weight
        self.world.restart(clean=self.random.random() < 0.5)

    def queue(self) -> str:
        return self.random.choice(QUEUES)

    def push(self) -> None:
        queue = self.queue()
        known = self.world.model.queues.get(queue)
        if known and sum(map(len, known.messages.values())) > MESSAGES_MAX:
            self.world.check_all()
            self.start_over()
            return
        partition, count = self.random.choice(PARTITIONS), self.random.choice([1, 1, 1, 2, 5, 20])
        self.world.push(queue, partition, count, self.random.choice([None, None, None, "fsync", "os"]))

    def start_over(self) -> None:
        """Go on with an empty world: all of the old one was checked."""
        steps = self.world.steps
        self.merges += self.world.merges
        self.world = self._begin()
        self.world.steps = steps

    def push_many(self) -> None:
        self.world.push_many(self.queue(), self.random.choices(PARTITIONS, k=self.random.randint(1, 4)))

    def pop(self) -> None:
        pick = self.random
        count = pick.choice([1, 1, 2, 3, 10, 50])
        self.world.pop(
            self.queue(),
            pick.choice(GROUPS),
            count,
            pick.choice([1, 1, 1, count]),
            pick.choice([None, None, None, *PARTITIONS]),
            pick.choice([None, 1, 5, 50, 1_000, 20_000]),
            self.start(),
            pick.choice([0, 1, 2]),
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
            self.world.settle_lease(self.random.choice(["ack", "ack", "nack"]), token)

    def settle_ids(self) -> None:
        pick, model = self.random, self.world.model
        token = self.token()
        queue = model.leases[token].queue if token in model.leases else pick.choice([*model.queues, ""])
        places = [
            (partition, offset)
            for partition, messages in (model.queues[queue].messages.items() if queue else ())
            for offset in range(model.queues[queue].first[partition], len(messages))
        ]
        if not places:
            return
        if token in model.leases and pick.random() < 0.7:
            chosen = pick.sample(
                sorted(model.leases[token].cells), pick.randint(1, len(model.leases[token].cells))
            )
        else:
            start = pick.randrange(len(places))
            chosen = places[start : start + pick.choice([1, 2, 8])]
        given = token if token and pick.random() < 0.5 else None
        self.world.settle_ids(
            pick.choice(["ack", "nack"]),
            queue,
            chosen,
            given,
            pick.choice([None, None, *GROUPS]),
            pick.choice([0, 1, 2]),
        )

    def extend(self) -> None:
        pick, model = self.random, self.world.model
        token = self.token()
        if token in model.leases and pick.random() < 0.5:
            lease = model.leases[token]
            chosen = pick.sample(sorted(lease.cells), pick.randint(1, len(lease.cells)))
            group = pick.choice([lease.group, lease.group, *GROUPS])
            self.world.extend_ids(lease.queue, chosen, group, pick.choice([1, 10, 5_000]))
        elif token:
            self.world.extend(token, pick.choice([1, 10, 5_000]))

    def configure(self) -> None:
        pick = self.random
        self.world.configure(
            self.queue(),
            pick.choice([5, 100, 30_000]),
            pick.choice([0, 15_000, 60_000]),
            pick.choice([0, 200, 1 << 20]),
        )

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
            self.world.check_state(queue, partition, offset, pick.choice(GROUPS))

    def merge(self) -> None:
        if self.world.merging is None:
            self.world.plan_merge(self.random.randint(2, 4))
        if self.random.random() < 0.7:
            self.world.apply_merge()

    def let_go(self) -> None:
        self.world.let_go(self.random.randrange(1_000))

    def wait(self) -> None:
        self.world.wait(self.random.choice([0, 1, 1, 2, 7, 40, 999, 11_000]))


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
