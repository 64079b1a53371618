"""Random lives with everything that clears out, comes back or goes elsewhere, and what must hold meanwhile.

Nobody knows here what comes next; but what is delivered is what was pushed or last put in its place, nothing
is lost that nobody settled, counts agree with states, and a restart or a refusal changes nothing.
"""

import random
from collections import Counter
from typing import Any

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import ForebayError, NotFound
from forebay.core.log import log as logs
from forebay.core.records import keyspace
from forebay.core.retention import carve, merge as merges
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import PLAIN, Attributes, Backoff, Cleanup, Queue, Segment
from forebay.core.tracks.dropped import dropped_count
from forebay.core.words import LINE, STATES
from tests.core.harness import Core
from tests.sim.world import snapshot

GROUPS = ("default", "other")
PARTITIONS = ("default", "default", "x")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"completed_retention_ms": 0},
    "bytes": {"completed_retention_bytes": 3_000},
    "partitions": {"completed_retention_ms": 0, "partition_retention_ms": 15_000},
    "small": {"completed_retention_ms": 0, "max_size": 25},
    "ordered": {"completed_retention_ms": 0, "ordering": "partition"},
    "memory": {"completed_retention_ms": 0, "durability": "memory"},
    "gated": {"completed_retention_ms": 0, "window_buffer_ms": 10, "delayed_processing_ms": 5},
    "forgetful": {"completed_retention_ms": 0, "retention_ms": 40_000},
    "idle": {"completed_retention_ms": 0, "group_idle_ms": 30_000},
}
LOSSY = ("forgetful", "idle")
"""Kinds that drop what nobody settled."""


CLEANUPS = [
    Cleanup(True),
    Cleanup(on_fail=True),
    Cleanup(keep_ms=50),
    Cleanup(True, keep_count=1),
    Cleanup(keep_count=2),
]


class Life:
    """One life of a queue."""

    def __init__(self, seed: int, kind: str) -> None:
        self.pick = random.Random(f"{kind} {seed}")
        self.core = Core()
        self.kind = kind
        self.ordered = kind == "ordered"
        self.payloads: dict[int, bytes] = {}
        """What each message says, by id."""
        self.over: set[tuple[str, int]] = set()
        """Group and id of what may have been settled, or given up."""
        self.leases: dict[str, tuple[str, list[int]]] = {}
        """Group and ids of each delivery."""
        self.pushed = 0
        self.configure()

    def configure(self) -> None:
        self.core.configure(max_attempts=2, backoff=Backoff("fixed", 25), **KINDS[self.kind])
        for name in GROUPS:  # what came before a group was made may be gone by then
            self.core.pop(group=name)

    @property
    def queue(self) -> Queue:
        return self.core.engine.queues["default", "q"]

    def step(self) -> None:
        usual = [self.push, self.push, self.pop, self.settle, self.settle, self.wait, self.keep]
        less = [self.change, self.note, self.update, self.tidy, self.catch_up]
        rare = [self.clear, self.seek]
        self.pick.choice([*usual * 3, *less * 2, *rare])()
        self.check()

    # What is done.

    def push(self) -> None:
        pick = self.pick
        having = PLAIN
        if pick.random() < 0.4:
            having = Attributes(
                priority=0 if self.ordered else pick.choice([0, 3]),
                delay_ms=pick.choice([0, 15, 300_000]),
                max_attempts=pick.choice([None, 1]),
                cleanup=pick.choice([None, None, *CLEANUPS]),
                stall_ms=pick.choice([0, 0, 30]),
            )
        payloads = [
            b"%d " % (self.pushed + at) * pick.choice([1, 60]) for at in range(pick.choice([1, 2, 12]))
        ]
        self.pushed += len(payloads)
        try:
            first = self.core.push(*payloads, partition=pick.choice(PARTITIONS), attributes=having)
        except ForebayError:
            return
        for id_, payload in enumerate(payloads, first):
            assert id_ not in self.payloads, "an id is given out once"
            self.payloads[id_] = payload
            if having.cleanup is not None:
                self.over.add(("default", id_))

    def pop(self) -> None:
        pick = self.pick
        group = "default" if self.kind == "idle" and pick.random() < 0.9 else pick.choice(GROUPS)
        popped = self.core.pop(pick.choice([1, 2, 20]), group=group, lease_ms=pick.choice([None, 20, 60_000]))
        ids: list[int] = []
        for each in popped.deliveries:
            for at, payload in enumerate(each.payloads()):
                assert self.payloads[each.first + at] == bytes(payload)
                ids.append(each.first + at)
        assert len(set(ids)) == len(ids)
        if popped.lease is not None:
            self.leases[popped.lease] = (group, ids)

    def catch_up(self) -> None:
        """Have every group done with all it can have."""
        for name in GROUPS:
            popped = self.core.pop(1_000, group=name)
            ids = [each.first + at for each in popped.deliveries for at in range(each.count)]
            self.over |= {(name, each) for each in ids}
            if popped.lease is not None:
                self.core.ack(popped.lease)
        self.core.commit()
        self.core.wait(self.pick.choice([1, SWEEP_MS]))

    def settle(self) -> None:
        if not self.leases:
            return
        pick = self.pick
        lease = pick.choice(list(self.leases)[-4:])
        group, ids = self.leases[lease]
        some = pick.sample(ids, pick.randint(1, len(ids)))
        ways: list[c.Command] = [
            c.Ack("default", lease),
            c.Ack("default", lease),
            c.Ack("default", ids=some, group=group, partial=True),
            c.Nack("default", lease, error="no"),
            c.Nack("default", ids=some, group=group, partial=True, delay_ms=pick.choice([None, 0])),
            c.Extend("default", lease, lease_ms=50),
        ]
        command = pick.choice(ways)
        if isinstance(command, c.Ack):
            self.over |= {(group, each) for each in ids}
            if command.ids is not None and group == "default":
                command.results = [b"%d" % each for each in some]
        self._try(command)

    def change(self) -> None:
        some = self._some(3)
        group = self.pick.choice(GROUPS)
        delay_ms = self.pick.choice([0, 30])
        ways: list[c.Command] = [
            c.Cancel("default", some),
            c.Cancel("default", some, group),
            c.Discard("default", some, group),
            c.Move("default", some, group, delay_ms=delay_ms),
            c.Move("default", some, group, delay_ms=0, only_delayed=True),
            c.Requeue("default", "q", group),
            c.Requeue("default", "q", group, some),
            c.Purge("default", "q", group, some),
        ]
        command = self.pick.choice(ways)
        if isinstance(command, c.Cancel):
            groups = GROUPS if command.group is None else (command.group,)
            self.over |= {(name, each) for name in groups for each in some}
        elif isinstance(command, c.Purge):
            self.over |= {(group, each) for each in some}
        self._try(command)

    def note(self) -> None:
        (message,) = self._some(1)
        line: c.Command = c.AddNote("default", message, LINE, b"line")
        self._try(self.pick.choice([line, c.TellProgress("default", message, 50)]))

    def update(self) -> None:
        (message,) = self._some(1)
        self.pushed += 1
        payload = b"updated %d" % self.pushed
        if self._try(c.Update("default", message, payload)):
            self.payloads[message] = payload

    def clear(self) -> None:
        pick = self.pick
        group = pick.choice(GROUPS)
        states = pick.choice(
            [("waiting", "delayed"), ("delayed",), ("dead",), ("completed",), ("completed",)]
        )
        grace_ms = pick.choice([0, 100, 15_000])
        if states != ("completed",):
            self.over |= {(group, each) for each in self.payloads}
        self._try(c.Clean("default", "q", states, group, grace_ms, pick.choice([None, 3])))
        if pick.random() < 0.03:
            prefix = self.queue.prefix
            self.core.ask(c.Obliterate("default", "q"), c.Cleaned)
            self.payloads.clear()
            self.leases.clear()
            self.core.commit()
            assert not [key for key in self._stored() if key.startswith(prefix)]
            self.configure()

    def seek(self) -> None:
        group, name = self.pick.choice(GROUPS), self.pick.choice([None, "default"])
        starts: list[int | str] = ["all", "new", self.core.now - 20]
        start = self.pick.choice(starts)
        if start != "all":
            self.over |= {(group, each) for each in self.payloads}
        self._try(c.Seek("default", "q", group, start, name))

    def wait(self) -> None:
        self.core.wait(self.pick.choice([1, 5, 20, 100, SWEEP_MS, SWEEP_MS, 31_000]))

    def keep(self) -> None:
        self.core.commit()
        if self.kind == "memory" or self.pick.random() < 0.5:
            return
        self.core.engine.tick(self.core.now)
        self.core.commit()
        before = self._seen()
        self.core.restart()
        self.core.commit()
        assert self._seen() == before
        self._check_store()

    def tidy(self) -> None:
        """Merge and carve, as the broker does."""
        if self.kind == "memory":
            return
        self.core.commit()
        shard = self.core.engine.shards[self.queue.shard]
        for partition in self.queue.partitions.values():
            shard.changes.to_merge[partition.key] = (self.queue, partition)
        while (merge := self.core.engine.plan_merge(2)) is not None:
            joined = merges.join(merge, [self._body(each) for each in merge.parts])
            self.core.engine.apply_merge(merge, joined)
            self.core.commit()
        while (carving := self.core.engine.plan_carving()) is not None:
            parts = carve.join(carving, [self._body(carving.island)])
            if self.pick.random() < 0.5:
                self.change()  # things go on meanwhile
            self.core.engine.apply_carving(carving, parts)
            self.core.commit()

    def _body(self, segment: Segment) -> bytes:
        if segment.body is not None:
            return segment.body
        (body,) = self.core.store.bodies([keyspace.body_key(self.queue.prefix, segment.body_name)])
        assert isinstance(body, bytes)
        return body

    def _some(self, count: int) -> list[int]:
        recent = list(self.payloads)[-60:] or [1 << 40]
        return self.pick.sample(recent, min(count, len(recent)))

    def _try(self, command: c.Command) -> bool:
        self.core.engine.tick(self.core.now)
        self.core.commit()
        try:
            self.core.engine.apply(command, self.core.now)
        except ForebayError:
            assert not self.core.engine.seal(self.core.now), "an error changed something"
            return False
        return True

    # What must hold.

    def _seen(self) -> object:
        """Everything that is stored, and everything that can be asked."""
        parts: Any = snapshot(self.core.engine)
        shown = [parts.pop("tenants")]
        for tenant, name in sorted(parts):
            *rest, groups, noted, jobs, leases = parts[tenant, name]
            by_name = {group[1]: (group[0], group[3], sorted(group[4])) for group in groups}
            shown.append((rest, by_name, noted, jobs, leases))
        states = {(name, each): self._state(each, name) for each in self.payloads for name in GROUPS}
        counts = {name: self.core.counts(group=name) for name in GROUPS}
        notes = {each: self._notes(each) for each in self.payloads}
        return shown, states, counts, notes

    def _state(self, message: int, group: str) -> object:
        try:
            return self.core.find(message, group)
        except NotFound:
            return None

    def _notes(self, message: int) -> object:
        try:
            found = self.core.ask(queries.GetNotes("default", message, (0, 1)), queries.NotesFound)
        except NotFound:
            return None
        return [[each.created_at for each in kind] for kind in found.notes], found.progress

    def _stored(self) -> list[bytes]:
        return [*self.core.store._records, *self.core.store._bodies]

    def _check_store(self) -> None:
        """The store has what is in memory, and no more."""
        prefix = self.queue.prefix
        kinds = Counter(key[8:9] for key in self._stored() if key.startswith(prefix))
        partitions = self.queue.partitions.values()
        segments = sum(len(partition.log.segments) for partition in partitions)
        notes = sum(len(each.log.segments) for each in self.queue.notes.values())
        assert (kinds[b"h"], kinds[b"i"], kinds[b"b"]) == (segments, notes, segments + notes)
        assert kinds[b"p"] == len(partitions)
        assert kinds[b"u"] == sum(partition.successors.size for partition in partitions)
        assert kinds[b"j"] == sum(len(partition.progress) for partition in partitions)
        tracks = [track for group in self.queue.groups.values() for track in group.tracks.values()]
        assert kinds[b"v"] == sum(len(track.schedule) for track in tracks)
        assert kinds[b"d"] == sum(track.dead.size for track in tracks)
        ties = [(each.key, at) for each in partitions for at in each.ties]
        assert kinds[b"k"] == len(ties) == sum(each.links_count for each in partitions)
        assert set(self.queue.kept) <= set(ties)
        assert kinds[b"o"] == sum(track.outcomes.size for track in tracks)
        assert kinds[b"s"] == sum(track.skips.size for track in tracks)

    def check(self) -> None:
        self.core.engine.tick(self.core.now)
        kept = sum(logs.count_kept(partition.log) for partition in self.queue.partitions.values())
        for name in self.queue.groups:
            found = self.core.counts(group=name)
            fields = {state: getattr(found, state) for state in queries.Counts.__struct_fields__}
            assert min(fields.values()) >= 0, fields
            dropped = sum(map(dropped_count, self.queue.groups[name].tracks.values()))
            assert sum(fields.values()) == kept - dropped, fields
        if self.pick.random() < 0.2:
            self._check_states()

    def _check_states(self) -> None:
        for name in self.queue.groups:
            found = self.core.counts(group=name)
            every = self.core.ask(queries.Browse("default", "q", None, name, 1_000), queries.ShownAll)
            assert every.total == sum(getattr(found, state) for state in queries.Counts.__struct_fields__)
            for state in STATES:
                shown = self.core.ask(queries.Browse("default", "q", state, name, 1_000), queries.ShownAll)
                assert len(shown.deliveries) == shown.total == getattr(found, state), state
                wanted = "dead" if state == "discarded" else state
                stands = {each.state.state for each in shown.deliveries}
                assert stands <= {wanted, "delayed" if wanted == "waiting" else wanted}, state
        if self.kind not in LOSSY:
            for message in self.payloads:
                for name in GROUPS:
                    if (name, message) not in self.over:
                        assert self._state(message, name) is not None, "nothing is lost"


@pytest.mark.parametrize("kind", KINDS)
def test_what_must_never_happen_does_not(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carve, "PART_BYTES", 20)
    for seed in range(6):
        life = Life(seed, kind)
        for step in range(150):
            try:
                life.step()
            except BaseException as error:
                error.add_note(f"seed {seed}, step {step}")
                raise
