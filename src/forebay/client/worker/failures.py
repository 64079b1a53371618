"""Errors of tasks as text."""

import traceback

from forebay.client.tasks.task import RetryLater
from forebay.client.worker.pipe import Raised
from forebay.core.bounds import TRACEBACK_CHARS_MAX


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
        return f"{error.trace}{error}"[-TRACEBACK_CHARS_MAX:]
    try:
        lines = traceback.format_exception(error)
    except Exception:  # its text can't be told
        lines = traceback.format_tb(error.__traceback__)
    return "".join(lines).strip()[-TRACEBACK_CHARS_MAX:].encode(errors="replace").decode()
