"""One life of a few queues, with what makes them a job system."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.errors import ForebayError, Invalid, NotFound
from forebay.core.state import Attributes, Identity, NamedLimit
from forebay.core.words import RESULT
from tests.sim import model as m
from tests.sim.checks import TENANT, load
from tests.sim.inside import notifying
from tests.sim.job_checks import as_modelled
from tests.sim.jobs_model import KNOWN, NEVER_SAID, REPLACED, names_of
from tests.sim.system_model import Cron, Entry
from tests.sim.world import World

__all__ = ["JobWorld", "Op"]


@dataclass
class Op:
    """One command of a transaction: push, flow, write, ack or nack."""

    kind: str
    queue: str = ""
    jobs: list[job_commands.Job] = field(default_factory=list)
    then: tuple[str, job_commands.Job] | None = None
    flow: job_commands.FlowJob | None = None
    places: list[m.Place] = field(default_factory=list)
    token: str | None = None
    """A lease that is settled whole, instead of places."""
    changes: list[job_commands.KvChange] = field(default_factory=list)
    checks: list[tuple[bytes, int | None]] = field(default_factory=list)


@dataclass
class Planned:
    """What commands need in all that are carried out together."""

    messages: Counter[str] = field(default_factory=Counter)
    """By queue; less those that are settled first."""
    seen: set[str] = field(default_factory=set)
    """Keys and ids of those that are pushed."""
    settled: set[tuple[str, m.Place]] = field(default_factory=set)
    """What the work queue will have settled."""


class JobWorld(World):
    """One life of a few queues."""

    def push_jobs(
        self,
        queue: str,
        jobs: list[job_commands.Job],
        durability: str | None = None,
        request: tuple[str, str] | None = None,
        then: tuple[str, job_commands.Job] | None = None,
    ) -> list[int]:
        """Push jobs that may be known, and what waits for them; their ids, if they are not refused."""
        self._tick(queue, *([then[0]] if then is not None else []))
        command = job_commands.PushJobs(TENANT, queue, jobs, durability, request, then)
        known = self.model.queue(queue)
        before = known.once.get(("r", *request), NEVER_SAID) if request is not None else NEVER_SAID
        again = before[0] > self.now
        why = self._forbids(queue, jobs, then, again=again)
        if why is not None:
            self._refused(command, why)
            return []
        reply = self._apply(command)
        assert isinstance(reply, job_commands.PushedJobs)
        if again:
            said = (reply.ids, reply.then, reply.duplicates)
            assert said == (before[1], before[2], list(range(len(before[1]))))
        else:
            self._must_sync |= durability != "os" and len(reply.duplicates) < len(jobs)
            self._compare_pushed(reply, queue, jobs, then)
            if request is not None and known.options.dedup_window_ms:
                until = self.now + known.options.dedup_window_ms
                known.once["r", *request] = (until, reply.ids, reply.then)
        self._check(queue)
        if then is not None:
            self._check(then[0])
        return reply.ids

    def _compare_pushed(
        self,
        reply: job_commands.PushedJobs,
        queue: str,
        jobs: list[job_commands.Job],
        then: tuple[str, job_commands.Job] | None,
    ) -> None:
        """The model pushes the same, and gives the same answer."""
        answers = self.model.push_jobs(queue, jobs, self.now, self._takes_over)
        kinds = [kind for kind, _ in answers]
        assert reply.ids == [message for _, message in answers], (reply, answers)
        assert reply.duplicates == [at for at, kind in enumerate(kinds) if kind == KNOWN], (reply, answers)
        assert reply.replaced == [at for at, kind in enumerate(kinds) if kind == REPLACED], (reply, answers)
        if then is None:
            assert reply.then is None
        else:
            assert reply.then == self.model.push_then(*then, reply.ids, self.now, self._takes_over)

    def _forbids(
        self,
        queue: str,
        jobs: list[job_commands.Job],
        then: tuple[str, job_commands.Job] | None = None,
        planned: Planned | None = None,
        *,
        again: bool = False,
    ) -> type[ForebayError] | None:
        """Why jobs may not be pushed, with what else is ``planned``; what is sent again needs no room."""
        for job in jobs:
            if self._breaks_order(queue, job.attributes):
                return Invalid
            if any(target.lost for target in self.model.targets(job.attributes)):
                return NotFound
        if again:
            return None
        planned = planned or Planned()
        core = self._takes_over
        new = self.model.count_new(queue, jobs, core, self.now, planned.seen, planned.settled)
        planned.messages[queue] += new
        count = planned.messages[queue]
        if count > 0 and self._is_full(queue, count):
            return self._why_full(queue, count)
        if then is None:
            return None
        where, job = then
        why = self._forbids(where, [job], None, planned)
        same = where == queue and any(names_of(where, job) & names_of(queue, each) for each in jobs)
        return why or (Invalid if same or self.model.queue(where).ordered else None)

    # Flows.

    def push_flow(self, root: job_commands.FlowJob, durability: str | None = None) -> list[int]:
        """Push a message and those it waits for; the ids of all that are named, if they are not refused."""
        queues = {node.queue for node in walk(root)}
        self._tick(*queues)
        command = job_commands.PushFlow(TENANT, root, durability)
        why = self._forbids_flow(root, Planned())
        if why is not None:
            self._refused(command, why)
            return []
        reply = self._apply(command)
        assert isinstance(reply, job_commands.FlowPushed)
        self._compare_flow(reply, root)
        self._must_sync |= durability != "os" and not reply.known
        for queue in sorted(queues):
            self._check(queue)
        return [reply.parent, *reply.children]

    def _compare_flow(self, reply: job_commands.FlowPushed, root: job_commands.FlowJob) -> None:
        found = self.model.push_flow(root, self.now, self._takes_over)
        assert (reply.parent, reply.children, reply.known) == found, (reply, found)

    def _forbids_flow(self, root: job_commands.FlowJob, planned: Planned) -> type[ForebayError] | None:
        """Why a flow may not be pushed; one whose parent is known needs no room."""
        again = self.model.known(root, self.now, self._takes_over, planned.settled) is not None
        names: set[str] = set()
        for node in walk(root):
            why = self._forbids(node.queue, [node.job], None, planned, again=again)
            if why is not None:
                return why
            mine = names_of(node.queue, node.job)
            if mine & names or (node.children and self.model.queue(node.queue).ordered):
                return Invalid
            names |= mine
        return None

    def check_children(self, message: m.Message) -> None:
        """What a message waits for, or waited for, is shown as it stands."""
        self._tick()
        reply_to = queries.Children(TENANT, message.id)
        current = self.model.current(message)
        if current.gone or current.lost:
            self._refused(reply_to, NotFound)
            return
        reply = self._apply(reply_to)
        assert isinstance(reply, queries.ChildrenFound)
        targets = self.model.targets(current.attributes)
        assert reply.total == len(targets)
        kept = [each for each in targets if not each.gone and not each.lost]
        got = [
            (each.queue.name, (each.partition, each.offset), as_modelled(each.state))
            for each in reply.shown.deliveries
        ]
        states = [self._state(each, each.queue, *each.place, "default") for each in kept]
        assert got == [(each.queue, each.place, state) for each, state in zip(kept, states, strict=True)]
        assert reply.completed == len(targets) - sum(each.state != "completed" for each in states)
        results: list[list[bytes]] = []
        for found in reply.results:
            for each in found.notes[0]:
                self._fetch(found.queue, each)
            results.append([bytes(payload) for each in found.notes[0] for payload in each.payloads()])
        noted = [self.model.noted(each.queue, each.place) for each in kept]
        assert results == [each.notes.get(RESULT, []) for each in noted]

    def _breaks_order(self, queue: str, attributes: Attributes) -> bool:
        return super()._breaks_order(queue, attributes) or (
            self.model.queue(queue).ordered and bool(attributes.depends_on)
        )

    def job(
        self,
        partition: str,
        attributes: Attributes,
        own: Identity | None = None,
        *,
        lane: bool = False,
    ) -> job_commands.Job:
        """A job with a payload that no other message has."""
        return job_commands.Job(self._payload(), partition, attributes, own, lane)

    def commit(self) -> None:
        super().commit()
        ends = [shard.ends for shard in self.engine.shards.values()]
        assert not any(ends), "what follows from an end comes in its commit"

    def ack_and_reload(self, queue: str, place: m.Place) -> None:
        """Ack a message; the process ends again and again while those who wait for it are told."""
        self._tick()
        token = self.model.find(queue, place, None, "default", 0)
        if token is None or self.model.queues[queue].options.require_lease:
            return
        self._apply(c.Ack(TENANT, None, self._ids(queue, [place]), "default"))
        self.model.ack(token, {place})
        reloads = 0
        while notifying(self.engine):
            self._reload()
            reloads += 1
            assert reloads < 1_000, "those who wait are told at last"
        self._follow()
        self.check_all()

    def reload(self) -> None:
        """The process ends and begins again, in the middle of what it does."""
        self._tick()
        self._reload()
        self._follow()

    def _reload(self) -> None:
        self.engine.clear_marks()
        self.commit()
        self.store = self._reopen(self.store)
        self.engine = load(self.store, self.limits, self.now)
        self.merging = self.carving = None
        self.shelf = []
        self._forget_process()

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """Those who wait are told little by little meanwhile."""
        self.slow = True
        try:
            yield
        finally:
            self.slow = False
        self._follow()
        self.check_all()

    # Limits.

    def _before_pop(self, queue: str, group: str) -> None:
        """Where bytes and partitions are limited, a pop may go on elsewhere after what is too large."""
        model = self.model
        if queue in model.queues and model.limits_partitions(queue) and model.limits_bytes(queue):
            self.configure(queue, byte_limit=None, limits=())
        super()._before_pop(queue, group)

    def put_limit(self, name: str, limit: NamedLimit | None) -> None:
        """Set a limit that queues share, or remove it."""
        self._tick()
        command = job_commands.LimitPut(TENANT, name, limit)
        if limit is None and name not in self.model.named:
            self._refused(command, NotFound)
            return
        reply = self._apply(command)
        if limit is None:
            del self.model.named[name]
        else:
            self.model.named[name] = limit
        self.model.forget_tokens()
        assert isinstance(reply, queries.LimitsFound)
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
        command = job_commands.CronPut(TENANT, cron.name, cron.queue, cron.job, *how)
        if self.model.has_come(cron):
            self._refused(command, Invalid)
            return
        reply = self._apply(command)
        self.model.queue(cron.queue)
        self.model.put_cron(cron)
        assert isinstance(reply, queries.CronsFound)
        assert [(each.name, each.next_at, each.fired) for each in reply.crons] == [
            (cron.name, cron.next_at, cron.fired)
        ]
        self._must_sync = True
        self.check_all()

    def delete_cron(self, name: str) -> None:
        self._tick()
        if name not in self.model.crons:
            self._refused(job_commands.CronDelete(TENANT, name), NotFound)
            return
        self._apply(job_commands.CronDelete(TENANT, name))
        del self.model.crons[name]
        self._must_sync = True
        self.check_all()

    def _next_due_at(self) -> int:
        ties = (each.tie.watch_at for each in self.model.tied if each.tie is not None and each.tie.watch_at)
        crons = (each.next_at for each in self.model.crons.values())
        entries = (each.expires_at for each in self.model.entries.values() if each.expires_at > self.now)
        return min([super()._next_due_at(), *ties, *crons, *entries])

    # Keys and values.

    def write(self, changes: list[job_commands.KvChange], checks: list[tuple[bytes, int | None]]) -> None:
        """Change keys, all or none."""
        self._tick()
        command = job_commands.KvWrite(TENANT, changes, checks)
        left = self.model.write(changes, {}, self.now) if self.model.passes(checks, {}, self.now) else None
        if left is None:
            self._refused(command, ForebayError)
            return
        before = {key for key in left if self.model.entry(key, self.now) is not None}
        reply = self._apply(command)
        assert isinstance(reply, job_commands.KvWritten)
        self._keep(reply, left)
        assert reply.deleted == sum(key in before and left[key] is None for key in left)
        self._must_sync |= any(key in before or left[key] is not None for key in left)
        self.check_all()

    def _keep(self, reply: job_commands.KvWritten, left: dict[bytes, Entry | None]) -> None:
        self.model.keep(left, reply.version)
        found = [(each.data, each.expires_at) if each is not None else None for each in reply.values]
        assert found == [(each.data, each.expires_at) if each is not None else None for each in left.values()]

    def get(self, keys: list[bytes]) -> None:
        reply = self._apply(queries.KvGet(TENANT, keys))
        assert isinstance(reply, queries.KvFound)
        entries = [self.model.entry(key, self.now) for key in keys]
        assert [each and (each.data, each.version, each.expires_at) for each in reply.values] == [
            each and (each.data, each.version, each.expires_at) for each in entries
        ]

    # Transactions.

    def transact(self, ops: list[Op]) -> None:
        """Carry out several commands, all or none."""
        self._tick()
        for op in ops:
            if op.token in self.model.leases:
                op.places = sorted(self.model.leases[op.token].cells)
        commands = [self._command(op) for op in ops]
        left: dict[bytes, Entry | None] = {}
        writes = [self._written(op, left) for op in ops]
        planned = Planned()
        if not all(self._may(op, planned) for op in ops) or None in writes or self._meets(ops):
            self._refused(c.Transact(TENANT, commands), ForebayError)
            return
        reply = self._apply(c.Transact(TENANT, commands))
        assert isinstance(reply, c.Transacted)
        for op, written, each in zip(ops, writes, reply.replies, strict=True):
            if isinstance(each, job_commands.KvWritten):
                assert written is not None
                self._keep(each, written)
            elif isinstance(each, job_commands.PushedJobs):
                self._compare_pushed(each, op.queue, op.jobs, op.then)
            elif isinstance(each, job_commands.FlowPushed):
                assert op.flow is not None
                self._compare_flow(each, op.flow)
            else:
                assert isinstance(each, c.Settled)
                assert (each.count, list(each.refused)) == (len(op.places), [])
                self._settle(op)
        self._follow()
        self.check_all()

    def _command(
        self, op: Op
    ) -> job_commands.PushJobs | job_commands.PushFlow | c.Ack | c.Nack | job_commands.KvWrite:
        if op.kind == "push":
            return job_commands.PushJobs(TENANT, op.queue, op.jobs, then=op.then)
        if op.flow is not None:
            return job_commands.PushFlow(TENANT, op.flow)
        if op.kind == "write":
            return job_commands.KvWrite(TENANT, op.changes, op.checks)
        kind = c.Ack if op.kind == "ack" else c.Nack
        if op.token is not None:
            return kind(TENANT, op.token)
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

    def _may(self, op: Op, planned: Planned) -> bool:
        """Whether a command can be carried out with all that is ``planned`` before it."""
        if op.kind == "push":
            return self._forbids(op.queue, op.jobs, op.then, planned) is None
        if op.flow is not None:
            return self._forbids_flow(op.flow, planned) is None
        if op.kind == "write":
            return True
        group = self.model.leases[op.token].group if op.token in self.model.leases else "default"
        if group == "default":
            planned.settled |= {(op.queue, self._current(op, place)) for place in op.places}
        if op.kind == "ack" and len(self.model.queues[op.queue].groups) == 1:
            planned.messages[op.queue] -= len(op.places)
        if op.token is not None:
            return op.token in self.model.leases
        if self.model.queues[op.queue].options.require_lease:
            return False
        return all(self._held(op, place) for place in op.places)

    def _held(self, op: Op, place: m.Place) -> str | None:
        """The token of the lease under which a command means a message."""
        return op.token or self.model.find(op.queue, self._current(op, place), None, "default", 0)

    def _current(self, op: Op, place: m.Place) -> m.Place:
        return place if op.token is not None else self.model.queues[op.queue].current(place)

    def _meets(self, ops: list[Op]) -> bool:
        """Whether something is settled twice."""
        settled = [each for op in ops for each in self._settled(op)]
        return len(set(settled)) < len(settled)

    def _settled(self, op: Op) -> set[tuple[str | None, m.Place]]:
        """What a command is about; in strict order a nack is about all behind it, too."""
        found = {(self._held(op, place), self._current(op, place)) for place in op.places}
        if op.kind == "nack" and self.model.queues[op.queue].ordered:
            for token, (partition, at) in list(found):
                cells = self.model.leases[token].cells if token in self.model.leases else ()
                found |= {(token, each) for each in cells if each[0] == partition and each[1] > at}
        return found

    def _settle(self, op: Op) -> None:
        by_token: dict[str, set[m.Place]] = {}
        for place in op.places:
            token = self._held(op, place)
            assert token is not None
            by_token.setdefault(token, set()).add(self._current(op, place))
        for token, places in by_token.items():
            if op.kind == "ack":
                self.model.ack(token, places)
            else:
                self.model.nack(token, places, "", None, self.now)


def walk(node: job_commands.FlowJob) -> Iterator[job_commands.FlowJob]:
    """A message of a flow and all below it."""
    yield node
    for child in node.children:
        yield from walk(child)
