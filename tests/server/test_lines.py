"""One JSON object a line: the same server for whoever has only a terminal."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import CODES
from forebay.server.tcp.connection import TcpLimits
from tests.server.test_fuzz import FRAME_BYTES_MAX, Client, House, Sender
from tests.serving import Raw, Server, framed, lined, pop, push, refused

STATS = b'{"cmd":"STATS"}'


def test_a_message_is_pushed_popped_and_acked_by_lines(client: Raw, queue: str) -> None:
    pushed = client.ask_line({"cmd": "PUSH", "queue": queue, "payload": {"to": "ada"}, "reqId": "a"})
    assert pushed == {"reqId": "a", "ok": True, "id": pushed["id"], "durability": "fsync"}
    message = client.ask_line({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"][0]
    assert (message["id"], message["payload"]) == (pushed["id"], {"to": "ada"})
    acked = {"ok": True, "count": 1, "refused": []}
    assert client.ask_line({"cmd": "ACK", "ids": [message["id"]]}) == acked


def test_lines_and_frames_meet_in_the_same_queues(client: Raw, other: Raw, queue: str) -> None:
    push(client, queue, 1)
    assert other.ask_line({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"][0]["payload"] == 1
    other.ask_line({"cmd": "PUSH", "queue": queue, "payload": 2})
    assert pop(client, queue)["payload"] == 2


@pytest.mark.parametrize(
    "before", [b"\n", b"\r\n", b"\r\n\n \n\t\r\n", b"\n" * 10_000, b"\n" + b" " * 10_000]
)
def test_blank_lines_are_passed_over_and_may_come_first(client: Raw, before: bytes) -> None:
    client.send(before, STATS, b"\r\n\r\n\n  ", STATS, b" \r\n\n")
    assert client.receive_line()["ok"]
    assert client.receive_line()["ok"]
    assert client.ask_line({"cmd": "STATS", "reqId": 7})["reqId"] == 7


def test_a_line_cut_into_single_bytes_is_answered(client: Raw) -> None:
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in STATS + b"\n":
        client.send(bytes([byte]))
    assert client.receive_line()["ok"]


DEEP = b"[" * 5_000 + b"]" * 5_000


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"nonsense", "frame"),
        (b"[]", "frame"),
        (b"5", "frame"),
        (b"\0\0\0\x02{}", "frame"),
        (b"\x81\xa3cmd\xa5STATS", "frame"),
        (b"\xef\xbb\xbf{}", "frame"),
        (b"{", "frame"),
        (STATS + b"}", "frame"),
        (STATS + STATS, "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":"\xff"}', "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":"\xed\xa0\x80"}', "frame"),
        (b'{"cmd":"PUSH","queue":"q","payload":%s}' % DEEP, "payload"),
        (b"{}", "cmd"),
        (b'{"cmd":"PUSH","payload":1}', "queue"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_a_malformed_line_is_answered_by_a_line_and_the_connection_goes_on(
    client: Raw, line: bytes, field: str
) -> None:
    client.send(b"\n" + line + b"\n" + STATS + b"\n")
    assert refused(client.receive_line(), "invalid", field)
    assert client.receive_line()["ok"]


def test_a_bad_line_is_answered_with_its_req_id(client: Raw) -> None:
    for request in ({"cmd": "NOPE"}, {"cmd": "PUSH"}, {"cmd": "POP", "queue": ""}, {"cmd": "TX"}):
        assert client.ask_line({**request, "reqId": "mine"})["reqId"] == "mine"


def test_what_no_line_begins_with_is_explained_in_a_word(client: Raw) -> None:
    client.send(b"\n[1]\n")
    assert client.receive_line()["error"] == {
        "code": "invalid",
        "message": "frame must be one JSON object a line; this one begins with b'['",
        "details": {"field": "frame", "accepted": "one JSON object a line; this one begins with b'['"},
    }


def test_the_last_line_is_carried_out_without_its_end(client: Raw, other: Raw, queue: str) -> None:
    client.send(lined({"cmd": "PUSH", "queue": queue, "payload": 1}) * 2, b'{"cmd":"PUSH","queue":"')
    client.send(queue.encode() + b'","payload":3}')
    client.half_close()
    assert [client.receive_line()["ok"] for _ in range(3)] == [True] * 3
    assert client.eof()
    assert [pop(other, queue)["payload"] for _ in range(3)] == [1, 1, 3]


def test_half_a_line_at_the_end_is_answered_and_not_carried_out(client: Raw, other: Raw, queue: str) -> None:
    client.send(lined({"cmd": "PUSH", "queue": queue, "payload": 1})[:-2])
    client.half_close()
    assert refused(client.receive_line(), "invalid", "frame")
    assert client.eof()
    assert refused(other.ask({"cmd": "QUEUE", "queue": queue}), "not_found")


def test_a_client_of_lines_that_sends_nothing_more_does_not_wait(client: Raw, queue: str) -> None:
    client.send(lined({"cmd": "POP", "queue": queue, "wait_ms": 60_000})[:-1])
    client.half_close()
    assert client.receive_line() == {"ok": True, "lease": None, "messages": []}
    assert client.eof()


def test_a_payload_with_line_breaks_comes_out_on_one_line(client: Raw, other: Raw, queue: str) -> None:
    payload = b'{"a":\r\n[1,\n2,\r"x\\ny"]}'
    client.send_frame(b'{"cmd":"PUSH","queue":"%s","payload":%s}' % (queue.encode(), payload))
    assert client.receive()["ok"]
    assert other.ask_line({"cmd": "READ", "queue": queue, "offset": 0})["runs"][0]["payloads"] == [
        json.loads(payload)
    ]
    message = other.ask_line({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"][0]
    assert message["payload"] == {"a": [1, 2, "x\ny"]}
    client.send_frame(b'{"cmd":"READ","queue":"%s","offset":0}' % queue.encode())
    length = int.from_bytes(client._exactly(4), "big")
    assert payload in client._exactly(length), "in a frame it is what came in"


def test_lines_are_pipelined_and_answered_in_order(client: Raw, queue: str) -> None:
    client.send(lined(*({"cmd": "PUSH", "queue": queue, "payload": at} for at in range(1_000))))
    ids = [client.receive_line()["id"] for _ in range(1_000)]
    assert ids == list(range(ids[0], ids[0] + 1_000))


def test_a_line_with_a_req_id_is_answered_before_a_pop_that_waits(client: Raw, queue: str) -> None:
    waits = {"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": "waits"}
    client.send(lined(waits, {"cmd": "STATS", "reqId": "first"}))
    assert client.receive_line()["reqId"] == "first"
    client.send(lined({"cmd": "PUSH", "queue": queue, "payload": 1, "reqId": "push"}))
    assert {client.receive_line()["reqId"] for _ in range(2)} == {"push", "waits"}


def test_a_client_that_never_finishes_a_line_is_closed_and_an_idle_one_is_not() -> None:
    with Server("--stall-ms", "200") as server, server.connect() as idle, server.connect() as client:
        assert idle.ask_line({"cmd": "STATS"})["ok"]
        client.send(STATS)
        assert client.eof()
        assert idle.ask_line({"cmd": "STATS"})["ok"]


# Without a socket.


def answers(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_a_line_that_is_too_long_is_answered_with_its_length_and_skipped() -> None:
    client = Client(House(), lines=True)
    long = b'{"cmd":"PUSH","queue":"q","payload":"%s"}' % (b"x" * 3 * FRAME_BYTES_MAX)
    said = client.say(STATS + b"\n", long[:5_000], long[5_000:15_000], long[15_000:], b"\n" + STATS + b"\n")
    first, second, third = answers(said)
    assert (first["ok"], third["ok"]) == (True, True)
    assert refused(second, "invalid", "frame")
    assert second["error"]["message"] == (
        f"frame must be at most {FRAME_BYTES_MAX} bytes; this one has {len(long)} and was skipped"
    )
    at_the_limit = STATS.ljust(FRAME_BYTES_MAX) + b"\n"
    assert answers(client.say(at_the_limit))[0]["ok"]
    assert refused(answers(client.say(b"x" + at_the_limit))[0], "invalid", "frame")


def test_nothing_is_kept_of_a_line_that_is_too_long() -> None:
    client = Client(House(), lines=True)
    client.say(b"{")
    for _ in range(100):
        assert client.say(b"x" * FRAME_BYTES_MAX) == []
        assert client._connection._frames.waiting <= FRAME_BYTES_MAX
    assert refused(answers(client.say(b"\n"))[0], "invalid", "frame")


@pytest.mark.parametrize("limits", [{"turn_max": 1}, {"turn_max": 3}, {"in_flight_max": 1}, {"rows_max": 1}])
def test_every_line_is_answered_however_little_is_done_at_a_time(limits: dict[str, int]) -> None:
    sender = Sender(seed=5)
    house = House()
    house.server.limits = TcpLimits(frame_bytes_max=FRAME_BYTES_MAX, **limits)
    for _ in range(500):
        client = Client(house, lines=True)
        stream = sender.lines() + b"\n"
        # A pop that waits may hold back what comes behind it: ring until nothing is left.
        said = client.say(*sender.chunks(stream))
        while more := client.say():
            said += more
        assert len(said) == sum(bool(line.strip(b" \t\r")) for line in stream.split(b"\n")), stream
        assert all(each["ok"] or each["error"]["code"] in CODES for each in answers(said))
        client.leave()


def test_a_connection_stays_with_what_it_began_with() -> None:
    house = House()
    lines, frames = Client(house, lines=True), Client(house)
    assert answers(lines.say(STATS + b"\n"))[0]["ok"]
    assert refused(answers(lines.say(framed(STATS).replace(b"\n", b"") + b"\n"))[0], "invalid", "frame")
    assert answers(frames.say(framed(STATS)))[0]["ok"]
    assert refused(answers(frames.say(STATS + b"\n"))[0], "invalid", "frame")
    assert frames.closed
    assert not lines.closed


def test_the_example_of_the_protocol_is_answered_as_it_says(queue: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()
    printed, first, second = re.findall(
        r"^\$ printf '(.*)' \| nc -N 127\.0\.0\.1 6780\n(.*)\"id\".*\n(.*?)\"id\"", page, re.MULTILINE
    )[0]
    with Server() as server, server.connect() as client:
        client.send(printed.replace("\\n", "\n").encode())
        client.half_close()
        said = [json.dumps(client.receive_line(), separators=(",", ":")) for _ in range(2)]
        for shown, line in zip((first, second), said, strict=True):
            assert re.match(".*?".join(map(re.escape, shown.split("…"))), line), line
        assert '"payload":{"a":1}' in said[1]
        assert client.eof()
