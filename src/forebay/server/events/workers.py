"""Events about workers: told to whoever listens, and not stored, as workers are not."""

import msgspec
from msgspec import Struct

from forebay.server.events.hub import NO_QUEUE, Hub
from forebay.server.worker_room import Worker

_encode = msgspec.json.Encoder().encode


class WorkerEvent(Struct, gc=False):
    """What happened to a worker."""

    kind: str
    tenant: str
    queue: str
    """Empty: it is about no queue alone."""
    at: int
    worker: str
    """Its name."""
    host: str
    version: str
    queues: list[str]
    """Those it works on."""
    running: int
    """Jobs that it ran when it was last heard of."""
    seen_at: int
    """When that was."""


def tell_of_worker(hub: Hub, kind: str, worker: Worker, at: int) -> None:
    """Tell subscribers what happened to a worker."""
    event = WorkerEvent(
        kind,
        worker.tenant,
        NO_QUEUE,
        at,
        worker.name,
        worker.host,
        worker.version,
        list(worker.queues),
        worker.running_count,
        worker.seen_at,
    )
    hub.tell(kind, worker.tenant, _encode(event))
