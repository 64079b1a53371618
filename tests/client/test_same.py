"""There is one client: the other is made of it."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.client.aio import tenants as aio_tenants, transactions as aio_transactions, values as aio_values
from forebay.client.aio.client import Client
from forebay.client.aio.messages import OUT_OF_TIME
from forebay.client.sync import tenants, transactions, values
from forebay.client.sync.client import SyncClient
from forebay.core.delivery import give_back

ROOT = Path(__file__).parent.parent.parent
PAIRS = [
    (Client, SyncClient),
    (aio_tenants.Tenants, tenants.Tenants),
    (aio_tenants.Tokens, tenants.Tokens),
    (aio_transactions.Transaction, transactions.Transaction),
    (aio_values.Values, values.Values),
]


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def parameters(method: Callable[..., Any]) -> list[tuple[str, object, object]]:
    found = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def test_the_client_for_threads_is_current() -> None:
    made = subprocess.run(
        [sys.executable, "tools/make_sync.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize(("aio", "sync"), PAIRS)
def test_both_have_the_same_methods_with_the_same_parameters(aio: type, sync: type) -> None:
    theirs, ours = methods(aio), methods(sync)
    assert list(theirs) == list(ours)
    for name, method in theirs.items():
        assert parameters(method) == parameters(ours[name]), name


@pytest.mark.parametrize(("aio", "sync"), PAIRS)
def test_both_say_the_same_of_each_method(aio: type, sync: type) -> None:
    for name, method in methods(sync).items():
        assert method.__doc__ == methods(aio)[name].__doc__


def test_a_lease_that_is_over_is_told_in_the_word_that_clients_look_for() -> None:
    assert OUT_OF_TIME == give_back.OUT_OF_TIME
