from itertools import islice, pairwise

import pytest
from hypothesis import given, strategies as st

from forebay.wire.framing import ABSURD, HEAD, Frames, Lines, Lost, TooLong, cutter

LIMIT = 100

bodies = st.lists(st.binary(max_size=LIMIT), max_size=12)
streams = st.lists(st.binary(max_size=LIMIT) | st.binary(min_size=LIMIT + 1, max_size=4 * LIMIT), max_size=12)
"""Bodies of frames, some of them too long."""


def stream(wanted: list[bytes]) -> bytes:
    return b"".join(b"".join(Frames.wrapped(body)) for body in wanted)


def plain(found: bytes | TooLong) -> bytes | int:
    """What a frame is compared by: its body, or the length of one that was skipped."""
    return found.length if isinstance(found, TooLong) else found


def expected(wanted: list[bytes]) -> list[bytes | int]:
    return [body if len(body) <= LIMIT else len(body) for body in wanted]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in chunks that end at these places, wherever those are."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[low:high] for low, high in pairwise(ends)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=30))
def test_frames_are_the_same_however_the_stream_is_cut(wanted: list[bytes], places: list[int]) -> None:
    frames = Frames(LIMIT)
    found = []
    for chunk in cut(stream(wanted), places):
        frames.feed(chunk)
        found += [plain(each) for each in frames]
    assert found == expected(wanted)
    assert not frames.partial


@given(streams)
def test_frames_that_come_byte_by_byte_are_found_with_their_last_byte(wanted: list[bytes]) -> None:
    frames = Frames(LIMIT)
    for body in wanted:
        data = stream([body])
        at = len(data) if len(body) <= LIMIT else HEAD + 1
        for position, byte in enumerate(data, 1):
            frames.feed(bytes([byte]))
            assert [plain(each) for each in frames] == (expected([body]) if position == at else [])
            assert frames.partial == (position < len(data))


@given(streams, st.lists(st.integers(1, 3), max_size=12))
def test_stopping_early_loses_nothing(wanted: list[bytes], stops: list[int]) -> None:
    frames = Frames(LIMIT)
    frames.feed(stream(wanted))
    found: list[bytes | int] = []
    for stop in stops:
        turn = iter(frames)
        found += [plain(each) for each in islice(turn, stop)]
        turn.close()
    found += [plain(each) for each in frames]
    assert found == expected(wanted)


@given(bodies, st.binary(min_size=1, max_size=LIMIT))
def test_a_beginning_without_its_end_is_partial(wanted: list[bytes], last: bytes) -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([*wanted, last])[:-1])
    assert list(frames) == wanted
    assert frames.partial
    frames.feed(last[-1:])
    assert list(frames) == [last]
    assert not frames.partial


def test_nothing_is_partial_before_the_first_byte() -> None:
    frames = Frames(LIMIT)
    assert not frames.partial
    frames.feed(b"")
    assert list(frames) == []
    assert not frames.partial


@pytest.mark.parametrize("size", range(1, HEAD + 1))
def test_a_length_alone_is_partial(size: int) -> None:
    frames = Frames(LIMIT)
    frames.feed(bytes([0, 0, 0, 1])[:size])
    assert list(frames) == []
    assert frames.partial


def test_an_empty_body_is_a_frame() -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([b"", b""]))
    assert list(frames) == [b"", b""]


def test_a_frame_at_the_limit_is_taken() -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([b"x" * LIMIT, b"next"]))
    assert list(frames) == [b"x" * LIMIT, b"next"]


def test_a_frame_one_byte_past_the_limit_is_skipped_and_the_stream_goes_on() -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([b"x" * (LIMIT + 1), b"next"]))
    assert [plain(each) for each in frames] == [LIMIT + 1, b"next"]


def test_a_skipped_frame_is_partial_until_its_last_byte() -> None:
    frames = Frames(LIMIT)
    data = stream([b"x" * (LIMIT + 1)])
    frames.feed(data[: HEAD + 1])
    assert [plain(each) for each in frames] == [LIMIT + 1]
    assert frames.partial
    frames.feed(data[HEAD + 1 : -1])
    assert list(frames) == []
    assert frames.partial
    frames.feed(data[-1:] + stream([b"next"]))
    assert list(frames) == [b"next"]
    assert not frames.partial


def test_the_longest_length_that_makes_sense_is_skipped() -> None:
    frames = Frames(LIMIT)
    frames.feed((ABSURD * LIMIT).to_bytes(HEAD, "big") + b"x")
    assert [plain(each) for each in frames] == [ABSURD * LIMIT]


@pytest.mark.parametrize("length", [ABSURD * LIMIT + 1, (1 << 32) - 1])
def test_a_length_that_makes_no_sense_loses_the_stream(length: int) -> None:
    frames = Frames(LIMIT)
    frames.feed(length.to_bytes(HEAD, "big"))
    with pytest.raises(Lost):
        list(frames)


def test_frames_before_a_length_that_makes_no_sense_are_found() -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([b"good"]) + b"\xff\xff\xff\xff")
    turn = iter(frames)
    assert next(turn) == b"good"
    with pytest.raises(Lost):
        next(turn)


@given(st.binary(max_size=LIMIT))
def test_data_that_is_one_frame_is_taken_whole(body: bytes) -> None:
    assert Frames(LIMIT).whole(stream([body])) == body


@given(st.binary(max_size=2 * LIMIT))
def test_data_that_is_not_one_frame_is_not_taken_whole(data: bytes) -> None:
    length = int.from_bytes(data[:HEAD], "big")
    if len(data) < HEAD or length != len(data) - HEAD:
        assert Frames(LIMIT).whole(data) is None


def test_a_frame_past_the_limit_is_not_taken_whole() -> None:
    assert Frames(LIMIT).whole(stream([b"x" * (LIMIT + 1)])) is None


def test_nothing_is_taken_whole_while_another_frame_is_not_complete() -> None:
    begun, skipping = Frames(LIMIT), Frames(LIMIT)
    begun.feed(b"\0")
    skipping.feed((LIMIT + 1).to_bytes(HEAD, "big") + b"x")
    assert [plain(each) for each in skipping] == [LIMIT + 1]
    assert begun.whole(stream([b"a"])) is None
    assert skipping.whole(stream([b"a"])) is None


def test_a_frame_is_its_length_and_its_body() -> None:
    assert Frames.wrapped(b"abc") == (bytes([0, 0, 0, 3]), b"abc")


def test_a_frame_that_is_not_complete_at_the_end_never_is() -> None:
    frames = Frames(LIMIT)
    frames.feed(stream([b"abc"])[:-1])
    frames.end()
    assert list(frames) == []
    assert frames.partial


# Lines.

texts = st.binary(max_size=LIMIT + 20) | st.text("ab \t\r{", max_size=LIMIT + 20).map(str.encode)
long_texts = st.binary(min_size=LIMIT - 2, max_size=4 * LIMIT)
breaks = st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n\t\r\n ", b"\n" + b" " * 3 * LIMIT])
written = st.lists(st.tuples(texts | long_texts, breaks).map(b"".join), max_size=12).map(b"".join)
"""Streams of lines, some of them too long or blank, each with its end."""


def read_plainly(data: bytes) -> list[bytes | int]:
    """The lines of a stream that ends: what they are, or the lengths of those that were skipped."""
    lines = [line.lstrip(b" \t\r") for line in data.split(b"\n")]
    return [line if len(line) <= LIMIT else len(line) for line in lines if line]


@given(written, texts, st.lists(st.integers(0, 10_000), max_size=30))
def test_lines_are_the_same_however_the_stream_is_cut(data: bytes, last: bytes, places: list[int]) -> None:
    lines = Lines(LIMIT)
    found: list[bytes | int] = []
    for chunk in cut(data + last, places):
        whole = lines.whole(chunk)
        if whole is not None:
            found.append(whole)
            continue
        lines.feed(chunk)
        found += [plain(each) for each in lines]
    lines.end()
    found += [plain(each) for each in lines]
    assert found == read_plainly(data + last)
    assert not lines.partial
    assert not lines.waiting


@given(written)
def test_lines_that_come_byte_by_byte_are_found_with_their_end(data: bytes) -> None:
    lines = Lines(LIMIT)
    before = b""
    for byte in data:
        lines.feed(bytes([byte]))
        found = [plain(each) for each in lines]
        before += bytes([byte])
        if byte == ord("\n"):
            assert found == read_plainly(before)
            before = b""
        else:
            assert found == []
        assert lines.partial == bool(before.strip(b" \t\r\n")), "blanks are not owed the rest of a line"
        assert lines.waiting <= LIMIT, "what is too long is not kept"


@given(written, st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 3))
def test_stopping_early_loses_no_line(data: bytes, places: list[int], stop: int) -> None:
    lines = Lines(LIMIT)
    found: list[bytes | int] = []
    for chunk in cut(data, places):
        lines.feed(chunk)
        turn = iter(lines)
        found += [plain(each) for each in islice(turn, stop)]
        turn.close()
    found += [plain(each) for each in lines]
    assert found == read_plainly(data)


def test_a_line_at_the_limit_is_taken_and_one_past_it_is_skipped_with_its_length() -> None:
    lines = Lines(LIMIT)
    lines.feed(b"x" * LIMIT + b"\n" + b"y" * (LIMIT + 1) + b"\nnext\n")
    assert [plain(each) for each in lines] == [b"x" * LIMIT, LIMIT + 1, b"next"]
    assert lines.whole(b"x" * LIMIT + b"\n") == b"x" * LIMIT
    assert lines.whole(b"x" * (LIMIT + 1) + b"\n") is None


def test_a_line_that_never_ends_takes_up_no_memory_and_is_told_of_with_its_end() -> None:
    lines = Lines(LIMIT)
    for _ in range(1_000):
        lines.feed(b"x" * 70)
        assert list(lines) == []
        assert lines.waiting <= LIMIT
        assert lines.partial
        assert lines.whole(b"{}\n") is None
    lines.feed(b"y\n{}\n{")
    assert [plain(each) for each in lines] == [70_001, b"{}"]
    assert lines.partial


def test_the_last_line_needs_no_end() -> None:
    lines = Lines(LIMIT)
    lines.feed(b"{}")
    lines.end()
    assert list(lines) == [b"{}"]
    lines.feed(b"x" * (LIMIT + 1))
    assert list(lines) == []
    lines.end()
    assert [plain(each) for each in lines] == [LIMIT + 1]
    lines.end()
    assert list(lines) == []


@given(st.binary(max_size=LIMIT), st.sampled_from([b"", b"\n", b"\r\n"]))
def test_data_that_is_one_line_is_taken_whole_and_nothing_else_is(text: bytes, end: bytes) -> None:
    data = text + end
    lines = Lines(LIMIT)
    lines.feed(data)
    found = lines.whole(data) or Lines(LIMIT).whole(data)
    if found is not None:
        assert data.count(b"\n") == 1
        assert list(lines) == [found]
    assert Lines(LIMIT).whole(b'{"cmd":"STATS"}\n') == b'{"cmd":"STATS"}'


def test_nothing_is_taken_whole_while_another_line_has_not_ended() -> None:
    lines = Lines(LIMIT)
    lines.feed(b"{")
    assert lines.whole(b"}\n") is None
    assert lines.whole(b"") is None


def test_a_line_goes_out_as_one_line() -> None:
    assert b"".join(Lines.wrapped(b'{"a":1}')) == b'{"a":1}\n'
    assert b"".join(Lines.wrapped(b'{"a":\r\n[1,\n2]}')) == b'{"a":  [1, 2]}\n'


@given(st.binary(min_size=1, max_size=8))
def test_the_first_byte_decides_whether_a_stream_has_frames_or_lines(data: bytes) -> None:
    assert isinstance(cutter(data[0], LIMIT), Lines) == (data[:1] in (b"{", b"\r", b"\n"))
