"""Fixtures for pytest. Nothing is loaded, and nothing starts, unless a test asks for one of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock import App, SyncClient
    from penstock.testing import Inline, Server


@pytest.fixture
def penstock_server() -> "Iterator[Server]":
    """A server for this test, in memory, whose time stands still until it jumps."""
    from penstock.testing import Server

    with Server() as server:
        yield server


@pytest.fixture
def penstock_client(penstock_server: "Server") -> "SyncClient":
    """A blocking client of ``penstock_server``."""
    return penstock_server.client()


@pytest.fixture
def penstock_inline() -> "Iterator[Callable[..., Inline]]":
    """Takes an app: its tasks run inline to the end of this test. Returns what ran."""
    from penstock.testing import inline

    with ExitStack() as stack:

        def begin(*apps: "App", **options: Any) -> "Inline":
            return stack.enter_context(inline(*apps, **options))

        yield begin
