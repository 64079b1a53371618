"""A worker beside a test, in its event loop or in a process of its own; and a way to it that can be cut."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forebay.client.address import where
from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long a test waits for what must come."""
SOON_S = 0.01


APPS: "weakref.WeakSet[App]" = weakref.WeakSet()
"""Every app there is: what they have open in an event loop is closed with it."""
_made = App.__init__


def _noted(self: App, *args: Any, **options: Any) -> None:
    APPS.add(self)
    _made(self, *args, **options)


App.__init__ = _noted  # type: ignore[method-assign]


def play(played: Coroutine[Any, Any, T], within_s: float = PATIENCE_S) -> T:
    """What a coroutine returns, in an event loop of its own."""
    return asyncio.run(bounded(played, within_s))


async def bounded(played: Coroutine[Any, Any, T], within_s: float) -> T:
    """What a coroutine returns in time; all apps are closed behind it."""
    try:
        async with asyncio.timeout(within_s):
            return await played
    finally:
        for app in list(APPS):
            await app.aclose()


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker that works inside the block, and has stopped behind it."""
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    try:
        yield worker
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(running, 1)


async def until(is_so: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    """Wait for what nothing tells of."""
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(SOON_S)


async def until_state(app: App, id: int, *states: str) -> str:
    """Wait until a job stands so."""
    async with asyncio.timeout(PATIENCE_S):
        while (state := await app.aclient.state(id)) not in states:
            await asyncio.sleep(SOON_S)
    return state


class Way:
    """A proxy: what goes through it can be held up, or cut. It is of the kind of its server: TCP or Unix."""

    def __init__(self, server: str) -> None:
        self.lead_to(server)
        self._open = asyncio.Event()
        self._back = asyncio.Event()
        self._open.set()
        self._back.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refuses = False
        self.refused = 0
        """Connections that were."""
        self.holds: Callable[[bytes], bool] | None = None
        """What of the requests makes the way close behind it: the request goes through, nothing else does."""

    async def __aenter__(self) -> "Way":
        if isinstance(self._server, str):
            self.address = f"{self._server}-{id(self):x}"
            self._listener = await asyncio.start_unix_server(self._accept, self.address)
        else:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            host, port = self._listener.sockets[0].getsockname()
            self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self.refuses:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            theirs, ours = await self._connect()
        except OSError:  # there is no server right now
            writer.transport.abort()
            return
        self._writers.add(ours)
        for task in (
            asyncio.create_task(self._carry(reader, ours, self._open, asks=True)),
            asyncio.create_task(self._carry(theirs, writer, self._back, asks=False)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, str):
            return await asyncio.open_unix_connection(self._server)
        return await asyncio.open_connection(*self._server)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_open: asyncio.Event,
        *,
        asks: bool,
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                await is_open.wait()
                if asks and self.holds is not None and self.holds(data):
                    self.holds = None
                    self.hold_answers()
                writer.write(data)
                await writer.drain()
            await is_open.wait()
            writer.write_eof()
        except OSError:  # one side is gone: the other one is told so
            writer.transport.abort()

    def lead_to(self, server: str) -> None:
        """Connections from now on are to this server."""
        self._server = where(server)

    def hold(self) -> None:
        """Let nothing through, and close nothing."""
        self._open.clear()
        self._back.clear()

    def hold_answers(self) -> None:
        """Let requests through, and no answers."""
        self._back.clear()

    def let_go(self) -> None:
        self._open.set()
        self._back.set()

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


ROOT = Path(__file__).parent.parent.parent.parent


class Process:
    """A worker in a process of its own; its module lies in ``home``."""

    def __init__(self, home: Path, source: str, server: str, **options: Any) -> None:
        self.home = home
        (home / "theirs.py").write_text(source)
        told = ", ".join(f"{name}={value!r}" for name, value in options.items())
        program = f"from forebay.client.worker.main import run_worker; run_worker('theirs:app', {told})"
        self._log = home / "worker.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=home,
                env={**os.environ, "FOREBAY_SERVER": server, "PYTHONPATH": str(ROOT)},
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_for(self, *names: str) -> None:
        """Wait until it has made these files: tasks make them to tell that they run."""
        until = time.monotonic() + PATIENCE_S
        while not all((self.home / name).exists() for name in names):
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < until, f"no {names}; it said:\n{self.log()}"
            time.sleep(SOON_S)

    def wait_to_say(self, said: str) -> None:
        """Wait until it has logged this."""
        until = time.monotonic() + PATIENCE_S
        while said not in self.log():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < until, f"not {said!r}; it said:\n{self.log()}"
            time.sleep(SOON_S)

    def tell(self, number: signal.Signals, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        return self._process.wait(within_s)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def until_so(is_so: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(SOON_S)
