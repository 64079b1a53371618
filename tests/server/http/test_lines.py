"""A push as a stream of lines: however it is cut, packed or blank, every line is a message, once."""

import json
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from forebay.server.http.push_stream import CHUNK_BYTES
from tests.server.http.talking import Answer, Http, at, lines_of, packed
from tests.serving import Server

names = count(1)


def payloads(http: Http, queue: str) -> list[Any]:
    return http.popped(queue, 100_000)


def message(at: int, size: int = 0) -> dict[str, Any]:
    return {"payload": {"n": at, "fill": "x" * size}}


def numbers(http: Http, queue: str, count: int = 1_000) -> list[int]:
    return [each["n"] for each in http.popped(queue, count)]


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    ends = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[low:high] for low, high in pairwise(ends)]


def test_each_line_is_a_message_in_the_order_of_the_lines(http: Http, queue: str) -> None:
    answer = http.lines(queue, lines_of(*({"payload": n} for n in range(5))))
    assert answer.status == 200
    first = http.get(f"{at(queue)}/log", offset=0)["runs"][0]["first"]
    assert answer.json == {"count": 5, "first": first, "durability": "fsync"}
    assert payloads(http, queue) == [0, 1, 2, 3, 4]


@settings(max_examples=40)
@given(
    wanted=st.lists(st.one_of(st.integers(), st.text(), st.lists(st.none())), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 10_000), max_size=12),
    ends=st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \t\n \n"]),
    is_packed=st.booleans(),
    is_ended=st.booleans(),
)
def test_however_a_stream_is_cut_and_packed_every_line_comes_once(
    server: Server, wanted: list[Any], places: list[int], ends: bytes, is_packed: bool, is_ended: bool
) -> None:
    queue = f"cut-{next(names)}"
    body = ends.join(json.dumps({"payload": each}, ensure_ascii=False).encode() for each in wanted)
    body += ends if is_ended else b""
    headers = {"content_encoding": "gzip"} if is_packed else {}
    with Http(server.http) as http:
        answer = http.lines(queue, cut(packed(body) if is_packed else body, places), **headers)
        assert (answer.status, answer.json["count"]) == (200, len(wanted))
        assert payloads(http, queue) == wanted


def test_a_line_may_have_every_option_of_a_message(http: Http, queue: str) -> None:
    answer = http.lines(
        queue,
        lines_of(
            {"payload": "low", "priority": -1},
            {"payload": "high", "priority": 9, "tags": ["t"], "headers": {"a": "b"}},
            {"payload": "once", "unique_key": "k"},
            {"payload": "twice", "unique_key": "k"},
        ),
    )
    assert (answer.json["count"], answer.json["duplicates"]) == (4, 1)
    found = http.pop(queue, 9)["messages"]
    assert [each["payload"] for each in found] == ["high", "once", "low"]
    assert (found[0]["tags"], found[0]["headers"]) == (["t"], {"a": "b"})


def test_a_stream_of_many_chunks_is_pushed_whole(http: Http, queue: str) -> None:
    body = lines_of(*(message(n, 50_000) for n in range(60)))
    assert len(body) > 2 * CHUNK_BYTES
    assert http.lines(queue, body).json["count"] == 60
    assert numbers(http, queue) == list(range(60))


def long() -> bytes:
    """30 lines, of which some are pushed for sure before what comes behind them."""
    body = lines_of(*(message(n, 100_000) for n in range(30)))
    assert len(body) > 2 * CHUNK_BYTES
    return body


def pieces(*bodies: bytes) -> Iterator[bytes]:
    yield from bodies


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"nonsense", "line"),
        (b'{"payload": 1', "line"),
        (b'{"payload": 1} {"payload": 2}', "line"),
        (b'{"payload": 1, "surprise": 1}', "surprise"),
        (b'{"priority": 1}', "payload"),
        (b'{"payload": 1, "priority": "high"}', "priority"),
        (b'{"payload": "\xff"}', "frame"),
        (b'{"payload": ' + b"[" * 200 + b"]" * 200 + b"}", "payload"),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "payload"),
        (b'{"payload": 1, "key": "default"}', "key"),
        (b'{"payload": 1, "dedup": "drop"}', "unique_key"),
        (b'{"payload": "' + b"x" * 1_048_577 + b'"}', "payload"),
    ],
)
def test_a_bad_line_is_named_and_only_earlier_chunks_are_kept(
    bad: bytes, field: str, http: Http, queue: str
) -> None:
    last = lines_of(message(32))
    answer = http.lines(queue, pieces(long(), lines_of(message(30), message(31)), b"\n", bad, b"\n", last))
    assert (answer.status, answer.code) == (400, "invalid")
    assert (answer.details["line"], answer.details["field"]) == (34, field)
    kept = answer.details["kept"]
    assert 0 < kept <= 32
    assert numbers(http, queue) == list(range(kept))


def test_a_bad_first_line_keeps_nothing(http: Http, queue: str) -> None:
    answer = http.lines(queue, b'nonsense\n{"payload": 1}\n')
    assert (answer.details["line"], answer.details["kept"]) == (1, 0)
    assert http.ask("GET", at(queue)).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b'{"payload": 1},{"payload": [{}\n{}]}\n',
        b'{"payload": [1\n2]}\n',
        b'{"payload":\n1}\n',
        b'{"payload": "a\nb"}\n',
    ],
)
def test_lines_that_are_bad_alone_are_bad_together(body: bytes, http: Http, queue: str) -> None:
    answer = http.lines(queue, body)
    assert (answer.status, answer.details["line"], answer.details["kept"]) == (400, 1, 0)


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n"])
def test_a_stream_without_lines_is_refused(body: bytes, http: Http, queue: str) -> None:
    answer = http.lines(queue, body)
    assert (answer.status, answer.details["field"]) == (400, "body")


def test_a_packed_stream_may_be_of_several_members(http: Http, queue: str) -> None:
    body = b"".join(packed(lines_of({"payload": n})) for n in range(3))
    for places in ((), (10, 20, 30, 40, 70), range(len(body))):
        assert http.lines(queue, cut(body, places), content_encoding="gzip").json["count"] == 3
        assert payloads(http, queue) == [0, 1, 2]


@pytest.mark.parametrize("behind", [b"garbage", packed(b'{"payload": 2}\n')[:-1], b"\x1f"])
def test_what_is_packed_badly_is_refused_and_never_passed_over(behind: bytes, http: Http, queue: str) -> None:
    body = packed(b'{"payload": 1}\n') + behind
    for each in (body, cut(body, range(len(body)))):
        answer = http.lines(queue, each, content_encoding="gzip")
        assert (answer.status, answer.details["field"]) == (400, "body")


def test_a_body_that_is_packed_small_and_unpacks_large_is_pushed_a_little_at_a_time(
    http: Http, queue: str
) -> None:
    body = lines_of(*({"payload": n} for n in range(50_000)))
    assert http.lines(queue, packed(body), content_encoding="gzip").json["count"] == 50_000
    assert http.counts(queue) == {"waiting": 50_000}


@pytest.mark.parametrize("kind", ["application/ndjson", "application/jsonl", "Application/X-JsonLines"])
def test_lines_are_known_by_all_their_names(kind: str, http: Http, queue: str) -> None:
    answer = http.lines(queue, b'{"payload": 1}\n{"payload": 2}', content_type=kind)
    assert answer.json["count"] == 2


def test_the_line_with_a_bad_option_is_told(http: Http, queue: str) -> None:
    body = b'{"payload": 1}\n{"payload": 2, "delay_ms": -1}\n{"payload": 3}'
    answer = http.lines(queue, body)
    assert (answer.details["line"], answer.details["field"]) == (2, "delay_ms")


def test_the_kind_of_a_body_is_read_in_any_case(http: Http, queue: str) -> None:
    said = {"content-type": "Application/X-NDJSON; charset=utf-8"}
    answer = http.send("POST", f"{at(queue)}/messages", lines_of({"payload": 1}, {"payload": 2}), said)
    assert (answer.status, answer.json["count"]) == (200, 2)


# With small limits.


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with Server("--store", "memory:", "--frame-bytes-max", "4096", "--batch-max", "10") as running:
        yield running


@pytest.fixture
def tight(small: Server) -> Iterator[Http]:
    with Http(small.http) as connection:
        yield connection


def in_pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[low : low + size] for low in range(0, len(body), size))


@pytest.mark.parametrize("size", [1, 100, 5_000])
def test_a_stream_may_be_longer_than_a_body_if_its_lines_are_not(size: int, tight: Http, queue: str) -> None:
    body = lines_of(*(message(n, 300) for n in range(30)))
    assert len(body) > 2 * 4_096
    answer = tight.lines(queue, in_pieces(body, size))
    assert (answer.status, answer.json["count"]) == (200, 30)
    got: list[int] = []
    while more := [each["payload"]["n"] for each in tight.pop(queue, 10)["messages"]]:
        got += more
    assert got == list(range(30))


@pytest.mark.parametrize("size", [64, 5_000])
def test_a_line_that_is_longer_than_a_body_may_be_is_refused(size: int, tight: Http, queue: str) -> None:
    body = lines_of(message(0), message(1, 10_000))
    answer = tight.lines(queue, in_pieces(body, size))
    assert (answer.status, answer.code) == (400, "invalid")
    assert (answer.details["field"], answer.details["line"]) == ("line", 2)
    kept = answer.details["kept"]
    assert kept in (0, 1)
    assert numbers(tight, queue, 10) == list(range(kept))


def refused(tight: Http, queue: str, *messages: Any) -> Answer:
    answer = tight.lines(queue, lines_of(*messages))
    assert answer.status == 400
    return answer


def test_more_lines_than_a_batch_may_have_go_in_several(tight: Http, queue: str) -> None:
    good = [{"payload": n} for n in range(25)]
    assert tight.lines(queue, lines_of(*good)).json["count"] == 25
    answer = refused(tight, queue, *good, {"payload": 25, "key": "default"}, {"payload": 26})
    assert (answer.details["line"], answer.details["kept"]) == (26, 20)
    assert tight.counts(queue) == {"waiting": 45}


def test_a_stream_for_a_queue_that_is_full_says_how_far_it_came(tight: Http, queue: str) -> None:
    tight.put(at(queue), options={"max_size": 15})
    answer = tight.lines(queue, lines_of(*({"payload": n} for n in range(25))))
    assert (answer.status, answer.code) == (503, "busy")
    assert answer.headers["retry-after"] == "1"
    assert (answer.details["line"], answer.details["kept"]) == (11, 10)
    assert tight.counts(queue) == {"waiting": 10}
