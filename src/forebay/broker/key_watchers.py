"""Those who wait for keys to change: answered when one does, or when their time is over.

Nobody looks before something is written: a watch that waits costs nothing.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from msgspec import Struct

from forebay.broker.waiters import Asker, Ticket
from forebay.core.api.commands import Reply
from forebay.core.api.queries import KvFound, KvWatch
from forebay.core.engine import Engine
from forebay.core.errors import ForebayError

Answered = Reply | ForebayError


class KeyWatcher(Struct, eq=False):
    """Somebody who waits for keys of a tenant to change."""

    asker: Asker
    ticket: Ticket
    command: KvWatch
    timer: TimerHandle


class KeyWatchers:
    """Everyone who waits for keys to change."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        apply: Callable[[KvWatch], Answered],
        answer: Callable[[Asker, Ticket, Answered], None],
    ) -> None:
        self._loop = loop
        self._apply = apply
        self._answer = answer
        self._arrivals = 0
        self._by_number: dict[int, KeyWatcher] = {}
        """In order of arrival."""
        self._by_key: dict[tuple[str, bytes], dict[int, KeyWatcher]] = {}

    @property
    def count(self) -> int:
        return len(self._by_number)

    def add(self, engine: Engine, asker: Asker, ticket: Ticket, command: KvWatch) -> None:
        """Wait for keys that were as they are known when it was asked."""
        self._arrivals += 1
        number = self._arrivals
        timer = self._loop.call_later(command.wait_ms / 1000, self._finish, engine, number)
        watcher = KeyWatcher(asker, ticket, command, timer)
        self._by_number[number] = watcher
        for key in command.keys:
            self._by_key.setdefault((command.tenant, key), {})[number] = watcher
        engine.watched_keys = self.count

    def serve(self, engine: Engine) -> None:
        """Answer those whose keys changed."""
        touched = list(engine.touched_keys)
        engine.touched_keys.clear()
        numbers = {number: None for key in touched for number in self._by_key.get(key, ())}
        for number in sorted(numbers):
            found = self._apply(self._by_number[number].command)
            if not isinstance(found, KvFound) or found.changed:
                self._leave(engine, number, found)

    def _finish(self, engine: Engine, number: int) -> None:
        """The time of a watcher is over: it gets what there is."""
        if number in self._by_number:
            self._leave(engine, number, self._apply(self._by_number[number].command))

    def _leave(self, engine: Engine, number: int, found: Answered | None) -> None:
        watcher = self._by_number.pop(number)
        watcher.timer.cancel()
        for key in {(watcher.command.tenant, key) for key in watcher.command.keys}:
            there = self._by_key[key]
            del there[number]
            if not there:
                del self._by_key[key]
        engine.watched_keys = self.count
        if found is not None:
            self._answer(watcher.asker, watcher.ticket, found)

    def reload(self, engine: Engine) -> None:
        """Everything was loaded again: see who has to be answered."""
        engine.watched_keys = self.count
        for number, watcher in list(self._by_number.items()):
            found = self._apply(watcher.command)
            if not isinstance(found, KvFound) or found.changed:
                self._leave(engine, number, found)

    def forget(self, engine: Engine, asker: Asker) -> None:
        """The asker is gone: nobody waits for it any more."""
        for number in self._of(asker):
            self._leave(engine, number, None)

    def give_up(self, engine: Engine, asker: Asker | None = None) -> None:
        """Answer an asker, or everyone, with what there is."""
        for number in self._of(asker):
            self._finish(engine, number)

    def _of(self, asker: Asker | None) -> list[int]:
        return [
            number for number, watcher in self._by_number.items() if asker is None or watcher.asker is asker
        ]
