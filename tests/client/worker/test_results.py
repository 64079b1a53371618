"""Types of results: what a type checker says of them, which `make check` checks here, and what they are."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, assert_type

import msgspec
import pytest

from forebay.client.tasks.app import App
from forebay.client.tasks.flow import Flow, chain, group
from forebay.client.tasks.task import Call, Failed, Job, Step
from forebay.core.errors import Invalid
from forebay.testing.inline_tasks import Inline, inline

app = App("typed")


class Page(msgspec.Struct):
    url: str


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task(retry=1)
def pair(one: int, other: int) -> tuple[int, int]:
    return one, other


@app.task
async def fetch(url: str) -> Page:
    return Page(url)


@app.task(retry=1)
async def fetch_all(urls: list[str]) -> dict[str, Page]:
    return {url: Page(url) for url in urls}


@app.task
def gather(found: list[Page | int]) -> list[Page | int]:
    return found


@app.task
def later() -> "Defined":
    return Defined(1)


@app.task
def nothing() -> None: ...


@app.task
def wrong() -> Page:
    return "no page"  # type: ignore[return-value]


@app.task
def broken() -> Page:
    raise ValueError


class Defined(msgspec.Struct):
    """Below the task that returns it."""

    number: int


@pytest.fixture(autouse=True)
def ran() -> Iterator[Inline]:
    with inline(app, raises=False) as ran:
        yield ran


def test_the_result_of_a_function_is_of_the_type_it_returns() -> None:
    assert assert_type(add.push(1, 2).result(), int) == 3
    assert assert_type(pair.push(1, 2).result(), tuple[int, int]) == (1, 2)
    assert assert_type(add(1, 2), int) == 3
    text: str = add.push(1, 2).result()  # type: ignore[assignment]
    assert text == 3  # type: ignore[comparison-overlap]


def test_the_result_of_a_coroutine_is_of_the_type_it_returns_when_awaited() -> None:
    async def life() -> None:
        job = assert_type(await fetch.apush("a"), Job[Page])
        assert assert_type(await job.aresult(), Page) == Page("a")
        assert assert_type(job.result(), Page) == Page("a")
        several = assert_type(await (await fetch_all.apush(["a"])).aresult(), dict[str, Page])
        assert several == {"a": Page("a")}
        called = assert_type(fetch("b"), Coroutine[Any, Any, Page])
        assert await called == Page("b")

    asyncio.run(life())


def test_options_calls_and_ids_keep_the_type() -> None:
    call = assert_type(fetch.options(priority=5).call("a"), Call[Page])
    job = assert_type(call.with_options(tags=["x"]).push(), Job[Page])
    assert assert_type(fetch.options(priority=5).push("a").result(), Page) == Page("a")
    assert assert_type(fetch.job(job.id).result(), Page) == Page("a")
    assert assert_type(app.job(job.id), Job[Any]).result() == {"url": "a"}


def test_the_result_of_a_chain_or_a_group_is_that_of_its_last_call() -> None:
    flow = assert_type(chain(add.call(1, 2), add.then(3), pair.then(4)), Flow[tuple[int, int]])
    assert assert_type(flow.push().result(), tuple[int, int]) == (6, 4)
    members = [chain(add.call(1, 2), add.then(3)), fetch.call("b")]
    both = assert_type(group([*members, broken.call()], gather.then()), Flow[list[Page | int]])
    assert assert_type(both.push(), Job[list[Page | int]]).state() == "dead"
    assert group(members, gather.then()).push().result() == [6, Page("b")]
    assert assert_type(chain(both, pair.then(1)), Flow[tuple[int, int]]).push().state() == "dead"
    assert assert_type(chain(add.call(1, 2)), Step[int]).push().result() == 3


def test_a_type_below_the_function_is_found_when_a_result_is_asked_for() -> None:
    assert assert_type(later.push().result(), Defined) == Defined(1)


def test_a_result_of_another_type_says_what_it_was_to_be_and_how_to_get_it() -> None:
    job = wrong.push()
    said = f"Page, as wrong says it returns; that of job {job.id} is not: Expected `object`, got `str`"
    told = rf"{said}.*type=Any"
    with pytest.raises(Invalid, match=told):
        job.result()
    with pytest.raises(Invalid, match=told):
        list(job.updates())
    assert job.result(type=Any) == "no page"
    assert job.result(type=str) == "no page"
    with pytest.raises(Invalid, match=rf"of type int; that of {job.id} is not: Expected `int`, got `str`"):
        job.result(type=int)
    with pytest.raises(Invalid, match=r"of type list\[int\]; that of"):
        job.result(type=list[int])
    with pytest.raises(Invalid, match="of type int"):
        list(job.updates(type=int))
    assert job.state() == "completed"


def test_what_failed_or_returns_nothing_has_no_result_to_convert() -> None:
    with pytest.raises(Failed):
        broken.push().result()
    (update,) = broken.push().updates()
    assert (update.state, update.result) == ("dead", None)
    assert nothing.push().result() is None
