"""Job data: dedup identity, ties, remembered pushes, crons."""

from msgspec import Struct

from forebay.core.bounds import NEVER
from forebay.core.state.attributes import PLAIN, Attributes, Cleanup
from forebay.core.words import DROP


class Identity(Struct, frozen=True, gc=False):
    """Dedup identity of a message: unique key, custom id, transaction id."""

    unique_key: str | None = None
    dedup: str = DROP
    window_ms: int = 0
    """Window of debounce and throttle."""
    max_ms: int = 0
    """Longest total delay of a debounced message; 0 is unlimited."""
    job_id: str | None = None
    """Custom id, unique while the message is kept."""
    transaction_id: str | None = None
    """Unique in its partition for the queue's dedup_window_ms."""
    keys: tuple[bytes, ...] = ()
    """Packed keys that get its payload if it dies."""
    retakes: bool = False
    """Take the custom id from a message that was withdrawn: cancelled, expired, evicted or discarded."""

    @property
    def is_key_alone(self) -> bool:
        """Whether it is nothing but a unique key with dedup drop: the usual case."""
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
    """What must happen when a message or its ttl ends."""

    unique_key: str = ""
    """The unique key that it holds until it ends."""
    keys: tuple[bytes, ...] = ()
    """Packed keys that get its payload if it dies."""
    payload: bytes = b""
    """Its payload, if there are such keys."""
    expires_at: int = 0
    """When its ttl ends, if it has one; of a completed one, when it is dropped."""
    cleanup: Cleanup | None = None
    """When it is dropped after its end, if its queue does not decide that."""
    completed_at: int = 0
    """When it was completed, if it is kept for a while since."""


class RememberedPush(Struct, frozen=True, gc=False, array_like=True):
    """The answer of a push, remembered so that a repeat gets the same."""

    until: int
    ids: tuple[tuple[int, int], ...]
    """(first, count) of its ids."""
    durability: str
    then: int | None = None
    """Id of the completion callback, if there is one."""
    throttled: tuple[int, ...] = ()
    """Indexes of throttled jobs."""


class Cron(Struct, eq=False, kw_only=True):
    """A cron job."""

    name: str
    """Unique in its tenant."""
    tenant: str
    queue: str
    payload: bytes
    schedule: str = ""
    """Calendar fields; empty if it has an interval."""
    zone: str = "UTC"
    """Its time zone."""
    every_ms: int = 0
    """Interval, counted from ``began_at``; 0 if it has a schedule."""
    began_at: int
    partition: str
    lane: bool = False
    attributes: Attributes = PLAIN
    own: Identity | None = None
    """Its unique key, if it has one."""
    limit: int = 0
    """Runs before it is removed; 0 is unlimited."""
    missed: str = "last"
    fired: int = 0
    """Runs so far."""
    last_slot: int = 0
    """The last slot that fired; 0 if none did."""
    skipped: int = 0
    """Slots at which the push was refused."""
    error: str = ""
    """Error of the last refusal."""
    next_at: int = NEVER
    """The next slot."""
