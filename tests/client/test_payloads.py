"""What may be pushed, and what comes out again."""

import dataclasses
import datetime
import enum
import uuid
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from forebay.client.sync.client import SyncClient
from forebay.client.types import New
from forebay.core.errors import Invalid
from forebay.wire.text import BASE64, ENCODING
from tests.client.blocking import Blocking

NOON = datetime.datetime(2026, 11, 17, 12, tzinfo=datetime.UTC)


class Colour(enum.Enum):
    RED = "red"


class Struct(msgspec.Struct):
    to: str
    at: datetime.datetime = NOON


@dataclasses.dataclass
class Data:
    to: str
    parts: list[int]


class Inner(pydantic.BaseModel):
    at: datetime.datetime


class Model(pydantic.BaseModel):
    to: str
    inner: Inner
    colours: list[Colour] = []


JSON: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**100,
    1.5,
    1e300,
    "",
    "\u00e9\U0001f600\u0000\u2028\x7f",
    [],
    {},
    {"": [None, {"a": []}]},
    {"\u00e9\n": "x" * 100_000},
]


def test_any_json_comes_out_as_it_was_pushed(either: Blocking, queue: str) -> None:
    for each in JSON:
        either.push(queue, each)
    either.push_many(queue, JSON)
    assert either.pop(queue, 100).payloads == JSON * 2
    assert [each.payload for each in either.records(queue)] == JSON * 2
    assert [each.payload for each in either.browse(queue)] == JSON * 2


TYPED: dict[str, tuple[Any, Any]] = {
    "a struct": (Struct("ada"), Struct),
    "a dataclass": (Data("ada", [1, 2]), Data),
    "a pydantic model": (Model(to="ada", inner=Inner(at=NOON), colours=[Colour.RED]), Model),
    "a list of structs": ([Struct("ada"), Struct("alan")], list[Struct]),
    "a list of pydantic models": ([Inner(at=NOON)], list[Inner]),
    "a struct or nothing": (None, Struct | None),
    "a time": (NOON, datetime.datetime),
    "a day": (NOON.date(), datetime.date),
    "a UUID": (uuid.UUID(int=7), uuid.UUID),
    "a decimal": (Decimal("1.10"), Decimal),
    "an enum": (Colour.RED, Colour),
    "bytes": (b"\x00\xff", bytes),
    "a set": ({1}, set[int]),
    "a tuple": ((1, "a"), tuple[int, str]),
    "keys that are numbers": ({1: "a"}, dict[int, str]),
}


@pytest.mark.parametrize("name", TYPED)
def test_what_has_a_type_is_made_again(name: str, client: Blocking, queue: str) -> None:
    value, kind = TYPED[name]
    pushed = client.push(queue, value)
    assert client.push_many(queue, [value]).count == 1
    assert client.message(pushed.id, type=kind).payload == value
    assert [each.payload for each in client.records(queue, type=kind)] == [value, value]
    assert client.pop(queue, 2, type=kind).payloads == [value, value]


def test_results_and_values_are_made_again(client: Blocking, queue: str) -> None:
    pushed = client.push(queue, 1)
    client.ack(client.pop(queue).messages, results=[Struct("ada")])
    assert client.result(pushed.id, type=Struct).result == Struct("ada")
    client.kv.set(queue, Struct("alan"))
    assert client.kv.get(queue, type=Struct) == Struct("alan")
    assert client.kv.entry(queue, type=Struct).value == Struct("alan")


def nested(deep: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(deep):
        value = [value]
    return value


class Plain:
    pass


CAN_NOT: dict[str, Any] = {
    "an object": Plain(),
    "an object inside": [{"a": Plain()}],
    "a class": Plain,
    "half a character": "\ud800",
    "a complex number": 1j,
    "nested without end": nested(100_000),
    "keys of tuples": {(1, 2): 3},
}


@pytest.mark.parametrize("name", CAN_NOT)
def test_what_can_not_be_sent_is_invalid_and_nothing_is_sent(name: str, client: Blocking, queue: str) -> None:
    value = CAN_NOT[name]
    for push in (client.push, client.kv.set, client.transaction().push):
        with pytest.raises(Invalid) as raised:
            push(queue, value)
        assert raised.value.field == "payload"
    with pytest.raises(Invalid):
        client.push_many(queue, [1, value])
    client.configure(queue)
    assert client.queue(queue).partitions == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_a_number_that_json_does_not_have_is_refused_not_changed(
    value: Any, client: Blocking, queue: str
) -> None:
    with pytest.raises(Invalid):
        client.push(queue, value)


def test_options_that_can_not_be_sent_are_invalid(client: Blocking, queue: str) -> None:
    for options in ({"headers": {"a": Plain()}}, {"tags": ["\ud800"]}, {"priority": 2**70}):
        with pytest.raises(Invalid):
            client.push(queue, 1, **options)


WRONG: dict[str, Any] = {"a struct": Struct, "a pydantic model": Model, "a number": int}


@pytest.mark.parametrize("name", WRONG)
def test_a_payload_that_is_of_another_type_is_nacked_with_the_reason_and_the_others_come(
    name: str, client: Blocking, queue: str
) -> None:
    client.configure(queue, max_attempts=1)
    bad = client.push(queue, ["something else"])
    good = client.push(queue, 7)
    wanted = int | WRONG[name] if name != "a pydantic model" else WRONG[name]
    found = client.pop(queue, 2, type=wanted)
    assert [each.id for each in found] == ([good.id] if name != "a pydantic model" else [])
    (dead, *_) = client.dead(queue).messages
    assert dead.id == bad.id
    assert "not what was asked for" in (dead.error or "")


def test_in_strict_order_what_is_behind_a_payload_of_another_type_goes_back_with_it(
    client: Blocking, queue: str
) -> None:
    client.configure(queue, ordering="partition", max_attempts=2, backoff=0)
    ids = client.push_many(queue, [1, "bad", 3, "bad too"]).ids
    batch = client.pop(queue, 9, type=int)
    assert batch.payloads == [1]
    assert client.ack(batch).count == 1
    assert [client.state(each) for each in ids[2:]] == ["waiting", "waiting"]


def test_a_type_that_can_not_be_made_is_said_before_anything_is_leased(
    client: Blocking, direct: SyncClient, queue: str
) -> None:
    client.push(queue, "a")
    with pytest.raises(Exception, match=r".+"):
        client.pop(queue, type="no type")
    assert direct.pop(queue).payloads == ["a"]


def test_a_payload_larger_than_the_server_takes_is_invalid(either: Blocking, queue: str) -> None:
    with pytest.raises(Invalid, match="payload"):
        either.push(queue, "x" * (1 << 20))
    either.push(queue, "x" * ((1 << 20) - 2))


def test_a_request_larger_than_the_server_takes_is_invalid_and_the_next_goes_through(
    either: Blocking, queue: str
) -> None:
    with pytest.raises(Invalid):
        either.push(queue, "x" * (65 << 20))
    either.push(queue, 1)
    assert either.pop(queue).payloads == [1]


BYTES = b"\x00\xff\n"


def test_bytes_arrive_as_bytes_however_they_are_pushed_and_looked_at(either: Blocking, queue: str) -> None:
    """Each message says for itself that its text stands for bytes: others that are like it stay texts."""
    either.push(queue, BYTES, headers={"a": "b"})
    many = [BYTES, "AP8K", New(bytearray(BYTES), {"priority": 0}), memoryview(BYTES)]
    either.push_many(queue, many, headers={"c": "d"})
    with either.transaction() as transaction:
        transaction.push(queue, BYTES)
    wanted = [BYTES, BYTES, "AP8K", BYTES, BYTES, BYTES]
    assert [each.payload for each in either.read(queue)] == wanted
    assert [each.payload for each in either.browse(queue)] == wanted
    batch = either.pop(queue, 10)
    assert batch.payloads == wanted
    assert [sorted(each.headers) for each in batch[:3]] == [["a", ENCODING], ["c", ENCODING], ["c"]]
    assert either.message(batch[0].id).payload == BYTES
    assert [each.deliveries for each in batch] == [1] * 6


def test_a_cron_shows_and_pushes_bytes(either: Blocking, queue: str) -> None:
    made = either.set_cron(queue, queue, BYTES, every_ms=100, limit=1)
    assert (made.payload, either.cron(queue).payload) == (BYTES, BYTES)
    assert either.pop(queue, wait_ms=30_000).payloads == [BYTES]


def test_bytes_that_were_replaced_by_something_else_arrive_as_that(either: Blocking, queue: str) -> None:
    message = either.push(queue, BYTES, headers={"a": "b"})
    for payload in ({"not": "bytes"}, "AP8K", BYTES, "abcd", b""):
        either.update(message.id, payload)
        assert either.message(message.id).payload == payload
    batch = either.pop(queue)
    assert (batch.payloads, batch[0].headers) == ([b""], {"a": "b", ENCODING: BASE64})


def test_who_asks_for_a_type_gets_that_type_of_what_was_pushed_as_bytes(either: Blocking, queue: str) -> None:
    either.push(queue, BYTES)
    (found,) = either.read(queue, type=str)
    assert found.payload == "AP8K"
    assert either.pop(queue, type=bytes).payloads == [BYTES]
