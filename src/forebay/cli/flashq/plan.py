"""What a job of flashQ's becomes: a message with options, or a reason to skip it.

Nothing here reads a clock or asks a server.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from forebay.cli.flashq.file import FAILED, Job
from forebay.cli.flashq.report import COMPLETED, EXPIRED, NOT_JSON
from forebay.client.types import Id, New, Options
from forebay.core.bounds import DELAY_MS_MAX, PRIORITY_MAX, Limits

DEAD_DELAY_MS = 30 * 86_400_000
"""Delay of a dead letter until it is discarded, a moment later; or by the next import, if this one dies."""
ERROR_HEADER = "flashq-error"
ERROR_BYTES_MAX = 4_000
"""Bytes kept of a dead letter's error: a message may have 8 KiB of headers."""
TIMEOUT_MS_MAX = Limits().lease_ms_max
"""Longest lease of a server as it comes. Whoever works longer extends it."""


class Planned(Struct, frozen=True):
    """A job, the state it is imported in, and the message it becomes."""

    job: Job
    state: str
    message: New


def known_by(job: Job) -> str:
    """Return the custom id by which a job is known to the server: its own, or one made of flashQ's id.

    flashQ gives ids out again after a restart, so the job's time is in it.

    >>> known_by(Job(7, "q", b"1", "waiting", created_at=1_700_000_000_000))
    'flashq:7:1700000000000'
    >>> known_by(Job(7, "q", b"1", "failed", failed_at=1_700_000_000_000))
    'flashq:7:dead:1700000000000'
    """
    if job.custom_id:
        return job.custom_id
    return f"flashq:{job.id}:dead:{job.failed_at}" if job.failed_at else f"flashq:{job.id}:{job.created_at}"


def state_of(job: Job, now: int, depends_on: Iterable[int] = ()) -> str:
    """Return the state that a job is imported in; a job that was being worked on waits again."""
    if job.state in (FAILED, COMPLETED):
        return "dead" if job.state == FAILED else COMPLETED
    if depends_on:
        return "parked"
    return "delayed" if job.run_at > now else "waiting"


def reason_to_skip(job: Job, now: int) -> str | None:
    """Return why a job is not imported, or None."""
    return reason_to_end(job, now) or (None if is_json(job.data) else NOT_JSON)


def reason_to_end(job: Job, now: int) -> str | None:
    """Return why nothing is lost without a job, or None: what waits for it need not wait any more."""
    if job.state == COMPLETED:
        return COMPLETED
    ends_at = job.created_at + job.ttl if job.created_at and job.ttl else None
    if job.state != FAILED and ends_at is not None and ends_at <= max(now, job.run_at):
        return EXPIRED
    return None


def is_json(data: bytes | None) -> bool:
    """
    >>> is_json(b"[1]"), is_json(b"[1"), is_json(None)
    (True, False, False)
    """
    try:
        (data or b"").decode()
        msgspec.json.decode(data or b"", type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False
    return True


def options_of(job: Job, now: int, depends_on: list[int]) -> Options:
    """Return the options of a job: what is left of its delay, its time to live and its attempts."""
    options: Options = {"job_id": known_by(job)}
    if job.state == FAILED:
        options["delay_ms"] = DEAD_DELAY_MS
        if job.error:
            options["headers"] = {ERROR_HEADER: job.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore")}
    else:
        if job.run_at > now:
            options["delay_ms"] = min(job.run_at - now, DELAY_MS_MAX)
        if job.ttl:
            options["ttl_ms"] = max(min((job.created_at or now) + job.ttl - now, DELAY_MS_MAX), 1)
        if job.unique_key:
            options["unique_key"] = job.unique_key
    if depends_on:
        # In flashQ a job waits for one that failed until that is retried.
        options["depends_on"] = list[Id](depends_on)
        options["on_failed"] = "wait"
    if not job.failed_at:  # of a dead letter, flashQ keeps no options
        options["max_attempts"] = max(job.max_attempts - job.attempts, 1) if job.max_attempts else 0
        options["backoff"] = min(job.backoff, DELAY_MS_MAX)
    if job.priority:
        options["priority"] = priority_of(job.priority)
    if job.timeout:
        options["timeout_ms"] = min(job.timeout, TIMEOUT_MS_MAX)
    if job.lifo:
        options["lifo"] = True
    if job.tags:
        options["tags"] = list(job.tags)
    if job.group_id:
        options["key"] = job.group_id
    return options


def priority_of(priority: int) -> int:
    """Return a priority within what a message may have; flashQ's may be twice that."""
    return max(-PRIORITY_MAX, min(priority, PRIORITY_MAX))
