"""MessagePack for every operation: the same values there and back, and what JSON does not have refused."""

import base64
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from forebay.core.errors import Invalid
from forebay.server.operations import codec
from forebay.wire import packing
from forebay.wire.packing import BYTES_MAX, json_of, packed_of
from forebay.wire.text import DEPTH_MAX
from tests.server.test_packed import Talk
from tests.serving import Raw, framed

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode
Ext = msgspec.msgpack.Ext


@pytest.fixture
def talk() -> Talk:
    return Talk()


# Values.

integers = st.integers(-(1 << 63), (1 << 64) - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | integers | floats | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


def as_text(value: Any) -> Any:
    """The same value with binary in base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return list(map(as_text, value))
        case dict():
            return {name: as_text(each) for name, each in value.items()}
        case _:
            return value


@given(st.lists(values, min_size=1, max_size=5))
@example([b"\xcb\x7f\xf0\0\0\0\0\0\0", 1.7e308, struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]])
def test_whatever_values_are_pushed_come_back_in_either_form(given: list[Any]) -> None:
    talk = Talk()
    assert talk.ask("PUSH", queue="q", messages=given)["count"] == len(given)
    for group, ask in (("a", talk.ask), ("b", talk.json)):
        popped = ask("POP", queue="q", group=group, count=9)["messages"]
        found = [each["payload"] for each in popped]
        assert found == as_text(given)
        assert pack(found) == pack(as_text(given)), "a number stays of its kind"


def test_payloads_come_back_as_values_and_binary_as_text(talk: Talk) -> None:
    payload = {"int": 1, "float": 1.0, "text": "é漢🦀\n", "binary": b"\0\xff", "list": [None, True, []]}
    message = talk.ask("PUSH", queue="q", payload=payload)["id"]
    expected = payload | {"binary": "AP8="}
    assert talk.ask("MESSAGE", id=message)["payload"] == expected
    assert talk.json("MESSAGE", id=message)["payload"] == expected
    (popped,) = talk.ask("POP", queue="q")["messages"]
    assert popped["payload"] == expected
    done = talk.ask("ACK", ids=[message], result={"sum": b"x"})
    assert done == {"ok": True, "count": 1, "refused": []}
    assert talk.ask("RESULT", id=message)["result"] == {"sum": "eA=="}


def test_a_float_of_four_bytes_is_the_same_number(talk: Talk) -> None:
    request = {"cmd": "PUSH", "queue": "q", "payload": "@"}
    talk.raw(pack(request).replace(b"\xa1@", b"\xca\x3f\xc0\0\0"))
    assert talk.ask("POP", queue="q")["messages"][0]["payload"] == 1.5


LARGE = [
    "123456789012345678901234567890",
    "18446744073709551616",
    "-9223372036854775809",
    "1e999",
    "9" * 5_000,
]


@pytest.mark.parametrize("digits", LARGE, ids=lambda each: each[:30])
def test_a_number_that_messagepack_does_not_have_goes_out_as_text(digits: str) -> None:
    assert unpack(packed_of(f'[{digits}, {{"a": -{digits.lstrip("-")}, "b": [1, 1.5, "x"]}}]'.encode())) == [
        digits,
        {"a": f"-{digits.lstrip('-')}", "b": [1, 1.5, "x"]},
    ]


def test_numbers_of_64_bits_go_out_as_numbers() -> None:
    wanted = [(1 << 64) - 1, -(1 << 63), 1.7976931348623157e308, 5e-324, 0, -1]
    assert unpack(packed_of(json.dumps(wanted).encode())) == wanted
    with_a_large_one = unpack(packed_of(json.dumps([*wanted, 1 << 64]).encode()))
    assert with_a_large_one == [*wanted, str(1 << 64)]
    assert list(map(type, with_a_large_one[:-1])) == list(map(type, wanted))


def test_a_large_number_in_a_payload_does_not_lose_the_answer(talk: Talk) -> None:
    talk.raw(b'{"cmd":"PUSH","queue":"q","messages":[1,1e999,%s]}' % (b"9" * 1_000))
    popped = talk.ask("POP", queue="q", count=9)["messages"]
    assert [each["payload"] for each in popped] == [1, "1e999", "9" * 1_000]
    assert talk.ask("ACK", ids=[each["id"] for each in popped])["count"] == 3


def test_a_compact_pop_and_a_transaction_have_values_too(talk: Talk) -> None:
    ops = [{"cmd": "PUSH", "queue": "q", "payload": {"n": 1}}, {"cmd": "KVSET", "key": "k", "value": [b"x"]}]
    pushed, written = talk.ask("TX", ops=ops)["results"]
    assert talk.ask("KVGET", key="k") == {
        "ok": True,
        "key": ["k"],
        "value": ["eA=="],
        "version": written["version"],
    }
    (run,) = talk.ask("POP", queue="q", count=9, compact=True)["runs"]
    assert (run["first"], run["payloads"]) == (pushed["id"], [{"n": 1}])


# What JSON does not have.

REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "nan is no number there"),
    "Infinity": ([1, {"a": math.inf}], "inf is no number there"),
    "-Infinity": (-math.inf, "-inf is no number there"),
    "an integer for a key": ({1: "a"}, "the key 1 is no string"),
    "keys that would fall together": ({1: "a", "1": "b"}, "the key 1 is no string"),
    "keys of binary": ([{"a": {b"k": 1}}], "the key b'k' is no string"),
    "keys of binary that would fall together": ({b"k": 1, "aw==": 2}, "the key b'k' is no string"),
    "no key": ({None: 1}, "the key None is no string"),
    "true for a key": ({True: 1}, "the key True is no string"),
    "a number for a key": ({1.5: 1}, "the key 1.5 is no string"),
    "a list for a key": ({(1, 2): 1}, "the key (1, 2) is no string"),
    "an extension": ([Ext(5, b"x")], "an extension is not"),
    "an extension within": ({"a": [b"x", Ext(-2, b"")]}, "an extension is not"),
    "a timestamp": (Ext(-1, struct.pack(">I", 1_700_000_000)), "a timestamp is not"),
    "no timestamp": (Ext(-1, b"\xff" * 12), "Invalid MessagePack timestamp"),
    "a timestamp for a key": ({"a": Ext(-1, struct.pack(">I", 5))}, "a timestamp is not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_json_does_not_have_is_refused_in_words_and_changes_nothing(talk: Talk, name: str) -> None:
    value, words = REFUSED[name]
    for request in (
        {"cmd": "PUSH", "queue": "q", "payload": value},
        {"cmd": "PUSH", "queue": "q", "messages": [1, b"x", value, "y"]},
        {"cmd": "PUSH", "queue": "q", "items": [{"payload": 1}, {"payload": value}]},
        {"cmd": "STAGE", "queue": "q", "stage": "s", "messages": [value]},
        {"cmd": "KVSET", "key": "k", "value": value},
        {"cmd": "TX", "ops": [{"cmd": "PUSH", "queue": "q", "payload": value}]},
    ):
        reply = unpack(talk.raw(pack({**request, "reqId": 7})))
        assert (reply["ok"], reply["error"]["code"], reply["error"]["details"]["field"]) == (
            False,
            "invalid",
            "frame",
        )
        assert reply["reqId"] == 7
        assert words in reply["error"]["message"]
    assert talk.look() == []
    assert talk.ask("KVGET", key="k")["error"]["code"] == "not_found"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", [b"\xcb%b", b"\xca%b"])
def test_numbers_that_are_none_are_found_wherever_they_stand(talk: Talk, number: float, form: bytes) -> None:
    bits = struct.pack(">d" if form[0] == 0xCB else ">f", number)
    for request in (
        {"cmd": "PUSH", "queue": "q", "payload": [{"a": ["@"]}]},
        {"cmd": "KVGET", "key": ["@"]},
        {"cmd": "QUEUE", "queue": "q", "options": {"backoff": {"jitter": "@"}}},
        {"cmd": "STAGE", "queue": "q", "stage": "s", "body": b"1", "count": 1, "backoff": {"jitter": "@"}},
    ):
        reply = unpack(talk.raw(pack(request).replace(b"\xa1@", form % bits)))
        error = reply["error"]
        assert (error["code"], "is no number there" in error["message"]) == ("invalid", True), request
    assert talk.look() == []


@pytest.mark.parametrize(
    "value", [b"\xa1\xff", b"\xa3\xed\xa0\x80", b"\x81\xa1\xff\x01", b"\xc1", b"\x81\x81\x01\x01\x01"]
)
def test_a_payload_that_is_not_well_formed_is_refused(talk: Talk, value: bytes) -> None:
    request = pack({"cmd": "PUSH", "queue": "q", "payload": "@"})
    reply = unpack(talk.raw(request.replace(b"\xa1@", value)))
    assert (reply["error"]["code"], reply["error"]["details"]["field"]) == ("invalid", "frame")
    assert talk.look() == []


def test_binary_does_not_pass_for_a_name(talk: Talk) -> None:
    assert talk.refused("PUSH", queue=b"abcd", payload=1) == ("invalid", "queue")
    assert talk.refused("PUSH", queue="q", payload=1, tags=[b"abcd"]) == ("invalid", "tags[0]")
    assert talk.refused("POP", queue=b"abcd", wait_ms=0) == ("invalid", "queue")
    assert talk.refused("KVSET", key=b"abcd", value=1) == ("invalid", "key")


def test_fields_are_named_as_in_json(talk: Talk) -> None:
    items = [{"payload": 1}, {"payload": 1, "colour": 1}]
    assert talk.refused("PUSH", queue="q", items=items) == ("invalid", "items[1].colour")
    assert talk.refused("PUSH", queue="q") == ("invalid", "payload")
    assert talk.refused("PUSH", queue="q", payload=1, priority="1") == ("invalid", "priority")
    assert talk.refused("TX", ops=[{"cmd": "POP", "queue": "q"}]) == ("invalid", "ops[0].cmd")


def test_payloads_are_nested_as_deep_as_in_json(talk: Talk) -> None:
    request = pack({"cmd": "PUSH", "queue": "q", "payload": "@", "reqId": 5})

    def nested(deep: int) -> dict[str, Any]:
        reply: dict[str, Any] = unpack(talk.raw(request.replace(b"\xa1@", b"\x91" * deep + b"\x01")))
        return reply

    assert nested(DEPTH_MAX)["ok"]
    assert nested(DEPTH_MAX + 1)["error"]["message"] == f"payload must be nested at most {DEPTH_MAX} deep"
    assert nested(DEPTH_MAX + 1)["reqId"] == 5
    for deep in (400, *range(800, 1_001), 3_000, 8_000):
        assert nested(deep)["error"]["code"] == "invalid", "wherever the stack ends"
    with pytest.raises(Invalid, match="nested less deep"):
        json_of(b"\x91" * 5_000 + b"\x01")
    (popped,) = talk.ask("POP", queue="q")["messages"]
    assert str(popped["payload"]) == "[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX


def test_bytes_behind_a_request_are_refused(talk: Talk) -> None:
    good = pack({"cmd": "PUSH", "queue": "q", "payload": 1})
    for behind in (b"\0", good, b"\n"):
        reply = unpack(talk.raw(good + behind))
        assert (reply["error"]["code"], reply["error"]["details"]["field"]) == ("invalid", "frame")
    assert talk.look() == []


def test_of_a_key_that_comes_twice_the_last_counts(talk: Talk) -> None:
    request = pack({"cmd": "PUSH", "queue": "q", "payload": "@"})
    assert unpack(talk.raw(request.replace(b"\xa1@", b"\x82\xa1a\x01\xa1a\x02")))["ok"]
    assert talk.ask("POP", queue="q")["messages"][0]["payload"] == {"a": 2}


# What it costs.


def test_a_body_at_the_limit_is_taken_and_one_byte_past_it_is_refused() -> None:
    around = len(pack({"cmd": "PUSH", "queue": "q", "payload": b"x" * BYTES_MAX})) - BYTES_MAX

    def request(size: int) -> bytes:
        return pack({"cmd": "PUSH", "queue": "q", "payload": b"x" * (size - around)})

    assert len(request(BYTES_MAX)) == BYTES_MAX
    assert json.loads(json_of(request(BYTES_MAX)))["cmd"] == "PUSH"
    with pytest.raises(Invalid, match=f"at most {BYTES_MAX} bytes if it is MessagePack and has payloads"):
        codec.decode_packed(request(BYTES_MAX + 1))


def calls(act: Callable[[], object]) -> int:
    """How many calls Python makes."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += 1

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return made


def test_a_batch_takes_as_many_steps_of_python_as_one_message() -> None:
    def batch(count: int) -> bytes:
        messages = [{"to": "a@b.c", "n": at, "f": at / 7, "raw": b"\0\xca"} for at in range(count)]
        return pack({"cmd": "PUSH", "queue": "q", "messages": messages})

    one, many = batch(1), batch(1_000)
    more = calls(lambda: codec.decode_packed(many)) - calls(lambda: codec.decode_packed(one))
    assert more < 50, "the nesting is looked at in a few rounds"
    answer = [json.dumps([{"n": at}] * at).encode() for at in (1, 1_000)]
    assert calls(lambda: packed_of(answer[1])) - calls(lambda: packed_of(answer[0])) < 50


def test_what_cannot_look_like_a_number_that_is_none_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(value: object) -> None:
        raise AssertionError(value)

    monkeypatch.setattr(packing, "_check", looked)
    payload = ["é漢🦀ʿ˿ʀ", 1.7e308, -1.7e308, 0.0, 1e-320, (1 << 64) - 1, b"\xcb\x7f\xef", "\x7f\xff"]
    json_of(pack({"cmd": "PUSH", "queue": "q", "payload": payload}))


# On a real connection.


def test_json_and_messagepack_are_mixed_on_one_connection(client: Raw, queue: str) -> None:
    client.send_frame(pack({"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": "waits"}))
    client.send({"cmd": "PUSH", "queue": queue, "payload": {"a": [1.5]}, "reqId": "json"})
    replies = {}
    for _ in range(2):
        answer = client._exactly(int.from_bytes(client._exactly(4), "big"))
        reply = json.loads(answer) if answer.startswith(b"{") else unpack(answer)
        replies[reply["reqId"]] = (answer.startswith(b"{"), reply)
    assert (replies["json"][0], replies["waits"][0]) == (True, False)
    assert replies["waits"][1]["messages"][0]["payload"] == {"a": [1.5]}
    done = client.ask_packed({"cmd": "ACK", "ids": [replies["json"][1]["id"]]})
    assert done == {"ok": True, "count": 1, "refused": []}


def test_the_example_of_the_protocol_is_a_request(talk: Talk) -> None:
    page = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()
    block = page.split("## MessagePack\n")[1].split("```")[1]
    frame = bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines()))
    assert frame == framed(frame[4:])
    assert unpack(frame[4:]) == {"cmd": "PUSH", "queue": "emails", "payload": {"a": 1}}
    assert unpack(talk.raw(frame[4:]))["ok"]
