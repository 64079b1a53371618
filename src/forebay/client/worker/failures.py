"""Errors of tasks as text."""

from forebay.client.worker.pipe import Raised


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
