"""Options as all listeners accept them in JSON, and as they are shown in replies."""

from typing import Any

import msgspec
from msgspec import UNSET

from forebay.core.api import commands as core
from forebay.core.bounds import DELAY_MS_MAX
from forebay.core.errors import Invalid
from forebay.core.state import BASE_MS, DOUBLINGS, Backoff, QueueOptions, Rate
from forebay.core.words import EXPONENTIAL, FIXED, LIST, NONE
from forebay.wire.options import (
    RATES,
    AnyBackoff as AnyBackoff,
    AnyRate as AnyRate,
    BackoffIn,
    OptionsIn as OptionsIn,
)

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


def rate_of(given: AnyRate | None) -> Rate | None:
    """Return a Rate: a number is a limit per second; 0 or null is no limit."""
    if isinstance(given, int):
        return Rate(given) if given else None
    return None if given is None else Rate(given.limit, given.per_ms, given.burst)


def shown_rate(rate: Rate | None) -> dict[str, int] | None:
    return None if rate is None else {"limit": rate.limit, "per_ms": rate.per_ms, "burst": rate.capacity}


def configure(tenant: str, queue: str, given: OptionsIn, partition: str | None = None) -> core.Configure:
    """Return the command that sets the options given."""
    options = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}
    for name in options.keys() & set(RATES):
        options[name] = rate_of(options[name])
    if "backoff" in options:
        options["backoff"] = backoff_of(options["backoff"])
    if "limits" in options:
        options["limits"] = tuple(options["limits"])
    return core.Configure(tenant, queue, partition=partition, **options)


def shown_options(options: QueueOptions) -> dict[str, Any]:
    """Return the options of a queue in the form in which they can be set."""
    shown = msgspec.structs.asdict(options) | {"backoff": shown_backoff(options.backoff)}
    for name in RATES:
        shown[name] = shown_rate(shown[name])
    return shown
