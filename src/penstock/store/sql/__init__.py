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
