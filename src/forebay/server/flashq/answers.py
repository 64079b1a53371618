"""Answers of flashQ's door: one class per shape, fields in the order in which flashQ sends them.

``reqId`` comes first, because nothing may follow the ``id`` of a push: a client of flashQ reads the number up
to the brace.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.server.flashq.job import Job
from forebay.wire.types import Id, RequestId


class Answer(Struct, gc=False, kw_only=True):
    reqId: RequestId | UnsetType = UNSET
    ok: bool = True


class Failed(Answer, gc=False, kw_only=True):
    error: str


class WithId(Answer, gc=False, kw_only=True):
    id: Id


class WithIds(Answer, gc=False, kw_only=True):
    ids: Sequence[Id]


class OneJob(Answer, gc=False, kw_only=True):
    job: Job | None


class JobAndState(Answer, gc=False, kw_only=True):
    job: Job | None
    state: str


class Jobs(Answer, gc=False, kw_only=True):
    jobs: list[Job]


class JobsOfTotal(Answer, gc=False, kw_only=True):
    jobs: list[Job]
    total: int


class State(Answer, gc=False, kw_only=True):
    id: Id
    state: str


class Result(Answer, gc=False, kw_only=True):
    id: Id
    result: Raw | None


class Awaited(Answer, gc=False, kw_only=True):
    result: Raw | UnsetType = UNSET


class ProgressTold(Struct, gc=False):
    id: Id
    progress: int
    message: str | None


class Progress(Answer, gc=False, kw_only=True):
    progress: ProgressTold


class LogLine(Struct, gc=False):
    timestamp: int
    message: str
    level: str


class Logs(Answer, gc=False, kw_only=True):
    id: Id
    logs: list[LogLine]


class Flow(Answer, gc=False, kw_only=True):
    parent_id: Id
    children_ids: Sequence[Id]


class Children(Answer, gc=False, kw_only=True):
    parent_id: Id
    children: list[Job]
    completed: int
    total: int


class Count(Answer, gc=False, kw_only=True):
    count: int


class Paused(Answer, gc=False, kw_only=True):
    paused: bool


class Counts(Answer, gc=False, kw_only=True):
    waiting: int = 0
    active: int = 0
    delayed: int = 0
    completed: int = 0
    failed: int = 0


class Stats(Answer, gc=False, kw_only=True):
    queued: int
    processing: int
    delayed: int
    dlq: int
    completed: int


class QueueShown(Struct, gc=False):
    name: str
    pending: int
    processing: int
    completed: int
    delayed: int
    dlq: int
    paused: bool
    rate_limit: int | None
    concurrency_limit: int | None


class Queues(Answer, gc=False, kw_only=True):
    queues: list[QueueShown]


class QueueMetrics(Struct, gc=False):
    name: str
    pending: int
    processing: int
    dlq: int
    rate_limit: int | None


class MetricsTold(Struct, gc=False):
    total_pushed: int
    total_completed: int
    total_failed: int
    jobs_per_second: float
    avg_latency_ms: float
    queues: list[QueueMetrics]


class Metrics(Answer, gc=False, kw_only=True):
    metrics: MetricsTold


class CronShown(Struct, gc=False):
    name: str
    queue: str
    data: Raw
    schedule: str | None
    repeat_every: int | None
    priority: int
    next_run: int
    executions: int
    limit: int | None


class Crons(Answer, gc=False, kw_only=True):
    crons: list[CronShown]


class Value(Answer, gc=False, kw_only=True):
    value: Raw | None


class Values(Answer, gc=False, kw_only=True):
    values: list[Raw | None]


class Keys(Answer, gc=False, kw_only=True):
    keys: list[str]


class Exists(Answer, gc=False, kw_only=True):
    exists: bool


class Ttl(Answer, gc=False, kw_only=True):
    ttl: int


def named(answer: Any, request_id: RequestId | UnsetType) -> Any:
    """Return an answer under the id of its request."""
    answer.reqId = request_id
    return answer
