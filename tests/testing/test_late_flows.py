"""Flows whose jobs end, or are requeued, long after the first of them ended."""

import pytest

import forebay
from forebay.core.delivery import notes
from forebay.testing import Server

ONCE = forebay.Retry(max_attempts=1)


class Flow:
    """A group of two jobs in queues of their own, and a callback: each may be made to fail."""

    def __init__(self, on_failed: str = "fail") -> None:
        self.app = forebay.App("late")
        self.broken: set[str] = set()
        self.got: list[list[int | None]] = []

        @self.app.task(queue="first", retry=ONCE)
        def first(n: int | None) -> int | None:
            return self.tried("first", n)

        @self.app.task(queue="second", retry=ONCE)
        def second(n: int) -> int | None:
            return self.tried("second", n)

        @self.app.task(queue="callback", retry=ONCE)
        def callback(results: list[int | None]) -> int:
            self.got.append(results)
            self.tried("callback", 0)
            return sum(each or 0 for each in results)

        self.first, self.second, self.callback = first, second, callback
        self.on_failed = on_failed

    def tried(self, name: str, n: int | None) -> int | None:
        if name in self.broken:
            raise OSError(f"{name} is down")
        return n

    def push(self, n: int | None = 3) -> forebay.Job[int]:
        calls = [self.second.call(4), self.first.call(n)]
        return forebay.group(calls, self.callback.then(), on_failed=self.on_failed).push()


@pytest.mark.parametrize("broken", ["first", "second", "callback"])
def test_a_flow_that_is_requeued_hours_later_has_all_results_in_their_order(broken: str) -> None:
    flow = Flow()
    with Server(flow.app) as server:
        flow.broken.add(broken)
        job = flow.push()
        server.work(flow.app)
        server.jump(hours=2)
        flow.broken.clear()
        server.client().requeue_dead(broken)
        server.work(flow.app)
        assert flow.got[-1] == [4, 3]
        assert job.result() == 7


def test_a_result_that_is_none_is_a_result_as_long_as_others() -> None:
    flow = Flow()
    with Server(flow.app) as server:
        flow.broken.add("callback")
        flow.push(None)
        server.work(flow.app)
        server.jump(hours=2)
        flow.broken.clear()
        server.client().requeue_dead("callback")
        server.work(flow.app)
        assert flow.got == [[4, None], [4, None]]


def test_a_job_that_takes_a_result_which_is_gone_fails_and_says_so() -> None:
    flow = Flow()
    with Server(flow.app) as server:
        flow.broken.add("callback")
        job = flow.push()
        server.work(flow.app)
        server.jump(hours=24 * 8)
        flow.broken.clear()
        server.client().requeue_dead("callback")
        server.work(flow.app)
        assert len(flow.got) == 1
        with pytest.raises(forebay.Failed, match="which it takes, is kept no longer"):
            job.result()


def test_a_callback_that_is_requeued_after_a_weekend_has_its_results() -> None:
    flow = Flow()
    with Server(flow.app) as server:
        flow.broken.add("callback")
        job = flow.push()
        server.work(flow.app)
        server.jump(hours=65)
        flow.broken.clear()
        server.client().requeue_dead("callback")
        server.work(flow.app)
        assert job.result() == 7


def test_with_ignored_failures_none_stands_for_what_did_not_complete() -> None:
    flow = Flow(on_failed="ignore")
    with Server(flow.app) as server:
        flow.broken.add("second")
        job = flow.push()
        server.work(flow.app)
        assert flow.got == [[None, 3]]
        assert job.result() == 3


def test_a_flow_with_more_results_than_are_kept_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "AWAITED_BYTES_MAX", 64_000)
    app = forebay.App("large")
    got: list[object] = []

    @app.task
    def blob(n: int) -> str:
        return "x" * 1_000

    @app.task(retry=ONCE)
    def sizes(results: list[object]) -> None:
        got.append(results)

    with Server(app) as server:
        job = forebay.group([blob.call(n) for n in range(70)], sizes.then()).push()
        server.work(app)
        assert got == []
        with pytest.raises(forebay.Failed, match="which it takes, is kept no longer"):
            job.result()
