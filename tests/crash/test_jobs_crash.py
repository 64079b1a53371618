"""Crons, unique keys, flows, transactions, repeats, limits, stages and dependents when the server is killed.

Longer lives are commands: ``tests.crash.crons``, ``tests.crash.jobs`` and ``tests.crash.dependents``.
"""

import shutil
from collections.abc import Callable

import pytest

from tests.crash import crons, dependents, jobs
from tests.crash.ledger import Violation
from tests.crash.stages import Stages

SEED = 1


def test_a_slot_of_a_cron_comes_once_whenever_the_server_is_killed() -> None:
    figures = crons.run(8, SEED)
    assert figures.kills == 8
    assert figures.slots > 8
    assert figures.messages > figures.slots


def test_keys_flows_transactions_repeats_and_limits_hold_whenever_the_server_is_killed() -> None:
    figures = jobs.run(5, SEED)
    assert figures.cycles == 5
    assert figures.answers > 100


def test_a_batch_is_there_once_or_not_at_all_whenever_the_server_is_killed() -> None:
    figures = jobs.run(6, SEED, ["stages"])
    assert figures.cycles == 6
    (part,) = figures.parts
    assert isinstance(part, Stages)
    assert part.adopted > 20
    assert part.repeated > 20
    assert part.dropped > 5


SLOWLY = """
import time
from forebay.core import tick
from forebay.core.jobs import dependencies
dependencies.STEP = 100
go_on = tick.go_on
def slowly(shard, now):
    if shard.notifications:
        time.sleep(0.03)
    go_on(shard, now)
tick.go_on = slowly
"""
"""No bug: tells few at a time, so that the kills meet it halfway with less to tell."""


def test_those_who_wait_for_one_message_are_told_once_even_if_the_server_is_killed_meanwhile() -> None:
    figures = dependents.run(2, SEED, planted=SLOWLY, count=1_000)
    assert figures.released == figures.failed == 1_000
    assert figures.halfway


FORGETFUL = """
from forebay.core.shard.changes import Changes
put_row = Changes.put_row
def forgetful(self, queue, key, value):
    if key[8:9] != %r:
        put_row(self, queue, key, value)
Changes.put_row = forgetful
"""
PLANTED: dict[str, tuple[Callable[[str], object], str]] = {
    "the slot of a cron is not kept": (
        lambda planted: crons.run(60, SEED, planted=planted),
        """
from forebay.core.jobs import cron
fire, keep = cron._fire, cron._keep
def forgetful(*arguments):
    cron._keep = lambda *arguments: None
    fire(*arguments)
    cron._keep = keep
cron._fire = forgetful
""",
    ),
    "who holds a key is not kept": (
        lambda planted: jobs.run(60, SEED, ["uniques"], planted=planted),
        FORGETFUL % b"k",
    ),
    "who waits for others is not kept": (
        lambda planted: jobs.run(60, SEED, ["flows"], planted=planted),
        FORGETFUL % b"r",
    ),
    "what a push answered is not kept": (
        lambda planted: jobs.run(60, SEED, ["repeats"], planted=planted),
        FORGETFUL % b"w",
    ),
    "a limit forgets what is leased": (
        lambda planted: jobs.run(60, SEED, ["limits"], planted=planted),
        """
from forebay.core.queues import named_limits
named_limits.leased = lambda queue: 0
""",
    ),
    "what an adoption answered is not kept": (
        lambda planted: jobs.run(60, SEED, ["stages"], planted=planted),
        FORGETFUL % b"z",
    ),
    "what is staged is not kept": (
        lambda planted: jobs.run(60, SEED, ["stages"], planted=planted),
        """
from forebay.core.shard.changes import Changes
put = Changes.put
def forgetful(self, record):
    if record[0][8:9] != b"n":
        put(self, record)
Changes.put = forgetful
""",
    ),
    "a stage that was dropped is there again": (
        lambda planted: jobs.run(60, SEED, ["stages"], planted=planted),
        """
from forebay.core.stages import expire, write
drop = expire.drop_stage
def lightly(shard, queue, each):
    before = len(shard.changes.deletes)
    drop(shard, queue, each)
    del shard.changes.deletes[before:]
expire.drop_stage = write.drop_stage = lightly
""",
    ),
    "what an adoption answered is kept with the next one": (
        lambda planted: jobs.run(60, SEED, ["stages"], planted=planted),
        """
from forebay.core.shard.changes import Changes
put_row, late = Changes.put_row, {}
def later(self, queue, key, value):
    if key[8:9] == b"z":
        mine = self.numbering.number
        queue, key, value, late[mine] = *late.get(mine, (queue, b"", None)), (queue, key, value)
    if key:
        put_row(self, queue, key, value)
Changes.put_row = later
""",
    ),
    "a commit is kept in two parts": (
        lambda planted: jobs.run(60, SEED, ["transactions"], planted=planted),
        """
import time
from msgspec.structs import replace
from forebay.store.rocksdb.store import RocksStore
commit = RocksStore.commit
def in_parts(self, group, *, sync=True):
    for each in group:
        commit(self, [replace(each, deletes=[], ranges=[], body_ranges=[])], sync=sync)
        time.sleep(0.005)
        commit(self, [replace(each, puts=[], bodies=[], clears=[])], sync=sync)
RocksStore.commit = in_parts
""",
    ),
    "how far telling was is not kept": (
        lambda planted: dependents.run(60, SEED, planted=planted, count=1_000),
        FORGETFUL % b"f" + SLOWLY,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    play, planted = PLANTED[name]
    with pytest.raises((Violation, AssertionError)) as found:
        play(planted)
    (note,) = found.value.__notes__
    shutil.rmtree(note.rpartition(" ")[2])
