"""Open stores in databases. The PostgreSQL driver is optional, so it is imported on first use."""

from typing import TYPE_CHECKING

from forebay.store.base import CantOpen

if TYPE_CHECKING:
    from forebay.store.postgres.sql import Migration
    from forebay.store.postgres.store import PostgresStore


def _need_driver(error: ModuleNotFoundError) -> CantOpen:
    if error.name != "asyncpg":
        raise error
    return CantOpen("PostgreSQL needs its driver: pip install 'forebay[postgres]'")


def open_database(
    url: str, *, node: str = "", alone: bool = True, only_look: bool = False
) -> "PostgresStore":
    """Return the store in a database. Raise CantOpen with the reason."""
    try:
        from forebay.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise _need_driver(error) from None
    return PostgresStore(url, node=node, alone=alone, only_look=only_look)


def migrate_database(url: str, *, only_look: bool = False) -> "list[Migration]":
    """Apply the missing migrations and return them; with ``only_look``, just return them."""
    try:
        from forebay.store.postgres.store import migrate_at
    except ModuleNotFoundError as error:
        raise _need_driver(error) from None
    return migrate_at(url, only_look=only_look)
