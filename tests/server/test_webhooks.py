"""What webhooks promise, in a time of their own: retries, crashes at every commit, endpoints that hang."""

import asyncio
import json
from asyncio import AbstractEventLoop, Future
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, islice, pairwise
from typing import Any

import pytest

from forebay.broker.node import Node
from forebay.core.api.commands import Command, Pop, Popped, Push, Reply, TenantPut, Transact
from forebay.core.api.jobs import Job
from forebay.core.api.queries import KvGet, ListDead, ListQueues
from forebay.core.bounds import OPERATIONS_MAX, Limits
from forebay.core.errors import Busy, Damaged, ForebayError, Invalid
from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import body_key
from forebay.core.routing.placement import home_of, shard_of_queue
from forebay.core.words import DEFAULT, EVENTS, system_of
from forebay.server.events.hub import Hub
from forebay.server.node_client import NodeClient
from forebay.server.webhooks.batches import TOGETHER_MAX, Part, Progress, commits
from forebay.server.webhooks.courier import AT_ONCE, DEADLINE_S, Webhook, queue_of
from forebay.server.webhooks.forwarder import POSITION
from forebay.server.webhooks.post import Letter
from forebay.server.webhooks.registry import WEBHOOKS_MAX, Webhooks
from forebay.store.memory import MemoryStore
from tests.leaping import LeapingLoop

BEGIN = 1_700_000_000_000
SHARDS = 4
HOME = home_of(DEFAULT, SHARDS)
SPREAD = "spread"
"""A tenant whose queues live in shards of their own."""


def queues_in(shard: int) -> Iterator[str]:
    """Names of queues of the spread tenant that live in a shard."""
    return (name for name in map("q{}".format, count()) if shard_of_queue(SPREAD, name, SHARDS) == shard)


class Killed(KeyboardInterrupt):
    """The process ends in the middle of everything."""


class Mortal(MemoryStore):
    """A store whose process is killed before one of its commits."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = -1
        """Commits until then; never if it is below 0."""
        self.damaged: set[bytes] = set()
        """Keys of bodies that can't be read."""

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        super().commit(group, sync=sync)

    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]:
        found = zip(keys, super().bodies(keys), strict=True)
        return [Damaged("Corruption") if key in self.damaged else body for key, body in found]


class Sent:
    """A letter on its way."""

    def __init__(self, loop: AbstractEventLoop, letter: Letter) -> None:
        self.at = loop.time()
        self.letter = letter
        self.outcome: Future[str | None] = loop.create_future()
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True

    def answer(self, problem: str | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(problem)

    @property
    def id(self) -> str:
        return self.letter.headers["X-Forebay-Delivery"]

    @property
    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.letter.body)["events"]
        return found

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.events]


class Refusing(NodeClient):
    """Sends commands to the node; some of them get ``busy`` instead, and change nothing."""

    def __init__(self, node: Node, world: "World") -> None:
        super().__init__(node)
        self._world = world

    def ask(self, command: Command) -> "Future[Reply | ForebayError]":
        if isinstance(command, Transact):
            self._loop.call_soon(self._world.on_transact)
        if not (isinstance(command, Transact) and command.tenant in self._world.refused):
            return super().ask(command)
        refused: Future[Reply | ForebayError] = self._loop.create_future()
        refused.set_result(Busy("not now"))
        return refused


class World:
    """A node, its webhooks, and everything that is posted. A second run is a restart."""

    def __init__(self) -> None:
        self.store = Mortal()
        self.limits = Limits(events_bytes_max=1 << 20)
        self.at = 0.0
        self.refused: set[str] = set()
        """Tenants whose transactions get ``busy``."""
        self.on_transact: Callable[[], None] = lambda: None
        """Called when a transaction is on its way."""
        self.sent: list[Sent] = []
        self.answer: Callable[[Sent], str | None] = lambda sent: None
        """What becomes of what is posted: a problem, or None. It may also never be answered: ``...``."""

    def told(self, id: str) -> list[dict[str, Any]]:
        """The events that were posted to a webhook, in order."""
        return [event for sent in self.sent if sent.id.startswith(f"{id}-") for event in sent.events]

    def _send(self, loop: AbstractEventLoop, letter: Letter) -> Sent:
        sent = Sent(loop, letter)
        self.sent.append(sent)
        answer: Any = self.answer(sent)
        if answer is not ...:
            loop.call_soon(sent.answer, answer)
        return sent

    def run(self, story: Callable[["Life"], Awaitable[None]], *, told: bool = True) -> None:
        """Start, live through a story, and stop as one should; or be killed. Webhooks may be left out."""
        loop = LeapingLoop(self.at, threads="forebay-webhook")
        try:
            loop.run_until_complete(self._live(loop, story, told))
        except Killed:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            self.store.lives = 0  # nothing of what they do at the end is kept
            with pytest.raises(Killed):
                loop.run_until_complete(_until_killed(tasks))
            for task in tasks:
                setattr(task, "_log_destroy_pending", False)  # noqa: B010 - as asyncio does: nobody is told
        finally:
            self.at = loop.at
            self.store.lives = -1
            loop.close()

    async def _live(self, loop: LeapingLoop, story: Callable[["Life"], Awaitable[None]], told: bool) -> None:
        def clock() -> int:
            return BEGIN + round(loop.at * 1000)

        node = Node(self.store, loop, clock, self.limits, shards=SHARDS)
        hub, questions = Hub(node, loop), Refusing(node, self)
        webhooks = Webhooks(hub, questions, loop, clock, private=True, send=self._send)
        if told:
            webhooks.start()
        await story(Life(self, questions, webhooks))
        webhooks.stop()
        await node.drain()
        await webhooks.close(3.0)
        await node.drain()


async def _until_killed(tasks: set[Any]) -> None:
    raise Killed


class Life:
    """One start of a node, up to its end."""

    def __init__(self, world: World, questions: NodeClient, webhooks: Webhooks) -> None:
        self.world, self._questions, self.webhooks = world, questions, webhooks
        self.engine = questions.node.engine

    async def ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        assert not isinstance(reply, ForebayError), reply
        return reply

    async def push(self, queue: str, *payloads: bytes, tenant: str = DEFAULT) -> None:
        await self.ask(Push(tenant, queue, list(payloads)))

    async def register(self, id: str = "w", tenant: str = DEFAULT, **fields: Any) -> None:
        await asyncio.sleep(1)  # it has loaded by then
        webhook = Webhook(id=id, tenant=tenant, url="http://127.0.0.1:9/", secret="s", **fields)
        await self.webhooks.register(webhook)

    async def queues(self, shard: int) -> list[str]:
        """The server's own queues in a shard."""
        found: Any = await self.ask(ListQueues(system_of(shard)))
        return [each.name for each in found.queues]

    async def position(self, shard: int) -> int | None:
        """How far events of a shard are forwarded, as it is stored."""
        found: Any = await self.ask(KvGet(system_of(shard), [POSITION]))
        return None if found.values[0] is None else int(found.values[0].data)

    def end(self, shard: int) -> int:
        """Where the events of a shard end."""
        log = self.engine.shards[shard].events.log
        return 0 if log is None else log.partition.log.end

    async def rest(self, seconds: float = 60) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)


def test_what_is_never_taken_is_tried_ten_times_and_then_a_dead_letter() -> None:
    world = World()
    world.answer = lambda sent: "status 500: no"

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest(3_600)
        times = [sent.at for sent in world.sent]
        waits = [round(after - before) for before, after in pairwise(times)]
        assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256]
        assert len({sent.id for sent in world.sent}) == 1
        ((_, figures),) = await life.webhooks.all(DEFAULT)
        assert (figures.delivered, figures.failed, figures.waiting, figures.dead) == (0, 10, 0, 1)
        dead: Any = await life.ask(ListDead(system_of(HOME), queue_of("w")))
        assert [each.error for each in dead.deliveries] == ["status 500: no"]

    world.run(story)


def test_every_try_has_a_timestamp_and_a_signature_of_its_own() -> None:
    world = World()
    world.answer = lambda sent: "no" if len(world.sent) == 1 else None

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest()
        first, second = world.sent
        assert first.letter.body == second.letter.body
        assert first.letter.headers["X-Forebay-Timestamp"] < second.letter.headers["X-Forebay-Timestamp"]
        assert first.letter.headers["X-Forebay-Signature"] != second.letter.headers["X-Forebay-Signature"]

    world.run(story)


@pytest.mark.parametrize("lives", range(25))
def test_whenever_the_process_is_killed_every_event_is_delivered_and_pushed_once(lives: int) -> None:
    world = World()

    async def first(life: Life) -> None:
        await life.register(kinds=["pushed"])
        world.store.lives = lives
        for number in range(5):
            await life.push("q", *[b"%d" % number] * (number + 1))
            await life.rest(0.015)  # sometimes two are forwarded together

    async def second(life: Life) -> None:
        await life.rest()

    world.run(first)
    known = pushed(world)
    world.run(second)
    by_id: dict[str, bytes] = {}
    for sent in world.sent:
        assert by_id.setdefault(sent.id, sent.letter.body) == sent.letter.body
    counts = [event["count"] for body in by_id.values() for event in json.loads(body)["events"]]
    assert counts == known


def pushed(world: World) -> list[int]:
    """How many were pushed together, as far as it was kept."""
    found: list[int] = []

    async def story(life: Life) -> None:
        popped = await life.ask(Pop(DEFAULT, "q", count=100, create=True))
        assert isinstance(popped, Popped)
        payloads = [bytes(each) for run in popped.deliveries for each in run.payloads()]
        found.extend(payloads.count(b"%d" % number) for number in range(5) if b"%d" % number in payloads)

    before = list(world.sent)
    world.answer = lambda sent: ...  # type: ignore[assignment,return-value]
    world.run(story)
    world.sent = before
    world.answer = lambda sent: None
    return found


def test_what_was_taken_before_the_end_is_not_posted_again() -> None:
    world = World()

    async def first(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest()
        assert len(world.sent) == 1
        world.store.lives = 0
        await life.push("q", b"2")

    async def second(life: Life) -> None:
        await life.rest()
        assert len(world.sent) == 1
        await life.push("q", b"3")
        await life.rest()
        assert len(world.sent) == 2

    world.run(first)
    world.run(second)


def test_a_webhook_that_hangs_is_cut_off_and_holds_up_no_other() -> None:
    world = World()
    world.answer = lambda sent: ... if "hangs-" in sent.id else None  # type: ignore[assignment,return-value]

    async def story(life: Life) -> None:
        await life.register("hangs", kinds=["pushed"])
        await life.register("takes", kinds=["pushed"])
        for _ in range(3):
            await life.push("q", b"1")
            await life.rest(1)
        hanging = [sent for sent in world.sent if "hangs-" in sent.id]
        assert len(hanging) == 1
        assert len(world.sent) == 4
        await life.rest(DEADLINE_S)
        assert hanging[0].is_cut

    world.run(story)


def test_no_more_are_on_their_way_at_a_time_than_there_are_slots() -> None:
    world = World()
    world.answer = lambda sent: ...  # type: ignore[assignment,return-value]

    async def story(life: Life) -> None:
        for number in range(AT_ONCE + 1):
            await life.register(f"w{number}", kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest(DEADLINE_S / 2)
        assert len(world.sent) == AT_ONCE
        world.sent[0].outcome.set_result(None)
        await life.rest(1)
        assert len(world.sent) == AT_ONCE + 1

    world.run(story)


def test_what_is_on_its_way_when_the_server_stops_is_given_back_uncounted() -> None:
    world = World()
    world.answer = lambda sent: ...  # type: ignore[assignment,return-value]

    async def stopped(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest(1)

    async def started(life: Life) -> None:
        await life.rest(1)
        first, again = world.sent
        assert first.is_cut
        assert first.id == again.id
        ((_, figures),) = await life.webhooks.all(DEFAULT)
        assert (figures.delivered, figures.failed) == (1, 0)

    world.run(stopped)
    world.answer = lambda sent: None
    world.run(started)


def test_many_events_go_together_and_not_too_many() -> None:
    world = World()

    async def story(life: Life) -> None:
        await life.register(kinds=["created"])
        world.answer = lambda sent: None
        for number in range(2 * TOGETHER_MAX):
            life._questions.ask(Push(DEFAULT, f"q{number}", [b"1"]))
        await life.rest()
        sizes = [len(sent.kinds) for sent in world.sent]
        assert sum(sizes) == 2 * TOGETHER_MAX
        assert max(sizes) <= TOGETHER_MAX
        assert len(sizes) < 20

    world.run(story)


def test_a_webhook_that_comes_later_is_told_nothing_of_what_was_before() -> None:
    world = World()

    async def story(life: Life) -> None:
        await life.register("a", kinds=["pushed"])
        await life.webhooks.delete(DEFAULT, "a")
        await life.push("q", b"1")
        await life.register("b", kinds=["pushed"])
        await life.push("q", b"2", b"3")
        await life.register("c", kinds=["pushed"])
        await life.push("q", b"4", b"5", b"6")
        await life.rest()

    def told(id: str) -> list[int]:
        letters = [sent.letter.body for sent in world.sent if sent.id.startswith(id)]
        return [event["count"] for body in letters for event in json.loads(body)["events"]]

    world.run(story)
    assert (told("a"), told("b"), told("c")) == ([], [2, 3], [3])


def test_a_tenant_has_no_more_webhooks_than_the_limit() -> None:
    async def story(life: Life) -> None:
        for number in range(WEBHOOKS_MAX):
            await life.register(f"w{number}")
        with pytest.raises(Busy, match="at most 100 webhooks"):
            await life.register("more")
        await life.webhooks.delete(DEFAULT, "w7")
        await life.register("more")
        assert len(await life.webhooks.all(DEFAULT)) == WEBHOOKS_MAX

    World().run(story)


def test_events_of_deliveries_make_no_deliveries() -> None:
    world = World()

    async def story(life: Life) -> None:
        await life.register()
        await life.push("q", b"1")
        await life.rest(3_600)
        assert [sent.kinds for sent in world.sent] == [["created", "pushed"]]

    world.run(story)


def test_a_tenant_has_its_own_webhooks_only() -> None:
    world = World()

    async def story(life: Life) -> None:
        await life.register("w", kinds=["pushed"])
        await life.ask(Push("other", "q", [b"1"]))
        await life.rest()
        assert world.sent == []
        assert await life.webhooks.all("other") == []
        with pytest.raises(ForebayError, match="no such webhook"):
            await life.webhooks.delete("other", "w")

    world.run(story)


def test_a_host_without_a_public_address_can_not_be_registered() -> None:
    async def story(life: Life) -> None:
        life.webhooks._office.private = False
        with pytest.raises(Invalid, match="not a public address"):
            await life.register()

    World().run(story)


# What must not hold up, or fall behind.


def test_a_shard_that_is_busy_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.webhooks.forwarder.SHARDS_AT_ONCE", 1)
    monkeypatch.setattr("forebay.server.webhooks.forwarder.READ_BYTES", 1)  # one event at a time
    world = World()

    async def story(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        await life.register(tenant=SPREAD, kinds=["created"])
        for number in range(100):
            life._questions.ask(Push(SPREAD, f"q{number}", [b"1"]))
        await life.rest()
        shards = [life.engine.queues[SPREAD, event["queue"]].shard for event in world.told("w")]
        assert len(shards) == 100
        assert set(shards[:SHARDS]) == set(range(SHARDS))

    world.run(story)


def test_what_is_damaged_is_told_as_lost_and_all_else_is_told() -> None:
    world = World()
    lost: dict[str, Any] = {}
    shard = (HOME + 1) % SHARDS

    async def before(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        await life.register(tenant=SPREAD, kinds=["created"])
        await life.register("another", kinds=["created"])
        life.webhooks.stop()
        for number in range(20):
            await life.push(f"a{number}", b"1", tenant=SPREAD)

    async def sealed(life: Life) -> None:
        events = life.engine.shards[shard].events.log
        assert events is not None
        (segment,) = events.partition.log.segments
        world.store.damaged = {body_key(events.queue.prefix, segment.body_name)}
        lost.update(kind="lost", shard=shard, to=segment.end)
        lost["from"] = segment.base
        for number in range(20):
            await life.push(f"b{number}", b"1", tenant=SPREAD)

    async def after(life: Life) -> None:
        await life.rest()
        assert [each for each in world.told("w") if each["kind"] == "lost"] == [lost]
        told = {each["queue"] for each in world.told("w") if each["kind"] != "lost"}
        names = {
            name: queue.shard for (tenant, name), queue in life.engine.queues.items() if tenant == SPREAD
        }
        assert told == {name for name, number in names.items() if number != shard or name.startswith("b")}
        assert world.told("another") == []  # its tenant lives in another shard

    world.run(before)
    world.run(sealed, told=False)
    world.run(after)


def test_who_takes_nothing_is_told_of_no_more_than_may_wait_and_later_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.server.webhooks.batches.WAITING_MAX", 4)
    world = World()
    world.answer = lambda sent: "no" if "slow-" in sent.id else None

    async def before(life: Life) -> None:
        await life.register("slow", kinds=["pushed"])
        await life.register("quick", kinds=["pushed"])
        for number in range(10):
            await life.push("q", *[b"1"] * (number + 1))
            await life.rest(1)
        assert [each["count"] for each in world.told("quick")] == list(range(1, 11))
        slow, _ = await life.webhooks.all(DEFAULT)
        assert slow[1].waiting == 4

    async def after(life: Life) -> None:
        world.sent.clear()
        world.answer = lambda sent: None
        await life.rest(600)
        await life.push("q", b"1")
        await life.rest()
        # The queue was created, four were told, six were not, and then there is the last.
        first, end = life.end(HOME) - 7, life.end(HOME) - 1
        slow = world.told("slow")
        assert sorted(each["count"] for each in slow if each["kind"] == "pushed") == [1, 1, 2, 3, 4]
        (lost,) = (each for each in slow if each["kind"] == "lost")
        assert (lost["shard"], lost["from"], lost["to"]) == (HOME, first, end)
        assert slow[-1]["kind"] == "pushed"

    world.run(before)
    world.run(after)


def test_dead_letters_go_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.server.webhooks.forwarder.DEAD_MAX", 2)
    world = World()
    world.answer = lambda sent: "no"

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        for wanted in (1, 2, 0):
            await life.push("q", b"1")
            await life.rest(3_600)
            ((_, figures),) = await life.webhooks.all(DEFAULT)
            assert figures.dead == wanted

    world.run(story)


@pytest.mark.parametrize("lives", range(25))
def test_what_does_not_fit_into_one_commit_is_told_once_all_the_same(lives: int) -> None:
    world = World()
    world.limits = Limits(events_bytes_max=1 << 20, batch_max=1)

    async def first(life: Life) -> None:
        for id in ("a", "b", "c"):
            await life.register(id, kinds=["created"])
        world.store.lives = lives
        for number in range(5):
            await life.push(f"q{number}", b"1")
            await life.rest(0.015)

    async def second(life: Life) -> None:
        await life.rest()
        known = sorted(name for tenant, name in life.engine.queues if tenant == DEFAULT)
        for id in ("a", "b", "c"):
            letters = {sent.id: sent for sent in world.sent if sent.id.startswith(id)}
            told = [event["queue"] for sent in letters.values() for event in sent.events]
            assert sorted(told) == known

    world.run(first)
    world.run(second)


def test_a_commit_does_no_more_for_webhooks_than_one_may() -> None:
    part = Part("w", Progress(0), [Job(b"1")], is_changed=True, is_last=True)
    found = commits([part] * 2_500, batch_max=100_000)
    assert [len(each) for each in found] == [OPERATIONS_MAX - 1, OPERATIONS_MAX - 1, 502]
    assert commits([], batch_max=1) == [[]]


def test_leases_may_have_to_be_short() -> None:
    world = World()
    world.limits = Limits(events_bytes_max=1 << 20, lease_ms_max=60_000)

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest()
        assert [sent.kinds for sent in world.sent] == [["pushed"]]

    world.run(story)


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_nobody_wanted_is_not_told_as_lost_when_it_is_gone(is_killed: bool) -> None:
    world = World()
    world.limits = Limits(events_bytes_max=1 << 20, events_retention_ms=600_000)

    async def before(life: Life) -> None:
        await life.register(kinds=["dead"])
        await life.push("q", b"1")
        await life.rest(120 if is_killed else 1)
        if is_killed:
            world.store.lives = 0
            await life.push("q", b"2")

    async def meanwhile(life: Life) -> None:
        await life.rest(86_400)
        log = life.engine.shards[HOME].events.log
        assert log is not None
        assert log.partition.log.first == log.partition.log.end

    async def after(life: Life) -> None:
        await life.push("q", b"3")
        await life.rest()
        assert world.sent == []

    world.run(before)
    world.run(meanwhile, told=False)
    world.run(after)


def test_what_others_did_is_not_told_as_lost_when_it_is_gone() -> None:
    world = World()
    world.limits = Limits(events_bytes_max=1 << 20, events_retention_ms=600_000)

    async def before(life: Life) -> None:
        await life.register()
        await life.ask(Push("other", "q", [b"1"]))
        await life.rest(120)

    async def meanwhile(life: Life) -> None:
        await life.rest(86_400)

    async def after(life: Life) -> None:
        await life.rest()
        assert world.sent == []

    world.run(before)
    world.run(meanwhile, told=False)
    world.run(after)


def test_what_a_receiver_says_stays_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.answer = lambda sent: "status 500: no\n2026 ERROR all is lost \x1b[2J" + "!" * 10_000

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest(3_600)
        dead: Any = await life.ask(ListDead(system_of(HOME), queue_of("w")))
        said = [dead.deliveries[0].error, *(each.getMessage() for each in caplog.records)]
        assert len(said) == 11
        for each in said:
            assert r"status 500: no\n2026 ERROR all is lost \x1b[2J!" in each
            assert each.isprintable()
            assert len(each) < 1_000

    world.run(story)


def test_deliveries_of_a_suspended_tenant_wait_and_none_is_lost() -> None:
    world = World()
    world.answer = lambda sent: "no" if len(world.sent) == 1 else None

    async def story(life: Life) -> None:
        await life.ask(TenantPut("acme"))
        await life.register(tenant="acme", kinds=["pushed"])
        await life.push("q", b"1", b"2", tenant="acme")
        await life.rest(0.5)
        assert len(world.sent) == 1, "it failed, and is due again in a second"
        await life.ask(TenantPut("acme", suspended=True))
        await life.rest(3_600)
        assert len(world.sent) == 1
        await life.ask(TenantPut("acme", suspended=False))
        await life.rest()
        assert len(world.sent) == 2
        assert world.sent[1].events == world.sent[0].events

    world.run(story)


# Where it lives.


def test_what_a_webhook_has_lives_in_the_home_shard_of_its_tenant() -> None:
    world = World()
    other = next(name for name in map("t{}".format, count()) if home_of(name, SHARDS) != HOME)

    async def story(life: Life) -> None:
        await life.register(kinds=["pushed"])
        for tenant in (DEFAULT, other):
            for number in range(10):
                await life.push(f"q{number}", b"1", tenant=tenant)
        await life.rest()
        assert len(world.told("w")) == 10
        assert await life.queues(HOME) == [EVENTS, queue_of("w")]
        assert await life.position(HOME) == life.end(HOME) == 20
        for shard in set(range(SHARDS)) - {HOME}:
            assert await life.queues(shard) == ([EVENTS] if shard == home_of(other, SHARDS) else [])
            assert await life.position(shard) is None

    world.run(story)


@pytest.mark.parametrize("lives", range(30))
def test_whenever_the_process_is_killed_events_of_all_shards_of_a_tenant_are_told_once(lives: int) -> None:
    world = World()
    one, two = next(queues_in(0)), next(queues_in(1))
    before = list(islice(queues_in(0), 1, 3)) + list(islice(queues_in(2), 2))

    async def first(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        for queue in before:
            await life.push(queue, b"1", tenant=SPREAD)
        await life.register(tenant=SPREAD, kinds=["pushed"])
        world.store.lives = lives
        for number in range(4):
            for queue in (one, two):
                await life.push(queue, *[b"1"] * (number + 1), tenant=SPREAD)
                await life.rest(0.015)  # sometimes two are forwarded together

    async def second(life: Life) -> None:
        await life.rest()
        letters = {sent.id: sent for sent in world.sent}
        told = [(event["queue"], event["count"]) for sent in letters.values() for event in sent.events]
        # Two queues were created and pushed to before; one event tells that a queue was created.
        kept = {one: max(life.end(0) - 4 - 1, 0), two: max(life.end(1) - 1, 0)}
        assert sorted(told) == [
            (queue, number + 1) for queue in sorted(kept) for number in range(kept[queue])
        ]
        for shard, queue in ((0, one), (1, two)):
            assert await life.position(shard) == (life.end(shard) if kept[queue] else None)
        assert await life.queues(2) == [EVENTS]

    world.run(first)
    world.run(second)
    assert len({sent.letter.body for sent in world.sent}) == len({sent.id for sent in world.sent})


def test_a_spread_tenant_has_a_courier_in_each_shard_and_all_of_them_go_with_the_webhook() -> None:
    world = World()
    world.answer = lambda sent: ...  # type: ignore[assignment,return-value]

    async def first(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        await life.register(tenant=SPREAD, kinds=["pushed"])
        for shard in range(SHARDS):
            assert queue_of("w") not in await life.queues(shard)
        for shard in (0, 1, 2):
            await life.push(next(queues_in(shard)), b"1", tenant=SPREAD)
        await life.rest(1)
        assert len(world.sent) == 3
        ((_, figures),) = await life.webhooks.all(SPREAD)
        assert figures.waiting == 3

    async def second(life: Life) -> None:
        await life.rest(1)
        assert len(world.sent) == 6
        world.sent[3].answer(None)
        world.sent[4].answer("no")
        await life.rest(0.1)
        ((_, figures),) = await life.webhooks.all(SPREAD)
        assert (figures.delivered, figures.failed, figures.waiting) == (1, 1, 2)
        await life.webhooks.delete(SPREAD, "w")
        for shard in range(SHARDS):
            assert await life.queues(shard) == ([EVENTS] if shard < 3 else [])

    world.run(first)
    world.run(second)


def test_a_shard_whose_commits_fail_stays_where_it_is_and_the_others_go_on() -> None:
    world = World()
    one, two = next(queues_in(0)), next(queues_in(1))

    async def story(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        await life.register(tenant=SPREAD, kinds=["pushed"])
        for queue in (one, two):
            await life.push(queue, b"1", tenant=SPREAD)
        await life.rest()
        before = await life.position(0)
        world.refused.add(system_of(0))
        for number in range(3):
            await life.push(one, b"1", tenant=SPREAD)
            await life.rest(0.1)
            await life.push(two, b"1", tenant=SPREAD)
            await life.rest(0.1)  # less than until the other is tried again
            assert [each["queue"] for each in world.told("w")].count(two) == 2 + number
            await life.rest(5)
        assert [each["queue"] for each in world.told("w")].count(one) == 1
        assert before == await life.position(0) == life.end(0) - 3
        assert await life.position(1) == life.end(1)
        world.refused.clear()
        await life.rest(5)
        assert [each["queue"] for each in world.told("w")].count(one) == 4
        assert [each["queue"] for each in world.told("w")].count(two) == 4
        assert await life.position(0) == life.end(0)

    world.run(story)


def test_what_a_deleted_webhook_left_is_removed_at_the_next_start_and_events_are_not() -> None:
    world = World()
    one, two = next(queues_in(0)), next(queues_in(1))
    world.answer = lambda sent: ...  # type: ignore[assignment,return-value]

    async def first(life: Life) -> None:
        await life.ask(TenantPut(SPREAD, spread=True))
        await life.register(tenant=SPREAD, kinds=["pushed"])
        for queue in (one, two):
            await life.push(queue, b"1", tenant=SPREAD)
        await life.rest(1)
        world.store.lives = 1  # that it is deleted is kept, and nothing after it
        await life.webhooks.delete(SPREAD, "w")

    async def between(life: Life) -> None:
        assert [await life.queues(shard) for shard in (0, 1)] == [[EVENTS, queue_of("w")]] * 2

    async def second(life: Life) -> None:
        await life.rest(1)
        assert await life.webhooks.all(SPREAD) == []
        assert [await life.queues(shard) for shard in (0, 1)] == [[EVENTS]] * 2
        assert [life.end(shard) for shard in (0, 1)] == [2, 2]

    world.run(first)
    world.run(between, told=False)
    world.run(second)


def test_a_webhook_may_be_there_before_its_tenant_is_spread() -> None:
    world = World()
    queues = [next(queues_in(shard)) for shard in range(SHARDS)]

    async def first(life: Life) -> None:
        await life.register(tenant=SPREAD, kinds=["pushed"])
        await life.ask(TenantPut(SPREAD, spread=True))
        for queue in queues:
            await life.push(queue, b"1", tenant=SPREAD)
        await life.rest()

    async def second(life: Life) -> None:
        for queue in queues:
            await life.push(queue, b"1", tenant=SPREAD)
        await life.rest()
        assert sorted(each["queue"] for each in world.told("w")) == sorted(queues * 2)

    world.run(first)
    world.run(second)


def test_what_is_on_its_way_to_a_queue_when_the_server_stops_is_told_once() -> None:
    world = World()

    async def first(life: Life) -> None:
        await life.register(kinds=["pushed"])
        await life.push("q", b"1")
        await life.rest()
        await life.ask(Pop(DEFAULT, "q"))
        await life.rest(1)  # that was read, and nobody wanted it
        world.on_transact = life.webhooks.stop
        await life.push("q", b"1", b"2")
        await life.rest(1)

    async def second(life: Life) -> None:
        await life.rest()
        assert [each["count"] for each in world.told("w")] == [1, 2]

    world.run(first)
    world.on_transact = lambda: None
    world.run(second)


def test_what_was_dropped_before_a_webhook_came_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.limits = Limits(events_bytes_max=1 << 20, events_retention_ms=600_000)

    async def before(life: Life) -> None:
        await life.push("q", b"1")
        await life.rest(86_400)

    async def after(life: Life) -> None:
        await life.rest(86_400)
        await life.register(kinds=["pushed"])
        await life.push("q", b"1", b"2")
        await life.rest()
        assert [each["count"] for each in world.told("w")] == [2]

    world.run(before)
    world.run(after)
    assert not [each for each in caplog.records if each.name == "forebay.webhooks"]
