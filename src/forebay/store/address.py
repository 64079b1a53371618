"""Open stores read-only by their address: rocksdb:DIR, a directory, or the URL of a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.store.base import CantOpen
from forebay.store.copy import Readable
from forebay.store.postgres.open import open_database
from forebay.store.rocksdb.offline import looking_at

ROCKS = "rocksdb:"
DATABASES = ("postgresql://", "postgres://")
"""Prefixes of database URLs."""


def shown_place(place: str) -> str:
    """Return an address without its password."""
    if not place.startswith(DATABASES):
        return place
    from forebay.store.postgres.session import shown

    return shown(place)


@contextmanager
def looking_at_place(place: str, *, alone: bool = True) -> Iterator[tuple[Readable, int]]:
    """Open a store read-only; yields it and its number of shards. ``alone``: refuse one that is served."""
    if "://" in place and not place.startswith(DATABASES):
        raise CantOpen("the address of a database begins with postgresql://")  # it may have a password
    if not place.startswith(DATABASES):
        with looking_at(Path(place.removeprefix(ROCKS))) as found:
            yield found
        return
    database = open_database(place, alone=alone, only_look=True)
    try:
        yield database, database.made_with()
    finally:
        database.close()
