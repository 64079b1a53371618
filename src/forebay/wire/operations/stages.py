"""Stages: messages written by many writers, appended in one commit."""

from typing import Any

from msgspec import UNSET, Raw, UnsetType

from forebay.core.api.principals import PUSH
from forebay.core.api.stages import STAGED_MS
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.push import RunOptions
from forebay.wire.types import RequestId


class StageRun(RunOptions, kw_only=True):
    """Consecutive messages that share their options."""

    count: int


class Stage(RunOptions, tag_field="cmd", tag="STAGE", kw_only=True):
    """Write messages to a stage: a list, or a segment body. Nobody sees them until they are adopted."""

    queue: str
    stage: str
    messages: list[Raw] | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    count: int | None = None
    partition: str = DEFAULT
    runs: list[StageRun] | UnsetType = UNSET
    unique_keys: list[str | None] | UnsetType = UNSET
    part: int | None = None
    query: str | None = None
    batch: int | None = None
    run: int = 0
    expire_ms: int = STAGED_MS
    reqId: RequestId | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class Staged(Answer, kw_only=True):
    """What the stage holds now."""

    stage: str
    part: int
    count: int
    bytes: int
    expires_at: int


class Adopt(Request, tag="ADOPT", kw_only=True):
    """Append the messages of stages to the queue: once for each batch of a query, however often asked."""

    queue: str
    query: str
    batch: int
    stages: list[str]
    count: int | None = None
    durability: str | None = None
    keep_ms: int | None = None


class Adopted(Answer, kw_only=True):
    """Where the messages went; ``repeated`` if the batch was adopted before."""

    count: int
    partitions: list[dict[str, Any]]
    durability: str
    duplicates: int = 0
    repeated: bool = False


class Unstage(Request, tag="UNSTAGE", kw_only=True):
    """Drop stages that are not adopted."""

    queue: str
    stages: list[str] | None = None
    query: str | None = None
    batch: int | None = None


class Unstaged(Answer, kw_only=True):
    """How many stages were dropped, and messages in them."""

    stages: int
    count: int


QUEUE = "/v1/queues/{queue}"
TAG = "stages"

OPERATIONS = [
    Operation(
        Stage,
        Staged,
        PUSH,
        TAG,
        "Write to a stage",
        (Route("POST", f"{QUEUE}/stages/{{stage}}"),),
        {"queue": "emails", "stage": "task-1", "messages": [1, 2], "query": "load", "batch": 1},
    ),
    Operation(
        Adopt,
        Adopted,
        PUSH,
        TAG,
        "Append stages to the queue",
        (Route("POST", f"{QUEUE}/adopt"),),
        {"queue": "emails", "query": "load", "batch": 1, "stages": ["task-1"]},
    ),
    Operation(
        Unstage,
        Unstaged,
        PUSH,
        TAG,
        "Drop stages",
        (Route("POST", f"{QUEUE}/unstage"),),
        {"queue": "emails", "stages": ["task-1"]},
    ),
]
