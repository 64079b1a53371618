"""Nodes that are stopped at the end."""

from collections.abc import Callable, Iterator

import pytest

from tests.broker.loop import ObedientStore, Rig

Start = Callable[..., Rig]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts nodes; a second one on the same store is a restart."""
    rigs: list[Rig] = []

    def started(store: ObedientStore | None = None, at_ms: int = 0, memory_bytes_max: int = 1 << 28) -> Rig:
        rigs.append(Rig(store or ObedientStore(), at_ms, memory_bytes_max))
        return rigs[-1]

    yield started
    for rig in rigs:
        rig.close()
