"""Health and figures: what those who watch a server rely on."""

from forebay.server.http.connection import HttpLimits
from forebay.store.base import StoreError
from tests.broker.loop import BEGIN, ObedientStore
from tests.server.http.streaming import Here, ask, get
from tests.serving import pop, push

Figures = dict[str, float]


def figures(here: Here) -> Figures:
    """Every figure by its name and labels, as they are written."""
    status, text = get(here.http, "/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_server_that_runs_is_alive_and_ready() -> None:
    with Here() as here:
        assert get(here.http, "/healthz") == (200, {"status": "ok"})
        assert get(here.http, "/readyz") == (200, {"ready": True})
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(here.http, "POST", path)[0] == 405


def test_a_held_server_answers_with_a_warning() -> None:
    with Here() as here, here.connect() as client:
        assert client.ask({"cmd": "HOLD"})["ok"]
        status, said = get(here.http, "/readyz")
        assert (status, said["ready"]) == (200, True)
        assert "answers questions only" in said["warning"]
        assert client.ask({"cmd": "HOLD", "held": False})["ok"]
        assert get(here.http, "/readyz") == (200, {"ready": True})


def test_a_server_that_can_not_write_is_alive_and_not_ready() -> None:
    store = ObedientStore()
    with Here(store) as here, here.connect() as client:
        store.commit_error = StoreError("no room")
        store.claim_error = StoreError("no room")
        assert client.ask({"cmd": "PUSH", "queue": "q", "payload": 1})["error"]["code"] == "busy"
        status, said = get(here.http, "/readyz")
        assert (status, said["ready"]) == (503, False)
        assert said["why"]
        assert get(here.http, "/healthz") == (200, {"status": "ok"})
        found = figures(here)
        assert (found["forebay_ready"], found["forebay_commit_failures_total"]) == (0, 1)
        assert "forebay_queues" not in found


def oldest(here: Here, queue: str) -> float:
    return figures(here)[f'forebay_queue_oldest_seconds{{queue="{queue}",tenant="default"}}']


def test_the_oldest_is_the_one_that_waits_for_longest_whatever_else_there_is() -> None:
    with Here() as here, here.connect() as client:
        for queue in ("read", "unread"):
            if queue == "read":
                client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})
            client.ask({"cmd": "PUSH", "queue": queue, "payload": 0, "delay_ms": 3_600_000})
            cancelled = client.ask({"cmd": "PUSH", "queue": queue, "payload": 1})["id"]
            assert client.ask({"cmd": "CANCEL", "ids": [cancelled]})["ok"]
            assert oldest(here, queue) == 0
            here.now += 1_000
            client.ask({"cmd": "PUSH", "queue": queue, "payload": 2, "priority": 5})
            here.now += 1_000
            client.ask({"cmd": "PUSH", "queue": queue, "payload": 3})
            here.now += 1_000
            assert oldest(here, queue) == 2
            assert pop(client, queue)["payload"] == 2
            assert oldest(here, queue) == 1


def test_leases_that_run_out_are_counted() -> None:
    with Here() as here, here.connect() as client:
        push(client, "q", 1, 2)
        pop(client, "q")
        here.now += 3_600_000
        pop(client, "q")
        assert figures(here)["forebay_leases_expired_total"] == 1


def test_messages_are_counted_by_queue_and_state() -> None:
    with Here() as here, here.connect() as client:
        push(client, "q", 1, 2, 3)
        pop(client, "q")
        here.now = BEGIN + 5_000
        found = figures(here)
        for state, count in (("waiting", 2), ("active", 1), ("completed", 0)):
            name = f'forebay_queue_messages{{queue="q",state="{state}",tenant="default"}}'
            assert found[name] == count
        assert found['forebay_queue_oldest_seconds{queue="q",tenant="default"}'] == 5
        assert found["forebay_queues"] == found["forebay_leases"] == 1
        assert found['forebay_connections{listener="tcp"}'] == 1
        assert found['forebay_messages_total{kind="pushed",queue="q",tenant="default"}'] == 3


def test_what_was_evicted_is_counted_by_queue() -> None:
    with Here() as here, here.connect() as client:
        client.ask({"cmd": "QUEUE", "queue": "q", "options": {"max_wait_ms": 1_000}})
        push(client, "q", 1, 2)
        here.now = BEGIN + 5_000
        assert client.ask({"cmd": "POP", "queue": "q", "wait_ms": 0})["messages"] == []
        assert figures(here)['forebay_messages_total{kind="evicted",queue="q",tenant="default"}'] == 2


def test_what_retention_takes_is_counted_by_queue() -> None:
    with Here() as here, here.connect() as client:
        client.ask({"cmd": "QUEUE", "queue": "q", "options": {"retention_ms": 60_000}})
        client.ask({"cmd": "QUEUE", "queue": "done", "options": {"completed_retention_ms": 0}})
        push(client, "q", 1, 2, 3)
        push(client, "done", 1, 2)
        client.ask({"cmd": "ACK", "ids": [pop(client, "done")["id"] for _ in range(2)]})
        for _ in range(9):
            here.now += 10_000
            client.ask({"cmd": "POP", "queue": "none", "wait_ms": 0})
        found = figures(here)
        assert found['forebay_messages_total{kind="outdated",queue="q",tenant="default"}'] == 3
        assert found['forebay_messages_total{kind="retired",queue="done",tenant="default"}'] == 2


def test_of_very_many_queues_some_have_figures_and_all_are_counted() -> None:
    with Here(http=HttpLimits(metrics_queues_max=2)) as here, here.connect() as client:
        for number in range(5):
            push(client, f"q{number}", 1)
        client.ask({"cmd": "QUEUE", "queue": "empty", "options": {}})
        found = figures(here)
        told = [name for name in found if name.startswith("forebay_queue_oldest_seconds")]
        assert len(told) == 3
        waiting = [name for name in found if 'state="waiting"' in name]
        assert sum(found[name] for name in waiting) == 5
        assert found["forebay_queues"] == 6
