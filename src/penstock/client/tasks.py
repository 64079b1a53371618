"""Functions as tasks: an app knows them by name, pushes calls of them, and a worker runs them."""

import asyncio
import hashlib
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from msgspec import Struct

from penstock.client.aio.client import Client
from penstock.client.calls import Signature, Work, packed
from penstock.client.payloads import Encoded, encode
from penstock.client.shapes import Backoff, New, Options, Progress, Pushed, Result
from penstock.client.sync.client import SyncClient
from penstock.core.errors import Invalid, PenstockError

P = ParamSpec("P")
R = TypeVar("R")
BURST_MS = 100
RATES = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Retry(Struct, frozen=True):
    """How often, and how patiently, a failed job is tried again."""

    max_attempts: int = 3
    """Failures that make it a dead letter; 0: none do."""
    base_ms: int = 1_000
    """Wait after the first failure; doubles with every further one."""
    cap_ms: int = 3_600_000
    jitter: float = 0.1
    """The part of the wait that may be left out, by chance."""

    def options(self) -> Options:
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
    """Raised by a task: try it again, after ``delay_ms`` or its backoff. It counts as a failure."""

    def __init__(self, why: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(why)
        self.delay_ms = delay_ms


class GiveUp(Exception):
    """Raised by a task: it will never succeed; make it a dead letter at once."""


class Failed(PenstockError):
    """The job whose result was asked for did not succeed."""

    code = "failed"


class NotDone(PenstockError):
    """The job whose result was asked for has not ended yet."""

    code = "not_done"


def rate_of(rate: int | str) -> dict[str, int]:
    """A rate as a limit of a queue: evenly, a tenth of a second's worth at once.

    >>> rate_of("100/m"), rate_of(50)
    ({'limit': 100, 'per_ms': 60000, 'burst': 1}, {'limit': 50, 'per_ms': 1000, 'burst': 5})
    """
    text = f"{rate}/s" if isinstance(rate, int) else rate
    limit, _, unit = text.partition("/")
    if not limit.isdigit() or unit not in RATES:
        raise Invalid("rate", "a number a second, or like 10/s, 100/m, 1000/h")
    burst = max(1, int(limit) * BURST_MS // RATES[unit])
    return {"limit": int(limit), "per_ms": RATES[unit], "burst": burst}


class Job:
    """A call that was pushed."""

    def __init__(self, app: "App", pushed: Pushed) -> None:
        self._app = app
        self.id = pushed.id
        self.pushed = pushed

    def __repr__(self) -> str:
        return f"Job({self.id})"

    def result(self, wait_s: float = 30.0, *, type: Any = Any) -> Any:
        """What the task returned; waits for it. Raises ``Failed`` or ``NotDone`` if there is nothing."""
        return _returned(self._app.client.result(self.id, wait_ms=int(wait_s * 1000), type=type))

    async def aresult(self, wait_s: float = 30.0, *, type: Any = Any) -> Any:
        """The same, to be awaited."""
        return _returned(await self._app.aclient.result(self.id, wait_ms=int(wait_s * 1000), type=type))

    def state(self) -> str:
        """Where it stands: waiting, delayed, parked, active, completed, dead, …"""
        return self._app.client.state(self.id)

    async def astate(self) -> str:
        return await self._app.aclient.state(self.id)

    def progress(self) -> Progress:
        return self._app.client.progress(self.id)

    async def aprogress(self) -> Progress:
        return await self._app.aclient.progress(self.id)

    def cancel(self) -> None:
        """Take it back; if it runs, its worker is told when it next extends the lease."""
        self._app.client.cancel(self.id)

    async def acancel(self) -> None:
        await self._app.aclient.cancel(self.id)


def _returned(result: Result) -> Any:
    if not result.done:
        raise NotDone(f"job {result.id} is {result.state}; wait longer for it")
    if result.state != "completed":
        raise Failed(f"job {result.id} is {result.state}: {result.error or 'it gave no reason'}")
    return result.result


class Call(Struct, frozen=True):
    """A task with its arguments, and options of the message it will be."""

    task: "Task[Any, Any]"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Options = {}
    takes_result: bool = False
    """Its first argument is the result of what comes before it."""

    def payload(self, *, results: str = "", place: int = 0) -> bytes:
        return packed(Work(self.task.name, self.args, self.kwargs, results, place))

    def message(self) -> Options:
        """All options of the message: the task's, and its own before them."""
        made = {**self.task.message, **self.options}
        if self.task.unique is not None and "unique_key" not in made:
            made["unique_key"] = self.task.key_of(self.args, self.kwargs)
        for hook in self.task.app.before_push_hooks:
            hook(self, made)
        return cast(Options, made)

    def push(self) -> Job:
        """Push it; it is kept when this returns."""
        return self.task.app.push(self)

    async def apush(self) -> Job:
        """The same, to be awaited."""
        return await self.task.app.apush(self)

    def with_options(self, **options: Any) -> "Call":
        made = cast(Options, {**self.options, **_ids(options)})
        return Call(self.task, self.args, self.kwargs, made, self.takes_result)


def _ids(options: dict[str, Any]) -> dict[str, Any]:
    """Options in which jobs may stand for their ids."""
    if "depends_on" in options:
        options["depends_on"] = [each.id if isinstance(each, Job) else each for each in options["depends_on"]]
    return options


class Task(Generic[P, R]):
    """A function that is run by a worker. Called as it is, it runs here and now."""

    def __init__(self, app: "App", function: Callable[P, R], name: str, queue: str, given: "Given") -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.timeout_s = given.timeout_s
        self.unique = given.unique
        self.process = given.process
        self.give_up_on = tuple(given.give_up_on)
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function)
        self.message: Options = cast(Options, {**given.retry_options(), **given.options})
        self.__doc__ = function.__doc__
        self.__name__ = name
        if self.process and self.is_async:
            raise Invalid("process", "left out: a coroutine runs in the worker's own process")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A call that can be pushed, or put into a chain or a group."""
        self.signature.check(args, kwargs)
        return Call(self, args, kwargs)

    def then(self, *args: Any, **kwargs: Any) -> Call:
        """A call of which the first argument will be the result of what comes before it."""
        self.signature.check(args, kwargs, first=1)
        return Call(self, args, kwargs, takes_result=True)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Have it run by a worker; the job is kept when this returns."""
        return self.call(*args, **kwargs).push()

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """The same, to be awaited. Those pushed at the same time share a request."""
        return await self.call(*args, **kwargs).apush()

    def push_many(self, arguments: Iterable[Any], **options: Any) -> list[int]:
        """Push a job for each of many arguments (a tuple is several); their ids."""
        news = (self._new(each, options) for each in arguments)
        return self.app.client.push_many(self.queue, news, **self._shared(options)).ids

    async def apush_many(self, arguments: Iterable[Any], **options: Any) -> list[int]:
        news = (self._new(each, options) for each in arguments)
        return (await self.app.aclient.push_many(self.queue, news, **self._shared(options))).ids

    def _new(self, given: Any, options: dict[str, Any]) -> Any:
        """A message of many: only its payload, if all of them have the same options."""
        args = given if isinstance(given, tuple) else (given,)
        self.signature.check_count(args)
        if self.unique is None and not self.app.before_push_hooks:
            return Encoded(packed(Work(self.name, args)))
        call = Call(self, args, {}, cast(Options, options))
        return New(Encoded(call.payload()), call.message())

    def _shared(self, options: dict[str, Any]) -> Options:
        if self.unique is None and not self.app.before_push_hooks:
            return cast(Options, {**self.message, **_ids(options)})
        return {}

    def options(self, **options: Any) -> "Optioned[P]":
        """The same task with options of the message: ``send.options(delay_ms=5000).push("ada")``."""
        return Optioned(self, _ids(options))

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What a job is unique by: its arguments, or what a function makes of them."""
        if callable(self.unique):
            return f"{self.name}:{self.unique(*args, **kwargs)}"
        digest = hashlib.sha256(encode([list(args), dict(sorted(kwargs.items()))])).hexdigest()
        return f"{self.name}:{digest[:32]}"

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"


class Optioned(Generic[P]):
    """A task with options of the message."""

    def __init__(self, task: Task[P, Any], options: dict[str, Any]) -> None:
        self._task, self._options = task, options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        return self._task.call(*args, **kwargs).with_options(**self._options)

    def then(self, *args: Any, **kwargs: Any) -> Call:
        return self._task.then(*args, **kwargs).with_options(**self._options)

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return self.call(*args, **kwargs).push()

    async def apush(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        return await self.call(*args, **kwargs).apush()

    def push_many(self, arguments: Iterable[Any]) -> list[int]:
        return self._task.push_many(arguments, **self._options)

    async def apush_many(self, arguments: Iterable[Any]) -> list[int]:
        return await self._task.apush_many(arguments, **self._options)


class Given(Struct):
    """What a task was declared with."""

    retry: "int | Retry | None" = None
    timeout_s: float | None = None
    unique: "bool | Callable[..., str] | None" = None
    process: bool = False
    give_up_on: Sequence[type[BaseException]] = ()
    options: dict[str, Any] = {}

    def retry_options(self) -> Options:
        if self.retry is None:
            return {}
        if isinstance(self.retry, int):
            return {"max_attempts": self.retry}
        return self.retry.options()


class CronTask(Struct, frozen=True):
    """A call that is pushed by a schedule."""

    name: str
    call: Call
    fields: dict[str, Any]


Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Around every run: gets what runs, and what runs it; returns what it returned."""
Hook = Callable[[], Awaitable[None] | None]


class Backend:
    """Where calls are pushed to: a server. Tests put something else in its place."""

    def push(self, app: "App", call: Call) -> Pushed:
        return app.client.push(call.task.queue, Encoded(call.payload()), **call.message())

    async def apush(self, app: "App", call: Call) -> Pushed:
        return await app.aclient.push(call.task.queue, Encoded(call.payload()), **call.message())

    def push_flow(self, app: "App", fields: dict[str, Any]) -> Pushed:
        """Push jobs that wait for each other: ``fields`` are those of FLOW in docs/PROTOCOL.md."""
        return _last(app.client._ask(dict[str, Any], "FLOW", fields))

    async def apush_flow(self, app: "App", fields: dict[str, Any]) -> Pushed:
        return _last(await app.aclient._ask(dict[str, Any], "FLOW", fields))


def _last(answer: dict[str, Any]) -> Pushed:
    return Pushed(int(answer["parent_id"]), answer["durability"])


class App:
    """Tasks that belong together, and the server they are pushed to."""

    def __init__(
        self,
        name: str = "app",
        *,
        server: str | None = None,
        queue: str = "jobs",
        retry: int | Retry | None = None,
        queues: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``queue`` and ``retry`` are of tasks that do not say; ``queues`` has options of queues by name."""
        if ":" in name:
            raise Invalid("name", "without colons: the names of its crons begin with it, and one")
        self.name = name
        self.server = server
        self.queue = queue
        self.retry = retry
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.queue_options: dict[str, dict[str, Any]] = {
            name: dict(options) for name, options in (queues or {}).items()
        }
        self.crons: dict[str, CronTask] = {}
        self.middlewares: list[Middleware] = []
        self.before_push_hooks: list[Callable[[Call, dict[str, Any]], None]] = []
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []
        self.backend = Backend()
        self._lock = threading.Lock()
        self._client: SyncClient | None = None
        self._aclients: weakref.WeakKeyDictionary[Any, Client] = weakref.WeakKeyDictionary()

    # Clients.

    @property
    def client(self) -> SyncClient:
        """A blocking client of the app's server, made when it is first needed."""
        with self._lock:
            if self._client is None:
                self._client = SyncClient(self.server)
            return self._client

    @property
    def aclient(self) -> Client:
        """A client for the event loop that runs: each loop has its own."""
        loop = asyncio.get_running_loop()
        found = self._aclients.get(loop)
        if found is None:
            for other in [each for each in self._aclients if each.is_closed()]:
                del self._aclients[other]
            found = self._aclients[loop] = Client(self.server)
        return found

    @property
    def has_aclient(self) -> bool:
        """Whether there is a client for the event loop that runs."""
        return asyncio.get_running_loop() in self._aclients

    def close(self) -> None:
        """Let go of the blocking client's connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """Let go of the connections that this event loop has."""
        client = self._aclients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    # Tasks.

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: int | Retry | None = None,
        timeout: float | None = None,
        unique: bool | Callable[..., str] | None = None,
        rate: int | str | None = None,
        process: bool = False,
        give_up_on: Sequence[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: int | Retry | None = None,
        timeout: float | None = None,
        unique: bool | Callable[..., str] | None = None,
        rate: int | str | None = None,
        process: bool = False,
        give_up_on: Sequence[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task.

        ``queue`` is where its jobs go, ``retry`` how often it is tried (a number or a ``Retry``), ``timeout``
        the seconds a run may take, ``unique`` that no two jobs with the same arguments wait or run at a time
        (or a function that makes a key of them), ``rate`` how many of its queue are run in a time (``10/s``,
        ``100/m``), ``process`` that it runs in a process of its own, ``give_up_on`` the errors that are not
        tried again, ``cron`` a schedule to push it by. Any other option is one of its messages: ``priority``,
        ``ttl_ms``, ``tags``, ….
        """
        given = Given(
            self.retry if retry is None else retry,
            timeout,
            unique or None,
            process,
            give_up_on,
            options,
        )

        if retry is not None and not isinstance(retry, int | Retry):
            raise Invalid("retry", "a number of attempts, or a penstock.Retry")
        if rate is not None:
            rate_of(rate)

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            made: Task[..., Any] = Task(self, function, name or function.__name__, queue or self.queue, given)
            if made.name in self.tasks:
                raise Invalid("name", f"another: there is a task {made.name} already")
            self.tasks[made.name] = made
            if rate is not None:
                self._limit(made.queue, rate)
            if cron is not None:
                self.cron(made.call(), cron, timezone=timezone)
            return made

        return register if function is None else register(function)

    def _limit(self, queue: str, rate: int | str) -> None:
        limit = rate_of(rate)
        options = self.queue_options.setdefault(queue, {})
        if options.get("rate_limit", limit) != limit:
            why = f"left out: queue {queue} has another rate already, and all its tasks share it"
            raise Invalid("rate", why)
        options["rate_limit"] = limit

    def cron(
        self,
        call: Call,
        schedule: str | None = None,
        *,
        every_ms: int | None = None,
        timezone: str | None = None,
        missed: str | None = None,
        name: str | None = None,
    ) -> CronTask:
        """Have a call pushed by a schedule, or every so many ms; workers see to it when they start."""
        fields = {"schedule": schedule, "every_ms": every_ms, "timezone": timezone, "missed": missed}
        given = {key: value for key, value in fields.items() if value is not None}
        made = CronTask(f"{self.name}:{name or call.task.name}", call, given)
        if made.name in self.crons:
            raise Invalid("name", f"given: there is a cron {made.name} already")
        self.crons[made.name] = made
        return made

    def middleware(self, function: Middleware) -> Middleware:
        """Have a function called around every run: ``async def timed(run, go_on): return await go_on()``."""
        self.middlewares.append(function)
        return function

    def before_push(self, hook: Callable[[Call, dict[str, Any]], None]) -> Callable[..., None]:
        """Have a function called with every call and the options of its message, which it may change."""
        self.before_push_hooks.append(hook)
        return hook

    def on_start(self, hook: Hook) -> Hook:
        """Have a function called when a worker starts."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Have a function called when a worker has stopped."""
        self.stop_hooks.append(hook)
        return hook

    # Push.

    def push(self, call: Call) -> Job:
        return Job(self, self.backend.push(self, call))

    async def apush(self, call: Call) -> Job:
        return Job(self, await self.backend.apush(self, call))

    def job(self, id: int) -> Job:
        """A job by its id."""
        return Job(self, Pushed(id, ""))

    async def declare(self) -> None:
        """Set the options of queues and the crons as they are declared; crons that are not any more go."""
        client = self.aclient
        for queue in {task.queue for task in self.tasks.values()} | self.queue_options.keys():
            await client.configure(queue, **self.queue_options.get(queue, {}))
        for name, cron in self.crons.items():
            message = cast(dict[str, Any], cron.call.message())
            await client.set_cron(
                name, cron.call.task.queue, Encoded(cron.call.payload()), **cron.fields, **message
            )
        for each in await client.crons():
            if each.name.startswith(f"{self.name}:") and each.name not in self.crons:
                await client.delete_cron(each.name)
