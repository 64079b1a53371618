"""Routes of the registry of workers."""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from forebay.core.api.principals import POP, READ
from forebay.core.bounds import check_printable, check_text
from forebay.core.errors import ForebayError
from forebay.server.flashq.web.calls import Call
from forebay.server.flashq.web.commands import Refused, refused
from forebay.server.flashq.web.routes import Route
from forebay.server.worker_room import Worker
from forebay.server.workers import QUEUES_MAX, Workers

NAME_CHARS_MAX = 256
"""Characters of a worker's id, and of the name of each of its queues: all are kept in memory."""
COUNT_MAX = (1 << 53) - 1
"""What a worker may say of its concurrency and of its jobs: the most that every client reads exactly."""

Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]

_encode = msgspec.json.Encoder().encode


class Heartbeat(Struct, gc=False):
    """What a worker says of itself."""

    queues: Annotated[list[Name], Meta(max_length=QUEUES_MAX)]
    concurrency: Count = 0
    jobs_processed: Count = 0


class Shown(Struct, gc=False):
    """A worker as it is listed."""

    id: str
    queues: list[str]
    concurrency: int
    last_heartbeat: int
    jobs_processed: int


def shown(workers: Workers, tenant: str) -> list[Shown]:
    """Return the workers heard of lately: if they are very many, those heard of last."""
    return list(map(_shown, workers.latest(tenant)))


def _shown(worker: Worker) -> Shown:
    counts = worker.concurrency, worker.seen_at, worker.done
    return Shown(worker.name, list(worker.queues), *counts)


class WorkerRoutes:
    """Answers requests about workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/workers", self.list, "Workers heard of lately.", needs=(READ,)),
            Route(
                "POST", "/workers/{id}/heartbeat", self.heartbeat, "Say that a worker is alive.", needs=(POP,)
            ),
        ]

    async def list(self, call: Call) -> Raw:
        return Raw(_encode(shown(self._workers, call.context.tenant)))

    async def heartbeat(self, call: Call) -> Raw:
        said: Heartbeat = await call.read(Heartbeat)
        if len(call.path["id"]) > NAME_CHARS_MAX:
            raise Refused(400, f"The id of a worker has at most {NAME_CHARS_MAX} characters")
        try:
            check_printable("id", call.path["id"])
            for queue in said.queues:
                check_text("queues", queue)
            self._workers.report(
                call.path["id"],
                said.queues,
                said.concurrency,
                said.jobs_processed,
                tenant=call.context.tenant,
            )
        except ForebayError as error:
            raise refused(error) from None
        return Raw(b"null")
