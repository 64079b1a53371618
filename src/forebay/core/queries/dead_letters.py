"""List dead letters."""

from collections.abc import Iterator

from forebay.core.api.queries import DeadFound, DeadLetter, ListDead
from forebay.core.bounds import DEAD_SHOWN_MAX, Limits, check_name, check_range
from forebay.core.log import log as logs
from forebay.core.log.numbers import id_at
from forebay.core.state import Dead, Queue, Track, priority_of


def list_dead(limits: Limits, queue: Queue, command: ListDead) -> DeadFound:
    """Return dead letters of a group with their errors; fewer if they are large."""
    check_range("limit", command.count, 1, DEAD_SHOWN_MAX)
    check_range("skip", command.skip, 0, 1 << 62)
    check_name("group", command.group)
    group = queue.groups.get(command.group)
    tracks = group.tracks.values() if group is not None else ()
    found = DeadFound(queue, command.group, sum(track.dead_messages for track in tracks), [])
    skip, left, bytes_left = command.skip, command.count, limits.read_bytes_max
    for track in tracks:
        if skip >= track.dead_messages:
            skip -= track.dead_messages
            continue
        for first, count in track.dead:
            passed = min(skip, count)
            skip -= passed
            taken = min(count - passed, left)
            for letter in _letters(track, track.letters[first], first + passed, taken):
                if bytes_left <= 0:
                    return found
                found.deliveries.append(letter)
                left -= letter.count
                bytes_left -= logs.piece_bytes(letter)
            if not left:
                return found
    return found


def _letters(track: Track, run: Dead, first: int, count: int) -> Iterator[DeadLetter]:
    log = track.partition.log
    for offset in range(first, first + count):
        (piece,) = logs.pieces(log, offset, 1, logs.find(log, offset))
        origin = logs.attributes_at(log, offset).origin
        message, created_at = origin or (id_at(track.partition, piece.offset), piece.created_at)
        yield DeadLetter(
            piece.segment,
            piece.start,
            piece.count,
            created_at,
            track.partition.name,
            message,
            run.deliveries,
            run.failures,
            run.dead_at,
            run.error,
            priority_of(run.level),
            run.leased_at,
            run.type,
        )
