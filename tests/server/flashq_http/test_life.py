"""The lives of jobs over HTTP."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.flashq_http.talking import Door, DoorServer
from tests.serving import PATIENCE_S

ROOT = Path(__file__).parents[3]


def test_a_job_is_pushed_pulled_and_acknowledged(door: Door, queue: str) -> None:
    job = door.data("POST", f"/queues/{queue}/jobs", {"data": {"n": 12345678901234567890}, "priority": 3})
    assert (job["queue"], job["data"], job["priority"]) == (queue, {"n": 12345678901234567890}, 3)
    assert door.data("GET", f"/queues/{queue}/count") == 1
    (pulled,) = door.data("GET", f"/queues/{queue}/jobs", count=5)
    assert pulled["id"] == job["id"]
    assert door.state_of(job["id"]) == "active"
    assert door.data("POST", f"/jobs/{job['id']}/ack", {"result": {"done": True}}) is None
    shown = door.data("GET", f"/jobs/{job['id']}")
    assert (shown["id"], shown["state"], shown["result"]) == (job["id"], "completed", {"done": True})
    assert shown["job"]["id"] == job["id"]
    assert door.data("GET", f"/jobs/{job['id']}/result") == {"done": True}
    assert door.data("GET", f"/jobs/{job['id']}/wait") == {"done": True}
    assert door.data("GET", f"/queues/{queue}/jobs", timeout=0) == []


def test_jobs_are_pushed_and_acknowledged_in_batches(door: Door, queue: str) -> None:
    ids = door.data("POST", f"/queues/{queue}/jobs/batch", {"jobs": [{"data": n} for n in range(5)]})
    assert len(ids) == 5
    jobs = door.data("GET", f"/queues/{queue}/jobs", count=10)
    assert [each["id"] for each in jobs] == ids
    assert door.data("POST", "/jobs/ack-batch", {"ids": ids[:3]}) == 3
    assert door.data("POST", "/jobs/ack/batch", {"ids": ids}) == 2
    assert door.data("POST", "/jobs/ack-batch", {"ids": []}) == 0


def test_a_job_that_failed_is_a_dead_letter_and_retried(door: Door, queue: str) -> None:
    first, second = (door.push_job(queue, n, max_attempts=1) for n in range(2))
    for job in (first, second):
        door.pull_job(queue)
        assert door.data("POST", f"/jobs/{job}/fail", {"error": "no"}) is None
    assert {each["id"] for each in door.data("GET", f"/queues/{queue}/dlq", count=100)} == {first, second}
    assert door.refusal("GET", f"/jobs/{first}/wait") == (409, f"Job {first} failed: no")
    assert door.data("POST", f"/queues/{queue}/dlq/{first}/retry") == 1
    assert door.state_of(first) == "waiting"
    assert door.data("POST", f"/queues/{queue}/dlq/retry", {"job_id": second}) == 1
    door.data("POST", f"/jobs/{second}/discard")
    assert door.data("POST", f"/queues/{queue}/dlq/retry") == 1
    door.data("POST", f"/jobs/{second}/discard")
    assert door.data("DELETE", f"/queues/{queue}/dlq") == 1


def test_what_is_known_of_a_job_is_told(door: Door, queue: str) -> None:
    job = door.push_job(queue, "x")
    door.pull_job(queue)
    assert door.data("GET", f"/jobs/{job}/progress") == [0, None]
    door.data("POST", f"/jobs/{job}/progress", {"progress": 150, "message": "half"})
    assert door.data("GET", f"/jobs/{job}/progress") == [100, "half"]
    door.data("POST", f"/jobs/{job}/logs", {"message": "began", "level": "warn"})
    (line,) = door.data("GET", f"/jobs/{job}/logs")
    assert (line["message"], line["level"]) == ("began", "warn")
    door.data("POST", f"/jobs/{job}/partial", {"data": {"token": "a"}, "index": 0})
    assert door.data("POST", f"/jobs/{job}/heartbeat") is None


def test_a_job_that_waits_is_changed(door: Door, queue: str) -> None:
    job = door.push_job(queue, 1)
    door.data("POST", f"/jobs/{job}/priority", {"priority": 9})
    door.data("POST", f"/jobs/{job}/update", {"data": 2})
    door.data("PATCH", f"/jobs/{job}", {"data": 3})
    shown = door.data("GET", f"/jobs/{job}")
    assert (shown["priority"], shown["data"]) == (9, 3)
    door.data("POST", f"/jobs/{job}/move-to-delayed", {"delay": 60_000})
    assert door.state_of(job) == "delayed"
    door.data("POST", f"/jobs/{job}/promote")
    door.data("POST", f"/jobs/{job}/delay", {"delay": 60_000})
    door.data("POST", f"/jobs/{job}/cancel")
    assert door.state_of(job) == "unknown"
    assert door.data("GET", f"/jobs/{job}") == {"job": None, "state": "unknown", "result": None}


def test_an_unknown_job_is_not_found(door: Door) -> None:
    for action in ("ack", "fail", "cancel", "promote", "discard", "heartbeat"):
        assert door.refusal("POST", f"/jobs/999/{action}") == (404, "Job 999 not found")
    assert door.data("GET", "/jobs/999/state") == "unknown"
    assert door.data("GET", "/jobs/999/result") is None
    assert door.data("GET", "/jobs/custom/nobody") == {"job": None, "state": "unknown"}


def test_a_custom_id_names_a_job_and_a_unique_key_keeps_others_out(door: Door, queue: str) -> None:
    job = door.push_job(queue, 1, job_id=f"{queue}/a", unique_key="k")
    assert door.data("GET", f"/jobs/custom/{queue}%2Fa")["job"]["id"] == job
    refused = door.refusal("POST", f"/queues/{queue}/jobs", {"data": 2, "unique_key": "k"})
    assert refused == (409, "Duplicate job with key: k")


def test_a_body_can_not_lead_elsewhere_than_its_path(door: Door, queue: str) -> None:
    job = door.push_job(queue, 1, cmd="OBLITERATE", reqId=7)
    body = {"data": 2, "queue": "elsewhere", "id": 5}
    assert door.data("POST", f"/queues/{queue}/jobs", body)["queue"] == queue
    door.data("POST", f"/jobs/{job}/cancel", {"id": 5})
    assert door.state_of(job) == "unknown"


def test_queues_are_paused_limited_drained_and_removed(door: Door, queue: str) -> None:
    door.push_job(queue, 1)
    door.data("POST", f"/queues/{queue}/pause")
    assert door.data("GET", f"/queues/{queue}/paused") is True
    assert door.data("GET", f"/queues/{queue}/jobs", timeout=0) == []
    door.data("POST", f"/queues/{queue}/resume")
    door.data("POST", f"/queues/{queue}/ratelimit", {"limit": 50})
    door.data("POST", f"/queues/{queue}/concurrency", {"limit": 2})
    (found,) = (each for each in door.data("GET", "/queues") if each["name"] == queue)
    assert (found["rate_limit"], found["concurrency_limit"], found["pending"]) == (50, 2, 1)
    door.data("DELETE", f"/queues/{queue}/rate-limit")
    door.data("DELETE", f"/queues/{queue}/concurrency")
    counts = door.data("GET", f"/queues/{queue}/counts")
    assert counts == {"waiting": 1, "active": 0, "delayed": 0, "completed": 0, "failed": 0}
    assert door.data("POST", f"/queues/{queue}/drain") == 1
    door.push_job(queue, 2)
    assert door.data("POST", f"/queues/{queue}/clean", {"grace": 0, "state": "waiting", "limit": 5}) == 1
    door.push_job(queue, 3)
    assert door.data("DELETE", f"/queues/{queue}/obliterate") >= 1
    assert queue not in [each["name"] for each in door.data("GET", "/queues")]


def test_jobs_are_listed_of_one_queue_and_of_all(door: Door, queue: str) -> None:
    ids = [door.push_job(queue, n) for n in range(3)]
    listed = door.data("GET", "/jobs", queue=queue, state="waiting", limit=2)
    assert [each["id"] for each in listed] == [ids[2], ids[1]]
    assert set(ids) <= {each["id"] for each in door.data("GET", "/jobs", limit=1_000)}
    assert door.data("GET", "/jobs", queue=f"{queue}-none") == []


def test_a_flow_waits_for_its_children(door: Door, queue: str) -> None:
    children = [{"queue": queue, "data": n} for n in range(2)]
    flow = door.data("POST", f"/queues/{queue}-p/flow", {"data": "all", "children": children})
    assert door.state_of(flow["parent_id"]) == "waiting-children"
    shown = door.data("GET", f"/jobs/{flow['parent_id']}/children")
    assert [each["id"] for each in shown] == flow["children_ids"]
    for job in door.data("GET", f"/queues/{queue}/jobs", count=2):
        door.data("POST", f"/jobs/{job['id']}/ack", {})
    assert door.pull_job(f"{queue}-p")["id"] == flow["parent_id"]
    body = {"queue": f"{queue}-p", "parent_data": "again", "children": children}
    assert len(door.data("POST", "/flows", body)["children_ids"]) == 2


def test_crons_are_added_listed_and_deleted(door: Door, queue: str) -> None:
    cron = {"queue": queue, "data": {"a": 1}, "schedule": "0 0 * * * *", "priority": 2}
    assert door.data("POST", f"/crons/{queue}", cron) is None
    assert door.data("PUT", f"/crons/{queue}-2", {"queue": queue, "repeat_every": 60_000}) is None
    crons: dict[str, Any] = {each["name"]: each for each in door.data("GET", "/crons")}
    assert (crons[queue]["schedule"], crons[queue]["priority"]) == ("0 0 * * * *", 2)
    assert crons[f"{queue}-2"]["repeat_every"] == 60_000
    assert door.data("DELETE", f"/crons/{queue}") is True
    assert door.data("DELETE", f"/crons/{queue}") is False
    assert door.data("DELETE", f"/crons/{queue}-2") is True


def test_any_command_is_taken_without_an_envelope(door: Door, queue: str) -> None:
    pushed = door.ask("POST", "/api/command", {"cmd": "PUSH", "queue": queue, "data": 1, "reqId": "9"}).json
    assert pushed == {"reqId": "9", "ok": True, "id": pushed["id"]}
    (job,) = door.ask("POST", "/api/command", {"cmd": "PULLB", "queue": queue, "count": 3}).json["jobs"]
    assert job["id"] == pushed["id"]
    failed = door.ask("POST", "/api/command", {"cmd": "ACK", "id": 999})
    assert (failed.status, failed.json) == (404, {"ok": False, "error": "Job 999 not found"})


def test_jobs_pass_between_the_doors(served: DoorServer, door: Door, queue: str) -> None:
    with served.connect_door() as tcp:
        job = door.push_job(queue, [1, 2])
        pulled = tcp.ask({"cmd": "PULL", "queue": queue, "timeout": 0})["job"]
        assert (pulled["id"], pulled["data"]) == (job, [1, 2])
        assert door.data("POST", f"/jobs/{job}/ack", {"result": 3}) is None
        assert tcp.ask({"cmd": "GETRESULT", "id": job})["result"] == 3


def test_all_queues_are_cleared(queue: str) -> None:
    with DoorServer("--store", "memory:") as server, Door(server.door) as door:
        done, dead, _ = (door.push_job(f"{queue}-{n}", n, max_attempts=1) for n in range(3))
        door.pull_job(f"{queue}-0")
        door.data("POST", f"/jobs/{done}/ack", {})
        door.pull_job(f"{queue}-1")
        door.data("POST", f"/jobs/{dead}/fail", {})
        for name in ("clear-completed", "clear-dlq", "clear-queues"):
            assert door.data("POST", f"/server/{name}") == 1
            assert door.data("POST", f"/server/{name}") == 0
        assert set(door.data("GET", "/stats").values()) == {0}


def test_the_page_about_flashq_shows_a_push_and_a_pull_that_work(served: DoorServer) -> None:
    page = (ROOT / "docs" / "FLASHQ.md").read_text()
    (shown,) = re.findall(r"```sh curl\n(.*?)```", page, re.DOTALL)
    answers = []
    for line in shown.replace("localhost:6790", served.door).strip().splitlines():
        asked = [sys.executable, "-m", "tests.curl", *shlex.split(line)[1:]]
        done = subprocess.run(asked, capture_output=True, check=True, timeout=PATIENCE_S, cwd=ROOT)
        answers.append(json.loads(done.stdout))
    pushed, pulled = answers
    assert [each["id"] for each in pulled["data"]] == [pushed["data"]["id"]]
    assert pulled["data"][0]["data"] == {"to": "ada@example.com"}
