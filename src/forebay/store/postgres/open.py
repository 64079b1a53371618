"""Stores in databases. PostgreSQL's driver is there if it was installed, and imported when it is used."""

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
    """The store in a database; ``CantOpen`` says why it can't be opened."""
    try:
        from forebay.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise _need_driver(error) from None
    return PostgresStore(url, node=node, alone=alone, only_look=only_look)


def migrate_database(url: str, *, only_look: bool = False) -> "list[Migration]":
    """Bring the schema of a database up to date; the steps that were missing."""
    try:
        from forebay.store.postgres.store import migrate_at
    except ModuleNotFoundError as error:
        raise _need_driver(error) from None
    return migrate_at(url, only_look=only_look)
