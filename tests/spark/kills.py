"""Kills drivers, workers and the server amid streaming queries: each row arrives, once.

    python -m tests.spark.kills --case queue-to-queue --kills 20 --seed 1

A driver reads a queue that keeps growing, in many micro-batches, and writes them to another queue, to
Parquet, or to both. It is killed, with its JVM, and started again on its checkpoint, again and again. The
kills are at random instants, or aimed: most of all between the sink's commit of a batch and Spark's own note
of it, where the batch is run again although it is there. At the end what is left is read, and what arrived
is compared with what was pushed.

Which kills there are follows from the seed. What they meet does not, so a run that fails is understood from
what it prints and the directory it leaves.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.spark.trial import Figures, Trial

Say = Callable[[str], object]

KILLS: dict[str, Callable[[Trial], None]] = {
    "driver anytime": Trial.kill_anytime,
    "driver starting": Trial.kill_starting,
    "driver adopted": Trial.kill_adopted,
    "driver answered": Trial.kill_answered,
    "driver adopting": Trial.kill_adopting,
    "driver staging": Trial.kill_staging,
    "driver frozen": Trial.kill_frozen,
    "driver written": Trial.kill_written,
    "worker anytime": Trial.kill_worker_anytime,
    "worker staging": Trial.kill_worker_staging,
    "worker adopting": Trial.kill_worker_adopting,
    "worker planning": Trial.kill_worker_planning,
    "server anytime": Trial.kill_server_anytime,
    "server adopted": Trial.kill_server_adopted,
    "server adopting": Trial.kill_server_adopting,
    "server staging": Trial.kill_server_staging,
}

CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "queue-to-queue": (
        ("queue",),
        (
            "driver anytime",
            "driver starting",
            "driver adopted",
            "driver answered",
            "driver adopting",
            "driver staging",
            "driver frozen",
        ),
    ),
    "queue-to-parquet": (("parquet",), ("driver anytime", "driver starting", "driver written")),
    "executor": (("queue",), ("worker anytime", "worker staging", "worker adopting", "worker planning")),
    "server": (("queue",), ("server anytime", "server adopted", "server adopting", "server staging")),
}
"""Where the rows go, and what is killed."""


def drawn(names: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """So many kills, each kind as often as any other, in any order."""
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(names, len(names))
    return found[:count]


def run(into: Sequence[str], kills: Sequence[str], seed: int, say: Say = lambda line: None) -> Figures:
    """Kills in their order; ``Violation`` tells what broke, and leaves the directory."""
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="forebay-kills-"))
    starts_again = bool({"worker adopting", "worker planning"} & {*kills})
    trial = Trial(home, into, random.Random(seed), starts_again=starts_again)
    try:
        trial.begin()
        for name in kills:
            say(_killed(trial, name))
        trial.check()
    except BaseException as error:
        error.add_note(f"seed {seed}, after {trial.figures.kills.total()} kills, data in {home}")
        raise
    finally:
        trial.end()
    shutil.rmtree(home)
    trial.figures.seconds = time.monotonic() - began
    return trial.figures


def _killed(trial: Trial, name: str) -> str:
    """What is to be said of a kill."""
    began = time.monotonic()
    figures = trial.figures
    hits = figures.between
    KILLS[name](trial)
    figures.kills[name] += 1
    hit = ", between the two commits" if figures.between > hits else ""
    return f"{figures.kills.total()}: {name}{hit}, {time.monotonic() - began:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--case", choices=CASES, default="queue-to-queue")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    into, names = CASES[given.case]
    kills = drawn(names, given.kills, random.Random(given.seed))
    sys.stdout.write(told(given.case, run(into, kills, given.seed, _say)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def told(case: str, figures: Figures) -> str:
    """Figures as lines."""
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(figures.kills.items()))
    arrived = "; ".join(
        f"{name}: {count:,} rows, {figures.distinct[name]:,} distinct" for name, count in figures.rows.items()
    )
    return (
        f"{case}: {figures.kills.total()} kills ({kinds}), {figures.between} of them between the sink's"
        f" commit and Spark's; {figures.seconds:.0f} s.\n"
        f"{figures.pushed:,} rows pushed; {arrived}; {figures.batches:,} batches.\n"
        f"{figures.repeated} adoptions repeated, {figures.late} late writes refused,"
        f" {figures.failed_tasks} failed tasks, {figures.started_again} queries started again.\n"
    )


if __name__ == "__main__":
    main()
