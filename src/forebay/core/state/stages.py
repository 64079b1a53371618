"""Staged messages: stored, but invisible until they are adopted."""

from msgspec import Struct

from forebay.core.state.attributes import Attributes


class Part(Struct, eq=False, gc=False):
    """A body that waits to become a segment."""

    at: int
    """Which of the writes to its stage it came with."""
    partition: str
    count: int
    size: int
    """Payload bytes."""
    body_name: int
    runs: list[tuple[int, Attributes]]
    """How many messages in a row have which attributes; the counts add up to ``count``."""
    keys: list[str | None] = []
    """The unique key of each message; empty if none has one."""
    body: bytes | None = None
    """*memory* The body: if nobody else has it, or until the store does. In the record if there are keys."""


class Stage(Struct, eq=False):
    """Messages that one writer has staged, in order."""

    name: str
    query: str | None
    """What they are staged for, if that was said."""
    batch: int
    expires_at: int
    run: int = 0
    """Which run of the query; one that began later takes the place of those before."""
    parts: list[Part] = []
    writes: int = 0
    """How often something was added."""
    count: int = 0
    size: int = 0


class Sums(Struct, eq=False):
    """What all stages of a queue come to."""

    bytes: int = 0
    parts: int = 0
    keyed: int = 0
    """Messages with unique keys, or beside such."""
    keyed_bytes: int = 0

    def count(self, part: Part, sign: int = 1) -> None:
        """Count a part in, or out again."""
        self.bytes += sign * part.size
        self.parts += sign
        if part.keys:
            self.keyed += sign * part.count
            self.keyed_bytes += sign * part.size


class Adopted(Struct, frozen=True, gc=False, array_like=True):
    """What an adoption came to."""

    at: int
    count: int
    """Messages appended."""
    ranges: tuple[tuple[str, int, int, int], ...]
    """(partition, first id, first offset, count) of the messages."""
    durability: str
    duplicates: int = 0
    """Messages that were not appended, because their unique keys were held."""
    until: int = 0
    """When it may be forgotten; 0 if it is kept as long as there is room."""
    repeated: bool = False
    """*memory* Whether this is what an earlier command came to."""
