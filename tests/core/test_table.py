"""A table and a schedule against the plain lists they stand for."""

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.core.bounds import NEVER
from forebay.core.state import Schedule, Scheduled
from forebay.core.structures.table import CHUNK, Table

keys = st.tuples(st.integers(-5, 60), st.integers(-5, 60))


class TableMachine(RuleBasedStateMachine):
    """Rows come, in bulk so that chunks split, and go; every question is answered as by a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table("qqI")
        self.rows: dict[tuple[int, int], int] = {}

    @property
    def sorted(self) -> list[tuple[int, ...]]:
        return [(*key, value) for key, value in sorted(self.rows.items())]

    @rule(key=keys, value=st.integers(0, 9))
    def add(self, key: tuple[int, int], value: int) -> None:
        if key not in self.rows:
            self.table.add((*key, value))
            self.rows[key] = value

    @rule(first=st.integers(-5, 60), count=st.sampled_from([CHUNK // 2, CHUNK, 2 * CHUNK + 1]))
    def add_many(self, first: int, count: int) -> None:
        for second in range(1_000, 1_000 + count):
            self.add((first, second), second % 7)

    @rule(first=st.integers(-5, 60))
    def remove_all_of(self, first: int) -> None:
        for key in [key for key in self.rows if key[0] == first]:
            assert self.table.remove(*key) == (*key, self.rows.pop(key))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        some = sorted(self.rows)[:: max(1, len(self.rows) // 50)]
        key = data.draw(st.sampled_from(some))
        assert self.table.remove(*key) == (*key, self.rows.pop(key))

    @rule(first=st.integers(-6, 61), second=st.sampled_from([-6, 0, 30, 1_000, 1_500, 9_999]))
    def look(self, first: int, second: int) -> None:
        rows = self.sorted
        before = [row for row in rows if row[:2] < (first, second)]
        upto = [row for row in rows if row[:2] <= (first, second)]
        above = [row for row in rows if row[0] > first]
        assert self.table.below(first, second) == (before[-1] if before else None)
        assert self.table.upto(first, second) == (upto[-1] if upto else None)
        assert self.table.above(first) == (above[0] if above else None)
        assert list(self.table.since(first, second)) == rows[len(before) :]
        assert self.table.total(first, 2) == sum(row[2] for row in rows if row[0] < first)

    @invariant()
    def is_the_sorted_list(self) -> None:
        rows = self.sorted
        assert list(self.table) == rows
        assert len(self.table) == len(rows)
        if rows:
            assert (self.table.head(), self.table.tail()) == (rows[0], rows[-1])


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@given(st.permutations(range(200)))
def test_rows_come_out_sorted_however_they_came(order: list[int]) -> None:
    table = Table("qq")
    for number in order:
        table.add((number // 3, number % 3))
    assert list(table) == sorted((number // 3, number % 3) for number in order)


class ScheduleMachine(RuleBasedStateMachine):
    """Runs come and go while time passes; a list that is looked through says the same."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()
        self.runs: dict[int, Scheduled] = {}
        self.now = 0

    @rule(
        place=st.integers(0, 40),
        count=st.integers(1, 10),
        wait=st.integers(-20, 50),
        level=st.sampled_from([-9, -2, 0, 1, 2, 3]),
        past=st.sampled_from([(0, 0, ""), (2, 1, "no"), (0, 0, "damaged")]),
    )
    def add(self, place: int, count: int, wait: int, level: int, past: tuple[int, int, str]) -> None:
        first = place * 10
        if first not in self.runs:
            run = Scheduled(max(0, self.now + wait), first, count, level, *past)
            self.schedule.add(run, self.now)
            self.runs[first] = run

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.schedule.remove(self.runs.pop(data.draw(st.sampled_from(sorted(self.runs)))))

    @rule(ms=st.integers(0, 30))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def serve(self) -> None:
        """Take what is served first: the lowest level, its oldest run or, last in first out, its newest."""
        level = self.schedule.ready_level(self.now)
        due = [run for run in self.runs.values() if run.due_at <= self.now]
        assert level == min((run.level for run in due), default=None)
        if level is None:
            return
        line = sorted((run.due_at, run.first) for run in due if run.level == level)
        wanted = self.runs.pop(line[0 if level % 2 else -1][1])
        assert self.schedule.due(level, self.now) == wanted
        self.schedule.remove(wanted)

    @rule(offset=st.integers(0, 410), length=st.integers(1, 60))
    def look(self, offset: int, length: int) -> None:
        runs = sorted(self.runs.values(), key=lambda run: run.first)
        holding = [run for run in runs if run.first <= offset < run.first + run.count]
        assert self.schedule.find(offset) == (holding[0] if holding else None)
        end = offset + length
        over = [run for run in runs if run.first < end and offset < run.first + run.count]
        assert self.schedule.over(offset, end) == over

    @rule(most=st.integers(1, 40))
    def count(self, most: int) -> None:
        due = sum(run.count for run in self.runs.values() if run.due_at <= self.now)
        assert self.schedule.due_messages(self.now) == due
        found = self.schedule.due_up_to(most, self.now)
        assert min(most, due) <= found <= due

    @invariant()
    def is_what_was_put_in(self) -> None:
        runs = sorted(self.runs.values(), key=lambda run: run.first)
        assert list(self.schedule) == runs
        assert len(self.schedule) == len(runs)
        assert self.schedule.messages == sum(run.count for run in runs)
        assert self.schedule.last() == (runs[-1] if runs else None)
        assert self.schedule.lowest() == (runs[0].first if runs else NEVER)
        later = [run.due_at for run in runs if run.due_at > self.now]
        assert self.schedule.next_due_at(self.now) == min(later, default=NEVER)


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_a_schedule_forgets_levels_that_came_and_went() -> None:
    schedule = Schedule()
    for number in range(1_000):
        run = Scheduled(1_000 - number, number, 1, 1)
        schedule.add(run, 0)
        if number % 2:
            schedule.remove(run)
    assert len(schedule._future) + len(schedule._later) < 4 * 500 + 100
