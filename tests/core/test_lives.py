"""Random lives of queues that hold back, evict, or keep strict order, with what must hold after every step.

The lives in ``tests/sim`` know exactly what comes next; these know only what may never happen.
"""

import random
from collections import Counter

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import ForebayError
from forebay.core.state import PLAIN, Attributes, Backoff, Track
from forebay.core.tracks.cursor import fresh
from forebay.core.tracks.dead_letters import dead_over
from forebay.core.tracks.leased import leased_runs
from forebay.core.tracks.outcomes import outcome_at
from forebay.core.tracks.planning import unplanned
from tests.core.harness import Core
from tests.sim.world import snapshot

OPTIONS: dict[str, dict[str, object]] = {
    "held back": {"delayed_processing_ms": 30},
    "windowed": {"window_buffer_ms": 20},
    "evicting": {"max_wait_ms": 40},
    "all gates": {"delayed_processing_ms": 10, "window_buffer_ms": 15, "max_wait_ms": 60},
    "ordered": {"ordering": "partition"},
    "ordered and gated": {"ordering": "partition", "delayed_processing_ms": 10, "max_wait_ms": 200},
    "plain": {},
}


WAITING = {"fresh", "scheduled", "unplanned"}


class Life:
    """One life of a queue."""

    def __init__(self, seed: int, options: dict[str, object]) -> None:
        self.pick = random.Random(seed)
        self.core = Core()
        self.options = {"max_attempts": 2, "backoff": Backoff("fixed", 25), **options}
        self.ordered = options.get("ordering") == "partition"
        self.core.ask(c.Configure("default", "q", **self.options), queries.QueueFound)  # type: ignore[arg-type]
        self.leases: list[str] = []
        self.ids: list[int] = []

    def step(self) -> None:
        steps = [self.push, self.push, self.pop, self.pop, self.settle, self.change, self.wait, self.keep]
        self.pick.choice(steps)()
        self.check()

    def push(self) -> None:
        pick = self.pick
        having = PLAIN
        if pick.random() < 0.4:
            having = Attributes(
                priority=0 if self.ordered else pick.choice([0, 0, 3, -1]),
                delay_ms=pick.choice([0, 15, 90]),
                lifo=not self.ordered and pick.random() < 0.2,
                max_attempts=pick.choice([None, 0, 1]),
            )
        payloads = [b"1"] * pick.choice([1, 1, 2, 7])
        partition = pick.choice(["default", "default", "x"])
        pushed = self.core.ask(c.Push("default", "q", payloads, partition, attributes=having), c.Pushed)
        self.ids += range(pushed.first, pushed.first + pushed.count)

    def pop(self) -> None:
        pick = self.pick
        group = pick.choice(["default", "default", "other"])
        before = {name: self._unsettled(name) for name in ("default", "x")} if self.ordered else {}
        popped = self.core.pop(
            pick.choice([1, 2, 20]), group=group, lease_ms=pick.choice([None, 20]), min_count=1
        )
        if popped.lease is not None:
            self.leases.append(popped.lease)
        for each in popped.deliveries:
            held = self.options.get("delayed_processing_ms", 0)
            assert isinstance(held, int)
            track = self._track(group, each.partition)
            out_of_line = not self._attributes(track, each.offset).in_line
            again = each.deliveries > 1
            assert out_of_line or again or each.created_at + held <= self.core.now or self._moved
        if self.ordered and group == "default" and self._known:
            for name, unsettled in before.items():
                offsets = [
                    o
                    for d in popped.deliveries
                    if d.partition == name
                    for o in range(d.offset, d.offset + d.count)
                ]
                assert offsets == sorted(offsets)
                ended = [o for o in unsettled if outcome_at(self._track(group, name), o)]
                assert offsets == [o for o in unsettled if o not in ended][: len(offsets)]

    _moved = False
    _known = False

    def _attributes(self, track: Track, offset: int) -> Attributes:
        log = track.partition.log
        segment = next(each for each in log.segments if each.base <= offset < each.end)
        return segment.run_at(offset - segment.base)[2]

    def _track(self, group: str, partition: str) -> Track:
        queue = self.core.engine.queues["default", "q"]
        return queue.groups[group].tracks[queue.partitions[partition].key]

    def _unsettled(self, partition: str) -> list[int]:
        """Offsets of the group default that are fresh or scheduled, in order."""
        queue = self.core.engine.queues["default", "q"]
        self.core.engine.tick(self.core.now)
        self._known = "default" in queue.groups
        if partition not in queue.partitions or not self._known:
            return []
        track = self._track("default", partition)
        return [o for o in range(track.partition.log.end) if self._places(track, o) & WAITING]

    def settle(self) -> None:
        if self.leases:
            lease = self.pick.choice(self.leases)
            whole: list[c.Command] = [c.Ack("default", lease), c.Nack("default", lease, error="no")]
            command = self.pick.choice(whole)
            if self.pick.random() < 0.4 and self.ids:
                some = self.pick.sample(self.ids, min(3, len(self.ids)))
                command = self.pick.choice([c.Ack, c.Nack])("default", ids=some, partial=True)
            self._try(command)

    def change(self) -> None:
        if not self.ids:
            return
        some = self.pick.sample(self.ids, min(2, len(self.ids)))
        moves: list[c.Command] = [
            c.Cancel("default", some),
            c.Move("default", some, delay_ms=self.pick.choice([0, 30])),
        ]
        dead: list[c.Command] = [
            c.Requeue("default", "q"),
            c.Purge("default", "q", ids=some),
            c.Requeue("default", "q", ids=some),
        ]
        command = self.pick.choice([*moves, *dead])
        self._moved = self._moved or isinstance(command, c.Move | c.Requeue)
        self._try(command)

    def _try(self, command: c.Command) -> None:
        self.core.engine.tick(self.core.now)
        self.core.commit()
        try:
            self.core.engine.apply(command, self.core.now)
        except ForebayError:
            assert not self.core.engine.seal(self.core.now), "an error changed something"

    def wait(self) -> None:
        self.core.now += self.pick.choice([1, 5, 20, 100, 11_000])

    def keep(self) -> None:
        self.core.commit()
        if self.pick.random() < 0.4:
            self.core.engine.tick(self.core.now)
            self.core.commit()
            before = snapshot(self.core.engine)
            self.core.restart()
            self.core.commit()
            assert snapshot(self.core.engine) == before

    def _places(self, track: Track, offset: int) -> set[str]:
        """Where a message is; once or nowhere."""
        shard = self.core.engine.shards[track.queue.shard]
        found = {
            "fresh": any(fresh(track, offset, offset + 1)),
            "scheduled": track.schedule.find(offset) is not None,
            "unplanned": any(unplanned(track, offset, offset + 1)),
            "leased": any(
                not run.settled >> offset - run.first & 1
                for _, run in leased_runs(shard, track, offset, offset + 1)
            ),
            "dead": bool(dead_over(track, offset, offset + 1)),
            "ended": outcome_at(track, offset) is not None,
        }
        return {name for name, there in found.items() if there}

    def check(self) -> None:
        self.core.engine.tick(self.core.now)
        queue = self.core.engine.queues["default", "q"]
        for group in queue.groups.values():
            total: Counter[str] = Counter()
            for track in group.tracks.values():
                log = track.partition.log
                for offset in range(log.first, log.end):
                    places = self._places(track, offset)
                    assert len(places) <= 1, (offset, places)
                    total.update(places or {"completed"})
                if self.ordered and track.leased:
                    leases = {name for *_, name in track.spans} | set(track.singles.values())
                    assert len(leases) == 1, "one lease at a time"
            found = self.core.ask(queries.GroupCounts("default", "q", group.name), queries.Counts)
            assert found.waiting + found.delayed == sum(total[name] for name in WAITING)
            assert (found.active, found.dead, found.completed) == (
                total["leased"],
                total["dead"],
                total["completed"],
            )
            assert found.evicted + found.cancelled + found.expired + found.discarded == total["ended"]


@pytest.mark.parametrize("kind", OPTIONS)
def test_what_must_never_happen_does_not(kind: str) -> None:
    for seed in range(25):
        life = Life(seed, OPTIONS[kind])
        for step in range(80):
            try:
                life.step()
            except BaseException as error:
                error.add_note(f"seed {seed}, step {step}")
                raise
