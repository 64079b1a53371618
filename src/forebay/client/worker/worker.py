"""A worker: takes jobs from queues, runs their tasks, and settles them.

As many run at once as ``concurrency`` says. A few more are fetched ahead: as many as were done in a tenth of
a second, so that quick tasks come in large batches and slow ones are left to other workers.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec import Raw

from forebay.client.backoff import wait_s
from forebay.client.errors import Disconnected
from forebay.client.tasks.app import App, Hook
from forebay.client.tasks.call import Work, parse
from forebay.client.tasks.task import GiveUp, RetryLater, Task
from forebay.client.translate import request
from forebay.client.types import DEFAULT, Message
from forebay.client.worker.leases import Failure, Lease, LeaseKeeper
from forebay.client.worker.processes import Raised
from forebay.client.worker.run import CANCELLED, LOST, STOPPED, Run, Running, result_of
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound

logger = logging.getLogger("forebay.worker")

CONCURRENCY = 16
PREFETCH_MAX = 2_000
AHEAD_S = 0.1
"""How much work is fetched ahead, by how fast the last was done."""
POP_WAIT_MS = 20_000
LEASE_MS = 30_000
DRAIN_S = 20.0
"""How long running jobs may take to end when the worker stops."""
INTERRUPTED_S = 3.0
"""How long jobs get that took too long and were interrupted: with the rest, the worker ends within 30 s."""
RELEASE_S = 1.0
"""How long giving back what has not begun may take, at least."""
LAST_S = 0.5
"""How long runners get to end when they are told to, and when they are told again."""
TURN = 64
"""Jobs that one runner does before others get their turn."""
ERROR_CHARS = 2_000


class Worker:
    """Runs the tasks of an app."""

    def __init__(
        self,
        app: App,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = CONCURRENCY,
        prefetch: int | None = None,
        lease_ms: int = LEASE_MS,
        drain_s: float = DRAIN_S,
        group: str = DEFAULT,
    ) -> None:
        """``queues`` are those of the app's tasks if not given; ``prefetch`` is by how fast they are done."""
        self.app = app
        self.queues = list(queues) if queues else sorted({task.queue for task in app.tasks.values()})
        if not self.queues:
            raise Invalid("app", "one with tasks, or else give the worker queues")
        if concurrency < 1:
            raise Invalid("concurrency", "1 or more")
        if not drain_s >= 0:  # which NaN is not
            raise Invalid("drain_s", "0 seconds or more")
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lease_ms = lease_ms
        self._drain_s = drain_s
        self._group = group
        self._ready: deque[tuple[Lease, Message]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        """Runners that have nothing to do."""
        self._stopping = asyncio.Event()
        self._was_told = False
        """``stop`` was called."""
        self._hurrying = asyncio.Event()
        self._working = asyncio.Event()
        self._more = asyncio.Event()
        self._woken = 0
        """Runners that were told that there is something to do, and have not looked yet."""
        self._is_ending = False
        """Runners are to end, whatever they do."""
        self._done = 0
        """Jobs that ended, whatever way."""
        self._rate = 0.0
        """Jobs that end in a second, of late."""

    async def run(self) -> None:
        """Work until ``stop`` is called; then end what runs, give back what does not, and return."""
        self._loop = asyncio.get_running_loop()
        self._is_my_client = not self.app.has_aclient
        self._client = self.app.aclient
        self._context = contextvars.copy_context()
        self._runners: set[asyncio.Task[None]] = set()
        self._broken: list[asyncio.Task[None]] = []
        """Runners that a bug has ended."""
        self._holding = LeaseKeeper(self._client, self._lease_ms)
        self._running = Running(self._concurrency, self.app.middlewares)
        if not await self._declared():
            await self._let_go()
            return
        try:
            await _call(self.app.start_hooks)
            await self._serve()
        finally:
            try:
                await _call(self.app.stop_hooks)
            finally:
                await self._let_go()
        logger.info("stopped; %d jobs were done", self._done)

    async def _serve(self) -> None:
        served = [asyncio.create_task(each) for each in (self._holding.settle(), self._holding.keep())]
        poppers = [asyncio.create_task(self._fetch(queue)) for queue in self.queues]
        for _ in range(self._concurrency):
            self._start_runner()
        self._working.set()
        logger.info("working on %s, %d at once", ", ".join(self.queues), self._concurrency)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([stopped, *served, *poppers], return_when=asyncio.FIRST_COMPLETED)
            for each in [*served, *poppers, *self._broken]:
                if each.done():
                    each.result()  # only a bug ends one of them
            await self._drain(poppers)
        finally:
            self._is_ending = True
            ending: list[asyncio.Task[Any]] = [stopped, *poppers, *served, *self._runners]
            for task in ending:
                task.cancel()
            _, left = await asyncio.wait(ending, timeout=LAST_S)
            for task in left:  # it waits for a function in a thread that does not end
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=LAST_S)
            if left:
                logger.warning("%d jobs do not end though they were cancelled, and are left alone", len(left))
            self._holding.close()

    def _start_runner(self) -> None:
        """One that does not know what the one before it left in context variables."""
        runner = self._loop.create_task(self._work(), context=self._context.copy())
        self._runners.add(runner)
        runner.add_done_callback(self._ended)

    def _ended(self, runner: "asyncio.Task[None]") -> None:
        self._runners.discard(runner)
        if self._is_ending:
            return
        if not runner.cancelled() and runner.exception() is not None:
            self._broken.append(runner)
            self._stopping.set()
        else:  # a task may have cancelled the runner that it had
            self._start_runner()

    def stop(self) -> None:
        """Take no more jobs, and end when those that run have. The second time: do not wait for them."""
        if self._was_told:
            self._hurrying.set()
        self._was_told = True
        self._stopping.set()

    async def _let_go(self) -> None:
        self._running.close()
        if self._is_my_client:
            await self.app.aclose()
        else:
            await self._client._link.until_returned()

    async def __aenter__(self) -> "Worker":
        self._life = asyncio.create_task(self.run())
        working = asyncio.create_task(self._working.wait())
        try:
            await asyncio.wait([self._life, working], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
            raise
        finally:
            working.cancel()
        if self._life.done():
            self._life.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        await self._life

    async def _declared(self) -> bool:
        """Have the server know the app, as soon as it is there; not, if the worker is stopped before."""
        unused = set(self.queues) - {task.queue for task in self.app.tasks.values()}
        if unused:
            logger.warning("no task of the app has its jobs in %s", ", ".join(sorted(unused)))
        declaring = asyncio.create_task(self._declare())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([declaring, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not declaring.done():
                return False
            declaring.result()
            return True
        except BaseException:
            await self._let_go()
            raise
        finally:
            declaring.cancel()
            stopping.cancel()
            await asyncio.gather(declaring, stopping, return_exceptions=True)

    async def _declare(self) -> None:
        for attempt in count():
            try:
                if not attempt:
                    await self._client._link.ask(request("STATS", {}))  # once, so that people soon know
                await self.app.declare()
                return
            except (Busy, Disconnected) as error:
                if not attempt:
                    logger.warning("waiting for the server: %s", error)
            await asyncio.sleep(wait_s(attempt))

    async def _drain(self, poppers: Sequence["asyncio.Task[None]"]) -> None:
        logger.info("stopping; %d jobs run or are about to", self._holding.count)
        for each in poppers:
            each.cancel()
        await asyncio.gather(*poppers, return_exceptions=True)
        unbegun: dict[Lease, list[int]] = {}
        while self._ready:
            lease, message = self._ready.popleft()
            unbegun.setdefault(lease, []).append(message.id)
        releasing = asyncio.create_task(self._give_back(unbegun))
        try:
            await self._wait_for_jobs()
        finally:
            releasing.cancel()

    async def _give_back(self, unbegun: dict[Lease, list[int]]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._drain_s, RELEASE_S)):
                await asyncio.gather(*(self._holding.release(lease, ids) for lease, ids in unbegun.items()))

    async def _wait_for_jobs(self) -> None:
        """Let what runs end, until time is up or ``stop`` is called again; then interrupt it."""
        ended = asyncio.create_task(self._holding.until_empty())
        hurrying: asyncio.Task[Any] = asyncio.create_task(self._hurrying.wait())
        try:
            either = {ended, hurrying}
            await asyncio.wait(either, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return
        finally:
            ended.cancel()
            hurrying.cancel()
        logger.warning("%d jobs take too long, and are interrupted", self._holding.count)
        for lease in list(self._holding.leases()):
            for run in list(lease.open.values()):
                if run is not None:
                    run.interrupt(STOPPED)
        try:
            async with asyncio.timeout(min(self._lease_ms / 1000, INTERRUPTED_S)):
                await self._holding.until_empty()
        except TimeoutError:
            logger.warning("some jobs do not end; they come again when their leases are over")

    # Fetching.

    async def _fetch(self, queue: str) -> None:
        """Pop from a queue, for ever, when there is room."""
        failures = 0
        before, looked_at = self._done, self._loop.time()
        most = await self._most(queue)
        while True:
            room = self._ahead() + len(self._idle) - len(self._ready)
            if room < 1 or 2 * room < self._ahead():
                self._more.clear()
                await self._more.wait()
                continue
            sent_at = self._loop.time()
            try:
                batch = await self._client.pop(
                    queue,
                    min(room, most),
                    wait_ms=POP_WAIT_MS,
                    group=self._group,
                    lease_ms=self._lease_ms,
                    type=Raw,
                )
                if batch:
                    sent_at = await self._confirmed(batch.lease, sent_at)
                failures = 0
            except ForebayError as error:
                failures += 1
                if failures == 1 or not isinstance(error, NotFound | Conflict):
                    logger.warning("nothing can be popped from %s: %s", queue, error)
                await asyncio.sleep(wait_s(failures))
                continue
            now = self._loop.time()
            if now - looked_at > AHEAD_S / 4:
                self._rate = (self._rate + (self._done - before) / (now - looked_at)) / 2
                before, looked_at = self._done, now
            if batch:
                await self._accept(batch.messages, sent_at)

    async def _most(self, queue: str) -> int:
        """How many jobs are popped at a time. In strict order one, because they must not run side by side."""
        for attempt in count():
            try:
                ordering = (await self._client.queue(queue)).options.get("ordering")
                break
            except (Busy, Disconnected, NotFound):
                await asyncio.sleep(wait_s(attempt))
        return 1 if ordering == "partition" else PREFETCH_MAX + self._concurrency

    async def _confirmed(self, lease: str | None, sent_at: float) -> float:
        """When a lease was last asked for. One that took long to come is asked to go on.

        It may be over: the process may have been frozen meanwhile. Then this raises.
        """
        if self._loop.time() - sent_at < self._lease_ms / 4000:
            return sent_at
        sent_at = self._loop.time()
        try:
            await self._client.extend(lease=lease, lease_ms=self._lease_ms)
        except Conflict:
            raise
        except BaseException:
            with suppress(ForebayError, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._client.release(lease=lease)
            raise
        return sent_at

    def _ahead(self) -> int:
        """How many jobs should be here besides those that can run at once."""
        if self._prefetch is not None:
            return self._prefetch
        return min(int(self._rate * AHEAD_S), PREFETCH_MAX)

    async def _accept(self, messages: list[Message], sent_at: float) -> None:
        """Have messages run. What came for runners that have something else by now is given back."""
        lease = self._holding.take(messages, sent_at)
        room = self._ahead() + len(self._idle) + self._woken - len(self._ready)
        taken, surplus = messages[: max(room, 0)], messages[max(room, 0) :]
        self._ready.extend([(lease, each) for each in taken])
        wanted = len(taken)
        while wanted and self._idle:
            idle = self._idle.pop()
            if not idle.done():  # a task may have cancelled the runner that it had
                self._woken += 1
                idle.set_result(None)
                wanted -= 1
        if surplus:
            await self._holding.release(lease, [each.id for each in surplus])

    # Running.

    async def _work(self) -> None:
        """Run one job after the other, for ever."""
        ready = self._ready
        turn = 0
        while True:
            if not ready:
                self._more.set()
                idle = self._loop.create_future()
                self._idle.append(idle)
                try:
                    await idle
                finally:
                    self._wake_up(idle)
                continue
            lease, message = ready.popleft()
            if 2 * len(ready) < self._ahead():
                self._more.set()
            await self._job(lease, message)
            self._done += 1
            if not self._is_as_it_was():
                return  # it would leave to the next job what this one has set
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    def _wake_up(self, idle: "asyncio.Future[None]") -> None:
        """A runner is idle no more: it was told that there is something to do, or is cancelled."""
        if not idle.cancelled():
            self._woken -= 1
        elif idle in self._idle:
            self._idle.remove(idle)

    def _is_as_it_was(self) -> bool:
        """Whether this runner's context variables are those that it began with."""
        try:
            return contextvars.copy_context() == self._context
        except Exception:  # there are values that can't be compared
            return False

    async def _job(self, lease: Lease, message: Message) -> None:
        holding = self._holding
        id = message.id
        if id not in lease.open:
            return  # it was cancelled, or its lease is over
        if not holding.is_live(lease):
            holding.lose(lease)
            holding.drop(lease, id)
            return
        run: Run | None = None
        name = "?"
        try:
            try:
                work = parse(message.payload)
            except ValueError as error:
                raise GiveUp(str(error)) from None
            name = work.task
            task = self._task(work)
            args = work.args
            if work.results:
                args = await self._arguments(work, id)
                if id not in lease.open or not holding.is_live(lease):
                    holding.drop(lease, id)
                    return  # it took too long
            try:
                made = task.signature.made(args, work.kwargs)
            except Exception as error:
                raise GiveUp(f"these are no arguments of {task.name}: {error}") from error
            run = Run(task, message, *made, self._client)
            run.runner = asyncio.current_task()
            lease.open[id] = run
            result = result_of(await self._running.go(run))
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if run is not None and run.interrupted and not self._is_ending:
                run.runner = None
                _forgive()
                await self._interrupted(lease, run)
            elif self._is_ending or current is None:
                raise
            else:  # it is the task's own: nobody else cancels a runner
                _forgive()
                self._failed(lease, message, name, _told(error), error=error)
        except (Busy, Disconnected) as error:
            if run is not None:
                self._failed(lease, message, name, _told(error), error=error)
            else:  # the results it waited for can't be had right now
                await holding.release(lease, [id])
        except RetryLater as error:
            why = _said(error) or "to be tried again"
            self._failed(lease, message, name, why, delay_ms=getattr(error, "delay_ms", None))
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._is_ending:
                raise
            gives_up = isinstance(error, GiveUp) or (
                run is not None
                and (isinstance(error, run.task.give_up_on) or (isinstance(error, Raised) and error.gives_up))
            )
            self._failed(lease, message, name, _told(error), gives_up=gives_up, error=error)
        else:
            run.runner = None
            _forgive()
            if lease.is_lost:
                holding.drop(lease, id)
            else:
                holding.done(lease, id, result)
                if logger.isEnabledFor(logging.DEBUG):
                    fields = _fields(message, task.name)
                    logger.debug("job %d %s done", id, task.name, extra={"fields": fields})

    def _task(self, work: Work) -> Task[Any, Any]:
        task = self.app.tasks.get(work.task)
        if task is None:
            raise LookupError(f"this worker knows no task {work.task}; is the code it was pushed by newer?")
        return task

    async def _arguments(self, work: Work, id: int) -> Sequence[Any]:
        """The arguments of a job, behind the results of those it waited for, if it wants them."""
        ids = (await self._client.message(id)).depends_on
        found = await asyncio.gather(*map(self._result, ids))
        results = [result for _, result in sorted(found, key=lambda each: each[0])]
        if work.results == "one":
            return [results[0] if results else None, *work.args]
        return [results, *work.args]

    async def _result(self, id: int) -> tuple[int, Any]:
        """The place of a job that another waited for, and what came of it."""
        try:
            before = await self._client.message(id, type=Raw)
            return parse(before.payload).place, (await self._client.result(id)).result
        except (NotFound, ValueError):  # it is no longer kept, or is no task
            return 0, None

    async def _interrupted(self, lease: Lease, run: Run) -> None:
        fields = _fields(run.message, run.task.name)
        logger.warning("job %d %s: %s", run.id, run.task.name, run.interrupted, extra={"fields": fields})
        if run.interrupted == STOPPED:
            await self._holding.release(lease, [run.id])
        else:
            assert run.interrupted in (CANCELLED, LOST)
            self._holding.drop(lease, run.id)

    def _failed(
        self,
        lease: Lease,
        message: Message,
        name: str,
        why: str,
        *,
        delay_ms: int | None = None,
        gives_up: bool = False,
        error: BaseException | None = None,
    ) -> None:
        run = lease.open.get(message.id)
        if run is not None:
            run.runner = None
            _forgive()
        fields = {**_fields(message, name), "error": why}
        what = "gave up" if gives_up else "failed"
        logger.warning("job %d %s %s", message.id, name, what, extra={"fields": fields}, exc_info=error)
        if lease.is_lost:
            self._holding.drop(lease, message.id)
        else:
            self._holding.fail(lease, Failure(message.id, why[:ERROR_CHARS], delay_ms, gives_up))


def _forgive() -> None:
    """Have a runner go on that was cancelled for the sake of one run, whoever did that."""
    current = asyncio.current_task()
    while current is not None and current.cancelling():
        current.uncancel()


def _told(error: BaseException) -> str:
    """An error as it is kept with the message.

    >>> _told(ValueError("no such user"))
    'ValueError: no such user'
    """
    said = _said(error)
    if isinstance(error, Raised):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _said(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "it can't be told"


def _fields(message: Message, task: str) -> dict[str, Any]:
    return {"task": task, "id": message.id, "queue": message.queue, "attempt": message.failures + 1}


async def _call(hooks: Sequence[Hook]) -> None:
    for hook in hooks:
        called = hook()
        if called is not None:
            await called
