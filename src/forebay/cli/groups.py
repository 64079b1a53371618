"""``forebay groups`` and ``seek``: who reads a queue, and from where."""

import click

from forebay.cli.commands import Command, Group, about_queue, asks_server, connected, may_ask, of_group
from forebay.cli.errors import DONE
from forebay.cli.output import confirm, print_json, print_table
from forebay.cli.parameters import Time
from forebay.cli.queues import flat_group, print_groups


@click.group(cls=Group)
def groups() -> None:
    """Groups of a queue: list, create, delete."""


@groups.command("list", cls=Command, example="forebay groups list emails")
@about_queue
@asks_server
def list_(queue: str, server: str | None, as_json: bool) -> int:
    """List the groups of a queue: their messages by state, and since when the oldest waits."""
    with connected(server) as client:
        found = client.queue(queue)
    if as_json:
        for each in found.groups:
            print_json(flat_group(each))
    else:
        print_groups(found)
    return DONE


@groups.command(cls=Command, example="forebay groups create emails audit --from new")
@about_queue
@click.argument("group", metavar="GROUP")
@click.option(
    "--from",
    "start",
    type=Time("all", "new"),
    default="all",
    help="Where it begins: all, new, or a time (default all).",
)
@asks_server
def create(queue: str, group: str, start: str | int, server: str | None, as_json: bool) -> int:
    """Make a group; one that is there stays as it is."""
    with connected(server) as client:
        found = client.create_group(queue, group, start=start)
    (made,) = (each for each in found if each.group == group)
    if as_json:
        print_json(flat_group(made))
    else:
        print(f"the group {group} of {queue} is there; {made.counts.waiting} wait for it")
    return DONE


@groups.command(cls=Command, example="forebay groups delete emails audit --yes")
@about_queue
@click.argument("group", metavar="GROUP")
@may_ask
@asks_server
def delete(queue: str, group: str, yes: bool, server: str | None, as_json: bool) -> int:
    """Forget a group, with all that it holds and its dead letters."""
    with connected(server) as client:
        confirm(f"Forget the group {group} of {queue}, with its dead letters?", yes)
        client.delete_group(queue, group)
    if as_json:
        print_json({"queue": queue, "group": group, "deleted": True})
    else:
        print(f"deleted the group {group} of {queue}")
    return DONE


@click.command(cls=Command, example="forebay seek emails --group audit --to 2026-11-16T08:30:00Z")
@about_queue
@of_group
@click.option("--to", type=Time("all", "new"), help="all, new, or a time: ms, or ISO 8601.")
@click.option("--offset", type=int, help="The offset to read on from; with --partition.")
@click.option("--partition", help="Only in this partition.")
@asks_server
def seek(
    queue: str,
    group: str,
    to: str | int | None,
    offset: int | None,
    partition: str | None,
    server: str | None,
    as_json: bool,
) -> int:
    """Have a group read on from another place."""
    if (to is None) == (offset is None):
        raise click.UsageError("Say where to: either --to or --offset")
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition: each has offsets of its own")
    with connected(server) as client:
        cursors = client.seek(queue, to, group=group, partition=partition, offset=offset)
    if as_json:
        for name, cursor in cursors.items():
            print_json({"partition": name, "cursor": cursor})
    else:
        print_table(["PARTITION", "CURSOR"], cursors.items())
    return DONE
