"""Commands for staged writes: many small writes that become visible in one commit."""

from msgspec import Struct

from forebay.core.state import Attributes

DEFAULT = "default"
STAGED_MS = 86_400_000
"""Default lifetime of a stage."""


class StageWrite(Struct, gc=False):
    """Add messages to a stage, all or none."""

    tenant: str
    queue: str
    stage: str
    partition: str = DEFAULT
    payloads: list[bytes] = []
    body: bytes | None = None
    """The messages as a validated body, instead of payloads."""
    count: int = 0
    """Messages in the body."""
    runs: list[tuple[int, Attributes]] = []
    """(count, attributes) of consecutive messages; empty if none has any."""
    keys: list[str | None] = []
    """The unique key of each message; empty if none has one."""
    part: int | None = None
    """Sequence number of the write; a repeated one is ignored."""
    query: str | None = None
    batch: int = 0
    """Query and batch it is staged for; refused once the batch is adopted."""
    expire_ms: int = STAGED_MS
    run: int = 0
    """Run of the query; stages of earlier runs are dropped."""


class Staged(Struct, gc=False):
    stage: str
    part: int
    count: int
    """Messages in the stage so far."""
    size: int
    expires_at: int


class Adopt(Struct, gc=False):
    """Append all messages of some stages in one commit. Repeating it changes nothing."""

    tenant: str
    queue: str
    query: str
    batch: int
    stages: list[str]
    count: int | None = None
    """Expected number of messages, checked also when the batch was adopted before."""
    durability: str | None = None
    keep_ms: int | None = None
    """How long the reply must be remembered; as long as there is room if None."""


class Unstage(Struct, gc=False):
    """Drop stages."""

    tenant: str
    queue: str
    stages: list[str]
    query: str | None = None
    """Also all stages of this query up to ``batch``."""
    batch: int = 0


class Unstaged(Struct, gc=False):
    stages: int
    count: int
    """Messages in them."""
