"""``forebay bench``: how fast is this machine? With a server of its own, which is gone afterwards."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import asdict

from forebay.cli.commands import Command, prints_json
from forebay.cli.errors import DONE, SERVER, CliError
from forebay.cli.output import print_json, print_table, progress

if TYPE_CHECKING:
    from forebay.client.aio.client import Client

START_S = 30.0
STOP_S = 15.0
"""Timeouts of the server's start and stop."""
AT_ONCE = 100
"""Concurrent pushes of one message."""
BATCHES_AT_ONCE = 2
PAYLOAD = {"to": "ada@example.com", "subject": "hello", "n": 12345}


class Figures(msgspec.Struct):
    """Measurements of one way to use the server."""

    what: str
    messages: int
    seconds: float
    messages_per_s: float
    p50_ms: float
    p99_ms: float


@click.command(cls=Command, example="forebay bench --seconds 5")
@click.option(
    "--seconds", type=click.FloatRange(min=0.05), default=2.0, help="How long each figure takes (default 2)."
)
@prints_json
def bench(seconds: float, as_json: bool) -> int:
    """Measure this machine: how fast are pushes, pops and acks?

    It starts a server of its own on a temporary directory, and stops it.
    """
    with server() as address:
        found = asyncio.run(_measure(address, seconds))
    if as_json:
        for each in found:
            print_json(each)
        return DONE
    head = ["WHAT", "MESSAGES", "MESSAGES/S", "P50 MS", "P99 MS"]
    rows = [
        [
            each.what,
            f"{each.messages:,}",
            f"{each.messages_per_s:,.0f}",
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.2f}",
        ]
        for each in found
    ]
    print_table(head, rows)
    print("\nEvery push is on disk before its answer. Latencies are of one request; client and server share")
    print(f"this machine with its {os.cpu_count()} cores.")
    return DONE


@contextmanager
def server() -> Iterator[str]:
    """Start a server; yields its address, and stops it at the end whatever happens."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as home, _Signals() as signals:
        log = Path(home) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "forebay", "serve", "--tcp", "127.0.0.1:0", "--http", "off"],
                cwd=home,
                env=_plain_environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us: we stop it in order
            )
        try:
            signals.let_through()
            yield _ready(process, log)
        finally:
            signals.hold()
            _stop(process)


class _Signals:
    """Treats termination signals like Ctrl-C, and defers them while they would leave a server behind."""

    def __init__(self) -> None:
        self._is_held = True
        self._came = False

    def __enter__(self) -> "_Signals":
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def _handle(self, *_: object) -> None:
        self._came = True
        if not self._is_held:
            raise KeyboardInterrupt

    def let_through(self) -> None:
        self._is_held = False
        if self._came:
            raise KeyboardInterrupt

    def hold(self) -> None:
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else b""
    if not line:
        raise CliError(
            "the server did not start:", *log.read_text(errors="replace").splitlines(), code=SERVER
        )
    address: str = json.loads(line)["tcp"]
    return address


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


# Measurements.


Step = Callable[[], Awaitable[int]]
"""One request, or a pop and its ack: returns the number of messages, 0 if none is left."""


async def _measure(address: str, seconds: float) -> list[Figures]:
    from forebay.client.access import NO_ACCESS
    from forebay.client.aio.client import Client

    nobody = asdict(NO_ACCESS)  # the environment is for other servers than this
    async with Client(address, **nobody) as client:
        steps: list[tuple[str, int, Step]] = [
            (f"push 1, {AT_ONCE} at once", AT_ONCE, _pushing(client)),
            ("push 100 a batch", BATCHES_AT_ONCE, _pushing_many(client, 100)),
            ("push 10,000 a batch", BATCHES_AT_ONCE, _pushing_many(client, 10_000)),
            (f"pop and ack 1, {AT_ONCE} at once", AT_ONCE, _popping(client, "by-1", 1)),
            ("pop and ack 100", BATCHES_AT_ONCE, _popping(client, "by-100", 100)),
            ("pop and ack 10,000", BATCHES_AT_ONCE, _popping(client, "by-10000", 10_000)),
        ]
        found = []
        with progress("measuring", len(steps)) as advance:
            for what, at_once, step in steps:
                found.append(await _figures(what, at_once, step, seconds))
                advance(1)
        return found


def _pushing(client: "Client") -> Step:
    async def step() -> int:
        await client.push("by-1", PAYLOAD)
        return 1

    return step


def _pushing_many(client: "Client", size: int) -> Step:
    payloads = [msgspec.Raw(msgspec.json.encode(PAYLOAD))] * size

    async def step() -> int:
        return (await client.push_many(f"by-{size}", payloads)).count

    return step


def _popping(client: "Client", queue: str, size: int) -> Step:
    async def step() -> int:
        batch = await client.pop(queue, size, type=msgspec.Raw)
        return (await client.ack(batch)).count if batch else 0

    return step


async def _figures(what: str, at_once: int, step: Step, seconds: float) -> Figures:
    """Repeat a step, so many concurrently, until the time is up or no message is left."""
    spans: list[float] = []
    done = 0
    begun = time.perf_counter()

    async def go_on() -> None:
        nonlocal done
        while (start := time.perf_counter()) < begun + seconds:
            count = await step()
            if not count:
                return
            spans.append(time.perf_counter() - start)
            done += count

    await asyncio.gather(*(go_on() for _ in range(at_once)))
    took = time.perf_counter() - begun
    return Figures(what, done, round(took, 3), round(done / took, 1), *map(_ms, _percentiles(spans)))


def _percentiles(spans: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile.

    >>> _percentiles([float(n) for n in range(1, 101)])
    (50.0, 99.0)
    """
    ordered = sorted(spans) or [0.0]
    last = len(ordered) - 1
    return ordered[last * 50 // 100], ordered[last * 99 // 100]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
