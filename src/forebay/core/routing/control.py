"""Control records: what every node must know before it routes a command.

They are few, and versioned. Every engine reads them; one owner changes them, under a claim of its own. A
tenant is listed here before anything of it is stored, and whether it is spread never changes. So an engine
whose records are old may not know a tenant, but never looks for one in the wrong place.
"""

from collections.abc import Iterable

from msgspec import MsgspecError

from forebay.core.errors import Conflict, Damaged
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit, Record

START = len(keyspace.META) + 1


class Control:
    """The tenants, and where they live."""

    __slots__ = ("_changes", "epoch", "tenants", "version")

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch
        """The claim under which these records are changed; None for a reader."""
        self.version = 0
        """Version of the placement: it rises with every spread tenant."""
        self.tenants: dict[str, bool] = {}
        """Whether a tenant is spread, by name."""
        self._changes: list[Record] = []

    @property
    def is_owner(self) -> bool:
        return self.epoch is not None

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def add(self, tenant: str, *, spread: bool) -> None:
        """List a tenant. Its name was checked, and it is new."""
        assert self.is_owner, "one engine changes the control records"
        assert tenant not in self.tenants
        self.tenants[tenant] = spread
        self._changes.append((keyspace.control_key(tenant), codec.pack_numbers((int(spread),))))
        if spread:
            self.version += 1
            self._changes.append((keyspace.VERSION_KEY, codec.pack_numbers((self.version,))))

    def check(self, tenant: str, *, spread: bool) -> bool:
        """Return whether a tenant is listed already; raise if it lives otherwise."""
        known = self.tenants.get(tenant)
        if known is not None and known != spread:
            how = "spread over shards" if known else "in one shard"
            raise Conflict(f"tenant {tenant} lives {how}, which is fixed: give the new one another name")
        return known is not None

    def seal(self, now: int) -> Commit:
        assert self.epoch is not None
        changes, self._changes = dict(self._changes), []
        return Commit(keyspace.CONTROL, self.epoch, now, list(changes.items()), [], [])


def load(epoch: int | None, found: Iterable[Record]) -> Control:
    """Return the control of the records of ``keyspace.control_bounds``; ``epoch`` is None for a reader."""
    control = Control(epoch)
    for key, value in found:
        try:
            (number,) = codec.unpack_numbers(value)
            if key == keyspace.VERSION_KEY:
                control.version = number
            elif key[START - 1 : START] == b"T" and number in (0, 1):
                control.tenants[key[START:].decode()] = bool(number)
            else:
                raise Damaged(f"no control record has kind {key[START - 1 : START]!r} and value {number}")
        except (MsgspecError, ValueError) as error:
            raise Damaged(f"a control record can't be decoded: {error}") from None
    if control.version != sum(control.tenants.values()):
        raise Damaged(f"the placement has version {control.version}, which its tenants don't lead to")
    return control
