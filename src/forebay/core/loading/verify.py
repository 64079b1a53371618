"""Verify a store: walk everything it holds and report damage by tenant, queue, partition and segment.

It changes nothing and continues after each finding, so one damaged segment hides no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from forebay.core.errors import Damaged
from forebay.core.loading import check, decode
from forebay.core.log.bodies import is_whole
from forebay.core.records import keyspace
from forebay.core.records.commit import Record, Scan
from forebay.core.routing import control
from forebay.core.routing.placement import home_of, shard_of_queue
from forebay.core.shard import names
from forebay.core.shard.names import Tenant, new_queue
from forebay.core.shard.numbering import Numbering
from forebay.core.state import Queue, Segment
from forebay.core.words import is_own

BODIES_AT_ONCE = 64
OWN = "(keys, values and limits)"
"""Queue name in the report of a tenant's records that belong to no queue."""

NAMES = "(names)"
"""Tenant name in the report of names that are damaged or missing."""
TENANT_BYTES = 4
"""Bytes of a key that say of which tenant it is."""
LAST = b"\xff" * 8
"""Upper bound of all keys but the store's own."""

ReadBodies = Callable[[Sequence[bytes]], Sequence[bytes | Damaged | None]]


class Report(Struct):
    """What a queue holds, and its damage."""

    tenant: str
    queue: str
    partitions: int = 0
    segments: int = 0
    messages: int = 0
    payload_bytes: int = 0
    damage: list[str] = []
    """One line each: where, and what is wrong."""


def verify(shards: int, scan: Scan, bodies: ReadBodies, found: set[bytes]) -> Iterator[Report]:
    """Yield a report per queue. ``found`` collects the keys of all bodies that segments name.

    Raises ``Damaged`` if not even the control records can be read.
    """
    known_tenants = control.load(None, scan(*keyspace.control_bounds())).tenants
    listed = {name: each.spread for name, each in known_tenants.items()}
    prefixes: set[bytes] = set()
    damaged: set[int] = set()
    for shard in range(shards):
        try:
            decoded = names.decode(shard, shards, scan(*keyspace.shard_bounds(shard)))
        except Damaged as error:
            yield Report(NAMES, f"shard {shard}", damage=[error.message])
            damaged.add(shard)
            continue
        for tenant, known in decoded.tenants.items():
            prefixes.add(keyspace.own_prefix(known.number))
            prefixes |= {keyspace.prefix(known.number, number) for number in known.queues.values()}
            where = shard, shards, listed.get(tenant)
            made = decoded.partitions_made
            yield from _verify_tenant(tenant, known, *where, made, scan, bodies, found)
    for prefix in _unnamed(scan, prefixes):
        if int.from_bytes(prefix[:4], "big") % shards in damaged:
            continue  # its names can't be read: that was said
        numbers = [int.from_bytes(each, "big") for each in (prefix[4:], prefix[:4])]
        what = "queue number {} of tenant number {}".format(*numbers)
        yield Report(NAMES, what, damage=["there are records of it, and it has no name"])


def own_prefixes(shards: int, scan: Scan) -> frozenset[bytes]:
    """Return how the records of the server's own tenants begin, as far as names can be read."""
    found: set[bytes] = set()
    for shard in range(shards):
        try:
            tenants = names.decode(shard, shards, scan(*keyspace.shard_bounds(shard))).tenants
        except Damaged:
            continue
        own = (known.number for tenant, known in tenants.items() if is_own(tenant))
        found |= {keyspace.own_prefix(number)[:TENANT_BYTES] for number in own}
    return frozenset(found)


def _unnamed(scan: Scan, named: set[bytes]) -> Iterator[bytes]:
    """Yield the prefixes of records that no name leads to."""
    at = keyspace.META + b"\xff"
    while first := next(iter(scan(at, LAST)), None):
        prefix = first[0][: len(keyspace.META)]
        if prefix not in named:
            yield prefix
        at = prefix + b"\xff"


def _verify_tenant(
    tenant: str,
    known: Tenant,
    shard: int,
    shards: int,
    spread: bool | None,
    made: int,
    scan: Scan,
    bodies: ReadBodies,
    found: set[bytes],
) -> Iterator[Report]:
    for name, number in known.queues.items():
        report = Report(tenant, name)
        place = shard_of_queue(tenant, name, shards) if spread else home_of(tenant, shards)
        if place != shard:
            report.damage.append(f"it lies in shard {shard}, and belongs in {place}")
        prefix = keyspace.prefix(known.number, number)
        numbering = Numbering(shard, shards)
        numbering.made = made
        _verify_queue(report, prefix, numbering, scan(*keyspace.queue_bounds(prefix)), bodies, found)
        yield report
    own: list[str] = []
    if spread is None and not is_own(tenant):
        own.append("the tenant is in no control record")
    try:
        entries, limits = decode.decode_own(scan(*keyspace.own_bounds(keyspace.own_prefix(known.number))))
        if (entries or limits) and home_of(tenant, shards) != shard:
            own.append(f"they lie in shard {shard}, and belong in {home_of(tenant, shards)}")
    except Damaged as error:
        own.append(error.message)
    if own:
        yield Report(tenant, OWN, damage=own)


def _verify_queue(
    report: Report,
    prefix: bytes,
    numbering: Numbering,
    held: Iterable[Record],
    bodies: ReadBodies,
    found: set[bytes],
) -> None:
    queue = new_queue(report.tenant, report.queue, prefix, numbering.number)
    try:
        records_ = decode.decode(queue, held)
    except Damaged as error:
        report.damage.append(error.message)
        return
    try:
        check.check(records_)
    except Damaged as error:
        report.damage.append(error.message)
    report.partitions = len(records_.partitions)
    given = (number for packed in records_.partitions.values() for number, _ in packed.numbers)
    if not all(map(numbering.has_given, given)):
        report.damage.append("a partition has a number that was never given out")
    for key, segments in records_.segments.items():
        name = records_.partitions[key].name if key in records_.partitions else f"number {key}"
        for at in range(0, len(segments), BODIES_AT_ONCE):
            _verify_segments(report, prefix, name, segments[at : at + BODIES_AT_ONCE], bodies, found)
    _verify_stages(report, prefix, queue, bodies, found)
    for noted in records_.notes.values():
        keys = [keyspace.body_key(prefix, segment.body_name) for segment, _ in noted]
        found.update(keys)
        for at in range(0, len(keys), BODIES_AT_ONCE):
            read = bodies(keys[at : at + BODIES_AT_ONCE])
            for (segment, _), body in zip(noted[at : at + BODIES_AT_ONCE], read, strict=True):
                why = _damage(segment, body)
                if why is not None:
                    report.damage.append(f"what is kept beside messages, from note {segment.base} on: {why}")


def _verify_stages(
    report: Report, prefix: bytes, queue: Queue, bodies: ReadBodies, found: set[bytes]
) -> None:
    for stage in queue.stages.values():
        for part in stage.parts:
            if part.body is None:
                key = keyspace.body_key(prefix, part.body_name)
                found.add(key)
                segment = Segment(0, part.count, part.size, 0)
                why = _damage(segment, bodies([key])[0])
                if why is not None:
                    report.damage.append(f"stage {stage.name}, write {part.at}: {why}")


def _verify_segments(
    report: Report,
    prefix: bytes,
    partition: str,
    segments: list[Segment],
    bodies: ReadBodies,
    found: set[bytes],
) -> None:
    report.segments += len(segments)
    report.messages += sum(segment.count for segment in segments)
    report.payload_bytes += sum(segment.size for segment in segments)
    segments = [segment for segment in segments if segment.payloads is None]  # others hold them themselves
    keys = [keyspace.body_key(prefix, segment.body_name) for segment in segments]
    found.update(keys)
    for segment, body in zip(segments, bodies(keys), strict=True):
        why = _damage(segment, body)
        if why is not None:
            report.damage.append(
                f"partition {partition}, segment of offsets {segment.base} up to {segment.end}: {why}"
            )


def _damage(segment: Segment, body: bytes | Damaged | None) -> str | None:
    if body is None:
        return "its body is missing"
    if isinstance(body, Damaged):
        return f"its body can't be read: {body.message}"
    if not is_whole(body, segment.count, segment.size):
        return "its body is not what was written"
    return None
