"""Rate and concurrency limits, as configured and at work."""

from msgspec import Struct

from forebay.core.bounds import NEVER


class Rate(Struct, frozen=True, gc=False, array_like=True):
    """A rate: ``limit`` per ``per_ms``."""

    limit: int
    per_ms: int = 1_000
    burst: int = 0
    """Tokens that can accumulate; ``limit`` if 0."""

    @property
    def capacity(self) -> int:
        return self.burst or self.limit


class Bucket(Struct, eq=False):
    """A token bucket."""

    rate: Rate
    parts: int
    at: int
    per_ms: int
    """Fractions per token: the rate's ``per_ms``, inlined."""

    def refill(self, now: int) -> None:
        rate = self.rate
        if now > self.at:
            self.parts = min(self.parts + (now - self.at) * rate.limit, rate.capacity * rate.per_ms)
            self.at = now

    def tokens(self, now: int) -> int:
        """Return the whole tokens; negative if overdrawn."""
        self.refill(now)
        return self.parts // self.rate.per_ms

    def spend(self, count: int) -> None:
        self.parts -= count * self.rate.per_ms

    def ready_at(self, count: int, now: int) -> int:
        """Return when there will be ``count`` tokens; ``NEVER`` if that exceeds the capacity."""
        if count > self.rate.capacity:
            return NEVER
        self.refill(now)
        missing = count * self.rate.per_ms - self.parts
        return now + max(-(-missing // self.rate.limit), 0)


class NamedLimit(Struct, frozen=True, gc=False, array_like=True):
    """A limit shared by all queues of a tenant that list its name."""

    rate_limit: Rate | None = None
    byte_limit: Rate | None = None
    concurrency: int = 0


class Limiter(Struct, eq=False):
    """A limit at work. *memory*"""

    concurrency: int
    """Messages that may be leased at once; 0 is no limit."""
    active: int = 0
    """Messages leased under it."""
    taken: int = 0
    """Messages taken under it by the pop in progress."""
    bucket: Bucket | None = None
    """Tokens for messages, if they are limited."""
    byte_bucket: Bucket | None = None
    """Tokens for bytes, if they are limited."""
    starved: dict[tuple[bytes, str], None] = {}
    """Groups held back by ``concurrency``: queue prefix and group name."""
