"""A node: applies commands to the engine, commits the changes in groups, then sends the replies.

    ask ──> engine.apply ──> forming group ──> engine.seal ──> committer ──> replies are sent
              │                                                    │
              └── nothing to deliver and the pop may wait: waiters └── failed: this group and all later ones
                  woken by pushes, returned leases and timers          get ``busy``, the shards reload

Everything here runs on one event loop. The engine is ahead of the store by at most the group being committed
and the group that forms. No reply is sent before the group that was forming when it was made is committed.
"""

import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable
from functools import partial

from forebay.broker.backup import HELD, back_up
from forebay.broker.body_cache import BodyCache, Damage
from forebay.broker.committer import Bodies, Committer, Kept, Meter
from forebay.broker.disk import Disk
from forebay.broker.key_watchers import KeyWatchers
from forebay.broker.load import Loaded, cause, claim_all
from forebay.broker.merger import Merger
from forebay.broker.message_watchers import Watchers
from forebay.broker.retries import Answer, Retries
from forebay.broker.timer import Timer
from forebay.broker.waiters import Asker, Ticket, Waiter, Waiters
from forebay.core.api.commands import Backup, Command, GroupDelete, Held, Hold, Pop, Popped, Reply
from forebay.core.api.queries import Await, KvFound, KvWatch, NotesFound, Query, QueueFound
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.errors import Busy, ForebayError
from forebay.core.queries.payloads import Absent
from forebay.core.records.commit import Commit
from forebay.core.state import Adopted, EmittedEvent, Queue
from forebay.store.base import Full, Lost, Store

logger = logging.getLogger("forebay.node")

SYNC_S = 0.2
"""Longest time a commit confirmed as ``os`` stays without an fsync: what a power loss can take."""
RELOAD_RETRY_S = 1.0
"""Delay before the next reload after one failed."""


class Node:
    """All state of one process, and the group commit that stores it."""

    def __init__(
        self,
        store: Store,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        limits: Limits,
        *,
        shards: int = 16,
        memory_bytes_max: int = 1 << 28,
        disk_free_min_bytes: int = 0,
        lost: Callable[[str], None] = lambda why: None,
    ) -> None:
        """``lost`` is called once, when this process can no longer write to the store."""
        self.limits = limits
        self.durability = store.durability
        self._store = store
        self._lost = lost
        self._damage = Damage()
        self._is_lost = self._closed = False
        self._unsynced = False
        """Whether a commit is not fsynced yet: a power loss would take it."""
        self._sync_timer: TimerHandle | None = None
        self._loop = loop
        self._wall = clock
        self._ahead_ms: int | None = None
        """Offset of the engine's clock from the wall clock, fixed when the store was loaded."""
        self._shards = store.shards(shards)
        self._committer = Committer(store, loop)
        self.disk = Disk(store, self._committer, loop, disk_free_min_bytes)
        self._body_cache = BodyCache(store, self._committer, memory_bytes_max)
        self._waiters = Waiters()
        self._watchers = Watchers(loop, self.now, self._apply, self._answer)
        self._key_watchers = KeyWatchers(loop, self._apply, self._answer)
        self._arrivals = 0
        self._forming: list[Answer] = []
        self._retries = Retries()
        self._again: list[tuple[Asker, Ticket, Pop]] = []
        """Pops that found nothing within their scan limit: continued after the commit."""
        self._going_on: dict[int, None] = {}
        """Numbers of waiters in the same situation."""
        self._flush_planned = False
        self._broken: str | None = None
        """Why the engine can't be trusted; every command gets ``busy`` until the reload."""
        self._broken_at = self._held_at = 0
        self._reload_timer: TimerHandle | None = None
        """Set while a reload is delayed after failures in a row."""
        self.reloading = False
        """Whether a reload is running."""
        self._failed_in_a_row = 0
        """Failed commits and reloads since the last successful commit."""
        self._timer = Timer(loop, self.now, self._ring)
        self._settled: Future[None] | None = None
        """Resolved whenever a group has been answered; only ``drain`` sets it."""
        self._hear: Callable[[list[EmittedEvent]], None] | None = None
        """Callback for events, called once they are committed."""
        self.draining = False
        """No more long polls: a pop that finds nothing is answered at once."""
        self._returned: list[Popped] = []
        """Undelivered pop replies, whose leases are returned once the engine may change again."""
        self.held = self._is_still = False
        """Whether changes are refused; and whether everything that formed before that has been sealed."""
        self.failures = 0
        """Failed commits."""
        self.meter = Meter()
        self._engine = self._take(*self._load())
        self.disk.on_turn = partial(loop.call_soon, self._ring)
        self._merger = self._new_merger()
        self._plan_flush()
        self._set_timer()

    def now(self) -> int:
        """Return the current time in ms, which never goes back, not even across a restart."""
        return self._wall() + (self._ahead_ms or 0)

    # Commands.

    def ask(self, asker: Asker, ticket: Ticket, command: Command) -> None:
        """Apply a command; ``asker.answered`` is called once its group is committed."""
        may_tick = self._broken is None and not self.held
        if self._waiters.count and may_tick and self._engine.next_due_at() <= self.now():
            self._tick()  # what is due goes to the waiters first, then to this command
        if type(command) is Backup:
            back_up(self._store, self._committer, asker, ticket, command)
            return
        if type(command) is Hold:
            self._hold(asker, ticket, command)
            return
        reply = self._apply(command)
        if type(reply) is Popped and not reply.deliveries and (reply.again or self._may_wait(command)):
            assert isinstance(command, Pop)
            if reply.again:
                self._again.append((asker, ticket, command))
            else:
                self._wait(asker, ticket, command, reply.queue)
        elif type(reply) is NotesFound and not reply.is_over and self._may_wait(command):
            assert isinstance(command, Await)
            self._watchers.add(self._engine, asker, ticket, command, reply)
        elif type(reply) is KvFound and not reply.changed and self._may_wait(command):
            assert isinstance(command, KvWatch)
            self._key_watchers.add(self._engine, asker, ticket, command)
        else:
            self._retries.forming.append((len(self._forming), command))
            self._forming.append((asker, ticket, reply))
            if type(command) is GroupDelete and type(reply) is QueueFound:
                self._forming += self._waiters.part_with(command.tenant, command.queue, command.group)
        if self._waiters.count:
            self._serve_woken()
        if not self._flush_planned:
            self._plan_flush()

    def _answer(self, asker: Asker, ticket: Ticket, reply: Reply | ForebayError) -> None:
        """Add a reply to the forming group."""
        self._forming.append((asker, ticket, reply))
        self._plan_flush()

    def forget(self, asker: Asker) -> None:
        """Drop everything that waits for this asker: its connection is gone."""
        for waiter in self._waiters.of_asker(asker):
            self._waiters.remove(waiter)
        if self._watchers.count:
            self._watchers.forget(self._engine, asker)
        if self._key_watchers.count:
            self._key_watchers.forget(asker)
        self._again = [each for each in self._again if each[0] is not asker]
        self._retries.forget(asker)

    def give_back(self, reply: Reply | ForebayError) -> None:
        """Return the lease of a reply that could not be sent: its messages need not wait until it expires."""
        if type(reply) is not Popped or reply.lease is None or self._closed:
            return
        if self._broken is not None or self.held:
            self._returned.append(reply)
            return
        try:
            self._engine.give_back(reply, self.now())
        except Exception:
            self._met_bug("a lease could not be given back")
        self._serve_woken()
        self._plan_flush()

    def give_back_all(self, tenant: str) -> None:
        """Return all leases of a tenant, uncounted, and look at its waiting pops again."""
        for popped in self._engine.leased_to(tenant):
            self.give_back(popped)
        for waiter in self._waiters.of(tenant) if self._broken is None else ():
            self._try_again(waiter)
        self._plan_flush()

    def peek(self, query: Command) -> Reply | ForebayError:
        """Return the reply to a query at once, from state that may not be committed yet."""
        assert isinstance(query, Query), "only a query may be answered before its commit"
        try:
            # At the engine's own time: a later one could change state without a flush to commit it.
            return self._engine.apply(query, self._engine.now)
        except ForebayError as error:
            return error

    def give_up(self, asker: Asker) -> None:
        """Answer the waiting pops of an asker with nothing: it sends no more commands."""
        for other, _, command in self._again:
            if other is asker:
                command.wait_ms = 0
        for waiter in self._waiters.of_asker(asker):
            self._waiters.remove(waiter)
            self._answer(asker, waiter.ticket, Popped(waiter.queue, None, []))
        self._watchers.give_up(self._engine, asker)
        self._key_watchers.give_up(asker)

    def listen(self, hear: Callable[[list[EmittedEvent]], None] | None) -> None:
        """Set the callback for committed events; None removes it."""
        self._hear = hear
        self._engine.listen(hear is not None)

    @property
    def broken(self) -> str | None:
        """Return why every command gets ``busy`` right now, or None."""
        return self._broken

    @property
    def waiting(self) -> int:
        """Number of waiting pops."""
        return self._waiters.count

    @property
    def body_bytes(self) -> int:
        """Bytes in the body cache."""
        return self._body_cache.bytes

    @property
    def engine(self) -> Engine:
        """The current engine. Read only."""
        return self._engine

    def _apply(self, command: Command) -> Reply | ForebayError:
        if self._broken is not None:
            return Busy(self._broken)
        now = self.now()
        if self.held:  # only queries run, at the engine's own time: a later one would fire timers
            if not isinstance(command, Query):
                return Busy(HELD)
            now = self._engine.now
        if self.disk.is_full:
            refusal = self.disk.refusal(self._engine, command, self.limits.pop_creates_queues)
            if refusal is not None:
                return refusal
        try:
            return self._engine.apply(command, now)
        except ForebayError as error:
            return error
        except Exception:
            self._met_bug(f"{type(command).__name__} could not be applied")
            return Busy("the server met a bug of its own; the command was not carried out")

    # Long polls.

    def _may_wait(self, command: Command) -> bool:
        return isinstance(command, Pop | Await | KvWatch) and command.wait_ms > 0 and not self.draining

    def _wait(self, asker: Asker, ticket: Ticket, command: Pop, queue: Queue) -> None:
        self._arrivals += 1
        timer = self._loop.call_later(command.wait_ms / 1000, self._give_up, self._arrivals)
        self._waiters.add(Waiter(asker, ticket, command, self._arrivals, timer.cancel, queue))
        # The pop may have created its group, which must be committed even if no message ever arrives.
        self._plan_flush()

    def _give_up(self, number: int) -> None:
        """On timeout: answer a waiting pop with what is deliverable, even if less than ``min_count``."""
        if (waiter := self._waiters.get(number)) is not None:
            self._finish_wait(waiter)

    def _finish_wait(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        pop = waiter.pop
        pop.min_count, pop.wait_ms = 1, 0
        reply: Reply | ForebayError = Popped(waiter.queue, None, [])
        # A pop creates its group: applied here it would bring back a group that was deleted meanwhile.
        if self._broken is not None or self._engine.has_group(pop.tenant, pop.queue, pop.group):
            reply = self._apply(pop)
        if type(reply) is Popped and reply.again:
            self._again.append((waiter.asker, waiter.ticket, waiter.pop))
        else:
            self._forming.append((waiter.asker, waiter.ticket, reply))
        self._plan_flush()

    def _serve_woken(self) -> None:
        """Retry the waiters of everything that became deliverable, until nothing more does."""
        while self._broken is None and self._waiters.count and (woken := self._engine.take_woken()):
            for wake in woken:
                for waiter in self._waiters.woken(wake, self._engine.deliverable):
                    self._try_again(waiter)

    def _try_again(self, waiter: Waiter) -> None:
        reply = self._apply(waiter.pop)
        if type(reply) is not Popped or reply.deliveries:
            self._waiters.remove(waiter)
            self._forming.append((waiter.asker, waiter.ticket, reply))
        elif reply.again:
            self._going_on[waiter.number] = None
            self._plan_flush()

    def _ask_again(self) -> None:
        """Go on with the pops that found nothing within their scan limit."""
        going_on, self._going_on = self._going_on, {}
        for number in going_on:
            waiter = self._waiters.get(number)
            if waiter is not None and self._broken is None:
                self._try_again(waiter)
        again, self._again = self._again, []
        for asker, ticket, command in again:
            self.ask(asker, ticket, command)
        if going_on:
            self._plan_flush()

    # Timers.

    def _set_timer(self) -> None:
        self._timer.set(self._engine.next_due_at())

    def _ring(self) -> None:
        self._engine.hold_crons(self.disk.is_full)
        if self._broken is None and not self.held:
            self._tick()
            self._plan_flush()
            self._set_timer()

    def _tick(self) -> None:
        """Fire what is due, and retry the waiters it woke."""
        try:
            self._engine.tick(self.now())
        except Exception:
            self._met_bug("what was due could not be done")
        self._serve_woken()

    # Group commit.

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Seal the forming group and commit it. While a commit runs, the next group goes on forming."""
        self._flush_planned = False
        if self._broken is not None and not self._closed:
            group, self._forming = self._forming, []
            self._fail(group, self._retries.take_forming())
            self._plan_reload()
            return
        if self._committer.busy or self._closed:
            return
        self._serve_woken()
        if self._watchers.count and self._broken is None:
            self._watchers.serve(self._engine)
            self._serve_woken()
        if self._key_watchers.count and self._broken is None:
            self._key_watchers.serve(self._engine)
        group, self._forming = self._forming, []
        asked = self._retries.take_forming()
        commits: list[Commit] = []
        # Bodies that the cache lacks. They are read in the commit thread, before the group may delete them.
        absent: list[Absent] = []
        if self._broken is None:
            try:
                absent = self._body_cache.missing(reply for _, _, reply in group)
                commits = self._engine.seal(self._engine.now) if not self._is_still else []
                self._is_still = self.held
            except Exception:
                self._met_bug("a commit could not be encoded")
        if self._broken is not None:
            self._fail(group, asked)
            self._plan_reload()
            return
        self._set_timer()
        for log, segment in self._engine.take_sealed():
            self._body_cache.add(log, segment)
        self._merger.sealed()
        self._merger.stopped = self._merger.stopped or self.held
        sync = self._engine.must_sync
        if commits or absent or (sync and self._unsynced):
            self.disk.wrote(commits)
            how = Kept(self._loop.time(), bool(commits), sync, self._engine.take_emitted(), asked, absent)
            kept = partial(self._kept, group, how)
            self._committer.commit(commits, sync, partial(self._body_cache.read, absent), kept)
        else:
            told = self._engine.take_emitted()
            self._deliver(group)
            self._merger.kept()
            if told and self._hear is not None:
                self._hear(told)

    def _kept(self, group: list[Answer], how: Kept, outcome: Bodies | Exception) -> None:
        if isinstance(outcome, Exception):
            self._not_kept(outcome)
            self._fail(group, how.asked)
        else:
            self._failed_in_a_row = 0
            self.meter.count(len(group), self._loop.time() - how.began_at)
            self._unsynced = not how.synced and (how.wrote or self._unsynced)
            if self._unsynced and self._sync_timer is None and self._store.blocking:
                self._sync_timer = self._loop.call_later(SYNC_S, self._sync)
            if how.absent:
                self._body_cache.put_back(how.absent, outcome)
                group = [(asker, at, self._damage.without(reply, self._engine)) for asker, at, reply in group]
            self._deliver(group)
            if how.told and self._hear is not None:
                self._hear(how.told)
            self._merger.kept()
        if self._forming or self._broken or self._engine.has_changes or self._engine.wants_sync:
            self._plan_flush()

    def _not_kept(self, error: Exception) -> None:
        self.failures += 1
        self._failed_in_a_row += 1
        logger.error("commit failed: %s", error)
        if isinstance(error, Full):
            self.disk.hit_end()
            self._retries.wanted = self._failed_in_a_row == 1  # a second failure: not even the rest fits
        if isinstance(error, Lost):
            self._tell_lost(error)
        self._break(cause(error))

    def _tell_lost(self, error: Lost) -> None:
        """Report once that this process can no longer write to the store."""
        self._break("the store can't be written any more by this process; it has to be started again")
        if not self._is_lost:
            self._is_lost = True
            self._lost(str(error))

    def _sync(self) -> None:
        """Plan an fsync: the commits confirmed as ``os`` have waited for SYNC_S."""
        self._sync_timer = None
        if self._unsynced and self._broken is None:
            self._engine.want_sync()
            self._plan_flush()

    def _deliver(self, group: list[Answer]) -> None:
        """Send the replies of a committed group, each connection flushed once."""
        askers: dict[Asker, None] = {}
        for asker, ticket, reply in group:
            if type(reply) is Adopted:
                self._body_cache.lacks = True  # a stage's bodies go straight to the store
            if self._body_cache.lacks:
                self._body_cache.read_ahead(reply)
            asker.answered(ticket, reply)
            askers[asker] = None
        for asker in askers:
            asker.flush()
        if self._again or self._going_on:
            self._loop.call_soon(self._ask_again)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # Hold.

    def _hold(self, asker: Asker, ticket: Ticket, command: Hold) -> None:
        """Stop all changes, those by timers included, or resume them."""
        if command.held and not self.held:
            self.held, self._held_at = True, self.now()
            logger.warning("held: it answers questions only")
        elif self.held and not command.held:
            self.held = self._is_still = False
            logger.warning("let go: all goes on")
            if self._broken is None:
                self._engine.gain(self.now() - self._held_at)
                self._go_on()
        self._answer(asker, ticket, Held(command.held, self._store.name))

    def _go_on(self) -> None:
        """Restart the timer, the merger and every waiter after a hold or a reload."""
        self._merger.stopped = True
        self._merger = self._new_merger()
        self._timer.cancel()
        self._set_timer()
        self._plan_flush()
        for waiter in self._waiters.all():
            self._try_again(waiter)
        returned, self._returned = self._returned, []
        for reply in returned:
            self.give_back(reply)

    # Failure and reload.

    def _met_bug(self, what: str) -> None:
        """Stop trusting the engine: a bug may have left half a change in it, which must not be committed."""
        logger.exception("bug: %s", what)
        self._break("the server met a bug of its own and reloads; nothing of this was carried out")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken, self._broken_at = why, self.now()
        self._plan_flush()

    def _fail(self, group: list[Answer], asked: list[tuple[int, Command]]) -> None:
        """Answer a group that was not committed: every reply becomes ``busy``, unless it is tried again."""
        error = Busy(self._broken or "the server reloads")
        self._deliver([(asker, ticket, error) for asker, ticket, _ in self._retries.split(group, asked)])

    def _plan_reload(self) -> None:
        """Reload at once after the first failure, after RELOAD_RETRY_S when failures repeat."""
        if self._is_lost or self._committer.busy:
            return  # the commit or reload that runs plans a flush when it ends, which calls this again
        if self._failed_in_a_row <= 1:
            self._reload()
        elif self._reload_timer is None:
            self._reload_timer = self._loop.call_later(RELOAD_RETRY_S, self._reload)

    def _reload(self) -> None:
        """Replace the engine by one loaded from the store."""
        self._reload_timer = None
        if not self._committer.busy and not self._closed:
            self.reloading = True
            self._committer.alone(partial(self._load, self.now() - self._broken_at), self._reloaded)

    def _reloaded(self, outcome: Loaded | Exception) -> None:
        self.reloading = False
        if isinstance(outcome, Exception):
            if isinstance(outcome, Lost):
                logger.error("reload failed: %s", outcome)
                self._tell_lost(outcome)
                return
            logger.error("reload failed, next try in %g s: %s", RELOAD_RETRY_S, outcome)
            self._broken = cause(outcome)
            self._failed_in_a_row += 2
            self._fail(self._retries.give_up(), [])
            self._plan_flush()
            return
        before, self._engine = self._engine, self._take(*outcome)
        self._engine.take_owners(before)
        self._engine.listen(self._hear is not None)
        logger.warning("reloaded from the store")
        self._broken = None
        self._watchers.reload(self._engine)
        self._key_watchers.reload(self._engine)
        self._go_on()
        for asker, ticket, command in self._retries.take():
            self.ask(asker, ticket, command)

    def _load(self, down_ms: int | None = None) -> Loaded:
        """Claim all shards and load an engine. Runs in the commit thread, since it can take seconds."""
        clock = (self._wall, self._ahead_ms, down_ms)
        return claim_all(self._store, self._shards, self.limits, *clock, crons_wait=self.disk.is_full)

    def _take(self, engine: Engine, ahead_ms: int) -> Engine:
        """Adopt a loaded engine, with an empty body cache."""
        self._ahead_ms = ahead_ms
        self._body_cache.clear()
        engine.hold_crons(self.disk.is_full)
        return engine

    def _new_merger(self) -> Merger:
        may_grow = self.disk.may_grow
        return Merger(self._engine, self._store, self._committer, self._plan_flush, may_grow)

    # Shutdown.

    @property
    def _is_unkept(self) -> bool:
        """Whether something is being committed, or still has to be."""
        return self._committer.busy or (bool(self._engine.has_changes) and not self._is_still)

    async def drain(self) -> None:
        """Answer every waiter and commit everything that formed."""
        self.draining = True
        for waiter in self._waiters.all():
            self._finish_wait(waiter)
        self._watchers.give_up(self._engine)
        self._key_watchers.give_up()
        while self._broken is None and (self._forming or self._again or self._is_unkept):
            self._settled = self._loop.create_future()
            self._plan_flush()
            await self._settled
        left, self._forming = self._forming, []
        self._fail([*left, *self._retries.give_up()], [])

    def close(self) -> None:
        """Commit the rest with an fsync, then close the store. The node takes no commands after this."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._timer, self._reload_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        self._merger.stopped = True
        self.disk.close()
        self._committer.close()
        if self._broken is None and not self._is_still:
            self._engine.clear_marks()
            try:
                self._store.commit(self._engine.seal(self._engine.now), sync=True)
            except Exception as error:
                logger.error("the last commit failed, and what was confirmed as os may be lost: %s", error)
        self._store.close()
