"""Which segment bodies a reply still needs, and what to read ahead."""

from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from forebay.core.api.commands import Delivery, Popped
from forebay.core.api.queries import ChildrenFound, DeadFound, LogSlice, NotesFound, ShownAll
from forebay.core.log import log as logs
from forebay.core.state import Queue, Segment, segment as state_segment

AHEAD_SEGMENTS = 64
"""Segments checked ahead of a cursor."""


def cut_log(found: LogSlice) -> LogSlice:
    """Cut a read at the first message whose body is missing."""
    good = list(takewhile(lambda run: run.segment.present, found.runs))
    return replace(found, runs=good, next=good[-1].offset + good[-1].count if good else found.runs[0].offset)


def lacking(popped: Popped) -> list[Delivery]:
    """Return deliveries whose bodies are missing and, in strict order, those behind them."""
    held_up: set[str] = set()
    found: list[Delivery] = []
    for each in popped.deliveries:
        if not each.segment.present or each.partition in held_up:
            found.append(each)
            if popped.queue.ordered:
                held_up.add(each.partition)
    return found


class Absent(NamedTuple):
    """A segment whose body is not in memory."""

    queue: Queue
    log: state_segment.Log
    segment: Segment
    passing: bool = False
    """Whether its body need not be cached."""


Payloads = Popped | LogSlice | DeadFound | ShownAll | NotesFound | ChildrenFound
"""Replies that carry payloads."""


def absent(reply: Payloads) -> list[Absent]:
    """Return the segments whose bodies must be read before a reply can be encoded."""
    if isinstance(reply, ChildrenFound):
        return absent(reply.shown) + [each for notes in reply.results for each in absent(notes)]
    if isinstance(reply, NotesFound):
        notes = [each for kind in reply.notes for each in kind]
        return [Absent(reply.queue, each.log, each.segment) for each in notes if not each.segment.present]
    if isinstance(reply, ShownAll):
        return [
            Absent(each.queue, each.queue.partitions[each.partition].log, each.segment)
            for each in reply.deliveries
            if not each.segment.present
        ]
    queue = reply.queue
    if isinstance(reply, LogSlice):
        if not reply.runs:
            return []  # nor need its partition be there any more
        log = queue.partitions[reply.partition].log
        missing = [run.segment for run in reply.runs if not run.segment.present]
        return [Absent(queue, log, segment, reply.passing) for segment in missing]
    return [
        Absent(queue, queue.partitions[each.partition].log, each.segment)
        for each in reply.deliveries
        if not each.segment.present
    ]


def ahead(reply: Popped | LogSlice, size: int) -> list[Absent]:
    """Return segments to read ahead: those behind a pop or read whose bodies are not in memory.

    None while the first half of ``size`` bytes is in memory; else up to all of them, so that read-ahead works
    in large steps. It is skipped in the middle of a segment: checking 64 small ones took 46 µs per pop.
    """
    parts = reply.deliveries if isinstance(reply, Popped) else reply.runs
    if not parts or 0 < parts[-1].start < parts[-1].segment.count - parts[-1].count:
        return []
    name = reply.partition if isinstance(reply, LogSlice) else reply.deliveries[-1].partition
    log = reply.queue.partitions[name].log
    position = logs.find(log, parts[-1].offset) + 1
    found: list[Absent] = []
    passed = 0
    for segment in islice(log.segments, position, position + AHEAD_SEGMENTS):
        if not segment.present:
            found.append(Absent(reply.queue, log, segment))
        passed += segment.size
        if passed >= size or (not found and passed >= size // 2):
            break
    return found
