"""The command line as its users run it: in this process, in one of its own, at a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

PATIENCE_S = 30.0
"""How long a process may take before a test that waits for it fails."""


class Done(msgspec.Struct):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed, one a line."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line."""
        assert self.code == 0, self.err
        return [line.split() for line in self.out.splitlines()]


Run = Callable[..., Done]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forebay", *arguments]


def environment(**extra: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    # Contexts of whoever runs the tests must not be found.
    return plain | {"FOREBAY_HTTP": "off", "XDG_CONFIG_HOME": os.devnull} | extra


def run(cwd: Path, *arguments: str, stdin: str = "", **variables: str) -> Done:
    """Run a command in a process of its own, to its end."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**variables),
        input=stdin,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command that somebody runs at a terminal of 100 columns."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        ours, theirs = pty.openpty()
        self._screen = ours
        extra = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **variables}
        plain = {name: value for name, value in environment(**extra).items() if name != "NO_COLOR"}
        plain |= {"NO_COLOR": "1"} if "NO_COLOR" in variables else {}
        self._process = subprocess.Popen(
            command(*arguments), env=plain, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text: str) -> None:
        """Read what is shown until this is there."""
        ends = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < ends, self.shown
            assert self._more(), self.shown

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        """Its exit code, when it has ended and all is read."""
        while self._more():
            pass
        return self._process.wait(PATIENCE_S)

    def _more(self) -> bool:
        readable, _, _ = select.select([self._screen], [], [], PATIENCE_S)
        try:
            data = os.read(self._screen, 1 << 16) if readable else b""
        except OSError:  # the process has let go of the terminal
            return False
        self.shown += data.decode()
        return bool(data)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._screen)
