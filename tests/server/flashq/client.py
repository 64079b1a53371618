"""A client of flashQ, written after its documented wire: a pool of connections, pipelining, workers.

It knows nothing of this project: it is to see what clients of flashQ see.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count, cycle
from typing import Any

Reply = dict[str, Any]
Handler = Callable[[Reply], Awaitable[Any]]
RETRIES = 300
PAUSE_S = 0.05
"""Pause before another try to connect."""
PATIENCE_S = 30.0


class Refused(Exception):
    """The server's error."""


class Connection:
    """One connection: many commands in flight, told apart by their reqId."""

    def __init__(self, host: str, port: int, *, framed: bool, token: str | None) -> None:
        self._place = host, port
        self._framed = framed
        self._token = token
        self._numbers = count(1)
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self.events: asyncio.Queue[Reply] = asyncio.Queue()
        self.connects = 0

    async def call(self, cmd: str, **fields: Any) -> Reply:
        """The answer to a command; ConnectionError if it is lost."""
        await self._connect()
        return await self._call(cmd, fields)

    async def _call(self, cmd: str, fields: dict[str, Any]) -> Reply:
        assert self._writer is not None
        name = str(next(self._numbers))
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        body = json.dumps({"cmd": cmd, "reqId": name, **fields}).encode()
        self._writer.write(len(body).to_bytes(4, "big") + body if self._framed else body + b"\n")
        reply = await answer
        if not reply["ok"]:
            raise Refused(reply["error"])
        return reply

    async def _connect(self) -> None:
        async with self._connecting:
            if self._writer is not None:
                return
            for left in reversed(range(RETRIES)):
                try:
                    reader, writer = await asyncio.open_connection(*self._place)
                    break
                except OSError:
                    if not left:
                        raise
                    await asyncio.sleep(PAUSE_S)
            self.connects += 1
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader))
            # Not in the task itself: one that is cancelled before it began does not run at all.
            self._reading.add_done_callback(lambda _: writer.close())
            if self._token is not None:
                await self._call("AUTH", {"token": self._token})

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                if self._framed:
                    body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                else:
                    body = await reader.readline()
                    if not body:
                        break
                reply = json.loads(body)
                if "event" in reply:
                    self.events.put_nowait(reply)
                else:
                    waiting = self._waiting.pop(reply.pop("reqId"))
                    if not waiting.done():
                        waiting.set_result(reply)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer = None
            waiting_, self._waiting = self._waiting, {}
            for each in waiting_.values():
                if not each.done():
                    each.set_exception(ConnectionError("the connection was lost"))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class Client:
    """A pool of connections, used in turn."""

    def __init__(
        self, host: str, port: int, *, pool: int = 3, framed: bool = True, token: str | None = None
    ) -> None:
        self.pool = [Connection(host, port, framed=framed, token=token) for _ in range(pool)]
        self._turn = cycle(self.pool)

    async def call(self, cmd: str, **fields: Any) -> Reply:
        return await next(self._turn).call(cmd, **fields)

    async def again(self, cmd: str, **fields: Any) -> Reply:
        """The same for what may be sent twice: it is, if a connection is lost."""
        while True:
            try:
                return await self.call(cmd, **fields)
            except ConnectionError:
                continue

    async def push(self, queue: str, data: Any, **options: Any) -> Any:
        return (await self.call("PUSH", queue=queue, data=data, **options))["id"]

    async def finished(self, job: Any) -> Any:
        """The result of a job; Refused if it failed."""
        reply = await self.again("WAITJOB", id=job, timeout=int(PATIENCE_S * 1_000))
        return reply.get("result")

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self.pool))

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Worker:
    """Pulls jobs of a queue, several at a time, and says what became of them."""

    def __init__(self, client: Client, queue: str, handler: Handler, *, concurrency: int = 4) -> None:
        self._client = client
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._tasks: list[asyncio.Task[None]] = []
        self.begun: list[Any] = []
        self.busiest = 0
        self._busy = 0

    async def _run(self) -> None:
        while True:
            pulled = await self._client.again("PULL", queue=self._queue, timeout=5_000)
            if pulled["job"] is not None:
                await self._work(pulled["job"])

    async def _work(self, job: Reply) -> None:
        self.begun.append(job["data"])
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            result = await self._handler(job)
        except Exception as error:
            settled = self._client.again("FAIL", id=job["id"], error=str(error))
        else:
            settled = self._client.again("ACK", id=job["id"], result=result)
        finally:
            self._busy -= 1
        try:
            await settled
        except Refused:
            return  # somebody else has it: this worker took too long

    async def __aenter__(self) -> "Worker":
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
