"""Webhooks of a real server, and of whoever it posts to."""

import hashlib
import hmac
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from msgspec import Struct

from forebay.server.webhooks.signatures import signature
from tests.server.http.talking import Answer, Http
from tests.serving import PATIENCE_S, Server

SECRET = "a secret"


class Posted(Struct):
    """What an endpoint was sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        found: str = json.loads(self.body)["id"]
        return found

    @property
    def events(self) -> list[tuple[str, str, int]]:
        """Kind, queue and count of each."""
        events = json.loads(self.body)["events"]
        return [(each["kind"], each["queue"], each.get("count", 0)) for each in events]


class Endpoint:
    """Somebody who is posted to, and answers as told."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[Posted] = SimpleQueue()
        self.answers: list[tuple[int, dict[str, str]]] = []
        """Statuses and headers of the next answers; 200 when there are none."""
        self.open = threading.Event()
        """While it is not set, nobody is answered."""
        self.open.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.posted.put(Posted(self.path, dict(self.headers.items()), body))
                endpoint.open.wait(PATIENCE_S)
                status, headers = endpoint.answers.pop(0) if endpoint.answers else (200, {})
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                except OSError:
                    return  # nobody waits for the answer any more

            def log_message(self, format: str, *args: Any) -> None:
                """Not in the output of tests."""

        class Serving(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """A connection that was cut is no problem of the endpoint's."""

        self._server = Serving(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def next(self) -> Posted:
        return self.posted.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture
def another() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture(scope="module")
def posting() -> Iterator[Server]:
    """A server that may post to endpoints on this machine."""
    with Server("--webhooks-private", "on") as running:
        yield running


@pytest.fixture
def here(posting: Server) -> Iterator[Http]:
    """A connection to it; webhooks that are left are deleted."""
    with Http(posting.http) as connection:
        yield connection
        for each in connection.get("/v1/webhooks")["webhooks"]:
            connection.delete(f"/v1/webhooks/{each['id']}")


def register(http: Http, endpoint: Endpoint, **fields: Any) -> str:
    found: str = http.post("/v1/webhooks", url=endpoint.url, secret=SECRET, **fields)["id"]
    return found


# Outgoing.


def test_an_event_is_posted_with_a_signature_that_verifies(
    here: Http, endpoint: Endpoint, queue: str
) -> None:
    webhook = register(here, endpoint)
    here.push(queue, 1, 2)
    posted = endpoint.next()
    assert posted.path == "/hook"
    assert posted.events == [("created", queue, 0), ("pushed", queue, 2)]
    assert posted.headers["Content-Type"] == "application/json"
    assert posted.headers["X-Forebay-Event"] == "created"
    assert posted.headers["X-Forebay-Delivery"] == posted.id
    assert posted.id.startswith(f"{webhook}-")
    signed = posted.headers["X-Forebay-Timestamp"].encode() + b"." + posted.body
    wanted = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert posted.headers["X-Forebay-Signature"] == f"sha256={wanted}"


def test_deliveries_are_verified_as_the_protocol_says(here: Http, endpoint: Endpoint, queue: str) -> None:
    protocol = (Path(__file__).parents[3] / "docs" / "PROTOCOL.md").read_text()
    (code,) = (each for each in protocol.split("```python\n")[1:] if each.startswith("def is_genuine"))
    found: dict[str, Any] = {"hmac": hmac, "hashlib": hashlib, "time": time}
    exec(code.partition("```")[0], found)
    register(here, endpoint)
    here.push(queue, 1)
    posted = endpoint.next()
    assert found["is_genuine"](SECRET, posted.headers, posted.body)
    assert not found["is_genuine"]("another", posted.headers, posted.body)
    assert not found["is_genuine"](SECRET, posted.headers, posted.body + b" ")


def test_webhooks_are_listed_with_what_became_of_them_and_without_secrets(
    here: Http, endpoint: Endpoint, queue: str
) -> None:
    webhook = register(here, endpoint, queues=[queue], kinds=["settled", "pushed"])
    here.push(queue, 1)
    endpoint.next()
    here.push(queue, 2)
    endpoint.next()  # one at a time: the first was acked before
    answer = here.ask("GET", "/v1/webhooks")
    assert SECRET.encode() not in answer.body
    (found,) = answer.json["webhooks"]
    assert (found["id"], found["url"], found["queues"]) == (webhook, endpoint.url, [queue])
    assert found["kinds"] == ["pushed", "settled"]
    assert found["delivered"] >= 1
    assert (found["failed"], found["dead"]) == (0, 0)


def test_a_secret_is_made_if_none_is_given_and_shown_once(here: Http, endpoint: Endpoint, queue: str) -> None:
    made = here.post("/v1/webhooks", url=endpoint.url)
    here.push(queue, 1)
    posted = endpoint.next()
    stamp = int(posted.headers["X-Forebay-Timestamp"])
    assert posted.headers["X-Forebay-Signature"] == signature(made["secret"], posted.body, stamp)
    assert made["secret"].encode() not in here.ask("GET", "/v1/webhooks").body


def test_a_webhook_is_told_of_the_queues_and_kinds_it_asked_for(
    here: Http, endpoint: Endpoint, queue: str
) -> None:
    register(here, endpoint, queues=[queue], kinds=["popped", "settled"])
    here.push(f"{queue}-other", 1)
    here.pop(f"{queue}-other")
    here.push(queue, 1)
    here.post("/v1/ack", lease=here.pop(queue)["lease"])
    seen: list[tuple[str, str, int]] = []
    while len(seen) < 2:
        seen += endpoint.next().events
    assert seen == [("popped", queue, 1), ("settled", queue, 1)]


def test_a_webhook_is_told_nothing_of_what_was_before_it(here: Http, endpoint: Endpoint, queue: str) -> None:
    here.push(queue, "before")
    register(here, endpoint, queues=[queue])
    here.push(queue, "after")
    assert endpoint.next().events == [("pushed", queue, 1)]


def test_what_is_not_taken_is_posted_again_as_the_same_delivery(
    here: Http, endpoint: Endpoint, queue: str
) -> None:
    endpoint.answers.append((500, {}))
    register(here, endpoint, queues=[queue])
    here.push(queue, 1)
    first, second = endpoint.next(), endpoint.next()
    assert first.body == second.body
    assert here.get("/v1/webhooks")["webhooks"][0]["failed"] == 1


def test_a_redirect_is_not_followed(here: Http, endpoint: Endpoint, another: Endpoint, queue: str) -> None:
    endpoint.answers.append((307, {"Location": another.url}))
    register(here, endpoint, queues=[queue])
    here.push(queue, 1)
    assert endpoint.next().id == endpoint.next().id
    assert another.posted.empty()


def test_an_endpoint_that_does_not_answer_holds_up_no_other(
    here: Http, endpoint: Endpoint, another: Endpoint, queue: str
) -> None:
    endpoint.open.clear()
    register(here, endpoint, queues=[queue])
    register(here, another, queues=[queue])
    for number in range(3):
        here.push(queue, number)
        assert ("pushed", queue, 1) in another.next().events
    endpoint.next()
    assert endpoint.posted.empty()


def test_a_webhook_that_is_deleted_is_told_nothing_more(
    here: Http, endpoint: Endpoint, another: Endpoint, queue: str
) -> None:
    endpoint.open.clear()
    webhook = register(here, endpoint, queues=[queue])
    register(here, another, queues=[queue])
    for number in range(3):
        here.push(queue, number)
        another.next()
    endpoint.next()
    assert here.delete(f"/v1/webhooks/{webhook}") == {"id": webhook}
    endpoint.open.set()
    here.push(queue, 3)
    another.next()
    assert endpoint.posted.empty()
    assert [each["url"] for each in here.get("/v1/webhooks")["webhooks"]] == [another.url]
    answer = here.ask("DELETE", f"/v1/webhooks/{webhook}")
    assert (answer.status, answer.code) == (404, "not_found")


@contextmanager
def killed(*flags: str) -> Iterator[Server]:
    """A server that ends as if the power went."""
    server = Server(*flags)
    server.__enter__()
    try:
        yield server
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        server.__exit__(KeyboardInterrupt)


def test_a_killed_server_loses_no_event_and_repeats_none_that_was_taken(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    flags = ("--webhooks-private", "on", "--data", str(tmp_path / "data"))
    with killed(*flags) as server, Http(server.http) as http:
        register(http, endpoint, kinds=["pushed"])
        http.push("q", 1)
        first = endpoint.next()
        http.push("q", 2, 2)
        taken = endpoint.next()
        endpoint.open.clear()
        http.push("q", 3, 3, 3)
        on_its_way = endpoint.next()  # one at a time: what came before was acked
        http.push("q", 4, 4, 4, 4)
    endpoint.open.set()
    with Server(*flags) as server, Http(server.http) as http:
        again, last = endpoint.next(), endpoint.next()
        assert again.id == on_its_way.id
        assert again.body == on_its_way.body
        counts = [count for each in (first, taken, again, last) for _, _, count in each.events]
        assert counts == [1, 2, 3, 4]
        http.push("q", 5, 5, 5, 5, 5)
        assert endpoint.next().events == [("pushed", "q", 5)]
        assert http.get("/v1/webhooks")["webhooks"][0]["failed"] == 0


def test_a_server_that_is_told_to_stop_gives_back_what_is_on_its_way(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    flags = ("--webhooks-private", "on", "--data", str(tmp_path / "data"))
    endpoint.open.clear()
    with Server(*flags) as server, Http(server.http) as http:
        register(http, endpoint, kinds=["pushed"])
        http.push("q", 1)
        on_its_way = endpoint.next()
    endpoint.open.set()
    with Server(*flags) as server, Http(server.http) as http:
        assert endpoint.next().id == on_its_way.id
        assert http.get("/v1/webhooks")["webhooks"][0]["failed"] == 0


# Where it may not lead.


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.9",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fec0::1]",
        "[fd00::1]",
        "[ff02::1]",
        "localhost",
    ],
)
def test_an_address_that_is_not_public_is_refused(host: str, http: Http) -> None:
    answer = http.ask("POST", "/v1/webhooks", {"url": f"http://{host}:8080/"})
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "url")
    assert (
        "not a public address" in answer.json["error"]["message"]
        or "can't be found" in answer.json["error"]["message"]
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://user:word@1.1.1.1/",
        "http://1.1.1.1:0/",
        "http://1.1.1.1:99999/",
        "http://1.1.1.1/a b",
        "http://1.1.1.1/\r\nX-Other: 1",
        "http://bücher.example/",
        "http://1.1.1.1/#part",
        "http://[::1/",
        "http://1.1.1.1/" + "a" * 2_048,
    ],
)
def test_what_is_no_url_is_refused(url: str, http: Http) -> None:
    answer = http.ask("POST", "/v1/webhooks", {"url": url})
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "url")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("secret", ""),
        ("secret", "a" * 256),
        ("queues", ["a b"]),
        ("kinds", ["never"]),
        ("queues", ["q"] * 101),
    ],
)
def test_what_a_webhook_can_not_have_is_refused(field: str, value: object, http: Http) -> None:
    answer = http.ask("POST", "/v1/webhooks", {"url": "http://1.1.1.1/", field: value})
    assert (answer.status, answer.code) == (400, "invalid")
    assert field.startswith(answer.details["field"])


def test_a_server_that_keeps_no_events_has_no_webhooks() -> None:
    with Server("--events-bytes-max", "0", "--store", "memory:") as server, Http(server.http) as http:
        assert http.ask("POST", "/v1/webhooks", {"url": "http://1.1.1.1/"}).code == "unsupported"


# Incoming.


def send(http: Http, queue: str, body: bytes, kind: str | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.send(
        "POST", f"/v1/webhooks/{queue}", body, {**named, **({"content-type": kind} if kind else {})}
    )


@pytest.mark.parametrize(
    ("body", "kind", "payload"),
    [
        (b' {"a": 1.10}\n', "application/json", '{"a": 1.10}'),
        (b"[1, 2]", "application/vnd.api+json; charset=utf-8", "[1, 2]"),
        (b'{"a":1}', None, '{"a":1}'),
        (b"no json", None, '"no json"'),
        (b"", None, '""'),
        (b'{"a":1}', "text/plain", '"{\\"a\\":1}"'),
        ("ü=1&b=2".encode(), "application/x-www-form-urlencoded", '"ü=1&b=2"'),
        (b"\xff\x00\xfe", "application/octet-stream", '"/wD+"'),
    ],
)
def test_a_request_becomes_a_message(
    body: bytes, kind: str | None, payload: str, http: Http, queue: str
) -> None:
    answer = send(http, queue, body, kind, X_GitHub_Event="push", Authorization="Bearer 1", Accept="*/*")
    assert answer.status == 200
    popped = http.ask("POST", f"/v1/queues/{queue}/pop", {})
    assert f'"payload":{payload},' in popped.body.decode()
    (message,) = popped.json["messages"]
    assert message["id"] == answer.json["id"]
    also = {"x-forebay-encoding": "base64"} if body.startswith(b"\xff") else {}
    assert message["headers"] == {
        "x-github-event": "push",
        **({"content-type": kind} if kind else {}),
        **also,
    }


def test_what_says_it_is_json_has_to_be(http: Http, queue: str) -> None:
    for body in (b"", b"{", b"{} {}", b'"\xff"', b"[" * 200 + b"]" * 200):
        answer = send(http, queue, body, "application/json")
        assert (answer.status, answer.code) == (400, "invalid")


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-GitHub-Delivery", "X-Forebay-Delivery"])
def test_a_request_that_comes_again_is_known(header: str, http: Http, queue: str) -> None:
    first = send(http, queue, b"1", **{header: "7"}).json
    again = send(http, queue, b"1", **{header: "7"}).json
    assert "duplicate" not in first
    assert again == {**first, "duplicate": True}
    assert "duplicate" not in send(http, queue, b"1", **{header: "8"}).json


def test_headers_are_taken_as_far_as_a_message_has_room_and_secrets_are_not(http: Http, queue: str) -> None:
    secret = {
        "X-Hub-Signature": "1",
        "X-Gitlab-Token": "1",
        "X-Api-Key": "1",
        "Cookie": "1",
        "X-Auth-User": "1",
    }
    many = {f"x-{number}": "v" for number in range(80)}
    assert send(http, queue, b"1", **{**secret, "x-large": "v" * 9_000, **many}).status == 200
    (message,) = http.pop(queue)["messages"]
    assert message["headers"] == {f"x-{number}": "v" for number in range(63)}


def test_a_body_over_the_limit_and_a_queue_without_a_name_are_refused(http: Http, queue: str) -> None:
    assert send(http, queue, b'"' + b"a" * 1_048_576 + b'"', "application/json").code == "invalid"
    assert send(http, "a%20b", b"1").code == "invalid"


@pytest.fixture(scope="module")
def suspicious() -> Iterator[Server]:
    """A server that takes only what is signed."""
    with Server("--webhook-secret", SECRET, "--store", "memory:") as running:
        yield running


def stamped(now: int, body: bytes) -> dict[str, str]:
    return {"X-Forebay-Timestamp": str(now), "X-Forebay-Signature": signature(SECRET, body, now)}


def test_only_what_is_signed_is_taken_if_there_is_a_secret(suspicious: Server, queue: str) -> None:
    body = b'{"a":1}'
    plain = signature(SECRET, body)
    with Http(suspicious.http) as http:
        now = int(http.post(f"/v1/queues/{queue}-clock/messages", payload=1) and _now(http, queue))
        good = [
            stamped(now, body),
            stamped(now - 290, body),
            {"X-Hub-Signature-256": plain},
            {"X-Hub-Signature-256": plain.removeprefix("sha256=")},
        ]
        bad = [
            {},
            {"Authorization": SECRET},
            stamped(now - 320, body),
            stamped(now + 320, body),
            {**stamped(now, body), "X-Forebay-Timestamp": str(now + 1)},
            {"X-Forebay-Timestamp": str(now), "X-Forebay-Signature": plain},
            {"X-Forebay-Timestamp": "x", "X-Forebay-Signature": plain},
            {"X-Hub-Signature-256": signature("another", body)},
            {"X-Hub-Signature-256": signature(SECRET, b"{}")},
            {"X-Hub-Signature-256": "sha256="},
            {**stamped(now - 320, body), "X-Hub-Signature-256": plain},
            {"X-Forebay-Timestamp": "x", "X-Hub-Signature-256": plain},
            {"X-Hub-Signature-256": "ü"},
            {"X-FlashQ-Signature": plain},
        ]
        for headers in good:
            assert send(http, queue, body, **headers).status == 200, headers
        for headers in bad:
            answer = send(http, queue, body, **headers)
            assert (answer.status, answer.code) == (403, "denied"), headers
        assert len(http.popped(queue)) == len(good)


def test_an_old_signature_of_ours_signs_no_body_alone(suspicious: Server, queue: str) -> None:
    old = 1_700_000_000
    signed = {"X-Hub-Signature-256": signature(SECRET, b'{"a":1}', old)}
    with Http(suspicious.http) as http:
        answer = send(http, queue, b'%d.{"a":1}' % old, "text/plain", **signed)
        assert (answer.status, answer.code) == (403, "denied")


def _now(http: Http, queue: str) -> int:
    """What time it is for the server."""
    now: int = http.pop(f"{queue}-clock")["messages"][0]["created_at"] // 1000
    return now


def test_what_one_server_posts_another_takes_once(suspicious: Server, posting: Server, queue: str) -> None:
    """Forebay to Forebay: the signature is known, and so is a delivery that comes again."""
    with Http(posting.http) as http, Http(suspicious.http) as there:
        url = f"http://{suspicious.http}/v1/webhooks/{queue}"
        webhook = http.post("/v1/webhooks", url=url, secret=SECRET, queues=[queue], kinds=["pushed"])["id"]
        http.push(queue, 1)
        (message,) = there.pop(queue, wait_ms=20_000)["messages"]
        assert message["payload"]["events"][0]["kind"] == "pushed"
        assert message["headers"]["x-forebay-event"] == "pushed"
        http.delete(f"/v1/webhooks/{webhook}")
