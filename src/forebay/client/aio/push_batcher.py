"""Concurrent pushes share requests: the first is sent at once, those that come meanwhile with the next."""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw, Struct

from forebay.client.aio.connection import now
from forebay.client.backoff import Within
from forebay.client.errors import Disconnected
from forebay.client.later import Later
from forebay.client.translate import EACH_ITS_OWN, ids_pushed, pushed_one
from forebay.client.types import Pushed
from forebay.core.errors import Busy, ForebayError
from forebay.wire.operations import push as wire

BATCH = 10_000
BATCH_BYTES = 4 * 1024 * 1024
"""Messages, and bytes of them, per request."""

Ask = Callable[..., Awaitable[Any]]


class Waiting(Struct, eq=False):
    """A push that waits to be sent."""

    payload: bytes
    options: dict[str, Any]
    future: "Future[Pushed]"
    since: float


Line = tuple[str, Within]
"""What shares requests: pushes to one queue that are equally patient."""


class Pusher:
    """Pushes messages, one request at a time for each queue."""

    def __init__(self, ask: Ask, once: Callable[[Within], dict[str, Any]], later: Later) -> None:
        self._ask = ask
        self._once = once
        self.later = later
        self._waiting: dict[Line, deque[Waiting]] = {}
        """A line is in it as long as a task sends its pushes."""
        self._loop: AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def push(self, queue: str, payload: bytes, options: dict[str, Any], within: Within) -> Pushed:
        line = queue, within
        if "idempotency_key" in options or "durability" in options:
            return await self._alone(line, payload, options)
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._waiting = loop, {}  # the tasks of another loop may be gone
        future: Future[Pushed] = loop.create_future()
        push = Waiting(payload, options, future, loop.time())
        waiting = self._waiting.get(line)
        if waiting is not None:
            waiting.append(push)
        else:
            self._waiting[line] = deque([push])
            task = asyncio.ensure_future(self._see_to(line, self._waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def close(self) -> None:
        if self.later.is_used:
            await asyncio.to_thread(self.later.close)
        else:
            self.later.close()  # has nothing to send, and takes nothing from now on

    async def _alone(self, line: Line, payload: bytes, options: dict[str, Any]) -> Pushed:
        queue, within = line
        known = {} if "idempotency_key" in options else self._once(within)
        request = wire.Push(queue=queue, payload=Raw(payload), **options, **known)
        pushed = await self._ask(request, within=within)
        return pushed_one(pushed, options)

    async def _see_to(self, line: Line, all_waiting: dict[Line, deque[Waiting]]) -> None:
        """Send the waiting pushes of a queue until there are none."""
        waiting = all_waiting[line]
        problem: ForebayError | None = None
        try:
            while waiting:
                batch = _batch(waiting)
                if batch:
                    problem = await self._send_in_time(line, batch, problem)
        finally:
            del all_waiting[line]
            for each in waiting:
                each.future.cancel()

    async def _send_in_time(
        self, line: Line, batch: list[Waiting], problem: ForebayError | None
    ) -> ForebayError | None:
        """Push a batch behind another, which ended with a problem. Return that of this one.

        Each push fails when the time is over that it would take at most if it were alone, the time that it
        waited for others included.
        """
        longest_s = _longest_s(line)
        left = line if problem is None else _left(line, now() - batch[0].since)
        if longest_s is None:
            return await self._send(left, batch)
        late = problem or Disconnected(f"the server did not answer within {longest_s:g} s")
        sending = asyncio.ensure_future(self._send(left, batch))
        try:
            for each in batch:
                left_s = each.since + longest_s - now()
                if left_s > 0 and (await asyncio.wait([sending], timeout=left_s))[0]:
                    return sending.result()
                _fail([each], late)
        finally:
            sending.cancel()  # nobody waits for it any more
        return late

    async def _send(self, line: Line, batch: list[Waiting]) -> ForebayError | None:
        """Push a batch. Return the problem if the server could not be reached."""
        try:
            if len(batch) == 1:
                pushed = [await self._alone(line, batch[0].payload, batch[0].options)]
            else:
                pushed = await self._together(line, batch)
        except (Busy, Disconnected) as error:
            _fail(batch, error)
            return error
        except ForebayError as error:
            # The batch was refused whole because one push is bad: halve it, so that the others get through.
            if len(batch) == 1:
                _fail(batch, error)
            else:
                half = len(batch) // 2
                await self._send(line, batch[:half])
                await self._send(line, batch[half:])
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for each, done in zip(batch, pushed, strict=True):
                if not each.future.done():
                    each.future.set_result(done)
        return None

    async def _together(self, line: Line, batch: list[Waiting]) -> list[Pushed]:
        done: wire.Pushed
        queue, within = line
        known = self._once(within)
        shared = batch[0].options
        if not shared.keys() & EACH_ITS_OWN and all(each.options == shared for each in batch):
            payloads = [Raw(each.payload) for each in batch]
            done = await self._ask(
                wire.Push(queue=queue, messages=payloads, **shared, **known), within=within
            )
            return [Pushed(id, done.durability) for id in ids_pushed(done)]
        items = [wire.Item(payload=Raw(each.payload), **each.options) for each in batch]
        done = await self._ask(wire.Push(queue=queue, items=items, **known), within=within)
        duplicates, replaced = set(done.duplicates or ()), set(done.replacements or ())
        return [
            Pushed(
                id,
                done.durability,
                at in duplicates and bool(each.options.keys() & EACH_ITS_OWN),
                at in replaced,
            )
            for at, (id, each) in enumerate(zip(ids_pushed(done), batch, strict=True))
        ]


def _longest_s(line: Line) -> float | None:
    """Return how long a push may take at most, if it says so: the last retry may time out, too."""
    _, within = line
    if within.timeout_s is None or within.retry_s is None:
        return None
    return within.timeout_s + within.retry_s + within.timeout_s


def _left(line: Line, waited_s: float) -> Line:
    """Return what is left of the patience of pushes that waited for others, which gave up."""
    queue, within = line
    if within.retry_s is None:
        return line
    return queue, Within(within.timeout_s, max(within.retry_s - waited_s, 0.0))


def _batch(waiting: deque[Waiting]) -> list[Waiting]:
    """Return the next pushes, as many as fit into one request."""
    batch: list[Waiting] = []
    size = 0
    while waiting and len(batch) < BATCH and size < BATCH_BYTES:
        push = waiting.popleft()
        if not push.future.done():  # cancelled before it was sent: it is not pushed
            batch.append(push)
            size += len(push.payload)
    return batch


def _fail(batch: list[Waiting], error: BaseException) -> None:
    for each in batch:
        if each.future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            each.future.cancel()
        else:
            each.future.set_exception(error)
