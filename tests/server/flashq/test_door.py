"""What clients of flashQ rely on, beyond the recorded exchanges."""

import json
from typing import Any

import msgspec
import pytest

from tests.server.flashq.serving import FlashqServer, Talk
from tests.serving import Raw

NOWHERE = "no-such-queue"


@pytest.mark.parametrize(
    ("cmd", "fields", "answer"),
    [
        ("OBLITERATE", {}, {"count": 0}),
        ("COUNT", {}, {"count": 0}),
        ("GETJOBS", {}, {"jobs": [], "total": 0}),
        ("GETJOBCOUNTS", {}, {"waiting": 0, "active": 0, "delayed": 0, "completed": 0, "failed": 0}),
        ("DLQ", {}, {"jobs": []}),
        ("DRAIN", {}, {"count": 0}),
        ("RETRYDLQ", {}, {"ids": [0]}),
        ("RETRYDLQ", {"id": 5}, {"ids": [0]}),
        ("PURGEDLQ", {}, {"count": 0}),
        ("CLEAN", {"grace": 0, "state": "waiting"}, {"count": 0}),
        ("ISPAUSED", {}, {"paused": False}),
        ("RESUME", {}, {}),
        ("RATELIMITCLEAR", {}, {}),
        ("CLEARCONCURRENCY", {}, {}),
    ],
)
def test_a_queue_that_does_not_exist_is_empty(talk: Talk, cmd: str, fields: Any, answer: Any) -> None:
    assert talk.ask(cmd, queue=NOWHERE, **fields) == {"ok": True, **answer}
    assert talk.do("LISTQUEUES")["queues"] == []


@pytest.mark.parametrize(
    ("cmd", "answer"),
    [
        ("GETJOB", {"ok": True, "job": None, "state": "unknown"}),
        ("GETSTATE", {"ok": True, "id": 7, "state": "unknown"}),
        ("GETRESULT", {"ok": True, "id": 7, "result": None}),
        ("GETLOGS", {"ok": True, "id": 7, "logs": []}),
        ("GETPROGRESS", {"ok": False, "error": "Job 7 not found"}),
        ("WAITJOB", {"ok": False, "error": "Job 7 not found"}),
        ("ACK", {"ok": False, "error": "Job 7 not found"}),
        ("FAIL", {"ok": False, "error": "Job 7 not found"}),
        ("HEARTBEAT", {"ok": False, "error": "Job 7 not found"}),
        ("PROMOTE", {"ok": False, "error": "Job 7 not found"}),
        ("DISCARD", {"ok": False, "error": "Job 7 not found"}),
    ],
)
def test_a_job_that_does_not_exist_is_not_known(talk: Talk, cmd: str, answer: Any) -> None:
    assert talk.ask(cmd, id=7) == answer


def test_a_paused_queue_that_did_not_exist_stays_paused(line: Talk) -> None:
    line.do("PAUSE", queue="later")
    line.push("later", 1)
    assert line.do("PULL", queue="later", timeout=0)["job"] is None
    line.do("RESUME", queue="later")
    assert line.pull("later")["data"] == 1


OPTIONS = {
    "priority": 0,
    "delay": None,
    "ttl": None,
    "timeout": None,
    "max_attempts": None,
    "backoff": None,
    "unique_key": None,
    "depends_on": None,
    "tags": None,
    "lifo": False,
    "remove_on_complete": False,
    "remove_on_fail": False,
    "stall_timeout": None,
    "debounce_id": None,
    "debounce_ttl": None,
    "job_id": None,
    "jobId": None,
    "customId": None,
    "keep_completed_age": None,
    "keep_completed_count": None,
    "keepCompletedAge": None,
    "group_id": None,
    "something_of_a_later_version": {"a": [1]},
}


def test_options_may_be_null_and_unknown_ones_are_ignored(talk: Talk) -> None:
    job = talk.push("lenient", {"a": 1}, **OPTIONS)
    assert talk.do("GETJOB", id=job)["job"]["data"] == {"a": 1}
    (other,) = talk.do("PUSHB", queue="lenient", jobs=[{"data": 2, **OPTIONS}])["ids"]
    assert talk.state(other) == "waiting"


@pytest.mark.parametrize("name", ["job_id", "jobId", "customId", "custom_id"])
def test_a_custom_id_is_idempotent_under_each_of_its_names(line: Talk, name: str) -> None:
    job = line.push("named", 1, **{name: "order-7"})
    assert line.push("named", 2, **{name: "order-7"}) == job
    assert line.do("COUNT", queue="named")["count"] == 1
    found = line.do("GETJOBBYCUSTOMID", customId="order-7")
    assert (found["job"]["id"], found["job"]["custom_id"], found["state"]) == (job, "order-7", "waiting")


def test_a_job_keeps_its_id_when_its_data_is_replaced(talk: Talk) -> None:
    job = talk.push("changed", {"a": 1}, job_id="mine", unique_key="k", priority=2)
    talk.do("UPDATE", id=job, data={"a": 2})
    for shown in (talk.do("GETJOB", id=job)["job"], talk.pull("changed")):
        assert (shown["id"], shown["data"], shown["priority"]) == (job, {"a": 2}, 2)
        assert (shown["custom_id"], shown["unique_key"]) == ("mine", "k")
    talk.do("PROGRESS", id=job, progress=7, message="under way")
    talk.do("ACK", id=job)
    assert talk.do("GETJOBBYCUSTOMID", job_id="mine")["state"] == "completed"


def test_a_custom_id_beside_a_unique_key_is_told_apart_from_it(line: Talk) -> None:
    job = line.push("both", 1, job_id="a", unique_key="k")
    assert line.push("both", 1, job_id="a", unique_key="k") == job
    refused = line.ask("PUSH", queue="both", data=1, job_id="b", unique_key="k")
    assert refused == {"ok": False, "error": "Duplicate job with key: k"}
    assert line.do("COUNT", queue="both")["count"] == 1


def test_a_unique_key_is_refused_until_its_job_is_done(talk: Talk) -> None:
    job = talk.push("unique", 1, unique_key="a key: with text")
    refused = {"ok": False, "error": "Duplicate job with key: a key: with text"}
    assert talk.ask("PUSH", queue="unique", data=2, unique_key="a key: with text") == refused
    assert talk.pull("unique")["unique_key"] == "a key: with text"
    talk.do("ACK", id=job)
    assert talk.push("unique", 3, unique_key="a key: with text") != job


def test_a_debounced_push_is_an_error(talk: Talk) -> None:
    talk.push("debounced", 1, debounce_id="d", debounce_ttl=60_000)
    assert talk.ask("PUSH", queue="debounced", data=2, debounce_id="d") == {
        "ok": False,
        "error": "Debounced: d",
    }
    assert talk.do("COUNT", queue="debounced")["count"] == 1


def test_a_cancelled_job_is_not_known_any_more(talk: Talk) -> None:
    job = talk.push("cancelled", 1)
    talk.do("CANCEL", id=job)
    assert talk.state(job) == "unknown"
    assert talk.do("GETJOB", id=job) == {"ok": True, "job": None, "state": "unknown"}
    assert talk.do("GETJOBS", queue="cancelled") == {"ok": True, "jobs": [], "total": 0}
    assert talk.do("GETJOBSBATCH", ids=[job])["jobs"] == []


@pytest.mark.parametrize(("told", "shown"), [(150, 100), (-3, 0), (42, 42)])
def test_progress_is_kept_between_0_and_100(line: Talk, told: int, shown: int) -> None:
    job = line.push("progress", 1)
    line.pull("progress")
    line.do("PROGRESS", id=job, progress=told)
    assert line.do("GETPROGRESS", id=job)["progress"] == {"id": job, "progress": shown, "message": None}
    assert line.do("GETJOB", id=job)["job"]["progress"] == shown


def test_without_max_attempts_a_job_is_retried_at_once_and_dead_after_three_failures(line: Talk) -> None:
    job = line.push("failing", 1)
    for attempts in range(3):
        pulled = line.pull("failing")
        assert (pulled["id"], pulled["attempts"], pulled["max_attempts"]) == (job, attempts, 0)
        line.do("FAIL", id=job, error=f"Fail {attempts}")
    (dead,) = line.do("DLQ", queue="failing")["jobs"]
    assert (dead["attempts"], dead["progress_msg"]) == (3, "Fail 2")
    assert line.do("RETRYDLQ", queue="failing")["ids"] == [1]
    assert line.pull("failing")["attempts"] == 0


def test_a_worker_answers_over_any_of_its_connections(server: FlashqServer, line: Talk) -> None:
    line.push("slow", 1)
    line.push("quick", 1, timeout=5_000)
    slow, quick = line.pull("slow"), line.pull("quick")
    assert (slow["timeout"], quick["timeout"]) == (0, 5_000)
    with server.talk() as other:
        other.do("HEARTBEAT", id=quick["id"])
        other.do("ACK", id=slow["id"])
    assert (line.state(slow["id"]), line.state(quick["id"])) == ("completed", "active")


def test_a_job_stays_with_its_worker_when_the_connection_is_lost(server: FlashqServer, line: Talk) -> None:
    job = line.push("kept", 1)
    with server.talk() as lost:
        lost.pull("kept")
    assert line.state(job) == "active"
    line.do("ACK", id=job, result={"by": "another connection"})
    assert line.do("GETRESULT", id=job)["result"] == {"by": "another connection"}


def test_the_answer_to_a_push_ends_with_its_id(server: FlashqServer) -> None:
    for fields in ({}, {"reqId": "17"}, {"reqId": None}):
        with server.talk() as talk:
            talk.send({"cmd": "PUSH", "queue": "ends", "data": 1, **fields})
            body = talk.receive_bytes()
            reply = json.loads(body)
            assert body.endswith(b'"id":%d}' % reply["id"])
            assert reply.get("reqId") == fields.get("reqId")


def test_jobs_of_a_group_go_one_by_one(line: Talk) -> None:
    for number in range(2):
        line.push("grouped", number, group_id="g")
    first = line.pull("grouped")
    assert (first["data"], first["group_id"]) == (0, "g")
    assert line.do("PULL", queue="grouped", timeout=0)["job"] is None
    line.do("ACK", id=first["id"])
    assert line.pull("grouped")["data"] == 1


def test_the_newest_jobs_are_shown_first_page_by_page(line: Talk) -> None:
    ids = line.do("PUSHB", queue="pages", jobs=[{"data": each} for each in range(25)])["ids"]
    line.do("CANCEL", id=ids[20])
    left = [each for each in reversed(ids) if each != ids[20]]
    shown: list[Any] = []
    while True:
        page = line.do("GETJOBS", queue="pages", limit=10, offset=len(shown))
        assert page["total"] == 24
        if not page["jobs"]:
            break
        shown += [each["id"] for each in page["jobs"]]
    assert shown == left
    assert [each["id"] for each in line.do("GETJOBS", limit=2)["jobs"]] == left[:2]


def test_no_job_is_read_for_a_page_behind_the_last(line: Talk) -> None:
    line.push("pages", 1)
    for offset in (1, 2, 1 << 60):
        assert line.do("GETJOBS", queue="pages", offset=offset)["jobs"] == []
        assert line.do("GETJOBS", offset=offset) == {"ok": True, "jobs": [], "total": 1}


@pytest.mark.parametrize("name", ["job_id", "jobId", "customId", "custom_id"])
def test_every_run_of_a_cron_is_a_job_of_its_own(line: Talk, name: str) -> None:
    line.do("CRON", name="c", queue="again", data=1, repeat_every=100, options={name: "one", "delay": 60_000})
    first, second = (line.do("PULL", queue="again", timeout=10_000)["job"] for _ in range(2))
    assert first["id"] != second["id"]
    line.do("CRONDELETE", name="c")


def test_the_level_of_a_log_line_is_a_short_word(line: Talk) -> None:
    job = line.push("logs", 1)
    line.do("LOG", id=job, message="m", level="x" * 32)
    refused = line.ask("LOG", id=job, message="m", level="x" * 33)
    assert refused == {"ok": False, "error": "Invalid level: at most 32 characters"}
    assert [each["level"] for each in line.do("GETLOGS", id=job)["logs"]] == ["x" * 32]


def test_a_pull_from_a_queue_that_can_not_be_is_refused(line: Talk) -> None:
    assert line.ask("PULL", queue="no such/queue", timeout=0)["error"] == "Invalid characters in queue name"
    assert line.ask("PULL", queue="q" * 1_000, timeout=0)["error"] == "Queue name must be 1-256 characters"


def test_a_flow_is_a_parent_that_waits_for_its_children(line: Talk) -> None:
    children = [{"queue": "parts", "data": each} for each in range(2)]
    flow = line.do("FLOW", queue="whole", data="all", children=children, priority=3)
    parent = line.do("GETJOB", id=flow["parent_id"])
    assert (parent["state"], parent["job"]["children_ids"]) == ("waiting-children", flow["children_ids"])
    for number in range(2):
        child = line.pull("parts")
        assert child["parent_id"] == flow["parent_id"]
        line.do("ACK", id=child["id"], result=number)
    found = line.do("GETCHILDREN", parent_id=flow["parent_id"])
    assert (found["completed"], found["total"], len(found["children"])) == (2, 2, 2)
    assert line.pull("whole")["children_completed"] == 2
    assert line.ask("GETCHILDREN", parent_id=5) == {"ok": False, "error": "Parent job 5 not found"}


def test_a_job_waits_for_a_dependency_that_failed_until_it_is_retried(line: Talk) -> None:
    first = line.push("first", 1, max_attempts=1)
    then = line.push("then", 2, depends_on=[first])
    line.pull("first")
    line.do("FAIL", id=first)
    assert line.state(then) == "waiting-children"
    line.do("RETRYDLQ", queue="first", id=first)
    line.pull("first")
    line.do("ACK", id=first)
    assert line.pull("then")["depends_on"] == [first]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"cmd": "PUSH", "queue": "", "data": 1}, "Queue name must be 1-256 characters"),
        ({"cmd": "PUSH", "queue": "q" * 257, "data": 1}, "Queue name must be 1-256 characters"),
        ({"cmd": "PUSH", "queue": "a b", "data": 1}, "Invalid characters in queue name"),
        ({"cmd": "PULL", "queue": "a/b", "timeout": 0}, "Invalid characters in queue name"),
        ({"cmd": "PUSH", "queue": "q", "data": "x" * 1_048_577}, "Payload exceeds 1048576 bytes"),
        ({"cmd": "PUSH", "queue": "q"}, "Missing field: data"),
        ({"cmd": "PUSH", "queue": "q", "data": 1, "priority": "1"}, "Invalid priority: must be an integer"),
        ({"cmd": "PUSH", "queue": "q", "data": 1, "delay": -1}, "Invalid delay: must be an integer >= 0"),
        (
            {"cmd": "PUSH", "queue": "q", "data": 1, "stall_timeout": 1 << 40},
            "stall_timeout must be between 0 and 43200000",
        ),
        (
            {"cmd": "PUSH", "queue": "q", "data": 1, "keepCompletedAge": 1 << 63},
            "keep_completed_age must be between 0 and 315360000000",
        ),
        (
            {"cmd": "PUSHB", "queue": "q", "jobs": [{"data": 1, "keep_completed_count": 1 << 53}]},
            "keep_completed_count must be between 0 and 4503599627370496",
        ),
        ({"cmd": "PUSH", "queue": 7, "data": 1}, "Invalid queue: must be a string"),
        ({"cmd": "TX", "ops": []}, "Unknown command: TX"),
        ({"cmd": 7}, "Invalid command: cmd must be a string"),
        ({"queue": "q"}, "Invalid command: cmd must be a string"),
        ({"cmd": "CRON", "name": "c", "queue": "q"}, "Either schedule or repeat_every is required"),
        ({"cmd": "CRON", "name": "c", "queue": "q", "schedule": "never"}, "Invalid cron schedule"),
        (
            {"cmd": "CLEAN", "queue": "q", "grace": 0, "state": "active"},
            "Invalid state. Use: waiting, delayed, completed, failed",
        ),
    ],
)
def test_an_error_is_one_short_sentence_and_nothing_is_changed(talk: Talk, request_: Any, error: str) -> None:
    talk.send({"reqId": "r", **request_})
    assert talk.receive() == {"reqId": "r", "ok": False, "error": error}
    assert talk.do("LISTQUEUES")["queues"] == []


def test_commands_of_the_native_protocol_are_not_known_here(line: Talk) -> None:
    for cmd in ("TX", "READ", "OFFSETS", "STAGE", "HOLD", "BACKUP", "BROWSE", "QUEUE", "SEEK", "EXTEND"):
        assert line.ask(cmd, queue="q") == {"ok": False, "error": f"Unknown command: {cmd}"}


def test_keys_and_values_are_as_in_flashq(talk: Talk) -> None:
    assert talk.ask("KVSET", key="a", value={"n": 1}) == {"ok": True}
    assert talk.ask("KVGET", key="a") == {"ok": True, "value": {"n": 1}}
    assert talk.ask("KVGET", key="b") == {"ok": True, "value": None}
    assert talk.ask(
        "KVMSET", entries=[{"key": "n", "value": 1}, {"key": "t", "value": "x", "ttl": 60_000}]
    ) == {
        "ok": True,
        "count": 2,
    }
    assert talk.ask("KVMGET", keys=["n", "b"]) == {"ok": True, "values": [1, None]}
    assert talk.ask("KVINCR", key="n", by=4) == {"ok": True, "value": 5}
    assert talk.ask("KVTTL", key="n") == {"ok": True, "ttl": -1}
    assert talk.ask("KVTTL", key="b") == {"ok": True, "ttl": -2}
    assert 0 < talk.do("KVTTL", key="t")["ttl"] <= 60_000
    assert talk.ask("KVEXPIRE", key="n", ttl=60_000) == {"ok": True, "exists": True}
    assert talk.ask("KVEXPIRE", key="b", ttl=60_000) == {"ok": True, "exists": False}
    assert talk.ask("KVKEYS", pattern="?") == {"ok": True, "keys": ["a", "n", "t"]}
    assert talk.ask("KVDEL", key="a") == {"ok": True, "exists": True}
    assert talk.ask("KVDEL", key="a") == {"ok": True, "exists": False}
    assert talk.ask("KVEXISTS", key="n") == {"ok": True, "exists": True}


def test_events_are_sent_over_the_connection_that_subscribed(server: FlashqServer, talk: Talk) -> None:
    talk.do("SUBSCRIBE", queue="watched", events=["completed", "failed", "progress", "unheard-of"])
    with server.talk() as other:
        ids = other.do(
            "PUSHB", queue="watched", jobs=[{"data": each, "max_attempts": 1} for each in range(3)]
        )["ids"]
        other.do("PULLB", queue="watched", count=3, timeout=0)
        other.do("ACKB", ids=ids[:2])
        events = [talk.receive() for _ in range(2)]
        other.do("PROGRESS", id=ids[2], progress=40, message="nearly")
        events.append(talk.receive())
        other.do("FAIL", id=ids[2])
        events.append(talk.receive())
    told = [(each["event"], each["event_type"], each["queue"], each["job_id"]) for each in events]
    completed = [("job:completed", "completed", "watched", each) for each in ids[:2]]
    progress = ("job:progress", "progress", "watched", ids[2])
    assert told == [*completed, progress, ("job:failed", "failed", "watched", ids[2])]
    assert [each.get("progress") for each in events] == [None, None, 40, None]
    assert all(type(each["timestamp"]) is int for each in events)
    assert talk.ask("UNSUBSCRIBE", queue="watched") == {"ok": True}
    talk.push("watched", 1)
    assert talk.do("STATS")["queued"] == 1, "nothing came between"


def test_a_subscriber_that_does_not_read_gets_everything_once_it_does(
    server: FlashqServer, line: Talk
) -> None:
    """More than sockets hold: the server waits for the client instead of keeping events for it."""
    with server.talk() as subscriber:
        subscriber.do("SUBSCRIBE", queue="flood", events=["pushed"])
        ids: list[int] = []
        for _ in range(10):
            ids += line.do("PUSHB", queue="flood", jobs=[{}] * 10_000)["ids"]
        for each in ids:
            assert subscriber.receive_bytes().find(b'"job_id":%d,' % each) > 0
        subscriber.send({"cmd": "UNSUBSCRIBE", "queue": "flood"}, {"cmd": "SUBSCRIBE", "queue": "flood"})
        subscriber.send({"cmd": "UNSUBSCRIBE", "queue": "flood"}, {"cmd": "STATS"})
        assert [subscriber.receive()["ok"] for _ in range(4)] == [True] * 4


def test_limits_are_set_shown_and_taken_away(line: Talk) -> None:
    def limits() -> Any:
        (queue,) = line.do("LISTQUEUES")["queues"]
        return queue["rate_limit"], queue["concurrency_limit"]

    line.do("SETCONCURRENCY", queue="limited", limit=1)
    line.do("RATELIMIT", queue="limited", limit=50)
    assert limits() == (50, 1)
    line.push("limited", 1)
    line.push("limited", 2)
    first = line.pull("limited")
    assert line.do("PULL", queue="limited", timeout=0)["job"] is None
    line.do("ACK", id=first["id"])
    assert line.pull("limited")["data"] == 2
    line.do("CLEARCONCURRENCY", queue="limited")
    line.do("RATELIMITCLEAR", queue="limited")
    assert limits() == (None, None)


def test_only_a_client_with_a_token_is_served() -> None:
    with FlashqServer("--store", "memory:", "--flashq-tokens", "one,two") as server, server.talk() as talk:
        refused = {"ok": False, "error": "Authentication required"}
        assert talk.ask("PUSH", queue="q", data=1) == refused
        assert talk.ask("GETJOBS") == refused
        assert talk.ask("SUBSCRIBE", queue="q") == refused
        assert talk.ask("AUTH", token="three") == {"ok": False, "error": "Invalid token"}
        assert talk.ask("STATS") == refused
        # What follows AUTH at once is served, too: it need not wait for the answer.
        talk.send({"cmd": "AUTH", "token": "two"}, {"cmd": "PUSH", "queue": "q", "data": 1}, {"cmd": "STATS"})
        assert talk.receive() == {"ok": True}
        assert talk.receive()["ok"]
        assert talk.receive()["queued"] == 1
        with server.talk("packed") as other:
            assert other.ask("STATS") == refused
            assert other.ask("AUTH", token="one") == {"ok": True}
            assert other.ask("SUBSCRIBE", queue="q") == {"ok": True}


def test_binary_is_no_name(server: FlashqServer) -> None:
    with server.talk("packed") as talk:
        talk.raw.send_frame(msgspec.msgpack.encode({"cmd": "PUSH", "queue": b"q", "data": 1}))
        assert talk.receive()["error"] == "Invalid queue: must be a string"


def test_whatever_is_no_command_is_answered_and_the_connection_goes_on(server: FlashqServer) -> None:
    with Raw(server.address) as raw:
        raw.send(b'{"cmd":\n[]\n"x"\n{"cmd":"STATS"}\n')
        assert [raw.receive_line()["ok"] for _ in range(4)] == [False, False, False, True]
