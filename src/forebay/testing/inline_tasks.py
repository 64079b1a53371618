"""Tasks without a server: a push runs the task at once, in this process, and returns when it has ended.

Arguments go through JSON and are converted to the annotated types, as in a worker; so are results. A function
runs in the thread that pushes it; a coroutine in the event loop that awaits ``apush``, or in one of its own.
Delays are not waited for; rates and priorities have no effect.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

from msgspec import Raw

from forebay.client.backoff import Within
from forebay.client.payloads import result_as, value_of
from forebay.client.tasks.app import App, Backend
from forebay.client.tasks.call import parse
from forebay.client.tasks.task import Call, GiveUp, Task
from forebay.client.translate import options_of
from forebay.client.types import Progress, Pushed, Result, Update
from forebay.client.worker.run import result_of
from forebay.core.errors import NotFound
from forebay.core.state import QueueOptions
from forebay.testing.clients import Everywhere, InlineClient, InlineSyncClient
from forebay.testing.inline_run import (
    InlineRun,
    Order,
    Ran,
    Runs,
    attempt,
    in_order,
    now_or_in_a_loop,
    plainly,
)

RETRIES_MAX = 100
"""Most attempts of a job without ``max_attempts``."""


def _order(call: Call[Any]) -> Order:
    options = call.message()
    options_of(options)  # refuses options that a server would not know
    return Order(call.task.queue, call.payload(), dict(options))


class Inline(Runs, Backend):
    """Finished jobs as a sequence of ``Ran``, in the order they ended. Also the backend of its apps."""

    def __init__(self, apps: Iterable[App], *, raises: bool, retries: bool) -> None:
        super().__init__()
        self._apps = list(apps)
        self._raises, self._retries = raises, retries
        self._numbers = count(1)
        self._results: dict[int, Result] = {}
        """By job; the result as JSON."""
        self._progress: dict[int, Progress] = {}
        self._running: dict[str, int] = {}
        """Running jobs, by unique key."""

    # Backend of the apps.

    def push(self, app: App, call: Call[Any]) -> Pushed:
        return self.run(_order(call))

    async def apush(self, app: App, call: Call[Any]) -> Pushed:
        return await self.arun(_order(call))

    def push_later(self, app: App, call: Call[Any]) -> None:
        self.run(_order(call))

    def push_flow(self, app: App, fields: dict[str, Any], within: Within) -> Pushed:
        return [self.run(each) for each in in_order(fields)][-1]

    async def apush_flow(self, app: App, fields: dict[str, Any], within: Within) -> Pushed:
        return [await self.arun(each) for each in in_order(fields)][-1]

    # Runs.

    def run(self, order: Order) -> Pushed:
        """Run a job to its end; raise its error if ``raises`` is set."""
        job = _Job(self, order)
        if not job.is_known:
            with job:
                while job.goes_on:
                    job.tried(_caught_of(self._try, job))
        return job.pushed()

    async def arun(self, order: Order) -> Pushed:
        job = _Job(self, order)
        if not job.is_known:
            with job:
                while job.goes_on:
                    job.tried(await self._atry(job))
        return job.pushed()

    def _try(self, job: "_Job") -> Any:
        run = self._begin(job)
        if not run.task.is_async and not run.task.app.middlewares:
            return plainly(run)
        return now_or_in_a_loop(attempt(run, aside=False))

    async def _atry(self, job: "_Job") -> Any:
        try:
            return await attempt(self._begin(job), aside=True)
        except Exception as error:
            return _Caught(error)

    def _begin(self, job: "_Job") -> InlineRun:
        work = parse(job.order.payload)
        job.task = task = self._task(work.task)
        job.args, job.kwargs = work.args, work.kwargs
        args = [*self._before(job.order, work.results), *work.args]
        try:
            job.args, job.kwargs = task.signature.made(args, work.kwargs)
        except Exception as error:
            raise GiveUp(f"these are no arguments of {task.name}: {error}") from error
        return InlineRun(job.order, job.id, task, job.args, job.kwargs, job.failures, self._note)

    def _task(self, name: str) -> Task[Any, Any, Any]:
        for app in self._apps:
            if name in app.tasks:
                return app.tasks[name]
        raise LookupError(f"no app that runs inline has a task {name}")

    def _before(self, order: Order, wanted: str) -> list[Any]:
        """Return the results of a job's dependencies, if it wants them."""
        results = [self._results[each.id].result for each in order.children]
        plain = [value_of(each or Raw(b"null")) for each in results]
        if not wanted:
            return []
        return [plain[0] if plain else None] if wanted == "one" else [plain]

    def _note(self, id: int, progress: Progress) -> None:
        self._progress[id] = progress

    # Queries about jobs.

    def has_failed(self, id: int) -> bool:
        return id in self._results and self._results[id].state == "dead"

    def result(self, id: Any, type: Any = Any) -> Result:
        found = self._results.get(int(id))
        if found is None:
            raise NotFound(f"there is no job {id}")
        value = result_as(type, found.result or Raw(b"null"), found.id)
        return Result(found.id, found.done, found.state, value, found.error)

    def update(self, id: Any, type: Any = Any) -> Update:
        result, progress = self.result(id, type), self.progress(id)
        return Update(
            result.id,
            result.state,
            progress.progress,
            progress.message,
            result.done,
            result.result,
            result.error,
        )

    def progress(self, id: Any) -> Progress:
        return self._progress.get(int(id), Progress(0, None, None))


class _Caught:
    """An exception as a value."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _caught_of(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return _Caught(error)


class _Job:
    """One job from its push to its end."""

    def __init__(self, inline: Inline, order: Order) -> None:
        self._inline = inline
        self.order = order
        self._key = str(order.options.get("unique_key", ""))
        self.is_known = self._key in inline._running if self._key else False
        self.id = inline._running[self._key] if self.is_known else next(inline._numbers)
        order.id = self.id
        self.task: Task[Any, Any, Any] | None = None
        self.args: Any = ()
        self.kwargs: Any = {}
        self.failures = 0
        self.goes_on = True
        self._error: Exception | None = None
        if not self.is_known:
            inline._results[self.id] = Result(self.id, False, "active")
        waits_for = [*(each.id for each in order.children), *order.options.get("depends_on", ())]
        lost = [int(id) for id in waits_for if inline.has_failed(int(id))]
        if lost and order.options.get("on_failed", "fail") == "fail":
            self._end("dead", None, f"job {lost[0]}, which it waits for, failed")

    def __enter__(self) -> None:
        if self._key:
            self._inline._running[self._key] = self.id

    def __exit__(self, *_: object) -> None:
        if self._key:
            del self._inline._running[self._key]

    def tried(self, outcome: Any) -> None:
        """After an attempt: finish the job, retry it, or let it fail."""
        if not isinstance(outcome, _Caught):
            try:
                kept = result_of(outcome)
            except Exception as error:
                outcome = _Caught(error)
            else:
                self._note(outcome, None)
                self._end("completed", kept, None)
                return
        self.failures += 1
        if self._may_run_again(outcome.error):
            return
        self._error = outcome.error
        self._note(None, outcome.error)
        self._end("dead", None, _told(outcome.error))

    def _may_run_again(self, error: Exception) -> bool:
        if not self._inline._retries or isinstance(error, GiveUp):
            return False
        if self.task is None or isinstance(error, self.task.give_up_on):
            return False
        return self.failures < (self._max_attempts() or RETRIES_MAX)

    def _max_attempts(self) -> int:
        assert self.task is not None
        of_queue = self.task.app.queue_options.get(self.order.queue, {})
        default = of_queue.get("max_attempts", QueueOptions().max_attempts)
        return int(self.order.options.get("max_attempts", default))

    def _note(self, result: Any, error: Exception | None) -> None:
        if self.task is None:
            return
        attempts = self.failures + (error is None)
        ran = Ran(
            self.id,
            self.task,
            tuple(self.args),
            dict(self.kwargs),
            result,
            error,
            attempts,
            {name: value for name, value in self.order.options.items() if name != "task"},
        )
        self._inline.append(ran)

    def _end(self, state: str, kept: Raw | None, error: str | None) -> None:
        self.goes_on = False
        self._inline._results[self.id] = Result(self.id, True, state, kept, error)

    def pushed(self) -> Pushed:
        if self._error is not None and self._inline._raises:
            raise self._error
        return Pushed(self.id, "memory", duplicate=self.is_known)


def _told(error: Exception) -> str:
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def inline(*apps: App, raises: bool = True, retries: bool = False) -> Iterator[Inline]:
    """Run pushes of these apps at once, inline, without a server; yields the list of finished jobs.

    Errors come out of the push; with ``raises=False`` they are in ``ran`` and in ``job.result()``. With
    ``retries=True`` a task that failed is tried again at once, as often as it may be.
    """
    ran = Inline(apps, raises=raises, retries=retries)
    before = [(app, app.backend, app._clients, app._aclients) for app in apps]
    for app in apps:
        app.backend = ran
        app._clients = cast(Any, dict.fromkeys((False, True), InlineSyncClient(ran)))
        app._aclients = cast(Any, Everywhere(InlineClient(ran)))
    try:
        yield ran
    finally:
        for app, backend, clients, aclients in before:
            app.backend, app._clients, app._aclients = backend, clients, aclients
