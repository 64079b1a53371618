"""The schedule of one track against a plain list, far busier than any queue's: 60,000 steps."""

import random

import pytest

from forebay.core.bounds import NEVER
from forebay.core.state import Schedule, Scheduled

LEVELS = [-3, 0, 1, 3]


def live(seed: int, steps: int) -> None:
    """Add, remove, take what is due, and let time pass; whatever is asked, the list must agree."""
    pick = random.Random(seed)
    schedule, runs, now, offset = Schedule(), list[Scheduled](), 1_000, 0
    for _ in range(steps):
        chosen = pick.random()
        if chosen < 0.4 and len(runs) < 30:
            count = pick.choice([1, 1, 3])
            due_at = now + pick.choice([0, 0, 1, 5, 20, 100])
            past = pick.choice([(0, 0, ""), (2, 1, "no")])
            run = Scheduled(due_at, offset, count, pick.choice(LEVELS), *past)
            offset += count
            runs.append(run)
            schedule.add(run, now)
        elif chosen < 0.7 and runs:
            run = min(runs, key=lambda run: run.due_at) if pick.random() < 0.3 else pick.choice(runs)
            runs.remove(run)
            schedule.remove(run)
        elif chosen < 0.75:
            for run in [run for run in runs if run.due_at <= now]:
                runs.remove(run)
                schedule.remove(run)
        elif chosen < 0.8:
            now += pick.choice([1, 1, 4, 30])
        elif chosen < 0.9:
            assert schedule.next_due_at(now) == min((r.due_at for r in runs if r.due_at > now), default=NEVER)
        else:
            _compare(schedule, runs, now, pick.randint(max(offset - 40, 0), offset))


def _compare(schedule: Schedule, runs: list[Scheduled], now: int, offset: int) -> None:
    due = [run for run in runs if run.due_at <= now]
    assert schedule.ready_level(now) == min((run.level for run in due), default=None)
    for level in LEVELS:
        line = sorted((run.due_at, run.first, run) for run in due if run.level == level)
        wanted = (line[0][2] if level % 2 else line[-1][2]) if line else None
        assert schedule.due(level, now) == wanted
    assert schedule.due_messages(now) == sum(run.count for run in due)
    assert schedule.messages == sum(run.count for run in runs)
    by_offset = sorted(runs, key=lambda run: run.first)
    assert list(schedule) == by_offset
    assert schedule.last() == (by_offset[-1] if runs else None)
    assert schedule.lowest() == (by_offset[0].first if runs else NEVER)
    over = [run for run in by_offset if run.first < offset + 5 and run.first + run.count > offset]
    assert schedule.over(offset, offset + 5) == over
    assert schedule.find(offset) == next((run for run in over if run.first <= offset), None)


@pytest.mark.parametrize("seed", range(6))
def test_a_busy_schedule_agrees_with_a_list(seed: int) -> None:
    live(seed, 10_000)
