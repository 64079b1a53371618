"""``forebay workers``: who works, on what, and since when."""

import click
import msgspec

from forebay.cli.commands import Command, asks_server, connected, known_queues
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import json_id, note, print_json, print_table, shown_second
from forebay.client.types import WorkerInfo

HEAD = ["NAME", "HOST", "VERSION", "STATE", "QUEUES", "RUNNING", "TASKS", "LONGEST SINCE", "SEEN"]
LEFT = ["HOST", "VERSION", "STATE", "QUEUES", "TASKS", "LONGEST SINCE", "SEEN"]


@click.command(cls=Command, example="forebay workers --queue emails")
@click.option("--queue", help="Only those that work on this queue.", shell_complete=known_queues)
@asks_server
def workers(queue: str | None, server: str | None, as_json: bool) -> int:
    """List the workers that tell of themselves: what they run, and when they were last heard of."""
    with connected(server) as client:
        found = client.workers(queue)
        if queue is not None and not found:
            client.queue(queue)  # says so if there is none, as when its name is mistyped
    if as_json:
        for each in found:
            print_json(_shown(each))
    elif found:
        print_table(HEAD, map(_row, found), left=LEFT)
    else:
        note("no workers" if queue is None else f"no workers on {queue}")
    return DONE if found else NOTHING


def _shown(worker: WorkerInfo) -> dict[str, object]:
    running = [{**msgspec.structs.asdict(each), "id": json_id(each.id)} for each in worker.running]
    return {**msgspec.structs.asdict(worker), "running": running}


def _row(worker: WorkerInfo) -> list[object]:
    longest = min((each.since for each in worker.running), default=None)
    return [
        worker.name,
        worker.host,
        worker.version,
        worker.state,
        ",".join(worker.queues),
        worker.running_count,
        ",".join(dict.fromkeys(each.task for each in worker.running)),
        None if longest is None else shown_second(longest),
        shown_second(worker.seen_at),
    ]
