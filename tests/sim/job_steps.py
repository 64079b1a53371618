"""One life of a few queues, with what makes them a job system."""

from dataclasses import dataclass, field

from penstock.core import commands as c
from penstock.core.errors import Invalid, NotFound, PenstockError
from penstock.core.jobdata import Particulars
from penstock.core.model import Attributes, Shared
from tests.sim import model as m
from tests.sim.checks import TENANT, load
from tests.sim.jobs_model import KNOWN, REPLACED
from tests.sim.system_model import Cron, Entry
from tests.sim.world import World

__all__ = ["JobWorld", "Op"]


@dataclass
class Op:
    """One command of a transaction: push, write, ack or nack."""

    kind: str
    queue: str = ""
    jobs: list[c.Job] = field(default_factory=list)
    places: list[m.Place] = field(default_factory=list)
    changes: list[c.Change] = field(default_factory=list)
    checks: list[tuple[bytes, int | None]] = field(default_factory=list)


class JobWorld(World):
    """One life of a few queues."""

    def push_jobs(
        self,
        queue: str,
        jobs: list[c.Job],
        durability: str | None = None,
        request: tuple[str, str] | None = None,
    ) -> list[int]:
        """Push jobs that may be known already; their ids, if they are not refused."""
        self._tick(queue)
        command = c.PushJobs(TENANT, queue, jobs, durability, request)
        again = (
            request is not None and self.model.queue(queue).once.get(("r", *request), (0, []))[0] > self.now
        )
        why = self._forbids(queue, jobs, again=again)
        if why is not None:
            self._refused(command, why)
            return []
        reply = self._apply(command)
        assert isinstance(reply, c.PushedJobs)
        known = self.model.queue(queue)
        before = known.once.get(("r", *request), (0, [])) if request is not None else (0, [])
        if before[0] > self.now:
            assert (reply.ids, reply.duplicates) == (before[1], list(range(len(before[1]))))
        else:
            self._compare_pushed(reply, self.model.push_jobs(queue, jobs, self.now, self._takes_over))
            self._must_sync |= durability != "os" and len(reply.duplicates) < len(jobs)
            if request is not None and known.options.dedup_window_ms:
                known.once["r", *request] = (self.now + known.options.dedup_window_ms, reply.ids)
        self._check(queue)
        return reply.ids

    def _compare_pushed(self, reply: c.PushedJobs, answers: list[tuple[str, int]]) -> None:
        kinds = [kind for kind, _ in answers]
        assert reply.ids == [message for _, message in answers], (reply, answers)
        assert reply.duplicates == [at for at, kind in enumerate(kinds) if kind == KNOWN], (reply, answers)
        assert reply.replaced == [at for at, kind in enumerate(kinds) if kind == REPLACED], (reply, answers)

    def _forbids(self, queue: str, jobs: list[c.Job], *, again: bool = False) -> type[PenstockError] | None:
        """Why jobs may not be pushed; what is sent again needs no room."""
        for job in jobs:
            if self._breaks_order(queue, job.attributes):
                return Invalid
            if any(target.lost for target in self.model.targets(job.attributes)):
                return NotFound
        new = 0 if again else self.model.count_new(queue, jobs, self._takes_over, self.now, set())
        return self._why_full(queue, new) if new and self._is_full(queue, new) else None

    def _breaks_order(self, queue: str, attributes: Attributes) -> bool:
        return super()._breaks_order(queue, attributes) or (
            self.model.queue(queue).ordered and bool(attributes.depends_on)
        )

    def job(
        self,
        partition: str,
        attributes: Attributes,
        own: Particulars | None = None,
        *,
        lane: bool = False,
    ) -> c.Job:
        """A job with a payload that no other message has."""
        return c.Job(self._payload(), partition, attributes, own, lane)

    def commit(self) -> None:
        super().commit()
        assert not self.engine.ends, "what follows from an end comes in its commit"

    def ack_and_reload(self, queue: str, place: m.Place) -> None:
        """Ack a message; the process ends again and again while those who wait for it are told."""
        self._tick()
        token = self.model.find(queue, place, None, "default", 0)
        if token is None or self.model.queues[queue].options.require_lease:
            return
        self._apply(c.Ack(TENANT, None, self._ids(queue, [place]), "default"))
        self.model.ack(token, {place})
        reloads = 0
        while self.engine.unfinished:
            self.engine.clear_marks()
            self.commit()
            self.store = self._reopen(self.store)
            self.engine = load(self.store, self.limits, self.now)
            reloads += 1
            assert reloads < 1_000, "those who wait are told at last"
        if reloads:
            self.merging = self.carving = None
            self.shelf = []
            self._forget_process()
        self._follow()
        self.check_all()

    # Limits.

    def put_limit(self, name: str, limit: Shared | None) -> None:
        """Set a limit that queues share, or remove it."""
        self._tick()
        command = c.LimitPut(TENANT, name, limit)
        if limit is None and name not in self.model.named:
            self._refused(command, NotFound)
            return
        reply = self._apply(command)
        if limit is None:
            del self.model.named[name]
        else:
            self.model.named[name] = limit
        self.model.forget_tokens()
        assert isinstance(reply, c.LimitsFound)
        assert [(each.name, each.limit, each.active) for each in reply.limits] == [
            (each, self.model.named[each], self.model.active_under(each)) for each in sorted(self.model.named)
        ]
        self._must_sync = True
        self.check_all()

    # Crons.

    def put_cron(self, cron: Cron) -> None:
        """Make a cron, or make it another."""
        self._tick()
        every_ms = cron.every_ms if cron.schedule is None else None
        how = (cron.schedule, every_ms, "UTC", cron.limit, cron.missed)
        command = c.CronPut(TENANT, cron.name, cron.queue, cron.job, *how)
        if self.model.has_come(cron):
            self._refused(command, Invalid)
            return
        reply = self._apply(command)
        self.model.queue(cron.queue)
        self.model.put_cron(cron)
        assert isinstance(reply, c.CronsFound)
        assert [(each.name, each.next_at, each.fired) for each in reply.crons] == [
            (cron.name, cron.next_at, cron.fired)
        ]
        self._must_sync = True
        self.check_all()

    def delete_cron(self, name: str) -> None:
        self._tick()
        if name not in self.model.crons:
            self._refused(c.CronDelete(TENANT, name), NotFound)
            return
        self._apply(c.CronDelete(TENANT, name))
        del self.model.crons[name]
        self._must_sync = True
        self.check_all()

    def _next_due_at(self) -> int:
        ties = (each.tie.watch_at for each in self.model.tied if each.tie is not None and each.tie.watch_at)
        crons = (each.next_at for each in self.model.crons.values())
        entries = (each.expires_at for each in self.model.entries.values() if each.expires_at > self.now)
        return min([super()._next_due_at(), *ties, *crons, *entries])

    # Keys and values.

    def write(self, changes: list[c.Change], checks: list[tuple[bytes, int | None]]) -> None:
        """Change keys, all or none."""
        self._tick()
        command = c.KvWrite(TENANT, changes, checks)
        left = self.model.write(changes, {}, self.now) if self.model.passes(checks, {}, self.now) else None
        if left is None:
            self._refused(command, PenstockError)
            return
        before = {key for key in left if self.model.entry(key, self.now) is not None}
        reply = self._apply(command)
        assert isinstance(reply, c.KvWritten)
        self._keep(reply, left)
        assert reply.deleted == sum(key in before and left[key] is None for key in left)
        self._must_sync |= any(key in before or left[key] is not None for key in left)
        self.check_all()

    def _keep(self, reply: c.KvWritten, left: dict[bytes, Entry | None]) -> None:
        self.model.keep(left, reply.version)
        found = [(each.data, each.expires_at) if each is not None else None for each in reply.values]
        assert found == [(each.data, each.expires_at) if each is not None else None for each in left.values()]

    def get(self, keys: list[bytes]) -> None:
        reply = self._apply(c.KvGet(TENANT, keys))
        assert isinstance(reply, c.KvFound)
        entries = [self.model.entry(key, self.now) for key in keys]
        assert [each and (each.data, each.version, each.expires_at) for each in reply.values] == [
            each and (each.data, each.version, each.expires_at) for each in entries
        ]

    # Transactions.

    def transact(self, ops: list[Op]) -> None:
        """Carry out several commands, all or none."""
        self._tick()
        commands = [self._command(op) for op in ops]
        left: dict[bytes, Entry | None] = {}
        writes = [self._written(op, left) for op in ops]
        if not all(map(self._may, ops)) or None in writes or self._meets(ops):
            self._refused(c.Transact(TENANT, commands), PenstockError)
            return
        reply = self._apply(c.Transact(TENANT, commands))
        assert isinstance(reply, c.Transacted)
        for op, written, each in zip(ops, writes, reply.replies, strict=True):
            if isinstance(each, c.KvWritten):
                assert written is not None
                self._keep(each, written)
            elif isinstance(each, c.PushedJobs):
                jobs = self.model.push_jobs(op.queue, op.jobs, self.now, self._takes_over)
                self._compare_pushed(each, jobs)
            else:
                assert isinstance(each, c.Settled)
                assert (each.count, list(each.refused)) == (len(op.places), [])
                self._settle(op)
        self._follow()
        self.check_all()

    def _command(self, op: Op) -> c.PushJobs | c.PushFlow | c.Ack | c.Nack | c.KvWrite:
        if op.kind == "push":
            return c.PushJobs(TENANT, op.queue, op.jobs)
        if op.kind == "write":
            return c.KvWrite(TENANT, op.changes, op.checks)
        kind = c.Ack if op.kind == "ack" else c.Nack
        return kind(TENANT, None, self._ids(op.queue, op.places), "default")

    def _written(self, op: Op, left: dict[bytes, Entry | None]) -> dict[bytes, Entry | None] | None:
        """What a write would leave after what was ``left`` by those before; None if it can't be made."""
        if op.kind != "write":
            return {}
        if not self.model.passes(op.checks, left, self.now):
            return None
        mine = self.model.write(op.changes, left, self.now)
        left.update(mine or {})
        return mine

    def _may(self, op: Op) -> bool:
        if op.kind == "push":
            return self._forbids(op.queue, op.jobs) is None
        if op.kind == "write":
            return True
        if self.model.queues[op.queue].options.require_lease:
            return False
        return all(self._held(op.queue, place) for place in op.places)

    def _held(self, queue: str, place: m.Place) -> str | None:
        current = self.model.queues[queue].current(place)
        return self.model.find(queue, current, None, "default", 0)

    def _meets(self, ops: list[Op]) -> bool:
        """Whether something is settled twice."""
        settled = [
            (op.queue, self.model.queues[op.queue].current(place)) for op in ops for place in op.places
        ]
        return len(set(settled)) < len(settled)

    def _settle(self, op: Op) -> None:
        by_token: dict[str, set[m.Place]] = {}
        for place in op.places:
            token = self._held(op.queue, place)
            assert token is not None
            by_token.setdefault(token, set()).add(self.model.queues[op.queue].current(place))
        for token, places in by_token.items():
            if op.kind == "ack":
                self.model.ack(token, places)
            else:
                self.model.nack(token, places, "", None, self.now)
