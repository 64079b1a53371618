"""``forebay backup``, ``restore``, ``verify`` and ``repair``: data directories as a whole."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import MsgspecError

from forebay.cli.commands import Command, asks_server, connected, prints_json
from forebay.cli.errors import DAMAGE, DONE, NOTHING, CliError
from forebay.cli.output import Stopwatch, counted, print_json, print_table, progress
from forebay.core.errors import Damaged, ForebayError
from forebay.core.words import is_own

if TYPE_CHECKING:
    from forebay.core.loading.verify import Report

DATA = "./forebay-data"
BACKUP_S = 3_600.0
"""Timeout of a backup: files that can't be linked are copied."""


class Directory(click.Path):
    """A directory, not the URL of a database."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):  # it may have a password
            raise CliError(
                "a directory is wanted here; a database is backed up and restored by its own tools"
            )
        return super().convert(value, param, ctx)


directory_path = Directory(path_type=Path)


@contextmanager
def on_disk() -> Iterator[None]:
    """Turn the store's errors about a directory into messages for people."""
    from forebay.store.base import Broken, StoreError

    try:
        yield
    except Broken as error:
        raise CliError(str(error), code=DAMAGE) from None
    except StoreError as error:
        raise CliError(str(error)) from None


@click.command(cls=Command, example="forebay backup /backups/monday")
@click.argument("directory", metavar="DIRECTORY")
@asks_server
def backup(directory: str, server: str | None, as_json: bool) -> int:
    """Copy all that a running server keeps. DIRECTORY is a new one on its machine."""
    watch = Stopwatch()
    with connected(server, timeout_s=BACKUP_S) as client, progress("backing up", show=not as_json):
        made = client.backup(os.path.abspath(directory))
        kept = _kept_in(Path(made))
    if as_json:
        messages, size = kept or (None, None)
        found = {"directory": made, "messages": messages, "payload_bytes": size, "seconds": watch.seconds}
        print_json(found)
    else:
        figures = watch.summary(*kept) if kept else f"{watch.seconds:.1f} s"
        print(f"backed up to {made}: {figures}; check it: forebay verify {made}")
    return DONE


def _kept_in(backup: Path) -> tuple[int, int] | None:
    """Return the messages and payload bytes of a backup; None if it is on another machine."""
    from forebay.store.base import StoreError
    from forebay.store.copy import kept
    from forebay.store.rocksdb.offline import looking_at

    try:
        with looking_at(backup) as (reader, shards):
            return kept(reader, shards)
    except (StoreError, ForebayError, MsgspecError):  # elsewhere, or damaged, which verify says in detail
        return None


@click.command(cls=Command, example="forebay restore /backups/monday")
@click.argument("backup", metavar="BACKUP", type=directory_path)
@click.option(
    "--data",
    type=directory_path,
    default=Path(DATA),
    help=f"Where to (default {DATA}); empty or new.",
)
@prints_json
def restore(backup: Path, data: Path, as_json: bool) -> int:
    """Put a backup where a server will find it. No server may run there."""
    from forebay.store.rocksdb import offline

    with on_disk(), progress("copying files") as advance:
        offline.restore(backup, data, random.random(), lambda done, of: advance(1 if done else 0, of))
    if as_json:
        print_json({"directory": str(data)})
    else:
        print(f"restored to {data}; what was pushed after the backup is not in it")
    return DONE


@click.command(cls=Command, example="forebay verify /backups/monday")
@click.argument("data", metavar="[DIRECTORY]", default=DATA)
@prints_json
def verify(data: str, as_json: bool) -> int:
    """Say what is damaged in a data directory, a backup or a database (postgresql://…). No server may run."""
    from forebay.core.loading import verify as verifying
    from forebay.store.address import looking_at_place

    watch = Stopwatch()
    named: set[bytes] = set()
    with (
        on_disk(),
        looking_at_place(data) as (reader, shards),
        progress("reading", lambda: sum(1 for _ in reader.body_keys()), show=not as_json) as advance,
    ):

        def bodies(keys: Sequence[bytes]) -> Sequence[bytes | Damaged | None]:
            advance(len(keys))
            return reader.bodies(keys)

        found = verifying.verify(shards, reader.scan, bodies, named)
        # Of the server's own queues, such as its event log, only damage is told
        reports = [each for each in found if each.damage or not is_own(each.tenant)]
        unnamed = sum(key not in named for key in reader.body_keys())
    damage = sum(len(report.damage) for report in reports)
    pushed = [each for each in reports if not is_own(each.tenant)]
    messages, size = (sum(getattr(each, name) for each in pushed) for name in ("messages", "payload_bytes"))
    if as_json:
        totals = {"damage": damage, "messages": messages, "payload_bytes": size, "unnamed_bodies": unnamed}
        print_json({"ok": not damage, **totals, "seconds": watch.seconds, "queues": reports})
    else:
        _print_reports(reports, unnamed)
        queues = counted(len(reports), "queue")
        if damage:
            hurt = sum(bool(each.damage) for each in reports)
            queues = f"{counted(damage, 'place')} in {hurt:,} of {queues}"
        print(f"{'damaged' if damage else 'ok'}: {queues}; {watch.summary(messages, size)}")
    return DAMAGE if damage else DONE


def _print_reports(reports: "list[Report]", unnamed: int) -> None:
    head = ["QUEUE", "TENANT", "PARTITIONS", "SEGMENTS", "MESSAGES", "BYTES", "DAMAGE"]
    rows = [
        [
            each.queue,
            each.tenant,
            each.partitions,
            each.segments,
            each.messages,
            each.payload_bytes,
            len(each.damage) or "none",
        ]
        for each in reports
    ]
    print_table(head, rows)
    for report in reports:
        for line in report.damage:
            print(f"damaged: tenant {report.tenant}, queue {report.queue}: {line}")
    if unnamed:
        print(f"{unnamed} bodies belong to no segment: left by a commit that did not finish")


@click.command(cls=Command, example="forebay repair ./forebay-data --accept-loss")
@click.argument("data", metavar="DIRECTORY", type=directory_path)
@click.option("--accept-loss", is_flag=True, help="Say that confirmed messages may be lost; needed.")
@prints_json
def repair(data: Path, accept_loss: bool, as_json: bool) -> int:
    """Make a data directory with a damaged log open again. What came after the damage is lost."""
    from forebay.store.rocksdb import offline

    if not accept_loss:
        raise CliError(
            "what came after the damage is lost for good, although it was confirmed;"
            " copy the directory first, then say --accept-loss"
        )
    with on_disk():
        repaired = offline.repair(data, random.random())
    if as_json:
        print_json({"directory": str(data), "repaired": repaired})
    elif repaired:
        print(f"{data} opens again; see what is left: forebay verify {data}")
    else:
        print(f"{data} opens as it is; nothing was done")
    return DONE if repaired else NOTHING
