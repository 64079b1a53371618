"""Root state of a node: all shards, and how names, ids and leases lead to them."""

from collections import Counter

from forebay.core.api.checks import check_partitions
from forebay.core.api.commands import Settle
from forebay.core.bounds import Limits, check_queue_name
from forebay.core.errors import Conflict, Damaged, Invalid, NotFound
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK, Range, parse_lease, ranges
from forebay.core.log.numbers import id_at
from forebay.core.shard import addresses
from forebay.core.shard.addresses import split
from forebay.core.shard.ends import Ended, NotificationQueue
from forebay.core.shard.names import Directory
from forebay.core.shard.shard import Shard
from forebay.core.state import (
    Cron,
    EmittedEvent,
    EventLog,
    Lease,
    Limiter,
    NamedLimit,
    Queue,
    QueueOptions,
    Tally,
    Values,
)
from forebay.core.structures.agenda import Alarm
from forebay.core.words import CREATED, FSYNC


class Domain:
    """The queues of a node."""

    def __init__(self, limits: Limits, directory: Directory, shards: int) -> None:
        self.limits = limits
        self.directory = directory
        self.changed: list[Shard] = []
        self.alarm = Alarm()
        self.updated: set[int] = set()
        """Keys of partitions with successors."""
        self.ends: list[Ended] = []
        """Ended messages whose consequences are still to be settled."""
        self.notifications: dict[int, NotificationQueue] = {}
        """Ended messages whose dependents are notified in batches, by partition key."""
        self.rows_notified = 0
        """Rows of dependents notified in this tick."""
        self.emptied: dict[bytes, Queue] = {}
        """Closed queues of which a lease has ended, by prefix."""
        common = (0, limits, self.changed, self.alarm, self.updated, self.ends, self.notifications)
        self.shards = [Shard(number, shards, *common) for number in range(shards)]
        self.named_limits: dict[str, dict[str, NamedLimit]] = {}
        """Named limits, by tenant and name."""
        self.limiters: dict[str, dict[str, Limiter]] = {}
        """Their limiters."""
        for shard in self.shards:
            shard.peers, shard.limiters, shard.emptied = self.shards, self.limiters, self.emptied
        self.queues: dict[tuple[str, str], Queue] = {}
        """By tenant and name."""
        self.closing: dict[tuple[str, str], Queue] = {}
        """Deleted queues that still have leases: commands for them are refused."""
        self.damaged: dict[tuple[str, str], str] = {}
        """Queues whose records are damaged, and why: commands for them are refused."""
        self.reach = FSYNC
        """The store's durability."""
        self.crons: dict[str, dict[str, Cron]] = {}
        """By tenant and name."""
        self.cron_bytes: Counter[str] = Counter()
        """Payload bytes of crons, by tenant."""
        self.values: dict[str, Values] = {}
        """Keys and values, by tenant."""
        self.lost: dict[str, str] = {}
        """Tenants whose keys, values and limits are damaged, and why: commands for them are refused."""
        self.watched_keys = 0
        """Number of watchers of keys."""
        self.touched_keys: dict[tuple[str, bytes], None] = {}
        """Watched keys that changed, with their tenants."""
        self.tallies: dict[bytes, Tally] = {}
        """Counters since the node started, by queue prefix."""
        self.event_logs: dict[int, EventLog] = {}
        """Event logs, by shard."""
        self.listening = False
        """Whether there are subscribers of events."""
        self.emitted: list[EmittedEvent] = []
        """Events of the last seal's commits, if there are subscribers."""
        self.wants_sync = False
        """Whether the next seal must ask for a sync, whatever is in it."""
        self.now = 0

    def check_own(self, tenant: str) -> None:
        """Raise if the keys, values and limits of a tenant are damaged."""
        why = self.lost.get(tenant)
        if why is not None:
            raise Damaged(f"{why}; stop the server and run forebay verify")

    def home(self, tenant: str) -> tuple[Shard, bytes]:
        """Return the shard and prefix of a tenant's records that belong to no queue."""
        own, shard = self.directory.own(tenant)
        return self.shards[shard], own

    # Finding and making queues.

    def known(self, tenant: str, name: str) -> Queue:
        queue = self.queues.get((tenant, name))
        if queue is None:
            check_queue_name(name)
            self._check_damage(tenant, name)
            raise NotFound(f"there is no queue {name}")
        return queue

    def check_new(self, tenant: str, name: str) -> None:
        """Raise unless a queue of that name can be created now."""
        self._check_damage(tenant, name)
        self.directory.check_new(tenant, name)

    def _check_damage(self, tenant: str, name: str) -> None:
        if (tenant, name) in self.closing:
            raise Conflict(f"queue {name} is being deleted: it goes when nothing of it is leased any more")
        why = self.damaged.get((tenant, name))
        if why is not None:
            raise Damaged(f"queue {name} can't be read: {why}; stop the server and run forebay verify")

    def made(self, tenant: str, name: str) -> Queue:
        """Return a queue; create it if it is missing. Its name was checked."""
        queue = self.queues.get((tenant, name))
        if queue is None:
            prefix, shard = self.directory.create(tenant, name)
            queue = new_queue(tenant, name, prefix, shard)
            self.queues[tenant, name] = queue
            self.shards[shard].add_queue(queue)
            self.shards[shard].changes.change_log.note_queue(CREATED, queue)
        return queue

    def check_room(
        self, tenant: str, name: str, queue: Queue | None, partitions: set[str], numbers: int
    ) -> None:
        """Raise unless a push may create the queue, partitions and numbers it needs."""
        if queue is None:
            self.check_new(tenant, name)
        check_partitions(self.limits, queue, partitions)
        shard = self.directory.next_shard(tenant) if queue is None else queue.shard
        if numbers:
            self.shards[shard].numbering.check(numbers)

    def shards_of(self, ids: list[int]) -> list[tuple[Shard, list[Range]]]:
        """Group ids by shard."""
        count = len(self.shards)
        by_shard: dict[int, list[Range]] = {}
        for each in ranges(ids):
            by_shard.setdefault((each.first >> OFFSET_BITS) % count, []).append(each)
        found = [(self.shards[number], theirs) for number, theirs in by_shard.items()]
        return [(shard, split(shard, theirs)) for shard, theirs in found]

    def shard_of(self, message: int) -> Shard:
        """Return the shard of a message id."""
        if message < 0:
            raise Invalid("id", "a message id")
        return self.shards[(message >> OFFSET_BITS) % len(self.shards)]

    def current(self, ids: list[int]) -> list[int]:
        """Return the ids of successors; the same list if there are none."""
        if not self.updated or not any(map(self._is_updated, set(map(OFFSET_BITS.__rrshift__, ids)))):
            return ids
        found = list(map(self._current, ids))
        return ids if found == ids else found

    def _is_updated(self, number: int) -> bool:
        """Whether a partition number has updated messages."""
        place = self.shards[number % len(self.shards)].places.get(number)
        return place is not None and place.partition.key in self.updated

    def _current(self, message: int) -> int:
        place = self.shards[(message >> OFFSET_BITS) % len(self.shards)].places.get(message >> OFFSET_BITS)
        if place is None or place.partition.key not in self.updated:
            return message
        offset = place.first + (message & OFFSET_MASK)
        row = place.partition.successors.upto(offset)
        if row is None or row[0] != offset:
            return message
        return id_at(place.partition, row[1])

    def leased(self, command: Settle) -> tuple[Shard, Lease]:
        """Return the live lease that a command names, and its shard."""
        assert command.lease is not None
        number, name = parse_lease(command.lease)
        if number >= len(self.shards):
            raise Conflict(addresses.NOT_LIVE)
        shard = self.shards[number]
        return shard, addresses.live_lease(shard, command.tenant, name, command.group)

    def by_shard(self, command: Settle) -> list[tuple[Shard, Lease | None, list[Range]]]:
        """Group the ids of a command by shard, with the lease it names."""
        assert command.ids is not None
        if command.lease is not None:
            return [(*self.leased(command), ranges(command.ids))]
        by_shard: list[tuple[Shard, Lease | None, list[Range]]] = [
            (shard, None, theirs) for shard, theirs in self.shards_of(command.ids)
        ]
        for shard, _, theirs in by_shard:
            for each in theirs:
                place = shard.places.get(each.first >> OFFSET_BITS)
                queue = place.queue if place is not None else None
                if queue is not None and queue.options.require_lease and queue.tenant == command.tenant:
                    raise Invalid("lease", f"given: queue {queue.name} requires it")
        return by_shard

    def of_tenant(self, tenant: str) -> list[Queue]:
        known = self.directory.tenants.get(tenant)
        found = (self.queues.get((tenant, name)) for name in sorted(known.queues if known else ()))
        return [queue for queue in found if queue is not None]


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
