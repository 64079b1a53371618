"""Stages and adoptions in lives that end in power loss, and what must be left of them.

Commits are lost from their end. So what is staged and what is known to be adopted is as it was after the last
synced commit, or after one of those behind it. An adoption is there wholly or not at all, and one that was
answered as synced is there. What is still staged is adopted, and is what was written.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from forebay.core.api import stages as stage_commands
from forebay.core.engine import Engine
from forebay.core.errors import Conflict, NotFound
from forebay.core.log.bodies import body_slices
from forebay.core.records import keyspace
from forebay.core.state import PLAIN, Attributes, Part, Queue, stages as state_stages
from forebay.core.words import FSYNC, OS

STAGES = tuple(f"s{number}" for number in range(4))
QUERIES = ("x", "y")
KEYS = 6
"""So few that some are held when they come again."""
HAVING = (PLAIN, PLAIN, Attributes(priority=2), Attributes(tags=("t",)))

Row = tuple[bytes, Attributes, str | None]
"""A message and its unique key."""
Write = tuple[str, tuple[Row, ...]]
"""Partition and messages."""
Name = tuple[str, str]
"""Of a queue, and of a stage or a query in it."""
Read = Callable[[bytes], bytes]
"""A body from the store."""
NONE = (-1, None)
"""The newest batch of a query that has none."""


@dataclass(frozen=True)
class Stage:
    query: str | None
    batch: int
    run: int
    """Of its query; what an earlier run staged goes when a later one begins."""
    writes: tuple[Write, ...] = ()

    @property
    def count(self) -> int:
        return sum(len(rows) for _, rows in self.writes)


@dataclass
class State:
    """What is there after a commit."""

    stages: dict[Name, Stage] = field(default_factory=dict)
    newest: dict[Name, tuple[int, state_stages.Adopted]] = field(default_factory=dict)
    """By queue and query, the batch that was adopted last and what was answered."""

    def copy(self) -> "State":
        return State(dict(self.stages), dict(self.newest))


@dataclass
class Adoption:
    command: stage_commands.Adopt
    reply: state_stages.Adopted
    messages: dict[int, bytes]
    """What it appended, by id."""
    is_safe: bool = False
    """Whether it has to be there: it was confirmed as synced, or has survived a loss."""


class Staged:
    """What was staged and adopted in a life."""

    def __init__(self) -> None:
        self.now = State()
        """After the last command."""
        self.history = [State()]
        """After the last synced commit, and after each later one."""
        self.adoptions: list[Adoption] = []
        self.told: Counter[str] = Counter()
        """Adoptions that a loss left or took, that were answered again, and that were made again."""

    def commit(self) -> None:
        self.history.append(self.now.copy())

    def sync(self) -> None:
        """Everything that was committed is synced."""
        self.history = self.history[-1:]


class Staging:
    """The commands of one engine that are about stages."""

    def __init__(
        self,
        engine: Engine,
        staged: Staged,
        rng: Random,
        payload: Callable[[], bytes],
        appended: Callable[[dict[int, bytes], str], None],
    ) -> None:
        """``appended`` hears what an adoption appended, by id, and how it was confirmed."""
        self._engine = engine
        self._staged = staged
        self._rng = rng
        self._payload = payload
        self._appended = appended
        self._unanswered: list[Adoption] = []

    def write(self, tenant: str, queue: str, partition: str, large: list[bytes], now: int) -> None:
        """Stage some messages, the ``large`` ones too."""
        rng, known = self._rng, self._staged.now
        name = rng.choice(STAGES)
        stage = known.stages.get((queue, name))
        if stage is None:
            stage = self._new_stage(queue, rng.choice((*QUERIES, None)))
        payloads = [*(self._payload() for _ in range(rng.randrange(1, 5))), *large]
        keyed = rng.random() < 0.3
        rows: list[Row] = []
        for payload in payloads:
            key = f"k{rng.randrange(KEYS)}" if keyed and rng.random() < 0.8 else None
            rows.append((payload, rng.choice(HAVING), key))
        command = stage_commands.StageWrite(tenant, queue, name, partition, payloads)
        command.query, command.batch, command.run = stage.query, stage.batch, stage.run
        command.runs = [(1, having) for _, having, _ in rows]
        command.keys = [key for *_, key in rows] if keyed else []
        command.part = rng.choice((None, len(stage.writes)))
        reply = self._engine.apply(command, now)
        stage = dataclasses.replace(stage, writes=(*stage.writes, (partition, tuple(rows))))
        for each in self._of(queue, stage.query) if stage.query is not None else ():
            if known.stages[each].run < stage.run:
                del known.stages[each]
        known.stages[queue, name] = stage
        assert isinstance(reply, stage_commands.Staged)
        assert (reply.part, reply.count) == (len(stage.writes) - 1, stage.count)

    def _new_stage(self, queue: str, query: str | None) -> Stage:
        """A stage for the next batch; now and then the query was started again."""
        if query is None:
            return Stage(None, 0, 0)
        run = max((self._staged.now.stages[each].run for each in self._of(queue, query)), default=0)
        return Stage(query, self._next_batch(queue, query), run + (self._rng.random() < 0.1))

    def _of(self, queue: str, query: str | None) -> list[Name]:
        """What is staged for a query, or for none."""
        stages = self._staged.now.stages
        return [name for name, each in stages.items() if name[0] == queue and each.query == query]

    def _next_batch(self, queue: str, query: str) -> int:
        found = self._staged.now.newest.get((queue, query))
        return 0 if found is None else found[0] + 1

    def adopt(self, tenant: str, queue: str, now: int, durability: str | None = None) -> None:
        """Adopt what is staged for the next batch of a query, or some of it."""
        rng, query = self._rng, self._rng.choice(QUERIES)
        names, free = ([name for _, name in self._of(queue, each)] for each in (query, None))
        names += rng.sample(free, rng.randrange(len(free) + 1))
        if rng.random() < 0.2:
            names = rng.sample(names, rng.randrange(len(names) + 1))
        count = None
        if rng.random() < 0.7:
            count = sum(self._staged.now.stages[queue, name].count for name in names)
        if durability is None:
            durability = rng.choice((FSYNC, OS, OS, OS))
        batch = self._next_batch(queue, query)
        self._adopt(stage_commands.Adopt(tenant, queue, query, batch, names, count, durability), now)

    def _adopt(self, command: stage_commands.Adopt, now: int) -> None:
        known, name = self._staged.now, command.queue
        queue = self._engine.queues.get((command.tenant, name))
        wanted, duplicates = self._wanted(command, set(queue.uniques) if queue is not None else set())
        reply = self._engine.apply(command, now)
        assert isinstance(reply, state_stages.Adopted)
        assert not reply.repeated
        assert (reply.duplicates, reply.durability) == (duplicates, command.durability)
        got: dict[str, list[int]] = {}
        for partition, first, _, count in reply.ranges:
            got.setdefault(partition, []).extend(range(first, first + count))
        assert {each: len(ids) for each, ids in got.items()} == {
            each: len(payloads) for each, payloads in wanted.items()
        }
        messages = {
            id: payload for each, ids in got.items() for id, payload in zip(ids, wanted[each], strict=True)
        }
        known.newest[name, command.query] = (command.batch, reply)
        self._drop(command)
        adoption = Adoption(command, reply, messages)
        self._staged.adoptions.append(adoption)
        self._unanswered.append(adoption)

    def _drop(self, command: stage_commands.Adopt) -> None:
        """What nobody can adopt any more goes."""
        stages = self._staged.now.stages
        for (queue, name), each in list(stages.items()):
            late = each.query == command.query and each.batch <= command.batch
            if queue == command.queue and (late or (each.query is None and name in command.stages)):
                del stages[queue, name]

    def _wanted(self, command: stage_commands.Adopt, held: set[str]) -> tuple[dict[str, list[bytes]], int]:
        """What an adoption appends to each partition, and how many messages not, for their keys are held."""
        found: dict[str, list[bytes]] = {}
        duplicates = 0
        for name in command.stages:
            for partition, rows in self._staged.now.stages[command.queue, name].writes:
                for payload, _, key in rows:
                    if key is not None and key in held:
                        duplicates += 1
                        continue
                    held |= {key} if key is not None else set()
                    found.setdefault(partition, []).append(payload)
        return found, duplicates

    def unstage(self, tenant: str, queue: str, now: int) -> None:
        known = self._staged.now.stages
        if (tenant, queue) not in self._engine.queues:
            return
        names = self._rng.sample(STAGES, 2)
        found = [known.pop((queue, name)) for name in names if (queue, name) in known]
        reply = self._engine.apply(stage_commands.Unstage(tenant, queue, names), now)
        assert reply == stage_commands.Unstaged(len(found), sum(each.count for each in found))

    def answer(self) -> None:
        """The commit is made: answers leave."""
        for adoption in self._unanswered:
            adoption.is_safe = adoption.reply.durability == FSYNC
            self._appended(adoption.messages, adoption.reply.durability)
        self._unanswered = []
        self._staged.commit()

    # After a loss.

    def check(self, read: Read, found: dict[int, bytes], names: set[bytes]) -> list[Adoption]:
        """Everything is as it was after some commit, and no adoption is there by half. Those that were lost.

        ``found`` are the messages, by id; ``names`` gets the keys of bodies.
        """
        staged = self._staged
        left = State()
        for (_, name), queue in self._engine.queues.items():
            for stage, each in queue.stages.items():
                writes: list[Write] = [("", ())] * each.writes
                for part in each.parts:
                    rows = tuple(self._rows(queue, part, read, names))
                    writes[part.at] = (part.partition, (*writes[part.at][1], *rows))
                left.stages[name, stage] = Stage(each.query, each.batch, each.run, tuple(writes))
            for query, batches in queue.adopted.items():
                left.newest[name, query] = (max(batches), batches[max(batches)])
        assert left in staged.history, "stages are as they never were, or as they were before a sync"
        for adoption in staged.adoptions:
            self._check_adoption(adoption, found, left)
        lost = [each for each in staged.adoptions if not each.is_safe]
        staged.adoptions = [each for each in staged.adoptions if each.is_safe]
        staged.now, staged.history = left, [left.copy()]
        return lost

    def _rows(self, queue: Queue, part: Part, read: Read, names: set[bytes]) -> Iterator[Row]:
        body = part.body
        if body is None:
            key = keyspace.body_key(queue.prefix, part.body_name)
            names.add(key)
            body = read(key)
        payloads = body_slices(body, part.count, 0, part.count)
        having = [each for count, each in part.runs for _ in range(count)]
        keys: list[str | None] = list(part.keys) or [None] * part.count
        yield from zip(map(bytes, payloads), having, keys, strict=True)

    def _check_adoption(self, adoption: Adoption, found: dict[int, bytes], left: State) -> None:
        command = adoption.command
        there = adoption.messages.keys() & found.keys()
        is_known = left.newest.get((command.queue, command.query), NONE)[0] >= command.batch
        about = f"batch {command.batch} of {command.query} in {command.queue}"
        assert len(there) in (0, len(adoption.messages)), f"{about} is there in part"
        assert all(found[id] == adoption.messages[id] for id in there)
        assert bool(there) == is_known or not adoption.messages, f"{about} is known, or there, and not both"
        assert is_known or not adoption.is_safe, f"{about} was confirmed and is gone"
        adoption.is_safe = is_known
        self._staged.told["adoptions kept" if is_known else "adoptions lost"] += 1

    def come_again(self, tenant: str, lost: list[Adoption], now: int) -> None:
        """Drivers send their last adoptions again, and adopt what they find staged."""
        staged = self._staged
        newest = {(each.command.queue, each.command.query): each for each in staged.adoptions}
        for adoption in newest.values():
            assert self._engine.apply(adoption.command, now) == replace(adoption.reply, repeated=True)
            self._drop(adoption.command)
            staged.told["adoptions repeated"] += 1
        for adoption in lost:
            self._try_again(adoption.command, now)
        for (queue, name), stage in list(staged.now.stages.items()):
            if (queue, name) in staged.now.stages and self._rng.random() < 0.3:
                query = stage.query or QUERIES[0]
                batch = self._next_batch(queue, query)
                durability = self._rng.choice((FSYNC, OS))
                self._adopt(
                    stage_commands.Adopt(tenant, queue, query, batch, [name], stage.count, durability), now
                )

    def _try_again(self, command: stage_commands.Adopt, now: int) -> None:
        """An adoption that was lost is made, if all it names is there as it was, or refused."""
        stages = self._staged.now.stages
        if command.batch != self._next_batch(command.queue, command.query):
            return
        there = [stages.get((command.queue, name)) for name in command.stages]
        count = sum(0 if each is None else each.count for each in there)
        ours = [each is not None and each.query in (None, command.query) for each in there]
        if all(ours) and command.count in (None, count):
            self._adopt(command, now)
            self._staged.told["adoptions made again"] += 1
            return
        try:
            self._engine.apply(command, now)
        except (NotFound, Conflict):
            return
        raise AssertionError(f"{command} was carried out without what it names")
