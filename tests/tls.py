"""Certificates made for a test, and connections that use them."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forebay.cli.issue import Pair, make_ca, make_client, make_server
from tests.serving import Raw, Reply

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=30)
DAYS = 2
SERVER = ("localhost", "127.0.0.1")


class Authority:
    """A CA, and files with certificates of it."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._pair = make_ca(LONG_AGO, 365, name)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._pair.certificate)

    def server(self, name: str = "server", hosts: tuple[str, ...] = SERVER) -> tuple[Path, Path]:
        """Certificate and key of a server; those of the same name are replaced."""
        return self._written(name, make_server(self._pair, hosts, NOW, DAYS))

    def client(self, name: str, made_at: datetime = NOW) -> ssl.SSLContext:
        """What a client with this name connects with."""
        files = self._written("client", make_client(self._pair, name, made_at, DAYS))
        context = self.stranger()
        context.load_cert_chain(*files)
        return context

    def stranger(self) -> ssl.SSLContext:
        """What a client without a certificate connects with."""
        return ssl.create_default_context(cafile=str(self.file))

    def _written(self, name: str, pair: Pair) -> tuple[Path, Path]:
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        return certificate, key


class Secured(Raw):
    """A connection over TLS, byte by byte if need be."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, port = address.rpartition(":")
        super().__init__((host, int(port)))
        plain = self.socket
        try:
            self.socket: ssl.SSLSocket = context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    @property
    def certificate(self) -> bytes:
        """What the server showed."""
        shown = self.socket.getpeercert(binary_form=True)
        assert shown
        return shown

    def get(self, path: str, *headers: str) -> tuple[int, Reply]:
        """Ask over HTTP: the status and the JSON of the answer."""
        return self.request("GET", path, b"", *headers)

    def request(self, method: str, path: str, body: bytes, *headers: str) -> tuple[int, Reply]:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)
        return self.response()

    def response(self) -> tuple[int, Reply]:
        while (end := self._got.find(b"\r\n\r\n")) < 0:
            self._more()
        head = self._exactly(end + 4).decode("latin-1").lower()
        length = next(
            (int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length:")),
            0,
        )
        body = self._exactly(length)
        return int(head.split()[1]), json.loads(body) if body else {}


def refuses(address: str, context: ssl.SSLContext) -> bool:
    """Whether a server ends the handshake, or the connection right after it: TLS 1.3 tells a client then."""
    try:
        with Secured(address, context) as client:
            client.send(b"\n")
            return not client.socket.recv(1)
    except (ssl.SSLError, ConnectionError):
        return True
