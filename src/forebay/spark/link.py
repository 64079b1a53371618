"""A connection that reconnects: requests of Spark to the server, across its restarts.

Every request here can be retried: reads change nothing, a write to a stage has a part number, and an adoption
happens once however often it is requested.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import Struct

from forebay.client.access import NO_ACCESS, Access
from forebay.client.backoff import Patience
from forebay.client.errors import Disconnected, NotTrusted, Refused
from forebay.client.raw import Wire
from forebay.core.words import DEFAULT
from forebay.spark.ranges import Extent, Extents

logger = logging.getLogger("forebay.spark")

T = TypeVar("T")
READ_BYTES = 1024 * 1024
"""Approximate payload bytes per read."""
READ_ROWS = 100_000
"""Messages per read."""
UNANSWERED_MAX = 8
"""Most pipelined writes to a stage."""
FIRST_MS = 2_000
"""How long the driver waits for a server it has never reached: a wrong address must show at once."""


class Unreachable(Exception):
    """The server can't be reached, and what to do."""

    def __init__(self, server: str, error: Exception) -> None:
        reason = error.__cause__ or error  # the cause already names the server
        super().__init__(
            f'no Forebay server at {server}: {reason}; start it (forebay serve), or correct option "server"'
        )


class Run(Struct):
    """Messages of one segment as they are stored."""

    first: int
    offset: int
    created_at: int
    count: int
    payloads: memoryview
    ends: bytes = b""
    times: bytes = b""
    which: bytes = b""
    attributes: list[dict[str, Any]] = []


class Log(Struct):
    """Response to a read."""

    number: int
    """The partition's first number, which identifies it."""
    next: int
    end: int
    runs: list[Run]


class _Staged(Struct):
    part: int
    count: int


class Link:
    """One server, with retries for up to ``retry_ms``."""

    def __init__(self, server: str, retry_ms: int, access: Access = NO_ACCESS) -> None:
        self._server, self._access = server, access
        self._tenant: str | None = access.tenant or None
        self._retry_ms = retry_ms
        self._wire: Wire | None = None

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        return self.again(lambda wire: wire.ask(cmd, **fields))

    def read(self, queue: str, partition: str, start: int, end: int) -> Iterator[Log]:
        """Yield messages from one offset up to another, some megabytes at a time.

        While one response is processed, the next is on its way.
        """
        where = {"queue": queue, "partition": partition, "max_bytes": READ_BYTES}
        asked: Wire | None = None

        def send(wire: Wire) -> None:
            nonlocal asked
            wire.send_packed("READ", **where, offset=start, max_count=min(end - start, READ_ROWS))
            asked = wire

        def receive(wire: Wire) -> Log:
            nonlocal asked
            if asked is not wire:
                send(wire)
            asked = None
            return wire.receive_packed(Log)

        while start < end:
            log = self.again(receive)
            start = log.next if log.runs else end
            if start < end:
                self.again(send)
            yield log

    def again(self, ask: Callable[[Wire], T]) -> T:
        """Return the result of ``ask``, reconnecting and retrying for up to ``retry_ms``."""
        patience = Patience(self._retry_ms / 1000)
        while True:
            try:
                if self._wire is None:
                    self._wire = Wire(self._server, access=self._access)
                return ask(self._wire)
            except NotTrusted:
                raise
            except Disconnected as error:
                self.close()
                if not patience.failures and self._retry_ms > 5_000:
                    logger.warning("no answer from %s; trying again for %d ms", self._server, self._retry_ms)
                pause_s = patience.pause_s(time.monotonic())
                if pause_s is None:
                    if isinstance(error.__cause__, Refused):
                        raise error.__cause__ from None
                    raise Unreachable(self._server, error) from error
            except Refused as error:
                pause_s = patience.pause_s(time.monotonic()) if error.code == "busy" else None
                if pause_s is None:
                    raise
            time.sleep(pause_s)

    def tenant(self) -> str:
        """Return the tenant whose queues these are."""
        if self._tenant is None:
            shows = self._access.token or self._access.cert
            self._tenant = str(self.ask("AUTH")["tenant"]) if shows else DEFAULT
        return self._tenant

    def queues(self) -> list[str]:
        return [each["queue"] for each in self.ask("QUEUES")["queues"]]

    def extents(self, queue: str, at: int | None = None, since: dict[str, int] | None = None) -> Extents:
        """Return the extents of all partitions of a queue."""
        found = self.ask("OFFSETS", queue=queue, at=at, since=since)
        return {
            (queue, each["partition"]): Extent(
                each["numbers"][0][0],
                each["first"],
                each["end"],
                each["bytes"],
                each["at"],
                each.get("since"),
            )
            for each in found["partitions"]
        }

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StageWriter:
    """Pipelined writes to one stage; after a lost connection the unanswered ones are sent again."""

    def __init__(self, link: Link, **stage: Any) -> None:
        self._link = link
        self._stage = stage
        self._unanswered: deque[dict[str, Any]] = deque()
        self._wire: Wire | None = None
        self._sent = 0
        """How many of the unanswered ones were sent over this connection."""
        self._parts = 0

    def write(self, count: int, **what: Any) -> None:
        """Stage messages: ``body`` and its attributes."""
        self._unanswered.append({"part": self._parts, "count": count, **what})
        self._parts += 1
        while len(self._unanswered) >= UNANSWERED_MAX:
            self._step()
        if self._sent < len(self._unanswered):
            self._link.again(self._send)

    def finish(self) -> None:
        """Wait until everything is staged."""
        while self._unanswered:
            self._step()

    def _step(self) -> None:
        """Wait for the next response."""
        self._link.again(self._receive)
        self._unanswered.popleft()
        self._sent -= 1

    def _send(self, wire: Wire) -> None:
        if wire is not self._wire:
            self._wire, self._sent = wire, 0
        while self._sent < len(self._unanswered):
            wire.send_packed("STAGE", **self._stage, **self._unanswered[self._sent])
            self._sent += 1

    def _receive(self, wire: Wire) -> None:
        self._send(wire)
        try:
            wire.receive_packed(_Staged)
        except Refused as error:
            if error.code == "busy":
                # The writes behind it are refused, too: all are sent again, in order.
                raise Disconnected(error.message) from error
            raise
