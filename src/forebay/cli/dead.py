"""``forebay dead``: dead letters, to look at, requeue, move or give up."""

from itertools import islice
from typing import Any, Unpack, cast

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
from forebay.cli.output import (
    confirm,
    counted,
    json_id,
    note,
    print_json,
    print_table,
    shown_second,
)
from forebay.cli.parameters import that_match
from forebay.client.types import DeadFilter, Settled
from forebay.core.errors import NotFound

these = click.option(
    "--id", "ids", multiple=True, metavar="ID", help="This one; may be repeated. All if there is none."
)


@click.group(cls=Group)
def dead() -> None:
    """Dead letters: list, count by cause, show, requeue, purge, move."""


@dead.command("list", cls=Command, example="forebay dead list emails --type TimeoutError --limit 20")
@about_queue
@of_group
@that_match
@click.option("--limit", type=click.IntRange(min=1), default=100, help="At most this many (default 100).")
@asks_server
def list_(
    queue: str, group: str, limit: int, server: str | None, as_json: bool, **of: Unpack[DeadFilter]
) -> int:
    """List the dead letters of a group, with their errors."""
    with connected(server) as client:
        matching = client.browse(queue, state="dead", group=group, type=msgspec.Raw, **of)
        found = list(islice(matching, limit))
        total = client.dead(queue, group=group, limit=1, type=msgspec.Raw).total
    if found:
        print_messages(found, as_json)
    if not as_json and total > len(found):
        more = "; --limit shows more" if len(found) == limit else ""
        note(f"{len(found)} of {counted(total, 'dead letter')}{more}")
    elif not as_json and not found:
        note(f"no dead letters in {queue}")
    return DONE if found else NOTHING


@dead.command("groups", cls=Command, example="forebay dead groups emails")
@about_queue
@of_group
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, help="At most this many (default 20).")
@asks_server
def groups(queue: str, group: str, limit: int, server: str | None, as_json: bool) -> int:
    """Count dead letters by cause.

    A cause is a task, and type and text of an error, with * for numbers and ids: what --task, --type and
    --error of the other commands take.
    """
    with connected(server) as client:
        found = client.dead_groups(queue, group=group, limit=limit)
    if as_json:
        print_json(msgspec.structs.asdict(found))
        return DONE if found.total else NOTHING
    if not found.total:
        note(f"no dead letters in {queue}")
        return NOTHING
    head = ["COUNT", "TASK", "TYPE", "ERROR", "FIRST", "LAST", "EXAMPLE"]
    rows = [
        [
            each.count,
            each.task,
            each.error_type,
            each.error,
            shown_second(each.first_at),
            shown_second(each.last_at),
            each.example,
        ]
        for each in found.groups
    ]
    print_table(head, rows, left=["TASK", "TYPE", "ERROR", "FIRST", "LAST"])
    if found.rest:
        note(f"and {counted(found.rest, 'dead letter')} of other causes; --limit shows more")
    return DONE


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


@dead.command(cls=Command, example="forebay dead requeue emails --error 'timed out'")
@about_queue
@these
@of_group
@that_match
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
    **of: Unpack[DeadFilter],
) -> int:
    """Deliver dead letters again: some, or all that match.

    What died of a dependency waits again until its dependencies are completed.
    """
    with connected(server) as client:
        done = client.requeue_dead(
            queue, ids or None, group=group, dry_run=dry_run, dependents=not no_dependents, **_given(of)
        )
    if as_json:
        print_json({**_shown(done, dry_run), "dependents": done.dependents, "left": done.left})
        return DONE if done.count else NOTHING
    _print(done, queue, "requeued", dry_run, as_json)
    if done.dependents:
        would = "would have " if dry_run else ""
        print(f"{would}parked {counted(done.dependents, 'message')} again that died of these")
    if done.left:
        why = "a message they depend on was cancelled or purged, or has expired"
        note(f"{counted(done.left, 'dead letter')} left: {why}")
    return DONE if done.count else NOTHING


@dead.command(cls=Command, example="forebay dead purge emails --dead-before 2026-11-01 --dry-run")
@about_queue
@these
@of_group
@that_match
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
    **of: Unpack[DeadFilter],
) -> int:
    """Give dead letters up for good: some, or all that match."""
    with connected(server) as client:
        which = (
            counted(len(ids), "dead letter")
            if ids
            else "those that match"
            if _given(of)
            else "all dead letters"
        )
        confirm(f"Give up {which} of {queue}, group {group}, for good?", yes or dry_run)
        settled = client.purge_dead(queue, ids or None, group=group, dry_run=dry_run, **_given(of))
    return _print(settled, queue, "purged", dry_run, as_json)


@dead.command(cls=Command, example="forebay dead move emails --to emails-by-hand --task send")
@about_queue
@click.option("--to", required=True, metavar="QUEUE", help="The queue they are pushed to.")
@click.option("--create", is_flag=True, help="Create that queue if there is none.")
@of_group
@that_match
@may_be_dry
@asks_server
def move(
    queue: str,
    to: str,
    create: bool,
    group: str,
    dry_run: bool,
    server: str | None,
    as_json: bool,
    **of: Unpack[DeadFilter],
) -> int:
    """Push dead letters to another queue: all that match.

    Those with dependencies, or that others depend on, stay.
    """
    with connected(server) as client:
        try:
            moved = client.move_dead(queue, to, create=create, group=group, dry_run=dry_run, **_given(of))
        except NotFound as error:
            error.message = error.message.replace("Say create", "Say --create")
            raise
    if as_json:
        print_json({**_shown(moved, dry_run), "kept": moved.kept})
        return DONE if moved.count else NOTHING
    code = _print(moved, queue, f"moved to {to}:", dry_run, as_json)
    if moved.kept:
        why = f"with dependencies, depended on, damaged, or not taken by {to}"
        note(f"not moved: {counted(moved.kept, 'dead letter')} {why}; requeue or purge them")
    return code


def _given(of: DeadFilter) -> DeadFilter:
    """Return the options that were given."""
    return cast(DeadFilter, {name: value for name, value in of.items() if value is not None})


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
