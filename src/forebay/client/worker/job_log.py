"""Lines of the worker's log about jobs: each has the job's task, id, queue and attempt as fields."""

import logging
from typing import Any

from forebay.client.types import Message

logger = logging.getLogger("forebay.worker")


def fields_of(message: Message, task: str) -> dict[str, Any]:
    return {"task": task, "id": message.id, "queue": message.queue, "attempt": message.failures + 1}


def tell_start(message: Message, task: str) -> None:
    logger.debug("job %d %s starts", message.id, task, extra={"fields": fields_of(message, task)})


def tell_end(message: Message, task: str, took_s: float) -> None:
    fields = {**fields_of(message, task), "ms": round(took_s * 1000, 1)}
    logger.debug("job %d %s done", message.id, task, extra={"fields": fields})
