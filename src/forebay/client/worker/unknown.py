"""Jobs that this worker's code does not know: pushed by newer code, as happens in a rolling deploy."""

import logging
from typing import Any

from forebay.client.tasks.call import DoesNotFit, Work
from forebay.client.tasks.task import Task
from forebay.core.errors import Invalid

logger = logging.getLogger("forebay.worker")

UNKNOWN_FOR_S = 3_600.0
"""How long unknown jobs are left to other workers before they are dead letters."""
UNKNOWN_FOR_S_MAX = 30 * 24 * 3_600.0
LOGGED_S = 60.0
"""Shortest time between two warnings about the same task."""
WHAT_TO_DO = "start workers with the code that pushed it, and requeue it if it is a dead letter by then"


class Unknown(Exception):
    """This worker knows no such task, or none that takes such arguments."""


def unknown_task(work: Work) -> Unknown:
    return Unknown(f"this worker knows no task {work.task}; {WHAT_TO_DO}")


def unknown_arguments(task: Task[Any, Any, Any], error: DoesNotFit) -> Unknown:
    return Unknown(f"the task {task.name} of this worker takes other arguments ({error.why}); {WHAT_TO_DO}")


def unknown_ms(unknown_for_s: float) -> int:
    """Return the time in ms; raise if it is out of bounds."""
    if not 0 <= unknown_for_s <= UNKNOWN_FOR_S_MAX:  # false for NaN
        raise Invalid("unknown_for_s", f"0 to {UNKNOWN_FOR_S_MAX:,.0f} seconds")
    return int(unknown_for_s * 1000)


class Warnings:
    """Warnings about unknown jobs: one a minute for each task, however many jobs there are."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, name: str, why: str, fields: dict[str, Any], now: float) -> None:
        if now < self._last.get(name, -LOGGED_S) + LOGGED_S:
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return
        self._last[name] = now
        also = self._left_out.pop(name, 0)
        told = f", and {also} more since the last warning" if also else ""
        logger.warning(
            "job %d %s goes back for other workers%s: %s",
            fields["id"],
            name,
            told,
            why,
            extra={"fields": {**fields, "error": why}},
        )
