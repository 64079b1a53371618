"""Attach delivery limits to the groups and tracks that they limit."""

from forebay.core.state import Bucket, Group, Limiter, NamedLimit, Queue, QueueOptions, Rate, Track

LIMITING = (
    "rate_limit",
    "byte_limit",
    "concurrency",
    "partition_rate_limit",
    "partition_concurrency",
    "limits",
)
"""Options of a queue that limit its delivery."""


def is_limited(options: QueueOptions) -> bool:
    """Whether options limit the delivery of a queue."""
    return any(getattr(options, field) for field in LIMITING)


def new_limiter(limit: NamedLimit, before: Limiter | None, since: int) -> Limiter:
    """Return a limiter. An unchanged rate keeps its bucket; a new one gains tokens from ``since`` on."""
    found = Limiter(limit.concurrency)
    found.bucket = _bucket(limit.rate_limit, before.bucket if before is not None else None, since)
    found.byte_bucket = _bucket(limit.byte_limit, before.byte_bucket if before is not None else None, since)
    return found


def _bucket(rate: Rate | None, before: Bucket | None, since: int) -> Bucket | None:
    if rate is None:
        return None
    return before if before is not None and before.rate == rate else Bucket(rate, 0, since, rate.per_ms)


def attach(queue: Queue, named: dict[str, Limiter], since: int = 0) -> None:
    """Attach the limits of a queue's options to its groups and tracks."""
    for group in queue.groups.values():
        attach_group(queue, group, named, since)
        for track in group.tracks.values():
            attach_track(track, since)


def attach_group(queue: Queue, group: Group, named: dict[str, Limiter], since: int = 0) -> None:
    """Attach the limits of a group."""
    options = queue.options
    own = None
    if options.rate_limit or options.byte_limit or options.concurrency:
        limit = NamedLimit(options.rate_limit, options.byte_limit, options.concurrency)
        own = new_limiter(limit, None if since else group.own_limit, since)
        own.active = sum(track.leased for track in group.tracks.values())
    group.own_limit = own
    shared = tuple(named[name] for name in options.limits if name in named)
    group.limits = shared if own is None else (own, *shared)
    group.byte_limited = any(limiter.byte_bucket is not None for limiter in group.limits)


def attach_track(track: Track, since: int = 0) -> None:
    """Attach the limits of a track: its group's, and its own."""
    options = track.queue.options
    track.limits, own = track.group.limits, None
    concurrency = 1 if track.partition.lane else options.partition_concurrency
    if options.partition_rate_limit or concurrency:
        limit = NamedLimit(options.partition_rate_limit, None, concurrency)
        own = new_limiter(limit, None if since else track.own_limit, since)
        own.active = track.leased
        track.limits = (*track.limits, own)
    track.own_limit = own
