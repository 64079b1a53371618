"""An app: tasks that belong together, how they are declared, and the server they are pushed to."""

import asyncio
import contextvars
import logging
import math
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import asdict

from forebay.client.access import Access
from forebay.client.address import server_of
from forebay.client.aio.client import Client
from forebay.client.backoff import Within
from forebay.client.later import Later
from forebay.client.payloads import Encoded
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.task import Call, Decorator, Given, Job, Retry, Task
from forebay.client.translate import options_of
from forebay.client.types import Cron, Pushed
from forebay.core.errors import Denied, Invalid, NotFound
from forebay.wire.operations.flows import FlowPushed, PushFlow

P = ParamSpec("P")
R = TypeVar("R")
BURST_MS = 100
VERSION_CHARS_MAX = 100
CLIENT_TIMEOUT_S, CLIENT_RETRY_S = 30.0, 10.0
PUSH_TIMEOUT_S, PUSH_RETRY_S = 3.0, 2.0
"""Of pushes, if the app does not say: somebody waits for the page that makes them."""
logger = logging.getLogger("forebay.worker")
is_in_worker: contextvars.ContextVar[bool] = contextvars.ContextVar("forebay.is_in_worker", default=False)
"""Whether this code runs in a worker: there nobody waits, and a push is as patient as any request."""
RATES = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def rate_of(rate: int | str) -> dict[str, int]:
    """Return a rate as a rate limit of a queue, with a burst of a tenth of a second.

    >>> rate_of("100/m"), rate_of(50)
    ({'limit': 100, 'per_ms': 60000, 'burst': 1}, {'limit': 50, 'per_ms': 1000, 'burst': 5})
    """
    text = f"{rate}/s" if isinstance(rate, int) else rate
    limit, _, unit = text.partition("/")
    if not (limit.isascii() and limit.isdecimal() and int(limit)) or unit not in RATES:
        raise Invalid("rate", "a number a second, or like 10/s, 100/m, 1000/h")
    burst = max(1, int(limit) * BURST_MS // RATES[unit])
    return {"limit": int(limit), "per_ms": RATES[unit], "burst": burst}


class CronTask(Struct, frozen=True):
    """A call that is pushed by a schedule."""

    name: str
    call: Call[Any]
    fields: dict[str, Any]


Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Wraps every run: called with the run and the next step, returns the result."""
Hook = Callable[[], Awaitable[None] | None]


class Backend:
    """Pushes calls to a server. Tests replace it."""

    def push(self, app: "App", call: Call[Any]) -> Pushed:
        within = asdict(app.within(call.within))
        return app.client.push(call.task.queue, Encoded(call.payload()), **within, **call.message())

    async def apush(self, app: "App", call: Call[Any]) -> Pushed:
        within = asdict(app.within(call.within))
        return await app.aclient.push(call.task.queue, Encoded(call.payload()), **within, **call.message())

    def push_later(self, app: "App", call: Call[Any]) -> None:
        app.later.add(call.task.queue, call.payload(), options_of(call.message()))

    def push_flow(self, app: "App", fields: dict[str, Any], within: Within) -> Pushed:
        """Push jobs that depend on each other: ``fields`` are those of FLOW in docs/PROTOCOL.md."""
        return _last(app.client._ask(PushFlow(**fields), within=app.within(within)))

    async def apush_flow(self, app: "App", fields: dict[str, Any], within: Within) -> Pushed:
        return _last(await app.aclient._ask(PushFlow(**fields), within=app.within(within)))


def _last(answer: FlowPushed) -> Pushed:
    return Pushed(int(answer.id), answer.durability)


class App:
    """Tasks that belong together, and the server they are pushed to."""

    def __init__(
        self,
        name: str,
        *,
        server: str | None = None,
        token: str | None = None,
        tenant: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        queue: str | None = None,
        retry: int | Retry | None = None,
        queues: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_s: float | None = None,
        retry_s: float | None = None,
        version: str | None = None,
    ) -> None:
        """``queue`` (by default the app's name) and ``retry`` are defaults for its tasks.

        ``server``, ``token``, ``tenant``, ``ca``, ``cert`` and ``key`` are those of its clients. ``queues``
        has options of queues by name. ``timeout_s`` (how long the server may take to answer) and
        ``retry_s`` (how long a request is tried again) are those of its clients, and of pushes: by default
        30 s and 10 s in a worker, and 3 s and 2 s outside of one. ``version`` is shown with its workers; by
        default that of Forebay is.
        """
        Within(timeout_s, retry_s)  # raises unless they can be meant
        if version is not None and not (0 < len(version) <= VERSION_CHARS_MAX and version.isprintable()):
            raise Invalid("version", f"1 to {VERSION_CHARS_MAX} printable characters")
        if ":" in name:
            raise Invalid("name", "without colons: the names of its crons begin with it, and one")
        self.name = name
        self.server = server
        self.access = Access(token, tenant, ca, cert, key)
        self.queue = queue or name
        self.retry = retry
        self.version = version
        self.timeout_s, self.retry_s = timeout_s, retry_s
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.queue_options: dict[str, dict[str, Any]] = {
            name: dict(options) for name, options in (queues or {}).items()
        }
        self.crons: dict[str, CronTask] = {}
        self.crons_left: set[str] = set()
        """Crons that are not declared here, and were left to other workers."""
        self.middlewares: list[Middleware] = []
        self.before_push_hooks: list[Callable[[Call[Any], dict[str, Any]], None]] = []
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []
        self.backend = Backend()
        self.dropped_lines_at = -math.inf
        """When a warning last told that lines of jobs' logs are dropped."""
        self._lock = threading.Lock()
        self._clients: dict[bool, SyncClient] = {}
        """One that is patient, and one that is not."""
        self._later: Later | None = None
        self._aclients: weakref.WeakKeyDictionary[Any, dict[bool, Client]] = weakref.WeakKeyDictionary()
        _apps.add(self)

    # Clients.

    @property
    def client(self) -> SyncClient:
        """The blocking client of the app's server, created on first use."""
        return self._client(is_patient=is_in_worker.get())

    @property
    def aclient(self) -> Client:
        """The client for the running event loop: each loop has its own."""
        return self._aclient(is_patient=is_in_worker.get())

    def _client(self, *, is_patient: bool) -> SyncClient:
        with self._lock:
            if is_patient not in self._clients:
                self._clients[is_patient] = SyncClient(self.server, **self._settings(is_patient))
            return self._clients[is_patient]

    def _aclient(self, *, is_patient: bool) -> Client:
        loop = asyncio.get_running_loop()
        mine = self._aclients.get(loop)
        if mine is None:
            for other in [each for each in self._aclients if each.is_closed()]:
                del self._aclients[other]
            mine = self._aclients[loop] = {}
        if is_patient not in mine:
            mine[is_patient] = Client(self.server, **self._settings(is_patient))
        return mine[is_patient]

    def _settings(self, is_patient: bool) -> dict[str, Any]:
        """Return the settings of a client: a worker outlasts a restart, a web page does not wait."""
        usual = (CLIENT_TIMEOUT_S, CLIENT_RETRY_S) if is_patient else (PUSH_TIMEOUT_S, PUSH_RETRY_S)
        return {
            **asdict(self.access),
            "timeout_s": usual[0] if self.timeout_s is None else self.timeout_s,
            "retry_s": usual[1] if self.retry_s is None else self.retry_s,
        }

    def within(self, own: Within) -> Within:
        """Return how patient a push is: as it says itself, else as the app says, else by default."""
        usual = Within() if is_in_worker.get() else Within(PUSH_TIMEOUT_S, PUSH_RETRY_S)
        given = Within(
            usual.timeout_s if self.timeout_s is None else self.timeout_s,
            usual.retry_s if self.retry_s is None else self.retry_s,
        )
        return Within(
            given.timeout_s if own.timeout_s is None else own.timeout_s,
            given.retry_s if own.retry_s is None else own.retry_s,
        )

    @property
    def later(self) -> Later:
        """The buffer of ``push_later``: one for all threads and event loops."""
        with self._lock:
            if self._later is None:
                timeout_s = CLIENT_TIMEOUT_S if self.timeout_s is None else self.timeout_s  # nobody waits
                self._later = Later(server_of(self.server), timeout_s, self.access)
            return self._later

    @property
    def has_aclient(self) -> bool:
        """Whether there is a client for the running event loop."""
        return asyncio.get_running_loop() in self._aclients

    def close(self) -> None:
        """Push what ``push_later`` buffered, for 5 s at most, and close the blocking clients."""
        self._flush()
        with self._lock:
            clients, self._clients = self._clients, {}
        for each in clients.values():
            each.close()

    async def aclose(self) -> None:
        """Push what ``push_later`` buffered, for 5 s at most, and close this event loop's client."""
        await self._aclose()

    async def _aclose(self, flush_s: float | None = None) -> None:
        clients = self._aclients.pop(asyncio.get_running_loop(), {})
        closing = [each.close() for each in clients.values()]
        if self._later is not None:
            closing.append(asyncio.to_thread(self._flush, flush_s))
        await asyncio.gather(*closing)

    def _flush(self, within_s: float | None = None) -> None:
        with self._lock:
            later, self._later = self._later, None
        if later is not None:
            later.close(within_s)

    # Tasks.

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
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
        give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Any,
    ) -> Decorator: ...
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
        give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task.

        ``queue`` is where its jobs go, ``retry`` how often it is tried (a number or a ``Retry``), ``timeout``
        the seconds a run may take, ``unique`` that no two jobs with the same arguments wait or run at a time
        (or a function that makes a key of them), ``rate`` how many jobs of its queue run in a time (``10/s``,
        ``100/m``), ``process`` that it runs in a child process, ``give_up_on`` the error, or errors, that are
        not retried, and ``cron`` a schedule to push it by. Any other option is one of its messages:
        ``priority``, ``ttl_ms``, ``tags``, ….
        """
        given = Given(
            self.retry if retry is None else retry,
            timeout,
            unique or None,
            process,
            (give_up_on,) if isinstance(give_up_on, type) else tuple(give_up_on),
            options,
        )
        if rate is not None:
            rate_of(rate)
        if timezone is not None and cron is None:
            raise Invalid("timezone", "left out, or given with a cron")

        def register(function: Callable[..., Any]) -> Task[..., Any, Any]:
            made: Task[..., Any, Any] = Task(
                self, function, name or function.__name__, queue or self.queue, given
            )
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
        call: Call[Any],
        schedule: str | None = None,
        *,
        every_ms: int | None = None,
        timezone: str | None = None,
        missed: str | None = None,
        name: str | None = None,
    ) -> CronTask:
        """Push a call by a schedule, or every so many ms; workers register it when they start."""
        from forebay.core.jobs.calendar import parse, zone_of

        try:
            if schedule is not None:
                parse(schedule)
            if timezone is not None:
                zone_of(timezone)
        except Invalid as error:
            why = f"{error.accepted} (task {call.task.name})"
            raise Invalid(
                {"schedule": "cron", "zone": "timezone"}.get(error.field, error.field), why
            ) from None
        fields = {"schedule": schedule, "every_ms": every_ms, "timezone": timezone, "missed": missed}
        given = {key: value for key, value in fields.items() if value is not None}
        made = CronTask(f"{self.name}:{name or call.task.name}", call, given)
        if made.name in self.crons:
            raise Invalid("name", f"given: there is a cron {made.name} already")
        self.crons[made.name] = made
        return made

    def middleware(self, function: Middleware) -> Middleware:
        """Call a function around every run: ``async def timed(run, go_on): return await go_on()``."""
        self.middlewares.append(function)
        return function

    def before_push(self, hook: Callable[[Call[Any], dict[str, Any]], None]) -> Callable[..., None]:
        """Call a function with every call and the options of its message, which it may change."""
        self.before_push_hooks.append(hook)
        return hook

    def on_start(self, hook: Hook) -> Hook:
        """Call a function when a worker starts."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Call a function when a worker has stopped."""
        self.stop_hooks.append(hook)
        return hook

    # Push.

    def push(self, call: Call[R]) -> Job[R]:
        """Push a call and return its job; ``task.push(…)`` does both."""
        return Job(self, self.backend.push(self, call), call.task)

    async def apush(self, call: Call[R]) -> Job[R]:
        """Like ``push``, for asyncio."""
        return Job(self, await self.backend.apush(self, call), call.task)

    def push_later(self, call: Call[Any]) -> None:
        """Put a call into the buffer of later pushes; returns at once."""
        self.backend.push_later(self, call)

    def job(self, id: int) -> Job[Any]:
        """Return a job by its id. Its result is plain JSON; ``task.job(id)`` knows the type."""
        return Job(self, Pushed(id, ""))

    async def declare(self) -> None:
        """Set the declared queue options and crons on the server, and delete crons no longer declared."""
        client = self.aclient
        for queue in {task.queue for task in self.tasks.values()} | self.queue_options.keys():
            await self._declare_queue(client, queue)
        for name, cron in self.crons.items():
            message = cast(dict[str, Any], cron.call.message())
            await client.set_cron(
                name, cron.call.task.queue, Encoded(cron.call.payload()), **cron.fields, **message
            )
        try:
            await self._delete_crons()
        except Denied as error:
            if self.crons:
                raise
            logger.debug("crons are not looked at: %s", error)  # a token for some queues sees none

    async def _declare_queue(self, client: Client, queue: str) -> None:
        """Set the options of a queue. If the token may not, it keeps the options that it has.

        A missing queue without options of its own is created by the first push.
        """
        options = self.queue_options.get(queue, {})
        try:
            await client.configure(queue, **options)
        except Denied as error:
            try:
                await client.queue(queue)
            except Denied:
                raise error from None
            except NotFound:
                if options:
                    remedy = (
                        f"create queue {queue} first (forebay queue create {queue}), or use an owner's token"
                    )
                    raise Denied(f"{error.message}; {remedy}") from None
                logger.info("queue %s is not there yet: its first message creates it", queue)
                return
            if options:
                logger.warning("the options of %s are left as they are: %s", queue, error)

    async def _delete_crons(self) -> None:
        """Delete crons that are no longer declared.

        One of a task that this code does not know stays while another worker knows it: as in a rolling
        deploy, that one's code may be newer. A worker looks again with each of its beats.
        """
        client = self.aclient
        others = [each for each in await client.crons() if self._may_delete(each)]
        workers = await client.workers() if others else []
        left: set[str] = set()
        for other in others:
            task = other.payload.get("task") if isinstance(other.payload, dict) else None
            knows = next((each.name for each in workers if task in each.tasks and each.state != "gone"), None)
            if knows is None or task in self.tasks:
                logger.warning("the cron %s is not in this code any more: it is deleted", other.name)
                with suppress(NotFound):
                    await client.delete_cron(other.name)
                continue
            left.add(other.name)
            if other.name not in self.crons_left:
                logger.warning("the cron %s is not in this code: it stays, as %s knows it", other.name, knows)
        self.crons_left = left

    def _may_delete(self, cron: Cron) -> bool:
        """Whether a cron is the app's, and not declared."""
        return cron.name.startswith(f"{self.name}:") and cron.name not in self.crons


_apps: "weakref.WeakSet[App]" = weakref.WeakSet()


def _unlock() -> None:
    """Replace locks after a fork: a thread of the parent may have held them."""
    for app in list(_apps):
        app._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
