"""The queue as plain lists, continued: unique keys, ids that are known, and messages that wait for others.

Nothing here is told that a message ended. Whoever is links_count looks where it stands, after every step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from forebay.core.api.jobs import FlowJob, Job
from forebay.core.ids import spans_in_order, spans_of
from forebay.core.state import Attributes, Cleanup, Identity
from tests.sim.model import (
    CANCELLED,
    DEAD,
    DISCARDED,
    DONE,
    DROPPED,
    DROPPED_DEAD,
    DROPS,
    EXPIRED,
    LEASED,
    OPEN,
    PARKED,
    SCHEDULED,
    WAITING,
    Cell,
    Message,
    Place,
    Queue,
    Said,
    Tied,
)
from tests.sim.outcomes import Model

GONE = "gone"
NEVER_SAID: Said = (0, [], None)
KNOWN, REPLACED, NEW = "known", "replaced", "new"
"""What becomes of a job that is pushed."""


class Core(NamedTuple):
    """What the model takes over from the core."""

    id_of: Callable[[str, str, int], int]
    """The id of a message that was just appended, by queue, partition and offset."""
    created_at: Callable[[str, str, int], int]
    is_open: Callable[[Message, bool], bool]
    """Whether a message is shown as one that has not ended: time alone may have ended it. What no group had
    looked at before the command counts as not looked at, unless the command did so meanwhile."""
    is_seen: Callable[[Message, str], bool]
    """Whether a group has looked as far as a message."""
    is_scheduled: Callable[[Message, str], bool]
    """Whether a group has a message in its schedule."""
    is_parked: Callable[[Message], bool]
    """Whether a message waits for others, or has not been told yet that it does not."""
    error_of: Callable[[Message], str | None]
    """What it says a message died of, if it is a dead letter of the work queue."""
    version_of: Callable[[bytes], int]
    """The version of a key."""
    is_telling: Callable[[], bool]
    """Whether some have not been told yet of what they wait for."""
    has_work_queue: Callable[[str], bool]
    """Whether a queue has the group that what fails is dead for."""
    is_discarded: Callable[[Message], bool]
    """Whether a message failed in a queue without dead letters."""


Settled = set[tuple[str, Place]] | frozenset[tuple[str, Place]]
"""Queue and place of what the work queue will have settled."""


def names_of(queue: str, job: Job) -> set[str]:
    """What a job goes by: no two have the same."""
    own = job.own or Identity()
    kind = "throttled" if own.dedup == "throttle" else "key"
    names = {kind: own.unique_key, "id": own.job_id, f"in {job.partition}": own.transaction_id}
    return {f"{queue} {kind} {name}" for kind, name in names.items() if name is not None}


@dataclass
class Batch:
    """Jobs that are pushed together."""

    queue: str
    now: int
    core: Core
    answers: list[tuple[str, int]] = field(default_factory=list)
    """What became of each, and its id."""
    run: tuple[str, Attributes] | None = None
    """Partition and attributes of those that are appended next."""
    new: list[Message] = field(default_factory=list)
    """Those of them that nobody has looked at yet."""
    taken: list[tuple[Message, str, int]] = field(default_factory=list)
    looked: set[str] = field(default_factory=set)
    """Partitions that every group was made to look at."""


class JobModel(Model):
    """All queues of one tenant, with what messages have for themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.tied: dict[Message, None] = {}
        """Messages whose end has consequences, but for those that others wait for."""
        self.waiting: dict[Message, None] = {}
        """Those that wait for others, and did."""
        self.over: set[Message] = set()
        """Those whose time to live just ended."""
        self.released: list[Message] = []
        """Those that just stopped to wait for others."""
        self.died: list[tuple[Message, tuple[bytes, ...]]] = []
        """Those that just died, with the keys that get their payload."""

    @property
    def has_timers(self) -> bool:
        """Whether something happens by itself at its time, and counts from when it was noticed."""
        return bool(self.tied)

    # Where a message stands for the work queue.

    def standing(self, message: Message) -> str | None:
        """How a message ended; None if it has not."""
        if message.gone:
            return GONE
        group = self.queues[message.queue].groups.get("default")
        if group is None:
            return CANCELLED if message.withdrawn_at else None
        kind = group.cells[message.place[0]][message.place[1]].kind
        return None if kind in OPEN else {DROPPED: DONE, DROPPED_DEAD: DISCARDED}.get(kind, kind)

    def follow(self, now: int, core: Core) -> None:
        """See to everything that follows from what ended."""
        again = True
        while again:
            again = any(self._untie_ended(each, now) for each in list(self.tied))
            again |= any(self._look(each, now, core) for each in list(self.waiting))
        self.over.clear()
        self.released.clear()

    def _how(self, message: Message) -> str | None:
        return EXPIRED if message in self.over else self.standing(message)

    def _untie_ended(self, message: Message, now: int) -> bool:
        """Free what a message holds if it has ended."""
        how, tie = self.standing(message) or self._how(message), message.tie
        if tie is not None and tie.completed_at and how is None:  # it is read again
            tie.completed_at, tie.watch_at = 0, message.over_at if message.attributes.ttl_ms else 0
        if tie is None or how is None:
            return False
        if tie.completed_at and how == DONE:
            if self._is_dropped(self.queues[message.queue], message):
                self.untie(message)
            return False
        cleanup = tie.cleanup or Cleanup()
        if how == DEAD and tie.cleanup and tie == Tied(cleanup=tie.cleanup) and not cleanup.on_fail:
            return False  # it may be requeued
        if tie.keys and (how in (DEAD, DISCARDED) or message.was in (DEAD, DISCARDED)):
            self.died.append((message, tie.keys))
        self.untie(message)
        if how in (DEAD, DISCARDED) and cleanup.on_fail:
            self.drop(message, DROPPED_DEAD)
        elif how == DEAD:
            self.tie(message, Tied())
        elif how == DONE and cleanup.on_complete:
            self.drop(message, DROPPED)
        elif how == DONE and cleanup.keep_ms:
            self.tie(message, Tied(watch_at=now + cleanup.keep_ms, completed_at=now))
        return True

    def drop(self, message: Message, kind: str) -> None:
        """A message is shown no longer."""
        known, (partition, at) = self.queues[message.queue], message.place
        known.groups["default"].cells[partition][at].end(kind, 0)
        self.forget_names(known)

    def untie(self, message: Message) -> Tied:
        tie, uniques = message.tie, self.queues.get(message.queue, Queue()).uniques
        assert tie is not None
        if uniques.get(tie.key) is message:
            del uniques[tie.key]
        message.tie = None
        del self.tied[message]
        return tie

    def push(self, *given: Any, **how: Any) -> list[Message]:
        """What was pushed: its cleanup is tied to its end."""
        new = super().push(*given, **how)
        for message in new:
            self.tie(message, Tied())
        return new

    def tie(self, message: Message, tie: Tied) -> None:
        tie.cleanup = message.attributes.cleanup
        if tie != Tied():
            message.tie = tie
            self.tied[message] = None
            if tie.key:
                self.queues[message.queue].uniques[tie.key] = message

    def tie_to(self, message: Message, successor: Message) -> None:
        if message.tie is not None:
            self.tie(successor, self.untie(message))
        for each in self.waiting:
            if each.unmet.pop(message.id, None) is not None:
                each.unmet[successor.id] = successor

    # Messages that wait for others.

    def targets(self, attributes: Attributes) -> list[Message]:
        """What messages with these attributes depend on, or what took its place."""
        return [self.current(self.ids[each]) for each in ids_of(attributes)]

    def current(self, message: Message) -> Message:
        """What took the place of a message; itself if nothing did."""
        if message.gone or message.lost:
            known = self.queues.get(message.queue)
            at = known.successors.get(message.place) if known is not None and not message.lost else None
            if known is None or at is None:
                return message
        known = self.queues[message.queue]
        partition, offset = known.current(message.place)
        return known.messages[partition][offset]

    def depend(self, message: Message, now: int, core: Core) -> None:
        """Have a message, just pushed, wait for what it depends on."""
        policy = message.attributes.on_failed
        lost: list[Message] = []
        died: list[Message] = []
        pending: list[Message] = []
        for target in self.targets(message.attributes):
            how = DONE if target.gone else self.standing(target)
            if how == DEAD and target.hopeless:
                how = GONE  # it can't be requeued
            if how is None or (how == DEAD and policy != "ignore"):
                pending.append(target)
                died += [target] if how == DEAD and policy == "fail" else []
            elif how != DONE and policy != "ignore":
                lost.append(target)
        if lost:
            message.hopeless = True
            self._fail_with(message, lost, now, core)
            return
        if not pending:
            self._release(message, now, core)
            return
        message.unmet = {each.id: each for each in pending}
        self.waiting[message] = None
        if died:
            message.doomed, message.known_dead = True, {each.id for each in died}
            self._fail_with(message, died, now, core)
        for target in message.unmet.values():
            self.watch(target)

    def watch(self, target: Message) -> None:
        """Have a message that is waited for end with its time to live."""
        if not target.attributes.ttl_ms or self.standing(target) is not None:
            return
        if target.tie is None:
            self.tie(target, Tied(watch_at=target.over_at))
        elif not target.tie.watch_at:
            target.tie.watch_at = target.over_at

    def _look(self, message: Message, now: int, core: Core) -> bool:
        """See what became of those a message waits for; whether anything becomes of it.

        What is to become of it is clear at once, but it may be told later.
        """
        if message.fallen and self._work_cell(message).kind != DEAD:
            message.fallen = False
        if not message.parked and not message.fallen:
            del self.waiting[message]
            return False
        policy = message.attributes.on_failed
        for target in list(message.unmet.values()):
            how = self._how(target)
            if how == DEAD and target.hopeless:
                how = GONE
            if how is None:
                message.known_dead.discard(target.id)
            elif how == DEAD and policy == "fail":
                if target.id not in message.known_dead:
                    message.known_dead.add(target.id)
                    message.failed.append(target)
                    message.mixed |= not message.doomed and core.is_telling()
                    message.doomed = True
            elif how != DEAD or policy == "ignore":
                if how != DONE and policy != "ignore":
                    message.failed.append(target)
                    message.hopeless = message.doomed = True
                del message.unmet[target.id]
        return self._tell(message, now, core)

    def _tell(self, message: Message, now: int, core: Core) -> bool:
        """Have happen to a message what it has been told; whether anything did."""
        before = (message.parked, message.fallen)
        is_telling, is_dead = core.is_telling(), core.error_of(message) is not None
        if not self.queues[message.queue].options.dead_letters:  # what fails is discarded
            is_dead |= message.parked and core.is_discarded(message)
        if message.mixed and not is_telling and not message.hopeless:
            message.doomed, message.mixed = is_dead, False
            if core.has_work_queue(message.queue):  # it failed, and was saved since
                self._make_work_queue(message.queue, now, core)
        if message.parked and not core.is_parked(message):
            if message.doomed or (is_telling and is_dead):
                self._fail_with(message, message.failed, now, core)
            elif not message.unmet:
                self._release(message, now, core)
        elif message.fallen and (not message.doomed or is_telling) and not is_dead:
            self._rise(message)
        assert not message.fallen or message.doomed or is_telling, "what it died of was requeued"
        if message.fallen and message.hopeless and not is_telling:
            message.fallen = False
        return before != (message.parked, message.fallen)

    def _work_cell(self, message: Message) -> Cell:
        partition, at = message.place
        return self.queues[message.queue].groups["default"].cells[partition][at]

    def _rise(self, message: Message) -> None:
        """What died of others waits for them again, in every group."""
        message.parked, message.fallen, message.withdrawn_at = True, False, 0
        partition, at = message.place
        for group in self.queues[message.queue].groups.values():
            group.cells[partition][at] = Cell(PARKED)

    def requeue(self, queue: str, place: Place, group: str, now: int, *, seen: bool) -> None:
        message = self.queues[queue].messages[place[0]][place[1]]
        if group != "default" or not message.fallen:
            super().requeue(queue, place, group, now, seen=seen)
            return
        message.doomed = False
        message.failed.clear()
        self._rise(message)

    def save_dependents(self, message: Message, telling: bool) -> None:
        """Save those that are doomed because of a message that was requeued, and those of them in turn."""
        for each in list(self.waiting):
            if message.id in each.unmet and each.doomed and not each.hopeless:
                each.doomed, each.mixed = False, each.mixed or telling
                self.save_dependents(each, telling)

    def fallen_of(self, messages: list[Message]) -> set[Message]:
        """Those that died of messages, or of one that did."""
        found: set[Message] = set()
        left = list(messages)
        while left:
            message = left.pop()
            new = {each for each in self.waiting if each.fallen and message.id in each.unmet} - found
            found |= new
            left += new
        return found - set(messages)

    def _release(self, message: Message, now: int, core: Core) -> None:
        """A message waits for nothing any more."""
        message.parked = False
        self.released.append(message)
        partition, at = message.place
        for group in self.queues[message.queue].groups.values():
            # Who has still to look at it finds it there since it was pushed.
            due_at = max(message.due_at, now) if core.is_seen(message, group.name) else message.due_at
            group.cells[partition][at] = Cell(SCHEDULED, message.level, due_at)

    def _fail_with(self, message: Message, failed: list[Message], now: int, core: Core) -> None:
        """A message fails because others did."""
        message.parked = False
        known = self.queues[message.queue]
        self._make_work_queue(message.queue, now, core)
        partition, at = message.place
        for group in known.groups.values():
            group.cells[partition][at] = cell = Cell(CANCELLED, due_at=now)
            if group.name == "default":
                wanted = [f"it depends on {each.id}, which did not complete" for each in failed]
                error = core.error_of(message)
                assert error is None or error in wanted, (error, wanted)
                cell.level = message.level
                self._die(cell, known.options, now, error or wanted[0])
        if at >= known.first[partition]:
            message.withdrawn_at = now
        message.fallen = not message.hopeless and self._work_cell(message).kind == DEAD
        if not message.fallen:
            message.unmet.clear()

    def _make_work_queue(self, queue: str, now: int, core: Core) -> None:
        """Have a queue a group that what fails can be dead for.

        It does not know what the log went on without, unless that is released just after it was made.
        """
        known = self.queues[queue]
        if "default" in known.groups:
            return
        group = self.group(queue, "default", "all")
        for message in self.released:
            partition, at = message.place
            if (
                message.queue == queue
                and at < known.first[partition]
                and core.is_scheduled(message, "default")
            ):
                group.cells[partition][at] = Cell(SCHEDULED, message.level, max(message.due_at, now))

    # The end of a time to live.

    def tick(self, now: int) -> None:
        """End messages whose end has consequences with their time to live."""
        for message in list(self.tied):
            if message.tie is not None and 0 < message.tie.watch_at <= now and not message.gone:
                if message.tie.completed_at:
                    self.untie(message)
                    self.drop(message, DROPPED)
                else:
                    self._expire(message, message.tie, now)

    def _expire(self, message: Message, tie: Tied, now: int) -> None:
        groups, (partition, at) = self.queues[message.queue].groups, message.place
        if message.parked:
            message.parked = False
            message.unmet.clear()
            for group in groups.values():
                group.cells[partition][at].end(EXPIRED, now)
        elif "default" in groups:
            cell = groups["default"].cells[partition][at]
            if cell.kind == LEASED:
                # It is being worked on: if it comes back, it is over.
                tie.watch_at = max(cell.due_at, now + 1)
                return
            if cell.kind not in WAITING:
                tie.watch_at = 0
                return  # it ended otherwise
            cell.end(EXPIRED, now)
        self.over.add(message)

    def came_back(self, message: Message, now: int) -> None:
        if message.tie is not None and message.tie.watch_at > now + 1 and message.over_at <= now:
            message.tie.watch_at = now + 1

    # Pushes of what may be known.

    def push_jobs(self, queue: str, jobs: list[Job], now: int, core: Core) -> list[tuple[str, int]]:
        """What becomes of each of these jobs, and its id."""
        batch = Batch(queue, now, core)
        for job in jobs:
            batch.answers.append(self._push_job(batch, job))
        self._append(batch)
        return batch.answers

    def push_then(
        self, where: str, job: Job, ids: list[int], now: int, core: Core, *, in_order: bool = False
    ) -> int:
        """The id of a message that waits for others, just pushed."""
        ((_, found),) = self.push_jobs(where, [waiting_for(job, ids, in_order=in_order)], now, core)
        return found

    def push_flow(self, root: FlowJob, now: int, core: Core) -> tuple[int, list[int], bool]:
        """The id of a message, of those it waits for, and whether it was known: then nothing is pushed."""
        found = self.known(root, now, core)
        if found is not None:
            message = self.current(self.ids[found])
            is_kept = not message.gone and not message.lost
            return found, ids_of(message.attributes) if is_kept else [], True
        children = [self.push_flow_job(each, now, core) for each in root.children]
        return self.push_then(root.queue, root.job, children, now, core, in_order=True), children, False

    def push_flow_job(self, node: FlowJob, now: int, core: Core) -> int:
        children = [self.push_flow_job(each, now, core) for each in node.children]
        return self.push_then(node.queue, node.job, children, now, core, in_order=True)

    def known(self, node: FlowJob, now: int, core: Core, settled: Settled = frozenset()) -> int | None:
        """The id of the message that one would repeat, if it does, after some were ``settled``."""
        known, job = self.queues.get(node.queue), node.job
        if known is None or job.own is None:
            return None
        own = self._without_freed(node.queue, job.own, settled)
        return self._find(Batch(node.queue, now, core), job.partition, own)

    def _push_job(self, batch: Batch, job: Job) -> tuple[str, int]:
        queue, now, known = batch.queue, batch.now, self.queue(batch.queue)
        own, attributes = job.own or Identity(), job.attributes
        found = self._find(batch, job.partition, own)
        if found is not None:
            return KNOWN, found
        known.messages.setdefault(job.partition, [])
        known.first.setdefault(job.partition, 0)
        for group in known.groups.values():
            group.turns.setdefault(job.partition, 0)
            group.cells.setdefault(job.partition, [])
        if job.lane:
            known.lanes.add(job.partition)
        if own.dedup == "debounce":
            attributes = replace(attributes, delay_ms=own.window_ms)
        holder = known.uniques.get(own.unique_key or "")
        if holder is not None and own.dedup != "throttle" and not self._is_open(batch, holder):
            self.free(holder)
            holder = None
        if holder is not None and own.dedup in ("replace", "debounce"):
            self._append(batch)
            successor = self._replace(batch, job, own, attributes, holder)
            if successor is not None:
                self._enter(batch, successor, job, own)
                self._take(batch)
                return REPLACED, successor.shown[0]
        if batch.run != (job.partition, attributes):
            self._append(batch)
            batch.run = (job.partition, attributes)
        offset = len(known.messages[job.partition])
        where = (queue, job.partition, offset)
        ids = (batch.core.id_of(*where), batch.core.created_at(*where))
        parked = bool(attributes.depends_on)
        (message,) = self.push(queue, job.partition, [job.payload], *ids, attributes, now, parked=parked)
        batch.new.append(message)
        self._enter(batch, message, job, own)
        return NEW, message.id

    def _append(self, batch: Batch) -> None:
        """What has come together is appended."""
        batch.run = None
        new, batch.new = batch.new, []
        for message in new:
            if message.attributes.depends_on:
                self.depend(message, batch.now, batch.core)
        self._take(batch)

    def _take(self, batch: Batch) -> None:
        if batch.taken:
            partition = batch.taken[0][0].place[0]
            self.queues[batch.queue].taken.setdefault(partition, []).append(batch.taken)
            batch.taken = []

    def count_new(
        self,
        queue: str,
        jobs: list[Job],
        core: Core,
        now: int,
        seen: set[str],
        settled: Settled,
    ) -> int:
        """How many jobs take room: those that repeat neither what is known, nor each other.

        A key is free whose holder will have been ``settled`` by then.
        """
        batch, new = Batch(queue, now, core), 0
        for job in jobs:
            own, names = job.own or Identity(), names_of(queue, job)
            again = names & seen and own.dedup in ("drop", "throttle")
            own = self._without_freed(queue, own, settled)
            if not again and self._find(batch, job.partition, own) is None:
                seen |= names
                new += 1
        return new

    def _without_freed(self, queue: str, own: Identity, settled: Settled) -> Identity:
        holder = self.queue(queue).uniques.get(own.unique_key or "")
        if own.dedup == "drop" and holder is not None and (queue, holder.place) in settled:
            return replace(own, unique_key=None)
        return own

    def _find(self, batch: Batch, partition: str, own: Identity) -> int | None:
        """The id of the message that a job repeats, if it does."""
        known, now = self.queues[batch.queue], batch.now
        rows = [*known.taken.get(partition, []), batch.taken]
        taken = {
            name: (message, at) for row in rows for message, name, at in row if message.place[0] == partition
        }
        same, at = taken.get(own.transaction_id or "", (None, 0))
        if same is not None and at > now - known.options.dedup_window_ms:
            return same.id if same.gone else same.shown[0]
        if own.job_id is not None and own.job_id in known.named:
            named = known.named[own.job_id]
            if not own.retakes or not self._is_withdrawn(batch, known, named):
                return named.id
        if own.unique_key is None:
            return None
        if own.dedup == "throttle":
            until, ids, _ = known.once.get(("t", own.unique_key), NEVER_SAID)
            return ids[0] if until > now else None
        holder = known.uniques.get(own.unique_key)
        is_held = holder is not None and self._is_open(batch, holder)
        return holder.shown[0] if holder is not None and is_held and own.dedup == "drop" else None

    def _is_withdrawn(self, batch: Batch, known: Queue, named: Message) -> bool:
        """Whether a message ended, and neither completed nor as a dead letter."""
        partition, at = known.current(named.place)
        if self._is_open(batch, known.messages[partition][at]):
            return False
        group = known.groups.get("default")
        return group is None or group.cells[partition][at].kind not in (DONE, DEAD)

    def _is_open(self, batch: Batch, message: Message) -> bool:
        return message in batch.new or batch.core.is_open(message, message.place[0] in batch.looked)

    def free(self, message: Message) -> None:
        """A message does not hold its key any more."""
        tie = self.untie(message)
        tie.key = ""
        self.tie(message, tie)

    def _replace(
        self, batch: Batch, job: Job, own: Identity, attributes: Attributes, holder: Message
    ) -> Message | None:
        """What took the place of the one that holds the key of a job, if it could."""
        known, now, queue = self.queues[batch.queue], batch.now, batch.queue
        if holder.parked or self.may_update(queue, holder.place, now):
            if holder.place[0] == job.partition and not attributes.depends_on:
                if own.dedup == "debounce" and own.max_ms:
                    left = max(holder.shown[1] + own.max_ms - now, 0)
                    attributes = replace(attributes, delay_ms=min(attributes.delay_ms, left))
                self.untie(holder)
                batch.looked.add(job.partition)
                where = (queue, job.partition, len(known.messages[job.partition]))
                ids = (batch.core.id_of(*where), batch.core.created_at(*where))
                attributes = replace(attributes, origin=holder.shown)
                return self.take_place(holder, job.payload, *ids, attributes, now)
            assert self.cancel(queue, holder.place, None, now)
        if holder.tie is not None:
            self.free(holder)
        return None

    def _enter(self, batch: Batch, message: Message, job: Job, own: Identity) -> None:
        """Have a message found by its key and ids."""
        known = self.queues[batch.queue]
        key = own.unique_key or ""
        if key and own.dedup == "throttle":
            known.once["t", key] = (batch.now + own.window_ms, [message.shown[0]], None)
            key = ""
        if key or own.keys:
            self.tie(message, Tied(key, own.keys, message.over_at if job.attributes.ttl_ms else 0))
        if own.job_id is not None:
            first = known.messages[message.place[0]][known.firsts(message.place)[1]]
            known.named = {name: each for name, each in known.named.items() if each is not first}
            known.named[own.job_id] = first
        if own.transaction_id is not None:
            batch.taken.append((message, own.transaction_id, batch.now))

    def forget_names(self, known: Queue) -> None:
        known.named = {
            name: each
            for name, each in known.named.items()
            if not each.lost and (not each.gone or each.place in known.successors)
            if not self._is_dropped(known, each)
        }

    @staticmethod
    def _is_dropped(known: Queue, message: Message) -> bool:
        partition, at = known.current(message.place)
        group = known.groups.get("default")
        return group is not None and group.cells[partition][at].kind in DROPS


def ids_of(attributes: Attributes) -> list[int]:
    """The ids of what messages with these attributes depend on."""
    return [each for first, count in attributes.depends_on for each in range(first, first + count)]


def waiting_for(job: Job, ids: list[int], *, in_order: bool) -> Job:
    """A job that waits for others, too."""
    depends_on = (spans_in_order if in_order else spans_of)([*ids, *ids_of(job.attributes)])
    return replace(job, attributes=replace(job.attributes, depends_on=depends_on))
