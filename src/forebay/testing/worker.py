"""A worker of a test: in a thread with an event loop of its own, and it can be seen whether it rests."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker

PATIENCE_S = 30.0
"""How long a test waits for what must come."""
LOOK_S = 0.001
"""How often to look whether a worker rests."""

Waiting = Callable[[str, str], int]
"""How many pops of a queue and a group wait at the server."""


class SeenWorker(Worker):
    """A worker that says what it does."""

    def standing(self) -> tuple[int, int]:
        """Jobs that ended, and jobs that it holds."""
        return self._done, self._holding.count

    def places(self) -> list[tuple[str, str]]:
        """Queues that it pops from, and the group it is in."""
        return [(queue, self._group) for queue in self.queues]

    def look_at_leases(self) -> None:
        """Extend all leases soon, as it does now and then by its own clock: it learns which are over."""
        for lease in self._holding.leases():
            lease.extend_at = 0.0

    def running(self) -> list[str]:
        """The names of tasks that run."""
        runs = [run for lease in self._holding.leases() for run in lease.open.values()]
        return sorted(run.task.name for run in runs if run is not None)


class Working:
    """A worker that works."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self.worker = SeenWorker(app, **options)
        self.places = self.worker.places()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forebay-testing-worker", daemon=True)
        self._ended: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._work())
            except BaseException as error:
                self._ended = error

    async def _work(self) -> None:
        try:
            await self.worker.run()
        finally:
            await self.worker.app.aclose()  # a worker that could not start has not done that

    @property
    def done(self) -> int:
        """Jobs that ended, whatever way."""
        return self.worker._done

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Call something where the worker runs."""
        answer: Future[Any] = Future()

        def called() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(called)
        try:
            return answer.result(PATIENCE_S)
        except TimeoutError:
            raise AssertionError("the event loop of the worker does not go on: a task blocks it") from None

    def has_begun(self) -> bool:
        if self._ended is not None:
            raise self._ended
        return hasattr(self.worker, "_running")

    def is_at_rest(self, waiting: Callable[[], bool]) -> bool:
        """Whether it has nothing to do, and waits for more, all at one instant."""
        if not self.has_begun():
            return False
        before = self._ask(self.worker.standing)
        return before[1] == 0 and waiting() and self._ask(self.worker.standing) == before

    def look_at_leases(self) -> None:
        if self.has_begun():
            self._ask(self.worker.look_at_leases)

    def running(self) -> list[str]:
        found: list[str] = self._ask(self.worker.running) if self.has_begun() else []
        return found

    def stop(self) -> int:
        """Let it end what runs; how many jobs it did."""
        pause = threading.Event()
        while not self.has_begun():
            pause.wait(LOOK_S)
        self._loop.call_soon_threadsafe(self.worker.stop)
        self._thread.join(PATIENCE_S)
        if self._ended is not None:
            raise self._ended
        return self.done
