"""Keys and values: a small JSON store beside the queues."""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

from forebay.core.api.principals import READ, WRITE
from forebay.wire.operation import Answer, Operation, Request, Route
from forebay.wire.types import Key


class GetValue(Request, tag="KVGET", kw_only=True):
    """Return the value of a key."""

    key: Key


class Entry(Answer, kw_only=True):
    """A key and its value. ``version`` sorts as text."""

    key: list[Any]
    value: Raw
    version: str
    expires_at: int | UnsetType = UNSET


class GetValues(Request, tag="KVMGET", kw_only=True):
    """Return the values of several keys, null for those that do not exist."""

    keys: list[Key]


class Values(Answer, kw_only=True):
    """Values and versions in the order of the keys; null where there is none."""

    values: list[Raw]
    versions: list[str | None]


class SetValue(Request, tag="KVSET", kw_only=True):
    """Set the value of a key. With ``version``, only if the key is at that version (null: does not exist)."""

    key: Key
    value: Raw
    ttl_ms: int | None = None
    version: str | UnsetType | None = UNSET


class Written(Answer, kw_only=True):
    """``version`` of everything that was written, and how many keys were ``deleted``."""

    version: str
    deleted: int


class DeleteValue(Request, tag="KVDELETE", kw_only=True):
    """Delete a key. With ``version``, only if the key is at that version."""

    key: Key
    version: str | None = None


class AddValue(Request, tag="KVADD", kw_only=True):
    """Add ``by`` to the number under a key, which is 0 if it does not exist."""

    key: Key
    by: int | float = 1


class Check(Struct, forbid_unknown_fields=True, gc=False):
    """A key, and the version it must be at; null if it must not exist."""

    key: Key
    version: str | None


class Mutation(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A change of a key: set, delete, sum, max, min, append, prepend or expire."""

    kind: str
    key: Key
    value: Raw | UnsetType = UNSET
    ttl_ms: int | None = None


class WriteValues(Request, tag="KVWRITE", kw_only=True):
    """Change several keys, all or none; only if the keys in ``checks`` are at the versions given."""

    checks: list[Check] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)


class ListValues(Request, tag="KVLIST", kw_only=True):
    """List keys and values in the order of their keys.

    Below a ``prefix``, from ``start`` up to ``end``, or keys of one part that match a ``pattern`` of * and ?.
    """

    prefix: Key | None = None
    start: Key | None = None
    end: Key | None = None
    pattern: str | None = None
    limit: int = 100
    reverse: bool = False
    cursor: str | None = None


class Listed(Answer, kw_only=True):
    """Keys and values in the order of their keys. With a ``cursor`` there are more."""

    entries: list[Entry]
    cursor: str | None


class WatchValues(Request, tag="KVWATCH", kw_only=True):
    """Wait until one of some keys has another version than the one given; null stands for a missing key."""

    keys: list[Key]
    versions: list[str | None]
    wait_ms: int = 0


class Watched(Answer, kw_only=True):
    """Whether one of the keys has changed; values and versions in the order of the keys."""

    changed: bool
    values: list[Raw]
    versions: list[str | None]


ALL = "/v1/kv"
ONE = "/v1/kv/{key}"
TAG = "keys and values"
KEY = ["users", "7"]

OPERATIONS = [
    Operation(
        ListValues, Listed, READ, TAG, "List keys and values", (Route("GET", ALL),), {"prefix": ["users"]}
    ),
    Operation(
        WriteValues,
        Written,
        WRITE,
        TAG,
        "Change keys",
        (Route("POST", ALL),),
        {"mutations": [{"kind": "sum", "key": ["users", "count"], "value": 1}]},
    ),
    Operation(
        GetValues, Values, READ, TAG, "Get several values", (Route("POST", "/v1/kv-get"),), {"keys": [KEY]}
    ),
    Operation(
        WatchValues,
        Watched,
        READ,
        TAG,
        "Wait for a change",
        (Route("POST", "/v1/kv-watch"),),
        {"keys": [KEY], "versions": [None], "wait_ms": 0},
    ),
    Operation(AddValue, Entry, WRITE, TAG, "Add to a number", (Route("POST", ONE),), {"key": ["visits"]}),
    Operation(GetValue, Entry, READ, TAG, "Get a value", (Route("GET", ONE),), {"key": KEY}),
    Operation(
        SetValue,
        Written,
        WRITE,
        TAG,
        "Set a value",
        (Route("PUT", ONE),),
        {"key": KEY, "value": {"name": "Ada"}},
    ),
    Operation(DeleteValue, Written, WRITE, TAG, "Delete a key", (Route("DELETE", ONE),), {"key": KEY}),
]
