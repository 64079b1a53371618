"""Workers: they tell of themselves, and are listed."""

from collections.abc import Sequence
from typing import ClassVar

from forebay.core import ids
from forebay.core.bounds import (
    QUEUE_NAME,
    SHOWN_MAX,
    check_name,
    check_printable,
    check_queue_name,
    check_range,
    check_text,
)
from forebay.core.errors import Invalid
from forebay.server.operations.carried import Carried, Context, shown
from forebay.server.tcp.codec import Services
from forebay.server.worker_room import Running, Worker
from forebay.server.workers import QUEUES_MAX, RUNNING_MAX, SAID, SILENT_MS
from forebay.wire.operation import Done
from forebay.wire.operations import workers as wire
from forebay.wire.operations.workers import RunningJob, WorkerShown, WorkersShown

TASKS_MAX = 1_000
"""Tasks that a worker may name."""
CHARS_MAX = 256
"""Characters of a host, a version and the name of a task: all are kept in memory."""
COUNT_MAX = (1 << 53) - 1
"""What a worker may count: the most that every client reads exactly."""


class TellWorker(Carried, wire.TellWorker):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> None:
        self._check()
        for queue in self.queues:
            context.check_queue(queue)
        now = services.workers.now()
        names = {each: each for each in self.tasks}  # each once in memory
        running = [
            Running(_id(each), names.setdefault(each.task, each.task), now - each.for_ms)
            for each in self.running
        ]
        services.workers.beat(
            Worker(
                tenant=context.tenant,
                name=self.name,
                host=self.host,
                pid=self.pid,
                version=self.version,
                group=self.group,
                queues=dict.fromkeys(self.queues),
                tasks=dict.fromkeys(self.tasks),
                concurrency=self.concurrency,
                state=self.state,
                started_at=now - self.up_ms,
                seen_at=now,
                running=running,
                running_count=len(running) if self.running_count is None else self.running_count,
                done=self.done,
                failed=self.failed,
                patience_ms=SILENT_MS,
            )
        )

    def _check(self) -> None:
        check_name("name", self.name)
        check_printable("name", self.name)
        check_name("group", self.group)
        if self.state not in SAID:
            raise Invalid("state", f"one of {', '.join(SAID)}")
        _check_length("queues", self.queues, QUEUES_MAX)
        _check_length("tasks", self.tasks, TASKS_MAX)
        _check_length("running", self.running, RUNNING_MAX)
        if not all(map(QUEUE_NAME.fullmatch, self.queues)):
            raise Invalid("queues", "a list of names of queues")
        for field, text in (("host", self.host), ("version", self.version)):
            _check_short(field, text)
        for text in (*self.tasks, *(each.task for each in self.running)):
            _check_short("tasks", text)
        for field in ("pid", "concurrency", "up_ms", "done", "failed"):
            check_range(field, getattr(self, field), 0, COUNT_MAX)
        if self.running_count is not None:
            check_range("running_count", self.running_count, len(self.running), COUNT_MAX)
        for each in self.running:
            check_range("running", each.for_ms, 0, COUNT_MAX)

    def reply(self, reply: None, context: Context) -> Done:
        return Done()


def _check_length(field: str, given: Sequence[object], most: int) -> None:
    if len(given) > most:
        raise Invalid(field, f"a list of at most {most}")


def _check_short(field: str, text: str) -> None:
    check_text(field, text)
    if len(text) > CHARS_MAX:
        raise Invalid(field, f"texts of at most {CHARS_MAX} characters")


def _id(job: wire.Job) -> int:
    try:
        return ids.parse(job.id)
    except Invalid as error:
        raise Invalid("running", f"a list of jobs, and the id of one {error.accepted}") from None


class ListWorkers(Carried, wire.ListWorkers):
    is_command: ClassVar[bool] = False

    async def carry_out(self, services: Services, context: Context) -> WorkersShown:
        check_range("limit", self.limit, 1, SHOWN_MAX)
        if self.queue is not None:
            check_queue_name(self.queue)
        if self.queue is not None:
            context.check_queue(self.queue)
        asked = (context.tenant, self.queue, self.after, self.limit)
        found, more = services.workers.page(*asked, within=context.queues)
        return WorkersShown(workers=list(map(_shown, found)), more=more)

    def reply(self, reply: WorkersShown, context: Context) -> WorkersShown:
        return reply


def _shown(worker: Worker) -> WorkerShown:
    return WorkerShown(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        group=worker.group,
        queues=list(worker.queues),
        tasks=list(worker.tasks),
        concurrency=worker.concurrency,
        state=worker.state,
        started_at=worker.started_at,
        seen_at=worker.seen_at,
        running=[RunningJob(shown(each.id), each.task, each.since) for each in worker.running],
        running_count=worker.running_count,
        done=worker.done,
        failed=worker.failed,
    )
