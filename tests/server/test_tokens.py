"""Tokens and tenants: made, shown, revoked, expired; and a server that is open until it has an admin."""

import json
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from forebay.broker.auth import REQUIRED, WRONG
from forebay.core.routing.placement import home_of
from forebay.wire.table import OPERATIONS
from tests.server.flashq_http.talking import DoorServer
from tests.server.foreign import ADMIN
from tests.server.http.streaming import Stream
from tests.server.http.talking import Http, bearer
from tests.serving import Raw, Reply, Server, framed, packed, pop, push, refused

DOCUMENT = (Path(__file__).parents[2] / "docs" / "OPERATIONS.md").read_text()
NOBODYS = f"fb_{'0' * 12}_{'A' * 43}"
"""A token of the right form that no server has made."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--store", "memory:", "--admin-token", ADMIN) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[Http]:
    with Http(server.http, ADMIN) as http:
        yield http


POPS = {"wait_ms": 30_000, "create": True}


def made(admin: Http, role: str, tenant: str = "acme", **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = admin.post(f"/v1/tenants/{tenant}/tokens", role=role, **fields)
    return answer


def shown(server: Server, token: str) -> Raw:
    """A connection that has shown a token."""
    client = server.connect()
    assert client.ask({"cmd": "AUTH", "token": token})["ok"]
    return client


# Who has shown no token, or a bad one.


def test_a_connection_shows_its_token_once_and_first(server: Server, admin: Http) -> None:
    token = made(admin, "write", name="ci", queues=["orders*"])["token"]
    with server.connect() as client:
        client.send(
            packed(
                {"cmd": "STATS", "reqId": 1},
                {"cmd": "AUTH", "token": NOBODYS, "reqId": 2},
                {"cmd": "AUTH", "token": token, "reqId": 3},
                {
                    "cmd": "PUSH",
                    "queue": "orders",
                    "payload": 1,
                    "reqId": 4,
                },  # sent before the answer to AUTH
            )
        )
        answers = {answer["reqId"]: answer for answer in (client.receive() for _ in range(4))}
    assert answers[1]["error"] == {"code": "denied", "message": REQUIRED}
    assert answers[2]["error"] == {"code": "denied", "message": WRONG}
    who = {"tenant": "acme", "role": "write", "name": "ci", "queues": ["orders*"]}
    assert answers[3] == {"ok": True, "reqId": 3, **who}
    assert answers[4]["ok"]


@pytest.mark.parametrize("ask", [Raw.ask, Raw.ask_line, Raw.ask_packed])
def test_auth_has_every_form(server: Server, admin: Http, ask: Callable[[Raw, Any], Reply]) -> None:
    token = made(admin, "read")["token"]
    with server.connect() as client:
        assert refused(ask(client, {"cmd": "AUTH"}), "denied")
        assert ask(client, {"cmd": "AUTH", "token": token})["tenant"] == "acme"
        assert ask(client, {"cmd": "AUTH"})["role"] == "read"
        assert refused(ask(client, {"cmd": "AUTH", "token": "nonsense"}), "denied")
        assert ask(client, {"cmd": "QUEUES"})["ok"], "a bad token takes nothing from a good one"


def test_of_nobody_no_large_frame_is_taken(server: Server) -> None:
    with server.connect() as client:
        client.send(framed(b" " * 100_000))
        assert client.receive() == {"ok": False, "error": {"code": "denied", "message": REQUIRED}}


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", f"Bearer {NOBODYS}", f"Basic {ADMIN}", f"Bearer {ADMIN}x", "Bearer \xff"],
)
def test_over_http_whoever_has_no_good_token_gets_401(server: Server, header: str) -> None:
    with Http(server.http) as http:
        answer = http.ask("GET", "/v1/queues", headers={"authorization": header} if header else {})
        assert (answer.status, answer.code) == (401, "denied")


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER"])
def test_the_word_in_front_of_a_token_has_any_case(server: Server, word: str) -> None:
    with Http(server.http) as http:
        assert (
            http.ask("GET", "/v1/auth", headers={"authorization": f"{word} {ADMIN}"}).json["role"] == "admin"
        )


def test_no_token_is_in_the_log_or_in_an_answer() -> None:
    with DoorServer("--store", "memory:", "--admin-token", ADMIN, "--log-level", "debug") as server:
        with Http(server.http, ADMIN) as http:
            token = made(http, "owner", name="ci")["token"]
            secret = token.rpartition("_")[2]
            with shown(server, token) as client:
                listed = client.ask({"cmd": "TOKENS"})
                client.ask({"cmd": "AUTH", "token": f"{token}x"})
            http.ask("GET", "/v1/queues", headers={"authorization": f"Bearer {token}x"})
            assert secret not in str(listed)
        assert secret not in server.log
        assert ADMIN not in server.log


# The life of a token.


def test_a_token_is_shown_once_listed_and_revoked(server: Server, admin: Http) -> None:
    token = made(admin, "owner", "listed", name="deploy", queues=["a*"])
    (listed,) = admin.get("/v1/tenants/listed/tokens")["tokens"]
    assert listed.keys() == {"id", "role", "name", "queues", "created_at", "expires_at", "last_used_at"}
    assert (listed["id"], listed["last_used_at"], listed["expires_at"]) == (token["id"], None, None)
    with shown(server, token["token"]):
        (listed,) = admin.get("/v1/tenants/listed/tokens")["tokens"]
        assert listed["last_used_at"] >= listed["created_at"]
    assert admin.delete(f"/v1/tenants/listed/tokens/{token['id']}") == {"id": token["id"]}
    assert admin.get("/v1/tenants/listed/tokens")["tokens"] == []
    for tenant in ("listed", "other"):
        answer = admin.ask("DELETE", f"/v1/tenants/{tenant}/tokens/{token['id']}")
        assert (answer.status, answer.code) == (404, "not_found")


def test_nobody_gives_away_more_than_he_has(server: Server, admin: Http) -> None:
    owner = made(admin, "owner")["token"]
    with shown(server, owner) as client:
        assert refused(client.ask({"cmd": "TOKENCREATE", "role": "admin"}), "denied")
        assert client.ask({"cmd": "TOKENCREATE", "role": "owner"})["ok"]
        assert refused(client.ask({"cmd": "TOKENCREATE", "role": "king"}), "invalid")
        assert refused(client.ask({"cmd": "TOKENCREATE", "role": "read", "queues": ["a b"]}), "invalid")
        assert refused(client.ask({"cmd": "TOKENCREATE", "role": "read", "expires_ms": 0}), "invalid")


def test_a_revoked_token_ends_connections_streams_and_waits_at_once(server: Server, admin: Http) -> None:
    token, other = made(admin, "write"), made(admin, "write")["token"]
    mine = bearer(token["token"])
    answers: list[Any] = []

    def wait() -> None:
        with Http(server.http, token["token"]) as http:
            try:
                answers.append(http.ask("POST", "/v1/queues/jobs/pop", POPS).status)
            except (OSError, HTTPException) as error:
                answers.append(error)

    over_http = threading.Thread(target=wait)
    with (
        shown(server, token["token"]) as idle,
        shown(server, token["token"]) as waiting,
        shown(server, other) as bystander,
        Stream(server.http, "/v1/events", mine) as events,
        Stream(server.http, "/v1/queues/jobs/listen?create=true", mine) as messages,
    ):
        waiting.send({"cmd": "POP", "queue": "jobs", **POPS})
        over_http.start()
        until(lambda: "forebay_waiting_pops 3" in admin.text("/metrics"))
        admin.delete(f"/v1/tenants/acme/tokens/{token['id']}")
        assert waiting.receive()["messages"] == [], "its wait is over"
        for client in (idle, waiting):
            assert refused(client.receive(), "denied")
            assert client.eof()
        over_http.join()
        assert answers[0] != 200
        assert events.is_over()
        assert messages.is_over()
        assert bystander.ask({"cmd": "PUSH", "queue": "jobs", "payload": "not lost"})["ok"]
        # A pop that just ended may have been given it; then it is given back.
        assert pop(bystander, "jobs", wait_ms=10_000)["payload"] == "not lost"
        assert refused(bystander.ask({"cmd": "AUTH", "token": token["token"]}), "denied")
    with Http(server.http, token["token"]) as http:
        assert http.ask("GET", "/v1/queues").status == 401


def test_nobody_becomes_somebody_else_while_answers_are_to_come(server: Server, admin: Http) -> None:
    first, second = made(admin, "write", "first"), made(admin, "write", "second")["token"]
    again = made(admin, "write", "first")["token"]
    with shown(server, first["token"]) as client:
        client.send({"cmd": "POP", "queue": "jobs", "wait_ms": 30_000, "create": True, "reqId": "pop"})
        until(lambda: "forebay_waiting_pops 1" in admin.text("/metrics"))
        assert refused(client.ask({"cmd": "AUTH", "token": second}), "conflict")
        assert client.ask({"cmd": "AUTH", "token": again})["ok"], "the same rights: its waits go on"
        admin.delete(f"/v1/tenants/first/tokens/{first['id']}")
        client.send({"cmd": "PUSH", "queue": "jobs", "payload": 1, "reqId": "push"})
        assert {client.receive()["reqId"], client.receive()["reqId"]} == {"push", "pop"}
        assert client.ask({"cmd": "AUTH", "token": second})["tenant"] == "second"


def until(happened: Callable[[], bool]) -> None:
    """Ask until it has happened."""
    while not happened():
        pass


def test_a_token_expires_on_an_open_connection(server: Server, admin: Http) -> None:
    token = made(admin, "write", "brief", expires_ms=1_000)["token"]
    with shown(server, token) as client:
        push(client, "jobs", 1)
        assert refused(client.receive(), "denied")  # comes without being asked for
        assert client.eof()
    with server.connect() as client:
        assert refused(client.ask({"cmd": "AUTH", "token": token}), "denied")


def test_what_the_documents_show_makes_a_token(server: Server) -> None:
    (shown,) = re.findall(r"```sh tenants\n[^`]*\n(curl .*)\n```", DOCUMENT)
    shown = shown.replace("localhost:8080", server.http)
    environment = {**os.environ, "FOREBAY_ADMIN_TOKEN": ADMIN}
    ran = subprocess.run(["sh", "-c", f"exec {shown} -s"], env=environment, capture_output=True, check=True)
    made = json.loads(ran.stdout)
    assert (made["tenant"], made["role"], made["queues"], made["name"]) == (
        "acme",
        "write",
        ["orders*"],
        "ci",
    )
    assert made["expires_at"] == made["created_at"] + 90 * 86_400_000


def test_a_token_of_one_that_expires_ends_with_it(server: Server, admin: Http) -> None:
    owner = made(admin, "owner", "heirs", expires_ms=60_000)
    with shown(server, owner["token"]) as client:
        for fields in ({}, {"expires_ms": 3_600_000}):
            token = client.ask({"cmd": "TOKENCREATE", "role": "read", **fields})
            assert token["expires_at"] == owner["expires_at"]
        assert (
            client.ask({"cmd": "TOKENCREATE", "role": "read", "expires_ms": 1})["expires_at"]
            < owner["expires_at"]
        )


def test_a_token_is_gone_even_if_who_revoked_it_went_away(server: Server, admin: Http) -> None:
    token, owner = made(admin, "read", "left"), made(admin, "owner", "left")["token"]
    with Http(server.http, token["token"]) as http, shown(server, token["token"]) as open_:
        assert http.ask("GET", "/v1/queues").status == 200
        client = shown(server, owner)
        client.send({"cmd": "TOKENREVOKE", "id": token["id"]})
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # by a reset
        assert refused(open_.receive(), "denied")
        until(lambda: http.ask("GET", "/v1/queues").status == 401)


def test_a_token_may_revoke_itself(server: Server, admin: Http) -> None:
    token = made(admin, "owner", "itself")
    with shown(server, token["token"]) as client:
        assert client.ask({"cmd": "TOKENREVOKE", "id": token["id"]}) == {"ok": True, "id": token["id"]}
        assert refused(client.receive(), "denied")
        assert client.eof()


def test_a_body_that_comes_after_its_token_was_revoked_is_refused(server: Server, admin: Http) -> None:
    token, other = made(admin, "write", "late"), made(admin, "read", "late")["token"]
    body = b'{"payload": "late"}'
    with Http(server.http, token["token"]) as http:
        wire = http.connection
        wire.putrequest("POST", "/v1/queues/jobs/messages")
        for name, value in {**bearer(token["token"]), "content-length": str(len(body))}.items():
            wire.putheader(name, value)
        wire.endheaders(body[:5])
        # The head has arrived when the token was used.
        until(
            lambda: any(each["id"] == token["id"] and each["last_used_at"] for each in _tokens(admin, "late"))
        )
        admin.delete(f"/v1/tenants/late/tokens/{token['id']}")
        wire.send(body[5:])
        answer = wire.getresponse()
        assert answer.status == 401
        answer.read()
    with Http(server.http, other) as http:
        assert http.get("/v1/queues")["queues"] == []


def _tokens(admin: Http, tenant: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.get(f"/v1/tenants/{tenant}/tokens")["tokens"]
    return found


def test_headers_that_two_could_read_differently_are_refused(server: Server, admin: Http) -> None:
    head = b"GET /v1/queues HTTP/1.1\r\nHost: h\r\n"
    bearer_of = b"Authorization: Bearer " + ADMIN.encode() + b"\r\n"
    for headers, status in (
        (bearer_of, b"200"),
        (bearer_of + bearer_of, b"400"),
        (bearer_of + b"Authorization: Basic eA==\r\n", b"400"),
        (bearer_of + b"X-Forebay-Tenant: a\r\nX-Forebay-Tenant: b\r\n", b"400"),
        (bearer_of + b"X-Forebay-Tenant:\r\n", b"400"),
    ):
        host, _, port = server.http.rpartition(":")
        with socket.create_connection((host, int(port))) as wire:
            wire.sendall(head + headers + b"\r\n")
            assert wire.recv(1 << 16).split()[1] == status, headers


# A server that nobody has secured.


def test_an_open_server_closes_with_its_first_admin() -> None:
    with Server("--store", "memory:") as server:
        with server.connect() as stranger, Http(server.http) as http:
            assert stranger.ask({"cmd": "AUTH"})["role"] == "admin"
            assert refused(stranger.ask({"cmd": "AUTH", "token": NOBODYS}), "denied")
            push(stranger, "jobs", 1)
            assert http.get("/v1/auth")["name"] == "anyone"
            made(http, "owner")
            assert stranger.ask({"cmd": "STATS"})["ok"], "only an admin closes it: it would have none"
            token = stranger.ask({"cmd": "TOKENCREATE", "role": "admin"})
            assert refused(stranger.receive(), "denied")
            assert stranger.eof()
            assert http.ask("GET", "/v1/queues").status == 401
        with Http(server.http, token["token"]) as admin:
            assert [each["queue"] for each in admin.get("/v1/queues")["queues"]] == ["jobs"]
            last = admin.ask("DELETE", f"/v1/tenants/default/tokens/{token['id']}")
            assert (last.status, last.code) == (409, "conflict"), "nobody could ever come in again"


def test_tokens_and_suspended_tenants_outlast_a_crash(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--admin-token", ADMIN)
    with Server(*flags) as server:
        with Http(server.http, ADMIN) as admin:
            tokens = [made(admin, role)["token"] for role in ("read", "owner")]
            admin.put("/v1/tenants/halted", suspended=True)
        server.kill()
    with Server(*flags) as server:
        for token, role in zip(tokens, ("read", "owner"), strict=True):
            with shown(server, token) as client:
                assert client.ask({"cmd": "AUTH"})["role"] == role
        with Http(server.http, ADMIN) as admin:
            assert admin.get("/v1/tenants/halted")["suspended"]


def test_a_server_whose_admin_is_not_known_any_more_stays_closed(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with Server(*data, "--admin-token", ADMIN) as server, Http(server.http, ADMIN) as admin:
        token = made(admin, "read")["token"]
    with Server(*data) as server, server.connect() as client:
        assert refused(client.ask({"cmd": "STATS"}), "denied")
        assert client.ask({"cmd": "AUTH", "token": token})["role"] == "read"
        assert refused(client.ask({"cmd": "TENANTS"}), "denied")


# Tenants.


def test_a_suspended_tenant_is_denied_and_loses_nothing(server: Server, admin: Http) -> None:
    token = made(admin, "owner", "halted")["token"]
    with shown(server, token) as client, shown(server, token) as waiting:
        push(client, "jobs", "first")
        assert pop(client, "jobs")["payload"] == "first"
        waiting.send({"cmd": "POP", "queue": "jobs", "wait_ms": 30_000})
        until(lambda: "forebay_waiting_pops 1" in admin.text("/metrics"))
        assert admin.put("/v1/tenants/halted", suspended=True)["suspended"]
        answer = waiting.receive()
        assert refused(answer, "denied")
        assert "suspended" in answer["error"]["message"]
        for request in (
            {"cmd": "PUSH", "queue": "jobs", "payload": 2},
            {"cmd": "QUEUES"},
            {"cmd": "KVGET", "key": "k"},
        ):
            assert refused(client.ask(request), "denied")
        assert not admin.put("/v1/tenants/halted", suspended=False)["suspended"]
        assert pop(client, "jobs")["payload"] == "first", "its lease was given back"


def test_of_a_suspended_tenant_nothing_is_answered_but_who_asks(server: Server, admin: Http) -> None:
    token = made(admin, "owner", "still")["token"]
    with (
        shown(server, token) as client,
        Http(server.http, token) as http,
        Stream(server.http, "/v1/events", bearer(token)) as events,
    ):
        assert client.ask({"cmd": "STATS"})["ok"]
        admin.put("/v1/tenants/still", suspended=True)
        assert events.is_over()
        for operation in OPERATIONS:
            reply = client.ask({"cmd": operation.name, **operation.example})
            if operation.name != "AUTH":
                assert refused(reply, "denied"), operation.name
                assert "suspended" in reply["error"]["message"]
        assert client.ask({"cmd": "AUTH"})["tenant"] == "still"
        for path in ("/v1/queues", "/v1/webhooks", "/v1/workers", "/v1/events", "/metrics"):
            answer = http.ask("GET", path)
            assert (answer.status, answer.code) == (403, "denied"), path
        assert http.get("/v1/auth")["tenant"] == "still"
        with shown(server, token) as another:
            assert refused(another.ask({"cmd": "STATS"}), "denied")
        admin.put("/v1/tenants/still", suspended=False)
        assert client.ask({"cmd": "STATS"})["ok"]
        assert http.ask("GET", "/v1/queues").status == 200


def test_an_admin_whose_tenant_is_suspended_can_resume_it(server: Server, admin: Http) -> None:
    admin.put("/v1/tenants/default", suspended=True)
    try:
        assert admin.ask("GET", "/v1/tenants/default").json["suspended"]
    finally:
        admin.put("/v1/tenants/default", suspended=False)


def test_who_may_only_push_writes_no_values(server: Server, admin: Http) -> None:
    writes = {"keys_if_undelivered": ["config"]}
    item = {"payload": 1, **writes}
    requests: list[dict[str, Any]] = [
        {"cmd": "PUSH", **item},
        {"cmd": "PUSH", "items": [{"payload": 1}, item]},
        {"cmd": "PUSH", "messages": [1], "on_complete": {"queue": "jobs", **item}},
        {"cmd": "FLOW", "payload": 1, "children": [{"queue": "jobs", **item}]},
        {"cmd": "FLOW", "children": [{"queue": "jobs", "payload": 1}], **item},
        {"cmd": "TX", "ops": [{"cmd": "PUSH", "queue": "jobs", **item}]},
    ]
    for role, is_allowed in (("push", False), ("write", True)):
        token = made(admin, role, "values")["token"]
        with shown(server, token) as client, Http(server.http, token) as http:
            for request in requests:
                named = request if request["cmd"] == "TX" else {"queue": "jobs", **request}
                assert client.ask(named)["ok"] == is_allowed, request
            line = http.lines("jobs", json.dumps(item).encode())
            assert (line.status == 200) == is_allowed
            assert client.ask({"cmd": "PUSH", "queue": "jobs", "payload": 1})["ok"]


def test_of_other_queues_than_its_own_a_token_sees_no_children(server: Server, admin: Http) -> None:
    whole = made(admin, "write", "flows")["token"]
    some = made(admin, "write", "flows", queues=["a*"])["token"]
    with shown(server, whole) as client, shown(server, some) as narrow:
        children = [{"queue": queue, "payload": queue} for queue in ("a1", "b1")]
        flow = client.ask({"cmd": "FLOW", "queue": "a", "payload": 1, "children": children})
        seen = {each: each.ask({"cmd": "CHILDREN", "id": flow["id"]}) for each in (client, narrow)}
    assert [each["queue"] for each in seen[client]["children"]] == ["a1", "b1"]
    assert [each["queue"] for each in seen[narrow]["children"]] == ["a1"]
    assert seen[narrow]["total"] == 2


def test_the_id_of_an_event_tells_nothing_of_other_tenants(server: Server, admin: Http) -> None:
    token = made(admin, "write", "quiet")["token"]
    others = [made(admin, "write", f"loud-{number}")["token"] for number in range(8)]
    with shown(server, token) as client:
        push(client, "jobs", 1)
        before = client.ask({"cmd": "EVENTS"})["after"]
        for other in others:
            with shown(server, other) as loud:
                push(loud, "jobs", 1)
        after = client.ask({"cmd": "EVENTS"})["after"]
    home = home_of("quiet", 16)
    assert [each.partition(".")[0] for each in before.split("-")] == [str(home)]
    assert all(home_of(f"loud-{number}", 16) != home for number in range(8))
    assert after == before


def test_tenants_are_made_by_use_or_by_an_admin(server: Server, admin: Http) -> None:
    made_one = admin.put("/v1/tenants/wide", spread=True)
    assert (made_one["tenant"], made_one["spread"]) == ("wide", True)
    assert admin.ask("PUT", "/v1/tenants/wide", {"spread": False}).code == "conflict"
    with shown(server, made(admin, "write", tenant="fresh")["token"]) as client:
        push(client, "jobs", 1)
    names = [each["tenant"] for each in admin.get("/v1/tenants")["tenants"]]
    assert {"fresh", "wide"} <= set(names)
    assert names == sorted(names)
    page = admin.get("/v1/tenants", limit=1)
    assert (len(page["tenants"]), page["more"]) == (1, True)
    assert admin.ask("GET", "/v1/tenants/nobody").status == 404
    for name in ("_system.0", "x" * 300, "a%0Ab"):
        assert (
            admin.ask("PUT", f"/v1/tenants/{name.replace(' ', '%20')}".encode().decode("latin-1")).status
            == 400
        )


def test_where_use_creates_no_tenants_an_admin_does() -> None:
    with Server("--store", "memory:", "--admin-token", ADMIN, "--use-creates-tenants", "off") as server:
        with Http(server.http, ADMIN) as admin:
            admin.put("/v1/tenants/acme")
            token = made(admin, "write")["token"]
            named = {"x-forebay-tenant": "stranger"}
            refusal = admin.ask("POST", "/v1/queues/jobs/messages", {"payload": 1}, named)
            assert (refusal.status, refusal.code) == (403, "denied"), refusal
            unknown = admin.ask("POST", "/v1/tenants/stranger/tokens", {"role": "read"})
            assert (unknown.status, unknown.code) == (404, "not_found")
        with shown(server, token) as client:
            push(client, "jobs", 1)


def test_an_admin_names_a_tenant(server: Server, admin: Http) -> None:
    with shown(server, ADMIN) as client:
        push(client, "jobs", "of acme", tenant="named")
        push(client, "jobs", "of default")
        assert pop(client, "jobs", tenant="named")["payload"] == "of acme"
        assert pop(client, "jobs")["payload"] == "of default"
    answer = admin.ask("GET", "/v1/queues", headers={"x-forebay-tenant": "named"})
    assert [each["queue"] for each in answer.json["queues"]] == ["jobs"]


def test_figures_of_a_tenant_are_its_own(server: Server, admin: Http) -> None:
    for tenant in ("figures", "other"):
        with shown(server, made(admin, "write", tenant=tenant)["token"]) as client:
            push(client, f"of-{tenant}", 1)
    with Http(server.http, made(admin, "read", "figures")["token"]) as http:
        text = http.text("/metrics")
    assert 'forebay_queue_messages{queue="of-figures",state="waiting",tenant="figures"} 1' in text
    assert "forebay_queues 1.0" in text
    assert "of-other" not in text
    assert 'tenant="other"' not in text
    assert "process_" not in text
    everything = admin.text("/metrics")
    assert "of-figures" in everything
    assert "of-other" in everything
