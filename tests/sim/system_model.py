"""The queue as plain lists, continued: limits on delivery, crons, and keys with values."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from forebay.core.api.jobs import Job, KvChange
from forebay.core.state import NamedLimit, Rate
from tests.sim.jobs_model import Core, JobModel
from tests.sim.model import FOREVER, LEASED, Group, Queue, Taken

LATE_MS = 10_000
"""A slot is missed if nobody saw to it for so long."""
STEPS = {"*/10": 10_000, "* * * * *": 60_000}
"""Schedules, and how often they come."""


@dataclass
class Tokens:
    """Tokens of a limit, in parts: ``per_ms`` of them are one."""

    rate: Rate
    parts: int
    at: int

    def whole(self, now: int) -> int:
        most = (self.rate.burst or self.rate.limit) * self.rate.per_ms
        self.parts = min(self.parts + (now - self.at) * self.rate.limit, most)
        self.at = now
        return self.parts // self.rate.per_ms


@dataclass
class Cron:
    """A job that is pushed again and again."""

    name: str
    queue: str
    job: Job
    every_ms: int
    schedule: str | None
    missed: str
    limit: int
    began_at: int
    fired: int = 0
    last_slot: int = 0
    next_at: int = 0

    def after(self, at: int) -> int:
        """The first slot after an instant."""
        began_at = self.began_at if self.schedule is None else 0
        return began_at + max((at - began_at) // self.every_ms + 1, 1) * self.every_ms

    def last(self, now: int) -> int:
        """The last slot up to now."""
        began_at = self.began_at if self.schedule is None else 0
        return began_at + (now - began_at) // self.every_ms * self.every_ms


@dataclass
class Entry:
    """What is kept under a key."""

    data: bytes
    version: int
    expires_at: int


Name = tuple[str, ...]
"""What has tokens: ("named", name), ("group", queue, group) or ("partition", queue, group, partition).

The first two have others for bytes: ("named bytes", name) and ("group bytes", queue, group).
"""


class SystemModel(JobModel):
    """Everything of one tenant."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, NamedLimit] = {}
        """Limits that queues share."""
        self.tokens: dict[Name, Tokens] = {}
        self.crons: dict[str, Cron] = {}
        self.entries: dict[bytes, Entry] = {}

    @property
    def has_timers(self) -> bool:
        return bool(self.tied or self.crons)

    # Limits.

    def allowed(self, queue: str, group: Group, now: int) -> int:
        options = self.queues[queue].options
        found = [self._room(options.concurrency, self.active(group), ("group", queue, group.name), now)]
        for name in options.limits:
            if name in self.named:
                most = self.named[name].concurrency
                found.append(self._room(most, self.active_under(name), ("named", name), now))
        return min(found) if self.bytes_allowed(queue, group, now) > 0 else 0

    def bytes_allowed(self, queue: str, group: Group, now: int) -> int:
        tokens = [self.tokens_of(name, now) for name in self._byte_names(queue, group.name)]
        return min((each.whole(now) for each in tokens if each is not None), default=FOREVER)

    def _byte_names(self, queue: str, group: str) -> list[Name]:
        names: list[Name] = [("named bytes", name) for name in self.queues[queue].options.limits]
        return [("group bytes", queue, group), *names]

    def limits_bytes(self, queue: str) -> bool:
        """Whether a queue has a limit of bytes, or shares one."""
        options = self.queues[queue].options
        shared = (self.named[name] for name in options.limits if name in self.named)
        return bool(options.byte_limit or any(each.byte_limit for each in shared))

    def partition_room(self, queue: str, group: Group, partition: str, now: int) -> int:
        most = self.partition_concurrency(queue, partition)
        active = sum(cell.kind == LEASED for cell in group.cells.get(partition, []))
        return self._room(most, active, ("partition", queue, group.name, partition), now)

    def partition_concurrency(self, queue: str, partition: str) -> int:
        known = self.queues[queue]
        return 1 if partition in known.lanes else known.options.partition_concurrency

    def limits_partitions(self, queue: str) -> bool:
        """Whether a queue has limits of single partitions."""
        known = self.queues[queue]
        options = known.options
        return bool(known.lanes or options.partition_concurrency or options.partition_rate_limit)

    def _room(self, concurrency: int, active: int, name: Name, now: int) -> int:
        found = concurrency - active if concurrency else FOREVER
        tokens = self.tokens_of(name, now)
        return max(min(found, tokens.whole(now) if tokens is not None else FOREVER), 0)

    def active(self, group: Group) -> int:
        return sum(cell.kind == LEASED for cells in group.cells.values() for cell in cells)

    def active_under(self, name: str) -> int:
        return sum(
            self.active(group)
            for known in self.queues.values()
            if name in known.options.limits
            for group in known.groups.values()
        )

    def _rate(self, name: Name) -> Rate | None:
        kind, *rest = name
        if kind in ("named", "named bytes"):
            limit = self.named.get(rest[0], NamedLimit())
            return limit.rate_limit if kind == "named" else limit.byte_limit
        known = self.queues.get(rest[0])
        if known is None or rest[1] not in known.groups:
            return None
        if kind == "partition":
            return known.options.partition_rate_limit if rest[2] in known.messages else None
        return known.options.rate_limit if kind == "group" else known.options.byte_limit

    def tokens_of(self, name: Name, now: int) -> Tokens | None:
        """The tokens of a limit, if it has any: all there can be, to begin with."""
        rate = self._rate(name)
        if rate is not None and name not in self.tokens:
            self.tokens[name] = Tokens(rate, (rate.burst or rate.limit) * rate.per_ms, now)
        return self.tokens[name] if rate is not None else None

    def forget_tokens(self) -> None:
        """Forget tokens of limits that are gone or others now."""
        self.tokens = {name: each for name, each in self.tokens.items() if each.rate == self._rate(name)}

    def spend(self, queue: str, group: str, taken: Iterable[Taken], now: int) -> None:
        """Messages were delivered."""
        names: list[Name] = [("group", queue, group)]
        names += [("named", name) for name in self.queues[queue].options.limits]
        for each in taken:
            for name in (*names, ("partition", queue, group, each.partition)):
                tokens = self.tokens_of(name, now)
                if tokens is not None:
                    tokens.parts -= tokens.rate.per_ms
            for name in self._byte_names(queue, group):
                tokens = self.tokens_of(name, now)
                if tokens is not None:
                    tokens.parts -= len(each.payload) * tokens.rate.per_ms

    def restart(self) -> None:
        """Nobody knows how many tokens were spent: there are none."""
        super().restart()
        names: list[Name] = [(kind, name) for name in self.named for kind in ("named", "named bytes")]
        for queue, known in self.queues.items():
            for group in known.groups:
                names += [("group", queue, group), ("group bytes", queue, group)]
                names += [("partition", queue, group, partition) for partition in known.messages]
        rates = ((name, self._rate(name)) for name in names)
        self.tokens = {name: Tokens(rate, 0, self.now) for name, rate in rates if rate is not None}

    # Crons.

    def has_come(self, cron: Cron) -> bool:
        """Whether a cron that is put again came as often already as it shall."""
        before = self.crons.get(cron.name)
        return before is not None and _when(before) == _when(cron) and 0 < cron.limit <= before.fired

    def put_cron(self, cron: Cron) -> None:
        before = self.crons.pop(cron.name, None)
        if before is not None and _when(before) == _when(cron):
            cron.began_at, cron.fired, cron.last_slot = before.began_at, before.fired, before.last_slot
        cron.next_at = cron.after(max(self.now, cron.last_slot))
        self.crons[cron.name] = cron

    def due(self, now: int) -> list[tuple[Cron, int]]:
        """The crons that come now, one after the other, each as often as it comes, and their slots."""
        found: list[tuple[Cron, int]] = []
        for cron in list(self.crons.values()):
            while cron.next_at <= now and cron.name in self.crons:
                slot = cron.next_at if cron.missed == "all" else cron.last(now)
                assert slot > cron.last_slot, "each slot comes once"
                cron.last_slot, cron.next_at = slot, cron.after(slot)
                if cron.missed != "none" or now - slot <= LATE_MS:
                    found.append((cron, slot))
                    cron.fired += 1
                if 0 < cron.limit <= cron.fired:
                    del self.crons[cron.name]
        return found

    def obliterate(self, queue: str) -> int:
        self.crons = {name: each for name, each in self.crons.items() if each.queue != queue}
        found = super().obliterate(queue)
        self.forget_tokens()
        return found

    def removed(self, queue: str, partition: str) -> None:
        super().removed(queue, partition)
        self.forget_tokens()

    # Keys and values.

    def entry(self, key: bytes, now: int) -> Entry | None:
        found = self.entries.get(key)
        return None if found is None or 0 < found.expires_at <= now else found

    def passes(
        self, checks: list[tuple[bytes, int | None]], left: dict[bytes, Entry | None], now: int
    ) -> bool:
        """Whether all keys are of the versions that are given, after what is ``left`` by others."""
        found = [(left[key] if key in left else self.entry(key, now), version) for key, version in checks]
        return all((entry.version if entry is not None else None) == version for entry, version in found)

    def write(
        self, changes: list[KvChange], left: dict[bytes, Entry | None], now: int
    ) -> dict[bytes, Entry | None] | None:
        """What changes would leave of keys; None if they can't be made."""
        mine: dict[bytes, Entry | None] = {}
        for change in changes:
            before = {**left, **mine}
            old = before[change.key] if change.key in before else self.entry(change.key, now)
            expires_at = now + change.ttl_ms if change.ttl_ms else 0
            if change.kind == "delete":
                mine[change.key] = None
            elif change.kind == "expire":
                if old is None:
                    return None
                mine[change.key] = Entry(old.data, 0, expires_at)
            elif change.kind == "set":
                mine[change.key] = Entry(change.data, 0, expires_at)
            else:
                data = _combined(change, old)
                if data is None:
                    return None
                if change.ttl_ms is None and old is not None:
                    expires_at = old.expires_at
                mine[change.key] = Entry(data, 0, expires_at)
        return mine

    def keep(self, left: dict[bytes, Entry | None], version: int) -> None:
        """Keep what a write left, all under one version that is higher than any before."""
        assert all(each.version < version for each in self.entries.values())
        for key, entry in left.items():
            self.entries.pop(key, None)
            if entry is not None:
                self.entries[key] = Entry(entry.data, version, entry.expires_at)

    def follow(self, now: int, core: Core) -> None:
        super().follow(now, core)
        for message, keys in self.died:
            for key in keys:
                self.entries[key] = Entry(message.payload, core.version_of(key), 0)
        self.died.clear()


def _when(cron: Cron) -> tuple[str, str | None, int]:
    return cron.queue, cron.schedule, cron.every_ms


def _combined(change: KvChange, old: Entry | None) -> bytes | None:
    """A value with another; None if they do not go together."""
    given = msgspec.json.decode(change.data)
    before = msgspec.json.decode(old.data) if old is not None else None
    if change.kind in ("append", "prepend"):
        more = given if isinstance(given, list) else [given]
        if not isinstance(before, list | None):
            return None
        whole = [*(before or []), *more] if change.kind == "append" else [*more, *(before or [])]
        return msgspec.json.encode(whole)
    if not isinstance(given, int) or not isinstance(before, int | None):
        return None
    if before is None:
        return msgspec.json.encode(given)
    found = {"sum": before + given, "max": max(before, given), "min": min(before, given)}[change.kind]
    return msgspec.json.encode(found)


def limited(known: Queue) -> bool:
    """Whether a queue has limits of its own or shares some."""
    options = known.options
    return bool(options.concurrency or options.rate_limit or options.limits)
