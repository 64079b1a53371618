"""Pushes that are sent in the background: buffered in memory, and delivered in batches by a thread.

The buffer is lost with its process. A batch has one idempotency key for as long as it is tried, so that its
messages are pushed once however often it was sent.

Each queue has a lane. While the server refuses one queue as busy, its lane alone waits; while the server
can't be reached, all do.
"""

import atexit
import encodings.idna  # noqa: F401  the thread would import it to connect, and a fork may not interrupt that
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from msgspec import Raw, Struct, field, json

from forebay.client.access import NO_ACCESS, Access
from forebay.client.address import check_address
from forebay.client.backoff import wait_s
from forebay.client.errors import Disconnected
from forebay.client.sync.requests import Asking
from forebay.client.translate import OF_ALL, body_of
from forebay.core.errors import Busy, ForebayError, Invalid
from forebay.wire.operations import push as wire

logger = logging.getLogger("forebay.client")

BUFFER_MAX = 10_000
BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Messages, and bytes of their payloads, that wait to be sent. Those to busy queues count apart."""
BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""Messages, and bytes of them, per request."""
FLUSH_S = 5.0
"""How long closing waits until everything is sent."""
LEAST_S = 1.0
"""Time for that at the exit of a program that has none left: a server that answers needs less."""
BUSY_S_MAX = 1.0
"""Longest pause that a busy server can ask for."""
REFUSED_S = 1.0
"""Seconds between two lines of the log about refused messages: a thousand may be refused in one."""
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


class Outgoing(Struct, eq=False):
    """Messages of one request. The request is kept, and its key with it, for as long as it is tried."""

    messages: list[Buffered]
    request: wire.Push | None = None


class Room(Struct, eq=False):
    """The room that some lanes share."""

    count: int = 0
    bytes: int = 0

    def takes(self, size: int) -> bool:
        return self.count < BUFFER_MAX and self.bytes + size <= BUFFER_BYTES_MAX


class Lane(Struct, eq=False):
    """Messages to one queue, in order."""

    room: Room
    waiting: deque[Buffered] = field(default_factory=deque)
    outgoing: deque[Outgoing] = field(default_factory=deque)
    """Requests that were made of messages and are not answered yet. Only the thread touches it."""
    count: int = 0
    bytes: int = 0
    failures: int = 0
    """Times in a row that the queue was busy."""
    due_at: float = 0.0
    problem: str = ""

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size
        self.room.count += count
        self.room.bytes += size

    def move(self, room: Room) -> None:
        """Count its messages in another room."""
        count, size = self.count, self.bytes
        self.add(-count, -size)
        self.room = room
        self.add(count, size)

    def fill(self) -> None:
        """Take the next messages that fit into one request, if there is none to try again."""
        size = 0
        batch: list[Buffered] = []
        while self.waiting and not self.outgoing and len(batch) < BATCH and size < BATCH_BYTES:
            if batch and (self.waiting[0].is_alone or batch[0].is_alone):
                break
            batch.append(self.waiting.popleft())
            size += len(batch[-1].payload)
        if batch:
            self.outgoing.append(Outgoing(batch))


class Refusals(Struct, eq=False):
    """Messages that the server refused, and that the log does not tell of yet."""

    count: int = 0
    last: tuple[str, str] = "", ""
    """The queue of the last one, and why."""
    due_at: float = 0.0
    """No line before this."""

    def add(self, queue: str, error: ForebayError) -> None:
        self.count += 1
        self.last = queue, str(error)

    def tell(self, now: float, *, at_once: bool = False) -> None:
        """Log how many there were since the last line, if it is time."""
        if not self.count or not (at_once or now >= self.due_at):
            return
        if self.count == 1:
            logger.error("a push to %s that was to be sent later is refused: %s", *self.last)
        else:
            several = "%d pushes that were to be sent later are refused, the last one to %s: %s"
            logger.error(several, self.count, *self.last)
        self.count, self.due_at = 0, now + REFUSED_S


class Later:
    """A buffer of pushes, and the thread that sends them. Any thread may add to it."""

    def __init__(self, server: str, timeout_s: float, access: Access = NO_ACCESS) -> None:
        check_address(server)  # the thread could tell nobody
        self._server, self._timeout_s, self._access = server, timeout_s, access
        self._is_closed = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Begin with nothing; also after a fork, where buffer, lock and thread belong to the parent."""
        self._changed = threading.Condition()
        self._lanes: dict[str, Lane] = {}
        """By queue; only those with messages. The one that was served longest ago comes first."""
        self._free, self._held = Room(), Room()
        """The room of all lanes but busy ones, and the room of those."""
        self._thread: threading.Thread | None = None
        self._is_given_up = False
        self._problem = ""
        """Why the server could not be reached, while it can't be."""
        self._failures = 0
        self._away_until = 0.0
        self._refusals = Refusals()

    def add(self, queue: str, payload: bytes, options: dict[str, Any]) -> None:
        """Buffer a message. Raise ``Busy`` if the buffer is full."""
        if options:
            # As they are now: the caller may change what they hold before they are sent. This raises here
            # what nobody would hear of later.
            options = _plain(body_of(options))
        if len(payload) > BUFFER_BYTES_MAX:
            accepted = f"at most {BUFFER_BYTES_MAX} bytes to be pushed later; this has {len(payload)}"
            raise Invalid("payload", accepted)  # waiting would not help, as after a Busy
        with self._changed:
            if self._is_closed:
                raise Disconnected("the client is closed", sent=False)
            lane = self._lanes.get(queue) or Lane(self._free)
            if not lane.room.takes(len(payload)):
                problem = lane.problem or self._problem
                why = f": {problem}" if problem else ""
                raise Busy(f"{lane.room.count} pushes wait to be sent, and the buffer takes no more{why}")
            if self._thread is None or not self._thread.is_alive():
                self._start()
            lane.waiting.append(Buffered(queue, payload, options))
            lane.add(1, len(payload))
            self._lanes[queue] = lane
            self._changed.notify_all()

    def _start(self) -> None:
        asking = Asking(self._server, self._access, timeout_s=self._timeout_s, retry_s=0)
        thread = threading.Thread(target=self._work, args=(asking,), name="forebay-later", daemon=True)
        thread.start()
        self._thread = thread
        # A child of multiprocessing may end without that, and has exit functions of its own.
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, close_all, exitpriority=0)

    @property
    def is_used(self) -> bool:
        """Whether anything was ever added."""
        return self._thread is not None

    @property
    def count(self) -> int:
        """Messages that wait or are being sent."""
        return self._free.count + self._held.count

    def flush(self, within_s: float) -> int:
        """Wait until everything is sent, for a bounded time; return how many messages are not."""
        with self._changed:
            self._changed.wait_for(lambda: not self.count, within_s)
            self._refusals.tell(time.monotonic(), at_once=True)
            return self.count

    def close(self, within_s: float | None = None) -> None:
        """Send what is buffered, for a bounded time; log how many messages were lost."""
        self._close_by(time.monotonic() + (FLUSH_S if within_s is None else within_s))

    def _close_by(self, until: float) -> None:
        with self._changed:
            self._is_closed = True
            if self._thread is None or self._is_given_up:
                return
            self._changed.notify_all()
            within_s = max(until - time.monotonic(), 0.0)
            lost = self.flush(within_s)
            why = self.problem
            self._is_given_up = True
            self._changed.notify_all()
        if lost:
            why = why or f"they were not sent within {within_s:.3g} s"
            logger.warning("%d pushes that were to be sent later are lost: %s", lost, why)

    @property
    def problem(self) -> str:
        """Why messages wait, if anything but time is the reason."""
        return self._problem or next((each.problem for each in self._lanes.values() if each.problem), "")

    # The thread.

    def _work(self, asking: Asking) -> None:
        # Not retried by the client: between two tries this thread has to notice that it is closed, and to
        # serve the other lanes.
        try:
            while (lane := self._next()) is not None:
                self._send(asking, lane)
        finally:
            asking.close()

    def _next(self) -> Lane | None:
        """Wait for a lane that has something to send; None if all is over."""
        with self._changed:
            while not self._is_given_up and not (self._is_closed and not self._lanes):
                now = time.monotonic()
                self._refusals.tell(now)
                due_at = max(
                    self._away_until, min((each.due_at for each in self._lanes.values()), default=now)
                )
                if not self._lanes or due_at > now:
                    next_at = min(
                        due_at if self._lanes else inf, self._refusals.due_at if self._refusals.count else inf
                    )
                    self._changed.wait(None if next_at == inf else next_at - now)
                    continue
                queue = next(name for name, lane in self._lanes.items() if lane.due_at <= now)
                lane = self._lanes[queue] = self._lanes.pop(queue)  # behind the others
                lane.fill()
                return lane
            return None

    def _send(self, asking: Asking, lane: Lane) -> None:
        """Try the first request of a lane once."""
        outgoing = lane.outgoing[0]
        try:
            if outgoing.request is None:
                outgoing.request = _request(asking, outgoing.messages)
            asking._ask(outgoing.request)
        except Busy as error:
            self._hold(lane, error, error.retry_after_ms / 1000)
        except Disconnected as error:
            self._wait(error)
        except ForebayError as error:
            self._refused(lane, error)
        except Exception as error:  # a bug, or a library's: other lanes go on, and this one is tried again
            if not lane.failures:
                logger.exception("pushes that are to be sent later can't be")
            self._hold(lane, error)
        else:
            self._sent(lane)

    def _sent(self, lane: Lane) -> None:
        messages = lane.outgoing.popleft().messages
        with self._changed:
            self._problem, self._failures = "", 0
            lane.problem, lane.failures = "", 0
            lane.move(self._free)
            lane.add(-len(messages), -sum(len(each.payload) for each in messages))
            if not lane.count:
                del self._lanes[messages[0].queue]
            self._changed.notify_all()

    def _hold(self, lane: Lane, error: Exception, least_s: float = 0.0) -> None:
        """Let a lane wait for its queue, without the others."""
        with self._changed:
            if not lane.failures:
                logger.warning("%d pushes wait to be sent: %s", lane.count, error)
            lane.problem = str(error) or type(error).__name__
            lane.due_at = time.monotonic() + max(wait_s(lane.failures), min(least_s, BUSY_S_MAX))
            lane.failures += 1
            lane.move(self._held)

    def _wait(self, error: Disconnected) -> None:
        """Let all lanes wait for the server."""
        with self._changed:
            if not self._failures:
                logger.warning("%d pushes wait to be sent: %s", self.count, error)
            self._problem = str(error)
            self._away_until = time.monotonic() + wait_s(self._failures)
            self._failures += 1

    def _refused(self, lane: Lane, error: ForebayError) -> None:
        """Halve a batch that was refused whole because one push is bad, so that the others get through."""
        messages = lane.outgoing[0].messages
        if len(messages) > 1:
            lane.outgoing.popleft()
            half = len(messages) // 2
            lane.outgoing.extendleft((Outgoing(messages[half:]), Outgoing(messages[:half])))
        else:
            with self._changed:
                self._refusals.add(messages[0].queue, error)
                self._refusals.tell(time.monotonic())
            self._sent(lane)


def _request(asking: Asking, batch: list[Buffered]) -> wire.Push:
    known = {**asking._once(), "idempotency_ms": KNOWN_MS}
    first = batch[0]
    if len(batch) == 1:
        if "idempotency_key" in first.options:
            known = {}
        return wire.Push(queue=first.queue, payload=Raw(first.payload), **first.options, **known)
    items = [wire.Item(payload=Raw(each.payload), **each.options) for each in batch]
    return wire.Push(queue=first.queue, items=items, **known)


_plain: Callable[[bytes], dict[str, Any]] = json.Decoder(dict[str, Any]).decode


_exits_by = inf
"""When the process should have ended, if anybody said so."""


def hurry_exit(by: float) -> None:
    """Have this process wait less for its buffers at its exit, if that is close to ``by`` or later."""
    global _exits_by
    _exits_by = by


_all: "weakref.WeakSet[Later]" = weakref.WeakSet()


def flush_all() -> None:
    """Send what is buffered in this process, for a bounded time: it may be killed at any time after this."""
    until = time.monotonic() + FLUSH_S
    for each in list(_all):
        left = each.flush(max(until - time.monotonic(), 0.0)) if each.is_used else 0
        if left:
            why = each.problem or f"they were not sent within {FLUSH_S:g} s"
            logger.warning("%d pushes still wait, and are lost if this process ends: %s", left, why)


def close_all() -> None:
    """Send what is buffered in this process, which ends: all buffers together have the time of one."""
    now = time.monotonic()
    until = now + min(FLUSH_S, max(_exits_by - now, LEAST_S))
    for each in list(_all):
        each._close_by(until)  # the threads of the others send, too, while this one is waited for


atexit.register(close_all)  # a program that just ends still sends what it buffered


def _begin_all() -> None:
    for each in list(_all):
        each._begin()


os.register_at_fork(after_in_child=_begin_all)
