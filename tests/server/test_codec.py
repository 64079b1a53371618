"""Requests to commands of the core, and its replies to answers."""

import json

import pytest

from forebay.core import ids
from forebay.core.api import commands as core, jobs as job_commands, queries
from forebay.core.errors import CODES, Busy, ForebayError, Invalid, NotFound, Unsupported
from forebay.core.state import PLAIN, Attributes, Backoff, Identity
from forebay.server.cursors import EFFORT
from forebay.server.operations import codec
from forebay.server.operations.table import COMMANDS
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
    if isinstance(command, job_commands.PushJobs):
        for job in command.jobs:
            job.payload = bytes(job.payload)
    return command


# Requests to commands.

POP_ALL = {"wait_ms": 5, "group": "g", "partition": "p", "lease_ms": 9, "from": "new"}
SETTLE_ALL = {"ids": [1, 2], "lease": "3", "group": "g"}
OPTIONS = {
    "priority": 3,
    "delay_ms": 4,
    "lifo": True,
    "ttl_ms": 5,
    "timeout_ms": 6,
    "max_attempts": 7,
}
ATTRIBUTES = (3, 4, True, 5, 6, 7)


@pytest.mark.parametrize(
    ("cmd", "fields", "command"),
    [
        ("PUSH", {"queue": "q", "payload": {"a": 1}}, core.Push("acme", "q", [b'{"a": 1}'], "default")),
        ("PUSH", {"queue": "q", "payload": None, "partition": "p"}, core.Push("acme", "q", [b"null"], "p")),
        ("PUSH", {"queue": "q", "messages": [1, "b"]}, core.Push("acme", "q", [b"1", b'"b"'], "default")),
        ("PUSH", {"queue": "q", "messages": [1], "partition": "p"}, core.Push("acme", "q", [b"1"], "p")),
        (
            "PUSH",
            {"queue": "q", "items": [{"payload": 1}, {"payload": 2}]},
            core.PushMany("acme", "q", [("default", [b"1", b"2"], PLAIN)]),
        ),
        (
            "PUSH",
            {
                "queue": "q",
                "items": [
                    {"payload": 1, "partition": "b"},
                    {"payload": 2},
                    {"payload": 3, "partition": "b"},
                ],
            },
            core.PushMany("acme", "q", [("b", [b"1", b"3"], PLAIN), ("default", [b"2"], PLAIN)]),
        ),
        (
            "PUSH",
            {"queue": "q", "payload": 1, **OPTIONS, "backoff": [5, 6]},
            core.Push(
                "acme", "q", [b"1"], attributes=Attributes(*ATTRIBUTES, Backoff("list", 0, 0, steps=(5, 6)))
            ),
        ),
        (
            "PUSH",
            {"queue": "q", "messages": [1, 2], **OPTIONS},
            core.Push("acme", "q", [b"1", b"2"], attributes=Attributes(*ATTRIBUTES)),
        ),
        (
            "PUSH",
            {
                "queue": "q",
                "items": [{"payload": 1, "priority": 3}, {"payload": 2}, {"payload": 3, "priority": 3}],
            },
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
        (
            "PUSH",
            {"queue": "q", "payload": 1, "headers": {"h": "1"}, "tags": ["t"]},
            core.Push("acme", "q", [b"1"], attributes=Attributes(headers=(("h", "1"),), tags=("t",))),
        ),
        (
            "PUSH",
            {"queue": "q", "payload": 1, "job_id": "j", "key": "k"},
            job_commands.PushJobs(
                "acme", "q", [job_commands.Job(b"1", "k", PLAIN, Identity(job_id="j"), True)]
            ),
        ),
        (
            "PUSH",
            {"queue": "q", "items": [{"payload": 1, "unique_key": "u", "dedup": "replace"}, {"payload": 2}]},
            job_commands.PushJobs(
                "acme",
                "q",
                [
                    job_commands.Job(b"1", "default", PLAIN, Identity("u", "replace")),
                    job_commands.Job(b"2", "default", PLAIN),
                ],
            ),
        ),
        (
            "PUSH",
            {
                "queue": "q",
                "messages": [1],
                "durability": "os",
                "idempotency_key": "k",
                "producer": "me",
                "idempotency_ms": 5,
            },
            job_commands.PushJobs(
                "acme", "q", [job_commands.Job(b"1", "default", PLAIN)], "os", ("me", "k"), None, 5
            ),
        ),
        ("POP", {"queue": "q"}, core.Pop("acme", "q", "default", 1, 1, None, None, "all", 0, 7)),
        ("POP", {"queue": "q", **POP_ALL}, core.Pop("acme", "q", "g", 1, 1, "p", 9, "new", 5, 7)),
        ("POP", {"queue": "q", "from": 12}, core.Pop("acme", "q", start=12, owner=7)),
        ("POP", {"queue": "q", "partition": None, "lease_ms": None}, core.Pop("acme", "q", owner=7)),
        ("POP", {"queue": "q", "count": 3}, core.Pop("acme", "q", count=3, owner=7)),
        (
            "POP",
            {"queue": "q", "count": 3, "min_count": 2, "compact": True, **POP_ALL},
            core.Pop("acme", "q", "g", 3, 2, "p", 9, "new", 5, 7),
        ),
        ("ACK", {"ids": [5]}, core.Ack("acme", None, [5], None, 7)),
        ("ACK", {"lease": "3"}, core.Ack("acme", "3", None, None, 7)),
        ("ACK", SETTLE_ALL, core.Ack("acme", "3", [1, 2], "g", 7)),
        ("NACK", {"ids": [5]}, core.Nack("acme", None, [5], None, 7)),
        ("NACK", {"lease": "3", "error": "boom"}, core.Nack("acme", "3", None, None, 7, error="boom")),
        ("NACK", {**SETTLE_ALL, "error": ""}, core.Nack("acme", "3", [1, 2], "g", 7, error="")),
        ("NACK", {"ids": [5], "delay_ms": 9}, core.Nack("acme", None, [5], None, 7, delay_ms=9)),
        ("NACK", {"ids": [5], "final": True}, core.Nack("acme", None, [5], None, 7, final=True)),
        ("RELEASE", {"ids": [5]}, core.Nack("acme", None, [5], None, 7, undelivered=True)),
        (
            "RELEASE",
            {"ids": [5], "error": "new", "defer_ms": 9},
            core.Nack("acme", None, [5], None, 7, error="new", undelivered=True, defer_ms=9),
        ),
        ("RELEASE", SETTLE_ALL, core.Nack("acme", "3", [1, 2], "g", 7, undelivered=True)),
        ("EXTEND", {"ids": [5]}, core.Extend("acme", None, [5], None, 7)),
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
        (
            "QUEUE",
            {"queue": "q", "options": {"durability": "os"}},
            core.Configure("acme", "q", durability="os"),
        ),
        ("QUEUES", {}, queries.ListQueues("acme")),
        ("CANCEL", {"ids": [5]}, core.Cancel("acme", [5])),
        ("CANCEL", {"ids": [5, 6], "group": "g"}, core.Cancel("acme", [5, 6], "g")),
        ("PROMOTE", {"ids": [5]}, core.Move("acme", [5], delay_ms=0, only_delayed=True)),
        ("DELAY", {"ids": [5], "delay_ms": 9}, core.Move("acme", [5], delay_ms=9)),
        ("PRIORITY", {"ids": [5], "priority": -3, "group": "g"}, core.Move("acme", [5], "g", priority=-3)),
        ("DEAD", {"queue": "q"}, queries.ListDead("acme", "q")),
        (
            "DEAD",
            {"queue": "q", "limit": 5, "skip": 6, "group": "g"},
            queries.ListDead("acme", "q", "g", 5, 6),
        ),
        ("REQUEUE", {"queue": "q"}, core.Requeue("acme", "q")),
        ("REQUEUE", {"queue": "q", "ids": [5], "group": "g"}, core.Requeue("acme", "q", "g", [5])),
        ("DEADPURGE", {"queue": "q", "ids": [5]}, core.Purge("acme", "q", ids=[5])),
        ("DEADPURGE", {"queue": "q", "dry_run": True}, core.Purge("acme", "q", dry_run=True)),
        ("PAUSE", {"queue": "q"}, core.Pause("acme", "q")),
        ("PAUSE", {"queue": "q", "until": 12}, core.Pause("acme", "q", 12)),
        ("RESUME", {"queue": "q"}, core.Resume("acme", "q")),
        ("MESSAGE", {"id": 5}, queries.Show("acme", [5])),
        ("MESSAGE", {"id": 5, "queue": "q", "group": "g"}, queries.Show("acme", [5], "g")),
        ("MESSAGES", {"ids": [5, "6"]}, queries.Show("acme", [5, 6])),
        ("FIND", {"job_id": "j"}, queries.FindJob("acme", "j", None)),
        ("FIND", {"job_id": "j", "queue": "q"}, queries.FindJob("acme", "j", "q")),
        ("STATE", {"id": 5}, queries.State("acme", 5, "default", by_result=True)),
        ("STATE", {"id": 5, "group": "g"}, queries.State("acme", 5, "g", by_result=True)),
        ("GROUPS", {"queue": "q"}, queries.Describe("acme", "q")),
        ("GROUP", {"queue": "q"}, queries.DescribeGroup("acme", "q", "default")),
        ("GROUPPUT", {"queue": "q", "group": "g", "from": "new"}, core.GroupPut("acme", "q", "g", "new")),
        ("GROUPDELETE", {"queue": "q", "group": "g"}, core.GroupDelete("acme", "q", "g")),
        ("STATS", {}, queries.Stats("acme")),
        ("BACKUP", {"directory": "/b"}, core.Backup("acme", "/b")),
        ("HOLD", {}, core.Hold("acme", True)),
        ("HOLD", {"held": False}, core.Hold("acme", False)),
    ],
)
def test_a_request_is_the_core_command_it_stands_for(cmd: str, fields: Fields, command: core.Command) -> None:
    assert plain(command_of(cmd, **fields)) == command
    assert plain(command_of(cmd, **fields, reqId=1)) == command


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": "dead", "group": "g"},
        {"partition": "p", "tag": "t", "since": 4, "before": 5},
    ],
)
def test_a_browse_is_pages_of_what_its_filter_finds(fields: Fields) -> None:
    request = codec.decode(body_of({"cmd": "BROWSE", "queue": "q", **fields}))
    page: Fields = {"count": 7, "after": (65, 1), "counted": False, "effort": EFFORT}
    assert request.browse(CONTEXT, 7, (65, 1), False) == queries.Browse("acme", "q", **fields, **page)


def test_every_operation_is_known_by_its_name() -> None:
    assert set(COMMANDS) == {
        "AUTH",
        "TENANT",
        "TENANTPUT",
        "TENANTS",
        "TOKENCREATE",
        "TOKENREVOKE",
        "TOKENS",
        "PUSH",
        "POP",
        "ACK",
        "NACK",
        "RELEASE",
        "EXTEND",
        "TX",
        "BROWSE",
        "MESSAGE",
        "MESSAGES",
        "FIND",
        "STATE",
        "WORKER",
        "WORKERS",
        "CANCEL",
        "PROMOTE",
        "DELAY",
        "PRIORITY",
        "DISCARD",
        "UPDATE",
        "BULK",
        "READ",
        "OFFSETS",
        "RESULT",
        "PARTIAL",
        "PARTIALS",
        "SETPROGRESS",
        "PROGRESS",
        "LOG",
        "LOGS",
        "ATTEMPTS",
        "FLOW",
        "CHILDREN",
        "DEAD",
        "DEADGROUPS",
        "REQUEUE",
        "DEADPURGE",
        "QUEUES",
        "QUEUE",
        "QUEUEDELETE",
        "PAUSE",
        "RESUME",
        "DRAIN",
        "PURGE",
        "STATS",
        "GROUPS",
        "GROUP",
        "GROUPPUT",
        "GROUPDELETE",
        "SEEK",
        "CRONS",
        "CRON",
        "CRONPUT",
        "CRONDELETE",
        "LIMITS",
        "LIMITPUT",
        "LIMITDELETE",
        "KVLIST",
        "KVWRITE",
        "KVMGET",
        "KVWATCH",
        "KVADD",
        "KVGET",
        "KVSET",
        "KVDELETE",
        "STAGE",
        "ADOPT",
        "UNSTAGE",
        "HOLD",
        "BACKUP",
        "EVENTS",
        "WEBHOOKS",
        "WEBHOOKPUT",
        "WEBHOOKDELETE",
    }


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
def test_items_may_each_have_a_backoff_of_any_form(given: object, meant: Backoff) -> None:
    item = {"payload": 1, "backoff": given}
    wanted = core.PushMany("acme", "q", [("default", [b"1", b"1"], Attributes(backoff=meant))])
    assert plain(command_of("PUSH", queue="q", items=[item, item])) == wanted


def test_the_ids_of_items_come_in_their_order_whatever_their_options() -> None:
    talk = Talk()
    items = [
        {"payload": 0, "priority": 1},
        {"payload": 1, "partition": "p"},
        {"payload": 2},
        {"payload": 3, "partition": "p", "delay_ms": 5},
        {"payload": 4, "priority": 1},
    ]
    pushed = talk.ask("PUSH", queue="q", items=items)
    log = {run["first"]: run["payloads"] for name in ("default", "p") for run in _runs(talk, name)}
    found = {first + at: payload for first, payloads in log.items() for at, payload in enumerate(payloads)}
    assert [found[each] for each in pushed["ids"]] == [0, 1, 2, 3, 4]
    assert pushed["count"] == 5


def _runs(talk: Talk, partition: str) -> list[Fields]:
    runs: list[Fields] = talk.ask("READ", queue="q", partition=partition, offset=0)["runs"]
    return runs


def test_a_payload_is_kept_as_it_was_written() -> None:
    command = codec.decode(b'{"payload": [1.0,  2e3 , "\\u00e9"] ,"queue":"q","cmd":"PUSH"}').command(CONTEXT)
    assert plain(command) == core.Push("acme", "q", [b'[1.0,  2e3 , "\\u00e9"]'])


def test_the_order_of_fields_does_not_matter() -> None:
    request = codec.decode(b'{"reqId":1,"queue":"q","cmd":"QUEUE"}')
    assert request.command(CONTEXT) == queries.Describe("acme", "q")


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
    assert command_of("STATE", id=given) == queries.State("acme", address, "default", by_result=True)
    assert command_of("ACK", ids=[given]) == core.Ack("acme", None, [address], None, 7)
    assert command_of("ACK", ids=[given, 1]) == core.Ack("acme", None, [address, 1], None, 7)


# Replies.


def encoded(cmd: str, fields: Fields, reply: object) -> str:
    return codec.encode(codec.decode(body_of({"cmd": cmd, **fields})), reply, CONTEXT).decode()


@pytest.mark.parametrize("first", [0, (1 << 53) - 1])
def test_an_id_below_2_53_goes_out_as_a_number(first: int) -> None:
    pushed = core.Pushed(first, 1, NOW, "os")
    wanted = f'{{"ok":true,"id":{first},"durability":"os"}}'
    assert encoded("PUSH", {"queue": "q", "payload": 1}, pushed) == wanted


@pytest.mark.parametrize("first", [1 << 53, (1 << 64) - 1])
def test_an_id_from_2_53_on_goes_out_as_a_string(first: int) -> None:
    pushed = core.Pushed(first, 1, NOW, "fsync")
    wanted = f'{{"ok":true,"id":"{first}","durability":"fsync"}}'
    assert encoded("PUSH", {"queue": "q", "payload": 1}, pushed) == wanted


def test_ids_from_2_53_on_go_out_as_strings_in_every_reply() -> None:
    talk = Talk(numbers_made=1 << 22)
    first = talk.ask("PUSH", queue="q", payload=1)["id"]
    number = int(first)
    assert first == str(number)
    assert number >= 1 << 53
    assert talk.ask("PUSH", queue="q", messages=[2, 3])["first"] == str(number + 1)
    assert talk.ask("PUSH", queue="q", items=[{"payload": 4}])["ids"] == [str(number + 3)]
    (popped,) = talk.ask("POP", queue="q")["messages"]
    assert popped["id"] == first
    messages = talk.ask("POP", queue="q", count=2)["messages"]
    assert [message["id"] for message in messages] == [str(number + 1), str(number + 2)]
    runs = talk.ask("POP", queue="q", count=2, compact=True)["runs"]
    assert [run["first"] for run in runs] == [str(number + 3)]
    assert talk.ask("READ", queue="q", offset=0)["runs"][0]["first"] == first
    assert talk.ask("STATE", id=first)["id"] == first
    assert talk.ask("ACK", ids=[first, number + 4])["refused"] == [str(number + 4)]


def test_the_uuid_of_a_message_means_the_same_message() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", payload=1)["id"]
    talk.ask("POP", queue="q")
    uuid = talk.ask("STATE", id=first)["uuid"]
    assert ids.from_uuid(uuid) == first
    assert talk.ask("STATE", id=uuid)["id"] == first
    assert talk.ask("ACK", ids=[uuid]) == {"ok": True, "count": 1, "refused": []}
    assert talk.ask("STATE", id=str(first))["state"] == "completed"


def test_a_popped_message_says_all_of_itself() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", payload={"n": 1}, priority=2, headers={"h": "1"}, tags=["t"])["id"]
    popped = talk.ask("POP", queue="q", lease_ms=5_000)
    lease = popped["lease"]
    message = {
        "id": first,
        "queue": "q",
        "partition": "default",
        "offset": 0,
        "payload": {"n": 1},
        "created_at": NOW,
        "deliveries": 1,
        "failures": 0,
        "priority": 2,
        "lease": lease,
        "expires_at": NOW + 5_000,
        "headers": {"h": "1"},
        "tags": ["t"],
    }
    assert popped == {"ok": True, "lease": lease, "messages": [message]}
    assert talk.ask("POP", queue="q") == {"ok": True, "lease": None, "messages": []}
    assert talk.ask("POP", queue="q", compact=True) == {"ok": True, "lease": None, "runs": []}


def test_a_compact_pop_says_once_what_messages_share() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", messages=["a", "b"], priority=2, tags=["t"])["first"]
    popped = talk.ask("POP", queue="q", count=5, lease_ms=5_000, compact=True)
    run = {
        "partition": "default",
        "first": first,
        "offset": 0,
        "created_at": NOW,
        "deliveries": 1,
        "failures": 0,
        "priority": 2,
        "expires_at": NOW + 5_000,
        "payloads": ["a", "b"],
        "tags": ["t"],
    }
    assert popped == {"ok": True, "lease": popped["lease"], "runs": [run]}


def test_a_settled_message_is_counted_and_one_that_is_not_leased_is_refused() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", messages=[1, 2])["first"]
    talk.ask("POP", queue="q")
    assert talk.ask("ACK", ids=[first, first + 1]) == {"ok": True, "count": 1, "refused": [first + 1]}
    for cmd in ("ACK", "NACK", "RELEASE", "EXTEND"):
        answer = talk.refusal(body_of({"cmd": cmd, "ids": [first, first + 1]}))
        assert answer["error"]["code"] == "conflict"


@pytest.mark.parametrize("given", [1, "one", 0, ""])
def test_a_reply_carries_the_req_id_of_its_request(given: int | str) -> None:
    talk = Talk()
    requests: list[tuple[str, Fields]] = [
        ("PUSH", {"queue": "q", "payload": 1}),
        ("PUSH", {"queue": "q", "messages": [1]}),
        ("PUSH", {"queue": "q", "items": [{"payload": 1}]}),
        ("POP", {"queue": "q"}),
        ("POP", {"queue": "q", "count": 1, "compact": True}),
        ("POP", {"queue": "q"}),
        ("READ", {"queue": "q", "offset": 0}),
        ("OFFSETS", {"queue": "q"}),
        ("QUEUE", {"queue": "q"}),
        ("QUEUE", {"queue": "q", "options": {}}),
        ("GROUP", {"queue": "q"}),
        ("BROWSE", {"queue": "q"}),
        ("QUEUES", {}),
        ("STATS", {}),
    ]
    for cmd, fields in requests:
        assert talk.ask(cmd, **fields, reqId=given)["reqId"] == given
        assert "reqId" not in talk.ask(cmd, **fields)


def test_what_settles_carries_the_req_id_of_its_request() -> None:
    talk = Talk()
    talk.ask("PUSH", queue="q", messages=[1, 2, 3, 4])
    for cmd in ("EXTEND", "RELEASE", "NACK", "ACK"):
        lease = talk.ask("POP", queue="q")["lease"]
        assert talk.ask(cmd, lease=lease, reqId="r")["reqId"] == "r"


def test_a_message_without_an_error_says_nothing_of_it() -> None:
    talk = Talk()
    first = talk.ask("PUSH", queue="q", payload=1)["id"]
    assert "error" not in talk.ask("STATE", id=first)
    assert "error" not in talk.ask("MESSAGE", id=first)


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (Invalid("colour", "red"), {"details": {"field": "colour", "accepted": "red"}}),
        (Busy("later", retry_after_ms=5), {"details": {"retry_after_ms": 5}}),
        (NotFound("gone"), {}),
        (Unsupported("not yet"), {}),
    ],
)
def test_an_error_goes_out_with_its_code_and_its_details(error: ForebayError, details: Fields) -> None:
    request = codec.decode(b'{"cmd":"STATS","reqId":3}')
    answer = json.loads(codec.encode(request, error, CONTEXT))
    problem = {"code": error.code, "message": error.message, **details}
    assert answer == {"ok": False, "error": problem, "reqId": 3}
    assert error.code in CODES


def test_an_error_without_a_req_id_has_none() -> None:
    problem = {"code": "not_found", "message": "gone"}
    assert json.loads(codec.encode_error(NotFound("gone"))) == {"ok": False, "error": problem}


def test_a_payload_comes_out_as_it_went_in() -> None:
    talk = Talk()
    written = b'{"b": 1.0,"a":[1e3, "\\u00e9\\/"]}'
    talk.engine.apply(core.Push("acme", "q", [written]), NOW)
    for body in (
        b'{"cmd":"POP","queue":"q","group":"one by one"}',
        b'{"cmd":"POP","queue":"q","compact":true}',
        b'{"cmd":"READ","queue":"q","offset":0}',
    ):
        request = codec.decode(body)
        answer = codec.encode(request, talk.engine.apply(request.command(CONTEXT), NOW), CONTEXT)
        assert written in answer
