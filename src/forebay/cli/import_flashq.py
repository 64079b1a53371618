"""``forebay import flashq``: jobs, dead letters and crons from flashQ's SQLite file."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forebay.cli.commands import Command, Group, asks_server, connected, may_be_dry
from forebay.cli.errors import DONE, NOTHING, USAGE
from forebay.cli.flashq.file import FlashqFile
from forebay.cli.flashq.report import Report
from forebay.cli.flashq.run import Import
from forebay.cli.output import counted, note, print_json, print_table, progress
from forebay.client.types import Counts
from forebay.core.errors import ForebayError

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient

IDS_SHOWN = 5
"""Ids named for each reason that jobs were skipped for."""


@click.group("import", cls=Group)
def import_() -> None:
    """Bring messages over from another system: flashq."""


@import_.command(cls=Command, example="forebay import flashq flashq.db --dry-run")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--queue", "globs", multiple=True, metavar="GLOB", help="Only these queues; may be repeated.")
@may_be_dry
@asks_server
def flashq(file: Path, globs: tuple[str, ...], dry_run: bool, server: str | None, as_json: bool) -> int:
    """Import jobs, dead letters and crons from flashQ's SQLite file, and compare the counts.

    Stop flashQ first, and start workers afterwards. Run it again if it was interrupted: what is there already
    is not pushed twice.
    """
    with FlashqFile(file) as source:
        rows = {
            queue: count
            for queue, count in sorted(source.rows().items())
            if not globs or any(fnmatchcase(queue, glob) for glob in globs)
        }
        left_out = {"results": source.count("job_results"), "webhooks": source.count("webhooks")}
        report = Report()
        if dry_run:
            Import(source, list(rows), None, report).run(lambda done, total=None: None)
        else:
            with connected(server) as client:
                before = _counts(client)
                with (
                    progress("importing", sum(rows.values()), show=not as_json) as advance,
                    _resumable(report),
                ):
                    Import(source, list(rows), client, report).run(advance)
                report.compare(before, _counts(client))
        report.check_all_read(rows)
    if as_json:
        print_json({"file": str(file), "dry_run": dry_run, **report.shown(), "left_out": left_out})
    else:
        _print(report, left_out, dry_run)
    if not report.tallies:
        return NOTHING
    return DONE if report.is_whole else USAGE


def _counts(client: "SyncClient") -> dict[str, Counts]:
    return {each.queue: each.counts for each in client.queues()}


@contextmanager
def _resumable(report: Report) -> Iterator[None]:
    """Say what to do if the import is interrupted."""
    try:
        yield
    except ForebayError as error:
        done = sum(each.imported + each.known for each in report.tallies.values())
        if done:
            error.add_note(f"{done:,} were imported before; run the same command again to go on")
        raise


def _print(report: Report, left_out: dict[str, int], dry_run: bool) -> None:
    if not report.tallies:
        note("nothing to import")
        return
    head = [
        "QUEUE",
        "STATE",
        "IN FILE",
        "TO IMPORT" if dry_run else "IMPORTED",
        "ALREADY THERE",
        "SKIPPED",
        "ON SERVER",
    ]
    rows = [
        [queue, state, each.in_file, each.imported, each.known, each.skipped, report.on_server(queue, state)]
        for (queue, state), each in sorted(report.tallies.items())
    ]
    print_table(head, rows, left=["STATE"])
    for (queue, reason), ids in sorted(report.skipped.items()):
        named = ", ".join(map(str, ids[:IDS_SHOWN])) + (", …" if len(ids) > IDS_SHOWN else "")
        print(f"skipped {len(ids):,} of {queue}: {reason} ({named})")
    if left_out["results"]:
        print(
            f"left out: {counted(left_out['results'], 'result')} of completed jobs; those are not in the file"
        )
    if left_out["webhooks"]:
        print(f"left out: {counted(left_out['webhooks'], 'webhook')}; register them at this server")
    for each in report.differences:
        print(f"differs: {each.queue} has {each.found:,} {each.states}, not {each.expected:,}")
    if report.differences:
        note("do others push to these queues, or pop? Then this is expected: compare while they are stopped")
