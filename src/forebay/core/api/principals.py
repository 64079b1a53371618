"""Principals: the identity behind a request, and what its role may do.

    read    sees messages, queues, results, events
    push    pushes
    pop     pops, and settles what it popped
    write   push and pop; cancels, moves, requeues; crons, keys and values; and read
    owner   write; configures, clears and deletes the queues of its tenant; its limits, webhooks and tokens
    admin   owner of every tenant; tenants, backup, hold

A principal belongs to one tenant. Patterns of queues narrow what it may: it then sees and changes messages of
these queues only, and nothing that belongs to the tenant as a whole.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from forebay.core.bounds import check_name, check_printable
from forebay.core.errors import Denied, Invalid
from forebay.core.words import DEFAULT, is_own

READ, PUSH, POP, WRITE, OWNER, ADMIN = ROLES = ("read", "push", "pop", "write", "owner", "admin")
ANY = "any"
"""What every principal may do."""
_WRITES = frozenset((ANY, READ, PUSH, POP, WRITE))
INCLUDES: dict[str, frozenset[str]] = {
    READ: frozenset((ANY, READ)),
    PUSH: frozenset((ANY, PUSH)),
    POP: frozenset((ANY, POP)),
    WRITE: _WRITES,
    OWNER: _WRITES | {OWNER},
    ADMIN: _WRITES | {OWNER, ADMIN},
}
"""The roles that a role includes."""
PATTERN_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-*")
PATTERN_CHARS_MAX = 256
PATTERNS_MAX = 100
"""Patterns of queues that one principal may have."""

Patterns = Sequence[str]
"""Names of queues, in which ``*`` stands for any text; none means all queues."""


class Principal(Struct, frozen=True):
    """The identity behind a request."""

    tenant: str = DEFAULT
    role: str = ADMIN
    name: str = ""
    """For people, and for the log of what was done."""
    queues: tuple[str, ...] = ()
    """Patterns of the queues that it is for; all if empty."""
    token: str = ""
    """Id of the token that it showed; empty without one."""
    expires_at: int = 0
    """When it is a principal no more, in ms; 0 for never."""

    def may(self, needs: Iterable[str]) -> bool:
        """Return whether its role includes one of those that a thing needs."""
        return not INCLUDES[self.role].isdisjoint(needs)

    def has(self, queue: str) -> bool:
        """Return whether it is for a queue."""
        return has_queue(self.queues, queue)

    @property
    def is_admin(self) -> bool:
        """Whether it may act for every tenant."""
        return self.role == ADMIN and not self.queues


ANYONE = Principal(name="anyone")
"""The principal of a server that asks nobody who he is."""


def has_queue(patterns: Patterns, queue: str) -> bool:
    """Return whether a queue matches one of the patterns; without any, each does."""
    return not patterns or _has(tuple(patterns), queue)


@lru_cache(maxsize=100_000)
def _has(patterns: tuple[str, ...], queue: str) -> bool:
    return any(matches(each, queue) for each in patterns)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in one pass: no pattern takes long.

    >>> [matches("orders*", name) for name in ("orders", "orders.eu", "my-orders")]
    [True, True, False]
    >>> [matches("*.eu", name) for name in ("orders.eu", "eu")], matches("a*a", "a"), matches("a*c", "abc")
    ([True, False], False, True)
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    end = len(name) - len(last)
    if not name.startswith(first) or not name.endswith(last) or end < len(first):
        return False
    at = len(first)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def check_role(role: str) -> None:
    if role not in ROLES:
        raise Invalid("role", f"one of {', '.join(ROLES)}")


def check_patterns(patterns: Patterns) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise Invalid("queues", f"a list of at most {PATTERNS_MAX} patterns")
    for each in patterns:
        if not 1 <= len(each) <= PATTERN_CHARS_MAX or not PATTERN_CHARS.issuperset(each):
            raise Invalid("queues", "names of queues, in which * stands for any text")


def check_tenant(name: str, field: str = "tenant") -> None:
    """Raise unless this may be the name of a tenant."""
    check_name(field, name)
    check_printable(field, name)
    if is_own(name):
        raise Invalid(field, "a name without _ at its start: those are the server's own")


def check_grant(by: Principal, role: str) -> None:
    """Raise unless a principal may make another with this role: nobody gives away more than he has."""
    if not INCLUDES[role] <= INCLUDES[by.role]:
        raise Denied(f"the role {by.role} can't give the role {role} to others")
