"""Who is woken, and in which order."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from hypothesis import given, strategies as st

from forebay.broker.waiters import Asker, Waiter, Waiters
from forebay.core.api.commands import Pop
from forebay.core.shard.names import new_queue
from forebay.core.words import DEFAULT
from tests.broker.loop import Recorder, pop

Q = new_queue(DEFAULT, "q", bytes(8), 0)
SOMEONE = Recorder()


class Room:
    """Waiters, and who of them was cancelled."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self.cancelled: list[int] = []
        self._numbers = count(1)

    def add(self, pop: Pop, asker: Asker = SOMEONE) -> Waiter:
        number = next(self._numbers)
        waiter = Waiter(asker, number, pop, number, lambda: self.cancelled.append(number), Q)
        self.waiters.add(waiter)
        return waiter

    def served(
        self, group: str | None, partition: str, may_have: Callable[[Waiter], bool] = lambda _: True
    ) -> list[Waiter]:
        """Those of the woken who may have something; they leave."""
        found = []
        for waiter in self.waiters.woken((Q, group, partition), plenty):
            if may_have(waiter):
                self.waiters.remove(waiter)
                found.append(waiter)
        return found


def plenty(pop: Pop) -> int:
    """There are always enough messages."""
    return 1_000_000


def asked(room: Room, group: str | None = None, partition: str = DEFAULT) -> list[Waiter]:
    """Those a wake-up asks when nobody can be served."""
    return list(room.waiters.woken((Q, group, partition), plenty))


def test_the_woken_come_in_order_of_arrival_whatever_partition_they_wait_for() -> None:
    room = Room()
    waiters = [room.add(pop(partition=name)) for name in (None, "x", "x", None, "x")]
    assert room.served(None, "x") == waiters
    assert room.waiters.count == 0


def test_a_wake_up_ends_a_lane_with_the_first_who_could_not_be_served() -> None:
    room = Room()
    first, _, in_x, _ = (room.add(pop(partition=name)) for name in (None, None, "x", "x"))
    assert asked(room, partition="x") == [first, in_x]
    assert room.waiters.count == 4


def test_all_who_want_several_are_asked() -> None:
    room = Room()
    waiters = [room.add(pop(9, min_count=number)) for number in (5, 1, 3, 1, 2)]
    assert asked(room) == [waiters[0], waiters[1], waiters[2], waiters[4]]


def test_a_wake_up_is_for_its_queue_its_group_and_its_partition() -> None:
    room = Room()
    room.add(pop(queue="other"))
    room.add(pop(partition="y"))
    mine, theirs = room.add(pop(group="mine")), room.add(pop(group="theirs"))
    assert asked(room, "mine", "x") == [mine]
    assert asked(room, "nobody", "x") == []
    assert asked(room, None, "x") == [mine, theirs]


def test_a_wake_up_is_for_its_tenant() -> None:
    room = Room()
    room.add(Pop("another", "q"))
    mine = room.add(pop())
    assert asked(room) == [mine]


def test_who_was_removed_is_not_woken_and_its_timer_is_stopped() -> None:
    room = Room()
    first, second = room.add(pop()), room.add(pop())
    room.waiters.remove(first)
    assert room.cancelled == [first.number]
    assert room.waiters.get(first.number) is None
    assert room.waiters.get(second.number) is second
    assert room.served(None, DEFAULT) == [second]
    assert room.cancelled == [first.number, second.number]


def test_the_waiters_of_an_asker_are_found_in_order_of_arrival() -> None:
    room, other = Room(), Recorder()
    mine = [room.add(pop()), room.add(pop(queue="other"))]
    theirs = room.add(pop(group="audit"), other)
    mine.append(room.add(pop(partition="x")))
    assert room.waiters.of_asker(SOMEONE) == mine
    assert room.waiters.of_asker(other) == [theirs]
    assert room.waiters.all() == [*mine[:2], theirs, mine[2]]
    room.waiters.remove(theirs)
    assert room.waiters.of_asker(other) == []


GROUPS = ["default", "audit"]
POPS = st.builds(
    pop,
    st.just(4),
    group=st.sampled_from(GROUPS),
    partition=st.sampled_from([None, None, "x", "y"]),
    min_count=st.sampled_from([1, 1, 2, 4]),
)
WAKES = st.tuples(st.sampled_from([None, *GROUPS]), st.sampled_from(["x", "y"]), st.integers(0, 6))
LEAVINGS = st.integers(0, 20)


@given(st.lists(POPS | WAKES | LEAVINGS, max_size=40))
def test_waiters_serve_like_a_plain_list_would(steps: list[Pop | tuple[str | None, str, int] | int]) -> None:
    room = Room()
    waiting: list[Waiter] = []
    for step in steps:
        if isinstance(step, Pop):
            waiting.append(room.add(step))
        elif isinstance(step, int):
            for waiter in waiting[step : step + 1]:
                waiting.remove(waiter)
                room.waiters.remove(waiter)
        else:
            group, partition, messages = step
            wanted = list(_served(waiting, group, partition, messages))
            left = dict.fromkeys(GROUPS, messages)
            found = room.served(group, partition, partial(_take, left))
            for name in GROUPS:
                assert _of_group(found, name) == _of_group(wanted, name)
            waiting = [waiter for waiter in waiting if waiter not in found]
        assert room.waiters.all() == waiting


def _served(waiting: list[Waiter], group: str | None, partition: str, messages: int) -> Iterator[Waiter]:
    """Who is served when every group has so many messages: in order of arrival, each who can be."""
    left = dict.fromkeys(GROUPS, messages)
    for waiter in waiting:
        links_count = group in (None, waiter.pop.group) and waiter.pop.partition in (None, partition)
        if links_count and _take(left, waiter):
            yield waiter


def _take(left: dict[str, int], waiter: Waiter) -> bool:
    """Take what a waiter wants at least, if there is enough."""
    enough = left[waiter.pop.group] >= waiter.pop.min_count
    if enough:
        left[waiter.pop.group] -= waiter.pop.min_count
    return enough


def _of_group(waiters: list[Waiter], name: str) -> list[Waiter]:
    return [waiter for waiter in waiters if waiter.pop.group == name]
