"""A worker as a program: finds its app by name, and stops on signals."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from forebay.client.access import Access
from forebay.client.later import hurry_exit
from forebay.client.tasks.app import App
from forebay.client.worker.ending import DRAIN_S, END_S, LOGS_S, STOP_S
from forebay.client.worker.unknown import UNKNOWN_FOR_S
from forebay.client.worker.worker import CONCURRENCY, LEASE_MS, Worker
from forebay.core.errors import Invalid


def find_app(target: str) -> App:
    """Return the app named MODULE:NAME; NAME defaults to ``app``."""
    module, _, name = target.partition(":")
    if not module:
        raise Invalid("app", f"MODULE:NAME; {target!r} has no module")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name or "app")
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        raise Invalid("app", f"MODULE:NAME; there is no module {module} here") from None
    except AttributeError:
        raise Invalid("app", f"MODULE:NAME; {module} has no {name or 'app'}") from None
    if not isinstance(found, App):
        raise Invalid("app", f"MODULE:NAME of a forebay.App; {target} is a {type(found).__name__}")
    return found


def run_worker(
    target: str | App,
    *,
    concurrency: int = CONCURRENCY,
    queues: Sequence[str] | None = None,
    prefetch: int | None = None,
    server: str | None = None,
    access: Access | None = None,
    lease_ms: int = LEASE_MS,
    drain_s: float = DRAIN_S,
    unknown_for: float = UNKNOWN_FOR_S,
    name: str | None = None,
) -> None:
    """Work until SIGTERM or Ctrl-C; a second signal interrupts the running jobs, a third abandons them."""
    import uvloop

    app = find_app(target) if isinstance(target, str) else target
    if server is not None:
        app.server = server
    if access is not None:
        app.access = access
    worker = Worker(
        app,
        queues=queues,
        concurrency=concurrency,
        prefetch=prefetch,
        lease_ms=lease_ms,
        drain_s=drain_s,
        unknown_for_s=unknown_for,
        name=name,
    )

    # A process that was told to end has ended by then, whatever its hooks and its jobs do.
    latest_s = min(drain_s + STOP_S - LOGS_S, threading.TIMEOUT_MAX)
    latest = threading.Timer(latest_s, _exit, (1,))
    latest.daemon = True

    async def work() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(worker.run())
        told = 0

        def stop() -> None:
            nonlocal told
            told += 1
            if told == 1:
                latest.start()
                hurry_exit(time.monotonic() + drain_s + STOP_S)
            if told < 3:
                loop.call_soon(worker.stop)
            else:
                running.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            await running
        except asyncio.CancelledError:
            if told < 3:
                raise

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    code = 1
    try:
        runner.run(work())
        code = 0
    finally:
        # Everything is settled. ``close`` waits for threads and coroutines that can't be interrupted: after
        # END_S the process exits without them.
        ending = threading.Timer(END_S, _exit, (code,))
        ending.daemon = True
        ending.start()
        runner.close()
        ending.cancel()
        latest.cancel()


def _exit(code: int) -> None:
    """Exit the process, whatever else runs in it."""
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(LOGS_S)
    os._exit(code)


def _flush() -> None:
    flushes: list[Callable[[], object]] = [
        logging.shutdown,
        lambda: sys.stdout.flush(),
        lambda: sys.stderr.flush(),
    ]
    for flush in flushes:
        with suppress(Exception):  # a stream may be closed already
            flush()
