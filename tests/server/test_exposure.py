"""A server that other machines reach has to know who asks, and to speak TLS."""

import pytest

from forebay.broker.auth import Auth
from forebay.server.exposure import Place, problems
from tests.broker.loop import ObedientStore, Rig

HERE, EVERYWHERE = ("127.0.0.1", "::1"), ("0.0.0.0",)


def place(name: str, *addresses: str, knows_who: bool = False) -> Place:
    return Place(name, f"{addresses[0]}:1", addresses, knows_who)


def test_what_only_this_machine_reaches_needs_nothing() -> None:
    assert not problems([place("http", *HERE), place("tcp", "127.9.9.9")], has_tls=False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "203.0.113.9", "fe80::1%eth0"])
def test_what_other_machines_reach_needs_tokens_and_tls(address: str) -> None:
    assert len(problems([place("tcp", address)], has_tls=False)) == 2
    (tokens,) = problems([place("tcp", address)], has_tls=True)
    assert "set admin_token, jwt_keys, or tls_client_ca and tls_principals" in tokens
    (tls,) = problems([place("tcp", address, knows_who=True)], has_tls=False)
    assert "set tls_cert and tls_key" in tls
    assert not problems([place("tcp", address, knows_who=True)], has_tls=True)


def test_a_name_that_stands_for_one_address_of_this_machine_and_another_is_reached_by_others() -> None:
    assert problems([place("http", "127.0.0.1", "10.0.0.1")], has_tls=True)


def test_all_listeners_that_lack_something_are_named_together() -> None:
    found = problems(
        [place("http", "0.0.0.0"), place("tcp", *HERE), place("flashq", "10.0.0.1", knows_who=True)],
        has_tls=False,
    )
    assert [line.partition(": ")[0] for line in found] == [
        "http on 0.0.0.0:1",
        "http on 0.0.0.0:1, flashq on 10.0.0.1:1",
    ]
    assert "flashq_tokens" not in found[0]


def test_the_tokens_of_flashqs_doors_are_named_where_they_would_do() -> None:
    (line,) = problems([place("flashq_http", "0.0.0.0")], has_tls=True)
    assert "flashq_tokens" in line


def test_a_server_that_others_reach_stays_closed_when_its_last_admin_token_is_revoked() -> None:
    rig = Rig(ObedientStore())
    try:
        auth = Auth(rig.node, rig.loop.as_loop)
        assert auth.is_open
        auth.keep_closed()
        auth.recheck()
        assert not auth.is_open
    finally:
        rig.close()
