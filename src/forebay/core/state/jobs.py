"""Job data: dedup identity, ties, remembered pushes, crons."""

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.state.attributes import PLAIN, Attributes
from forebay.core.words import DROP


class Identity(Struct, frozen=True, gc=False):
    """What one message has for itself."""

    unique_key: str | None = None
    dedup: str = DROP
    window_ms: int = 0
    """Of debounce and throttle: the while."""
    max_ms: int = 0
    """Of debounce: how long a message may be put off in all; 0 is for ever."""
    job_id: str | None = None
    """Names the message as long as it is kept; pushed again, it is the same."""
    transaction_id: str | None = None
    """Known in its partition for the queue's dedup_window_ms; pushed again, it is the same."""
    keys: tuple[bytes, ...] = ()
    """Keys, packed, that get its payload if it dies."""

    @property
    def is_key_alone(self) -> bool:
        """Whether it has nothing but a unique key that drops what comes later: the usual case."""
        return (
            self.dedup == DROP
            and self.unique_key is not None
            and self.job_id is None
            and self.transaction_id is None
            and not self.keys
            and not self.window_ms
            and not self.max_ms
        )


class Tie(Struct, frozen=True, gc=False, array_like=True):
    """What has to be done when a message ends, or its time to live."""

    unique_key: str = ""
    """The key it holds and then frees."""
    keys: tuple[bytes, ...] = ()
    """Keys, packed, that get its payload if it dies."""
    payload: bytes = b""
    """Kept here if there are such keys."""
    expires_at: int = 0
    """When its time to live ends, if it has one."""


class RememberedPush(Struct, frozen=True, gc=False, array_like=True):
    """What a push answered that must not be repeated for a while."""

    until: int
    ids: tuple[tuple[int, int], ...]
    """(first, count) of the ids it gave out."""
    durability: str
    then: int | None = None
    """The id of the message that waits for them, if there is one."""
    throttled: tuple[int, ...] = ()
    """Places of those that came too soon."""


class Cron(Struct, eq=False, kw_only=True):
    """A message that is pushed again and again."""

    name: str
    """Unique among those of its tenant."""
    tenant: str
    queue: str
    payload: bytes
    schedule: str = ""
    """Fields of a calendar, or empty if it comes every so often."""
    zone: str = "UTC"
    """Whose calendar it is."""
    every_ms: int = 0
    """How often it comes, if not by a calendar; counted from ``began_at``."""
    began_at: int
    partition: str
    lane: bool = False
    attributes: Attributes = PLAIN
    own: Identity | None = None
    """Its unique key, if it has one."""
    limit: int = 0
    """How often it comes before it is removed; 0 is for ever."""
    missed: str = "last"
    fired: int = 0
    """How often it came."""
    last_slot: int = 0
    """The slot it came at last; 0 if it never did."""
    skipped: int = 0
    """Slots at which its queue took no message."""
    error: str = ""
    """Why, the last time."""
    next_at: int = NEVER
    """The next slot."""
