"""Errors of tasks as text."""

import traceback
from pathlib import Path
from types import TracebackType

from forebay.client.tasks.task import RetryLater
from forebay.client.worker.pipe import Raised
from forebay.core.bounds import TRACEBACK_CHARS_MAX

_PACKAGE = str(Path(__file__).parents[2])


def told(error: BaseException) -> str:
    """Return an error as it is stored with the message.

    >>> told(ValueError("no such user"))
    'ValueError: no such user'
    """
    text = said(error)
    if isinstance(error, Raised):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def said(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "it can't be told"


def kind_of(error: BaseException | None) -> str:
    """Return the name of an error's type."""
    if error is None:
        return ""
    return error.kind if isinstance(error, Raised) else type(error).__name__


def trace_of(error: BaseException | None) -> str:
    """Return where an error was raised, as Python prints it: the end of it, if it is very long."""
    if error is None or isinstance(error, RetryLater):
        return ""  # asked for, and no accident
    if isinstance(error, Raised):
        text = error.trace
    else:
        within = _own_frames_left_out(error.__traceback__)
        try:
            text = "".join(traceback.format_exception(type(error), error, within))
        except Exception:  # its text can't be told
            text = "".join(traceback.format_tb(within))
    return text.strip()[-TRACEBACK_CHARS_MAX:].encode(errors="replace").decode()


def _own_frames_left_out(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the task's function on, if it got there."""
    at = trace
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        at = at.tb_next
    return at or trace
