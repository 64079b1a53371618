"""Calls on their way to a worker: options, unique jobs, rates, hooks, crons, chains and groups."""

import asyncio
from typing import Any

import pytest

from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain, group
from forebay.client.tasks.task import Failed
from forebay.client.worker.worker import Worker
from forebay.core.errors import Invalid
from tests.client.worker.simulated import Simulated
from tests.client.worker.working import Way, play, until, until_state, working
from tests.serving import Server


def test_a_job_can_be_pushed_and_asked_for_without_a_loop(app: App) -> None:
    @app.task
    async def add(left: int, right: int) -> int:
        return left + right

    async def life() -> None:
        async with working(app):
            job = await asyncio.to_thread(add.push, 1, right=2)
            assert await asyncio.to_thread(job.result) == 3
            assert await asyncio.to_thread(job.state) == "completed"

    play(life())


def test_many_are_pushed_at_once_a_tuple_is_several_arguments(app: App) -> None:
    @app.task
    async def told(*args: Any) -> list[Any]:
        return list(args)

    async def life() -> None:
        async with working(app):
            ids = await told.apush_many([1, (2, 3), ([4],)])
            assert [await app.job(id).aresult() for id in ids] == [[1], [2, 3], [[4]]]

    play(life())


def test_options_are_those_of_the_message(app: App) -> None:
    @app.task(priority=3, tags=["slow"])
    async def job(name: str) -> None:
        pass

    async def life() -> None:
        plain = await app.aclient.message((await job.apush("a")).id)
        assert (plain.priority, plain.tags, plain.state) == (3, ("slow",), "waiting")
        other = await app.aclient.message((await job.options(priority=9, delay_ms=60_000).apush("b")).id)
        assert (other.priority, other.tags, other.state) == (9, ("slow",), "delayed")
        await app.aclose()

    play(life())


def test_of_unique_jobs_with_the_same_arguments_one_waits_at_a_time(app: App) -> None:
    @app.task(unique=True)
    async def synced(user: str, *, full: bool = False) -> None:
        pass

    async def life() -> None:
        first, again, other = (
            await synced.apush("ada"),
            await synced.apush("ada"),
            await synced.apush("ada", full=True),
        )
        assert first.id == again.id != other.id
        assert again.pushed.duplicate
        ids = await synced.apush_many(["ada", "alan", "alan"])
        assert ids[0] == first.id
        assert ids[1] == ids[2]
        async with working(app):
            await first.aresult()
        assert (await synced.apush("ada")).id != first.id
        await app.aclose()

    play(life())


def test_a_function_may_say_what_a_job_is_unique_by(app: App) -> None:
    @app.task(unique=lambda user, version: user)
    async def synced(user: str, version: int) -> None:
        pass

    async def life() -> None:
        assert (await synced.apush("ada", 1)).id == (await synced.apush("ada", 2)).id
        await app.aclose()

    play(life())


def test_a_rate_is_set_as_a_limit_of_the_queue(app: App) -> None:
    @app.task(rate="100/m")
    async def call() -> None:
        pass

    async def life() -> None:
        async with working(app):
            await (await call.apush()).aresult()
            options = (await app.aclient.queue(app.queue)).options
            assert (options["rate_limit"]["limit"], options["rate_limit"]["per_ms"]) == (100, 60_000)

    play(life())
    with pytest.raises(Invalid, match="rate"):
        app.task(name="other", rate="1/s")(lambda: None)


def test_a_hook_sees_every_push_and_may_change_its_options(app: App) -> None:
    @app.before_push
    def tagged(call: Any, options: dict[str, Any]) -> None:
        options["tags"] = [call.task.name]

    @app.task
    async def one(number: int = 0) -> int:
        return number

    @app.task
    async def last(before: int) -> int:
        return before

    async def life() -> None:
        ids = [(await one.apush()).id, *await one.apush_many([1])]
        flow: Any = chain(one.call(), last.then())
        job = await flow.apush()
        for id in ids:
            assert (await app.aclient.message(id)).tags == ("one",)
        assert (await app.aclient.message(job.id)).tags == ("last",)
        await app.aclose()

    play(life())


# Jobs that wait for others.


def _calculator(app: App) -> tuple[Any, Any, Any]:
    @app.task
    async def number(value: int) -> int:
        return value

    @app.task
    async def plus(before: int, more: int) -> int:
        return before + more

    @app.task(retry=1)
    async def total(values: list[int | None]) -> list[int | None]:
        return values

    return number, plus, total


def test_each_of_a_chain_gets_the_result_of_the_one_before(app: App) -> None:
    number, plus, _ = _calculator(app)

    async def life() -> None:
        async with working(app):
            flow: Any = chain(number.call(1), plus.then(10), plus.then(100))
            assert await (await flow.apush()).aresult() == 111

    play(life())


def test_the_results_of_a_group_come_in_its_order(app: App) -> None:
    @app.task
    async def late(value: int) -> int:
        await asyncio.sleep(0.01 * (5 - value))
        return value

    _, _, total = _calculator(app)

    async def life() -> None:
        async with working(app):
            job = await group([late.call(value) for value in range(5)], total.then()).apush()
            assert await job.aresult() == [0, 1, 2, 3, 4]

    play(life())


def test_a_chain_may_be_one_of_a_group_and_a_group_the_first_of_a_chain(app: App) -> None:
    number, plus, total = _calculator(app)

    @app.task
    async def summed(values: list[int]) -> int:
        return sum(values)

    async def life() -> None:
        async with working(app):
            inner: Any = chain(number.call(1), plus.then(1))
            assert await (await group([inner, number.call(5)], total.then()).apush()).aresult() == [2, 5]
            outer: Any = chain(group([number.call(1), number.call(2)], summed.then()), plus.then(10))
            assert await (await outer.apush()).aresult() == 13

    play(life())


@pytest.mark.parametrize("on_failed", ["fail", "ignore"])
def test_what_waits_for_a_failed_one_fails_too_or_gets_none_for_it(app: App, on_failed: str) -> None:
    number, _, total = _calculator(app)

    @app.task(retry=1)
    async def bad() -> int:
        raise ValueError

    async def life() -> None:
        async with working(app):
            calls = [number.call(1), bad.call(), number.call(3)]
            job = await group(calls, total.then(), on_failed=on_failed).apush()
            if on_failed == "ignore":
                assert await job.aresult() == [1, None, 3]
            else:
                with pytest.raises(Failed):
                    await job.aresult()

    play(life())


@pytest.mark.parametrize("only", ["child", "all"])
def test_a_requeued_group_waits_for_its_child_and_computes_the_right_result(app: App, only: str) -> None:
    number, _, total = _calculator(app)
    is_mended = False

    @app.task(retry=1)
    async def fragile(value: int) -> int:
        if not is_mended:
            raise ValueError("the cause")
        return value

    async def life() -> None:
        nonlocal is_mended
        async with working(app):
            flow = chain(group([number.call(3), fragile.call(4)], total.then()), total.then())
            job = await flow.apush()
            with pytest.raises(Failed):
                await job.aresult()
            is_mended = True
            dead = (await app.aclient.dead(app.queue)).messages
            assert len(dead) == 3
            ids = [each.id for each in dead if only == "all" or each.payload["task"] == "fragile"]
            await app.aclient.requeue_dead(app.queue, ids)
            assert await job.aresult() == [3, 4]

    play(life())


def test_a_group_of_nothing_is_refused(app: App) -> None:
    with pytest.raises(Invalid, match="calls"):
        group([], _calculator(app)[2].then())


def test_the_results_of_a_group_with_large_arguments_are_all_there(app: App) -> None:
    @app.task
    async def sized(number: int, text: str) -> int:
        return number

    _, _, total = _calculator(app)

    async def life() -> None:
        async with working(app):
            calls = [sized.call(number, "x" * 900_000) for number in range(20)]
            # More than the server shows of the payloads of those that were waited for.
            job = await group(calls, total.then()).apush()
            assert await job.aresult() == list(range(20))

    play(life())


def test_a_job_may_wait_for_jobs_that_were_pushed_before(app: App) -> None:
    ran: list[str] = []
    may_end = asyncio.Event()

    @app.task
    async def first() -> None:
        await may_end.wait()
        ran.append("first")

    @app.task
    async def second() -> None:
        ran.append("second")

    async def life() -> None:
        async with working(app):
            before = await first.apush()
            after = await second.options(depends_on=[before]).apush()
            await until_state(app, after.id, "parked")
            may_end.set()
            await after.aresult()
        assert ran == ["first", "second"]

    play(life())


# Crons.


def test_crons_are_declared_when_a_worker_starts_and_removed_when_they_are_not_any_more(
    app: App, server: Server
) -> None:
    ran = asyncio.Event()

    @app.task(cron="0 3 * * *", timezone="Europe/Rome")
    async def nightly() -> None:
        pass

    @app.task
    async def often(name: str) -> None:
        ran.set()

    app.cron(often.call("ada"), every_ms=100, name="quick")
    later = App(app.name, server=server.tcp, queue=app.queue)
    later.task(name="nightly", cron="0 4 * * *")(lambda: None)

    async def life() -> None:
        async with working(app):
            await ran.wait()
            crons = {each.name: each for each in await app.aclient.crons()}
            assert crons[f"{app.name}:nightly"].schedule == "0 3 * * *"
            assert crons[f"{app.name}:nightly"].timezone == "Europe/Rome"
            assert f"{app.name}:quick" in crons
        await later.declare()
        left = [each for each in await later.aclient.crons() if each.name.startswith(f"{app.name}:")]
        assert [(each.name, each.schedule) for each in left] == [(f"{app.name}:nightly", "0 4 * * *")]
        await later.aclose()

    play(life())


def test_an_old_worker_that_starts_leaves_the_crons_of_tasks_that_a_newer_one_knows(
    app: App, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    old = App(app.name, server=server.tcp, queue=app.queue)
    for each in (app, old):
        each.task(name="tick", cron="0 3 * * *")(lambda: None)
    app.task(name="tock", cron="0 4 * * *")(lambda: None)
    app.cron(app.tasks["tick"].call(), every_ms=3_600_000, name="often")

    async def names() -> list[str]:
        crons = await old.aclient.crons()
        return [each.name.split(":")[1] for each in crons if each.name.startswith(f"{app.name}:")]

    async def life() -> None:
        async with working(app, name=f"{app.name}-new"):
            await until_known(old, f"{app.name}-new")
            async with working(old):
                while await names() != ["tick", "tock"]:
                    await asyncio.sleep(0.01)
        said = [each.getMessage() for each in caplog.records if "is not in this code" in each.getMessage()]
        assert said == [
            f"the cron {app.name}:often is not in this code any more: it is deleted",
            f"the cron {app.name}:tock is not in this code: it stays, as {app.name}-new knows it",
        ]
        await old.declare()
        assert await names() == ["tick"]
        await old.aclose()

    play(life())


def test_a_cron_that_was_left_to_others_goes_when_none_of_them_is_there_any_more(
    simulated: Simulated,
) -> None:
    old, new = simulated.app(), simulated.app()
    old.task(name="gone", cron="0 3 * * *")(lambda: None)
    new.task(name="stays", cron="0 4 * * *")(lambda: None)

    async def names() -> list[str]:
        return [each.name.split(":")[1] for each in await new.aclient.crons()]

    async def life() -> None:
        async with working(old):
            await asyncio.sleep(5)
            running = asyncio.create_task(Worker(new).run())
            await asyncio.sleep(60)
            assert await names() == ["gone", "stays"]
        await asyncio.sleep(20)
        assert await names() == ["stays"]
        running.cancel()

    simulated.play(life())


async def until_known(app: App, name: str) -> None:
    while name not in [each.name for each in await app.aclient.workers()]:
        await asyncio.sleep(0.01)


def test_an_app_has_no_colon_in_its_name_because_those_of_its_crons_begin_with_it() -> None:
    with pytest.raises(Invalid, match="colons"):
        App("one:two")


# Clients.


def test_a_worker_that_starts_before_its_server_waits_for_it(app: App, server: Server) -> None:
    @app.task
    async def job() -> str:
        return "done"

    async def life() -> None:
        async with Way(server.tcp) as way:
            way.refuses = True
            far = App(app.name, server=way.address, queue=app.queue)
            far.tasks = app.tasks
            async with working(far):
                await until(lambda: way.refused)
                way.refuses = False
                assert await (await job.apush()).aresult() == "done"
        await app.aclose()

    play(life())


def test_arguments_are_the_same_however_they_are_given(app: App) -> None:
    @app.task(unique=True)
    async def send(to: str, times: int = 1, tags: Any = None) -> None: ...

    key = send.key_of(("ada",), {})
    assert key == send.key_of((), {"to": "ada"}) == send.key_of(("ada", 1), {"tags": None})
    assert key != send.key_of(("alan",), {})
    first, second = ({"b": 1, "a": {"y", "x"}}, {"a": {"x", "y"}, "b": 1})
    assert send.key_of(("ada",), {"tags": first}) == send.key_of(("ada",), {"tags": second})


@pytest.mark.parametrize("unique", [True, lambda amount, currency: currency], ids=["all", "a function"])
def test_a_unique_task_whose_first_argument_comes_later_needs_a_key(app: App, unique: Any) -> None:
    @app.task
    async def price() -> int:
        return 1

    @app.task(unique=unique)
    async def receipt(amount: int, currency: str) -> str:
        return f"{amount} {currency}"

    with pytest.raises(Invalid, match="receipt is unique, and its first argument is not known yet"):
        chain(price.call(), receipt.then("EUR")).push()

    async def life() -> None:
        async with working(app):
            keyed = receipt.then("EUR").with_options(unique_key="receipt-7")
            assert await (await chain(price.call(), keyed).apush()).aresult() == "1 EUR"

    play(life())


@pytest.mark.parametrize("rate", ["0/s", "\N{SUPERSCRIPT TWO}/s", "-1/s", "10/w", "", 0])
def test_a_rate_that_is_none_is_refused(app: App, rate: Any) -> None:
    with pytest.raises(Invalid, match="rate must be"):
        app.task(name="send", rate=rate)


def test_a_default_that_nobody_can_send_is_not_part_of_the_key(app: App) -> None:
    missing = object()

    @app.task(unique=True)
    async def send(to: str, by: Any = missing) -> str:
        return to if by is missing else by

    assert send.key_of(("ada",), {}) == send.key_of((), {"to": "ada"}) != send.key_of(("ada", "bob"), {})

    async def life() -> None:
        async with working(app):
            first = await send.apush("ada")
            (second,) = await send.apush_many(["alan"], depends_on=[first])
            assert await app.job(second).aresult() == "alan"

    play(life())
