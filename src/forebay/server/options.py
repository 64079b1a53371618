"""Options as all listeners accept them in JSON, and as they are shown in replies."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forebay.core.api import commands as core
from forebay.core.bounds import DELAY_MS_MAX
from forebay.core.errors import Invalid
from forebay.core.state import BASE_MS, DOUBLINGS, Backoff, QueueOptions, Rate
from forebay.core.words import EXPONENTIAL, FIXED, LIST, NONE


class BackoffIn(Struct, forbid_unknown_fields=True, gc=False):
    """How long to wait before a retry."""

    kind: str = EXPONENTIAL
    base_ms: int | None = None
    cap_ms: int | None = None
    jitter: float = 0.0
    steps: list[int] | None = None


AnyBackoff = int | list[int] | BackoffIn
_USED = {
    NONE: (),
    FIXED: ("base_ms", "jitter"),
    EXPONENTIAL: ("base_ms", "cap_ms", "jitter"),
    LIST: ("steps", "jitter"),
}
"""Fields that a backoff of each kind may have."""


def backoff_of(given: AnyBackoff) -> Backoff:
    """Return a Backoff. A number is the base of an exponential one, 0 none; a list has a wait per retry."""
    if isinstance(given, int):
        given = BackoffIn(base_ms=given) if given else BackoffIn(NONE)
    elif isinstance(given, list):
        given = BackoffIn(LIST, steps=given)
    used = _USED.get(given.kind, ("base_ms", "cap_ms", "jitter", "steps"))
    for name in ("base_ms", "cap_ms", "jitter", "steps"):
        if getattr(given, name) and name not in used:
            raise Invalid(f"backoff.{name}", f"left out: a backoff of kind {given.kind} has none")
    base = BASE_MS if given.base_ms is None else given.base_ms
    cap = min(base << DOUBLINGS, DELAY_MS_MAX) if given.cap_ms is None else given.cap_ms
    if given.kind in (NONE, LIST):
        base = cap = 0
    return Backoff(given.kind, base, cap, given.jitter, tuple(given.steps or ()))


def shown_backoff(backoff: Backoff) -> object:
    """Return the shortest JSON form that means the same."""
    if backoff.kind == LIST and not backoff.jitter:
        return list(backoff.steps)
    shown = msgspec.structs.asdict(backoff)
    unused = {NONE: ("base_ms", "cap_ms", "steps"), FIXED: ("cap_ms", "steps"), LIST: ("base_ms", "cap_ms")}
    return {name: shown[name] for name in shown if name not in unused.get(backoff.kind, ("steps",))}


class RateIn(Struct, forbid_unknown_fields=True, gc=False):
    """So many messages (or bytes) within a time."""

    limit: int
    per_ms: int = 1_000
    burst: int = 0


AnyRate = int | RateIn


def rate_of(given: AnyRate | None) -> Rate | None:
    """Return a Rate: a number is a limit per second; 0 or null is no limit."""
    if isinstance(given, int):
        return Rate(given) if given else None
    return None if given is None else Rate(given.limit, given.per_ms, given.burst)


def shown_rate(rate: Rate | None) -> dict[str, int] | None:
    return None if rate is None else {"limit": rate.limit, "per_ms": rate.per_ms, "burst": rate.capacity}


class OptionsIn(Struct, forbid_unknown_fields=True, gc=False):
    """Options of a queue. Those that are absent stay as they are."""

    lease_ms: int | UnsetType = UNSET
    completed_retention_ms: int | UnsetType | None = UNSET
    completed_retention_bytes: int | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    backoff: AnyBackoff | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letters: bool | UnsetType = UNSET
    on_lease_expiry: str | UnsetType = UNSET
    delayed_processing_ms: int | UnsetType = UNSET
    window_buffer_ms: int | UnsetType = UNSET
    max_wait_ms: int | UnsetType = UNSET
    ordering: str | UnsetType = UNSET
    retention_ms: int | UnsetType | None = UNSET
    partition_retention_ms: int | UnsetType | None = UNSET
    group_idle_ms: int | UnsetType = UNSET
    max_size: int | UnsetType = UNSET
    require_lease: bool | UnsetType = UNSET
    dedup_window_ms: int | UnsetType = UNSET
    rate_limit: AnyRate | UnsetType | None = UNSET
    byte_limit: AnyRate | UnsetType | None = UNSET
    concurrency: int | UnsetType = UNSET
    partition_rate_limit: AnyRate | UnsetType | None = UNSET
    partition_concurrency: int | UnsetType = UNSET
    limits: list[str] | UnsetType = UNSET


def configure(tenant: str, queue: str, given: OptionsIn, partition: str | None = None) -> core.Configure:
    """Return the command that sets the options given."""
    return core.Configure(
        tenant,
        queue,
        given.lease_ms,
        given.completed_retention_ms,
        given.completed_retention_bytes,
        given.durability,
        given.max_attempts,
        UNSET if given.backoff is UNSET else backoff_of(given.backoff),
        given.max_deliveries,
        given.dead_letters,
        given.on_lease_expiry,
        given.delayed_processing_ms,
        given.window_buffer_ms,
        given.max_wait_ms,
        given.ordering,
        given.retention_ms,
        given.partition_retention_ms,
        given.group_idle_ms,
        given.max_size,
        given.require_lease,
        given.dedup_window_ms,
        UNSET if given.rate_limit is UNSET else rate_of(given.rate_limit),
        UNSET if given.byte_limit is UNSET else rate_of(given.byte_limit),
        given.concurrency,
        UNSET if given.partition_rate_limit is UNSET else rate_of(given.partition_rate_limit),
        given.partition_concurrency,
        UNSET if given.limits is UNSET else tuple(given.limits),
        partition,
    )


def shown_options(options: QueueOptions) -> dict[str, Any]:
    """Return the options of a queue in the form in which they can be set."""
    shown = msgspec.structs.asdict(options) | {"backoff": shown_backoff(options.backoff)}
    for name in ("rate_limit", "byte_limit", "partition_rate_limit"):
        shown[name] = shown_rate(shown[name])
    return shown
