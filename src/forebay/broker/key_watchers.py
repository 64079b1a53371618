"""Watchers of keys: answered when one of their keys changes, or on timeout.

Watchers are checked only when one of their keys is written: an idle watch costs nothing.
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
    """A long poll for a change of some keys of a tenant."""

    asker: Asker
    ticket: Ticket
    command: KvWatch
    timer: TimerHandle


class KeyWatchers:
    """All long polls for changes of keys."""

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
        self._engine: Engine | None = None
        """The engine that notes keys; a reload replaces it."""
        self._by_key: dict[tuple[str, bytes], dict[int, KeyWatcher]] = {}

    @property
    def count(self) -> int:
        return len(self._by_number)

    def add(self, engine: Engine, asker: Asker, ticket: Ticket, command: KvWatch) -> None:
        """Watch keys whose versions are those the client knows."""
        self._arrivals += 1
        number = self._arrivals
        timer = self._loop.call_later(command.wait_ms / 1000, self._finish, number)
        watcher = KeyWatcher(asker, ticket, command, timer)
        self._by_number[number] = watcher
        for key in command.keys:
            self._by_key.setdefault((command.tenant, key), {})[number] = watcher
        self._engine = engine
        self._note(True)

    def serve(self, engine: Engine) -> None:
        """Answer the watchers of keys that changed."""
        touched = engine.take_touched_keys()
        numbers = {number: None for key in touched for number in self._by_key.get(key, ())}
        for number in sorted(numbers):
            found = self._apply(self._by_number[number].command)
            if not isinstance(found, KvFound) or found.changed:
                self._leave(number, found)

    def _finish(self, number: int) -> None:
        """Answer a watcher with the current state, on timeout or shutdown."""
        if number in self._by_number:
            self._leave(number, self._apply(self._by_number[number].command))

    def _leave(self, number: int, found: Answered | None) -> None:
        watcher = self._by_number.pop(number)
        watcher.timer.cancel()
        for key in {(watcher.command.tenant, key) for key in watcher.command.keys}:
            there = self._by_key[key]
            del there[number]
            if not there:
                del self._by_key[key]
        self._note(self.count > 0)
        if found is not None:
            self._answer(watcher.asker, watcher.ticket, found)

    def reload(self, engine: Engine) -> None:
        """Move all watchers to a reloaded engine, and answer those whose keys changed."""
        self._engine = engine
        self._note(self.count > 0)
        for number, watcher in list(self._by_number.items()):
            found = self._apply(watcher.command)
            if not isinstance(found, KvFound) or found.changed:
                self._leave(number, found)

    def forget(self, asker: Asker) -> None:
        """Drop all watchers of an asker without an answer."""
        for number in self._of(asker):
            self._leave(number, None)

    def give_up(self, asker: Asker | None = None) -> None:
        """Answer the watchers of an asker, or all, with the current state."""
        for number in self._of(asker):
            self._finish(number)

    def _note(self, watching: bool) -> None:
        """Have the current engine note the keys that are written, or no more."""
        if self._engine is not None:
            self._engine.watch_keys(watching)

    def _of(self, asker: Asker | None) -> list[int]:
        return [
            number for number, watcher in self._by_number.items() if asker is None or watcher.asker is asker
        ]
