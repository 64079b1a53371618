"""A long random life of stages, replayable by its seed: ``python -m tests.sim.stage_drive --seed 7``.

Writers stage, drivers adopt, others push, pop and ack, and the process ends: after a commit, or before it,
and then everything is as the last commit left it.
"""

import argparse
import random
from collections.abc import Callable, Iterable
from copy import deepcopy

from forebay.core.api import commands as c, jobs as job_commands, queries, stages as stage_commands
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.core.log import log as logs, slices
from forebay.core.queries import payloads as queries_payloads
from forebay.core.records import keyspace
from forebay.core.retention import merge as merges
from forebay.core.state import (
    PLAIN,
    Attributes,
    Backoff,
    Identity,
    Log,
    Queue as CoreQueue,
    Segment,
    Stage as CoreStage,
    stages,
)
from forebay.store.base import Store
from forebay.store.memory import MemoryStore
from tests.sim.checks import TENANT, load
from tests.sim.labels import Labeller, labels_of
from tests.sim.stage_model import Message, Queue, Stage

QUEUES = {"a": True, "b": True, "memory": False}
"""Whether each is stored."""
PARTITIONS = ["default", "p"]
QUERIES: list[str] = ["x", "y", "z"]
STAGES = [f"s{number}" for number in range(6)]
ATTRIBUTES = [PLAIN, PLAIN, PLAIN, Attributes(priority=5), Attributes(delay_ms=700), Attributes(3, 40)]
LEASE_MS = 20_000
EVERY = 25
"""Steps after which everything is compared."""


class StageDriver:
    """Draws steps, carries them out, and compares."""

    def __init__(
        self, seed: int, store: Store | None = None, reopen: Callable[[Store], Store] = lambda store: store
    ) -> None:
        self.random = random.Random(seed)
        self.labels = Labeller(seed)
        self.store: Store = MemoryStore() if store is None else store
        self.reopen = reopen
        self.limits = Limits(pop_creates_queues=True)
        self.now = 1_700_000_000_000
        self.engine = load(self.store, self.limits, self.now)
        self.model: dict[str, Queue] = {}
        self.committed: dict[str, Queue] = {}
        self.sealed: list[tuple[Log, Segment]] = []
        self.payloads = self.steps = 0
        self.told: dict[str, int] = {}
        """How often each thing happened."""
        for name in QUEUES:
            self.make(name)
        self.commit()

    def make(self, name: str) -> None:
        options = {} if QUEUES[name] else {"durability": "memory"}
        forgiving = {"backoff": Backoff("none"), "max_attempts": 0, "completed_retention_ms": 10_000}
        command = c.Configure(TENANT, name, **forgiving, **options)  # type: ignore[arg-type]
        self.engine.apply(command, self.now)
        self.engine.apply(c.Pop(TENANT, name), self.now)  # the group is there from the beginning
        self.model[name] = Queue(QUEUES[name])

    # Steps.

    def run(self, steps: int) -> None:
        kinds = [
            *[self.write] * 16,
            *[self.adopt] * 10,
            *[self.push] * 8,
            *[self.pop] * 4,
            *[self.commit] * 8,
            *[self.wait] * 4,
            *[self.let_go, self.merge, self.merge, self.unstage],
            *[self.crash, self.restart],
        ]
        for _ in range(steps):
            self.steps += 1
            if self.random.random() < 0.002:
                self.obliterate()
            kind = self.random.choice(kinds)
            kind()
            if self.steps % EVERY == 0 or kind == self.wait:
                self.check()
        self.check()

    def ask(self, command: c.Command) -> object:
        """The answer, or the code of the refusal."""
        try:
            return self.engine.apply(command, self.now)
        except ForebayError as error:
            return error.code

    def tell(self, what: str) -> None:
        self.told[what] = self.told.get(what, 0) + 1

    def queue(self) -> str:
        return self.random.choice(["a", "a", "a", "b", "memory"])

    def messages(self, keyed: bool) -> list[Message]:
        pick = self.random
        found = []
        for _ in range(pick.choice([1, 1, 2, 3, 7])):
            self.payloads += 1
            key = f"k{pick.randrange(8)}" if keyed and pick.random() < 0.8 else None
            size = pick.randrange(20)
            attributes = self.labels.label(pick.choice(ATTRIBUTES))
            found.append(Message(b"%d" % self.payloads + b"." * size, attributes, key))
        return found

    def batch(self, known: Queue, query: str) -> int:
        newest = max(known.adopted.get(query, {0: None}))
        return max(newest + self.random.choice([-2, -1, 0, 1, 1, 1, 1, 1, 2]), 0)

    def write(self) -> None:
        pick, name = self.random, self.queue()
        known, stage = self.model[name], pick.choice(STAGES)
        there = known.stages.get(stage)
        query: str | None = pick.choice([*QUERIES, None])
        batch = self.batch(known, query) if query is not None else 0
        run = pick.choice([1, 1, 1, 1, 2])
        if there is not None and pick.random() < 0.9:
            query, batch, run = there.query, there.batch, there.run
        writes = len(there.parts) if there is not None else 0
        part = pick.choice([None, writes, writes, max(writes - 1, 0), 0, writes + 1])
        keyed = pick.random() < 0.2
        messages = self.messages(keyed)
        expire_ms = pick.choice([1_000, 5_000, 60_000])
        partition = pick.choice(PARTITIONS)
        keys = [each.key for each in messages] if keyed else []
        command = stage_commands.StageWrite(
            TENANT, name, stage, partition, keys=keys, query=query, batch=batch
        )
        command.payloads = [each.payload for each in messages]
        command.runs = [(1, each.attributes) for each in messages]
        command.part, command.expire_ms, command.run = part, expire_ms, run
        reply = self.ask(command)
        over = query is not None and query in known.adopted and max(known.adopted[query]) >= batch
        other = there is not None and (there.query, there.batch, there.run) != (query, batch, run)
        runs = {each.run for each in known.stages.values() if each.query == query is not None}
        former = there is None and max(runs, default=0) > run
        if over or other or former or (part is not None and part > writes):
            assert reply == "conflict", reply
            self.tell("late write" if over else "write of a former run" if former else "refused write")
            return
        assert isinstance(reply, stage_commands.Staged), reply
        if part is not None and part < writes:
            assert there is not None
            self.tell("part again")
        else:
            if there is None and min(runs, default=run) < run:
                known.stages = {
                    each: its for each, its in known.stages.items() if its.query != query or its.run == run
                }
                self.tell("a later run")
            there = known.stages.setdefault(stage, Stage(query, batch, 0, run))
            there.parts.append((partition, messages))
            there.expires_at = max(there.expires_at, self.now + expire_ms)
            part = writes
            self.tell("write")
        size = sum(len(each.payload) for each in there.messages)
        assert reply == stage_commands.Staged(stage, part, len(there.messages), size, there.expires_at)

    def adopt(self) -> None:
        pick, name = self.random, self.queue()
        known, query = self.model[name], pick.choice(QUERIES)
        batch = self.batch(known, query)
        meant = [each for each, stage in known.stages.items() if stage.query == query]
        if meant and pick.random() < 0.7:
            batch = known.stages[pick.choice(meant)].batch
        wanted = [each for each in meant if known.stages[each].batch == batch]
        wanted += [each for each, stage in known.stages.items() if stage.query is None]
        names = pick.sample(wanted, pick.randint(0, len(wanted)) if pick.random() < 0.3 else len(wanted))
        if pick.random() < 0.1:
            names = list(dict.fromkeys([*names, pick.choice(STAGES)]))
        count = None
        if pick.random() < 0.5:
            count = sum(len(known.stages[each].messages) for each in names if each in known.stages)
            first = known.adopted.get(query, {}).get(batch)
            if first is not None and pick.random() < 0.7:
                count = first.count + first.duplicates
            elif pick.random() < 0.1:
                count += 1
        keep_ms = pick.choice([None, None, 1_000, 30_000])
        durability = pick.choice([None, "os", "fsync"]) if known.stored else None
        command = stage_commands.Adopt(TENANT, name, query, batch, names, count, durability, keep_ms)
        reply = self.ask(command)
        if batch in known.adopted.get(query, {}):
            first = known.adopted[query][batch]
            if count is not None and count != first.count + first.duplicates:
                assert reply == "conflict", reply
                self.tell("another batch")
                return
            assert isinstance(reply, stages.Adopted), reply
            assert [getattr(reply, each) for each in reply.__struct_fields__[:-1]] == [
                getattr(first, each) for each in first.__struct_fields__[:-1]
            ]
            assert reply.repeated
            known.drop_late(query, batch, names)
            self.tell("adoption again")
            return
        refusal = known.refusal(query, batch, names, count)
        if refusal is not None:
            assert reply == refusal, (reply, refusal)
            self.tell("refused adoption")
            return
        assert isinstance(reply, stages.Adopted), reply
        ranges, duplicates = known.adopt(names, self.now)
        self.check_ranges(name, reply, ranges)
        until = 0 if keep_ms is None else self.now + keep_ms
        assert (reply.at, reply.duplicates, reply.until) == (self.now, duplicates, until)
        assert reply.durability == (durability or "fsync" if known.stored else "memory")
        assert not reply.repeated
        known.remember(query, batch, reply)
        known.drop_late(query, batch, names)
        self.wait(1)  # what adopted last is known by its time
        self.tell("adoption")

    def check_ranges(self, name: str, reply: stages.Adopted, wanted: list[tuple[str, int, int]]) -> None:
        """The answer says what is where, and by which ids."""
        joined: list[tuple[str, int, int]] = []
        for partition, first, offset, count in reply.ranges:
            last = joined[-1] if joined else None
            if last is not None and (last[0], last[1] + last[2]) == (partition, offset):
                joined[-1] = (partition, last[1], last[2] + count)
            else:
                joined.append((partition, offset, count))
            read = self.read(name, partition, offset, count)
            assert read.runs[0].first == first
            assert read.runs[-1].first + read.runs[-1].count == first + count
        assert joined == wanted, (joined, wanted)
        assert reply.count == sum(count for *_, count in wanted)

    def unstage(self) -> None:
        name = self.queue()
        known, names = self.model[name], self.random.sample(STAGES, 2)
        command = stage_commands.Unstage(TENANT, name, names)
        if self.random.random() < 0.3:
            command.query = self.random.choice(QUERIES)
            command.batch = self.batch(known, command.query)
            names += [
                each
                for each, stage in known.stages.items()
                if stage.query == command.query and stage.batch <= command.batch and each not in names
            ]
            command.stages = command.stages[:2]
        found = [known.stages.pop(each) for each in names if each in known.stages]
        reply = self.ask(command)
        assert reply == stage_commands.Unstaged(len(found), sum(len(each.messages) for each in found))
        self.tell("unstage")

    def push(self) -> None:
        name, partition = self.queue(), self.random.choice(PARTITIONS)
        messages = self.messages(keyed=True)
        jobs = [
            job_commands.Job(
                each.payload, partition, each.attributes, None if each.key is None else Identity(each.key)
            )
            for each in messages
        ]
        reply = self.ask(job_commands.PushJobs(TENANT, name, jobs))
        assert isinstance(reply, job_commands.PushedJobs), reply
        known = self.model[name]
        new = [known.append(partition, each, self.now) for each in messages]
        assert reply.duplicates == [at for at, appended in enumerate(new) if not appended]
        self.tell("push")

    def pop(self) -> None:
        """Lease some messages, and ack some of them."""
        pick, name = self.random, self.queue()
        known, count = self.model[name], pick.choice([1, 5, 50, 1_000])
        self.wait(0)
        wanted = known.open(self.now)
        reply = self.ask(c.Pop(TENANT, name, count=count, lease_ms=LEASE_MS))
        assert isinstance(reply, c.Popped), reply
        got = [
            (each.partition, each.offset + at, each.first + at)
            for each in reply.deliveries
            for at in range(each.count)
        ]
        places = {(partition, offset) for partition, offset, _ in got}
        assert places <= set(wanted)
        assert len(got) == len(places) == min(count, len(wanted)), (got, wanted)
        self.check_labels(known, [(each.partition, each) for each in reply.deliveries])
        for place in places:
            known.logs[place[0]][place[1]].leased_until = self.now + LEASE_MS
        acked = [each for each in got if pick.random() < 0.7]
        if acked:
            settled = self.ask(c.Ack(TENANT, reply.lease, [each[2] for each in acked]))
            assert isinstance(settled, c.Settled), settled
            for partition, offset, _ in acked:
                known.logs[partition][offset].done = True
        self.tell("pop")

    def wait(self, ms: int | None = None) -> None:
        self.now += self.random.choice([0, 1, 100, self.until_due(), 6_000, 31_000]) if ms is None else ms
        self.engine.tick(self.now)
        for known in self.model.values():
            known.advance(self.now)

    def until_due(self) -> int:
        """How long it is until a message is due, if one is delayed."""
        known = self.model[self.queue()]
        dues = [each.due_at - self.now for log in known.logs.values() for each in log]
        return min((each for each in dues if each > 0), default=999)

    # What nobody outside notices.

    def commit(self) -> None:
        commits = self.engine.seal(self.now)
        self.sealed += self.engine.take_sealed()
        if commits:
            self.store.commit(commits)
        self.committed = deepcopy(self.model)

    def let_go(self) -> None:
        """Bodies that the store has leave memory."""
        self.commit()
        for log, segment in self.sealed:
            if self.random.random() < 0.7:
                logs.drop_body(log, segment)
        self.sealed = []

    def merge(self) -> None:
        queue = self.engine.queues[TENANT, self.queue()]
        for partition in queue.partitions.values():
            self.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
        merge = self.engine.plan_merge(2)
        if merge is not None:
            bodies = [self.body(merge.queue, each) for each in merge.parts]
            self.engine.apply_merge(merge, merges.join(merge, bodies))
            self.tell("merge")

    def body(self, queue: CoreQueue, segment: Segment) -> bytes:
        if segment.body is not None:
            return segment.body
        (body,) = self.store.bodies([keyspace.body_key(queue.prefix, segment.body_name)])
        assert isinstance(body, bytes), "the store has the body of every segment"
        return body

    def obliterate(self) -> None:
        name = self.random.choice(list(QUEUES))
        self.ask(c.Obliterate(TENANT, name))
        self.make(name)
        self.tell("obliterate")

    # The process ends.

    def restart(self) -> None:
        self.commit()
        self.crash()

    def crash(self) -> None:
        """Start again from the last commit, and find exactly that."""
        self.model = deepcopy(self.committed)
        for name, stored in QUEUES.items():
            if not stored:
                self.model[name] = Queue(stored=False)
        self.sealed = []
        self.store = self.reopen(self.store)
        self.engine = load(self.store, self.limits, self.now)
        assert not self.engine.damaged, self.engine.damaged
        self.wait(0)
        self.engine.apply(c.Pop(TENANT, "memory"), self.now)
        self.check()
        self.commit()
        self.check_bodies()
        self.tell("crash")

    # What must be so.

    def check(self) -> None:
        self.wait(0)
        for name, known in self.model.items():
            queue = self.engine.queues[TENANT, name]
            assert {each: self.shape(queue, stage) for each, stage in queue.stages.items()} == {
                each: (stage.query, stage.batch, stage.expires_at, stage.run, shape_of(stage))
                for each, stage in known.stages.items()
            }
            staged = sum(len(message.payload) for each in known.stages.values() for message in each.messages)
            assert queue.staged.bytes == staged
            assert list(queue.adopted.items()) == list(known.adopted.items())
            assert queue.uniques.keys() == known.held()
            self.check_logs(name, queue, known)

    def shape(self, queue: CoreQueue, stage: CoreStage) -> object:
        """What the core and the store have of a stage, in the words of the model."""
        parts: list[tuple[str, list[tuple[bytes, Attributes, str | None]]]] = [
            ("", []) for _ in range(stage.writes)
        ]
        for part in stage.parts:
            segment = Segment(0, part.count, part.size, 0, part.body_name, body=part.body)
            segment.body = self.body(queue, segment)
            payloads = slices.SegmentSlice(segment, 0, part.count, 0).payloads()
            attributes = [each for count, each in part.runs for _ in range(count)]
            keys: list[str | None] = list(part.keys) or [None] * part.count
            rows = [(bytes(a), b, key) for a, b, key in zip(payloads, attributes, keys, strict=True)]
            parts[part.at] = (part.partition, [*parts[part.at][1], *rows])
        return stage.query, stage.batch, stage.expires_at, stage.run, parts

    def check_logs(self, name: str, queue: CoreQueue, known: Queue) -> None:
        for partition, messages in known.logs.items():
            log = queue.partitions[partition].log if partition in queue.partitions else Log(0)
            assert (log.end, log.size) == (len(messages), sum(each.size for each in log.segments))
            assert all(each.done or logs.has(log, at) for at, each in enumerate(messages[: log.first]))
            if log.first < log.end:
                found = self.read(name, partition, log.first, log.end - log.first)
                payloads = [bytes(payload) for each in found.runs for payload in each.payloads()]
                assert payloads == [each.payload for each in messages[log.first :]]
                self.check_labels(known, [(partition, each) for each in found.runs])
            for at in range(log.first, log.end):
                assert logs.attributes_at(log, at).priority == messages[at].attributes.priority
        counts = self.ask(queries.GroupCounts(TENANT, name))
        assert isinstance(counts, queries.Counts)
        every = [message for log in known.logs.values() for message in log if not message.done]
        assert counts.active == sum(each.leased_until > 0 for each in every)
        assert counts.delayed == sum(each.due_at > self.now for each in every)
        assert counts.waiting == len(every) - counts.active - counts.delayed

    def check_labels(self, known: Queue, pieces: Iterable[tuple[str, slices.SegmentSlice]]) -> None:
        """Messages come with their own headers and tags."""
        for partition, piece in pieces:
            messages = known.logs[partition][piece.offset : piece.offset + piece.count]
            assert list(labels_of(piece)) == [each.labels for each in messages]

    def read(self, name: str, partition: str, offset: int, count: int) -> queries.LogSlice:
        """Messages by offset, in one of two ways; all of them."""
        whole = self.random.random() < 0.5
        command = queries.Read(TENANT, name, offset, partition, count, self.limits.read_bytes_max, whole)
        reply = self.ask(command)
        assert isinstance(reply, queries.LogSlice), reply
        assert reply.next == offset + count
        for each in queries_payloads.absent(reply):
            each.segment.body = self.body(each.queue, each.segment)
        return reply

    def check_bodies(self) -> None:
        """The store has the bodies that are named, and no other."""
        named: set[bytes] = set()
        for queue in self.engine.queues.values():
            if queue.stored:
                found = [each.body_name for some in queue.partitions.values() for each in some.log.segments]
                parts = [part for each in queue.stages.values() for part in each.parts]
                found += [part.body_name for part in parts if not part.keys]
                # Leases ran out: their failed attempts are notes.
                found += [each.body_name for notes in queue.notes.values() for each in notes.log.segments]
                named |= {keyspace.body_key(queue.prefix, each) for each in found}
        assert set(self.store.body_keys()) == named


def shape_of(stage: Stage) -> object:
    return [
        (partition, [(each.payload, each.attributes, each.key) for each in messages])
        for partition, messages in stage.parts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    driver = StageDriver(given.seed)
    for _ in range(10):
        driver.run(max(given.steps // 10, 1))
        print(f"{driver.steps:,} steps of seed {given.seed}: {driver.told}", flush=True)
    print("core and model agreed at every step")


if __name__ == "__main__":
    main()
