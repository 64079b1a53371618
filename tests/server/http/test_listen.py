"""Messages as server-sent events: leased to the connection, and given back when it is gone."""

from typing import Any
from urllib.parse import quote

import pytest

from forebay.core.bounds import Limits
from forebay.server.http import event_streams
from forebay.server.http.connection import HttpLimits
from forebay.store.base import StoreError
from tests.broker.loop import ObedientStore
from tests.server.http.streaming import Here, Sse, Stream, ask, get, narrow
from tests.serving import Raw, Server, pop, push


def listen(server: Server | Here, queue: str, query: str = "") -> Stream:
    return Stream(server.http, f"/v1/queues/{quote(queue)}/listen?{query}")


def payloads(found: list[Sse]) -> list[Any]:
    return [each.told["payload"] for each in found]


def ack(client: Raw, *found: Sse) -> None:
    reply = client.ask({"cmd": "ACK", "ids": [each.told["id"] for each in found]})
    assert reply["ok"], reply


def test_messages_come_as_they_are_pushed_each_with_its_id(server: Server, client: Raw, queue: str) -> None:
    first = push(client, queue, {"a": 1})
    with listen(server, queue) as stream:
        (one,) = stream.take(1)
        assert (one.name, one.id) == ("message", str(first))
        told = one.told
        assert told.pop("lease")
        assert told.pop("created_at") < told.pop("expires_at")
        assert told == {
            "id": first,
            "queue": queue,
            "partition": "default",
            "offset": 0,
            "payload": {"a": 1},
            "deliveries": 1,
            "failures": 0,
            "priority": 0,
        }
        push(client, queue, 2, 3)
        two, three = stream.take(2)
        assert payloads([two, three]) == [2, 3]
        ack(client, one, two, three)
    assert client.ask({"cmd": "STATE", "id": first})["state"] == "completed"


def test_what_a_connection_held_is_there_for_others_at_once(server: Server, client: Raw, queue: str) -> None:
    push(client, queue, 1, 2, 3)
    with listen(server, queue, "lease_ms=600000") as stream:
        one, _, _ = stream.take(3)
        ack(client, one)
    found: list[tuple[int, int]] = []
    while len(found) < 2:
        more = client.ask({"cmd": "POP", "queue": queue, "count": 10, "wait_ms": 30_000})["messages"]
        found += [(each["payload"], each["failures"]) for each in more]
    assert found == [(2, 0), (3, 0)]


def test_no_more_than_max_are_held_and_more_come_when_others_settle_them(
    server: Server, client: Raw, queue: str
) -> None:
    push(client, queue, *range(7))
    with listen(server, queue, "max=2") as stream:
        held = stream.take(2)
        assert pop(client, queue)["payload"] == 2
        ack(client, held[0])
        held += stream.take(1)
        status, _ = ask(
            server.http,
            "POST",
            "/v1/ack",
            {"lease": held[1].told["lease"], "ids": [held[1].told["id"]]},
        )
        assert status == 200
        held += stream.take(1)
        assert payloads(held) == [0, 1, 3, 4]
        ack(client, *held[2:])
        assert payloads(stream.take(2)) == [5, 6]


def test_what_fails_makes_room_and_comes_again(server: Server, client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"backoff": 0}})
    push(client, queue, 1, 2)
    with listen(server, queue, "max=1") as stream:
        (one,) = stream.take(1)
        client.ask({"cmd": "NACK", "ids": [one.told["id"]], "error": "no"})
        (again,) = stream.take(1)
        assert (again.told["payload"], again.told["failures"], again.told["deliveries"]) == (1, 1, 2)
        ack(client, again)
        assert payloads(stream.take(1)) == [2]


def test_a_lease_that_runs_out_makes_room(server: Server, client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"backoff": 0, "max_attempts": 0}})
    push(client, queue, 1)
    with listen(server, queue, "max=1&lease_ms=20") as stream:
        found = stream.take(3)
    assert [each.told["failures"] for each in found] == [0, 1, 2]


def test_two_listeners_share_the_work(server: Server, client: Raw, queue: str) -> None:
    with listen(server, queue, "max=5") as one, listen(server, queue, "max=5") as two:
        push(client, queue, *range(10))
        found = payloads(one.take(5)) + payloads(two.take(5))
        assert sorted(found) == list(range(10))


def test_a_group_a_partition_and_a_place_to_begin(server: Server, client: Raw, queue: str) -> None:
    push(client, queue, 1, 2)
    push(client, queue, 3, partition="x")
    with listen(server, queue, "group=audit&partition=x") as stream:
        assert payloads(stream.take(1)) == [3]
    with listen(server, queue, "group=late&from=new") as stream:
        push(client, queue, 4)
        assert payloads(stream.take(1)) == [4]
    with listen(server, queue, "group=all") as stream:
        assert sorted(payloads(stream.take(4))) == [1, 2, 3, 4]


def test_a_payload_with_line_breaks_is_one_line(server: Server, client: Raw, queue: str) -> None:
    body = b'{"cmd":"PUSH","queue":"%s","payload":{"a":\n[1,\r\n2],\r"b":"x\\ny"}}' % queue.encode()
    client.send_frame(body)
    assert client.receive()["ok"]
    with listen(server, queue) as stream:
        (one,) = stream.take(1)
    assert one.told["payload"] == {"a": [1, 2], "b": "x\ny"}


BAD = ["max=0", "max=1001", "max=x", "lease_ms=0", "group=", "from=never", "colour=red", "max=1&max=2"]


@pytest.mark.parametrize("query", BAD)
def test_a_bad_question_is_answered_before_the_stream_begins(server: Server, queue: str, query: str) -> None:
    status, answer = get(server.http, f"/v1/queues/{queue}/listen?{query}")
    assert (status, answer["error"]["code"]) == (400, "invalid")


def test_a_bad_name_is_refused(server: Server) -> None:
    assert get(server.http, "/v1/queues/a%20b/listen")[0] == 400


def test_a_page_of_a_foreign_origin_leases_nothing(server: Server, client: Raw, queue: str) -> None:
    push(client, queue, 1)
    path = f"/v1/queues/{queue}/listen"
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        status, answer = get(server.http, path, headers)
        assert (status, answer["error"]["code"]) == (403, "denied")
    assert pop(client, queue)["failures"] == 0
    with Stream(server.http, path, {"Origin": f"http://{server.http}"}) as stream:
        assert stream.status == 200


def test_a_silent_stream_has_pings_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "PING_S", 0.01)
    with Here() as here, here.connect() as client, listen(here, "q") as stream:
        assert stream.block() == Sse("", "", comment="listening")
        for _ in range(3):
            assert stream.block() == Sse("ping", "")
        push(client, "q", 1)
        assert payloads(stream.take(1)) == [1]
        assert stream.block() == Sse("ping", "")


def test_a_server_whose_pops_may_not_wait_does_not_ask_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "LOOK_S", 0.01)
    limits = Limits(events_bytes_max=1 << 20, wait_ms_max=0)
    with Here(limits=limits) as here, here.connect() as client, listen(here, "q") as stream:
        before = here.node.meter.answers
        for at in range(20):
            push(client, "q", at)
            assert payloads(stream.take(1)) == [at]
            for _ in range(20):
                client.ask({"cmd": "STATS"})
        assert here.node.meter.answers - before < 2_000


def test_a_queue_that_is_removed_and_made_again_is_listened_to(
    server: Server, client: Raw, queue: str
) -> None:
    push(client, queue, 1)
    with listen(server, queue) as stream:
        (one,) = stream.take(1)
        ack(client, one)
        assert client.ask({"cmd": "QUEUEDELETE", "force": True, "queue": queue})["ok"]
        push(client, queue, 2)
        assert payloads(stream.take(1)) == [2]


def test_a_server_that_stops_ends_the_stream_and_takes_back_what_it_held() -> None:
    with Here() as here, here.connect() as client:
        push(client, "q", 1)
        with listen(here, "q") as stream:
            stream.take(1)
            here.end()
            assert list(stream) == []
        store = here.store
    with Here(store, at=here.now) as again, again.connect() as client:
        assert pop(client, "q")["failures"] == 0


def test_sigterm_ends_streams_of_messages() -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        push(client, "q", 1)
        with listen(server, "q") as stream:
            stream.take(1)
            server.terminate()
            assert list(stream) == []
        assert server.wait() == 0


def test_one_that_leaves_while_the_store_fails_gives_back_what_it_held_when_it_works_again() -> None:
    with Here() as here, here.connect() as client:
        assert isinstance(here.store, ObedientStore)
        push(client, "q", 1)
        with listen(here, "q") as stream:
            assert payloads(stream.take(1)) == [1]
            here.store.commit_error = here.store.claim_error = StoreError("no")
            assert client.ask({"cmd": "PUSH", "queue": "q", "payload": 2})["error"]["code"] == "busy"
        while here.call(lambda: here.server.hub.count):
            pass
        here.store.commit_error = here.store.claim_error = None
        reply = client.ask({"cmd": "POP", "queue": "q", "wait_ms": 20_000})
        while not reply["ok"] and reply["error"]["code"] == "busy":
            reply = client.ask({"cmd": "POP", "queue": "q", "wait_ms": 20_000})
        assert [(each["payload"], each["failures"]) for each in reply["messages"]] == [(1, 0)]


def test_one_that_does_not_read_gives_back_what_it_held(queue: str) -> None:
    with Here(http=HttpLimits(stall_ms=1)) as here, here.connect() as client:
        push(client, "q", *["x" * 100_000] * 50)
        path = "/v1/queues/q/listen"
        lazy = narrow(here.http, 4_096)
        lazy.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        reply = client.ask({"cmd": "POP", "queue": "q", "count": 50, "wait_ms": 0})
        held = len(reply["messages"])
        while held < 50:
            more = client.ask({"cmd": "POP", "queue": "q", "count": 50, "wait_ms": 30_000})["messages"]
            assert all(each["failures"] == 0 for each in more)
            held += len(more)
        lazy.close()


def test_messages_of_a_connection_that_left_while_they_came_are_not_lost(
    server: Server, client: Raw, queue: str
) -> None:
    for at in range(20):
        with listen(server, queue):
            client.send({"cmd": "PUSH", "queue": queue, "payload": at})
        assert client.receive()["ok"]
    found: list[int] = []
    while len(found) < 20:
        more = client.ask({"cmd": "POP", "queue": queue, "count": 20, "wait_ms": 30_000})["messages"]
        assert all(each["failures"] == 0 for each in more)
        found += [each["payload"] for each in more]
    assert sorted(found) == list(range(20))
