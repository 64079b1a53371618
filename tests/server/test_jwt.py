"""Whoever shows a good JWT is its bearer at every door, until it expires or its key is gone."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from forebay.broker.auth import WRONG
from forebay.broker.claims import BadJwt, Rules
from forebay.broker.jwt import Jwt
from forebay.server.jwks import ASK_S, REFRESH_S, Jwks
from tests.leaping import LeapingLoop
from tests.server.flashq_http.talking import DoorServer
from tests.server.http.talking import Http
from tests.server.key_site import Site, running
from tests.serving import PATIENCE_S, Raw, Reply, Server, pop, push, refused
from tests.signing import SECRET, Issuer, by_secret, jwks

ISSUER = Issuer("ES256", "a")


def claims(**more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "role": "owner", "sub": "alice", "exp": int(time.time()) + 3_600, **more}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_bytes(jwks(ISSUER))
    with DoorServer("--store", "memory:", "--jwt-keys", str(file), "--jwt-secret", SECRET) as server:
        yield server


def auth(client: Raw, token: str) -> Reply:
    return client.ask({"cmd": "AUTH", "token": token})


BAD: dict[str, Callable[[], str]] = {
    "expired": lambda: ISSUER.token(claims(exp=1_000_000_000)),
    "of another key": lambda: Issuer("ES256", "a").token(claims()),
    "of an unknown key": lambda: Issuer("ES256", "b").token(claims()),
    "without a signature": lambda: ISSUER.token(claims(), alg="none"),
    "without a role": lambda: by_secret(claims(role="")),
    "for an admin": lambda: ISSUER.token(claims(role="admin")),
    "no jwt": lambda: "a.b.c",
    "long": lambda: ISSUER.token(claims(sub="x" * 20_000)),
}


def test_over_tcp_a_jwt_says_who_a_connection_is(doors: DoorServer) -> None:
    with doors.connect() as client:
        assert refused(client.ask({"cmd": "STATS"}), "denied")
        reply = auth(client, ISSUER.token(claims(queues=["orders*"])))
        assert reply["ok"], reply
        assert (reply["tenant"], reply["role"], reply["name"]) == ("acme", "owner", "alice")
        push(client, "orders", 1)
        assert pop(client, "orders")["payload"] == 1
        assert refused(client.ask({"cmd": "PUSH", "queue": "mail", "messages": [1]}), "denied")


@pytest.mark.parametrize("kind", BAD)
def test_every_bad_jwt_gets_the_answer_of_every_bad_token(kind: str, doors: DoorServer) -> None:
    bad = BAD[kind]()
    with doors.connect() as client:
        reply = auth(client, bad)
        assert reply == auth(client, f"fb_{'0' * 12}_{'A' * 43}")
        assert reply["error"]["message"] == WRONG
    with Http(doors.http) as http:
        answer = http.ask("GET", "/v1/auth", headers=bearer(bad))
        assert (answer.status, answer.json) == (401, {"error": reply["error"]})
    with doors.connect_door() as client:
        client.send(b"")
        assert client.ask_line({"cmd": "AUTH", "token": bad}) == client.ask_line(
            {"cmd": "AUTH", "token": "x"}
        )
    with Http(doors.door) as http:
        answer, other = (http.ask("GET", "/stats", headers=bearer(each)) for each in (bad, "x"))
        assert (answer.status, answer.json) == (other.status, other.json)
        assert answer.status == 401
    assert bad not in doors.log


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_over_http_every_request_carries_it(doors: DoorServer) -> None:
    mine, other = bearer(ISSUER.token(claims())), bearer(by_secret(claims(tenant="other", role="read")))
    with Http(doors.http) as http:
        assert http.ask("GET", "/v1/queues").status == 401
        for _ in range(2):
            answer = http.ask("GET", "/v1/auth", headers=mine)
            assert (answer.status, answer.json["tenant"], answer.json["name"]) == (200, "acme", "alice")
        pushed = http.ask("POST", "/v1/queues/http/messages", {"messages": [{"payload": 1}]}, headers=mine)
        assert pushed.status in (200, 201), pushed
        there = {each["queue"] for each in http.ask("GET", "/v1/queues", headers=mine).json["queues"]}
        assert "http" in there
        assert http.ask("GET", "/v1/queues", headers=other).json["queues"] == []
        denied = http.ask("POST", "/v1/queues/http/messages", {"messages": [{"payload": 1}]}, headers=other)
        assert denied.status == 403


def test_the_doors_of_flashq_take_it(doors: DoorServer) -> None:
    token = ISSUER.token(claims(tenant="flash"))
    with doors.connect_door() as client:
        assert client.ask_line({"cmd": "PUSH", "queue": "f", "data": 1})["ok"] is False
        assert client.ask_line({"cmd": "AUTH", "token": token})["ok"] is True
        assert client.ask_line({"cmd": "PUSH", "queue": "f", "data": 1})["ok"] is True
    with Http(doors.door) as http:
        assert http.ask("GET", "/queues").status == 401
        for _ in range(2):
            answer = http.ask("GET", "/queues", headers=bearer(token))
            assert answer.status == 200, answer
        assert "f" in str(answer.json)
        other = http.ask("GET", "/queues", headers=bearer(ISSUER.token(claims(tenant="nobody"))))
        assert "'f'" not in str(other.json)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_a_connection_ends_when_its_jwt_expires(tmp_path: Path) -> None:
    with Server("--store", "memory:", "--jwt-secret", SECRET, "--jwt-leeway-s", "0") as server:
        token = by_secret(claims(exp=int(time.time()) + 2))
        with server.connect() as client:
            assert auth(client, token)["ok"]
            (end,) = client.drain()
            assert refused(end, "denied")
            assert "expired" in end["error"]["message"]
        with server.connect() as client:
            assert auth(client, token)["error"]["message"] == WRONG


def test_connections_whose_key_is_gone_end_at_sighup(tmp_path: Path) -> None:
    file, new = tmp_path / "keys.json", Issuer("EdDSA", "new")
    file.write_bytes(jwks(ISSUER, new))
    with (
        Server("--store", "memory:", "--jwt-keys", str(file)) as server,
        server.connect() as by_old,
        server.connect() as by_new,
        Http(server.http) as http,
        closing(connect(server.http)) as stream,
    ):
        old = ISSUER.token(claims())
        stream.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {old}\r\n\r\n".encode())
        assert b"200" in stream.recv(1 << 16)
        assert auth(by_old, old)["ok"]
        assert auth(by_new, new.token(claims()))["ok"]
        assert http.ask("GET", "/v1/auth", headers=bearer(old)).status == 200
        file.write_bytes(jwks(new))
        os.kill(server.pid, signal.SIGHUP)
        (end,) = by_old.drain()
        assert refused(end, "denied")
        with suppress(ConnectionResetError):
            while stream.recv(1 << 16):
                pass  # until it ends
        assert http.ask("GET", "/v1/auth", headers=bearer(old)).status == 401
        push(by_new, "q", 1)
        file.write_bytes(b"spoilt")
        os.kill(server.pid, signal.SIGHUP)
        assert http.ask("GET", "/v1/auth", headers=bearer(new.token(claims()))).status == 200


def test_a_server_starts_with_the_keys_of_a_url_and_without_them_if_it_is_down() -> None:
    with running() as site:
        site.gives(jwks(ISSUER))
        with Server("--store", "memory:", "--jwt-keys", site.url) as server, server.connect() as client:
            assert auth(client, ISSUER.token(claims()))["ok"]
        site.gives(b"", 503)
        with Server("--store", "memory:", "--jwt-keys", site.url) as server, server.connect() as client:
            assert auth(client, ISSUER.token(claims()))["error"]["message"] == WRONG


def test_keys_rotate_at_their_url_and_stay_while_it_is_down() -> None:
    now, new = 1_700_000_000_000, Issuer("ES256", "new")
    by_old, by_new = (each.token(claims(exp=1_800_000_000)) for each in (ISSUER, new))
    jwt = Jwt(Rules())

    def is_good(token: str) -> bool:
        try:
            return jwt.principal(token, now).tenant == "acme"
        except BadJwt:
            return False

    async def life(site: Site) -> None:
        keys = Jwks(site.url, asyncio.get_running_loop(), jwt.take)
        jwt.ask = keys.ask
        await keys.start()
        assert (is_good(by_old), is_good(by_new)) == (True, False)
        site.gives(jwks(ISSUER, new))
        await asyncio.sleep(ASK_S + 1)
        assert (is_good(by_old), is_good(by_new)) == (True, True)
        site.gives(jwks(new))
        await asyncio.sleep(REFRESH_S)
        assert (is_good(by_old), is_good(by_new)) == (False, True)
        for body, status in ((b"", 503), (b"{}", 200), (b"x" * 100_000, 200)):
            asked = site.asked
            site.gives(body, status)
            await asyncio.sleep(2 * REFRESH_S)
            assert site.asked > asked
            assert is_good(by_new)
        keys.stop()

    with running() as site:
        site.gives(jwks(ISSUER))
        with asyncio.Runner(loop_factory=lambda: LeapingLoop(threads="forebay-jwks")) as runner:
            runner.run(life(site))


def start(*flags: str, without: str = "") -> str:
    """What a server says that can't start; ``without`` is a library that is not there."""
    hide = f"sys.modules[{without!r}] = None; " if without else ""
    code = f"import sys; {hide}from forebay.cli.main import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "serve", "--store", "memory:", "--tcp", "127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_server_with_keys_that_are_none_does_not_start(tmp_path: Path) -> None:
    assert "can't be read" in start("--jwt-keys", str(tmp_path / "nothing.pem"))
    file = tmp_path / "key.pem"
    file.write_bytes(ISSUER.private_pem())
    said = start("--jwt-keys", str(file))
    assert "private key" in said
    assert "BEGIN" not in said


def test_a_server_without_the_library_says_what_to_install(tmp_path: Path) -> None:
    for library in ("jwt", "cryptography"):
        assert "pip install 'forebay[auth]'" in start("--jwt-secret", SECRET, without=library)
