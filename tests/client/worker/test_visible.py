"""A worker tells of itself: from its start to its end, or until it is silent for too long."""

import asyncio
import importlib.metadata
import os
import signal
import socket
from pathlib import Path

import pytest

from forebay import __version__
from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.app import App
from forebay.client.tasks.task import GiveUp
from forebay.client.types import WorkerInfo
from forebay.client.worker.beats import BEAT_S, name_of
from forebay.client.worker.worker import Worker
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import Process, Way, until, until_so, working
from tests.serving import Server

SILENT_S = 30.0

THEIRS = """
from pathlib import Path
import asyncio, forebay

app = forebay.App("theirs", queue="theirs")

@app.task
async def long() -> None:
    Path("began").touch()
    await asyncio.Event().wait()
"""


async def listed(client: Client) -> dict[str, WorkerInfo]:
    return {each.name: each for each in await client.workers()}


def test_a_worker_process_is_listed_with_what_it_runs_until_it_stops(server: Server, tmp_path: Path) -> None:
    with (
        Process(tmp_path, THEIRS, server.tcp, name="w-1", concurrency=3, drain_s=0) as process,
        SyncClient(server.tcp) as client,
    ):
        id = client.push("theirs", {"task": "long", "args": [], "kwargs": {}}).id
        process.wait_for("began")
        until_so(lambda: client.workers("theirs"))
        (worker,) = client.workers("theirs")
        assert (worker.name, worker.host, worker.pid) == ("w-1", socket.gethostname(), process.pid)
        assert (worker.queues, worker.tasks, worker.concurrency) == (["theirs"], ["long"], 3)
        assert (worker.state, worker.group, worker.version) == ("working", "default", __version__)
        seen = client.message(id)
        assert (seen.state, seen.holder) == ("active", "w-1")
        assert (seen.leased_at or 0) < (seen.lease_until or 0)
        process.tell(signal.SIGTERM)
        assert process.wait() == 0
        assert client.workers("theirs") == []


@pytest.fixture
def app(simulated: Simulated) -> App:
    return simulated.app()


def test_what_runs_and_since_when_is_told_with_the_next_beat(app: App, simulated: Simulated) -> None:
    may_end = asyncio.Event()

    @app.task
    async def gated(fails: bool) -> None:
        await may_end.wait()
        if fails:
            raise GiveUp

    async def life() -> None:
        async with working(app, name="w") as worker:
            await until(lambda: worker._working.is_set())
            ids = [(await gated.apush(fails)).id for fails in (True, False)]
            await asyncio.sleep(2 * BEAT_S)
            (told,) = await app.aclient.workers()
            assert (told.running_count, sorted(each.id for each in told.running)) == (2, sorted(ids))
            assert {each.task for each in told.running} == {"gated"}
            assert all(told.started_at <= each.since < told.seen_at for each in told.running)
            may_end.set()
            await asyncio.sleep(2 * BEAT_S)
            (told,) = await app.aclient.workers()
            assert (told.running_count, told.done, told.failed) == (0, 2, 1)
        assert await app.aclient.workers() == []
        await app.aclose()

    simulated.play(life())


def test_an_app_says_which_version_its_workers_run(simulated: Simulated) -> None:
    app = App("shop", server=simulated.address, queue="jobs", version="2026-11-19.3")

    @app.task
    async def never() -> None: ...

    async def life() -> None:
        async with working(app, name="w"):
            await asyncio.sleep(1)
            assert (await listed(app.aclient))["w"].version == "2026-11-19.3"
        await app.aclose()

    simulated.play(life())
    for wrong in ("", "a\nb", "x" * 101):
        with pytest.raises(Invalid, match="version"):
            App("shop", version=wrong)


def test_a_worker_that_drains_says_so_at_once(app: App, simulated: Simulated) -> None:
    may_end = asyncio.Event()

    @app.task
    async def gated() -> None:
        await may_end.wait()

    async def life() -> None:
        async with Client(simulated.address) as client, working(app, name="w") as worker:
            await gated.apush()
            await until(lambda: worker._holding.runs() if hasattr(worker, "_holding") else None)
            worker.stop()
            await asyncio.sleep(1)
            assert [each.state for each in await client.workers()] == ["draining"]
            may_end.set()
        await app.aclose()

    simulated.play(life())


def test_a_worker_that_is_cut_off_is_gone_and_is_back_with_its_next_beat(
    app: App, simulated: Simulated
) -> None:
    @app.task
    async def never() -> None: ...

    async def life() -> None:
        async with Client(simulated.address) as client, Way(simulated.address) as way:
            far = App(app.name, server=way.address, queue=app.queue)
            far.tasks = app.tasks
            async with working(far, name="w") as worker:
                await until(lambda: worker._working.is_set())
                await asyncio.sleep(1)
                told: list[str] = []

                async def listen() -> None:
                    async for event in client.events(kinds=["worker_gone", "worker_started"]):
                        told.append(event.kind)

                listening = asyncio.create_task(listen())
                way.refuses = True
                way.cut()
                await asyncio.sleep(BEAT_S)
                assert (await listed(client))["w"].state == "working"
                await asyncio.sleep(SILENT_S + BEAT_S)
                assert (await listed(client))["w"].state == "gone"
                way.refuses = False
                await asyncio.sleep(2 * BEAT_S)
                assert (await listed(client))["w"].state == "working"
                listening.cancel()
                assert told == ["worker_gone", "worker_started"]

    simulated.play(life())


def test_workers_without_a_name_have_names_of_their_own(app: App, simulated: Simulated) -> None:
    @app.task
    async def never() -> None: ...

    async def life() -> None:
        async with working(app) as first, working(app) as second:
            await until(lambda: first._working.is_set() and second._working.is_set())
            await asyncio.sleep(1)
            names = (await listed(app.aclient)).keys()
            assert names == {first.name, second.name}
            assert all(str(os.getpid()) in each for each in names)
        await app.aclose()

    simulated.play(life())


def test_a_worker_without_the_metadata_of_its_package_works(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundled programs, and code that is only on the path, have none."""

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", missing)
    app = simulated.app()
    app.task(name="never")(lambda: None)

    async def life() -> None:
        async with Client(simulated.address) as client, working(app, name="bundled"):
            async with asyncio.timeout(SILENT_S):
                while not await listed(client):
                    await asyncio.sleep(0.1)
            assert (await listed(client))["bundled"].version == __version__

    simulated.play(life())


@pytest.mark.parametrize("name", ["", "n" * 129, "two\nlines", "\x1b[31mred", "\ud800", "é" * 128, 7])
def test_a_worker_is_not_made_with_a_name_that_can_not_be_listed(name: str) -> None:
    app = App("named")
    app.task(name="never")(lambda: None)
    with pytest.raises(Invalid, match="name"):
        Worker(app, name=name)


@pytest.mark.parametrize("name", ["n", "n" * 128, "mailer 1 (Zürich)"])
def test_a_worker_has_the_name_that_it_is_given(name: str) -> None:
    app = App("named")
    app.task(name="never")(lambda: None)
    assert Worker(app, name=name).name == name


def test_a_name_that_is_made_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 255)
    assert name_of(name_of(None)).startswith("hhh")
