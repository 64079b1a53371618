"""The inbox: messages pushed from SQL, in the order in which their transactions committed.

Rows are not deleted here: the commit that appends a message deletes its row (``arrival_key``).

**Order.** A transaction takes a turn (a sequence number) when it commits, and rows are read by turn. A
transaction with an early turn may become visible late, so a read can't start at the last turn seen. But once
every transaction that ran when a turn was issued has ended, no row up to that turn can still appear. Reads
skip those turns, which matters while another transaction keeps dead rows from being vacuumed.

**Wake-ups.** A push has to notify a server that sleeps, and only then: all transactions that notify serialize
on commit. A sleeping server holds a lock, and a push tries that lock.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress

from msgspec import Struct

from forebay.store.base import Arrival, StoreError
from forebay.store.postgres.migrate import ASLEEP
from forebay.store.postgres.session import DatabaseError, Session

CHANNEL = "forebay"
BYTES_MAX = 4 * 1024 * 1024
"""Bytes of payloads taken at a time, as stored by PostgreSQL: possibly compressed."""
SLEEP_S = 30.0
"""Longest sleep without a wake-up."""
NAP_S = (0.01, 0.1)
"""Wait while another transaction has pushed and not committed yet: first and longest."""


class Seen(Struct, frozen=True):
    """The last turn issued by a look, and the first transaction that had not begun then."""

    turn: int
    begins: int


class Inbox:
    """Reads messages pushed from SQL, over a connection of its own, on the caller's event loop."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, name="forebay inbox", settings={"jit": "off"})
        self._session.opened = self._opened
        self._woken = asyncio.Event()
        self._asleep = False
        self._nap_s = NAP_S[0]
        self._connections = 0
        """Number of connects: turns seen over one connection say nothing about another."""
        self._seen: deque[Seen] = deque()
        self._turn = 0
        """The last turn issued by the previous look."""
        self._passed = 0
        """No row of this turn, or an earlier one, can still appear."""

    async def _opened(self) -> None:
        self._asleep = False
        # After a failover another server may be behind the address, which has issued fewer turns.
        self._connections += 1
        self._seen.clear()
        self._turn = self._passed = 0
        await self._session.listen(CHANNEL, self._woken.set)

    async def look(self, most: int, without: Collection[str]) -> list[Arrival]:
        """Return waiting arrivals, oldest first, except those of some queues, each given as TENANT/QUEUE."""
        try:
            if self._asleep:
                self._asleep = False
                await self._session.value("unlock", ASLEEP)
            now = await self._session.row("turns")
            assert now is not None
            connections = self._connections
            rows = await self._session.fetch("arrivals", most, list(without), self._passed, BYTES_MAX)
            begins = await self._session.value("begin_one") if self._is_news else 0
            if not without and connections == self._connections:
                self._pass(rows[0][0] if rows else None, begins, *now)
        except DatabaseError as error:
            raise StoreError(str(error)) from None
        if rows:
            self._nap_s = NAP_S[0]
        return [Arrival(*row[1:]) for row in rows]

    @property
    def _is_news(self) -> bool:
        """Whether turns were issued up to the last look that are not in ``_seen`` yet."""
        return self._turn > (self._seen[-1].turn if self._seen else self._passed)

    def _pass(self, first: int | None, begins: int, turn: int, oldest: int) -> None:
        """Skip the turns before the first waiting one, as far as no transaction can still appear with them.

        ``begins`` is a transaction that began just now, if there is news; ``turn`` the last turn issued; and
        ``oldest`` the oldest transaction still running.
        """
        if self._is_news:
            # Every transaction with a turn by the last look had begun by then.
            self._seen.append(Seen(self._turn, begins))
        while self._seen and self._seen[0].begins <= oldest:
            last = self._seen.popleft().turn
            self._passed = max(self._passed, last if first is None else min(last, first - 1))
        self._turn = turn

    async def wait(self) -> None:
        """Sleep until there may be arrivals. The last ``look`` found none."""
        self._woken.clear()
        try:
            if await self._session.value("try_lock", ASLEEP):
                self._asleep = True
                # Checked again under the lock: a push that committed before we held it did not notify.
                if not await self._session.value("is_inbox_empty", self._passed):
                    return
                nap_s = SLEEP_S
            else:  # a running transaction has pushed, and will commit soon
                nap_s = self._nap_s
                self._nap_s = min(2 * nap_s, NAP_S[1])
        except DatabaseError as error:
            raise StoreError(str(error)) from None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), nap_s)

    async def refuse(self, refused: Sequence[tuple[int, str, str]]) -> None:
        """Set aside rows that can't be pushed: number, error code and message of each."""
        numbers, codes, errors = ([each[at] for each in refused] for at in range(3))
        try:
            await self._session.value("refuse", numbers, codes, errors)
        except DatabaseError as error:
            raise StoreError(str(error)) from None

    async def close(self) -> None:
        await self._session.close()
