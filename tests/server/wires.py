"""One way to talk for scenarios, whatever is spoken below: a table of wires, and an adapter for each kind.

To have another listener or framing in every scenario, give it a line in ``WIRES``.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import isawaitable
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, Protocol

import pytest
from msgspec import Struct

from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient
from forebay.core.errors import ForebayError
from tests.server.http.talking import Http, at
from tests.serving import Reply, Request, Server


class Message(Struct, frozen=True):
    """What a scenario wants to know of a message that was delivered."""

    id: int
    payload: Any
    lease: str | None
    failures: int = 0
    priority: int = 0


class Refused(Exception):
    """An error, by its code."""


class Wire(Protocol):
    """What scenarios do. Options of a push have the names they have over HTTP."""

    def push(self, queue: str, *payloads: Any, **options: Any) -> list[int]: ...
    def pop(self, queue: str, count: int = 1, **fields: Any) -> list[Message]: ...
    def ack(self, *ids: int, lease: str | None = None, group: str | None = None) -> int: ...
    def nack(self, *ids: int, error: str = "", delay_ms: int = 0) -> int: ...
    def extend(self, lease: str, lease_ms: int) -> int: ...
    def cancel(self, queue: str, *ids: int) -> int: ...
    def state(self, queue: str, message: int, group: str = "default") -> str: ...
    def configure(self, queue: str, **options: Any) -> None: ...
    def pause(self, queue: str, paused: bool) -> None: ...
    def dead(self, queue: str) -> list[tuple[Any, str]]: ...
    def requeue(self, queue: str) -> int: ...
    def log(self, queue: str) -> list[Any]: ...
    def set(self, key: list[str], value: Any) -> str: ...
    def get(self, key: list[str]) -> Any: ...
    def add(self, key: list[str], amount: int) -> None: ...
    def transact(self, acked: int, queue: str, payload: Any) -> None: ...
    def cron(self, name: str, queue: str, payload: Any, **fields: Any) -> None: ...
    def crons(self) -> list[str]: ...
    def end_cron(self, name: str) -> None: ...


# Commands of TCP, in whatever framing.


def payloads_of(run: Reply) -> list[Any]:
    """What a run of a READ holds: in MessagePack it is a part of a segment, as it is kept."""
    body = run["payloads"]
    if not isinstance(body, bytes):
        return list(body)
    ends = struct.unpack_from(f"<{run['count'] + 1}i", body)
    payloads = body[4 * len(ends) :]
    return [json.loads(payloads[low:high]) for low, high in pairwise(ends)]


class Commands:
    """Commands of TCP; ``asking`` sends one and waits for its reply."""

    def __init__(self, asking: Callable[[Request], Reply]) -> None:
        self._asking = asking

    def _ask(self, cmd: str, **fields: Any) -> Reply:
        said = {name: value for name, value in fields.items() if value is not None}
        reply = self._asking({"cmd": cmd, **said})
        if not reply["ok"]:
            raise Refused(reply["error"]["code"])
        return reply

    def push(self, queue: str, *payloads: Any, **options: Any) -> list[int]:
        items = [{"payload": payload, **options} for payload in payloads]
        ids: list[int] = self._ask("PUSH", queue=queue, items=items)["ids"]
        return ids

    def pop(self, queue: str, count: int = 1, **fields: Any) -> list[Message]:
        found = self._ask("POP", queue=queue, count=count, **fields)["messages"]
        return [
            Message(each["id"], each["payload"], each["lease"], each["failures"], each["priority"])
            for each in found
        ]

    def ack(self, *ids: int, lease: str | None = None, group: str | None = None) -> int:
        return int(self._ask("ACK", ids=list(ids) or None, lease=lease, group=group)["count"])

    def nack(self, *ids: int, error: str = "", delay_ms: int = 0) -> int:
        return int(self._ask("NACK", ids=list(ids), error=error, delay_ms=delay_ms)["count"])

    def extend(self, lease: str, lease_ms: int) -> int:
        return int(self._ask("EXTEND", lease=lease, lease_ms=lease_ms)["expires_at"])

    def cancel(self, queue: str, *ids: int) -> int:
        return int(self._ask("CANCEL", ids=list(ids))["count"])

    def state(self, queue: str, message: int, group: str = "default") -> str:
        state: str = self._ask("STATE", id=message, group=group)["state"]
        return state

    def configure(self, queue: str, **options: Any) -> None:
        self._ask("QUEUE", queue=queue, options=options)

    def pause(self, queue: str, paused: bool) -> None:
        self._ask("PAUSE" if paused else "RESUME", queue=queue)

    def dead(self, queue: str) -> list[tuple[Any, str]]:
        return [(each["payload"], each["error"]) for each in self._ask("DEAD", queue=queue)["messages"]]

    def requeue(self, queue: str) -> int:
        return int(self._ask("REQUEUE", queue=queue)["count"])

    def log(self, queue: str) -> list[Any]:
        runs = self._ask("READ", queue=queue, offset=0)["runs"]
        return [payload for run in runs for payload in payloads_of(run)]

    def set(self, key: list[str], value: Any) -> str:
        version: str = self._ask("KVSET", key=key, value=value)["version"]
        return version

    def get(self, key: list[str]) -> Any:
        try:
            return self._ask("KVGET", key=key)["value"]
        except Refused:
            return None

    def add(self, key: list[str], amount: int) -> None:
        self._ask("KVADD", key=key, by=amount)

    def transact(self, acked: int, queue: str, payload: Any) -> None:
        push = {"cmd": "PUSH", "queue": queue, "payload": payload}
        self._ask("TX", ops=[push, {"cmd": "ACK", "ids": [acked]}])

    def cron(self, name: str, queue: str, payload: Any, **fields: Any) -> None:
        self._ask("CRONPUT", name=name, queue=queue, message={"payload": payload}, **fields)

    def crons(self) -> list[str]:
        return [each["name"] for each in self._ask("CRONS")["crons"]]

    def end_cron(self, name: str) -> None:
        self._ask("CRONDELETE", name=name)


# Commands of flashQ's door, in whatever framing.


class Flashq:
    """flashQ's commands. A scenario that needs what flashQ has not is skipped there."""

    STATES: ClassVar = {"failed": "dead", "waiting-children": "parked", "unknown": "cancelled"}
    WORDS: ClassVar = {
        "delay_ms": "delay",
        "ttl_ms": "ttl",
        "wait_ms": "timeout",
        "every_ms": "repeat_every",
    }

    def __init__(self, asking: Callable[[Request], Reply]) -> None:
        self._asking = asking
        self._options: dict[str, Any] = {}
        """Options of a queue that flashQ's jobs have each."""

    def _ask(self, cmd: str, **fields: Any) -> Reply:
        said = {self.WORDS.get(name, name): value for name, value in fields.items() if value is not None}
        reply = self._asking({"cmd": cmd, **said})
        if not reply["ok"]:
            raise Refused(code_of(reply["error"]))
        return reply

    def _lacks(self, what: str) -> NoReturn:
        pytest.skip(f"flashQ has no {what}")

    def push(self, queue: str, *payloads: Any, **options: Any) -> list[int]:
        if {"partition", "dedup", "surprise"} & options.keys():
            self._lacks("partitions, dedup, nor errors for unknown options")
        words = {**self.WORDS, "key": "group_id"}
        said = {words.get(name, name): value for name, value in {**self._options, **options}.items()}
        jobs = [{"data": payload, **said} for payload in payloads]
        ids: list[int] = self._ask("PUSHB", queue=queue, jobs=jobs)["ids"]
        return ids

    def pop(self, queue: str, count: int = 1, **fields: Any) -> list[Message]:
        if fields.keys() - {"wait_ms"}:
            self._lacks("groups, partitions and leases")
        jobs = self._ask("PULLB", queue=queue, count=count, **{"wait_ms": 0, **fields})["jobs"]
        return [Message(each["id"], each["data"], None, each["attempts"], each["priority"]) for each in jobs]

    def ack(self, *ids: int, lease: str | None = None, group: str | None = None) -> int:
        if not ids or group is not None:
            self._lacks("groups and leases")
        return int(self._ask("ACKB", ids=list(ids))["ids"][0])

    def nack(self, *ids: int, error: str = "", delay_ms: int = 0) -> int:
        if delay_ms:
            self._lacks("delay of a failure")
        for each in ids:
            self._ask("FAIL", id=each, error=error)
        return len(ids)

    def extend(self, lease: str, lease_ms: int) -> int:
        self._lacks("leases")

    def cancel(self, queue: str, *ids: int) -> int:
        for each in ids:
            self._ask("CANCEL", id=each)
        return len(ids)

    def state(self, queue: str, message: int, group: str = "default") -> str:
        state: str = self._ask("GETSTATE", id=message)["state"]
        return self.STATES.get(state, state)

    def configure(self, queue: str, **options: Any) -> None:
        if options.keys() - {"max_attempts"}:
            self._lacks("options of queues")
        self._options = options

    def pause(self, queue: str, paused: bool) -> None:
        self._ask("PAUSE" if paused else "RESUME", queue=queue)

    def dead(self, queue: str) -> list[tuple[Any, str]]:
        found = self._ask("DLQ", queue=queue)["jobs"]
        if found:
            self._lacks("errors of dead letters")
        return []

    def requeue(self, queue: str) -> int:
        return int(self._ask("RETRYDLQ", queue=queue)["ids"][0])

    def log(self, queue: str) -> list[Any]:
        self._lacks("log")

    def set(self, key: list[str], value: Any) -> str:
        self._ask("KVSET", key="/".join(key), value=value)
        self._lacks("versions of values")

    def get(self, key: list[str]) -> Any:
        return self._ask("KVGET", key="/".join(key))["value"]

    def add(self, key: list[str], amount: int) -> None:
        self._ask("KVINCR", key="/".join(key), by=amount)

    def transact(self, acked: int, queue: str, payload: Any) -> None:
        self._lacks("transactions")

    def cron(self, name: str, queue: str, payload: Any, **fields: Any) -> None:
        if "timezone" in fields:
            self._lacks("time zones")
        self._ask("CRON", name=name, queue=queue, data=payload, **fields)

    def crons(self) -> list[str]:
        return [each["name"] for each in self._ask("CRONLIST")["crons"]]

    def end_cron(self, name: str) -> None:
        self._ask("CRONDELETE", name=name)


def code_of(sentence: str) -> str:
    """The code that stands for a sentence of flashQ's, which has no codes."""
    words = {"not found": "not_found", "must be": "invalid", "Invalid": "invalid", "Duplicate": "conflict"}
    return next((code for part, code in words.items() if part in sentence), sentence)


# HTTP.


class Native:
    """Operations of HTTP."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def _ask(self, method: str, path: str, body: object = None, **query: Any) -> Any:
        answer = self._http.ask(method, path, body, **query)
        if answer.status != 200:
            raise Refused(answer.code)
        return answer.json

    def push(self, queue: str, *payloads: Any, **options: Any) -> list[int]:
        items = [{"payload": payload, **options} for payload in payloads]
        ids: list[int] = self._ask("POST", f"{at(queue)}/messages", {"items": items})["ids"]
        return ids

    def pop(self, queue: str, count: int = 1, **fields: Any) -> list[Message]:
        found = self._ask("POST", f"{at(queue)}/pop", {"count": count, **fields})["messages"]
        return [
            Message(each["id"], each["payload"], each["lease"], each["failures"], each["priority"])
            for each in found
        ]

    def _settle(self, path: str, ids: tuple[int, ...], **fields: Any) -> Any:
        said = {"ids": list(ids)} if ids else {}
        return self._ask("POST", path, {**said, **fields})

    def ack(self, *ids: int, lease: str | None = None, group: str | None = None) -> int:
        return int(self._settle("/v1/ack", ids, lease=lease, group=group)["count"])

    def nack(self, *ids: int, error: str = "", delay_ms: int = 0) -> int:
        return int(self._settle("/v1/nack", ids, error=error, delay_ms=delay_ms)["count"])

    def extend(self, lease: str, lease_ms: int) -> int:
        return int(self._ask("POST", "/v1/extend", {"lease": lease, "lease_ms": lease_ms})["expires_at"])

    def cancel(self, queue: str, *ids: int) -> int:
        return int(self._ask("POST", "/v1/cancel", {"ids": list(ids)})["count"])

    def state(self, queue: str, message: int, group: str = "default") -> str:
        state: str = self._ask("GET", f"{at(queue)}/messages/{message}", group=group)["state"]
        return state

    def configure(self, queue: str, **options: Any) -> None:
        self._ask("PUT", at(queue), {"options": options})

    def pause(self, queue: str, paused: bool) -> None:
        self._ask("POST", f"{at(queue)}/{'pause' if paused else 'resume'}", {})

    def dead(self, queue: str) -> list[tuple[Any, str]]:
        found = self._ask("GET", f"{at(queue)}/dead")["messages"]
        return [(each["payload"], each["error"]) for each in found]

    def requeue(self, queue: str) -> int:
        return int(self._ask("POST", f"{at(queue)}/dead", {})["count"])

    def log(self, queue: str) -> list[Any]:
        runs = self._ask("GET", f"{at(queue)}/log", offset=0)["runs"]
        return [payload for run in runs for payload in run["payloads"]]

    def set(self, key: list[str], value: Any) -> str:
        version: str = self._ask("PUT", f"/v1/kv/{'/'.join(key)}", {"value": value})["version"]
        return version

    def get(self, key: list[str]) -> Any:
        try:
            return self._ask("GET", f"/v1/kv/{'/'.join(key)}")["value"]
        except Refused:
            return None

    def add(self, key: list[str], amount: int) -> None:
        self._ask("POST", "/v1/kv", {"mutations": [{"kind": "sum", "key": key, "value": amount}]})

    def transact(self, acked: int, queue: str, payload: Any) -> None:
        push = {"cmd": "PUSH", "queue": queue, "payload": payload}
        self._ask("POST", "/v1/transaction", {"ops": [push, {"cmd": "ACK", "ids": [acked]}]})

    def cron(self, name: str, queue: str, payload: Any, **fields: Any) -> None:
        self._ask("PUT", f"/v1/crons/{name}", {"queue": queue, "message": {"payload": payload}, **fields})

    def crons(self) -> list[str]:
        return [each["name"] for each in self._ask("GET", "/v1/crons")["crons"]]

    def end_cron(self, name: str) -> None:
        self._ask("DELETE", f"/v1/crons/{name}")


# The clients.


class Typed:
    """Methods of a client; ``done`` makes what they return of what they hand out."""

    def __init__(self, client: Any, done: Callable[[Any], Any] = lambda found: found) -> None:
        self._client = client
        self._done = done

    def _ask(self, method: Callable[..., Any], *given: Any, **fields: Any) -> Any:
        try:
            return self._done(method(*given, **fields))
        except ForebayError as error:
            raise Refused(error.code) from error

    def push(self, queue: str, *payloads: Any, **options: Any) -> list[int]:
        ids: list[int] = self._ask(self._client.push_many, queue, payloads, **options).ids
        return ids

    def pop(self, queue: str, count: int = 1, **fields: Any) -> list[Message]:
        said = {"start" if name == "from" else name: value for name, value in fields.items()}
        return [
            Message(each.id, each.payload, each.lease, each.failures, each.priority)
            for each in self._ask(self._client.pop, queue, count, **said)
        ]

    def ack(self, *ids: int, lease: str | None = None, group: str | None = None) -> int:
        return int(self._ask(self._client.ack, ids or None, lease=lease, group=group).count)

    def nack(self, *ids: int, error: str = "", delay_ms: int = 0) -> int:
        return int(self._ask(self._client.nack, ids, error=error, delay_ms=delay_ms).count)

    def extend(self, lease: str, lease_ms: int) -> int:
        return int(self._ask(self._client.extend, lease=lease, lease_ms=lease_ms).expires_at)

    def cancel(self, queue: str, *ids: int) -> int:
        return int(self._ask(self._client.cancel, ids).count)

    def state(self, queue: str, message: int, group: str = "default") -> str:
        state: str = self._ask(self._client.state, message, group=group)
        return state

    def configure(self, queue: str, **options: Any) -> None:
        self._ask(self._client.configure, queue, **options)

    def pause(self, queue: str, paused: bool) -> None:
        self._ask(self._client.pause if paused else self._client.resume, queue)

    def dead(self, queue: str) -> list[tuple[Any, str]]:
        return [(each.payload, each.error) for each in self._ask(self._client.dead, queue).messages]

    def requeue(self, queue: str) -> int:
        return int(self._ask(self._client.requeue_dead, queue).count)

    def log(self, queue: str) -> list[Any]:
        return [each.payload for each in self._ask(lambda: self._all(self._client.records(queue)))]

    def _all(self, found: Any) -> Any:
        return list(found) if isinstance(found, Iterator) else found

    def set(self, key: list[str], value: Any) -> str:
        version: str = self._ask(self._client.kv.set, key, value)
        return version

    def get(self, key: list[str]) -> Any:
        return self._ask(self._client.kv.get, key)

    def add(self, key: list[str], amount: int) -> None:
        self._ask(self._client.kv.add, key, amount)

    def transact(self, acked: int, queue: str, payload: Any) -> None:
        transaction = self._client.transaction()
        transaction.push(queue, payload)
        transaction.ack(acked)
        self._ask(transaction.commit)

    def cron(self, name: str, queue: str, payload: Any, **fields: Any) -> None:
        self._ask(self._client.set_cron, name, queue, payload, **fields)

    def crons(self) -> list[str]:
        return [each.name for each in self._ask(self._client.crons)]

    def end_cron(self, name: str) -> None:
        self._ask(self._client.delete_cron, name)


class Looped:
    """A client for asyncio, and the event loop that it lives in."""

    def __init__(self, client: Client, runner: asyncio.Runner) -> None:
        self.client = client
        self._runner = runner

    def done(self, found: Any) -> Any:
        """What comes of a coroutine, or all of an iterator."""
        return self._runner.run(self._done(found))

    async def _done(self, found: Any) -> Any:
        return await found if isawaitable(found) else [each async for each in found]


@contextmanager
def looped(server: str) -> Iterator[Looped]:
    with asyncio.Runner() as runner:
        client = Client(server, retry_s=0)
        yield Looped(client, runner)
        runner.run(client.close())


def sync(at: Callable[[Server], str]) -> "Spoken":
    """The client for threads. What is refused is not tried again."""
    return Spoken(lambda server: SyncClient(at(server), retry_s=0), Typed)


def aio(at: Callable[[Server], str]) -> "Spoken":
    """The client for asyncio."""
    return Spoken(lambda server: looped(at(server)), lambda it: Typed(it.client, it.done))


# Which wires there are.


class Spoken(Struct, frozen=True):
    """How to get a connection, and what is spoken on it."""

    connect: Callable[[Server], AbstractContextManager[Any]]
    adapt: Callable[[Any], Wire]


def tcp(server: Server) -> str:
    return server.tcp


def unix(server: Server) -> str:
    return f"unix://{server.unix}"


def url(server: Server) -> str:
    return f"http://{server.http}"


WIRES: dict[str, Spoken] = {
    "TCP, frames of JSON": Spoken(Server.connect, lambda raw: Commands(raw.ask)),
    "Unix socket, frames of JSON": Spoken(Server.connect_unix, lambda raw: Commands(raw.ask)),
    "TCP, frames of MessagePack": Spoken(Server.connect, lambda raw: Commands(raw.ask_packed)),
    "TCP, lines of JSON": Spoken(Server.connect, lambda raw: Commands(raw.ask_line)),
    "Unix socket, frames of MessagePack": Spoken(Server.connect_unix, lambda raw: Commands(raw.ask_packed)),
    "Unix socket, lines of JSON": Spoken(Server.connect_unix, lambda raw: Commands(raw.ask_line)),
    "flashQ's door, lines of JSON": Spoken(Server.connect_flashq, lambda raw: Flashq(raw.ask_line)),
    "flashQ's door, frames of JSON": Spoken(Server.connect_flashq, lambda raw: Flashq(raw.ask)),
    "flashQ's door, frames of MessagePack": Spoken(Server.connect_flashq, lambda raw: Flashq(raw.ask_packed)),
    "HTTP": Spoken(lambda server: Http(server.http), Native),
    "SyncClient over TCP": sync(tcp),
    "SyncClient over a Unix socket": sync(unix),
    "SyncClient over HTTP": sync(url),
    "Client over TCP": aio(tcp),
    "Client over a Unix socket": aio(unix),
    "Client over HTTP": aio(url),
}
