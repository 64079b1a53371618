"""A node: takes questions, lets the core decide, keeps what it decided, then lets the answers go.

    ask ──> engine.apply ──> forming group ──> engine.seal ──> committer ──> answers leave
              │                                                    │
              └── nothing to deliver and the pop may wait: waiters └── failed: the group and all later ones
                  woken by pushes, by what comes back or falls due     get ``busy``, the shards reload

Everything here runs on one event loop. The core's state is always ahead of the store by at most the group
being kept and the group that forms; no answer leaves before the commit that was forming when it was made.
"""

import logging
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable
from functools import partial

from forebay.broker.backup import HELD, back_up
from forebay.broker.body_cache import BodyCache, Damage, readable
from forebay.broker.committer import Bodies, Committer, Kept, Meter
from forebay.broker.key_watchers import KeyWatchers
from forebay.broker.load import Loaded, cause, claim_all
from forebay.broker.merger import Merger
from forebay.broker.message_watchers import Watchers
from forebay.broker.timer import Timer
from forebay.broker.waiters import Asker, Ticket, Waiter, Waiters
from forebay.core.api.commands import Backup, Command, GroupDelete, Held, Hold, Pop, Popped, Reply
from forebay.core.api.queries import Await, KvFound, KvWatch, LogSlice, NotesFound, Query, QueueFound
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.errors import Busy, ForebayError
from forebay.core.queries.payloads import Absent
from forebay.core.records.commit import Commit
from forebay.core.state import Adopted, EmittedEvent, Queue
from forebay.store.base import Lost, Store

logger = logging.getLogger("forebay.node")

Answer = tuple[Asker, Ticket, Reply | ForebayError]


SYNC_S = 0.2
"""How long what was confirmed as ``os`` may stay unsynced: what a power loss can take."""
RELOAD_RETRY_S = 1.0
"""How long to wait before the store is asked again after a reload failed."""


class Node:
    """The state of one process, and the loop that moves it."""

    def __init__(
        self,
        store: Store,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        limits: Limits,
        *,
        shards: int = 64,
        memory_bytes_max: int = 1 << 28,
        lost: Callable[[str], None] = lambda why: None,
    ) -> None:
        """``lost`` is told when the store can't be written any more by this process."""
        self.limits = limits
        self.durability = store.durability
        self._store = store
        self._lost = lost
        self._damage = Damage()
        self._is_lost = False
        self._closed = False
        self._unsynced = False
        """Whether something is kept that a power loss would take."""
        self._sync_timer: TimerHandle | None = None
        self._loop = loop
        self._wall = clock
        self._ahead_ms: int | None = None
        """How far the store's time was ahead of the wall clock when it was loaded."""
        self._shards = store.shards(shards)
        self._committer = Committer(store, loop)
        self._shelf = BodyCache(store, self._committer, memory_bytes_max)
        self._waiters = Waiters()
        self._watchers = Watchers(loop, self._clock, self._apply, self._answer)
        self._key_watchers = KeyWatchers(loop, self._apply, self._answer)
        self._arrivals = 0
        self._forming: list[Answer] = []
        self._again: list[tuple[Asker, Ticket, Pop]] = []
        """Pops that have not looked at everything yet: asked again after the commit."""
        self._going_on: dict[int, None] = {}
        """Numbers of waiting pops of which the same is true."""
        self._flush_planned = False
        self._broken: str | None = None
        """Why the state can't be trusted; every question gets ``busy`` until it is loaded again."""
        self._broken_at = 0
        self._reload_timer: TimerHandle | None = None
        """Set while the next try to reload waits."""
        self.reloading = False
        """Whether the state is being loaded again right now."""
        self._failed_in_a_row = 0
        """Commits and reloads that failed since a commit was kept."""
        self._timer = Timer(loop, self._clock, self._ring)
        self._settled: Future[None] | None = None
        """Told when a group has been answered, while the node stops."""
        self._hear: Callable[[list[EmittedEvent]], None] | None = None
        """Who is told of events."""
        self.draining = False
        """Nobody waits any more: a pop that finds nothing is answered at once."""
        self._returned: list[Popped] = []
        """What could not be sent while nothing could be carried out."""
        self._held = self._is_still = False
        """Whether nothing may change any more; and whether what had formed by then is on its way."""
        self._held_at = 0
        self.failures = 0
        """Commits that failed."""
        self.meter = Meter()
        self._engine = self._take(*self._load())
        self._merger = self._new_merger()
        self._plan_flush()
        self._set_timer()

    def _clock(self) -> int:
        """Time that never goes back, not even over a restart."""
        return self._wall() + (self._ahead_ms or 0)

    # Questions.

    def ask(self, asker: Asker, ticket: Ticket, command: Command) -> None:
        """Carry out a command; ``asker.answered`` is called once the answer may leave."""
        may_tick = self._broken is None and not self._held
        if self._waiters.count and may_tick and self._engine.next_due_at() <= self._clock():
            self._tick()  # what is due belongs to those who wait, not to who asks now
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
        elif type(reply) is NotesFound and not reply.is_over and self._may_watch(command):
            assert isinstance(command, Await)
            self._watchers.add(self._engine, asker, ticket, command, reply)
        elif type(reply) is KvFound and not reply.changed and self._may_watch(command):
            assert isinstance(command, KvWatch)
            self._key_watchers.add(self._engine, asker, ticket, command)
        else:
            self._forming.append((asker, ticket, reply))
            if type(command) is GroupDelete and type(reply) is QueueFound:
                self._forming += self._waiters.part_with(command.tenant, command.queue, command.group)
        if self._waiters.count:
            self._serve_woken()
        if not self._flush_planned:
            self._plan_flush()

    def _answer(self, asker: Asker, ticket: Ticket, reply: Reply | ForebayError) -> None:
        """Let an answer go with the forming commit."""
        self._forming.append((asker, ticket, reply))
        self._plan_flush()

    def forget(self, asker: Asker) -> None:
        """The asker is gone: nobody waits for it any more."""
        for waiter in self._waiters.of_asker(asker):
            self._waiters.remove(waiter)
        if self._watchers.count:
            self._watchers.forget(self._engine, asker)
        if self._key_watchers.count:
            self._key_watchers.forget(self._engine, asker)
        self._again = [each for each in self._again if each[0] is not asker]

    def give_back(self, reply: Reply | ForebayError) -> None:
        """An answer could not be sent: what it leased is not held back until its time is over."""
        if type(reply) is not Popped or reply.lease is None or self._closed:
            return
        if self._broken is not None or self._held:
            self._returned.append(reply)
            return
        try:
            self._engine.give_back(reply, self._clock())
        except Exception:
            self._met_bug("a lease could not be given back")
        self._serve_woken()
        self._plan_flush()

    def give_back_all(self, tenant: str) -> None:
        """Return every lease of a tenant, uncounted: its consumers are gone."""
        for popped in self._engine.leased_to(tenant):
            self.give_back(popped)

    def peek(self, query: Command) -> Reply | ForebayError:
        """Answer a query at once, from state that may not be stored yet."""
        assert isinstance(query, Query), "only a query may be answered before its commit"
        try:
            # At the engine's own time: a later one would change state that no flush is planned for.
            return self._engine.apply(query, self._engine.now)
        except ForebayError as error:
            return error

    def give_up(self, asker: Asker) -> None:
        """The asker sends nothing more: its waiting pops are answered with nothing."""
        for other, _, command in self._again:
            if other is asker:
                command.wait_ms = 0
        for waiter in self._waiters.of_asker(asker):
            self._waiters.remove(waiter)
            self._answer(asker, waiter.ticket, Popped(waiter.queue, None, []))
        self._watchers.give_up(self._engine, asker)
        self._key_watchers.give_up(self._engine, asker)

    def listen(self, hear: Callable[[list[EmittedEvent]], None] | None) -> None:
        """Have somebody told of events once they are kept; nobody, if it is None."""
        self._hear = hear
        self._engine.listening = hear is not None

    @property
    def broken(self) -> str | None:
        """Why every question gets ``busy`` right now; None if none does."""
        return self._broken

    @property
    def waiting(self) -> int:
        """Pops that wait."""
        return self._waiters.count

    @property
    def body_bytes(self) -> int:
        """Bytes of payloads in memory that the store has, too."""
        return self._shelf.bytes

    @property
    def engine(self) -> Engine:
        """What the node knows right now: to be looked at, not to be changed."""
        return self._engine

    def _apply(self, command: Command) -> Reply | ForebayError:
        if self._broken is not None:
            return Busy(self._broken)
        now = self._clock()
        if self._held:
            if not isinstance(command, Query):
                return Busy(HELD)
            now = self._engine.now
        try:
            return self._engine.apply(command, now)
        except ForebayError as error:
            return error
        except Exception:
            self._met_bug(f"{type(command).__name__} could not be applied")
            return Busy("the server met a bug of its own; the command was not carried out")

    # Waiting.

    def _may_wait(self, command: Command) -> bool:
        return isinstance(command, Pop) and command.wait_ms > 0 and not self.draining

    def _may_watch(self, command: Command) -> bool:
        return isinstance(command, Await | KvWatch) and command.wait_ms > 0 and not self.draining

    def _wait(self, asker: Asker, ticket: Ticket, command: Pop, queue: Queue) -> None:
        self._arrivals += 1
        timer = self._loop.call_later(command.wait_ms / 1000, self._give_up, self._arrivals)
        waiter = Waiter(asker, ticket, command, self._arrivals, timer.cancel, queue)
        self._waiters.add(waiter)
        # The group it may have made has to be kept even if nothing ever comes.
        self._plan_flush()

    def _give_up(self, number: int) -> None:
        """The time of a waiting pop is over: it gets what there is, even if that is less than it wanted."""
        waiter = self._waiters.get(number)
        if waiter is not None:
            self._finish_wait(waiter)

    def _finish_wait(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        pop = waiter.pop
        pop.min_count, pop.wait_ms = 1, 0
        reply: Reply | ForebayError = Popped(waiter.queue, None, [])
        # What was deleted meanwhile does not come back because somebody waited for it.
        if self._broken is not None or self._engine.has_group(pop.tenant, pop.queue, pop.group):
            reply = self._apply(pop)
        if type(reply) is Popped and reply.again:
            self._again.append((waiter.asker, waiter.ticket, waiter.pop))
        else:
            self._forming.append((waiter.asker, waiter.ticket, reply))
        self._plan_flush()

    def _serve_woken(self) -> None:
        """Try again those who wait for what became deliverable, until nothing more does."""
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
        """Let pops that have not looked at everything yet look further."""
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

    # Time.

    def _set_timer(self) -> None:
        self._timer.set(self._engine.next_due_at())

    def _ring(self) -> None:
        if self._broken is None and not self._held:
            self._tick()
            self._plan_flush()
            self._set_timer()

    def _tick(self) -> None:
        """Do what is due, and serve those who wait for it."""
        try:
            self._engine.tick(self._clock())
        except Exception:
            self._met_bug("what was due could not be done")
        self._serve_woken()

    # Committing.

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Keep what has formed; while a group is being kept, the next goes on forming."""
        self._flush_planned = False
        if self._broken is not None and not self._closed:
            group, self._forming = self._forming, []
            self._fail(group)
            self._plan_reload()
            return
        if self._committer.busy or self._closed:
            return
        self._serve_woken()
        if self._watchers.count and self._broken is None:
            self._watchers.serve(self._engine)
            self._serve_woken()
        if self._engine.touched_keys and self._broken is None:
            self._key_watchers.serve(self._engine)
        group, self._forming = self._forming, []
        commits: list[Commit] = []
        absent: list[Absent] = []
        if self._broken is None:
            try:
                absent = self._shelf.missing(reply for _, _, reply in group)
                commits = self._engine.seal(self._engine.now) if not self._is_still else []
                self._is_still = self._held
            except Exception:
                self._met_bug("a commit could not be encoded")
        if self._broken is not None:
            self._fail(group)
            self._plan_reload()
            return
        self._set_timer()
        for log, segment in self._engine.take_sealed():
            self._shelf.add(log, segment)
        self._merger.sealed()
        self._merger.stopped = self._merger.stopped or self._held
        sync = self._engine.must_sync
        if commits or absent or (sync and self._unsynced):
            how = Kept(self._loop.time(), bool(commits), sync, self._engine.take_told())
            kept = partial(self._kept, group, absent, how)
            self._committer.commit(commits, sync, partial(self._shelf.read, absent), kept)
        else:
            told = self._engine.take_told()
            self._deliver(group)
            self._merger.kept()
            if told and self._hear is not None:
                self._hear(told)

    def _kept(
        self, group: list[Answer], absent: list[Absent], how: Kept, outcome: Bodies | Exception
    ) -> None:
        if isinstance(outcome, Exception):
            self._not_kept(outcome)
            self._fail(group)
        else:
            self._failed_in_a_row = 0
            self.meter.groups += 1
            self.meter.answers += len(group)
            self.meter.seconds += self._loop.time() - how.began_at
            self._unsynced = not how.synced and (how.wrote or self._unsynced)
            if self._unsynced and self._sync_timer is None and self._store.blocking:
                self._sync_timer = self._loop.call_later(SYNC_S, self._sync)
            if absent:
                self._shelf.put_back(absent, outcome)
                group = [(asker, ticket, self._readable(reply)) for asker, ticket, reply in group]
            self._deliver(group)
            if how.told and self._hear is not None:
                self._hear(how.told)
            self._merger.kept()
        if self._forming or self._broken or self._engine.changed or self._engine.wants_sync:
            self._plan_flush()

    def _readable(self, reply: Reply | ForebayError) -> Reply | ForebayError:
        """The answer without what could not be read back, which is not left in a lease nobody knows of."""
        left = readable(reply)
        if left is not reply:
            assert isinstance(reply, Popped | LogSlice)
            self._damage.tell(reply)
            if isinstance(reply, Popped):
                self._engine.put_off(reply)
        return left

    def _not_kept(self, error: Exception) -> None:
        self.failures += 1
        self._failed_in_a_row += 1
        logger.error("commit failed: %s", error)
        if isinstance(error, Lost):
            self._tell_lost(error)
        self._break(cause(error))

    def _tell_lost(self, error: Lost) -> None:
        """The store can't be written any more: say so, once."""
        self._break("the store can't be written any more by this process; it has to be started again")
        if not self._is_lost:
            self._is_lost = True
            self._lost(str(error))

    def _sync(self) -> None:
        """What was confirmed as ``os`` has waited long enough."""
        self._sync_timer = None
        if self._unsynced and self._broken is None:
            self._engine.want_sync()
            self._plan_flush()

    def _deliver(self, group: list[Answer]) -> None:
        """Let answers go."""
        askers: dict[Asker, None] = {}
        for asker, ticket, reply in group:
            if type(reply) is Adopted:
                self._shelf.lacks = True  # its bodies never were in memory
            if self._shelf.lacks and (
                type(reply) is Popped or (type(reply) is LogSlice and not reply.passing)
            ):
                self._shelf.read_ahead(reply)
            asker.answered(ticket, reply)
            askers[asker] = None
        for asker in askers:
            asker.flush()
        if self._again or self._going_on:
            self._loop.call_soon(self._ask_again)
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # Holding still.

    def _hold(self, asker: Asker, ticket: Ticket, command: Hold) -> None:
        """From here on nothing changes, not even with time, until the node is told to go on."""
        if command.held and not self._held:
            self._held, self._held_at = True, self._clock()
            logger.warning("held: it answers questions only")
        elif self._held and not command.held:
            self._held = self._is_still = False
            logger.warning("let go: all goes on")
            if self._broken is None:
                self._engine.gain(self._clock() - self._held_at)
                self._go_on()
        self._answer(asker, ticket, Held(command.held, self._store.name))

    def _go_on(self) -> None:
        """Time, and all that waits for it, goes on from what the engine holds."""
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

    # When something broke.

    def _met_bug(self, what: str) -> None:
        """The core broke in the middle of a change: what it holds can't be kept."""
        logger.exception("bug: %s", what)
        self._break("the server met a bug of its own and reloads; nothing of this was carried out")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken, self._broken_at = why, self._clock()
        self._plan_flush()

    def _fail(self, group: list[Answer]) -> None:
        """Nothing of the group was kept: whatever it answered, the truth is ``busy``."""
        error = Busy(self._broken or "the server reloads")
        self._deliver([(asker, ticket, error) for asker, ticket, _ in group])

    def _plan_reload(self) -> None:
        """Reload at once after a first failure; after several in a row, in a while."""
        if self._is_lost or self._committer.busy:
            return  # what is under way comes back here
        if self._failed_in_a_row <= 1:
            self._reload()
        elif self._reload_timer is None:
            self._reload_timer = self._loop.call_later(RELOAD_RETRY_S, self._reload)

    def _reload(self) -> None:
        """Start again from what the store has."""
        self._reload_timer = None
        if not self._committer.busy and not self._closed:
            self.reloading = True
            self._committer.alone(partial(self._load, self._clock() - self._broken_at), self._reloaded)

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
            self._plan_flush()
            return
        before, self._engine = self._engine, self._take(*outcome)
        self._engine.take_owners(before)
        self._engine.listening = self._hear is not None
        logger.warning("reloaded from the store")
        self._broken = None
        self._watchers.reload(self._engine)
        self._key_watchers.reload(self._engine)
        self._go_on()

    def _load(self, down_ms: int | None = None) -> Loaded:
        """An engine from what the store has, and its time; in a thread, because it takes a while."""
        return claim_all(self._store, self._shards, self.limits, self._wall, self._ahead_ms, down_ms)

    def _take(self, engine: Engine, ahead_ms: int) -> Engine:
        """Go on with an engine that was loaded."""
        self._ahead_ms = ahead_ms
        engine.reach = self.durability
        self._shelf.clear()
        return engine

    def _new_merger(self) -> Merger:
        return Merger(self._engine, self._store, self._committer, self._plan_flush)

    # The end.

    @property
    def _is_unkept(self) -> bool:
        """Whether something is on its way to the store, or will be."""
        return self._committer.busy or (bool(self._engine.changed) and not self._is_still)

    async def drain(self) -> None:
        """Answer everyone who waits, and keep what has formed."""
        self.draining = True
        for waiter in self._waiters.all():
            self._finish_wait(waiter)
        self._watchers.give_up(self._engine)
        self._key_watchers.give_up(self._engine)
        while self._broken is None and (self._forming or self._again or self._is_unkept):
            self._settled = self._loop.create_future()
            self._plan_flush()
            await self._settled
        left, self._forming = self._forming, []
        self._fail(left)

    def close(self) -> None:
        """Keep what is left and let go of the store. Nothing may be asked after this."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._timer, self._reload_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        self._merger.stopped = True
        self._committer.close()
        if self._broken is None and not self._is_still:
            self._engine.clear_marks()
            try:
                self._store.commit(self._engine.seal(self._engine.now), sync=True)
            except Exception as error:
                logger.error("the last commit failed, and what was confirmed as os may be lost: %s", error)
        self._store.close()
