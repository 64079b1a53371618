"""Watchers of messages: answered when their message is settled or dead, or on timeout."""

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
"""Tenant, message and group: watchers with the same one get the same reply."""


class Watcher(Struct, eq=False):
    """A long poll for the end of a message."""

    asker: Asker
    ticket: Ticket
    command: Await
    until: float
    """Deadline of the long poll, by the loop's clock."""
    watched: Watched
    timer: TimerHandle | None = None

    @property
    def asked(self) -> Asked:
        return self.command.tenant, self.command.id, self.command.group


class Watchers:
    """All long polls for the end of a message."""

    def __init__(
        self, loop: AbstractEventLoop, clock: Callable[[], int], apply: Apply, answer: Answer
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._apply = apply
        self._answer = answer
        self._by_place: dict[Watched, dict[int, Watcher]] = {}
        """By place, then by ``id`` of the watcher."""
        self.count = 0

    def add(self, engine: Engine, asker: Asker, ticket: Ticket, command: Await, found: NotesFound) -> None:
        """Watch a message that had not ended yet."""
        until = self._loop.time() + command.wait_ms / 1000
        watcher = Watcher(asker, ticket, command, until, engine.watch(command.tenant, command.id))
        self._enter(watcher)
        self._set_timer(engine, watcher, found)

    def _enter(self, watcher: Watcher) -> None:
        self._by_place.setdefault(watcher.watched, {})[id(watcher)] = watcher
        self.count += 1

    def _set_timer(self, engine: Engine, watcher: Watcher, found: NotesFound) -> None:
        """Set the timer to the deadline, or to the expiry of the message if that is earlier."""
        expires_s = max(found.over_at - self._clock(), 0) / 1000
        at = min(watcher.until, self._loop.time() + expires_s)
        if watcher.timer is not None:
            watcher.timer.cancel()
        watcher.timer = self._loop.call_at(at, self._ring, engine, watcher)

    def serve(self, engine: Engine) -> None:
        """Answer the watchers of messages that ended."""
        for watched in engine.take_changed():
            self._look_again(engine, watched)

    def _ring(self, engine: Engine, watcher: Watcher) -> None:
        """On a timer or a reload: answer a watcher, unless its message is open and its deadline ahead."""
        self._leave(engine, watcher)
        found = self._apply(watcher.command)
        if isinstance(found, NotesFound) and not found.is_over and self._loop.time() < watcher.until:
            watcher.watched = engine.watch(watcher.command.tenant, watcher.command.id)
            self._enter(watcher)
            self._set_timer(engine, watcher, found)
        else:
            self._answer(watcher.asker, watcher.ticket, found)

    def _look_again(self, engine: Engine, watched: Watched) -> None:
        """Check a message that changed: answer each of its watchers, or go on watching."""
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
        """Follow a message to its current place; the timer stays."""
        place = engine.watch(watcher.command.tenant, watcher.command.id)
        if place != watcher.watched:
            self._leave(engine, watcher, stop=False)
            watcher.watched = place
            self._enter(watcher)

    def _leave(self, engine: Engine, watcher: Watcher, *, stop: bool = True) -> None:
        """Remove a watcher from its place; with ``stop`` its timer is cancelled, too."""
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
        """Move all watchers to a reloaded engine."""
        for watcher in self._all():
            self._ring(engine, watcher)

    def forget(self, engine: Engine, asker: Asker) -> None:
        """Drop all watchers of an asker without an answer."""
        for watcher in self._all():
            if watcher.asker is asker:
                self._leave(engine, watcher)

    def give_up(self, engine: Engine, asker: Asker | None = None) -> None:
        """Answer the watchers of an asker, or all, with the current state."""
        for watcher in self._all():
            if asker is None or watcher.asker is asker:
                self._leave(engine, watcher)
                self._answer(watcher.asker, watcher.ticket, self._apply(watcher.command))
