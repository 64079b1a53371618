"""flashQ's events: one per job, with what is known of it.

    hub (one event per commit, kind and queue) ──> feed ──> one event per job ──> streams, sockets
    PARTIAL ───────────────────────────────────────┘

Lifecycle events name ranges of ids. Whoever listens here wants single jobs with data, results and errors, so
the feed looks these up, once for all listeners. It runs only while there are any.
"""

import asyncio
import logging
from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api.principals import has_queue
from forebay.core.api.queries import Shown
from forebay.core.errors import ForebayError
from forebay.core.state import Event, ShownRun
from forebay.core.words import DEFAULT
from forebay.server.events.hub import WAITING_BYTES_MAX, Batch, Hub, Listener, Wanted
from forebay.server.flashq.command import shown
from forebay.server.flashq.events import KINDS, JobEvent
from forebay.server.flashq.web.details import Details, payload_of
from forebay.server.node_client import NodeClient

logger = logging.getLogger("forebay.flashq")

TOLD = KINDS | {"retried": "timeout"}
"""flashQ's type of an event, by our kind. Of retries it has an event only for jobs that ran out of time."""
TYPES = ("pushed", "completed", "failed", "timeout", "progress", "partial")
NOTED = {"PARTIAL": "partial"}
"""Commands with an event of their own: these are notes of a job, and no part of its lifecycle."""
OUT_OF_TIME = "lease expired"
"""Error that the core gives a job whose lease ran out."""
TOGETHER = 200
"""Jobs looked up at a time."""
TOO_FAST = "events came faster than they could be told: some are left out"
PENDING_MAX = 10_000
PENDING_BYTES_MAX = 4 * WAITING_BYTES_MAX
"""Events and notes that may wait to be told, and their bytes: room for all that the hub gives at a time, and
for notes in between. What comes beyond this is left out."""
YIELD_BYTES = 64 * 1024
"""Bytes made before the streams get their turn to write: a large batch must not overflow their buffers."""

_encode = msgspec.json.Encoder().encode
_event = msgspec.json.Decoder(Event).decode


class Interest(Struct, frozen=True):
    """Which events a listener wants."""

    queue: str | None = None
    job: int | None = None
    types: frozenset[str] = frozenset()
    """All if empty."""
    within: tuple[str, ...] = ()
    """Patterns, one of which the queue must match; all queues if empty."""

    def has(self, queue: str, job: int, kind: str) -> bool:
        return (
            (self.queue is None or self.queue == queue)
            and (self.job is None or self.job == job)
            and (not self.types or kind in self.types)
            and has_queue(self.within, queue)
        )


class Noted(Struct, gc=False):
    """A note that was taken of a job: its queue is looked up when the event is made."""

    kind: str
    job: int
    at: int
    data: Raw | UnsetType


def _size(happened: bytes | Noted) -> int:
    data = happened.data if isinstance(happened, Noted) else happened
    return 0 if data is UNSET else len(data)


class Pending:
    """What waits to be told, in its order. It has a bound: beyond that, what comes is refused."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | Noted] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, happened: bytes | Noted) -> bool:
        """Return whether there was room for it."""
        has_room = len(self._waiting) < PENDING_MAX and self._bytes + _size(happened) <= PENDING_BYTES_MAX
        if has_room or not self._waiting:
            self._waiting.append(happened)
            self._bytes += _size(happened)
            return True
        return False

    def next(self) -> bytes | Noted:
        found = self._waiting.popleft()
        self._bytes -= _size(found)
        return found

    def clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0


class Feed:
    """Makes events of the jobs of a tenant for all who listen at this door."""

    def __init__(
        self,
        hub: Hub,
        questions: NodeClient,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        tenant: str = DEFAULT,
    ) -> None:
        self._hub, self._loop, self._clock = hub, loop, clock
        self._details = Details(questions, tenant)
        self._wanted = Wanted(tenant, frozenset(), frozenset(TOLD))
        self._listeners: dict[Listener, Interest] = {}
        self._source: Listener | None = None
        self._pending = Pending()
        self._is_short = False
        """Whether something was left out, and that was logged, since nothing was pending."""
        self._task: Task[None] | None = None

    # Listeners.

    def join(self, interest: Interest) -> Listener:
        """Subscribe: everything that happens from now on is told."""
        if self._source is None:
            self._source, _ = self._hub.join(self._wanted)
            self._task = self._loop.create_task(self._run(self._source))
        listener = Listener(self._loop)
        self._listeners[listener] = interest
        return listener

    def leave(self, listener: Listener) -> bool:
        """Unsubscribe; return whether anybody still listens."""
        self._listeners.pop(listener, None)
        if not self._listeners:
            self._stop()
        return bool(self._listeners)

    def _stop(self) -> None:
        if self._source is not None:
            self._hub.leave(self._wanted, self._source)
            self._source = None
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """End all subscriptions: the server shuts down."""
        for listener in self._listeners:
            listener.end()

    # What happens.

    def notice(self, request: Any, reply: object) -> None:
        """Make an event of a request that took a note of a job."""
        if self._source is None or isinstance(reply, ForebayError):
            return
        kind = NOTED.get(type(request).__struct_config__.tag)
        if kind is None:
            return
        noted = Noted(kind, ids.parse(request.id), self._clock(), getattr(request, "data", UNSET))
        # The hub collects events for a moment: what happened before the note is told before it.
        self._hub.reached(self._wanted.tenant)
        self._collect(self._source)
        self._add(noted)
        self._source.wake()

    def _collect(self, source: Listener) -> None:
        for batch, _ in source.take():
            for _, payload in batch.events:
                self._add(payload)

    def _add(self, happened: bytes | Noted) -> None:
        if not self._pending.add(happened) and not self._is_short:
            self._is_short = True
            logger.warning(TOO_FAST)

    async def _run(self, source: Listener) -> None:
        try:
            while not source.ended:
                if not self._pending:
                    await source.wait()
                self._collect(source)
                if source.dropped:
                    logger.warning(TOO_FAST)
                    self._hub.leave(self._wanted, source)
                    source = self._source = self._hub.join(self._wanted)[0]
                while self._pending:
                    await self._tell(self._pending.next())
                self._is_short = False
            self.end()
        except Exception:
            logger.exception("bug: events could not be told")
            self.end()

    async def _tell(self, happened: bytes | Noted) -> None:
        if isinstance(happened, Noted):
            found = await self._details.shown([happened.job])
            for each in found.values():
                self._offer(happened.job, self._noted(happened, each))
            return
        event = _event(happened)
        if event.group not in ("", DEFAULT):
            return
        sent = 0
        async for job, made in self._of_jobs(event):
            sent += self._offer(job, made)
            if sent > YIELD_BYTES:
                sent = 0
                await asyncio.sleep(0)

    def _noted(self, noted: Noted, job: Shown) -> JobEvent:
        return JobEvent(
            event=f"job:{noted.kind}",
            event_type=noted.kind,
            queue=job.queue.name,
            job_id=shown(noted.job),
            timestamp=noted.at,
            data=noted.data,
        )

    # Lifecycle events.

    async def _of_jobs(self, event: Event) -> AsyncIterator[tuple[int, JobEvent]]:
        kind = TOLD[event.kind]
        told = chain.from_iterable(map(_ids_of, event.runs))
        progress = dict(zip(told, event.progress, strict=True)) if event.progress else {}
        for jobs in _in_parts(self._wanted_of(event, kind)):
            details = await self._details.shown(jobs)
            results = await self._details.results(jobs) if kind == "completed" else {}
            for job in jobs:
                found = details.get(job)
                error = found.state.error if found is not None else ""
                if kind == "timeout" and error != OUT_OF_TIME:
                    continue
                data = (
                    payload_of(found) if kind == "pushed" and found is not None else results.get(job, UNSET)
                )
                yield (
                    job,
                    JobEvent(
                        event=f"job:{kind}",
                        event_type=kind,
                        queue=event.queue,
                        job_id=shown(job),
                        timestamp=event.at,
                        data=data,
                        error=error if error and kind in ("failed", "timeout") else UNSET,
                        progress=progress.get(job, UNSET),
                        duration_ms=UNSET if event.duration_ms is None else event.duration_ms,
                    ),
                )

    def _wanted_of(self, event: Event, kind: str) -> Iterable[int]:
        """Return the jobs of an event that a listener wants."""
        given = [_ids_of(run) for run in event.runs]
        wanted = [
            each
            for each in self._listeners.values()
            if each.queue in (None, event.queue)
            and (not each.types or kind in each.types)
            and has_queue(each.within, event.queue)
        ]
        if any(each.job is None for each in wanted):
            return (job for run in given for job in run)
        jobs = sorted({each.job for each in wanted if each.job is not None})
        return (job for job in jobs if any(job in run for run in given))

    def _offer(self, job: int, made: JobEvent) -> int:
        """Send an event to the listeners that want it; return its bytes."""
        payload = _encode(made)
        if b"\n" in payload or b"\r" in payload:  # a payload as it was pushed may have breaks between values
            payload = payload.replace(b"\r", b" ").replace(b"\n", b" ")
        batch = Batch([(made.event_type, payload)], "")
        stream = b"event: %s\ndata: %s\n\n" % (made.event_type.encode(), payload)
        for listener, interest in list(self._listeners.items()):
            if interest.has(made.queue, job, made.event_type):
                listener.offer(batch, stream)
        return len(stream)


def _ids_of(run: ShownRun) -> range:
    return range(ids.parse(run[3]), ids.parse(run[3]) + run[2])


def _in_parts(jobs: Iterable[int]) -> Iterable[list[int]]:
    some: list[int] = []
    for job in jobs:
        some.append(job)
        if len(some) == TOGETHER:
            yield some
            some = []
    if some:
        yield some
