"""Requests to commands of the core, and its replies to answers."""

import json

import pytest

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.errors import CODES, Busy, ForebayError, Invalid, NotFound, Unsupported
from forebay.core.state import PLAIN, Attributes, Backoff
from forebay.server.flashq import decode, refusals
from forebay.server.flashq.refusals import COMMANDS_LATER
from tests.server.talking import CONTEXT, NOW, UUID, Fields, Talk, body_of, command_of


def plain(command: core.Command) -> core.Command:
    """A command whose payloads can be compared."""
    if isinstance(command, core.Push):
        command.payloads = [bytes(each) for each in command.payloads]
    if isinstance(command, core.PushMany):
        command.pushes = [
            (name, [bytes(each) for each in payloads], attributes)
            for name, payloads, attributes in command.pushes
        ]
    return command


# Requests to commands.

POP_ALL = {"timeout": 5, "group": "g", "partition": "p", "lease_ms": 9, "from": "new"}
SETTLE_ALL = {"ids": [1, 2], "lease": "3", "group": "g"}
OPTIONS = {
    "priority": 3,
    "delay": 4,
    "lifo": True,
    "ttl": 5,
    "timeout": 6,
    "max_attempts": 7,
}
ATTRIBUTES = (3, 4, True, 5, 6, 7)


@pytest.mark.parametrize(
    ("cmd", "fields", "command"),
    [
        ("PUSH", {"queue": "q", "data": {"a": 1}}, core.Push("acme", "q", [b'{"a": 1}'], "default")),
        ("PUSH", {"queue": "q", "data": None, "partition": "p"}, core.Push("acme", "q", [b"null"], "p")),
        ("PUSHB", {"queue": "q", "messages": [1, "b"]}, core.Push("acme", "q", [b"1", b'"b"'], "default")),
        ("PUSHB", {"queue": "q", "messages": [1], "partition": "p"}, core.Push("acme", "q", [b"1"], "p")),
        (
            "PUSHB",
            {"queue": "q", "jobs": [{"data": 1}, {"data": 2}]},
            core.PushMany("acme", "q", [("default", [b"1", b"2"], PLAIN)]),
        ),
        (
            "PUSHB",
            {
                "queue": "q",
                "jobs": [{"data": 1, "partition": "b"}, {"data": 2}, {"data": 3, "partition": "b"}],
            },
            core.PushMany("acme", "q", [("b", [b"1", b"3"], PLAIN), ("default", [b"2"], PLAIN)]),
        ),
        (
            "PULL",
            {"queue": "q"},
            core.Pop("acme", "q", "default", 1, 1, None, None, "all", 60_000, 7),
        ),
        ("PULL", {"queue": "q", **POP_ALL}, core.Pop("acme", "q", "g", 1, 1, "p", 9, "new", 5, 7)),
        ("PULL", {"queue": "q", "from": 12}, core.Pop("acme", "q", start=12, wait_ms=60_000, owner=7)),
        (
            "PULL",
            {"queue": "q", "partition": None, "lease_ms": None},
            core.Pop("acme", "q", wait_ms=60_000, owner=7),
        ),
        ("PULLB", {"queue": "q", "count": 3}, core.Pop("acme", "q", count=3, wait_ms=60_000, owner=7)),
        (
            "PULLB",
            {"queue": "q", "count": 3, "min_count": 2, "compact": True, **POP_ALL},
            core.Pop("acme", "q", "g", 3, 2, "p", 9, "new", 5, 7),
        ),
        ("ACK", {"id": 5}, core.Ack("acme", None, [5], None, 7)),
        ("ACK", {"lease": "3"}, core.Ack("acme", "3", None, None, 7)),
        ("ACK", SETTLE_ALL, core.Ack("acme", "3", [1, 2], "g", 7)),
        ("ACKB", {"ids": [5]}, core.Ack("acme", None, [5], None, 7, partial=True)),
        ("ACKB", {"lease": "3"}, core.Ack("acme", "3", None, None, 7, partial=True)),
        ("ACKB", SETTLE_ALL, core.Ack("acme", "3", [1, 2], "g", 7, partial=True)),
        ("FAIL", {"id": 5}, core.Nack("acme", None, [5], None, 7)),
        ("FAIL", {"lease": "3", "error": "boom"}, core.Nack("acme", "3", None, None, 7, error="boom")),
        ("FAIL", {**SETTLE_ALL, "error": ""}, core.Nack("acme", "3", [1, 2], "g", 7, error="")),
        ("EXTEND", {"id": 5}, core.Extend("acme", None, [5], None, 7)),
        ("HEARTBEAT", {"id": 5}, core.Extend("acme", None, [5], None, 7)),
        ("EXTEND", {"lease": "3", "lease_ms": 10}, core.Extend("acme", "3", None, None, 7, lease_ms=10)),
        ("EXTEND", SETTLE_ALL, core.Extend("acme", "3", [1, 2], "g", 7)),
        ("READ", {"queue": "q", "offset": 4}, queries.Read("acme", "q", 4, "default", None, None)),
        (
            "READ",
            {"queue": "q", "offset": 4, "partition": "p", "max_bytes": 5, "max_count": 6},
            queries.Read("acme", "q", 4, "p", 6, 5),
        ),
        ("OFFSETS", {"queue": "q"}, queries.Offsets("acme", "q", None)),
        ("OFFSETS", {"queue": "q", "at": 12}, queries.Offsets("acme", "q", 12)),
        ("QUEUE", {"queue": "q"}, queries.Describe("acme", "q")),
        ("QUEUE", {"queue": "q", "options": None}, queries.Describe("acme", "q")),
        ("QUEUE", {"queue": "q", "options": {}}, core.Configure("acme", "q")),
        (
            "QUEUE",
            {
                "queue": "q",
                "options": {"lease_ms": 1, "completed_retention_ms": 2, "completed_retention_bytes": 3},
            },
            core.Configure("acme", "q", lease_ms=1, completed_retention_ms=2, completed_retention_bytes=3),
        ),
        (
            "PUSH",
            {"queue": "q", "data": 1, **OPTIONS, "backoff": [5, 6]},
            core.Push(
                "acme", "q", [b"1"], attributes=Attributes(*ATTRIBUTES, Backoff("list", 0, 0, steps=(5, 6)))
            ),
        ),
        (
            "PUSHB",
            {"queue": "q", "messages": [1, 2], **OPTIONS},
            core.Push("acme", "q", [b"1", b"2"], attributes=Attributes(*ATTRIBUTES)),
        ),
        (
            "PUSHB",
            {"queue": "q", "jobs": [{"data": 1, "priority": 3}, {"data": 2}, {"data": 3, "priority": 3}]},
            core.PushMany(
                "acme",
                "q",
                [
                    ("default", [b"1"], Attributes(3)),
                    ("default", [b"2"], PLAIN),
                    ("default", [b"3"], Attributes(3)),
                ],
            ),
        ),
        ("FAIL", {"id": 5, "delay": 9}, core.Nack("acme", None, [5], None, 7, delay_ms=9)),
        ("CANCEL", {"id": 5}, core.Cancel("acme", [5])),
        ("CANCEL", {"ids": [5, 6], "group": "g"}, core.Cancel("acme", [5, 6], "g")),
        ("PROMOTE", {"id": 5}, core.Move("acme", [5], delay_ms=0, only_delayed=True)),
        ("MOVETODELAYED", {"id": 5, "delay": 9}, core.Move("acme", [5], delay_ms=9)),
        (
            "CHANGEPRIORITY",
            {"ids": [5], "priority": -3, "group": "g"},
            core.Move("acme", [5], "g", priority=-3),
        ),
        ("DLQ", {"queue": "q"}, queries.ListDead("acme", "q")),
        (
            "DLQ",
            {"queue": "q", "count": 5, "offset": 6, "group": "g"},
            queries.ListDead("acme", "q", "g", 5, 6),
        ),
        ("RETRYDLQ", {"queue": "q"}, core.Requeue("acme", "q")),
        ("RETRYDLQ", {"queue": "q", "id": 5, "group": "g"}, core.Requeue("acme", "q", "g", [5])),
        ("PURGEDLQ", {"queue": "q", "ids": [5]}, core.Purge("acme", "q", ids=[5])),
        ("PURGEDLQ", {"queue": "q", "dry_run": True}, core.Purge("acme", "q", dry_run=True)),
        ("PAUSE", {"queue": "q"}, core.Pause("acme", "q")),
        ("PAUSE", {"queue": "q", "until": 12}, core.Pause("acme", "q", 12)),
        ("RESUME", {"queue": "q"}, core.Resume("acme", "q")),
        (
            "QUEUE",
            {
                "queue": "q",
                "options": {
                    "max_attempts": 5,
                    "backoff": {"kind": "fixed", "base_ms": 7, "jitter": 0.5},
                    "max_deliveries": 6,
                    "dead_letters": False,
                    "on_lease_expiry": "requeue",
                },
            },
            core.Configure(
                "acme",
                "q",
                max_attempts=5,
                backoff=Backoff("fixed", 7, 7 << 10, 0.5),
                max_deliveries=6,
                dead_letters=False,
                on_lease_expiry="requeue",
            ),
        ),
        ("LISTQUEUES", {}, queries.ListQueues("acme")),
        ("GETSTATE", {"id": 5}, queries.State("acme", 5, "default")),
        ("GETSTATE", {"id": 5, "group": "g"}, queries.State("acme", 5, "g")),
        ("STATS", {}, queries.Stats("acme")),
        ("BACKUP", {"directory": "/b"}, core.Backup("acme", "/b")),
        ("HOLD", {}, core.Hold("acme", True)),
        ("HOLD", {"held": False}, core.Hold("acme", False)),
        (
            "QUEUE",
            {"queue": "q", "options": {"durability": "os"}},
            core.Configure("acme", "q", durability="os"),
        ),
    ],
)
def test_a_request_is_the_core_command_it_stands_for(cmd: str, fields: Fields, command: core.Command) -> None:
    assert plain(command_of(cmd, **fields)) == command
    assert plain(command_of(cmd, **fields, reqId=1)) == command


def test_every_command_is_known_by_its_name() -> None:
    assert set(refusals.COMMANDS) == {
        "FLOW",
        "TX",
        "GETCHILDREN",
        "GETJOBBYCUSTOMID",
        "CRON",
        "CRONDELETE",
        "CRONLIST",
        "RATELIMIT",
        "RATELIMITCLEAR",
        "SETCONCURRENCY",
        "CLEARCONCURRENCY",
        "LIMIT",
        "LIMITDELETE",
        "LIMITLIST",
        "KVSET",
        "KVMSET",
        "KVGET",
        "KVMGET",
        "KVDEL",
        "KVEXISTS",
        "KVEXPIRE",
        "KVTTL",
        "KVKEYS",
        "KVINCR",
        "KVLIST",
        "KVATOMIC",
        "KVWATCH",
        "STAGE",
        "ADOPT",
        "UNSTAGE",
        "PUSH",
        "PUSHB",
        "PULL",
        "PULLB",
        "ACK",
        "ACKB",
        "FAIL",
        "EXTEND",
        "HEARTBEAT",
        "READ",
        "OFFSETS",
        "QUEUE",
        "LISTQUEUES",
        "GETSTATE",
        "STATS",
        "BACKUP",
        "HOLD",
        "CANCEL",
        "PROMOTE",
        "MOVETODELAYED",
        "CHANGEPRIORITY",
        "DLQ",
        "RETRYDLQ",
        "PURGEDLQ",
        "PAUSE",
        "RESUME",
        "ISPAUSED",
        "GETJOBCOUNTS",
        "COUNT",
        "GETJOB",
        "GETJOBSBATCH",
        "GETJOBS",
        "GETRESULT",
        "WAITJOB",
        "PROGRESS",
        "GETPROGRESS",
        "LOG",
        "GETLOGS",
        "PARTIAL",
        "UPDATEJOB",
        "UPDATE",
        "DISCARD",
        "SEEK",
        "DRAIN",
        "CLEAN",
        "OBLITERATE",
        "BROWSE",
        "PURGE",
        "DELETE",
        "GROUP",
        "GROUPDELETE",
        "EVENTS",
        "RELEASE",
    }
    assert not COMMANDS_LATER & set(refusals.COMMANDS)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (1_000, Backoff("exponential", 1_000, 1_024_000)),
        (0, Backoff("none", 0, 0)),
        ([1, 2], Backoff("list", 0, 0, steps=(1, 2))),
        ({"kind": "fixed", "base_ms": 5}, Backoff("fixed", 5, 5 << 10)),
        ({"base_ms": 5, "cap_ms": 6, "jitter": 1}, Backoff("exponential", 5, 6, 1.0)),
    ],
)
def test_jobs_may_each_have_a_backoff_of_any_form(given: object, meant: Backoff) -> None:
    job = {"data": 1, "backoff": given}
    wanted = core.PushMany("acme", "q", [("default", [b"1", b"1"], Attributes(backoff=meant))])
    assert plain(command_of("PUSHB", queue="q", jobs=[job, job])) == wanted


def test_the_ids_of_jobs_come_in_their_order_whatever_their_options() -> None:
    talk = Talk()
    jobs = [
        {"data": 0, "priority": 1},
        {"data": 1, "partition": "p"},
        {"data": 2},
        {"data": 3, "partition": "p", "delay": 5},
        {"data": 4, "priority": 1},
    ]
    ids = talk.ask("PUSHB", queue="q", jobs=jobs)["ids"]
    log = {run["first"]: run["messages"] for name in ("default", "p") for run in _runs(talk, name)}
    found = {first + at: data for first, messages in log.items() for at, data in enumerate(messages)}
    assert [found[each] for each in ids] == [0, 1, 2, 3, 4]


def _runs(talk: Talk, partition: str) -> list[Fields]:
    runs: list[Fields] = talk.ask("READ", queue="q", partition=partition, offset=0)["runs"]
    return runs


def test_a_payload_is_kept_as_it_was_written() -> None:
    command = decode.decode(b'{"data": [1.0,  2e3 , "\\u00e9"] ,"queue":"q","cmd":"PUSH"}').command(CONTEXT)
    assert plain(command) == core.Push("acme", "q", [b'[1.0,  2e3 , "\\u00e9"]'])


def test_the_order_of_fields_does_not_matter() -> None:
    assert decode.decode(b'{"reqId":1,"queue":"q","cmd":"QUEUE"}').command(CONTEXT) == queries.Describe(
        "acme", "q"
    )


# Ids.


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (0, 0),
        (5, 5),
        ("5", 5),
        ("0", 0),
        (1 << 53, 1 << 53),
        (str(1 << 53), 1 << 53),
        ((1 << 64) - 1, (1 << 64) - 1),
        (str((1 << 64) - 1), (1 << 64) - 1),
        (UUID, ids.address(65, 1)),
        (UUID.upper(), ids.address(65, 1)),
    ],
)
def test_an_id_is_taken_as_number_as_decimal_string_and_as_uuid(given: int | str, address: int) -> None:
    assert command_of("GETSTATE", id=given) == queries.State("acme", address, "default")
    assert command_of("ACK", id=given) == core.Ack("acme", None, [address], None, 7)
    assert command_of("ACKB", ids=[given, 1]) == core.Ack("acme", None, [address, 1], None, 7, partial=True)


# Replies.


def encoded(cmd: str, fields: Fields, reply: object) -> str:
    return decode.encode(decode.decode(body_of({"cmd": cmd, **fields})), reply, CONTEXT).decode()


@pytest.mark.parametrize("first", [0, (1 << 53) - 1])
def test_an_id_below_2_53_goes_out_as_a_number(first: int) -> None:
    pushed = core.Pushed(first, 1, NOW, "os")
    wanted = f'{{"ok":true,"id":{first},"durability":"os"}}'
    assert encoded("PUSH", {"queue": "q", "data": 1}, pushed) == wanted


@pytest.mark.parametrize("first", [1 << 53, (1 << 64) - 1])
def test_an_id_from_2_53_on_goes_out_as_a_string(first: int) -> None:
    pushed = core.Pushed(first, 1, NOW, "fsync")
    wanted = f'{{"ok":true,"id":"{first}","durability":"fsync"}}'
    assert encoded("PUSH", {"queue": "q", "data": 1}, pushed) == wanted


def test_ids_from_2_53_on_go_out_as_strings_in_every_reply() -> None:
    talk = Talk(numbers_made=1 << 22)
    first = talk.ask("PUSH", queue="q", data=1)["id"]
    number = int(first)
    assert first == str(number)
    assert number >= 1 << 53
    assert talk.ask("PUSHB", queue="q", messages=[2, 3])["first"] == str(number + 1)
    assert talk.ask("PUSHB", queue="q", jobs=[{"data": 4}])["ids"] == [str(number + 3)]
    assert talk.ask("PULL", queue="q", timeout=0)["job"]["id"] == first
    jobs = talk.ask("PULLB", queue="q", count=2, timeout=0)["jobs"]
    assert [job["id"] for job in jobs] == [str(number + 1), str(number + 2)]
    runs = talk.ask("PULLB", queue="q", count=2, timeout=0, compact=True)["runs"]
    assert [run["first"] for run in runs] == [str(number + 3)]
    assert talk.ask("READ", queue="q", offset=0)["runs"][0]["first"] == first
    assert talk.ask("GETSTATE", id=first)["id"] == first
    assert talk.ask("ACKB", ids=[first, number + 4])["refused"] == [str(number + 4)]


def test_the_uuid_of_a_message_means_the_same_message() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", data=1)["id"]
    talk.ask("PULL", queue="q", timeout=0)
    uuid = talk.ask("GETSTATE", id=first)["uuid"]
    assert ids.from_uuid(uuid) == first
    assert talk.ask("GETSTATE", id=uuid)["id"] == first
    assert talk.ask("ACK", id=uuid) == {"ok": True}
    assert talk.ask("GETSTATE", id=str(first))["state"] == "completed"


@pytest.mark.parametrize("given", [1, "one", 0, ""])
def test_a_reply_carries_the_req_id_of_its_request(given: int | str) -> None:
    talk = Talk()
    requests: list[tuple[str, Fields]] = [
        ("PUSH", {"queue": "q", "data": 1}),
        ("PUSHB", {"queue": "q", "messages": [1]}),
        ("PUSHB", {"queue": "q", "jobs": [{"data": 1}]}),
        ("PULL", {"queue": "q", "timeout": 0}),
        ("PULLB", {"queue": "q", "count": 1, "timeout": 0}),
        ("PULLB", {"queue": "q", "count": 1, "timeout": 0, "compact": True}),
        ("PULL", {"queue": "q", "timeout": 0}),
        ("READ", {"queue": "q", "offset": 0}),
        ("OFFSETS", {"queue": "q"}),
        ("QUEUE", {"queue": "q"}),
        ("QUEUE", {"queue": "q", "options": {}}),
        ("LISTQUEUES", {}),
        ("STATS", {}),
        ("ACKB", {"ids": [5]}),
    ]
    for cmd, fields in requests:
        assert talk.ask(cmd, **fields, reqId=given)["reqId"] == given
        assert "reqId" not in talk.ask(cmd, **fields)


def test_what_settles_carries_the_req_id_of_its_request() -> None:
    talk = Talk()
    talk.ask("PUSHB", queue="q", messages=[1, 2, 3])
    for cmd in ("EXTEND", "FAIL", "ACK"):
        lease = talk.ask("PULL", queue="q", timeout=0)["job"]["lease"]
        assert talk.ask(cmd, lease=lease, reqId="r")["reqId"] == "r"


def test_a_queue_without_errors_says_nothing_of_them() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", data=1)["id"]
    assert "error" not in talk.ask("GETSTATE", id=first)


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (Invalid("colour", "red"), {"field": "colour", "accepted": "red"}),
        (Busy("later", retry_after_ms=5), {"retry_after_ms": 5}),
        (NotFound("gone"), None),
        (Unsupported("not yet"), None),
    ],
)
def test_an_error_goes_out_with_its_code_and_its_details(error: ForebayError, details: Fields | None) -> None:
    request = decode.decode(b'{"cmd":"STATS","reqId":3}')
    answer = json.loads(decode.encode(request, error, CONTEXT))
    assert answer.pop("details", None) == details
    assert answer == {"reqId": 3, "ok": False, "error": error.message, "code": error.code}
    assert error.code in CODES


def test_an_error_without_a_req_id_has_none() -> None:
    assert json.loads(decode.encode_error(NotFound("gone"))) == {
        "ok": False,
        "error": "gone",
        "code": "not_found",
    }


def test_a_payload_comes_out_as_it_went_in() -> None:
    talk = Talk()
    written = b'{"b": 1.0,"a":[1e3, "\\u00e9\\/"]}'
    talk.engine.apply(core.Push("acme", "q", [written]), NOW)
    request = decode.decode(b'{"cmd":"PULLB","queue":"q","count":1,"group":"jobs","timeout":0}')
    compact = decode.decode(b'{"cmd":"PULLB","queue":"q","count":1,"timeout":0,"compact":true}')
    read = decode.decode(b'{"cmd":"READ","queue":"q","offset":0}')
    for each in (request, compact, read):
        answer = decode.encode(each, talk.engine.apply(each.command(CONTEXT), NOW), CONTEXT)
        assert written in answer
