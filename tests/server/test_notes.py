"""Results, progress, logs, parts, updates and clearing out: requests to commands, and replies to answers."""

import json

import pytest

from forebay.core.api import commands as core, queries
from forebay.core.errors import Damaged
from forebay.core.words import LINE, PART, RESULT
from forebay.server.flashq import decode, request as flashq_request
from tests.server.talking import CONTEXT, NOW, UUID, Fields, Talk, body_of, command_of, invalid, refusal


def plain(command: core.Command) -> core.Command:
    """A command whose payloads can be compared."""
    if isinstance(command, core.AddNote | core.Update):
        command.payload = bytes(command.payload)
    return command


@pytest.mark.parametrize(
    ("cmd", "fields", "command"),
    [
        (
            "ACK",
            {"id": 5, "result": {"a": 1}},
            core.Ack("acme", None, [5], None, 7, results=[b'{"a": 1}']),
        ),
        ("ACK", {"id": 5, "result": None}, core.Ack("acme", None, [5], None, 7, results=[b"null"])),
        (
            "ACK",
            {"ids": [5], "lease": "3", "result": 1},
            core.Ack("acme", "3", [5], None, 7, results=[b"1"]),
        ),
        (
            "ACKB",
            {"ids": [5, 6], "results": [1, "b"]},
            core.Ack("acme", None, [5, 6], None, 7, partial=True, results=[b"1", b'"b"']),
        ),
        ("GETRESULT", {"id": 5}, queries.GetNotes("acme", 5, (RESULT, PART))),
        ("WAITJOB", {"id": 5}, queries.Await("acme", 5, 30_000)),
        ("WAITJOB", {"id": 5, "timeout": 0, "group": "g"}, queries.Await("acme", 5, 0, "g")),
        ("PROGRESS", {"id": 5, "progress": 9}, core.TellProgress("acme", 5, 9, "", None, 7)),
        (
            "PROGRESS",
            {"id": 5, "progress": 9, "message": "m", "lease": "3"},
            core.TellProgress("acme", 5, 9, "m", "3", 7),
        ),
        ("GETPROGRESS", {"id": 5}, queries.GetNotes("acme", 5)),
        (
            "LOG",
            {"id": 5, "message": "m"},
            core.AddNote("acme", 5, LINE, b'{"level":"info","message":"m"}'),
        ),
        (
            "LOG",
            {"id": 5, "message": "m", "level": "error"},
            core.AddNote("acme", 5, LINE, b'{"level":"error","message":"m"}'),
        ),
        ("GETLOGS", {"id": 5}, queries.GetNotes("acme", 5, (LINE,))),
        ("PARTIAL", {"id": 5, "data": [1]}, core.AddNote("acme", 5, PART, b"[1]", None, 7)),
        ("PARTIAL", {"id": 5, "data": 1, "lease": "3"}, core.AddNote("acme", 5, PART, b"1", "3", 7)),
        ("UPDATEJOB", {"id": 5, "data": {"a": 1}}, core.Update("acme", 5, b'{"a": 1}')),
        ("UPDATE", {"id": "5", "data": None}, core.Update("acme", 5, b"null")),
        ("DISCARD", {"id": 5}, core.Discard("acme", [5])),
        ("DISCARD", {"ids": [5, 6], "group": "g"}, core.Discard("acme", [5, 6], "g")),
        ("GETJOBS", {"queue": "q"}, queries.Browse("acme", "q")),
        (
            "GETJOBS",
            {"queue": "q", "state": "failed", "limit": 5, "offset": 6, "group": "g"},
            queries.Browse("acme", "q", "dead", "g", 5, 6),
        ),
        ("GETJOBS", {"queue": "q", "state": "waiting"}, queries.Browse("acme", "q", "waiting")),
        ("SEEK", {"queue": "q"}, core.Seek("acme", "q", "default", "all")),
        ("SEEK", {"queue": "q", "group": "g", "to": 12}, core.Seek("acme", "q", "g", 12)),
        (
            "SEEK",
            {"queue": "q", "partition": "p", "offset": 4},
            core.Seek("acme", "q", "default", "all", "p", 4),
        ),
        ("DRAIN", {"queue": "q"}, core.Clean("acme", "q", ("waiting", "delayed", "parked"))),
        (
            "DRAIN",
            {"queue": "q", "group": "g"},
            core.Clean("acme", "q", ("waiting", "delayed", "parked"), "g"),
        ),
        (
            "CLEAN",
            {"queue": "q", "state": "failed", "grace": 9},
            core.Clean("acme", "q", ("dead",), grace_ms=9),
        ),
        (
            "CLEAN",
            {"queue": "q", "state": "completed", "grace": 0, "limit": 5, "group": "g"},
            core.Clean("acme", "q", ("completed",), "g", 0, 5),
        ),
        ("OBLITERATE", {"queue": "q"}, core.Obliterate("acme", "q")),
        (
            "QUEUE",
            {
                "queue": "q",
                "options": {
                    "retention_ms": 1,
                    "partition_retention_ms": 2,
                    "group_idle_ms": 3,
                    "max_size": 4,
                    "require_lease": True,
                },
            },
            core.Configure(
                "acme",
                "q",
                retention_ms=1,
                partition_retention_ms=2,
                group_idle_ms=3,
                max_size=4,
                require_lease=True,
            ),
        ),
        (
            "QUEUE",
            {"queue": "q", "options": {"retention_ms": 1}, "partition": "p"},
            core.Configure("acme", "q", retention_ms=1, partition="p"),
        ),
    ],
)
def test_a_request_is_the_core_command_it_stands_for(cmd: str, fields: Fields, command: core.Command) -> None:
    assert plain(command_of(cmd, **fields)) == command
    assert type(command_of(cmd, **fields, reqId=1)) is type(command)


@pytest.mark.parametrize(
    ("cmd", "fields"),
    [
        ("GETRESULT", {}),
        ("WAITJOB", {}),
        ("PROGRESS", {"progress": 1}),
        ("GETPROGRESS", {}),
        ("LOG", {"message": "m"}),
        ("GETLOGS", {}),
        ("PARTIAL", {"data": 1}),
        ("UPDATEJOB", {"data": 1}),
    ],
)
def test_an_id_may_be_a_uuid_and_must_be_an_id(cmd: str, fields: Fields) -> None:
    command = command_of(cmd, id=UUID, **fields)
    assert command_of(cmd, id=str(command.id), **fields).id == command.id  # type: ignore[union-attr]
    assert invalid(cmd, id="five", **fields)[0] == "id"
    assert invalid(cmd, **fields) == ("id", "given")


def test_a_wait_that_does_not_say_is_no_longer_than_the_server_allows() -> None:
    request = decode.decode(body_of({"cmd": "WAITJOB", "id": 5}))
    assert request.command(flashq_request.Context("acme", 7, 1_000)) == queries.Await("acme", 5, 1_000)


# Replies.


def test_a_result_comes_back_as_it_was_written() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    assert talk.ask("GETRESULT", id=message) == {"ok": True, "id": message, "result": None}
    talk.ask("PULL", queue="q", timeout=0)
    talk.ask("PARTIAL", id=message, data={"part": 1})
    talk.ask("PARTIAL", id=message, data="two")
    written = b'{"b": 1.0,"a":[1e3, "\\u00e9\\/"]}'
    request = b'{"cmd":"ACK","id":%d,"result":%s}' % (message, written)
    talk.engine.apply(decode.decode(request).command(CONTEXT), NOW)
    get = decode.decode(body_of({"cmd": "GETRESULT", "id": message, "reqId": 9}))
    answer = decode.encode(get, talk.engine.apply(get.command(CONTEXT), NOW), CONTEXT)
    assert written in answer
    assert json.loads(answer)["partials"] == [{"part": 1}, "two"]
    assert json.loads(answer)["reqId"] == 9


def test_a_result_may_be_null_and_the_last_one_counts() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    talk.ask("PULL", queue="q", timeout=0)
    talk.ask("ACK", id=message, result=None)
    assert talk.ask("GETRESULT", id=message)["result"] is None
    assert talk.ask("WAITJOB", id=message)["done"] is True


def test_a_wait_tells_the_state_in_the_words_of_this_wire() -> None:
    talk = Talk()
    first = talk.ask("PUSHB", queue="q", messages=[1, 2], max_attempts=1)["first"]
    talk.ask("PULLB", queue="q", count=2, timeout=0)
    assert talk.ask("WAITJOB", id=first, timeout=0) == {
        "ok": True,
        "id": first,
        "done": False,
        "state": "active",
        "result": None,
    }
    talk.ask("FAIL", id=first, error="broken")
    assert talk.ask("WAITJOB", id=first) == {
        "ok": True,
        "id": first,
        "done": True,
        "state": "failed",
        "result": None,
        "error": "broken",
    }
    talk.ask("ACK", id=first + 1, result=[2])
    answer = talk.ask("WAITJOB", id=first + 1, reqId="r")
    assert (answer["done"], answer["state"], answer["result"]) == (True, "completed", [2])
    assert answer["reqId"] == "r"


def test_progress_is_told_and_asked_for() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    untold = {"id": message, "progress": 0, "message": None, "updated_at": None}
    assert talk.ask("GETPROGRESS", id=message) == {"ok": True, "progress": untold}
    lease = talk.ask("PULL", queue="q", timeout=0)["job"]["lease"]
    assert talk.ask("PROGRESS", id=message, progress=40) == {"ok": True}
    assert talk.ask("GETPROGRESS", id=message)["progress"]["message"] is None
    assert talk.ask("PROGRESS", id=message, progress=50, message="half", lease=lease) == {"ok": True}
    told = {"id": message, "progress": 50, "message": "half", "updated_at": NOW}
    assert talk.ask("GETPROGRESS", id=message) == {"ok": True, "progress": told}


def test_log_lines_come_back_in_order_with_their_time_and_level() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    assert talk.ask("GETLOGS", id=message) == {"ok": True, "id": message, "logs": []}
    assert talk.ask("LOG", id=message, message="é\n") == {"ok": True}
    talk.ask("LOG", id=message, message="b", level="error")
    assert talk.ask("GETLOGS", id=message)["logs"] == [
        {"timestamp": NOW, "level": "info", "message": "é\n"},
        {"timestamp": NOW, "level": "error", "message": "b"},
    ]


def test_an_update_answers_with_the_id_it_was_given() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    assert talk.ask("UPDATEJOB", id=message, data={"n": 2}) == {
        "ok": True,
        "id": message,
        "durability": "fsync",
    }
    job = talk.ask("GETJOB", id=message)["job"]
    assert (job["id"], job["data"]) == (message, {"n": 2})
    assert job["uuid"] == talk.ask("GETSTATE", id=message)["uuid"]
    assert talk.ask("UPDATE", id=job["uuid"], data=3)["id"] == message
    assert talk.ask("PULL", queue="q", timeout=0)["job"]["data"] == 3


def test_jobs_are_listed_by_state_with_their_total() -> None:
    talk = Talk()
    talk.ask("PUSHB", queue="q", messages=[1, 2, 3], max_attempts=1)
    first = talk.ask("PULL", queue="q", timeout=0)["job"]["id"]
    talk.ask("FAIL", id=first, error="no")
    failed = talk.ask("GETJOBS", queue="q", state="failed")
    assert [(job["data"], job["state"], job["error"]) for job in failed["jobs"]] == [(1, "failed", "no")]
    waiting = talk.ask("GETJOBS", queue="q", state="waiting", limit=1, offset=1)
    assert ([job["data"] for job in waiting["jobs"]], waiting["total"]) == ([3], 2)
    assert talk.ask("GETJOBS", queue="q")["total"] == 3


def test_what_clears_out_says_how_many_it_was() -> None:
    talk = Talk()
    talk.ask("PUSHB", queue="q", messages=[1, 2, 3])
    assert talk.ask("CLEAN", queue="q", state="waiting", grace=0, limit=1) == {
        "ok": True,
        "count": 1,
        "more": False,
    }
    assert talk.ask("DRAIN", queue="q") == {"ok": True, "count": 2, "more": False}
    assert talk.ask("OBLITERATE", queue="q") == {"ok": True, "count": 3, "more": False}
    assert talk.ask("LISTQUEUES") == {"ok": True, "queues": []}


def test_a_seek_tells_where_the_group_reads_on() -> None:
    talk = Talk()
    talk.ask("PUSHB", queue="q", messages=[1, 2])
    talk.ask("PUSH", queue="q", data=3, partition="p")
    talk.ask("PULLB", queue="q", count=9, timeout=0)
    partitions = [{"partition": "default", "cursor": 2}, {"partition": "p", "cursor": 1}]
    assert talk.ask("SEEK", queue="q", to="new") == {"ok": True, "partitions": partitions}
    answer = talk.ask("SEEK", queue="q", partition="default", offset=1, reqId=1)
    assert answer["partitions"] == [{"partition": "default", "cursor": 1}]


def test_a_seek_goes_to_one_place() -> None:
    refused = refusal("SEEK", queue="q", to="new", partition="p", offset=4)
    assert refused["details"] == {"field": "to", "accepted": "left out if an offset is given"}


@pytest.mark.parametrize("cmd", ["GETJOBS", "CLEAN"])
def test_states_are_refused_in_the_words_of_this_wire(cmd: str) -> None:
    grace = {"grace": 0} if cmd == "CLEAN" else {}
    refused = refusal(cmd, queue="q", state="dead", **grace)
    assert refused["details"]["field"] == "state"
    assert "failed" in refused["error"]
    assert "dead" not in refused["error"]


def test_a_partition_shows_what_it_keeps_otherwise_than_its_queue() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", data=1)
    own = {"retention_ms": 5, "completed_retention_ms": 6}
    (shown,) = talk.ask("QUEUE", queue="q", partition="default", options=own)["partitions"]
    assert shown.items() >= own.items()
    assert "partition_retention_ms" not in shown
    (shown,) = talk.ask("QUEUE", queue="q", partition="default", options={"retention_ms": None})["partitions"]
    assert "retention_ms" not in shown
    assert shown["completed_retention_ms"] == 6
    for wrong in ({"options": {"retention_ms": None}}, {"partition": "default"}):
        assert talk.refusal(body_of({"cmd": "QUEUE", "queue": "q", **wrong}))["code"] == "invalid"


def test_ids_from_2_53_on_go_out_as_strings_in_every_reply() -> None:
    talk = Talk(numbers_made=1 << 22)
    first = talk.ask("PUSHB", queue="q", messages=[1, 2])["first"]
    assert isinstance(first, str)
    assert talk.ask("UPDATEJOB", id=first, data=2)["id"] == first
    for cmd in ("GETRESULT", "WAITJOB", "GETLOGS"):
        assert talk.ask(cmd, id=first)["id"] == first
    assert talk.ask("GETPROGRESS", id=first)["progress"]["id"] == first
    assert first in [job["id"] for job in talk.ask("GETJOBS", queue="q")["jobs"]]
    assert talk.ask("DISCARD", ids=[first, int(first) + 9])["refused"] == [str(int(first) + 9)]


def test_what_can_not_be_read_back_is_said_to_be_damaged() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", data=1)["id"]
    talk.ask("LOG", id=message, message="m")
    request = decode.decode(body_of({"cmd": "GETLOGS", "id": message}))
    found = talk.engine.apply(request.command(CONTEXT), NOW)
    assert isinstance(found, queries.NotesFound)
    found.notes[0][0].segment.payloads = None
    answer = json.loads(decode.encode(request, found, CONTEXT))
    assert (answer["ok"], answer["code"]) == (False, Damaged.code)


# What can't be.


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("ACK", {"lease": "3", "result": 1}, "result"),
        ("ACK", {"ids": [1, 2], "result": 1}, "result"),
        ("ACKB", {"ids": [1, 2], "results": [1]}, "results"),
        ("ACKB", {"ids": [1], "results": [1, 2]}, "results"),
        ("ACKB", {"lease": "0000000000000000000000000003", "results": [1]}, "results"),
        ("ACKB", {"ids": [1], "results": 5}, "results"),
        ("PROGRESS", {"id": 1, "progress": 101}, "progress"),
        ("PROGRESS", {"id": 1, "progress": -1}, "progress"),
        ("PROGRESS", {"id": 1, "progress": 1.5}, "progress"),
        ("LOG", {"id": 1, "message": "m", "level": ""}, "level"),
        ("LOG", {"id": 1, "message": "m", "level": "x" * 33}, "level"),
        ("LOG", {"id": 1, "message": 5}, "message"),
        ("WAITJOB", {"id": 1, "timeout": -1}, "timeout"),
        ("WAITJOB", {"id": 1, "timeout": 1 << 40}, "timeout"),
        ("DISCARD", {}, "id"),
        ("DISCARD", {"ids": []}, "ids"),
        ("DISCARD", {"id": 1, "group": ""}, "group"),
        ("CLEAN", {"queue": "q", "state": "active", "grace": 0}, "state"),
        ("CLEAN", {"queue": "q", "state": "failed", "grace": -1}, "grace"),
        ("CLEAN", {"queue": "q", "state": "failed", "grace": 0, "limit": 0}, "limit"),
        ("DRAIN", {"queue": "q", "group": ""}, "group"),
        ("OBLITERATE", {"queue": "no such name"}, "queue"),
        ("QUEUE", {"queue": "q", "options": {"retention_ms": -1}}, "retention_ms"),
        ("QUEUE", {"queue": "q", "options": {"partition_retention_ms": -1}}, "partition_retention_ms"),
        ("QUEUE", {"queue": "q", "options": {"group_idle_ms": -1}}, "group_idle_ms"),
        ("QUEUE", {"queue": "q", "options": {"max_size": -1}}, "max_size"),
        ("QUEUE", {"queue": "q", "options": {"require_lease": 1}}, "options.require_lease"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_its_field(cmd: str, fields: Fields, field: str) -> None:
    assert invalid(cmd, **fields)[0] == field


def test_payloads_nested_too_deep_are_refused_wherever_they_are() -> None:
    talk = Talk()
    deep = b"[" * 600 + b"]" * 600
    for body in (
        b'{"cmd":"ACK","id":1,"result":%s}' % deep,
        b'{"cmd":"ACKB","ids":[1],"results":[%s]}' % deep,
        b'{"cmd":"PARTIAL","id":1,"data":%s}' % deep,
        b'{"cmd":"UPDATEJOB","id":1,"data":%s}' % deep,
    ):
        assert talk.refusal(body)["details"]["field"] == "payload"
