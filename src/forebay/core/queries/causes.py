"""Why messages are dead: select dead letters by their errors, and count those of one cause."""

import re
from functools import lru_cache

from forebay.core.api.causes import Cause, CausesFound, GetCauses
from forebay.core.api.dead_letters import OfDead
from forebay.core.bounds import ERROR_CHARS_MAX, NEVER, check_name
from forebay.core.errors import Invalid
from forebay.core.log import log as logs
from forebay.core.log.log import Stretch
from forebay.core.log.numbers import id_at
from forebay.core.queries import describe
from forebay.core.state import Dead, Partition, Queue
from forebay.core.structures.spans import overlapping

_VARIES = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}[0-9A-Za-z]*"
    r"|(?<![A-Za-z])[A-Za-z]*+\d[0-9A-Za-z]*"  # once, from its start: in linear time
)
"""UUIDs, and words with a digit: numbers, ids, hashes, addresses. They differ between errors of one cause."""
ANY = "*"
"""Stands for any text, in patterns of errors."""
PATTERN_CHARS_MAX = 200
"""Characters of an error that tell its cause."""
CHARS_PER_STEP = 25
"""Characters of an error that take as long to read as a stretch to count."""


@lru_cache(maxsize=4_096)
def pattern_of(error: str) -> str:
    """Return what errors of one cause have in common: their first line, with ``*`` for what varies.

    >>> pattern_of("KeyError: 'user-17'"), pattern_of("timed out after 3.5 s\\nat line 7")
    ("KeyError: 'user-*'", 'timed out after *.* s')
    >>> pattern_of("no /tmp/ab12cd of 5d41402abc4b2a76b9719d911017c592")
    'no /tmp/* of *'
    """
    line = error.partition("\n")[0]
    cut = ANY if len(line) > PATTERN_CHARS_MAX else ""
    return _VARIES.sub(ANY, line[:PATTERN_CHARS_MAX]) + cut


def parts_of(pattern: str) -> list[str]:
    """Return the texts that an error must have in this order; raise if there is none, or it is too long."""
    if len(pattern) > ERROR_CHARS_MAX or not pattern.strip(ANY):
        raise Invalid("error", f"1 to {ERROR_CHARS_MAX} characters, and not only {ANY}")
    return [each for each in pattern.split(ANY) if each]


def fits(parts: list[str], error: str) -> bool:
    """Return whether an error has these texts, in their order.

    >>> [fits(parts_of(each), "KeyError: 'user-17'") for each in ("user", "'user-*'", "Key*17", "17*Key")]
    [True, True, True, False]
    """
    at = 0
    for part in parts:
        at = error.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


class Selected:
    """Tells which runs of dead letters are selected."""

    def __init__(self, of: OfDead) -> None:
        self._of = of
        self._parts = None if of.error is None else parts_of(of.error)

    def has(self, run: Dead) -> bool:
        of = self._of
        return (
            (of.type is None or of.type == run.type)
            and (of.since is None or of.since <= run.dead_at)
            and (of.before is None or run.dead_at < of.before)
            and (self._parts is None or fits(self._parts, run.error))
        )


def causes(queue: Queue, command: GetCauses) -> CausesFound:
    """Count the dead letters of a group by task, type and pattern of their errors, so much at a time."""
    check_name("group", command.group)
    group = queue.groups.get(command.group)
    found: dict[tuple[str, str, str], Cause] = {}
    left = command.effort
    for partition in describe.partitions_from(queue, command.after):
        track = group.tracks[partition.key] if group is not None else None
        if track is None:
            continue
        at = command.after[1] if command.after is not None and command.after[0] == partition.key else 0
        for first, count in overlapping(track.dead, at, NEVER):
            run = track.letters[first]
            pattern, first = pattern_of(run.error), max(first, at)
            for stretch in logs.stretches(partition.log, first, run.first + count):
                if left <= 0:
                    return CausesFound(list(found.values()), (partition.key, stretch.first))
                left -= 1
                _count(found, partition, run, pattern, stretch)
            left -= min(len(run.error), PATTERN_CHARS_MAX) // CHARS_PER_STEP
    return CausesFound(list(found.values()), None)


def _count(
    found: dict[tuple[str, str, str], Cause], partition: Partition, run: Dead, pattern: str, stretch: Stretch
) -> None:
    task, count = stretch.attributes.task, stretch.end - stretch.first
    known = found.get((task, run.type, pattern))
    if known is None:
        example = id_at(partition, stretch.first)
        found[task, run.type, pattern] = Cause(
            task, run.type, pattern, count, run.dead_at, run.dead_at, example
        )
    else:
        known.count += count
        known.first_at, known.last_at = min(known.first_at, run.dead_at), max(known.last_at, run.dead_at)
