"""Which processes a driver has, and which of them is at the end of a connection. Linux says it in /proc."""

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Found(NamedTuple):
    pid: int
    parent: int
    command: list[str]

    @property
    def serves(self) -> str:
        """The module that a Python process of Spark's runs."""
        return next((each for each in self.command[2:] if each != "pyspark.daemon"), "")


def of_session(session: int) -> list[Found]:
    """The processes of a session; those that have ended and that nobody has asked about are left out."""
    found = []
    for directory in PROC.iterdir():
        if directory.name.isdigit():
            # It may be gone by now.
            with contextlib.suppress(OSError):
                state, parent, _, belongs_to, *_ = (directory / "stat").read_text().rpartition(")")[2].split()
                if int(belongs_to) == session and state not in "ZX":
                    command = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found.append(Found(int(directory.name), int(parent), command))
    return found


def workers(session: int, serves: str) -> list[Found]:
    """The Python processes of a session that do a kind of work, without those that only start them."""
    found = [each for each in of_session(session) if each.serves == serves]
    starters = {each.parent for each in found}
    return [each for each in found if each.pid not in starters]


def at_port(session: int, port: int) -> int | None:
    """Which process of a session has a connection from a port of this machine."""
    sockets = {
        f"socket:[{fields[9]}]"
        for fields in map(str.split, (PROC / "net" / "tcp").read_text().splitlines()[1:])
        if int(fields[1].rpartition(":")[2], 16) == port
    }
    for each in of_session(session):
        with contextlib.suppress(OSError):
            for name in (PROC / str(each.pid) / "fd").iterdir():
                if str(name.readlink()) in sockets:
                    return each.pid
    return None


def kill(pid: int) -> bool:
    """Whether there was a process to kill."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def tell(session: int, what: signal.Signals) -> None:
    """Send a signal to all processes of a session."""
    for each in of_session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, what)
