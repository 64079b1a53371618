"""Pushes that are sent in the background, from a buffer in memory."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest

from forebay import testing
from forebay.client import later
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.app import App
from forebay.core.errors import Busy, Invalid
from tests.client.conftest import Dial
from tests.client.proxy import Do, Proxy, first
from tests.serving import PATIENCE_S, Server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits as long as a test does: a machine may be busy."""
    monkeypatch.setattr(later, "FLUSH_S", PATIENCE_S)


def log(client: SyncClient, queue: str) -> list[Any]:
    return [each.payload for each in client.records(queue)]


def test_what_was_buffered_while_the_server_was_away_is_pushed_when_it_is_back(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    proxy.refuses = True
    client = dial(proxy.address)
    for number in range(5):
        assert client.push_later(queue, number, priority=number % 2) is None
    proxy.refuses = False
    client.close()
    assert sorted(log(direct, queue)) == [0, 1, 2, 3, 4]


def test_what_is_buffered_is_pushed_without_anybody_closing_the_client(
    dial: Dial, direct: SyncClient, server: Server, queue: str
) -> None:
    direct.configure(queue)
    dial(server.tcp).push_later(queue, "soon")
    assert direct.pop(queue, wait_ms=int(PATIENCE_S * 1000)).payloads == ["soon"]


@pytest.mark.parametrize("lost", ["on_answer", "on_request"])
def test_what_is_sent_again_is_there_once(
    lost: str, dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    client = dial(proxy.address)
    setattr(proxy, lost, first(Do.CUT, Do.CUT, Do.CUT))
    for number in range(10):
        client.push_later(queue, number)
    client.close()
    assert log(direct, queue) == list(range(10))


def test_a_full_buffer_refuses_and_says_why(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "BUFFER_MAX", 3)
    proxy.refuses = True
    client = dial(proxy.address)
    for number in range(3):
        client.push_later(queue, number)
    with pytest.raises(Busy, match="3 pushes wait to be sent"):
        client.push_later(queue, 3)
    proxy.refuses = False
    client.close()
    assert log(direct, queue) == [0, 1, 2]


def test_a_buffer_is_full_of_bytes_too(
    dial: Dial, proxy: Proxy, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "BUFFER_BYTES_MAX", 10)
    proxy.refuses = True
    client = dial(proxy.address)
    client.push_later(queue, "12345678")
    with pytest.raises(Busy):
        client.push_later(queue, 1)
    with pytest.raises(Invalid, match="payload must be at most 10 bytes"):
        client.push_later(queue, "123456789")
    proxy.refuses = False
    client.close()


def test_closing_says_how_many_were_lost(
    dial: Dial,
    proxy: Proxy,
    direct: SyncClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(later, "FLUSH_S", 0.0)
    proxy.refuses = True
    client = dial(proxy.address)
    for number in range(4):
        client.push_later(queue, number)
    with caplog.at_level(logging.WARNING, "forebay.client"):
        client.close()
    assert any(each.getMessage().startswith("4 pushes that were to be") for each in caplog.records)
    proxy.refuses = False
    with pytest.raises(Exception, match="closed"):
        client.push_later(queue, 4)


def test_a_push_that_the_server_refuses_is_logged_and_takes_no_other_along(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuses = True
    client = dial(proxy.address)
    for number in range(7):
        client.push_later(queue, number, priority=10**15 if number == 3 else 0)
    proxy.refuses = False
    with caplog.at_level(logging.ERROR, "forebay.client"):
        client.close()
    assert sorted(log(direct, queue)) == [0, 1, 2, 4, 5, 6]
    assert [each.levelname for each in caplog.records if "is refused" in each.getMessage()] == ["ERROR"]


def test_many_refused_pushes_are_few_lines_of_the_log(
    dial: Dial,
    proxy: Proxy,
    direct: SyncClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(later, "REFUSED_S", 10 * PATIENCE_S)
    proxy.refuses = True
    client = dial(proxy.address)
    for number in range(50):
        client.push_later(queue, number, priority=10**15 if number % 2 else 0)
    proxy.refuses = False
    with caplog.at_level(logging.ERROR, "forebay.client"):
        client.close()
    assert log(direct, queue) == list(range(0, 50, 2))
    first, rest = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert first.startswith(f"a push to {queue} that was to be sent later is refused: priority must be")
    assert rest.startswith(f"24 pushes that were to be sent later are refused, the last one to {queue}: ")


def test_refused_pushes_are_told_without_anything_else_happening(
    server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came too soon for a line of their own are waited for by the thread."""
    monkeypatch.setattr(later, "REFUSED_S", 0.05)
    told: list[int] = []
    over = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            told.append(1 if message.startswith("a push") else int(message.split()[0]))
            if sum(told) == 5:
                over.set()

    handler = Told()
    logging.getLogger("forebay.client").addHandler(handler)
    try:
        client = SyncClient(server.tcp)
        for _ in range(5):
            client.push_later(queue, 1, priority=10**15)
        assert over.wait(PATIENCE_S)
        client.close()
    finally:
        logging.getLogger("forebay.client").removeHandler(handler)


def test_what_can_be_known_to_be_wrong_is_refused_at_once(dial: Dial, server: Server, queue: str) -> None:
    client = dial(server.tcp)
    with pytest.raises(Invalid):
        client.push_later(queue, 1, no_such_option=1)
    with pytest.raises(Invalid):
        client.push_later(queue, object())
    with pytest.raises(Invalid):
        client.push_later(queue, 1, headers={"a": object()})


def test_options_are_those_of_the_moment_when_they_are_given(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    proxy.refuses = True
    client = dial(proxy.address)
    tags, headers = ["before"], {"is": "before"}
    client.push_later(queue, 1, tags=tags, headers=headers)
    tags[0] = headers["is"] = "after"
    proxy.refuses = False
    client.close()
    (record,) = direct.records(queue)
    assert (record.tags, record.headers) == (("before",), {"is": "before"})


def test_pushes_with_a_key_and_to_other_queues_find_their_way(
    dial: Dial, proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    proxy.refuses = True
    client = dial(proxy.address)
    client.push_later(queue, 1)
    client.push_later(queue, 2, idempotency_key="mine")
    client.push_later(queue, 2, idempotency_key="mine")
    client.push_later(f"{queue}-other", 3)
    client.push_later(queue, 4)
    proxy.refuses = False
    client.close()
    assert (log(direct, queue), log(direct, f"{queue}-other")) == ([1, 2, 4], [3])


def test_a_task_is_pushed_later_from_threads_and_coroutines(
    proxy: Proxy, direct: SyncClient, queue: str
) -> None:
    app = App("later", server=proxy.address, queue=queue)

    @app.task
    def send(to: str) -> None: ...

    proxy.refuses = True
    send.push_later("thread")
    send.options(priority=3).push_later("options")
    proxy.refuses = False
    app.close()
    assert [each["args"] for each in log(direct, queue)] == [["thread"], ["options"]]

    async def life() -> None:
        send.push_later("coroutine")
        await app.aclose()

    asyncio.run(life())
    assert log(direct, queue)[-1] == {"task": "send", "args": ["coroutine"]}


def test_a_program_that_just_ends_sends_what_it_buffered(
    server: Server, direct: SyncClient, queue: str
) -> None:
    program = f"import forebay; forebay.SyncClient({server.tcp!r}).push_later({queue!r}, 'last')"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ, timeout=PATIENCE_S)
    assert log(direct, queue) == ["last"]


def test_at_the_end_all_buffers_of_a_program_share_the_time_of_one(
    proxy: Proxy, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Watched(later.Later):
        def flush(self, within_s: float) -> int:
            waited.append(within_s)
            return super().flush(within_s)

    monkeypatch.setattr(later, "FLUSH_S", 0.2)
    monkeypatch.setattr(later, "_all", weakref.WeakSet())
    proxy.refuses = True
    buffers = [Watched(proxy.address, PATIENCE_S) for _ in range(2)]
    for each in buffers:
        each.add(queue, b"1", {})
    later.close_all()
    assert 0 < waited[0] <= 0.2
    assert waited[1:] == [0.0]


FORKED = """
import multiprocessing, threading
import forebay

client = forebay.SyncClient({server!r})
app = forebay.App("forked", server={server!r}, queue={queue!r})

@app.task
def send(to): ...

def child():
    client.push_later({queue!r}, "child")
    send.push_later("task")

client.push_later({queue!r}, "parent")
later = client._pusher.later
assert later.flush({patience}) == 0
held, done = threading.Event(), threading.Event()

def hold():
    with later._changed, app._lock:
        held.set()
        done.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
done.set()
holder.join()
process.join()
assert process.exitcode == 0
"""


def test_a_forked_child_sends_what_it_buffered_whatever_its_parent_held(
    server: Server, direct: SyncClient, queue: str
) -> None:
    program = FORKED.format(server=server.tcp, queue=queue, patience=PATIENCE_S)
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ, timeout=PATIENCE_S)
    found = log(direct, queue)
    assert sorted(map(str, found)) == sorted(["child", "parent", str({"task": "send", "args": ["task"]})])


def test_a_full_queue_does_not_hold_up_pushes_to_others(
    dial: Dial, direct: SyncClient, server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "BUFFER_MAX", 3)
    monkeypatch.setattr(later, "BUSY_S_MAX", 0.0)
    full, free = f"{queue}-full", f"{queue}-free"
    direct.configure(full, max_size=1)
    direct.configure(free)
    direct.push(full, "first")
    client = dial(server.tcp)
    client.push_later(full, "second")
    for number in range(8):
        client.push_later(free, number)
        popped = direct.pop(free, wait_ms=int(PATIENCE_S * 1000))
        assert popped.payloads == [number]
        direct.ack(popped)
    client.push_later(full, "third")
    client.push_later(full, "fourth")
    with pytest.raises(Busy, match=r"3 pushes wait.*is full"):
        client.push_later(full, "fifth")
    client.push_later(free, "still")
    assert direct.pop(free, wait_ms=int(PATIENCE_S * 1000)).payloads == ["still"]
    for text in ("first", "second", "third", "fourth"):
        popped = direct.pop(full, wait_ms=int(PATIENCE_S * 1000))
        assert popped.payloads == [text]
        direct.ack(popped)


def test_a_push_that_breaks_the_sender_is_logged_and_other_queues_go_on(
    direct: SyncClient,
    server: Server,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    direct.configure(queue)
    buffer = later.Later(server.tcp, PATIENCE_S)
    buffer.add(f"{queue}-broken", b"1", {"no_such_option": 1})
    with caplog.at_level(logging.WARNING, "forebay.client"):
        for number in range(3):
            buffer.add(queue, str(number).encode(), {})
            popped = direct.pop(queue, wait_ms=int(PATIENCE_S * 1000))
            assert popped.payloads == [number]
            direct.ack(popped)
        monkeypatch.setattr(later, "FLUSH_S", 0.0)
        buffer.close()
    told = [each.getMessage() for each in caplog.records]
    assert told.count("pushes that are to be sent later can't be") == 1
    assert told[-1].startswith("1 pushes that were to be sent later are lost: ")


@pytest.mark.parametrize("server", ["http://", "http://queue.example:99999", "ftp://queue.example"])
def test_an_address_that_can_be_none_is_refused_at_once(server: str) -> None:
    app = App("later", server=server)

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(Invalid, match="server"):
        send.push_later("ada")


def test_inline_a_task_that_is_pushed_later_runs_at_once() -> None:
    app = App("inline")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with testing.inline(app) as ran:
        double.push_later(2)
        assert [each.result for each in ran] == [4]
