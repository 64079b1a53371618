"""What webhooks promise, in a time of their own: retries, crashes at every commit, endpoints that hang."""

import asyncio
import json
import selectors
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from penstock.broker.node import Node
from penstock.core.commands import Command, ListDead, Pop, Popped, Push, Reply
from penstock.core.errors import Busy, Invalid, PenstockError
from penstock.core.limits import Limits
from penstock.core.model import DEFAULT
from penstock.core.records import Commit
from penstock.server.couriers import AT_ONCE, DEADLINE_S, TENANT, Webhook, queue_of
from penstock.server.http.endpoints import Questions
from penstock.server.hub import Hub
from penstock.server.posting import Letter
from penstock.server.webhooks import TOGETHER_MAX, WEBHOOKS_MAX, Webhooks
from penstock.store.memory import MemoryStore

BEGIN = 1_700_000_000_000
SHARDS = 4


class Killed(KeyboardInterrupt):
    """The process ends in the middle of everything."""


class Mortal(MemoryStore):
    """A store whose process is killed before one of its commits."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = -1
        """Commits until then; never if it is below 0."""

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        super().commit(group, sync=sync)


class Leaping(selectors.DefaultSelector):
    """Waits for nothing but threads: time leaps to the next timer instead."""

    loop: "LeapingLoop"

    def select(self, timeout: float | None = None) -> Any:
        if any(each.name == "penstock-webhook" for each in threading.enumerate()):
            return super().select(0.001 if timeout is None else min(timeout, 0.001))
        ready = super().select(0)
        if not ready and timeout != 0:
            assert timeout is not None, "nothing would ever happen any more"
            self.loop.at += timeout
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self, at: float) -> None:
        selector = Leaping()
        selector.loop = self
        self.at = at
        super().__init__(selector)

    def time(self) -> float:
        return self.at


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
        return self.letter.headers["X-Penstock-Delivery"]

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in json.loads(self.letter.body)["events"]]


class World:
    """A node, its webhooks, and everything that is posted. A second run is a restart."""

    def __init__(self) -> None:
        self.store = Mortal()
        self.at = 0.0
        self.sent: list[Sent] = []
        self.answer: Callable[[Sent], str | None] = lambda sent: None
        """What becomes of what is posted: a problem, or None. It may also never be answered: ``...``."""

    def _send(self, loop: AbstractEventLoop, letter: Letter) -> Sent:
        sent = Sent(loop, letter)
        self.sent.append(sent)
        answer: Any = self.answer(sent)
        if answer is not ...:
            loop.call_soon(sent.answer, answer)
        return sent

    def run(self, story: Callable[["Life"], Awaitable[None]]) -> None:
        """Start, live through a story, and stop as one should; or be killed."""
        loop = LeapingLoop(self.at)
        try:
            loop.run_until_complete(self._live(loop, story))
        except Killed:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            self.store.lives = 0  # nothing of what they do at the end is kept
            with pytest.raises(Killed):
                loop.run_until_complete(_until_killed(tasks))
        finally:
            self.at = loop.at
            self.store.lives = -1
            loop.close()

    async def _live(self, loop: LeapingLoop, story: Callable[["Life"], Awaitable[None]]) -> None:
        def clock() -> int:
            return BEGIN + round(loop.at * 1000)

        limits = Limits(events_bytes_max=1 << 20)
        node = Node(self.store, loop, clock, limits, shards=SHARDS)
        hub, questions = Hub(node, loop), Questions(node)
        webhooks = Webhooks(hub, questions, loop, clock, private=True, send=self._send)
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

    def __init__(self, world: World, questions: Questions, webhooks: Webhooks) -> None:
        self.world, self._questions, self.webhooks = world, questions, webhooks

    async def ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        assert not isinstance(reply, PenstockError), reply
        return reply

    async def push(self, queue: str, *payloads: bytes) -> None:
        await self.ask(Push(DEFAULT, queue, list(payloads)))

    async def register(self, id: str = "w", **fields: Any) -> None:
        await asyncio.sleep(1)  # it has loaded by then
        webhook = Webhook(id=id, tenant=DEFAULT, url="http://127.0.0.1:9/", secret="s", **fields)
        await self.webhooks.register(webhook)

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
        dead: Any = await life.ask(ListDead(TENANT, queue_of("w")))
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
        assert first.letter.headers["X-Penstock-Timestamp"] < second.letter.headers["X-Penstock-Timestamp"]
        assert first.letter.headers["X-Penstock-Signature"] != second.letter.headers["X-Penstock-Signature"]

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
        popped = await life.ask(Pop(DEFAULT, "q", count=100))
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
        with pytest.raises(PenstockError, match="no such webhook"):
            await life.webhooks.delete("other", "w")

    world.run(story)


def test_a_host_without_a_public_address_can_not_be_registered() -> None:
    async def story(life: Life) -> None:
        life.webhooks._office.private = False
        with pytest.raises(Invalid, match="not a public address"):
            await life.register()

    World().run(story)
