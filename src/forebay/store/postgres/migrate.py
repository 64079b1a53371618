"""Migrations of the schema: numbered steps, each applied once, under a lock."""

import logging

from forebay.store.base import CantOpen
from forebay.store.postgres.session import Session
from forebay.store.postgres.sql import Migration, migrations, queries
from forebay.store.rocksdb.format import BEFORE_RELEASE

logger = logging.getLogger("forebay.store")

MIGRATE, SERVE, ASLEEP = range(1, 4)
"""Our advisory locks: held while migrating, while serving the database, while the inbox sleeps."""
OLDEST_SERVER = 140_000
"""Oldest supported version of PostgreSQL."""


async def migrate(session: Session, steps: list[Migration] | None = None) -> list[Migration]:
    """Apply the missing steps and return them. Concurrent callers take turns."""
    steps = migrations() if steps is None else steps
    if not await missing(session, steps):
        return []
    async with session.transaction():
        await session.value("lock_for_transaction", MIGRATE)
        await session.execute(queries()["make_migrations"])
        pending = await missing(session, steps)
        for each in pending:
            logger.info("migration %04d: %s", each.number, each.name)
            await session.execute(each.text)
            await session.value("note_migration", each.number, each.name)
    return pending


async def missing(session: Session, steps: list[Migration] | None = None) -> list[Migration]:
    """Return the steps not applied yet. Raise CantOpen if the schema is another, or the server too old."""
    steps = migrations() if steps is None else steps
    about = await session.row("about")
    assert about is not None
    if about[0] < OLDEST_SERVER:
        raise CantOpen(f"PostgreSQL 14 or later is needed; this is {about[0] // 10_000}")
    if await session.value("is_before_release"):
        raise CantOpen(
            f"the schema forebay of this database was made by {BEFORE_RELEASE}: use another database,"
            " or start over in this one, after drop schema forebay cascade"
        )
    done: set[int] = set()
    if await session.value("has_migrations"):
        done = {row[0] for row in await session.fetch("applied")}
    newer = done - {each.number for each in steps}
    if newer:
        raise CantOpen(
            f"the schema has migration {max(newer)}, which this version does not know: run a newer one"
        )
    return [each for each in steps if each.number not in done]
