"""The server of a test: a controlled clock, workers to wait for, faults on demand."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from forebay.client.access import Access
from forebay.client.tasks.app import App
from forebay.core.bounds import Limits
from forebay.server.http.connection import HttpLimits
from forebay.testing.assertions import Checks
from forebay.testing.clock import BEGIN, Instant, span
from forebay.testing.store import FaultyStore
from forebay.testing.worker import LOOK_S, PATIENCE_S, Working

STEPS_MAX = 100_000
"""Most steps of the clock in one call, without looking at workers."""


class Server(Checks):
    """A real server in a thread of this process, whose time stands still until it jumps.

    The given apps push to it, and their workers work for it, as long as it runs.
    """

    def __init__(
        self,
        *apps: App,
        at: int | Instant = BEGIN,
        going: bool = False,
        limits: Limits | None = None,
        http_limits: HttpLimits | None = None,
        asks: bool = False,
    ) -> None:
        """``at`` is the start of its clock, in ms or as a datetime; with ``going`` the clock runs.

        With ``asks`` it asks everybody for a token: ``client`` and the apps are its admin.
        """
        self._store = FaultyStore()
        super().__init__(self._store, at=at, going=going, limits=limits, http_limits=http_limits, asks=asks)
        self._apps = list(apps)
        self._were_at: list[tuple[App, str | None, Access]] = []
        self._workings: list[Working] = []

    def __enter__(self) -> "Server":
        self.start()
        for app in self._apps:
            self.attach(app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for app, was_at, access in reversed(self._were_at):
            app.close()
            app.server, app.access = was_at, access
        self.stop()

    def attach(self, app: App, *, token: str | None = None) -> None:
        """Make an app push to this server, and its workers work for it, until the server stops.

        It is the admin, unless it has another token.
        """
        if app.server != self.tcp or token is not None:
            self._were_at.append((app, app.server, app.access))
            app.close()
            app.server = self.tcp
            app.access = self.access if token is None else replace(self.access, token=token)

    def _settle(self) -> None:
        self._flush_later()
        super()._settle()

    def _flush_later(self) -> None:
        """Push what ``push_later`` buffered: as far as a test is concerned, it was pushed."""
        for app, _, _ in self._were_at:
            app._flush()

    # Time.

    @property
    def now(self) -> int:
        """Its time, in milliseconds since 1970."""
        return self._clock.now()

    def go_on(self) -> None:
        """Let its clock run, as fast as real time."""
        self._call(self._clock.go_on)
        self._call(self._node.catch_up)

    def stand_still(self) -> None:
        """Stop its clock until it jumps."""
        self._call(self._clock.stand_still)

    def jump(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
        wait: bool = True,
    ) -> None:
        """Let time pass: ``jump(hours=1)``, ``jump(ms=500)``; everything due in between happens, in order.

        Before each time at which something is due, the workers of ``working`` come to rest: jobs take no
        time. With ``wait=False`` time passes while they run, and their leases may expire.
        """
        length = span(days=days, hours=hours, minutes=minutes, seconds=seconds, ms=ms)
        self._flush_later()
        end = self._clock.now() + length
        while True:
            if wait:
                self._let_rest()
            steps = 1 if wait and self._workings else STEPS_MAX
            if self._run(self._pass(end, steps)):
                break
        if wait:
            self._let_rest()
        else:
            self._have_leases_looked_at()

    async def ajump(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
        wait: bool = True,
    ) -> None:
        """Like ``jump``, for asyncio: the event loop goes on meanwhile."""
        units = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "ms": ms}
        await asyncio.to_thread(partial(self.jump, wait=wait, **units))

    async def _pass(self, end: int, steps: int) -> bool:
        """Step the clock from one due time to the next; return whether the end is reached."""
        node, clock = self._node, self._clock
        for _ in range(steps):
            await node.settled()
            clock.move_to(min(node.due_at(), end))
            node.catch_up()
            await node.settled()
            if clock.now() >= end and node.due_at() > end:
                return True
        return False

    # Workers.

    def work(self, app: App, **options: Any) -> int:
        """Run a worker until nothing is due; return how many jobs it did. Options are the worker's."""
        with self.working(app, **options) as working:
            self._let_rest()
        return working.done

    @contextmanager
    def working(self, app: App, **options: Any) -> Iterator[Working]:
        """Run a worker, in a thread with an event loop of its own, until the end of the block."""
        self.attach(app)
        working = Working(app, options)
        self._workings.append(working)
        try:
            yield working
        finally:
            self._workings.remove(working)
            working.stop()

    def rest(self) -> None:
        """Wait until the workers of ``working`` have nothing more to do."""
        self._let_rest()

    def _let_rest(self) -> None:
        looks = int(PATIENCE_S / LOOK_S)
        pause = threading.Event()
        for working in list(self._workings):
            for _ in range(looks):
                if working.is_at_rest(self._all_wait):
                    break
                pause.wait(LOOK_S)
            else:
                runs = ", ".join(working.running()) or "nothing, but it can't pop"
                raise AssertionError(
                    f"a worker does not come to rest; it runs {runs} (jump(wait=False) does not wait for it)"
                )

    def _all_wait(self) -> bool:
        """Return whether every worker long-polls each of its queues."""
        wanted: dict[tuple[str, str], int] = {}
        for working in self._workings:
            for place in working.places:
                wanted[place] = wanted.get(place, 0) + 1
        return self._call(
            lambda: all(self._node.pops_waiting(*place) >= count for place, count in wanted.items())
        )

    def _have_leases_looked_at(self) -> None:
        for working in self._workings:
            working.look_at_leases()

    # Faults.

    def lose_leases(self, queue: str | None = None) -> int:
        """Expire leases now, of one queue or of all, and return how many. Messages wait for their backoff."""
        ended = self._call(lambda: self._node.end_leases(queue))
        self._settle()
        self._have_leases_looked_at()
        return ended

    def redeliver(self, queue: str) -> int:
        """Make leased messages deliverable at once, as if lease and backoff had expired; return how many."""
        leased = {
            group.group: [each.id for each in self._mine.browse(queue, state="active", group=group.group)]
            for group in self._mine.groups(queue)
        }
        self.lose_leases(queue)
        for group, ids in leased.items():
            delayed = [id for id in ids if self._mine.state(id, group=group) == "delayed"]
            if delayed:
                self._mine.promote(delayed, group=group)
        return sum(map(len, leased.values()))

    def fail_commits(self, count: int = 1) -> None:
        """Make the next commits fail: their commands get ``busy``, and nothing of them is stored."""
        self._call(lambda: setattr(self._store, "fails", count))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Make every commit fail: pushes are ``busy``."""
        self._store.is_failing = True
        try:
            yield
        finally:
            self._store.is_failing = False
            self._call(self._node.recover)

    @contextmanager
    def slow(self, ms: int) -> Iterator[None]:
        """Make every commit take longer, in real time."""
        before, self._store.delay_s = self._store.delay_s, ms / 1000
        try:
            yield
        finally:
            self._store.delay_s = before

    def cut(self) -> None:
        """Cut all connections; clients may reconnect at once."""
        self._run(self._cut())

    def restart(self) -> None:
        """Stop as by ``kill -9``, and start again from the store, at the same addresses."""
        self._run(self._restart())
