"""Figures of the server: metrics, their history, workers, health and settings."""

from typing import Any

import pytest

from tests.server.flashq_http.talking import Door, DoorServer

NAMES = (
    "flashq_queue_depth",
    "flashq_jobs_processed_total",
    "flashq_job_duration_seconds_bucket",
    "flashq_active_workers",
    "flashq_memory_bytes",
    "flashq_jobs_pushed_total",
    "flashq_jobs_completed_total",
    "flashq_jobs_failed_total",
    "flashq_jobs_current",
    "flashq_throughput_per_second",
    "flashq_latency_ms",
    "flashq_queue_jobs",
    "flashq_workers_active",
)


def test_metrics_have_the_names_of_the_paper_and_of_the_code(door: Door, queue: str) -> None:
    job = door.push_job(queue, 1)
    door.pull_job(queue)
    door.data("POST", f"/jobs/{job}/ack", {})
    answer = door.ask("GET", "/metrics/prometheus")
    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in NAMES:
        assert any(line.startswith((f"{name} ", f"{name}{{")) for line in lines), name
    assert f'flashq_jobs_processed_total{{queue="{queue}",status="completed"}} 1.0' in lines
    for bound in ("0.1", "1.0", "+Inf"):
        assert any(f'le="{bound}",queue="{queue}"' in line for line in lines), bound


def test_totals_count_what_happened() -> None:
    with DoorServer("--store", "memory:") as server, Door(server.door) as door:
        for n in range(3):
            door.push_job("q", n, max_attempts=1)
        done, failed = (door.pull_job("q")["id"] for _ in range(2))
        door.data("POST", f"/jobs/{done}/ack", {})
        door.data("POST", f"/jobs/{failed}/fail", {})
        found = door.data("GET", "/metrics")
        assert (found["total_pushed"], found["total_completed"], found["total_failed"]) == (3, 1, 1)
        assert [(each["name"], each["pending"], each["dlq"]) for each in found["queues"]] == [("q", 1, 1)]
        stats = {"queued": 1, "processing": 0, "delayed": 0, "dlq": 1, "completed": 1}
        assert door.data("GET", "/stats") == stats
        history = door.data("GET", "/metrics/history")
        fields = {"timestamp", "queued", "processing", "completed", "failed", "throughput", "latency_ms"}
        assert set(history[0]) == fields


def test_a_worker_is_listed_once_it_says_so(door: Door) -> None:
    said = {"queues": ["a", "b"], "concurrency": 4, "jobs_processed": 9}
    assert door.data("POST", "/workers/w-1/heartbeat", said) is None
    (found,) = (each for each in door.data("GET", "/workers") if each["id"] == "w-1")
    assert {name: found[name] for name in said} == said
    assert isinstance(found["last_heartbeat"], int)
    assert door.refusal("POST", f"/workers/{'w' * 257}/heartbeat", said)[0] == 400
    assert door.refusal("POST", "/workers/a%0aERROR%20forged/heartbeat", said)[0] == 400


@pytest.mark.parametrize(
    ("field", "most", "past"),
    [
        ("queues", ["q" * 256], ["q" * 257]),
        ("queues", ["q"] * 1_000, ["q"] * 1_001),
        ("concurrency", (1 << 53) - 1, 1 << 53),
        ("jobs_processed", (1 << 53) - 1, 1 << 53),
        ("concurrency", 0, -1),
        ("queues", ["\u00e9"], ["\ud800"]),
    ],
)
def test_what_a_worker_says_of_itself_has_a_bound(door: Door, field: str, most: Any, past: Any) -> None:
    said: dict[str, Any] = {"queues": []}
    assert door.data("POST", "/workers/w-2/heartbeat", {**said, field: most}) is None
    assert door.refusal("POST", "/workers/w-3/heartbeat", {**said, field: past})[0] == 400
    assert "w-3" not in [each["id"] for each in door.data("GET", "/workers")]


def test_the_server_tells_of_itself(served: DoorServer, door: Door) -> None:
    assert door.data("GET", "/health")["status"] == "healthy"
    assert door.ask("HEAD", "/health").status == 200
    settings = door.data("GET", "/settings")
    assert settings["http_port"] == int(served.door.rpartition(":")[2])
    assert settings["tcp_port"] == int(served.door_tcp.rpartition(":")[2])
    assert (settings["auth_enabled"], settings["auth_token_count"]) == (False, 0)
    assert door.data("GET", "/system/metrics")["process_id"] == served.pid
    (node,) = door.data("GET", "/cluster/nodes")
    assert node["is_leader"] is True


def test_what_can_not_be_set_over_http_is_refused_by_name(door: Door) -> None:
    status, error = door.refusal("POST", "/server/shutdown")
    assert (status, "SIGTERM" in error) == (501, True)
    assert door.refusal("POST", "/sqlite/restore")[0] == 501
    assert door.data("GET", "/health")["status"] == "healthy"
