"""Would the model notice? Bugs are planted in the core one at a time, and each must be caught."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.core import log, merge, pop, records, settle, shard, sweep
from penstock.core.agenda import Agenda
from tests.sim.drive import Driver

SEEDS, STEPS = 12, 5_000
"""Far more than any of them needs."""

Planted = tuple[Callable[..., Any], str, str]

MUTANTS: dict[str, Planted] = {
    "a lease lasts one millisecond too long": (Agenda.first_due, "at <= now", "at < now"),
    "the cursor skips a message": (
        pop._Taking._take_fresh,
        "track.cursor = cursor + run.count",
        "track.cursor = cursor + run.count + (run.count == 3)",
    ),
    "a late ack with its token settles another's lease": (
        settle.live_lease,
        "shard.leases.get(name)",
        "shard.leases.get(name) or next(iter(shard.leases.values()), None)",
    ),
    "a failure is not counted": (settle._reschedule, "run.failures + 1", "run.failures"),
    "a partial ack settles the neighbour": (settle._take_out, "<< found.at", "<< max(found.at - 1, 0)"),
    "an acked lease stays in the store": (shard.Shard.seal, "elif lease.stored:", "elif not lease.stored:"),
    "a group that wants only what is new gets everything": (
        pop._begin,
        "return log.end",
        "return log.first",
    ),
    "a cursor is not stored": (pop._Taking.take, "self.shard.touch_track(track)", "pass"),
    "leased messages are swept away": (sweep.settled_to, "if track.spans:", "if False:"),
    "the busiest partition is always served first": (
        pop._Taking.take,
        "track.turn = group.turn",
        "track.turn = -group.turn",
    ),
    "names are given out again after a restart": (
        shard.Shard.next_name,
        "lease_name(self.epoch, self.counter)",
        "lease_name(1, self.counter)",
    ),
    "a nacked message keeps its place in the old lease": (
        settle._cut_out,
        "begin = high",
        "begin = high - 1 if high < run.count else high",
    ),
    "an id of a connection's own delivery means the default group": (
        settle._meant,
        "command.owner and",
        "False and",
    ),
    "an extended lease may get shorter": (settle._prolong, "max(run.expires_at, expires_at)", "expires_at"),
    "a body's last payload is cut short": (records.body_slices, "data + ends[-1]", "data + ends[-1] - 1"),
    "a new group does not hold what it has not read": (
        sweep._mark,
        "marks[-1].offset > settled",
        "False",
    ),
    "a merge leaves a header behind": (merge.apply, "for each in parts[1:]", "for each in parts[2:]"),
    "a merge crosses a partition number": (
        merge._go_together,
        "number_of(partition, first.base) == number_of(partition, segment.base)",
        "True",
    ),
    "merged messages all have the time of the first": (
        merge.join,
        "records.pack_runs(runs, parts[0].created_at)",
        'b""',
    ),
    "merged segments are counted as settled twice": (
        merge.apply,
        "merged.weight - sum(each.weight for each in parts)",
        "merged.weight",
    ),
    "a body that leaves memory takes another segment along": (
        log.let_go,
        "log.segments[position] is segment",
        "True",
    ),
    "ids confirmed as os are not marked in the store": (
        shard.Shard.mark_os,
        "self.touch_partition(queue, partition)",
        "pass",
    ),
    "marks are cleared in memory only": (
        shard.Shard.clear_marks,
        "self.touch_partition(queue, partition)",
        "pass",
    ),
}


@contextmanager
def planted(function: Callable[..., Any], old: str, new: str) -> Iterator[None]:
    """Change a function's text while the block runs, for everyone who already imported it."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not there exactly once"
    space: dict[str, Any] = {}
    exec(compile(source.replace(old, new), "<mutant>", "exec"), function.__globals__, space)
    original = function.__code__
    function.__code__ = space[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = original


def live() -> None:
    for seed in range(SEEDS):
        Driver(seed).run(STEPS)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches(name: str) -> None:
    with planted(*MUTANTS[name]), pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        live()
