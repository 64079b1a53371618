"""A driver in a process of its own, with its JVM and its workers: started, listened to, killed."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.crash.ledger import Violation
from tests.spark import processes

ROOT = Path(__file__).parent.parent.parent
BATCH_S = 240.0
"""How long a driver may take for what must come: one that starts on a busy machine takes a minute."""
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute: half of its time would go into compiling well what is used once."""
TAIL = 6_000
"""Characters of a driver's log that tell why it failed."""


class Given(msgspec.Struct):
    """What the driver is told."""

    home: str
    source: str
    sink: str
    """Another way to the same server."""
    into: list[str]
    """``queue``, ``parquet``."""
    rows: int
    """Of a micro-batch."""
    is_last: bool = False
    """Whether it reads what there is, and ends."""
    starts_again: bool = False
    """Whether a query that fails is started again."""


class Rows(msgspec.Struct):
    """What a partition of the Parquet files has, as Spark reads them."""

    partition: str
    rows: int
    distinct: int
    last: int
    right: int
    """Rows that say of themselves where they belong, and are there."""


class Line(msgspec.Struct, omit_defaults=True):
    """What the driver says."""

    is_started: bool = False
    query: str = ""
    batch: int = -1
    failed_tasks: int = 0
    failure: str = ""
    is_over: bool = False
    found: list[Rows] = []


def environment(home: Path) -> dict[str, str]:
    """What the processes of Spark are started with; all they leave behind is in ``home``."""
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    found = {**os.environ, "TMPDIR": str(temporary)}
    if found.pop("PYTHONDONTWRITEBYTECODE", None):
        # A driver starts a dozen of Python's, one after another: each would compile all of Spark again.
        found["PYTHONPYCACHEPREFIX"] = str(home / "compiled")
    return found


class Driving:
    """One life of a driver."""

    def __init__(self, given: Given, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", msgspec.json.encode(given).decode()],
                cwd=ROOT,
                env=environment(Path(given.home)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.session = self._process.pid
        self.batches: dict[str, int] = {}
        """The newest micro-batch of each query."""
        self.failed_tasks = 0
        self.failures: list[str] = []
        """Why queries failed that were started again."""
        self.last: Line | None = None
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._is_started = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                if line.startswith(b"{"):
                    self._lines.put(msgspec.json.decode(line, type=Line))
        self._lines.put(None)

    def hear(self, seconds: float) -> bool:
        """Take in the next line, if there is one in time; ``Violation`` if the driver failed."""
        try:
            line = self._lines.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return False
        if line is None:
            if self.last is None:
                raise Violation(f"the driver ended by itself:\n{self._told()}")
            return False
        self.failed_tasks = max(self.failed_tasks, line.failed_tasks)
        if line.failure:
            if line.is_over:
                raise Violation(f"the query {line.query} failed, and fails again:\n{line.failure}")
            self.failures.append(line.failure)
        elif line.is_over:
            self.last = line
        elif line.is_started:
            self._is_started = True
        else:
            self.batches[line.query] = line.batch
        return True

    def _told(self) -> str:
        return self._log.read_text(errors="replace")[-TAIL:]

    # What must come.

    def wait_started(self) -> None:
        self._wait(lambda: self._is_started, "start")

    def wait_batches(self, more: int) -> None:
        """Wait until each query has made so many micro-batches more than those told of so far."""
        while self.hear(0):
            pass
        wanted = {name: batch + more for name, batch in self.batches.items()}
        self._wait(lambda: all(self.batches[name] >= batch for name, batch in wanted.items()), "go on")

    def wait_failure(self) -> None:
        """Wait until a query has failed once more."""
        seen = len(self.failures)
        self._wait(lambda: len(self.failures) > seen, "notice a failure")

    def wait_first(self, queries: int) -> None:
        self._wait(lambda: len(self.batches) == queries, "make a first micro-batch")

    def finish(self) -> None:
        """Have it stop its queries and read what is left."""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"end\n")
            self._process.stdin.flush()

    def wait_over(self) -> None:
        self._wait(lambda: self.last is not None, "end")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + BATCH_S
        while not is_so():
            if not self.hear(1.0) and time.monotonic() > give_up_at:
                raise Violation(f"the driver did not {what} within {BATCH_S:.0f} s:\n{self._told()}")

    # Its end.

    def kill(self) -> None:
        """End the driver and its JVM here and now; its workers are left to find out by themselves."""
        os.killpg(self.session, signal.SIGKILL)
        self._process.wait()

    def let_go(self) -> None:
        """Nothing of it is left when this returns."""
        if self._process.poll() is None and self.last is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        if self._process.poll() is None:
            self.kill()
        for each in processes.of_session(self.session):
            processes.kill(each.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
