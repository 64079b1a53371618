"""A server with flashQ's doors open, and a client that knows its envelope."""

from typing import Any

from tests.server.http.talking import Answer, Http
from tests.serving import Raw, Server

DOORS = ("--flashq", "127.0.0.1:0", "--flashq-http", "127.0.0.1:0")


class DoorServer(Server):
    """A server with both doors open."""

    def __init__(self, *flags: str, **more: bool) -> None:
        super().__init__(*DOORS, *flags, **more)

    def __enter__(self) -> "DoorServer":
        super().__enter__()
        return self

    def _ready(self) -> dict[str, Any]:
        ready = super()._ready()
        self.door: str = ready["flashq_http"]
        self.door_tcp: str = ready["flashq"]
        return ready

    def connect_door(self) -> Raw:
        """Connect to the door for TCP."""
        host, _, port = self.door_tcp.rpartition(":")
        return Raw((host, int(port)))

    @property
    def log(self) -> str:
        return self._read_log()


class Door(Http):
    """One connection to the door."""

    def __enter__(self) -> "Door":
        return self

    def data(self, method: str, path: str, body: object = None, **query: Any) -> Any:
        """Ask what must work, and return the data of the envelope."""
        answer = self.ask(method, path, body, **query)
        assert answer.status == 200, answer
        assert set(answer.json) == {"ok", "data"}, answer
        assert answer.json["ok"] is True
        return answer.json["data"]

    def refusal(self, method: str, path: str, body: object = None, **query: Any) -> tuple[int, str]:
        """Ask what is refused, and return the status and the error of the envelope."""
        return refusal(self.ask(method, path, body, **query))

    def push_job(self, queue: str, data: Any = None, **options: Any) -> int:
        found: int = self.data("POST", f"/queues/{queue}/jobs", {"data": data, **options})["id"]
        return found

    def pull_job(self, queue: str) -> Any:
        (job,) = self.data("GET", f"/queues/{queue}/jobs", timeout=0)
        return job

    def state_of(self, job: int) -> str:
        found: str = self.data("GET", f"/jobs/{job}/state")
        return found


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.status >= 400, answer
    assert set(answer.json) == {"ok", "error"}, answer
    assert answer.json["ok"] is False
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert isinstance(error, str)
    assert error
    return answer.status, error
