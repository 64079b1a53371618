"""``forebay tail``, ``top`` and ``stats``: observe a server without consuming from it."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from forebay.cli.commands import Command, about_queue, asks_server, connected
from forebay.cli.errors import DONE
from forebay.cli.output import (
    age_s,
    clean,
    json_id,
    one_line,
    print_fields,
    print_json,
    print_table,
    rich_table,
    shown_age,
    shown_time,
)
from forebay.cli.queues import GROUP_HEAD, flat_group, group_rows, readers
from forebay.client.types import Counts, QueueSummary, Record
from forebay.core.errors import Conflict, NotFound

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient

POLL_S = 0.25
"""Poll interval of tail when it has printed everything."""
QUEUES_SHOWN = 40
"""Most queues shown by top: those with most to do."""


# tail


@click.command(cls=Command, example="forebay tail emails --from-start --count 10")
@about_queue
@click.option("--from-start", is_flag=True, help="From the oldest message that is kept, not from now on.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many.")
@click.option("--partition", help="Only this partition.")
@asks_server
def tail(
    queue: str,
    from_start: bool,
    count: int | None,
    partition: str | None,
    server: str | None,
    as_json: bool,
) -> int:
    """Print messages as they are pushed, without a lease. It goes on until Ctrl-C."""
    with suppress(KeyboardInterrupt), connected(server) as client:
        for number, record in enumerate(_follow(client, queue, partition, from_start), 1):
            if as_json:
                print_json(_shown(record, queue))
            else:
                where = f"{clean(record.partition)}\t{record.offset}"
                print(f"{shown_time(record.created_at)}\t{where}\t{one_line(record.payload)}")
            if number == count:
                break
    return DONE


def _shown(record: Record, queue: str) -> dict[str, object]:
    return {
        "id": json_id(record.id),
        "queue": queue,
        "partition": record.partition,
        "offset": record.offset,
        "payload": record.payload,
        "created_at": record.created_at,
        "headers": record.headers,
        "tags": record.tags,
    }


def _follow(client: "SyncClient", queue: str, partition: str | None, from_start: bool) -> Iterator[Record]:
    """Yield the log of each partition as it grows; later partitions from their beginning."""
    places: dict[str, int] = {}
    begun = from_start
    while True:
        found = client.offsets(queue)
        for name, log in found.items():
            if partition not in (None, name):
                continue
            at = places.get(name, log.first if begun else log.end)
            if at > log.end:  # it was deleted and made again
                at = log.first
            while at < log.end:
                stretch = client.read(queue, offset=at, partition=name, type=msgspec.Raw)
                yield from stretch.records
                at = stretch.next
            places[name] = at
        begun = True
        sys.stdout.flush()
        time.sleep(POLL_S)


# top


class Sample(msgspec.Struct, frozen=True):
    """A queue at an instant: its messages by group, and how many were ever pushed."""

    summary: QueueSummary
    pushed: int
    at_s: float

    def rows(self, before: "Sample | None", now: int) -> Iterator[dict[str, object]]:
        """Yield a row for each group of a queue; with rates if there is an earlier sample of it."""
        left_before = {name: left(counts) for name, counts, _ in readers(before.summary)} if before else {}
        for name, counts, oldest_at in readers(self.summary):
            pushed_s = settled_s = None
            if before is not None and self.at_s > before.at_s:
                seconds = self.at_s - before.at_s
                pushed = self.pushed - before.pushed
                pushed_s = max(pushed / seconds, 0.0)
                if name in left_before:
                    settled_s = max((pushed - (left(counts) - left_before[name])) / seconds, 0.0)
            yield {
                "queue": self.summary.queue,
                "group": name,
                "waiting": counts.waiting,
                "active": counts.active,
                "delayed": counts.delayed,
                "dead": counts.dead,
                "oldest_s": age_s(oldest_at, now),
                "pushed_s": pushed_s,
                "settled_s": settled_s,
                "paused": self.summary.paused,
            }


def left(counts: Counts) -> int:
    """Return how many messages are not settled yet."""
    return counts.waiting + counts.delayed + counts.parked + counts.active


HEAD = ["QUEUE", "GROUP", "WAITING", "ACTIVE", "DELAYED", "DEAD", "OLDEST"]
HEAD += ["PUSHED/S", "SETTLED/S", "PAUSED"]


@click.command(cls=Command, example="forebay top --interval 1")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval", type=click.FloatRange(min=0.05), default=2.0, help="Seconds between frames (default 2)."
)
@asks_server
def top(once: bool, interval: float, server: str | None, as_json: bool) -> int:
    """Show how full the queues are, and how fast they go. It goes on until Ctrl-C."""
    with suppress(KeyboardInterrupt), connected(server) as client:
        frames = _frames(client, interval)
        if once or as_json or not sys.stdout.isatty():
            for rows in frames:
                _print_frame(rows, as_json)
                if once:
                    break
        else:
            _show_live(frames)
    return DONE


def _frames(client: "SyncClient", interval_s: float) -> Iterator[list[dict[str, object]]]:
    """Yield the table, at every interval."""
    before: dict[str, Sample] = {}
    while True:
        samples = _samples(client)
        now = int(time.time() * 1000)
        yield [row for name, each in samples.items() for row in each.rows(before.get(name), now)]
        before = samples
        time.sleep(interval_s)


def _samples(client: "SyncClient") -> dict[str, Sample]:
    """Return the queues with most to do, in that order."""
    found = {}
    for summary in sorted(client.queues(), key=_much)[:QUEUES_SHOWN]:
        try:
            logs = client.offsets(summary.queue)
        except (Conflict, NotFound):  # it is being deleted
            continue
        pushed = sum(log.end for log in logs.values())
        found[summary.queue] = Sample(summary, pushed, time.monotonic())
    return found


def _much(summary: QueueSummary) -> tuple[int, str]:
    to_do = max(each.waiting + each.active + each.delayed for _, each, _ in readers(summary))
    return -to_do, summary.queue


def _print_frame(rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(HEAD, _cells(rows), left=["GROUP"])
    sys.stdout.flush()


def _show_live(frames: Iterator[list[dict[str, object]]]) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for rows in frames:
            is_left = [at < 2 for at in range(len(HEAD))]
            live.update(rich_table(HEAD, _cells(rows), is_left), refresh=True)


def _cells(rows: list[dict[str, object]]) -> list[list[str]]:
    return [[_cell(name, value) for name, value in row.items()] for row in rows]


def _cell(name: str, value: Any) -> str:
    if name == "oldest_s":
        return shown_age(value) or "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bool):
        return "yes" if value else ""
    return "-" if value is None else str(value)


# stats


@click.command(cls=Command, example="forebay stats")
@asks_server
def stats(server: str | None, as_json: bool) -> int:
    """Count the queues, the messages in all of them, and what is left for each group."""
    with connected(server) as client:
        found = client.stats()
    shown: dict[str, object] = {"queues": found.queues}
    counts = msgspec.structs.asdict(found.counts)
    shown |= {name: counts[name] for name in ("waiting", "active", "delayed", "parked", "completed", "dead")}
    now = int(time.time() * 1000)
    if as_json:
        groups = list(map(flat_group, found.groups))
        print_json({**shown, "oldest_at": found.oldest_at, "groups": groups})
        return DONE
    print_fields({**shown, "oldest": shown_age(age_s(found.oldest_at, now))})
    if found.groups:
        print()
        every = [(each.group, each.counts, each.oldest_at) for each in found.groups]
        print_table(GROUP_HEAD, group_rows(every, now))
    return DONE
