"""Why messages are dead: select dead letters by their errors, and count those of one cause."""

import re
from functools import lru_cache

from forebay.core.api.causes import Cause, CausesFound, GetCauses, join
from forebay.core.api.dead_letters import OfDead
from forebay.core.bounds import check_name
from forebay.core.log import log as logs
from forebay.core.log.numbers import id_at
from forebay.core.queries import describe
from forebay.core.state import Dead, Queue, Track

_VARIES = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b0x[0-9a-fA-F]+|\d+")
"""Ids, addresses and numbers: what differs between errors of one cause."""
ANY = "*"
"""Stands for any text, in patterns of errors."""


@lru_cache(maxsize=4_096)
def pattern_of(error: str) -> str:
    """Return what errors of one cause have in common: their first line, with ``*`` for what varies.

    >>> pattern_of("KeyError: 'user-17'"), pattern_of("timed out after 3.5 s\\nat line 7")
    ("KeyError: 'user-*'", 'timed out after *.* s')
    """
    return _VARIES.sub(ANY, error.partition("\n")[0])


def fits(pattern: str, error: str) -> bool:
    """Return whether an error contains a text, in which ``*`` stands for any.

    >>> [fits(each, "KeyError: 'user-17'") for each in ("user", "'user-*'", "Key*17", "17*Key", "")]
    [True, True, True, False, True]
    """
    at = 0
    for part in pattern.split(ANY):
        at = error.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def is_meant(run: Dead, of: OfDead) -> bool:
    """Return whether a run of dead letters is selected."""
    return (
        (of.error is None or fits(of.error, run.error))
        and (of.type is None or of.type == run.type)
        and (of.since is None or of.since <= run.dead_at)
        and (of.before is None or run.dead_at < of.before)
    )


def causes(queue: Queue, command: GetCauses) -> CausesFound:
    """Count the dead letters of a group by task, type and pattern of their errors, so many runs at a time."""
    check_name("group", command.group)
    group = queue.groups.get(command.group)
    found: dict[tuple[str, str, str], Cause] = {}
    left = command.effort
    for partition in describe.partitions_from(queue, command.after):
        track = group.tracks[partition.key] if group is not None else None
        at = command.after[1] if command.after is not None and command.after[0] == partition.key else 0
        for first, _ in track.dead.since(at) if track is not None else ():
            if not left:
                return CausesFound(list(found.values()), (partition.key, first))
            left -= 1
            assert track is not None
            _count(found, track, track.letters[first])
    return CausesFound(list(found.values()), None)


def _count(found: dict[tuple[str, str, str], Cause], track: Track, run: Dead) -> None:
    pattern = pattern_of(run.error)
    log = track.partition.log
    for stretch in logs.stretches(log, run.first, run.first + run.count):
        task, count = stretch.attributes.task, stretch.end - stretch.first
        known = found.get((task, run.type, pattern))
        if known is None:
            example = id_at(track.partition, stretch.first)
            found[task, run.type, pattern] = Cause(
                task, run.type, pattern, count, run.dead_at, run.dead_at, example
            )
        else:
            join(known, Cause(task, run.type, pattern, count, run.dead_at, run.dead_at, known.example))
