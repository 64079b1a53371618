"""Load the tenants of a shard, one after another: queues, then what belongs to no queue."""

from collections.abc import Iterable

from msgspec import Struct

from forebay.core import event_log
from forebay.core.errors import Damaged
from forebay.core.jobs import cron
from forebay.core.jobs.dependencies import recover, settle_consequences
from forebay.core.loading.build import load_queue
from forebay.core.loading.decode import decode_own
from forebay.core.loading.records import QueueRecords
from forebay.core.queues import named_limits
from forebay.core.records import keyspace
from forebay.core.records.commit import Record, Scan
from forebay.core.shard import names
from forebay.core.shard.limiters import attach, new_limiter
from forebay.core.shard.names import new_queue
from forebay.core.shard.shard import Shard
from forebay.core.state import Cron, Queue, Values
from forebay.core.words import EVENTS, system_of


class Taken(Struct, frozen=True):
    """A claimed shard."""

    epoch: int
    """Higher than every epoch before."""
    down_ms: int = 0
    """How long its leases could not be settled."""
    restored: int = 0
    """Names to skip after a restore: the backup does not know all that were given out."""


def load_names(shard: Shard, scan: Scan) -> None:
    """Load the names of tenants and queues, and the numbers given out."""
    numbering = shard.numbering
    found = names.decode(shard.number, numbering.stride, scan(*keyspace.shard_bounds(shard.number)))
    shard.names.tenants = found.tenants
    numbering.made, numbering.queues_made = found.partitions_made, found.queues_made
    numbering.tenants_made = found.tenants_made


def load_tenant(shard: Shard, tenant: str, scan: Scan, now: int, claim: Taken) -> None:
    """Load everything of a tenant. A damaged queue is left out and listed as such."""
    known = shard.names.tenants[tenant]
    own: list[Queue] = []
    records = QueueRecords(scan, keyspace.prefix(known.number, max(known.queues.values(), default=0)))
    for name, number in in_order(known.queues):
        prefix = keyspace.prefix(known.number, number)
        try:
            try:
                queue, crons = _load_queue(shard, tenant, name, prefix, records.of(prefix), now, claim)
            except Damaged:
                # It may be damage of the next queue: the scan has looked into that already.
                queue, crons = _load_queue(shard, tenant, name, prefix, records.alone(prefix), now, claim)
        except Damaged as error:
            shard.names.damaged[tenant, name] = error.message
            continue
        own.append(queue)
        shard.names.queues[tenant, name] = queue
        for each in crons:
            cron.add(shard, each)
    try:
        _load_own(shard, tenant, scan, now)
    except Damaged as error:
        shard.names.lost[tenant] = error.message
    if len(own) == len(known.queues) and not all(queue.stored for queue in own):
        recover(shard, own, now)
        settle_consequences(shard, now)
    for queue in own:
        if queue.closing_at:
            shard.names.close(queue)
            shard.emptied[queue.prefix] = queue
    if tenant == system_of(shard.number) and (tenant, EVENTS) in shard.names.queues:
        event_log.restore(shard, shard.names.queues[tenant, EVENTS], now)


def _load_queue(
    shard: Shard, tenant: str, name: str, prefix: bytes, found: Iterable[Record], now: int, claim: Taken
) -> tuple[Queue, list[Cron]]:
    """Load a queue and return it with its crons; raise ``Damaged`` before the shard is touched."""
    queue = new_queue(tenant, name, prefix, shard.number)
    renumber = claim.restored > 0
    return queue, load_queue(shard, queue, found, now=now, down_ms=claim.down_ms, renumber=renumber)


def in_order(queues: dict[str, int]) -> list[tuple[str, int]]:
    """Return queues in the order of their keys: a store that is far away is read in large pages."""
    return sorted(queues.items(), key=lambda each: each[1])


def _load_own(shard: Shard, tenant: str, scan: Scan, now: int) -> None:
    """Load keys, values and named limits of a tenant. Limits start without tokens: they may be spent."""
    number = shard.names.tenants[tenant].number
    entries, limits = decode_own(scan(*keyspace.own_bounds(keyspace.own_prefix(number))))
    if entries:
        shard.values.by_tenant[tenant] = Values(entries)
        for key, value in entries.items():
            if value.expires_at:
                shard.timers.values.add(value.expires_at, (tenant, key))
    named = {name: new_limiter(limits[name], None, now) for name in limits}
    if limits:
        shard.named_limits.limits[tenant] = limits
        shard.named_limits.limiters[tenant] = named
    for queue in shard.names.of_tenant(tenant):
        if queue.limited or any(partition.lane for partition in queue.partitions.values()):
            attach(queue, named, now)
            for name in queue.options.limits:
                if name in named:
                    named[name].active += named_limits.leased(queue)
