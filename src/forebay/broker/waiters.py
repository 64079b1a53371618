"""Waiting pops (long polls): FIFO per queue, group and partition."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import Struct

from forebay.core.api.commands import Pop, Reply, Wake
from forebay.core.errors import ForebayError, NotFound
from forebay.core.state import Queue

Ticket = object
"""An asker's own reference for a command, handed back with the reply."""


class Asker(Protocol):
    """A connection that sends commands to the node and gets the replies."""

    def answered(self, ticket: Ticket, reply: Reply | ForebayError) -> None:
        """Take a reply, whose commit is done."""

    def flush(self) -> None:
        """Send the replies taken so far: the last one of a commit has come."""


class Waiter(Struct, eq=False):
    """A pop that found fewer messages than it wants and waits for more."""

    asker: Asker
    ticket: Ticket
    pop: Pop
    number: int
    """Order of arrival."""
    cancel: Callable[[], None]
    """Cancels the timer of its deadline."""
    queue: Queue
    """The queue as of the pop."""


Asked = tuple[str, str, str, str | None]
"""Tenant, queue, group, and the partition asked for (None: any)."""
Lane = tuple[str, str, str, str | None, bool]
"""Tenant, queue, group, the partition asked for (None: any), and whether ``min_count`` is above 1."""


class Waiters:
    """All waiting pops of a node."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, OrderedDict[int, Waiter]] = {}
        self._groups: dict[tuple[str, str], dict[str, int]] = {}
        """Number of waiters per group of a queue."""
        self._by_asker: dict[Asker, dict[int, Waiter]] = {}
        self._by_number: dict[int, Waiter] = {}

    @property
    def count(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Waiter | None:
        return self._by_number.get(number)

    def add(self, waiter: Waiter) -> None:
        pop = waiter.pop
        self._lanes.setdefault(_lane(pop), OrderedDict())[waiter.number] = waiter
        groups = self._groups.setdefault((pop.tenant, pop.queue), {})
        groups[pop.group] = groups.get(pop.group, 0) + 1
        self._by_asker.setdefault(waiter.asker, {})[waiter.number] = waiter
        self._by_number[waiter.number] = waiter

    def remove(self, waiter: Waiter) -> None:
        waiter.cancel()
        pop = waiter.pop
        lane = self._lanes[_lane(pop)]
        del lane[waiter.number]
        if not lane:
            del self._lanes[_lane(pop)]
        groups = self._groups[pop.tenant, pop.queue]
        groups[pop.group] -= 1
        if not groups[pop.group]:
            del groups[pop.group]
        if not groups:
            del self._groups[pop.tenant, pop.queue]
        mine = self._by_asker[waiter.asker]
        del mine[waiter.number]
        if not mine:
            del self._by_asker[waiter.asker]
        del self._by_number[waiter.number]

    def of_asker(self, asker: Asker) -> list[Waiter]:
        return list(self._by_asker.get(asker, {}).values())

    def of_group(self, tenant: str, queue: str, group: str) -> list[Waiter]:
        """Return the waiters of a group, in order of arrival."""
        if group not in self._groups.get((tenant, queue), {}):
            return []
        asked = (tenant, queue, group)
        return [each for each in self.all() if (each.pop.tenant, each.pop.queue, each.pop.group) == asked]

    def part_with(self, tenant: str, queue: str, group: str) -> list[tuple[Asker, Ticket, NotFound]]:
        """Remove all waiters of a deleted group and return their NotFound replies."""
        gone = NotFound(f"group {group} of queue {queue} was deleted meanwhile")
        found = self.of_group(tenant, queue, group)
        for waiter in found:
            self.remove(waiter)
        return [(waiter.asker, waiter.ticket, gone) for waiter in found]

    def all(self) -> list[Waiter]:
        """Return all waiters, in order of arrival."""
        return list(self._by_number.values())

    def of(self, tenant: str) -> list[Waiter]:
        """Return the waiters of a tenant, in order of arrival."""
        return [each for each in self._by_number.values() if each.pop.tenant == tenant]

    def woken(self, wake: Wake, deliverable: Callable[[Pop], int]) -> Iterator[Waiter]:
        """Yield the waiters to retry after a wake-up, by arrival. The caller removes those that it serves.

        A lane ends at the first waiter that could not be served: those behind it ask for the same. Waiters
        that want several messages are tried only if there are enough of them.
        """
        queue, group, partition = wake
        waiting = self._groups.get((queue.tenant, queue.name), {})
        for name in [group] if group is not None else list(waiting):
            asked = self._asked(queue, name, partition)
            patient = deque(self._patient(asked, deliverable))
            lanes: list[Lane] = [(*lane, False) for lane in asked]
            while True:
                # Merge the lanes by arrival. The heads are looked up in every round, because the caller
                # removes waiters in between.
                heads = [next(iter(self._lanes[lane].values())) for lane in lanes if lane in self._lanes]
                if patient:
                    heads.append(patient[0])
                first = min(heads, key=lambda waiter: waiter.number, default=None)
                if first is None:
                    break
                yield first
                if patient and first is patient[0]:
                    patient.popleft()
                elif first.number in self._by_number:
                    lanes.remove(_lane(first.pop))

    def _asked(self, queue: Queue, group: str, partition: str | None) -> list[Asked]:
        """Return what pops of a group may have asked for to be woken by a partition (None: any)."""
        if partition is not None:
            return [(queue.tenant, queue.name, group, where) for where in (None, partition)]
        return list({lane[:4]: None for lane in self._lanes if lane[:3] == (queue.tenant, queue.name, group)})

    def _patient(self, asked: list[Asked], deliverable: Callable[[Pop], int]) -> list[Waiter]:
        """Return the waiters that want several messages and can get them, in order of arrival."""
        found: list[Waiter] = []
        for lane in asked:
            waiters = self._lanes.get((*lane, True))
            if waiters:
                most = max(waiters.values(), key=lambda waiter: waiter.pop.min_count)
                enough = deliverable(most.pop)
                found += [waiter for waiter in waiters.values() if waiter.pop.min_count <= enough]
        return sorted(found, key=lambda waiter: waiter.number)


def _lane(pop: Pop) -> Lane:
    return pop.tenant, pop.queue, pop.group, pop.partition, pop.min_count > 1
