"""``forebay dead``: dead letters, to look at, requeue or give up."""

from typing import Any

import click
import msgspec

from forebay.cli.commands import (
    Command,
    Group,
    about_queue,
    asks_server,
    connected,
    may_ask,
    may_be_dry,
    of_group,
)
from forebay.cli.errors import DONE, NOTHING, CliError
from forebay.cli.messages import print_message, print_messages
from forebay.cli.output import confirm, counted, json_id, note, print_json
from forebay.client.types import Settled

PAGE = 1_000
"""Most dead letters that a server returns at a time."""

these = click.option(
    "--id", "ids", multiple=True, metavar="ID", help="This one; may be repeated. All if there is none."
)


@click.group(cls=Group)
def dead() -> None:
    """Dead letters: list, show, requeue, purge."""


@dead.command("list", cls=Command, example="forebay dead list emails --limit 20")
@about_queue
@of_group
@click.option("--limit", type=click.IntRange(min=1), default=100, help="At most this many (default 100).")
@asks_server
def list_(queue: str, group: str, limit: int, server: str | None, as_json: bool) -> int:
    """List the dead letters of a group, with their errors."""
    with connected(server) as client:
        page = client.dead(queue, group=group, limit=min(limit, PAGE), type=msgspec.Raw)
        found = page.messages
        while page.messages and len(found) < min(limit, page.total):
            rest = min(limit - len(found), PAGE)
            page = client.dead(queue, group=group, limit=rest, skip=len(found), type=msgspec.Raw)
            found += page.messages
    if found:
        print_messages(found, as_json)
    if not as_json and page.total > len(found):
        note(f"{len(found)} of {counted(page.total, 'dead letter')}; --limit shows more")
    elif not as_json and not found:
        note(f"no dead letters in {queue}")
    return DONE if found else NOTHING


@dead.command(cls=Command, example="forebay dead show 274877906944")
@click.argument("id", metavar="ID")
@of_group
@asks_server
def show(id: str, group: str, server: str | None, as_json: bool) -> int:
    """Show one dead letter, and its error."""
    with connected(server) as client:
        found = client.message(id, group=group, type=msgspec.Raw)
        if found.state != "dead":
            raise CliError(f"{id} is no dead letter of the group {group}: it is {found.state}")
        print_message(client, found, group, as_json)
    return DONE


@dead.command(cls=Command, example="forebay dead requeue emails --id 274877906944")
@about_queue
@these
@of_group
@may_be_dry
@click.option("--no-dependents", is_flag=True, help="Leave those dead that died of these.")
@asks_server
def requeue(
    queue: str,
    ids: tuple[str, ...],
    group: str,
    dry_run: bool,
    no_dependents: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Deliver dead letters again: some, or all of them.

    What died of a dependency waits again until its dependencies are completed.
    """
    with connected(server) as client:
        done = client.requeue_dead(
            queue, ids or None, group=group, dry_run=dry_run, dependents=not no_dependents
        )
        left = client.dead(queue, group=group, limit=1).total if not ids and not dry_run else 0
    if as_json:
        print_json({**_shown(done, dry_run), "dependents": done.dependents, "left": left})
        return DONE if done.count else NOTHING
    _print(done, queue, "requeued", dry_run, as_json)
    if done.dependents:
        would = "would have " if dry_run else ""
        print(f"{would}parked {counted(done.dependents, 'message')} again that died of these")
    if left:
        why = "a message they depend on was cancelled or purged, or has expired"
        note(f"{counted(left, 'dead letter')} left: {why}")
    return DONE if done.count else NOTHING


@dead.command(cls=Command, example="forebay dead purge emails --dry-run")
@about_queue
@these
@of_group
@may_be_dry
@may_ask
@asks_server
def purge(
    queue: str,
    ids: tuple[str, ...],
    group: str,
    dry_run: bool,
    yes: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Give dead letters up for good: some, or all of them."""
    with connected(server) as client:
        which = counted(len(ids), "dead letter") if ids else "all dead letters"
        confirm(f"Give up {which} of {queue}, group {group}, for good?", yes or dry_run)
        settled = client.purge_dead(queue, ids or None, group=group, dry_run=dry_run)
    return _print(settled, queue, "purged", dry_run, as_json)


def _print(settled: Settled, queue: str, done: str, dry_run: bool, as_json: bool) -> int:
    shown = _shown(settled, dry_run)
    if as_json:
        print_json(shown)
    else:
        would = "would have " if dry_run else ""
        print(f"{would}{done} {counted(settled.count, 'dead letter')} of {queue}")
        for each in shown["refused"]:
            note(f"not {done}: {each}")
    return DONE if settled.count else NOTHING


def _shown(settled: Settled, dry_run: bool) -> dict[str, Any]:
    refused = list(map(json_id, settled.refused))
    return {"count": settled.count, "refused": refused, "dry_run": dry_run}
