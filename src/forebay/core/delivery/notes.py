"""Notes kept beside a message: result, log lines, partial results, progress, failed attempts.

Notes follow the group ``default``, but for attempts: each group has its own (``attempts``). A queue keeps the
newest notes of each kind, bounded by count, bytes and age, and none for much longer than the message itself,
except for results: they have an age of their own. Results that other messages waited for are a kind for
itself, as those messages need them: results that nothing waits for can't push them out.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from forebay.core import words
from forebay.core.api.commands import Settle
from forebay.core.api.queries import Note
from forebay.core.bounds import (
    ATTEMPTS_MAX,
    AWAITED_BYTES_MAX,
    AWAITED_MAX,
    ERROR_CHARS_MAX,
    NEVER,
    NOTES_BYTES_MAX,
    NOTES_MAX,
    NOTES_MS_MAX,
    PROGRESS_MAX,
    RESULTS_MAX,
    Limits,
)
from forebay.core.errors import Conflict, Invalid
from forebay.core.ids import Range
from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.shard.addresses import NOT_LEASED, Located, first_offset, require
from forebay.core.shard.shard import Shard
from forebay.core.state import Lease, Log, Notes, Partition, Progress, Queue
from forebay.core.structures.table import Table
from forebay.core.tracks.leased import find
from forebay.core.words import ATTEMPT, AWAITED, DEFAULT, NOTE_KINDS, PROGRESSED, RESULT

SHOWN_MAX = 1_000
"""Notes of a message per reply: the newest."""
SPAN_BITS = 10
SPAN_MAX = 1 << SPAN_BITS
"""Messages that one attempt can be about. A look at one message searches that far before it."""


def pack_span(first: int, count: int) -> int:
    """Return the messages of an attempt as one number: they sort by the first.

    >>> span_of(pack_span(5, 1)), span_of(pack_span(5, SPAN_MAX))
    ((5, 1), (5, 1024))
    """
    return first << SPAN_BITS | count - 1


def span_of(packed: int) -> tuple[int, int]:
    """Return the first offset and the count of a packed span."""
    return packed >> SPAN_BITS, (packed & SPAN_MAX - 1) + 1


def new_notes(kind: int) -> Notes:
    return Notes(kind=kind, log=Log(0), about=Table("qqq"), by_message={})


def check_note(limits: Limits, payload: bytes) -> None:
    if len(payload) > limits.payload_bytes_max:
        raise Invalid("payload", f"at most {limits.payload_bytes_max} bytes; this has {len(payload)}")


def add(
    shard: Shard,
    queue: Queue,
    kind: int,
    about: Sequence[tuple[int, int]],
    payloads: list[bytes],
    now: int,
) -> None:
    """Add notes to messages, given by partition key and offset."""
    notes = queue.notes.get(kind)
    if notes is None:
        notes = queue.notes[kind] = new_notes(kind)
    log = notes.log
    if log.forming is None:
        shard.changes.touch()
        shard.changes.notes.append((queue, notes))
    lengths = list(map(len, payloads))
    first = logs.append(log, payloads, lengths, sum(lengths), now)
    enter(notes, first, about)
    _forget_surplus(shard, queue, notes)
    shard.changes.sync_for(queue)
    shard.timers.plan_sweep(queue, now)


def about(notes: Notes, partition: int, first: int, end: int) -> set[int]:
    """Return the messages of [first, end) that have notes of a kind."""
    table = notes.by_message.get(partition)
    found = table.since(first) if table is not None else ()
    return {offset for offset, _ in takewhile(lambda row: row[0] < end, found)}


def has_results(queue: Queue, partition: int) -> bool:
    """Whether results of a partition's messages are kept."""
    return any(kind in queue.notes and partition in queue.notes[kind].by_message for kind in _RESULTS)


def enter(notes: Notes, first: int, about: Sequence[tuple[int, int]]) -> None:
    """Index notes from ``first`` on by their messages."""
    for serial, (partition, offset) in enumerate(about, first):
        notes.about.add((serial, partition, offset))
        mine = notes.by_message.get(partition)
        if mine is None:
            mine = notes.by_message[partition] = Table("qq")
        mine.add((offset, serial))


def of_message(queue: Queue, kind: int, partition: Partition, offset: int, bytes_max: int) -> list[Note]:
    """Return the notes of a message, oldest first; only the newest if they exceed one reply."""
    found: list[Note] = []
    for each in _RESULTS if kind == RESULT else (kind,):
        notes = queue.notes.get(each)
        if notes is not None and (serials := list(_serials(notes, partition.key, offset))):
            left = bytes_max - sum(map(logs.piece_bytes, found))
            if left > 0:
                found = newest(notes, serials[-SHOWN_MAX:], left) + found
    return found[-SHOWN_MAX:]


_RESULTS = (AWAITED, RESULT)
"""Kinds of results, those that came last first: what was once waited for has no other results any more."""


def _serials(notes: Notes, partition: int, offset: int) -> Iterator[int]:
    """Yield the places of the notes about a message, oldest first."""
    table = notes.by_message.get(partition)
    for about, serial in table.since(offset) if table is not None else ():
        if about != offset:
            return
        yield serial


def newest(notes: Notes, serials: Sequence[int], bytes_max: int) -> list[Note]:
    """Return the newest of some notes, oldest first, as far as they fit one reply."""
    log = notes.log
    found: list[Note] = []
    for serial in reversed(serials):
        segment = log.segments[logs.find(log, serial)]
        note = Note(segment, serial - segment.base, 1, segment.created_at, log)
        bytes_max -= logs.piece_bytes(note)
        if bytes_max < 0 and found:
            break
        found.append(note)
    return found[::-1]


# Forgetting.


def _forget_surplus(shard: Shard, queue: Queue, notes: Notes) -> None:
    """Drop the oldest notes beyond the limits of a queue."""
    log = notes.log
    count_max, bytes_max = _most(queue, notes)
    surplus, size = log.end - log.first - count_max, log.size - bytes_max
    before = log.first
    for segment in log.segments:
        if surplus < segment.count and size <= 0:
            break  # they go in whole segments, and no more than have to
        before = segment.end
        surplus -= segment.count
        size -= segment.size
    if before > log.first:
        forget(shard, queue, notes, before)


def _most(queue: Queue, notes: Notes) -> tuple[int, int]:
    """Return how many notes of a kind a queue keeps, and bytes of them."""
    if _is_attempts(notes):
        return ATTEMPTS_MAX, NOTES_BYTES_MAX
    match notes.kind:
        case words.RESULT:
            return RESULTS_MAX, NOTES_BYTES_MAX
        case words.AWAITED:
            return AWAITED_MAX, AWAITED_BYTES_MAX if queue.stored else NOTES_BYTES_MAX
    return NOTES_MAX, NOTES_BYTES_MAX


def _own_ms(queue: Queue, notes: Notes) -> int:
    """Return for how long notes are kept, whether or not their messages are."""
    match notes.kind:
        case words.RESULT:
            return queue.options.result_retention_ms
        case words.AWAITED:
            return NOTES_MS_MAX  # those that waited may be late by days, as when no worker runs on a weekend
    return 0


def _is_attempts(notes: Notes) -> bool:
    return notes.kind % NOTE_KINDS == ATTEMPT


def sweep_notes(shard: Shard, queue: Queue, now: int) -> None:
    """Drop notes that are too old, or whose messages or groups are no longer kept."""
    kept = {partition.key: partition for partition in queue.partitions.values()}
    groups = {group.number for group in queue.groups.values()}
    for kind, notes in list(queue.notes.items()):
        log = notes.log
        if _is_attempts(notes) and kind // NOTE_KINDS not in groups:
            forget(shard, queue, notes, log.end)
            if not log.segments:
                del queue.notes[kind]
            continue
        before = log.first
        own_ms = _own_ms(queue, notes)
        for segment in log.segments:
            age_ms = now - segment.created_at
            if age_ms < own_ms or (
                age_ms < NOTES_MS_MAX and _is_wanted(notes, segment.base, segment.end, kept)
            ):
                break
            before = segment.end
        if before > log.first:
            forget(shard, queue, notes, before)
    for partition in queue.partitions.values():
        gone = [offset for offset in partition.progress if not _is_kept(partition, offset)]
        for offset in gone:
            _forget_progress(shard, queue, partition, offset)


def too_old_at(queue: Queue, notes: Notes, now: int) -> int:
    """Return when the oldest notes go by their age alone."""
    if not notes.log.segments:
        return NEVER
    created_at = notes.log.segments[0].created_at
    own_ms = _own_ms(queue, notes)
    return created_at + (own_ms if now - created_at < own_ms else NOTES_MS_MAX)


def _is_wanted(notes: Notes, first: int, end: int, kept: dict[int, Partition]) -> bool:
    """Whether any of the notes [first, end) belongs to a message that is still kept."""
    for serial, key, offset in notes.about.since(first):
        if serial >= end:
            return False
        partition = kept.get(key)
        if partition is None:
            continue
        if _is_attempts(notes):
            low, count = span_of(offset)
            if logs.has_any(partition.log, low, low + count):
                return True
        elif _is_kept(partition, offset):
            return True
    return False


def _is_kept(partition: Partition, offset: int) -> bool:
    """Whether a message or its successor is still kept."""
    row = partition.successors.upto(offset)
    return logs.has(partition.log, offset) or (row is not None and row[0] == offset)


def forget(shard: Shard, queue: Queue, notes: Notes, before: int) -> None:
    """Drop the segments of notes that end at or below ``before``, unless they are still forming."""
    gone = logs.trim(notes.log, before)
    for segment in gone:
        if queue.stored:
            shard.changes.deletes.append(keyspace.notes_key(queue.prefix, notes.kind, segment.base))
            shard.changes.deletes.append(keyspace.body_key(queue.prefix, segment.body_name))
        shard.changes.touch()
    while notes.about and notes.about.first() < notes.log.first:
        serial, partition, offset = notes.about.head()
        notes.about.remove(serial, partition)
        mine = notes.by_message[partition]
        mine.remove(offset, serial)
        if not mine:
            del notes.by_message[partition]


# Progress.


def leased_now(shard: Shard, tenant: str, message: int, token: Lease | None, owner: int) -> Located:
    """Locate a message that the group ``default`` has leased, under the given lease if any."""
    where = require(shard, tenant, message)
    command = Settle(tenant, ids=[message], group=DEFAULT, owner=owner)
    if not any(find(shard, command, token, Range(message, 1))):
        raise Conflict(f"it is {NOT_LEASED}")
    return where


def tell_progress(shard: Shard, where: Located, percent: int, message: str, now: int) -> None:
    """Store the progress of a message."""
    queue, partition, offset = where.place.queue, where.place.partition, first_offset(shard, where)
    told = Progress(percent, message[:ERROR_CHARS_MAX], now)
    partition.progress.pop(offset, None)
    partition.progress[offset] = told
    key = keyspace.progress_key(queue.prefix, partition.key, offset)
    shard.changes.put_row(queue, key, codec.pack_progress(told))
    shard.changes.sync_for(queue)
    shard.changes.change_log.note(PROGRESSED, queue, "", partition, where.first, 1)
    if len(partition.progress) > PROGRESS_MAX:
        _forget_progress(shard, queue, partition, next(iter(partition.progress)))


def _forget_progress(shard: Shard, queue: Queue, partition: Partition, offset: int) -> None:
    del partition.progress[offset]
    shard.changes.put_row(queue, keyspace.progress_key(queue.prefix, partition.key, offset), None)
