"""Cron jobs, pushed by the shard of their queue.

A cron knows its next slot. When the slot is due, one commit pushes the message and moves the slot on, so
every slot fires exactly once, whatever crashes.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from forebay.core.api.jobs import CronDelete, CronDeleted, CronPut, Job, PushJobs
from forebay.core.api.principals import has_queue
from forebay.core.api.queries import CronList, CronsFound
from forebay.core.bounds import CRON_BYTES_MAX, CRONS_MAX, NEVER, check_name, check_range
from forebay.core.errors import Busy, ForebayError, Invalid, NotFound
from forebay.core.jobs import check as job_check, push as job_push
from forebay.core.jobs.calendar import check_every, last_slot, next_slot, parse, zone_of
from forebay.core.records import codec, keyspace
from forebay.core.shard.shard import Shard
from forebay.core.state import Cron
from forebay.core.words import MISSED

FIRED_AT_ONCE = 100
"""Crons fired per tick: about 10 ms. The next tick fires more."""
LISTED_MAX = 10_000
"""Crons per reply."""
LATE_MS = 10_000
"""A slot is missed if it could not fire for this long."""
COUNT_MAX = 1 << 52


def put(shard: Shard, command: CronPut, now: int) -> CronsFound:
    """Create or replace a cron. Its counters continue if its schedule is unchanged."""
    cron = _checked(shard, command, now)
    before = shard.crons.by_tenant.get(command.tenant, {}).get(command.name)
    if before is not None and _when(before) == _when(cron):
        cron.began_at, cron.fired, cron.last_slot = before.began_at, before.fired, before.last_slot
        cron.skipped, cron.error = before.skipped, before.error
        if 0 < cron.limit <= cron.fired:
            raise Invalid("limit", f"more than {cron.fired}: it fired so often; delete it to start again")
    if before is not None:
        _remove(shard, before)
    cron.next_at = _next(cron, max(now, cron.last_slot))
    shard.made(command.tenant, command.queue, command.completed_count)
    add(shard, cron)
    _keep(shard, cron)
    return CronsFound([cron])


def _checked(shard: Shard, command: CronPut, now: int) -> Cron:
    """Return the cron of a command; raise unless it is valid."""
    check_name("name", command.name)
    if (command.schedule is None) == (command.every_ms is None):
        raise Invalid("schedule", "given, or else an interval, but not both")
    schedule, every_ms = "", command.every_ms or 0
    if command.schedule is not None:
        schedule, every_ms = parse(command.schedule)
    else:
        check_every(every_ms)
    zone_of(command.zone)
    check_range("limit", command.limit, 0, COUNT_MAX)
    if command.missed not in MISSED:
        raise Invalid("missed", f"one of {', '.join(MISSED)}")
    if command.job.attributes.depends_on:
        raise Invalid("depends_on", "left out: a cron depends on nothing")
    job_check.check(shard, PushJobs(command.tenant, command.queue, [command.job]), now, room=False)
    known = shard.crons.by_tenant.get(command.tenant, {})
    before = known.get(command.name)
    if before is None and len(known) >= CRONS_MAX:
        raise Busy(f"a tenant has at most {CRONS_MAX} crons")
    size = shard.crons.bytes[command.tenant] - (len(before.payload) if before is not None else 0)
    if size + len(command.job.payload) > CRON_BYTES_MAX:
        raise Busy(f"the crons of a tenant have {CRON_BYTES_MAX} bytes of data at most, and {size} are taken")
    return Cron(
        name=command.name,
        tenant=command.tenant,
        queue=command.queue,
        payload=bytes(command.job.payload),
        schedule=schedule,
        zone=command.zone,
        every_ms=every_ms,
        began_at=now,
        partition=command.job.partition,
        lane=command.job.lane,
        attributes=command.job.attributes,
        own=command.job.own,
        limit=command.limit,
        missed=command.missed,
    )


def check_kept(cron: Cron, tenant: str, queue: str) -> None:
    """Raise unless a stored cron is valid for its queue."""
    if (cron.tenant, cron.queue) != (tenant, queue) or bool(cron.schedule) == bool(cron.every_ms):
        raise Invalid("cron", "one of the queue, by a schedule or every so often")
    if cron.schedule and parse(cron.schedule) != (cron.schedule, 0):
        raise Invalid("schedule", "as it is kept")
    if cron.every_ms:
        check_every(cron.every_ms)
    zone_of(cron.zone)
    check_name("name", cron.name)
    check_name("partition", cron.partition)
    if cron.missed not in MISSED or min(cron.limit, cron.fired, cron.next_at, cron.began_at) < 0:
        raise Invalid("cron", "as it is kept")


def _when(cron: Cron) -> tuple[str, str, int, str]:
    return cron.schedule, cron.zone, cron.every_ms, cron.queue


def _next(cron: Cron, after: int) -> int:
    return next_slot(cron.schedule, cron.zone, cron.every_ms, cron.began_at, after)


def delete(shard: Shard, command: CronDelete, now: int) -> CronDeleted:
    check_name("name", command.name)
    cron = shard.crons.by_tenant.get(command.tenant, {}).get(command.name)
    if cron is None:
        raise NotFound(f"there is no cron {command.name}")
    _remove(shard, cron)
    return CronDeleted(command.name)


def listed(shard: Shard, command: CronList, now: int) -> CronsFound:
    """Return crons by name, as many as fit into a reply."""
    crons: Mapping[str, Cron] = shard.crons.by_tenant.get(command.tenant, {})
    if command.within:
        crons = {name: cron for name, cron in crons.items() if has_queue(command.within, cron.queue)}
    if command.name is not None:
        check_name("name", command.name)
        if command.name not in crons:
            raise NotFound(f"there is no cron {command.name}")
        return CronsFound([_shown(shard, crons[command.name], now)])
    names = sorted(name for name in crons if command.after is None or name > command.after)
    found: list[Cron] = []
    left = shard.limits.read_bytes_max
    for name in names[:LISTED_MAX]:
        left -= len(crons[name].payload)
        if left < 0 and found:
            break
        found.append(_shown(shard, crons[name], now))
    return CronsFound(found, len(found) < len(names))


def queues_of(shard: Shard, tenant: str, name: str) -> list[str]:
    """Return the queue of a cron, in a list; an empty one if it is not in this shard."""
    known = shard.crons.by_tenant.get(tenant, {}).get(name)
    return [known.queue] if known is not None else []


def _shown(shard: Shard, cron: Cron, now: int) -> Cron:
    """Return a cron as it stands: one that is late says what it waits for."""
    if shard.timers.crons_wait and cron.next_at <= now:
        return replace(cron, error="it waits for room on the server's disk")
    return cron


def _key(shard: Shard, cron: Cron) -> bytes:
    """Return the key of a cron's record."""
    return keyspace.cron_key(shard.names.queues[cron.tenant, cron.queue].prefix, cron.name)


def _keep(shard: Shard, cron: Cron) -> None:
    shard.changes.put_own(_key(shard, cron), codec.pack_cron(cron))


def _remove(shard: Shard, cron: Cron) -> None:
    shard.changes.put_own(_key(shard, cron), None)
    forget(shard, cron)


def forget(shard: Shard, cron: Cron) -> None:
    """Remove a cron from memory and its timer."""
    if cron.next_at != NEVER and cron.tenant not in shard.crons.held:
        shard.timers.crons.remove(cron.next_at, (cron.tenant, cron.name))
    del shard.crons.by_tenant[cron.tenant][cron.name]
    shard.crons.bytes[cron.tenant] -= len(cron.payload)


def hold(shard: Shard, tenant: str, held: bool) -> None:
    """Fire no crons of a tenant, or fire them again: slots passed meanwhile are then late."""
    if held == (tenant in shard.crons.held):
        return
    crons = shard.crons.by_tenant.get(tenant, {}).values()
    if held:
        shard.crons.held.add(tenant)
        for cron in crons:
            if cron.next_at != NEVER:
                shard.timers.crons.remove(cron.next_at, (tenant, cron.name))
    else:
        shard.crons.held.discard(tenant)
        for cron in crons:
            _plan(shard, cron)


def _plan(shard: Shard, cron: Cron) -> None:
    if cron.next_at != NEVER and cron.tenant not in shard.crons.held:
        shard.timers.crons.add(cron.next_at, (cron.tenant, cron.name))
        shard.timers.alarm.sooner(cron.next_at)


def add(shard: Shard, cron: Cron) -> None:
    """Add a cron and its timer."""
    shard.crons.by_tenant.setdefault(cron.tenant, {})[cron.name] = cron
    shard.crons.bytes[cron.tenant] += len(cron.payload)
    _plan(shard, cron)


def fire(shard: Shard, now: int) -> None:
    """Fire crons whose slot is due, up to ``FIRED_AT_ONCE``; none while they wait for room in the store."""
    left = FIRED_AT_ONCE if not shard.timers.crons_wait else 0
    while left > 0 and (names := shard.timers.crons.first_due(now)):
        for tenant, name in names[:left]:
            _fire(shard, shard.crons.by_tenant[tenant][name], now)
        left -= len(names)


def _fire(shard: Shard, cron: Cron, now: int) -> None:
    """Fire a cron at its slot, or at the last of several missed slots."""
    slot = cron.next_at
    shard.timers.crons.remove(slot, (cron.tenant, cron.name))
    if cron.missed != "all":
        when = (cron.schedule, cron.zone, cron.every_ms, cron.began_at)
        slot = max(slot, last_slot(*when, slot, now))
    cron.last_slot, cron.next_at = slot, _next(cron, slot)
    if cron.missed != "none" or now - slot <= LATE_MS:
        _push(shard, cron, now)
    _plan(shard, cron)
    if 0 < cron.limit <= cron.fired or cron.next_at == NEVER:
        _remove(shard, cron)
    else:
        _keep(shard, cron)


def _push(shard: Shard, cron: Cron, now: int) -> None:
    command = PushJobs(cron.tenant, cron.queue, [_job(cron)])
    try:
        job_check.check(shard, command, now)
    except ForebayError as error:
        cron.skipped += 1
        cron.error = error.message
    else:
        _seal_older(shard, cron)
        job_push.apply(shard, command, now)
        cron.fired += 1


def _seal_older(shard: Shard, cron: Cron) -> None:
    """Seal a segment that began to form before the slot: the message would take its earlier time."""
    queue = shard.names.queues[cron.tenant, cron.queue]
    partition = queue.partitions.get(cron.partition)
    if partition is None or partition.log.forming is None:
        return
    if partition.log.forming.created_at < cron.last_slot:
        shard.changes.seal_now(queue, partition)


def _job(cron: Cron) -> Job:
    return Job(cron.payload, cron.partition, cron.attributes, cron.own, cron.lane)
