from itertools import islice, pairwise

import pytest
from hypothesis import given, strategies as st

from penstock.server.framing import ABSURD, HEAD, Frames, Lost, TooLong, frame

LIMIT = 100

bodies = st.lists(st.binary(max_size=LIMIT), max_size=12)
streams = st.lists(st.binary(max_size=LIMIT) | st.binary(min_size=LIMIT + 1, max_size=4 * LIMIT), max_size=12)
"""Bodies of frames, some of them too long."""


def stream(wanted: list[bytes]) -> bytes:
    return b"".join(b"".join(frame(body)) for body in wanted)


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
    assert frame(b"abc") == (bytes([0, 0, 0, 3]), b"abc")
