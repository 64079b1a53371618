"""Functions as tasks, calls of them, and jobs: calls that were pushed."""

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import asdict, replace

from forebay.client.backoff import Within
from forebay.client.payloads import Encoded, sorted_json
from forebay.client.tasks.call import Signature, Work, packed
from forebay.client.translate import options_of
from forebay.client.types import Backoff, New, Options, Progress, Pushed, Result, Update
from forebay.core.errors import ForebayError, Invalid

if TYPE_CHECKING:
    from forebay.client.tasks.app import App

P = ParamSpec("P")
C = TypeVar("C", covariant=True)
"""What calling a function returns: its result, or a coroutine of it."""
R = TypeVar("R", covariant=True)
"""The result of a job, in both cases. Covariant, so that jobs of several types are a ``list[Job[…]]``."""
_AS_ANNOTATED: Any = object()
"""No ``type`` was given: a result is of the type that the task's function says it returns."""


class Retry(Struct, frozen=True):
    """How often, and with which backoff, a failed job is retried."""

    max_attempts: int = 3
    """Failures after which it is a dead letter; 0: never."""
    base_ms: int = 1_000
    """Delay after the first failure; doubles with every further one."""
    cap_ms: int = 3_600_000
    jitter: float = 0.1
    """Largest part of the delay that is left out at random."""

    def options(self) -> Options:
        """Return it as options of a message."""
        if not self.base_ms:
            return {"max_attempts": self.max_attempts, "backoff": 0}
        backoff: Backoff = {
            "kind": "exponential",
            "base_ms": self.base_ms,
            "cap_ms": max(self.cap_ms, self.base_ms),
            "jitter": self.jitter,
        }
        return {"max_attempts": self.max_attempts, "backoff": backoff}


class RetryLater(Exception):
    """Raised by a task: retry it after ``delay_ms`` or its backoff. Counts as a failure."""

    def __init__(self, why: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(why)
        self.delay_ms = delay_ms


class GiveUp(Exception):
    """Raised by a task that can never succeed: it becomes a dead letter at once."""


class Failed(ForebayError):
    """The job whose result was requested did not succeed."""

    code = "failed"


class NotDone(ForebayError):
    """The job whose result was requested has not ended yet."""

    code = "not_done"


class Job(Generic[R]):
    """A call that was pushed. Without its ``task``, results are plain JSON."""

    def __init__(self, app: "App", pushed: Pushed, task: "Task[Any, Any, R] | None" = None) -> None:
        self._app = app
        self._task = task
        self.id = pushed.id
        self.pushed = pushed

    def __repr__(self) -> str:
        return f"Job({self.id})"

    @overload
    def result(self, wait_s: float = 30.0) -> R: ...
    @overload
    def result(self, wait_s: float = 30.0, *, type: Any) -> Any: ...
    def result(self, wait_s: float = 30.0, *, type: Any = _AS_ANNOTATED) -> R:
        """Wait for the task's result and return it as what the function says it returns, or as ``type``.

        Raises ``Failed``, ``NotDone`` on timeout, or ``Invalid`` if it is not what the function says.
        """
        found = self._app.client.result(self.id, wait_ms=int(wait_s * 1000), type=_decoded_as(type))
        result: R = self._converted(_returned(found), type)
        return result

    @overload
    async def aresult(self, wait_s: float = 30.0) -> R: ...
    @overload
    async def aresult(self, wait_s: float = 30.0, *, type: Any) -> Any: ...
    async def aresult(self, wait_s: float = 30.0, *, type: Any = _AS_ANNOTATED) -> R:
        """Like ``result``, for asyncio."""
        wait_ms = int(wait_s * 1000)
        found = await self._app.aclient.result(self.id, wait_ms=wait_ms, type=_decoded_as(type))
        result: R = self._converted(_returned(found), type)
        return result

    def state(self) -> str:
        """Return its state: waiting, delayed, parked, active, completed, dead, …"""
        return self._app.client.state(self.id)

    async def astate(self) -> str:
        """Like ``state``, for asyncio."""
        return await self._app.aclient.state(self.id)

    def progress(self) -> Progress:
        """Return how far it is, in percent, as the task last reported."""
        return self._app.client.progress(self.id)

    async def aprogress(self) -> Progress:
        """Like ``progress``, for asyncio."""
        return await self._app.aclient.progress(self.id)

    def updates(self, *, type: Any = _AS_ANNOTATED) -> Iterator[Update]:
        """Yield how it stands, now and after every change of its state or progress, until it ends.

        The last one has the result, which is of the same type as that of ``result``.
        """
        found = self._app._client(is_patient=True).updates(self.id, type=_decoded_as(type))
        return (self._with_result(each, type) for each in found)

    def aupdates(self, *, type: Any = _AS_ANNOTATED) -> AsyncIterator[Update]:
        """Like ``updates``, for ``async for``."""
        found = self._app._aclient(is_patient=True).updates(self.id, type=_decoded_as(type))
        return (self._with_result(each, type) async for each in found)

    def cancel(self) -> None:
        """Cancel it; if it is running, its worker is notified when it next extends the lease."""
        self._app.client.cancel(self.id)

    async def acancel(self) -> None:
        """Like ``cancel``, for asyncio."""
        await self._app.aclient.cancel(self.id)

    def _with_result(self, update: Update, type: Any) -> Update:
        if update.state != "completed":  # it has no result, and need not have one
            return update
        return replace(update, result=self._converted(update.result, type))

    def _converted(self, value: Any, type: Any) -> Any:
        """Convert a result to what the function says it returns, unless ``type`` was given."""
        if type is not _AS_ANNOTATED or self._task is None:
            return value
        try:
            return self._task.signature.result(value)
        except Exception as error:
            wanted = inspect.formatannotation(self._task.signature.returns)
            why = f"{wanted}, as {self._task.name} says it returns; that of job {self.id} is not: {error}"
            raise Invalid("result", f"{why}. Pass type=Any to get it as it is") from error


def _decoded_as(type: Any) -> Any:
    """Return what a client decodes a result into; plain JSON if it is converted afterwards."""
    return Any if type is _AS_ANNOTATED else type


def _returned(result: Result) -> Any:
    if not result.done:
        why = (
            "it waits for others: forebay message shows which"
            if result.state == "parked"
            else "wait longer for it"
        )
        raise NotDone(f"job {result.id} is {result.state}; {why}")
    if result.state != "completed":
        why = f": {result.error}" if result.error else ""
        raise Failed(f"job {result.id} is {result.state}{why}")
    return result.result


class Step(Struct, Generic[R], frozen=True):
    """What can be pushed, and be part of a chain or a group: a call, or a chain or a group itself."""

    def push(self) -> Job[R]:
        raise NotImplementedError

    async def apush(self) -> Job[R]:
        raise NotImplementedError


class Call(Step[R], frozen=True):
    """A task with its arguments, and options of its message."""

    task: "Task[Any, Any, R]"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Options = {}
    takes_result: bool = False
    """Whether its first argument is the result of the call before it."""
    within: Within = Within()
    """How patiently it is pushed, if it says so."""

    def payload(self, **more: Any) -> bytes:
        """Return the payload of its message; ``more`` is what ``Work`` has about results."""
        return packed(Work(self.task.name, self.args, self.kwargs, **more))

    def message(self) -> Options:
        """Return all options of the message; its own take precedence over the task's."""
        made = {**self.task.message, **self.options}
        if self.task.unique is not None and "unique_key" not in made:
            if self.takes_result:
                why = f"given: {self.task.name} is unique, and its first argument is not known yet"
                raise Invalid("unique_key", why)
            made["unique_key"] = self.task.key_of(self.args, self.kwargs)
        for hook in self.task.app.before_push_hooks:
            hook(self, made)
        return cast(Options, made)

    def push(self) -> Job[R]:
        """Push it; the job is stored when this returns."""
        return self.task.app.push(self)

    async def apush(self) -> Job[R]:
        """Like ``push``, for asyncio."""
        return await self.task.app.apush(self)

    def push_later(self) -> None:
        """Put it into a buffer in memory, from which a thread pushes it; returns at once.

        It is lost if the process dies before. Raises ``Busy`` if the buffer is full.
        """
        self.task.app.push_later(self)

    def with_options(self, **options: Any) -> "Call[R]":
        """Return the same call with options of its message."""
        within, options = _apart(options)
        made = cast(Options, {**self.options, **_ids(options)})
        return Call(self.task, self.args, self.kwargs, made, self.takes_result, within)


def _apart(options: dict[str, Any]) -> tuple[Within, dict[str, Any]]:
    """Tell what is about the push from the options of its message."""
    rest = {name: value for name, value in options.items() if name not in ("timeout_s", "retry_s")}
    return Within(options.get("timeout_s"), options.get("retry_s")), rest


def _ids(options: dict[str, Any]) -> dict[str, Any]:
    """Replace jobs in ``depends_on`` by their ids."""
    if "depends_on" in options:
        options["depends_on"] = [each.id if isinstance(each, Job) else each for each in options["depends_on"]]
    return options


class Task(Generic[P, C, R]):
    """A function that is run by a worker. Called directly, it runs here and now."""

    def __init__(self, app: "App", function: Callable[P, C], name: str, queue: str, given: "Given") -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.timeout_s = given.timeout_s
        self.unique = given.unique
        self.process = given.process
        self.give_up_on = given.give_up_on
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function)
        self.message: Options = cast(Options, {**given.retry_options(), "task": name, **given.options})
        self.__doc__ = function.__doc__
        self.__name__ = name
        if self.process and self.is_async:
            raise Invalid("process", "left out: a coroutine runs in the worker's own process")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that can be pushed, or put into a chain or a group."""
        self.signature.check(args, kwargs)
        return Call(self, args, kwargs)

    def then(self, *args: Any, **kwargs: Any) -> Call[R]:
        """Return a call whose first argument will be the result of the call before it."""
        self.signature.check(args, kwargs, first=1)
        return Call(self, args, kwargs, takes_result=True)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Have a worker run it; the job is stored when this returns."""
        return self.call(*args, **kwargs).push()

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like ``push``, for asyncio. Concurrent pushes share a request."""
        return await self.call(*args, **kwargs).apush()

    def push_later(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Have it pushed in the background, from a buffer in memory; returns at once.

        It is lost if the process dies before. Raises ``Busy`` if the buffer is full.
        """
        self.call(*args, **kwargs).push_later()

    def push_many(self, arguments: Iterable[Any], **options: Any) -> list[int]:
        """Push a job for each argument (a tuple is several arguments) and return their ids."""
        within, options = _apart(_ids(options))
        news = (self._new(each, options) for each in arguments)
        fields = {**asdict(self.app.within(within)), **self._shared(options)}
        return self.app.client.push_many(self.queue, news, **fields).ids

    async def apush_many(self, arguments: Iterable[Any], **options: Any) -> list[int]:
        """Like ``push_many``, for asyncio."""
        within, options = _apart(_ids(options))
        news = (self._new(each, options) for each in arguments)
        fields = {**asdict(self.app.within(within)), **self._shared(options)}
        return (await self.app.aclient.push_many(self.queue, news, **fields)).ids

    def _new(self, given: Any, options: dict[str, Any]) -> Any:
        """Return one message of many: its payload alone, if all have the same options."""
        args = given if isinstance(given, tuple) else (given,)
        self.signature.check_count(args)
        if self.unique is None and not self.app.before_push_hooks:
            return Encoded(packed(Work(self.name, args)))
        call = Call(self, args, {}, cast(Options, options))
        return New(Encoded(call.payload()), call.message())

    def _shared(self, options: dict[str, Any]) -> Options:
        if self.unique is None and not self.app.before_push_hooks:
            return cast(Options, {**self.message, **options})
        return {}

    def job(self, id: int) -> Job[R]:
        """Return a job of this task by its id, from a web request, say."""
        return Job(self.app, Pushed(id, ""), self)

    def options(self, **options: Any) -> "Optioned[P, R]":
        """Return the task with options of the message: ``send.options(delay_ms=5000).push("ada")``.

        ``timeout_s`` and ``retry_s`` are about the push itself, as of ``App``.
        """
        _apart(options)  # raises unless they can be meant
        return Optioned(self, _ids(options))

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the unique key of a job: a hash of its arguments, or what ``unique`` makes of them."""
        if callable(self.unique):
            return f"{self.name}:{self.unique(*args, **kwargs)}"
        digest = hashlib.sha256(sorted_json(self.signature.bound(args, kwargs))).hexdigest()
        return f"{self.name}:{digest[:32]}"

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"


class Optioned(Generic[P, R]):
    """A task with options of the message."""

    def __init__(self, task: Task[P, Any, R], options: dict[str, Any]) -> None:
        self._task, self._options = task, options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that can be pushed, or put into a chain or a group."""
        return self._task.call(*args, **kwargs).with_options(**self._options)

    def then(self, *args: Any, **kwargs: Any) -> Call[R]:
        """Return a call whose first argument will be the result of the call before it."""
        return self._task.then(*args, **kwargs).with_options(**self._options)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Have a worker run it; the job is stored when this returns."""
        return self.call(*args, **kwargs).push()

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Like ``push``, for asyncio."""
        return await self.call(*args, **kwargs).apush()

    def push_later(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Have it pushed in the background, from a buffer in memory."""
        self.call(*args, **kwargs).push_later()

    def push_many(self, arguments: Iterable[Any]) -> list[int]:
        """Push a job for each argument and return their ids."""
        return self._task.push_many(arguments, **self._options)

    async def apush_many(self, arguments: Iterable[Any]) -> list[int]:
        """Like ``push_many``, for asyncio."""
        return await self._task.apush_many(arguments, **self._options)


class Decorator(Protocol):
    """Makes a function a task. The result of a coroutine function is what awaiting it returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class Given(Struct, frozen=True):
    """The options a task was declared with."""

    retry: int | Retry | None
    timeout_s: float | None
    unique: bool | Callable[..., str] | None
    process: bool
    give_up_on: tuple[type[BaseException], ...]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if self.retry is not None and not isinstance(self.retry, int | Retry):
            raise Invalid("retry", "a number of attempts, or a forebay.Retry")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise Invalid("timeout", "more than 0 seconds")
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in self.give_up_on):
            raise Invalid("give_up_on", "a class of errors, or several")
        options_of(self.options)

    def retry_options(self) -> Options:
        if self.retry is None:
            return {}
        if isinstance(self.retry, int):
            return {"max_attempts": self.retry}
        return self.retry.options()
