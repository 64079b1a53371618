"""A worker that stops: what runs ends, what has not begun is given back, and then it is gone."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.app import App
from forebay.client.tasks.task import Job
from forebay.client.worker.worker import Worker
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import Process, Way, play, until, working
from tests.serving import PATIENCE_S, Server

TASKS = """
import asyncio, logging, os, pathlib, time
import forebay
logging.basicConfig(level=logging.INFO)
app = forebay.App("theirs", queue="QUEUE")
here = pathlib.Path.cwd()
(here / "imported").touch()

async def gate(name):
    (here / f"begun-{name}").touch()
    while not (here / f"go-{name}").exists():
        await asyncio.sleep(0.01)
    return name

@app.task
async def in_loop(name): return await gate(name)

@app.task
def in_thread(name): return asyncio.run(gate(name))

@app.task(process=True)
def in_process(name): return asyncio.run(gate(name))

@app.task
def deaf(name):
    (here / f"begun-{name}").touch()
    time.sleep(30)
"""

KINDS = {"in_loop": "a", "in_thread": "b", "in_process": "c"}


def _pushed(server: Server, queue: str) -> App:
    """Their app, to push to."""
    app = App("theirs", server=server.tcp, queue=queue)
    for name in ("in_loop", "in_thread", "in_process", "deaf"):
        app.task(name=name)(lambda name: None)
    return app


def _failures(app: App, id: int) -> int:
    return app.client.message(id).failures


def _wait_for(job: Job[Any], state: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while job.state() != state:
        assert time.monotonic() < until, f"the job is {job.state()}, and should be {state}"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["in_loop", "in_thread", "in_process"])
def test_at_sigterm_what_runs_ends_and_what_has_not_begun_is_given_back(
    server: Server, tmp_path: Path, kind: str
) -> None:
    app = _pushed(server, f"drain-{kind}")
    first, second = (app.tasks[kind].push(name) for name in "ab")
    source = TASKS.replace("QUEUE", app.queue)
    with Process(tmp_path, source, server.tcp, concurrency=1, prefetch=1) as worker:
        worker.wait_for("begun-a")
        _wait_for(second, "active")
        worker.tell(signal.SIGTERM)
        _wait_for(second, "waiting")
        assert first.state() == "active"
        assert _failures(app, second.id) == 0
        (tmp_path / "go-a").touch()
        assert worker.wait() == 0
    assert first.result() == "a"
    app.close()


def test_a_signal_for_the_whole_process_group_lets_a_process_task_end(server: Server, tmp_path: Path) -> None:
    """That is what a terminal does at Ctrl-C, and systemd when it stops a unit."""
    app = _pushed(server, "drain-group")
    job = app.tasks["in_process"].push("a")
    with Process(tmp_path, TASKS.replace("QUEUE", app.queue), server.tcp) as worker:
        worker.wait_for("begun-a")
        worker.tell(signal.SIGINT, group=True)
        (tmp_path / "go-a").touch()
        assert worker.wait() == 0
    assert job.state() == "completed"
    app.close()


def test_a_second_sigterm_does_not_wait_for_what_runs(server: Server, tmp_path: Path) -> None:
    app = _pushed(server, "drain-twice")
    jobs = [app.tasks[kind].push(name) for kind, name in KINDS.items()]
    with Process(tmp_path, TASKS.replace("QUEUE", app.queue), server.tcp) as worker:
        worker.wait_for(*(f"begun-{name}" for name in KINDS.values()))
        worker.tell(signal.SIGTERM)
        worker.wait_to_say("stopping")
        worker.tell(signal.SIGTERM)
        assert worker.wait() == 0
    for job in jobs:
        assert job.state() == "waiting"  # it was given back, and nothing is counted
        assert _failures(app, job.id) == 0
    app.close()


def test_a_second_sigterm_does_not_wait_for_a_thread_that_does_not_listen(
    server: Server, tmp_path: Path
) -> None:
    app = _pushed(server, "drain-deaf")
    app.tasks["deaf"].push("a")
    with Process(tmp_path, TASKS.replace("QUEUE", app.queue), server.tcp) as worker:
        worker.wait_for("begun-a")
        worker.tell(signal.SIGTERM)
        worker.wait_to_say("stopping")
        worker.tell(signal.SIGTERM)
        assert worker.wait() == 0
    app.close()


def test_a_third_sigterm_waits_for_nothing(server: Server, tmp_path: Path) -> None:
    app = _pushed(server, "drain-thrice")
    app.tasks["deaf"].push("a")
    with Process(tmp_path, TASKS.replace("QUEUE", app.queue), server.tcp) as worker:
        worker.wait_for("begun-a")
        worker.tell(signal.SIGTERM)
        worker.wait_to_say("stopping")
        worker.tell(signal.SIGTERM)
        worker.wait_to_say("are interrupted")
        worker.tell(signal.SIGTERM)
        worker.wait()
    app.close()


def test_a_worker_that_waits_for_its_server_ends_at_the_first_sigterm(tmp_path: Path) -> None:
    with Process(tmp_path, TASKS, "127.0.0.1:1") as worker:
        worker.wait_for("imported")
        time.sleep(0.5)  # it says nothing until it has tried for a while
        worker.tell(signal.SIGTERM)
        assert worker.wait() == 0


def test_what_takes_longer_than_the_drain_is_interrupted_and_given_back(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(30)

    async def life() -> None:
        async with working(app, drain_s=0.1):
            job = await slow.apush()
            await begun.wait()
        assert await job.astate() == "waiting"
        assert (await app.aclient.message(job.id)).failures == 0
        await app.aclose()

    play(life())


def test_a_thread_that_takes_longer_than_the_drain_is_interrupted_and_given_back(app: App) -> None:
    begun = threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        while True:
            time.sleep(0.01)

    async def life() -> None:
        async with working(app, drain_s=0.1):
            job = await slow.apush()
            await until(begun.is_set)
        assert await job.astate() == "waiting"
        await app.aclose()

    play(life())


def test_a_thread_that_does_not_listen_does_not_hold_up_the_end_for_ever(app: App) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    def deaf() -> None:
        begun.set()
        may_end.wait(120)

    async def life() -> None:
        async with working(app, drain_s=0.1, lease_ms=500):
            await deaf.apush()
            await until(begun.is_set)

    try:
        play(life())
    finally:
        may_end.set()


def test_a_thread_that_does_not_listen_is_not_given_back_while_it_runs(app: App) -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended: list[float] = []

    @app.task
    def deaf() -> None:
        begun.set()
        may_end.wait(120)
        ended.append(time.monotonic())

    async def life() -> None:
        worker = Worker(app, drain_s=0.1, lease_ms=20_000)
        running = asyncio.create_task(worker.run())
        job = await deaf.apush()
        await until(begun.is_set)
        running.cancel()
        await asyncio.wait([running], timeout=0.3)
        running.cancel()
        await asyncio.wait([running], timeout=0.3)
        async with Client(app.server) as client:
            assert ended or await client.state(job.id) == "active"

    try:
        play(life())
    finally:
        may_end.set()


def test_what_could_not_be_given_back_is_not_settled_with_the_rest_of_its_lease(
    app: App, server: Server
) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    @app.task
    async def silent(name: str) -> None:
        begun.append(name)
        await may_end.wait()

    async def life() -> None:
        async with Client(server.tcp) as client:
            first, second = await silent.apush("a"), await silent.apush("b")
            await app.aclose()
            async with Way(server.tcp) as way:
                app.server = way.address
                loop = asyncio.get_running_loop()
                app._aclients[loop] = {True: Client(way.address, retry_s=0.2)}
                worker = Worker(app, concurrency=1, prefetch=2, lease_ms=20_000)
                running = asyncio.create_task(worker.run())
                await until(lambda: begun and worker._ready)
                way.refuses = True
                way.cut()
                worker.stop()
                await until(lambda: not worker._ready and worker._holding.count == 1)
                way.refuses = False
                may_end.set()
                await asyncio.wait_for(running, PATIENCE_S)
            assert await client.state(first.id) == "completed"
            assert begun == ["a"]
            assert await client.state(second.id) in ("active", "waiting")  # and not: completed

    play(life())


@pytest.mark.parametrize("whose", ["the worker's", "the app's"])
def test_what_is_on_its_way_to_a_worker_that_stops_is_given_back(
    app: App, server: Server, whose: str
) -> None:
    @app.task
    async def never() -> None:
        raise AssertionError

    async def life() -> None:
        async with Client(server.tcp) as client, Way(server.tcp) as way:
            app.server = way.address
            if whose == "the app's":
                await app.aclient.queues()  # now it has a client that the worker does not close
            way.holds = lambda data: b'"POP"' in data
            worker = Worker(app)
            running = asyncio.create_task(worker.run())
            await until(lambda: way.holds is None)  # it waits for jobs
            id = (await client.push(app.queue, {"task": "never"})).id
            async with asyncio.timeout(PATIENCE_S):
                while await client.state(id) != "active":
                    await asyncio.sleep(0.01)
            worker.stop()
            await until(lambda: worker._client._link._finishing)  # type: ignore[attr-defined]
            way.let_go()
            await asyncio.wait_for(running, PATIENCE_S)
            assert await client.state(id) == "waiting"

    play(life())


def _held(app: App, way: Way) -> Any:
    """A task whose jobs do not end by themselves; the worker is on the other side of a way."""

    @app.task
    async def held() -> None:
        await asyncio.sleep(60)

    app.server = way.address
    return held


def test_a_worker_that_has_no_time_gives_back_all_it_has(app: App, server: Server) -> None:
    async def life() -> None:
        async with Client(server.tcp) as client, Way(server.tcp) as way:
            ids = await _held(app, way).apush_many([()] * 5)
            worker = Worker(app, concurrency=1, prefetch=4, drain_s=0)
            running = asyncio.create_task(worker.run())
            await until(lambda: len(worker._ready) == 4 and worker._holding.count == 5)
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)
            assert {await client.state(id) for id in ids} == {"waiting"}

    play(life(), PATIENCE_S)


def test_a_worker_that_can_give_nothing_back_stops_in_time(app: App, server: Server) -> None:
    async def life() -> None:
        async with Way(server.tcp) as way:
            await _held(app, way).apush_many([()] * 5)
            worker = Worker(app, concurrency=1, prefetch=4, drain_s=0.1, lease_ms=600_000)
            running = asyncio.create_task(worker.run())
            await until(lambda: len(worker._ready) == 4)
            way.hold()
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    play(life(), PATIENCE_S)


def test_a_worker_that_asks_whether_a_lease_lives_stops_in_time(simulated: Simulated) -> None:
    app = simulated.app()

    async def life() -> None:
        async with Client(simulated.address) as client, Way(simulated.address) as way:
            _held(app, way)
            worker = Worker(app, drain_s=0.1, lease_ms=2_000)
            way.holds = lambda data: b'"POP"' in data
            running = asyncio.create_task(worker.run())
            await until(lambda: way.holds is None)
            await client.push(app.queue, {"task": "held"})
            await asyncio.sleep(0.6)  # more than a quarter of the lease
            way.holds = lambda data: b'"EXTEND"' in data
            way.let_go()
            await until(lambda: way.holds is None)
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    simulated.play(life())


DEAF = """
import asyncio, logging, pathlib, time
import forebay
logging.basicConfig(level=logging.INFO)
app = forebay.App("theirs", queue="QUEUE")

@app.task
async def swallows():
    pathlib.Path("begun").touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.task
async def in_an_executor():
    pathlib.Path("begun").touch()
    await asyncio.to_thread(time.sleep, 60)
"""


@pytest.mark.parametrize("name", ["swallows", "in_an_executor"])
def test_a_coroutine_that_does_not_end_does_not_hold_up_the_end_of_the_worker(
    server: Server, tmp_path: Path, name: str
) -> None:
    with SyncClient(server.tcp) as client:
        client.push(f"deaf-{name}", {"task": name})
    source = DEAF.replace("QUEUE", f"deaf-{name}")
    with Process(tmp_path, source, server.tcp, drain_s=0.1) as worker:
        worker.wait_for("begun")
        worker.tell(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0


def test_a_worker_that_is_stopped_in_its_block_lets_jobs_end(app: App) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    async def life() -> None:
        async with Worker(app) as worker:
            job = await slow.apush()
            await begun.wait()
            worker.stop()
            asyncio.get_running_loop().call_later(0.1, may_end.set)
        assert await job.astate() == "completed"
        await app.aclose()

    play(life())


def test_a_worker_that_is_given_up_before_it_began_is_gone(app: App) -> None:
    app.task(name="never")(lambda: None)
    app.server = "127.0.0.1:1"

    async def life() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), Worker(app):
                raise AssertionError("it began")
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(life())


def test_a_signal_for_all_does_not_kill_a_process_that_is_just_starting(
    server: Server, tmp_path: Path
) -> None:
    app = _pushed(server, "drain-starting")
    with Process(tmp_path, TASKS.replace("QUEUE", app.queue), server.tcp) as worker:
        worker.wait_to_say("working on")
        job = app.tasks["in_process"].push("a")
        _wait_for(job, "active")
        worker.tell(signal.SIGINT, group=True)
        worker.wait_for("begun-a")
        (tmp_path / "go-a").touch()
        assert worker.wait() == 0
    assert job.state() == "completed"
    assert _failures(app, job.id) == 0
    app.close()


ENDINGS = """
import asyncio, atexit, logging, pathlib, sys, time
import forebay
app = forebay.App("theirs", queue="QUEUE")

@app.task
async def flushes():
    atexit.register(lambda: (time.sleep(2), pathlib.Path("flushed").touch()))
    pathlib.Path("begun").touch()

@app.task
async def fails():
    sys.stdout.close()
    app.on_stop(lambda: 1 / 0)
    pathlib.Path("begun").touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize(("name", "code", "flushed"), [("flushes", 0, True), ("fails", 1, False)])
def test_a_worker_ends_in_order_if_it_can_and_ends_anyway_if_not(
    server: Server, tmp_path: Path, name: str, code: int, flushed: bool
) -> None:
    with SyncClient(server.tcp) as client:
        client.push(f"ending-{name}", {"task": name})
    source = ENDINGS.replace("QUEUE", f"ending-{name}")
    with Process(tmp_path, source, server.tcp, drain_s=0.1) as worker:
        worker.wait_for("begun")
        worker.tell(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == code
    assert (tmp_path / "flushed").exists() == flushed


SILENT = """
import logging, pathlib, time
import forebay
logging.basicConfig(level=logging.INFO)
app = forebay.App("theirs", queue="QUEUE")

@app.task
def deaf():
    app.server = "SILENT"
    app.tasks["noted"].push_later()
    pathlib.Path("begun").touch()
    time.sleep(60)

@app.task(queue="never")
def noted(): ...
"""


def test_a_worker_that_used_up_its_time_waits_less_for_what_is_to_be_pushed_later(
    server: Server, tmp_path: Path
) -> None:
    """Of 8 s in all, the job that did not end took 3, and 2 belong to the end of the process."""
    with socket.create_server(("127.0.0.1", 0)) as silent, SyncClient(server.tcp) as client:
        client.push("drain-silent", {"task": "deaf"})
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        source = SILENT.replace("QUEUE", "drain-silent").replace("SILENT", address)
        with Process(tmp_path, source, server.tcp, drain_s=0, queues=["drain-silent"]) as worker:
            worker.wait_for("begun")
            worker.tell(signal.SIGTERM)
            assert worker.wait() == 0
            lost = re.search(r"1 pushes .* are lost: they were not sent within ([\d.]+) s", worker.log())
            assert lost, worker.log()
            assert float(lost[1]) <= 3.0


HOOKED = """
import asyncio, logging, pathlib
import forebay
logging.basicConfig(level=logging.INFO)
app = forebay.App("theirs", queue="drain-hooked")

@app.task
async def never(): ...

@app.on_start
def tell(): pathlib.Path("begun").touch()

@app.on_stop
async def stop():
    await asyncio.Event().wait()
"""


def test_a_hook_that_does_not_end_does_not_hold_up_the_end_of_the_worker(
    server: Server, tmp_path: Path
) -> None:
    with Process(tmp_path, HOOKED, server.tcp, drain_s=0) as worker:
        worker.wait_for("begun")
        worker.tell(signal.SIGTERM)
        assert worker.wait() == 1


EXITING = """
import logging, sys, time
import forebay
logging.basicConfig(level=logging.INFO)
from forebay.client.later import hurry_exit
clients = [forebay.SyncClient("SILENT") for _ in range(3)]
for client in clients:
    client.push_later("never", 1)
hurry_exit(time.monotonic() - 1)
"""


def test_at_the_exit_of_a_program_that_has_no_time_all_its_buffers_share_a_second(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = EXITING.replace("SILENT", f"127.0.0.1:{silent.getsockname()[1]}")
        ran = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    within = [
        float(each) for each in re.findall(r"are lost: they were not sent within ([\d.]+) s", ran.stderr)
    ]
    assert len(within) == 3, ran.stderr
    assert sum(within) <= 1.5
