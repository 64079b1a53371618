"""A real file system that is filled to its last byte, and a server that is killed on it.

Others fill what the server left. Then nothing is free but what the server keeps back for itself, and that
has to do for starting again and for draining to the end.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Reply, Server

DISK_BYTES = 40 << 20
QUEUES = 3
PER_PUSH = 100
PADDING = "x" * 300
PER_POP = 50
TRIES = 1_200


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    at = tmp_path / "disk"
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "forebay-test", str(at)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here, which takes root: {error}")
    yield at
    subprocess.run(["umount", "-l", str(at)], check=True)


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


class Life:
    """Servers on one disk, one after another, and what is known of their messages."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self.confirmed: set[int] = set()
        self.acked: Counter[int] = Counter()
        self._next = 0
        self._servers = ExitStack()
        self._start()

    def _start(self) -> None:
        self.server = self._servers.enter_context(Server("--data", str(self._disk / "data")))
        self.client = self._servers.enter_context(self.server.connect())

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *error: Any) -> None:
        self._servers.__exit__(*error)

    def kill(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Kill the server with -9, and start another."""
        self.server.kill()
        meanwhile()
        self._start()

    def push(self, per_push: int = PER_PUSH) -> Reply:
        numbers = list(range(self._next, self._next + per_push))
        self._next += per_push
        messages = [[number, PADDING] for number in numbers]
        queue = f"q{self._next % QUEUES}"
        reply = self.client.ask({"cmd": "PUSH", "queue": queue, "messages": messages})
        if reply["ok"]:
            self.confirmed.update(numbers)
        return reply

    def fill(self) -> None:
        """Push until that is refused."""
        while (reply := self.push())["ok"]:
            pass
        assert reply["error"]["code"] == "busy"

    def fill_by_others(self) -> None:
        """Have somebody else take all that is free."""
        with (self._disk / f"other-{self._next}").open("wb", buffering=0) as other:
            try:
                while other.write(bytes(4096)):
                    pass
            except OSError:
                pass
        assert free_bytes(self._disk) < 4096

    def drain(self, least: int) -> None:
        """Pop and ack until so many are acked, or until nothing is left."""
        goal, empty, tries = self.acked.total() + least, 0, 0
        while self.acked.total() < goal and empty < QUEUES:
            queue = f"q{tries % QUEUES}"
            tries += 1
            assert tries < least + TRIES, f"it does not drain: {self.acked.total()} of {len(self.confirmed)}"
            pop = {"cmd": "POP", "queue": queue, "count": PER_POP, "lease_ms": 30_000, "wait_ms": 50}
            popped = self._ask(pop)
            if not popped["messages"]:
                empty += 1
                continue
            empty = 0
            assert self._ask({"cmd": "ACK", "lease": popped["lease"]})["count"] == len(popped["messages"])
            self.acked.update(message["payload"][0] for message in popped["messages"])

    def until_taken(self, request: dict[str, object]) -> Reply:
        """Ask as often as the answer is that the server is busy."""
        for _ in range(TRIES):
            reply = self.client.ask(request)
            if reply["ok"]:
                return reply
            assert reply["error"]["code"] == "busy", reply
            self.pause()
        raise AssertionError(reply)

    def pause(self) -> None:
        self.client.ask({"cmd": "POP", "queue": "idle", "wait_ms": 100})

    def _ask(self, request: dict[str, object]) -> Reply:
        reply = self.client.ask(request)
        assert reply["ok"], reply
        return reply


def test_on_a_disk_without_a_free_byte_a_killed_server_starts_again_and_drains_to_the_end(disk: Path) -> None:
    with Life(disk) as life:
        life.fill()
        life.kill(meanwhile=life.fill_by_others)
        third = len(life.confirmed) // 3
        life.drain(third)
        life.kill()
        life.drain(third)
        life.kill()
        life.drain(len(life.confirmed))
        assert life.acked == Counter(life.confirmed)
        for number in range(QUEUES):
            assert life.client.ask({"cmd": "QUEUEDELETE", "queue": f"q{number}"})["ok"]


@pytest.mark.parametrize("how", ["drained and deleted", "deleted", "purged"])
def test_room_comes_back_on_a_full_disk_without_a_restart(disk: Path, how: str) -> None:
    with Life(disk) as life:
        assert life.client.ask({"cmd": "QUEUE", "queue": "idle", "options": {}})["ok"]
        assert life.client.ask({"cmd": "QUEUE", "queue": "dead", "options": {"max_attempts": 1}})["ok"]
        life.client.ask({"cmd": "PUSH", "queue": "dead", "messages": [[PADDING]] * 1_000})
        for _ in range(10):
            lease = life.client.ask({"cmd": "POP", "queue": "dead", "count": 100})["lease"]
            assert life.client.ask({"cmd": "NACK", "lease": lease})["ok"]
        life.fill()
        if how != "purged":  # on a disk without a free byte that takes a minute
            life.fill_by_others()
        if how.startswith("drained"):
            life.drain(len(life.confirmed))
            assert life.acked == Counter(life.confirmed)
        assert life.until_taken({"cmd": "PURGE", "queue": "dead", "states": ["dead"]})["count"] == 1_000
        for queue in ("dead", *(f"q{number}" for number in range(QUEUES))):
            if how == "purged":
                while life.until_taken({"cmd": "PURGE", "queue": queue})["more"]:
                    pass
            else:
                assert life.until_taken({"cmd": "QUEUEDELETE", "queue": queue, "force": True})["deleted"]
        life.until_taken({"cmd": "PUSH", "queue": "new", "messages": [["first"]]})
        if how == "purged":
            return  # the rest of the room comes with what is written from now on
        for _ in range(TRIES):
            if free_bytes(disk) > DISK_BYTES // 2:
                break
            life.until_taken({"cmd": "PUSH", "queue": "new", "messages": [["next"]]})
            life.pause()
        assert free_bytes(disk) > DISK_BYTES // 2
