"""A consumer group."""

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.state.limits import Limiter
from forebay.core.state.track import Track


class Group(Struct, eq=False, kw_only=True):
    """A reader of the whole queue, independent of every other group."""

    number: int
    """Names the group in record keys; unique in its queue."""
    name: str
    turn: int = 0
    """*memory* The highest turn of its tracks."""
    active_at: int = 0
    """When it last popped, to a minute."""
    tracks: dict[int, Track]
    """By partition key."""
    ready: list[tuple[int, int, int]]
    """*memory* Heap of (level, turn, partition key) of ready tracks. Only the entry equal to a track's
    ``listed`` is current; others are stale."""
    limits: tuple[Limiter, ...] = ()
    """*memory* Limits on the delivery of all its messages."""
    own_limit: Limiter | None = None
    """*memory* The one of them that no other group shares."""
    byte_limited: bool = False
    """*memory* Whether any of these limits bytes."""
    limited_at: int = NEVER
    """*memory* When pops that these held back are retried."""
    unplanned: dict[int, Track] = {}
    """*memory* Tracks, by partition key, whose schedule is not fully planned yet."""
    planned_in: int = -1
    """*memory* The commit of the shard in which planning last continued."""
