"""Keys are fetched ahead from their URL; whatever is there instead, the old keys stay and nobody waits."""

import asyncio
import json
import logging
import socket
import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from forebay.broker.jwt import KEYS_BYTES_MAX, Key, of_jwks
from forebay.server.jwks import ASK_S, FETCH_S, REFRESH_S, RETRY_S, CantFetch, Fetching, Jwks
from tests.leaping import LeapingLoop
from tests.server.key_site import Site, running
from tests.serving import PATIENCE_S
from tests.signing import Issuer, jwks


@pytest.fixture
def site() -> Iterator[Site]:
    with running() as made:
        yield made


def fetched(url: str, cut: bool = False) -> list[Key]:
    async def fetch() -> list[Key]:
        fetching = Fetching(asyncio.get_running_loop(), url)
        if cut:
            fetching.cut()
        return await fetching.outcome

    return asyncio.run(fetch())


def problem(url: str) -> str:
    with pytest.raises(CantFetch) as refused:
        fetched(url)
    return str(refused.value)


ISSUER = Issuer("ES256", "a")
GOOD = jwks(ISSUER)


def test_keys_are_fetched(site: Site) -> None:
    site.gives(GOOD)
    assert [each.kid for each in fetched(site.url)] == ["a"]
    assert site.asked == 1


def test_what_is_no_jwks_gives_no_keys(site: Site) -> None:
    for body in (b"", b"{}", b"<html>", b'{"keys": []}', ISSUER.pem()):
        site.gives(body)
        assert "JWKS" in problem(site.url) or "no key" in problem(site.url)


@pytest.mark.parametrize("status", [204, 301, 302, 307, 400, 401, 404, 429, 500, 503])
def test_another_status_gives_no_keys_and_no_redirect_is_followed(status: int, site: Site) -> None:
    site.gives(b"" if status == 204 else GOOD, status, Location=site.url)
    assert problem(site.url) == f"the answer has status {status}"
    assert site.asked == 1


def test_an_answer_has_a_size(site: Site) -> None:
    site.gives(GOOD.ljust(KEYS_BYTES_MAX))
    assert fetched(site.url)
    site.gives(GOOD.ljust(KEYS_BYTES_MAX + 1))
    assert "more than" in problem(site.url)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * (1 << 20))

    site.answer = endless
    assert "more than" in problem(site.url)

    def headers(handler: BaseHTTPRequestHandler) -> None:
        while True:
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)

    site.answer = headers
    assert "longer than" in problem(site.url)


def test_a_body_that_breaks_off_gives_no_keys(site: Site) -> None:
    site.gives(GOOD[:-10], 200, **{"Content-Length": str(len(GOOD))})
    assert problem(site.url)
    site.answer = lambda handler: handler.connection.shutdown(socket.SHUT_RDWR)
    assert problem(site.url)


def test_nobody_at_the_url_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in problem(f"http://127.0.0.1:{port}/").lower()
    assert problem("nonsense")


def test_a_server_that_never_ends_its_answer_is_cut_off(site: Site) -> None:
    reached, gone = threading.Event(), threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"{")
        reached.set()
        handler.connection.recv(1)
        gone.set()

    site.answer = stall

    async def cut() -> None:
        fetching = Fetching(asyncio.get_running_loop(), site.url)
        assert await asyncio.to_thread(reached.wait, PATIENCE_S)
        fetching.cut()
        with pytest.raises(CantFetch):
            await fetching.outcome

    asyncio.run(cut())
    assert gone.wait(PATIENCE_S)


def test_a_server_that_never_answers_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(CantFetch):
        fetched(f"http://127.0.0.1:{listener.getsockname()[1]}/", cut=True)


# When.


class Told:
    """Fetches whose end is decided here, at times that pass as fast as they can."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.cut = 0
        self.results: list[Any] = []
        """What fetches end with, one after the other: keys, an error, or None for never. Then keys."""
        self.taken: list[list[Key]] = []

    def fetch(self, loop: AbstractEventLoop, url: str) -> Any:
        self.began.append(loop.time())
        result = self.results.pop(0) if self.results else of_jwks(GOOD)
        return _Told(self, loop, result)

    def run(self, life: Callable[[Jwks, "Told"], Any]) -> None:
        async def lived() -> None:
            mine = Jwks("https://id.example/", asyncio.get_running_loop(), self.taken.append, self.fetch)
            await mine.start()
            await life(mine, self)
            mine.stop()

        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            runner.run(lived())


class _Told:
    def __init__(self, told: Told, loop: AbstractEventLoop, result: Any) -> None:
        self._told = told
        self.outcome: Future[list[Key]] = loop.create_future()
        if isinstance(result, Exception):
            self.outcome.set_exception(result)
        elif result is not None:
            self.outcome.set_result(result)

    def cut(self) -> None:
        self._told.cut += 1
        if not self.outcome.done():
            self.outcome.set_exception(CantFetch("it was cut off"))


def test_keys_are_fetched_again_and_again() -> None:
    async def life(mine: Jwks, told: Told) -> None:
        await asyncio.sleep(2 * REFRESH_S + 1)

    told = Told()
    told.run(life)
    assert told.began == [0, REFRESH_S, 2 * REFRESH_S]
    assert len(told.taken) == 3


def test_after_a_failure_the_next_fetch_comes_sooner(caplog: pytest.LogCaptureFixture) -> None:
    async def life(mine: Jwks, told: Told) -> None:
        await asyncio.sleep(RETRY_S * 2 + 1)

    caplog.set_level(logging.WARNING)
    told = Told()
    told.results = [CantFetch("it is down"), CantFetch("it is down")]
    told.run(life)
    assert told.began == [0, RETRY_S, 2 * RETRY_S]
    assert len(told.taken) == 1
    assert caplog.messages == ["the keys at jwt_keys can't be fetched, and stay as they were: it is down"] * 2


def test_unknown_kids_hasten_the_next_fetch_however_many_there_are() -> None:
    async def life(mine: Jwks, told: Told) -> None:
        for _ in range(875):
            mine.ask()
            await asyncio.sleep(ASK_S / 250)

    told = Told()
    told.run(life)
    assert told.began == pytest.approx([0, ASK_S, 2 * ASK_S, 3 * ASK_S])


def test_the_first_unknown_kid_after_a_while_is_looked_up_at_once() -> None:
    async def life(mine: Jwks, told: Told) -> None:
        await asyncio.sleep(ASK_S + 5)
        mine.ask()
        await asyncio.sleep(1)

    told = Told()
    told.run(life)
    assert told.began == [0, ASK_S + 5]


def test_a_slow_fetch_is_cut_off_and_holds_up_the_start_for_seconds_only() -> None:
    started: list[float] = []

    async def life(mine: Jwks, told: Told) -> None:
        started.append(asyncio.get_running_loop().time())
        mine.ask()
        await asyncio.sleep(FETCH_S + RETRY_S)

    told = Told()
    told.results = [None]
    told.run(life)
    assert started == [5.0]
    assert told.cut == 1
    assert told.began == [0, ASK_S]
    assert len(told.taken) == 1


def test_nothing_is_fetched_after_the_stop() -> None:
    async def life(mine: Jwks, told: Told) -> None:
        await asyncio.sleep(ASK_S)
        told.results = [None]
        mine.ask()
        await asyncio.sleep(1)
        mine.stop()
        mine.ask()
        await asyncio.sleep(REFRESH_S)

    told = Told()
    told.run(life)
    assert told.began == [0, ASK_S]
    assert told.cut == 1
    assert len(told.taken) == 1


def test_a_jwks_of_every_kind_is_read(site: Site) -> None:
    issuers = [Issuer(kind, kind) for kind in ("RS256", "ES256", "EdDSA")]
    body = {"keys": [each.jwk(use="sig") for each in issuers] + [{"kty": "oct", "k": "AAAA"}]}
    site.gives(json.dumps(body).encode())
    assert [each.algorithms for each in fetched(site.url)] == [("RS256",), ("ES256",), ("EdDSA",)]
