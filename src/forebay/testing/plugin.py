"""Fixtures for pytest. Nothing is imported or started unless a test uses one of them."""

from collections.abc import Callable, Iterator
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
def forebay_inline() -> "Iterator[Callable[..., Inline]]":
    """Takes an app: its tasks run inline to the end of this test. Returns what ran."""
    from forebay.testing.inline_tasks import inline

    with ExitStack() as stack:

        def begin(*apps: "App", **options: Any) -> "Inline":
            return stack.enter_context(inline(*apps, **options))

        yield begin
