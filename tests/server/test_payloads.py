import json

import pytest
from hypothesis import given, strategies as st

from forebay.core.errors import Invalid
from forebay.wire.text import DEPTH_MAX, check_depth, check_text

LONG = 16 * 1024
"""Frames past this size are counted another way than short ones."""

tricky = st.text(alphabet='[]{}"\\:, aé\n', max_size=12)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | tricky
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tricky, inner, max_size=4),
    max_leaves=20,
)
wraps = st.lists(st.sampled_from("[{"), max_size=8)


def depth(text: str) -> int:
    """How deep brackets nest outside of strings, character by character."""
    deepest = level = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            level += 1
            deepest = max(deepest, level)
        elif character in "]}":
            level -= 1
    return deepest


def too_deep(frame: bytes, wrapped: int) -> bool:
    try:
        check_depth(frame, wrapped, len(frame))
    except Invalid:
        return True
    return False


def nested(text: str, levels: int, kinds: str = "[") -> str:
    """The text within so many arrays and objects, by turns as ``kinds`` says."""
    for level in range(levels):
        text = f"[{text}]" if kinds[level % len(kinds)] == "[" else f'{{"k":{text}}}'
    return text


def in_frame(payload: str, wrapped: int, padding: int = 0) -> bytes:
    """A payload as PUSH carries it: by itself (1), in messages (2) and in items (3)."""
    beside = json.dumps("x" * padding)
    carried = {
        1: f'"payload":{payload}',
        2: f'"messages":[1,{payload},2]',
        3: f'"items":[{{"payload":1}},{{"payload":{payload}}},{{"payload":2}}]',
    }
    return f'{{"cmd":{beside},{carried[wrapped]}}}'.encode()


@pytest.mark.parametrize("padding", [0, LONG], ids=["short", "long"])
@pytest.mark.parametrize("kinds", ["[", "{", "[{", "[[{"])
@pytest.mark.parametrize("wrapped", [1, 2, 3])
def test_a_payload_may_be_nested_128_deep_and_not_deeper(wrapped: int, kinds: str, padding: int) -> None:
    assert not too_deep(in_frame(nested("1", DEPTH_MAX, kinds), wrapped, padding), wrapped)
    assert too_deep(in_frame(nested("1", DEPTH_MAX + 1, kinds), wrapped, padding), wrapped)


def test_the_refusal_says_how_deep_a_payload_may_be() -> None:
    with pytest.raises(Invalid) as refused:
        check_depth(in_frame(nested("1", DEPTH_MAX + 1), 1), 1, 2 * (DEPTH_MAX + 1) + 1)
    assert refused.value.details == {"field": "payload", "accepted": "nested at most 128 deep"}


@pytest.mark.parametrize("payload", ["[]", "{}", '""', '"["', "[1,[2]]"])
def test_what_lies_innermost_does_not_matter(payload: str) -> None:
    room = DEPTH_MAX - depth(payload)
    assert not too_deep(in_frame(nested(payload, room), 1), 1)
    assert too_deep(in_frame(nested(payload, room + 1), 1), 1)


@pytest.mark.parametrize("count", [1, DEPTH_MAX + 10, LONG])
@pytest.mark.parametrize("bracket", ["[", "]", "{", "}", "[{", "]}", "}{"])
def test_brackets_inside_strings_do_not_count(bracket: str, count: int) -> None:
    assert not too_deep(in_frame(json.dumps([bracket * count, {bracket: bracket}]), 1), 1)


@pytest.mark.parametrize(
    "inside", ['\\"' + "[" * 300, "[" * 300 + '\\"', "\\\\", '\\\\\\"' + "{" * 300, '\\u0022[\\"[' * 150]
)
def test_an_escaped_quote_does_not_end_a_string(inside: str) -> None:
    text = f'["{inside}",[2]]'
    json.loads(text)
    assert not too_deep(in_frame(text, 1), 1)


@pytest.mark.parametrize("text", ["\\\\", '\\"', "\\\\\\\\", "]" * 300, "é" * 300, ""])
def test_strings_do_not_hide_the_nesting_behind_them(text: str) -> None:
    payload = f'["{text}",{nested("1", DEPTH_MAX)}]'
    json.loads(payload)
    assert too_deep(in_frame(payload, 1), 1)
    assert not too_deep(in_frame(f'["{text}",{nested("1", DEPTH_MAX - 1)}]', 1), 1)


@given(values, st.integers(DEPTH_MAX - 12, DEPTH_MAX + 4), wraps, st.sampled_from([1, 2, 3]), st.booleans())
def test_nesting_is_counted_as_character_by_character(
    value: object, levels: int, kinds: list[str], wrapped: int, long: bool
) -> None:
    payload = nested(json.dumps(value, ensure_ascii=False), levels, "".join(kinds) or "[")
    frame = in_frame(payload, wrapped, LONG if long else 0)
    assert too_deep(frame, wrapped) == (depth(payload) > DEPTH_MAX)


@given(values, st.sampled_from([1, 2, 3]))
def test_what_is_not_deep_is_never_refused(value: object, wrapped: int) -> None:
    assert not too_deep(in_frame(json.dumps(value), wrapped), wrapped)


def test_many_payloads_beside_each_other_are_not_deep() -> None:
    payloads = ",".join([nested("1", DEPTH_MAX)] * 200)
    assert not too_deep(f'{{"messages":[{payloads}]}}'.encode(), 2)


def test_one_deep_payload_among_many_is_found() -> None:
    payloads = [nested("1", 3)] * 5_000
    payloads[3_000] = nested("1", DEPTH_MAX + 1)
    assert too_deep(f'{{"messages":[{",".join(payloads)}]}}'.encode(), 2)


@pytest.mark.parametrize("text", ["", "ascii", "é", "漢字", "🦀", "\0", "\x7f", "\u2028"])
def test_every_text_of_utf_8_is_taken(text: str) -> None:
    check_text(text.encode())


@pytest.mark.parametrize(
    ("frame", "at"),
    [
        (b"ab\xff", 2),
        (b"\x80", 0),
        (b"a\xc3", 1),
        (b"\xc0\x80", 0),
        (b"a\xed\xa0\x80", 1),
        (b"\xf4\x90\x80\x80", 0),
        (b"\xe6\xbc", 0),
    ],
    ids=["no-byte-of-utf-8", "continuation", "cut", "overlong", "surrogate", "past-unicode", "cut-in-three"],
)
def test_what_is_not_utf_8_is_refused_with_its_place(frame: bytes, at: int) -> None:
    with pytest.raises(Invalid) as refused:
        check_text(frame)
    assert refused.value.details == {"field": "frame", "accepted": f"UTF-8; byte {at} is not"}
