"""Browse with cursors, purge, delete, groups, events: over the wire."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.talking import Http
from tests.serving import Raw, Reply, Server, pop, push, refused

HOUR_MS = 3_600_000
PATIENT_MS = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Raw]:
    with server.connect() as connection:
        yield connection


def browse(client: Raw, **fields: Any) -> list[Reply]:
    """All messages that match, page by page."""
    found: list[Reply] = []
    cursor = None
    while True:
        reply = client.ask({"cmd": "BROWSE", "cursor": cursor, **fields})
        assert reply["ok"], reply
        found += reply["messages"]
        cursor = reply["cursor"]
        if cursor is None:
            return found


def test_a_browse_shows_everything_once_page_by_page(client: Raw) -> None:
    push(client, "pages", *range(250))
    assert [each["payload"] for each in browse(client, queue="pages", limit=40)] == list(range(250))


def test_a_browse_finds_by_state_partition_tag_time_and_text(client: Raw) -> None:
    push(client, "found", {"to": "ada"}, {"to": "alan"})
    push(client, "found", "elsewhere", partition="p")
    push(client, "found", "tagged", tags=["t"], delay_ms=HOUR_MS)
    asked = {"text": "ala", "partition": "p", "tag": "t", "state": "delayed", "before": 1}
    found = {
        name: [each["payload"] for each in browse(client, queue="found", **{name: value})]
        for name, value in asked.items()
    }
    assert found == {
        "text": [{"to": "alan"}],
        "partition": ["elsewhere"],
        "tag": ["tagged"],
        "state": ["tagged"],
        "before": [],
    }
    assert refused(client.ask({"cmd": "BROWSE", "queue": "found", "cursor": "x"}), "invalid", "cursor")
    assert refused(client.ask({"cmd": "BROWSE", "queue": "found", "state": "odd"}), "invalid", "state")


def test_a_dry_run_counts_and_changes_nothing(client: Raw) -> None:
    push(client, "dry", 1, 2, 3)
    message = pop(client, "dry")["id"]
    client.ask({"cmd": "DISCARD", "ids": [message]})
    for cmd, count in (("DRAIN", 2), ("PURGE", 3), ("REQUEUE", 1), ("DEADPURGE", 1)):
        reply = client.ask({"cmd": cmd, "queue": "dry", "dry_run": True})
        assert (reply["ok"], reply["count"], reply["dry_run"]) == (True, count, True), cmd
    assert client.ask({"cmd": "GROUP", "queue": "dry"})["counts"]["waiting"] == 2
    assert client.ask({"cmd": "DEAD", "queue": "dry"})["total"] == 1


def test_a_purge_clears_the_states_it_names(client: Raw) -> None:
    push(client, "purged", 1, 2)
    push(client, "purged", 3, delay_ms=HOUR_MS)
    assert client.ask({"cmd": "PURGE", "queue": "purged", "states": ["delayed"]})["count"] == 1
    assert client.ask({"cmd": "PURGE", "queue": "purged"})["count"] >= 2
    counts = client.ask({"cmd": "GROUP", "queue": "purged"})["counts"]
    assert (counts["waiting"], counts["delayed"]) == (0, 0)
    for states in ([], ["active"], ["failed"]):
        reply = client.ask({"cmd": "PURGE", "queue": "purged", "states": states})
        assert refused(reply, "invalid", "states")


def test_a_queue_goes_with_the_last_of_its_leases(client: Raw) -> None:
    push(client, "going", 1)
    message = pop(client, "going")["id"]
    closed = client.ask({"cmd": "QUEUEDELETE", "queue": "going"})
    assert (closed["deleted"], closed["active"]) == (False, 1)
    assert client.ask({"cmd": "ACK", "ids": [message]})["ok"]
    assert refused(client.ask({"cmd": "QUEUEDELETE", "queue": "going"}), "not_found")


def test_a_group_is_made_and_forgotten(client: Raw) -> None:
    push(client, "grouped", 1)
    pop(client, "grouped")
    made = client.ask({"cmd": "GROUPPUT", "queue": "grouped", "group": "audit", "from": "new"})
    assert [(each["group"], each["counts"]["waiting"]) for each in made["groups"]] == [
        ("default", 0),
        ("audit", 0),
    ]
    (left,) = client.ask({"cmd": "GROUPDELETE", "queue": "grouped", "group": "audit"})["groups"]
    assert left["group"] == "default"
    assert refused(client.ask({"cmd": "GROUPDELETE", "queue": "grouped", "group": "default"}), "conflict")


def test_a_request_is_known_for_as_long_as_it_says(client: Raw) -> None:
    known = {"idempotency_key": "k", "producer": "p", "idempotency_ms": HOUR_MS}
    first = client.ask({"cmd": "PUSH", "queue": "known", "messages": [1, 2], **known})
    again = client.ask({"cmd": "PUSH", "queue": "known", "messages": [1, 2], **known})
    assert (first["first"], again["duplicate"]) == (again["first"], True)
    client.ask({"cmd": "QUEUE", "queue": "brief", "options": {"dedup_window_ms": 0}})
    for _ in range(2):
        assert client.ask({"cmd": "PUSH", "queue": "brief", "payload": 1, **known})["ok"]
    assert client.ask({"cmd": "GROUP", "queue": "brief"})["counts"]["waiting"] == 1
    one = {"cmd": "PUSH", "queue": "known", "payload": 1}
    assert refused(client.ask({**one, "idempotency_ms": 5}), "invalid", "idempotency_ms")
    too_long = {**known, "idempotency_ms": 31 * 24 * HOUR_MS}
    assert refused(client.ask({**one, **too_long}), "invalid", "idempotency_ms")


def events(client: Raw, after: str | None, **fields: Any) -> Reply:
    reply = client.ask({"cmd": "EVENTS", "after": after, **fields})
    assert reply["ok"], reply
    return reply


def test_events_are_told_behind_the_last_and_none_is_missed(client: Raw) -> None:
    begin = events(client, None)
    assert begin["events"] == []
    push(client, "told", 1, 2)
    client.ask({"cmd": "ACK", "ids": [pop(client, "told")["id"]]})
    told: list[str] = []
    after = begin["after"]
    while "settled" not in told:
        reply = events(client, after, queues=["told"], wait_ms=PATIENT_MS)
        told += [each["kind"] for each in reply["events"]]
        after = reply["after"]
    assert told == ["created", "pushed", "popped", "settled"]
    assert events(client, after, queues=["told"])["events"] == []
    kinds = {each["kind"] for each in events(client, "", kinds=["pushed"])["events"]}
    assert kinds == {"pushed"}
    assert refused(client.ask({"cmd": "EVENTS", "kinds": ["odd"]}), "invalid", "kinds")
    assert refused(client.ask({"cmd": "EVENTS", "after": "odd"}), "invalid", "after")
    assert refused(client.ask({"cmd": "EVENTS", "wait_ms": -1}), "invalid", "wait_ms")


def test_whoever_waits_for_events_hears_of_the_next_and_holds_nobody_up(client: Raw) -> None:
    begin = events(client, None)["after"]
    client.send(
        {"cmd": "EVENTS", "after": begin, "queues": ["next"], "wait_ms": PATIENT_MS, "reqId": "waits"},
        {"cmd": "STATS", "reqId": "at once"},
    )
    assert client.receive()["reqId"] == "at once"
    client.send({"cmd": "PUSH", "queue": "next", "payload": 1, "reqId": "pushed"})
    answers = {each["reqId"]: each for each in (client.receive(), client.receive())}
    assert answers["pushed"]["ok"]
    assert [each["kind"] for each in answers["waits"]["events"]] == ["created", "pushed"]


def test_a_client_that_waits_for_events_may_go_away(server: Server) -> None:
    with server.connect() as client:
        begin = events(client, None)["after"]
        client.send({"cmd": "EVENTS", "after": begin, "wait_ms": PATIENT_MS})
    with server.connect() as client:
        assert client.ask({"cmd": "STATS"})["ok"]


def test_every_command_is_there_over_http(server: Server, client: Raw) -> None:
    with Http(server.http) as http:
        assert http.post("/v1/commands", cmd="PUSH", queue="web", payload=1)["ok"]
        begin = http.post("/v1/commands", cmd="EVENTS")["after"]
        (popped,) = http.post("/v1/commands", cmd="POP", queue="web")["messages"]
        message, lease = popped["id"], popped["lease"]
        done = http.post("/v1/commands", cmd="ACK", ids=[message], lease=lease)
        assert done == {"ok": True, "count": 1, "refused": []}
        told = http.post("/v1/commands", cmd="EVENTS", after=begin, queues=["web"], wait_ms=PATIENT_MS)
        assert told["events"][0]["kind"] == "popped"
        bad = http.ask("POST", "/v1/commands", {"cmd": "ACK", "ids": [message]})
        assert (bad.status, bad.code) == (409, "conflict")
        unknown = http.ask("POST", "/v1/commands", {"cmd": "NOPE"})
        assert (unknown.status, unknown.details["field"]) == (400, "cmd")
        odd = http.ask("POST", "/v1/commands", {"cmd": "STATS", "surprise": 1})
        assert (odd.status, odd.code) == (400, "invalid")


def test_events_that_come_as_the_wait_ends_are_told_and_not_passed_over(server: Server) -> None:
    told = 0
    with server.connect() as client, server.connect() as pushing:
        after = events(client, None)["after"]
        for at in range(200):
            push(pushing, "flood", at)
            reply = events(client, after, queues=["flood"], kinds=["pushed"], wait_ms=at % 3)
            told += sum(each["count"] for each in reply["events"])
            after = reply["after"]
        while told < 200:
            reply = events(client, after, queues=["flood"], kinds=["pushed"], wait_ms=PATIENT_MS)
            assert reply["events"], f"{told} of 200 were told"
            told += sum(each["count"] for each in reply["events"])
            after = reply["after"]
    assert told == 200


def test_a_client_that_says_it_sends_no_more_is_answered_its_events_at_once(server: Server) -> None:
    with server.connect() as client:
        begin = events(client, None)["after"]
        client.send({"cmd": "EVENTS", "after": begin, "queues": ["never"], "wait_ms": 60_000})
        client.half_close()
        assert client.receive()["events"] == []
        assert client.eof()


def test_one_question_for_events_names_so_many_queues_and_no_more(client: Raw) -> None:
    names = [f"q{at}" for at in range(1_001)]
    assert client.ask({"cmd": "EVENTS", "queues": names[:-1]})["ok"]
    assert refused(client.ask({"cmd": "EVENTS", "queues": names}), "invalid", "queues")
    assert refused(client.ask({"cmd": "EVENTS", "after": "1." + "1" * 50_000}), "invalid", "after")
