"""Failed attempts: what each delivery that failed says of itself, kept beside its messages.

Messages that failed together share one attempt, so a nack of a large lease adds a few notes. A group has its
attempts apart from those of other groups, as it has its dead letters.
"""

import msgspec

from forebay.core.api.queries import Note
from forebay.core.bounds import ATTEMPTS_SHOWN_MAX
from forebay.core.delivery import notes
from forebay.core.delivery.notes import SPAN_MAX, pack_span, span_of
from forebay.core.shard.shard import Shard
from forebay.core.state import Attempt, Group, Partition, Queue, Track
from forebay.core.words import ATTEMPT, NOTE_KINDS

_encode = msgspec.json.Encoder().encode


def kind_of(group: Group) -> int:
    """Return the kind of notes that the attempts of a group are."""
    return ATTEMPT + NOTE_KINDS * group.number


def keep(shard: Shard, track: Track, first: int, count: int, attempt: Attempt, now: int) -> None:
    """Keep an attempt of messages that failed together."""
    end = first + count
    about = [
        (track.partition.key, pack_span(low, min(end - low, SPAN_MAX))) for low in range(first, end, SPAN_MAX)
    ]
    payloads = [_encode(attempt)] * len(about)
    notes.add(shard, track.queue, kind_of(track.group), about, payloads, now)


def of_message(queue: Queue, group: Group, partition: Partition, offset: int, bytes_max: int) -> list[Note]:
    """Return the newest attempts of a message, oldest first."""
    mine = queue.notes.get(kind_of(group))
    table = mine.by_message.get(partition.key) if mine is not None else None
    if mine is None or table is None:
        return []
    serials: list[int] = []
    for packed, serial in table.since(pack_span(max(offset - SPAN_MAX + 1, 0), 1)):
        first, count = span_of(packed)
        if first > offset:
            break
        if first + count > offset:
            serials.append(serial)
    return notes.newest(mine, sorted(serials)[-ATTEMPTS_SHOWN_MAX:], bytes_max)
