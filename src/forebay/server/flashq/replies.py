"""Replies of the TCP protocol: one class per shape, fields in the order they are sent."""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api.queries import ReadRun
from forebay.core.log.bodies import body_part, pack_body
from forebay.core.state import Attributes, Segment, count_sets, set_at
from forebay.server.labels import (
    Labels as Labels,
    array as array,
    labelled as labelled,
    labels_of as labels_of,
)

Id = int | str
RequestId = str | int


class Answer(Struct, gc=False, kw_only=True, omit_defaults=True):
    reqId: RequestId | UnsetType = UNSET


class Ok(Answer, gc=False, kw_only=True):
    ok: bool


class OkId(Answer, gc=False, kw_only=True):
    ok: bool
    id: Id
    durability: str
    duplicate: bool | UnsetType = UNSET
    replaced: bool | UnsetType = UNSET


class OkIds(Answer, gc=False, kw_only=True):
    ok: bool
    ids: Sequence[Id]
    durability: str
    duplicates: list[int] | UnsetType = UNSET
    replaced: list[int] | UnsetType = UNSET
    completion_id: Id | UnsetType = UNSET


class OkResult(Answer, gc=False, kw_only=True):
    ok: bool
    id: Id
    result: Raw | None
    partials: list[Raw] | UnsetType = UNSET


class OkAwaited(Answer, gc=False, kw_only=True):
    ok: bool
    id: Id
    done: bool
    state: str
    result: Raw | None
    error: str | UnsetType = UNSET


class ProgressTold(Struct, gc=False):
    id: Id
    progress: int
    message: str | None
    updated_at: int | None


class OkProgress(Answer, gc=False, kw_only=True):
    ok: bool
    progress: ProgressTold


class LogLine(Struct, gc=False):
    timestamp: int
    level: str
    message: str


class OkLogs(Answer, gc=False, kw_only=True):
    ok: bool
    id: Id
    logs: list[LogLine]


class OkDirectory(Answer, gc=False, kw_only=True):
    ok: bool
    directory: str


class OkHeld(Answer, gc=False, kw_only=True):
    ok: bool
    held: bool
    store: str


class OkFirst(Answer, gc=False, kw_only=True):
    ok: bool
    first: Id
    count: int
    durability: str
    duplicate: bool | UnsetType = UNSET
    completion_id: Id | UnsetType = UNSET


class OkJob(Answer, gc=False, kw_only=True):
    ok: bool
    job: "Job | None"


class OkJobs(Answer, gc=False, kw_only=True):
    ok: bool
    jobs: "list[Job]"


class OkRuns(Answer, gc=False, kw_only=True):
    ok: bool
    lease: str | None
    runs: list["DeliveredRun"]


class OkCount(Answer, gc=False, kw_only=True):
    ok: bool
    count: int
    refused: Sequence[Id]


class OkExtended(Answer, gc=False, kw_only=True):
    ok: bool
    expires_at: int
    cancelled: bool
    count: int
    refused: Sequence[Id]


class OkLog(Answer, gc=False, kw_only=True):
    ok: bool
    partition: str
    next: int
    end: int
    runs: list["LogRun"]


class PackedRun(Struct, gc=False, omit_defaults=True):
    """Messages of one segment, for MessagePack: payloads as they are stored."""

    first: int
    offset: int
    created_at: int
    count: int
    messages: bytes
    """count + 1 little-endian int32 offsets, then the payloads."""
    ends: bytes = b""
    """Where each run ends, u32 each, if messages differ in time or attributes."""
    times: bytes = b""
    """Milliseconds from created_at to each run, u32 each."""
    which: bytes = b""
    """Index into ``attributes`` for each run, u32 each; 0 for all if empty."""
    attributes: list[dict[str, Any]] = []
    """Sets of attributes that runs refer to; empty if no run has any."""


class OkPackedLog(Answer, gc=False, kw_only=True):
    ok: bool
    partition: str
    number: int
    next: int
    end: int
    runs: list[PackedRun]


class OkStaged(Answer, gc=False, kw_only=True):
    ok: bool
    stage: str
    part: int
    count: int
    bytes: int
    expires_at: int


class OkAdopted(Answer, gc=False, kw_only=True):
    ok: bool
    count: int
    partitions: list[dict[str, Any]]
    durability: str
    duplicates: int | UnsetType = UNSET
    repeated: bool | UnsetType = UNSET


class OkUnstaged(Answer, gc=False, kw_only=True):
    ok: bool
    stages: int
    count: int


class OkOffsets(Answer, gc=False, kw_only=True):
    ok: bool
    partitions: list[dict[str, Any]]


class OkQueue(Answer, gc=False, kw_only=True):
    ok: bool
    queue: str
    options: dict[str, Any]
    paused: bool
    paused_until: int | UnsetType = UNSET
    partitions: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    staged: dict[str, int]


class OkEvents(Answer, gc=False, kw_only=True):
    ok: bool
    events: list[Raw]
    after: str


class OkDeleted(Answer, gc=False, kw_only=True):
    ok: bool
    queue: str
    deleted: bool
    active: int
    until: int


class OkGroups(Answer, gc=False, kw_only=True):
    ok: bool
    queue: str
    groups: list[dict[str, Any]]


class OkQueues(Answer, gc=False, kw_only=True):
    ok: bool
    queues: list[dict[str, Any]]


class OkStats(Answer, gc=False, kw_only=True):
    ok: bool
    queues: int
    queued: int
    processing: int
    delayed: int
    waiting_children: int = msgspec.field(name="waiting-children")
    dlq: int
    completed: int


class OkState(Answer, gc=False, kw_only=True):
    ok: bool
    id: Id
    uuid: str
    state: str
    created_at: int
    attempts: int
    deliveries: int
    priority: int
    error: str | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET


class OkDead(Answer, gc=False, kw_only=True):
    ok: bool
    jobs: "list[DeadJob]"
    total: int


class OkShown(Answer, gc=False, kw_only=True):
    ok: bool
    job: "ShownJob"
    state: str


class OkShownAll(Answer, gc=False, kw_only=True):
    ok: bool
    jobs: "list[ShownJob]"


class OkBrowsed(Answer, gc=False, kw_only=True):
    ok: bool
    jobs: "list[ShownJob]"
    total: int


class OkPage(Answer, gc=False, kw_only=True):
    ok: bool
    jobs: "list[ShownJob]"
    total: int
    cursor: str | None


class OkCleaned(Answer, gc=False, kw_only=True):
    ok: bool
    count: int
    more: bool


class OkBuried(Answer, gc=False, kw_only=True):
    ok: bool
    count: int
    left: int
    refused: Sequence[Id]


class OkPaused(Answer, gc=False, kw_only=True):
    ok: bool
    paused: bool
    until: int | UnsetType = UNSET


class OkCounts(Answer, gc=False, kw_only=True):
    ok: bool
    waiting: int
    active: int
    delayed: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    evicted: int
    discarded: int
    waiting_children: int = msgspec.field(name="waiting-children")


class OkFlow(Answer, gc=False, kw_only=True):
    ok: bool
    parent_id: Id
    children_ids: Sequence[Id]
    durability: str
    duplicate: bool | UnsetType = UNSET


class OkChildren(Answer, gc=False, kw_only=True):
    ok: bool
    parent_id: Id
    children: "list[ShownJob]"
    completed: int
    total: int


class OkCron(Answer, gc=False, kw_only=True):
    ok: bool
    name: str
    next_run: int | None


class OkCrons(Answer, gc=False, kw_only=True):
    ok: bool
    crons: list[dict[str, Any]]
    more: bool | UnsetType = UNSET


class OkLimits(Answer, gc=False, kw_only=True):
    ok: bool
    limits: list[dict[str, Any]]


class OkResults(Answer, gc=False, kw_only=True):
    ok: bool
    results: list[Struct]


class OkValue(Answer, gc=False, kw_only=True):
    ok: bool
    value: Raw | None
    version: str | None


class OkVersion(Answer, gc=False, kw_only=True):
    ok: bool
    version: str


class OkValues(Answer, gc=False, kw_only=True):
    ok: bool
    values: list[Raw | None]
    versions: list[str | None]
    changed: bool | UnsetType = UNSET


class OkExists(Answer, gc=False, kw_only=True):
    ok: bool
    exists: bool


class OkTtl(Answer, gc=False, kw_only=True):
    ok: bool
    ttl: int


class OkKeys(Answer, gc=False, kw_only=True):
    ok: bool
    keys: list[str]
    cursor: str | None


class OkEntries(Answer, gc=False, kw_only=True):
    ok: bool
    entries: list[dict[str, Any]]
    cursor: str | None


class OkTotal(Answer, gc=False, kw_only=True):
    ok: bool
    count: int


class Failed(Answer, gc=False, kw_only=True):
    ok: bool
    error: str
    code: str
    details: dict[str, Any] | UnsetType = UNSET


class Job(Struct, gc=False):
    id: Id
    queue: str
    partition: str
    offset: int
    data: Raw
    created_at: int
    attempts: int
    priority: int
    lease: str | None
    expires_at: int
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class DeadJob(Struct, gc=False, kw_only=True, omit_defaults=True):
    id: Id
    uuid: str
    queue: str
    group: str
    partition: str
    offset: int
    data: Raw
    created_at: int
    priority: int
    attempts: int
    deliveries: int
    error: str
    failed_at: int
    damaged: bool | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class ShownJob(Struct, gc=False, kw_only=True, omit_defaults=True):
    id: Id
    uuid: str
    queue: str
    partition: str
    offset: int
    data: Raw
    state: str
    created_at: int
    attempts: int
    deliveries: int
    priority: int
    damaged: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    ended_at: int | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    unique_key: str | UnsetType = UNSET
    depends_on: Sequence[Id] | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class DeliveredRun(Struct, gc=False):
    partition: str
    first: Id
    offset: int
    created_at: int
    attempts: int
    priority: int
    expires_at: int
    messages: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class LogRun(Struct, gc=False):
    first: Id
    offset: int
    created_at: int
    messages: Raw
    headers: dict[str, str] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


def shown(message: int) -> Id:
    """Return an id for a reply: as a string if it is too large for JavaScript's numbers."""
    return message if message < ids.JSON_SAFE else str(message)


def shown_all(messages: Sequence[int]) -> Sequence[Id]:
    return messages if not messages or max(messages) < ids.JSON_SAFE else list(map(str, messages))


def packed_run(run: ReadRun) -> PackedRun:
    """Return a slice of a segment as it is stored, with the time and attributes of its runs."""
    segment, start, count = run.segment, run.start, run.count
    body = segment.body if segment.body is not None else pack_body(*_forming(segment))
    found = PackedRun(
        run.first, run.offset, run.created_at, count, body_part(body, segment.count, start, count)
    )
    if segment.spread or segment.sets:
        _add_runs(found, segment, start)
    return found


def _forming(segment: Segment) -> tuple[list[bytes], list[int]]:
    assert segment.payloads is not None, "the body is read before the payloads are"
    assert segment.lengths is not None
    return segment.payloads, segment.lengths


def _add_runs(found: PackedRun, segment: Segment, start: int) -> None:
    if segment.spread:
        ends, times = segment.run_ends, segment.run_times
        low, high = bisect_right(ends, start), bisect_left(ends, start + found.count) + 1
        cut = [min(end - start, found.count) for end in ends[low:high]]
        found.ends = struct.pack(f"<{len(cut)}I", *cut)
        found.times = struct.pack(f"<{len(cut)}I", *times[low:high])
        if segment.which:
            which = memoryview(segment.which).cast("I")[low:high]
            found.which = struct.pack(f"<{len(cut)}I", *which)
    if segment.sets:
        sets = [set_at(segment.sets, at) for at in range(count_sets(segment.sets))]
        found.attributes = list(map(_told, sets))


def _told(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that are shown to a reader of the log."""
    found: dict[str, Any] = {"priority": attributes.priority}
    if attributes.headers:
        found["headers"] = dict(attributes.headers)
    if attributes.tags:
        found["tags"] = attributes.tags
    return found
