"""One POST to a URL that a client chose: its addresses are checked first, and it is cut off at a deadline.

The host is resolved once. Every address must be public (unless private ones are allowed), and the connection
goes to one of these very addresses: a name that resolves differently a moment later (DNS rebinding) gains
nothing. Blocking calls run in a daemon thread that shutdown need not wait for.
"""

import io
import ipaddress
import socket
import ssl
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Mapping
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from forebay.core.errors import Invalid

URL_CHARS_MAX = 2_048
CONNECT_S = 10.0
"""Timeout of each step: connect, TLS handshake, each send and receive."""
ANSWER_BYTES_MAX = 4_096
"""Bytes read of a response body."""
RECEIVED_BYTES_MAX = 64 * 1024
"""Bytes received in all: of a response, and of every 100 (Continue) before it."""
SAID_CHARS_MAX = 200
"""Characters of the response that are kept with a failure."""
ADDRESSES_MAX = 4
"""Addresses of a host that are tried."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 ones, in networks with IPv6 only."""
NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")
]
"""Networks that some Python versions take for global: carrier-grade NAT, IETF protocols, 6to4 relays,
benchmarks."""
_PORTS = {"http": 80, "https": 443}

T = TypeVar("T")


class Refused(Exception):
    """An address that may not be called, or can't be."""


class Target(Struct, frozen=True):
    """Parts of a URL."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def name(self) -> str:
        """Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Parse the URL of a webhook; raise Invalid unless it is an absolute http or https URL.

    >>> target_of("https://[2001:db8::1]:8443?a=1")
    Target(scheme='https', host='2001:db8::1', port=8443, path='/?a=1')
    >>> target_of("http://example.com").name
    'example.com'
    """
    accepted = f"http:// or https://, a host and a path, of at most {URL_CHARS_MAX} ASCII characters"
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid("url", accepted)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Invalid("url", accepted) from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise Invalid("url", accepted)
    if "@" in parts.netloc or parts.fragment:
        raise Invalid("url", "without a user, a password and a fragment")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


def is_public(address: str) -> bool:
    """Return whether an address is reachable from anywhere on the internet.

    >>> [is_public(each) for each in ("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822")]
    [True, True, True]
    >>> [is_public(each) for each in ("10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::", "224.0.0.1")]
    [False, False, False, False]
    >>> [is_public(each) for each in ("100.64.0.1", "192.0.0.9", "192.88.99.1", "198.19.255.255")]
    [False, False, False, False]
    """
    found = ipaddress.ip_address(address)
    inner = _inner(found) if isinstance(found, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    if found.is_multicast or found.is_reserved or (isinstance(found, IPv6Address) and found.is_site_local):
        return False
    return found.is_global and not any(found in each for each in NOT_PUBLIC)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, or None."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def addresses_of(target: Target, private: bool) -> list[tuple[int, str]]:
    """Return family and address of a host; raise Refused unless all may be called. Blocks."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused(f"{target.host} can't be found: {error}") from None
    addresses = list(dict.fromkeys((int(family), str(place[0])) for family, _, _, _, place in found))
    if not private and not all(is_public(address) for _, address in addresses):
        # The message does not say which address: internal DNS must not leak to clients.
        raise Refused(
            f"{target.host} is not a public address, or has one that is not; webhooks_private allows it"
        )
    return addresses[:ADDRESSES_MAX]


class Letter(Struct, frozen=True):
    """A request to post."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    private: bool = False
    """Whether it may go to an address that is not public."""


class Sending(Protocol):
    """A POST under way."""

    outcome: "Future[str | None]"
    """The error; None if the endpoint accepted it."""

    def cut(self) -> None:
        """End the POST, whatever its thread is doing."""


Send = Callable[[AbstractEventLoop, Letter], Sending]


class Calling:
    """A call of a URL from a thread of its own, which can be cut off from outside of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def cut(self) -> None:
        """End the call, whatever its thread is doing."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                _shut(self._socket)

    def _connected(self, target: Target, private: bool) -> socket.socket:
        problem: OSError | None = None
        for family, address in addresses_of(target, private):
            plain = self._hold(socket.socket(family, socket.SOCK_STREAM))
            try:
                plain.connect((address, target.port))
            except OSError as error:
                problem = error
                continue
            if target.scheme == "http":
                return plain
            wrapped = _tls().wrap_socket(plain, server_hostname=target.host, do_handshake_on_connect=False)
            self._hold(wrapped)
            wrapped.do_handshake()
            return wrapped
        raise problem or Refused(f"{target.host} has no address")

    def _hold(self, made: socket.socket) -> socket.socket:
        """Make this the socket that ``cut`` shuts down."""
        with self._lock:
            before, self._socket = self._socket, made
            # A TLS socket took over the plain one; any other is left from a failed connect.
            if before is not None and not isinstance(made, ssl.SSLSocket):
                before.close()
            # ``cut`` may have run before there was a socket to shut down.
            if self._is_cut:
                raise Refused("it was cut off")
        made.settimeout(CONNECT_S)
        return made

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    @staticmethod
    def _send(
        connected: socket.socket, method: str, target: Target, headers: Mapping[str, str], body: bytes | None
    ) -> "Answer":
        """Send a request, and return the head of the answer. What is received in all is bounded."""
        connection = HTTPConnection(target.host, target.port)
        connection.sock = connected
        connection.response_class = Answer
        connection.putrequest(method, target.path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": target.name, "Connection": "close", **headers}.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        assert isinstance(answer, Answer)
        return answer


class Posting(Calling):
    """A POST under way in a thread of its own."""

    def __init__(self, loop: AbstractEventLoop, letter: Letter) -> None:
        super().__init__()
        self._letter = letter
        self.outcome: Future[str | None] = in_thread(loop, self._run)

    def _run(self) -> str | None:
        letter = self._letter
        try:
            target = target_of(letter.url)
            connected = self._connected(target, letter.private)
            with self._send(connected, "POST", target, letter.headers, letter.body) as answer:
                said = answer.read(ANSWER_BYTES_MAX).decode(errors="replace")[:SAID_CHARS_MAX]
        except Refused as error:
            return str(error)
        except Invalid as error:
            return error.message
        except (OSError, HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self._close()
        return None if 200 <= answer.status < 300 else f"status {answer.status}: {said}"


class Answer(HTTPResponse):
    """A response of bounded size: http.client would read 100s (Continue) before it without end."""

    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self._bounded = _Bounded(self.fp.detach())
        self.fp = io.BufferedReader(self._bounded)

    def allow(self, count: int) -> None:
        """Let so many bytes more be received than RECEIVED_BYTES_MAX."""
        self._bounded.left += count


class _Bounded(io.RawIOBase):
    """Received bytes, up to RECEIVED_BYTES_MAX unless more are allowed."""

    def __init__(self, received: io.RawIOBase) -> None:
        self._received = received
        self.left = RECEIVED_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self.left:
            raise HTTPException(f"the answer is longer than {RECEIVED_BYTES_MAX} bytes")
        count: int | None = self._received.readinto(memoryview(buffer)[: self.left])
        self.left -= count or 0
        return count

    def close(self) -> None:
        self._received.close()
        super().close()


def _shut(connected: socket.socket) -> None:
    """Shut a connection down to unblock its thread. TLS state belongs to the thread, so it is left alone."""
    try:
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:
        return  # not connected, or not any more


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def in_thread(loop: AbstractEventLoop, run: Callable[[], T], name: str = "forebay-webhook") -> "Future[T]":
    """Call ``run`` in a daemon thread; return a future of its result. The process may exit before it ends."""
    future: Future[T] = loop.create_future()

    def done(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = (run(), None)
        except Exception as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(done, *outcome)
        except RuntimeError:
            return  # the loop is closed: nothing waits for the result

    threading.Thread(target=work, name=name, daemon=True).start()
    return future
