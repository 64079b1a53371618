"""What is due when, against a plain list."""

from hypothesis import given, strategies as st

from forebay.core.bounds import NEVER
from forebay.core.structures.agenda import Agenda


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5))))
def test_an_agenda_is_a_list_sorted_by_time(steps: list[tuple[bool, int, int]]) -> None:
    agenda, plain = Agenda[int](), dict[int, list[int]]()
    for add, at, item in steps:
        items = plain.setdefault(at, [])
        if add and item not in items:
            agenda.add(at, item)
            items.append(item)
        elif not add and item in items:
            agenda.remove(at, item)
            items.remove(item)
        times = [each for each, found in plain.items() if found]
        assert agenda.next_at() == min(times, default=NEVER)
        first = min(times, default=NEVER)
        assert agenda.first_due(15) == (plain[first] if first <= 15 else [])


def test_instants_that_nothing_is_due_at_are_forgotten() -> None:
    agenda = Agenda[int]()
    agenda.add(0, -1)
    for at in range(1, 10_000):
        agenda.add(at, at)
        agenda.remove(at, at)
    assert len(agenda._instants) < 200
