"""Connections that pause before and after every word, and a scheduler that says who goes on.

Whoever talks to the database over a ``Gated`` session stands at a gate, until the scheduler, which draws
lots by a seed, lets it go on. Whoever the database holds up meanwhile, because of another's transaction, is
under way, and the others go on. At a gate a connection may be cut: before a statement, after it, or so that
the statement is carried out later, when nobody waits for it any more.

A seed plays the same again, but for one thing: when two wait for the same row, PostgreSQL chooses.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from forebay.store.postgres.session import Session, Unreachable
from forebay.store.postgres.sql import queries

POLL_S = 0.002
"""How long a statement takes before we look whether it is held up."""
HANG_S = 10.0
"""How long all may be held up before that is a failure: PostgreSQL ends a deadlock after a second."""
REAL_RATE = 0.1
"""Runs in which the connections that are cut are really closed, and those that follow are really new."""
LEAPS_MS = (50, 1_000, 60_000)
"""How far time jumps now and then."""

GO = "go"
CUT = "cut"
"""The connection is lost, and who waits for an answer hears of it."""
BREAK = "break"
"""The answer arrives, and then the connection is lost."""
LATE = "late"
"""The connection is lost, but what was said over it arrives later."""
STALL = "stall"
"""It is carried out, but that takes longer than anybody waits for an answer. The connection stays."""
BEFORE, AFTER, CONNECTING = (CUT, LATE), (CUT, BREAK, STALL), (CUT,)
"""What may happen at which gate."""
TENDER = ("connect", "commit", "begin", "end of transaction")
"""Where cuts hurt most, and are made most."""

LOOK = "select pid, cardinality(pg_blocking_pids(pid)) > 0 from pg_stat_activity where pid = any ($1)"
NAMES = {text: name for name, text in queries().items()}


class Actor:
    """Somebody who stands at a gate, is under way, or is done."""

    def __init__(self, scheduler: "Scheduler", name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.task: asyncio.Task[None] | None = None
        self.waits: asyncio.Future[str] | None = None
        self.what = ""
        self.fates: tuple[str, ...] = ()
        """The gate it stands at, and what may happen there."""
        self.wire: Wire | None = None
        self.pid: int | None = None
        """Over which connection it has asked for something, and the backend that carries it out."""
        self.held = False
        """Whether another's transaction holds that up."""

    @property
    def under_way(self) -> bool:
        return self.waits is None and self.task is not None and not self.task.done()

    async def gate(self, what: str, fates: tuple[str, ...] = ()) -> str:
        """Wait to be let go on; what happens then."""
        if self.scheduler.is_over:
            raise asyncio.CancelledError
        self.what, self.fates = what, fates
        self.waits = asyncio.get_running_loop().create_future()
        self.scheduler.wake()
        return await self.waits

    def go(self, fate: str) -> None:
        waits, self.waits = self.waits, None
        assert waits is not None
        waits.set_result(fate)

    async def ask(self, real: Any, question: Callable[[], Awaitable[Any]]) -> Any:
        """Have the database carry something out."""
        self.pid = real.get_server_pid()
        try:
            return await question()
        finally:
            self.pid, self.held, self.scheduler.touched = None, False, True


class Wire:
    """A connection as asyncpg has it, every word over which passes two gates."""

    def __init__(self, session: "Gated", real: Any) -> None:
        self._session = session
        self._real = real
        self._is_cut = False
        self._transaction: Any = None

    def is_closed(self) -> bool:
        return self._is_cut or self._real.is_closed()

    def is_in_transaction(self) -> bool:
        return not self.is_closed() and self._real.is_in_transaction()

    def terminate(self, *, for_real: bool = False) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._session.actor.scheduler.cut(self._real, self._transaction, for_real=for_real)

    async def close(self, timeout: float) -> None:
        await self._real.close(timeout=timeout)

    def transaction(self, isolation: str | None) -> "Bracket":
        self._transaction = self._real.transaction(isolation=isolation)
        return Bracket(self, self._transaction)

    def __getattr__(self, name: str) -> Any:
        assert name in ("fetch", "fetchrow", "fetchval", "execute", "copy_records_to_table"), name
        return partial(self._call, getattr(self._real, name))

    async def _call(self, method: Callable[..., Awaitable[Any]], what: str, *given: Any, **named: Any) -> Any:
        return await self.say(NAMES.get(what, what), lambda: method(what, *given, **named))

    async def say(self, what: str, question: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_closed():
            raise ConnectionResetError("the connection was lost before")
        actor = self._session.actor
        fate = await actor.gate(what, BEFORE)
        if fate == LATE:
            self._is_cut = True
            actor.scheduler.haunt(self._real, self._transaction, what, question)
        if fate != GO:
            self.terminate()
            raise ConnectionResetError(f"cut before {what}")
        answer, error, actor.wire = None, None, self
        try:
            answer = await actor.ask(self._real, question)
        except Exception as why:
            error = why
        actor.wire = None
        fate = await actor.gate(f"{what}: {'answered' if error is None else 'refused'}", AFTER)
        if fate in (CUT, BREAK):
            self.terminate()
        if fate == CUT:
            raise ConnectionResetError(f"cut after {what}")
        if fate == STALL:
            raise TimeoutError
        if error is not None:
            raise error
        return answer


class Bracket:
    """A transaction over a wire."""

    def __init__(self, wire: Wire, real: Any) -> None:
        self._wire = wire
        self._real = real

    async def start(self) -> None:
        await self._wire.say("begin", self._real.start)

    async def commit(self) -> None:
        await self._wire.say("end of transaction", self._real.commit)

    async def rollback(self) -> None:
        await self._wire.say("rollback", self._real.rollback)


class Gated(Session):
    """A session of an actor, whose connections are wires."""

    actor: Actor

    async def open(self) -> Any:
        if not self.is_open:
            if await self.actor.gate("connect", CONNECTING) == CUT:
                raise Unreachable("cut off")
            spares = self.actor.scheduler.spares
            self._connection = Wire(self, spares.pop()) if spares else None
        connection = await super().open()
        if not isinstance(connection, Wire):
            self._connection = connection = Wire(self, connection)
        return connection

    @property
    def is_in_transaction(self) -> bool:
        return self._connection is not None and self._connection.is_in_transaction()


class Scheduler:
    """Who goes on next, when connections are cut, and what time it is."""

    def __init__(self, watch: Any, spares: list[Any], rng: random.Random, now: int) -> None:
        self._watch = watch
        """A connection over which to look at what the others do."""
        self.spares = spares
        """Connections to be had at once: a new one, and its first statements, take PostgreSQL 20 ms."""
        self._rng = rng
        self.now = now
        self.is_over = False
        """Whether nobody passes a gate any more."""
        self.touched = False
        """Whether the database has carried something out since we last looked."""
        self.told: Counter[str] = Counter()
        self.history: list[str] = []
        self._actors: list[Actor] = []
        self._orphans: set[int] = set()
        """Backends whose connection was cut, and that may not have noticed yet."""
        self._held_orphans: set[int] = set()
        """Those of them that are held up themselves."""
        self._moved: asyncio.Future[None] | None = None
        self._cuts = rng.choice((0, 1, 3))
        self._cut_rate = rng.choice((0.03, 0.2))
        self._for_real = rng.random() < REAL_RATE
        self._keeps_on = rng.choice((0.0, 0.5, 0.8, 0.95))
        """How likely it is that who went last goes next, while the others pause."""
        self._last: Actor | None = None

    def note(self, who: str, what: str) -> None:
        self.history.append(f"{who}: {what}")

    def begin(self, actor: Actor, life: Coroutine[Any, Any, None]) -> None:
        actor.task = asyncio.get_running_loop().create_task(life)
        actor.task.add_done_callback(lambda _: self.wake())
        self._actors.append(actor)

    async def run(self) -> None:
        """Until all are done, and the database has noticed."""
        try:
            while await self._step():
                pass
        finally:
            self.is_over = True
            tasks = [actor.task for actor in self._actors if actor.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, real: Any, transaction: Any, *, for_real: bool = False) -> None:
        """Nothing goes over a connection any more; the database finds out by itself."""
        if for_real or self._for_real or self.is_over:
            self.touched = True
            self._orphans.add(real.get_server_pid())
            real.terminate()
        else:
            self.begin(Actor(self, "database"), self._notice(real, transaction))

    async def _notice(self, real: Any, transaction: Any) -> None:
        """Do what the database does when it notices, and keep the connection for who comes next."""
        if transaction is not None:
            with suppress(Exception):  # there is none any more
                await transaction.rollback()
        self.touched = True
        self.spares.append(real)

    def haunt(self, real: Any, transaction: Any, what: str, question: Callable[[], Awaitable[Any]]) -> None:
        """Have something carried out later that nobody waits for any more."""
        self.told["statements that came late"] += 1
        ghost = Actor(self, f"ghost {len(self._actors)}")

        async def arrive() -> None:
            await ghost.gate(f"late {what}")
            with suppress(Exception):  # nobody hears of it
                await ghost.ask(real, question)
            self.cut(real, transaction)

        self.begin(ghost, arrive())

    async def _step(self) -> bool:
        """Let somebody go on, to the next gate or until held up; whether there was anybody left."""
        await self._quiet()
        ready = [actor for actor in self._actors if actor.waits is not None]
        if not ready:
            return await self._wait_for_held()
        self._pass_time()
        held = [actor for actor in self._actors if actor.held and actor.wire is not None]
        if held and self._cuts_now(self._cut_rate):
            self._cut_held(self._rng.choice(held))
            return True
        if self._last not in ready or self._rng.random() >= self._keeps_on:
            self._last = self._rng.choice(ready)
        assert self._last is not None
        fate = GO
        rate = 4 * self._cut_rate if self._last.what.startswith(TENDER) else self._cut_rate
        if self._last.fates and self._cuts_now(rate):
            fate = self._rng.choice(self._last.fates)
            self._tell_cut(self._last, f"{fate} at the gate")
        self.note(self._last.name, self._last.what)
        self._last.go(fate)
        return True

    def _cuts_now(self, rate: float) -> bool:
        return self._cuts > 0 and self._rng.random() < rate

    def _tell_cut(self, actor: Actor, how: str) -> None:
        self._cuts -= 1
        self.told["cuts"] += 1
        self.note(actor.name, f"{how}, {actor.what}")

    def _cut_held(self, actor: Actor) -> None:
        self.told["cuts while held up"] += 1
        self._tell_cut(actor, "cut while held up")
        assert actor.wire is not None
        actor.wire.terminate(for_real=True)

    def _pass_time(self) -> None:
        self.now += self._rng.choice((0, 0, 1, 10))
        if self._rng.random() < 0.03:
            self.now += self._rng.choice(LEAPS_MS)

    async def _quiet(self) -> None:
        """Until everybody stands at a gate, is done, or is held up in the database by another."""
        while not self._is_quiet():
            if any(not each.held for each in self._moving()):
                await self._pause()
                if self._is_quiet():
                    break
            await self._look()
        for actor in self._actors:
            if actor.task is not None and actor.task.done():
                actor.task.result()

    def _moving(self) -> list[Actor]:
        return [actor for actor in self._actors if actor.under_way]

    def _is_quiet(self) -> bool:
        moving = self._moving()
        if not moving and not self._orphans:
            return True
        still = self._orphans == self._held_orphans and all(each.held for each in moving)
        return still and not self.touched

    async def _look(self) -> None:
        """Who is held up, and which backends have noticed that their connection is gone."""
        self.touched = False
        moving = self._moving()
        pids = [each.pid for each in moving if each.pid is not None]
        rows = await self._watch.fetch(LOOK, [*pids, *self._orphans])
        waiting = {pid for pid, is_held in rows if is_held}
        self._orphans &= {pid for pid, _ in rows}
        self._held_orphans = self._orphans & waiting
        for each in moving:
            is_held = each.under_way and each.pid in waiting
            if is_held and not each.held:
                self.told["held up"] += 1
                self.note(each.name, f"held up, {each.what}")
            each.held = is_held

    async def _wait_for_held(self) -> bool:
        """Nobody can go on: all are done, or wait for each other, which PostgreSQL ends."""
        deadline = time.monotonic() + HANG_S
        while self._moving() or self._orphans:
            assert time.monotonic() < deadline, "all wait for each other"
            await self._pause()
            await self._look()
            await self._quiet()
            if any(actor.waits is not None for actor in self._actors):
                return True
        return False

    async def _pause(self) -> None:
        """Until somebody comes to a gate, or it has taken long."""
        loop = asyncio.get_running_loop()
        self._moved = loop.create_future()
        timer = loop.call_later(POLL_S, self.wake)
        await self._moved
        timer.cancel()

    def wake(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)
