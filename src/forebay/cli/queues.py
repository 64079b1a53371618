"""``forebay queues`` and ``forebay queue``: queues as a whole."""

import time
from collections.abc import Iterable
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
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import (
    age_s,
    confirm,
    counted,
    flat,
    print_fields,
    print_json,
    print_table,
    shown_age,
    shown_time,
)
from forebay.cli.parameters import Pair, Time, json_or_text
from forebay.client.types import Cleared, Counts, Deleted, Group as QueueGroup, Queue, QueueSummary

PURGED = ("waiting", "delayed", "parked", "dead", "completed")
"""States that can be purged."""
COUNTED = ("waiting", "delayed", "deferred", "active", "completed", "dead")
"""States that are listed."""


@click.command(cls=Command, example="forebay queues --json")
@asks_server
def queues(server: str | None, as_json: bool) -> int:
    """List the queues and who reads them: a line for each group, with what is left for it."""
    with connected(server) as client:
        found = client.queues()
    if as_json:
        for each in found:
            counts = {name: getattr(each.counts, name) for name in COUNTED}
            more = {"paused": each.paused, "oldest_at": each.oldest_at}
            groups = list(map(flat_group, each.groups))
            print_json({"queue": each.queue, **counts, **more, "groups": groups})
    else:
        now = int(time.time() * 1000)
        rows = [[each.queue, *row, each.paused] for each in found for row in group_rows(readers(each), now)]
        print_table(["QUEUE", *GROUP_HEAD, "PAUSED"], rows, left=["GROUP"])
    return DONE


Reader = tuple[str | None, Counts, int | None]
"""A group: its name, its messages by state, and when the oldest of those that wait was pushed."""


def readers(found: QueueSummary) -> list[Reader]:
    """Return the groups of a queue; what no group reads yet waits for a first one, without a name."""
    groups: list[Reader] = [(each.group, each.counts, each.oldest_at) for each in found.groups]
    return groups or [(None, found.counts, found.oldest_at)]


def group_rows(groups: Iterable[Reader], now: int) -> list[list[object]]:
    """Return a row for each group."""
    return [
        [name, *(getattr(counts, state) for state in COUNTED), shown_age(age_s(at, now))]
        for name, counts, at in groups
    ]


GROUP_HEAD = ("GROUP", *map(str.upper, COUNTED), "OLDEST")


@click.group(cls=Group)
def queue() -> None:
    """One queue: create, configure, pause, drain, delete, …"""


options = click.argument("options", metavar="[OPTION=VALUE]...", type=Pair(), nargs=-1)


def _options(given: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {name: json_or_text(value) for name, value in given}


@queue.command(cls=Command, example="forebay queue create emails max_attempts=5 durability=os")
@about_queue
@options
@asks_server
def create(queue: str, options: tuple[tuple[str, str], ...], server: str | None, as_json: bool) -> int:
    """Make a queue. One that is there only gets the options."""
    with connected(server) as client:
        found = client.configure(queue, **_options(options))
    _print(found, as_json)
    return DONE


@queue.command(cls=Command, example="forebay queue describe emails")
@about_queue
@asks_server
def describe(queue: str, server: str | None, as_json: bool) -> int:
    """Show a queue with its options, partitions and groups."""
    with connected(server) as client:
        found = client.queue(queue)
    _print(found, as_json)
    return DONE


@queue.command(
    cls=Command, example="forebay queue configure emails lease_ms=60000 'rate_limit={\"limit\": 5}'"
)
@about_queue
@click.argument("options", metavar="OPTION=VALUE...", type=Pair(), nargs=-1, required=True)
@click.option(
    "--partition",
    help="Only for this partition: retention_ms, completed_retention_ms or partition_retention_ms.",
)
@asks_server
def configure(
    queue: str,
    options: tuple[tuple[str, str], ...],
    partition: str | None,
    server: str | None,
    as_json: bool,
) -> int:
    """Set options of a queue. Each VALUE is JSON, or text."""
    with connected(server) as client:
        client.queue(queue)  # a mistyped name must not create a queue
        found = client.configure(queue, partition=partition, **_options(options))
    _print(found, as_json)
    return DONE


def _print(found: Queue, as_json: bool) -> None:
    if as_json:
        groups = list(map(flat_group, found.groups))
        print_json({**msgspec.structs.asdict(found), "groups": groups})
        return
    until = found.paused_until
    paused: object = f"until {shown_time(until)}" if found.paused and until else found.paused
    values = {name: msgspec.json.encode(value).decode() for name, value in found.options.items()}
    print_fields({"queue": found.queue, "paused": paused, **values})
    if found.partitions:
        print()
        rows = [[each.partition, each.first, each.end, each.bytes, each.lane] for each in found.partitions]
        print_table(["PARTITION", "FIRST", "END", "BYTES", "LANE"], rows)
    if found.groups:
        print()
        print_groups(found)


def flat_group(group: QueueGroup) -> dict[str, object]:
    """Return a group and its counts as one object."""
    return {**flat("group", group.group, group.counts), "oldest_at": group.oldest_at}


def print_groups(found: Queue) -> None:
    """Print the groups of a queue, their messages by state, and the oldest that waits."""
    head = ["GROUP", "WAITING", "DELAYED", "PARKED", "ACTIVE", "COMPLETED", "DEAD"]
    counts = [msgspec.structs.asdict(each.counts) for each in found.groups]
    rows = [
        [each.group, *(count[name.lower()] for name in head[1:]), shown_time(each.oldest_at)]
        for each, count in zip(found.groups, counts, strict=True)
    ]
    print_table([*head, "OLDEST"], rows)


@queue.command(cls=Command, example="forebay queue pause emails --until 2026-11-16T08:30:00Z")
@about_queue
@click.option("--until", type=Time(), help="Resume at this time: ms, or ISO 8601.")
@asks_server
def pause(queue: str, until: int | None, server: str | None, as_json: bool) -> int:
    """Deliver nothing of a queue, until it is resumed."""
    with connected(server) as client:
        client.pause(queue, until=until)
    if as_json:
        print_json({"queue": queue, "paused": True, "paused_until": until})
    else:
        print(f"paused {queue}" + (f" until {shown_time(until)}" if until else ""))
    return DONE


@queue.command(cls=Command, example="forebay queue resume emails")
@about_queue
@asks_server
def resume(queue: str, server: str | None, as_json: bool) -> int:
    """Deliver messages of a queue again."""
    with connected(server) as client:
        client.resume(queue)
    if as_json:
        print_json({"queue": queue, "paused": False})
    else:
        print(f"resumed {queue}")
    return DONE


@queue.command(cls=Command, example="forebay queue drain emails --dry-run")
@about_queue
@of_group
@may_be_dry
@may_ask
@asks_server
def drain(queue: str, group: str, dry_run: bool, yes: bool, server: str | None, as_json: bool) -> int:
    """Cancel all that waits or is delayed; what is leased goes on."""
    with connected(server) as client:
        client.queue(queue)
        confirm(f"Cancel all that waits in {queue}, group {group}?", yes or dry_run)
        cleared = client.drain(queue, group=group, dry_run=dry_run)
    return _print_cleared(cleared, queue, "cancelled", as_json)


@queue.command(cls=Command, example="forebay queue purge emails --state completed")
@about_queue
@click.option(
    "--state",
    "states",
    type=click.Choice(PURGED),
    multiple=True,
    help="Only those in this state; may be repeated. All but those that are leased if there is none.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="COUNT",
    help="At most so many, of each state the oldest first; not with --dry-run, which counts all.",
)
@click.option(
    "--grace-ms",
    type=click.IntRange(0),
    default=0,
    metavar="MS",
    help="Only those that are so for this long (completed ones: to a minute); not with --dry-run.",
)
@of_group
@may_be_dry
@may_ask
@asks_server
def purge(
    queue: str,
    states: tuple[str, ...],
    limit: int | None,
    grace_ms: int,
    group: str,
    dry_run: bool,
    yes: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Clear out messages of a queue in some states."""
    with connected(server) as client:
        client.queue(queue)
        which = " and ".join(states) or "all but the leased"
        confirm(f"Clear out {which} messages of {queue}, group {group}?", yes or dry_run)
        cleared = client.purge(
            queue, list(states) or None, group=group, grace_ms=grace_ms, limit=limit, dry_run=dry_run
        )
    return _print_cleared(cleared, queue, "cleared out", as_json)


def _print_cleared(cleared: Cleared, queue: str, done: str, as_json: bool) -> int:
    if as_json:
        print_json({"count": cleared.count, "dry_run": cleared.dry_run, "freed": cleared.freed})
    else:
        would = "would have " if cleared.dry_run else ""
        freed = f", and freed {cleared.freed:,} bytes" if cleared.freed else ""
        print(f"{would}{done} {counted(cleared.count)} of {queue}{freed}")
    return DONE if cleared.count or cleared.freed else NOTHING


@queue.command(cls=Command, example="forebay queue delete emails --dry-run")
@about_queue
@click.option("--force", is_flag=True, help="Now, even if something of it is leased.")
@may_be_dry
@may_ask
@asks_server
def delete(queue: str, force: bool, dry_run: bool, yes: bool, server: str | None, as_json: bool) -> int:
    """Delete a queue with all that is in it. It goes when nothing of it is leased any more."""
    with connected(server) as client:
        look = dry_run or not force  # a closed queue can't be described any more
        kept = f" with {counted(_kept(client.queue(queue)))}" if look else ""
        confirm(f"Delete {queue}{kept}?", yes or dry_run)
        if dry_run:
            gone = Deleted(queue, False, 0, 0)
            told = f"would have deleted {queue}{kept}"
        else:
            gone = client.delete_queue(queue, force=force)
            told = f"deleted {queue}"
            if not gone.deleted:
                told = f"closed {queue}: {counted(gone.active)} still leased, then it goes (--force: now)"
    if as_json:
        print_json({**msgspec.structs.asdict(gone), "dry_run": dry_run})
    else:
        print(told)
    return DONE


def _kept(found: Queue) -> int:
    """Return the number of messages in a queue: those in its log, or more if some outlived it."""
    in_log = sum(each.end - each.first for each in found.partitions)
    counts = (each.counts for each in found.groups)
    open_ = (each.waiting + each.delayed + each.parked + each.active + each.dead for each in counts)
    return max(in_log, *open_, 0)
