"""A worker with older code than those who push: what it does not know is left to others, for a while."""

import asyncio
import logging
from typing import Any

import pytest

from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import until_state, working


async def _push(app: App, **payload: Any) -> int:
    return (await app.aclient.push("jobs", payload)).id


def _knows(app: App) -> App:
    """An app with a task."""

    @app.task
    async def send(to: str) -> str:
        return to

    return app


def test_a_new_task_survives_a_deploy_in_which_old_workers_still_run(simulated: Simulated) -> None:
    old, new = _knows(simulated.app()), _knows(simulated.app())

    @new.task(retry=1)
    async def greet(to: str) -> str:
        return f"hello {to}"

    async def life() -> None:
        async with working(old):
            job = await greet.apush("ada")
            await asyncio.sleep(120)
            seen = await new.aclient.message(job.id)
            assert seen.state in ("waiting", "delayed")
            assert (seen.failures, seen.deliveries) == (0, 0)
            (queue,) = await new.aclient.queues()
            assert queue.counts.deferred == 1
            async with working(new):
                assert await job.aresult(wait_s=120) == "hello ada"

    simulated.play(life())


def test_a_new_argument_survives_it_too(simulated: Simulated) -> None:
    old, new = _knows(simulated.app()), simulated.app()

    @new.task(retry=1)
    async def send(to: str, *, subject: str = "") -> str:
        return f"{subject} to {to}"

    async def life() -> None:
        async with working(old):
            jobs = [await send.apush("ada", subject="news"), await send.apush("ada")]
            await asyncio.sleep(60)
            assert [await job.astate() for job in jobs] == ["delayed", "completed"]
        async with working(new):
            assert await jobs[0].aresult(wait_s=60) == "news to ada"

    simulated.play(life())


def test_what_is_left_to_others_is_neither_done_nor_failed(
    simulated: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    app = _knows(simulated.app())
    caplog.set_level(logging.INFO, logger="forebay.worker")

    async def life() -> None:
        async with working(app):
            await _push(app, task="greet", args=["ada"])
            await until_state(app, await _push(app, task="send", args=["ada"]), "completed")
            await asyncio.sleep(60)
            (told,) = await app.aclient.workers()
            assert (told.done, told.failed) == (1, 0)

    simulated.play(life())
    assert "stopped; 1 runs, 0 of them failed" in caplog.messages


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"task": "greet", "args": ["ada"]}, "knows no task greet"),
        ({"task": "send", "args": ["ada"], "kwargs": {"cc": 1}}, "'cc'"),
        ({"task": "send"}, "'to'"),
    ],
    ids=["task", "argument", "missing"],
)
def test_what_stays_unknown_is_a_dead_letter_that_says_what_and_since_when(
    simulated: Simulated, payload: dict[str, Any], said: str
) -> None:
    app = _knows(simulated.app())

    async def life() -> None:
        id = await _push(app, **payload)
        await asyncio.sleep(100)  # a backlog is no reason
        async with working(app, unknown_for_s=90):
            await asyncio.sleep(80)
            assert await app.aclient.state(id) in ("waiting", "delayed")
            await until_state(app, id, "dead")
        seen = await app.aclient.message(id)
        assert seen.error is not None
        assert seen.error.startswith("deferred since 2023-11-14T22:15:00.")
        assert said in seen.error
        assert "start workers with the code that pushed it" in seen.error

    simulated.play(life())


def test_arguments_of_a_wrong_type_are_given_up_as_ever(simulated: Simulated) -> None:
    app = _knows(simulated.app())

    async def life() -> None:
        async with working(app):
            assert (
                await until_state(app, await _push(app, task="send", args=[5]), "dead", "delayed") == "dead"
            )

    simulated.play(life())


def test_a_worker_can_be_told_to_give_up_at_once(simulated: Simulated) -> None:
    app = _knows(simulated.app())

    async def life() -> None:
        async with working(app, unknown_for_s=0):
            id = await _push(app, task="greet")
            assert await until_state(app, id, "dead", "delayed") == "dead"

    simulated.play(life())


def test_the_log_has_a_warning_a_minute_for_each_task(
    simulated: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    app = _knows(simulated.app())

    async def life() -> None:
        async with working(app):
            first = await _push(app, task="greet")
            for _ in range(4):
                await _push(app, task="greet")
            await _push(app, task="other")
            await asyncio.sleep(50)
            warned = [each for each in caplog.records if "goes back" in each.getMessage()]
            assert sorted(each.__dict__["fields"]["task"] for each in warned) == ["greet", "other"]
            assert str(first) in warned[0].getMessage()
            await asyncio.sleep(50)
            warned = [each for each in caplog.records if "goes back" in each.getMessage()]
            assert len(warned) == 4
            assert "more since the last warning" in warned[-1].getMessage()

    with caplog.at_level(logging.WARNING, "forebay.worker"):
        simulated.play(life())


@pytest.mark.parametrize("wrong", [-1, float("nan"), 10**9])
def test_a_time_out_of_bounds_is_refused(wrong: float) -> None:
    async def life() -> None:
        with pytest.raises(Invalid, match="unknown_for_s"):
            Worker(_knows(App("mine")), unknown_for_s=wrong)

    asyncio.run(life())
