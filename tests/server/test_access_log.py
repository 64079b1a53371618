"""The log says what was asked, by whom, how long it took and what came of it, and nothing of messages."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.server.access_log import AccessLog, Asked
from tests.cli.running import PATIENCE_S, command, environment
from tests.serving import Raw, lined

SECRET = "hunter2"


class Logged:
    """A server whose log is read when it has stopped."""

    def __init__(self, process: "subprocess.Popen[str]", ready: dict[str, Any], log: Path) -> None:
        self._process, self._log = process, log
        self.http: str = ready["http"]
        self.unix: str = ready["unix"]
        self.flashq_http: str = ready["flashq_http"]
        host, _, port = ready["tcp"].rpartition(":")
        self.tcp = (host, int(port))

    def stop(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self.text

    @property
    def text(self) -> str:
        return self._log.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Lines about requests, without times and ports."""
        found = [
            each for each in map(json.loads, self.text.splitlines()) if each["logger"] == "forebay.access"
        ]
        for each in found:
            assert each.pop("at") > 0
            if "ms" in each:
                assert each.pop("ms") >= 0
            if "peer" in each:
                assert each.pop("peer").startswith("127.0.0.1:")
        return found


@contextmanager
def logging(home: Path, *flags: str) -> Iterator[Logged]:
    log = home / "log"
    given = [
        "--store",
        "memory:",
        "--tcp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--unix",
        str(home / "unix"),
    ]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command("serve", *given, *flags),
            cwd=home,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if readable else ""
        assert line, log.read_text()
        yield Logged(process, json.loads(line), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


JSON = ("--log-format", "json")
DEBUG = (*JSON, "--log-level", "debug")


def test_at_debug_every_request_has_a_line_with_all_that_is_asked_about_it(
    tmp_path: Path,
) -> None:
    with logging(tmp_path, *DEBUG) as server:
        with Raw(server.tcp) as client, Raw(server.unix) as other:
            client.ask({"cmd": "PUSH", "queue": "q", "messages": [1, 2, SECRET], "reqId": 7})
            other.ask({"cmd": "POP", "queue": "q", "count": 2, "reqId": "mine"})
            client.ask({"cmd": "MESSAGE", "id": 1 << 40})
        httpx.post(
            f"http://{server.http}/v1/queues/q/pop", json={"count": 5}, headers={"x-request-id": "web-1"}
        )
        server.stop()
    shared = {"level": "debug", "logger": "forebay.access", "message": "request", "tenant": "default"}
    assert server.lines == [
        {**shared, "command": "PUSH", "queue": "q", "count": 3, "outcome": "ok", "by": "tcp", "id": 7},
        {**shared, "command": "POP", "queue": "q", "count": 2, "outcome": "ok", "by": "unix", "id": "mine"},
        {**shared, "command": "MESSAGE", "outcome": "not_found", "by": "tcp"},
        {**shared, "command": "POP", "queue": "q", "count": 1, "outcome": "ok", "by": "http", "id": "web-1"},
    ]
    assert SECRET not in server.text


ACTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cmd": "QUEUE", "queue": "q", "options": {"max_attempts": 5}}, {"options": '{"max_attempts":5}'}),
    ({"cmd": "PAUSE", "queue": "q"}, {}),
    ({"cmd": "RESUME", "queue": "q"}, {}),
    ({"cmd": "GROUPPUT", "queue": "q", "group": "g"}, {"group": "g"}),
    ({"cmd": "SEEK", "queue": "q", "group": "g", "to": "new"}, {"group": "g", "to": "new"}),
    ({"cmd": "GROUPDELETE", "queue": "q", "group": "g"}, {"group": "g"}),
    ({"cmd": "DRAIN", "queue": "q"}, {"group": "default", "count": 0}),
    ({"cmd": "PURGE", "queue": "q"}, {"group": "default", "count": 0}),
    ({"cmd": "REQUEUE", "queue": "q"}, {"group": "default", "count": 0}),
    (
        {"cmd": "BULK", "queue": "q", "action": "move", "to": "p", "create": True, "task": "send"},
        {"action": "move", "group": "default", "to": "p", "task": "send", "count": 0},
    ),
    (
        {
            "cmd": "CRONPUT",
            "name": "c",
            "queue": "q",
            "schedule": "0 3 * * *",
            "message": {"payload": SECRET},
        },
        {"name": "c"},
    ),
    ({"cmd": "CRONDELETE", "name": "c"}, {"name": "c"}),
    ({"cmd": "LIMITPUT", "name": "l", "concurrency": 5}, {"name": "l"}),
    ({"cmd": "LIMITDELETE", "name": "l"}, {"name": "l"}),
    ({"cmd": "WEBHOOKPUT", "url": f"http://127.0.0.1:1/?token={SECRET}", "secret": SECRET * 4}, {}),
    ({"cmd": "QUEUEDELETE", "queue": "q"}, {}),
    ({"cmd": "HOLD"}, {"held": True}),
    ({"cmd": "HOLD", "held": False}, {}),
]


def test_administrative_acts_are_told_of_with_what_they_are_about_and_nothing_else_is(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON, "--webhooks-private", "on") as server:
        with Raw(server.tcp) as client:
            for request, _ in ACTS:
                assert client.ask({**request, "reqId": 1})["ok"], request
                if request["cmd"] != "HOLD":  # a held server would fail, which is told of
                    assert client.ask({"cmd": "PUSH", "queue": "other", "payload": 1})["ok"]
                client.ask({"cmd": "QUEUES"})
                client.ask({"cmd": "QUEUE", "queue": "other"})
                client.ask({"cmd": "BULK", "queue": "other", "action": "purge", "dry_run": True})
        httpx.post(f"http://{server.http}/v1/queues/other/pause", json={}, headers={"x-request-id": "me"})
        httpx.post(f"http://{server.http}/v1/commands", json={"cmd": "RESUME", "queue": "other"})
        server.stop()
    assert all(
        (each["level"], each["message"], each["outcome"]) == ("info", "act", "ok") for each in server.lines
    )
    *over_tcp, paused, resumed = server.lines
    plain = ("level", "logger", "message", "outcome", "tenant", "by", "id")
    shown = [{name: value for name, value in each.items() if name not in plain} for each in over_tcp]
    wanted = [
        {
            "command": request["cmd"],
            **({"queue": request["queue"]} if "queue" in request else {}),
            **about,
        }
        for request, about in ACTS
    ]
    assert [_without_count(each) for each in shown] == [_without_count(each) for each in wanted]
    assert (paused["command"], paused["queue"], paused["by"], paused["id"]) == (
        "PAUSE",
        "other",
        "http",
        "me",
    )
    assert (resumed["command"], resumed["queue"], resumed["by"]) == ("RESUME", "other", "http")
    assert SECRET not in server.text


def _without_count(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "count"}


def test_a_client_that_is_wrong_all_the_time_has_a_line_and_a_count(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON) as server:
        with Raw(server.tcp) as client:
            wrong = {"cmd": "PUSH", "queue": "q", "payload": SECRET, "priority": SECRET}
            client.send(*([wrong] * 500))
            for _ in range(500):
                assert not client.receive()["ok"]
        server.stop()
    first, *others = server.lines
    assert (first["level"], first["message"], first["outcome"]) == ("info", "refused", "invalid")
    assert SECRET not in server.text
    assert len(others) < 100


def test_what_is_not_there_and_what_is_so_no_more_is_told_of_at_debug_only(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON) as server:
        with Raw(server.tcp) as client:
            assert not client.ask({"cmd": "MESSAGE", "id": 1 << 40})["ok"]
            assert not client.ask({"cmd": "ACK", "lease": "0" * 39})["ok"]
        server.stop()
    assert server.lines == []


def test_a_failure_of_the_server_is_a_warning(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON) as server:
        with Raw(server.tcp) as client:
            client.ask({"cmd": "HOLD"})
            assert client.ask({"cmd": "PUSH", "queue": "q", "payload": 1})["error"]["code"] == "busy"
        server.stop()
    (failed,) = (each for each in server.lines if each["message"] != "act")
    assert (failed["level"], failed["message"], failed["outcome"]) == ("warning", "failed", "busy")
    assert (failed["command"], failed["queue"]) == ("PUSH", "q")


def test_a_slow_request_is_a_warning(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON, "--slow-ms", "1") as server:
        with Raw(server.tcp) as client:
            assert client.ask({"cmd": "PUSH", "queue": "q", "messages": ["x" * 100] * 100_000})["ok"]
        server.stop()
    (slow,) = server.lines
    assert (slow["level"], slow["message"], slow["command"]) == ("warning", "slow", "PUSH")
    assert (slow["queue"], slow["count"], slow["outcome"]) == ("q", 100_000, "ok")


class Waiting:
    wait_ms = 10_000


class Loop:
    """Calls what is to be called later when it is told to."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_later(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        self.later.append(partial(call, *arguments))

    def go_on(self) -> None:
        later, self.later = self.later, []
        for each in later:
            each()


def asked(**given: Any) -> Asked:
    return Asked("POP", "tcp", "default", **given)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{each.levelname} {each.getMessage()}" for each in caplog.records]


def test_the_time_that_a_request_waits_on_purpose_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forebay.access")
    access = AccessLog(Loop(), slow_ms=1_000)  # type: ignore[arg-type]
    access.tell(asked(request=Waiting(), ms=10_999))
    access.tell(asked(ms=999))
    assert said(caplog) == []
    access.tell(asked(request=Waiting(), ms=11_000))
    assert said(caplog) == ["WARNING slow"]


def test_lines_that_a_client_can_cause_at_will_are_written_once_a_second_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "forebay.access")
    loop = Loop()
    access = AccessLog(loop)  # type: ignore[arg-type]
    for _ in range(3):
        access.tell(asked(outcome="busy"))
        access.tell(asked(outcome="invalid"))
    assert said(caplog) == ["WARNING failed", "INFO refused"]
    loop.go_on()
    assert said(caplog)[2:] == ["WARNING failed, more of the kind", "INFO refused, more of the kind"]
    assert [each.fields["more"] for each in caplog.records[2:]] == [2, 2]  # type: ignore[attr-defined]
    access.tell(asked(outcome="busy"))
    assert said(caplog)[4:] == ["WARNING failed"]
    loop.go_on()
    assert len(caplog.records) == 5


def test_text_of_a_client_ends_no_line(tmp_path: Path) -> None:
    with logging(tmp_path, "--log-level", "debug") as server:
        with Raw(server.tcp) as client:
            client.send(lined({"cmd": "PUSH", "queue": "a\nb c", "payload": 1}))
            client.receive_line()
        server.stop()
    (line,) = (each for each in server.text.splitlines() if "forebay.access" in each)
    assert ' queue="a\\nb c" ' in line


def test_over_flashqs_http_acts_mistakes_and_failures_are_told_of(tmp_path: Path) -> None:
    with logging(tmp_path, *JSON, "--flashq-http", "127.0.0.1:0", "--webhooks-private", "on") as server:
        with Raw(server.tcp) as client, httpx.Client(base_url=f"http://{server.flashq_http}") as web:
            data = {"data": SECRET}
            assert web.post("/queues/q/jobs", json=data).status_code == 200
            assert web.post("/queues/q/pause", headers={"x-request-id": "me"}).status_code == 200
            hook = {"url": f"http://127.0.0.1:1/?token={SECRET}", "events": ["*"]}
            assert web.post("/webhooks", json=hook).status_code == 200
            assert web.delete("/queues/q/obliterate").status_code == 200
            assert web.post("/queues/q/jobs", json={**data, "priority": SECRET}).status_code == 400
            assert web.get("/nope").status_code == 404
            assert web.put("/queues/q/pause").status_code == 405
            client.ask({"cmd": "HOLD"})
            assert web.post("/queues/q/jobs", json=data).status_code == 503
        server.stop()
    names = ("message", "command", "path", "queue", "field", "outcome", "id")
    lines = [each for each in server.lines if each["by"] == "flashq_http"]
    assert lines[0].pop("id") == "me"
    assert all(each.pop("id") for each in lines[1:])
    assert [{name: line[name] for name in names if name in line} for line in lines] == [
        {"message": "act", "command": "PAUSE", "queue": "q", "outcome": "ok"},
        {"message": "act", "command": "WEBHOOKPUT", "path": "POST /webhooks", "outcome": "ok"},
        {"message": "act", "command": "OBLITERATE", "queue": "q", "outcome": "ok"},
        {"message": "refused", "command": "PUSH", "queue": "q", "field": "priority", "outcome": "invalid"},
        {
            "message": "refused",
            "command": "-",
            "path": "PUT /queues/{queue}/pause",
            "queue": "q",
            "outcome": "unsupported",
        },
        {"message": "failed", "command": "PUSH", "queue": "q", "outcome": "busy"},
    ]
    assert SECRET not in server.text


def test_over_flashqs_http_every_request_is_told_of_at_debug_and_its_token_never(tmp_path: Path) -> None:
    flags = ("--flashq-http", "127.0.0.1:0", "--flashq-tokens", SECRET)
    with logging(tmp_path, *DEBUG, *flags) as server:
        with httpx.Client(base_url=f"http://{server.flashq_http}") as web:
            assert web.get(f"/queues?token={SECRET}").status_code == 401
            web.headers["authorization"] = f"Bearer {SECRET}"
            for path in ("/queues", "/health", "/metrics/prometheus"):
                assert web.get(path).status_code == 200
            assert web.get("/no/such%0athing").status_code == 404
        server.stop()
    assert [
        (each["message"], each["command"], each.get("path"), each["outcome"]) for each in server.lines
    ] == [
        ("refused", "-", "GET /queues", "denied"),
        ("request", "LISTQUEUES", None, "ok"),
        ("request", "-", "GET /health", "ok"),
        ("request", "-", "GET /metrics/prometheus", "ok"),
        ("request", "-", "GET /no/such\nthing", "not_found"),
    ]
    assert SECRET not in server.text


def test_at_debug_pages_streams_and_what_is_not_there_are_told_of(tmp_path: Path) -> None:
    with logging(tmp_path, *DEBUG) as server:
        with httpx.Client(base_url=f"http://{server.http}") as web:
            assert web.get("/v1/nowhere").status_code == 404
            assert web.get("/metrics").status_code == 200
            assert web.get("/v1/queues/a%0a/listen").status_code == 400
            assert web.patch(f"/v1/kv/{SECRET}").status_code == 405
            assert web.get("/v1/stats", headers={"x-request-id": "me"}).status_code == 200
        server.stop()
    assert [
        (each["message"], each["command"], each.get("path"), each["outcome"]) for each in server.lines
    ] == [
        ("request", "-", "GET /v1/nowhere", "not_found"),
        ("request", "-", "GET /metrics", "ok"),
        ("refused", "-", "GET /v1/queues/{queue}/listen", "invalid"),
        ("refused", "-", "PATCH /v1/kv/{key}", "unsupported"),
        ("request", "STATS", None, "ok"),
    ]
    assert SECRET not in server.text


@pytest.mark.parametrize("packs", [False, True])
def test_a_request_that_can_not_be_decoded_is_told_of_by_what_can_be_read_of_it(
    packs: bool, tmp_path: Path
) -> None:
    wrong: list[dict[str, Any]] = [
        {"cmd": "PUSH", "queue": "q", "payload": SECRET, "priority": SECRET, "reqId": 7},
        {"cmd": "POP", "queue": 5, "counts": 1},
        {"cmd": SECRET, "queue": "q"},
    ]
    with logging(tmp_path, *JSON) as server:
        with Raw(server.tcp) as client:
            for each in wrong:
                assert not (client.ask_packed if packs else client.ask)(each)["ok"]
        server.stop()
    names = ("command", "queue", "field", "outcome", "id")
    assert [{name: line[name] for name in names if name in line} for line in server.lines] == [
        {"command": "PUSH", "queue": "q", "field": "priority", "outcome": "invalid", "id": 7},
        {"command": "POP", "field": "queue", "outcome": "invalid"},
        {"command": "-", "queue": "q", "field": "cmd", "outcome": "invalid"},
    ]
    assert SECRET not in server.text


def test_over_http_a_request_of_tcp_that_can_not_be_decoded_is_told_of_in_the_same_way(
    tmp_path: Path,
) -> None:
    with logging(tmp_path, *JSON) as server:
        for path, body in (
            ("/v1/commands", {"cmd": "POP", "queue": "q", "count": SECRET}),
            ("/v1/queues/q/pop", {"count": SECRET}),
        ):
            assert httpx.post(f"http://{server.http}{path}", json=body).status_code == 400
        server.stop()
    first, *more = [
        (each["command"], each["queue"], each["field"]) for each in server.lines if "queue" in each
    ]
    assert first == ("POP", "q", "count")
    assert not more, "the second is one of the same kind"
    assert SECRET not in server.text


def test_mistakes_with_one_command_do_not_hide_those_with_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forebay.access")
    loop = Loop()
    access = AccessLog(loop)  # type: ignore[arg-type]
    for name in ("POP", "POP", "ACK", "POP"):
        access.tell(Asked(name, "tcp", "default", outcome="invalid"))
    loop.go_on()
    told: list[dict[str, Any]] = [each.fields for each in caplog.records]  # type: ignore[attr-defined]
    assert [(each["command"], each.get("more")) for each in told] == [
        ("POP", None),
        ("ACK", None),
        ("POP", 2),
    ]


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_frame_that_can_not_be_read_is_a_mistake_of_the_client(level: str, tmp_path: Path) -> None:
    with logging(tmp_path, *JSON, "--log-level", level) as server:
        with Raw(server.tcp) as client:
            client.send_frame(b'{"cmd":')
            assert not client.receive()["ok"]
        server.stop()
    (line,) = server.lines
    assert (line["message"], line["command"], line["outcome"]) == ("refused", "-", "invalid")
