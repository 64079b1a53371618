"""What no client can do: freeze others, fill the memory, keep the server from stopping."""

import threading
from itertools import islice

import pytest
from hypothesis import given, strategies as st

from forebay.core.errors import Invalid
from forebay.server.tcp.connection import TcpLimits
from forebay.wire.framing import Frames
from forebay.wire.text import check_depth
from tests.server.talking import invalid
from tests.server.test_framing import LIMIT, cut, expected, plain, stream
from tests.server.test_fuzz import FRAME_BYTES_MAX, Client, House, Sender, answers_due
from tests.serving import Raw, Server, packed, pop, push, wait_for_pop

uneven = st.lists(st.sampled_from([b"", b"a", b"x" * LIMIT, b"y" * (LIMIT + 1)]), max_size=12)


@given(uneven, st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 3))
def test_stopping_early_loses_nothing_however_the_stream_is_cut(
    wanted: list[bytes], places: list[int], stop: int
) -> None:
    frames = Frames(LIMIT)
    found: list[bytes | int] = []
    for chunk in cut(stream(wanted), places):
        frames.feed(chunk)
        turn = iter(frames)
        found += [plain(each) for each in islice(turn, stop)]
        turn.close()
    found += [plain(each) for each in frames]
    assert found == expected(wanted)


@pytest.mark.parametrize("turn_max", [1, 2, 3])
def test_every_frame_is_answered_however_short_a_turn_is(turn_max: int) -> None:
    sender = Sender(seed=3)
    house = House()
    house.server.limits = TcpLimits(frame_bytes_max=FRAME_BYTES_MAX, turn_max=turn_max)
    for _ in range(1_000):
        client = Client(house)
        sent = sender.stream()
        answers = client.say(*sender.chunks(sent))
        assert (len(answers), client.closed) == answers_due(sent)
        client.leave()


def test_a_server_that_is_told_to_stop_does_not_wait_for_a_client_that_does_not_read(queue: str) -> None:
    with Server() as server, server.connect() as client, server.connect() as idle:
        push(client, queue, "x" * 1_000_000)
        client.send(packed(*[{"cmd": "READ", "queue": queue, "offset": 0}] * 50))
        idle.ask({"cmd": "STATS"})
        server.terminate()
        assert server.wait() == 0


def test_a_client_that_sends_nothing_more_and_never_reads_is_closed(queue: str) -> None:
    with Server("--stall-ms", "200") as server, server.connect() as idle, server.connect() as client:
        push(client, queue, "x" * 1_000_000)
        client.send(packed(*[{"cmd": "READ", "queue": queue, "offset": 0}] * 50))
        client.half_close()
        assert idle.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 2_200})["messages"] == []
        assert len(client.drain()) < 50


def test_a_client_that_always_has_a_frame_under_way_is_not_closed() -> None:
    house = House()
    client = Client(house)
    one = packed({"cmd": "STATS"})
    half = len(one) // 2
    client.say(one[:half])
    for second in range(1, 1_000):
        house.loop._time = float(second)
        assert len(client.say(one[half:] + one[:half])) == 1
        client._connection.check_stall(house.loop.time())
        assert not client.closed, second


def test_strings_around_every_level_do_not_hide_the_nesting() -> None:
    payload = "1"
    for _ in range(300):
        payload = f'["]",{payload},"["]'
    with pytest.raises(Invalid):
        check_depth(f'{{"payload":{payload}}}'.encode(), 1, len(payload))


def test_a_long_string_with_brackets_costs_little_memory() -> None:
    with Server() as server, server.connect() as client:
        long = {"cmd": "PUSH", "queue": "q", "payload": "x" * 20_000_000 + "[[["}
        assert client.ask(long)["error"]["code"] == "invalid"
        with open(f"/proc/{server.pid}/status") as status:
            (line,) = [line for line in status if line.startswith("VmHWM")]
        assert int(line.split()[1]) < 400_000


def test_answers_behind_a_waiting_pop_do_not_fill_the_memory(queue: str) -> None:
    with Server() as server, server.connect() as client, server.connect() as other:
        push(other, queue, "x" * 1_000_000)
        before = server.rss_bytes()
        client.send({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 2_000})
        client.send(packed(*[{"cmd": "READ", "queue": queue, "offset": 0}] * 600))
        other.ask({"cmd": "POP", "queue": f"{queue}.never", "wait_ms": 800})
        assert server.rss_bytes() < before + (200 << 20)
        assert client.receive()["messages"] == []
        for _ in range(600):
            assert client.receive()["ok"]


def test_a_client_that_left_with_10000_waiting_pops_takes_no_message(queue: str) -> None:
    with Server() as server, server.connect() as other:
        with server.connect() as client:
            client.send(
                packed(
                    *[{"cmd": "POP", "queue": queue, "wait_ms": 60_000, "reqId": n} for n in range(10_000)]
                )
            )
            other.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 500})
        other.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 500})
        push(other, queue, "kept")
        assert pop(other, queue)["payload"] == "kept"


def test_an_unknown_field_of_an_item_is_refused_and_the_known_ones_are_listed() -> None:
    items = [{"payload": 1}, {"payload": 1, "colour": 1}]
    assert invalid("PUSH", queue="q", items=items) == (
        "items[1].colour",
        "left out; known here are priority, delay_ms, ttl_ms, timeout_ms, max_attempts, backoff, lifo,"
        " headers, tags, task, partition, key, unique_key, dedup, dedup_window_ms, dedup_max_ms, job_id,"
        " transaction_id, depends_on, on_failed, keys_if_undelivered, payload",
    )


def test_a_stream_that_breaks_while_a_pop_waits_is_closed(client: Raw, queue: str) -> None:
    wait_for_pop(client, queue, wait_ms=600_000)
    client.send(b"\xff\xff\xff\xff")
    client.drain()


def test_the_error_of_a_broken_stream_comes_after_the_answers_before_it(client: Raw, queue: str) -> None:
    client.send({"cmd": "POP", "queue": queue, "wait_ms": 50}, b"\xff\xff\xff\xff")
    assert client.receive() == {"ok": True, "lease": None, "messages": []}
    assert client.receive()["error"]["code"] == "invalid"
    assert client.eof()


def test_a_pop_that_does_not_say_how_long_does_not_wait(client: Raw, queue: str) -> None:
    client.send({"cmd": "POP", "queue": queue, "reqId": "first"}, {"cmd": "STATS", "reqId": "second"})
    assert client.receive() == {"reqId": "first", "ok": True, "lease": None, "messages": []}
    assert client.receive()["reqId"] == "second"


def test_a_server_that_is_told_to_stop_stops_under_load(queue: str) -> None:
    with Server() as server, server.connect() as client:
        stop = threading.Event()
        requests = packed(*[{"cmd": "PUSH", "queue": queue, "payload": 1}] * 200)

        def load() -> None:
            while not stop.is_set():
                try:
                    client.socket.sendall(requests)
                    client.socket.recv(1 << 20)
                except OSError:
                    return

        busy = threading.Thread(target=load)
        client.socket.recv(0)
        busy.start()
        try:
            server.terminate()
            assert server.wait() == 0
        finally:
            stop.set()
            client.close()
            busy.join()
