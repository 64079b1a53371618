"""Whether the examples do what they say: each is run, twice, as a program against a real server."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay.client.sync.client import SyncClient
from forebay.client.types import Counts
from forebay.client.worker.main import find_app
from tests.serving import PATIENCE_S, Server

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples"


class Example(NamedTuple):
    """What is known of a program."""

    says: list[str]
    """Its lines, as patterns."""
    leaves: dict[str, Counts]
    """What is on the server after one run: messages by queue, or by queue and group."""
    holds: Callable[[SyncClient], bool] = lambda _: True
    """What else is true on the server."""
    needs: str = ""
    """A package that a user of Forebay need not have."""


def no_cron_goes_on(client: SyncClient) -> bool:
    counts = left(client, "cron")
    return not client.crons() and counts == Counts(completed=counts.completed) and counts.completed >= 3


def the_sum_is_that_of_the_orders(client: SyncClient) -> bool:
    return bool(client.kv.get("exactly-once-sum") == 210)


EXAMPLES = {
    "hello.py": Example(
        [
            r"pushed \d+, which now survives fsync",
            r"popped \['ada', 'alan', 'grace'\]",
            "hello barbara",
            "hello edsger",
        ],
        {"hello": Counts(completed=5)},
    ),
    "worker.py": Example(
        [
            "fetch returned 19",
            "resize returned cat.png@32",
            "call_home returned: somebody answered call 3",
            r"charge failed: job \d+ is dead: .+",
        ],
        {"worker": Counts(completed=3, dead=1)},
    ),
    "cron.py": Example(
        [
            "beat 1",
            "beat 2",
            "beat 3",
            r"cron:beat comes next at \w+day \d\d:\d\d UTC",
            r"cron:report comes next at (Mon|Tues|Wednes|Thurs|Fri)day 0[45]:30 UTC",
        ],
        {},
        no_cron_goes_on,
    ),
    "workflow.py": Example(
        [
            "a chain counted 5 words",
            "a group counted 13 words",
            "announce is parked until then",
            "published the news and announced",
            "progress: the news is 100 % there",
        ],
        {"workflow": Counts(completed=2 + 7 + 2)},
    ),
    "fanout.py": Example(
        [
            "billing saw 100 orders",
            "shipping saw 100, and both packers had some: True",
            "each saw every order once: True",
        ],
        {"fanout-orders/billing": Counts(completed=100), "fanout-orders/shipping": Counts(completed=100)},
    ),
    "ordered.py": Example(
        [
            "partitions in order: True, [234] customers at once",
            "lanes in order: True, [234] customers at once",
        ],
        {"ordered-steps": Counts(completed=16), "ordered-tasks": Counts(completed=16)},
    ),
    "exactly_once.py": Example(
        [
            "the program was killed before its commit; the sum is 0",
            "the program was killed after its commit; the sum is (30|70)",
            "the program ended with 0; the sum is 210",
            "every order has one invoice: True",
            "nothing is left: True",
        ],
        {"exactly-once-orders": Counts(completed=6), "exactly-once-invoices": Counts(completed=6)},
        the_sum_is_that_of_the_orders,
    ),
    "rate_limited.py": Example(
        [
            "15 calls, the sum of their answers is 1015",
            "at most [12] at once",
            r"in (1\.[2-9]|[2-9]\.\d|\d\d+\.\d) s, where 15 calls, 10 a second, take 1\.4 at least",
        ],
        {"rate-limited": Counts(completed=15)},
    ),
    "fastapi_app.py": Example(
        [
            "POST /orders: 202",
            r"GET it: \{'state': 'open'\}",
            r"GET it, and wait: \{'state': 'done', 'bill': \{'customer': 'ada', 'euros': 15\}\}",
            "GET another: 404",
        ],
        {"fastapi": Counts(completed=1)},
        needs="fastapi",
    ),
    "django_app.py": Example(
        [
            "ada orders 3: 201",
            "alan orders 11: 409",
            "grace orders 1: 201",
            "2 orders were kept, 2 jobs pushed",
            "the worker: mailed ada",
            "the worker: mailed grace",
        ],
        {"django": Counts(completed=2)},
        needs="django",
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient(server.tcp) as made:
        yield made


def need(package: str) -> None:
    """A package that is missing skips a test at home, and fails it in CI."""
    if package and importlib.util.find_spec(package) is None:
        told = f"{package} is not installed"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)


def run(name: str, server: Server) -> list[str]:
    """The lines that a program prints; it must end well, and complain about nothing."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        env={**os.environ, "FOREBAY_SERVER": server.tcp},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


def left(client: SyncClient, where: str) -> Counts:
    queue, _, group = where.partition("/")
    (found,) = (each.counts for each in client.groups(queue) if each.group == (group or "default"))
    return found


def times(counts: Counts, runs: int) -> Counts:
    return Counts(*(runs * getattr(counts, state) for state in Counts.__struct_fields__))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_did_and_did_it_also_when_it_is_run_again(
    name: str, server: Server, client: SyncClient
) -> None:
    example = EXAMPLES[name]
    need(example.needs)
    for runs in (1, 2):
        lines = run(name, server)
        assert len(lines) == len(example.says), lines
        for line, pattern in zip(lines, example.says, strict=True):
            assert re.fullmatch(pattern, line), line
        for where, counts in example.leaves.items():
            assert left(client, where) == times(counts, runs), where
        assert example.holds(client)


def test_every_example_is_run_and_in_the_table() -> None:
    programs = {str(each.relative_to(FOLDER)) for each in FOLDER.rglob("*.py")}
    assert programs == EXAMPLES.keys()
    rows = re.findall(r"^\| \[(\S+)\]\((\S+)\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rows == [(name, name) for name in EXAMPLES]


WORKERS = [
    (name, target)
    for name in EXAMPLES
    for target in re.findall(r"forebay worker\s+(examples\S+?)`", (FOLDER / name).read_text())
]


@pytest.mark.parametrize(("name", "target"), WORKERS, ids=[target for _, target in WORKERS])
def test_the_app_that_a_worker_is_told_of_is_there(name: str, target: str) -> None:
    need(EXAMPLES[name].needs)
    assert target == f"examples.{name.removesuffix('.py')}:app"
    assert find_app(target).tasks
