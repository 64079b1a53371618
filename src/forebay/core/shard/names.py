"""Names of a shard: its tenants and their queues. No number is ever given out twice."""

from collections.abc import Iterable

from msgspec import MsgspecError, Struct

from forebay.core.bounds import Limits, check_name, check_queue_name
from forebay.core.errors import Busy, Conflict, Damaged, NotFound
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Record
from forebay.core.shard.changes import Changes
from forebay.core.shard.nearest import nearest
from forebay.core.shard.numbering import Numbering
from forebay.core.state import Queue, QueueOptions


class Tenant(Struct, eq=False):
    """The number of a tenant in a shard, and those of its queues."""

    number: int
    queues: dict[str, int]
    """Queue numbers by name: those in deletion and damaged ones included."""


class Names:
    """All tenants and queues of a shard by name."""

    __slots__ = ("_changes", "_limits", "_numbering", "closing", "damaged", "lost", "queues", "tenants")

    def __init__(self, limits: Limits, numbering: Numbering, changes: Changes) -> None:
        self._limits, self._numbering, self._changes = limits, numbering, changes
        self.tenants: dict[str, Tenant] = {}
        self.queues: dict[tuple[str, str], Queue] = {}
        """By tenant and name."""
        self.closing: dict[tuple[str, str], Queue] = {}
        """Deleted queues that still have leases: commands for them are refused."""
        self.damaged: dict[tuple[str, str], str] = {}
        """Queues whose records are damaged, and why: commands for them are refused."""
        self.lost: dict[str, str] = {}
        """Tenants whose keys, values and limits are damaged, and why: commands for them are refused."""

    # Find.

    def known(self, tenant: str, name: str) -> Queue:
        queue = self.queues.get((tenant, name))
        if queue is None:
            check_queue_name(name)
            self._check_damage(tenant, name)
            raise self.missing(tenant, name)
        return queue

    def missing(self, tenant: str, name: str) -> NotFound:
        """Return the error of a queue that is not there: it names those that may be meant."""
        known = self.tenants.get(tenant)
        meant = [
            each
            for each in nearest(name, known.queues if known else {})
            if (queue := self.queues.get((tenant, each))) is not None and not queue.closing_at
        ]
        return NotFound(f"there is no queue {name}" + (f"; is {' or '.join(meant)} meant?" if meant else ""))

    def of_tenant(self, tenant: str) -> list[Queue]:
        known = self.tenants.get(tenant)
        found = (self.queues.get((tenant, name)) for name in sorted(known.queues if known else ()))
        return [queue for queue in found if queue is not None]

    # Check.

    def check_new(self, tenant: str, name: str) -> None:
        """Raise unless a queue of that name can be created now."""
        self._check_damage(tenant, name)
        check_queue_name(name)
        check_name("tenant", tenant)
        self.check_count(tenant, 1)

    def check_count(self, tenant: str, new: int) -> None:
        """Raise unless a tenant can have so many more queues."""
        known = self.tenants.get(tenant)
        if (len(known.queues) if known else 0) + new > self._limits.queues_max:
            raise Busy(f"a tenant has at most {self._limits.queues_max} queues")
        self._numbering.check_names(is_new_tenant=known is None)

    def check_own(self, tenant: str) -> None:
        """Raise if the keys, values and limits of a tenant are damaged."""
        why = self.lost.get(tenant)
        if why is not None:
            raise Damaged(f"{why}; stop the server and run forebay verify")

    def _check_damage(self, tenant: str, name: str) -> None:
        if (tenant, name) in self.closing:
            raise Conflict(f"queue {name} is being deleted: it goes when nothing of it is leased any more")
        why = self.damaged.get((tenant, name))
        if why is not None:
            raise Damaged(f"queue {name} can't be read: {why}; stop the server and run forebay verify")

    # Create and remove.

    def own_prefix(self, tenant: str) -> bytes:
        """Return the prefix of a tenant's records that belong to no queue. Its name was checked."""
        return keyspace.own_prefix(self._made(tenant).number)

    def create(self, tenant: str, name: str) -> Queue:
        """Add a queue with default options and nothing in it. Its name was checked."""
        known = self._made(tenant)
        number = known.queues[name] = self._numbering.next_queue()
        key = keyspace.queue_name_key(self._numbering.number, known.number, name)
        self._changes.put_own(key, codec.pack_numbers((number,)))
        queue = new_queue(tenant, name, keyspace.prefix(known.number, number), self._numbering.number)
        self.queues[tenant, name] = queue
        return queue

    def _made(self, tenant: str) -> Tenant:
        known = self.tenants.get(tenant)
        if known is None:
            known = self.tenants[tenant] = Tenant(self._numbering.next_tenant(), {})
            key = keyspace.tenant_key(self._numbering.number, tenant)
            self._changes.put_own(key, codec.pack_numbers((known.number,)))
        return known

    def close(self, queue: Queue) -> None:
        """Refuse commands for a queue from now on."""
        place = queue.tenant, queue.name
        del self.queues[place]
        self.closing[place] = queue

    def remove(self, queue: Queue) -> None:
        """Remove the name of a queue; its number is never given out again."""
        place = queue.tenant, queue.name
        known = self.tenants[queue.tenant]
        del known.queues[queue.name]
        self.queues.pop(place, None)
        self.closing.pop(place, None)
        key = keyspace.queue_name_key(self._numbering.number, known.number, queue.name)
        self._changes.put_own(key, None)


def new_queue(tenant: str, name: str, prefix: bytes, shard: int) -> Queue:
    """Return a queue with default options and nothing in it."""
    return Queue(
        tenant=tenant,
        name=name,
        prefix=prefix,
        shard=shard,
        options=QueueOptions(),
        partitions={},
        groups={},
    )


class DecodedNames(Struct):
    """The names of a shard as they are stored."""

    tenants: dict[str, Tenant] = {}
    partitions_made: int = 0
    queues_made: int = 0
    tenants_made: int = 0
    """Numbers given out."""


def decode(shard: int, shards: int, found: Iterable[Record]) -> DecodedNames:
    """Decode the records of ``keyspace.shard_bounds``; raise ``Damaged`` if they can't be right."""
    names = DecodedNames()
    by_number: dict[int, Tenant] = {}
    queues: list[tuple[int, str, int]] = []
    start = keyspace.SHARD_KIND_AT
    try:
        for key, value in found:
            numbers = codec.unpack_numbers(value)
            match key[start : start + 1]:
                case b"N":
                    names.partitions_made, names.queues_made, names.tenants_made = numbers
                case b"Q":
                    (number,) = numbers
                    tenant = int.from_bytes(key[start + 1 : start + 5], "big")
                    queues.append((tenant, key[start + 5 :].decode(), number))
                case b"T":
                    (number,) = numbers
                    known = by_number[number] = Tenant(number, {})
                    names.tenants[key[start + 1 :].decode()] = known
                case kind:
                    raise Damaged(f"no record of shard {shard} has kind {kind!r}")
    except (MsgspecError, ValueError) as error:
        raise Damaged(f"a record of shard {shard} can't be decoded: {error}") from None
    for tenant, name, number in queues:
        if tenant not in by_number:
            raise Damaged(f"queue {name} belongs to tenant number {tenant}, which does not exist")
        by_number[tenant].queues[name] = number
    _check(shard, shards, names, [number for _, _, number in queues])
    return names


def _check(shard: int, shards: int, names: DecodedNames, queues: list[int]) -> None:
    """Raise unless every number was given out by the shard, and once: it would be given out again."""
    tenants = [tenant.number for tenant in names.tenants.values()]
    for what, numbers, made in (
        ("tenant", tenants, names.tenants_made),
        ("queue", queues, names.queues_made),
    ):
        if len(set(numbers)) < len(numbers):
            raise Damaged(f"a {what} of shard {shard} has the number of another")
        for number in numbers:
            if number % shards != shard or not 1 <= number // shards <= made:
                raise Damaged(f"shard {shard} has given no {what} the number {number}")
    if min(names.partitions_made, names.queues_made, names.tenants_made) < 0:
        raise Damaged(f"shard {shard} has given out less than no numbers")
