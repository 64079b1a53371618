"""A job as flashQ shows it: every field, always, in its order.

What we keep under another word is translated; what we do not keep is shown as flashQ shows a job that has
none of it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, queries
from forebay.core.state import PLAIN, Attributes, Cleanup, Partition, Progress, Queue
from forebay.core.words import NONE
from forebay.server.flashq.command import STATES, UNKNOWN, shown
from forebay.wire.types import Id

DEPENDENCIES_SHOWN = 1_000
"""Ids in ``depends_on`` that are shown with a job, at most."""


NO_CLEANUP = Cleanup()


class Job(Struct, gc=False, kw_only=True):
    """One job. Times are in ms since 1970, 0 where there is none."""

    id: Id
    queue: str
    data: Raw
    priority: int
    created_at: int
    run_at: int
    started_at: int = 0
    attempts: int
    """Failures so far."""
    max_attempts: int
    """0 if it was not given."""
    backoff: int
    ttl: int
    timeout: int
    unique_key: str | None = None
    depends_on: Sequence[Id] = ()
    progress: int = 0
    progress_msg: str | None = None
    """What its worker last reported; the last error of one that was retried."""
    tags: Sequence[str]
    lifo: bool
    remove_on_complete: bool
    remove_on_fail: bool
    last_heartbeat: int = 0
    stall_timeout: int
    stall_count: int = 0
    parent_id: Id | None = None
    children_ids: Sequence[Id] = ()
    children_completed: int = 0
    custom_id: str | None = None
    keep_completed_age: int
    keep_completed_count: int
    completed_at: int = 0
    group_id: str | None = None
    state: str | UnsetType = UNSET
    """Only some answers have it."""


def state_of(found: queries.StateFound) -> str:
    """Return flashQ's name of a state."""
    return STATES.get(found.state, UNKNOWN)


def _as_pushed(attributes: Attributes, lease_ms_max: int) -> dict[str, Any]:
    """Return the fields that were given with a push."""
    backoff = attributes.backoff
    timeout = attributes.timeout_ms
    waits_for = dependencies(attributes)
    cleanup = attributes.cleanup or NO_CLEANUP
    return {
        "max_attempts": attributes.max_attempts or 0,
        "backoff": 0 if backoff is None or backoff.kind == NONE else backoff.base_ms,
        "ttl": attributes.ttl_ms,
        # The longest lease stands for no timeout: see ``attributes_of``.
        "timeout": timeout if timeout < lease_ms_max else 0,
        "depends_on": waits_for,
        "children_ids": waits_for,
        "children_completed": len(waits_for),
        "tags": attributes.tags,
        "lifo": attributes.lifo,
        "remove_on_complete": cleanup.on_complete,
        "remove_on_fail": cleanup.on_fail,
        "stall_timeout": attributes.stall_ms,
        "keep_completed_age": cleanup.keep_ms,
        "keep_completed_count": cleanup.keep_count,
    }


def dependencies(attributes: Attributes) -> Sequence[Id]:
    """Return the ids that a job waits for, or waited for."""
    if not attributes.depends_on:
        return ()
    every = chain.from_iterable(range(first, first + count) for first, count in attributes.depends_on)
    return list(map(shown, islice(every, DEPENDENCIES_SHOWN)))


def _payload(piece: Any) -> Raw:
    """Return the payload of the first message of a slice; null if it is damaged."""
    return Raw(next(iter(piece.payloads())) if piece.segment.present else b"null")


def found(each: queries.Shown, lease_ms_max: int, *, with_state: bool) -> Job:
    """Return a job that was asked for."""
    state = each.state
    job = Job(
        id=shown(state.id),
        queue=each.queue.name,
        data=_payload(each),
        priority=state.priority,
        created_at=state.created_at,
        run_at=state.created_at + state.attributes.delay_ms if state.due_at is None else state.due_at,
        started_at=state.leased_at or 0,
        last_heartbeat=state.leased_at or 0,
        attempts=state.failures,
        unique_key=state.unique_key,
        parent_id=None if state.parent is None else shown(state.parent),
        custom_id=state.job_id,
        completed_at=state.ended_at or 0 if state.state == "completed" else 0,
        group_id=each.partition if each.queue.partitions[each.partition].lane else None,
        **_as_pushed(state.attributes, lease_ms_max),
    )
    job.stall_count = _stalls(state.attributes, state.deliveries - (state.state == "active"), state.failures)
    if state.state == "parked":
        job.children_completed = 0
    _tell(job, state.progress, state.error if state.failures > (state.state == "dead") else "")
    if with_state:
        job.state = state_of(state)
    return job


def _stalls(attributes: Attributes, deliveries: int, failures: int) -> int:
    """Count the deliveries of a job that ended without a failure: it stalled in each."""
    return max(deliveries - failures, 0) if attributes.stall_ms else 0


def _tell(job: Job, progress: Progress | None, error: str) -> None:
    """Show what the worker reported, else the error that a retry followed, as flashQ does."""
    job.progress_msg = error or None
    if progress is not None:
        job.progress, job.progress_msg = progress.percent, progress.message or job.progress_msg


def dead(letters: queries.DeadFound, lease_ms_max: int) -> list[Job]:
    """Return dead letters."""
    jobs = []
    for each in letters.deliveries:
        attributes = each.segment.run_at(each.start)[2]
        partition = letters.queue.partitions[each.partition]
        pushed = _as_pushed(attributes, lease_ms_max)
        job = _beside(letters.queue, partition, each, 0, _payload(each), attributes.delay_ms, pushed)
        job.attempts = each.failures
        job.started_at = job.last_heartbeat = each.leased_at
        job.stall_count = _stalls(attributes, each.deliveries, each.failures)
        _tell(job, partition.progress.get(_first(partition, each.offset)), each.error * (each.failures > 1))
        jobs.append(job)
    return jobs


def pulled(popped: core.Popped, lease_ms_max: int) -> Iterator[Job]:
    """Yield the jobs of a pop, which began just now."""
    queue = popped.queue
    queue_lease_ms = min(queue.options.lease_ms, lease_ms_max)
    for each in popped.deliveries:
        partition = queue.partitions[each.partition]
        end, attributes, pushed = 0, PLAIN, {}
        for at, payload in enumerate(each.payloads()):
            if at + each.start >= end:
                end, _, attributes = each.segment.run_at(at + each.start)
                pushed = _as_pushed(attributes, lease_ms_max)
            job = _beside(queue, partition, each, at, Raw(payload), attributes.delay_ms, pushed)
            job.attempts = each.failures
            # When it was leased follows from when the lease ends: the reply has only that.
            given = [ms for ms in (attributes.timeout_ms, attributes.stall_ms) if ms]
            job.started_at = each.expires_at - min(given, default=queue_lease_ms)
            job.last_heartbeat = job.started_at
            job.stall_count = _stalls(attributes, each.deliveries - 1, each.failures)
            if partition.progress:
                _tell(job, partition.progress.get(_first(partition, each.offset + at)), "")
            yield job


def _beside(
    queue: Queue,
    partition: Partition,
    piece: core.Delivery | queries.DeadLetter,
    at: int,
    data: Raw,
    delay_ms: int,
    pushed: dict[str, Any],
) -> Job:
    """Return the ``at``-th job of a slice, with what its partition knows of it."""
    offset = piece.offset + at
    tie = partition.ties.get(offset)
    rows = partition.waiting_over(offset, offset + 1) if partition.dependents.size else []
    return Job(
        id=shown(piece.first + at),
        queue=queue.name,
        data=data,
        priority=piece.priority,
        created_at=piece.created_at,
        run_at=piece.created_at + delay_ms,
        attempts=0,
        unique_key=tie.unique_key or None if tie is not None else None,
        parent_id=shown(rows[0][1]) if rows else None,
        custom_id=partition.job_ids.get(_first(partition, offset)) if partition.job_ids else None,
        group_id=partition.name if partition.lane else None,
        **pushed,
    )


def _first(partition: Partition, offset: int) -> int:
    """Return the offset that a job had before its data was replaced."""
    return partition.led_to.get(offset, offset)
