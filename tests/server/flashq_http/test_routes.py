"""Every route of flashQ's HTTP API exists, and answers in its envelope."""

import pytest

from tests.server.flashq_http.talking import Door, DoorServer
from tests.server.http.talking import Http

NAMED = """
GET /queues
POST /queues/{q}/jobs
GET /queues/{q}/jobs
POST /queues/{q}/pause
POST /queues/{q}/resume
GET /queues/{q}/dlq
POST /queues/{q}/dlq/retry
POST /queues/{q}/rate-limit
DELETE /queues/{q}/rate-limit
POST /queues/{q}/concurrency
DELETE /queues/{q}/concurrency
GET /jobs
GET /jobs/{id}
POST /jobs/{id}/ack
POST /jobs/{id}/fail
POST /jobs/{id}/cancel
POST /jobs/{id}/progress
GET /jobs/{id}/progress
GET /jobs/{id}/result
GET /crons
POST /crons/{name}
DELETE /crons/{name}
GET /stats
GET /metrics
GET /metrics/history
GET /metrics/prometheus
GET /workers
POST /workers/{id}/heartbeat
GET /webhooks
POST /webhooks
DELETE /webhooks/{id}
POST /webhooks/incoming/{q}
GET /settings
POST /server/shutdown
POST /server/restart
GET /health
GET /cluster/nodes
GET /queues/{q}/paused
GET /queues/{q}/counts
GET /queues/{q}/count
DELETE /queues/{q}/dlq
POST /queues/{q}/drain
POST /queues/{q}/clean
POST /queues/{q}/flow
DELETE /queues/{q}/obliterate
GET /jobs/{id}/state
GET /jobs/{id}/logs
GET /jobs/{id}/children
GET /jobs/{id}/wait
POST /jobs/{id}/logs
POST /jobs/{id}/priority
POST /jobs/{id}/move-to-delayed
POST /jobs/{id}/promote
POST /jobs/{id}/discard
POST /jobs/{id}/update
POST /jobs/{id}/partial
POST /jobs/ack-batch
POST /settings/auth
POST /settings/queue-defaults
POST /settings/cleanup
POST /settings/cleanup/run
POST /server/reset
POST /server/clear-queues
POST /server/clear-dlq
POST /server/clear-completed
POST /server/reset-metrics
GET /system/metrics
GET /debug/memory
GET /sqlite/settings
POST /sqlite/settings
GET /sqlite/stats
GET /sqlite/export
GET /sqlite/download
POST /sqlite/restore
POST /sqlite/async-writer
GET /s3/settings
POST /s3/settings
POST /s3/test
POST /s3/backup
GET /s3/backups
POST /s3/restore
GET /docs
POST /api/command
POST /queues/{q}/jobs/batch
POST /jobs/ack/batch
GET /jobs/custom/{id}
PATCH /jobs/{id}
POST /jobs/{id}/delay
POST /queues/{q}/ratelimit
DELETE /queues/{q}/ratelimit
POST /jobs/{id}/heartbeat
PUT /crons/{name}
POST /flows
POST /queues/{q}/dlq/{id}/retry
"""
"""Routes of flashQ, and from /api/command on those that only its clients know."""
ROUTES = [tuple(line.split()) for line in NAMED.split("\n") if line]
PAGES = ("/metrics/prometheus", "/docs")
REFUSED = (
    "/server/shutdown",
    "/server/restart",
    "/server/reset",
    "/server/reset-metrics",
    "/sqlite/",
    "/s3/",
    "/settings/auth",
    "/settings/queue-defaults",
    "/settings/cleanup",
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_exists_and_answers_in_the_envelope(
    door: Door, queue: str, method: str, path: str
) -> None:
    path = path.replace("{q}", queue).replace("{id}", "1").replace("{name}", queue)
    waits = path.endswith(("/jobs", "/wait")) and method == "GET"
    answer = door.ask(method, f"{path}?timeout=0" if waits else path)
    if path in PAGES:
        assert answer.status == 200
        assert answer.body
        return
    if path.startswith(REFUSED) and not path.endswith("/run"):
        assert answer.status == 501, answer
    assert answer.status not in (404, 405) or "not found" in answer.json["error"], answer
    if answer.status == 200:
        assert answer.json["ok"] is True, answer
        assert "data" in answer.json
    else:
        assert set(answer.json) == {"ok", "error"}, answer
        assert answer.json["ok"] is False


STREAMS = ("/events", "/events/q", "/events/job/1?events=progress,completed", "/queues/q/events")


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_is_no_place_to_post_to(door: Door, path: str) -> None:
    assert door.refusal("POST", path) == (405, "POST is not supported here, only GET")


def test_the_documentation_names_every_route(door: Door) -> None:
    page = door.ask("GET", "/docs").body.decode()
    for _, path in ROUTES:
        if path not in PAGES:
            parts = [part for part in path.split("/") if part and not part.startswith("{")]
            assert "/".join(parts[-1:]) in page, path


def test_an_unknown_path_and_a_wrong_method_are_refused(door: Door) -> None:
    assert door.refusal("GET", "/nowhere")[0] == 404
    assert door.refusal("GET", "/v1/queues")[0] == 404
    answer = door.ask("PUT", "/queues")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


BAD = [
    ("POST", "/queues/{q}/jobs", b"{"),
    ("POST", "/queues/{q}/jobs", b"[]"),
    ("POST", "/queues/{q}/jobs", b"{}"),
    ("POST", "/queues/{q}/jobs", b'{"data": 1, "priority": "high"}'),
    ("POST", "/queues/{q}/jobs", b'{"data": 1, "delay": -1}'),
    ("POST", "/queues/{q}/jobs", b'{"data": 1, "tags": 5}'),
    ("POST", "/queues/{q}/jobs", b'{"data": "\xff"}'),
    ("POST", "/queues/{q}/jobs", b'{"data": ' + b"[" * 500 + b"]" * 500 + b"}"),
    ("POST", "/queues/{q}/jobs/batch", b'{"jobs": [{"data": 1}, 5]}'),
    ("POST", "/queues/{q}/jobs/batch", b'{"jobs": {"data": 1}}'),
    ("POST", "/queues/{q}/rate-limit", b'{"limit": "many"}'),
    ("POST", "/queues/{q}/concurrency", b"{}"),
    ("POST", "/queues/{q}/clean", b'{"grace": 0, "state": "nonsense"}'),
    ("GET", "/queues/{q}/jobs?count=many", None),
    ("GET", "/queues/{q}/jobs?timeout=1.5", None),
    ("POST", "/jobs/abc/ack", b"{}"),
    ("POST", "/jobs/1/progress", b'{"progress": "half"}'),
    ("POST", "/jobs/ack-batch", b'{"ids": 5}'),
    ("POST", "/crons/{q}", b'{"queue": "{q}", "data": 1, "schedule": 5}'),
    ("POST", "/workers/w/heartbeat", b'{"queues": "q"}'),
    ("POST", "/webhooks", b'{"url": 5, "events": []}'),
    ("POST", "/webhooks", b'{"url": "http://127.0.0.1:1/", "events": ["nonsense"]}'),
    ("POST", "/webhooks/incoming/{q}", b"{"),
    ("POST", "/api/command", b'{"cmd": "NONSENSE"}'),
    ("POST", "/api/command", b"nonsense"),
    ("GET", "/events/job/abc", None),
    ("GET", "/events/job/1?events=nonsense", None),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    door: Door, queue: str, method: str, path: str, body: bytes | None
) -> None:
    if body is not None:
        body = body.replace(b"{q}", queue.encode())
    kind = {} if body is None else {"content-type": "application/json"}
    answer = door.send(method, path.replace("{q}", queue), body, kind)
    assert answer.status == 400, answer
    assert set(answer.json) == {"ok", "error"}, answer
    assert queue not in [each["name"] for each in door.data("GET", "/queues")]
    assert queue not in [each["name"] for each in door.data("GET", "/crons")]


def test_a_name_that_is_none_has_flashqs_error(door: Door) -> None:
    assert door.refusal("POST", "/queues/a%20b/jobs", {"data": 1}) == (
        400,
        "Invalid characters in queue name",
    )
    long = door.refusal("POST", f"/queues/{'a' * 257}/jobs", {"data": 1})
    assert long == (400, "Queue name must be 1-256 characters")


def test_what_is_not_http_is_refused_in_the_envelope(served: DoorServer) -> None:
    with Http(served.door) as http:
        http.connection.connect()
        assert http.connection.sock is not None
        http.connection.sock.sendall(b"nonsense\r\n\r\n")
        said = b""
        while chunk := http.connection.sock.recv(1 << 16):
            said += chunk
    assert said.startswith(b"HTTP/1.1 400")
    assert said.endswith(b'{"ok":false,"error":"request must be HTTP/1.1, well-formed"}')


def test_a_page_of_another_origin_pulls_nothing(door: Door, queue: str) -> None:
    door.push_job(queue, 1)
    for headers in ({"origin": "https://elsewhere.example"}, {"sec-fetch-site": "cross-site"}):
        answer = door.ask("GET", f"/queues/{queue}/jobs", headers=headers, timeout=0)
        assert answer.status == 403
        assert answer.json["ok"] is False
    assert door.data("GET", f"/queues/{queue}/counts")["waiting"] == 1
