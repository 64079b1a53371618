"""All SQL: the named queries of the store, and the migrations of its schema."""

from functools import cache
from importlib.resources import files

from msgspec import Struct

_HERE = files(__package__)


class Migration(Struct, frozen=True):
    """A step of the schema. Safe to apply twice, and never changed once released."""

    number: int
    name: str
    text: str


@cache
def queries() -> dict[str, str]:
    """Return all queries by name."""
    found: dict[str, str] = {}
    text = (_HERE / "queries.sql").read_text()
    for part in text.split("-- name: ")[1:]:
        name, _, query = part.partition("\n")
        found[name.strip()] = query.strip().rstrip(";")
    return found


@cache
def migrations() -> list[Migration]:
    """Return all migrations in order."""
    found = []
    for file in (_HERE / "migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda each: each.number)


def as_text(steps: list[Migration]) -> str:
    """Return a script that applies migrations and records them, to be run by hand."""
    if not steps:
        return ""
    parts = ["begin;", queries()["make_migrations"] + ";"]
    for each in steps:
        note = f"insert into forebay.migrations (number, name) values ({each.number}, '{each.name}');"
        parts += [f"-- {each.number:04d} {each.name}", each.text.strip(), note]
    return "\n\n".join([*parts, "commit;"]) + "\n"
