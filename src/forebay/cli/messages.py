"""``forebay messages`` and ``message``: look at messages, without a lease."""

from itertools import islice
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from forebay.cli.commands import Command, about_queue, asks_server, connected, of_group
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import (
    clean,
    json_id,
    note,
    one_line,
    print_fields,
    print_json,
    print_settled,
    print_table,
    shortened,
    shown_second,
    shown_time,
)
from forebay.cli.parameters import that_match
from forebay.client.types import Attempt, DeadFilter, Line, Progress, Seen

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient

STATES = (
    "waiting",
    "delayed",
    "parked",
    "active",
    "completed",
    "dead",
    "expired",
    "cancelled",
    "evicted",
    "discarded",
)


WAITS_SHOWN_MAX = 20
"""Dependencies that are shown with a message that waits for them."""
WHERE_ANY = ("TASK", "HOLDER", "TYPE")
"""Columns of a table of messages that are left out if none of them has anything there."""


class Shown(msgspec.Struct):
    """A message as ``--json`` prints it; its payload stays as it was written."""

    id: int | str
    uuid: str
    queue: str
    partition: str
    offset: int
    payload: msgspec.Raw | None
    state: str
    created_at: int
    failures: int
    deliveries: int
    priority: int
    headers: dict[str, str]
    tags: tuple[str, ...]
    error: str | None
    error_type: str | None
    due_at: int | None
    leased_at: int | None
    lease_until: int | None
    holder: str | None
    ended_at: int | None
    job_id: str | None
    unique_key: str | None
    depends_on: list[int | str]
    task: str | None
    damaged: bool


def shown(seen: Seen) -> Shown:
    """Return a message, read with raw payloads, as ``--json`` prints it."""
    return Shown(
        json_id(seen.id),
        seen.uuid,
        seen.queue,
        seen.partition,
        seen.offset,
        seen.payload,
        seen.state,
        seen.created_at,
        seen.failures,
        seen.deliveries,
        seen.priority,
        seen.headers,
        seen.tags,
        seen.error,
        seen.error_type,
        seen.due_at,
        seen.leased_at,
        seen.lease_until,
        seen.holder,
        seen.ended_at,
        seen.job_id,
        seen.unique_key,
        list(map(json_id, seen.depends_on)),
        seen.task,
        seen.damaged,
    )


class Noted(msgspec.Struct):
    """The notes of a message, as ``--json`` prints them."""

    result: msgspec.Raw | None
    progress: Progress | None
    log: list[Line]
    attempts: list[Attempt]


def print_message(client: "SyncClient", seen: Seen, group: str, as_json: bool) -> None:
    """Print one message with its result, progress, log and failed attempts."""
    progress = client.progress(seen.id)
    noted = Noted(
        client.result(seen.id, group=group, type=msgspec.Raw).result,
        None if progress.updated_at is None else progress,
        client.logs(seen.id),
        client.attempts(seen.id, group=group),
    )
    if as_json:
        print_json({**msgspec.structs.asdict(shown(seen)), **msgspec.structs.asdict(noted)})
        return
    fields: dict[str, object] = {
        "id": seen.id,
        "uuid": seen.uuid,
        "queue": seen.queue,
        "partition": seen.partition,
        "offset": seen.offset,
        "task": seen.task,
        "state": seen.state,
        "created": shown_time(seen.created_at),
        "failures": seen.failures,
        "deliveries": seen.deliveries,
        "priority": seen.priority,
        "headers": [f"{name}={value}" for name, value in seen.headers.items()],
        "tags": seen.tags,
        "error": seen.error,
        "error type": seen.error_type,
        "due": shown_time(seen.due_at),
        "leased": shown_time(seen.leased_at),
        "leased until": shown_time(seen.lease_until),
        "holder": seen.holder,
        "ended": shown_time(seen.ended_at),
        "job id": seen.job_id,
        "unique key": seen.unique_key,
        "depends on": seen.depends_on,
        "waits for": _waits_for(client, seen),
        "payload": "damaged" if seen.payload is None else one_line(seen.payload),
        "progress": noted.progress and f"{noted.progress.progress} % {noted.progress.message or ''}",
        "result": noted.result and one_line(noted.result),
    }
    absent: tuple[object, ...] = (None, (), [])
    print_fields({name: value for name, value in fields.items() if value not in absent})
    for line in noted.log:
        print(f"{shown_time(line.timestamp)}  {clean(line.level)}  {clean(line.message)}")
    for attempt in noted.attempts:
        by = f", by {clean(attempt.worker)}" if attempt.worker else ""
        print(
            f"\ndelivery {attempt.deliveries} failed at {shown_time(attempt.at)}{by}: {clean(attempt.error)}"
        )
        for text in (attempt.traceback or "").splitlines():
            print(f"  {clean(text)}")


def _waits_for(client: "SyncClient", seen: Seen) -> list[str]:
    """Return what a parked message waits for, with the state of each: dead ones, which wait for a requeue,
    come first."""
    if seen.state != "parked":
        return []
    children = [
        each for each in client.ask("CHILDREN", id=seen.id)["children"] if each["state"] != "completed"
    ]
    children.sort(key=lambda each: each["state"] != "dead")
    found = [f"{each['id']} ({each['state']})" for each in children[:WAITS_SHOWN_MAX]]
    more = len(children) - len(found)
    return [*found, f"and {more} more"] if more else found


def _times(found: list[Seen]) -> dict[str, list[object]]:
    """Return the column of times: when messages were pushed, or ended, if all have."""
    ended = [shown_second(each.ended_at) for each in found if each.ended_at is not None]
    if len(ended) == len(found):
        return {"ENDED": list(ended)}
    return {"CREATED": [shown_second(each.created_at) for each in found]}


def print_messages(found: list[Seen], as_json: bool) -> None:
    """Print messages, one a row."""
    if as_json:
        for each in found:
            print_json(shown(each))
        return
    columns: dict[str, list[object]] = {
        "ID": [each.id for each in found],
        "STATE": [each.state for each in found],
        "PARTITION": [each.partition for each in found],
        "TASK": [each.task for each in found],
        "HOLDER": [each.holder for each in found],
        **_times(found),
        "FAILURES": [each.failures for each in found],
        "TYPE": [each.error_type for each in found],
        "ERROR": [each.error for each in found],
        "PAYLOAD": ["damaged" if each.payload is None else shortened(each.payload) for each in found],
    }
    columns = {name: cells for name, cells in columns.items() if name not in WHERE_ANY or any(cells)}
    print_table(list(columns), zip(*columns.values(), strict=True), left=[*columns.keys() - {"FAILURES"}])


@click.command(cls=Command, example="forebay messages emails --state delayed --tag urgent")
@about_queue
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@of_group
@that_match
@click.option("--limit", type=click.IntRange(min=1), default=100, help="At most this many (default 100).")
@asks_server
def messages(
    queue: str,
    state: str | None,
    group: str,
    limit: int,
    server: str | None,
    as_json: bool,
    **of: Unpack[DeadFilter],
) -> int:
    """Browse the messages of a queue, without a lease."""
    with connected(server) as client:
        matching = client.browse(queue, state=state, group=group, type=msgspec.Raw, **of)
        found = list(islice(matching, limit))
    if found:
        print_messages(found, as_json)
    elif not as_json:
        note(f"nothing in {queue} matches")
    return DONE if found else NOTHING


@click.command(cls=Command, example="forebay message 274877906944")
@click.argument("id", metavar="ID")
@of_group
@asks_server
def message(id: str, group: str, server: str | None, as_json: bool) -> int:
    """Show one message, where it stands in a group, and its result, progress and log."""
    with connected(server) as client:
        print_message(client, client.message(id, group=group, type=msgspec.Raw), group, as_json)
    return DONE


@click.command(cls=Command, example="forebay cancel 274877906944")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--group", help="Only for this group (default: for all).")
@asks_server
def cancel(ids: tuple[str, ...], group: str | None, server: str | None, as_json: bool) -> int:
    """Deliver messages no more. A worker that runs one as a job is told, and ends it."""
    with connected(server) as client:
        settled = client.cancel(ids, group=group)
    return print_settled(settled, "cancelled", "settled, dead or not there", as_json)
