"""Requests as MessagePack: the same words in another form, and payloads as they are kept."""

import json
import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from forebay.core.api import queries
from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.errors import CODES, Invalid
from forebay.core.log import log as logs
from forebay.core.log.bodies import body_slices, pack_body
from forebay.core.queries import payloads as queries_payloads
from forebay.core.records import keyspace
from forebay.server.operations import codec
from forebay.server.operations.carried import Context
from forebay.wire.text import DEPTH_MAX
from tests.core.harness import Core
from tests.core.staging import adopt, run, stage
from tests.core.test_stage_logs import merge_all
from tests.server.test_fuzz import FRAME_BYTES_MAX, TEXTS, VALID, Client, House
from tests.serving import Raw, framed

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode
Fields = dict[str, Any]


def body(*payloads: bytes) -> bytes:
    return pack_body(payloads, list(map(len, payloads)))


class Talk:
    """A server in this process, asked in either form."""

    def __init__(self) -> None:
        self.house = House()
        self.client = Client(self.house)

    def raw(self, frame: bytes) -> bytes:
        (answer,) = self.client.say(framed(frame))
        return answer

    def ask(self, cmd: str, **fields: Any) -> Fields:
        answer = self.raw(pack({"cmd": cmd, **fields}))
        assert not answer.startswith(b"{"), "the answer has the form of the request"
        reply: Fields = unpack(answer)
        return reply

    def json(self, cmd: str, **fields: Any) -> Fields:
        answer = self.raw(json.dumps({"cmd": cmd, **fields}).encode())
        assert answer.startswith(b"{"), "the answer has the form of the request"
        reply: Fields = json.loads(answer)
        return reply

    def refused(self, cmd: str, **fields: Any) -> tuple[str, str | None]:
        """Code and field of a refusal, which changes nothing."""
        before = self.look()
        reply = self.ask(cmd, **fields)
        assert reply["ok"] is False, reply
        assert self.look() == before
        return reply["error"]["code"], reply["error"].get("details", {}).get("field")

    def stage(self, *payloads: bytes, **fields: Any) -> Fields:
        meant = {"queue": "q", "stage": "s", "body": body(*payloads), "count": len(payloads)} | fields
        return self.ask("STAGE", **meant)

    def look(self) -> object:
        """Everything that a refusal must not change."""
        return [
            (
                key,
                {
                    name: (each.writes, each.count, each.size, each.expires_at)
                    for name, each in queue.stages.items()
                },
                {query: dict(batches) for query, batches in queue.adopted.items()},
                {name: (part.log.first, part.log.end) for name, part in queue.partitions.items()},
                list(queue.groups),
            )
            for key, queue in self.house._node._engine.queues.items()
        ]


@pytest.fixture
def talk() -> Talk:
    return Talk()


# Every command.


def test_a_batch_is_staged_adopted_and_read_as_messagepack(talk: Talk) -> None:
    staged = talk.stage(b"1", b'"two"', part=0, query="x", batch=7, expire_ms=60_000)
    until = talk.house.now + 60_000
    assert staged == {"ok": True, "stage": "s", "part": 0, "count": 2, "bytes": 6, "expires_at": until}
    wanted = {"queue": "q", "query": "x", "batch": 7, "stages": ["s"]}
    adopted = talk.ask("ADOPT", **wanted, count=2, keep_ms=60_000)
    (part,) = adopted["partitions"]
    assert part == {"partition": "default", "first": part["first"], "offset": 0, "count": 2}
    assert adopted == {"ok": True, "count": 2, "partitions": [part], "durability": adopted["durability"]}
    assert talk.ask("ADOPT", **wanted) == adopted | {"repeated": True}
    found = talk.ask("READ", queue="q", offset=0)
    (only,) = found["runs"]
    assert only == {
        "first": part["first"],
        "offset": 0,
        "created_at": talk.house.now,
        "count": 2,
        "payloads": body(b"1", b'"two"'),
    }
    number = only["first"] >> 32
    whole = {"ok": True, "partition": "default", "number": number, "next": 2, "end": 2, "runs": [only]}
    assert found == whole
    (about,) = talk.ask("OFFSETS", queue="q", at=0, since={"default": 1})["partitions"]
    assert (about["end"], about["at"], about["bytes"], about["since"]) == (2, 0, 6, talk.house.now)
    assert talk.json("ADOPT", **wanted)["repeated"]
    assert talk.json("READ", queue="q", offset=0)["runs"][0]["payloads"] == [1, "two"]


def test_a_stage_is_dropped_as_messagepack(talk: Talk) -> None:
    talk.stage(b"1", b"2")
    assert talk.ask("UNSTAGE", queue="q", stages=["s", "t"]) == {"ok": True, "stages": 1, "count": 2}


def test_messages_are_staged_as_json_too_and_both_go_to_one_stage(talk: Talk) -> None:
    assert talk.json("STAGE", queue="q", stage="s", messages=[1, {"a": [2]}], part=0)["count"] == 2
    assert talk.stage(b"3", part=1)["count"] == 3
    assert talk.json("STAGE", queue="q", stage="s", body="AAAAAAEAAAA0", count=1, part=2)["count"] == 4
    talk.json("ADOPT", queue="q", query="x", batch=0, stages=["s"], count=4)
    assert talk.json("READ", queue="q", offset=0)["runs"][0]["payloads"][:2] == [1, {"a": [2]}]
    found = talk.ask("READ", queue="q", offset=0)["runs"]
    assert [each["payloads"] for each in found] == [body(b"1", b'{"a": [2]}'), body(b"3"), body(b"4")]


def test_options_runs_and_unique_keys_are_staged(talk: Talk) -> None:
    talk.stage(b"1", b"2", priority=3, delay_ms=0, max_attempts=2, backoff=5)
    talk.stage(b"3", b"4", b"5", runs=[{"count": 1, "delay_ms": 60_000}, {"count": 2, "priority": 9}])
    talk.stage(b"6", b"7", unique_keys=["k", "k"], partition="p")
    adopted = talk.ask("ADOPT", queue="q", query="x", batch=0, stages=["s"])
    assert (adopted["count"], adopted["duplicates"]) == (6, 1)
    popped = talk.json("POP", queue="q", count=10)["messages"]
    assert [each["payload"] for each in popped] == [4, 5, 1, 2, 6]
    first, second = talk.ask("READ", queue="q", offset=0)["runs"]
    assert first["attributes"] == [{"priority": 3}]
    assert "ends" not in first
    assert second["attributes"] == [{"priority": 0}, {"priority": 9}]
    assert (second["ends"], second["which"]) == (struct.pack("<2I", 1, 3), struct.pack("<2I", 0, 1))


def test_commands_and_options_that_do_not_exist_are_refused_by_name(talk: Talk) -> None:
    assert talk.refused("METRICS") == talk.refused("NOPE") == talk.refused("") == ("invalid", "cmd")
    assert talk.refused("PUSH", queue="q", payload=1, stall_timeout=5) == ("invalid", "stall_timeout")


def test_payloads_are_staged_as_values_or_as_a_body_but_not_as_both(talk: Talk) -> None:
    assert talk.ask("STAGE", queue="q", stage="s", messages=[1, {"a": b"b"}], part=0)["count"] == 2
    assert talk.stage(b"3", part=1)["count"] == 3
    talk.ask("ADOPT", queue="q", query="x", batch=0, stages=["s"], count=3)
    found = talk.ask("READ", queue="q", offset=0)["runs"]
    assert [each["payloads"] for each in found] == [body(b"1", b'{"a":"Yg=="}'), body(b"3")]
    assert talk.refused("STAGE", queue="q", stage="s", messages=[]) == ("invalid", "messages")
    assert talk.refused("STAGE", queue="q", stage="s", messages=[1], body=body(b"1"), count=1) == (
        "invalid",
        "messages",
    )
    assert talk.refused("STAGE", queue="q", stage="s") == ("invalid", "messages")
    assert talk.refused("STAGE", queue="q", stage="s", body=body(b"1")) == ("invalid", "count")


# On a real connection.


def receive(client: Raw) -> Fields:
    """The next answer in whichever form it has, which is told along."""
    length = int.from_bytes(client._exactly(4), "big")
    answer = client._exactly(length)
    if answer.startswith(b"{"):
        return {"form": "json", **json.loads(answer)}
    return {"form": "packed", **unpack(answer)}


def test_both_forms_are_mixed_on_one_connection_and_answered_in_order(client: Raw, queue: str) -> None:
    forms = []
    for number in range(20):
        request: Fields = {"cmd": "STAGE", "queue": queue, "stage": f"s{number}", "query": "x", "batch": 0}
        if number % 3:
            client.send_frame(pack(request | {"body": body(b"%d" % number), "count": 1}))
        else:
            client.send(request | {"messages": [number]})
        forms.append("packed" if number % 3 else "json")
    names = [f"s{number}" for number in range(20)]
    client.send_frame(pack({"cmd": "ADOPT", "queue": queue, "query": "x", "batch": 0, "stages": names}))
    client.send({"cmd": "READ", "queue": queue, "offset": 0})
    replies = [receive(client) for _ in range(22)]
    assert [each["form"] for each in replies] == [*forms, "packed", "json"]
    assert [each["stage"] for each in replies[:20]] == names
    assert replies[20]["count"] == 20
    assert [each for part in replies[21]["runs"] for each in part["payloads"]] == list(range(20))


def test_a_request_id_comes_back_in_whichever_form_it_went(client: Raw, queue: str) -> None:
    wanted: list[int | str] = [0, -5, 1 << 40, (1 << 64) - 1, "", "é漢🦀", "x" * 1_000]
    for each in wanted:
        client.send_frame(pack({"cmd": "OFFSETS", "queue": queue, "reqId": each}))
        client.send_frame(pack({"cmd": "PUSH", "reqId": each}))
        client.send_frame(pack({"cmd": "UNSTAGE", "reqId": each, "queue": queue, "stages": 5}))
        client.send({"cmd": "OFFSETS", "queue": queue, "reqId": each})
        got = [receive(client) for _ in range(4)]
        assert [reply["reqId"] for reply in got] == [each] * 4
        assert sorted(reply["error"]["code"] for reply in got) == [
            "invalid",
            "invalid",
            "not_found",
            "not_found",
        ]
    client.send_frame(pack({"cmd": "OFFSETS", "queue": queue, "reqId": 1.5}))
    assert "reqId" not in receive(client)


def test_an_error_has_the_form_of_the_request(client: Raw, queue: str) -> None:
    request = {"cmd": "READ", "queue": queue, "offset": 0}
    client.send_frame(pack(request))
    client.send(request)
    first, second = receive(client), receive(client)
    assert (first.pop("form"), second.pop("form")) == ("packed", "json")
    assert first == second
    assert first["error"]["code"] == "not_found"


# What is no request.


BROKEN = [
    b"\x80",
    b"\x81",
    b"\x81\xa3cmd",
    b"\x81\xa3cmd\xc0",
    b"\x81\xa3cmd\x05",
    b"\x81\xa3cmd\xa4RE",
    b"\x81\xa3cmd\xa4READ\x00",
    b"\x81\xa3cmd\xa4\xff\xff\xff\xff",
    b"\x81\xa4\xff\xff\xff\xff\x01",
    b"\x81\x05\xa4READ",
    b"\x81\xc4\x03cmd\xa4READ",
    b"\x82\xa3cmd\xa4READ\xa5queue",
    b"\x82\xa3cmd\xa4READ\xc1\xc1",
    b"\x82\xa3cmd\xa4READ\xa3cmd\xa4READ",
    b"\xde\x00\x01\xa3cmd\xa4READ",
    b"\xde\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdf\x00\x00\x00\x00",
    b"\x82\xa3cmd\xa4READ\xa5queue" + b"\x91" * 5_000,
    b"\x82\xa3cmd\xa4READ\xa5reqId" + b"\x91" * 5_000 + b"\x01",
    b"\x81" * 5_000,
    b"\x82\xa3cmd\xa5ADOPT\xa6stages\xdd\xff\xff\xff\xff",
    b"\x82\xa3cmd\xa5STAGE\xa4body\xc6\xff\xff\xff\xff",
    b"\x82\xa3cmd\xa5STAGE\xa4runs\xdd\xff\xff\xff\xff" + b"\x80" * 100,
    b"\x82\xa3cmd\xa7OFFSETS\xa5since\xdf\xff\xff\xff\xff",
    b"\x82\xa3cmd\xa4READ\xa5queue\xdb\xff\xff\xff\xff",
    b"\x82\xa3cmd\xa4READ\xa5queue\xd4\x01\x02",
]


@pytest.mark.parametrize("frame", BROKEN, ids=lambda each: each[:30].hex())
def test_a_broken_map_is_answered_as_messagepack_and_the_connection_goes_on(talk: Talk, frame: bytes) -> None:
    reply = unpack(talk.raw(frame))
    assert (reply["ok"], reply["error"]["code"]) == (False, "invalid")
    assert talk.look() == []
    assert talk.stage(b"1")["ok"]


@pytest.mark.parametrize(
    "frame", [b"", b"\x05", b"\x7f", b"[]", b"nonsense", b" {}", b"\n{}", b"\xef\xbb\xbf{}"]
)
def test_what_may_have_been_meant_as_text_is_answered_as_json(talk: Talk, frame: bytes) -> None:
    reply = json.loads(talk.raw(frame))
    assert (reply["error"]["code"], reply["error"]["details"]["field"]) == ("invalid", "frame")
    assert "one JSON object or MessagePack map" in reply["error"]["message"]


@pytest.mark.parametrize(
    "frame", [b"\x90", b"\x93\x01\x02\x03", b"\xdd\0\0\0\0", b"\xc0", b"\xa3cmd", b"\xff"]
)
def test_what_no_text_begins_with_is_answered_as_messagepack(talk: Talk, frame: bytes) -> None:
    reply = unpack(talk.raw(frame))
    assert (reply["error"]["code"], reply["error"]["details"]["field"]) == ("invalid", "frame")
    assert "MessagePack map" in reply["error"]["message"]


def test_every_beginning_of_a_good_request_is_refused(talk: Talk) -> None:
    good = pack(
        {"cmd": "STAGE", "queue": "q", "stage": "s", "body": body(b"1"), "count": 1, "runs": [{"count": 1}]}
    )
    for end in range(1, len(good)):
        assert unpack(talk.raw(good[:end]))["error"]["code"] == "invalid"
    assert talk.look() == []
    assert unpack(talk.raw(good))["ok"]


def test_a_map_that_is_too_long_is_answered_as_messagepack(talk: Talk) -> None:
    assert unpack(talk.raw(pack({"cmd": "UNSTAGE", "queue": "q", "stages": ["x" * FRAME_BYTES_MAX]})))


STAGE: Fields = {"queue": "q", "stage": "s", "body": body(b"1"), "count": 1}
ADOPT: Fields = {"queue": "q", "query": "x", "batch": 1, "stages": ["s"]}
READ: Fields = {"queue": "q", "offset": 0}


@pytest.mark.parametrize(
    ("cmd", "good", "required"),
    [
        ("READ", READ, ["queue", "offset"]),
        ("OFFSETS", {"queue": "q"}, ["queue"]),
        ("STAGE", STAGE, ["queue", "stage"]),
        ("ADOPT", ADOPT, ["queue", "query", "batch", "stages"]),
        ("UNSTAGE", {"queue": "q", "stages": ["s"]}, ["queue", "stages"]),
    ],
)
def test_unknown_and_missing_fields_are_named(
    talk: Talk, cmd: str, good: Fields, required: list[str]
) -> None:
    assert talk.refused(cmd, **good, colour="red") == ("invalid", "colour")
    for field in required:
        assert talk.refused(cmd, **{name: good[name] for name in good if name != field}) == ("invalid", field)
        assert talk.refused(cmd, **good | {field: None}) == ("invalid", field)


HUGE = 1 << 63
WRONG: list[tuple[str, Fields, str]] = [
    ("READ", READ | {"queue": 5}, "queue"),
    ("READ", READ | {"queue": b"q"}, "queue"),
    ("READ", READ | {"queue": "not a name"}, "queue"),
    ("READ", READ | {"offset": "0"}, "offset"),
    ("READ", READ | {"offset": 0.5}, "offset"),
    ("READ", READ | {"offset": True}, "offset"),
    ("STAGE", STAGE | {"body": "AAAAAAEAAAAx"}, "body"),
    ("STAGE", STAGE | {"body": [1]}, "body"),
    ("STAGE", STAGE | {"stage": ""}, "stage"),
    ("STAGE", STAGE | {"count": -1}, "body"),
    ("STAGE", STAGE | {"count": 0}, "body"),
    ("STAGE", STAGE | {"count": 2}, "body"),
    ("STAGE", STAGE | {"count": HUGE}, "body"),
    ("STAGE", STAGE | {"count": 1 << 31}, "body"),
    ("STAGE", STAGE | {"part": -1}, "part"),
    ("STAGE", STAGE | {"part": HUGE}, "part"),
    ("STAGE", STAGE | {"query": "x"}, "query"),
    ("STAGE", STAGE | {"batch": 1}, "query"),
    ("STAGE", STAGE | {"query": "x", "batch": -1}, "batch"),
    ("STAGE", STAGE | {"query": "x", "batch": HUGE}, "batch"),
    ("STAGE", STAGE | {"query": "x", "batch": "1"}, "batch"),
    ("STAGE", STAGE | {"expire_ms": -1}, "expire_ms"),
    ("STAGE", STAGE | {"expire_ms": HUGE}, "expire_ms"),
    ("STAGE", STAGE | {"runs": []}, "runs"),
    ("STAGE", STAGE | {"runs": {}}, "runs"),
    ("STAGE", STAGE | {"runs": [{"count": 2}]}, "runs"),
    ("STAGE", STAGE | {"runs": [{"count": HUGE}]}, "runs"),
    ("STAGE", STAGE | {"runs": [{"count": 2}, {"count": -1}]}, "runs"),
    ("STAGE", STAGE | {"runs": [{"count": 1}], "priority": 1}, "runs"),
    ("STAGE", STAGE | {"runs": [{"count": 1, "colour": 1}]}, "runs[0].colour"),
    ("STAGE", STAGE | {"runs": [{}]}, "runs[0].count"),
    ("STAGE", STAGE | {"priority": HUGE}, "priority"),
    ("STAGE", STAGE | {"delay_ms": -1}, "delay_ms"),
    ("STAGE", STAGE | {"ttl_ms": HUGE}, "ttl_ms"),
    ("STAGE", STAGE | {"unique_keys": []}, ""),
    ("STAGE", STAGE | {"unique_keys": ["a", "b"]}, "unique_keys"),
    ("STAGE", STAGE | {"unique_keys": [""]}, "unique_key"),
    ("STAGE", STAGE | {"unique_keys": [5]}, "unique_keys[0]"),
    ("ADOPT", ADOPT | {"batch": -1}, "batch"),
    ("ADOPT", ADOPT | {"batch": HUGE}, "batch"),
    ("ADOPT", ADOPT | {"batch": 1.5}, "batch"),
    ("ADOPT", ADOPT | {"query": ""}, "query"),
    ("ADOPT", ADOPT | {"stages": "s"}, "stages"),
    ("ADOPT", ADOPT | {"stages": ["s", "s"]}, "stages"),
    ("ADOPT", ADOPT | {"count": -1}, "count"),
    ("ADOPT", ADOPT | {"count": [1]}, "count"),
    ("UNSTAGE", {"queue": "q"}, "stages"),
    ("UNSTAGE", {"queue": "q", "query": "x"}, "query"),
    ("ADOPT", ADOPT | {"keep_ms": -1}, "keep_ms"),
    ("ADOPT", ADOPT | {"stages": [], "durability": "nonsense"}, "durability"),
    ("UNSTAGE", {"queue": "q", "stages": []}, "stages"),
    ("OFFSETS", {"queue": "q", "since": [1]}, "since"),
    ("OFFSETS", {"queue": "q", "since": {"p": "1"}}, "since[...]"),
]


@pytest.mark.parametrize(("cmd", "fields", "field"), WRONG, ids=lambda each: str(each)[:50])
def test_a_value_that_is_none_is_refused_and_its_field_named(
    talk: Talk, cmd: str, fields: Fields, field: str
) -> None:
    if field:
        assert talk.refused(cmd, **fields) == ("invalid", field)
    else:
        assert talk.ask(cmd, **fields)["ok"]


def test_numbers_beyond_reason_are_refused_where_there_is_a_log(talk: Talk) -> None:
    talk.json("PUSH", queue="q", payload=1)
    for field, values in {
        "offset": [-1, 2, HUGE, (1 << 64) - 1, -HUGE],
        "max_count": [0, -1],
        "max_bytes": [0, -1, HUGE],
    }.items():
        for value in values:
            assert talk.refused("READ", **READ | {field: value}) == ("invalid", field)
    assert talk.refused("OFFSETS", queue="q", at=-1) == ("invalid", "at")
    for since in (-HUGE, (1 << 64) - 1):
        (about,) = talk.ask("OFFSETS", queue="q", at=(1 << 64) - 1, since={"default": since, "x": 0})[
            "partitions"
        ]
        assert (about["at"], about["since"]) == (1, talk.house.now if since < 0 else None)


# Bodies.


def offsets(*ends: int) -> bytes:
    return struct.pack(f"<{len(ends)}i", *ends)


BAD_BODIES: dict[str, tuple[int, bytes]] = {
    "empty": (1, b""),
    "offsets cut": (1, offsets(0)),
    "no offset of the end": (2, offsets(0, 1) + b"12"),
    "not from 0 on": (1, offsets(1, 2) + b"12"),
    "negative": (2, offsets(0, -1, 2) + b"12"),
    "falling": (3, offsets(0, 2, 1, 3) + b"123"),
    "beyond the end": (2, offsets(0, 1, 3) + b"12"),
    "far beyond the end": (2, offsets(0, 0x7FFFFFFF, 2) + b"12"),
    "short of the end": (2, offsets(0, 1, 2) + b"123"),
    "big-endian": (1, b"\0\0\0\0\0\0\0\1" + b"1"),
    "an empty payload": (2, offsets(0, 1, 1) + b"1"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_is_offsets_and_payloads(talk: Talk, name: str) -> None:
    count, bad = BAD_BODIES[name]
    assert talk.refused("STAGE", **STAGE | {"body": bad, "count": count}) == ("invalid", "body")


DEEP = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
BAD_PAYLOADS: dict[str, list[bytes]] = {
    "no JSON": [b"nonsense"],
    "blanks before": [b"1", b" 2"],
    "blanks behind": [b"1 ", b"2"],
    "a line behind": [b"1", b"2\n"],
    "blanks only": [b" "],
    "two values in one": [b"1,2", b"3"],
    "two values behind one another": [b"1 2"],
    "half a value each": [b"[1", b"2]"],
    "an array over two": [b"[", b"]"],
    "a string over two": [b'"a', b'b"'],
    "an object over two": [b'{"a":1', b'"b":2}'],
    "brackets that fit by chance": [b"1],[2"],
    "an end too many": [b"1]", b"[2"],
    "a comma": [b","],
    "a comment": [b"1//"],
    "no UTF-8": [b'"\xff"'],
    "a surrogate": [b'"\xed\xa0\x80"'],
    "a character over two": [b'"\xc3"', b'"\xa9"'],
    "NaN": [b"NaN"],
    "too deep": [b"1", b"[" + DEEP + b"]"],
    "much too deep": [b"[" * 2_000 + b"]" * 2_000],
    "too deep to look at": [b'{"a":' * 1_300 + b"1" + b"}" * 1_300],
    "never closed": [b"[" * 5_000],
    "too large": [b'"' + b"x" * 2_000 + b'"'],
    "a byte order mark": [b"\xef\xbb\xbf1"],
    "a NUL": [b"1\0"],
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_each_payload_is_one_json_value_with_nothing_around_it(talk: Talk, name: str) -> None:
    bad = BAD_PAYLOADS[name]
    for around in ([], [b"0"], [b"0"] * 20):
        payloads = [*around, *bad, *around]
        code, field = talk.refused("STAGE", **STAGE | {"body": body(*payloads), "count": len(payloads)})
        assert (code, field in ("body", "payload", "frame")) == ("invalid", True)
    assert talk.look() == []


def test_a_body_that_is_too_large_is_refused_before_its_payloads_are_looked_at() -> None:
    bad = body(*[b"no JSON" * 20_000] * 2)
    request = codec.decode_packed(pack({"cmd": "STAGE", **STAGE, "body": bad, "count": 2}))
    with pytest.raises(Invalid, match=f"at most {SEGMENT_BYTES_MAX} bytes"):
        request.packed_command(Context("default", 7))


def test_good_payloads_are_kept_byte_for_byte(talk: Talk) -> None:
    good = [
        b"1",
        b'"[{"',
        b'"\\u00e9 \\" ,"',
        '"é漢🦀"'.encode(),
        b'{ "a" : [ 1 , 2 ] }',
        DEEP,
        b"null",
        b"-0.5e3",
    ]
    assert talk.stage(*good)["count"] == len(good)
    talk.ask("ADOPT", **ADOPT)
    (only,) = talk.ask("READ", queue="q", offset=0)["runs"]
    assert list(body_slices(only["payloads"], len(good), 0, len(good))) == good


def test_which_payload_is_bad_is_said(talk: Talk) -> None:
    reply = talk.stage(b"1", b"2", b"[3", b"4]", b"5")
    assert "number 2 is not" in reply["error"]["message"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda each: repr(each[:20]))
def test_a_payload_may_be_staged_if_it_may_be_pushed(talk: Talk, text: bytes) -> None:
    """But for blanks around it, which a push takes away."""
    pushed = json.loads(talk.raw(b'{"cmd":"PUSH","queue":"q","messages":[1,' + text + b",2]}"))
    assert talk.stage(b"1", text, b"2")["ok"] == pushed["ok"]


floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, min_size=1, max_size=8), st.booleans(), st.data())
def test_whatever_values_are_staged_come_back_and_no_other_cut_of_them_is_taken(
    values: list[object], plain: bool, data: st.DataObject
) -> None:
    payloads = [json.dumps(each, ensure_ascii=plain, allow_nan=False).encode() for each in values]
    talk = Talk()
    assert talk.stage(*payloads)["ok"]
    talk.ask("ADOPT", **ADOPT)
    (only,) = talk.ask("READ", queue="q", offset=0)["runs"]
    assert list(body_slices(only["payloads"], len(values), 0, len(values))) == payloads
    joined = b"".join(payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(joined)), min_size=0, max_size=6)))
    ends = [0, *cuts, len(joined)]
    pieces = [joined[low:high] for low, high in pairwise(ends)]
    assert talk.stage(*pieces, stage="cut")["ok"] == all(map(is_value, pieces))


def is_value(piece: bytes) -> bool:
    try:
        json.loads(piece.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return piece.strip(b" \t\r\n") == piece


# Reading.


def packed_read(core: Core, offset: int, count: int, size: int = 1 << 24) -> Fields:
    """The answer to a packed READ, as a client has it."""
    frame = pack({"cmd": "READ", "queue": "q", "offset": offset, "max_count": count, "max_bytes": size})
    request, context = codec.decode_packed(frame), Context("default", 7)
    reply = core.ask(request.packed_command(context), queries.LogSlice)
    fetch(core, reply)
    core.commit()  # an answer leaves after its commit
    answer: Fields = unpack(codec.encode(request, reply, context, packed=True))
    return answer


def fetch(core: Core, reply: queries.LogSlice) -> None:
    for each in queries_payloads.absent(reply):
        (found,) = core.store.bodies([keyspace.body_key(each.queue.prefix, each.segment.body_name)])
        assert isinstance(found, bytes)
        each.segment.body = found


Row = tuple[int, int, bytes, int, int]
"""Offset, id, payload, time and priority of a message."""


def rows_of(answer: Fields) -> Iterator[Row]:
    """The messages of a packed answer, put together as a client does."""
    for each in answer["runs"]:
        count = each["count"]
        ends = struct.unpack(f"<{len(each.get('ends', b'')) // 4}I", each.get("ends", b"")) or (count,)
        times = struct.unpack(f"<{len(each.get('times', b'')) // 4}I", each.get("times", b"")) or (0,)
        which = struct.unpack(f"<{len(each.get('which', b'')) // 4}I", each.get("which", b""))
        which = which or (0,) * len(ends)
        sets = each.get("attributes") or [{"priority": 0}]
        assert len(ends) == len(times) == len(which)
        assert list(ends) == sorted(set(ends)), "runs are not empty"
        assert ends[-1] == count
        payloads = list(body_slices(each["payloads"], count, 0, count))
        assert each["payloads"] == body(*payloads), "nothing of what was not asked for"
        run_at = 0
        for at, payload in enumerate(payloads):
            run_at += ends[run_at] <= at
            about = (each["created_at"] + times[run_at], sets[which[run_at]]["priority"])
            yield each["offset"] + at, each["first"] + at, payload, *about


def rows_in(core: Core) -> list[Row]:
    """Everything in the log, as it is read one way or the other: here message by message."""
    log = core.engine.queues["default", "q"].partitions["default"].log
    found: list[Row] = []
    for offset in range(log.end):
        reply = core.ask(queries.Read("default", "q", offset, max_count=1), queries.LogSlice)
        fetch(core, reply)
        (each,) = reply.runs
        (payload,) = each.payloads()
        priority = logs.attributes_at(log, offset).priority
        found.append((offset, each.first, bytes(payload), each.created_at, priority))
    return found


def mixed(core: Core) -> None:
    """Pushed and adopted messages of several times and priorities in a few commits."""
    for batch in range(6):
        core.push(b"%d" % batch, b'"pushed"')
        core.push(b'"urgent"', priority=batch % 3)
        stage(core, "s", *[b"%d" % at for at in range(4)], batch=batch, runs=[run(1), run(3, priority=batch)])
        adopt(core, batch, "s")
        core.commit()
        core.now += 10 * (batch % 2)


@pytest.mark.parametrize("merged", [False, True], ids=["as it came", "merged"])
@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "on the disk"])
def test_what_is_read_is_right_wherever_it_begins_and_ends(merged: bool, restarted: bool) -> None:
    core = Core()
    mixed(core)
    if merged:
        assert merge_all(core)
    if restarted:
        core.restart()
    wanted = rows_in(core)
    assert len({row[3] for row in wanted}) == 3
    assert len(wanted) == 42
    for offset in range(43):
        for count in (1, 2, 3, 5, 8, 13, 42):
            answer = packed_read(core, offset, count)
            assert list(rows_of(answer)) == wanted[offset : offset + count]
            assert (answer["next"], answer["end"]) == (min(offset + count, 42), 42)


def test_a_merged_segment_is_read_as_one_run_with_its_times() -> None:
    core = Core()
    for number in range(8):
        core.push(b"%d" % number)
        core.commit()
        core.now += 5
    begin = core.now - 40
    merge_all(core)
    (first, *_) = packed_read(core, 0, 100)["runs"]
    assert (first["count"], first["created_at"]) == (6, begin)
    assert struct.unpack("<6I", first["ends"]) == tuple(range(1, 7))
    assert struct.unpack("<6I", first["times"]) == tuple(range(0, 30, 5))
    assert "attributes" not in first
    (only,) = packed_read(core, 2, 3)["runs"]
    assert (only["offset"], only["count"], only["created_at"]) == (2, 3, begin)
    assert struct.unpack("<3I", only["ends"]) == (1, 2, 3)
    assert struct.unpack("<3I", only["times"]) == (10, 15, 20)


def test_a_read_ends_where_it_is_large_enough() -> None:
    core = Core()
    sizes = [1, 5, 10, 100, 3]
    for size in sizes:
        core.push(b"1" * size)
        core.commit()
    ends = list(accumulate(sizes))
    for most in range(1, 130):
        answer = packed_read(core, 0, 100, most)
        reached = sum(end < most for end in ends) + 1
        assert answer["next"] == min(reached, len(sizes)), "the segment that reaches it is the last"
        assert len(list(rows_of(answer))) == answer["next"]


def test_what_forms_is_read_like_what_is_kept(talk: Talk) -> None:
    """One frame behind the other, so that all of it is one commit."""
    push = json.dumps({"cmd": "PUSH", "queue": "q", "messages": [1, 2], "priority": 4}).encode()
    plain = json.dumps({"cmd": "PUSH", "queue": "q", "messages": [3]}).encode()
    read = pack({"cmd": "READ", "queue": "q", "offset": 1})
    *_, answer = talk.client.say(framed(push) + framed(plain) + framed(read))
    (only,) = unpack(answer)["runs"]
    assert only["payloads"] == body(b"2", b"3")
    assert [row[4] for row in rows_of(unpack(answer))] == [4, 0]


# Whatever comes.

GOOD: list[Fields] = [
    {"cmd": "READ", **READ, "partition": "default", "max_count": 5, "max_bytes": 500},
    {"cmd": "OFFSETS", "queue": "q", "at": 5, "since": {"default": 1}},
    {"cmd": "STAGE", **STAGE, "part": 0, "query": "x", "batch": 1, "expire_ms": 5_000},
    {"cmd": "STAGE", **STAGE, "stage": "t", "runs": [{"count": 1, "priority": 2}], "unique_keys": ["k"]},
    {
        "cmd": "STAGE",
        "queue": "q",
        "stage": "u",
        "body": body(b"1", b'"2"', b"[3]"),
        "count": 3,
        "delay_ms": 5,
    },
    {"cmd": "ADOPT", **ADOPT, "count": 1, "durability": "os", "keep_ms": 5_000},
    {"cmd": "ADOPT", "queue": "q", "query": "y", "batch": 3, "stages": ["t", "u"]},
    {"cmd": "UNSTAGE", "queue": "q", "stages": ["s", "t"]},
    *VALID,
]
numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from([0, 1, 2, -1, 1 << 31, 1 << 32])
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=5) | st.binary(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | numbers, inner, max_size=3)
    ),
    max_leaves=6,
)
field_names = st.sampled_from(
    sorted({name for each in GOOD for name in each} | {"reqId", "messages", "ttl_ms", "nope"})
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A good request, and what becomes of it on its way."""
    request = dict(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(field_names)
        if draw(st.booleans()):
            request.pop(name, None)
        else:
            request[name] = draw(anything)
    frame = bytearray(pack(request))
    how = draw(st.sampled_from(["whole", "whole", "cut", "flipped", "longer", "noise"]))
    if how == "cut":
        del frame[draw(st.integers(0, len(frame))) :]
    elif how == "flipped":
        for _ in range(draw(st.integers(1, 4))):
            frame[draw(st.integers(0, len(frame) - 1))] ^= 1 << draw(st.integers(0, 7))
    elif how == "longer":
        at = draw(st.integers(0, len(frame)))
        frame[at:at] = draw(st.binary(min_size=1, max_size=8))
    elif how == "noise":
        begin = draw(st.sampled_from([b"\x81", b"\x82\xa3cmd", b"\xdf\xff\xff\xff\xff", b"\xde\x00\x03"]))
        return begin + draw(st.binary(max_size=60))
    return bytes(frame)


@settings(max_examples=400)
@given(st.lists(frames(), min_size=1, max_size=12))
@example([pack(each) for each in GOOD])
def test_whatever_comes_is_answered_once_and_what_is_refused_changes_nothing(sent: list[bytes]) -> None:
    talk = Talk()
    for frame in sent:
        before = talk.look()
        answer = talk.raw(frame)
        is_map = codec.is_packed(frame)
        assert answer.startswith(b"{") != is_map, "the answer has the form of the request"
        reply = unpack(answer) if is_map else json.loads(answer)
        if reply["ok"]:
            continue
        assert reply["error"]["code"] in CODES
        assert "bug" not in reply["error"]["message"], reply
        assert talk.look() == before
    assert talk.json("PUSH", queue="still-here", payload=1)["ok"]
    talk.house.works()
