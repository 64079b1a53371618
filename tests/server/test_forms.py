"""Every command gives the same answers as frames of JSON, as lines and as MessagePack.

One long script is carried out by three servers that know no chance and share the time, so that their answers
are the same to the last id, lease and version.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forebay.core.log.bodies import body_slices
from forebay.server.flashq import refusals
from tests.server.test_fuzz import Client, House
from tests.serving import framed

Request = dict[str, Any]
Answer = dict[str, Any]
Ask = Callable[..., Answer]

JSON, LINES, PACKED = "frames", "lines", "messagepack"
FORMS = [JSON, LINES, PACKED]


class Talk:
    """A server of its own, and all that was said to it."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._house = House()
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
    ids = [ask("PUSH", queue="a", data=data, headers={"h": "é"}, tags=["t"])["id"] for data in DATA]
    ask("PUSHB", queue="b", messages=DATA, priority=3, reqId="many")
    batch = ask("PUSHB", queue="b", jobs=[{"data": data, "partition": "p"} for data in DATA])["ids"]
    ask("PUSHB", queue="b", messages=[1], on_complete={"queue": "done", "data": {"all": True}})
    ask("PUSH", queue="a", data=1, job_id="mine", unique_key="k", delay=5_000)
    ask("PUSH", queue="a", data=1, unique_key="k")
    ask("PUSH", queue="a", data=1, backoff={"kind": "fixed", "base_ms": 5, "jitter": 0.5}, priority=-1)
    job = ask("PULL", queue="a", timeout=0, reqId=-5)["job"]
    ask("EXTEND", id=job["id"], lease_ms=60_000)
    ask("HEARTBEAT", id=job["id"])
    ask("PROGRESS", id=job["id"], progress=50, message="half")
    ask("GETPROGRESS", id=job["id"])
    ask("LOG", id=job["id"], message="line", level="info")
    ask("GETLOGS", id=job["id"])
    ask("PARTIAL", id=job["id"], data=DATA)
    ask("ACK", id=job["id"], result=DATA)
    ask("GETRESULT", id=job["id"])
    ask("WAITJOB", id=job["id"], timeout=0)
    runs = ask("PULLB", queue="b", count=4, timeout=0, compact=True)
    ask("ACKB", lease=runs["lease"])
    jobs = ask("PULLB", queue="b", count=20, timeout=0)["jobs"]
    ask("ACKB", ids=[each["id"] for each in jobs], results=[each["data"] for each in jobs])
    ask("PULL", queue="done", timeout=1_000)
    ask("GETJOB", id=batch[0])
    ask("GETJOBSBATCH", ids=[*ids, *batch])
    ask("GETJOBS", queue="a", state="waiting")
    ask("GETJOBBYCUSTOMID", job_id="mine")
    ask("GETSTATE", id=ids[0])
    ask("GETJOBCOUNTS", queue="a")
    ask("COUNT", queue="a")


def failures(talk: Talk) -> None:
    ask = talk.ask
    ask("QUEUE", queue="f", options={"max_attempts": 1, "backoff": [5, 10]})
    ask("PUSHB", queue="f", messages=DATA)
    jobs = ask("PULLB", queue="f", count=4, timeout=0)["jobs"]
    ask("FAIL", ids=[each["id"] for each in jobs], error="boom")
    ask("DLQ", queue="f")
    ask("RETRYDLQ", queue="f", id=jobs[0]["id"])
    ask("PURGEDLQ", queue="f", ids=[jobs[1]["id"]], dry_run=True)
    ask("PURGEDLQ", queue="f")
    waiting = ask("PUSHB", queue="f", messages=[1, 2, 3, 4], delay=60_000)["first"]
    ask("PROMOTE", id=waiting)
    ask("MOVETODELAYED", id=waiting, delay=5)
    ask("CHANGEPRIORITY", id=waiting, priority=5)
    ask("UPDATEJOB", id=waiting + 1, data=DATA)
    ask("UPDATE", id=waiting + 2, data={"b": 2})
    ask("CANCEL", ids=[waiting, waiting + 9])
    ask("DISCARD", id=waiting + 3)
    ask("CLEAN", queue="f", state="failed", grace=0)
    ask("PAUSE", queue="f")
    ask("ISPAUSED", queue="f")
    ask("RESUME", queue="f")
    ask("DRAIN", queue="f")
    talk.pass_ms(100)
    ask("PULL", queue="f", group="g", timeout=0)
    ask("SEEK", queue="f", group="g", to="new")


def flows_and_schedules(talk: Talk) -> None:
    ask = talk.ask
    children = [{"queue": "child", "data": data} for data in DATA]
    flow = ask("FLOW", queue="parent", data={"all": DATA}, children=children)
    child = ask("PULL", queue="child", timeout=0)["job"]
    ops = [
        {"cmd": "ACK", "id": child["id"], "result": DATA},
        {"cmd": "PUSH", "queue": "next", "data": DATA},
        {"cmd": "KVINCR", "key": "done"},
    ]
    ask("TX", ops=ops)
    ask("TX", ops=ops)
    ask("GETCHILDREN", parent_id=flow["parent_id"])
    ask("CRON", name="c", queue="cron", data={"tick": DATA}, schedule="*/5 * * * *", timezone="Europe/Rome")
    ask("CRONLIST")
    ask("CRONDELETE", name="c")
    ask("CRONDELETE", name="c")


def limits_and_queues(talk: Talk) -> None:
    ask = talk.ask
    ask("RATELIMIT", queue="a", limit=5, per_ms=1_000, burst=7)
    ask("SETCONCURRENCY", queue="a", limit=3)
    ask("LIMIT", name="shared", rate_limit={"limit": 5, "per_ms": 100}, concurrency=2)
    ask("LIMITLIST")
    ask("QUEUE", queue="a", options={"limits": ["shared"], "retention_ms": 60_000})
    ask("RATELIMITCLEAR", queue="a")
    ask("CLEARCONCURRENCY", queue="a")
    ask("LIMITDELETE", name="shared")
    ask("QUEUE", queue="a")
    ask("LISTQUEUES")
    ask("STATS")
    ask("BROWSE", queue="a", limit=3)
    ask("GROUP", queue="a", group="late", **{"from": "new"})
    ask("GROUPDELETE", queue="a", group="late")
    ask("PURGE", queue="a", dry_run=True)
    ask("PUSH", queue="back", data=1)
    lease = ask("PULL", queue="back", timeout=0)["job"]["lease"]
    ask("RELEASE", lease=lease)
    ask("DELETE", queue="back")
    ask("EVENTS")
    ask("OBLITERATE", queue="next")
    ask("BACKUP", directory="nowhere")
    ask("HOLD", held=False)


def keys_and_values(talk: Talk) -> None:
    ask = talk.ask
    version = ask("KVSET", key=["a", 1, 1.5, True], value=DATA, ttl=5_000)["version"]
    ask("KVMSET", entries=[{"key": str(at), "value": data} for at, data in enumerate(DATA)])
    ask("KVGET", key=["a", 1, 1.5, True])
    ask("KVMGET", keys=["0", "1", "none"])
    ask("KVDEL", keys=["0", "none"])
    ask("KVEXISTS", key="1")
    ask("KVEXPIRE", key="1", ttl=500)
    ask("KVTTL", key="1")
    ask("KVKEYS", pattern="*")
    ask("KVINCR", key="n", by=5)
    ask("KVINCR", key="1")
    mutations = [{"kind": "set", "key": "s", "value": DATA}, {"kind": "append", "key": "l", "value": [1.5]}]
    ask("KVATOMIC", checks=[{"key": ["a", 1, 1.5, True], "version": version}], mutations=mutations)
    ask("KVLIST", limit=50)
    ask("KVWATCH", keys=["s"], versions=[None])
    ask("KVWATCH", keys=["none"], versions=[None], timeout=10)


def logs_and_stages(talk: Talk) -> None:
    ask = talk.ask
    ask("STAGE", queue="log", stage="s", messages=DATA, part=0, query="x", batch=1, priority=2)
    ask("STAGE", queue="log", stage="t", messages=[1], unique_keys=["k"])
    ask("ADOPT", queue="log", query="x", batch=1, stages=["s"], count=len(DATA))
    ask("ADOPT", queue="log", query="x", batch=1, stages=["s"])
    ask("UNSTAGE", queue="log", stages=["t"])
    ask("PUSHB", queue="log", messages=DATA)
    ask("OFFSETS", queue="log", at=0, since={"default": 1})
    ask("READ", queue="log", offset=1)


def mistakes(talk: Talk) -> None:
    ask = talk.ask
    for cmd in refusals.COMMANDS:
        ask(cmd, reqId=f"bare {cmd}")
        ask(cmd, colour="red", reqId=(1 << 64) - 1)
    ask("NOPE", reqId=1)
    ask("METRICS")
    ask("PUSH", queue="no name", data=1)
    ask("PUSH", queue="a", data=1, priority="high")
    ask("PUSH", queue="a", data="x" * 3_000)
    ask("PUSHB", queue="a", jobs=[{"data": 1, "colour": 1}])
    ask("TX", ops=[{"cmd": "PULL", "queue": "a"}])
    ask("ACK", id=12345, reqId="é漢🦀")
    ask("GETJOB", id=12345)
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
    for talk in talks.values():
        for scene in SCENES:
            scene(talk)
    return talks


def test_the_script_has_every_command_and_each_of_them_succeeds(talks: dict[str, Talk]) -> None:
    done = {request["cmd"] for request, answer in talks[JSON].said if answer["ok"]}
    # What is in memory only has no backup, and a server without HTTP tells nobody of events.
    assert set(refusals.COMMANDS) - done == {"BACKUP", "EVENTS"}
    assert {request["cmd"] for request, _ in talks[JSON].said} >= set(refusals.COMMANDS)


@pytest.mark.parametrize("form", [LINES, PACKED])
def test_every_answer_is_the_same_in_every_form(talks: dict[str, Talk], form: str) -> None:
    assert len(talks[form].said) == len(talks[JSON].said)
    for (request, wanted), (_, found) in zip(talks[JSON].said, talks[form].said, strict=True):
        if form == PACKED and request["cmd"] == "READ" and found["ok"]:
            assert messages_of(found) == [data for run in wanted["runs"] for data in run["messages"]]
            assert (found["next"], found["end"]) == (wanted["next"], wanted["end"])
        else:
            assert found == wanted, request
            assert list(found) == list(wanted), "in the same order"


def messages_of(answer: Answer) -> list[Any]:
    """The payloads of a READ in MessagePack, which are as they are kept."""
    return [
        json.loads(payload)
        for run in answer["runs"]
        for payload in body_slices(run["messages"], run["count"], 0, run["count"])
    ]
