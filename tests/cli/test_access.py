"""Who a command asks as: flags, environment, contexts; tokens and tenants from the command line."""

import json
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.cli import contexts
from forebay.client.sync.client import SyncClient
from tests.cli.running import PATIENCE_S, Run, Terminal, command, environment, run
from tests.client.certificates import Authority
from tests.client.tls_front import TlsFront
from tests.serving import Server

ADMIN = secrets.token_urlsafe(32)


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server that asks everybody who he is, and knows the tenant acme."""
    with Server("--admin-token", ADMIN) as running:
        with SyncClient(running.tcp, token=ADMIN) as admin:
            admin.tenants.create("acme")
        yield running


@pytest.fixture
def here(cli: Run, closed: Server, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands against the server that asks, of which the environment does not tell."""
    monkeypatch.delenv("FOREBAY_SERVER")
    return cli


@pytest.fixture
def admin(here: Run, closed: Server) -> Run:
    """The same, logged in as its admin."""
    assert here("login", closed.tcp, "--token", ADMIN, "--name", "admin").code == 0
    return here


def test_who_is_not_logged_in_is_told_how(cli: Run, closed: Server) -> None:
    done = cli("queues", "--server", closed.tcp)
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "forebay: denied: Authentication required\n"
        "forebay: log in: forebay login, or give --token (FOREBAY_TOKEN)\n"
    )
    done = cli("queues", "--server", closed.tcp, "--token", "wrong")
    assert (done.code, done.out) == (3, "")
    assert done.err.endswith(
        "forebay: log in again: forebay login; or forebay logout, if the server needs no token\n"
    )
    assert "wrong" not in done.err


def test_a_token_is_given_as_a_flag_on_either_side_or_in_the_environment(
    here: Run, closed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("queues", "--server", closed.tcp, "--token", ADMIN, "--json").code == 0
    assert here("--token", ADMIN, "queues", "--server", closed.tcp, "--json").code == 0
    monkeypatch.setenv("FOREBAY_TOKEN", ADMIN)
    assert here("queues", "--server", closed.tcp, "--json").code == 0
    assert here("queues", "--server", closed.tcp, "--token", "wrong").code == 3


def test_a_login_is_kept_where_only_its_user_can_read_it(here: Run, closed: Server) -> None:
    done = here("login", closed.tcp, stdin=f"{ADMIN}\n".encode())
    assert (done.code, done.err) == (0, "")
    assert done.out == f"logged in to {closed.tcp} as admin token, admin of default; context {closed.tcp}\n"
    file = contexts.path()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == [file.name]
    shown = here("whoami", "--json").object
    assert (shown["server"], shown["role"], shown["tenant"]) == (closed.tcp, "admin", "default")
    file.chmod(0o644)
    done = here("whoami")
    assert done.code == 1
    assert f"chmod 600 {file}" in done.err
    file.chmod(0o600)
    file.write_text("{")
    assert "log in again" in here("whoami").err


def test_a_token_that_is_refused_is_not_kept(here: Run, closed: Server) -> None:
    assert here("login", closed.tcp, "--token", "wrong").code == 3
    done = here("login", closed.tcp)
    assert (done.code, done.err) == (
        1,
        "forebay: there is no token\nforebay: give it on standard input, or as --token\n",
    )
    assert not contexts.path().exists()


def test_a_token_is_typed_without_being_shown(closed: Server, tmp_path: Path) -> None:
    with Terminal("login", closed.tcp, XDG_CONFIG_HOME=str(tmp_path)) as terminal:
        terminal.until(f"Token for {closed.tcp}: ")
        terminal.type(f"{ADMIN}\n")
        terminal.until("logged in to")
        assert terminal.end() == 0
        assert ADMIN not in terminal.shown
    assert run(tmp_path, "whoami", XDG_CONFIG_HOME=str(tmp_path)).code == 0


def test_contexts_are_listed_switched_and_forgotten(admin: Run, closed: Server, server: Server) -> None:
    made = admin("token", "create", "--tenant", "acme", "--role", "owner", "--json").object
    assert admin("login", closed.tcp, "--token", made["token"], "--name", "acme").code == 0
    assert [each["context"] for each in admin("context", "--json").objects if each["current"]] == ["acme"]
    done = admin("context")
    assert done.rows[0] == ["CONTEXT", "SERVER", "TENANT"]
    assert made["token"] not in done.out
    assert admin("whoami", "--json").object["tenant"] == "acme"
    assert admin("whoami", "--json", "--context", "admin").object["tenant"] == "default"
    assert admin("--context", "admin", "whoami", "--json").object["tenant"] == "default"
    assert admin("context", "use", "admin").out == f"the context is admin: {closed.tcp}\n"
    assert admin("whoami", "--json").object["role"] == "admin"
    assert admin("context", "use", "nobody").err == (
        "forebay: there is no context 'nobody'; there are admin, acme\n"
        "forebay: make it: forebay login ADDRESS --name NAME\n"
    )
    assert admin("logout").out == "forgot the context admin\n"
    assert admin("logout").code == 4
    assert admin("logout", "acme").code == 0
    assert admin("context").code == 4


def test_a_context_keeps_its_token_from_other_servers(
    admin: Run, closed: Server, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other server is open: a token that it does not know would be refused.
    assert admin("whoami", "--json", "--server", server.tcp).object["name"] == "anyone"
    monkeypatch.setenv("FOREBAY_SERVER", server.tcp)
    assert admin("whoami", "--json").object["name"] == "anyone"
    assert admin("whoami", "--json", "--context", "admin").object["name"] == "admin token"
    done = admin("whoami", "--context", "admin", "--server", server.tcp)
    assert done.code == 1
    assert f"the context admin is for {closed.tcp}" in done.err
    monkeypatch.setenv("FOREBAY_SERVER", closed.tcp)
    assert admin("whoami", "--json").object["name"] == "admin token"
    monkeypatch.setenv("FOREBAY_TOKEN", "wrong")
    assert admin("whoami").code == 3


def test_a_token_for_a_program(admin: Run, closed: Server) -> None:
    given = ["--role", "write", "--queues", "orders*,mail", "--name", "ci", "--expires", "90d"]
    made = admin("token", "create", "--tenant", "acme", *given, "--json").object
    assert {"token", "id"} <= made.keys()
    assert made["expires_at"] - made["created_at"] == 90 * 86_400_000
    assert (made["tenant"], made["queues"], made["name"]) == ("acme", ["orders*", "mail"], "ci")
    assert admin("push", "orders", "1", "--token", made["token"]).code == 0
    denied = admin("push", "other", "1", "--token", made["token"])
    assert (denied.code, denied.out) == (3, "")
    listed = admin("token", "list", "--tenant", "acme", "--json").objects
    (shown,) = [each for each in listed if each["id"] == made["id"]]
    assert shown["last_used_at"]
    table = admin("token", "list", "--tenant", "acme").out
    assert made["id"] in table
    assert made["token"] not in table
    assert admin("token", "revoke", made["id"], "--tenant", "acme").out == f"revoked {made['id']}\n"
    assert admin("push", "orders", "1", "--token", made["token"]).code == 3
    assert admin("token", "revoke", made["id"], "--tenant", "acme").code == 1
    people = admin("token", "create", "--tenant", "acme", "--role", "read")
    assert "fb_" in people.out
    assert people.err == "keep the token now: it is not shown again\n"
    assert admin("token", "create", "--role", "read", "--expires", "soon").code == 1


def test_tenants_are_created_shown_suspended_and_resumed(admin: Run) -> None:
    made = admin("tenant", "create", "large", "--spread", "--json").object
    assert (made["tenant"], made["spread"], made["suspended"]) == ("large", True, False)
    assert admin("tenant", "suspend", "large", "--json").object["suspended"] is True
    assert ["large", "suspended"] in [row[:2] for row in admin("tenant", "list").rows]
    assert admin("push", "q", "1", "--tenant", "large").code == 3
    assert admin("tenant", "resume", "large").code == 0
    assert admin("push", "q", "1", "--tenant", "large").code == 0
    assert admin("tenant", "show", "large", "--json").object["suspended"] is False
    assert admin("tenant", "suspend", "lrage").code == 1
    assert "large" in [each["tenant"] for each in admin("tenant", "list", "--json").objects]


def test_the_tenant_that_an_admin_acts_for(admin: Run, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert admin("push", queue, "1", "--tenant", "acme").code == 0
    assert queue not in admin("queues").out
    monkeypatch.setenv("FOREBAY_TENANT", "acme")
    assert queue in admin("queues").out
    assert admin("pop", queue, "--json", "--ack").object["payload"] == 1
    assert "acts for" in admin("whoami").out


def test_key_is_of_the_message_behind_push_and_of_the_certificate_before_it(
    here: Run, closed: Server, tmp_path: Path, queue: str
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.make("ada")
    with TlsFront(closed.tcp, authority.served("127.0.0.1", asks=True)) as front:
        files = ["--ca", str(authority.path), "--cert", cert, "--key", key]
        done = here(*files, "--token", ADMIN, "push", queue, "1", "--key", "lane", "--server", front.address)
        assert (done.code, done.err) == (0, "")
        relative = [os.path.relpath(each) if os.path.exists(each) else each for each in files]
        assert here("login", front.address, "--token", ADMIN, *relative).code == 0
        assert json.loads(contexts.path().read_text())["contexts"].popitem()[1]["ca"] == str(authority.path)
        assert here("whoami").code == 0
        assert here("pop", queue, "--json").object["payload"] == 1
        done = here("whoami", "--server", front.address, "--ca", __file__)
        assert done.code == 1
        assert "ca must be a PEM file" in done.err
    assert here("queues", "--server", closed.tcp, "--ca", str(authority.path)).code == 1


def test_a_login_over_a_network_without_tls_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    from forebay.cli.login import _warn

    for place in ("127.0.0.1:6780", "unix:///run/forebay.sock", "tls://10.0.0.7:6780", "http://[::1]:8080"):
        _warn(place)
    assert capsys.readouterr().err == ""
    _warn("10.0.0.7:6780")
    _warn("http://queue.example")
    assert capsys.readouterr().err.count("unprotected") == 2


def test_a_worker_asks_the_server_of_the_context(closed: Server, tmp_path: Path) -> None:
    home = str(tmp_path / "config")
    assert run(tmp_path, "login", closed.tcp, stdin=ADMIN, XDG_CONFIG_HOME=home).code == 0
    (tmp_path / "shop.py").write_text(
        "import forebay\n\napp = forebay.App('shop')\n\n\n@app.task\ndef buy() -> None: ...\n"
    )
    with subprocess.Popen(
        command("worker", "shop:app"),
        cwd=tmp_path,
        env=environment(XDG_CONFIG_HOME=home),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert f"working on shop at {closed.tcp}" in process.stderr.readline()
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    done = run(tmp_path, "--token", "wrong", "worker", "shop:app", XDG_CONFIG_HOME=home)
    assert (done.code, done.err.splitlines()[0][:16]) == (3, "forebay: denied:")


def test_a_measurement_asks_its_own_server_as_nobody(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", "of another server")
    assert cli("bench", "--seconds", "0.05", "--json").code == 0
