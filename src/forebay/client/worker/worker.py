"""A worker: pops jobs from queues, runs their tasks, and settles them.

``concurrency`` jobs run at once. A few more are prefetched: as many as finished in the last tenth of a
second, so that quick tasks come in large batches and slow ones are left to other workers.
"""

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec import Raw

from forebay import __version__
from forebay.client.backoff import wait_s
from forebay.client.errors import Disconnected
from forebay.client.tasks.app import App, Hook, is_in_worker
from forebay.client.tasks.call import DoesNotFit, Work, parse
from forebay.client.tasks.task import GiveUp, RetryLater, Task
from forebay.client.types import DEFAULT, Message
from forebay.client.worker.beats import About, Beats, name_of
from forebay.client.worker.current import CANCELLED, LOST, STOPPED, Run, forgive
from forebay.client.worker.ending import DRAIN_S, INTERRUPTED_S, LAST_S, RELEASE_S, flush_s
from forebay.client.worker.failures import kind_of, said, told, trace_of
from forebay.client.worker.job_log import fields_of, tell_end, tell_failure, tell_start, tell_working
from forebay.client.worker.known import check_known, look
from forebay.client.worker.leases import Failure, Lease, LeaseKeeper
from forebay.client.worker.pipe import Raised
from forebay.client.worker.results import arguments
from forebay.client.worker.run import Running, result_of
from forebay.client.worker.unknown import (
    UNKNOWN_FOR_S,
    Unknown,
    Warnings,
    unknown_arguments,
    unknown_ms,
    unknown_task,
)
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound

logger = logging.getLogger("forebay.worker")

CONCURRENCY = 16
PREFETCH_MAX = 2_000
AHEAD_S = 0.1
"""Prefetched work in seconds, at the recent rate of finished jobs."""
POP_WAIT_MS = 20_000
LEASE_MS = 30_000
TURN = 64
"""Jobs that a runner runs before it yields to the event loop."""
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
        unknown_for_s: float = UNKNOWN_FOR_S,
        group: str = DEFAULT,
        name: str | None = None,
    ) -> None:
        """``queues`` defaults to those of the app's tasks; ``prefetch`` follows the rate of finished jobs.

        Jobs of tasks, or with arguments, that this code does not know are left to other workers for
        ``unknown_for_s``.
        """
        self.app = app
        self.queues = list(queues) if queues else sorted({task.queue for task in app.tasks.values()})
        if not self.queues:
            raise Invalid("app", "one with tasks, or else give the worker queues")
        if concurrency < 1:
            raise Invalid("concurrency", "1 or more")
        if not drain_s >= 0:  # false for NaN
            raise Invalid("drain_s", "0 seconds or more")
        self._unknown_ms = unknown_ms(unknown_for_s)
        self._warnings = Warnings()
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lease_ms = lease_ms
        self._drain_s = drain_s
        self._group = group
        self.name = name_of(name)
        self._ready: deque[tuple[Lease, Message]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        """Futures of the idle runners."""
        self._stopping = asyncio.Event()
        self._was_told = False
        """Whether ``stop`` was called."""
        self._hurrying = asyncio.Event()
        self._working = asyncio.Event()
        self._more = asyncio.Event()
        self._woken = 0
        """Runners that were woken and have not run yet: they will take a job each."""
        self._is_ending = False
        """Whether every runner must end, whatever it does."""
        self._done = 0
        """Finished jobs, however they ended."""
        self._tells_jobs = False
        """Whether starts and ends of jobs are logged; looked at once for each pop."""
        self._rate = 0.0
        """Finished jobs per second, smoothed."""

    async def run(self) -> None:
        """Work until ``stop`` is called; then drain: finish running jobs, release the others, and return."""
        token = is_in_worker.set(True)
        try:
            await self._run()
        finally:
            is_in_worker.reset(token)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped_at = math.inf
        self._is_my_client = not self.app.has_aclient
        self._client = self.app.aclient
        self._context = contextvars.copy_context()
        self._runners: set[asyncio.Task[None]] = set()
        self._broken: list[asyncio.Task[None]] = []
        """Runners that ended with an exception."""
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
        logger.info("stopped; %d runs, %d of them failed", self._done_by_now(), self._holding.failures)

    async def _serve(self) -> None:
        serving = (self._holding.settle(), self._holding.keep(), self._beats().run())
        served = [asyncio.create_task(each) for each in serving]
        poppers = [asyncio.create_task(self._fetch(queue)) for queue in self.queues]
        for _ in range(self._concurrency):
            self._start_runner()
        self._working.set()
        tell_working(self.queues, self._client.server, self._concurrency)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([stopped, *served, *poppers], return_when=asyncio.FIRST_COMPLETED)
            for each in [*served, *poppers, *self._broken]:
                if each.done():
                    each.result()  # a bug ends one of these, or a token that ended: raise it
            await self._drain(poppers)
        finally:
            self._is_ending = True
            # Two cancels: on the first, a runner interrupts its thread and waits for it; the second ends that
            # wait.
            ending: list[asyncio.Task[Any]] = [stopped, *poppers, *served, *self._runners]
            for task in ending:
                task.cancel()
            _, left = await asyncio.wait(ending, timeout=LAST_S)
            for task in left:  # still waiting for a function in a thread that does not end
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=LAST_S)
            if left:
                logger.warning("%d jobs do not end though they were cancelled, and are left alone", len(left))
            self._holding.close()

    def _beats(self) -> Beats:
        tasks = [each.name for each in self.app.tasks.values() if each.queue in self.queues]
        what = (sorted(tasks), self._group, self._concurrency)
        about = About(self.name, self.app.version or __version__, self.queues, *what)
        return Beats(self._client, about, self._holding, self._done_by_now, self._stopping, self.app)

    def _done_by_now(self) -> int:
        """Return how many jobs have ended here, in whatever way; those left to others have not."""
        return self._done - self._holding.deferrals

    def _start_runner(self) -> None:
        """Start a runner with fresh context variables."""
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
        else:  # a task may have cancelled its own runner: replace it
            self._start_runner()

    def stop(self) -> None:
        """Take no more jobs, and end when the running ones have. A second call interrupts them."""
        if self._was_told:
            self._hurrying.set()
        self._was_told = True
        self._stopping.set()

    async def _let_go(self) -> None:
        self._running.close()
        if self._is_my_client:
            await self.app._aclose(flush_s(self._loop.time() - self._stopped_at, self._drain_s))
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
        """Return whether the app was declared. Retries until the server is reachable or the worker stops."""
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
                    await look(self._client)
                await self.app.declare()
                return
            except (Busy, Disconnected) as error:
                if not attempt:
                    logger.warning("waiting for the server: %s", error)
            await asyncio.sleep(wait_s(attempt))

    async def _drain(self, poppers: Sequence["asyncio.Task[None]"]) -> None:
        logger.info("stopping; %d jobs run or are about to", self._holding.count)
        self._stopped_at = self._loop.time()
        # Poppers end first: after that nothing is added to ``_ready``, and all of it can be released.
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
        """Wait for the running jobs, until ``drain_s`` passed or a second ``stop``; then interrupt them."""
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
        """Pop from a queue forever, whenever there is room."""
        failures = 0
        before, looked_at = self._done, self._loop.time()
        most = await self._most(queue)
        while True:
            room = self._room()
            # Wait until half of the prefetch is used up: small pops would cost a round trip each.
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
                    worker=self.name,
                    create=True,
                    type=Raw,
                )
                if batch:
                    sent_at = await self._confirmed(batch.lease, sent_at)
                failures = 0
            except ForebayError as error:
                await check_known(self._client, error)
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
        """Return how many jobs to pop at a time: 1 in strict order, so that none run concurrently."""
        for attempt in count():
            try:
                ordering = (await self._client.queue(queue)).options.get("ordering")
                break
            except (Busy, Disconnected, NotFound):
                await asyncio.sleep(wait_s(attempt))
        return 1 if ordering == "partition" else PREFETCH_MAX + self._concurrency

    async def _confirmed(self, lease: str | None, sent_at: float) -> float:
        """Return when the lease was last granted or extended. Extends a lease whose pop took long to return.

        Raises if it has expired, for example because the process was suspended meanwhile.
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

    def _room(self) -> int:
        """Return for how many jobs more there is room. Woken runners count: each will take one."""
        return self._ahead() + len(self._idle) + self._woken - len(self._ready)

    def _ahead(self) -> int:
        """Return how many jobs to prefetch beyond those that run."""
        if self._prefetch is not None:
            return self._prefetch
        return min(int(self._rate * AHEAD_S), PREFETCH_MAX)

    async def _accept(self, messages: list[Message], sent_at: float) -> None:
        """Queue messages for the runners, and release those for which there is no room any more."""
        lease = self._holding.take(messages, sent_at)
        self._tells_jobs = logger.isEnabledFor(logging.DEBUG)
        room = max(self._room(), 0)  # the pop was sized when it was sent, up to 20 s ago
        taken, surplus = messages[:room], messages[room:]
        self._ready.extend([(lease, each) for each in taken])
        wanted = len(taken)
        while wanted and self._idle:
            idle = self._idle.pop()
            if not idle.done():  # a task may have cancelled its own runner
                self._woken += 1
                idle.set_result(None)
                wanted -= 1
        if surplus:
            await self._holding.release(lease, [each.id for each in surplus])

    # Running.

    async def _work(self) -> None:
        """Run one job after the other, forever."""
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
                return  # its context variables would leak into the next job: a new runner starts
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    def _wake_up(self, idle: "asyncio.Future[None]") -> None:
        """Account for a runner that is no longer idle: woken, or cancelled."""
        if not idle.cancelled():
            self._woken -= 1
        elif idle in self._idle:
            self._idle.remove(idle)

    def _is_as_it_was(self) -> bool:
        """Return whether the context variables are still those that the runner started with."""
        try:
            return contextvars.copy_context() == self._context
        except Exception:  # some values can't be compared
            return False

    async def _job(self, lease: Lease, message: Message) -> None:
        holding = self._holding
        id = message.id
        if id not in lease.open:
            return  # it was cancelled, or its lease expired
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
                args = await arguments(self._client, work, id)
                if id not in lease.open or not holding.is_live(lease):
                    holding.drop(lease, id)
                    return  # its lease expired meanwhile
            try:
                made = task.signature.made(args, work.kwargs)
            except DoesNotFit as error:
                raise unknown_arguments(task, error) from None
            except Exception as error:
                raise GiveUp(f"these are no arguments of {task.name}: {error}") from error
            run = Run(task, message, *made, self._client)
            run.runner = asyncio.current_task()
            lease.open[id] = run
            if self._tells_jobs:
                tell_start(message, name)
            result = result_of(await self._running.go(run))
            if result is None and work.awaited:
                result = Raw(b"null")
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if run is not None and run.interrupted and not self._is_ending:
                await self._interrupted(lease, run)
            elif self._is_ending or current is None:
                raise
            else:  # cancelled by the task itself: only ``interrupt`` and shutdown cancel a runner otherwise
                forgive()
                self._failed(lease, message, name, told(error), error=error)
        except (Busy, Disconnected) as error:
            if run is not None:
                self._failed(lease, message, name, told(error), error=error)
            else:  # the results it depends on can't be read right now: not the job's failure
                await holding.release(lease, [id])
        except Unknown as error:
            self._unknown(lease, message, name, str(error))
        except RetryLater as error:
            why = said(error) or "to be tried again"
            delay_ms = getattr(error, "delay_ms", None)
            self._failed(lease, message, name, why, delay_ms=delay_ms, error=error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._is_ending:
                raise
            gives_up = isinstance(error, GiveUp) or (
                run is not None
                and (isinstance(error, run.task.give_up_on) or (isinstance(error, Raised) and error.gives_up))
            )
            self._failed(lease, message, name, told(error), gives_up=gives_up, error=error)
        else:
            run.runner = None
            forgive()
            if lease.is_lost:
                holding.drop(lease, id)
            else:
                holding.done(lease, id, result)
                if self._tells_jobs:
                    tell_end(message, name, self._loop.time() - run.began)

    def _task(self, work: Work) -> Task[Any, Any, Any]:
        if work.task not in self.app.tasks:
            raise unknown_task(work)
        return self.app.tasks[work.task]

    def _unknown(self, lease: Lease, message: Message, name: str, why: str) -> None:
        """Leave a job to workers that know it, for a while."""
        if not self._unknown_ms:
            self._failed(lease, message, name, why, gives_up=True)
            return
        self._warnings.warn(name, why, fields_of(message, name), self._loop.time())
        if lease.is_lost:
            self._holding.drop(lease, message.id)
        else:
            failure = Failure(message.id, why[:ERROR_CHARS], defer_ms=self._unknown_ms)
            self._holding.fail(lease, failure)

    async def _interrupted(self, lease: Lease, run: Run) -> None:
        if run.interrupted == STOPPED:
            self._tell_interrupt(run)
            await self._holding.release(lease, [run.id])
        else:
            self._forget(lease, run)

    def _forget(self, lease: Lease, run: Run) -> None:
        """Forget a job that is not this worker's any more, however its function ended."""
        assert run.interrupted in (CANCELLED, LOST)
        self._tell_interrupt(run)
        self._holding.drop(lease, run.id)

    def _tell_interrupt(self, run: Run) -> None:
        run.runner = None
        forgive()
        fields = fields_of(run.message, run.task.name)
        logger.warning("job %d %s: %s", run.id, run.task.name, run.interrupted, extra={"fields": fields})

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
        if run is not None and run.interrupted in (CANCELLED, LOST):
            self._forget(lease, run)
            return
        if run is not None:
            run.runner = None
            forgive()
        tell_failure(message, name, why, gives_up, error)
        if lease.is_lost:
            self._holding.drop(lease, message.id)
        else:
            about = (why[:ERROR_CHARS], kind_of(error), trace_of(error))
            self._holding.fail(lease, Failure(message.id, *about, delay_ms, gives_up))


async def _call(hooks: Sequence[Hook]) -> None:
    for hook in hooks:
        called = hook()
        if called is not None:
            await called
