"""Streaming queries, and what is killed amid them: the driver and its JVM, its workers, the server."""

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.asking import Asker
from tests.crash.ledger import Violation
from tests.crash.process import Process
from tests.spark import processes
from tests.spark.between import Between, Catch, Passing
from tests.spark.driving import BATCH_S, Driving, Given, Rows
from tests.spark.feeding import PARTITIONS, Feeder

ROWS = (50, 300, 2_000)
"""Rows of a micro-batch: one of these, each time a driver starts."""
NTH = 4
"""An aimed kill meets one of the next so many batches."""
TASKS = "pyspark.worker"
"""What the workers are for that run tasks."""
PLANS = "pyspark.sql.streaming.python_streaming_source_runner"
"""What the worker is for that tells the driver what there is."""
TWO_AT_ONCE = "CONCURRENT_STREAM_LOG_UPDATE"
"""What Spark says when two drivers are at one checkpoint."""


@dataclass
class Figures:
    """What a run came to."""

    kills: Counter[str] = field(default_factory=Counter)
    """By what they were aimed at."""
    between: int = 0
    """Drivers killed when a batch was committed by its sink, and not by Spark."""
    repeated: int = 0
    """Adoptions of a batch that was there already."""
    late: int = 0
    """Writes of tasks of drivers long dead that came after their batch was adopted, and were refused."""
    failed_tasks: int = 0
    started_again: int = 0
    """Queries that failed, and were started again by the driver that had them."""
    batches: int = 0
    pushed: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """That arrived, by where."""
    distinct: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Trial:
    """Queries on their checkpoints in one directory, and all that is done to them."""

    def __init__(self, home: Path, into: Sequence[str], rng: random.Random, *, starts_again: bool) -> None:
        self._home = home
        self._into = list(into)
        self._rng = rng
        self._starts_again = starts_again
        self._flags = ["--shards", "8"]
        (home / "server").mkdir()
        self._server = self._started()
        with self._server.connect() as connection:
            self._at = connection.socket.getpeername()
        # From now on at the same port.
        self._flags += ["--tcp", f"{self._at[0]}:{self._at[1]}"]
        self._between = Between(self._at)
        self._feeder = Feeder(self._at, random.Random(rng.randrange(1 << 62)))
        self._driver: Driving | None = None
        self._drivers: list[Driving] = []
        """All that ever were."""
        self.figures = Figures()

    def begin(self) -> None:
        self._feeder.begin()

    def end(self) -> None:
        """Nothing of it runs when this returns."""
        self._feeder.rest()
        for driver in self._drivers:
            driver.let_go()
        self._between.close()
        self._server.kill()

    # What runs.

    def _started(self) -> Process:
        server = Process(self._home / "server", *self._flags)
        server.wait_ready()
        return server

    @property
    def _running(self) -> Driving:
        """The driver, and its queries at work; a new one if the last was killed."""
        if self._driver is None:
            self._driver = self._new()
            self._driver.wait_first(len(self._into))
        self._feeder.go_on()
        return self._driver

    def _new(self, *, is_last: bool = False) -> Driving:
        here, there = (f"tcp://{host}:{port}" for host, port in (self._at, self._between.address))
        rows = self._rng.choice(ROWS)
        given = Given(str(self._home), here, there, self._into, rows, is_last, self._starts_again)
        self._drivers.append(Driving(given, self._home / "log"))
        return self._drivers[-1]

    def _kill_driver(self, driver: Driving) -> None:
        driver.kill()
        self._feeder.rest()
        self._driver = None

    def _caught(self, catch: Catch, driver: Driving) -> Passing:
        """What a catch has caught, while a driver is well."""
        give_up_at = time.monotonic() + BATCH_S
        while (found := catch.wait(0.01)) is None:
            driver.hear(0.01)
            if time.monotonic() > give_up_at:
                raise Violation("the sink asks for nothing")
        return found

    def _nth(self) -> int:
        return self._rng.randint(1, NTH)

    def _wait(self, longest_s: float) -> None:
        time.sleep(self._rng.uniform(0.0, longest_s))

    # Kills of a driver.

    def kill_anytime(self) -> None:
        driver = self._running
        self._wait(2.5)
        self._kill_driver(driver)

    def kill_starting(self) -> None:
        """While it finds out where it was, and runs the last batch again."""
        driver = self._driver
        if driver is None:
            driver = self._driver = self._new()
            driver.wait_started()
        self._wait(5.0)
        self._kill_driver(driver)

    def kill_adopted(self) -> None:
        """The batch is there, and the driver never hears of it."""
        caught = self._adopting(is_answered=True)
        self._kill_driver(self._running)
        caught.let_go(goes_on=False)
        self._count_between("queue", caught.batch)

    def kill_answered(self) -> None:
        """The driver has just heard that the batch is there."""
        caught = self._adopting(is_answered=True)
        caught.let_go()
        self._wait(0.02)
        self._kill_driver(self._running)
        self._count_between("queue", caught.batch)

    def kill_adopting(self) -> None:
        """The driver's last word reaches the server when another driver is at the same batch."""
        caught = self._adopting(is_answered=False)
        self._kill_driver(self._running)
        meant = self._rng.choice(("STAGE", "ADOPT"))
        catch = self._between.catch(meant, batch=caught.batch)
        self._driver = self._new()
        again = self._caught(catch, self._driver)
        caught.let_go()
        self._see_answered(caught)
        again.let_go()
        self._running.wait_first(len(self._into))

    def kill_staging(self) -> None:
        """A task's last word reaches the server before or after another driver's batch is adopted."""
        driver = self._running
        caught = self._caught(self._between.catch("STAGE", self._nth()), driver)
        self._kill_driver(driver)
        is_adopted = self._rng.random() < 0.5
        catch = self._between.catch("ADOPT", is_answered=is_adopted, batch=caught.batch)
        self._driver = self._new()
        adopting = self._caught(catch, self._driver)
        caught.let_go()
        is_kept = self._see_answered(caught)
        adopting.let_go()
        if is_kept and is_adopted:
            raise Violation(
                f"batch {caught.batch} is adopted, and {caught.request['stage']} is staged for it"
            )
        self.figures.late += is_adopted
        self._running.wait_first(len(self._into))

    def kill_frozen(self) -> None:
        """A driver stands still, and goes on when another has taken its place; one of them has to fail."""
        frozen = self._running
        self._wait(1.0)
        processes.tell(frozen.session, signal.SIGSTOP)
        self._driver = self._new()
        running = self._running
        running.wait_first(len(self._into))
        processes.tell(frozen.session, signal.SIGCONT)
        try:
            running.wait_batches(3)
        except Violation as error:
            if TWO_AT_ONCE not in str(error):
                raise
            self._kill_driver(running)
        frozen.kill()

    def kill_written(self) -> None:
        """The files of a batch are listed, and Spark has not noted that the batch is done."""
        driver = self._running
        done = self._home / "checkpoint-parquet" / "commits"
        batch = max(int(each.name) for each in done.iterdir() if each.name.isdigit()) + self._nth()
        listed = self._home / "parquet" / "_spark_metadata"
        files = [listed / str(batch), listed / f"{batch}.compact"]
        give_up_at = time.monotonic() + BATCH_S
        while not any(file.exists() for file in files):
            driver.hear(0)
            if time.monotonic() > give_up_at:
                raise Violation("the files of no batch are listed")
        self._kill_driver(driver)
        self._count_between("parquet", batch)

    def _adopting(self, *, is_answered: bool) -> Passing:
        driver = self._running
        return self._caught(self._between.catch("ADOPT", self._nth(), is_answered=is_answered), driver)

    def _see_answered(self, caught: Passing) -> bool:
        if not caught.is_answered.wait(BATCH_S):
            raise Violation(f"{caught.request['cmd']} is not answered")
        assert caught.answer is not None
        is_ok: bool = caught.answer["ok"]
        return is_ok

    def _count_between(self, query: str, batch: int) -> None:
        note = self._home / f"checkpoint-{query}" / "commits" / str(batch)
        self.figures.between += not note.exists()

    # Kills of a worker.

    def kill_worker_anytime(self) -> None:
        driver = self._running
        self._wait(1.0)
        self._kill_one(driver, TASKS)
        driver.wait_batches(2)

    def kill_worker_staging(self) -> None:
        """A task dies while it writes; what it wrote last may or may not arrive."""
        driver = self._running
        caught = self._caught(self._between.catch("STAGE", self._nth()), driver)
        self._kill_at(caught, driver)
        caught.let_go(goes_on=self._rng.random() < 0.5)
        driver.wait_batches(2)

    def kill_worker_adopting(self) -> None:
        """The process dies that commits for the driver: the query fails, and is started again."""
        caught = self._adopting(is_answered=True)
        driver = self._running
        self._kill_at(caught, driver)
        caught.let_go(goes_on=False)
        driver.wait_failure()
        driver.wait_batches(2)

    def kill_worker_planning(self) -> None:
        """The process dies that says what there is to read: the query fails, and is started again."""
        driver = self._running
        self._wait(1.0)
        self._kill_one(driver, PLANS)
        driver.wait_failure()
        driver.wait_batches(2)

    def _kill_one(self, driver: Driving, serves: str) -> None:
        found = processes.workers(driver.session, serves)
        if not found or not processes.kill(self._rng.choice(found).pid):
            raise Violation(f"there is no worker that serves {serves}")

    def _kill_at(self, caught: Passing, driver: Driving) -> None:
        pid = processes.at_port(driver.session, caught.port)
        if pid is None or not processes.kill(pid):
            raise Violation(f"nobody is at the other end of {caught.request['cmd']}")

    # Kills of the server.

    def kill_server_anytime(self) -> None:
        driver = self._running
        self._wait(1.5)
        self._restart()
        driver.wait_batches(3)

    def kill_server_adopted(self) -> None:
        """The batch is there, and the server dies before the driver hears of it."""
        caught = self._adopting(is_answered=True)
        self._restart()
        caught.let_go(goes_on=False)
        self._running.wait_batches(2)

    def kill_server_adopting(self) -> None:
        """Whether the batch is there when the server dies nobody knows."""
        self._kill_server_at(self._adopting(is_answered=False))

    def kill_server_staging(self) -> None:
        driver = self._running
        self._kill_server_at(self._caught(self._between.catch("STAGE", self._nth()), driver))

    def _kill_server_at(self, caught: Passing) -> None:
        caught.let_go()
        self._wait(0.003)
        self._restart()
        self._running.wait_batches(2)

    def _restart(self) -> None:
        self._server.kill()
        self._server.check_log()
        self._wait(1.0)
        self._server = self._started()

    # What must be so.

    def check(self) -> None:
        """See that everything has arrived, once; what is left is read first."""
        last = self._finished()
        self.figures.batches = sum(each + 1 for each in last.batches.values())
        self.figures.failed_tasks = sum(each.failed_tasks for each in self._drivers)
        self.figures.started_again = sum(len(each.failures) for each in self._drivers)
        self.figures.repeated = self._between.repeated
        self.figures.pushed = sum(self._feeder.pushed.values())
        with self._server.connect() as connection:
            asker = Asker(connection)
            self._check_queue("in", asker)
            if "queue" in self._into:
                self._check_queue("out", asker)
        self._server.check_log()
        if "parquet" in self._into:
            assert last.last is not None
            self._check_parquet(last.last.found)
        twice = [each for each, count in self._between.adopted.items() if count > 1]
        if twice:
            raise Violation(f"adopted more than once: {twice}")

    def _finished(self) -> Driving:
        """The driver that has read what was left."""
        self._feeder.end()
        if self._driver is not None:
            self._driver.finish()
        else:
            self._driver = self._new(is_last=True)
        self._driver.wait_over()
        return self._driver

    def _check_queue(self, queue: str, asker: Asker) -> None:
        """Every partition has what was pushed to it, in its order."""
        for partition in PARTITIONS:
            found = [each["n"] for each in _log(asker, queue, partition)]
            self.figures.rows[queue] += len(found)
            self.figures.distinct[queue] += len(set(found))
            wanted = list(range(self._feeder.pushed[partition]))
            if found != wanted:
                missing = sorted(set(wanted) - set(found))
                twice = sorted(each for each, count in Counter(found).items() if count > 1)
                raise Violation(
                    f"{queue}/{partition}: {len(found)} rows of {len(wanted)}; {len(missing)} are missing, "
                    f"from {missing[:1]} on; {len(twice)} came more than once, from {twice[:1]} on"
                )

    def _check_parquet(self, found: list[Rows]) -> None:
        for each in found:
            self.figures.rows["parquet"] += each.rows
            self.figures.distinct["parquet"] += each.distinct
            pushed = self._feeder.pushed[each.partition]
            if not each.rows == each.distinct == each.right == each.last + 1 == pushed:
                raise Violation(f"Parquet: {each} of {pushed} rows that were pushed")
        if {each.partition for each in found} != set(PARTITIONS):
            raise Violation(f"Parquet has {found}")


def _log(asker: Asker, queue: str, partition: str) -> list[dict[str, int]]:
    place = {"cmd": "READ", "queue": queue, "partition": partition, "max_bytes": 1 << 24, "max_count": 50_000}
    found: list[dict[str, int]] = []
    while True:
        read = asker.ask(place | {"offset": len(found)})
        for run in read["runs"]:
            found += run["payloads"]
        if len(found) >= read["end"]:
            return found
