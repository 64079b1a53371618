"""Lines of the worker's log about jobs: each has the job's task, id, queue and attempt as fields."""

import logging
from collections.abc import Sequence
from typing import Any

from forebay.client.address import shown
from forebay.client.tasks.task import RetryLater
from forebay.client.types import Message
from forebay.client.worker.current import Run

logger = logging.getLogger("forebay.worker")


def fields_of(message: Message, task: str) -> dict[str, Any]:
    return {"task": task, "id": message.id, "queue": message.queue, "attempt": message.failures + 1}


def tell_working(queues: Sequence[str], server: str, concurrency: int) -> None:
    logger.info("working on %s at %s, %d at once", ", ".join(queues), shown(server), concurrency)


def tell_start(message: Message, task: str) -> None:
    logger.debug("job %d %s starts", message.id, task, extra={"fields": fields_of(message, task)})


def tell_end(message: Message, task: str, took_s: float) -> None:
    fields = {**fields_of(message, task), "ms": round(took_s * 1000, 1)}
    logger.debug("job %d %s done", message.id, task, extra={"fields": fields})


def tell_failure(message: Message, task: str, why: str, gives_up: bool, error: BaseException | None) -> None:
    fields = {**fields_of(message, task), "error": why}
    what = "gave up" if gives_up else "failed"
    raised = None if isinstance(error, RetryLater) else error  # that is asked for, and no accident
    logger.warning("job %d %s %s", message.id, task, what, extra={"fields": fields}, exc_info=raised)


def tell_refusal(id: int, run: Run | None, what: str, why: str) -> None:
    """Tell that the server took something else of a job than this worker said."""
    task = "?" if run is None else run.task.name
    fields = {"id": id} if run is None else fields_of(run.message, task)
    fields = {"fields": {**fields, "error": why}}
    logger.warning("job %d %s %s: %s", id, task, what, why, extra=fields)
