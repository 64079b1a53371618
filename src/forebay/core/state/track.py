"""A track: one group in one partition."""

from typing import TYPE_CHECKING

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.state.limits import Limiter
from forebay.core.state.partition import Partition
from forebay.core.state.schedule import Schedule
from forebay.core.structures.table import Table

if TYPE_CHECKING:
    from forebay.core.state.group import Group
    from forebay.core.state.queue import Queue


BY_ITSELF = -1
LOST = -2
"""Values of ``Dead.unmet`` that count nothing. Stored."""


class Dead(Struct, frozen=True, gc=False):
    """A run of dead letters: messages that failed too often, or that depend on one that did."""

    first: int
    count: int
    deliveries: int
    failures: int
    dead_at: int
    error: str
    level: int
    leased_at: int = 0
    """When its last delivery began; 0 if there was none."""
    unmet: int = BY_ITSELF
    """Dependencies that have not completed, if it died of one: a requeue parks it until they have.
    ``BY_ITSELF`` if it died otherwise; ``LOST`` if one of them can't complete any more."""
    type: str = ""
    """Type of the error, if its consumer told."""


class Track(Struct, eq=False, kw_only=True):
    """Position and delivery state of a group in a partition."""

    queue: "Queue"
    group: "Group"
    partition: Partition
    key: bytes
    """*memory* The key of its record; empty if its queue is not stored."""
    cursor: int
    """Every in-line message below it was delivered, moved, or has an outcome."""
    turn: int = 0
    """Turn in which the group last served this partition: the least recently served goes first."""
    planned: int = NEVER
    """Out-of-line messages below it are in the schedule. ``NEVER`` if all are; a group that was created
    behind many is planned step by step."""
    skips: Table
    """(first, count): in line, at or past the cursor, and no longer fresh. Each is a record of its own."""
    schedule: Schedule
    """Delayed, prioritised and retried runs. Each run is a record of its own."""
    dead: Table
    """(first, count) of dead letters. Each run is a record of its own."""
    letters: dict[int, Dead]
    """By first offset."""
    outcomes: Table
    """(first, count, outcome, at) of messages settled otherwise than by an ack. Each is a record of its
    own."""
    completed_from: int = 0
    """*memory* All that is completed and not dropped is at or past it."""
    ended: list[int]
    """*memory* Messages in ``outcomes``, by outcome."""
    dead_messages: int = 0
    """*memory* Messages in ``dead``."""
    aside: int = 0
    """*memory* Messages at or past the cursor that are not fresh."""
    unplanned: int = 0
    """*memory* Messages that are not in line, at or past ``planned``."""
    due_at: int = NEVER
    """*memory* When the shard checks its schedule next."""
    position: int = 0
    """*memory* Segment of the cursor (``Log.dropped`` included); a hint, checked when used."""
    leased: int = 0
    """*memory* Messages in live leases."""
    singles: dict[int, int]
    """*memory* Offset to lease name, for leased runs of one message."""
    spans: list[tuple[int, int, int]]
    """*memory* (first, count, lease name) of longer leased runs, sorted."""
    limits: tuple[Limiter, ...] = ()
    """*memory* All limits on its delivery."""
    own_limit: Limiter | None = None
    """*memory* The one of them that only it has."""
    listed: tuple[int, int] | None = None
    """*memory* Level and turn under which the group's ready heap holds it."""
    dirty: bool = False
    """*memory* Changed since the last seal."""


def fresh_count(track: Track) -> int:
    """Count the fresh messages."""
    return track.partition.log.end - track.cursor - track.aside
