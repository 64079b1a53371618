"""Results, progress, logs, updates and clearing out: requests to commands, and replies to answers."""

import json

import pytest

from forebay.core.api import commands as core, queries
from forebay.core.errors import Damaged, Invalid
from forebay.core.words import LINE, PART
from forebay.server.operations import codec
from tests.server.talking import CONTEXT, NOW, UUID, Fields, Talk, body_of, command_of, invalid


def plain(command: core.Command) -> core.Command:
    """A command whose payloads can be compared."""
    if isinstance(command, core.AddNote | core.Update):
        command.payload = bytes(command.payload)
    return command


PLAIN = (("x-forebay-encoding", None),)
"""What an update says of the headers."""


@pytest.mark.parametrize(
    ("cmd", "fields", "command"),
    [
        (
            "ACK",
            {"ids": [5], "result": {"a": 1}},
            core.Ack("acme", None, [5], None, 7, results=[b'{"a": 1}']),
        ),
        ("ACK", {"ids": [5], "result": None}, core.Ack("acme", None, [5], None, 7, results=[b"null"])),
        (
            "ACK",
            {"ids": [5], "lease": "3", "result": 1},
            core.Ack("acme", "3", [5], None, 7, results=[b"1"]),
        ),
        (
            "ACK",
            {"ids": [5, 6], "results": [1, "b"]},
            core.Ack("acme", None, [5, 6], None, 7, results=[b"1", b'"b"']),
        ),
        ("RESULT", {"id": 5}, queries.Await("acme", 5, 0)),
        ("RESULT", {"id": 5, "wait_ms": 9, "group": "g"}, queries.Await("acme", 5, 9, "g")),
        ("RESULT", {"id": 5, "queue": "q"}, queries.Await("acme", 5, 0)),
        ("PARTIALS", {"id": 5}, queries.GetNotes("acme", 5, (PART,))),
        ("SETPROGRESS", {"id": 5, "progress": 9}, core.TellProgress("acme", 5, 9, "", None, 7)),
        (
            "SETPROGRESS",
            {"id": 5, "progress": 9, "message": "m", "lease": "3"},
            core.TellProgress("acme", 5, 9, "m", "3", 7),
        ),
        ("PROGRESS", {"id": 5}, queries.GetNotes("acme", 5)),
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
        ("LOGS", {"id": 5}, queries.GetNotes("acme", 5, (LINE,))),
        ("PARTIAL", {"id": 5, "payload": [1]}, core.AddNote("acme", 5, PART, b"[1]", None, 7)),
        ("PARTIAL", {"id": 5, "payload": 1, "lease": "3"}, core.AddNote("acme", 5, PART, b"1", "3", 7)),
        ("UPDATE", {"id": 5, "payload": {"a": 1}}, core.Update("acme", 5, b'{"a": 1}', PLAIN)),
        ("UPDATE", {"id": "5", "payload": None}, core.Update("acme", 5, b"null", PLAIN)),
        ("DISCARD", {"ids": [5]}, core.Discard("acme", [5])),
        ("DISCARD", {"ids": [5, 6], "group": "g"}, core.Discard("acme", [5, 6], "g")),
        ("SEEK", {"queue": "q", "to": "all"}, core.Seek("acme", "q", "default", "all")),
        ("SEEK", {"queue": "q", "group": "g", "to": 12}, core.Seek("acme", "q", "g", 12)),
        ("SEEK", {"queue": "q", "partition": "p", "to": 12}, core.Seek("acme", "q", "default", 12, "p")),
        (
            "SEEK",
            {"queue": "q", "partition": "p", "offset": 4},
            core.Seek("acme", "q", "default", "all", "p", 4),
        ),
        ("DRAIN", {"queue": "q"}, core.Clean("acme", "q", ("waiting", "delayed", "parked"), create=False)),
        (
            "DRAIN",
            {"queue": "q", "group": "g"},
            core.Clean("acme", "q", ("waiting", "delayed", "parked"), "g", create=False),
        ),
        (
            "PURGE",
            {"queue": "q"},
            core.Clean("acme", "q", ("waiting", "delayed", "parked", "dead", "completed"), create=False),
        ),
        (
            "PURGE",
            {"queue": "q", "states": ["dead"], "grace_ms": 9},
            core.Clean("acme", "q", ("dead",), grace_ms=9, create=False),
        ),
        (
            "PURGE",
            {"queue": "q", "states": ["completed", "dead"], "grace_ms": 0, "limit": 5, "group": "g"},
            core.Clean("acme", "q", ("completed", "dead"), "g", 0, 5, create=False),
        ),
        ("QUEUEDELETE", {"queue": "q"}, core.Delete("acme", "q")),
        ("QUEUEDELETE", {"queue": "q", "force": True}, core.Obliterate("acme", "q")),
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
        ("RESULT", {}),
        ("PARTIALS", {}),
        ("SETPROGRESS", {"progress": 1}),
        ("PROGRESS", {}),
        ("LOG", {"message": "m"}),
        ("LOGS", {}),
        ("PARTIAL", {"payload": 1}),
        ("UPDATE", {"payload": 1}),
    ],
)
def test_an_id_may_be_a_uuid_and_must_be_an_id(cmd: str, fields: Fields) -> None:
    command = command_of(cmd, id=UUID, **fields)
    assert command_of(cmd, id=str(command.id), **fields).id == command.id  # type: ignore[union-attr]
    assert invalid(cmd, id="five", **fields)[0] == "id"
    assert invalid(cmd, **fields) == ("id", "given")


# Replies.


def test_a_result_comes_back_as_it_was_written() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    unknown = {"ok": True, "id": message, "state": "waiting", "done": False, "result": None}
    assert talk.ask("RESULT", id=message) == unknown
    talk.ask("POP", queue="q")
    talk.ask("PARTIAL", id=message, payload={"part": 1})
    talk.ask("PARTIAL", id=message, payload="two")
    written = b'{"b": 1.0,"a":[1e3, "\\u00e9\\/"]}'
    request = b'{"cmd":"ACK","ids":[%d],"result":%s}' % (message, written)
    talk.engine.apply(codec.decode(request).command(CONTEXT), NOW)
    get = codec.decode(body_of({"cmd": "RESULT", "id": message, "reqId": 9}))
    answer = codec.encode(get, talk.engine.apply(get.command(CONTEXT), NOW), CONTEXT)
    assert written in answer
    assert json.loads(answer)["reqId"] == 9
    partials = talk.ask("PARTIALS", id=message, reqId=8)
    assert partials == {"ok": True, "id": message, "partials": [{"part": 1}, "two"], "reqId": 8}


def test_a_result_may_be_null_and_the_last_one_counts() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    talk.ask("POP", queue="q")
    talk.ask("ACK", ids=[message], result=None)
    assert talk.ask("RESULT", id=message)["result"] is None
    assert talk.ask("RESULT", id=message)["done"] is True


def test_a_wait_tells_the_state_and_what_went_wrong() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", messages=[1, 2], max_attempts=1)["first"]
    talk.ask("POP", queue="q", count=2)
    assert talk.ask("RESULT", id=first) == {
        "ok": True,
        "id": first,
        "done": False,
        "state": "active",
        "result": None,
    }
    talk.ask("NACK", ids=[first], error="broken")
    assert talk.ask("RESULT", id=first) == {
        "ok": True,
        "id": first,
        "done": True,
        "state": "dead",
        "result": None,
        "error": "broken",
    }
    talk.ask("ACK", ids=[first + 1], result=[2])
    answer = talk.ask("RESULT", id=first + 1, reqId="r")
    assert (answer["done"], answer["state"], answer["result"]) == (True, "completed", [2])
    assert answer["reqId"] == "r"


def test_progress_is_told_and_asked_for() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    untold = {"ok": True, "id": message, "progress": 0, "message": None, "updated_at": None}
    assert talk.ask("PROGRESS", id=message) == untold
    lease = talk.ask("POP", queue="q")["messages"][0]["lease"]
    assert talk.ask("SETPROGRESS", id=message, progress=40) == {"ok": True}
    assert talk.ask("PROGRESS", id=message)["message"] is None
    assert talk.ask("SETPROGRESS", id=message, progress=50, message="half", lease=lease) == {"ok": True}
    told = {"ok": True, "id": message, "progress": 50, "message": "half", "updated_at": NOW}
    assert talk.ask("PROGRESS", id=message) == told


def test_log_lines_come_back_in_order_with_their_time_and_level() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    assert talk.ask("LOGS", id=message) == {"ok": True, "id": message, "logs": []}
    assert talk.ask("LOG", id=message, message="é\n") == {"ok": True}
    talk.ask("LOG", id=message, message="b", level="error")
    assert talk.ask("LOGS", id=message)["logs"] == [
        {"timestamp": NOW, "level": "info", "message": "é\n"},
        {"timestamp": NOW, "level": "error", "message": "b"},
    ]


def test_an_update_answers_with_the_id_it_was_given() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    assert talk.ask("UPDATE", id=message, payload={"n": 2}) == {
        "ok": True,
        "id": message,
        "durability": "fsync",
    }
    found = talk.ask("MESSAGE", id=message)
    assert (found["id"], found["payload"]) == (message, {"n": 2})
    assert found["uuid"] == talk.ask("STATE", id=message)["uuid"]
    assert talk.ask("UPDATE", id=found["uuid"], payload=3)["id"] == message
    assert talk.ask("POP", queue="q")["messages"][0]["payload"] == 3


def test_messages_are_listed_by_state_with_their_total() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", messages=[1, 2, 3], max_attempts=1)
    first = talk.ask("POP", queue="q")["messages"][0]["id"]
    talk.ask("NACK", ids=[first], error="no")
    dead = talk.ask("BROWSE", queue="q", state="dead", reqId=4)
    assert [(each["payload"], each["state"], each["error"]) for each in dead["messages"]] == [
        (1, "dead", "no")
    ]
    assert (dead["total"], dead["cursor"], dead["reqId"]) == (1, None, 4)
    waiting = talk.ask("BROWSE", queue="q", state="waiting", limit=1)
    assert ([each["payload"] for each in waiting["messages"]], waiting["total"]) == ([2], 2)
    more = talk.ask("BROWSE", queue="q", state="waiting", limit=1, cursor=waiting["cursor"])
    assert [each["payload"] for each in more["messages"]] == [3]
    assert talk.ask("BROWSE", queue="q")["total"] == 3


def test_what_clears_out_says_how_many_it_was() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", messages=[1, 2, 3])
    cleared = {"ok": True, "more": False, "dry_run": False}
    assert talk.ask("PURGE", queue="q", states=["waiting"], limit=1) == {**cleared, "count": 1}
    assert talk.ask("DRAIN", queue="q") == {**cleared, "count": 2}
    gone = {"ok": True, "queue": "q", "deleted": True, "active": 0, "until": 0}
    assert talk.ask("QUEUEDELETE", queue="q", force=True) == gone
    assert talk.ask("QUEUES") == {"ok": True, "queues": []}


def test_a_seek_tells_where_the_group_reads_on() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", messages=[1, 2])
    talk.ask("PUSH", queue="q", payload=3, partition="p")
    talk.ask("POP", queue="q", count=9)
    partitions = [{"partition": "default", "cursor": 2}, {"partition": "p", "cursor": 1}]
    assert talk.ask("SEEK", queue="q", to="new") == {"ok": True, "partitions": partitions}
    answer = talk.ask("SEEK", queue="q", partition="default", offset=1, reqId=1)
    assert answer["partitions"] == [{"partition": "default", "cursor": 1}]


def test_a_seek_goes_to_one_place() -> None:
    accepted = "given, or else an offset, and only one of them"
    assert invalid("SEEK", queue="q", to="new", partition="p", offset=4) == ("to", accepted)
    assert invalid("SEEK", queue="q") == ("to", accepted)


STATES = "waiting, delayed, parked, active, completed, dead, expired, cancelled, evicted, discarded"


def test_states_are_refused_by_listing_those_there_are() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", payload=1)
    with pytest.raises(Invalid) as refused:
        talk.ask("BROWSE", queue="q", state="failed")
    assert refused.value.details == {"field": "state", "accepted": f"one of {STATES}"}
    purged = "waiting, delayed, parked, dead, completed"
    assert invalid("PURGE", queue="q", states=["failed"]) == ("states", f"a list of some of {purged}")


def test_a_partition_shows_what_it_keeps_otherwise_than_its_queue() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", payload=1)
    assert talk.ask("QUEUE", queue="q")["partitions"][0]["retention"] == {}
    own = {"retention_ms": 5, "completed_retention_ms": 6}
    (shown,) = talk.ask("QUEUE", queue="q", partition="default", options=own)["partitions"]
    assert (shown["partition"], shown["retention"]) == ("default", own)
    (shown,) = talk.ask("QUEUE", queue="q", partition="default", options={"retention_ms": None})["partitions"]
    assert shown["retention"] == {"completed_retention_ms": 6}
    for wrong in ({"options": {"retention_ms": None}}, {"partition": "default"}):
        assert talk.refusal(body_of({"cmd": "QUEUE", "queue": "q", **wrong}))["error"]["code"] == "invalid"


def test_ids_from_2_53_on_go_out_as_strings_in_every_reply() -> None:
    talk = Talk(numbers_made=1 << 22)
    first = talk.ask("PUSH", queue="q", messages=[1, 2])["first"]
    assert isinstance(first, str)
    assert talk.ask("UPDATE", id=first, payload=2)["id"] == first
    for cmd in ("RESULT", "PARTIALS", "PROGRESS", "LOGS", "STATE", "MESSAGE"):
        assert talk.ask(cmd, id=first)["id"] == first
    assert first in [each["id"] for each in talk.ask("BROWSE", queue="q")["messages"]]
    assert talk.ask("DISCARD", ids=[first, int(first) + 9])["refused"] == [str(int(first) + 9)]


def test_what_can_not_be_read_back_is_said_to_be_damaged() -> None:
    talk = Talk()
    message = talk.ask("PUSH", queue="q", payload=1)["id"]
    talk.ask("LOG", id=message, message="m")
    request = codec.decode(body_of({"cmd": "LOGS", "id": message}))
    found = talk.engine.apply(request.command(CONTEXT), NOW)
    assert isinstance(found, queries.NotesFound)
    found.notes[0][0].segment.payloads = None
    answer = json.loads(codec.encode(request, found, CONTEXT))
    assert (answer["ok"], answer["error"]["code"]) == (False, Damaged.code)


# What can't be.


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("ACK", {"lease": "3", "result": 1}, "result"),
        ("ACK", {"ids": [1, 2], "result": 1}, "result"),
        ("ACK", {"ids": [1, 2], "results": [1]}, "results"),
        ("ACK", {"ids": [1], "results": [1, 2]}, "results"),
        ("ACK", {"lease": "0000000000000000000000000003", "results": [1]}, "results"),
        ("ACK", {"ids": [1], "results": 5}, "results"),
        ("SETPROGRESS", {"id": 1, "progress": 101}, "progress"),
        ("SETPROGRESS", {"id": 1, "progress": -1}, "progress"),
        ("SETPROGRESS", {"id": 1, "progress": 1.5}, "progress"),
        ("LOG", {"id": 1, "message": "m", "level": ""}, "level"),
        ("LOG", {"id": 1, "message": "m", "level": "x" * 33}, "level"),
        ("LOG", {"id": 1, "message": 5}, "message"),
        ("RESULT", {"id": 1, "wait_ms": -1}, "wait_ms"),
        ("RESULT", {"id": 1, "wait_ms": 1 << 40}, "wait_ms"),
        ("DISCARD", {}, "ids"),
        ("DISCARD", {"ids": []}, "ids"),
        ("DISCARD", {"ids": [1], "group": ""}, "group"),
        ("PURGE", {"queue": "q", "states": ["active"]}, "states"),
        ("PURGE", {"queue": "q", "states": []}, "states"),
        ("PURGE", {"queue": "q", "states": ["dead"], "grace_ms": -1}, "grace_ms"),
        ("PURGE", {"queue": "q", "states": ["dead"], "limit": 0}, "limit"),
        ("PURGE", {"queue": "q", "dry_run": True, "grace_ms": 5}, "grace_ms"),
        ("PURGE", {"queue": "q", "dry_run": True, "limit": 5}, "limit"),
        ("DRAIN", {"queue": "q", "group": ""}, "group"),
        ("QUEUEDELETE", {"queue": "no such name", "force": True}, "queue"),
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
        b'{"cmd":"ACK","ids":[1],"result":%s}' % deep,
        b'{"cmd":"ACK","ids":[1],"results":[%s]}' % deep,
        b'{"cmd":"PARTIAL","id":1,"payload":%s}' % deep,
        b'{"cmd":"UPDATE","id":1,"payload":%s}' % deep,
    ):
        assert talk.refusal(body)["error"]["details"]["field"] == "payload"
