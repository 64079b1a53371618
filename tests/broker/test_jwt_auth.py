"""A server knows the bearers of JWTs until the token expires or its key is gone, and tells why in its log."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.broker.auth import WRONG, Auth, NotKnown
from forebay.broker.claims import Rules
from forebay.broker.jwt import (
    Jwt,
    of_jwks,
)
from forebay.core.api.principals import Principal
from tests.broker.conftest import Start
from tests.broker.jwts import ALL, CLAIMS, claims, verifier
from tests.broker.loop import Rig
from tests.signing import (
    SECRET,
    Issuer,
    by_secret,
    jwks,
)


class Bench:
    """A node, and who knows its principals."""

    def __init__(self, rig: Rig, jwt: Jwt | None) -> None:
        self.rig = rig
        self.auth = Auth(rig.node, rig.loop.as_loop, jwt=jwt)
        self.ended: list[str] = []

    def watch(self, principal: Principal) -> None:
        self.auth.watch(principal, lambda: self.ended.append(principal.name))


@pytest.fixture
def bench(start: Start) -> Callable[..., Bench]:
    return lambda jwt=ALL: Bench(start(), jwt)


def test_a_server_with_keys_asks_who_everybody_is(bench: Callable[..., Bench]) -> None:
    assert bench(None).auth.is_open
    auth = bench().auth
    assert not auth.is_open
    assert auth.anonymous() is None


def test_the_reason_is_in_the_log_and_nowhere_else(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.auth")
    mine = bench()
    text = by_secret(claims(role="root"))
    for each in (text, "a.b.c", "no jwt", text):
        with pytest.raises(NotKnown) as refused:
            mine.auth.principal(each)
        assert refused.value.message == WRONG
        assert refused.value.__context__ is None
    (line,) = caplog.messages
    assert "'root'" in line
    assert text not in line
    mine.rig.loop.advance(1_000)
    with pytest.raises(NotKnown):
        mine.auth.principal("a.b.c")
    assert "2 others" in caplog.messages[1]


def test_a_connection_ends_when_its_token_does(bench: Callable[..., Bench]) -> None:
    mine = bench()
    found = mine.auth.principal(by_secret(claims(sub="alice")))
    mine.watch(found)
    left_ms = found.expires_at - mine.rig.loop.now()
    mine.rig.loop.advance(left_ms - 1)
    mine.auth.use(found)
    assert not mine.ended
    mine.rig.loop.advance(1)
    assert mine.ended == ["alice"]
    with pytest.raises(NotKnown):
        mine.auth.use(found)
    with pytest.raises(NotKnown):
        mine.auth.principal(by_secret(claims(sub="alice")))


def test_connections_whose_key_is_gone_end_and_others_stay(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    file, old, new = tmp_path / "keys.json", Issuer("ES256", "old"), Issuer("ES256", "new")
    file.write_bytes(jwks(old))
    mine = bench(Jwt(Rules(), secret=SECRET, file=file))
    by_old, of_old = old.token(claims(sub="old")), mine.auth.principal(old.token(claims(sub="old")))
    mine.watch(of_old)
    mine.watch(mine.auth.principal(by_secret(claims(sub="secret"))))
    file.write_bytes(jwks(old, new))
    generation = mine.auth.generation
    mine.auth.reload()
    assert not mine.ended
    assert mine.auth.generation > generation
    mine.watch(mine.auth.principal(new.token(claims(sub="new"))))
    file.write_bytes(jwks(new))
    mine.auth.reload()
    assert mine.ended == ["old"]
    with pytest.raises(NotKnown):
        mine.auth.principal(by_old)
    assert mine.auth.principal(new.token(claims(sub="new"))).name == "new"


def test_another_key_of_the_same_name_is_another_key(bench: Callable[..., Bench]) -> None:
    old, new = Issuer("ES256", "same"), Issuer("ES256", "same")
    mine = bench(verifier(old))
    mine.watch(mine.auth.principal(old.token(claims(sub="old"))))
    mine.auth.take_keys(of_jwks(jwks(old)))
    assert (mine.ended, mine.auth.generation) == ([], 0)
    mine.auth.take_keys(of_jwks(jwks(new)))
    assert mine.ended == ["old"]


def test_keys_that_can_not_be_read_anew_stay(
    bench: Callable[..., Bench], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, issuer = tmp_path / "keys.json", Issuer("ES256", "a")
    file.write_bytes(jwks(issuer))
    mine = bench(Jwt(Rules(), file=file))
    mine.watch(mine.auth.principal(issuer.token(CLAIMS)))
    for spoil in (lambda: file.write_bytes(b"{"), file.unlink):
        spoil()
        mine.auth.reload()
        assert "stay as they were" in caplog.messages[-1]
        assert mine.auth.principal(issuer.token(CLAIMS)).tenant == "acme"
    assert not mine.ended


def test_the_use_of_a_jwt_is_not_stored(bench: Callable[..., Bench]) -> None:
    mine = bench()
    timers = mine.rig.loop.timers()
    mine.auth.use(mine.auth.principal(by_secret(CLAIMS)))
    assert mine.rig.loop.timers() == timers
