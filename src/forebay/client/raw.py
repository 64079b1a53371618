"""A small blocking client of the TCP and Unix socket listeners: one request, one response."""

import socket
from typing import Any, TypeVar

import msgspec

from forebay.client.access import NO_ACCESS, Access, tls_problem
from forebay.client.address import stranger, where as where
from forebay.client.errors import Disconnected as Disconnected, Refused as Refused
from forebay.client.outcome import Outcome
from forebay.client.sync.connection import secured
from forebay.wire.framing import BEGINS_BYTES, FRAME_BYTES_MAX, HEAD

CHUNK = 1 << 20


_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_packed_outcome = msgspec.msgpack.Decoder(Outcome).decode
T = TypeVar("T")


def _fine(answer: T, outcome: Outcome) -> T:
    """Return the response, unless it is an error."""
    if not outcome.ok:
        try:
            refusal = outcome.refusal
        except msgspec.ValidationError as error:
            raise Disconnected(f"what answers there is no Forebay server: {error}") from None
        raise Refused(refusal.message, refusal.code, refusal.details)
    return answer


class Wire:
    """A connection. ``server`` is HOST:PORT, with or without tcp://, or the path of a Unix socket.

    A path has a slash or no colon, and may follow unix://. With tls:// the connection is protected.
    """

    def __init__(self, server: str, *, timeout_s: float = 30.0, access: Access = NO_ACCESS) -> None:
        """``access`` is taken as it is, without the environment."""
        self._server, self._timeout_s = server, timeout_s
        self._tenant = {"tenant": access.tenant} if access.tenant else {}
        greeting = access.greeting()
        self._is_greeted = not greeting
        """Whether the answer to the token has come: it is the first of all answers."""
        try:
            self._socket = _connect(server, timeout_s, access)
        except (OSError, UnicodeError) as error:
            refused = tls_problem(server, error)
            if refused is not None:
                raise refused from None
            raise Disconnected(f"no server at {server} ({error}); start one with: forebay serve") from error
        if greeting:
            self._send(greeting, 0)

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Return the response to a command. Raises ``Refused`` if it is an error."""
        reply: dict[str, Any] = msgspec.json.decode(self.ask_raw(cmd, **fields))
        return reply

    def ask_raw(self, cmd: str, **fields: Any) -> bytes:
        """Return the response as the bytes received, so that payloads stay as they were written."""
        body = msgspec.json.encode({"cmd": cmd, **self._tenant, **fields})
        self._send(body, fields.get("wait_ms", 0))
        answer = bytes(self._receive())
        return _fine(answer, _decode_outcome(answer))

    def ask_packed(self, cmd: str, kind: type[T], **fields: Any) -> T:
        """Return the response to a command in MessagePack; its bytes are not copied."""
        self.send_packed(cmd, **fields)
        return self.receive_packed(kind)

    def send_packed(self, cmd: str, **fields: Any) -> None:
        """Send a command without waiting: responses come in the order of the commands."""
        self._send(msgspec.msgpack.encode({"cmd": cmd, **self._tenant, **fields}), 0)

    def receive_packed(self, kind: type[T]) -> T:
        answer = self._receive()
        _fine(answer, _decode_packed_outcome(answer))
        return msgspec.msgpack.decode(answer, type=kind)

    def _send(self, body: bytes, wait_ms: int) -> None:
        try:
            self._socket.settimeout(self._timeout_s + wait_ms / 1000)
            head = len(body).to_bytes(HEAD, "big")
            if len(body) < CHUNK:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except OSError as error:
            raise Disconnected(f"the connection was lost: {error}") from error

    def _receive(self) -> bytearray:
        if not self._is_greeted:
            answer = self._receive_one()
            try:
                _fine(answer, _decode_outcome(answer))
            except msgspec.DecodeError:
                raise stranger(self._server, bytes(answer[:BEGINS_BYTES])) from None
            except Refused:
                self._socket.close()  # the answers behind it belong to nobody
                raise
            self._is_greeted = True
        return self._receive_one()

    def _receive_one(self) -> bytearray:
        try:
            head = self._exactly(HEAD)
            length = int.from_bytes(head, "big")
            if length > FRAME_BYTES_MAX:
                raise stranger(self._server, bytes(head) + self._socket.recv(BEGINS_BYTES))
            return self._exactly(length)
        except OSError as error:
            refused = tls_problem(self._server, error)
            if refused is not None:
                raise refused from None
            raise Disconnected(f"the connection was lost: {error}") from error

    def _exactly(self, count: int) -> bytearray:
        received = bytearray(count)
        view, at = memoryview(received), 0
        while at < count:
            size = self._socket.recv_into(view[at:])
            if not size:
                raise ConnectionResetError("the server closed it")
            at += size
        return received

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(server: str, timeout_s: float, access: Access) -> socket.socket:
    place, tls = where(server), access.tls(server)
    if isinstance(place, str):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(place)
        except OSError:
            connection.close()
            raise
        return connection
    connection = socket.create_connection(place, timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection if tls is None else secured(connection, tls, place[0])
