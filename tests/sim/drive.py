"""A long random life, replayable by its seed: ``make sim STEPS=1000000 SEED=7``."""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from forebay.core.state import PLAIN, Attributes, Backoff
from forebay.core.words import LINE, PART
from forebay.store.memory import MemoryStore
from tests.sim.labels import Labeller
from tests.sim.model import SCHEDULED, WAITING, Group, Place, Queue
from tests.sim.world import STATES, World

T = TypeVar("T")

QUEUES = ["a", "b", "c.d", "E-1", "gated", "strict"]
WEIGHTS = [5, 4, 2, 1, 3, 4]
GATES: list[dict[str, int]] = [
    {"delayed_processing_ms": 30},
    {"window_buffer_ms": 20},
    {"max_wait_ms": 40},
    {"max_wait_ms": 30_000},
    {"delayed_processing_ms": 40, "max_wait_ms": 60},
    {"delayed_processing_ms": 7, "window_buffer_ms": 15, "max_wait_ms": 200},
    {"window_buffer_ms": 500, "max_wait_ms": 1_000},
]
"""What ``gated`` holds back, one of these in each world."""
STRICT: list[dict[str, int]] = [
    {},
    {},
    {},
    {"delayed_processing_ms": 20},
    {"max_wait_ms": 1_000},
    *GATES[-2:],
]
"""The same of ``strict``, which is ordered by partition."""
LIMITS: dict[str, list[object]] = {
    "retention_ms": [0, 0, 0, 0, 20_000, 60_000],
    "partition_retention_ms": [0, 0, 5_000, 30_000],
    "group_idle_ms": [604_800_000, 0, 20_000],
    "max_size": [0, 0, 0, 8, 30],
    "require_lease": [False, False, False, True],
}
"""What a queue keeps at most, and for whom."""
CLEANED = ["waiting", "delayed", "dead", "completed"]
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


class Driver:
    """Draws steps and has the world do them."""

    messages_max = 300
    """A queue that had more ends its world: the model looks at each of them."""

    def __init__(
        self, seed: int, begin: Callable[[], World] = lambda: World(MemoryStore(), every=EVERY)
    ) -> None:
        """``begin`` makes a world in which nothing has happened."""
        self.random = random.Random(seed)
        self.labels = Labeller(seed)
        self._begin = begin
        self.world = self.begin()
        self.merges = 0
        """Merges in all worlds but the last."""
        self.carvings = 0
        """Carvings in them."""

    def run(self, steps: int) -> None:
        for step in range(steps):
            try:
                self.step()
            except BaseException as error:
                error.add_note(f"in step {step}")
                raise
        self.world.check_all()

    def step(self) -> None:
        self.world.catch_up()
        chosen = self.random.random()
        for weight, action in (
            (0.155, self.push),
            (0.02, self.push_many),
            (0.16, self.pop),
            (0.09, self.settle_lease),
            (0.06, self.settle_ids),
            (0.03, self.extend),
            (0.03, self.cancel),
            (0.04, self.move),
            (0.03, self.bury),
            (0.01, self.pause),
            (0.02, self.configure),
            (0.01, self.read),
            (0.02, self.check_state),
            (0.01, self.show),
            (0.01, self.world.put_off),
            (0.01, self.list_dead),
            (0.09, self.wait),
            (0.05, self.world.commit),
            (0.03, self.merge),
            (0.01, self.carve),
            (0.02, self.update),
            (0.005, self.discard),
            (0.01, self.clean),
            (0.01, self.seek),
            (0.01, self.browse),
            (0.02, self.note),
            (0.008, self.check_notes),
            (0.002, self.obliterate),
            (0.02, self.let_go),
        ):
            if chosen < weight:
                action()
                return
            chosen -= weight
        self.world.restart(clean=self.random.random() < 0.5)

    def queue(self) -> str:
        """One of few: the more is in one, the more meets there."""
        return self.random.choices(QUEUES, WEIGHTS)[0]

    def group(self, queue: str) -> str:
        """The first queue has one group, the second two: where there are fewer, more is settled by all."""
        if queue == "strict":
            return self.random.choices(GROUPS, [10, 5, 0.3])[0]
        return self.random.choice(GROUPS[: 1 + QUEUES.index(queue) % 4])

    def push(self) -> None:
        queue = self.queue()
        known = self.world.model.queues.get(queue)
        if known and sum(map(len, known.messages.values())) > self.messages_max:
            self.world.check_all()
            self.start_over()
            return
        partition, count = self.random.choice(PARTITIONS), self.random.choice([1, 1, 1, 2, 5, 12])
        durability = self.random.choice([None, None, None, "fsync", "os"])
        self.world.push(queue, partition, count, durability, self.attributes(queue))

    def attributes(self, queue: str) -> Attributes:
        """Mostly none; else mostly one or two, of few values, so that things meet.

        In strict order mostly what it may have.
        """
        found = self.any_attributes()
        if queue == "strict":
            found = replace(found, delay_ms=min(found.delay_ms, 1_000))
            if self.random.random() < 0.98:
                found = replace(found, priority=0, lifo=False)
        return found

    def any_attributes(self) -> Attributes:
        return self.labels.label(self.own_attributes())

    def own_attributes(self) -> Attributes:
        """All but headers and tags."""
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
        self.carvings += self.world.carvings
        self.world = self.begin()
        self.world.steps = steps

    def begin(self) -> World:
        """A world whose queues, but for one, do not keep for long what is settled."""
        world = self._begin()
        for queue in QUEUES:
            self.make(world, queue)
        return world

    def make(self, world: World, queue: str) -> None:
        """Make a queue with its options."""
        pick, kept = self.random, [15_000, 0, 60_000, 3_600_000, 0, 15_000][QUEUES.index(queue)]
        world.configure(queue, completed_retention_ms=kept, lease_ms=pick.choice([100, 30_000]))
        if queue == "gated":
            world.configure(queue, **pick.choice(GATES))
        elif queue == "strict":
            world.configure(queue, ordering="partition", **pick.choice(STRICT))

    def push_many(self) -> None:
        partitions = self.random.choices(PARTITIONS, k=self.random.randint(1, 4))
        queue = self.queue()
        self.world.push_many(queue, [(each, self.attributes(queue)) for each in partitions])

    def pop(self) -> None:
        pick, queue = self.random, self.queue()
        group = self.group(queue)
        count = pick.choice([1, 1, 2, 3, 10, 50, 100, self.nearly_all(queue, group)])
        self.world.pop(
            queue,
            group,
            count,
            self.min_count(queue, count),
            pick.choice([None, None, None, *PARTITIONS]),
            pick.choice([None, None, 1, 5, 50, 1_000, 20_000]),
            self.start(),
            pick.choice([0, 1, 2]),
            unheard=pick.random() < 0.05,
            damaged=pick.random() < 0.15,
        )
        if pick.random() < 0.5:
            self.world.put_off()

    def min_count(self, queue: str, count: int) -> int:
        return self.random.choice([1, 1, 1, count])

    def nearly_all(self, queue: str, group: str) -> int:
        """One less than what waits, if that is anything: a pop that ends in the middle of a partition."""
        known = self.world.model.queues.get(queue, Queue())
        cells = known.groups.get(group, Group("")).cells.values()
        return max(sum(cell.kind in WAITING for each in cells for cell in each) - 1, 1)

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
            verb, delay_ms = self.random.choice(["ack", "ack", "ack", "nack"]), self.delay()
            if verb == "nack" and delay_ms in DELAYS[3:]:
                verb = (
                    "defer"  # not chosen beside the others: planted bugs are caught by the lives as they are
                )
            self.world.settle_lease(verb, token, delay_ms)

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
            with_results=pick.random() < 0.4,
        )
        for place in chosen[-2:]:
            self.world.check_notes(queue, place)

    def some_of(self, token: str) -> list[Place]:
        """Some of what a live lease holds; now and then all it holds of a partition."""
        cells = sorted(self.world.model.leases[token].cells)
        if self.random.random() < 0.2:
            partition = self.random.choice(cells)[0]
            return [place for place in cells if place[0] == partition]
        return self.random.sample(cells, self.random.randint(1, len(cells)))

    def places(self, queue: str) -> list[Place]:
        """Some messages of a queue, most of them next to each other; none if it has none."""
        pick, known = self.random, self.world.model.queues.get(queue, Queue())
        below = pick.choice([0, 0, 2])
        found = [
            (partition, offset)
            for partition, messages in known.messages.items()
            for offset in range(len(messages))
            if offset >= known.first[partition] - below
            or known.has((partition, offset))
            or (partition, offset) in known.successors
        ]
        if not found:
            return []
        if pick.random() < 0.15:
            partition = pick.choice(found)[0]
            return [place for place in found if place[0] == partition][-pick.randint(1, 2) :]
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
            if pick.random() < 0.3:
                self.world.move(chosen, group, 0, None, only_delayed=True)
            else:
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
        chosen = {name: pick.choice(options[name]) for name in some}
        queue = self.queue()
        if pick.random() < 0.3:
            chosen = {name: pick.choice(values) for name, values in LIMITS.items()}
        elif queue in ("gated", "strict") and pick.random() < 0.2:
            none = dict.fromkeys(["delayed_processing_ms", "window_buffer_ms", "max_wait_ms"], 0)
            chosen = {**none, **pick.choice([*GATES, *STRICT])}
        elif pick.random() < 0.05:
            chosen["ordering"] = pick.choice(["message", "partition"]) if queue == "strict" else "message"
        self.world.configure(queue, **chosen)

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

    def show(self) -> None:
        queue = self.queue()
        places = self.places(queue)
        if places:
            self.world.show(queue, places, self.random.choice([self.group(queue), *GROUPS]))

    def waiting(self, queue: str) -> list[Place]:
        """Some of what waits in a queue, in any group, and what took the place of another."""
        pick, known = self.random, self.world.model.queues.get(queue, Queue())
        groups = list(known.groups.values())
        found = [
            (partition, at)
            for partition, messages in known.messages.items()
            for at in range(len(messages))
            if all(group.cells[partition][at].kind in WAITING for group in groups)
        ]
        return pick.sample(found, min(len(found), 1)) or list(known.successors)[:1]

    def update(self) -> None:
        """Update a message, rather one that can be or was."""
        queue = self.queue()
        known = self.world.model.queues.get(queue, Queue())
        choices = [self.waiting(queue), self.waiting(queue), list(known.successors), self.places(queue)]
        found = self.random.choice(choices)
        if found:
            self.world.update(queue, self.random.choice(found))

    def discard(self) -> None:
        chosen = self.chosen()
        if chosen:
            self.world.move(chosen, self.group(next(iter(chosen))), None, None, discard=True)

    def clean(self) -> None:
        pick, queue = self.random, self.queue()
        if queue in self.world.model.queues:
            states = tuple(pick.sample(CLEANED, pick.choice([1, 1, 2, 4])))
            how = (pick.choice([0, 10, 5_000]), pick.choice([None, 1, 3, 10]))
            self.world.clean(queue, self.group(queue), states, *how)

    def seek(self) -> None:
        pick, queue = self.random, self.queue()
        known = self.world.model.queues.get(queue)
        if known is not None:
            partition = pick.choice([None, *PARTITIONS])
            offset = None
            if partition in known.messages and pick.random() < 0.5:
                offset = pick.randint(known.first[partition], len(known.messages[partition]) + 1)
            self.world.seek(queue, self.group(queue), self.start(), partition, offset)

    def browse(self) -> None:
        pick, queue = self.random, self.queue()
        if queue in self.world.model.queues:
            group = pick.choice([self.group(queue), self.group(queue), *GROUPS])
            how = (pick.choice([1, 5, 1_000]), pick.choice([0, 0, 1, 7]))
            for state in pick.sample([None, *STATES], 3):
                self.world.browse(queue, state, group, *how)

    def note(self) -> None:
        """Note something, rather of what is delivered."""
        pick, model = self.random, self.world.model
        token = pick.choice(list(model.leases)) if model.leases else None
        queue = model.leases[token].queue if token is not None else self.queue()
        places = self.some_of(token) if token is not None and pick.random() < 0.7 else self.places(queue)
        if places:
            kind = pick.choice([LINE, PART, None])
            place = pick.choice(places)
            self.world.note(queue, place, kind, pick.choice([None, None, token]))
            self.world.check_notes(queue, place)

    def check_notes(self) -> None:
        queue = self.queue()
        known = self.world.model.queues.get(queue, Queue())
        for place in [*self.places(queue)[:2], *list(known.noted)[-3:], *list(known.results)[-3:]]:
            self.world.check_notes(queue, place)

    def obliterate(self) -> None:
        queue = self.queue()
        if queue in self.world.model.queues:
            self.world.obliterate(queue)
            self.make(self.world, queue)

    def merge(self) -> None:
        if self.world.merging is None:
            self.world.plan_merge(self.random.randint(2, 4))
        if self.random.random() < 0.7:
            self.world.apply_merge()

    def carve(self) -> None:
        if self.world.carving is None:
            self.world.plan_carving()
        if self.random.random() < 0.7:
            self.world.apply_carving()

    def let_go(self) -> None:
        """Let a body go; rather one that was merged into another meanwhile."""
        shelf = self.world.shelf
        gone = [at for at, (log, segment) in enumerate(shelf) if segment not in log.segments]
        self.world.let_go(self.random.choice([self.random.randrange(1_000), *gone[-3:]]))

    def wait(self) -> None:
        long = 70_000 if self.random.random() < 0.2 else 11_000
        self.world.wait(self.random.choice([0, 1, 1, 2, 5, 7, 30, 40, 999, long]))


def main(kind: "Callable[[int], Driver]" = Driver) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    live(kind(given.seed), given.seed, given.steps)
    print("core and model agreed at every step")


def live(driver: Driver, seed: int, steps: int) -> None:
    """Run a life in ten parts, and say how it goes."""
    began, part = time.perf_counter(), max(steps // 10, 1)
    for done in range(part, steps + 1, part):
        driver.run(part)
        print(f"{done:,} steps of seed {seed} in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
