"""Headers and tags: what drivers give to messages, and what a consumer gets of each of them."""

import random
from collections.abc import Iterator

from msgspec.structs import replace

from forebay.core.bounds import HEADERS_MAX
from forebay.core.log import slices
from forebay.core.state import Attributes

Labels = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]
"""Headers and tags of a message."""

NO_LABELS: Labels = ((), ())
FEW: list[Labels] = [
    ((("trace", "1"),), ()),
    ((("trace", "2"),), ()),
    ((), ("eu",)),
    ((), ("eu", "vip")),
    ((), ("vip", "eu")),
    ((("trace", "1"), ("empty", "")), ("eu",)),
    ((("größe", "ß\n\0"),), ("größe",)),
]
"""What many messages have: they differ in little."""
COUNTS = [(1, 0), (1, 0), (0, 1), (2, 2), (3, 0), (HEADERS_MAX, HEADERS_MAX)]
"""How many headers and tags each of those has that nothing else has."""


class Labeller:
    """Gives headers and tags to some messages. Its dice are its own, so it changes nothing else in a life."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"labels {seed}")
        self._made = 0

    def label(self, attributes: Attributes) -> Attributes:
        """The same attributes, now and then with headers or tags."""
        chosen = self._random.random()
        if chosen < 0.75:
            return attributes
        headers, tags = self._random.choice(FEW) if chosen < 0.96 else self._new()
        return replace(attributes, headers=headers, tags=tags)

    def _new(self) -> Labels:
        """What nothing else has: few, now and then as many as may be."""
        self._made += 1
        names, tags = self._random.choice(COUNTS)
        headers = tuple((f"h{at}", f"{self._made}.{at}") for at in range(names))
        return headers, tuple(f"{self._made}-{at}" for at in range(tags))


def labels_of(piece: slices.SegmentSlice) -> Iterator[Labels]:
    """Headers and tags of each message of a piece, as they are told with it."""
    for start, count, attributes in slices.labelled(piece):
        assert count > 0
        for at in range(start, start + count):
            assert 0 <= at < piece.count
            yield attributes.headers, attributes.tags
