"""Kills the server at random instants and checks what it left.

    python -m tests.crash.harness --cycles 200 --seed 1

A cycle: start the server on what the last kill left, check it, let several clients work, kill it. What the
clients do follows from the seed. When exactly the kill meets them does not, so a run that fails is understood
from the history it prints and the directory it leaves.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.check import Check
from tests.crash.ledger import Ledger, Violation
from tests.crash.load import Client, now_ms
from tests.crash.process import Process, kill_amid
from tests.postgres import Cluster, cluster, find_binaries
from tests.serving import PATIENCE_S

CLIENTS = 5
LOAD_S = (0.1, 0.5)
"""How long the clients work before the kill."""
FLAGS = ("--memory-bytes-max", str(1 << 20), "--shards", "8")
FRESH_AFTER = 40
"""Cycles after which a new directory is taken, so that reading all of it stays quick."""

Say = Callable[[str], object]
NewStore = Callable[[], str]


@dataclass
class Figures:
    """What a run came to."""

    cycles: int = 0
    messages: int = 0
    """Confirmed, or found to be kept."""
    unknown: int = 0
    """Pushes that were never answered."""
    unknown_kept: int = 0
    acked: int = 0
    cancelled: int = 0
    purged: int = 0
    answers: int = 0

    def add(self, ledger: Ledger) -> None:
        self.messages += len(ledger.payloads)
        self.acked += len(ledger.acked)
        self.cancelled += len(ledger.cancelled)
        self.purged += len(ledger.purged)
        unanswered = [sent for sent in ledger.sent if sent.firsts is None]
        self.unknown += len(unanswered)
        self.unknown_kept += sum(sent.fate == "kept" for sent in unanswered)


class Life:
    """A data directory, and what is known about it."""

    def __init__(self, home: Path, rng: random.Random, planted: str = "", flags: Sequence[str] = ()) -> None:
        self.home = home
        self._flags = (*FLAGS, *flags)
        self._planted = planted
        self._rng = rng
        self.ledger = Ledger()
        self.killed_at = 0
        self.answers = 0

    def process(self) -> Process:
        """A server on the directory; it may not be ready yet."""
        return Process(self.home, *self._flags, planted=self._planted)

    def cycle(self, name: str) -> None:
        """Start, check, load, kill."""
        with self.process() as server:
            self.check(server, name)
            self._load(server, name)
            self.killed_at = now_ms()
        server.check_log()

    def end(self) -> None:
        """Start once more and look at every single message."""
        with self.process() as server:
            self.check(server, "at the end", thorough=True)
        server.check_log()

    def check(self, server: Process, name: str, *, thorough: bool = False) -> None:
        """See that what the last kill left is good."""
        with server.connect() as connection:
            check = Check(connection, self.ledger, self._rng, name)
            check.all(self.killed_at)
            if thorough:
                check.states()
                check.rest()

    def _load(self, server: Process, name: str, database: Cluster | None = None) -> None:
        """Let clients work, and kill the server amid that; or else its database."""
        leases = list(self.ledger.leases)
        self._rng.shuffle(leases)
        clients = [
            Client(
                server.connect(),
                f"{name}.{number}",
                random.Random(self._rng.randrange(1 << 62)),
                leases[number::CLIENTS],
                may_be_busy=database is not None,
            )
            for number in range(CLIENTS)
        ]
        kill_amid(database or server, [client.run for client in clients], self._rng.uniform(*LOAD_S))
        for client in clients:
            self.ledger.add(client.record)
            self.answers += client.answers
            if client.record.violations:
                raise Violation("\n".join(client.record.violations))


class DatabaseLife(Life):
    """A server that goes on while its database is killed."""

    def __init__(self, home: Path, rng: random.Random, database: Cluster) -> None:
        super().__init__(home, rng, flags=("--store", database.database()))
        self._database = database

    def live(self, cycles: int, say: Say) -> None:
        """Check, load, kill the database and start it again, so many times."""
        with self.process() as server:
            for number in range(cycles):
                self.check(server, f"d{number}")
                self.killed_at = now_ms()
                self._load(server, f"d{number}", self._database)
                self._database.start()
                self._await_server(server)
                say(f"cycle {number + 1}: {self.ledger.summary()}")
            self.check(server, "at the end", thorough=True)

    def _await_server(self, server: Process) -> None:
        """Wait until the server has found its database again."""
        deadline = time.monotonic() + PATIENCE_S
        with server.connect() as connection:
            while not connection.ask({"cmd": "QUEUES"})["ok"]:
                if time.monotonic() > deadline:
                    raise Violation(f"the server does not find its database again:\n{server.log()}")
                time.sleep(0.05)


def run_databases(cycles: int, seed: int, say: Say = lambda line: None) -> Figures:
    """Kill the database of a server, so many times."""
    home = Path(tempfile.mkdtemp(prefix="forebay-crash-"))
    binaries = find_binaries()
    assert binaries is not None
    database = Cluster(binaries)
    life = DatabaseLife(home, random.Random(seed), database)
    try:
        life.live(cycles, say)
    except BaseException as error:
        error.add_note(f"seed {seed}, data in {home}")
        raise
    finally:
        database.close()
    figures = Figures(cycles, answers=life.answers)
    figures.add(life.ledger)
    shutil.rmtree(home)
    return figures


def run(
    cycles: int, seed: int, say: Say = lambda line: None, planted: str = "", store: NewStore | None = None
) -> Figures:
    """So many cycles from a seed; ``Violation`` tells what broke, and leaves the directory.

    ``store`` says where a new life keeps its data, if not in its directory.
    """
    figures = Figures()
    rng = random.Random(seed)
    while figures.cycles < cycles:
        home = Path(tempfile.mkdtemp(prefix="forebay-crash-"))
        life = Life(home, rng, planted, () if store is None else ("--store", store()))
        try:
            for _ in range(min(FRESH_AFTER, cycles - figures.cycles)):
                began = time.monotonic()
                life.cycle(f"c{figures.cycles}")
                figures.cycles += 1
                say(f"cycle {figures.cycles}: {life.ledger.summary()}, {time.monotonic() - began:.1f} s")
            life.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, cycle {figures.cycles}, data in {home}")
            raise
        figures.add(life.ledger)
        figures.answers += life.answers
        shutil.rmtree(home)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.harness", description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="keep everything in PostgreSQL")
    parser.add_argument("--database", action="store_true", help="kill the database, not the server")
    given = parser.parse_args()
    store = cluster().database if given.postgres else None
    say: Say = lambda line: sys.stdout.write(line + "\n")  # noqa: E731
    if given.database:
        figures = run_databases(given.cycles, given.seed, say)
    else:
        figures = run(given.cycles, given.seed, say, store=store)
    sys.stdout.write(
        f"{figures.cycles} kills, {figures.answers:,} requests answered before:"
        f" nothing confirmed was lost, nothing settled came back.\n"
        f"{figures.messages:,} messages kept, {figures.acked:,} acks, {figures.cancelled:,} cancelled,"
        f" {figures.purged:,} dead letters given up; of {figures.unknown:,} pushes that were"
        f" never answered {figures.unknown_kept:,} were kept, whole.\n"
    )


if __name__ == "__main__":
    main()
