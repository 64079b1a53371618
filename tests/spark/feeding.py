"""Pushes to the queue ``in`` for as long as others read it. Each message tells its place in the log."""

import json
import random
import threading
import time
from typing import Any

from tests.serving import PATIENCE_S, Raw
from tests.spark.between import Address

PARTITIONS = ("p0", "p1", "p2", "p3")
STOCK = 5_000
"""Messages of each partition before anybody reads."""
MOST = 200
"""Messages of one push, at most."""
PAUSE_S = 0.04
PAD = 150
"""Bytes that a message has beyond what it tells, at most."""


class Feeder:
    """Pushes in a thread, while it is told to. A push that was not answered is made again, once."""

    def __init__(self, server: Address, rng: random.Random) -> None:
        self._server = server
        self._rng = rng
        self._connection: Raw | None = None
        self._pushes = 0
        self.pushed = dict.fromkeys(PARTITIONS, 0)
        self._may_go_on = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        for partition in PARTITIONS:
            self._push(partition, STOCK)
        self._thread.start()

    def go_on(self) -> None:
        self._may_go_on.set()

    def rest(self) -> None:
        self._may_go_on.clear()

    def end(self) -> None:
        """Push no more; nothing is on its way when this returns."""
        self._is_over.set()
        self._may_go_on.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        while True:
            self._may_go_on.wait()
            if self._is_over.wait(PAUSE_S):
                return
            self._push(self._rng.choice(PARTITIONS), self._rng.randint(1, MOST))

    def _push(self, partition: str, count: int) -> None:
        first = self.pushed[partition]
        pad = "x" * self._rng.randrange(PAD)
        messages = [{"p": partition, "n": number, "pad": pad} for number in range(first, first + count)]
        self._pushes += 1
        self._ask(
            {
                "cmd": "PUSH",
                "queue": "in",
                "partition": partition,
                "messages": messages,
                "idempotency_key": str(self._pushes),
            }
        )
        self.pushed[partition] += count

    def _ask(self, request: dict[str, Any]) -> None:
        """Ask until it is answered: the server may be killed, and comes back."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._connection is None:
                    self._connection = Raw(self._server)
                reply = self._connection.ask(request)
            except (OSError, EOFError):
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(PAUSE_S)
                continue
            assert reply["ok"], json.dumps(reply)
            return
