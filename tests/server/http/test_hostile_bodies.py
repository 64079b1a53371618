"""Bodies and names that are more than they seem, or less."""

import gzip
import select
from collections.abc import Iterator

import pytest

from tests.server.http.raw import LINES, Http, is_refused, messages, request
from tests.serving import Server


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server) as connection:
        yield connection


@pytest.fixture
def helper(server: Server) -> Iterator[Http]:
    """A second connection."""
    with Http(server) as connection:
        yield connection


def test_a_body_that_is_small_only_while_packed_is_refused(http: Http, queue: str) -> None:
    bomb = gzip.compress(b'{"payload":"' + b"x" * (70 << 20) + b'"}')
    assert http.call("POST", messages(queue), bomb, content_encoding="gzip").status == 413


def test_blank_lines_that_unpack_to_much_do_not_freeze_others(http: Http, helper: Http, queue: str) -> None:
    bomb = gzip.compress(b"\n" * (200 << 20))
    http.send(request("POST", messages(queue), bomb, content_type=LINES, content_encoding="gzip"))
    answers = 0
    while not select.select([http.socket], [], [], 0)[0]:
        helper.good("GET", "/v1/stats")
        answers += 1
    assert answers > 10
    assert http.answer().code == "invalid"


def test_bytes_behind_the_end_of_a_packed_body_are_no_part_of_it(http: Http, queue: str) -> None:
    packed = gzip.compress(b'{"payload": 1}')
    assert http.call("POST", messages(queue), packed + b"more", content_encoding="gzip").code == "invalid"
    assert http.call("POST", messages(queue), packed[:-1], content_encoding="gzip").code == "invalid"
    two = gzip.compress(b'{"payl') + gzip.compress(b'oad": 1}')
    assert http.call("POST", messages(queue), two, content_encoding="gzip").status == 200


def test_lines_of_a_stream_may_be_more_than_a_body_may_if_each_is_short(queue: str) -> None:
    with Server("--frame-bytes-max", "1000") as server, Http(server) as client:
        lines = b'{"payload": 1}\n' * 1_000
        assert client.call("POST", messages(queue), lines, content_type=LINES).json["count"] == 1_000
        long = b'{"payload": "%s"}\n' % (b"x" * 1_000)
        answer = client.call("POST", messages(queue), long, content_type=LINES)
        assert answer.status == 400


def test_a_client_that_sends_on_after_it_was_refused_can_read_why(http: Http, queue: str) -> None:
    """It sends all of its 60 MB first, and reads then."""
    lines = b'{"payload": 1, "unknown": 2}\n' + b'{"payload": "%s"}\n' % (b"x" * 10_000) * 6_000
    http.send(request("POST", messages(queue), lines, content_type=LINES))
    answer = http.answer()
    assert is_refused(answer, 400)
    assert answer.json["error"]["details"]["line"] == 1
    assert http.eof()


def test_names_that_are_not_utf_8_are_refused_and_not_mistaken_for_each_other(http: Http) -> None:
    for path in ("/v1/kv/%ff", "/v1/kv/a%c3", "/v1/crons/%ed%a0%80"):
        assert http.call("GET", path).code == "invalid"
    assert http.call("GET", "/v1/kv/%ef%bf%bd").status == 404


def test_a_stream_of_messages_that_are_not_alike_lets_others_have_their_turn(
    http: Http, helper: Http, queue: str
) -> None:
    lines = b"".join(b'{"payload": 1, "partition": "p%d"}\n' % (at % 10) for at in range(100_000))
    http.send(request("POST", messages(queue), lines, content_type=LINES))
    answers = 0
    while not select.select([http.socket], [], [], 0)[0]:
        helper.good("GET", "/v1/stats")
        answers += 1
    assert http.answer().json["count"] == 100_000
    assert answers >= 10  # 4 or 5 if each megabyte is pushed at once
