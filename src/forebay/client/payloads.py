"""Payloads in and out: any JSON, msgspec structs, dataclasses, pydantic models."""

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from typing import Any

import msgspec

from forebay.core.errors import Invalid


def _hook(value: Any) -> Any:
    """What msgspec does not know: a pydantic model, which says itself what it is in JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} can't be sent as JSON")


class Encoded(bytes):
    """A payload that is JSON already, and needs no second look."""


_encode = msgspec.json.Encoder(enc_hook=_hook).encode
_sorted = msgspec.json.Encoder(enc_hook=_hook, order="deterministic").encode
_plain = msgspec.json.Decoder().decode


def sorted_json(value: Any) -> bytes:
    """JSON in which what is equal is the same: keys of objects and members of sets are in order.

    >>> sorted_json({"b": {"y", "x"}, "a": 1})
    b'{"a":1,"b":["x","y"]}'
    """
    try:
        return _sorted(value)
    except (NotImplementedError, TypeError, ValueError, RecursionError) as error:
        raise Invalid("arguments", f"something that can be sent as JSON; {error}") from None


def encode(payload: Any) -> bytes:
    """A payload as JSON.

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


def _check_finite(value: Any) -> None:
    """Raise if there is a number in a value that JSON does not have: it would be null without a word."""
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
    """What makes values of this type of JSON: a pydantic model, or whatever msgspec knows."""
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
    """A value that may not be there: null is None, whatever it would be else."""
    return None if bytes(body) == b"null" else decoder(kind)(body)


@lru_cache(maxsize=1_000)
def converter(kind: Any) -> Callable[[Any], Any]:
    """What makes values of this type of what JSON has become: lists, dicts, texts, numbers."""
    if hasattr(kind, "model_validate"):
        validate: Callable[[Any], Any] = kind.model_validate
        return validate
    return lambda value: msgspec.convert(value, kind, dec_hook=_made)


def _made(kind: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know, inside one that it does."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"{kind} can't be made of JSON")
