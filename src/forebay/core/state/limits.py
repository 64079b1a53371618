"""Rate and concurrency limits, as configured and at work."""

from msgspec import Struct

from forebay.core.bounds import NEVER


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


class NamedLimit(Struct, frozen=True, gc=False, array_like=True):
    """A limit with a name, shared by queues of a tenant."""

    rate_limit: Rate | None = None
    byte_limit: Rate | None = None
    concurrency: int = 0


class Limiter(Struct, eq=False):
    """A limit on delivery at work. *memory*"""

    concurrency: int
    """Messages that may be leased at once; 0 is no limit."""
    active: int = 0
    """Messages leased under it."""
    taken: int = 0
    """Messages that the pop under way has taken under it."""
    bucket: Bucket | None = None
    """Tokens for messages, if they are limited."""
    byte_bucket: Bucket | None = None
    """Tokens for bytes, if they are limited."""
    starved: dict[tuple[int, bytes, str], None] = {}
    """Groups that it held back because of ``concurrency``, by shard, prefix of the queue and name."""
