"""What no HTTP client can do: freeze others, take messages along, fill the memory, keep a server running."""

import gzip
import resource
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.server.http.raw import (
    LINES,
    Http,
    chunk,
    counts,
    is_refused,
    messages,
    open_files,
    pop,
    popped,
    push,
    request,
    size,
    streaming,
    wait_until,
)
from tests.serving import Server

STALL = ("--stall-ms", "300")
"""Servers that are patient for no more than a third of a second; they look every second."""
MEMORY_BYTES = 150 << 20


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server) as connection:
        yield connection


@pytest.fixture
def helper(server: Server) -> Iterator[Http]:
    """A second connection, which the server knows of."""
    with Http(server) as connection:
        connection.good("GET", "/v1/stats")
        yield connection


# Many at once.


def test_2000_idle_and_200_busy_connections_are_served_at_once(queue: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 5_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have no more than {hard} files open here")
    if soft < wanted:  # the server takes it over from this process
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        with ExitStack() as stack:
            server = stack.enter_context(Server("--store", "memory:"))
            first = stack.enter_context(Http(server))
            first.good("GET", "/v1/stats")
            before = server.rss_bytes()
            idle = [stack.enter_context(Http(server)) for _ in range(2_000)]
            for each in idle[::100]:
                each.good("GET", "/v1/stats")
            busy = [stack.enter_context(Http(server)) for _ in range(200)]
            for number in range(5):
                for at, each in enumerate(busy):
                    each.send(request("POST", messages(queue), {"payload": [number, at]}))
                assert [each.answer().status for each in busy] == [200] * 200
                for each in busy:
                    each.send(request("POST", pop(queue), {"wait_ms": 5_000}))
                found = [each.answer().json["messages"][0] for each in busy]
                assert sorted(each["payload"] for each in found) == [[number, at] for at in range(200)]
                for each, message in zip(busy, found, strict=True):
                    each.send(request("POST", "/v1/ack", {"lease": message["lease"]}))
                assert [each.answer().json["count"] for each in busy] == [1] * 200
            assert open_files(server.pid) > 2_200
            assert idle[-1].good("GET", "/v1/stats")["counts"]["completed"] == 1_000
            assert server.rss_bytes() - before < 60 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_over_the_limit_is_told_so_and_the_others_go_on() -> None:
    with Server("--connections-max", "2") as server, Http(server) as first, Http(server) as second:
        first.good("GET", "/v1/stats")
        second.good("GET", "/v1/stats")
        with Http(server) as third:
            answer = third.answer()
            assert is_refused(answer, 503, "busy")
            assert answer.headers["retry-after"] == "1"
            assert third.eof()
        first.good("GET", "/v1/stats")
        second.reset()
        while True:
            with Http(server) as again:
                again.send(request("GET", "/v1/stats"))
                if again.answer().status == 200:
                    break


# Pipelining, and how connections go on or end.


def test_pipelined_requests_are_answered_in_order_though_the_first_waits(
    http: Http, helper: Http, queue: str
) -> None:
    http.send(
        request("POST", pop(queue), {"wait_ms": 30_000}),
        *[request("POST", messages(f"{queue}.2"), {"payload": at}) for at in range(100)],
        request("GET", "/nothing"),
    )
    push(helper, queue, "first")
    assert http.answer().json["messages"][0]["payload"] == "first"
    ids = [http.answer().json["id"] for _ in range(100)]
    assert ids == list(range(ids[0], ids[0] + 100))
    assert http.answer().status == 404


def test_ten_thousand_pipelined_requests_are_answered_and_take_little_memory() -> None:
    with Server("--store", "memory:") as server, Http(server) as client, Http(server) as other:
        other.good("GET", "/v1/stats")
        before = server.rss_bytes()
        sent = threading.Thread(target=client.send, args=(request("GET", "/v1/stats") * 10_000,))
        sent.start()
        for at in range(10_000):
            assert client.answer().status == 200
            if at in (100, 5_000):
                assert server.rss_bytes() - before < 20 << 20
        sent.join()


def test_a_broken_request_is_refused_behind_the_answers_to_those_before_it(http: Http, queue: str) -> None:
    http.send(request("POST", messages(queue), {"payload": 1}) * 3, b"\x00\x01garbage\r\n\r\n")
    assert [http.answer().status for _ in range(3)] == [200] * 3
    assert is_refused(http.answer(), 400)
    assert http.eof()


def test_a_broken_request_behind_a_waiting_pop_does_not_take_its_answer(
    http: Http, helper: Http, queue: str
) -> None:
    http.send(request("POST", pop(queue), {"wait_ms": 30_000}), b"BROKEN\r\n\r\n")
    push(helper, queue, "kept")
    assert http.answer().json["messages"][0]["payload"] == "kept"
    assert is_refused(http.answer(), 400)
    assert http.eof()


def test_a_broken_body_is_refused_at_once_and_pushes_nothing(http: Http, helper: Http, queue: str) -> None:
    head = request("POST", messages(queue), b"", transfer_encoding="chunked")
    http.send(head, chunk(b'{"payload":'), b"nonsense\r\n")
    assert is_refused(http.answer(), 400)
    assert http.eof()
    assert size(helper, queue) == 0


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"GET http://host HTTP/1.1\r\n\r\n",
        b"CONNECT host:80 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/ack HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/ack HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/ack HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/ack HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nA: b\nC: d\r\r\n\r\n",
    ],
    ids=repr,
)
def test_what_is_not_http_is_refused_in_json(http: Http, broken: bytes) -> None:
    http.send(broken)
    assert is_refused(http.answer(), 400)
    assert http.eof()


def test_a_connection_is_kept_for_further_requests_unless_it_is_asked_to_close(http: Http) -> None:
    assert http.call("GET", "/v1/stats").headers.get("connection") is None
    assert http.call("GET", "/v1/stats", connection="keep-alive").status == 200
    assert http.call("GET", "/v1/stats", connection="close").headers["connection"] == "close"
    assert http.eof()


def test_http_1_0_is_answered_and_closed(http: Http) -> None:
    http.send(b"GET /v1/stats HTTP/1.0\r\n\r\n")
    assert http.answer().status == 200
    assert http.eof()


def test_a_body_is_asked_for_if_the_client_waits_for_that(http: Http, queue: str) -> None:
    body = b'{"payload": 1}'
    http.send(request("POST", messages(queue), expect="100-continue", content_length=str(len(body))))
    assert http.answer().status == 100
    http.send(body)
    assert http.answer().status == 200


def test_who_waits_to_be_asked_for_a_body_and_sends_a_broken_one_is_refused(http: Http, queue: str) -> None:
    head = request("POST", messages(queue), b"", expect="100-continue", transfer_encoding="chunked")
    http.send(head, b"broken\r\n")
    answer = http.answer()
    assert is_refused(http.answer() if answer.status == 100 else answer, 400)
    assert http.eof()


def test_a_body_that_says_it_is_too_large_is_not_asked_for(queue: str) -> None:
    with Server("--frame-bytes-max", "1000") as server, Http(server) as client:
        client.send(request("POST", messages(queue), expect="100-continue", content_length="1001"))
        assert is_refused(client.answer(), 413)


@pytest.mark.parametrize("upgrade", ["websocket", "nonsense", "TLS/1.2", "h2c"])
@pytest.mark.parametrize("pieces", [1, 2, 1_000])
def test_an_offer_to_speak_another_protocol_is_passed_over_and_the_body_is_not(
    http: Http, queue: str, upgrade: str, pieces: int
) -> None:
    push(http, queue, 1)
    how = {"connection": "Upgrade, HTTP2-Settings", "http2_settings": "AAEAAEAAAAIAAAAB", "upgrade": upgrade}
    drain = request("POST", f"/v1/queues/{queue}/drain", {"dry_run": True}, **how)
    size = len(drain) // pieces + 1
    for at in range(0, len(drain), size):
        http.send(drain[at : at + size])
    assert http.answer().json == {"count": 1, "dry_run": True, "more": False}
    http.send(drain + drain)
    assert [http.answer().json["dry_run"] for _ in range(2)] == [True, True]
    assert len(popped(http, queue)) == 1


def test_what_follows_an_offer_in_another_protocol_is_refused(http: Http) -> None:
    how = {
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": "bm9uc2Vuc2Vub25zZW5zZQ==",
    }
    http.send(request("GET", "/v1/stats", connection="Upgrade", **how), b"\x81\x85" + b"x" * 1_000)
    assert [http.answer().status, http.answer().status] == [200, 400]
    assert http.eof()


def test_a_tunnel_is_refused(http: Http) -> None:
    http.send(b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert http.answer().status == 400
    assert http.eof()


# Clients that are slow.


def test_an_offer_to_speak_http_2_is_passed_over_and_the_connection_goes_on(http: Http, queue: str) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "http2_settings": "AAEAAEAAAAIAAAAB", "upgrade": "h2c"}
    for number in range(2):
        answer = http.call("POST", messages(queue), {"payload": f"\r\nupgrade: h2c\r\n{number}"}, **offer)
        assert answer.status == 200, answer
    assert [each["payload"][-1] for each in popped(http, queue, count=5)] == ["0", "1"]


def test_a_client_that_does_not_read_is_cut_and_others_are_served(queue: str) -> None:
    with Server(*STALL) as server, Http(server) as client, Http(server) as other:
        push(other, queue, "x" * 1_000_000)
        before = server.rss_bytes()
        client.send(request("GET", f"/v1/queues/{queue}/log?offset=0") * 200)
        with pytest.raises((EOFError, ConnectionError)):
            wait_until_cut(client)
        assert server.rss_bytes() - before < MEMORY_BYTES
        assert len(popped(other, queue)) == 1


def wait_until_cut(client: Http) -> None:
    """Raise when the server has cut the connection, without reading before."""
    poll = select.poll()
    poll.register(client.socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    assert poll.poll(30_000), "the server did not cut it"
    while True:
        client.answer()


def dribble(client: Http, piece: bytes) -> None:
    """Send the same again and again until there is an answer."""

    def is_answered() -> bool:
        if select.select([client.socket], [], [], 0.02)[0]:
            return True
        client.send(piece)
        return False

    wait_until(is_answered)


def test_headers_that_come_too_slowly_are_refused() -> None:
    with Server(*STALL) as server, Http(server) as client, Http(server) as other:
        client.send(b"GET /v1/stats HTTP/1.1\r\n")
        dribble(client, b"X-Slow: 1\r\n")
        assert is_refused(client.answer(), 408)
        other.good("GET", "/v1/stats")


def test_a_head_that_began_behind_an_answered_request_is_waited_for_no_longer() -> None:
    with Server(*STALL) as server, Http(server) as client:
        client.send(request("GET", "/v1/stats"), b"GET /v1/st")
        assert client.answer().status == 200
        assert is_refused(client.answer(), 408)


def test_a_body_that_stops_in_the_middle_is_refused_and_pushes_nothing(queue: str) -> None:
    with Server(*STALL) as server, Http(server) as client, Http(server) as other:
        client.send(request("POST", messages(queue), content_length="100"), b'{"payload":')
        assert is_refused(client.answer(), 408)
        assert client.eof()
        assert size(other, queue) == 0


def test_a_body_that_dribbles_in_is_refused_after_a_while(queue: str) -> None:
    with Server("--stall-ms", "100") as server, Http(server) as client, Http(server) as other:
        client.send(request("POST", messages(queue), content_length="1000000"), b'{"payload":')
        dribble(client, b" ")
        assert is_refused(client.answer(), 408)
        assert size(other, queue) == 0


def test_a_stream_of_lines_may_take_its_time(queue: str) -> None:
    with Server("--stall-ms", "100") as server, Http(server) as client, Http(server) as other:
        client.send(streaming(queue))
        for _ in range(5):  # half a second at a time goes by with somebody else's waiting
            client.send(chunk(b'{"payload": 1}\n'))
            other.good("POST", pop(f"{queue}.none"), {"wait_ms": 50})
        for _ in range(40):
            client.send(chunk(b'{"payload": 1}\n'))
            other.good("POST", pop(f"{queue}.none"), {"wait_ms": 50})
        client.send(chunk(b""))
        assert client.answer().json["count"] == 45


def test_an_idle_connection_is_closed_without_a_word_and_a_waiting_one_is_not(queue: str) -> None:
    with Server("--idle-ms", "300") as server, Http(server) as idle, Http(server) as waiting:
        idle.good("GET", "/v1/stats")
        waiting.send(request("POST", pop(queue), {"wait_ms": 3_000}))
        assert idle.eof()
        assert waiting.answer().json["messages"] == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/stats HTTP/1.1\r\n" + b"X-Flood: 1234567890\r\n" * 20_000,
        b"GET /v1/stats HTTP/1.1\r\nX-Flood: " + b"x" * 400_000,
        b"GET /" + b"x" * 400_000,
        b"POST /v1/ack HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-Trailer: 1\r\n" * 30_000,
        b"POST /v1/ack HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"x" * 400_000,
        b"POST /v1/ack HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 400_000,
    ],
    ids=["many headers", "a long header", "a long path", "many trailers", "a long trailer", "an extension"],
)
def test_a_flood_of_headers_is_refused(http: Http, head: bytes) -> None:
    http.send(head)
    assert is_refused(http.answer(), 431)
    assert http.eof()


def test_many_headers_behind_a_large_body_are_their_own_request_s(http: Http, queue: str) -> None:
    large = request("POST", messages(queue), {"payload": "x" * 200_000})
    http.send(large, request("GET", "/v1/stats", x_filler="y" * 50_000), large)
    assert [http.answer().status for _ in range(3)] == [200, 200, 200]


# Clients that go away.

Leaving = Callable[[Http], None]


def close(client: Http) -> None:
    client.close()


def reset(client: Http) -> None:
    client.reset()


def half_close(client: Http) -> None:
    client.half_close()


LEAVING = pytest.mark.parametrize("leave", [close, reset, half_close])


@LEAVING
@pytest.mark.parametrize("behind", [b"", request("GET", "/v1/stats") * 3], ids=["alone", "pipelined"])
def test_a_client_that_left_while_its_pop_waited_takes_no_message(
    server: Server, helper: Http, queue: str, leave: Leaving, behind: bytes
) -> None:
    before = open_files(server.pid)
    client = Http(server)
    client.send(request("POST", pop(queue), {"wait_ms": 600_000}), behind)
    wait_until(lambda: exists(helper, queue) and counts(helper, queue) != {})
    leave(client)
    wait_until(lambda: open_files(server.pid) <= before)
    push(helper, queue, "kept")
    (message,) = popped(helper, queue)
    assert (message["payload"], message["deliveries"], message["failures"]) == ("kept", 1, 0)
    client.close()


def exists(client: Http, queue: str) -> bool:
    return client.call("GET", f"/v1/queues/{queue}").status == 200


@pytest.mark.parametrize("leave", [close, reset])
def test_what_was_popped_for_a_client_that_left_is_there_for_others_at_once(
    server: Server, helper: Http, queue: str, leave: Leaving
) -> None:
    for at in range(100):
        push(helper, queue, at)
    before = open_files(server.pid)
    clients = [Http(server) for _ in range(100)]
    for client in clients:
        client.send(request("POST", pop(queue)))
        leave(client)
    wait_until(lambda: open_files(server.pid) <= before)
    # Only answers that had been handed to the system already may be lost.
    left = popped(helper, queue, count=100, wait_ms=30_000)
    assert left
    assert all(each["failures"] == 0 for each in left)


@LEAVING
def test_of_a_stream_that_breaks_off_whole_chunks_are_kept_and_nothing_is_torn(
    server: Server, helper: Http, queue: str, leave: Leaving
) -> None:
    before = open_files(server.pid)
    line = b'{"payload": {"n": 1, "filler": "%s"}}\n' % (b"x" * 200)
    client = Http(server)
    client.send(streaming(queue))
    for _ in range(30):
        client.send(chunk(line * 500))
    client.send(chunk(line * 10 + line[:100])[:-2])
    wait_until(lambda: size(helper, queue) > 0)
    leave(client)
    wait_until(lambda: open_files(server.pid) <= before)
    kept = size(helper, queue)
    assert 0 < kept <= 15_010
    found = popped(helper, queue, count=100_000)
    assert {len(each["payload"]["filler"]) for each in found} == {200}
    assert len(found) == kept
    client.close()


def test_a_stream_that_does_not_go_on_is_told_how_much_of_it_is_kept(queue: str) -> None:
    line = b'{"payload": "%s"}\n' % (b"x" * 1_000)
    with Server(*STALL) as server:
        for broken in (b"", b"nonsense\r\n"):
            with Http(server) as client:
                client.send(streaming(queue))
                for _ in range(25):
                    client.send(chunk(line * 100))
                client.send(broken)
                answer = client.answer()
                assert answer.status == (400 if broken else 408)
                kept = answer.json["error"]["details"]["kept"]
                assert kept < answer.json["error"]["details"]["line"] <= 2_501
                assert client.eof()
                assert kept > 0
                with Http(server) as other:
                    assert len(popped(other, queue, count=10_000)) == kept


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/stats", "/v1/events"])
def test_a_broken_body_that_nobody_reads_ends_the_connection(path: str) -> None:
    with Server(*STALL, "--idle-ms", "300", "--connections-max", "3") as server:
        for _ in range(5):
            with Http(server) as client:
                client.send(
                    request("GET", path, content_type=LINES, transfer_encoding="chunked"), b"zz\r\nnonsense"
                )
                with suppress(ConnectionError):
                    while client.socket.recv(4_096):
                        pass


def test_a_packed_stream_that_breaks_off_is_told_how_much_of_it_is_kept(http: Http, queue: str) -> None:
    lines = b'{"payload": "%s"}\n' % (b"x" * 1_000) * 2_500
    how = {"content_type": LINES, "content_encoding": "gzip"}
    answer = http.call("POST", messages(queue), gzip.compress(lines)[:-4], **how)
    assert (answer.status, answer.code) == (400, "invalid")
    assert answer.json["error"]["details"]["kept"] == size(http, queue) > 0


def test_a_client_that_sends_nothing_more_gets_its_answers(http: Http, queue: str) -> None:
    http.send(*[request("POST", messages(queue), {"payload": at}) for at in range(10)])
    http.half_close()
    assert [http.answer().status for _ in range(10)] == [200] * 10
    assert http.eof()


def test_a_request_that_was_half_sent_when_the_client_left_is_not_carried_out(
    http: Http, helper: Http, queue: str
) -> None:
    http.send(request("POST", messages(queue), content_length="100"), b'{"payload": 1}')
    http.half_close()
    assert http.eof()
    assert size(helper, queue) == 0


# The end.


def test_a_server_that_is_told_to_stop_answers_who_waits_and_who_streams(queue: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        waiting = [stack.enter_context(Http(server)) for _ in range(50)]
        idle, stream, half, other = (stack.enter_context(Http(server)) for _ in range(4))
        for each in waiting:
            each.send(request("POST", pop(queue), {"wait_ms": 600_000}))
        line = b'{"payload": "%s"}\n' % (b"x" * 1_000)
        stream.send(
            request("POST", messages(f"{queue}.2"), b"", content_type=LINES, transfer_encoding="chunked")
        )
        while size(other, f"{queue}.2") == 0:
            stream.send(chunk(line * 100))
        half.send(request("POST", messages(queue), content_length="100"), b"{")
        idle.good("GET", "/v1/stats")
        server.terminate()
        for each in waiting:
            assert each.answer().json == {"lease": None, "messages": []}
            assert each.eof()
        assert idle.eof()
        while not select.select([stream.socket], [], [], 0)[0]:
            stream.send(chunk(line * 100))
        answer = stream.answer()
        assert is_refused(answer, 503, "busy")
        assert answer.json["error"]["details"]["kept"] > 0
        half.close()
        assert server.wait() == 0


def test_a_server_that_is_told_to_stop_does_not_wait_long_for_clients_that_do_nothing(queue: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        stream, half, slow, other = (stack.enter_context(Http(server)) for _ in range(4))
        push(other, queue, "x" * 1_000_000)
        stream.send(streaming(queue))
        stream.send(chunk(b'{"payload": 1}\n'))
        half.send(b"POST /v1/ack HTTP/1.1\r\n")
        slow.send(request("GET", f"/v1/queues/{queue}/log?offset=0") * 50)
        other.good("GET", "/v1/stats")
        server.terminate()
        assert server.wait() == 0


def test_memory_is_given_back_when_hostile_clients_are_gone(queue: str) -> None:
    with Server("--store", "memory:", *STALL) as server, Http(server) as other:
        other.good("GET", "/v1/stats")
        for turn in range(3):
            with ExitStack() as stack:
                clients = [stack.enter_context(Http(server)) for _ in range(200)]
                for client in clients:
                    client.send(request("POST", messages(queue), content_length="60000000"), b" " * 100_000)
                    client.send(b" " * 100_000)
                for client in clients:
                    client.reset()
            other.good("GET", "/v1/stats")
            if turn == 0:
                before = server.rss_bytes()
        assert server.rss_bytes() - before < 60 << 20
