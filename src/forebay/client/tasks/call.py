"""A task with its arguments, as it is pushed and as it comes out again.

The payload of a job is ``{"task": "send", "args": ["ada"], "kwargs": {"times": 2}}``; what is empty is left
out. ``results`` says that the result of the job it waited for (``one``), or the results of all of them in
their order (``all``), come before its arguments; ``place`` is the place of a job among those.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.client.payloads import converter, encode
from forebay.core.errors import Invalid


class Work(Struct, omit_defaults=True):
    """What a job asks for."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    results: str = ""
    place: int = 0


_decode = msgspec.json.Decoder(Work).decode


def parse(payload: bytes | Raw) -> Work:
    """What a payload asks for; raises ``ValueError`` if that is no task."""
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        wanted = '{"task": "name", "args": []}'
        raise ValueError(f"this is no task: its payload is not like {wanted} ({error})") from None


def packed(work: Work) -> bytes:
    return encode(work)


Convert = Callable[[Any], Any]


class Signature:
    """The parameters of a function: checks what it is called with, and makes it what it says it takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        hints = _hints(function)
        parameters = self._signature.parameters.values()
        self._by_name: dict[str, Convert] = {}
        self._by_place: list[Convert | None] = []
        self._rest: Convert | None = None
        """For more arguments than there are places: of ``*args``."""
        for each in parameters:
            convert = _converter(hints.get(each.name, Any))
            if each.kind is each.VAR_POSITIONAL:
                self._rest = convert
                continue
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                self._by_place.append(convert)
            if convert is not None and each.kind is not each.VAR_KEYWORD:
                self._by_name[each.name] = convert
        self._is_plain = not self._by_name and self._rest is None
        self._counts: set[int] = set()
        """How many arguments it can be called with, as far as that was tried."""

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, first: int = 0) -> None:
        """Raise unless the function can be called so; ``first`` arguments will come before these."""
        try:
            self._signature.bind(*[None] * first, *args, **kwargs)
        except TypeError as error:
            raise Invalid("arguments", f"those of the function; {error}") from None

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by their names, with those that are left out: the same however they are given."""
        return {**self._defaults, **self._signature.bind(*args, **kwargs).arguments}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """What is taken for arguments that are left out, if it is something that can also be given."""
        found = {}
        for name, each in self._signature.parameters.items():
            if each.default is not each.empty:
                with suppress(Invalid):
                    encode(each.default)
                    found[name] = each.default
        return found

    def check_count(self, args: Sequence[Any]) -> None:
        """Raise unless the function can be called with so many arguments, and nothing else."""
        if len(args) not in self._counts:
            self.check(args, {})
            self._counts.add(len(args))

    def made(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments as the function wants them: its models, its dates, …; raises if it can't be called so."""
        if kwargs:
            self.check(args, kwargs)
        else:
            self.check_count(args)
        if self._is_plain:
            return args, kwargs
        places = self._by_place
        made = [
            value if convert is None else convert(value)
            for value, convert in zip(
                args, [*places[: len(args)], *[self._rest] * (len(args) - len(places))], strict=True
            )
        ]
        by_name = self._by_name
        return made, {
            name: by_name[name](value) if name in by_name else value for name, value in kwargs.items()
        }


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # a name that only a type checker knows
        return {}


def _converter(kind: Any) -> Convert | None:
    """What makes values of a type; None if they are fine as they are."""
    if kind is Any or kind is inspect.Parameter.empty:
        return None
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, NotImplementedError):
        if not hasattr(kind, "model_validate"):
            return None
    return converter(kind)
