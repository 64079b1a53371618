"""The door is lenient about what is said, and strict about types: whatever comes, the connection goes on."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import Raw

from forebay.core.api.principals import ANYONE
from forebay.core.bounds import Limits
from forebay.core.errors import ForebayError
from forebay.server.flashq.commands.table import COMMANDS
from forebay.server.flashq.door import Door
from forebay.server.tcp.codec import Ready
from forebay.server.workers import Workers
from tests.server.flashq.conftest import clear
from tests.server.flashq.serving import FORMS, FlashqServer, Talk
from tests.serving import framed

EXAMPLES: dict[str, dict[str, Any]] = {
    "PUSH": {"queue": "q", "data": 1},
    "PUSHB": {"queue": "q", "jobs": [{"data": 1}]},
    "FLOW": {"queue": "q", "data": 1, "children": [{"queue": "q", "data": 1}]},
    "PULL": {"queue": "q", "timeout": 0},
    "PULLB": {"queue": "q", "count": 1, "timeout": 0},
    "ACKB": {"ids": [7]},
    "MOVETODELAYED": {"id": 7, "delay": 1},
    "CHANGEPRIORITY": {"id": 7, "priority": 1},
    "UPDATEJOB": {"id": 7, "data": 1},
    "UPDATE": {"id": 7, "data": 1},
    "GETJOBBYCUSTOMID": {"job_id": "a"},
    "GETJOBSBATCH": {"ids": [7]},
    "GETJOBS": {"queue": "q"},
    "GETCHILDREN": {"parent_id": 7},
    "PROGRESS": {"id": 7, "progress": 1},
    "LOG": {"id": 7, "message": "a"},
    "PARTIAL": {"id": 7, "data": 1},
    "RATELIMIT": {"queue": "q", "limit": 1},
    "SETCONCURRENCY": {"queue": "q", "limit": 1},
    "CLEAN": {"queue": "q", "grace": 0, "state": "waiting"},
    "CRON": {"name": "c", "queue": "q", "repeat_every": 60_000},
    "CRONDELETE": {"name": "c"},
    "KVSET": {"key": "k", "value": 1},
    "KVMSET": {"entries": [{"key": "k", "value": 1}]},
    "KVEXPIRE": {"key": "k", "ttl": 1},
    "KVMGET": {"keys": ["k"]},
    "AUTH": {"token": "t"},
    "WAITJOB": {"id": 7, "timeout": 0},
}
"""A valid command of each kind, unless a queue, an id or a key is all that it needs."""
for _name, _kind in COMMANDS.items():
    _fields = {each.name for each in msgspec.structs.fields(_kind) if each.required}
    EXAMPLES.setdefault(
        _name, {name: value for name, value in (("queue", "q"), ("id", 7), ("key", "k")) if name in _fields}
    )

VALUES: dict[type, Any] = {int: 7, float: 0.5, str: "x", bool: True, list: [[]], dict: {"x": 1}}


def _types(kind: Any) -> set[Any]:
    """The JSON types that a field takes."""
    parts = get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _types(parts[0])
    if getattr(kind, "__origin__", None) in (list, dict):
        return {kind.__origin__}
    if parts:
        return set().union(*map(_types, parts))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {dict}
    return {kind}


def wrong() -> Iterator[tuple[str, str, Any]]:
    """Every field of every command with a value of every type that it does not take."""
    for cmd, kind in COMMANDS.items():
        for field in msgspec.structs.fields(kind):
            types = _types(field.type)
            if Raw in types:
                continue
            for type_, value in VALUES.items():
                # An id is text, too, if it is a number.
                if type_ not in types or (type_ is str and int in types and field.name != "reqId"):
                    yield cmd, field.name, value
            if field.required:
                yield cmd, field.name, None


WRONG = list(wrong())


def kept(talk: Talk) -> Any:
    """All that a command could have changed."""
    return [talk.do(each) for each in ("LISTQUEUES", "CRONLIST", "KVKEYS", "GETJOBS", "STATS")]


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_type_is_an_error_and_changes_nothing(server: FlashqServer, form: str) -> None:
    assert len(WRONG) > 500
    with server.talk(form) as talk:
        job = talk.push("q", {"a": 1}, job_id="a")
        talk.do("KVSET", key="k", value=1)
        talk.do("CRON", name="c", queue="q", repeat_every=3_600_000)
        before = kept(talk)
        for cmd, name, value in WRONG:
            fields = {key: job if key in ("id", "parent_id") else each for key, each in EXAMPLES[cmd].items()}
            reply = talk.ask(cmd, **fields | {name: value})
            assert reply.keys() - {"reqId"} == {"ok", "error"}, (cmd, name, value, reply)
            assert not reply["ok"]
            assert name in reply["error"] or reply["error"] == "Invalid id", (cmd, name, value, reply)
        assert kept(talk) == before
        clear(talk)


@pytest.mark.parametrize("form", FORMS)
def test_every_example_is_a_command(server: FlashqServer, form: str) -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    with server.talk(form) as talk:
        for cmd, fields in EXAMPLES.items():
            reply = talk.ask(cmd, **fields)
            assert reply["ok"] or " not found" in reply["error"], (cmd, reply)
        clear(talk)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = sorted({each.name for kind in COMMANDS.values() for each in msgspec.structs.fields(kind)})
commands = st.builds(
    lambda cmd, fields, more: {"cmd": cmd} | EXAMPLES.get(cmd, {}) | fields | more,
    st.sampled_from(sorted(COMMANDS)) | st.text(max_size=8),
    st.dictionaries(st.sampled_from(names), json_values, max_size=4),
    st.dictionaries(st.text(max_size=8), json_values, max_size=2),
)
quiet = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def carried(body: bytes, *, packed: bool) -> None:
    """Decode a body and have its command made, as a connection does."""
    door = Door(Workers(lambda: 0))
    caller = door.context(1, Limits(), ANYONE)
    try:
        request = door.decode_packed(body) if packed else door.decode(body)
        assert request.reqId is not None
        if request.is_command and not request.is_auth:
            request.command(caller)
    except ForebayError as error:
        encoded = door.encode_error(error, door.glimpse(body).reqId, packed=packed)
        reply = msgspec.msgpack.decode(encoded) if packed else json.loads(encoded)
        assert reply.keys() - {"reqId"} == {"ok", "error"}
        assert "\n" not in reply["error"]
    except Ready:
        pass


@quiet
@given(value=json_values | commands)
def test_any_json_is_a_command_or_an_error(value: Any) -> None:
    carried(json.dumps(value).encode(), packed=False)


@quiet
@given(body=st.binary(max_size=80))
def test_any_bytes_are_a_command_or_an_error(body: bytes) -> None:
    carried(body, packed=True)
    try:
        body.decode()
    except UnicodeDecodeError:
        return  # a connection does not pass it on
    carried(body, packed=False)


@settings(quiet, max_examples=150)
@given(several=st.lists(commands, min_size=1, max_size=5))
def test_a_connection_answers_whatever_it_is_told(several: list[dict[str, Any]]) -> None:
    talk = _lasting()
    waits = {"timeout": 0, "reqId": "r"}
    bodies = [json.dumps(each | waits).encode() for each in several]
    talk.raw.send(b"".join(map(framed, bodies)))
    for _ in several:
        reply = talk.receive()
        assert reply["reqId"] == "r"
        assert reply["ok"] or isinstance(reply["error"], str)


_open: list[Talk] = []


def _lasting() -> Talk:
    """One connection for all examples: none of them may end it."""
    return _open[0]


@pytest.fixture(autouse=True)
def _connected(server: FlashqServer) -> Iterator[None]:
    with server.talk("json") as talk:
        _open.append(talk)
        yield
        _open.clear()
