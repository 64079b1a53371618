"""The data of jobs: what ends with a message, what is known of pushes, values, crons."""

from msgspec import Struct

from forebay.core.agenda import NEVER
from forebay.core.attributes import PLAIN, Attributes

DROP, REPLACE, DEBOUNCE, THROTTLE = MODES = ("drop", "replace", "debounce", "throttle")
"""What a push does whose unique key is held.

drop        nothing: the message that holds the key is the one
replace     takes its place, if nobody has had it yet; else it is a message of its own that holds the key now
debounce    the same, and is delivered when no other came for a while
throttle    the key is not held until the message ends, but for a while: one message in that time
"""


class Particulars(Struct, frozen=True, gc=False):
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


class Once(Struct, frozen=True, gc=False, array_like=True):
    """What a push answered that must not be repeated for a while."""

    until: int
    ids: tuple[tuple[int, int], ...]
    """(first, count) of the ids it gave out."""
    durability: str
    then: int | None = None
    """The id of the message that waits for them, if there is one."""
    throttled: tuple[int, ...] = ()
    """Places of those that came too soon."""


class Value(Struct, frozen=True, gc=False, array_like=True):
    """What is kept under a key."""

    data: bytes
    """JSON."""
    version: int
    expires_at: int = 0
    """0 if never."""


class Rate(Struct, frozen=True, gc=False, array_like=True):
    """So many in a time."""

    limit: int
    per_ms: int = 1_000
    burst: int = 0
    """How many may come at once after a while without any; as many as ``limit`` if 0."""

    @property
    def capacity(self) -> int:
        return self.burst or self.limit


class Bucket(Struct, eq=False):
    """Tokens, as of an instant."""

    rate: Rate
    parts: int
    at: int
    per_ms: int
    """Of the rate: parts of a token."""

    def refill(self, now: int) -> None:
        rate = self.rate
        if now > self.at:
            self.parts = min(self.parts + (now - self.at) * rate.limit, rate.capacity * rate.per_ms)
            self.at = now

    def tokens(self, now: int) -> int:
        """Whole tokens there are; less than 0 if it is overdrawn."""
        self.refill(now)
        return self.parts // self.rate.per_ms

    def spend(self, count: int) -> None:
        self.parts -= count * self.rate.per_ms

    def ready_at(self, count: int, now: int) -> int:
        """When there will be so many tokens; ``NEVER`` if there never are."""
        if count > self.rate.capacity:
            return NEVER
        self.refill(now)
        missing = count * self.rate.per_ms - self.parts
        return now + max(-(-missing // self.rate.limit), 0)


class Shared(Struct, frozen=True, gc=False, array_like=True):
    """A limit with a name, shared by queues of a tenant."""

    rate_limit: Rate | None = None
    byte_limit: Rate | None = None
    concurrency: int = 0


MISSED = ("none", "last", "all")
"""Which of the slots that a cron missed, because no server ran, are made up for."""


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
    own: Particulars | None = None
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
