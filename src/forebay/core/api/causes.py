"""What dead letters died of: a query that counts them by cause."""

from msgspec import Struct

from forebay.core.api.queries import Query, Spot
from forebay.core.words import DEFAULT


class GetCauses(Query, gc=False):
    """Dead letters of a group, counted by cause."""

    tenant: str
    queue: str
    group: str = DEFAULT
    after: Spot | None = None
    """Cursor: where to continue."""
    effort: int = 1_000
    """Stretches of dead letters with the same attributes to count, long errors counting more: about 5 ms."""


class Cause(Struct, gc=False):
    """Dead letters that have task, type and pattern of their errors in common."""

    task: str
    type: str
    pattern: str
    """First line of the errors, with ``*`` for numbers and ids."""
    count: int
    first_at: int
    """When the first of them died."""
    last_at: int
    example: int
    """Id of one of them."""


def join(one: Cause, other: Cause) -> None:
    """Add the counts of the same cause."""
    one.count += other.count
    one.first_at, one.last_at = min(one.first_at, other.first_at), max(one.last_at, other.last_at)


class CausesFound(Struct, gc=False):
    causes: list[Cause]
    next: Spot | None = None
    """Cursor, if there may be more."""
