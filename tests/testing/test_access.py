"""Servers of the kit that ask for tokens."""

import pytest

from forebay import App, Denied
from forebay.testing import Server


def test_apps_are_the_admin_or_have_a_token_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", "of another server")
    app = App("shop", token="of yet another")

    @app.task
    def send(to: str) -> str:
        return to

    with Server(app, asks=True) as server:
        job = send.push("ada")
        assert server.work(app) == 1
        assert job.result() == "ada"
        server.attach(app, token=server.token("read"))
        with pytest.raises(Denied):
            send.push("alan")
        server.restart()
        with pytest.raises(Denied):
            send.push("alan")
        assert server.client().whoami().role == "admin"
    assert app.access.token == "of yet another"
    with Server() as server:
        assert server.client().whoami().name == "anyone"


def test_a_token_ends_when_time_passes() -> None:
    with Server(asks=True) as server:
        made = server.client().tokens.create("read", expires_ms=60_000)
        server.jump(seconds=59)
        reader = server.client(token=made.token)
        assert reader.whoami().role == "read"
        server.jump(seconds=2)
        with pytest.raises(Denied):
            server.client(token=made.token).whoami()


def test_an_admin_acts_for_a_tenant() -> None:
    with Server(asks=True) as server:
        token = server.token("pop", "acme")
        server.client(tenant="acme").push("orders", 1)
        assert server.client(token=token).pop("orders").payloads == [1]
        server.jump(hours=1)
