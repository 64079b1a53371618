"""Payloads in and out: any JSON, msgspec structs, dataclasses, pydantic models."""

from collections.abc import Callable
from functools import lru_cache
from inspect import formatannotation
from math import isfinite
from typing import Any, get_origin

import msgspec

from forebay.core.errors import Invalid


def _hook(value: Any) -> Any:
    """Convert what msgspec does not know: a pydantic model, which describes itself as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} can't be sent as JSON")


class Encoded(bytes):
    """A payload that is JSON already, and is not checked again."""


_encode = msgspec.json.Encoder(enc_hook=_hook).encode
_sorted = msgspec.json.Encoder(enc_hook=_hook, order="deterministic").encode
_plain = msgspec.json.Decoder().decode


def sorted_json(value: Any) -> bytes:
    """Encode as canonical JSON: keys and members of sets are sorted, so that equal values give equal bytes.

    >>> sorted_json({"b": {"y", "x"}, "a": 1})
    b'{"a":1,"b":["x","y"]}'
    """
    try:
        return _sorted(value)
    except (NotImplementedError, TypeError, ValueError, RecursionError) as error:
        raise Invalid("arguments", f"something that can be sent as JSON; {error}") from None


def encode(payload: Any) -> bytes:
    """Encode a payload as JSON.

    >>> encode({"to": "ada"}), encode(msgspec.Raw(b"[1]"))
    (b'{"to":"ada"}', b'[1]')
    """
    if isinstance(payload, Encoded):
        return payload
    try:
        if isinstance(payload, msgspec.Raw):
            _plain(payload)
            return bytes(payload)
        body = _encode(payload)
        if b"null" in body:
            _check_finite(msgspec.to_builtins(payload, enc_hook=_hook))
    except (NotImplementedError, TypeError, ValueError, RecursionError) as error:
        raise Invalid("payload", f"something that can be sent as JSON; {error}") from None
    return body


def is_bytes(payload: Any) -> bool:
    """Whether a payload travels as a text in base64, and has to arrive as bytes."""
    return isinstance(payload, bytes | bytearray | memoryview) and not isinstance(payload, Encoded)


def bytes_of(body: Any) -> Any:
    """Decode a payload that was pushed as bytes.

    >>> bytes_of(b'"Zm9v"')
    b'foo'
    """
    try:
        return _bytes(body)
    except msgspec.DecodeError:
        return _plain(body)  # it was replaced by something else since


_bytes = msgspec.json.Decoder(bytes).decode


def _check_finite(value: Any) -> None:
    """Raise if a value contains NaN or an infinity: the encoder would silently write null."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{value} is no number in JSON")
    elif isinstance(value, dict):
        for each in value.values():
            _check_finite(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_finite(each)


@lru_cache(maxsize=1_000)
def decoder(kind: Any = Any) -> Callable[[Any], Any]:
    """Return the decoder from JSON to a type: a pydantic model, or any type msgspec knows."""
    if kind is Any:
        return _plain
    if kind is msgspec.Raw:
        return lambda body: body
    if hasattr(kind, "model_validate_json"):
        validate: Callable[[Any], Any] = kind.model_validate_json
        return lambda body: validate(bytes(body))
    try:
        return msgspec.json.Decoder(kind, dec_hook=_made).decode
    except TypeError as error:
        raise Invalid("type", f"one that JSON can be made into; {error}") from None


def value_of(body: msgspec.Raw, kind: Any = Any) -> Any:
    """Decode an optional value: null is None, whatever the type."""
    return None if bytes(body) == b"null" else decoder(kind)(body)


def result_as(kind: Any, body: msgspec.Raw, id: int) -> Any:
    """Decode a message's result; raise ``Invalid`` if it is not of the type.

    >>> result_as(int, msgspec.Raw(b"[]"), 7)
    Traceback (most recent call last):
    forebay.core.errors.Invalid: result must be of type int; that of 7 is not: Expected `int`, got `array`
    """
    try:
        return value_of(body, kind)
    except Invalid:
        raise  # no result could be of this type
    except Exception as error:
        raise Invalid("result", f"of type {formatannotation(kind)}; that of {id} is not: {error}") from error


@lru_cache(maxsize=1_000)
def converter(kind: Any) -> Callable[[Any], Any]:
    """Return the converter from decoded JSON (lists, dicts, strings, numbers) to a type."""
    if hasattr(kind, "model_validate"):
        validate: Callable[[Any], Any] = kind.model_validate
        return validate
    if kind is msgspec.Raw:
        return lambda value: msgspec.Raw(encode(value))
    # Keys of JSON objects are strings: those of a dict[int, …] too.
    return lambda value: msgspec.convert(value, kind, str_keys=True, dec_hook=_made)


def _made(kind: Any, value: Any) -> Any:
    """Convert to a type that msgspec does not know, inside one that it does."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(value, get_origin(kind) or kind):
        return value
    raise NotImplementedError(f"{kind} can't be made of JSON")
