"""A PostgreSQL connection that reconnects, and the event loop it runs on. The only file that knows asyncpg.

Session    one connection, opened when needed; its errors are one of three
Blocking   runs coroutines for blocking callers, from any thread, one at a time

Gone       the connection was lost: the statement may or may not have been executed
Again      not executed because of a concurrent transaction; can be retried
Refused    not executed, and why
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncpg
import uvloop

from forebay.store.postgres.sql import queries

T = TypeVar("T")
Row = Sequence[Any]

CONNECT_S = 5.0
"""Timeout of a connect."""
ANSWER_S = 30.0
"""Timeout of a statement, after which the connection counts as lost."""
MIGRATION_S = 86_400.0
"""Timeout of a migration."""
KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""The server drops a dead connection, and the locks it held, after 25 s."""
LIMITS = dict.fromkeys(("idle_session_timeout", "statement_timeout", "lock_timeout"), "0")
"""Timeouts a role may have for people, switched off: our connections idle, and wait for locks, on purpose."""

PLANS = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
}
"""Every statement of ours finds rows by key. A plan made while a table was small must not become a scan, and
none is planned again for every commit (0.42 ms for one message, 0.24 with this).
"""

_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class DatabaseError(Exception):
    """A statement failed, or the connection did."""


class Gone(DatabaseError):
    """The connection was lost: the statement may or may not have been executed."""


class Unreachable(Gone):
    """No connection could be opened: nothing was executed."""


class Again(DatabaseError):
    """Not executed because of a concurrent transaction; can be retried."""


class Refused(DatabaseError):
    """Not executed, and why."""

    def __init__(self, state: str, message: str, constraint: str = "") -> None:
        super().__init__(message)
        self.state = state
        """SQLSTATE."""
        self.constraint = constraint
        """Name of the violated constraint, if any."""


DISK_FULL = "53100"
"""SQLSTATE of a full disk."""
MAY_NOT = "42501"
"""SQLSTATE of a missing privilege."""


def shown(url: str) -> str:
    """An address without its password.

    >>> shown("postgresql://app:secret@db:5432/main?sslmode=require")
    'postgresql://app@db:5432/main'
    >>> shown("postgresql:///main?host=/run/postgresql&password=secret")
    'postgresql:///main'
    >>> shown("postgresql://app:se/cr@et@db"), shown("postgresql://app:se?cret@db")
    ('postgresql://app@db', 'postgresql://…')
    """
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    if "@" in rest and "@" not in place:
        return f"{scheme}://…"  # where the password ends can't be known
    user, at, host = place.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except _AGAIN as error:
        raise Again(str(error)) from None
    except _GONE as error:
        raise Gone(str(error) or type(error).__name__) from None
    except asyncpg.PostgresError as error:
        raise Refused(error.sqlstate or "", str(error), error.constraint_name or "") from None


class Session:
    """One connection, opened when needed. Not for concurrent use."""

    def __init__(self, url: str, *, name: str = "forebay", settings: dict[str, str] | None = None) -> None:
        self._url = url
        self._settings = {"application_name": name, **KEEPALIVE, **LIMITS, **(settings or {})}
        self._connection: asyncpg.Connection | None = None
        self._transacting: asyncpg.Connection | None = None
        """The connection of the running transaction: none of its statements may use another one."""
        self.opened: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Awaited on every new connection before it is used."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def open(self) -> asyncpg.Connection:
        """Return the connection. Raise Gone if it can't be opened."""
        if self._transacting is not None and not (self.is_open and self._connection is self._transacting):
            raise Gone("the connection was lost amid a transaction")
        if self._connection is not None and self._connection.is_closed():
            self._connection = None
        if self._connection is None:
            try:
                with _explained():
                    self._connection = await asyncpg.connect(
                        self._url, timeout=CONNECT_S, command_timeout=ANSWER_S, server_settings=self._settings
                    )
                if self.opened is not None:
                    await self.opened()
            except ValueError:  # its message may contain a part of the password
                hint = "write %2F for / and the like in a password"
                raise Refused("", f"its address can't be read; {hint}") from None
            except BaseException as error:
                self.drop()
                if isinstance(error, Gone):
                    raise Unreachable(str(error)) from None
                raise
            assert self._connection is not None
        return self._connection

    async def fetch(self, name: str, *arguments: object) -> list[Row]:
        """Return the rows of a named query."""
        return await self._do(lambda connection: connection.fetch(queries()[name], *arguments))

    async def row(self, name: str, *arguments: object) -> Row | None:
        return await self._do(lambda connection: connection.fetchrow(queries()[name], *arguments))

    async def value(self, name: str, *arguments: object) -> Any:
        return await self._do(lambda connection: connection.fetchval(queries()[name], *arguments))

    async def execute(self, text: str) -> None:
        """Execute a text of several statements."""
        await self._do(lambda connection: connection.execute(text, timeout=MIGRATION_S))

    async def copy(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Add rows to a table of ours by COPY."""
        await self._do(
            lambda connection: connection.copy_records_to_table(
                table, schema_name="forebay", records=rows, columns=columns
            )
        )

    @contextlib.asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[None]:
        """Run the statements inside as one transaction."""
        connection = await self.open()
        transaction = connection.transaction(isolation=isolation)
        await self._turn(transaction.start)
        self._transacting = connection
        try:
            yield
        except BaseException:
            with contextlib.suppress(DatabaseError):
                await self._turn(transaction.rollback)
            raise
        finally:
            self._transacting = None
        await self._turn(transaction.commit)

    async def _turn(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin or end a transaction. If that fails, drop the connection: nothing may join half of one."""
        try:
            with _explained():
                await step()
        except BaseException:
            self.drop()
            raise

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Call ``heard`` on every notification of a channel, and when the connection is lost."""
        await self._do(lambda connection: connection.add_listener(channel, lambda *_: heard()))
        connection = await self.open()
        connection.add_termination_listener(lambda *_: heard())

    async def _do(self, ask: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        connection = await self.open()
        try:
            with _explained():
                return await ask(connection)
        except Gone:
            self.drop()
            raise

    def drop(self) -> None:
        """Terminate the connection without a goodbye."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_GONE, asyncpg.PostgresError):
                await connection.close(timeout=CONNECT_S)


class Blocking:
    """Runs coroutines for blocking callers, in the calling thread, one at a time.

    A thread that already runs an event loop can't run this one: a helper thread does it.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._lock = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if asyncio._get_running_loop() is None:
                return self._loop.run_until_complete(coroutine)
            if self._helper is None:
                self._helper = ThreadPoolExecutor(1, "forebay-postgres")
            return self._helper.submit(self._loop.run_until_complete, coroutine).result()

    def close(self) -> None:
        with self._lock:
            if self._helper is not None:
                self._helper.shutdown()
            self._loop.close()
