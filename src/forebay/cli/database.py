"""``forebay migrate``: the schema of a database."""

import os
from pathlib import Path

import click

from forebay.cli.commands import Command, prints_json
from forebay.cli.errors import DONE, SERVER, CliError
from forebay.cli.output import print_json


def database(url: str | None, file: Path | None = None) -> str:
    """Return the selected database: the one named, or that of the settings in force."""
    from forebay import config

    given = {"store": url} if url is not None else {}
    try:
        found = config.load(given, os.environ, file, cwd=Path.cwd()).database()
    except config.BadSettings as error:
        raise CliError(*error.problems) from None
    if found is None:
        raise CliError("which database? --store postgresql://USER@HOST/DATABASE, or FOREBAY_STORE")
    return found


@click.command(cls=Command, example="forebay migrate --store postgresql://forebay@db/queue")
@click.option(
    "--store", metavar="ADDRESS", help="postgresql://USER@HOST/DATABASE (default: the setting store)."
)
@click.option("--dry-run", is_flag=True, help="Only say which migrations are missing.")
@click.option("--sql", is_flag=True, help="Print the SQL of those that are missing, and carry out nothing.")
@prints_json
def migrate(store: str | None, dry_run: bool, sql: bool, as_json: bool) -> int:
    """Bring the schema of a PostgreSQL database up to date. A server that starts does so, too, if it may."""
    from forebay.store.base import StoreError
    from forebay.store.postgres.open import migrate_database
    from forebay.store.postgres.sql import as_text

    try:
        steps = migrate_database(database(store), only_look=dry_run or sql)
    except StoreError as error:
        raise CliError(str(error), code=SERVER) from None
    if sql:
        print(as_text(steps), end="")
    elif as_json:
        print_json(
            {"applied" if not dry_run else "missing": [f"{each.number:04d}_{each.name}" for each in steps]}
        )
    elif not steps:
        print("the schema is up to date")
    else:
        for each in steps:
            print(f"{'missing' if dry_run else 'applied'}: {each.number:04d} {each.name}")
    return DONE
