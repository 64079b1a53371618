"""Commands for staged writes: many small writes that become visible in one commit."""

from msgspec import Struct

from forebay.core.state import Attributes

DEFAULT = "default"
STAGED_MS = 86_400_000
"""How long a stage is kept that does not say."""


class StageWrite(Struct, gc=False):
    """Add messages to a stage, all or none."""

    tenant: str
    queue: str
    stage: str
    partition: str = DEFAULT
    payloads: list[bytes] = []
    body: bytes | None = None
    """The messages as a body that was checked, instead of payloads."""
    count: int = 0
    """Messages in the body."""
    runs: list[tuple[int, Attributes]] = []
    """How many in a row have which attributes; none has any if it is empty."""
    keys: list[str | None] = []
    """The unique key of each; none has one if it is empty."""
    part: int | None = None
    """Which write to the stage this is; one that was made before is not made again."""
    query: str | None = None
    batch: int = 0
    """What it is for: once that is adopted, nothing more is staged for it."""
    expire_ms: int = STAGED_MS
    run: int = 0
    """Which run of the query this is: what earlier ones have staged for it goes."""


class Staged(Struct, gc=False):
    stage: str
    part: int
    count: int
    """Messages in the stage so far."""
    size: int
    expires_at: int


class Adopt(Struct, gc=False):
    """Append everything in some stages, in one commit. Again, it changes nothing."""

    tenant: str
    queue: str
    query: str
    batch: int
    stages: list[str]
    count: int | None = None
    """How many messages they must have together; had, if they were adopted before."""
    durability: str | None = None
    keep_ms: int | None = None
    """How long the answer has to be known; as long as there is room if None."""


class Unstage(Struct, gc=False):
    """Forget stages that nobody will adopt."""

    tenant: str
    queue: str
    stages: list[str]
    query: str | None = None
    """Those of a query, whatever their names, up to this batch."""
    batch: int = 0


class Unstaged(Struct, gc=False):
    stages: int
    count: int
    """Messages in them."""
