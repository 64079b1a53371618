"""All SQL there is: what the store asks, by name, and the migrations that make its schema."""

from functools import cache
from importlib.resources import files

from msgspec import Struct

_HERE = files(__package__)


class Migration(Struct, frozen=True):
    """A step of the schema. Carried out twice it does no harm, and once it was released it never changes."""

    number: int
    name: str
    text: str


@cache
def queries() -> dict[str, str]:
    """Every query by the name that stands above it."""
    found: dict[str, str] = {}
    text = (_HERE / "queries.sql").read_text()
    for part in text.split("-- name: ")[1:]:
        name, _, query = part.partition("\n")
        found[name.strip()] = query.strip().rstrip(";")
    return found


@cache
def migrations() -> list[Migration]:
    """Every migration, in the order they are carried out."""
    found = []
    for file in (_HERE / "migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text()))
    return sorted(found, key=lambda each: each.number)


def as_text(steps: list[Migration]) -> str:
    """What carries out migrations, and notes that it did, for those who do it by hand."""
    if not steps:
        return ""
    parts = ["begin;", queries()["make_migrations"] + ";"]
    for each in steps:
        note = f"insert into forebay.migrations (number, name) values ({each.number}, '{each.name}');"
        parts += [f"-- {each.number:04d} {each.name}", each.text.strip(), note]
    return "\n\n".join([*parts, "commit;"]) + "\n"
