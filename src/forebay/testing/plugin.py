"""Fixtures for pytest. Nothing is imported or started unless a test uses one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient
    from forebay.client.tasks.app import App
    from forebay.testing.inline_tasks import Inline
    from forebay.testing.server import Server


@pytest.fixture
def forebay_server() -> "Iterator[Server]":
    """A server for this test, in memory, whose time stands still until it jumps."""
    from forebay.testing.server import Server

    with Server() as server:
        yield server


@pytest.fixture
def forebay_client(forebay_server: "Server") -> "SyncClient":
    """A blocking client of ``forebay_server``."""
    return forebay_server.client()


@pytest.fixture
def forebay_secured() -> "Iterator[Server]":
    """A server for this test that asks everybody for a token."""
    from forebay.testing.server import Server

    with Server(asks=True) as server:
        yield server


@pytest.fixture
def forebay_admin(forebay_secured: "Server") -> "SyncClient":
    """A blocking client of ``forebay_secured`` that is its admin."""
    return forebay_secured.client()


@pytest.fixture
def forebay_tenant(forebay_secured: "Server") -> "Callable[..., SyncClient]":
    """Takes a tenant, a role and patterns of queues: returns a client of ``forebay_secured`` that is so."""

    def made(tenant: str = "acme", role: str = "owner", queues: "Sequence[str]" = ()) -> "SyncClient":
        return forebay_secured.client(token=forebay_secured.token(role, tenant, queues))

    return made


@pytest.fixture
def forebay_inline() -> "Iterator[Callable[..., Inline]]":
    """Takes an app: its tasks run inline to the end of this test. Returns what ran."""
    from forebay.testing.inline_tasks import inline

    with ExitStack() as stack:

        def begin(*apps: "App", **options: Any) -> "Inline":
            return stack.enter_context(inline(*apps, **options))

        yield begin
