"""Turn msgspec's decoding errors into Invalid errors that name the field and what it accepts."""

import re
from collections.abc import Container, Iterator
from contextlib import suppress
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.errors import ForebayError, Invalid
from forebay.wire.types import RequestId

AT = re.compile(r" - at `\$\.?([^`]*)`$")
_EXPECTED = re.compile(r"Expected `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
MISSING = re.compile(r"Object missing required field `([^`]*)`")
_VALUE = re.compile(r"Invalid value '")
_INDEX = re.compile(r"\[[^]]*\]")
KIND_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def places(error: Exception) -> tuple[str, str]:
    """Return the path of a decoding error, and the unknown field there, if that is the error."""
    text = str(error)
    at, unknown = AT.search(text), _UNKNOWN.search(text)
    return at.group(1) if at else "", unknown.group(1) if unknown else ""


def explain(error: Exception, kind: type[Struct], whole: str) -> Invalid:
    """Return what is wrong with input for class ``kind``; ``whole`` names the input as a whole."""
    text = str(error)
    where, unknown = places(error)
    if unknown:
        place = f"{where}.{unknown}" if where else unknown
        inner = inside(kind, where)
        if inner is None:
            return Invalid(place, "left out; there is no such field here")
        names = [each.encode_name for each in msgspec.structs.fields(inner)]
        names = [name for name in names if not name.startswith(HIDDEN)]
        if not names:
            return Invalid(place, "left out; nothing is known here")
        meant = get_close_matches(unknown, names, 1)
        hint = f"{meant[0]} was meant? " if meant else ""
        return Invalid(place, f"left out; {hint}known here are {', '.join(names)}")
    if missing := MISSING.search(text):
        return Invalid(f"{where}.{missing.group(1)}" if where else missing.group(1), "given")
    if _VALUE.search(text) and (names := sorted(_tags(kind, where.rpartition(".")[2]))):
        return Invalid(where, f"one of {', '.join(names)}")
    if expected := _EXPECTED.search(text):
        kinds = [KIND_WORDS.get(each, each) for each in expected.group(1).split(" | ")]
        return Invalid(where or whole, " or ".join(kinds))
    return Invalid(where or whole, f"well-formed; {text}")


def inside(kind: type[Struct], where: str) -> type[Struct] | None:
    """Return the class at a path like ``messages[...].backoff``; None if it is ambiguous."""
    found: list[type[Struct]] = [kind]
    for name in filter(None, _INDEX.sub("", where).split(".")):
        fields = [each for one in found for each in msgspec.structs.fields(one) if each.encode_name == name]
        found = list(dict.fromkeys(inner for each in fields for inner in _structs(each.type)))
    return found[0] if len(found) == 1 else None


def names_within(kind: type[Struct]) -> frozenset[str]:
    """Return the names of all fields of a class and of the classes nested in it."""
    found: set[str] = set()
    todo, seen = [kind], {kind}
    while todo:
        for each in msgspec.structs.fields(todo.pop()):
            found.add(each.encode_name.removeprefix(HIDDEN))
            new = [inner for inner in _structs(each.type) if inner not in seen]  # a class may nest itself
            todo += new
            seen |= set(new)
    return frozenset(found)


FIELD_NAMES = {"from": ("to",), "payload": ("message", "value")}
"""Fields that the core checks under one name, where requests have another name for them."""
HIDDEN = "\x7f"
"""Prefix of fields that a carrier does not take from the body or query, but sets itself."""


def in_words_of(error: ForebayError, names: frozenset[str]) -> ForebayError:
    """Return an error of the core under the name of its field in a request that has these field names."""
    if not isinstance(error, Invalid):
        return error
    prefix, dot, field = error.field.rpartition(".")
    if field in names:
        return error
    name = next((each for each in FIELD_NAMES.get(field, ()) if each in names), field)
    return error if name == field else Invalid(f"{prefix}{dot}{name}", error.accepted)


def _tags(kind: type[Struct], field: str) -> set[str]:
    """Return the tags that ``field`` may hold to select one class of a union."""
    found: set[str] = set()
    for each in msgspec.structs.fields(kind):
        for inner in _structs(each.type):
            config = inner.__struct_config__
            if config.tag_field == field:
                found.add(str(config.tag))
    return found


def _structs(kind: Any) -> Iterator[type[Struct]]:
    """Yield the Struct classes that a type is made of."""
    if get_origin(kind) in (Union, UnionType, list, dict, tuple) or hasattr(kind, "__metadata__"):
        for each in get_args(kind):
            yield from _structs(each)
    elif isinstance(kind, type) and issubclass(kind, Struct):
        yield kind


json_fields = msgspec.json.Decoder(dict[str, Raw]).decode
packed_fields = msgspec.msgpack.Decoder(dict[str, Raw]).decode


class Glimpse(Struct):
    """What can be read of a body that could not be decoded."""

    reqId: RequestId | UnsetType = UNSET
    command: str | None = None
    """Its name, if there is such a command."""
    queue: str | None = None


def glimpse(body: bytes, commands: Container[str]) -> Glimpse:
    """Return what can be read of a body that could not be decoded; what is not valid is left out."""
    found = Glimpse()
    form: Any = msgspec.json if body.startswith(b"{") else msgspec.msgpack
    try:
        fields = (json_fields if form is msgspec.json else packed_fields)(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return found
    kinds: tuple[tuple[str, str, Any], ...] = (
        ("reqId", "reqId", RequestId),
        ("cmd", "command", str),
        ("queue", "queue", str),
    )
    for name, place, kind in kinds:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
            setattr(found, place, form.decode(fields[name], type=kind))
    if found.command not in commands:
        found.command = None
    return found
