"""What becomes of a job after its end, and of one whose worker is not heard of: as the job itself says."""

from typing import Any

import pytest

from tests.server.flashq.serving import FlashqServer, Talk

GONE = {"ok": True, "job": None, "state": "unknown"}
LONG_MS = 30_000
"""Longer than anything here takes."""


def finish(talk: Talk, job: Any, **fields: Any) -> None:
    talk.do("PULLB", queue="q", count=100, timeout=0)
    talk.do("ACK", id=job, **fields)


def passes(talk: Talk, ms: int) -> None:
    """The server waits for so long, and answers that nothing came."""
    assert talk.do("PULL", queue="empty", timeout=ms)["job"] is None


@pytest.mark.parametrize("name", ["remove_on_complete", "removeOnComplete"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_job_that_is_removed_on_completion_is_not_known_then(talk: Talk, name: str, batch: bool) -> None:
    if batch:
        (job,) = talk.do("PUSHB", queue="q", jobs=[{"data": 1, name: True}])["ids"]
    else:
        job = talk.push("q", 1, **{name: True})
    other = talk.push("q", 2)
    assert talk.do("GETJOB", id=job)["job"]["remove_on_complete"] is True
    finish(talk, job, result={"n": 1})
    talk.do("ACK", id=other)
    assert talk.ask("GETJOB", id=job) == GONE
    assert talk.state(other) == "completed"
    assert talk.do("GETJOBCOUNTS", queue="q")["completed"] == 1
    assert [each["id"] for each in talk.do("GETJOBS", queue="q", state="completed")["jobs"]] == [other]
    assert [each["id"] for each in talk.do("GETJOBS", queue="q")["jobs"]] == [other]


def test_who_waits_for_a_job_that_is_removed_gets_its_result(server: FlashqServer, talk: Talk) -> None:
    job = talk.push("q", 1, remove_on_complete=True)
    talk.send({"cmd": "WAITJOB", "id": job, "timeout": LONG_MS})
    with server.talk() as other:
        finish(other, job, result={"n": 1})
    assert talk.receive() == {"ok": True, "result": {"n": 1}}
    assert talk.do("GETRESULT", id=job)["result"] == {"n": 1}


@pytest.mark.parametrize(
    ("cmd", "fields"),
    [
        ("CANCEL", {}),
        ("DRAIN", {}),
        ("CLEAN", {"state": "waiting", "grace": 0}),
        ("CLEAN", {"state": "failed", "grace": 0}),
        ("PURGEDLQ", {}),
        ("PULL", {"timeout": 0}),
    ],
)
def test_the_custom_id_of_a_job_that_is_gone_is_free(talk: Talk, cmd: str, fields: dict[str, Any]) -> None:
    """A push with it is a new job: nothing is confirmed that nobody will ever get."""
    job = talk.push("q", 1, job_id="mine", max_attempts=1, **({"ttl": 1} if cmd == "PULL" else {}))
    if cmd == "PURGEDLQ" or fields.get("state") == "failed":
        talk.pull("q")
        talk.do("FAIL", id=job)
        assert talk.push("q", 2, job_id="mine") == job, "a dead letter has its id"
    passes(talk, 20)
    talk.do(cmd, **({"id": job} if cmd == "CANCEL" else {"queue": "q"}), **fields)
    again = talk.push("q", 3, job_id="mine")
    assert again != job
    assert talk.push("q", 4, job_id="mine") == again
    assert talk.do("GETJOBBYCUSTOMID", job_id="mine")["job"]["id"] == again
    assert talk.pull("q")["data"] == 3


@pytest.mark.parametrize("name", ["remove_on_fail", "removeOnFail"])
def test_a_job_that_is_removed_on_failure_is_no_dead_letter(talk: Talk, name: str) -> None:
    job = talk.push("q", 1, max_attempts=2, **{name: True})
    talk.pull("q")
    talk.do("FAIL", id=job, error="first")
    assert talk.state(job) == "waiting"
    talk.pull("q")
    talk.do("FAIL", id=job, error="second")
    assert talk.ask("GETJOB", id=job) == GONE
    assert talk.do("DLQ", queue="q")["jobs"] == []
    assert talk.ask("WAITJOB", id=job) == {"ok": False, "error": f"Job {job} failed"}


def test_the_custom_id_of_a_job_that_was_removed_is_free(line: Talk) -> None:
    job = line.push("q", 1, job_id="mine", remove_on_complete=True)
    finish(line, job)
    assert line.do("GETJOBBYCUSTOMID", job_id="mine")["job"] is None
    assert line.push("q", 2, job_id="mine") != job


@pytest.mark.parametrize("name", ["keep_completed_age", "keepCompletedAge"])
def test_a_completed_job_is_kept_as_long_as_it_says(line: Talk, name: str) -> None:
    short, long = line.push("q", 1, **{name: 20}), line.push("q", 2, **{name: LONG_MS})
    finish(line, short)
    line.do("ACK", id=long)
    passes(line, 20)
    assert [line.state(short), line.state(long)] == ["unknown", "completed"]


@pytest.mark.parametrize("name", ["keep_completed_count", "keepCompletedCount"])
def test_of_completed_jobs_as_many_are_kept_as_they_say(line: Talk, name: str) -> None:
    jobs = [line.push("q", number, **{name: 2}) for number in range(4)]
    other = line.push("q", "other")
    line.do("PULLB", queue="q", count=9, timeout=0)
    for job in (*jobs, other):
        line.do("ACK", id=job)
    assert [line.state(each) for each in jobs] == ["unknown", "unknown", "completed", "completed"]
    assert line.state(other) == "completed"


@pytest.mark.parametrize("state", ["completed", "waiting", "failed"])
def test_a_clean_removes_no_more_than_its_limit(talk: Talk, state: str) -> None:
    ids = [talk.push("q", number, max_attempts=1) for number in range(5)]
    if state != "waiting":
        talk.do("PULLB", queue="q", count=5, timeout=0)
    for job in ids:
        if state != "waiting":
            talk.do("ACK" if state == "completed" else "FAIL", id=job)
    assert talk.do("CLEAN", queue="q", grace=0, state=state, limit=2)["count"] == 2
    assert talk.do("GETJOBCOUNTS", queue="q")[state] == 3
    left = talk.do("GETJOBS", queue="q", state=state)["jobs"]
    assert sorted(each["id"] for each in left) == ids[2:], "the oldest went"
    assert talk.do("CLEAN", queue="q", grace=0, state=state)["count"] == 3
    assert talk.do("GETJOBCOUNTS", queue="q")[state] == 0


def test_a_queue_that_is_made_here_keeps_so_many_completed_jobs(server: FlashqServer, line: Talk) -> None:
    line.push("q", 1)
    line.do("PULL", queue="empty", timeout=0)
    with server.connect() as native:
        for name in ("q", "empty"):
            found = native.ask({"cmd": "QUEUE", "queue": name})
            assert found["options"]["completed_retention_count"] == 50_000
        native.ask({"cmd": "PUSH", "queue": "native", "messages": [{"payload": 1}]})
        line.push("native", 2)
        found = native.ask({"cmd": "QUEUE", "queue": "native"})
        assert found["options"]["completed_retention_count"] == 0, "it was made elsewhere"


# Stalls.


@pytest.mark.parametrize("name", ["stall_timeout", "stallTimeout"])
def test_a_job_that_stalls_is_counted_delivered_again_and_dead_the_third_time(line: Talk, name: str) -> None:
    job = line.push("q", 1, max_attempts=1, **{name: 20})
    for stalls in range(3):
        pulled = line.do("PULL", queue="q", timeout=LONG_MS)["job"]
        assert (pulled["id"], pulled["stall_count"], pulled["attempts"]) == (job, stalls, 0)
        assert pulled["stall_timeout"] == 20
        assert line.do("GETJOB", id=job)["job"]["stall_count"] in (stalls, stalls + 1)
    passes(line, 20)
    (dead,) = line.do("DLQ", queue="q")["jobs"]
    assert (dead["id"], dead["stall_count"], dead["attempts"]) == (job, 3, 0)
    assert dead["started_at"] == pulled["started_at"]


def test_a_heartbeat_keeps_a_job_from_stalling(line: Talk) -> None:
    job = line.push("q", 1, stall_timeout=4_000)
    line.pull("q")
    for _ in range(5):
        passes(line, 900)
        assert line.ask("HEARTBEAT", id=job) == {"ok": True}
    assert line.state(job) == "active"
