"""What all requests have in common: their ids, errors, limits, packing, origins, and how they end."""

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from forebay.core.bounds import Limits
from forebay.server.http.connection import HttpLimits
from forebay.server.http.endpoint import PACK_ASIDE, PACK_FROM
from forebay.server.http.guard import REQUEST_ID_MAX
from forebay.server.http.request_body import QUERY_FIELDS_MAX
from forebay.server.http.server import HttpServer
from forebay.server.node_client import NodeClient
from tests.server.http import raw
from tests.server.http.talking import Answer, Http, at, packed
from tests.serving import PATIENCE_S, Server

HEAD_BYTES_MAX = HttpLimits().head_bytes_max


def talk(server: Server, *parts: bytes) -> bytes:
    """Send bytes as they are; all that comes back until the server closes the connection."""
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        for part in parts:
            connection.sendall(part)
        got = b""
        while more := connection.recv(1 << 16):
            got += more
    return got


# Ids of requests.


def test_every_answer_has_an_id_of_its_own(http: Http) -> None:
    asked = [http.ask("GET", path) for path in ("/v1/stats", "/v1/stats", "/nothing", "/docs")]
    found = [each.headers["x-request-id"] for each in asked]
    assert len(set(found)) == 4
    assert all(found)


def test_the_id_a_client_gives_comes_back(http: Http) -> None:
    for given in ("a", "0af7651916cd43dd8448eb211c80319c", "x" * REQUEST_ID_MAX):
        for path in ("/v1/stats", "/nothing"):
            assert http.ask("GET", path, headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * (REQUEST_ID_MAX + 1), "caf\xe9", "a\tb"])
def test_an_id_that_is_none_is_replaced(given: str, http: Http) -> None:
    found = http.ask("GET", "/v1/stats", headers={"x-request-id": given}).headers["x-request-id"]
    assert found != given
    assert found.isascii()


# Where there is nothing.


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v2/stats", "/v1/queues/", "/v1/queues/a/messages/", "/v1/queues/a/b/c", "/v1/Stats"],
)
def test_where_there_is_nothing_is_told(path: str, http: Http) -> None:
    answer = http.ask("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")
    assert path in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_pages_are_read_only(path: str, http: Http) -> None:
    answer = http.ask("POST", path, {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.code


def test_head_says_what_get_would_without_saying_it(http: Http, queue: str) -> None:
    http.push(queue, 1)
    for path in (at(queue), f"{at(queue)}/messages", "/v1/stats", "/docs", "/openapi.json"):
        head, get = http.ask("HEAD", path), http.ask("GET", path)
        assert (head.status, head.body) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == get.headers[name]
    assert http.ask("HEAD", at("nobody-has-made-it")).status == 404


def test_the_reference_page_has_every_path(http: Http) -> None:
    described = http.get("/openapi.json")
    page = http.ask("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert described["openapi"] == "3.1.0"
    for path in described["paths"]:
        assert path in page.body.decode()


# What can't be read.


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"nonsense", "body"),
        (b"[1]", "body"),
        (b"1", "body"),
        (b"null", "body"),
        (b'{"payload": 1} x', "body"),
        (b'{"payload": "\xff"}', "body"),
        (b'{"payload": "\\ud800"}', "body"),
        (b'{"payload": "\\udc00", "key": "\\udc00"}', "body"),
        (b'{"payload": ' + b"[" * 129 + b"]" * 129 + b"}", "payload"),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
        (b'{"payload": 1, "priority": "high"}', "priority"),
        (b'{"payload": 1, "priority": 1.5}', "priority"),
        (b'{"payload": 1, "headers": {"a": 1}}', "headers[...]"),
        (b'{"payload": 1, "backoff": {"surprise": 1}}', "backoff.surprise"),
        (b'{"items": [{"payload": 1, "surprise": 1}]}', "items[0].surprise"),
        (b'{"items": [{"priority": 1}]}', "items[0].payload"),
        (b"{}", "payload"),
        (b"", "payload"),
        (b'{"payload": 1, "messages": [1]}', "payload"),
        (b'{"messages": [1], "items": [{"payload": 1}]}', "payload"),
        (b'{"messages": []}', "messages"),
        (b'{"items": []}', "items"),
        (b'{"payloads": [1]}', "payloads"),
        (b'{"items": [{"payload": 1}], "priority": 1}', "priority"),
        (b'{"messages": [1], "unique_key": "k"}', "unique_key"),
        (b'{"payload": 1, "producer": "me"}', "producer"),
    ],
)
def test_what_can_not_be_taken_is_told_by_its_place(body: bytes, field: str, http: Http, queue: str) -> None:
    answer = http.send("POST", f"{at(queue)}/messages", body)
    assert (answer.status, answer.code) == (400, "invalid")
    assert answer.details["field"] == field
    accepted = answer.details["accepted"]
    assert answer.json["error"]["message"] == f"{field} must be {accepted}"
    assert http.ask("GET", at(queue)).status == 404


def test_a_payload_may_be_as_deep_as_it_says(http: Http, queue: str) -> None:
    deep = b"[" * 128 + b"]" * 128
    for body in (b'{"payload": %s}', b'{"messages": [%s]}', b'{"items": [{"payload": %s}]}'):
        assert http.send("POST", f"{at(queue)}/messages", body % deep).status == 200
        more = http.send("POST", f"{at(queue)}/messages", body % (b"[" + deep + b"]"))
        assert (more.status, more.details["field"]) == (400, "payload")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=many", "limit"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=1&limit=2", "limit"),
        ("since=now", "since"),
        ("cursor=x", "cursor"),
        ("cursor=1.x", "cursor"),
        ("state=nowhere", "state"),
        ("group=", "group"),
        ("text=%ff", "query"),
        ("&".join(f"a{at}=1" for at in range(QUERY_FIELDS_MAX + 1)), "query"),
    ],
)
def test_a_query_that_can_not_be_taken_is_told_by_its_place(
    query: str, field: str, http: Http, queue: str
) -> None:
    http.push(queue, 1)
    answer = http.ask("GET", f"{at(queue)}/messages?{query}")
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", field)


def test_a_query_is_never_passed_over(http: Http, queue: str) -> None:
    http.push(queue, 1)
    for path in ("purge", "bulk", "messages"):
        answer = http.ask("POST", f"{at(queue)}/{path}", {}, dry_run=True)
        assert (answer.status, answer.details["field"]) == (400, "query")
    answer = http.send(
        "POST", f"{at(queue)}/messages?a=1", b'{"payload": 1}', {"content-type": "application/x-ndjson"}
    )
    assert (answer.status, answer.details["field"]) == (400, "query")
    assert http.counts(queue) == {"waiting": 1}


@pytest.mark.parametrize("path", ["/v1/kv/%ff", "/v1/kv/a/%fe", "/v1/crons/%c3", "/v1/queues/%ff", "/%ff"])
def test_a_path_that_is_not_utf_8_is_refused_and_means_no_other(path: str, http: Http) -> None:
    for method, body in (("GET", None), ("PUT", b'{"value": 1}')):
        answer = http.send(method, path, body)
        assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "path")
        assert answer.headers["x-request-id"]


def test_what_is_not_http_is_told_and_closed(server: Server) -> None:
    got = talk(server, b"\0\0\0\x02{}\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid"


# What is too large.


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with Server(
        "--store",
        "memory:",
        "--frame-bytes-max",
        "4096",
        "--connections-max",
        "2",
        "--cors",
        "https://a.example",
    ) as running:
        yield running


def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(small: Server, queue: str) -> None:
    with Http(small.http) as http:
        path = f"{at(queue)}/messages"
        most = json.dumps({"payload": "x" * (4_096 - 15)}).encode()
        assert len(most) == 4_096
        assert http.send("POST", path, most).status == 200
        more = most + b" "
        for body, headers in (
            (more, {}),
            (iter([more[:10], more[10:]]), {}),
            (packed(more), {"content-encoding": "gzip"}),
            (b"x" * 3_000_000, {}),
        ):
            answer = http.send("POST", path, body, headers)
            assert (answer.status, answer.code, answer.details["field"]) == (413, "invalid", "body")
        assert http.counts(queue) == {"waiting": 1}


@pytest.mark.parametrize("line", [b"/%s HTTP/1.1\r\n\r\n", b"/v1/stats HTTP/1.1\r\nx: %s\r\n\r\n"])
def test_a_head_that_is_too_large_is_refused(line: bytes, server: Server) -> None:
    got = talk(server, b"GET " + line % (b"x" * HEAD_BYTES_MAX))
    assert got.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"invalid"' in got


def test_a_head_that_never_ends_is_refused(server: Server) -> None:
    assert talk(server, b"GET / HTTP/1.1\r\nx: " + b"y" * (HEAD_BYTES_MAX + 1)).startswith(b"HTTP/1.1 431 ")


def test_a_large_body_is_no_large_head(server: Server, queue: str) -> None:
    body = json.dumps({"payload": "x" * 500_000}).encode()
    head = f"POST {at(queue)}/messages HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    assert talk(server, head.encode() + body).startswith(b"HTTP/1.1 200 ")


def test_one_connection_too_many_is_told_to_come_again(small: Server) -> None:
    with Http(small.http) as one, Http(small.http) as two:
        one.get("/v1/stats")
        two.get("/v1/stats")
        got = talk(small)
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in got
        assert b'"code":"busy"' in got


def test_a_queue_that_is_full_says_when_to_come_again(http: Http, queue: str) -> None:
    http.put(at(queue), options={"max_size": 1})
    http.push(queue, 1)
    answer = http.ask("POST", f"{at(queue)}/messages", {"payload": 2})
    assert (answer.status, answer.code) == (503, "busy")
    assert int(answer.headers["retry-after"]) * 1_000 >= answer.details["retry_after_ms"] > 0


# Packed.


@pytest.mark.parametrize("size", [PACK_FROM, 2 * PACK_ASIDE])
def test_a_large_answer_is_packed_for_those_who_take_it(size: int, http: Http, queue: str) -> None:
    first = http.push(queue, "x" * size)
    path = f"{at(queue)}/messages/{first}"
    plain = http.ask("GET", path)
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip", "gzip, deflate, br", "br;q=1.0, GZIP;q=0.5"):
        answer = http.ask("GET", path, headers={"accept-encoding": accepted})
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(answer.body) == plain.body
        assert len(answer.body) < len(plain.body)
    for accepted in ("br", "gzip;q=0", "gzip; q=0.0, br", "identity"):
        answer = http.ask("GET", path, headers={"accept-encoding": accepted})
        assert answer.body == plain.body


def test_a_small_answer_is_not_packed(http: Http) -> None:
    assert "content-encoding" not in http.ask("GET", "/healthz", headers={"accept-encoding": "gzip"}).headers


def test_a_body_may_be_packed(http: Http, queue: str) -> None:
    body = packed(b'{"messages": [1, 2, 3]}')
    for each in (body, iter([body[:5], body[5:]])):
        answer = http.send("POST", f"{at(queue)}/messages", each, {"content-encoding": "gzip"})
        assert answer.json["count"] == 3


@pytest.mark.parametrize("body", [b'{"payload": 1}', packed(b'{"payload": 1}')[:-3], packed(b"{}") + b"?"])
def test_a_body_that_is_not_packed_as_it_says_is_refused(body: bytes, http: Http, queue: str) -> None:
    answer = http.send("POST", f"{at(queue)}/messages", body, {"content-encoding": "gzip"})
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "body")


def test_a_body_packed_in_another_way_is_not_supported(http: Http, queue: str) -> None:
    answer = http.send("POST", f"{at(queue)}/messages", b"?", {"content-encoding": "br"})
    assert (answer.status, answer.code) == (501, "unsupported")
    assert http.ask("GET", "/v1/stats").status == 200


# Pages of others.


def push_from(http: Http, queue: str, origin: str, **headers: str) -> Answer:
    return http.ask("POST", f"{at(queue)}/messages", {"payload": 1}, {"origin": origin, **headers})


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "file://"])
def test_a_page_of_another_origin_changes_nothing(origin: str, server: Server, queue: str) -> None:
    with Http(server.http) as http:
        answer = push_from(http, queue, origin)
        assert (answer.status, answer.code) == (403, "denied")
        assert answer.headers["x-request-id"]
    with Http(server.http) as http:
        assert http.ask("GET", at(queue)).status == 404


def test_a_page_of_this_server_may_ask(server: Server, http: Http, queue: str) -> None:
    assert push_from(http, queue, f"http://{server.http}").status == 200


def test_without_cors_no_page_of_others_may_read(http: Http) -> None:
    answer = http.ask("GET", "/v1/stats", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_with_cors_pages_of_that_origin_may_ask(small: Server, queue: str) -> None:
    with Http(small.http) as http:
        before = http.send(
            "OPTIONS",
            f"{at(queue)}/messages",
            None,
            {
                "origin": "https://a.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "content-type",
            },
        )
        assert before.status == 200
        assert before.headers["access-control-allow-origin"] == "https://a.example"
        assert "POST" in before.headers["access-control-allow-methods"]
        answer = push_from(http, queue, "https://a.example")
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
        refused = http.ask("POST", f"{at(queue)}/messages", {}, {"origin": "https://a.example"})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (400, "https://a.example")
        assert push_from(http, queue, "https://b.example").status == 403


# Clients that do not do their part.


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with Server("--store", "memory:", "--stall-ms", "100") as running:
        yield running


def test_a_head_that_does_not_go_on_is_told_and_closed(impatient: Server) -> None:
    got = talk(impatient, b"GET /v1/stats HTT")
    assert got.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"invalid"' in got


def test_a_body_that_does_not_go_on_is_told_and_closed(impatient: Server, queue: str) -> None:
    head = f"POST {at(queue)}/messages HTTP/1.1\r\ncontent-length: 100\r\n\r\n".encode()
    got = talk(impatient, head + b'{"payload"')
    assert got.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"invalid"' in got


def test_a_connection_that_is_idle_is_closed_and_one_that_waits_is_not(queue: str) -> None:
    with Server("--store", "memory:", "--idle-ms", "100", "--stall-ms", "100") as server:
        got = talk(server, b"GET /v1/stats HTTP/1.1\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 ")
        assert got.count(b"HTTP/1.1") == 1
        assert talk(server) == b""
        with Http(server.http) as http:
            assert http.popped(queue, wait_ms=2_500) == []


def test_a_client_that_does_not_read_its_answer_is_cut(impatient: Server, queue: str) -> None:
    with Http(impatient.http) as http:
        for _ in range(8):
            http.push(queue, *["x" * 1_000_000] * 4)
    host, _, port = impatient.http.rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE_S)
        connection.connect((host, int(port)))
        head = f"GET {at(queue)}/log?offset=0&max_bytes=16777216 HTTP/1.1\r\n\r\n".encode()
        connection.sendall(head)
        with Http(impatient.http) as http:
            assert http.popped(queue, 1, wait_ms=0)
            assert http.popped(f"{queue}-empty", wait_ms=3_000) == []
        got = 0
        with suppress(ConnectionResetError):
            while more := connection.recv(1 << 20):
                got += len(more)
    assert got < 16_000_000


# How requests end.


def test_requests_on_one_connection_are_answered_in_their_order(server: Server, queue: str) -> None:
    def request(payload: int, more: bytes = b"") -> bytes:
        body = b'{"payload": %d}' % payload
        return (
            f"POST {at(queue)}/messages HTTP/1.1\r\ncontent-length: {len(body)}\r\n".encode()
            + more
            + b"\r\n"
            + body
        )

    got = talk(server, b"".join(map(request, range(9))) + request(9, b"connection: close\r\n"))
    assert got.count(b"HTTP/1.1 200 OK") == 10
    with Http(server.http) as http:
        assert http.popped(queue) == list(range(10))


def test_a_client_that_expects_to_be_told_to_go_on_is_told(server: Server, queue: str) -> None:
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        head = f"POST {at(queue)}/messages HTTP/1.1\r\ncontent-length: 14\r\nexpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1_000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b'{"payload": 1}')
        assert connection.recv(1_000).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_stops_sending_while_its_pop_waits_is_told_of_no_bug(
    server: Server, http: Http, queue: str
) -> None:
    http.put(at(queue))
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        body = b'{"wait_ms": 60000}'
        head = f"POST {at(queue)}/pop HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
        got = connection.recv(10_000)
    assert b"Internal Server Error" not in got
    http.push(queue, 1)
    assert http.popped(queue, wait_ms=30_000) == [1]


@pytest.mark.parametrize("body", [b'{"dry_run": true}', b"{}"])
def test_a_body_that_nobody_would_look_at_is_refused(body: bytes, server: Server, queue: str) -> None:
    with raw.Http(server) as client:
        client.good("PUT", f"/v1/queues/{queue}", {"options": {"max_attempts": 1}})
        client.good("POST", f"/v1/queues/{queue}/messages", {"payload": 1})
        lease = client.good("POST", f"/v1/queues/{queue}/pop", {})["lease"]
        client.good("POST", "/v1/nack", {"lease": lease})
        for method, path in (("DELETE", f"/v1/queues/{queue}/dead"), ("DELETE", f"/v1/kv/{queue}")):
            answer = client.call(method, path, body)
            assert answer.status == 400
            assert answer.json["error"]["details"]["field"] == "body"
        assert client.good("GET", f"/v1/queues/{queue}/dead")["total"] == 1


def test_a_field_that_does_not_exist_is_told_by_the_name_it_was_given(http: Http, queue: str) -> None:
    for field in ("delay", "ttl", "timeout"):
        answer = http.ask("POST", f"/v1/queues/{queue}/messages", {"payload": 1, field: 1_000})
        assert (answer.status, answer.details["field"]) == (400, field)
        assert f"{field}_ms was meant?" in answer.details["accepted"]


def test_what_is_not_known_deep_inside_is_told_what_is(http: Http) -> None:
    wrong = {"cmd": "KVWRITE", "mutations": [{"kind": "set", "key": "k", "valu": 1}]}
    answer = http.ask("POST", "/v1/transaction", {"ops": [wrong]})
    assert answer.details["field"] == "ops[0].mutations[0].valu"
    assert "value was meant?" in answer.details["accepted"]


def test_a_request_that_no_transaction_may_hold_is_told_which_may(http: Http) -> None:
    answer = http.ask("POST", "/v1/transaction", {"ops": [{"cmd": "POP", "queue": "q"}]})
    names = "PUSH, FLOW, ACK, NACK, KVSET, KVDELETE, KVADD, KVWRITE"
    assert answer.details == {
        "field": "ops[0].cmd",
        "accepted": f"one of {names}: a transaction has no other",
    }


def test_what_is_refused_before_it_is_a_request_has_an_id_too(server: Server) -> None:
    with raw.Http(server) as client:
        client.send(b"nonsense\r\n\r\n")
        answer = client.answer()
        assert (answer.status, len(answer.headers["x-request-id"])) == (400, 16)


class Breaking:
    """A node whose answers break."""

    engine = None
    limits = Limits()

    def now(self) -> int:
        return 0

    def ask(self, asker: Any, ticket: Any, command: Any) -> None:
        raise RuntimeError("as it should")


def test_what_breaks_is_told_as_every_error_is(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> list[Any]:
        node: Any = Breaking()
        listener = HttpServer(node, asyncio.get_running_loop(), HttpLimits(), "0", clock=lambda: 0)
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/stats",
            "raw_path": b"/v1/stats",
            "query_string": b"",
            "headers": [(b"x-request-id", b"mine")],
        }
        await listener._app(NodeClient(node))(scope, receive, send)
        return sent

    start, body = asyncio.run(broken())
    assert start["status"] == 503
    assert (b"x-request-id", b"mine") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == "busy"
    assert "bug: request mine" in caplog.text


def test_what_waits_is_answered_with_nothing_when_the_server_stops(queue: str) -> None:
    with Server("--store", "memory:") as server, Http(server.http) as waiting, Http(server.http) as other:
        body = json.dumps({"wait_ms": 60_000})
        waiting.connection.request("POST", f"{at(queue)}/pop", body)
        while queue not in [each["queue"] for each in other.get("/v1/queues")["queues"]]:
            pass  # the pop makes the queue: then it is there
        server.terminate()
        answer = waiting.connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (200, {"lease": None, "messages": []})


@pytest.mark.parametrize("name", ["\x7fqueue", "\x7freqId"])
def test_no_field_has_a_name_that_only_the_server_gives(http: Http, queue: str, name: str) -> None:
    answer = http.ask("POST", f"{at(queue)}/messages", {"payload": 1, name: "other"})
    assert (answer.status, answer.code) == (400, "invalid")
    named: dict[str, Any] = {"\x7foptions": 1}
    answer = http.ask("GET", at(queue), **named)
    assert (answer.status, answer.code) == (400, "invalid")
    assert queue not in [each["queue"] for each in http.get("/v1/queues")["queues"]]
    assert http.ask("POST", f"{at(queue)}/messages", {"payload": {name: 1}}).status == 200
