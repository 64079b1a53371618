"""What was pushed from SQL: where it waits, in the order in which it was committed.

Nothing here takes a row away for good: the commit that appends a message does that (``arrival_key``).

**Order.** A transaction takes its turn when it commits, and rows are read by turn. One that took an early
turn may be seen late, so rows are not read from the last turn seen on; but once every transaction that was
at work when a turn was given out has ended, none of that turn or before can still come. Those need not be
looked at again, which matters while somebody else's transaction keeps dead rows from being cleared away.

**Waking.** Who pushes has to notify a server that sleeps, and only such a one: all who notify wait for each
other when they commit. A server that sleeps holds a lock, and who pushes tries it.
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
"""Bytes of payloads taken over at a time, as PostgreSQL keeps them: more or less compressed."""
SLEEP_S = 30.0
"""How long to sleep if nobody wakes us."""
NAP_S = (0.01, 0.1)
"""How long to wait while somebody's transaction has pushed and is not committed: at first, and at most."""


class Seen(Struct, frozen=True):
    """The last turn that was given out when we looked, and the first transaction that had not begun then."""

    turn: int
    begins: int


class Inbox:
    """Reads what was pushed from SQL, over a connection of its own, on the loop of its caller."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, name="forebay inbox", settings={"jit": "off"})
        self._session.opened = self._opened
        self._woken = asyncio.Event()
        self._asleep = False
        self._nap_s = NAP_S[0]
        self._connections = 0
        """How often it was connected: what was seen over one says nothing of another."""
        self._seen: deque[Seen] = deque()
        self._turn = 0
        """The last that had been given out when we last looked."""
        self._passed = 0
        """No transaction of this turn, or of one before it, can still come."""

    async def _opened(self) -> None:
        self._asleep = False
        # Another server may be behind the address now, which has given out fewer turns.
        self._connections += 1
        self._seen.clear()
        self._turn = self._passed = 0
        await self._session.listen(CHANNEL, self._woken.set)

    async def look(self, most: int, without: Collection[str]) -> list[Arrival]:
        """What waits, the oldest first, but for some queues, each given as TENANT/QUEUE."""
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
        """Whether turns had been given out by the last look that are not in ``_seen`` yet."""
        return self._turn > (self._seen[-1].turn if self._seen else self._passed)

    def _pass(self, first: int | None, begins: int, turn: int, oldest: int) -> None:
        """Forget the turns before the first that waits, if no transaction can still come with one of them.

        ``begins`` is a transaction that began just now, if there is news, ``turn`` the last that was given
        out, and ``oldest`` the first transaction that has not ended.
        """
        if self._is_news:
            # Whoever had a turn by the last look had begun by then.
            self._seen.append(Seen(self._turn, begins))
        while self._seen and self._seen[0].begins <= oldest:
            last = self._seen.popleft().turn
            self._passed = max(self._passed, last if first is None else min(last, first - 1))
        self._turn = turn

    async def wait(self) -> None:
        """Wait until there may be something. There was nothing when it was last looked."""
        self._woken.clear()
        try:
            if await self._session.value("try_lock", ASLEEP):
                self._asleep = True
                if not await self._session.value("is_inbox_empty", self._passed):
                    return
                nap_s = SLEEP_S
            else:  # somebody has pushed, and will commit soon
                nap_s = self._nap_s
                self._nap_s = min(2 * nap_s, NAP_S[1])
        except DatabaseError as error:
            raise StoreError(str(error)) from None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), nap_s)

    async def refuse(self, refused: Sequence[tuple[int, str, str]]) -> None:
        """Put rows aside that can't be pushed: number, code and why of each."""
        numbers, codes, errors = ([each[at] for each in refused] for at in range(3))
        try:
            await self._session.value("refuse", numbers, codes, errors)
        except DatabaseError as error:
            raise StoreError(str(error)) from None

    async def close(self) -> None:
        await self._session.close()
