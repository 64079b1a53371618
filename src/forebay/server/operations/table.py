"""Which class carries out which operation."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from forebay.server.operations import (
    crons,
    dead_letters,
    flows,
    groups,
    limits,
    messages,
    notes,
    pop,
    push,
    queues,
    search,
    server,
    stages,
    tenants,
    transactions,
    values,
    workers,
)
from forebay.server.operations.carried import Carried
from forebay.wire.table import OPERATIONS

_MODULES = (
    push,
    pop,
    messages,
    search,
    notes,
    queues,
    groups,
    dead_letters,
    crons,
    limits,
    values,
    flows,
    transactions,
    stages,
    workers,
    tenants,
    server,
)


def _carried(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the classes of a module that carry out an operation, by its name."""
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, Carried) and kind.__module__ == module.__name__:
            name = getattr(kind, "__struct_config__").tag  # noqa: B009
            if name is not None:
                yield str(name), kind


_FOUND = {name: kind for module in _MODULES for name, kind in _carried(module)}
COMMANDS: dict[str, Any] = {each.name: _FOUND[each.name] for each in OPERATIONS}
"""The class that carries out each operation, in the order of the table."""
