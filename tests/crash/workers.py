"""Kills, freezes and cuts off workers amid tasks, and the server, too: nothing lost, nothing twice at once.

    python -m tests.crash.workers --rounds 30 --seed 1
    python -m tests.crash.workers --rounds 30 --seed 1 --only loop thread --harms freeze

A round: push jobs, let the workers begin, harm one of them (or the server), and go on while it recovers.
Tasks write a line when they begin, every few ms while they run, and when they end: from these it is known
when which job ran where. The clock is the same for all processes.

What must be so in the end: every job is completed, and ran to its end. No job ran in two places at a time. A
process that is frozen does not run; when it is thawed it has ``THAW_S`` to notice that its leases are over,
and no run of it that somebody else has had since goes on after that.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Retry
from tests.client.worker.working import Way
from tests.crash.harness import FLAGS, Say
from tests.crash.ledger import Violation
from tests.crash.process import Process

LEASE_MS = 800
WORKERS = 3
CONCURRENCY = 4
JOBS = 12
"""Pushed in a round."""
TASK_MS = (50, 2_000)
BEAT_S = 0.02
THAW_S = 0.3
AMID_S = (0.1, 0.6)
"""How long the workers work before one is harmed."""
AWAY = (1.2, 2.5)
"""How long a worker is frozen or cut off, in leases."""
END_S = 40.0
"""How long all may take to be done after the last harm."""
PREFIX = "forebay-workers-"

# The tasks, as workers import them.

app = App("crew", retry=Retry(max_attempts=0, base_ms=0), queue="crew")


class Journal:
    """One run of a job, told line by line: a line is written whole, or not at all."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._run = f"{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(os.environ["CREW_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, what: str) -> None:
        line = f"{time.monotonic_ns()} {what} {self._name} {self._run} {os.environ['CREW_WORKER']}\n"
        os.write(self._file, line.encode())

    def __enter__(self) -> "Journal":
        self.say("begin")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.say("end" if kind is None else "out")
        os.close(self._file)


@app.task
async def in_loop(name: str, task_ms: int) -> str:
    with Journal(name) as journal:
        for _ in range(int(task_ms / 1000 / BEAT_S)):
            await asyncio.sleep(BEAT_S)
            journal.say("beat")
    return name


def _block(name: str, task_ms: int) -> str:
    with Journal(name) as journal:
        for _ in range(int(task_ms / 1000 / BEAT_S)):
            time.sleep(BEAT_S)
            journal.say("beat")
    return name


@app.task
def in_thread(name: str, task_ms: int) -> str:
    return _block(name, task_ms)


@app.task(process=True)
def in_process(name: str, task_ms: int) -> str:
    return _block(name, task_ms)


KINDS = {"loop": in_loop, "thread": in_thread, "process": in_process}


# What is read from the journal.


class Span(NamedTuple):
    """Where and how long a job ran without a break."""

    name: str
    run: str
    worker: str
    begun: float
    ended: float


@dataclass
class Told:
    """A run as the journal has it."""

    name: str
    run: str
    worker: str
    times: list[float] = field(default_factory=list)
    is_done: bool = False

    def spans(self, frozen: Sequence[tuple[float, float]]) -> list[Span]:
        """When it ran: not while its worker was frozen, nor while that came to its senses."""
        spans = []
        begun = self.times[0]
        for start, end in frozen:
            if begun < start < self.times[-1]:
                spans.append(Span(self.name, self.run, self.worker, begun, start))
                begun = end + THAW_S
        if begun <= self.times[-1]:
            spans.append(Span(self.name, self.run, self.worker, begun, self.times[-1]))
        return spans


def read(journal: Path) -> list[Told]:
    """All runs, in the order they began."""
    runs: dict[str, Told] = {}
    for line in journal.read_text().splitlines():
        at, what, name, run, worker = line.split()
        told = runs.setdefault(run + name, Told(name, run, worker))
        told.times.append(int(at) / 1e9)
        told.is_done = told.is_done or what == "end"
    return list(runs.values())


def check_apart(runs: list[Told], frozen: dict[str, list[tuple[float, float]]]) -> None:
    """Raise if a job ran in two places at a time."""
    by_name: dict[str, list[Span]] = {}
    for told in runs:
        by_name.setdefault(told.name, []).extend(told.spans(frozen.get(told.worker, [])))
    for name, spans in by_name.items():
        spans.sort(key=lambda span: span.begun)
        for at, first in enumerate(spans):
            for second in spans[at + 1 :]:
                if second.run != first.run and second.begun < first.ended:
                    both_s = min(first.ended, second.ended) - second.begun
                    raise Violation(f"{name} ran twice at once for {both_s:.3f} s: {first}, {second}")


# The driver.


@dataclass
class Figures:
    """What a life came to."""

    rounds: int = 0
    jobs: int = 0
    runs: int = 0
    again: int = 0
    """Jobs that ran more than once."""
    harms: Counter[str] = field(default_factory=Counter)


class Hand:
    """A worker in a process group of its own, and its way to the server."""

    def __init__(self, name: str, home: Path, way: Way, lease_ms: int, planted: str) -> None:
        self.name = name
        self.way = way
        self.frozen: list[tuple[float, float]] = []
        self.log = home / f"{name}.log"
        self.journal = home / "journal"
        program = (
            f"{planted}\n"
            f"import faulthandler; faulthandler.register({signal.SIGUSR1:d})\n"
            "from forebay.client.worker.main import run_worker\n"
            f"run_worker('tests.crash.workers:app', server={way.address!r}, lease_ms={lease_ms}, "
            f"concurrency={CONCURRENCY}, drain_s=5)"
        )
        given = {"CREW_JOURNAL": str(home / "journal"), "CREW_WORKER": name}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, **given},
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the worker, and only that: those it started have to notice."""
        self._process.kill()
        self._process.wait()

    async def freeze(self, seconds: float) -> None:
        """Stop it, and all that it started, for a while."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        self.frozen.append((begun, time.monotonic()))
        os.killpg(self._process.pid, signal.SIGCONT)

    async def stop(self) -> None:
        """Have it stop; it has to, in time and in order."""
        self._process.terminate()
        try:
            code = await asyncio.to_thread(self._process.wait, 20)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGUSR1)  # it says where it is
            await asyncio.sleep(BEAT_S)
            raise Violation(f"{self.name} does not stop:\n{self.log.read_text()[-2_000:]}") from None
        begun = self.name in self.journal.read_text()
        if code and (begun or code != -signal.SIGTERM):  # it may not have been there yet
            raise Violation(f"{self.name} ended with {code}:\n{self.log.read_text()[-4_000:]}")

    def end(self) -> None:
        """Leave nothing of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Life:
    """A server, workers, and what is done to them."""

    def __init__(
        self,
        home: Path,
        rng: random.Random,
        kinds: Sequence[str],
        figures: Figures,
        lease_ms: int = LEASE_MS,
        planted: str = "",
    ) -> None:
        """``planted`` is code that workers run first: a bug that has to be found."""
        self._planted = planted
        self._home = home
        self._rng = rng
        self._kinds = kinds
        self._figures = figures
        self._lease_ms = lease_ms
        self._hands: list[Hand] = []
        self._gone: list[Hand] = []
        self._started = 0
        self.jobs: dict[str, int] = {}
        """Ids of what was pushed, by name."""

    async def __aenter__(self) -> "Life":
        (self._home / "journal").touch()
        await self._serve()
        for _ in range(WORKERS):
            await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await app.aclose()
        for hand in self._hands + self._gone:
            hand.end()
            await hand.way.__aexit__(None, None, None)
        self._server.kill()

    async def _serve(self) -> None:
        self._server = Process(self._home, *FLAGS)
        await asyncio.to_thread(self._server.wait_ready)
        with self._server.connect() as connection:
            host, port = connection.socket.getpeername()
        await app.aclose()
        self._address = app.server = f"{host}:{port}"
        for hand in self._hands + self._gone:
            hand.way.lead_to(self._address)

    async def _start(self) -> None:
        way = await Way(self._address).__aenter__()
        self._hands.append(Hand(f"w{self._started}", self._home, way, self._lease_ms, self._planted))
        self._started += 1

    async def push(self, count: int, task_ms: tuple[int, int] = TASK_MS) -> None:
        for _ in range(count):
            name = f"job-{len(self.jobs)}"
            task: Any = KINDS[self._rng.choice(list(self._kinds))]
            self.jobs[name] = (await task.apush(name, self._rng.randrange(*task_ms))).id

    async def harm(self, kind: str) -> None:
        self._figures.harms[kind] += 1
        await HARMS[kind](self, self._rng.choice(self._hands))

    async def _kill(self, hand: Hand) -> None:
        hand.kill()
        await self._replace(hand)

    async def _freeze(self, hand: Hand) -> None:
        await hand.freeze(self._away_s())

    async def _block(self, hand: Hand) -> None:
        hand.way.hold()
        await asyncio.sleep(self._away_s())
        hand.way.let_go()

    async def _cut(self, hand: Hand) -> None:
        hand.way.refuses = True
        hand.way.cut()
        await asyncio.sleep(self._rng.choice((0.0, self._away_s())))
        hand.way.refuses = False

    async def _stop(self, hand: Hand) -> None:
        await self._replace(hand)
        await hand.stop()

    async def restart(self, _: Hand | None = None) -> None:
        """Kill the server, and start it on what it left."""
        self._server.kill()
        self._server.check_log()
        await self._serve()

    async def _replace(self, hand: Hand) -> None:
        self._hands.remove(hand)
        self._gone.append(hand)
        await self._start()

    def _away_s(self) -> float:
        return self._rng.uniform(*AWAY) * self._lease_ms / 1000

    async def until_begun(self, count: int) -> None:
        """Wait until so many runs have begun."""
        async with asyncio.timeout(END_S):
            while len(self.runs()) < count:
                await asyncio.sleep(BEAT_S)

    async def until_done(self) -> None:
        until = time.monotonic() + END_S
        left = dict(self.jobs)
        while left:
            for name, id in list(left.items()):
                state = await app.aclient.state(id)
                if state == "completed":
                    del left[name]
                elif time.monotonic() > until:
                    raise Violation(f"{len(left)} jobs are not done: {name} ({id}) is {state}")
            await asyncio.sleep(BEAT_S)

    async def stop(self) -> None:
        await asyncio.gather(*(hand.stop() for hand in self._hands))

    def runs(self) -> list[Told]:
        return read(self._home / "journal")

    def check(self) -> None:
        runs = self.runs()
        done = {told.name for told in runs if told.is_done}
        if missing := self.jobs.keys() - done:
            raise Violation(f"these are completed, and never ran to their end: {sorted(missing)}")
        check_apart(runs, {hand.name: hand.frozen for hand in self._hands + self._gone})
        self._figures.runs += len(runs)
        self._figures.jobs += len(self.jobs)
        self._figures.again += sum(count > 1 for count in Counter(told.name for told in runs).values())


HARMS: dict[str, Callable[[Life, Hand], Any]] = {
    "kill": Life._kill,
    "freeze": Life._freeze,
    "block": Life._block,
    "cut": Life._cut,
    "stop": Life._stop,
    "server": Life.restart,
}
"""What may happen: kill -9, SIGSTOP, a way that is blocked or cut, SIGTERM; and kill -9 of the server."""


async def _live(
    home: Path,
    rounds: int,
    rng: random.Random,
    kinds: Sequence[str],
    harms: Sequence[str],
    figures: Figures,
    say: Say,
    planted: str,
) -> None:
    async with Life(home, rng, kinds, figures, planted=planted) as life:
        for number in range(rounds):
            await life.push(JOBS)
            await life.until_begun(number * JOBS // 2 + 1)
            await asyncio.sleep(rng.uniform(*AMID_S))
            # Each harm has its turn, in an order that is by chance.
            harm = harms[number % len(harms)] if number < len(harms) else rng.choice(list(harms))
            await life.harm(harm)
            figures.rounds += 1
            say(f"round {figures.rounds}: {harm}; {len(life.jobs)} jobs, {len(life.runs())} runs")
        await life.until_done()
        await life.stop()
        life.check()


def run(
    rounds: int,
    seed: int,
    kinds: Sequence[str] = tuple(KINDS),
    harms: Sequence[str] = tuple(HARMS),
    say: Say = lambda line: None,
    planted: str = "",
) -> Figures:
    """So many rounds from a seed; an error tells what broke, and leaves the directory."""
    figures = Figures()
    rng = random.Random(seed)
    order = rng.sample(list(harms), len(harms))
    home = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        asyncio.run(_live(home, rounds, rng, kinds, order, figures, say, planted))
    except BaseException as error:
        error.add_note(f"seed {seed}, round {figures.rounds}, data in {home}")
        raise
    shutil.rmtree(home)
    return figures


async def _restart(home: Path, rng: random.Random, kinds: Sequence[str], figures: Figures) -> None:
    async with Life(home, rng, kinds, figures, lease_ms=20_000) as life:
        await life.push(WORKERS * CONCURRENCY, (800, 1_500))
        await life.until_begun(WORKERS)
        await life.restart()
        await life.until_done()
        await life.stop()
        life.check()


def restart(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Figures:
    """The server is killed and started again amid tasks whose leases live on."""
    figures = Figures()
    home = Path(tempfile.mkdtemp(prefix=PREFIX))
    asyncio.run(_restart(home, random.Random(seed), kinds, figures))
    shutil.rmtree(home)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(KINDS), nargs="+", default=list(KINDS))
    parser.add_argument("--harms", choices=list(HARMS), nargs="+", default=list(HARMS))
    given = parser.parse_args()
    figures = run(
        given.rounds, given.seed, given.only, given.harms, lambda line: sys.stdout.write(line + "\n")
    )
    told = {**dict(figures.harms), "jobs": figures.jobs, "runs": figures.runs, "again": figures.again}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
