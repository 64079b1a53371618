"""Assertions about a server: which messages were pushed, are left, or are dead."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forebay.client.payloads import encode, is_bytes
from forebay.client.tasks.call import Work
from forebay.client.tasks.task import Call, Task
from forebay.client.types import DEFAULT, Seen
from forebay.core.errors import Invalid, NotFound
from forebay.testing.server_thread import Life

SHOWN_MAX = 20
"""Most payloads shown by a failed assertion."""
PAGE = 1_000
LEFT = ("waiting", "delayed", "parked", "active")
"""States of unsettled messages."""


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Any = _Anything()


def plain(expected: Any) -> Any:
    """Return a payload as it would be delivered, around what compares equal to others, such as ANYTHING."""
    if is_bytes(expected):
        return bytes(expected)
    try:
        return msgspec.json.decode(encode(expected))
    except Invalid:
        if isinstance(expected, msgspec.Struct):
            names = zip(expected.__struct_fields__, expected.__struct_encode_fields__, strict=True)
            return {encoded: plain(getattr(expected, name)) for name, encoded in names}
        if dataclasses.is_dataclass(expected) and not isinstance(expected, type):
            fields = dataclasses.fields(expected)
            return {each.name: plain(getattr(expected, each.name)) for each in fields}
        if hasattr(expected, "model_dump"):
            return plain(dict(expected))
        if isinstance(expected, Mapping):
            return {_key(name): plain(value) for name, value in expected.items()}
        if isinstance(expected, list | tuple):
            return list(map(plain, expected))
        return expected


def _key(name: Any) -> Any:
    """Return a key of an object as JSON has it."""
    try:
        (key,) = msgspec.json.decode(encode({name: None}))
    except Invalid:
        return name
    return key


class Wanted:
    """A payload that is expected: as it is, or as any call of a task, or as a call with these arguments."""

    def __init__(self, expected: Any) -> None:
        self._call = expected if isinstance(expected, Call) else None
        self._task = expected if isinstance(expected, Task) else expected.task if self._call else None
        self._wanted = plain(
            _given(self._call, self._call.args, self._call.kwargs) if self._call else expected
        )

    def is_met_by(self, payload: Any) -> bool:
        if self._task is None:
            return bool(self._wanted == payload)
        try:
            work = msgspec.convert(payload, Work)
            if work.task != self._task.name:
                return False
            return self._call is None or self._wanted == plain(_given(self._call, work.args, work.kwargs))
        except (msgspec.ValidationError, TypeError):
            return False  # it is no call, or one that does not fit the function

    def __repr__(self) -> str:
        if self._task is None:
            return repr(self._wanted)
        if self._call is None:
            return self._task.name
        by_name = (f"{name}={value!r}" for name, value in self._call.kwargs.items())
        return f"{self._task.name}({', '.join([*map(repr, self._call.args), *by_name])})"


def _given(call: Call[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return arguments by name, so that it does not matter how they were given; without the first, which is a
    result of another call, if that is to come."""
    return (args, kwargs) if call.takes_result else call.task.signature.bound(args, kwargs)


def shown(payloads: list[Any]) -> str:
    """Format payloads for people, one a line."""
    lines = [f"  {each!r}" for each in payloads[:SHOWN_MAX]]
    more = len(payloads) - SHOWN_MAX
    return "\n".join([*lines, f"  … and {more} more"] if more > 0 else lines) or "  nothing"


class Checks(Life):
    """A server with assertions."""

    def pushed(self, queue: str) -> list[Any]:
        """Return all payloads ever pushed to a queue, in order, whatever became of them."""
        self._settle()
        return self._call(lambda: self._ledger.of(queue))

    def assert_pushed(self, queue: str, payload: Any = ANYTHING, *, times: int | None = None) -> None:
        """Assert that a payload, a call of a task (or any), was pushed: at least once, or so many times."""
        __tracebackhide__ = True
        wanted, found = Wanted(payload), self.pushed(queue)
        count = sum(map(wanted.is_met_by, found))
        if count == times or (times is None and count):
            return
        asked = "it was not" if times is None else f"{_times(count)}, not {_times(times)}"
        raise AssertionError(
            f"{wanted!r} was to be pushed to {queue!r}, and {asked}. {self._instead(queue, found)}"
        )

    def assert_not_pushed(self, queue: str, payload: Any = ANYTHING) -> None:
        """Assert that a payload was never pushed; without one, that nothing was."""
        __tracebackhide__ = True
        wanted, found = Wanted(payload), self.pushed(queue)
        if any(map(wanted.is_met_by, found)):
            raise AssertionError(f"{wanted!r} was pushed to {queue!r}. {self._instead(queue, found)}")

    def _instead(self, queue: str, found: list[Any]) -> str:
        others = sorted(set(self._call(self._ledger.queues)) - {queue})
        elsewhere = f"\nThere were pushes to {', '.join(map(repr, others))}." if others else ""
        return f"Pushed were:\n{shown(found)}{elsewhere}"

    def left(self, queue: str, *, group: str = DEFAULT) -> list[Seen]:
        """Return the unsettled messages: waiting, delayed, parked or leased."""
        self._settle()
        found: list[Seen] = []
        try:
            for state in LEFT:
                found += self._mine.browse(queue, state=state, group=group)
        except NotFound:
            return []
        return found

    def assert_empty(self, queue: str, *, group: str = DEFAULT) -> None:
        """Assert that a queue has no unsettled messages. Dead letters do not count: see ``dead``."""
        __tracebackhide__ = True
        left = self.left(queue, group=group)
        if left:
            lines = "\n".join(f"  {each.state}: {each.payload!r}" for each in left[:SHOWN_MAX])
            raise AssertionError(f"{queue!r} is not empty: {len(left)} left\n{lines}")

    def dead(self, queue: str, *, group: str = DEFAULT) -> list[Seen]:
        """Return the dead letters of a queue, each with its ``payload`` and its ``error``."""
        self._settle()
        found: list[Seen] = []
        try:
            while page := self._mine.dead(queue, group=group, limit=PAGE, skip=len(found)).messages:
                found += page
        except NotFound:
            return []
        return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
