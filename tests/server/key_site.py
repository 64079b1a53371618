"""A web site in a thread of the test, which answers whatever it is told to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.serving import PATIENCE_S


class Site(ThreadingHTTPServer):
    """Answers every GET as it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda _: None
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/keys"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the other side may have gone."""

    def gives(self, body: bytes, status: int = 200, **headers: str) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)

        self.answer = answer


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Site)
        self.server.asked += 1
        self.server.answer(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def running() -> Iterator[Site]:
    with Site() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(PATIENCE_S)
