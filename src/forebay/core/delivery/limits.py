"""Rate and concurrency limits on delivery.

A queue has limits per group, and per partition within each group. A named limit is shared by every queue that
lists it. A limit only delays: a message held back is delivered when a token arrives or a lease ends, and pops
that wait for it are woken then.

Tokens are counted in fractions, ``per_ms`` to a token, so nothing is rounded. A pop that takes nothing spends
nothing. A byte limit may be overdrawn by the last message taken; the debt is repaid before the next one.
"""

from forebay.core.bounds import NEVER
from forebay.core.shard.shard import Shard
from forebay.core.shard.tracks import FIRST_LEVEL, list_ready
from forebay.core.state import Group, Limiter, Queue, Track


def room(limiter: Limiter, now: int) -> int:
    """Return how many messages a limit allows now."""
    found = limiter.concurrency - limiter.active - limiter.taken if limiter.concurrency else NEVER
    if limiter.bucket is not None:
        found = min(found, limiter.bucket.tokens(now))
    if limiter.byte_bucket is not None and limiter.byte_bucket.tokens(now) <= 0:
        return 0
    return max(found, 0)


def allowance(limits: tuple[Limiter, ...], count: int, now: int) -> int:
    """Return how many of ``count`` messages the limits allow now. Inlined: every limited pop runs this."""
    for limiter in limits:
        concurrency = limiter.concurrency
        if concurrency and concurrency - limiter.active < count:
            count = max(concurrency - limiter.active, 0)
        bucket = limiter.bucket
        if bucket is not None:
            if now > bucket.at:
                bucket.refill(now)
            if bucket.parts < count * bucket.per_ms:
                count = max(bucket.parts // bucket.per_ms, 0)
        if limiter.byte_bucket is not None and limiter.byte_bucket.tokens(now) <= 0:
            return 0
    return count


def spend(limiters: tuple[Limiter, ...], count: int, size: int) -> None:
    """Spend tokens for taken messages."""
    for limiter in limiters:
        bucket = limiter.bucket
        if bucket is not None:
            bucket.parts -= count * bucket.per_ms
        if limiter.byte_bucket is not None:
            limiter.byte_bucket.spend(size)


def ready_at(limiters: tuple[Limiter, ...], count: int, now: int) -> int:
    """Return when ``count`` messages are allowed by time alone; ``NEVER`` if a lease has to end first."""
    at = now
    for limiter in limiters:
        if limiter.concurrency and limiter.concurrency - limiter.active - limiter.taken < count:
            return NEVER
        if limiter.bucket is not None:
            at = max(at, limiter.bucket.ready_at(count, now))
        if limiter.byte_bucket is not None:
            at = max(at, limiter.byte_bucket.ready_at(1, now))
    return at


def starve(shard: Shard, queue: Queue, group: Group, count: int, now: int) -> None:
    """Remember a pop held back by the limits of its group, to retry it when they allow more."""
    for limiter in group.limits:
        if limiter.concurrency and limiter.concurrency - limiter.active < count:
            limiter.starved[queue.prefix, group.name] = None
    at = ready_at(group.limits, count, now)
    if at != NEVER and at < group.limited_at:
        if group.limited_at != NEVER:
            shard.timers.limited.remove(group.limited_at, (queue.prefix, group.name))
        group.limited_at = max(at, now + 1)
        shard.timers.limited.add(group.limited_at, (queue.prefix, group.name))
        shard.timers.alarm.sooner(group.limited_at)


def wake_limited(shard: Shard, now: int) -> None:
    """Wake pops of groups that have tokens again."""
    while names := shard.timers.limited.first_due(now):
        for prefix, name in names:
            queue = shard.queues[prefix]
            group = queue.groups[name]
            shard.timers.limited.remove(group.limited_at, (prefix, name))
            group.limited_at = NEVER
            shard.changes.touch()
            shard.changes.woken[queue, name, None] = None


def wake_starved(shard: Shard, limiter: Limiter) -> None:
    """Wake the groups that a limit held back."""
    for prefix, name in limiter.starved:
        queue = shard.queues.get(prefix)
        if queue is not None:
            shard.changes.touch()
            shard.changes.woken[queue, name, None] = None
    limiter.starved.clear()


def release_slots(shard: Shard, track: Track, count: int) -> None:
    """Release concurrency slots of a track, and wake what they held back."""
    for limiter in track.limits:
        limiter.active -= count
        if limiter.starved:
            wake_starved(shard, limiter)
    own = track.own_limit
    if own is not None and own.concurrency:
        list_ready(track, FIRST_LEVEL)
        shard.changes.touch()
        shard.changes.woken[track.queue, track.group.name, track.partition.name] = None
