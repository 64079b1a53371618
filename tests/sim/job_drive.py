"""A long random life of jobs, replayable by its seed: ``python -m tests.sim.job_drive --seed 7``."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from penstock.core.commands import Change, Job
from penstock.core.dependents import spans_of
from penstock.core.jobdata import MISSED, MODES, Particulars
from penstock.core.keys import pack
from penstock.core.model import Attributes, Rate, Shared
from penstock.core.values import KINDS
from penstock.store.memory import MemoryStore
from tests.sim.drive import EVERY, PARTITIONS, Driver, main
from tests.sim.job_steps import JobWorld, Op
from tests.sim.model import OPEN, Message
from tests.sim.system_model import STEPS, Cron

WINDOWS = [5, 40, 1_000, 20_000]
"""Of debounce and throttle."""
POLICIES = ["fail", "ignore", "wait"]
RATES = [Rate(3, 1_000), Rate(2, 30, 5), Rate(100, 1_000)]
TIMED = ["timed", "often"]
"""Queues that crons push to."""
KEYS = [pack([name]) for name in "abcd"]
"""Keys, packed."""


class JobDriver(Driver):
    """Draws steps with jobs in them."""

    world: JobWorld
    share = 0.25
    """How many of the steps are about jobs."""

    def __init__(
        self, seed: int, begin: Callable[[], JobWorld] = lambda: JobWorld(MemoryStore(), every=EVERY)
    ) -> None:
        super().__init__(seed, begin)

    def step(self) -> None:
        if self.random.random() >= self.share:
            super().step()
            return
        self.world.catch_up()
        chosen = self.random.choice(self.actions())
        chosen()

    def actions(self) -> list[Callable[[], None]]:
        return [
            *[self.push_keyed] * 4,
            *[self.push_waiting] * 4,
            *[self.end_some] * 2,
            self.outlive,
            self.push_again,
            self.tell_slowly,
            self.leave_keys,
            self.limit,
            self.limit_by_name,
            *[self.cron] * 2,
            *[self.work] * 2,
            self.obliterate,
            self.write,
            self.transact,
        ]

    def push_keyed(self) -> None:
        """Push jobs that have keys and ids, of which there are few."""
        pick, queue = self.random, self.queue()
        jobs = [self.keyed(queue) for _ in range(pick.choice([1, 1, 1, 2, 5]))]
        request = ("me", f"r{pick.randrange(3)}") if pick.random() < 0.1 else None
        self.world.push_jobs(queue, jobs, pick.choice([None, None, "os"]), request)

    def keyed(self, queue: str) -> Job:
        pick = self.random
        attributes = self.attributes(queue)
        dedup, window_ms, max_ms, key = "drop", 0, 0, None
        if pick.random() < 0.8:
            key = f"k{pick.randrange(4)}"
            dedup = pick.choice(MODES)
        if dedup in ("debounce", "throttle"):
            window_ms = pick.choice(WINDOWS)
        if dedup == "debounce":
            max_ms = pick.choice([0, window_ms, 2 * window_ms])
            attributes = replace(attributes, delay_ms=0)
        elif pick.random() < 0.1:
            attributes = self.waiting_for(attributes)
        own = Particulars(
            key,
            dedup,
            window_ms,
            max_ms,
            f"j{pick.randrange(12)}" if pick.random() < 0.15 else None,
            f"t{pick.randrange(12)}" if pick.random() < 0.3 else None,
            (pack(["left", self.world.payloads]),) if pick.random() < 0.3 else (),
        )
        if pick.random() < 0.02:
            return self.world.job(pick.choice(PARTITIONS[1:]), attributes, own, lane=True)
        return self.world.job(pick.choice(PARTITIONS), attributes, own)

    def push_waiting(self) -> None:
        """Push messages that wait for others."""
        pick, queue = self.random, self.queue()
        attributes = self.waiting_for(self.attributes(queue))
        if attributes.depends_on and pick.random() < 0.95:
            attributes = replace(attributes, priority=0, lifo=False) if queue == "strict" else attributes
            queue = self.random.choice(["a", "b", "gated"]) if queue == "strict" else queue
        jobs = [self.world.job(pick.choice(PARTITIONS), attributes) for _ in range(pick.choice([1, 1, 2]))]
        if pick.random() < 0.3:
            jobs += [self.world.job(jobs[0].partition, attributes) for _ in range(3)]
        self.world.push_jobs(queue, jobs)

    def waiting_for(self, attributes: Attributes) -> Attributes:
        """Attributes of a message that waits for some others, most of them open."""
        pick = self.random
        found: list[int] = []
        for _ in range(pick.choice([1, 1, 2, 3])):
            message = self.some_message()
            if message is not None:
                partition, at = message.place
                messages = self.world.model.queues[message.queue].messages[partition]
                some = messages[at : at + pick.choice([1, 1, 2, 4])]
                found += [each.id for each in some]
        if pick.random() < 0.01:
            lost = [each.id for each in self.world.model.ids.values() if each.lost]
            found += lost[-1:]
        return replace(attributes, depends_on=spans_of(found), on_failed=pick.choice(POLICIES))

    def some_message(self) -> Message | None:
        pick, model = self.random, self.world.model
        known = model.queues.get(self.queue())
        if known is None:
            return None
        every = [each for messages in known.messages.values() for each in messages[-30:]]
        opened = [each for each in every if model.standing(each) is None]
        chosen = opened if opened and pick.random() < 0.85 else every
        return pick.choice(chosen) if chosen else None

    def end_some(self) -> None:
        """End something that others wait for, or that holds a key."""
        pick, model = self.random, self.world.model
        waited = [target for each in model.waiting for target in each.unmet.values()]
        found = [each for each in [*waited, *model.tied, *model.waiting] if not each.gone and not each.lost]
        if not found:
            return
        message = pick.choice(found)
        queue, (partition, at) = message.queue, message.place
        known = model.queues[queue]
        group = known.groups.get("default")
        how = pick.choice(["ack", "ack", "ack", "nack", "cancel", "discard", "update", "requeue", "purge"])
        if how in ("ack", "nack"):
            if group is None or group.cells[partition][at].kind in OPEN:
                self.world.pop(queue, "default", 50, partition=partition)
            self.world.settle_ids(how, queue, [message.place], None, "default", 0)
        elif how == "cancel":
            self.world.cancel({queue: [message.place]}, pick.choice([None, None, "default"]))
        elif how == "discard":
            self.world.move({queue: [message.place]}, "default", None, None, discard=True)
        elif how == "update":
            self.world.update(queue, known.firsts(message.place))
        else:
            self.world.bury(how, queue, "default", None)

    def outlive(self) -> None:
        """What holds a key is worked on when its time to live ends, and may come back."""
        pick, queue = self.random, self.random.choice(["a", "b", "gated"])
        own = Particulars(f"k{pick.randrange(4)}", "replace")
        self.world.push_jobs(queue, [self.world.job("default", Attributes(ttl_ms=30), own)])
        token = self.world.pop(queue, "default", 50, partition="default", lease_ms=pick.choice([40, 5_000]))
        self.world.wait(pick.choice([29, 31, 41]))
        if token is not None and pick.random() < 0.7:
            self.world.settle_lease(pick.choice(["nack", "nack", "ack"]), token, pick.choice([0, None]))
        self.world.wait(pick.choice([0, 1, 2]))

    def tell_slowly(self) -> None:
        """Many wait for one that is acked."""
        pick, world = self.random, self.world
        ids = world.push_jobs("a", [world.job("default", Attributes())])
        if not ids:
            return
        message = world.model.ids[ids[0]]
        attributes = Attributes(depends_on=spans_of(ids))
        for _ in range(pick.choice([3, 7])):
            partitions = pick.sample(PARTITIONS, 2)
            world.push_jobs(pick.choice(["b", "c.d"]), [world.job(each, attributes) for each in partitions])
        world.pop("a", "default", 100, partition="default", lease_ms=5_000)
        world.ack_and_reload("a", message.place)

    def leave_keys(self) -> None:
        """What has keys for its payload is given up, and may be kept as a dead letter or not."""
        pick, world, queue = self.random, self.world, self.random.choice(["a", "b", "gated"])
        world.configure(queue, dead_letters=pick.random() < 0.5)
        own = Particulars(keys=(pack(["left", world.payloads]),))
        ids = world.push_jobs(queue, [world.job("default", Attributes(), own)])
        if ids:
            place = world.model.ids[ids[0]].place
            world.move({queue: [place]}, "default", None, None, discard=True)

    def push_again(self) -> None:
        """Push the same once more just before, or just when, it is not known any more."""
        pick, queue = self.random, self.queue()
        known = self.world.model.queues.get(queue)
        if known is None:
            return
        name, window_ms = f"n{self.world.payloads}", known.options.dedup_window_ms
        own = Particulars(transaction_id=name)
        if pick.random() < 0.5:
            window_ms = pick.choice([5, 40])
            own = Particulars(name, "throttle", window_ms)
        self.world.push_jobs(queue, [self.world.job("default", Attributes(), own)])
        if 0 < window_ms <= 1_000:
            self.world.wait(window_ms - pick.choice([0, 1]))
        self.world.push_jobs(queue, [self.world.job("default", Attributes(), own)])

    # Limits.

    def limit(self) -> None:
        """Set limits of a queue."""
        pick = self.random
        options: dict[str, Sequence[object]] = {
            "rate_limit": [None, None, *RATES],
            "concurrency": [0, 0, 1, 3, 10],
            "partition_rate_limit": [None, None, None, *RATES],
            "partition_concurrency": [0, 0, 0, 1, 4],
            "limits": [(), (), ("one",), ("two",), ("one", "two")],
        }
        some = pick.sample(sorted(options), pick.randint(1, len(options)))
        self.world.configure(self.queue(), **{name: pick.choice(options[name]) for name in some})

    def limit_by_name(self) -> None:
        pick = self.random
        limits = [None, Shared(RATES[0]), Shared(RATES[1]), Shared(concurrency=2), Shared(RATES[1], None, 5)]
        self.world.put_limit(pick.choice(["one", "two"]), pick.choice(limits))

    def min_count(self, queue: str, count: int) -> int:
        """With limits on partitions a pop may get less than it wants."""
        if queue in self.world.model.queues and self.world.model.limits_partitions(queue):
            return 1
        return super().min_count(queue, count)

    # Crons.

    def cron(self) -> None:
        """Make a cron, or remove one; each has a partition of its own."""
        pick, world = self.random, self.world
        name, queue = f"c{pick.randrange(4)}", pick.choice(TIMED)
        if pick.random() < 0.2:
            world.delete_cron(name)
            return
        schedule = pick.choice([None, None, *STEPS])
        every_ms = STEPS[schedule] if schedule is not None else pick.choice([5_000, 7_001, 40_000])
        own = Particulars(name, pick.choice(["drop", "replace"])) if pick.random() < 0.5 else None
        attributes = replace(self.any_attributes(), depends_on=())
        job = world.job(f"{queue} {name}", attributes, own)
        how = (every_ms, schedule, pick.choice(MISSED), pick.choice([0, 0, 3]))
        world.put_cron(Cron(name, queue, job, *how, began_at=world.now))

    def work(self) -> None:
        """Deal with what crons pushed."""
        pick, queue = self.random, self.random.choice(TIMED)
        if queue in self.world.model.queues:
            token = self.world.pop(queue, "default", pick.choice([1, 5, 50]))
            if token is not None and pick.random() < 0.8:
                self.world.settle_lease(pick.choice(["ack", "ack", "nack"]), token, None)

    # Keys and values.

    def write(self) -> None:
        self.world.write(self.changes(), self.versions())
        self.world.get([self.random.choice(KEYS) for _ in range(2)])

    def changes(self) -> list[Change]:
        pick = self.random
        return [
            Change(
                pick.choice(KINDS),
                pick.choice(KEYS),
                pick.choice([b"1", b"-7", b"[1]", b'[2,"x"]', b'"text"']) if pick.random() < 0.2 else b"3",
                pick.choice([None, None, 0, 5, 1_000, 20_000]),
            )
            for _ in range(pick.choice([1, 1, 2, 4]))
        ]

    def versions(self) -> list[tuple[bytes, int | None]]:
        """Keys with their versions, now and then wrong ones."""
        pick, model = self.random, self.world.model
        found: list[tuple[bytes, int | None]] = []
        for key in pick.sample(KEYS, pick.choice([0, 0, 1, 2])):
            entry = model.entry(key, self.world.now)
            found.append((key, entry.version if entry is not None else None))
        if found and pick.random() < 0.3:
            found[-1] = (found[-1][0], pick.choice([None, 7]))
        return found

    def transact(self) -> None:
        """Several things at once, of which now and then one can't be done."""
        pick, model = self.random, self.world.model
        ops: list[Op] = []
        for _ in range(pick.choice([1, 2, 3, 4])):
            kind = pick.choice(["push", "write", "write", "ack", "nack"])
            if kind == "push":
                queue = self.queue()
                if queue in model.queues and not model.queues[queue].options.max_size:
                    ops.append(Op("push", queue, [self.keyed(queue) for _ in range(pick.choice([1, 2]))]))
            elif kind == "write":
                ops.append(Op("write", changes=self.changes(), checks=self.versions()))
            else:
                ops += self.settling(kind)
        if ops and pick.random() < 0.1:
            ops.append(pick.choice(ops))
        if ops:
            self.world.transact(ops)

    def settling(self, kind: str) -> list[Op]:
        """Settle some of what is leased; where order is strict, only as done."""
        pick, model = self.random, self.world.model
        held = [
            (lease.queue, sorted(lease.cells)) for lease in model.leases.values() if lease.group == "default"
        ]
        if not held:
            return []
        queue, places = pick.choice(held)
        if model.queues[queue].ordered:
            kind = "ack"
        some = pick.sample(places, pick.randint(1, len(places)))
        if pick.random() < 0.15:
            some = list(dict.fromkeys([*some, *self.places(queue)[:1]]))
        found = {model.queues[queue].current(place): place for place in some}
        return [Op(kind, queue, places=list(found.values()))]

    def make(self, world: JobWorld, queue: str) -> None:  # type: ignore[override]
        super().make(world, queue)
        world.configure(queue, dedup_window_ms=self.random.choice([0, 1_000, 60_000, 3_600_000]))


if __name__ == "__main__":
    main(JobDriver)
