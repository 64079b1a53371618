"""A long random life of jobs, replayable by its seed: ``python -m tests.sim.job_drive --seed 7``."""

from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from forebay.core.api.jobs import FlowJob, Job, KvChange
from forebay.core.ids import spans_of
from forebay.core.keyvalue.keys import pack
from forebay.core.state import Attributes, Cleanup, Identity, NamedLimit, Rate
from forebay.core.words import CHANGE_KINDS, DEDUP_MODES, MISSED
from forebay.store.memory import MemoryStore
from tests.sim.drive import EVERY, PARTITIONS, Driver, main
from tests.sim.inside import notifying
from tests.sim.job_steps import JobWorld, Op
from tests.sim.model import OPEN, Message
from tests.sim.system_model import STEPS, Cron

RETAKEN = ("j0", "j3", "j6", "j9")
"""Custom ids that are taken from messages that were withdrawn."""
WINDOWS = [5, 40, 1_000, 20_000]
"""Of debounce and throttle."""
POLICIES = ["fail", "ignore", "wait"]
RATES = [Rate(3, 1_000), Rate(2, 30, 5), Rate(100, 1_000)]
BYTES = [Rate(20, 1_000), Rate(2, 10, 60), Rate(5_000, 1_000)]
TIMED = ["timed", "often"]
"""Queues that crons push to."""
CLEANUPS = [
    Cleanup(True),
    Cleanup(True, True),
    Cleanup(on_fail=True),
    Cleanup(keep_ms=5),
    Cleanup(keep_ms=3_000),
]
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
        self.cleaning = Random(seed)
        super().__init__(seed, begin)

    def step(self) -> None:
        if self.random.random() >= self.share:
            super().step()
            return
        self.world.catch_up()
        chosen = self.random.choice(self.actions())
        chosen()

    def attributes(self, queue: str) -> Attributes:
        """The same, and now and then when a message is dropped after its end."""
        found = super().attributes(queue)
        if self.cleaning.random() < 0.1:
            return replace(found, cleanup=self.cleaning.choice(CLEANUPS))
        return found

    def actions(self) -> list[Callable[[], None]]:
        return [
            *[self.push_keyed] * 4,
            *[self.push_waiting] * 4,
            *[self.push_then] * 2,
            *[self.push_flow] * 3,
            self.check_children,
            *[self.end_some] * 2,
            self.outlive,
            *[self.push_again] * 2,
            self.tell_slowly,
            *[self.meanwhile] * 2,
            self.leave_keys,
            self.limit,
            self.limit_by_name,
            self.wait_at_limit,
            *[self.cron] * 2,
            *[self.work] * 2,
            self.obliterate,
            self.write,
            self.transact,
            self.swap,
            self.nack_in_order,
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
            dedup = pick.choice(DEDUP_MODES)
        if dedup in ("debounce", "throttle"):
            window_ms = pick.choice(WINDOWS)
        if dedup == "debounce":
            max_ms = pick.choice([0, window_ms, 2 * window_ms])
            attributes = replace(attributes, delay_ms=0)
        elif pick.random() < 0.1:
            attributes = self.waiting_for(attributes)
        job_id = f"j{pick.randrange(12)}" if pick.random() < 0.15 else None
        own = Identity(
            key,
            dedup,
            window_ms,
            max_ms,
            job_id,
            f"t{pick.randrange(12)}" if pick.random() < 0.3 else None,
            (pack(["left", self.world.payloads]),) if pick.random() < 0.3 else (),
            retakes=job_id in RETAKEN,
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

    def push_then(self) -> None:
        """Push jobs, and one that waits for all of them."""
        pick, queue = self.random, self.queue()
        jobs = [self.any_job(queue) for _ in range(pick.choice([1, 2, 2, 5]))]
        request = ("me", f"r{pick.randrange(3)}") if pick.random() < 0.3 else None
        self.world.push_jobs(queue, jobs, pick.choice([None, None, "os"]), request, self.last())

    def last(self) -> tuple[str, Job]:
        """A job that is to wait for others, and its queue: now and then one that may have none that wait."""
        pick = self.random
        queue = self.queue() if pick.random() < 0.1 else pick.choice(["a", "b", "gated"])
        return queue, self.parent(self.any_job(queue))

    def any_job(self, queue: str) -> Job:
        """A job with keys and ids, or with none."""
        if self.random.random() < 0.5:
            return self.keyed(queue)
        return self.world.job(self.random.choice(PARTITIONS), self.attributes(queue))

    def parent(self, job: Job) -> Job:
        """The job as one that others are added to which it waits for: put off it can't be."""
        if job.own is not None and job.own.dedup == "debounce":
            job.own = replace(job.own, dedup="replace", window_ms=0, max_ms=0)
        on_failed = self.random.choice(POLICIES)
        return replace(job, attributes=replace(job.attributes, on_failed=on_failed))

    def push_flow(self) -> None:
        """Push a job and those it waits for; rather in queues that may have such."""
        pick = self.random
        root = self.flow()
        found = self.world.push_flow(root, pick.choice([None, None, "os"]))
        for each in found[:2]:
            self.world.check_children(self.world.model.ids[each])

    def flow(self, depth: int = 0) -> FlowJob:
        pick = self.random
        count = pick.choice([0, 0, 1, 2] if depth else [1, 1, 2, 3]) if depth < 3 else 0
        children = [self.flow(depth + 1) for _ in range(count)]
        queue = self.queue() if not count or pick.random() < 0.05 else pick.choice(["a", "b", "gated"])
        job = self.any_job(queue)
        return FlowJob(queue, self.parent(job) if count else job, children)

    def check_children(self) -> None:
        """Look at what one waits for, or waited for."""
        waiting = list(self.world.model.waiting)
        message = self.some_message() if not waiting or self.random.random() < 0.3 else waiting[-1]
        if message is not None:
            self.world.check_children(message)

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
            self.world.bury(how, queue, "default", None, dependents=pick.random() < 0.8)

    def outlive(self) -> None:
        """What holds a key is worked on when its time to live ends, and may come back."""
        pick, queue = self.random, self.random.choice(["a", "b", "gated"])
        own = Identity(f"k{pick.randrange(4)}", "replace")
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

    def meanwhile(self) -> None:
        """Many wait for one that ends; while they are told, more come, some go, and the process ends."""
        pick, world = self.random, self.world
        ids = world.push_jobs("a", [world.job("default", Attributes())])
        if not ids:
            return
        self.wait_for(ids, pick.choice([4, 16]))
        world.pop("a", "default", 100, partition="default", lease_ms=5_000)
        place = world.model.ids[ids[0]].place
        with world.slowly():
            match pick.choice(["ack", "ack", "cancel", "discard"]):
                case "ack":
                    world.settle_ids("ack", "a", [place], None, "default", 0)
                case "cancel":
                    world.cancel({"a": [place]}, None)
                case _:
                    world.move({"a": [place]}, "default", None, None, discard=True)
            others = [self.push_keyed, self.push_flow, self.push_then, self.transact, self.settle_lease]
            for _ in range(pick.choice([2, 4, 6])):
                if not notifying(world.engine):
                    return
                how = pick.choice(
                    ["depend", "depend", "cancel", "reload", "other", "purge", "again", "again"]
                )
                if how == "depend":
                    self.wait_for(ids, 1)
                elif how == "again":
                    self.end_again(ids)
                elif how == "cancel":
                    self.cancel_waiting()
                elif how == "reload":
                    world.reload()
                elif how == "other":
                    pick.choice(others)()
                else:
                    world.bury("purge", "a", "default", None)

    def end_again(self, ids: list[int]) -> None:
        """What ended comes back, others wait for it then, and it may end otherwise."""
        pick, world = self.random, self.world
        world.bury("requeue", "a", "default", None)
        self.wait_for(ids, pick.choice([0, 1, 4]))
        if pick.random() < 0.6:
            token = world.pop("a", "default", 100, partition="default", lease_ms=5_000)
            if token is not None:
                world.settle_lease(pick.choice(["ack", "nack"]), token, None)

    def wait_for(self, ids: list[int], count: int) -> None:
        """Push messages that wait for these."""
        pick, world = self.random, self.world
        for _ in range(count):
            attributes = Attributes(depends_on=spans_of(ids), on_failed=pick.choice(POLICIES))
            partitions = pick.sample(PARTITIONS, pick.choice([1, 2]))
            world.push_jobs(pick.choice(["b", "c.d"]), [world.job(each, attributes) for each in partitions])

    def cancel_waiting(self) -> None:
        """Cancel some of those that wait for others."""
        waiting = [each for each in self.world.model.waiting if each.parked and not each.lost]
        for message in self.random.sample(waiting, min(len(waiting), 2)):
            self.world.cancel({message.queue: [message.place]}, self.random.choice([None, None, "default"]))

    def leave_keys(self) -> None:
        """What has keys for its payload is given up, and may be kept as a dead letter or not."""
        pick, world, queue = self.random, self.world, self.random.choice(["a", "b", "gated"])
        world.configure(queue, dead_letters=pick.random() < 0.5)
        own = Identity(keys=(pack(["left", world.payloads]),))
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
        own = Identity(transaction_id=name)
        if pick.random() < 0.5:
            window_ms = pick.choice([5, 40])
            own = Identity(name, "throttle", window_ms)
        elif window_ms and pick.random() < 0.5:
            window_ms = 40
            self.world.configure(queue, dedup_window_ms=window_ms)
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
            "byte_limit": [None, None, *BYTES],
            "concurrency": [0, 0, 1, 3, 10],
            "partition_rate_limit": [None, None, None, *RATES],
            "partition_concurrency": [0, 0, 0, 1, 4],
            "limits": [(), (), ("one",), ("two",), ("one", "two")],
        }
        some = pick.sample(sorted(options), pick.randint(1, len(options)))
        self.world.configure(self.queue(), **{name: pick.choice(options[name]) for name in some})

    def limit_by_name(self) -> None:
        pick = self.random
        limits = [
            None,
            NamedLimit(RATES[0]),
            NamedLimit(RATES[1]),
            NamedLimit(concurrency=2),
            NamedLimit(RATES[1], None, 5),
        ]
        limits += [NamedLimit(None, BYTES[0]), NamedLimit(None, BYTES[1]), NamedLimit(RATES[2], BYTES[1], 5)]
        self.world.put_limit(pick.choice(["one", "two"]), pick.choice(limits))

    def wait_at_limit(self) -> None:
        """Pop in vain from a partition at its limit, and again when something of it was settled."""
        world, queue = self.world, self.random.choice(["a", "b"])
        world.configure(queue, partition_concurrency=1)
        world.push(queue, "default", 2)
        token = world.pop(queue, "default", 50, lease_ms=5_000)
        world.pop(queue, "default", 50, lease_ms=5_000)
        if token in world.model.leases:
            world.settle_lease("ack", token)
        world.pop(queue, "default", 50, lease_ms=5_000)
        world.configure(queue, partition_concurrency=0)

    def min_count(self, queue: str, count: int) -> int:
        """Rather few, so that limits come to let as many go."""
        return min(count, 2) if self.random.random() < 0.15 else super().min_count(queue, count)

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
        own = Identity(name, pick.choice(["drop", "replace"])) if pick.random() < 0.5 else None
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

    def changes(self) -> list[KvChange]:
        pick = self.random
        return [
            KvChange(
                pick.choice(CHANGE_KINDS),
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
        pick = self.random
        ops: list[Op] = []
        for _ in range(pick.choice([1, 2, 3, 4])):
            kind = pick.choice(["push", "push", "flow", "write", "write", "ack", "nack"])
            if kind == "push":
                queue = self.queue()
                jobs = [self.keyed(queue) for _ in range(pick.choice([1, 2]))]
                ops.append(Op("push", queue, jobs, then=self.last() if pick.random() < 0.3 else None))
            elif kind == "flow":
                ops.append(Op("flow", flow=self.flow()))
            elif kind == "write":
                ops.append(Op("write", changes=self.changes(), checks=self.versions()))
            else:
                ops += self.settling(kind)
        if ops and pick.random() < 0.1:
            ops.append(pick.choice(ops))
        if ops:
            self.world.transact(ops)

    def swap(self) -> None:
        """What a transaction acks in a full queue makes room for what it pushes, if no other group has it."""
        pick, world, queue = self.random, self.world, self.random.choice(["a", "b"])
        token = world.pop(queue, "default", pick.choice([1, 3]), lease_ms=5_000)
        if token not in world.model.leases:
            return
        room = pick.choice([0, 0, 1])
        world.configure(queue, max_size=world.model.queues[queue].size() + room, require_lease=False)
        places = sorted(world.model.leases[token].cells)
        count = len(places) + pick.choice([0, 0, 1])
        jobs = [world.job(pick.choice(PARTITIONS), Attributes()) for _ in range(count)]
        pushes = [Op("push", queue, some) for some in (jobs[:1], jobs[1:]) if some]
        world.transact([Op("ack", queue, places=places), *pushes])
        world.configure(queue, max_size=0)

    def nack_in_order(self) -> None:
        """In strict order, a nack is about all behind it: only what is before it can be acked along."""
        pick, world = self.random, self.world
        world.push("strict", "default", 3)
        token = world.pop("strict", "default", 10, partition="default", lease_ms=5_000)
        places = sorted(world.model.leases[token].cells) if token in world.model.leases else []
        if len(places) > 1:
            at = pick.randrange(1, len(places))
            first, rest = pick.choice([(places[at], places[:at]), (places[at - 1], places[at:])])
            world.transact([Op("nack", "strict", places=[first]), Op("ack", "strict", places=rest)])

    def settling(self, kind: str) -> list[Op]:
        """Settle some of what is leased, by id or the whole lease; rather where order is strict."""
        pick, model = self.random, self.world.model
        tokens = list(model.leases)
        strict = [each for each in tokens if model.queues[model.leases[each].queue].ordered]
        if not tokens:
            return []
        token = pick.choice(strict if strict and pick.random() < 0.4 else tokens)
        lease = model.leases[token]
        if lease.group != "default" or pick.random() < 0.2:
            if pick.random() < 0.1 and model.ended:
                token = model.ended[-1]
            return [Op(kind, lease.queue, token=token)]
        places = sorted(lease.cells)
        some = pick.sample(places, pick.randint(1, len(places)))
        if pick.random() < 0.15:
            some = list(dict.fromkeys([*some, *self.places(lease.queue)[:1]]))
        if pick.random() < 0.3:
            first = pick.choice(places)
            behind = pick.random() < 0.5
            rest = [place for place in places if (place > first if behind else place < first)]
            parts = [Op(kind, lease.queue, places=[first])]
            return [*parts, Op("ack", lease.queue, places=rest)] if rest else parts
        found = {model.queues[lease.queue].current(place): place for place in some}
        return [Op(kind, lease.queue, places=list(found.values()))]


if __name__ == "__main__":
    main(JobDriver)
