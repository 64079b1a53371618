"""Tasks inline: a push runs them here, as a worker would."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import pytest
from msgspec import Struct

from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain, group
from forebay.client.tasks.task import Failed, GiveUp
from forebay.client.worker.run import Run, current
from forebay.core.errors import Unsupported
from forebay.testing.inline_tasks import inline
from forebay.testing.server import Server


class User(Struct):
    name: str
    age: int = 0


@pytest.fixture
def app() -> App:
    return App("tests")


def test_a_push_runs_the_task_at_once_and_its_result_is_there(app: App) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with inline(app) as ran:
        job = add.push(1, b=2)
        assert job.result() == 3
        assert job.state() == "completed"
    assert [(each.task, each.args, each.kwargs, each.result) for each in ran] == [(add, (1,), {"b": 2}, 3)]


def test_arguments_and_results_go_through_json_and_become_what_the_function_takes(app: App) -> None:
    got: list[Any] = []

    @app.task
    def greet(user: User, times: tuple[int, ...]) -> User:
        got.extend([user, times])
        return user

    with inline(app):
        job = greet.push(User("ada"), (1, 2))
    assert got == [User("ada"), (1, 2)]
    with inline(app):
        job = greet.push(User("ada"), (1,))
        assert job.result() == User("ada")
        assert job.result(type=Any) == {"name": "ada", "age": 0}
        assert greet.job(job.id).result() == User("ada")
        assert app.job(job.id).result() == {"name": "ada", "age": 0}


def test_arguments_that_the_function_does_not_take_are_given_up_at_once(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    with inline(app, retries=True) as ran, pytest.raises(GiveUp, match="no arguments of double"):
        double.push(cast(int, "two"))
    assert ran[0].attempts == 1


def test_a_function_runs_in_the_thread_that_pushes_it(app: App) -> None:
    @app.task
    def where() -> int:
        return threading.get_ident()

    with inline(app):
        assert where.push().result() == threading.get_ident()


def test_a_coroutine_is_run_by_a_push_and_by_an_apush_with_or_without_a_loop(app: App) -> None:
    @app.task
    async def twice(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @app.task
    def half(n: int) -> int:
        return n // 2

    async def ask() -> list[int]:
        jobs = [await twice.apush(2), twice.push(3), await half.apush(8), half.push(10)]
        return [await each.aresult() for each in jobs]

    with inline(app):
        assert twice.push(1).result() == 2
        assert asyncio.run(ask()) == [4, 6, 4, 5]


def test_errors_come_out_of_the_push(app: App) -> None:
    @app.task
    def broken() -> None:
        raise KeyError("ada")

    with inline(app) as ran, pytest.raises(KeyError, match="ada"):
        broken.push()
    assert isinstance(ran[0].error, KeyError)


def test_errors_are_collected_if_that_is_wanted(app: App) -> None:
    @app.task
    def broken() -> None:
        raise KeyError("ada")

    with inline(app, raises=False) as ran:
        job = broken.push()
        with pytest.raises(Failed, match="KeyError: 'ada'"):
            job.result()
        assert job.state() == "dead"
    assert isinstance(ran[0].error, KeyError)
    assert ran[0].attempts == 1


def test_a_task_that_fails_is_tried_again_at_once_if_that_is_wanted(app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=4)
    def flaky() -> str:
        attempts.append(current().attempt)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "done"

    with inline(app, retries=True) as ran:
        assert flaky.push().result() == "done"
    assert attempts == [1, 2, 3]
    assert ran[0].attempts == 3


def test_retries_end_with_max_attempts_and_with_giving_up(app: App) -> None:
    ran: list[str] = []

    @app.task(retry=2)
    def broken() -> None:
        ran.append("broken")
        raise OSError("never")

    @app.task(give_up_on=[LookupError])
    def hopeless() -> None:
        ran.append("hopeless")
        raise LookupError("gone")

    @app.task
    def told() -> None:
        ran.append("told")
        raise GiveUp("no")

    with inline(app, retries=True, raises=False):
        for task in (broken, hopeless, told):
            task.push()
    assert ran == ["broken", "broken", "hopeless", "told"]


def test_a_chain_hands_results_on_and_a_group_gathers_them(app: App) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async def pushed() -> Any:
        return await (await group([add.call(n, n) for n in (1, 2)], total.then()).apush()).aresult()

    with inline(app) as ran:
        assert chain(add.call(1, 2), add.then(10), add.then(100)).push().result() == 113
        parts = [add.call(1, 1), chain(add.call(1, 2), add.then(3))]
        assert group(parts, total.then()).push().result() == 8
        assert asyncio.run(pushed()) == 6
    ran.assert_ran(total, [2, 6])


def test_what_waits_for_a_job_that_failed_does_not_run_unless_it_ignores_that(app: App) -> None:
    @app.task
    def broken() -> None:
        raise OSError("no")

    @app.task
    def gather(results: list[Any]) -> list[Any]:
        return results

    @app.task
    def fine() -> int:
        return 1

    calls = [broken.call(), fine.call()]
    with inline(app, raises=False) as ran:
        with pytest.raises(Failed, match="failed"):
            group(calls, gather.then()).push().result()
        ran.assert_not_ran(gather)
        ran.assert_ran(fine)
        assert group(calls, gather.then(), on_failed="ignore").push().result() == [None, 1]


def test_tasks_push_tasks_and_many_are_pushed_at_once(app: App) -> None:
    @app.task
    def leaf(n: int) -> int:
        return n

    @app.task
    def root() -> int:
        return leaf.push(7).result() + 1

    with inline(app) as ran:
        assert root.push().result() == 8
        ids = leaf.push_many([1, 2])
        assert [app.job(id).result() for id in ids] == [1, 2]
        assert asyncio.run(leaf.apush_many([3])) == [ids[-1] + 1]
    assert [each.task.name for each in ran] == ["leaf", "root", "leaf", "leaf", "leaf"]


def test_a_unique_job_that_runs_is_not_run_once_more_by_itself(app: App) -> None:
    @app.task(unique=True)
    def again() -> bool:
        return again.push().pushed.duplicate

    with inline(app):
        assert again.push().result() is True


@pytest.mark.parametrize("is_inline", [True, False])
def test_progress_is_rounded_and_has_the_same_limits_with_a_server_and_without(
    app: App, is_inline: bool
) -> None:
    @app.task(retry=1)
    def count(percent: float) -> None:
        current().progress(percent)

    def told(percent: float, work: Callable[[], object]) -> int | str:
        job = count.push(percent)
        work()
        try:
            job.result()
        except Failed as error:
            return str(error).partition(": ")[2]
        return job.progress().progress

    with ExitStack() as stack:
        if is_inline:
            stack.enter_context(inline(app, raises=False))
            work: Callable[[], object] = list  # nothing to do: it ran when it was pushed
        else:
            work = partial(stack.enter_context(Server(app)).work, app)
        assert [told(each, work) for each in (100 / 3, 0.0, 99.9, 100)] == [33, 0, 100, 100]
        assert told(150, work) == "Invalid: progress must be between 0 and 100"


def test_middleware_hooks_of_pushes_and_progress_work_as_in_a_worker(app: App) -> None:
    around: list[str] = []

    @app.middleware
    async def noted(run: Run, go_on: Callable[[], Awaitable[Any]]) -> Any:
        around.append(f"{run.task.name} {run.attempt}")
        return await go_on()

    @app.before_push
    def tag(call: Any, options: dict[str, Any]) -> None:
        options["tags"] = ["test"]

    @app.task
    def sync() -> tuple[str, ...]:
        current().progress(50, "half")
        return current().message.tags

    @app.task
    async def coro() -> None:
        await current().aprogress(10)

    with inline(app) as ran:
        job = sync.push()
        coro.push()
        assert job.result() == ("test",)
        assert job.progress().progress == 50
    assert around == ["sync 1", "coro 1"]
    assert ran[0].options == {"tags": ["test"]}


def test_a_failed_assertion_shows_what_ran_instead(app: App) -> None:
    @app.task
    def send(to: str, times: int = 1) -> None: ...

    with inline(app) as ran:
        send.push("ada")
        ran.assert_ran(send, "ada")
        ran.assert_ran(send, to="ada", times=1)
        ran.assert_ran(send)
        with pytest.raises(
            AssertionError, match=r"(?s)send\('bob'\) was to run.*send\('ada'\) returned None"
        ):
            ran.assert_ran(send, "bob")


def test_what_needs_a_server_says_so_and_behind_the_block_all_is_as_before(app: App) -> None:
    backend = app.backend
    with inline(app), pytest.raises(Unsupported, match="Server"):
        app.client.pop("tests")
    assert app.backend is backend
    assert not app._clients
