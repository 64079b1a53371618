"""``forebay crons``: messages that are pushed again and again."""

from typing import Any

import click
import msgspec

from forebay.cli.commands import Command, Group, PayloadCommand, asks_server, connected, known_queues
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import note, print_json, print_table, shown_time
from forebay.cli.parameters import argument_bytes, checked, message_options, options_given


@click.group(cls=Group)
def crons() -> None:
    """Messages by a schedule: list, set, delete."""


@crons.command("list", cls=Command, example="forebay crons list")
@asks_server
def list_(server: str | None, as_json: bool) -> int:
    """List the crons, and when each comes next."""
    with connected(server) as client:
        found = client.crons()
    if as_json:
        for each in found:
            print_json(msgspec.structs.asdict(each))
    elif found:
        head = ["NAME", "QUEUE", "SCHEDULE", "TIMEZONE", "NEXT", "FIRED", "ERROR"]
        rows = [
            [
                each.name,
                each.queue,
                each.schedule or f"every {each.every_ms} ms",
                each.timezone,
                shown_time(each.next_at),
                each.fired,
                each.error,
            ]
            for each in found
        ]
        print_table(head, rows, left=["QUEUE", "SCHEDULE", "TIMEZONE", "NEXT", "ERROR"])
    else:
        note("no crons")
    return DONE if found else NOTHING


@crons.command(
    "set",
    cls=PayloadCommand,
    example="forebay crons set nightly reports '{\"kind\": \"all\"}' --schedule '0 3 * * *'",
)
@click.argument("name", metavar="NAME")
@click.argument("queue", metavar="QUEUE", shell_complete=known_queues)
@click.argument("payload", metavar="PAYLOAD")
@click.option("--schedule", help="Five fields, six with seconds first, @daily, '@every 90s', ….")
@click.option("--every-ms", type=int, help="Instead: every so many ms.")
@click.option("--timezone", help="A name such as Europe/Rome (default UTC).")
@click.option("--limit", type=int, help="How often; then it is removed (default: for ever).")
@click.option(
    "--missed",
    type=click.Choice(["none", "last", "all"]),
    help="What is made up for if no server ran (default last).",
)
@message_options
@asks_server
def set_(
    name: str,
    queue: str,
    payload: str,
    schedule: str | None,
    every_ms: int | None,
    timezone: str | None,
    limit: int | None,
    missed: str | None,
    server: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Have a message pushed by a schedule. A cron of the same name is replaced."""
    if (schedule is None) == (every_ms is None):
        raise click.UsageError("Say when: either --schedule or --every-ms")
    with connected(server) as client:
        made = client.set_cron(
            name,
            queue,
            checked(argument_bytes(payload)),
            schedule=schedule,
            every_ms=every_ms,
            timezone=timezone,
            limit=limit,
            missed=missed,
            **options_given(given),
        )
    if as_json:
        print_json(msgspec.structs.asdict(made))
    else:
        print(f"set {name}; it comes next at {shown_time(made.next_at)}")
    return DONE


@crons.command(cls=Command, example="forebay crons delete nightly")
@click.argument("name", metavar="NAME")
@asks_server
def delete(name: str, server: str | None, as_json: bool) -> int:
    """Delete a cron; what it has pushed stays."""
    with connected(server) as client:
        client.delete_cron(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"deleted {name}")
    return DONE
