"""Verify a store: walk everything it holds and report damage by tenant, queue, partition and segment.

It changes nothing and continues after each finding, so one damaged segment hides no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from forebay.core.bounds import Limits
from forebay.core.errors import Damaged
from forebay.core.loading import check, decode
from forebay.core.log.bodies import is_whole
from forebay.core.records import keyspace
from forebay.core.records.commit import Record, Scan
from forebay.core.shard import names as directories
from forebay.core.shard.domain import new_queue
from forebay.core.state import Queue, Segment

BODIES_AT_ONCE = 64
OWN = "(keys, values and limits)"
"""Queue name in the report of a tenant's records that belong to no queue."""

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

    Raises ``Damaged`` if not even the names of the queues can be read.
    """
    directory, _ = directories.load(shards, 0, Limits(), scan(*keyspace.meta_bounds()))
    for tenant, known in directory.tenants.items():
        for name, (queue_id, shard) in known.queues.items():
            report = Report(tenant, name)
            prefix = keyspace.prefix(known.id, queue_id)
            _verify_queue(report, prefix, shard, scan(*keyspace.queue_bounds(prefix)), bodies, found)
            yield report
        try:
            decode.decode_own(scan(*keyspace.own_bounds(keyspace.own_prefix(known.id))))
        except Damaged as error:
            yield Report(tenant, OWN, damage=[error.message])


def _verify_queue(
    report: Report, prefix: bytes, shard: int, held: Iterable[Record], bodies: ReadBodies, found: set[bytes]
) -> None:
    queue = new_queue(report.tenant, report.queue, prefix, shard)
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
    segments = [segment for segment in segments if segment.payloads is None]  # others hold them themselves
    keys = [keyspace.body_key(prefix, segment.body_name) for segment in segments]
    found.update(keys)
    for segment, body in zip(segments, bodies(keys), strict=True):
        report.segments += 1
        report.messages += segment.count
        report.payload_bytes += segment.size
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
