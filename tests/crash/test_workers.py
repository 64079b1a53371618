"""Workers killed, frozen or cut off amid tasks. Longer lives are a command: ``tests.crash.workers``."""

import shutil

import pytest

from tests.crash import workers
from tests.crash.ledger import Violation

SEED = 1


def test_whatever_happens_to_workers_each_job_ends_and_none_runs_twice_at_once() -> None:
    figures = workers.run(6, SEED)
    assert set(figures.harms) == set(workers.HARMS)
    assert figures.jobs == 6 * workers.JOBS
    assert figures.again


def test_what_runs_when_the_server_is_killed_is_settled_when_it_is_back_and_not_run_again() -> None:
    figures = workers.restart(SEED)
    assert figures.runs == figures.jobs


DEAF = """
from forebay.client.worker import leases
leases.LeaseKeeper.lose = lambda self, lease: None
"""


def work_on() -> None:
    """When exactly a worker is frozen does not follow from the seed: the bug is looked for until found."""
    for seed in range(SEED, SEED + 6):
        workers.run(2, seed, ["loop"], ["freeze", "kill"], planted=DEAF)


def test_workers_that_work_on_when_a_lease_is_over_are_found() -> None:
    with pytest.raises(Violation, match="twice at once") as found:
        work_on()
    (note,) = found.value.__notes__
    shutil.rmtree(note.rpartition(" ")[2])
