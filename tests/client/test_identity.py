"""Who a client is: its token, its tenant, and what it does when it is nobody."""

import asyncio
import json
import logging
import pickle
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forebay import Client, Denied, Invalid, NotFound, SyncClient
from forebay.client.access import Access
from forebay.client.identities import NewToken
from forebay.client.raw import Refused, Wire
from forebay.wire.table import OPERATIONS
from tests.client.blocking import Blocking
from tests.client.conftest import Dial
from tests.client.proxy import Do, Proxy, first
from tests.serving import PATIENCE_S, Server

ADMIN = secrets.token_urlsafe(32)


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server that knows an admin, and so asks everybody who he is."""
    with Server("--admin-token", ADMIN, "--use-creates-tenants", "off") as running:
        with SyncClient(running.tcp, token=ADMIN) as admin:
            admin.tenants.create("acme")
            admin.tenants.create("other")
        yield running


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TENANT", "CA", "CERT", "KEY"):
        monkeypatch.delenv(f"FOREBAY_{name}", raising=False)


@pytest.fixture(params=["TCP", "HTTP"])
def place(request: pytest.FixtureRequest, closed: Server) -> str:
    return closed.tcp if request.param == "TCP" else f"http://{closed.http}"


@pytest.fixture
def admin(dial: Dial, place: str) -> Blocking:
    return dial(place, token=ADMIN)


def token(admin: Any, role: str = "owner", tenant: str = "acme", **more: Any) -> NewToken:
    made: NewToken = admin.tokens.create(role, tenant=tenant, **more)
    return made


def test_a_client_without_a_token_is_denied_and_told_what_is_missing(dial: Dial, place: str) -> None:
    with pytest.raises(Denied, match="Authentication required"):
        dial(place).stats()


def test_a_client_is_who_its_token_says(dial: Dial, place: str, admin: Blocking) -> None:
    made = token(admin, "write", queues=["orders*"], name="ci", expires_ms=60_000)
    found = dial(place, token=made.token).whoami()
    assert (found.tenant, found.role, found.name, found.queues) == ("acme", "write", "ci", ("orders*",))
    assert found.expires_at == made.expires_at == made.created_at + 60_000
    assert (admin.whoami().role, admin.whoami().tenant) == ("admin", "default")


def test_a_token_is_taken_from_the_environment_unless_an_empty_one_is_given(
    dial: Dial, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", ADMIN)
    monkeypatch.setenv("FOREBAY_TENANT", "acme")
    client = dial(place)
    assert client.whoami().role == "admin"
    client.push("by-environment", 1)
    assert [each.queue for each in client.queues()].count("by-environment") == 1
    with pytest.raises(Denied):
        dial(place, token="").stats()


def test_a_wrong_token_is_denied_at_once_for_every_request(dial: Dial, closed: Server) -> None:
    with Proxy(closed.tcp) as proxy:
        client = dial(proxy.address, token="wrong", retry_s=60)
        for _ in range(2):
            with pytest.raises(Denied, match="this token is not, or no longer, good here"):
                client.push("orders", 1)
        client.close()
        assert proxy.connections == 2  # one for each: nothing goes on by itself
        assert not any(b"wrong" not in each for each in proxy.commands("AUTH"))


def test_the_token_goes_first_and_nothing_waits_for_its_answer(dial: Dial, closed: Server) -> None:
    with Proxy(closed.tcp) as proxy:
        both = threading.Event()

        def held(_: bytes) -> Do:
            assert both.wait(PATIENCE_S)  # no answer passes before the request behind the token has come
            return Do.PASS

        def seen(body: bytes) -> Do:
            if b'"PUSH"' in body:
                both.set()
            return Do.PASS

        client = dial(proxy.address, token=ADMIN)
        proxy.on_answer, proxy.on_request = held, seen
        client.push("first", 1)
        cut = first(Do.CUT)
        proxy.on_request = lambda body: cut(body) if b'"PUSH"' in body else Do.PASS
        client.push("first", 2)
        client.close()
        names = [json.loads(each)["cmd"] for each in proxy.requests]
        assert names == ["AUTH", "PUSH", "PUSH", "AUTH", "PUSH"]


def test_large_requests_may_follow_a_token_without_a_pause(dial: Dial, closed: Server) -> None:
    client = dial(closed.tcp, token=ADMIN)
    assert client.push_many("large", ["x" * 100_000] * 30).count == 30


def test_a_revoked_token_ends_waits_with_denied(dial: Dial, closed: Server) -> None:
    with SyncClient(closed.tcp, token=ADMIN) as admin:
        made = token(admin)

        async def main() -> None:
            async with Client(closed.tcp, token=made.token) as client:
                await client.configure("waits")
                waiting = asyncio.create_task(client.pop("waits", wait_ms=60_000))
                await client.ping()
                while not (await client.queue("waits")).groups and not waiting.done():
                    await asyncio.sleep(0)
                await asyncio.to_thread(admin.tokens.revoke, made.id, tenant="acme")
                with pytest.raises(Denied):
                    await waiting
                with pytest.raises(Denied):
                    await client.ping()

        asyncio.run(asyncio.wait_for(main(), 30))


def test_an_admin_acts_for_the_tenant_that_its_client_names(dial: Dial, place: str) -> None:
    acme, other = (dial(place, token=ADMIN, tenant=each) for each in ("acme", "other"))
    queue = f"tenants-{secrets.token_hex(4)}"
    acme.push(queue, "of acme")
    acme.kv.set("colour", "green")
    with acme.transaction() as transaction:
        transaction.push(queue, "of acme, too")
    assert acme.queue(queue).queue == queue
    assert acme.ask("QUEUE", queue=queue)["queue"] == queue
    with pytest.raises(NotFound):
        other.queue(queue)
    assert other.kv.get("colour") is None
    popped = acme.pop(queue, 10)
    assert [each.payload for each in popped] == ["of acme", "of acme, too"]
    acme.ack(popped)
    assert acme.whoami().tenant == "default"  # who it is, not whom it acts for


def test_nobody_else_may_name_another_tenant(dial: Dial, place: str, admin: Blocking) -> None:
    made = token(admin)
    assert dial(place, token=made.token, tenant="acme").stats().queues >= 0
    with pytest.raises(Denied, match="only an admin"):
        dial(place, token=made.token, tenant="other").stats()


def test_tokens_are_listed_without_their_secrets_and_revoked(dial: Dial, place: str, admin: Blocking) -> None:
    owner = dial(place, token=token(admin, name="owner").token)
    made = owner.tokens.create("pop", queues=["mail*"], name="worker")
    shown = next(each for each in owner.tokens.list() if each.id == made.id)
    assert (shown.role, shown.name, shown.queues, shown.expires_at) == ("pop", "worker", ("mail*",), None)
    assert made.token not in repr(owner.tokens.list())
    owner.tokens.revoke(made.id)
    assert made.id not in [each.id for each in owner.tokens.list()]
    with pytest.raises(NotFound):
        owner.tokens.revoke(made.id)
    with pytest.raises(Denied):
        dial(place, token=made.token).whoami()
    with pytest.raises(Invalid, match="queues"):
        owner.tokens.create("pop", queues="mail")


def test_tenants_are_created_listed_suspended_and_resumed(place: str, admin: Blocking) -> None:
    name = f"made-{secrets.token_hex(4)}"
    assert (admin.tenants.create(name, spread=True).spread, admin.tenants.get(name).suspended) == (
        True,
        False,
    )
    assert name in [each.tenant for each in admin.tenants.list()]
    user = SyncClient(place, token=token(admin, tenant=name).token)
    with user:
        assert user.tenants.get().tenant == name
        assert admin.tenants.suspend(name).suspended
        with pytest.raises(Denied):
            user.push("orders", 1)
        assert not admin.tenants.resume(name).suspended
        user.push("orders", 1)
    with pytest.raises(NotFound):
        admin.tenants.get("nobody")


def test_a_token_is_never_shown(
    dial: Dial, place: str, caplog: pytest.LogCaptureFixture, admin: Blocking
) -> None:
    secret = token(admin).token
    with caplog.at_level(logging.DEBUG):
        client = SyncClient(place, token=secret, retry_s=0)
        client.push("orders", 1)
        with pytest.raises(NotFound) as raised:
            client.queue("missing")
        client.close()
    bad = "fb_not good here\n"
    with pytest.raises(Invalid) as invalid:
        SyncClient(place, token=bad)
    hidden = secret.rpartition("_")[2]
    made = token(admin)
    assert made.token not in repr(made) + str(dict(made.__rich_repr__()))
    assert dict(Access(secret).__rich_repr__())["token"] == "…"
    told = caplog.text + repr(client) + repr(raised.value) + repr(Access(secret)) + repr(vars(client))
    assert hidden not in told
    assert bad.strip() not in repr(invalid.value)
    assert "Access(token='…'" in repr(Access(secret))
    assert pickle.loads(pickle.dumps(Access(secret))) == Access(secret)


def test_what_is_pushed_later_shows_the_token_too(closed: Server) -> None:
    with SyncClient(closed.tcp, token=ADMIN, tenant="acme") as client:
        client.push_later("later", 1)
    with SyncClient(closed.tcp, token=ADMIN, tenant="acme") as client:
        assert client.pop("later", 1)[0].payload == 1


def test_the_small_client_shows_its_token_first(closed: Server) -> None:
    with Wire(closed.tcp, access=Access(ADMIN, "acme")) as wire:
        assert wire.ask("PUSH", queue="small", payload=1)["ok"]
        assert wire.ask_packed("QUEUE", dict[str, Any], queue="small")["queue"] == "small"
        assert wire.ask("QUEUE", queue="small")["queue"] == "small"
    with SyncClient(closed.tcp, token=ADMIN) as admin, pytest.raises(NotFound):
        admin.queue("small")
    with Wire(closed.tcp, access=Access(ADMIN, "acme")) as wire:
        assert wire.ask("AUTH")["role"] == "admin"
    with Wire(closed.tcp, access=Access("wrong")) as wire, pytest.raises(Refused) as raised:
        wire.ask("STATS")
    assert raised.value.code == "denied"


def test_every_request_can_name_a_tenant() -> None:
    assert all("tenant" in each.request.__struct_fields__ for each in OPERATIONS)


def test_a_certificate_is_no_use_without_tls() -> None:
    with pytest.raises(Invalid, match="ca must be left out, or the server tls://HOST:PORT"):
        SyncClient("127.0.0.1:6780", ca="ca.pem")
