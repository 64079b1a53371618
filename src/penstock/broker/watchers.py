"""Those who wait for the end of a message: answered when it is settled or dead, or their time is over."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from msgspec import Struct

from penstock.broker.waiters import Asker, Ticket
from penstock.core.commands import Await, NotesFound, Reply
from penstock.core.engine import Engine, Watched
from penstock.core.errors import PenstockError

Answered = Reply | PenstockError
Apply = Callable[[Await], Answered]
Answer = Callable[[Asker, Ticket, Answered], None]


class Watcher(Struct, eq=False):
    """Somebody who waits for the end of a message."""

    asker: Asker
    ticket: Ticket
    command: Await
    until: float
    """When it is answered whatever has become of the message, by the loop's clock."""
    watched: Watched
    timer: TimerHandle


class Watchers:
    """Everyone who waits for the end of a message."""

    def __init__(
        self, loop: AbstractEventLoop, clock: Callable[[], int], apply: Apply, answer: Answer
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._apply = apply
        self._answer = answer
        self._by_place: dict[Watched, list[Watcher]] = {}
        self.count = 0

    def add(self, engine: Engine, asker: Asker, ticket: Ticket, command: Await, found: NotesFound) -> None:
        """Wait for what was not over when it was asked for."""
        self._add(engine, asker, ticket, command, found, self._loop.time() + command.wait_ms / 1000)

    def _add(
        self,
        engine: Engine,
        asker: Asker,
        ticket: Ticket,
        command: Await,
        found: NotesFound,
        until: float,
    ) -> None:
        watched = engine.watch(command.tenant, command.id)
        expires_s = max(found.over_at - self._clock(), 0) / 1000
        timer = self._loop.call_at(min(until, self._loop.time() + expires_s), self._ring, engine, watched)
        watcher = Watcher(asker, ticket, command, until, watched, timer)
        self._by_place.setdefault(watched, []).append(watcher)
        self.count += 1

    def serve(self, engine: Engine) -> None:
        """Answer those whose message is over."""
        for watched in engine.take_over():
            self._look_again(engine, watched)

    def _ring(self, engine: Engine, watched: Watched) -> None:
        """The time of a watcher, or of its message, is over."""
        engine.unwatch(watched)
        self._look_again(engine, watched)

    def _look_again(self, engine: Engine, watched: Watched) -> None:
        for watcher in self._take(watched):
            found = self._apply(watcher.command)
            waits = isinstance(found, NotesFound) and not found.is_over and self._loop.time() < watcher.until
            if waits:
                assert isinstance(found, NotesFound)
                self._add(engine, watcher.asker, watcher.ticket, watcher.command, found, watcher.until)
            else:
                self._answer(watcher.asker, watcher.ticket, found)

    def _take(self, watched: Watched) -> list[Watcher]:
        taken = self._by_place.pop(watched, [])
        for watcher in taken:
            watcher.timer.cancel()
        self.count -= len(taken)
        return taken

    def reload(self, engine: Engine) -> None:
        """Everything was loaded again: watch it there."""
        for watched in list(self._by_place):
            self._look_again(engine, watched)

    def forget(self, engine: Engine, asker: Asker) -> None:
        """The asker is gone: nobody waits for it any more."""
        for watcher in self._leave(engine, asker):
            watcher.timer.cancel()

    def give_up(self, engine: Engine, asker: Asker | None = None) -> None:
        """Answer an asker, or everyone, with what there is."""
        for watcher in self._leave(engine, asker):
            watcher.timer.cancel()
            self._answer(watcher.asker, watcher.ticket, self._apply(watcher.command))

    def _leave(self, engine: Engine, asker: Asker | None) -> list[Watcher]:
        left: list[Watcher] = []
        for watched, watchers in list(self._by_place.items()):
            mine = [each for each in watchers if asker is None or each.asker is asker]
            others = [each for each in watchers if each not in mine]
            left += mine
            self.count -= len(mine)
            if others:
                self._by_place[watched] = others
            else:
                del self._by_place[watched]
                engine.unwatch(watched)
        return left
