"""What goes over the pipe between a worker and a child process.

The worker sends ``Asked``; the child answers with one ``Said`` when the task has ended. Before that it may
send any number of ``Told``, each after the last was ``Answered``; after that it sends one ``Flushed``. All
carry the number of their call: what another call has left behind must not be taken for an answer to this one.
"""

import signal
from typing import Any, NamedTuple

from forebay.client.access import Access
from forebay.client.errors import Disconnected, error_of
from forebay.client.tasks.task import GiveUp, RetryLater
from forebay.client.types import Message
from forebay.core.errors import ForebayError

SAID_TO_ALL = (signal.SIGINT, signal.SIGTERM)
"""Terminals and systemd send these to the whole process group; the worker alone acts on them."""


class Asked(NamedTuple):
    """A call."""

    place: tuple[str, str]
    """Module and name of the task."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    server: str | None
    """Where the task pushes to."""
    about: Message
    """The message of the job, without its payload."""
    call: int = 0
    """Number of the call, given to it when it is sent."""
    access: Access = Access()
    """What it shows where it pushes to."""


class Told(NamedTuple):
    """What the task reports while it runs."""

    call: int
    kind: str
    """``progress`` or ``log``."""
    given: tuple[Any, ...]
    """Plain values: an object could be one that the worker can't make again."""


class Answered(NamedTuple):
    """Whether the worker took a report: the error, if it did not."""

    call: int
    code: str = ""
    message: str = ""
    details: dict[str, Any] | None = None

    def problem(self) -> ForebayError | None:
        if not self.code:
            return None
        if self.code == Disconnected.code:
            return Disconnected(self.message)
        return error_of(self.code, self.message, self.details or {})


class Raised(Exception):
    """An exception of the function, as text: not every exception can be pickled."""

    def __init__(self, told: str, *, gives_up: bool, kind: str = "", trace: str = "") -> None:
        super().__init__(told)
        self.gives_up = gives_up
        self.kind = kind
        """Name of its type."""
        self.trace = trace
        """Its traceback, without its text."""


class Said(NamedTuple):
    """A child's reply to a call."""

    kind: str
    """``returned``, ``raised``, ``later``, ``gave up``, or ``gave up on`` an error in the task's list."""
    value: Any
    """The result as JSON, or the exception as text."""
    delay_ms: int | None = None
    trace: str = ""
    type: str = ""
    """Name of the exception's type."""
    call: int = 0

    def error(self) -> Exception:
        made: Exception
        if self.kind == "later":
            return RetryLater(self.value, delay_ms=self.delay_ms)
        if self.kind == "gave up":
            made = GiveUp(self.value)
        else:
            gives_up = self.kind == "gave up on"
            made = Raised(self.value, gives_up=gives_up, kind=self.type, trace=self.trace)
        if self.trace:
            made.add_note(f"In the process of the task:\n{self.trace.rstrip()}")
        return made


class Flushed(NamedTuple):
    """The child has sent what the task pushed later: it may be killed now."""

    call: int
    goes_on: bool
    """Whether it can serve another call."""
