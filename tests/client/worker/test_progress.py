"""Progress that a task reports more often than anybody can look."""

import asyncio

import pytest

from forebay.client.tasks.app import App
from forebay.client.worker.current import current
from forebay.client.worker.progress import EVERY_S, Reports
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import working


@pytest.fixture
def app(simulated: Simulated) -> App:
    return simulated.app()


def test_of_many_reports_a_few_are_sent_and_the_last_one_always(simulated: Simulated) -> None:
    sent: list[int] = []

    async def send(percent: int, message: str | None) -> None:
        sent.append(percent)

    async def life() -> None:
        reports = Reports(send)
        for percent in range(51):
            await reports.tell(percent, None)
        assert sent == [0]
        await asyncio.sleep(1.5 * EVERY_S)
        assert sent == [0, 50]
        for percent in range(51, 101):
            await reports.tell(percent, None)
        await reports.finish()
        assert sent[-1] == 100
        assert len(sent) == 3

    simulated.play(life())


def test_the_last_progress_is_there_when_the_job_has_ended_well_or_not(
    app: App, simulated: Simulated
) -> None:
    @app.task(retry=1)
    async def count(fails: bool) -> None:
        for percent in range(78):
            await current().aprogress(percent, f"{percent} of 100")
        if fails:
            raise ValueError("no more")

    async def life() -> None:
        async with working(app):
            for fails in (False, True):
                job = await count.apush(fails)
                await app.aclient.result(job.id, wait_ms=8_000)
                told = await job.aprogress()
                assert (told.progress, told.message) == (77, "77 of 100")
        await app.aclose()

    simulated.play(life())


def test_progress_that_is_none_is_refused_at_once(app: App, simulated: Simulated) -> None:
    refused = 0

    @app.task
    async def nonsense() -> None:
        nonlocal refused
        for percent in (1, 1_000, 2, -1):
            try:
                await current().aprogress(percent)
            except Invalid:
                refused += 1

    async def life() -> None:
        async with working(app):
            await (await nonsense.apush()).aresult(8)
        await app.aclose()

    simulated.play(life())
    assert refused == 2
