"""``forebay pop``, ``ack`` and ``nack``: lease messages, and say what became of them."""

import sys

import click
import msgspec

from forebay.cli.commands import Command, about_queue, asks_server, connected, of_group
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import json_id, note, one_line, print_json, print_settled
from forebay.client.types import Message


class Popped(msgspec.Struct):
    """A message as ``--json`` prints it; its payload stays as it was written."""

    id: int | str
    queue: str
    partition: str
    offset: int
    payload: msgspec.Raw
    created_at: int
    failures: int
    priority: int
    lease: str
    expires_at: int
    headers: dict[str, str]
    tags: tuple[str, ...]


@click.command(cls=Command, example="forebay pop emails --count 10 --wait-ms 5000")
@about_queue
@click.option("--count", type=click.IntRange(min=1), default=1, help="At most this many (default 1).")
@click.option(
    "--wait-ms", type=click.IntRange(min=0), default=0, help="How long to wait for the first (default 0)."
)
@of_group
@click.option("--partition", help="Only from this partition.")
@click.option(
    "--lease-ms", type=click.IntRange(min=1), help="How long they are leased (default: the queue's)."
)
@click.option("--ack", is_flag=True, help="Ack them once they are printed.")
@asks_server
def pop(
    queue: str,
    count: int,
    wait_ms: int,
    group: str,
    partition: str | None,
    lease_ms: int | None,
    ack: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Lease messages and print them. Ack the lease when they are done, or pop with --ack."""
    with connected(server) as client:
        batch = client.pop(
            queue,
            count,
            wait_ms=wait_ms,
            group=group,
            partition=partition,
            lease_ms=lease_ms,
            type=msgspec.Raw,
        )
        if not batch:
            if not as_json:
                note(f"nothing to pop from {queue}")
            return NOTHING
        for message in batch:
            if as_json:
                print_json(_popped(message))
            else:
                print(f"{message.id}\t{one_line(message.payload)}")
        sys.stdout.flush()
        if ack:
            client.ack(batch)
        elif not as_json:
            note(f"leased until settled or out of time; done: forebay ack {batch.lease}")
    return DONE


def _popped(message: Message) -> Popped:
    return Popped(
        json_id(message.id),
        message.queue,
        message.partition,
        message.offset,
        message.payload,
        message.created_at,
        message.failures,
        message.priority,
        message.lease,
        message.expires_at,
        message.headers,
        message.tags,
    )


@click.command(cls=Command, example="forebay ack LEASE    or    forebay ack --id 274877906944")
@click.argument("lease", metavar="[LEASE]", required=False)
@click.option("--id", "ids", multiple=True, metavar="ID", help="A message id; may be repeated.")
@click.option("--group", help="The group they were popped for (default: default).")
@asks_server
def ack(lease: str | None, ids: tuple[str, ...], group: str | None, server: str | None, as_json: bool) -> int:
    """Say that messages are done: a lease, or some by their ids."""
    if not lease and not ids:
        raise click.ClickException("say what to ack: a LEASE, or --id ID")
    with connected(server) as client:
        settled = client.ack(ids or None, lease=lease, group=group)
    return print_settled(settled, "acked", "not leased", as_json)


@click.command(cls=Command, example="forebay nack LEASE --error 'no such address' --delay-ms 60000")
@click.argument("lease", metavar="[LEASE]", required=False)
@click.option("--id", "ids", multiple=True, metavar="ID", help="A message id; may be repeated.")
@click.option("--group", help="The group they were popped for (default: default).")
@click.option("--error", default="", help="Why; it is kept and shown.")
@click.option(
    "--delay-ms", type=click.IntRange(min=0), help="When they come back (default: after their backoff)."
)
@asks_server
def nack(
    lease: str | None,
    ids: tuple[str, ...],
    group: str | None,
    error: str,
    delay_ms: int | None,
    server: str | None,
    as_json: bool,
) -> int:
    """Say that messages failed: they come back, or are dead."""
    if not lease and not ids:
        raise click.ClickException("say what to nack: a LEASE, or --id ID")
    with connected(server) as client:
        settled = client.nack(ids or None, lease=lease, group=group, error=error, delay_ms=delay_ms)
    return print_settled(settled, "nacked", "not leased", as_json)
