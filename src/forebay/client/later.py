"""Pushes that are sent in the background: buffered in memory, and delivered in batches by a thread.

The buffer is lost with its process. A batch has one idempotency key for as long as it is tried, so that its
messages are pushed once however often it was sent.
"""

import atexit
import logging
import os
import threading
from collections import deque
from typing import Any

from msgspec import Raw, Struct

from forebay.client.backoff import wait_s
from forebay.client.errors import Disconnected
from forebay.client.sync.requests import Asking
from forebay.client.translate import OF_ALL
from forebay.core.errors import Busy, ForebayError
from forebay.wire.operations import push as wire

logger = logging.getLogger("forebay.client")

BUFFER_MAX = 10_000
BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Messages, and bytes of their payloads, that wait to be sent."""
BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""Messages, and bytes of them, per request."""
FLUSH_S = 5.0
"""How long closing waits until everything is sent."""
KNOWN_MS = 24 * 3_600_000
"""How long the server remembers a batch: it may come again when the server is back after hours."""


class Buffered(Struct, frozen=True):
    """A message that waits to be sent."""

    queue: str
    payload: bytes
    options: dict[str, Any]

    @property
    def is_alone(self) -> bool:
        """Whether it has options of a request, so that it can't share one."""
        return not OF_ALL.isdisjoint(self.options)


class Later:
    """A buffer of pushes, and the thread that sends them. Any thread may add to it."""

    def __init__(self, server: str, timeout_s: float) -> None:
        self._server, self._timeout_s = server, timeout_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[Buffered] = deque()
        self._bytes = 0
        self._count = 0
        """Messages that wait or are being sent."""
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_given_up = False
        self._problem = ""
        """Why the server could not be reached, while it can't be."""

    def add(self, queue: str, payload: bytes, options: dict[str, Any]) -> None:
        """Buffer a message. Raise ``Busy`` if the buffer is full."""
        if self._pid != os.getpid():
            self._begin()  # after a fork, the buffer and its thread belong to the parent
        with self._changed:
            if self._is_closed:
                raise Disconnected("the client is closed", sent=False)
            if self._count >= BUFFER_MAX or self._bytes + len(payload) > BUFFER_BYTES_MAX:
                why = f": {self._problem}" if self._problem else ""
                told = f"{self._count} pushes wait to be sent, and the buffer takes no more{why}"
                raise Busy(told)
            self._waiting.append(Buffered(queue, payload, options))
            self._count += 1
            self._bytes += len(payload)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="forebay-later", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # a program that just ends still sends what it buffered
            self._changed.notify_all()

    @property
    def is_used(self) -> bool:
        """Whether anything was ever added."""
        return self._thread is not None

    def close(self) -> None:
        """Send what is buffered, for a bounded time; log how many messages were lost."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._is_closed = True
            if self._thread is None or self._is_given_up:
                return
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._count, FLUSH_S)
            lost, self._is_given_up = self._count, True
            self._waiting.clear()
            self._changed.notify_all()
        atexit.unregister(self.close)
        if lost:
            why = self._problem or f"they were not sent within {FLUSH_S:g} s"
            logger.warning("%d pushes that were to be sent later are lost: %s", lost, why)

    # The thread.

    def _work(self) -> None:
        # Not retried there: between two tries this thread has to notice that it is closed.
        asking = Asking(self._server, timeout_s=self._timeout_s, retry_s=0)
        try:
            while batch := self._next():
                self._send(asking, batch)
                with self._changed:
                    self._count -= len(batch)
                    self._bytes -= sum(len(each.payload) for each in batch)
                    self._changed.notify_all()
        finally:
            asking.close()

    def _next(self) -> list[Buffered]:
        """Wait for messages, and return the next that fit into one request; none if all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            batch: list[Buffered] = []
            size = 0
            while self._waiting and len(batch) < BATCH and size < BATCH_BYTES:
                each = self._waiting[0]
                if batch and (each.queue != batch[0].queue or each.is_alone or batch[0].is_alone):
                    break
                batch.append(self._waiting.popleft())
                size += len(each.payload)
            return batch

    def _send(self, asking: Asking, batch: list[Buffered]) -> None:
        request = _request(asking, batch)
        failures = 0
        while not self._is_given_up:
            try:
                asking._ask(request)
                self._problem = ""
                return
            except (Busy, Disconnected) as error:
                if not failures:
                    logger.warning("%d pushes wait to be sent: %s", self._count, error)
                self._problem = str(error)
            except ForebayError as error:
                self._refused(asking, batch, error)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_given_up, wait_s(failures))
            failures += 1

    def _refused(self, asking: Asking, batch: list[Buffered], error: ForebayError) -> None:
        """Halve a batch that was refused whole because one push is bad, so that the others get through."""
        if len(batch) > 1:
            half = len(batch) // 2
            self._send(asking, batch[:half])
            self._send(asking, batch[half:])
        else:
            logger.error("a push to %s that was to be sent later is refused: %s", batch[0].queue, error)


def _request(asking: Asking, batch: list[Buffered]) -> wire.Push:
    known = {**asking._once(), "idempotency_ms": KNOWN_MS}
    first = batch[0]
    if len(batch) == 1:
        if "idempotency_key" in first.options:
            known = {}
        return wire.Push(queue=first.queue, payload=Raw(first.payload), **first.options, **known)
    items = [wire.Item(payload=Raw(each.payload), **each.options) for each in batch]
    return wire.Push(queue=first.queue, items=items, **known)
