"""Kills the server while unique keys, flows, transactions, repeats, limits and stages are at work.

    python -m tests.crash.jobs --cycles 60 --seed 1
    python -m tests.crash.jobs --cycles 60 --seed 1 --only uniques

A cycle: start the server on what the last kill left, let each part check what is its own, let its clients
work, kill the server.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.asking import Asker
from tests.crash.flows import Flows
from tests.crash.harness import FLAGS, Say
from tests.crash.limited import Limited
from tests.crash.parts import Client, Part
from tests.crash.process import Process, kill_amid
from tests.crash.repeats import Repeats
from tests.crash.stages import Stages
from tests.crash.transactions import Transactions
from tests.crash.uniques import Uniques

PARTS: dict[str, Callable[[], Part]] = {
    "uniques": Uniques,
    "flows": Flows,
    "transactions": Transactions,
    "repeats": Repeats,
    "limits": Limited,
    "stages": Stages,
}
LOAD_S = (0.05, 0.4)
"""How long the clients work before the kill."""
FRESH_AFTER = 20
"""Cycles after which a new directory is taken, so that looking at all of it stays quick."""


@dataclass
class Figures:
    """What a run came to."""

    cycles: int = 0
    answers: int = 0
    parts: list[Part] = field(default_factory=list)
    """Those of every life."""


class Life:
    """A data directory, and the parts at work in it."""

    def __init__(self, home: Path, rng: random.Random, parts: list[Part], planted: str = "") -> None:
        self._home = home
        self._rng = rng
        self._planted = planted
        self.parts = parts
        self.answers = 0

    def cycle(self, name: str) -> None:
        with self._process() as server:
            self._check(server)
            self._load(server, name)
        server.check_log()

    def end(self) -> None:
        with self._process() as server:
            self._check(server)
            with server.connect() as connection:
                for part in self.parts:
                    part.end(Asker(connection))
        server.check_log()

    def _process(self) -> Process:
        return Process(self._home, *FLAGS, planted=self._planted)

    def _check(self, server: Process) -> None:
        with server.connect() as connection:
            for part in self.parts:
                part.check(Asker(connection), self._rng)

    def _load(self, server: Process, name: str) -> None:
        clients = [
            Client(part, at, server.connect(), f"{name}.{at}", random.Random(self._rng.randrange(1 << 62)))
            for part in self.parts
            for at in range(len(part.hands))
        ]
        kill_amid(server, [client.run for client in clients], self._rng.uniform(*LOAD_S))
        for client in clients:
            self.answers += client.answers
            if client.error is not None:
                raise client.error


def run(
    cycles: int,
    seed: int,
    names: Sequence[str] = tuple(PARTS),
    say: Say = lambda line: None,
    planted: str = "",
) -> Figures:
    """So many cycles from a seed; an error tells what broke, and leaves the directory."""
    figures = Figures()
    rng = random.Random(seed)
    while figures.cycles < cycles:
        home = Path(tempfile.mkdtemp(prefix="forebay-jobs-"))
        life = Life(home, rng, [PARTS[name]() for name in names], planted)
        try:
            for _ in range(min(FRESH_AFTER, cycles - figures.cycles)):
                began = time.monotonic()
                life.cycle(f"c{figures.cycles}")
                figures.cycles += 1
                done = "; ".join(part.summary() for part in life.parts)
                say(f"cycle {figures.cycles}: {done}; {time.monotonic() - began:.1f} s")
            life.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, cycle {figures.cycles}, data in {home}")
            raise
        figures.answers += life.answers
        figures.parts += life.parts
        shutil.rmtree(home)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.jobs", description=__doc__)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS))
    given = parser.parse_args()
    figures = run(given.cycles, given.seed, given.only, lambda line: sys.stdout.write(line + "\n"))
    sys.stdout.write(f"{figures.cycles} kills, {figures.answers:,} requests answered before:\n")
    for part in figures.parts:
        sys.stdout.write(f"  {part.summary()}\n")


if __name__ == "__main__":
    main()
