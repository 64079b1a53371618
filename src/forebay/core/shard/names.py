"""Directory: tenant and queue names to ids and shards. No id is ever reused."""

from collections.abc import Iterable

from msgspec import MsgspecError, Struct

from forebay.core.bounds import Limits, check_name, check_queue_name
from forebay.core.errors import Busy, Damaged
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import META, META_SHARD

IDS_MAX = (1 << 32) - 1
_SPREAD = 0x9E3779B1
"""Odd constant that spreads tenants over shards; queues of a tenant take shards in turn."""


class Tenant(Struct, eq=False):
    """Ids and queue names of a tenant."""

    id: int
    queues_made: int
    """Queue ids given out so far; none is reused."""
    queues: dict[str, tuple[int, int]]
    """Name to (queue id, shard)."""


class Directory:
    """All tenants and queues by name."""

    __slots__ = ("changes", "epoch", "limits", "shards", "tenants")

    def __init__(self, shards: int, epoch: int, limits: Limits) -> None:
        self.shards = shards
        self.epoch = epoch
        self.limits = limits
        self.tenants: dict[str, Tenant] = {}
        self.changes: dict[bytes, bytes | None] = {}
        """Records to put; None deletes."""

    def check_new(self, tenant: str, queue: str) -> None:
        """Raise unless a queue of that name can be created now."""
        check_queue_name(queue)
        check_name("tenant", tenant)
        known = self.tenants.get(tenant)
        if known and len(known.queues) >= self.limits.queues_max:
            raise Busy(f"a tenant has at most {self.limits.queues_max} queues")

    def next_shard(self, tenant: str) -> int:
        """Return the shard of the tenant's next new queue."""
        known = self.tenants.get(tenant) or Tenant(len(self.tenants) + 1, 0, {})
        return (known.id * _SPREAD + known.queues_made + 1) % self.shards

    def own(self, tenant: str) -> tuple[bytes, int]:
        """Return the prefix and shard of a tenant's own records. Its name was checked."""
        known = self._known(tenant)
        return keyspace.own_prefix(known.id), known.id * _SPREAD % self.shards

    def _known(self, tenant: str) -> Tenant:
        known = self.tenants.get(tenant)
        if known is None:
            known = self.tenants[tenant] = Tenant(len(self.tenants) + 1, 0, {})
            self.changes[keyspace.tenant_key(tenant)] = codec.pack_numbers((known.id, 0))
        return known

    def create(self, tenant: str, queue: str, shard: int | None = None) -> tuple[bytes, int]:
        """Add a queue; return its prefix and shard. Its name was checked."""
        known = self._known(tenant)
        shard = self.next_shard(tenant) if shard is None else shard
        known.queues_made += 1
        assert known.queues_made <= IDS_MAX
        known.queues[queue] = (known.queues_made, shard)
        self.changes[keyspace.tenant_key(tenant)] = codec.pack_numbers((known.id, known.queues_made))
        name_key = keyspace.queue_name_key(known.id, queue)
        self.changes[name_key] = codec.pack_numbers((known.queues_made, shard))
        return keyspace.prefix(known.id, known.queues_made), shard

    def remove(self, tenant: str, queue: str) -> None:
        """Remove the name of a queue; its id is never reused."""
        known = self.tenants[tenant]
        del known.queues[queue]
        self.changes[keyspace.queue_name_key(known.id, queue)] = None

    def seal(self, now: int) -> Commit:
        changes, self.changes = self.changes, {}
        puts = [(key, value) for key, value in changes.items() if value is not None]
        deletes = [key for key, value in changes.items() if value is None]
        return Commit(META_SHARD, self.epoch, now, puts, deletes, [])


def load(shards: int, epoch: int, limits: Limits, found: Iterable[Record]) -> tuple[Directory, list[int]]:
    """Return the directory, and how many partition numbers each shard has given out."""
    directory = Directory(shards, epoch, limits)
    made = [0] * shards
    by_id: dict[int, Tenant] = {}
    queues: list[tuple[int, str, tuple[int, int]]] = []
    start = len(META) + 1
    for key, value in found:
        try:
            numbers = codec.unpack_numbers(value)
        except MsgspecError as error:
            raise Damaged(f"a record of the node can't be decoded: {error}") from None
        match key[len(META) : start]:
            case b"Q":
                tenant_id = int.from_bytes(key[start : start + 4], "big")
                queues.append((tenant_id, key[start + 4 :].decode(), (numbers[0], numbers[1])))
            case b"S":
                made[int.from_bytes(key[start:], "big")] = numbers[0]
            case b"T":
                tenant = Tenant(numbers[0], numbers[1], {})
                directory.tenants[key[start:].decode()] = by_id[tenant.id] = tenant
            case kind:
                raise AssertionError(f"no record of the node has kind {kind!r}")
    for tenant_id, name, numbers_ in queues:
        by_id[tenant_id].queues[name] = numbers_
    return directory, made
