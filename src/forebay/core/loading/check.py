"""Check decoded records against each other before anything is built from them."""

from forebay.core.errors import Damaged
from forebay.core.loading.decode import DecodedRecords, counted
from forebay.core.loading.headers import load_log
from forebay.core.log import log as logs
from forebay.core.state import Log


def check(found: DecodedRecords) -> dict[int, Log]:
    """Return the logs of the partitions; raise ``Damaged`` if records refer to something missing."""
    known = {(group, partition) for group in found.groups for partition in found.partitions}
    spoken_of = found.rows.keys() | found.cursors.keys()
    spoken_of |= {(group, run.partition) for _, group, runs, *_ in found.leases for run in runs}
    if not spoken_of <= known:
        raise Damaged(f"groups and partitions are missing: {sorted(spoken_of - known)}")
    logged = found.segments.keys() | found.withdrawn.keys() | found.progress.keys() | found.successors.keys()
    logged |= found.ties.keys() | found.job_ids.keys() | found.dependents.keys() | found.parked.keys()
    logged |= found.taken.keys() | {partition for _, _, partition, _, _ in found.ended}
    if not logged <= found.partitions.keys():
        raise Damaged(f"partitions are missing: {sorted(logged - found.partitions.keys())}")
    _check_names(found)
    _check_notes(found)
    _check_overlaps(found)
    made: dict[int, Log] = {}
    for key, packed in found.partitions.items():
        try:
            if not packed.numbers:
                raise Damaged("it has no number")
            made[key] = load_log(packed.first, found.segments.get(key, []))
        except Damaged as error:
            raise Damaged(f"partition {packed.name}: {error.message}") from None
    _check_places(found, made)
    return made


def _check_overlaps(found: DecodedRecords) -> None:
    """Raise if two rows cover one message."""
    tables = [*found.parked.values()]
    tables += [table for rows in found.rows.values() for table in (rows.skips, rows.dead, rows.outcomes)]
    for table in tables:
        reached = -1
        for first, count, *_ in table:
            if first < reached:
                raise Damaged(f"two rows are about offset {first}")
            reached = first + count
    if any(unmet < 1 for table in found.parked.values() for _, _, unmet in table):
        raise Damaged("a parked run waits for nothing")


def _check_notes(found: DecodedRecords) -> None:
    for kind, segments in found.notes.items():
        if any(segment.count < 1 or segment.count != len(about) for segment, about in segments):
            raise Damaged(f"a header of notes of kind {kind} is not what was written")
        logs.load(segments[0][0].base, [segment for segment, _ in segments])


def _check_names(found: DecodedRecords) -> None:
    names = [packed.name for packed in found.partitions.values()]
    groups = [packed.name for packed in found.groups.values()]
    if len(set(names)) < len(names) or len(set(groups)) < len(groups):
        raise Damaged("two groups or partitions have one name")


def _check_places(found: DecodedRecords, made: dict[int, Log]) -> None:
    """Raise if a record lies beyond the end of its log."""
    ends = {key: log.end for key, log in made.items()}
    stands = [(key, "a cursor", track.cursor) for (_, key), track in found.cursors.items()]
    for (group, key), rows in found.rows.items():
        last = rows.schedule.last()
        stands.append((key, "a scheduled run", last.first + last.count if last is not None else 0))
        for what, table in (
            ("a dead letter", rows.dead),
            ("an outcome", rows.outcomes),
            ("a skip", rows.skips),
        ):
            stands.append((key, what, sum(table.tail()[:2]) if table else 0))
        cursor = found.cursors.get((group, key))
        if rows.skips and cursor is not None and rows.skips.first() < cursor.cursor:
            raise Damaged(f"partition {found.partitions[key].name}: the cursor is past what it skips")
    stands += [(key, "a withdrawn run", sum(table.tail()[:2])) for key, table in found.withdrawn.items()]
    stands += [(key, "a parked run", sum(table.tail()[:2])) for key, table in found.parked.items()]
    stands += [(key, "a tie", max(ties) + 1) for key, ties in found.ties.items()]
    for key, table in found.successors.items():
        stands += [(key, "a successor", successor + 1) for _, successor in table]
    for _, _, runs, *_ in found.leases:
        if not runs:
            raise Damaged("a lease holds nothing")
        stands += [(run.partition, "a leased run", run.first + counted(run.count)) for run in runs]
    for key, what, offset in stands:
        if offset > ends[key]:
            name = found.partitions[key].name
            raise Damaged(f"partition {name}: {what} is at {offset}, the log ends at {ends[key]}")
    _check_strays(found, made)


def _check_strays(found: DecodedRecords, made: dict[int, Log]) -> None:
    """Raise if an unsettled message below the log's start has no segment."""
    for (_, key), rows in found.rows.items():
        log = made[key]
        spans = [(run.first, run.first + run.count) for run in rows.schedule.over(0, log.first)]
        spans += [(first, first + count) for first, count in rows.dead if first < log.first]
        _check_kept(found.partitions[key].name, log, spans)
    for key, table in found.parked.items():
        spans = [(first, first + count) for first, count, _ in table if first < made[key].first]
        _check_kept(found.partitions[key].name, made[key], spans)
    for _, _, runs, *_ in found.leases:
        for run in runs:
            name, log = found.partitions[run.partition].name, made[run.partition]
            spans = [(first, first + count) for first, count in run.gaps()] if run.first < log.first else []
            _check_kept(name, log, spans)


def _check_kept(name: str, log: Log, spans: list[tuple[int, int]]) -> None:
    for low, high in spans:
        offset = low
        while offset < min(high, log.first) and logs.has(log, offset):
            offset = log.segments[logs.find(log, offset)].end
        if offset < min(high, log.first):
            raise Damaged(f"partition {name}: offset {offset} is wanted and has no segment")
