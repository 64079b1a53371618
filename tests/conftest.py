"""What all tests need of the process they run in, and which of them share one."""

import logging
import signal
from collections.abc import Generator, Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells have what they start in the background ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK = "tests/spark/"
LONG = (SPARK, "tests/crash/", "tests/sim/")
"""What takes longest begins first, so that the processes end at about the same time."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a file run in one process, because they share a server; all of Spark's because it is large."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [not item.nodeid.startswith(each) for each in LONG])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged goes from process to process as UTF-8, and some log what is none."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A program that runs in the process of its test sets up logs, and leaves them so."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
