"""Writes the tables of docs/PROTOCOL.md from the declarations of the operations.

python tools/make_protocol.py            write them
python tools/make_protocol.py --check    say whether they are current
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import FieldInfo

from forebay.core.state import Backoff, QueueOptions
from forebay.server.http.docs.fields import about, choices
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.messages import Seen
from forebay.wire.operations.push import Options, RunOptions
from forebay.wire.options import BackoffIn, OptionsIn, RateIn
from forebay.wire.table import OPERATIONS

PAGE = Path(__file__).parent.parent / "docs" / "PROTOCOL.md"
PART = re.compile(r"(<!-- (operations|options): ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHARED: dict[type[Struct], str] = {
    Options: "[options](#options-of-a-message)",
    RunOptions: "[options that can be shared](#options-of-a-message)",
    Seen: "the fields of [Seen](#messages)",
}
"""Classes whose fields stand in one table, and what stands for them in others. The first that fits counts."""
IN_PROSE = (BackoffIn, RateIn, OptionsIn)
"""Objects that the text explains."""
FIRST = "messages"
"""The family whose fields are explained first."""
CHOICES_MAX = 10
"""Accepted values that are listed in a cell; a longer list is in the text."""
REPEATED_MAX = 4
"""Fields of an answer that are listed again; of a longer one, the command that has it is named."""
UNSAID = ("ok", "reqId")
"""Fields that every request or answer may have."""

Said = dict[str, list[str]]
"""What is said of a field, and in which places."""


def families() -> dict[str, list[Operation]]:
    """The operations by the heading they stand under."""
    found: dict[str, list[Operation]] = {}
    for each in OPERATIONS:
        found.setdefault(each.tag, []).append(each)
    return found


def structs_in(kind: Any) -> Iterator[type[Struct]]:
    """The classes that a type names, but not those inside of them."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    else:
        for each in get_args(kind):
            yield from structs_in(each)


def shared_by(kind: type[Struct]) -> type[Struct] | None:
    """The class in SHARED that a class extends."""
    return next((each for each in SHARED if issubclass(kind, each) and kind is not each), None)


def own_fields(kind: type[Struct]) -> list[FieldInfo]:
    """The fields of a class, but for those that have a table of their own."""
    shared = shared_by(kind)
    known = (*UNSAID, *(shared.__struct_fields__ if shared is not None else ()))
    if not issubclass(kind, Answer):
        known = (*known, "tenant")
    return [each for each in msgspec.structs.fields(kind) if each.name not in known]


def objects_of(kind: type[Struct]) -> Iterator[type[Struct]]:
    """The objects in the fields of a class that have rows of their own, and those in them."""
    for field in own_fields(kind):
        for each in structs_in(field.type):
            is_named = not issubclass(each, Request) and each.__struct_config__.tag_field != "cmd"
            if each not in IN_PROSE and is_named and own_fields(each) and each is not kind:
                yield each
                yield from objects_of(each)


@cache
def homes() -> dict[type[Struct], str]:
    """The family in which each object is explained: the first that has it."""
    found: dict[type[Struct], str] = {}
    for tag, operations in families().items():
        for operation in operations:
            for kind in (operation.request, operation.answer):
                for each in objects_of(kind):
                    found.setdefault(each, tag)
            found.setdefault(operation.answer, tag)
    return found


# Cells.


def value(default: Any) -> str:
    """A default in a few characters; empty if it says nothing."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return f"{default:,}"
    return f"`{default}`" if isinstance(default, str) and default else ""


def shape(field: FieldInfo, tag: str) -> str:
    """What a field holds, if that has a name: an object, a list of them, commands."""
    kinds = [each for each in structs_in(field.type) if each not in IN_PROSE]
    names = []
    for each in kinds:
        if each.__struct_config__.tag is not None:
            names.append(f"`{each.__struct_config__.tag}`")
        elif each in homes():
            home = homes()[each]
            names.append(each.__name__ if home == tag else f"[{each.__name__}](#{anchor(home)})")
    is_list = "list[" in str(field.type)
    return (": " + (f"[{', '.join(names)}]" if is_list else ", ".join(names))) if names else ""


def anchor(tag: str) -> str:
    return tag.replace(" ", "-")


def asked(kind: type[Struct], tag: str) -> str:
    """The fields of a request: required ones with a star, others with their defaults."""
    found = []
    for each in own_fields(kind):
        default = "" if each.default is NODEFAULT or each.default is UNSET else value(each.default)
        mark = "*" if each.required else ""
        found.append(f"`{each.encode_name}`{mark}{shape(each, tag)}{f' ({default})' if default else ''}")
    return _joined(found, kind)


def answered(kind: type[Struct], tag: str) -> str:
    """The fields of an answer: those that may be absent with a question mark."""
    found = [
        f"`{each.encode_name}`{'' if each.required else '?'}{shape(each, tag)}" for each in own_fields(kind)
    ]
    return _joined(found, kind)


def _joined(cells: list[str], kind: type[Struct]) -> str:
    shared = shared_by(kind)
    return ", ".join([*cells, *([SHARED[shared]] if shared is not None else [])]) or "none"


def routed(operation: Operation, route: Route) -> str:
    missing = (
        []
        if route.fields is None
        else [
            f"`{each.encode_name}`" for each in own_fields(operation.request) if each.name not in route.fields
        ]
    )
    role = f", {_needs(route.needs)}" if route.needs else ""
    without = f", without {' and '.join(missing)}" if missing else ""
    return f"`{route.method} {route.path}`{role}{without}"


def _needs(roles: tuple[str, ...]) -> str:
    return " or ".join(roles)


def text(docstring: str | None) -> str:
    return " ".join((docstring or "").replace("``", "`").split())


# Tables.


def operations_table(tag: str) -> list[str]:
    lines = ["| command | HTTP | fields | answer |", "|---|---|---|---|"]
    for each in families()[tag]:
        routes = "<br>".join(routed(each, route) for route in each.routes)
        name = f"`{each.name}`, {_needs(each.roles)}. {text(each.request.__doc__)}"
        lines.append(f"| {name} | {routes} | {asked(each.request, tag)} | {_answer(each, tag)} |")
    return lines


def _answer(operation: Operation, tag: str) -> str:
    """The fields of an answer, or where they stand already."""
    kind = operation.answer
    if kind in objects():
        home = homes()[kind]
        return f"one {kind.__name__}" if home == tag else f"one [{kind.__name__}](#{anchor(home)})"
    first = next(each for each in families()[tag] if each.answer is kind)
    if first is not operation and len(own_fields(kind)) > REPEATED_MAX:
        return f"as `{first.name}`"
    return answered(kind, tag)


@cache
def objects() -> frozenset[type[Struct]]:
    return frozenset(
        found
        for operation in OPERATIONS
        for kind in (operation.request, operation.answer)
        for found in objects_of(kind)
    )


def objects_table(tag: str) -> list[str]:
    lines = ["| object | fields |", "|---|---|"]
    for kind, is_request in _objects_here(tag).items():
        fields = asked(kind, tag) if is_request else answered(kind, tag)
        lines.append(f"| **{kind.__name__}**. {text(kind.__doc__)} | {fields} |")
    return lines if len(lines) > 2 else []


def _objects_here(tag: str) -> dict[type[Struct], bool]:
    """The objects that a family explains, and whether requests have them."""
    found: dict[type[Struct], bool] = {}
    for each in families()[tag]:
        for kind, is_request in ((each.request, True), (each.answer, False)):
            if kind in objects() and homes()[kind] == tag:
                found.setdefault(kind, is_request)
            for inner in objects_of(kind):
                if homes()[inner] == tag:
                    found.setdefault(inner, is_request)
    return found


def fields_table(tag: str) -> list[str]:
    """Every field of a family once, with what it means, unless it means what it means for messages."""
    known = {} if tag == FIRST else fields_of(FIRST)
    rows = []
    for name, said in fields_of(tag).items():
        there = known.get(name, ({}, {}))
        is_known = all(set(here) <= set(first) for here, first in zip(said, there, strict=True))
        if said[0] and not is_known:
            rows.append(f"| `{name}` | {' '.join(filter(None, map(_by_place, said)))} |")
    return ["| field | meaning |", "|---|---|", *rows] if rows else []


@cache
def fields_of(tag: str) -> dict[str, tuple[Said, Said]]:
    """The fields of a family: what they mean, and which values they take."""
    fields: dict[str, tuple[Said, Said]] = {}
    for each in families()[tag]:
        _collect(fields, each.request, f"`{each.name}`")
        if each.answer not in objects():
            _collect(fields, each.answer, f"the answer of `{each.name}`")
    for kind in _objects_here(tag):
        _collect(fields, kind, kind.__name__)
    return fields


def _collect(fields: dict[str, tuple[Said, Said]], kind: type[Struct], place: str) -> None:
    for each in own_fields(kind):
        known = fields.setdefault(each.encode_name, ({}, {}))
        for said, told in zip(known, meaning(kind, each.encode_name), strict=True):
            if told:
                said.setdefault(told, []).append(place)


def meaning(kind: type[Struct], name: str) -> tuple[str, str]:
    """What a field means, and which values it takes."""
    can_be = choices(kind, name) or ()
    listed = ", ".join(f"`{each}`" for each in can_be)
    return text(about(kind, name)), f"One of {listed}." if 0 < len(can_be) <= CHOICES_MAX else ""


def _by_place(said: Said) -> str:
    """What most places say; then what others say, with their names."""
    (usual, *others) = sorted(said, key=lambda each: -len(said[each])) or [""]
    return " ".join([usual, *(f"In {', '.join(said[each])}: {_lower(each)}" for each in others)])


def _lower(told: str) -> str:
    return told[0].lower() + told[1:]


def options_table(kind: type[Struct]) -> list[str]:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for each in msgspec.structs.fields(kind):
        told = " ".join(filter(None, meaning(_shown(kind), each.name)))
        lines.append(f"| `{each.encode_name}` | {_option(each.default)} | {told} |")
    return lines


def _shown(kind: type[Struct]) -> type[Struct]:
    return OptionsIn if kind is QueueOptions else kind


def _option(default: Any) -> str:
    """The default of an option, also where it is nothing."""
    if isinstance(default, Backoff):
        return f"`{default.base_ms}`"
    if isinstance(default, bool):
        return f"`{value(default)}`"
    if default is None or default == ():
        return "`null`" if default is None else "`[]`"
    return value(default)


OF: dict[str, type[Struct]] = {"message": Options, "queue": QueueOptions}


def part(kind: str, name: str) -> str:
    """What stands between the markers of a part."""
    if kind == "options":
        return "\n".join([*options_table(OF[name]), ""])
    tables = [operations_table(name), objects_table(name), fields_table(name)]
    return "\n".join("\n".join([*each, ""]) for each in tables if each)


def with_tables(page: str) -> str:
    """The page with its tables as the declarations have them."""
    return PART.sub(lambda found: found[1] + part(found[2], found[3]) + found[4], page)


def missing(page: str) -> list[str]:
    """Families that have no place on the page."""
    shown = {found[3] for found in PART.finditer(page) if found[2] == "operations"}
    return [tag for tag in families() if tag not in shown]


def main() -> int:
    page = PAGE.read_text()
    if lost := missing(page):
        sys.stderr.write(f"docs/PROTOCOL.md has no place for the operations of: {', '.join(lost)}\n")
        return 1
    current = with_tables(page)
    if current != page and "--check" in sys.argv:
        sys.stderr.write("not current: docs/PROTOCOL.md; run make protocol\n")
        return 1
    if current != page:
        PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
