"""Copy of one store into another, empty one, followed by a comparison.

Records and bodies are the same bytes in every store, so they are copied as they are. The last claim of each
shard goes with them, so that the copy issues no name that the original has issued.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Protocol

from msgspec import MsgspecError, Struct

from forebay.core.errors import Damaged
from forebay.core.loading.verify import TENANT_BYTES, own_prefixes
from forebay.core.records.codec import unpack_header
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import CONTROL, is_header
from forebay.store.base import Claim, Store, StoreError

FIRST, LAST = b"", b"\xff" * 8
"""Bounds around all records but the store's own."""
RECORDS_AT_ONCE = 5_000
BYTES_AT_ONCE = 8 * 1024 * 1024
BODIES_AT_ONCE = 256

Progress = Callable[[str, int], None]
"""Called with the current step, and how many more items it has done."""


class Different(StoreError):
    """A copy differs from its original."""


class Readable(Protocol):
    """The part of a store that a copy reads."""

    def scan(self, lower: bytes, upper: bytes) -> Iterable[Record]: ...
    def bodies(self, keys: Sequence[bytes]) -> list[bytes | Damaged | None]: ...
    def body_keys(self) -> Iterable[bytes]: ...
    def claims(self) -> dict[int, Claim]: ...


class Figures(Struct):
    """Counts of what was copied and compared, or is there; messages without those of the server itself."""

    records: int = 0
    bodies: int = 0
    bytes: int = 0
    messages: int = 0


def copy(source: Readable, shards: int, target: Store, progress: Progress) -> Figures:
    """Copy everything. Raise StoreError if the target is not empty, or differs in the end."""
    if next(iter(target.scan(FIRST, LAST)), None) is not None or next(iter(target.body_keys()), None):
        raise StoreError(f"{target.name} is not empty; name another")
    claim = target.claim(CONTROL)
    records = iter(source.scan(FIRST, LAST))
    while page := list(islice(records, RECORDS_AT_ONCE)):
        target.commit([Commit(CONTROL, claim.epoch, 0, page, [], [])])
        progress("copying", len(page))
    for bodies in _in_parts(_bodies(source)):
        target.commit([Commit(CONTROL, claim.epoch, 0, [], [], bodies)])
        progress("copying", len(bodies))
    figures = compare(source, target, progress, own_prefixes(shards, source.scan))
    # Last: without it, no server takes the target for a complete store.
    target.be_copy(shards, source.claims())
    _compare_claims(source, target)
    if target.shards(shards) != shards:
        raise Different("the copy is not the same: it has another number of shards")
    return figures


def compare(
    source: Readable, target: Readable, progress: Progress, own: frozenset[bytes] = frozenset()
) -> Figures:
    """Compare two stores. Raise StoreError with the first difference.

    Messages of tenants whose records begin with ``own`` are not counted.
    """
    found = Figures()
    for kind, theirs, ours in (
        ("record", source.scan(FIRST, LAST), target.scan(FIRST, LAST)),
        ("body", _bodies(source), _bodies(target)),
    ):
        for one, other in zip_longest(theirs, ours):
            if one != other:
                key = (one or other)[0].hex()
                raise Different(f"the copy is not the same: the {kind} {key} differs")
            progress("comparing", 1)
            found.bytes += len(one[1])
            if kind == "record":
                found.records += 1
                found.messages += 0 if one[0][:TENANT_BYTES] in own else _messages(*one)
            else:
                found.bodies += 1
    return found


def _messages(key: bytes, value: bytes) -> int:
    """Return how many messages a record stands for: those of a segment's header; none if it is damaged."""
    try:
        return unpack_header(0, value).count if is_header(key) else 0
    except MsgspecError:
        return 0


def kept(source: Readable, shards: int) -> tuple[int, int]:
    """Return the number of messages in a store, and the bytes of their payloads, by its records alone.

    Those of the server's own tenants, such as its event log, do not count.
    """
    own = own_prefixes(shards, source.scan)
    messages = size = 0
    for key, value in source.scan(FIRST, LAST):
        if is_header(key) and key[:TENANT_BYTES] not in own:
            segment = unpack_header(0, value)
            messages += segment.count
            size += segment.size
    return messages, size


def _compare_claims(source: Readable, target: Readable) -> None:
    known, found = (
        {shard: (claim.epoch, claim.committed_at) for shard, claim in each.claims().items()}
        for each in (source, target)
    )
    if known != found:
        raise Different("the copy is not the same: its shards were claimed otherwise")


def count(source: Readable) -> int:
    """Return the number of records and bodies of a store."""
    return sum(1 for _ in source.scan(FIRST, LAST)) + sum(1 for _ in source.body_keys())


def _bodies(source: Readable) -> Iterator[Record]:
    """Yield all bodies with their keys."""
    keys = iter(source.body_keys())
    while some := list(islice(keys, BODIES_AT_ONCE)):
        for key, body in zip(some, source.bodies(some), strict=True):
            if not isinstance(body, bytes):
                raise StoreError(f"the body {key.hex()} can't be read: {body}; see: forebay verify")
            yield key, body


def _in_parts(bodies: Iterable[Record]) -> Iterator[list[Record]]:
    """Split bodies into commits of about BYTES_AT_ONCE."""
    part: list[Record] = []
    size = 0
    for body in bodies:
        part.append(body)
        size += len(body[1])
        if size >= BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
