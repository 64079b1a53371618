"""TLS on every listener, and who clients are by their certificates."""

import base64
import os
import signal
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.server.certificates import read_grant
from forebay.server.tls import BadFile, Files, Tls
from tests.serving import PATIENCE_S, Server, framed, pop, pop_all, push, wait_for_pop
from tests.tls import LONG_AGO, Authority, Secured, refuses

DOORS = ("--flashq", "127.0.0.1:0", "--flashq-http", "127.0.0.1:0")
LISTENERS = ("tcp", "http", "flashq", "flashq_http")
GRANTS = "*.jobs.example=*/write,spiffe://corp.example/*/worker=*/pop,boss@example.com=default/admin"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that the server knows nothing of."""
    return Authority(tmp_path_factory.mktemp("other"))


def flags(ca: Authority, name: str = "server") -> list[str]:
    certificate, key = ca.server(name)
    return ["--tls-cert", str(certificate), "--tls-key", str(key), *DOORS]


def by_certificate(ca: Authority) -> list[str]:
    return [*flags(ca), "--tls-client-ca", str(ca.file), "--tls-principals", GRANTS]


@pytest.fixture(scope="module")
def secured(ca: Authority) -> Iterator[Server]:
    """A server with TLS that asks nobody who he is."""
    with Server(*flags(ca), "--unix", "./socket") as running:
        yield running


@pytest.fixture(scope="module")
def known(ca: Authority) -> Iterator[Server]:
    """A server whose clients are known by their certificates, and by nothing else."""
    with Server(*by_certificate(ca)) as running:
        yield running


@pytest.fixture(scope="module")
def mixed(ca: Authority) -> Iterator[Server]:
    """A server that takes certificates and tokens."""
    with Server(*by_certificate(ca), "--admin-token", "secret", "--flashq-tokens", "flash") as running:
        yield running


def answers(server: Server, listener: str, context: ssl.SSLContext) -> bool:
    with Secured(getattr(server, listener), context) as client:
        if listener == "tcp":
            return bool(client.ask({"cmd": "STATS"})["ok"])
        if listener == "flashq":
            return bool(client.ask_line({"cmd": "STATS"})["ok"])
        return client.get("/v1/auth" if listener == "http" else "/stats")[0] == 200


def principal(client: Secured, **fields: str) -> tuple[str, str, str]:
    reply = client.ask({"cmd": "AUTH", **fields})
    assert reply["ok"], reply
    return reply["tenant"], reply["role"], reply["name"]


# TLS.


@pytest.mark.parametrize("listener", LISTENERS)
def test_every_listener_speaks_tls(listener: str, secured: Server, ca: Authority) -> None:
    assert answers(secured, listener, ca.stranger())


def test_a_unix_socket_stays_plain(secured: Server) -> None:
    with secured.connect_unix() as client:
        assert client.ask({"cmd": "STATS"})["ok"]


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_that_does_not_trust_the_ca_does_not_connect(
    listener: str, secured: Server, other_ca: Authority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Secured(getattr(secured, listener), other_ca.stranger())


@pytest.mark.parametrize("listener", LISTENERS)
def test_old_tls_is_refused(listener: str, secured: Server, ca: Authority) -> None:
    context = ca.stranger()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert refuses(getattr(secured, listener), context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_new_tls_is_spoken(version: ssl.TLSVersion, secured: Server, ca: Authority) -> None:
    context = ca.stranger()
    context.minimum_version = context.maximum_version = version
    assert answers(secured, "tcp", context)


STRANGE = (
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    framed(b'{"cmd":"STATS"}'),
    b"\x16\x03\x01\x00\x05hello",
    b"",
)


def test_what_is_no_tls_is_dropped_without_a_word(ca: Authority) -> None:
    with Server(*flags(ca), "--log-level", "debug") as server:
        assert answers(server, "tcp", ca.stranger())
        before = server.said()
        for listener in LISTENERS:
            for sent in STRANGE:
                send_and_leave(getattr(server, listener), sent)
        assert answers(server, "tcp", ca.stranger())
        new = server.said().removeprefix(before).splitlines()
        assert not [line for line in new if "forebay.access" not in line]


def send_and_leave(address: str, sent: bytes) -> None:
    """Send what is no TLS, and wait until the server has closed the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while client.recv(1 << 16):
                pass


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_that_goes_away_in_the_handshake_leaves_nothing(
    listener: str, secured: Server, ca: Authority
) -> None:
    host, _, port = getattr(secured, listener).rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))):
            pass
    with Secured(secured.http, ca.stranger()) as client:
        client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        text = b"".join(iter(lambda: client.socket.recv(1 << 16), b""))
    assert b'forebay_connections{listener="tcp"} 0' in text


def test_much_goes_over_one_connection_and_back(secured: Server, ca: Authority) -> None:
    texts = [f"{number:06}" * 10_000 for number in range(50)]
    with Secured(secured.tcp, ca.stranger()) as client:
        push(client, "much", *texts)
        assert pop_all(client, "much") == texts
    with Secured(secured.http, ca.stranger()) as client:
        body = b"".join(b'{"payload":"%s"}\n' % text.encode() for text in texts)
        kind = "content-type: application/x-ndjson"
        status, reply = client.request("POST", "/v1/queues/more/messages", body, kind)
        assert (status, reply["count"]) == (200, 50)


def test_a_client_that_ends_the_connection_gets_no_messages_any_more(secured: Server, ca: Authority) -> None:
    with Secured(secured.tcp, ca.stranger()) as client, Secured(secured.tcp, ca.stranger()) as other:
        wait_for_pop(client, "left")
        client.socket.unwrap()
        push(other, "left", "for another")
        assert pop(other, "left", wait_ms=20_000)["payload"] == "for another"
    assert "has no effect when using ssl" not in secured.said()


def test_a_request_that_is_refused_is_answered_before_the_connection_ends(
    secured: Server, ca: Authority
) -> None:
    with Secured(secured.http, ca.stranger()) as client:
        status, reply = client.get("/v1/queues", "x: " + "y" * 70_000)
        assert (status, reply["error"]["code"]) == (431, "invalid")
        assert client.eof()


def test_a_websocket_goes_over_tls(secured: Server, ca: Authority) -> None:
    key = base64.b64encode(bytes(16)).decode()
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    with Secured(secured.http, ca.stranger()) as client:
        assert client.get("/v1/events/ws", *upgrade, f"sec-websocket-key: {key}")[0] == 101


@pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="nothing here sends two records at once")
def test_what_is_popped_for_a_client_that_ended_the_connection_comes_back_at_once(
    secured: Server, ca: Authority
) -> None:
    with Secured(secured.tcp, ca.stranger()) as other, Secured(secured.tcp, ca.stranger()) as client:
        push(other, "back", "for another")
        client.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_CORK, 1
        )  # the pop and the end arrive together
        client.send({"cmd": "POP", "queue": "back", "wait_ms": 0})
        client.socket.unwrap()
        assert pop(other, "back", wait_ms=20_000)["payload"] == "for another"


# Certificates of clients.


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_certificate_says_who_a_client_is(listener: str, known: Server, ca: Authority) -> None:
    assert answers(known, listener, ca.client("boss@example.com"))


@pytest.mark.parametrize("listener", LISTENERS)
def test_without_tokens_a_certificate_is_needed_to_connect(
    listener: str, known: Server, ca: Authority, other_ca: Authority
) -> None:
    address = getattr(known, listener)
    foreign = other_ca.client("boss@example.com")
    foreign.load_verify_locations(ca.file)
    assert refuses(address, ca.stranger())
    assert refuses(address, foreign)
    assert refuses(address, ca.client("boss@example.com", made_at=LONG_AGO))


def test_the_first_grant_that_fits_a_name_says_tenant_and_role(known: Server, ca: Authority) -> None:
    for name, found in (
        ("acme.jobs.example", ("acme", "write", "acme.jobs.example")),
        ("spiffe://corp.example/beta/worker", ("beta", "pop", "spiffe://corp.example/beta/worker")),
        ("boss@example.com", ("default", "admin", "boss@example.com")),
    ):
        with Secured(known.tcp, ca.client(name)) as client:
            assert principal(client) == found
        with Secured(known.http, ca.client(name)) as client:
            status, reply = client.get("/v1/auth")
            assert (status, (reply["tenant"], reply["role"], reply["name"])) == (200, found)


def test_a_principal_by_certificate_may_what_its_role_may(known: Server, ca: Authority) -> None:
    with Secured(known.tcp, ca.client("acme.jobs.example")) as client:
        push(client, "work", 1)
        assert client.ask({"cmd": "BACKUP", "directory": "x"})["error"]["code"] == "denied"
    with Secured(known.tcp, ca.client("spiffe://corp.example/acme/worker")) as client:
        assert pop_all(client, "work") == [1]
        refused = client.ask({"cmd": "PUSH", "queue": "work", "payload": 1})
        assert refused["error"]["code"] == "denied"


@pytest.mark.parametrize("name", ["nobody.example", "_system.jobs.example", "*.jobs.example"])
def test_a_certificate_of_nobody_needs_a_token(name: str, mixed: Server, ca: Authority) -> None:
    with Secured(mixed.tcp, ca.client(name)) as client:
        assert client.ask({"cmd": "QUEUES"})["error"]["code"] == "denied"
        assert principal(client, token="secret")[1] == "admin"
    with Secured(mixed.http, ca.client(name)) as client:
        assert client.get("/v1/auth")[0] == 401


def test_with_tokens_a_certificate_may_be_left_out(mixed: Server, ca: Authority, other_ca: Authority) -> None:
    with Secured(mixed.tcp, ca.stranger()) as client:
        assert client.ask({"cmd": "QUEUES"})["error"]["code"] == "denied"
        assert principal(client, token="secret")[1] == "admin"
    with Secured(mixed.http, ca.stranger()) as client:
        assert client.get("/healthz")[0] == 200
        assert client.get("/v1/auth")[0] == 401
        assert client.get("/v1/auth", "authorization: Bearer secret")[0] == 200
    foreign = other_ca.client("boss@example.com")
    foreign.load_verify_locations(ca.file)
    assert refuses(mixed.tcp, foreign)


def test_a_token_counts_more_than_a_certificate(mixed: Server, ca: Authority) -> None:
    context = ca.client("acme.jobs.example")
    with Secured(mixed.tcp, context) as client:
        assert principal(client) == ("acme", "write", "acme.jobs.example")
        assert client.ask({"cmd": "AUTH", "token": "wrong"})["error"]["code"] == "denied"
        assert principal(client, token="secret") == ("default", "admin", "admin token")
    with Secured(mixed.http, context) as client:
        assert client.get("/v1/auth")[1]["role"] == "write"
        assert client.get("/v1/auth", "authorization: Bearer secret")[1]["role"] == "admin"
        assert client.get("/v1/auth", "authorization: Bearer wrong")[0] == 401


def test_certificates_and_tokens_open_the_doors_of_flashq(mixed: Server, ca: Authority) -> None:
    push_job = {"cmd": "PUSH", "queue": "jobs", "data": 1}
    with Secured(mixed.flashq, ca.client("acme.jobs.example")) as client:
        assert client.ask_line(push_job)["ok"]
    with Secured(mixed.flashq, ca.stranger()) as client:
        assert not client.ask_line(push_job)["ok"]
        assert client.ask_line({"cmd": "AUTH", "token": "flash"})["ok"]
        assert client.ask_line(push_job)["ok"]
    with Secured(mixed.flashq_http, ca.client("boss@example.com")) as client:
        assert client.get("/stats")[0] == 200
        assert client.get("/stats", "authorization: Bearer wrong")[0] == 401
    with Secured(mixed.flashq_http, ca.stranger()) as client:
        assert client.get("/stats")[0] == 401


def test_a_certificate_becomes_optional_with_the_first_token(ca: Authority) -> None:
    with Server(*by_certificate(ca)) as server, Secured(server.tcp, ca.client("boss@example.com")) as boss:
        assert refuses(server.tcp, ca.stranger())
        made = boss.ask({"cmd": "TOKENCREATE", "role": "push", "name": "a machine"})
        with Secured(server.tcp, ca.stranger()) as client:
            assert principal(client, token=made["token"])[1] == "push"


def test_a_client_ca_without_principals_lets_in_only_who_has_a_certificate(ca: Authority) -> None:
    given = ["--tls-client-ca", str(ca.file), "--admin-token", "secret"]
    with Server(*flags(ca), *given) as server:
        assert refuses(server.tcp, ca.stranger())
        with Secured(server.tcp, ca.client("boss@example.com")) as client:
            assert client.ask({"cmd": "QUEUES"})["error"]["code"] == "denied"
            assert principal(client, token="secret")[1] == "admin"


# Reload.


def until_said(server: Server, text: str, context: ssl.SSLContext) -> None:
    """Ask until the log has a text: the server reads its signals between requests."""
    ends = time.monotonic() + PATIENCE_S
    while text not in server.said():
        assert time.monotonic() < ends, server.said()
        answers(server, "tcp", context)


def test_a_reload_takes_the_new_certificate_and_drops_nobody(ca: Authority) -> None:
    with Server(*flags(ca, "renewed")) as server, Secured(server.tcp, ca.stranger()) as old:
        push(old, "q", 1)
        ca.server("renewed")
        os.kill(server.pid, signal.SIGHUP)
        until_said(server, "certificates read again", ca.stranger())
        for listener in LISTENERS:
            with Secured(getattr(server, listener), ca.stranger()) as new:
                assert new.certificate != old.certificate
        assert pop_all(old, "q") == [1]


def test_a_reload_takes_the_new_ca_of_the_clients(ca: Authority, other_ca: Authority, tmp_path: Path) -> None:
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(ca.file.read_bytes())
    given = ["--tls-client-ca", str(trusted), "--tls-principals", "*=default/admin"]
    of_old, of_new = ca.client("a.example"), other_ca.client("b.example")
    of_new.load_verify_locations(ca.file)
    with Server(*flags(ca), *given) as server, Secured(server.tcp, of_old) as old:
        assert refuses(server.tcp, of_new)
        trusted.write_bytes(other_ca.file.read_bytes())
        os.kill(server.pid, signal.SIGHUP)
        ends = time.monotonic() + PATIENCE_S
        while "certificates read again" not in server.said():
            assert time.monotonic() < ends
            assert old.ask({"cmd": "STATS"})["ok"]
        assert refuses(server.tcp, of_old)
        assert answers(server, "tcp", of_new)
        assert old.ask({"cmd": "STATS"})["ok"]


def test_a_reload_of_broken_files_goes_on_with_the_old_ones(ca: Authority) -> None:
    with Server(*flags(ca, "broken")) as server:
        certificate, _ = ca.server("another")
        (certificate.parent / "broken.pem").write_bytes(certificate.read_bytes())
        os.kill(server.pid, signal.SIGHUP)
        until_said(server, "TLS goes on with the certificates of before", ca.stranger())
        assert "this is not the key of" in server.said()
        assert answers(server, "http", ca.stranger())


# Files.


def bad(certificate: Path, key: Path, client_ca: Path | str = "") -> str:
    with pytest.raises(BadFile) as refused:
        Tls(Files(str(certificate), str(key), str(client_ca)))
    return str(refused.value)


def test_files_that_do_not_do_are_named(ca: Authority, tmp_path: Path) -> None:
    certificate, key = ca.server("good")
    _, stranger = ca.server("stranger")
    rubbish, missing = tmp_path / "rubbish", tmp_path / "missing"
    rubbish.write_bytes(b"\xff\x00")
    assert bad(missing, key) == f"{missing}: can't be read: No such file or directory"
    assert bad(certificate, tmp_path) == f"{tmp_path}: can't be read: Is a directory"
    assert bad(rubbish, key) == f"{rubbish}: there is no PEM of a certificate in it"
    assert bad(certificate, certificate) == f"{certificate}: there is no PEM of a private key in it"
    assert bad(certificate, stranger) == f"{stranger}: this is not the key of {certificate}"
    assert bad(certificate, key, rubbish) == f"{rubbish}: there is no PEM of a certificate in it"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert bad(certificate, key, rubbish).startswith(f"{rubbish}: its certificates can't be read: ")
    assert bad(rubbish, key).startswith(f"{rubbish}, {key}: can't be used: ")


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(ca: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    certificate, key = ca.server("good")
    locked = tmp_path / "locked.pem"
    hidden = BestAvailableEncryption(b"open sesame")
    found = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    assert bad(certificate, locked) == f"{locked}: the key needs a password; take one that needs none"


def test_whether_certificates_say_who_clients_are_is_up_to_the_grants(ca: Authority) -> None:
    certificate, key = map(str, ca.server("good"))
    files = Files(certificate, key, str(ca.file))
    assert not Tls(files).has_principals
    assert Tls(files, (read_grant("*=default/read"),)).has_principals
