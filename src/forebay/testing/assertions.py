"""Assertions about a server: which messages were pushed, are left, or are dead."""

from typing import Any

import msgspec

from forebay.client.payloads import encode, is_bytes
from forebay.client.tasks.task import Call
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
    """Return a payload as it would be delivered; for a call, the payload of its job."""
    if is_bytes(expected):
        return bytes(expected)
    try:
        body = expected.payload() if isinstance(expected, Call) else encode(expected)
    except Invalid:  # it contains an object that compares equal to others, such as ANYTHING
        return expected
    return msgspec.json.decode(body)


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
        """Assert that a payload, or the call of a task, was pushed: at least once, or so many times."""
        __tracebackhide__ = True
        wanted, found = plain(payload), self.pushed(queue)
        count = sum(wanted == each for each in found)
        if count == times or (times is None and count):
            return
        asked = "it was not" if times is None else f"{_times(count)}, not {_times(times)}"
        raise AssertionError(
            f"{wanted!r} was to be pushed to {queue!r}, and {asked}. {self._instead(queue, found)}"
        )

    def assert_not_pushed(self, queue: str, payload: Any = ANYTHING) -> None:
        """Assert that a payload was never pushed; without one, that nothing was."""
        __tracebackhide__ = True
        wanted, found = plain(payload), self.pushed(queue)
        if any(wanted == each for each in found):
            raise AssertionError(f"{wanted!r} was pushed to {queue!r}. {self._instead(queue, found)}")

    def _instead(self, queue: str, found: list[Any]) -> str:
        others = sorted(set(self._call(self._ledger.queues)) - {queue})
        elsewhere = f"\nThere were pushes to {', '.join(map(repr, others))}." if others else ""
        return f"Pushed were:\n{shown(found)}{elsewhere}"

    def left(self, queue: str, *, group: str = DEFAULT) -> list[Seen]:
        """Return the unsettled messages: waiting, delayed, parked or leased."""
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
        found: list[Seen] = []
        try:
            while page := self._mine.dead(queue, group=group, limit=PAGE, skip=len(found)).messages:
                found += page
        except NotFound:
            return []
        return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
