"""``forebay push``: payloads from the command line, a file or standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from forebay.cli.commands import PayloadCommand, about_queue, asks_server, connected
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import Advance, counted, json_id, note, print_json, progress
from forebay.cli.parameters import argument_bytes, checked, message_options, options_given
from forebay.client.sync.messages import BATCH, BATCH_BYTES
from forebay.client.types import Options, PushedMany

TOLD_BYTES = 64 * 1024
"""Bytes between two updates of the progress bar: an update costs more than a line."""


@click.command(cls=PayloadCommand, example='forebay push emails \'{"to": "ada@example.com"}\'')
@about_queue
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read payloads from this file, one a line.",
)
@message_options
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os"]),
    help="What they must survive (default: as the queue has it).",
)
@click.option("--idempotency-key", help="Pushed once, however often it is said with this key.")
@asks_server
def push(
    queue: str,
    payloads: tuple[str, ...],
    file: Path | None,
    server: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Push messages. Each PAYLOAD is one JSON value; - reads one a line from standard input."""
    if ("-" in payloads or file) and len(payloads) + bool(file) > 1:
        raise click.UsageError("- or --file stands alone, without other payloads")
    if not payloads and file is None:
        raise click.UsageError("Missing argument 'PAYLOAD': some JSON, - or --file FILE")
    options = options_given(given)
    total = file.stat().st_size if file else None
    is_long = file is not None or (payloads == ("-",) and not sys.stdin.isatty())
    count = batches = 0
    with connected(server) as client, progress(f"pushing to {queue}", total, show=is_long) as advance:
        for number, batch in enumerate(_batches(_read(payloads, file, advance))):
            pushed = client.push_many(queue, batch, batch=BATCH, **_numbered(options, number))
            count += pushed.count
            batches += 1
            _print(queue, pushed, as_json)
    if not count:
        note("nothing to push")
    if batches > 1:
        note(f"{counted(count)} in all")
    return DONE if count else NOTHING


def _numbered(options: Options, number: int) -> Options:
    """Return the options of a batch, with an idempotency key of its own."""
    key = options.get("idempotency_key")
    return {**options, "idempotency_key": f"{key}#{number}"} if key and number else options


def _print(queue: str, pushed: PushedMany, as_json: bool) -> None:
    first = json_id(pushed.ids[0])
    if not as_json:
        known = f" ({len(pushed.duplicates)} known already)" if pushed.duplicates else ""
        print(f"pushed {pushed.count - len(pushed.duplicates)} to {queue}, first id {first}{known}")
        return
    shown: dict[str, object] = {"first": first, "count": pushed.count, "durability": pushed.durability}
    if pushed.ids != list(range(pushed.ids[0], pushed.ids[0] + pushed.count)):
        shown["ids"] = list(map(json_id, pushed.ids))
    if pushed.duplicates:
        shown["duplicates"] = pushed.duplicates
    print_json(shown)


def _read(payloads: tuple[str, ...], file: Path | None, advance: Advance) -> Iterator[msgspec.Raw]:
    if file is not None:
        with file.open("rb") as source:
            yield from _checked(_lines(source, advance))
    elif payloads == ("-",):
        yield from _checked(_lines(sys.stdin.buffer, advance))
    else:
        yield from _checked(map(argument_bytes, payloads))


def _lines(source: BinaryIO, advance: Advance) -> Iterator[bytes]:
    size = 0
    for line in source:
        size += len(line)
        if size > TOLD_BYTES:
            advance(size)
            size = 0
        if not line.isspace():
            yield line


def _checked(payloads: Iterable[bytes]) -> Iterator[msgspec.Raw]:
    return (checked(payload, number) for number, payload in enumerate(payloads, 1))


def _batches(payloads: Iterable[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    batch: list[msgspec.Raw] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += len(payload)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
