"""Workers of an app with a token: they show it, their processes do, and without one they do not go on."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from forebay import App, Denied, SyncClient, Worker, current
from forebay.client.access import VARIABLES
from tests.serving import PATIENCE_S, Server

ADMIN = secrets.token_urlsafe(32)

app = App("shop", queue="orders")
"""A child imports this file, and finds the tasks in it; the test sets where it pushes to."""


@app.task(process=True)
def order(what: str) -> str:
    run = current()
    run.progress(50)
    mail.push(what)
    return f"{what} for {app.client.whoami().tenant}"


@app.task(queue="mail")
def mail(what: str) -> str:
    return f"mail about {what}"


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    with Server("--admin-token", ADMIN) as running:
        yield running


@pytest.fixture(scope="module")
def admin(closed: Server) -> Iterator[SyncClient]:
    with SyncClient(closed.tcp, token=ADMIN, tenant="acme") as client:
        client.tenants.create("acme")
        yield client


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def result(of: Any, *given: Any) -> Any:
    """Push a job, and work until it has a result."""

    async def main() -> Any:
        async with Worker(of.app, concurrency=4):
            job = await of.apush(*given)
            found = await job.aresult(wait_s=PATIENCE_S)
        await of.app.aclose()
        return found

    return asyncio.run(main())


def test_tasks_and_their_processes_push_as_the_app_does(
    closed: Server, admin: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.client.access import Access

    made = admin.tokens.create("owner")
    monkeypatch.setattr(app, "server", closed.tcp)
    monkeypatch.setattr(app, "access", Access(token=made.token))
    try:
        assert result(order, "tea") == "tea for acme"
        assert {each.name for each in admin.tokens.list() if each.last_used_at} == {""}
        assert made.token not in repr(vars(app))
    finally:
        app.close()


def test_a_worker_may_write_to_queues_that_are_there(closed: Server, admin: SyncClient) -> None:
    admin.configure("notes", lease_ms=20_000)
    made = admin.tokens.create("write", queues=["notes"])
    noted = App("notes", server=closed.tcp, token=made.token, queues={"notes": {"lease_ms": 5_000}})

    @noted.task
    def note(text: str) -> str:
        return text.upper()

    assert result(note, "quiet") == "QUIET"
    assert admin.queue("notes").options["lease_ms"] == 20_000  # set by an owner only
    noted.close()


def test_a_worker_may_be_there_before_its_queue(closed: Server, admin: SyncClient) -> None:
    made = admin.tokens.create("write", queues=["fresh"])
    early = App("fresh", server=closed.tcp, token=made.token)

    @early.task
    def note(text: str) -> str:
        return text.upper()

    assert result(note, "early") == "EARLY"
    early.close()


def test_a_worker_that_can_not_create_its_queue_says_what_to_do(closed: Server, admin: SyncClient) -> None:
    made = admin.tokens.create("write", queues=["missing"])
    strict = App("missing", server=closed.tcp, token=made.token, queues={"missing": {"lease_ms": 5_000}})

    @strict.task
    def note() -> None: ...

    async def main() -> None:
        with pytest.raises(Denied, match="forebay queue create missing"):
            await asyncio.wait_for(Worker(strict).run(), PATIENCE_S)

    asyncio.run(main())
    strict.close()


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_worker_without_a_good_token_ends_at_once(closed: Server, token: str | None) -> None:
    nobody = App("nobody", server=closed.tcp, token=token)

    @nobody.task
    def nothing() -> None: ...

    async def main() -> None:
        worker = Worker(nobody)
        with pytest.raises(Denied):
            await asyncio.wait_for(worker.run(), PATIENCE_S)

    asyncio.run(main())
    with pytest.raises(Denied):
        nothing.push()
    nobody.close()


def test_a_worker_outlasts_a_suspended_tenant_and_ends_with_its_token(
    closed: Server, admin: SyncClient
) -> None:
    made = admin.tokens.create("owner")
    watched = App("watched", server=closed.tcp, token=made.token)

    @watched.task
    def echo(text: str) -> str:
        return text

    async def main() -> None:
        worker = Worker(watched)
        running = asyncio.create_task(worker.run())
        assert await (await echo.apush("one")).aresult(wait_s=PATIENCE_S) == "one"
        await asyncio.to_thread(admin.tenants.suspend, "acme")
        with pytest.raises(Denied):
            await echo.apush("two")
        await asyncio.to_thread(admin.tenants.resume, "acme")
        assert await (await echo.apush("three")).aresult(wait_s=PATIENCE_S) == "three"
        await asyncio.to_thread(admin.tokens.revoke, made.id)
        with pytest.raises(Denied):
            await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(main())
    watched.close()


def test_what_an_app_pushes_later_shows_its_token(closed: Server, admin: SyncClient) -> None:
    made = admin.tokens.create("push", queues=["later"])
    pushing = App("later", server=closed.tcp, token=made.token)

    @pushing.task
    def later(number: int) -> None: ...

    later.push_later(os.getpid())
    pushing.close()
    assert admin.pop("later")[0].payload["args"] == [os.getpid()]
