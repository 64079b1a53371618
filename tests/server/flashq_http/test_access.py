"""Tokens: who may use the door, and that they are never told to anybody."""

import hashlib
import hmac
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.server.flashq_http.talking import Door, DoorServer, refusal
from tests.server.http.streaming import Stream
from tests.serving import PATIENCE_S

TOKEN = "s3cret-one"
BEARER = {"authorization": f"Bearer {TOKEN}"}
SECRET = "w"


def signed(body: bytes) -> str:
    return hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


@pytest.fixture(scope="module")
def guarded() -> Iterator[DoorServer]:
    with DoorServer(
        "--store", "memory:", "--flashq-tokens", f"{TOKEN},other", "--webhook-secret", SECRET
    ) as run:
        yield run
        assert TOKEN not in run.log


@pytest.fixture
def visitor(guarded: DoorServer) -> Iterator[Door]:
    with Door(guarded.door) as connection:
        yield connection


@pytest.mark.parametrize(
    "header", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}]
)
def test_without_a_token_nothing_is_answered(visitor: Door, header: dict[str, str]) -> None:
    for method, path in (
        ("GET", "/queues"),
        ("POST", "/queues/q/jobs"),
        ("GET", "/nowhere"),
        ("GET", "/events"),
    ):
        answer = visitor.ask(method, path, {"data": 1} if method == "POST" else None, header)
        assert refusal(answer) == (401, "Invalid or missing authentication token")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert visitor.ask("GET", "/queues", headers=BEARER).status == 200


def test_with_one_of_the_tokens_everything_is(visitor: Door) -> None:
    for token in (TOKEN, "other"):
        headers = {"authorization": f"Bearer {token}"}
        pushed = visitor.ask("POST", f"/queues/{token}/jobs", {"data": 1}, headers)
        assert pushed.status == 200
    assert visitor.ask("POST", "/api/command", {"cmd": "STATS"}, BEARER).json["ok"]
    assert visitor.ask("GET", "/settings", headers=BEARER).json["data"]["auth_token_count"] == 2


@pytest.mark.parametrize("path", ["/health", "/docs", "/metrics/prometheus"])
def test_some_pages_need_no_token(visitor: Door, path: str) -> None:
    assert visitor.ask("GET", path).status == 200


def test_an_incoming_webhook_needs_a_signature_instead(visitor: Door) -> None:
    body, path = b'{"a": 1}', "/webhooks/incoming/hooked"
    for signature in (None, "00", signed(b"other")):
        headers = {} if signature is None else {"X-FlashQ-Signature": signature}
        assert visitor.send("POST", path, body, headers).status == 401
    answer = visitor.send("POST", path, body, {"X-FlashQ-Signature": signed(body)})
    assert answer.json["data"]["data"] == {"a": 1}
    counts = visitor.ask("GET", "/queues/hooked/counts", headers=BEARER).json["data"]
    assert counts["waiting"] == 1


def test_an_incoming_webhook_that_needs_no_signature_needs_a_token() -> None:
    body, path = b'{"a": 1}', "/webhooks/incoming/hooked"
    with (
        DoorServer("--store", "memory:", "--flashq-tokens", TOKEN) as unsigned,
        Door(unsigned.door) as stranger,
    ):
        assert refusal(stranger.send("POST", path, body))[0] == 401
        assert stranger.ask("GET", "/metrics/prometheus").status == 200
        assert stranger.send("POST", path, body, BEARER).json["data"]["data"] == {"a": 1}
        counts = stranger.ask("GET", "/queues/hooked/counts", headers=BEARER).json["data"]
        assert counts["waiting"] == 1


def test_a_token_in_the_query_opens_streams_only(guarded: DoorServer, visitor: Door) -> None:
    with connect(f"ws://{guarded.door}/ws/events?token={TOKEN}", open_timeout=PATIENCE_S, close_timeout=1):
        pass
    with Stream(guarded.door, f"/events?token={TOKEN}") as events:
        events.ready()
    assert visitor.ask("GET", "/queues", token=TOKEN).status == 401


def test_a_page_of_another_origin_gets_no_socket(guarded: DoorServer) -> None:
    url = f"ws://{guarded.door}/ws?token={TOKEN}"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, origin=Origin("https://elsewhere.example"), open_timeout=PATIENCE_S),
    ):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("query", ["", "?token=wrong", "?token=", "?" + "a&" * 200])
def test_a_socket_without_a_token_is_refused(guarded: DoorServer, query: str) -> None:
    url = f"ws://{guarded.door}/ws/events{query}"
    with pytest.raises(InvalidStatus) as refused, connect(url, open_timeout=PATIENCE_S):
        pass
    assert refused.value.response.status_code == 401
    assert b"Invalid or missing authentication token" in (refused.value.response.body or b"")
