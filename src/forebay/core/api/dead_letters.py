"""Commands about dead letters."""

from collections.abc import Sequence

from msgspec import Struct

from forebay.core.words import DEFAULT


class Requeue(Struct, gc=False):
    """Deliver dead letters again as if for the first time: some, or all. A dry run only counts."""

    tenant: str
    queue: str
    group: str = DEFAULT
    ids: list[int] | None = None
    dry_run: bool = False
    dependents: bool = True
    """Whether those that died of them are parked again."""


class Purge(Struct, gc=False):
    """Purge dead letters: some, or all. A dry run only counts."""

    tenant: str
    queue: str
    group: str = DEFAULT
    ids: list[int] | None = None
    dry_run: bool = False
    unless_bound: bool = False
    """In a transaction that pushes copies of them: refuse those that no copy can stand for."""


class Buried(Struct, gc=False):
    """Number of dead letters affected, and how many are left for the next command."""

    count: int
    left: int
    refused: Sequence[int] = ()
    dependents: int = 0
    """Dead letters besides, in any queue, that died of requeued ones and are parked again."""


class OfDead(Struct, gc=False, frozen=True):
    """Which dead letters to select: those that all of this is true of."""

    error: str | None = None
    """A text in their error; ``*`` in it stands for any."""
    type: str | None = None
    """Type of their error."""
    since: int | None = None
    """Dead at this time or later."""
    before: int | None = None
    """Dead before this time."""
