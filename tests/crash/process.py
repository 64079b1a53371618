"""A real server over a directory that outlives it: it is killed, never stopped."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.crash.ledger import Violation
from tests.serving import PATIENCE_S, Raw

DATA = "forebay-data"
BAD_WORDS = ("Traceback", "bug:", "damaged", "reload", "commit failed")
"""What a server that is only ever killed has no reason to say."""

RUN = """
from forebay.cli.main import main
main()
"""


CLIENT_S = 30.0
"""How long a client may take to notice that the server is gone."""


class Process:
    """One life of a server in ``home``; the data is in ``home/forebay-data``."""

    def __init__(self, home: Path, *flags: str, planted: str = "") -> None:
        """``planted`` is code that runs first: a bug the harness has to find."""
        self._log = home / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment["FOREBAY_POP_CREATES_QUEUES"] = "on"
        program = ("-c", planted + RUN) if planted else ("-m", "forebay")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *program, "serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0", *flags],
                cwd=home,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._tcp = ""

    def said(self, within_s: float) -> bytes:
        """The line it prints when it is ready, or nothing if that takes longer."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        return self._process.stdout.readline() if readable else b""

    def wait_ready(self) -> None:
        line = self.said(PATIENCE_S)
        if not line:
            self.kill()
            raise AssertionError(f"the server did not start:\n{self.log()}")
        ready: dict[str, Any] = json.loads(line)
        self._tcp = ready["tcp"]

    def connect(self) -> Raw:
        host, _, port = self._tcp.rpartition(":")
        return Raw((host, int(port)))

    def kill(self) -> None:
        """End it here and now, as ``kill -9`` does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def check_log(self) -> None:
        """Raise if its log has lines that should not be there. The next life begins another."""
        bad = [line for line in self.log().splitlines() if any(word in line for word in BAD_WORDS)]
        if bad:
            raise Violation("the server's log says\n" + "\n".join(bad))

    def __enter__(self) -> "Process":
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Killable(Protocol):
    """What can be ended here and now."""

    def kill(self) -> None: ...


def kill_amid(server: Killable, works: Sequence[Callable[[], None]], seconds: float) -> None:
    """Kill a server after a while, amid what threads do with it; each of them notices."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    server.kill()
    for thread in threads:
        thread.join(CLIENT_S)
        if thread.is_alive():
            raise Violation("a client still waits for a server that is gone")
