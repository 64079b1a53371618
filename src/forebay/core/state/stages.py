"""Staged messages: stored, but invisible until they are adopted."""

from msgspec import Struct

from forebay.core.state.attributes import Attributes


class Part(Struct, eq=False, gc=False):
    """A body that waits to become a segment."""

    at: int
    """Sequence number of the write that it came with."""
    partition: str
    count: int
    size: int
    """Payload bytes."""
    body_name: int
    runs: list[tuple[int, Attributes]]
    """(count, attributes) of consecutive messages; the counts add up to ``count``."""
    keys: list[str | None] = []
    """The unique key of each message; empty if none has one."""
    body: bytes | None = None
    """*memory* The body, until the store has it. Part of the record if there are keys."""


class Stage(Struct, eq=False):
    """Messages that one writer has staged, in order."""

    name: str
    query: str | None
    """The query they are staged for, if any."""
    batch: int
    expires_at: int
    run: int = 0
    """Run of the query; a later run replaces earlier ones."""
    parts: list[Part] = []
    writes: int = 0
    """Number of writes."""
    count: int = 0
    size: int = 0


class Sums(Struct, eq=False):
    """Totals over all stages of a queue."""

    bytes: int = 0
    parts: int = 0
    keyed: int = 0
    """Messages of parts with unique keys."""
    keyed_bytes: int = 0

    def count(self, part: Part, sign: int = 1) -> None:
        """Add or subtract a part."""
        self.bytes += sign * part.size
        self.parts += sign
        if part.keys:
            self.keyed += sign * part.count
            self.keyed_bytes += sign * part.size


class Adopted(Struct, frozen=True, gc=False, array_like=True):
    """Reply of an adoption."""

    at: int
    count: int
    """Messages appended."""
    ranges: tuple[tuple[str, int, int, int], ...]
    """(partition, first id, first offset, count) of the messages."""
    durability: str
    duplicates: int = 0
    """Messages that were not appended, because their unique keys were held."""
    until: int = 0
    """When it may be forgotten; 0 keeps it as long as there is room."""
    repeated: bool = False
    """*memory* Whether this repeats an earlier reply."""
