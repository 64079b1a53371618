"""A worker under test: in a thread with an event loop of its own, with a way to see whether it is idle."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker

PATIENCE_S = 30.0
"""How long a test waits for something that must happen."""
LOOK_S = 0.001
"""Poll interval of checks whether a worker is idle."""

Waiting = Callable[[str, str], int]
"""Returns how many pops of a queue and a group wait at the server."""


class SeenWorker(Worker):
    """A worker that shows its state."""

    def standing(self) -> tuple[int, int]:
        """Return how many jobs have ended, and how many it holds."""
        return self._done, self._holding.count

    def places(self) -> list[tuple[str, str]]:
        """Return the queues it pops from, with its group."""
        return [(queue, self._group) for queue in self.queues]

    def look_at_leases(self) -> None:
        """Extend all leases soon, as it does anyway from time to time: it learns which have expired."""
        for lease in self._holding.leases():
            lease.extend_at = 0.0

    def running(self) -> list[str]:
        """Return the names of the running tasks."""
        runs = [run for lease in self._holding.leases() for run in lease.open.values()]
        return sorted(run.task.name for run in runs if run is not None)


class Working:
    """A running worker."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        # There are no other workers: a job that this one does not know is a mistake, and seen at once.
        self.worker = SeenWorker(app, **{"unknown_for_s": 0, **options})
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
            await self.worker.app.aclose()  # a worker that could not start has not closed its client

    @property
    def done(self) -> int:
        """Finished jobs, however they ended."""
        return self.worker._done

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Call a function on the worker's event loop."""
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
        """Return whether it has nothing to do and waits for more, all at one instant."""
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
        """Let its running jobs finish; return how many jobs it did."""
        pause = threading.Event()
        while not self.has_begun():
            pause.wait(LOOK_S)
        self._loop.call_soon_threadsafe(self.worker.stop)
        self._thread.join(PATIENCE_S)
        if self._ended is not None:
            raise self._ended
        return self.done
