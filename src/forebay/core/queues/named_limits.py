"""Named limits: rate and concurrency limits that queues of a tenant share."""

from forebay.core.api.checks import check_rate
from forebay.core.api.jobs import LimitPut
from forebay.core.api.queries import LimitFound, LimitList, LimitsFound
from forebay.core.bounds import NAMED_LIMITS_MAX, check_name, check_range
from forebay.core.delivery.limits import wake_starved
from forebay.core.errors import Busy, Invalid, NotFound
from forebay.core.records import codec, keyspace
from forebay.core.shard.limiters import attach, new_limiter
from forebay.core.shard.shard import Shard
from forebay.core.state import NamedLimit, Queue, QueueOptions

CONCURRENCY_MAX = 1 << 52


def put(shard: Shard, command: LimitPut, now: int) -> LimitsFound:
    """Set or remove a named limit."""
    name, limit = command.name, command.limit
    check_name("name", name)
    check_name("tenant", command.tenant)
    shard.names.check_count(command.tenant, 0)
    shard.names.check_own(command.tenant)
    known = shard.named_limits.limits.get(command.tenant, {})
    if limit is None:
        if name not in known:
            raise NotFound(f"there is no limit {name}")
    else:
        _check(limit)
        if name not in known and len(known) >= NAMED_LIMITS_MAX:
            raise Busy(f"a tenant has at most {NAMED_LIMITS_MAX} limits with names")
    own = shard.names.own_prefix(command.tenant)
    limits = shard.named_limits.limits.setdefault(command.tenant, {})
    limiters = shard.named_limits.limiters.setdefault(command.tenant, {})
    key = keyspace.named_limit_key(own, name)
    if limit is None:
        del limits[name], limiters[name]
        shard.changes.put_own(key, None)
    else:
        limits[name] = limit
        limiters[name] = new_limiter(limit, limiters.get(name), 0)
        shard.changes.put_own(key, codec.pack_named_limit(limit))
    reattach(shard, command.tenant, name, now)
    return listed(shard, LimitList(command.tenant), now)


def _check(limit: NamedLimit) -> None:
    for field in ("rate_limit", "byte_limit"):
        rate = getattr(limit, field)
        if rate is not None:
            check_rate(field, rate)
    check_range("concurrency", limit.concurrency, 0, CONCURRENCY_MAX)
    if limit == NamedLimit():
        raise Invalid(
            "rate_limit", "given, or else byte_limit or concurrency; a limit without any is deleted instead"
        )


def reattach(shard: Shard, tenant: str, name: str, now: int) -> None:
    """Attach a changed limit to every queue that lists it, and count what these have leased."""
    limiter = shard.named_limits.limiters[tenant].get(name)
    closing = [queue for (whose, _), queue in shard.names.closing.items() if whose == tenant]
    for queue in (*shard.names.of_tenant(tenant), *closing):
        if name not in queue.options.limits:
            continue
        attach(queue, shard.named_limits.limiters[tenant])
        shard.changes.touch()
        shard.recheck_queue(queue, now)
        if limiter is not None:
            limiter.active += leased(queue)


def configure(shard: Shard, queue: Queue, before: QueueOptions) -> None:
    """Attach the named limits of a queue whose options changed."""
    named = shard.named_limits.limiters.get(queue.tenant, {})
    _count(shard, queue, before.limits, -leased(queue))
    _count(shard, queue, queue.options.limits, leased(queue))
    attach(queue, named)


def leave(shard: Shard, queue: Queue) -> None:
    """Release the slots of a queue that is being removed."""
    _count(shard, queue, queue.options.limits, -leased(queue))


def _count(shard: Shard, queue: Queue, names: tuple[str, ...], count: int) -> None:
    named = shard.named_limits.limiters.get(queue.tenant, {})
    for name in names:
        if name in named:
            named[name].active += count
            if count < 0:
                wake_starved(shard, named[name])


def leased(queue: Queue) -> int:
    """Count the leased messages of a queue."""
    return sum(track.leased for group in queue.groups.values() for track in group.tracks.values())


def listed(shard: Shard, command: LimitList, now: int) -> LimitsFound:
    limits = shard.named_limits.limits.get(command.tenant, {})
    limiters = shard.named_limits.limiters.get(command.tenant, {})
    return LimitsFound([LimitFound(name, limits[name], limiters[name].active) for name in sorted(limits)])
