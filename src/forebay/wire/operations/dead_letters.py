"""Dead letters: list, requeue, purge."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from forebay.core.api.principals import READ, WRITE
from forebay.core.words import DEFAULT
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.operations.messages import Seen
from forebay.wire.types import Id


class ListDead(Request, tag="DEAD", kw_only=True):
    """List the dead letters of a group."""

    queue: str
    group: str = DEFAULT
    limit: int = 100
    skip: int = 0


class DeadLetter(Seen, kw_only=True):
    """A message that failed too often."""

    group: str


class DeadLetters(Answer, kw_only=True):
    """Some dead letters; ``total`` is how many there are."""

    messages: list[DeadLetter]
    total: int


class GroupDead(Request, tag="DEADGROUPS", kw_only=True):
    """Count the dead letters of a group by cause: by task, and type and text of their errors.

    Of an error the first line counts, with ``*`` for numbers and ids: so errors of one cause are alike.
    """

    queue: str
    group: str = DEFAULT
    limit: int = 100


class DeadGroup(Struct, gc=False, omit_defaults=True):
    """Dead letters of one cause."""

    count: int
    error: str
    first_at: int
    last_at: int
    example: Id
    task: str | UnsetType = UNSET
    error_type: str | UnsetType = UNSET


class DeadGroups(Answer, kw_only=True):
    """Causes, the most frequent first; ``rest`` counts the dead letters of all others."""

    groups: list[DeadGroup]
    total: int
    rest: int


class OfDead(Request, kw_only=True):
    """Dead letters of a group: those with these ids, or all of them."""

    queue: str
    ids: list[Id] | None = None
    group: str = DEFAULT
    dry_run: bool = False


class RequeueDead(OfDead, tag="REQUEUE", kw_only=True):
    """Deliver dead letters again, as if for the first time: those with these ids, or all of them.

    A message that died of a dependency is parked again until all its dependencies are completed. So are those
    that died of requeued ones, unless ``dependents`` is false.
    """

    dependents: bool = True


class PurgeDead(OfDead, tag="DEADPURGE", kw_only=True):
    """Remove dead letters: those with these ids, or all of them."""


class Buried(Answer, kw_only=True):
    """How many dead letters were purged, and how many are left."""

    count: int
    left: int
    dry_run: bool
    refused: Sequence[Id]


class Requeued(Buried, kw_only=True):
    """How many dead letters were requeued, and how many are left."""

    dependents: int
    """Others, in any queue, that died of these and are parked again."""


DEAD = "/v1/queues/{queue}/dead"
TAG = "dead letters"

OPERATIONS = [
    Operation(
        ListDead, DeadLetters, READ, TAG, "List dead letters", (Route("GET", DEAD),), {"queue": "emails"}
    ),
    Operation(
        GroupDead,
        DeadGroups,
        READ,
        TAG,
        "Count dead letters by cause",
        (Route("GET", f"{DEAD}/groups"),),
        {"queue": "emails"},
    ),
    Operation(
        RequeueDead,
        Requeued,
        WRITE,
        TAG,
        "Deliver dead letters again",
        (Route("POST", DEAD),),
        {"queue": "emails", "dry_run": True},
    ),
    Operation(
        PurgeDead,
        Buried,
        WRITE,
        TAG,
        "Remove dead letters",
        (Route("DELETE", DEAD),),
        {"queue": "emails", "dry_run": True},
    ),
]
