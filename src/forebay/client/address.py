"""Server addresses: tcp:// or tls://HOST:PORT, unix://PATH, http:// or https://HOST; HOST:PORT, or a path."""

import os
from urllib.parse import urlsplit

from forebay.client.errors import Disconnected, NotForebay
from forebay.client.outcome import said
from forebay.core.errors import Invalid

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


def is_tls(server: str) -> bool:
    """Return whether what is said to a server is protected by TLS.

    >>> [is_tls(each) for each in ("tls://queue.example:6780", "https://queue.example", "queue.example:6780")]
    [True, True, False]
    """
    return server.startswith(("tls://", "https://"))


TLS_SCHEMES = "tls://HOST:PORT or https://HOST"


def where(server: str) -> str | tuple[str, int]:
    """Return the path of a socket, or a host and its port.

    >>> where("tcp://[::1]:6780"), where("tls://10.0.0.7:6780"), where("unix:///run/forebay.sock")
    (('::1', 6780), ('10.0.0.7', 6780), '/run/forebay.sock')
    """
    scheme, found, rest = server.partition("://")
    rest = rest if found else server
    if scheme == "unix" if found else ("/" in server or ":" not in server):
        return rest
    host, _, port = rest.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
    if (found and scheme not in ("tcp", "tls")) or not host or "/" in host or not is_port:
        raise Invalid("server", "HOST:PORT, tls://HOST:PORT or the path of a Unix socket")
    return host.strip("[]"), int(port)


def check_address(server: str) -> None:
    """Raise unless this can be the address of a server.

    >>> check_address("http://queue.example:99999")
    Traceback (most recent call last):
    forebay.core.errors.Invalid: server must be http://HOST:PORT, or https://HOST
    """
    if not is_web(server):
        where(server)
        return
    try:
        parts = urlsplit(server)
        is_right = bool(parts.hostname) and parts.port != 0  # ``port`` raises if it is none
    except ValueError:
        is_right = False
    if not is_right:
        raise Invalid("server", "http://HOST:PORT, or https://HOST")


def shown(server: str) -> str:
    """Return an address without its password, for messages.

    >>> shown("https://ada:secret@queue.example"), shown("127.0.0.1:6780")
    ('https://queue.example', '127.0.0.1:6780')
    """
    scheme, found, rest = server.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found else server


def stranger(server: str, begins: bytes) -> NotForebay:
    """Return the error for what answers over TCP, or a Unix socket, and is not a Forebay server.

    >>> print(stranger("tcp://127.0.0.1:8080", b"HTTP/1.1 400 Bad Request"))
    127.0.0.1:8080 speaks HTTP: use http://127.0.0.1:8080, or the TCP port (6780 by default)
    """
    place = shown(server).removeprefix("tcp://").removeprefix("tls://")
    http = "https" if is_tls(server) else "http"
    tls = f"tls://{place}, or https://{place}"
    for first, name, url in (b"HTTP/", "HTTP", f"{http}://{place}"), (TLS_ALERT, "TLS", tls):
        if begins.startswith(first):
            use = "" if isinstance(where(server), str) else f"{url}, or "
            return NotForebay(f"{place} speaks {name}: use {use}{TCP_PORT}")
    answered = said(begins) or "nothing"
    return NotForebay(
        f"what listens on {place} is no Forebay server, and answered {answered}; use {TCP_PORT}"
    )


def not_web(server: str) -> NotForebay:
    """Return the error for what answers at a URL, and does not speak HTTP.

    >>> print(not_web("http://127.0.0.1:6780"))
    127.0.0.1:6780 does not speak HTTP: use 127.0.0.1:6780 if that is TCP, or the HTTP port (8080 by default)
    """
    place = _place(server)
    return NotForebay(f"{place} does not speak HTTP: use {place} if that is TCP, or {HTTP_PORT}")


def not_secure(server: str) -> NotForebay:
    """Return the error for what answers at an https:// or tls:// address, and does not speak TLS.

    >>> print(not_secure("https://10.0.0.7:80"))
    10.0.0.7:80 does not speak TLS: use http://10.0.0.7:80 if that is HTTP, or 10.0.0.7:80 if it is TCP
    """
    place, url = _place(server), shown(server).partition("://")[2].rstrip("/")
    return NotForebay(
        f"{place} does not speak TLS: use http://{url} if that is HTTP, or {place} if it is TCP"
    )


def _place(server: str) -> str:
    """Return the host and port of a URL.

    >>> _place("http://ada:secret@queue.example:8080/some/path")
    'queue.example:8080'
    """
    return shown(server).partition("://")[2].partition("/")[0]


TLS_ALERT = b"\x15\x03"
"""What a server that expects TLS answers to anything else."""
TCP_PORT = "the TCP port (6780 by default)"
HTTP_PORT = "the HTTP port (8080 by default)"


def lost(server: str, why: object, *, is_new: bool = False) -> Disconnected:
    """Return the error for a connection that was lost while a request was on its way.

    ``is_new`` says that nothing was answered on it: many servers that miss a certificate just close it.
    """
    hint = "; if it asks clients for a certificate, name its files as cert and key"
    return Disconnected(
        f"the connection to {shown(server)} was lost: {why}{hint if is_new and is_tls(server) else ''}"
    )


def silent(server: str, timeout_s: float) -> Disconnected:
    """Return the error for a server that does not respond in time."""
    return Disconnected(f"the server at {shown(server)} did not answer within {timeout_s:g} s")


def given_up(server: str, quiet_s: float) -> str:
    """Return why requests fail whose connection this client gave up."""
    return f"this client gave up its connection to {shown(server)}: nothing came on it for {quiet_s:.3g} s"


def missing(server: str, error: Exception) -> Disconnected:
    """Return the error for a server that can't be reached, with what to do about it."""
    why = str(error) or "it does not answer"
    if not is_web(server) and isinstance(where(server), str) and "/" not in server:
        why += f"; a host has a port behind it, as in {server}:6780"
    return Disconnected(f"no server at {shown(server)} ({why}); start one with: forebay serve", sent=False)
