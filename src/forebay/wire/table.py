"""The table of all native operations, the busiest first: HTTP matches paths in this order."""

from forebay.wire.operation import Answer, Operation
from forebay.wire.operations import (
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
    server,
    stages,
    tenants,
    transactions,
    values,
    workers,
)

OPERATIONS: list[Operation] = [
    *push.OPERATIONS,
    *pop.OPERATIONS,
    *transactions.OPERATIONS,
    *messages.OPERATIONS,
    *notes.OPERATIONS,
    *flows.OPERATIONS,
    *dead_letters.OPERATIONS,
    *queues.OPERATIONS,
    *groups.OPERATIONS,
    *crons.OPERATIONS,
    *limits.OPERATIONS,
    *values.OPERATIONS,
    *stages.OPERATIONS,
    *workers.OPERATIONS,
    *tenants.OPERATIONS,
    *server.OPERATIONS,
]
BY_NAME = {each.name: each for each in OPERATIONS}
ANSWERS: dict[type, type[Answer]] = {each.request: each.answer for each in OPERATIONS}
"""What each request is answered with."""
