"""Control records: what every node must know before it routes a command, and who may send it one.

They are few, and versioned. Every engine reads them; one owner changes them, under a claim of its own. A
tenant is listed here before anything of it is stored, and whether it is spread never changes. So an engine
whose records are old may not know a tenant, but never looks for one in the wrong place.
"""

from collections.abc import Iterable

from msgspec import MsgspecError, Struct

from forebay.core.api.tenants import TenantFound
from forebay.core.errors import Conflict, Damaged, Elsewhere
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.state import Token

START = len(keyspace.META) + 1


class Listed(Struct):
    """A tenant, as it is listed."""

    spread: bool
    created_at: int = 0
    """0 if its record was lost."""
    suspended: bool = False


class Control:
    """The tenants, where they live, and the tokens."""

    __slots__ = ("_changes", "epoch", "tenants", "tokens", "version")

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        """The claim under which these records are changed; None for a reader."""
        self.version = 0
        """Version of the placement: it rises with every spread tenant."""
        self.tenants: dict[str, Listed] = {}
        self.tokens: dict[str, Token] = {}
        """Tokens by id."""
        self._changes: dict[bytes, bytes | None] = {}
        """Records to store, by key; None for those to delete."""

    @property
    def is_owner(self) -> bool:
        return self.epoch is not None

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def is_spread(self, tenant: str) -> bool:
        """Whether the queues of a tenant are spread over shards. One that is not listed has none."""
        known = self.tenants.get(tenant)
        return known is not None and known.spread

    def is_suspended(self, tenant: str) -> bool:
        known = self.tenants.get(tenant)
        return known is not None and known.suspended

    @property
    def has_suspended(self) -> bool:
        return any(each.suspended for each in self.tenants.values())

    def check_owner(self) -> None:
        """Raise unless this engine may change the control records."""
        if not self.is_owner:
            raise Elsewhere(keyspace.CONTROL)

    def add(self, tenant: str, *, spread: bool, now: int = 0) -> None:
        """List a tenant. Its name was checked, and it is new."""
        assert self.is_owner, "one engine changes the control records"
        assert tenant not in self.tenants
        self.tenants[tenant] = Listed(spread, now)
        self._keep(tenant)
        if spread:
            self.version += 1
            self._changes[keyspace.VERSION_KEY] = codec.pack_numbers((self.version,))

    def suspend(self, tenant: str, suspended: bool) -> None:
        """Suspend a listed tenant, or resume it."""
        self.tenants[tenant].suspended = suspended
        self._keep(tenant)

    def _keep(self, tenant: str) -> None:
        known = self.tenants[tenant]
        numbers = (int(known.spread), known.created_at, int(known.suspended))
        self._changes[keyspace.control_key(tenant)] = codec.pack_numbers(numbers)

    def check(self, tenant: str, *, spread: bool | None) -> bool:
        """Return whether a tenant is listed already; raise if it lives otherwise."""
        known = self.tenants.get(tenant)
        if known is not None and spread is not None and known.spread != spread:
            how = "spread over shards" if known.spread else "in one shard"
            raise Conflict(f"tenant {tenant} lives {how}, which is fixed: give the new one another name")
        return known is not None

    def found(self, tenant: str) -> TenantFound:
        known = self.tenants[tenant]
        return TenantFound(tenant, known.spread, known.suspended, known.created_at)

    def put_token(self, token: Token) -> None:
        self.tokens[token.id] = token
        self._changes[keyspace.token_key(token.id)] = codec.pack_token(token)

    def remove_token(self, token: str) -> None:
        del self.tokens[token]
        self._changes[keyspace.token_key(token)] = None

    def seal(self, now: int) -> Commit:
        assert self.epoch is not None
        changes, self._changes = self._changes, {}
        puts = [(key, value) for key, value in changes.items() if value is not None]
        deletes = [key for key, value in changes.items() if value is None]
        return Commit(keyspace.CONTROL, self.epoch, now, puts, deletes, [])


def load(epoch: int | None, found: Iterable[Record]) -> Control:
    """Return the control of the records of ``keyspace.control_bounds``; ``epoch`` is None for a reader."""
    control = Control(epoch)
    for key, value in found:
        kind, name = key[START - 1 : START], key[START:]
        try:
            if key == keyspace.VERSION_KEY:
                (control.version,) = codec.unpack_numbers(value)
            elif kind == keyspace.TENANT_KIND:
                control.tenants[name.decode()] = _listed(*codec.unpack_numbers(value))
            elif kind == keyspace.TOKEN_KIND:
                token = codec.unpack_token(name.decode(), value)
                control.tokens[token.id] = token
            else:
                raise Damaged(f"no control record has kind {kind!r}")
        except (MsgspecError, ValueError, TypeError) as error:
            raise Damaged(f"a control record can't be decoded: {error}") from None
    if control.version != sum(each.spread for each in control.tenants.values()):
        raise Damaged(f"the placement has version {control.version}, which its tenants don't lead to")
    return control


def _listed(spread: int, created_at: int = 0, suspended: int = 0) -> Listed:
    if {spread, suspended} - {0, 1}:
        raise ValueError("a switch is 0 or 1")
    return Listed(bool(spread), created_at, bool(suspended))
