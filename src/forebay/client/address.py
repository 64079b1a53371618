"""Server addresses: tcp://HOST:PORT, unix://PATH, http://HOST:PORT, https://HOST; HOST:PORT, or a path."""

import os

from forebay.client.errors import Disconnected
from forebay.client.raw import where as where

SERVER_VARIABLE = "FOREBAY_SERVER"
DEFAULT_SERVER = "127.0.0.1:6780"


def server_of(given: str | None) -> str:
    """Return the server given, else the one in the environment, else the one on this machine."""
    return given or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER


def is_web(server: str) -> bool:
    """Return whether a server is reached over HTTP.

    >>> [is_web(each) for each in ("http://queue.example", "tcp://queue.example:6780", "/run/forebay.sock")]
    [True, False, False]
    """
    return server.startswith(("http://", "https://"))


def shown(server: str) -> str:
    """Return an address without its password, for messages.

    >>> shown("https://ada:secret@queue.example"), shown("127.0.0.1:6780")
    ('https://queue.example', '127.0.0.1:6780')
    """
    scheme, found, rest = server.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found else server


def missing(server: str, error: Exception) -> Disconnected:
    """Return the error for a server that can't be reached, with what to do about it."""
    why = str(error) or "it does not answer"
    if not is_web(server) and isinstance(where(server), str) and "/" not in server:
        why += f"; a host has a port behind it, as in {server}:6780"
    return Disconnected(f"no server at {shown(server)} ({why}); start one with: forebay serve", sent=False)
