"""Every operation gives the same answers as frames of JSON, as lines and as MessagePack.

One long script is carried out by three servers that know no chance and share the time, so that their answers
are the same to the last id, lease and version.
"""

import json
import secrets
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from forebay.broker.auth import Auth
from forebay.core.api.commands import Command, Reply
from forebay.core.errors import ForebayError
from forebay.core.log.bodies import body_slices
from forebay.server.operations import server as server_operations
from forebay.server.operations.table import COMMANDS
from forebay.server.tcp.codec import Services
from forebay.server.webhooks.courier import Webhook
from forebay.server.webhooks.forwarder import Figures
from forebay.server.workers import Workers
from tests.server.test_fuzz import Client, House
from tests.serving import framed

Request = dict[str, Any]
Answer = dict[str, Any]
Ask = Callable[..., Answer]

JSON, LINES, PACKED = "frames", "lines", "messagepack"
FORMS = [JSON, LINES, PACKED]


class AtOnce(Auth):
    """Changes who is known at once: nothing waits here."""

    def __init__(self, steps: "Steps") -> None:
        super().__init__(steps.node, cast(AbstractEventLoop, steps._loop))
        self._steps = steps

    async def change(self, command: Command) -> Reply | ForebayError:  # type: ignore[override]
        reply = await self._steps.ask(command)
        self.recheck()
        return reply


class Steps:
    """What requests of several steps are given. Their commands are carried out; events and webhooks are told.

    It stands in for the event loop of the listener, too, and runs their tasks.
    """

    def __init__(self, house: House) -> None:
        self.questions = self.polls = self.webhooks = self
        self.node = house.server.node
        self._loop = house.loop
        self.workers = Workers(lambda: house.now)
        self.auth = AtOnce(self)

    async def ask(self, command: Command) -> Reply | ForebayError:
        replies: list[Reply | ForebayError] = []
        self.node.ask(self, replies, command)
        self._loop.run()
        (reply,) = replies
        return reply

    def answered(self, ticket: object, reply: Reply | ForebayError) -> None:
        cast(list[Reply | ForebayError], ticket).append(reply)

    def flush(self) -> None:
        pass

    async def events(self, *_: object, **__: object) -> tuple[list[bytes], str]:
        return [msgspec.json.encode(each) for each in DATA], "5"

    async def all(self, tenant: str) -> list[tuple[Webhook, Figures]]:
        webhook = Webhook(id="mine", tenant=tenant, url=URL, secret="s", queues=["é"], kinds=[])
        return [(webhook, Figures(1, 2, 3, 4))]

    async def register(self, webhook: Webhook) -> None:
        assert webhook.url == URL

    async def delete(self, tenant: str, name: str) -> None:
        assert name == "mine"

    def create_task(self, work: Coroutine[Any, Any, None]) -> "Steps":
        with pytest.raises(StopIteration):
            work.send(None)
        return self

    def add_done_callback(self, call: Callable[["Steps"], None]) -> None:
        call(self)

    def cancelled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


URL = "https://example.com/hook"


class Talk:
    """A server of its own, and all that was said to it."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._house = House()
        steps = Steps(self._house)
        self._house.server.services = cast(Services, steps)
        self._house.server.loop = cast(AbstractEventLoop, steps)
        self._client = Client(self._house, lines=form == LINES)
        self.said: list[tuple[Request, Answer]] = []

    def ask(self, cmd: str, **fields: Any) -> Answer:
        request = {"cmd": cmd, **fields}
        body = (msgspec.msgpack if self._form == PACKED else msgspec.json).encode(request)
        (answer,) = self._client.say(body + b"\n" if self._form == LINES else framed(body))
        assert answer.startswith(b"{") == (self._form != PACKED), "it has the form of the request"
        reply: Answer = json.loads(answer) if self._form != PACKED else msgspec.msgpack.decode(answer)
        self.said.append((request, reply))
        return reply

    def pass_ms(self, ms: int) -> None:
        self._house.now += ms
        self._house.loop.ring()


DATA: list[Any] = [
    {"to": "ada", "n": 1, "nested": [{"deep": [[None, True, 1.5]]}]},
    'é漢🦀\n\r\t"\\',
    -(1 << 63),
    (1 << 64) - 1,
    1.0,
    [],
    {},
    None,
]


def pushes_and_pops(talk: Talk) -> None:
    ask = talk.ask
    ids = [ask("PUSH", queue="a", payload=data, headers={"h": "é"}, tags=["t"])["id"] for data in DATA]
    ask("PUSH", queue="b", messages=DATA, priority=3, reqId="many")
    batch = ask("PUSH", queue="b", items=[{"payload": data, "partition": "p"} for data in DATA])["ids"]
    ask("PUSH", queue="b", messages=[1], on_complete={"queue": "done", "payload": {"all": True}})
    ask("PUSH", queue="a", payload=1, job_id="mine", unique_key="k", delay_ms=5_000)
    ask("PUSH", queue="a", payload=1, unique_key="k")
    ask("PUSH", queue="a", payload=1, backoff={"kind": "fixed", "base_ms": 5, "jitter": 0.5}, priority=-1)
    message = ask("POP", queue="a", wait_ms=0, reqId=-5)["messages"][0]
    ask("EXTEND", ids=[message["id"]], lease_ms=60_000)
    ask("EXTEND", ids=[message["id"]])
    ask("SETPROGRESS", id=message["id"], progress=50, message="half")
    ask("PROGRESS", id=message["id"])
    ask("LOG", id=message["id"], message="line", level="info")
    ask("LOGS", id=message["id"])
    ask("ATTEMPTS", id=message["id"])
    ask("PARTIAL", id=message["id"], payload=DATA)
    ask("PARTIALS", id=message["id"])
    ask("ACK", ids=[message["id"]], result=DATA)
    ask("RESULT", id=message["id"])
    ask("RESULT", id=message["id"], wait_ms=0)
    runs = ask("POP", queue="b", count=4, wait_ms=0, compact=True)
    ask("ACK", lease=runs["lease"])
    messages = ask("POP", queue="b", count=20, wait_ms=0)["messages"]
    ask("ACK", ids=[each["id"] for each in messages], results=[each["payload"] for each in messages])
    ask("POP", queue="done", wait_ms=1_000)
    ask("MESSAGE", id=batch[0])
    ask("MESSAGES", ids=[*ids, *batch])
    ask("BROWSE", queue="a", state="waiting")
    ask("FIND", job_id="mine")
    ask("STATE", id=ids[0])
    ask("GROUP", queue="a")
    ask("GROUPS", queue="a")


def failures(talk: Talk) -> None:
    ask = talk.ask
    ask("QUEUE", queue="f", options={"max_attempts": 1, "backoff": [5, 10]})
    ask("PUSH", queue="f", messages=DATA)
    messages = ask("POP", queue="f", count=4, wait_ms=0)["messages"]
    ask("NACK", ids=[each["id"] for each in messages], error="boom")
    ask("DEAD", queue="f")
    ask("DEADGROUPS", queue="f")
    ask("REQUEUE", queue="f", ids=[messages[0]["id"]])
    ask("DEADPURGE", queue="f", ids=[messages[1]["id"]], dry_run=True)
    ask("DEADPURGE", queue="f")
    waiting = ask("PUSH", queue="f", messages=[1, 2, 3, 4], delay_ms=60_000)["first"]
    ask("PROMOTE", ids=[waiting])
    ask("DELAY", ids=[waiting], delay_ms=5)
    ask("PRIORITY", ids=[waiting], priority=5)
    ask("UPDATE", id=waiting + 1, payload=DATA)
    ask("UPDATE", id=waiting + 2, payload={"b": 2})
    ask("CANCEL", ids=[waiting, waiting + 9])
    ask("DISCARD", ids=[waiting + 3])
    ask("BULK", queue="f", action="promote", state="delayed", limit=100)
    ask("PURGE", queue="f", states=["dead"], grace_ms=0)
    ask("PAUSE", queue="f")
    ask("QUEUE", queue="f")
    ask("RESUME", queue="f")
    ask("DRAIN", queue="f")
    talk.pass_ms(100)
    ask("POP", queue="f", group="g", wait_ms=0)
    ask("SEEK", queue="f", group="g", to="new")


def flows_and_schedules(talk: Talk) -> None:
    ask = talk.ask
    children = [{"queue": "child", "payload": data} for data in DATA]
    flow = ask("FLOW", queue="parent", payload={"all": DATA}, children=children)
    child = ask("POP", queue="child", wait_ms=0)["messages"][0]
    ops = [
        {"cmd": "ACK", "ids": [child["id"]], "result": DATA},
        {"cmd": "PUSH", "queue": "next", "payload": DATA},
        {"cmd": "KVADD", "key": "done"},
    ]
    ask("TX", ops=ops)
    ask("TX", ops=ops)
    ask("CHILDREN", id=flow["id"])
    tick = {"payload": {"tick": DATA}}
    ask("CRONPUT", name="c", queue="cron", message=tick, schedule="*/5 * * * *", timezone="Europe/Rome")
    ask("CRON", name="c")
    ask("CRONS")
    ask("CRONDELETE", name="c")
    ask("CRONDELETE", name="c")


def limits_and_queues(talk: Talk) -> None:
    ask = talk.ask
    rate = {"limit": 5, "per_ms": 1_000, "burst": 7}
    ask("QUEUE", queue="a", options={"rate_limit": rate, "concurrency": 3})
    ask("LIMITPUT", name="shared", rate_limit={"limit": 5, "per_ms": 100}, concurrency=2)
    ask("LIMITS")
    ask("QUEUE", queue="a", options={"limits": ["shared"], "retention_ms": 60_000})
    ask("QUEUE", queue="a", options={"rate_limit": None, "concurrency": 0})
    ask("LIMITDELETE", name="shared")
    ask("QUEUE", queue="a")
    ask("QUEUES")
    ask("STATS")
    ask(
        "WORKER", name="é", queues=["a"], tasks=["é漢🦀"], running=[{"id": 1 << 60, "task": "t", "for_ms": 5}]
    )
    ask("WORKERS", queue="a")
    ask("BROWSE", queue="a", limit=3)
    ask("GROUPPUT", queue="a", group="late", **{"from": "new"})
    ask("GROUPDELETE", queue="a", group="late")
    ask("PURGE", queue="a", dry_run=True)
    ask("PUSH", queue="back", payload=1)
    lease = ask("POP", queue="back", wait_ms=0)["messages"][0]["lease"]
    ask("RELEASE", lease=lease)
    ask("QUEUEDELETE", queue="back")
    ask("EVENTS", queues=["a"], kinds=["dead"], after="")
    ask("WEBHOOKPUT", url=URL, kinds=["dead"], secret="s")
    ask("WEBHOOKS")
    ask("WEBHOOKDELETE", id="mine")
    ask("QUEUEDELETE", queue="next", force=True)
    ask("BACKUP", directory="nowhere")
    ask("TENANTPUT", tenant="acme", spread=True)
    ask("TENANTPUT", tenant="acme", suspended=True, reqId="halt")
    ask("PUSH", tenant="acme", queue="a", payload=1)
    ask("TENANTPUT", tenant="acme", suspended=False)
    ask("PUSH", tenant="acme", queue="a", payload=DATA)
    ask("POP", tenant="acme", queue="a", wait_ms=0)
    ask("TENANT", tenant="acme")
    ask("TENANTS")
    ask("AUTH")
    token = ask("TOKENCREATE", tenant="acme", role="read", queues=["é*"], name="é")
    assert not token["ok"]
    token = ask("TOKENCREATE", tenant="acme", role="read", queues=["e*"], name="é", expires_ms=60_000)
    ask("TOKENS", tenant="acme")
    ask("TOKENREVOKE", tenant="acme", id=token["id"])
    ask("TOKENREVOKE", tenant="acme", id=token["id"])
    ask("HOLD", held=False)


def keys_and_values(talk: Talk) -> None:
    ask = talk.ask
    version = ask("KVSET", key=["a", 1, 1.5, True], value=DATA, ttl_ms=5_000)["version"]
    ask("KVWRITE", mutations=[{"kind": "set", "key": str(at), "value": data} for at, data in enumerate(DATA)])
    ask("KVGET", key=["a", 1, 1.5, True])
    ask("KVMGET", keys=["0", "1", "none"])
    ask("KVGET", key="none")
    ask("KVDELETE", key="0")
    ask("KVDELETE", key="none")
    ask("KVWRITE", mutations=[{"kind": "expire", "key": "1", "ttl_ms": 500}])
    ask("KVGET", key="1")
    ask("KVLIST", pattern="*")
    ask("KVADD", key="n", by=5)
    ask("KVADD", key="1")
    mutations = [{"kind": "set", "key": "s", "value": DATA}, {"kind": "append", "key": "l", "value": [1.5]}]
    ask("KVWRITE", checks=[{"key": ["a", 1, 1.5, True], "version": version}], mutations=mutations)
    ask("KVLIST", limit=50)
    ask("KVWATCH", keys=["s"], versions=[None])
    ask("KVWATCH", keys=["none"], versions=[None], wait_ms=10)


def logs_and_stages(talk: Talk) -> None:
    ask = talk.ask
    ask("STAGE", queue="log", stage="s", messages=DATA, part=0, query="x", batch=1, priority=2)
    ask("STAGE", queue="log", stage="t", messages=[1], unique_keys=["k"])
    ask("ADOPT", queue="log", query="x", batch=1, stages=["s"], count=len(DATA))
    ask("ADOPT", queue="log", query="x", batch=1, stages=["s"])
    ask("UNSTAGE", queue="log", stages=["t"])
    ask("PUSH", queue="log", messages=DATA)
    ask("OFFSETS", queue="log", at=0, since={"default": 1})
    ask("READ", queue="log", offset=1)


def mistakes(talk: Talk) -> None:
    ask = talk.ask
    for cmd in COMMANDS:
        ask(cmd, reqId=f"bare {cmd}")
        ask(cmd, colour="red", reqId=(1 << 64) - 1)
    ask("HOLD", held=False)  # the loop has held it, and what is held refuses the rest as busy
    ask("NOPE", reqId=1)
    ask("PUSH", queue="no name", payload=1)
    ask("PUSH", queue="a", payload=1, priority="high")
    ask("PUSH", queue="a", payload="x" * 3_000)
    ask("PUSH", queue="a", items=[{"payload": 1, "colour": 1}])
    ask("TX", ops=[{"cmd": "POP", "queue": "a"}])
    ask("ACK", ids=[12345], reqId="é漢🦀")
    ask("MESSAGE", id=12345)
    ask("QUEUE", queue="none")


SCENES = [
    pushes_and_pops,
    failures,
    flows_and_schedules,
    limits_and_queues,
    keys_and_values,
    logs_and_stages,
    mistakes,
]


@pytest.fixture(scope="module")
def talks() -> dict[str, Talk]:
    talks = {form: Talk(form) for form in FORMS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_operations, "new_id", lambda: "mine")
        patch.setattr(secrets, "token_hex", lambda size: "0a" * size)
        patch.setattr(secrets, "token_urlsafe", lambda size: "s" * 43)
        for talk in talks.values():
            for scene in SCENES:
                scene(talk)
    return talks


def test_the_script_has_every_operation_and_each_of_them_succeeds(talks: dict[str, Talk]) -> None:
    done = {request["cmd"] for request, answer in talks[JSON].said if answer["ok"]}
    # What is in memory only has no backup.
    assert set(COMMANDS) - done == {"BACKUP"}
    assert {request["cmd"] for request, _ in talks[JSON].said} >= set(COMMANDS)


@pytest.mark.parametrize("form", [LINES, PACKED])
def test_every_answer_is_the_same_in_every_form(talks: dict[str, Talk], form: str) -> None:
    assert len(talks[form].said) == len(talks[JSON].said)
    for (request, wanted), (_, found) in zip(talks[JSON].said, talks[form].said, strict=True):
        if form == PACKED and request["cmd"] == "READ" and found["ok"]:
            assert payloads_of(found) == [each for run in wanted["runs"] for each in run["payloads"]]
            assert (found["next"], found["end"]) == (wanted["next"], wanted["end"])
        else:
            assert found == wanted, request
            assert list(found) == list(wanted), "in the same order"


def payloads_of(answer: Answer) -> list[Any]:
    """The payloads of a READ in MessagePack, which are as they are kept."""
    return [
        json.loads(payload)
        for run in answer["runs"]
        for payload in body_slices(run["payloads"], run["count"], 0, run["count"])
    ]
