"""Those who wait for the end of a message: answered when it is settled or dead, or their time is over."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from msgspec import Struct

from forebay.broker.waiters import Asker, Ticket
from forebay.core.api.commands import Reply
from forebay.core.api.queries import Await, NotesFound
from forebay.core.engine import Engine, Watched
from forebay.core.errors import ForebayError

Answered = Reply | ForebayError
Apply = Callable[[Await], Answered]
Answer = Callable[[Asker, Ticket, Answered], None]
Asked = tuple[str, int, str]
"""Tenant, message and group: what many may wait for."""


class Watcher(Struct, eq=False):
    """Somebody who waits for the end of a message."""

    asker: Asker
    ticket: Ticket
    command: Await
    until: float
    """When it is answered whatever has become of the message, by the loop's clock."""
    watched: Watched
    timer: TimerHandle | None = None

    @property
    def asked(self) -> Asked:
        return self.command.tenant, self.command.id, self.command.group


class Watchers:
    """Everyone who waits for the end of a message."""

    def __init__(
        self, loop: AbstractEventLoop, clock: Callable[[], int], apply: Apply, answer: Answer
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._apply = apply
        self._answer = answer
        self._by_place: dict[Watched, dict[int, Watcher]] = {}
        """By place and identity."""
        self.count = 0

    def add(self, engine: Engine, asker: Asker, ticket: Ticket, command: Await, found: NotesFound) -> None:
        """Wait for what was not over when it was asked for."""
        until = self._loop.time() + command.wait_ms / 1000
        watcher = Watcher(asker, ticket, command, until, engine.watch(command.tenant, command.id))
        self._enter(watcher)
        self._set_timer(engine, watcher, found)

    def _enter(self, watcher: Watcher) -> None:
        self._by_place.setdefault(watcher.watched, {})[id(watcher)] = watcher
        self.count += 1

    def _set_timer(self, engine: Engine, watcher: Watcher, found: NotesFound) -> None:
        """Look again when its time is over, or its message's."""
        expires_s = max(found.over_at - self._clock(), 0) / 1000
        at = min(watcher.until, self._loop.time() + expires_s)
        if watcher.timer is not None:
            watcher.timer.cancel()
        watcher.timer = self._loop.call_at(at, self._ring, engine, watcher)

    def serve(self, engine: Engine) -> None:
        """Answer those whose message is over."""
        for watched in engine.take_over():
            self._look_again(engine, watched)

    def _ring(self, engine: Engine, watcher: Watcher) -> None:
        """The time of a watcher, or of its message, is over."""
        self._leave(engine, watcher)
        found = self._apply(watcher.command)
        if isinstance(found, NotesFound) and not found.is_over and self._loop.time() < watcher.until:
            watcher.watched = engine.watch(watcher.command.tenant, watcher.command.id)
            self._enter(watcher)
            self._set_timer(engine, watcher, found)
        else:
            self._answer(watcher.asker, watcher.ticket, found)

    def _look_again(self, engine: Engine, watched: Watched) -> None:
        """Something happened to a message: each that waits for it is answered, or goes on waiting."""
        known: dict[Asked, Answered] = {}
        for watcher in list(self._by_place.get(watched, {}).values()):
            found = known.get(watcher.asked)
            if found is None:
                found = known[watcher.asked] = self._apply(watcher.command)
            if isinstance(found, NotesFound) and not found.is_over:
                self._go_on(engine, watcher)
            else:
                self._leave(engine, watcher)
                self._answer(watcher.asker, watcher.ticket, found)

    def _go_on(self, engine: Engine, watcher: Watcher) -> None:
        """Watch a message where it is now; the timer stays as it is."""
        place = engine.watch(watcher.command.tenant, watcher.command.id)
        if place != watcher.watched:
            self._leave(engine, watcher, stop=False)
            watcher.watched = place
            self._enter(watcher)

    def _leave(self, engine: Engine, watcher: Watcher, *, stop: bool = True) -> None:
        """Wait no longer where it waits."""
        there = self._by_place[watcher.watched]
        del there[id(watcher)]
        self.count -= 1
        if not there:
            del self._by_place[watcher.watched]
            engine.unwatch(watcher.watched)
        if stop and watcher.timer is not None:
            watcher.timer.cancel()

    def _all(self) -> list[Watcher]:
        return [watcher for there in self._by_place.values() for watcher in there.values()]

    def reload(self, engine: Engine) -> None:
        """Everything was loaded again: watch it there."""
        for watcher in self._all():
            self._ring(engine, watcher)

    def forget(self, engine: Engine, asker: Asker) -> None:
        """The asker is gone: nobody waits for it any more."""
        for watcher in self._all():
            if watcher.asker is asker:
                self._leave(engine, watcher)

    def give_up(self, engine: Engine, asker: Asker | None = None) -> None:
        """Answer an asker, or everyone, with what there is."""
        for watcher in self._all():
            if asker is None or watcher.asker is asker:
                self._leave(engine, watcher)
                self._answer(watcher.asker, watcher.ticket, self._apply(watcher.command))
