"""A task with its arguments as a payload, and back.

The payload of a job is ``{"task": "send", "args": ["ada"], "kwargs": {"times": 2}}``; empty fields are left
out. ``results`` says that the result of its one dependency (``one``), or a list of the results of all of them
(``all``), comes before its arguments. Those are its first ``members`` dependencies, all if that is 0; with
``lacks``, None stands for the results of those that did not complete. ``awaited`` says that another job takes
the result of this one, so that it is kept even if it is None.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import NoneType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.client.payloads import converter, encode
from forebay.core.errors import Invalid


class Work(Struct, omit_defaults=True):
    """The payload of a job."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    results: str = ""
    members: int = 0
    lacks: bool = False
    awaited: bool = False


_decode = msgspec.json.Decoder(Work).decode


def parse(payload: bytes | Raw) -> Work:
    """Decode a payload. Raises ``ValueError`` if it is no task."""
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        wanted = '{"task": "name", "args": []}'
        raise ValueError(f"this is no task: its payload is not like {wanted} ({error})") from None


def packed(work: Work) -> bytes:
    return encode(work)


class DoesNotFit(Invalid):
    """These arguments are too many, too few, or have other names than the function's."""

    def __init__(self, why: str) -> None:
        super().__init__("arguments", f"those of the function; {why}")
        self.why = why


Convert = Callable[[Any], Any]


class Signature:
    """Parameters and result of a function: checks arguments, and converts both to the annotated types."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        hints = _hints(function)
        parameters = self._signature.parameters.values()
        self._by_name: dict[str, Convert | None] = {}
        self._by_place: list[Convert | None] = []
        self._rest: Convert | None = None
        """Converter for ``*args``."""
        self._rest_by_name: Convert | None = None
        """Converter for ``**kwargs``."""
        for each in parameters:
            convert = _converter(hints.get(each.name, Any))
            if each.kind is each.VAR_POSITIONAL:
                self._rest = convert
                continue
            if each.kind is each.VAR_KEYWORD:
                self._rest_by_name = convert
                continue
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                self._by_place.append(convert)
            # A name of a positional-only parameter may be one of ``**kwargs``, too.
            if each.kind is not each.POSITIONAL_ONLY:
                self._by_name[each.name] = convert
        converters = *self._by_place, *self._by_name.values(), self._rest, self._rest_by_name
        self._is_plain = all(convert is None for convert in converters)
        self._counts: set[int] = set()
        """Numbers of positional arguments that are known to fit."""

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, first: int = 0) -> None:
        """Raise unless the function can be called so; ``first`` arguments will precede these."""
        try:
            self._signature.bind(*[None] * first, *args, **kwargs)
        except TypeError as error:
            raise DoesNotFit(str(error)) from None

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name, defaults included: the same however they were given."""
        return {**self._defaults, **self._signature.bind(*args, **kwargs).arguments}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Default values that JSON can encode."""
        found = {}
        for name, each in self._signature.parameters.items():
            if each.default is not each.empty:
                with suppress(Invalid):
                    encode(each.default)
                    found[name] = each.default
        return found

    def check_count(self, args: Sequence[Any]) -> None:
        """Raise unless the function can be called with so many positional arguments and nothing else."""
        if len(args) not in self._counts:
            self.check(args, {})
            self._counts.add(len(args))

    def made(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return arguments converted to the annotated types: models, dates, …; raise if they don't fit."""
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
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            convert = self._by_name.get(name, self._rest_by_name)
            named[name] = value if convert is None else convert(value)
        return made, named

    @cached_property
    def returns(self) -> Any:
        """The annotated type of results; ``Any`` if there is none.

        Looked at when the first result is asked for: by then, types defined below the function exist.
        """
        kind = _hints(self._function).get("return", Any)
        return Any if kind is NoneType else kind

    @cached_property
    def _to_result(self) -> Convert | None:
        return _converter(self.returns)

    def result(self, value: Any) -> Any:
        """Return a result converted to the annotated type; raise if it doesn't fit."""
        return value if self._to_result is None else self._to_result(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # a name that only a type checker knows
        return {}


def _converter(kind: Any) -> Convert | None:
    """Return the converter to a type; None if values need no conversion."""
    if kind is Any or kind is inspect.Parameter.empty:
        return None
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, NotImplementedError):
        if not hasattr(kind, "model_validate"):
            return None
    return converter(kind)
