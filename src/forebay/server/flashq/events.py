"""flashQ's events: one per job, where the server has one per commit, kind and queue."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.state import Event
from forebay.core.words import DEFAULT
from forebay.wire.types import Id

KINDS = {"pushed": "pushed", "settled": "completed", "dead": "failed", "progressed": "progress"}
"""flashQ's type of an event, by our kind."""
OURS = {theirs: ours for ours, theirs in KINDS.items()}

_read = msgspec.json.Decoder(Event).decode


class JobEvent(Struct, gc=False, kw_only=True, omit_defaults=True):
    """What happened to one job, as it is sent."""

    event: str
    event_type: str
    queue: str
    job_id: Id
    timestamp: int
    data: Raw | UnsetType | None = UNSET
    """The job's data when it is pushed, its result when it is completed, or a partial result."""
    error: str | UnsetType | None = UNSET
    progress: int | UnsetType = UNSET
    duration_ms: int | UnsetType | None = UNSET


def job_events(payload: bytes) -> Iterator[JobEvent]:
    """Spread an event of the server into one for each job; none for what flashQ has no event for."""
    told = _read(payload)
    kind = KINDS.get(told.kind)
    if kind is None or told.group not in ("", DEFAULT):
        return
    name, duration_ms = f"job:{kind}", UNSET if told.duration_ms is None else told.duration_ms
    progress = iter(told.progress)
    for _, _, count, first in told.runs:
        begin = int(first)
        for number in range(begin, begin + count):
            shown: Id = number if isinstance(first, int) else str(number)
            yield JobEvent(
                event=name,
                event_type=kind,
                queue=told.queue,
                job_id=shown,
                timestamp=told.at,
                duration_ms=duration_ms,
                progress=next(progress, UNSET),
            )
