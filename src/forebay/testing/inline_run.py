"""One run of a task without a worker, and the list of past runs."""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, overload

from msgspec import Raw, Struct

from forebay.client.payloads import encode
from forebay.client.tasks.task import Task
from forebay.client.types import DEFAULT, Message, Progress
from forebay.client.worker.current import Run, _current
from forebay.client.worker.progress import whole
from forebay.core.bounds import check_range
from forebay.core.errors import Invalid

T = TypeVar("T")

SHOWN_MAX = 20
"""Most runs shown by a failed assertion."""


class Order(Struct, eq=False):
    """A job to run: a message as the server would get it."""

    queue: str
    payload: bytes
    options: dict[str, Any] = {}
    children: Sequence["Order"] = ()
    """Its dependencies."""
    id: int = 0
    """Assigned when it runs."""


def in_order(fields: dict[str, Any]) -> list[Order]:
    """Return the jobs of a flow, each after its dependencies."""
    found: list[Order] = []
    last: list[Order] = []
    for child in fields.get("children", ()):
        found += in_order(child)
        last.append(found[-1])
    options = {name: value for name, value in fields.items() if name not in ("queue", "payload", "children")}
    return [*found, Order(fields["queue"], bytes(fields["payload"]), options, last)]


class Ran(Struct, frozen=True):
    """A finished job."""

    id: int
    task: Task[Any, Any, Any]
    args: tuple[Any, ...]
    """As passed to the function."""
    kwargs: dict[str, Any]
    result: Any
    """The function's return value."""
    error: Exception | None
    """Its last exception, if it never succeeded."""
    attempts: int
    options: dict[str, Any]
    """Of its message: ``delay_ms``, ``priority``, …"""

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        ended = f"raised {self.error!r}" if self.error is not None else f"returned {self.result!r}"
        return f"{self.task.name}({', '.join(given)}) {ended}"


class Runs(Sequence[Ran]):
    """Finished jobs, in the order in which they ended."""

    def __init__(self) -> None:
        self._ran: list[Ran] = []

    def append(self, ran: Ran) -> None:
        self._ran.append(ran)

    @overload
    def __getitem__(self, at: int) -> Ran: ...
    @overload
    def __getitem__(self, at: slice) -> list[Ran]: ...
    def __getitem__(self, at: int | slice) -> Ran | list[Ran]:
        return self._ran[at]

    def __len__(self) -> int:
        return len(self._ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self._ran)

    def of(self, task: Task[Any, Any, Any]) -> list[Ran]:
        """Return the runs of a task."""
        return [each for each in self._ran if each.task is task]

    def assert_ran(
        self, task: Task[Any, Any, Any], *args: Any, times: int | None = None, **kwargs: Any
    ) -> None:
        """Assert that a task ran with these arguments, if any are given: at least once, or so many times."""
        __tracebackhide__ = True
        found = [each for each in self.of(task) if not (args or kwargs) or _is_given(each, args, kwargs)]
        if len(found) == times or (times is None and found):
            return
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        wanted = f"{task.name}({', '.join(given)})" if given else task.name
        often = "" if times is None else f" {times} times, not {len(found)}"
        raise AssertionError(f"{wanted} was to run{often}. What ran is:\n{self._shown()}")

    def assert_not_ran(self, task: Task[Any, Any, Any]) -> None:
        """Assert that a task did not run."""
        __tracebackhide__ = True
        if self.of(task):
            raise AssertionError(f"{task.name} was not to run. What ran is:\n{self._shown()}")

    def _shown(self) -> str:
        return "\n".join(f"  {each}" for each in self._ran[-SHOWN_MAX:]) or "  nothing"


def _is_given(ran: Ran, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a task ran with these arguments, positional or by name, as they are or as JSON."""
    signature = inspect.signature(ran.task.function)
    try:
        wanted, found = signature.bind(*args, **kwargs), signature.bind(*ran.args, **ran.kwargs)
    except TypeError:
        return False
    wanted.apply_defaults()
    found.apply_defaults()
    if wanted.arguments == found.arguments:
        return True
    try:
        return encode(dict(wanted.arguments)) == encode(dict(found.arguments))
    except Invalid:
        return False


class InlineRun(Run):
    """A job that runs inline, as middleware and the task see it."""

    def __init__(
        self,
        order: Order,
        id: int,
        task: Task[Any, Any, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        failures: int,
        note: Callable[[int, Progress], None],
    ) -> None:
        options = order.options
        self.task, self.args, self.kwargs = task, args, kwargs
        self.interrupted, self.runner = "", None
        self._note = note
        self.logged: list[tuple[str, str]] = []
        self.message = Message(
            id,
            Raw(order.payload),
            order.queue,
            DEFAULT,
            str(options.get("partition", DEFAULT)),
            id,
            0,
            failures,
            int(options.get("priority", 0)),
            "inline",
            0,
            options.get("headers", {}),
            tuple(options.get("tags", ())),
        )

    def progress(self, percent: float, message: str | None = None) -> None:
        percent = whole(percent)
        if not isinstance(percent, int):
            raise Invalid("progress", "an integer")
        check_range("progress", percent, 0, 100)
        self._note(self.id, Progress(percent, message, None))

    async def aprogress(self, percent: float, message: str | None = None) -> None:
        self.progress(percent, message)

    def log(self, line: str, *, level: str = "info") -> None:
        self.logged.append((level, line))

    async def alog(self, line: str, *, level: str = "info") -> None:
        self.log(line, level=level)


def plainly(run: InlineRun) -> Any:
    """Call the function in this thread."""
    token = _current.set(run)
    try:
        return run.task.function(*run.args, **run.kwargs)
    finally:
        _current.reset(token)


async def attempt(run: InlineRun, *, aside: bool) -> Any:
    """Run a task with its middleware; with ``aside``, a function gets a thread of its own."""

    async def called() -> Any:
        if not run.task.is_async:
            return await asyncio.to_thread(plainly, run) if aside else plainly(run)
        scope = asyncio.timeout(run.task.timeout_s)
        try:
            async with scope:
                return await run.task.function(*run.args, **run.kwargs)
        except TimeoutError:
            if scope.expired():
                raise TimeoutError(f"{run.task.name} took longer than {run.task.timeout_s:g} s") from None
            raise

    call: Callable[[], Awaitable[Any]] = called
    for middleware in reversed(run.task.app.middlewares):
        call = partial(middleware, run, call)
    token = _current.set(run)
    try:
        return await call()
    finally:
        _current.reset(token)


def now_or_in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a new event loop; in a thread, if a loop already runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_a_loop(coroutine)
    with ThreadPoolExecutor(1, "forebay-inline") as thread:
        return thread.submit(contextvars.copy_context().run, _in_a_loop, coroutine).result()


def _in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(coroutine)
