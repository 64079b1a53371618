"""Everything of an engine that is stored, in a form that can be compared."""

from collections.abc import Container, Iterator
from operator import attrgetter

from forebay.core.engine import Engine
from forebay.core.state import NO_PAST, Group, Notes, Partition, Schedule, Scheduled
from tests.sim import job_checks


def runs_of(schedule: Schedule) -> list[Scheduled]:
    """``list(schedule)``, in a tenth of the time: this is asked at every step."""
    found = [
        Scheduled(due_at, first, count, level, *schedule._past.get(first, NO_PAST))
        for level, line in schedule._lines.items()
        for due_at, first, count in line
    ]
    return sorted(found, key=attrgetter("first"))


def snapshot(engine: Engine, renumbered: Container[int] = ()) -> object:
    """Everything of an engine that is stored, in a form that can be compared.

    But for the last number of partitions that were ``renumbered``.
    """
    return {"tenants": job_checks.snapshot_tenants(engine)} | {
        name: (
            queue.prefix,
            queue.shard,
            queue.options,
            queue.groups_made,
            queue.paused_until,
            [_partition(partition, renumbered) for partition in queue.partitions.values()],
            [_group(group) for group in queue.groups.values()],
            {kind: _notes(notes) for kind, notes in queue.notes.items() if notes.about},
            job_checks.snapshot(queue),
            sorted(
                (
                    (lease.name, lease.group.name, lease.due_at, lease.cancelled),
                    sorted(map(_lease_run, lease.runs.values())),
                )
                for lease in engine.shards[queue.shard].leases.values()
                if lease.queue is queue
            ),
        )
        for name, queue in sorted(engine.queues.items())
    }


def _partition(partition: Partition, renumbered: Container[int]) -> object:
    log = partition.log
    segments = [
        (
            (each.base, each.count, each.size, each.created_at, each.body_name),
            (each.spread, each.sets, each.which, each.aside),
        )
        for each in log.segments
    ]
    numbers = partition.numbers[:-1] if partition.key in renumbered else partition.numbers
    kept = (list(partition.marks), list(partition.withdrawn), log.first, log.end, log.mixed)
    islands = (log.islands, log.strays, log.size)
    beside = (partition.progress, list(partition.successors), partition.retention, partition.emptied_at)
    jobs = job_checks.snapshot_of(partition)
    return (partition.key, partition.name, list(numbers), kept, islands, beside, segments, jobs)


def _notes(notes: Notes) -> object:
    log = notes.log
    segments = [(each.base, each.count, each.size, each.created_at, each.body_name) for each in log.segments]
    return (list(notes.about), log.first, log.end, segments)


def _group(group: Group) -> object:
    tracks = {
        key: (
            (track.cursor, track.turn, track.planned),
            (list(track.skips), runs_of(track.schedule), list(track.outcomes)),
            (list(track.dead), sorted(track.letters.items())),
            (track.leased, track.aside, track.unplanned, track.dead_messages, track.schedule.messages),
            list(track.ended),
        )
        for key, track in group.tracks.items()
    }
    return (group.number, group.name, group.active_at, tracks, sorted(group.unplanned))


def _lease_run(run: object) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in run.__struct_fields__)  # type: ignore[attr-defined]


def differences(one: object, other: object, path: str = "") -> Iterator[str]:
    """Where two of them are not the same."""
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, f"{path}/{at}")
    else:
        yield f"{path}: {one} is not {other}"
