"""What is refused, with which code, and what the caller is told."""

from typing import Any

import pytest
from msgspec import UNSET

from forebay.core.api import commands as core
from forebay.server.operations import codec
from forebay.server.operations.table import COMMANDS
from forebay.wire.options import OptionsIn
from tests.server.talking import NOW, SHARDS, UUID, Fields, Talk, body_of, command_of, invalid, refusal

# Ids and leases.

SETTLES = ["ACK", "NACK", "RELEASE", "EXTEND"]
OF_IDS: list[tuple[str, Fields]] = [
    *((cmd, {}) for cmd in SETTLES),
    ("MESSAGES", {}),
    ("CANCEL", {}),
    ("PROMOTE", {}),
    ("DELAY", {"delay_ms": 1}),
    ("PRIORITY", {"priority": 1}),
    ("DISCARD", {}),
    ("REQUEUE", {"queue": "q"}),
    ("DEADPURGE", {"queue": "q"}),
]
"""All that takes ids, and what else it needs."""

BAD_IDS = [
    -1,
    1 << 64,
    10**30,
    "",
    "-1",
    "+1",
    " 1",
    "1.0",
    "abc",
    "٣",
    str(1 << 64),
    "9" * 21,
    UUID[:-1],
    UUID + "0",
    UUID.replace("-", ""),
    UUID.replace("-7000-", "-4000-"),
    UUID.replace("-8001-", "-c001-"),
    UUID[:-1] + "1",
    UUID.replace("0", "g"),
    UUID.replace("0", "_"),
    UUID.replace("-", " "),
]


@pytest.mark.parametrize("given", BAD_IDS)
def test_a_bad_id_is_refused_in_every_request(given: int | str) -> None:
    accepted = "a message id: a number, its decimal string, or a UUIDv7 as given out by push"
    assert invalid("STATE", id=given) == ("id", accepted)
    for cmd, fields in OF_IDS:
        for several in ([given], [1, given]):
            found = invalid(cmd, ids=several, **fields)
            assert found == ("ids", f"a list of ids, and one of them {accepted}")


@pytest.mark.parametrize("given", [1.5, 1.0, True, None, [1], {"a": 1}])
def test_an_id_of_another_type_is_refused(given: object) -> None:
    assert invalid("STATE", id=given) == ("id", "an integer or a string")
    for cmd, fields in OF_IDS:
        assert invalid(cmd, ids=[given], **fields) == ("ids[0]", "an integer or a string")
        assert invalid(cmd, ids=[1, given], **fields) == ("ids[1]", "an integer or a string")


@pytest.mark.parametrize("cmd", SETTLES)
def test_what_is_settled_has_to_be_said(cmd: str) -> None:
    assert invalid(cmd) == ("lease", "given, or else ids")
    assert invalid(cmd, group="g") == ("lease", "given, or else ids")
    assert invalid(cmd, ids=[]) == ("ids", "a list of 1 to 100000 ids")


@pytest.mark.parametrize("cmd", SETTLES)
@pytest.mark.parametrize("lease", ["", "x", "-1", " 1", "1.5", "٣", "9" * 40])
def test_a_bad_lease_is_refused(cmd: str, lease: str) -> None:
    assert invalid(cmd, lease=lease) == ("lease", "a lease as given out by pop")
    assert invalid(cmd, lease=lease, ids=[1]) == ("lease", "a lease as given out by pop")


@pytest.mark.parametrize("cmd", SETTLES)
@pytest.mark.parametrize("lease", ["0", "1", str(3 << 32 | 2), str(SHARDS), "9" * 39])
def test_a_lease_that_is_not_live_is_a_conflict(cmd: str, lease: str) -> None:
    answer = refusal(cmd, lease=lease)
    assert answer["error"]["code"] == "conflict"
    assert "details" not in answer["error"]


# Names.

QUEUE_ACCEPTED = "1 to 256 characters of A-Z a-z 0-9 _ . -"
NAME_ACCEPTED = "1 to 255 bytes of UTF-8 without NUL"
BAD_NAMES = ["", "\0", "a\0b", "x" * 256, "é" * 128]


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "é", "a\n", "\0", "x" * 257])
def test_a_bad_queue_name_is_refused_by_all_that_could_make_the_queue(name: str) -> None:
    assert invalid("PUSH", queue=name, payload=1) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PUSH", queue=name, messages=[1]) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PUSH", queue=name, items=[{"payload": 1}]) == ("queue", QUEUE_ACCEPTED)
    assert invalid("POP", queue=name) == ("queue", QUEUE_ACCEPTED)
    assert invalid("POP", queue=name, count=1) == ("queue", QUEUE_ACCEPTED)
    assert invalid("QUEUE", queue=name, options={}) == ("queue", QUEUE_ACCEPTED)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_partition_name_is_refused(name: str) -> None:
    assert invalid("PUSH", queue="q", payload=1, partition=name) == ("partition", NAME_ACCEPTED)
    assert invalid("PUSH", queue="q", messages=[1], partition=name) == ("partition", NAME_ACCEPTED)
    items = [{"payload": 1}, {"payload": 1, "partition": name}]
    assert invalid("PUSH", queue="q", items=items) == ("partition", NAME_ACCEPTED)
    assert invalid("POP", queue="q", partition=name) == ("partition", NAME_ACCEPTED)
    assert invalid("POP", queue="q", count=1, partition=name) == ("partition", NAME_ACCEPTED)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_group_name_is_refused(name: str) -> None:
    assert invalid("POP", queue="q", group=name) == ("group", NAME_ACCEPTED)
    assert invalid("POP", queue="q", count=1, group=name) == ("group", NAME_ACCEPTED)
    assert invalid("STATE", id=1, group=name) == ("group", NAME_ACCEPTED)
    for cmd, fields in OF_IDS:
        assert invalid(cmd, ids=[1], group=name, **fields) == ("group", NAME_ACCEPTED)


@pytest.mark.parametrize(
    ("cmd", "fields"),
    [("READ", {"offset": 0}), ("OFFSETS", {}), ("QUEUE", {}), ("GROUPS", {}), ("GROUP", {}), ("DEAD", {})],
    ids=["READ", "OFFSETS", "QUEUE", "GROUPS", "GROUP", "DEAD"],
)
def test_looking_at_a_queue_that_does_not_exist_is_not_found(cmd: str, fields: Fields) -> None:
    answer = refusal(cmd, queue="nowhere", **fields)
    assert answer["error"]["code"] == "not_found"
    assert "nowhere" in answer["error"]["message"]


# What is malformed.

LISTED = f"one of {', '.join(COMMANDS)}"
RUN = "priority, delay_ms, ttl_ms, timeout_ms, max_attempts, backoff, lifo, headers, tags, task"
"""Options that consecutive messages can share."""
OPTIONS = (
    f"{RUN}, partition, key, unique_key, dedup, dedup_window_ms, dedup_max_ms, job_id, transaction_id, "
    "depends_on, on_failed, keys_if_undelivered"
)
"""All options of a message."""


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"cmd":null}',
        b'{"cmd":5}',
        b'{"cmd":"NOPE"}',
        b'{"cmd":"push"}',
        b'{"cmd":""}',
        b'{"queue":"q"}',
    ],
)
def test_an_unknown_command_is_invalid_and_the_known_ones_are_listed(body: bytes) -> None:
    answer = Talk().refusal(body)
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["details"] == {"field": "cmd", "accepted": LISTED}


@pytest.mark.parametrize(
    ("cmd", "fields", "known"),
    [
        (
            "PUSH",
            {"queue": "q", "payload": 1},
            f"{OPTIONS}, queue, payload, messages, items, durability, idempotency_key, producer, "
            "idempotency_ms, on_complete, reqId",
        ),
        (
            "POP",
            {"queue": "q"},
            "reqId, queue, count, min_count, wait_ms, group, partition, lease_ms, from, compact, worker, "
            "create",
        ),
        ("ACK", {"ids": [1]}, "reqId, lease, ids, group, result, results"),
        ("NACK", {"ids": [1]}, "reqId, lease, ids, group, error, error_type, traceback, delay_ms, final"),
        ("RELEASE", {"ids": [1]}, "reqId, lease, ids, group, error, defer_ms"),
        ("EXTEND", {"ids": [1]}, "reqId, lease, ids, group, lease_ms"),
        ("TX", {"ops": []}, "ops, reqId"),
        (
            "BROWSE",
            {"queue": "q"},
            "reqId, queue, state, group, partition, tag, since, before, text, task, error, error_type, "
            "dead_since, dead_before, limit, cursor",
        ),
        ("MESSAGE", {"id": 1}, "reqId, id, queue, group"),
        ("MESSAGES", {"ids": [1]}, "reqId, ids, group"),
        ("FIND", {"job_id": "j"}, "reqId, job_id, queue"),
        ("STATE", {"id": 1}, "reqId, id, group"),
        ("CANCEL", {"ids": [1]}, "reqId, ids, group"),
        ("PROMOTE", {"ids": [1]}, "reqId, ids, group"),
        ("DELAY", {"ids": [1], "delay_ms": 1}, "reqId, ids, group, delay_ms"),
        ("PRIORITY", {"ids": [1], "priority": 1}, "reqId, ids, group, priority"),
        ("DISCARD", {"ids": [1]}, "reqId, ids, group"),
        ("UPDATE", {"id": 1, "payload": 1}, "reqId, id, payload, headers"),
        ("READ", {"queue": "q", "offset": 0}, "reqId, queue, offset, partition, max_bytes, max_count"),
        ("OFFSETS", {"queue": "q"}, "reqId, queue, at, since"),
        ("RESULT", {"id": 1}, "reqId, id, queue, wait_ms, group"),
        ("PARTIAL", {"id": 1, "payload": 1}, "reqId, id, payload, lease"),
        ("PARTIALS", {"id": 1}, "reqId, id"),
        ("SETPROGRESS", {"id": 1, "progress": 1}, "reqId, id, progress, message, lease"),
        ("PROGRESS", {"id": 1}, "reqId, id"),
        ("LOG", {"id": 1, "message": "m"}, "reqId, id, message, level"),
        ("LOGS", {"id": 1}, "reqId, id"),
        (
            "FLOW",
            {"queue": "q", "payload": 1, "children": []},
            f"{OPTIONS}, queue, payload, children, durability, reqId",
        ),
        ("CHILDREN", {"id": 1}, "reqId, id"),
        ("DEAD", {"queue": "q"}, "reqId, queue, group, limit, skip"),
        ("REQUEUE", {"queue": "q"}, "reqId, queue, ids, group, dry_run, dependents"),
        ("DEADPURGE", {"queue": "q"}, "reqId, queue, ids, group, dry_run"),
        ("QUEUES", {}, "reqId"),
        ("QUEUE", {"queue": "q"}, "reqId, queue, options, partition"),
        ("QUEUEDELETE", {"queue": "q"}, "reqId, queue, force"),
        ("PAUSE", {"queue": "q"}, "reqId, queue, until"),
        ("RESUME", {"queue": "q"}, "reqId, queue"),
        ("DRAIN", {"queue": "q"}, "reqId, queue, group, dry_run"),
        ("PURGE", {"queue": "q"}, "reqId, queue, group, dry_run, states, grace_ms, limit"),
        ("STATS", {}, "reqId"),
        ("GROUP", {"queue": "q"}, "reqId, queue, group"),
        ("SEEK", {"queue": "q"}, "reqId, queue, group, to, partition, offset"),
        ("BACKUP", {"directory": "/b"}, "reqId, directory"),
        ("HOLD", {}, "reqId, held"),
        ("EVENTS", {}, "reqId, queues, kinds, after, wait_ms"),
    ],
)
def test_an_unknown_field_is_refused_and_the_known_ones_are_listed(
    cmd: str, fields: Fields, known: str
) -> None:
    assert invalid(cmd, **fields, colour=1) == (
        "colour",
        f"left out; known here are {known.replace('reqId', 'reqId, tenant')}",
    )


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    field, accepted = invalid("QUEUE", queue="q", options={"colour": 1})
    assert field == "options.colour"
    assert accepted.endswith(f"known here are {', '.join(OptionsIn.__struct_fields__)}")


def test_an_unknown_field_of_an_item_is_refused_and_the_known_ones_are_listed() -> None:
    field, accepted = invalid("PUSH", queue="q", items=[{"payload": 1}, {"payload": 1, "colour": 1}])
    assert field == "items[1].colour"
    assert accepted == f"left out; known here are {OPTIONS}, payload"


@pytest.mark.parametrize(
    ("cmd", "fields", "field", "meant"),
    [
        ("PUSH", {"queue": "q", "payload": 1, "delay": 5}, "delay", "delay_ms"),
        ("PUSH", {"queue": "q", "payload": 1, "timeout": 5}, "timeout", "timeout_ms"),
        ("PUSH", {"queue": "q", "items": [{"payload": 1, "ttl": 5}]}, "items[0].ttl", "ttl_ms"),
        ("ACK", {"id": 5}, "id", "ids"),
        ("QUEUE", {"queue": "q", "options": {"max_attempt": 5}}, "options.max_attempt", "max_attempts"),
    ],
)
def test_the_field_that_was_probably_meant_is_said(cmd: str, fields: Fields, field: str, meant: str) -> None:
    found, accepted = invalid(cmd, **fields)
    assert found == field
    assert accepted.startswith(f"left out; {meant} was meant? known here are ")


@pytest.mark.parametrize(
    "name", ["PUSHB", "PULL", "PULLB", "ACKB", "FAIL", "HEARTBEAT", "GETJOB", "DLQ", "CRONLIST", "KVDEL"]
)
def test_words_of_other_protocols_are_not_known_here(name: str) -> None:
    assert invalid(name, queue="q") == ("cmd", LISTED)


@pytest.mark.parametrize(
    ("cmd", "fields", "missing"),
    [
        ("PUSH", {"payload": 1}, "queue"),
        ("PUSH", {"messages": [1]}, "queue"),
        ("PUSH", {"queue": "q", "items": [{"payload": 1}, {}]}, "items[1].payload"),
        ("POP", {}, "queue"),
        ("MESSAGES", {}, "ids"),
        ("FIND", {}, "job_id"),
        ("READ", {"queue": "q"}, "offset"),
        ("READ", {"offset": 0}, "queue"),
        ("OFFSETS", {}, "queue"),
        ("QUEUE", {}, "queue"),
        ("STATE", {}, "id"),
        ("CANCEL", {}, "ids"),
        ("PROMOTE", {}, "ids"),
        ("DELAY", {"ids": [1]}, "delay_ms"),
        ("PRIORITY", {"ids": [1]}, "priority"),
        ("UPDATE", {"id": 1}, "payload"),
        ("PARTIAL", {"id": 1}, "payload"),
        ("SETPROGRESS", {"id": 1}, "progress"),
        ("LOG", {"id": 1}, "message"),
        ("DEAD", {}, "queue"),
        ("REQUEUE", {}, "queue"),
        ("DEADPURGE", {}, "queue"),
        ("PAUSE", {}, "queue"),
        ("RESUME", {}, "queue"),
        ("PURGE", {}, "queue"),
        ("GROUP", {}, "queue"),
        ("GROUPPUT", {"queue": "q"}, "group"),
        ("CRONPUT", {"name": "c", "queue": "q"}, "message"),
        ("CRONPUT", {"name": "c", "queue": "q", "message": {}}, "message.payload"),
        ("KVSET", {"key": "k"}, "value"),
    ],
)
def test_a_missing_field_is_named(cmd: str, fields: Fields, missing: str) -> None:
    assert invalid(cmd, **fields) == (missing, "given")


def test_a_push_is_one_payload_or_messages_or_items() -> None:
    accepted = "given, or else messages or items, and only one of them"
    assert invalid("PUSH", queue="q") == ("payload", accepted)
    ways: Fields = {"payload": 1, "messages": [1], "items": [{"payload": 1}]}
    assert invalid("PUSH", queue="q", **ways) == ("payload", accepted)
    for left_out in ways:
        two = {name: ways[name] for name in ways if name != left_out}
        assert invalid("PUSH", queue="q", **two) == ("payload", accepted)
        assert invalid("PUSH", queue="q", **two, idempotency_key="k") == ("payload", accepted)


def test_options_of_items_are_given_in_each_of_them() -> None:
    for shared in ({"partition": "p"}, {"priority": 1}, {"tags": ["t"]}, {"job_id": "j"}):
        (name,) = shared
        found = invalid("PUSH", queue="q", items=[{"payload": 1}], **shared)
        assert found == (name, "given in each of the items")


def test_keys_and_ids_are_given_in_items() -> None:
    for own in ({"key": "k"}, {"unique_key": "u"}, {"job_id": "j"}, {"transaction_id": "t"}):
        (name,) = own
        assert invalid("PUSH", queue="q", messages=[1], **own) == (name, "given in items, each its own")


def test_what_waits_for_a_batch_is_given_with_a_batch() -> None:
    accepted = "given with messages or items: it waits for all of them"
    done = {"queue": "done", "payload": 1}
    assert invalid("PUSH", queue="q", payload=1, on_complete=done) == ("on_complete", accepted)


def test_an_empty_batch_is_refused() -> None:
    assert invalid("PUSH", queue="q", messages=[]) == ("messages", "a list of one or more")
    assert invalid("PUSH", queue="q", items=[]) == ("items", "a list of one or more")


TEXT, NUMBER = "a string", "an integer"


@pytest.mark.parametrize(
    ("cmd", "fields", "field", "accepted"),
    [
        ("PUSH", {"queue": 5, "payload": 1}, "queue", TEXT),
        ("PUSH", {"queue": None, "payload": 1}, "queue", TEXT),
        ("PUSH", {"queue": "q", "payload": 1, "partition": 5}, "partition", TEXT),
        ("PUSH", {"queue": "q", "payload": 1, "partition": None}, "partition", TEXT),
        ("PUSH", {"queue": "q", "payload": 1, "reqId": None}, "reqId", "an integer or a string"),
        ("PUSH", {"queue": "q", "payload": 1, "reqId": 1.5}, "reqId", "an integer or a string"),
        ("PUSH", {"queue": "q", "messages": 5}, "messages", "a list"),
        ("PUSH", {"queue": "q", "items": {}}, "items", "a list"),
        ("PUSH", {"queue": "q", "items": [1]}, "items[0]", "an object"),
        ("PUSH", {"queue": "q", "items": [{"payload": 1, "partition": 5}]}, "items[0].partition", TEXT),
        ("POP", {"queue": "q", "wait_ms": "5"}, "wait_ms", NUMBER),
        ("POP", {"queue": "q", "wait_ms": 1.5}, "wait_ms", NUMBER),
        ("POP", {"queue": "q", "wait_ms": None}, "wait_ms", NUMBER),
        ("POP", {"queue": "q", "wait_ms": True}, "wait_ms", NUMBER),
        ("POP", {"queue": "q", "group": 5}, "group", TEXT),
        ("POP", {"queue": "q", "from": []}, "from", "an integer or a string"),
        ("POP", {"queue": "q", "count": "1"}, "count", NUMBER),
        ("POP", {"queue": "q", "min_count": []}, "min_count", NUMBER),
        ("POP", {"queue": "q", "compact": 1}, "compact", "true or false"),
        ("ACK", {"ids": 5}, "ids", "a list"),
        ("READ", {"queue": "q", "offset": "0"}, "offset", NUMBER),
        ("QUEUE", {"queue": "q", "options": {"lease_ms": None}}, "options.lease_ms", NUMBER),
        ("STATE", {"id": 1, "group": None}, "group", TEXT),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_the_right_one(
    cmd: str, fields: Fields, field: str, accepted: str
) -> None:
    assert invalid(cmd, **fields) == (field, accepted)


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("POP", {"queue": "q", "partition": 5}, "partition"),
        ("POP", {"queue": "q", "lease_ms": "5"}, "lease_ms"),
        ("ACK", {"lease": 5}, "lease"),
        ("ACK", {"ids": [1], "group": 5}, "group"),
        ("NACK", {"ids": [1], "delay_ms": "1"}, "delay_ms"),
        ("NACK", {"ids": [1], "error": 5}, "error"),
        ("EXTEND", {"ids": [1], "lease_ms": 1.5}, "lease_ms"),
        ("READ", {"queue": "q", "offset": 0, "max_bytes": "1"}, "max_bytes"),
        ("READ", {"queue": "q", "offset": 0, "max_count": {}}, "max_count"),
        ("OFFSETS", {"queue": "q", "at": "now"}, "at"),
        ("QUEUE", {"queue": "q", "options": []}, "options"),
    ],
)
def test_a_field_of_the_wrong_type_that_may_be_null_is_named(cmd: str, fields: Fields, field: str) -> None:
    found, accepted = invalid(cmd, **fields)
    assert found == field
    assert "null" in accepted


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("POP", {"queue": "q", "from": "yesterday"}, "from"),
        ("POP", {"queue": "q", "from": -1}, "from"),
        ("POP", {"queue": "q", "from": NOW + 1}, "from"),
        ("POP", {"queue": "q", "wait_ms": -1}, "wait_ms"),
        ("POP", {"queue": "q", "lease_ms": 0}, "lease_ms"),
        ("POP", {"queue": "q", "count": 0}, "count"),
        ("POP", {"queue": "q", "count": 10**30}, "count"),
        ("POP", {"queue": "q", "count": 1, "min_count": 0}, "min_count"),
        ("POP", {"queue": "q", "count": 1, "min_count": 2}, "min_count"),
        ("EXTEND", {"ids": [1], "lease_ms": 0}, "lease_ms"),
        ("QUEUE", {"queue": "q", "options": {"lease_ms": 0}}, "lease_ms"),
        ("QUEUE", {"queue": "q", "options": {"completed_retention_ms": -1}}, "completed_retention_ms"),
        ("QUEUE", {"queue": "q", "options": {"completed_retention_bytes": -1}}, "completed_retention_bytes"),
    ],
)
def test_a_number_out_of_its_bounds_is_named_with_them(cmd: str, fields: Fields, field: str) -> None:
    found, accepted = invalid(cmd, **fields)
    assert found == field
    assert "between" in accepted or accepted == "all, new, or a time in ms that is not in the future"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"cmd"',
        b'{"cmd":"STATS"',
        b'{"cmd":"STATS"}}',
        b'{"cmd":"STATS"} {"cmd":"STATS"}',
        b'{"cmd":"PUSH","queue":"q","payload":',
        b'{"cmd":"PUSH","queue":"q","payload":nope}',
        b'{"cmd":"PUSH","queue":"q","payload":NaN}',
        b'{"cmd":"PUSH","queue":"q","payload":01}',
        b'{"cmd":"PUSH","queue":"q","payload":"\x01"}',
        b'{"cmd":"PUSH","queue":"q","payload":"\\q"}',
        b'{"cmd":"PUSH","queue":"q","payload":"\\ud800"}',
        b'{"cmd":"PUSH","queue":"q","payload":[1,]}',
        b"{'cmd':'STATS'}",
    ],
)
def test_what_is_not_one_json_object_is_invalid(body: bytes) -> None:
    answer = Talk().refusal(body)
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["details"]["field"] == "frame"
    assert answer["error"]["details"]["accepted"].startswith("one well-formed JSON object; ")


@pytest.mark.parametrize("levels", [129, 900, 5_000, 100_000])
def test_a_payload_nested_too_deep_is_invalid(levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    for body in (
        b'{"cmd":"PUSH","queue":"q","payload":%s}' % deep,
        b'{"cmd":"PUSH","queue":"q","messages":[%s]}' % deep,
        b'{"cmd":"PUSH","queue":"q","items":[{"payload":%s}]}' % deep,
    ):
        answer = Talk().refusal(body)
        assert answer["error"]["code"] == "invalid"
        assert answer["error"]["details"]["field"] == "payload"


def test_a_payload_nested_as_deep_as_it_may_be_is_taken() -> None:
    deep: list[Any] = []
    for _ in range(127):
        deep = [deep]
    assert isinstance(command_of("PUSH", queue="q", payload=deep), core.Push)
    assert isinstance(command_of("PUSH", queue="q", messages=[deep]), core.Push)
    assert isinstance(command_of("PUSH", queue="q", items=[{"payload": deep}]), core.PushMany)


# The reqId of what could not be decoded.


@pytest.mark.parametrize("given", [1, -1, 0, 1 << 70, "a", "", "é"])
def test_the_req_id_of_a_bad_request_is_found(given: int | str) -> None:
    assert codec.glimpse(body_of({"cmd": "NOPE", "reqId": given})).reqId == given


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"reqId":null}', b'{"reqId":1.5}', b'{"reqId":[1]}', b'{"reqId":1', b"", b"\xff", b"[1]"],
)
def test_a_req_id_that_can_t_be_read_is_left_out(body: bytes) -> None:
    assert codec.glimpse(body).reqId is UNSET


def test_an_error_in_a_transaction_says_which_request_it_is_about() -> None:
    push = {"cmd": "PUSH", "queue": "q", "payload": 1}
    assert invalid("TX", ops=[push, {"cmd": "KVSET", "key": "a", "value": 1, "version": "zz"}])[0] == (
        "ops[1].version"
    )
    assert invalid("TX", ops=[{**push, "messages": [1]}])[0] == "ops[0].payload"
    assert invalid("TX", ops=[push, {**push, "reqId": 1}])[0] == "ops[1].reqId"


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("ACK", {"ids": ["x"]}, "ids"),
        ("MESSAGES", {"ids": ["x"]}, "ids"),
        ("KVLIST", {"prefix": "x" * 10_000}, "prefix"),
        ("KVWATCH", {"keys": ["k"], "versions": ["zz"]}, "versions"),
        ("PUSH", {"queue": "q", "messages": [1], "unique_key": "k"}, "unique_key"),
        ("PUSH", {"queue": "q", "items": [{"payload": 1}], "priority": 1}, "priority"),
    ],
)
def test_an_error_names_the_field_that_was_given(cmd: str, fields: Fields, field: str) -> None:
    assert invalid(cmd, **fields)[0] == field
