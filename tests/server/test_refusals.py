"""What is refused, with which code, and what the caller is told."""

from typing import Any

import pytest
from msgspec import UNSET

from forebay.core.api import commands as core
from forebay.server.flashq import refusals
from forebay.server.flashq.refusals import COMMANDS_LATER, OPTIONS_LATER
from forebay.server.options import OptionsIn
from tests.server.talking import NOW, SHARDS, UUID, Fields, Talk, body_of, command_of, invalid, refusal

# Ids and leases.

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
def test_a_bad_id_is_refused_in_every_command(given: int | str) -> None:
    accepted = "a message id: a number, its decimal string, or a UUIDv7 as given out by push"
    assert invalid("GETSTATE", id=given) == ("id", accepted)
    for cmd in ("ACK", "ACKB", "FAIL", "EXTEND"):
        assert invalid(cmd, id=given) == ("id", accepted)
        assert invalid(cmd, ids=[1, given]) == ("id", accepted)


@pytest.mark.parametrize("given", [1.5, 1.0, True, None, [1], {"a": 1}])
def test_an_id_of_another_type_is_refused(given: object) -> None:
    assert invalid("GETSTATE", id=given) == ("id", "an integer or a string")
    for cmd in ("ACK", "ACKB", "FAIL", "EXTEND"):
        assert invalid(cmd, id=given) == ("id", "an integer or a string")
        assert invalid(cmd, ids=[1, given]) == ("ids[1]", "an integer or a string")


@pytest.mark.parametrize("cmd", ["ACK", "ACKB", "FAIL", "EXTEND"])
def test_what_is_settled_has_to_be_said_once(cmd: str) -> None:
    assert invalid(cmd) == ("id", "given, or else ids or lease")
    assert invalid(cmd, group="g") == ("id", "given, or else ids or lease")
    assert invalid(cmd, id=1, ids=[2]) == ("id", "given without ids")
    assert invalid(cmd, ids=[]) == ("ids", "a list of 1 to 100000 ids")


@pytest.mark.parametrize("cmd", ["ACK", "ACKB", "FAIL", "EXTEND"])
@pytest.mark.parametrize("lease", ["", "x", "-1", " 1", "1.5", "٣", "9" * 40])
def test_a_bad_lease_is_refused(cmd: str, lease: str) -> None:
    assert invalid(cmd, lease=lease) == ("lease", "a lease as given out by pop")
    assert invalid(cmd, lease=lease, id=1) == ("lease", "a lease as given out by pop")


@pytest.mark.parametrize("cmd", ["ACK", "ACKB", "FAIL", "EXTEND"])
@pytest.mark.parametrize("lease", ["0", "1", str(3 << 32 | 2), str(SHARDS), "9" * 39])
def test_a_lease_that_is_not_live_is_a_conflict(cmd: str, lease: str) -> None:
    answer = refusal(cmd, lease=lease)
    assert answer["code"] == "conflict"
    assert "details" not in answer


# Names.

QUEUE_ACCEPTED = "1 to 256 characters of A-Z a-z 0-9 _ . -"
NAME_ACCEPTED = "1 to 255 bytes of UTF-8 without NUL"
BAD_NAMES = ["", "\0", "a\0b", "x" * 256, "é" * 128]


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "é", "a\n", "\0", "x" * 257])
def test_a_bad_queue_name_is_refused_by_all_that_could_make_the_queue(name: str) -> None:
    assert invalid("PUSH", queue=name, data=1) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PUSHB", queue=name, messages=[1]) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PUSHB", queue=name, jobs=[{"data": 1}]) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PULL", queue=name) == ("queue", QUEUE_ACCEPTED)
    assert invalid("PULLB", queue=name, count=1) == ("queue", QUEUE_ACCEPTED)
    assert invalid("QUEUE", queue=name, options={}) == ("queue", QUEUE_ACCEPTED)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_partition_name_is_refused(name: str) -> None:
    assert invalid("PUSH", queue="q", data=1, partition=name) == ("partition", NAME_ACCEPTED)
    assert invalid("PUSHB", queue="q", messages=[1], partition=name) == ("partition", NAME_ACCEPTED)
    jobs = [{"data": 1}, {"data": 1, "partition": name}]
    assert invalid("PUSHB", queue="q", jobs=jobs) == ("partition", NAME_ACCEPTED)
    assert invalid("PULL", queue="q", partition=name) == ("partition", NAME_ACCEPTED)
    assert invalid("PULLB", queue="q", count=1, partition=name) == ("partition", NAME_ACCEPTED)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_group_name_is_refused(name: str) -> None:
    assert invalid("PULL", queue="q", group=name) == ("group", NAME_ACCEPTED)
    assert invalid("PULLB", queue="q", count=1, group=name) == ("group", NAME_ACCEPTED)
    assert invalid("GETSTATE", id=1, group=name) == ("group", NAME_ACCEPTED)
    for cmd in ("ACK", "ACKB", "FAIL", "EXTEND"):
        assert invalid(cmd, id=1, group=name) == ("group", NAME_ACCEPTED)


@pytest.mark.parametrize(
    ("cmd", "fields"),
    [("READ", {"offset": 0}), ("OFFSETS", {}), ("QUEUE", {})],
    ids=["READ", "OFFSETS", "QUEUE"],
)
def test_looking_at_a_queue_that_does_not_exist_is_not_found(cmd: str, fields: Fields) -> None:
    answer = refusal(cmd, queue="nowhere", **fields)
    assert answer["code"] == "not_found"
    assert "nowhere" in answer["error"]


# What does not exist yet.


@pytest.mark.parametrize("name", sorted(COMMANDS_LATER))
def test_a_command_that_comes_later_is_unsupported_by_name(name: str) -> None:
    for fields in ({}, {"queue": "q", "data": 1, "whatever": [1]}):
        answer = refusal(name, **fields)
        assert answer["code"] == "unsupported"
        assert answer["error"] == f"{name} is not supported yet by this server"


@pytest.mark.parametrize("option", sorted(OPTIONS_LATER))
@pytest.mark.parametrize("value", [None, 5], ids=["null", "number"])
def test_an_option_that_comes_later_is_unsupported_by_name(option: str, value: int | None) -> None:
    later: Fields = {option: value}
    for answer in (
        refusal("PUSH", queue="q", data=1, **later),
        refusal("PUSHB", queue="q", messages=[1], **later),
        refusal("PUSHB", queue="q", jobs=[{"data": 1}, {"data": 1, **later}]),
        refusal("QUEUE", queue="q", options=later),
        refusal("ACK", id=1, **later),
        refusal("ACKB", ids=[1], **later),
    ):
        assert answer["code"] == "unsupported"
        assert answer["error"] == f"{option} is not supported yet by this server"


def test_options_that_come_later_are_not_among_those_there_are() -> None:
    assert not OPTIONS_LATER & {
        "queue",
        "data",
        "partition",
        "messages",
        "jobs",
        "lease",
        "group",
        "ids",
        "lease_ms",
    }


# What is malformed.

LISTED = f"one of {', '.join(refusals.COMMANDS)}"


OPTIONS = "priority, delay, ttl, timeout, max_attempts, backoff, lifo"
OWN = (
    "unique_key, dedup, dedup_window_ms, dedup_max_ms, job_id, transaction_id, depends_on, on_failed, "
    "keys_if_undelivered, key, group_id, debounce_id, debounce_ttl, headers, tags, idempotency_key, "
    "producer, idempotency_ms"
)
"""What a message may have for itself."""
"""Of a message."""


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
    assert answer["code"] == "invalid"
    assert answer["details"] == {"field": "cmd", "accepted": LISTED}


@pytest.mark.parametrize(
    ("cmd", "fields", "known"),
    [
        ("PUSH", {"queue": "q", "data": 1}, f"reqId, queue, partition, durability, {OPTIONS}, {OWN}, data"),
        (
            "PUSHB",
            {"queue": "q", "messages": [1]},
            f"reqId, queue, partition, durability, {OPTIONS}, {OWN}, messages, jobs, on_complete",
        ),
        ("PULL", {"queue": "q"}, "reqId, queue, timeout, group, partition, lease_ms, from"),
        (
            "PULLB",
            {"queue": "q", "count": 1},
            "reqId, queue, timeout, group, partition, lease_ms, from, count, min_count, compact",
        ),
        ("ACK", {"id": 1}, "reqId, id, ids, lease, group, result"),
        ("ACKB", {"ids": [1]}, "reqId, id, ids, lease, group, results"),
        ("FAIL", {"id": 1}, "reqId, id, ids, lease, group, error, delay, final"),
        ("EXTEND", {"id": 1}, "reqId, id, ids, lease, group, lease_ms"),
        ("READ", {"queue": "q", "offset": 0}, "reqId, queue, offset, partition, max_bytes, max_count"),
        ("OFFSETS", {"queue": "q"}, "reqId, queue, at, since"),
        ("QUEUE", {"queue": "q"}, "reqId, queue, options, partition"),
        ("LISTQUEUES", {}, "reqId"),
        ("GETSTATE", {"id": 1}, "reqId, id, group"),
        ("STATS", {}, "reqId"),
        ("BACKUP", {"directory": "/b"}, "reqId, directory"),
        ("HOLD", {}, "reqId, held"),
        ("CANCEL", {"id": 1}, "reqId, id, ids, group"),
        ("PROMOTE", {"id": 1}, "reqId, id, ids, group"),
        ("MOVETODELAYED", {"id": 1, "delay": 1}, "reqId, id, ids, delay, group"),
        ("CHANGEPRIORITY", {"id": 1, "priority": 1}, "reqId, id, ids, priority, group"),
        ("DLQ", {"queue": "q"}, "reqId, queue, count, offset, group"),
        ("RETRYDLQ", {"queue": "q"}, "reqId, queue, id, ids, group, dry_run"),
        ("PURGEDLQ", {"queue": "q"}, "reqId, queue, id, ids, group, dry_run"),
        ("PAUSE", {"queue": "q"}, "reqId, queue, until"),
        ("RESUME", {"queue": "q"}, "reqId, queue"),
        ("ISPAUSED", {"queue": "q"}, "reqId, queue"),
        ("GETJOBCOUNTS", {"queue": "q"}, "reqId, queue, group"),
        ("COUNT", {"queue": "q"}, "reqId, queue, group"),
        ("GETJOBS", {"queue": "q"}, "reqId, queue, state, limit, offset, group"),
        ("GETRESULT", {"id": 1}, "reqId, id"),
        ("WAITJOB", {"id": 1}, "reqId, id, timeout, group"),
        ("PROGRESS", {"id": 1, "progress": 1}, "reqId, id, progress, message, lease"),
        ("GETPROGRESS", {"id": 1}, "reqId, id"),
        ("LOG", {"id": 1, "message": "m"}, "reqId, id, message, level"),
        ("GETLOGS", {"id": 1}, "reqId, id"),
        ("PARTIAL", {"id": 1, "data": 1}, "reqId, id, data, lease"),
        ("UPDATEJOB", {"id": 1, "data": 1}, "reqId, id, data"),
        ("UPDATE", {"id": 1, "data": 1}, "reqId, id, data"),
        ("DISCARD", {"id": 1}, "reqId, id, ids, group"),
        ("SEEK", {"queue": "q"}, "reqId, queue, group, to, partition, offset"),
        ("DRAIN", {"queue": "q"}, "reqId, queue, group, dry_run"),
        ("CLEAN", {"queue": "q", "state": "failed", "grace": 0}, "reqId, queue, state, grace, limit, group"),
        ("OBLITERATE", {"queue": "q"}, "reqId, queue"),
    ],
)
def test_an_unknown_field_is_refused_and_the_known_ones_are_listed(
    cmd: str, fields: Fields, known: str
) -> None:
    assert invalid(cmd, **fields, colour=1) == ("colour", f"left out; known here are {known}")


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    field, accepted = invalid("QUEUE", queue="q", options={"colour": 1})
    assert field == "options.colour"
    assert accepted.endswith(f"known here are {', '.join(OptionsIn.__struct_fields__)}")


def test_an_unknown_field_of_a_job_is_refused() -> None:
    assert invalid("PUSHB", queue="q", jobs=[{"data": 1}, {"data": 1, "colour": 1}])[0] == "jobs[1].colour"


@pytest.mark.parametrize(
    ("cmd", "fields", "missing"),
    [
        ("PUSH", {"data": 1}, "queue"),
        ("PUSH", {"queue": "q"}, "data"),
        ("PUSHB", {"messages": [1]}, "queue"),
        ("PUSHB", {"queue": "q", "jobs": [{"data": 1}, {}]}, "jobs[1].data"),
        ("PULL", {}, "queue"),
        ("PULLB", {"count": 1}, "queue"),
        ("PULLB", {"queue": "q"}, "count"),
        ("READ", {"queue": "q"}, "offset"),
        ("READ", {"offset": 0}, "queue"),
        ("OFFSETS", {}, "queue"),
        ("QUEUE", {}, "queue"),
        ("GETSTATE", {}, "id"),
        ("MOVETODELAYED", {"id": 1}, "delay"),
        ("CHANGEPRIORITY", {"id": 1}, "priority"),
        ("DLQ", {}, "queue"),
        ("RETRYDLQ", {}, "queue"),
        ("PURGEDLQ", {}, "queue"),
        ("PAUSE", {}, "queue"),
        ("RESUME", {}, "queue"),
        ("ISPAUSED", {}, "queue"),
        ("GETJOBCOUNTS", {}, "queue"),
        ("COUNT", {}, "queue"),
    ],
)
def test_a_missing_field_is_named(cmd: str, fields: Fields, missing: str) -> None:
    assert invalid(cmd, **fields) == (missing, "given")


def test_a_batch_is_either_messages_or_jobs() -> None:
    assert invalid("PUSHB", queue="q") == ("messages", "given, or else jobs")
    both: Fields = {"messages": [1], "jobs": [{"data": 1}]}
    assert invalid("PUSHB", queue="q", **both) == ("jobs", "given without messages")
    assert invalid("PUSHB", queue="q", jobs=[{"data": 1}], partition="p") == (
        "partition and the options of a message",
        "given in each of the jobs",
    )


def test_an_empty_batch_is_refused() -> None:
    assert invalid("PUSHB", queue="q", messages=[])[0] == "messages"
    assert invalid("PUSHB", queue="q", jobs=[])[0] == "jobs"


TEXT, NUMBER = "a string", "an integer"


@pytest.mark.parametrize(
    ("cmd", "fields", "field", "accepted"),
    [
        ("PUSH", {"queue": 5, "data": 1}, "queue", TEXT),
        ("PUSH", {"queue": None, "data": 1}, "queue", TEXT),
        ("PUSH", {"queue": "q", "data": 1, "partition": 5}, "partition", TEXT),
        ("PUSH", {"queue": "q", "data": 1, "partition": None}, "partition", TEXT),
        ("PUSH", {"queue": "q", "data": 1, "reqId": None}, "reqId", "an integer or a string"),
        ("PUSH", {"queue": "q", "data": 1, "reqId": 1.5}, "reqId", "an integer or a string"),
        ("PUSHB", {"queue": "q", "messages": 5}, "messages", "a list"),
        ("PUSHB", {"queue": "q", "jobs": {}}, "jobs", "a list"),
        ("PUSHB", {"queue": "q", "jobs": [1]}, "jobs[0]", "an object"),
        ("PUSHB", {"queue": "q", "jobs": [{"data": 1, "partition": 5}]}, "jobs[0].partition", TEXT),
        ("PULL", {"queue": "q", "timeout": "5"}, "timeout", NUMBER),
        ("PULL", {"queue": "q", "timeout": 1.5}, "timeout", NUMBER),
        ("PULL", {"queue": "q", "timeout": None}, "timeout", NUMBER),
        ("PULL", {"queue": "q", "timeout": True}, "timeout", NUMBER),
        ("PULL", {"queue": "q", "group": 5}, "group", TEXT),
        ("PULL", {"queue": "q", "from": []}, "from", "an integer or a string"),
        ("PULLB", {"queue": "q", "count": "1"}, "count", NUMBER),
        ("PULLB", {"queue": "q", "count": 1, "min_count": []}, "min_count", NUMBER),
        ("PULLB", {"queue": "q", "count": 1, "compact": 1}, "compact", "true or false"),
        ("ACKB", {"ids": 5}, "ids", "a list"),
        ("READ", {"queue": "q", "offset": "0"}, "offset", NUMBER),
        ("QUEUE", {"queue": "q", "options": {"lease_ms": None}}, "options.lease_ms", NUMBER),
        ("GETSTATE", {"id": 1, "group": None}, "group", TEXT),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_the_right_one(
    cmd: str, fields: Fields, field: str, accepted: str
) -> None:
    assert invalid(cmd, **fields) == (field, accepted)


@pytest.mark.parametrize(
    ("cmd", "fields", "field"),
    [
        ("PULL", {"queue": "q", "partition": 5}, "partition"),
        ("PULL", {"queue": "q", "lease_ms": "5"}, "lease_ms"),
        ("ACK", {"lease": 5}, "lease"),
        ("ACK", {"id": 1, "group": 5}, "group"),
        ("FAIL", {"id": 1, "error": 5}, "error"),
        ("EXTEND", {"id": 1, "lease_ms": 1.5}, "lease_ms"),
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
        ("PULL", {"queue": "q", "from": "yesterday"}, "from"),
        ("PULL", {"queue": "q", "from": -1}, "from"),
        ("PULL", {"queue": "q", "from": NOW + 1}, "from"),
        ("PULL", {"queue": "q", "timeout": -1}, "timeout"),
        ("PULL", {"queue": "q", "lease_ms": 0}, "lease_ms"),
        ("PULLB", {"queue": "q", "count": 0}, "count"),
        ("PULLB", {"queue": "q", "count": 10**30}, "count"),
        ("PULLB", {"queue": "q", "count": 1, "min_count": 0}, "min_count"),
        ("PULLB", {"queue": "q", "count": 1, "min_count": 2}, "min_count"),
        ("EXTEND", {"id": 1, "lease_ms": 0}, "lease_ms"),
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
        b'{"cmd":"PUSH","queue":"q","data":',
        b'{"cmd":"PUSH","queue":"q","data":nope}',
        b'{"cmd":"PUSH","queue":"q","data":NaN}',
        b'{"cmd":"PUSH","queue":"q","data":01}',
        b'{"cmd":"PUSH","queue":"q","data":"\x01"}',
        b'{"cmd":"PUSH","queue":"q","data":"\\q"}',
        b'{"cmd":"PUSH","queue":"q","data":"\\ud800"}',
        b'{"cmd":"PUSH","queue":"q","data":[1,]}',
        b"{'cmd':'STATS'}",
    ],
)
def test_what_is_not_one_json_object_is_invalid(body: bytes) -> None:
    answer = Talk().refusal(body)
    assert answer["code"] == "invalid"
    assert answer["details"]["field"] == "frame"
    assert answer["details"]["accepted"].startswith("one well-formed JSON object; ")


@pytest.mark.parametrize("levels", [129, 900, 5_000, 100_000])
def test_a_payload_nested_too_deep_is_invalid(levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    for body in (
        b'{"cmd":"PUSH","queue":"q","data":%s}' % deep,
        b'{"cmd":"PUSHB","queue":"q","messages":[%s]}' % deep,
        b'{"cmd":"PUSHB","queue":"q","jobs":[{"data":%s}]}' % deep,
    ):
        answer = Talk().refusal(body)
        assert answer["code"] == "invalid"
        assert answer["details"]["field"] == "payload"


def test_a_payload_nested_as_deep_as_it_may_be_is_taken() -> None:
    deep: list[Any] = []
    for _ in range(127):
        deep = [deep]
    assert isinstance(command_of("PUSH", queue="q", data=deep), core.Push)
    assert isinstance(command_of("PUSHB", queue="q", messages=[deep]), core.Push)
    assert isinstance(command_of("PUSHB", queue="q", jobs=[{"data": deep}]), core.PushMany)


# The reqId of what could not be decoded.


@pytest.mark.parametrize("given", [1, -1, 0, 1 << 70, "a", "", "é"])
def test_the_req_id_of_a_bad_request_is_found(given: int | str) -> None:
    assert refusals.request_id(body_of({"cmd": "NOPE", "reqId": given})) == given


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"reqId":null}', b'{"reqId":1.5}', b'{"reqId":[1]}', b'{"reqId":1', b"", b"\xff", b"[1]"],
)
def test_a_req_id_that_can_t_be_read_is_left_out(body: bytes) -> None:
    assert refusals.request_id(body) is UNSET
