"""Named limits: rate and concurrency limits that queues of a tenant share."""

from forebay.core.api.checks import check_rate
from forebay.core.api.jobs import LimitPut
from forebay.core.api.queries import LimitFound, LimitList, LimitsFound
from forebay.core.bounds import NAMED_LIMITS_MAX, check_name, check_range
from forebay.core.delivery.limits import wake_starved
from forebay.core.errors import Busy, Invalid, NotFound
from forebay.core.records import codec, keyspace
from forebay.core.shard.domain import Domain
from forebay.core.shard.limiters import attach, new_limiter
from forebay.core.state import NamedLimit, Queue, QueueOptions

CONCURRENCY_MAX = 1 << 52


def put(domain: Domain, command: LimitPut, now: int) -> LimitsFound:
    """Set or remove a named limit."""
    name, limit = command.name, command.limit
    check_name("name", name)
    check_name("tenant", command.tenant)
    domain.check_own(command.tenant)
    known = domain.named_limits.get(command.tenant, {})
    if limit is None:
        if name not in known:
            raise NotFound(f"there is no limit {name}")
    else:
        _check(limit)
        if name not in known and len(known) >= NAMED_LIMITS_MAX:
            raise Busy(f"a tenant has at most {NAMED_LIMITS_MAX} limits with names")
    shard, own = domain.home(command.tenant)
    limits = domain.named_limits.setdefault(command.tenant, {})
    limiters = domain.limiters.setdefault(command.tenant, {})
    key = keyspace.named_limit_key(own, name)
    if limit is None:
        del limits[name], limiters[name]
        shard.changes.put_own(key, None)
    else:
        limits[name] = limit
        limiters[name] = new_limiter(limit, limiters.get(name), 0)
        shard.changes.put_own(key, codec.pack_named_limit(limit))
    reattach(domain, command.tenant, name, now)
    return listed(domain, LimitList(command.tenant), now)


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


def reattach(domain: Domain, tenant: str, name: str, now: int) -> None:
    """Attach a changed limit to every queue that lists it, and count what these have leased."""
    limiter = domain.limiters[tenant].get(name)
    closing = [queue for (whose, _), queue in domain.closing.items() if whose == tenant]
    for queue in (*domain.of_tenant(tenant), *closing):
        if name not in queue.options.limits:
            continue
        attach(queue, domain.limiters[tenant])
        shard = domain.shards[queue.shard]
        shard.changes.touch()
        shard.recheck_queue(queue, now)
        if limiter is not None:
            limiter.active += leased(queue)


def configure(domain: Domain, queue: Queue, before: QueueOptions) -> None:
    """Attach the named limits of a queue whose options changed."""
    named = domain.limiters.get(queue.tenant, {})
    _count(domain, queue, before.limits, -leased(queue))
    _count(domain, queue, queue.options.limits, leased(queue))
    attach(queue, named)


def leave(domain: Domain, queue: Queue) -> None:
    """Release the slots of a queue that is being removed."""
    _count(domain, queue, queue.options.limits, -leased(queue))


def _count(domain: Domain, queue: Queue, names: tuple[str, ...], count: int) -> None:
    named = domain.limiters.get(queue.tenant, {})
    for name in names:
        if name in named:
            named[name].active += count
            if count < 0:
                wake_starved(domain.shards, named[name])


def leased(queue: Queue) -> int:
    """Count the leased messages of a queue."""
    return sum(track.leased for group in queue.groups.values() for track in group.tracks.values())


def listed(domain: Domain, command: LimitList, now: int) -> LimitsFound:
    limits = domain.named_limits.get(command.tenant, {})
    limiters = domain.limiters.get(command.tenant, {})
    return LimitsFound([LimitFound(name, limits[name], limiters[name].active) for name in sorted(limits)])
