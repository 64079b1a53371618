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
    """When it was last seen popping, to a minute."""
    tracks: dict[int, Track]
    """By partition key."""
    ready: list[tuple[int, int, int]]
    """*memory* Heap of (level, turn, partition key): tracks that may have something to deliver. Of several of
    one track, that counts which is ``listed``."""
    limits: tuple[Limiter, ...] = ()
    """*memory* What limits how all its messages are delivered."""
    own_limit: Limiter | None = None
    """*memory* That of them which is its own."""
    byte_limited: bool = False
    """*memory* Whether any of these limits bytes."""
    limited_at: int = NEVER
    """*memory* When pops that these held back are tried again."""
    unplanned: dict[int, Track] = {}
    """*memory* Tracks, by partition key, whose schedule is still being made from the headers."""
    planned_in: int = -1
    """*memory* The commit of the shard in which that was last gone on with."""
