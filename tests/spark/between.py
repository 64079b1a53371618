"""What stands between the sink and the server: it sees every request and answer, and can hold one back.

So a kill can be aimed at an instant, such as that at which a batch is adopted and nobody knows yet.
"""

import contextlib
import socket
import threading
from collections import Counter, deque
from typing import Any

import msgspec

from tests.serving import framed

Address = tuple[str, int]


class Passing:
    """A request on its way, and its answer."""

    def __init__(self, request: dict[str, Any], port: int) -> None:
        self.request = request
        self.port = port
        """Where the client's end of the connection is: tells which process it is."""
        self.answer: dict[str, Any] | None = None
        self.is_answered = threading.Event()
        self._may_go = threading.Event()
        self._goes_on = True

    @property
    def batch(self) -> int:
        batch: int = self.request["batch"]
        return batch

    def let_go(self, *, goes_on: bool = True) -> None:
        """Let what was caught go on, or nowhere."""
        self._goes_on = goes_on
        self._may_go.set()

    def wait(self) -> bool:
        """Whether it goes on, once that is known."""
        self._may_go.wait()
        return self._goes_on


class Catch:
    """Holds back the first request, or answer, that is meant."""

    def __init__(self, cmd: str, nth: int, is_answered: bool, batch: int | None) -> None:
        self._meant = (cmd, is_answered)
        self._batch = batch
        self._left = nth
        self._caught: Passing | None = None
        self._is_caught = threading.Event()

    def meets(self, passing: Passing) -> bool:
        """Whether this is the one."""
        if (passing.request["cmd"], passing.answer is not None) != self._meant:
            return False
        if self._batch is not None and passing.batch != self._batch:
            return False
        self._left -= 1
        if self._left:
            return False
        self._caught = passing
        self._is_caught.set()
        return True

    def wait(self, seconds: float) -> Passing | None:
        self._is_caught.wait(seconds)
        return self._caught


class Between:
    """Listens at ``address`` and passes everything on to a server, which may come and go."""

    def __init__(self, server: Address) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._catches: list[Catch] = []
        self.adopted: Counter[tuple[str, int]] = Counter()
        """How often a batch of a query was adopted, not counting answers that say it had been."""
        self.repeated = 0
        """Adoptions that were answered as the first had been."""
        self.refused: Counter[str] = Counter()
        """Requests that were refused, by command."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def catch(self, cmd: str, nth: int = 1, *, is_answered: bool = False, batch: int | None = None) -> Catch:
        """Hold back the nth request from now on, or its answer."""
        found = Catch(cmd, nth, is_answered, batch)
        with self._lock:
            self._catches.append(found)
        return found

    def close(self) -> None:
        # A listener that is only closed goes on accepting in the thread that waits.
        _shut(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                _shut(each, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """One connection, until both sides are done."""
        with self._lock:
            self._open |= {client, server}
        waiting: deque[Passing] = deque()
        back = threading.Thread(target=self._back, args=(client, server, waiting), daemon=True)
        back.start()
        try:
            self._there(client, server, waiting)
        except (OSError, EOFError):
            # What was held back while the client died is still to be answered.
            _shut(server, socket.SHUT_WR)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _there(self, client: socket.socket, server: socket.socket, waiting: deque[Passing]) -> None:
        port = client.getpeername()[1]
        while True:
            body = _frame(client)
            passing = Passing(_decoded(body), port)
            if self._holds_back(passing) and not passing.wait():
                continue
            waiting.append(passing)
            server.sendall(framed(body))

    def _back(self, client: socket.socket, server: socket.socket, waiting: deque[Passing]) -> None:
        is_there = True
        try:
            while True:
                body = _frame(server)
                passing = waiting.popleft()
                passing.answer = _decoded(body)
                self._count(passing)
                passing.is_answered.set()
                if self._holds_back(passing) and not passing.wait():
                    continue
                is_there = is_there and _sent(client, body)
        except (OSError, EOFError):
            _shut(client, socket.SHUT_RDWR)

    def _holds_back(self, passing: Passing) -> bool:
        with self._lock:
            for each in self._catches:
                if each.meets(passing):
                    self._catches.remove(each)
                    return True
        return False

    def _count(self, passing: Passing) -> None:
        request, answer = passing.request, passing.answer
        assert answer is not None
        with self._lock:
            if not answer["ok"]:
                self.refused[request["cmd"]] += 1
            elif request["cmd"] == "ADOPT":
                if answer.get("repeated"):
                    self.repeated += 1
                else:
                    self.adopted[request["query"], request["batch"]] += 1


def _frame(connection: socket.socket) -> bytes:
    return _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        if not chunk:
            raise EOFError
        found += chunk
    return bytes(found)


def _decoded(body: bytes) -> dict[str, Any]:
    decode = msgspec.json.decode if body[:1] == b"{" else msgspec.msgpack.decode
    found: dict[str, Any] = decode(body)
    return found


def _sent(connection: socket.socket, body: bytes) -> bool:
    try:
        connection.sendall(framed(body))
    except OSError:
        return False
    return True


def _shut(connection: socket.socket, how: int) -> None:
    """Let both ends see that nothing more comes."""
    with contextlib.suppress(OSError):
        connection.shutdown(how)
