"""What is compared of keys, ids and messages that wait for others."""

from msgspec.structs import replace

from forebay.core.api import queries
from forebay.core.engine import Engine
from forebay.core.ids import OFFSET_BITS, OFFSET_MASK
from forebay.core.state import PLAIN, Bucket, Group, Limiter, Partition, Queue, Tie, weight
from tests.sim import model as m
from tests.sim.inside import crons_of, limiters_of, limits_of, notifying, values_of
from tests.sim.jobs_model import JobModel
from tests.sim.system_model import Name, SystemModel

Ties = dict[int, tuple[str, tuple[bytes, ...], int]]


def check_queue(queue: Queue, known: m.Queue, now: int) -> None:
    """A key is held by one message that has not ended, and every id leads where it should."""
    keys = {partition.name: partition.key for partition in queue.partitions.values()}
    assert queue.uniques == {key: _at(keys, message) for key, message in known.uniques.items()}
    for key, message in known.uniques.items():
        assert message.tie is not None
        assert message.tie.key == key
    assert queue.named == {name: _at(keys, message) for name, message in known.named.items()}
    assert sum(len(partition.job_ids) for partition in queue.partitions.values()) == len(queue.named)
    once = {"\0".join(name): each for name, each in known.once.items() if each[0] > now}
    found = {_name(name): each for name, each in queue.remembered.items() if each.until > now}
    assert {name: each.until for name, each in found.items()} == {
        name: at for name, (at, _, _) in once.items()
    }
    assert queue.tied_bytes == sum(
        len(message.payload)
        for messages in known.messages.values()
        for message in messages
        if message.tie is not None and message.tie.keys
    )


def _name(name: bytes) -> str:
    return name[:1].decode() + "\0" + name[1:].decode()


def _at(keys: dict[str, int], message: m.Message) -> tuple[int, int]:
    return keys[message.place[0]], message.place[1]


def check_partition(queue: Queue, partition: Partition, known: m.Queue, *, told: bool) -> None:
    """Nothing that ended is tied; what is parked waits for as many as it should, if all were ``told``."""
    messages = known.messages[partition.name]
    found: Ties = {at: (tie.unique_key, tie.keys, tie.expires_at) for at, tie in partition.ties.items()}
    wanted: Ties = {}
    for at, message in enumerate(messages):
        if message.tie is not None:
            wanted[at] = (message.tie.key, message.tie.keys, message.tie.watch_at)
    assert found == wanted, (queue.name, partition.name, found, wanted)
    assert partition.links_count == len(partition.ties) + partition.dependents.size
    parked = {at: unmet for first, count, unmet in partition.parked for at in range(first, first + count)}
    unmet = {at: len(each.unmet) for at, each in enumerate(messages) if each.parked}
    assert parked == unmet if told else parked.keys() == unmet.keys(), (queue.name, parked, unmet)
    assert partition.parked_messages == len(parked)
    doomed = {at for at, each in enumerate(messages) if each.parked and each.doomed}
    saved = {at for at, each in enumerate(messages) if each.fallen and not each.doomed}
    assert not told or not (doomed or saved), (queue.name, partition.name, doomed, saved)
    assert partition.lane == (partition.name in known.lanes)
    rows = known.taken.get(partition.name, [])
    taken = {name: message.place[1] for row in rows for message, name, _ in row}
    assert {name: offset for name, (offset, _) in partition.transactions.items()}.items() <= taken.items()
    names = {name: (offset, at) for at, row in partition.taken.values() for offset, name in row}
    assert partition.transactions == names


def check_waiting(engine: Engine, model: JobModel) -> None:
    """For all that a message waits for there is one row that leads back to it, and none for anything else."""
    wanted = {
        (target.id, message.id)
        for message in model.waiting
        if message.parked or message.fallen
        for target in message.unmet.values()
    }
    found: list[tuple[int, int]] = []
    shards = len(engine.shards)
    for queue in engine.queues.values():
        for partition in queue.partitions.values():
            messages = model.queues[queue.name].messages[partition.name]
            for first, dependent, count, waiting in partition.dependents:
                number = dependent >> OFFSET_BITS
                place = engine.shards[number % shards].places.get(number)
                offset = place.first + (dependent & OFFSET_MASK) if place is not None else 0
                others = (
                    model.queues[place.queue.name].messages[place.partition.name][offset : offset + waiting]
                    if place is not None
                    else []
                )
                parked = [message.id for message in others if message.parked or message.fallen]
                met = partition.met.get((first, dependent), 0)
                targets = [messages[first + at] for at in range(count) if not met >> at & 1]
                found += [(target.id, each) for target in targets for each in parked]
                if not parked and not notifying(engine):
                    assert all(model.standing(target) in (None, m.DEAD) for target in targets), (first, count)
    assert notifying(engine) or sorted(found) == sorted(wanted), (set(found) - wanted, wanted - set(found))


def check_limits(group: Group, model: SystemModel, queue: str) -> None:
    """A limit counts what is leased under it, and has the tokens that it should."""
    known = model.queues[queue]
    reader, options = known.groups[group.name], known.options
    own = bool(options.rate_limit or options.byte_limit or options.concurrency)
    names: list[Name] = [("group", queue, group.name)] if own else []
    names += [("named", name) for name in options.limits if name in model.named]
    assert len(group.limits) == len(names)
    for limiter, name in zip(group.limits, names, strict=True):
        active = model.active(reader) if name[0] == "group" else model.active_under(name[1])
        _check_limiter(limiter, active, model, name)
    for track in group.tracks.values():
        name = ("partition", queue, group.name, track.partition.name)
        limit = track.own_limit
        most = model.partition_concurrency(queue, track.partition.name)
        assert (limit is not None) == bool(most or options.partition_rate_limit)
        assert track.limits == (*group.limits, *([limit] if limit is not None else []))
        if limit is not None:
            assert limit.concurrency == most
            _check_limiter(limit, track.leased, model, name)


def _check_limiter(limiter: Limiter, active: int, model: SystemModel, name: Name) -> None:
    assert (limiter.active, limiter.taken) == (active, 0), name
    _check_bucket(limiter.bucket, model, name)
    if name[0] == "partition":
        assert limiter.byte_bucket is None
    else:
        _check_bucket(limiter.byte_bucket, model, (f"{name[0]} bytes", *name[1:]))


def _check_bucket(bucket: Bucket | None, model: SystemModel, name: Name) -> None:
    tokens = model.tokens_of(name, model.now)
    assert (bucket is None) == (tokens is None)
    if bucket is not None and tokens is not None:
        assert bucket.rate == tokens.rate
        tokens.whole(model.now)
        bucket.refill(model.now)
        assert bucket.parts == tokens.parts, name


def check_tenant(engine: Engine, model: SystemModel, now: int) -> None:
    """Crons, and keys with their values, are those that they should be."""
    crons = crons_of(engine).get("default", {})
    assert {
        name: (each.fired, each.last_slot, each.next_at, each.skipped) for name, each in crons.items()
    } == {name: (each.fired, each.last_slot, each.next_at, 0) for name, each in model.crons.items()}
    values = values_of(engine).get("default")
    entries = values.entries if values is not None else {}
    found = {key: (each.data, each.version, each.expires_at) for key, each in entries.items()}
    assert found == {
        key: (each.data, each.version, each.expires_at)
        for key, each in model.entries.items()
        if model.entry(key, now) is not None
    }
    if values is not None:
        assert list(values.keys.between(b"", b"\xff")) == sorted(entries)
        assert values.size == sum(weight(key, each) for key, each in entries.items())


def snapshot_tenants(engine: Engine) -> object:
    """What is a tenant's, but no queue's."""
    crons = [
        {field: getattr(each, field) for field in each.__struct_fields__}
        for _, named in sorted(crons_of(engine).items())
        for _, each in sorted(named.items())
    ]
    values = sorted(
        (tenant, sorted(each.entries.items())) for tenant, each in values_of(engine).items() if each.entries
    )
    limits = sorted((tenant, sorted(each.items())) for tenant, each in limits_of(engine).items() if each)
    active = sorted(
        (tenant, name, each.active)
        for tenant, named in limiters_of(engine).items()
        for name, each in named.items()
    )
    return (crons, values, limits, active)


def show(found: queries.StateFound, known: m.Queue, message: m.Message) -> None:
    """Tell of a message what it has for itself."""
    first = known.messages[message.place[0]][known.firsts(message.place)[1]]
    found.job_id = next((name for name, each in known.named.items() if each is first), None)
    found.unique_key = (message.tie.key or None) if message.tie is not None else None
    found.depends_on = message.attributes.depends_on


def as_modelled(found: queries.StateFound) -> queries.StateFound:
    """The same without what the model has no word for; tests/core/test_shown.py looks at that."""
    return replace(
        found,
        attributes=PLAIN,
        progress=None,
        leased_at=None,
        parent=None,
        bound=False,
        lost=False,
        error_type="",
    )


def snapshot(queue: Queue) -> object:
    """Everything of a queue that is known by key or id."""
    once = sorted((name, each.until, each.ids, each.durability) for name, each in queue.remembered.items())
    return (sorted(queue.uniques.items()), sorted(queue.named.items()), once, queue.tied_bytes)


def snapshot_of(partition: Partition) -> object:
    """The same of a partition, and what waits for others."""
    ties: list[tuple[int, Tie]] = sorted(partition.ties.items())
    counts = (partition.links_count, partition.parked_messages, partition.lane)
    waits = (list(partition.parked), list(partition.dependents))
    ids = (sorted(partition.job_ids.items()), sorted(partition.transactions.items()))
    return (ties, counts, waits, ids, sorted(partition.taken.items()))
