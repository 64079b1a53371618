"""Connections to a server, for threads: each request has one for itself while it runs."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from forebay.client.access import NO_ACCESS, Access, tls_problem
from forebay.client.address import is_web, lost, missing, silent, stranger, where
from forebay.client.errors import Disconnected
from forebay.client.outcome import outcome
from forebay.client.reach import Reach
from forebay.core.errors import ForebayError
from forebay.wire.framing import AnswerFrames, Foreign, framed

if TYPE_CHECKING:
    from ssl import SSLContext

Unclaimed = Callable[[bytes], bytes | None]
"""Unused here: a thread always waits for its response."""
CHUNK = 1 << 18
TIMEOUT_S_MAX = 1e6
"""Sockets take no longer timeout."""

sleep = time.sleep
now = time.monotonic


class Link(Protocol):
    """Carries requests to a server, and responses back."""

    def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the response to a request, which may long-poll. Raise the server's error.

        ``timeout_s`` is the timeout of this response, if it differs from the link's.
        """
        ...

    def close(self) -> None: ...


def connect(server: str, timeout_s: float, access: Access = NO_ACCESS) -> Link:
    """Return the link to a server; connections are opened when needed."""
    if is_web(server):
        from forebay.client.web import Web

        return Web(server, timeout_s, access)
    return TcpLink(server, timeout_s, access)


class TcpLink:
    """A server that is reached over TCP, TLS or a Unix socket. Threads may share it."""

    def __init__(self, server: str, timeout_s: float, access: Access = NO_ACCESS) -> None:
        self._server = server
        self._place = where(server)
        self._tls: SSLContext | None = access.tls(server)
        self._greeting = access.greeting()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._is_closed = False
        self._reach = Reach(server)
        self._pid = os.getpid()

    def ask(
        self,
        body: bytes,
        wait_s: float = 0.0,
        unclaimed: Unclaimed | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        try:
            answer = self._ask(body, wait_s, self._timeout_s if timeout_s is None else timeout_s)
        except Disconnected as error:
            self._reach.lose(error)
            raise
        except ForebayError:  # an answer, too
            self._reach.find()
            raise
        self._reach.find()
        return answer

    def _ask(self, body: bytes, wait_s: float, timeout_s: float) -> bytes:
        if self._pid != os.getpid():
            # After a fork, the connections belong to the parent.
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None and _is_gone(connection):
            connection.close()
            connection = None
        is_new = connection is None
        if connection is None:
            connection = self._connected(timeout_s)
        try:
            answer = self._exchange(connection, body, timeout_s + wait_s, is_new)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)
        self._check(answer)
        return answer

    def _check(self, answer: bytes) -> None:
        """Raise if an answer is an error, or none of a Forebay server."""
        try:
            said = outcome(answer)
        except Foreign as error:
            raise stranger(self._server, error.begins) from None
        if not said.ok:
            raise said.problem()

    def _exchange(self, connection: socket.socket, body: bytes, timeout_s: float, is_new: bool) -> bytes:
        """Return the answer to a request. The greeting goes before the first, and is answered before it."""
        awaited = [self._greeting, body] if is_new and self._greeting else [body]
        try:
            connection.settimeout(min(timeout_s, TIMEOUT_S_MAX))
            connection.sendall(b"".join(map(framed, awaited)))
            frames = AnswerFrames()
            while True:
                data = connection.recv(CHUNK)
                if not data:
                    raise lost(self._server, "the server closed it", is_new=is_new)
                for found in frames.feed(data):
                    if len(awaited) == 1:
                        return found
                    self._check(found)
                    del awaited[0]
        except Foreign as error:
            raise stranger(self._server, error.begins) from None
        except TimeoutError:
            raise silent(self._server, timeout_s) from None
        except OSError as error:
            raise tls_problem(self._server, error) or lost(self._server, error, is_new=is_new) from None

    def _connected(self, timeout_s: float) -> socket.socket:
        timeout_s = min(timeout_s, TIMEOUT_S_MAX)
        try:
            if not isinstance(self._place, str):
                connection = socket.create_connection(self._place, timeout_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection if self._tls is None else secured(connection, self._tls, self._place[0])
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(timeout_s)
                connection.connect(self._place)
            except OSError:
                connection.close()
                raise
            return connection
        except (OSError, UnicodeError) as error:
            raise tls_problem(self._server, error) or missing(self._server, error) from None

    def close(self) -> None:
        if self._pid != os.getpid():
            self._is_closed = True
            return
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def secured(connection: socket.socket, tls: "SSLContext", host: str) -> socket.socket:
    """Return a connection over which TLS is spoken; it is closed if that fails."""
    try:
        return tls.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _is_gone(connection: socket.socket) -> bool:
    """Return whether the server has closed an idle connection: a request sent there would be lost."""
    connection.setblocking(False)
    if hasattr(connection, "pending"):  # TLS can't peek
        return _is_over(connection)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_over(connection: socket.socket) -> bool:
    """Return whether anything came on an idle connection over TLS: that can only be its end."""
    from ssl import SSLWantReadError

    try:
        connection.recv(1)
    except SSLWantReadError:
        return False
    except OSError:
        return True
    return True
