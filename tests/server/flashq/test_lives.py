"""Whole lives of a client of flashQ in Python."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.flashq.client import PATIENCE_S, Client, Refused, Reply, Worker
from tests.server.flashq.serving import FlashqServer, Talk


@pytest.fixture(params=[True, False], ids=["framed", "lines"])
def framed(request: pytest.FixtureRequest, line: Talk) -> bool:
    """How the client speaks, to a server in which there is nothing."""
    framed: bool = request.param
    return framed


def live(server: FlashqServer, life: Callable[[Client], Awaitable[None]], **how: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S), Client(*server.address, **how) as client:
            await life(client)

    asyncio.run(whole())


def test_workers_do_every_job_once_and_their_results_are_waited_for(
    server: FlashqServer, framed: bool
) -> None:
    meet = asyncio.Event()
    worker: Worker

    async def double(job: Reply) -> Any:
        if worker.busiest == 8:
            meet.set()
        await meet.wait()  # eight are under way at the same time
        return {"twice": 2 * job["data"]["n"]}

    async def life(client: Client) -> None:
        nonlocal worker
        worker = Worker(client, "sums", double, concurrency=8)
        async with worker:
            ids = await asyncio.gather(*(client.push("sums", {"n": n}) for n in range(200)))
            results = await asyncio.gather(*map(client.finished, ids))
        assert results == [{"twice": 2 * n} for n in range(200)]
        assert Counter(each["n"] for each in worker.begun) == Counter(range(200))
        assert worker.busiest == 8
        stats = await client.call("STATS")
        assert (stats["queued"], stats["processing"], stats["completed"]) == (0, 0, 200)

    live(server, life, pool=4, framed=framed)


def test_a_job_that_fails_is_retried_dies_and_lives_again(server: FlashqServer, framed: bool) -> None:
    is_well = False

    async def moody(job: Reply) -> Any:
        if not is_well:
            raise ValueError(f"Fail {job['attempts'] + 1}")
        return "well"

    async def life(client: Client) -> None:
        nonlocal is_well
        async with Worker(client, "moody", moody):
            job = await client.push("moody", 1, max_attempts=2)
            with pytest.raises(Refused, match=f"Job {job} failed: Fail 2"):
                await client.finished(job)
            (dead,) = (await client.call("DLQ", queue="moody"))["jobs"]
            assert (dead["id"], dead["attempts"]) == (job, 2)
            is_well = True
            assert (await client.call("RETRYDLQ", queue="moody", id=job))["ids"] == [1]
            assert await client.finished(job) == "well"

    live(server, life, framed=framed)


def test_a_flow_runs_from_its_children_up(server: FlashqServer, framed: bool) -> None:
    async def part(job: Reply) -> Any:
        return job["data"]

    async def whole(job: Reply) -> Any:
        return job["children_ids"]

    async def life(client: Client) -> None:
        children = [{"queue": "part", "data": each} for each in range(5)]
        async with Worker(client, "part", part), Worker(client, "whole", whole):
            flow = await client.call("FLOW", queue="whole", data=None, children=children)
            assert await client.finished(flow["parent_id"]) == flow["children_ids"]
            found = await client.call("GETCHILDREN", parent_id=flow["parent_id"])
            assert (found["completed"], found["total"]) == (5, 5)

    live(server, life, framed=framed)


def test_a_cron_pushes_as_often_as_it_may(server: FlashqServer, framed: bool) -> None:
    async def life(client: Client) -> None:
        await client.call("CRON", name="tick", queue="ticks", data={"t": 1}, repeat_every=100, limit=2)
        for _ in range(2):
            job = (await client.call("PULL", queue="ticks", timeout=10_000))["job"]
            assert job["data"] == {"t": 1}
            await client.call("ACK", id=job["id"])
        assert (await client.call("CRONLIST"))["crons"] == [], "it is over"

    live(server, life, framed=framed)


def test_answers_come_as_they_are_ready_not_as_they_were_asked(server: FlashqServer, framed: bool) -> None:
    async def life(client: Client) -> None:
        (connection,) = client.pool
        pull = asyncio.create_task(connection.call("PULL", queue="slow", timeout=20_000))
        assert (await connection.call("COUNT", queue="slow"))["count"] == 0
        assert not pull.done()
        job = await client.push("slow", "now")
        assert (await pull)["job"]["id"] == job

    live(server, life, pool=1, framed=framed)


def test_events_are_told_to_whoever_subscribed(server: FlashqServer, framed: bool) -> None:
    async def nothing(job: Reply) -> Any:
        return None

    async def life(client: Client) -> None:
        listening, *_ = client.pool
        await listening.call("SUBSCRIBE", queue="news", events=["completed"])
        async with Worker(client, "news", nothing):
            ids = await asyncio.gather(*(client.push("news", n) for n in range(20)))
            told = [await listening.events.get() for _ in ids]
        assert {each["job_id"] for each in told} == set(ids)
        assert {each["event"] for each in told} == {"job:completed"}
        await listening.call("UNSUBSCRIBE", queue="news")

    live(server, life, framed=framed)


def test_what_was_confirmed_is_done_though_the_server_was_killed(tmp_path: Path) -> None:
    """Clients connect again by themselves; a job that was under way comes again after its timeout."""
    done: set[int] = set()
    half, everything = asyncio.Event(), asyncio.Event()

    async def work(job: Reply) -> Any:
        done.add(job["data"])
        if len(done) >= 100:
            half.set()
        if len(done) == 300:
            everything.set()
        return job["data"]

    async def life() -> None:
        stored = ("--data", str(tmp_path / "data"))
        with FlashqServer(*stored) as server:
            client = Client(*server.address, pool=4)
            pushes = [
                client.push("kept", n, timeout=1_000, max_attempts=1_000, job_id=f"n{n}") for n in range(300)
            ]
            ids = await asyncio.gather(*pushes)
            worker = Worker(client, "kept", work, concurrency=6)
            await worker.__aenter__()
            await half.wait()
            server.kill()
        with FlashqServer(*stored, at=server.flashq):
            await everything.wait()
            results = await asyncio.gather(*map(client.finished, ids))
            assert results == list(range(300))
            assert await client.push("kept", 0, job_id="n0") == ids[0], "it is known after the restart, too"
            assert min(each.connects for each in client.pool) >= 2
            await worker.__aexit__()
            await client.close()

    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await life()

    asyncio.run(in_time())


def test_a_client_with_a_token_shows_it_on_each_connection() -> None:
    async def life(client: Client) -> None:
        await asyncio.gather(*(client.push("q", n) for n in range(10)))
        assert (await client.call("COUNT", queue="q"))["count"] == 10

    with FlashqServer("--store", "memory:", "--flashq-tokens", "secret") as server:
        live(server, life, token="secret")
        with pytest.raises(Refused, match="Invalid token"):
            live(server, life, token="guess")
