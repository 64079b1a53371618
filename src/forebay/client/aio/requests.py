"""Requests, and which are retried.

A request that may have been executed is retried only if that is safe: a push has an idempotency key, and an
ack of a settled message is refused.
"""

import os
import secrets
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from forebay.client.access import Access, access_of
from forebay.client.address import server_of, shown
from forebay.client.aio.connection import Link, Unclaimed, connect, now, sleep
from forebay.client.backoff import Patience, Within, check_retry, check_timeout
from forebay.client.errors import Disconnected, NotForebay
from forebay.client.payloads import decoder
from forebay.client.translate import body_of, for_tenant
from forebay.core.bounds import KNOWN_MS_MAX
from forebay.core.errors import Busy, Conflict, Invalid
from forebay.wire.table import ANSWERS

KNOWN_MS_MIN = 60_000
"""Shortest time the server remembers a push for deduplication, so that it can be retried."""

ORDINARY = Within()


class Asking:
    """The part of a client that sends requests."""

    def __init__(
        self,
        server: str | None,
        access: Access,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 10.0,
    ) -> None:
        """``timeout_s`` is the timeout of a response, ``retry_s`` how long a request is retried."""
        check_timeout(timeout_s)
        check_retry(retry_s)
        self.server = server_of(server)
        access = access_of(self.server, access)
        self.tenant = access.tenant
        """The tenant that it acts for, if that is not the one of its token."""
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._link: Link = connect(self.server, timeout_s, access)
        self._is_closed = False
        self._producer = secrets.token_hex(8)
        self._numbers = count(1)

    async def ask(self, cmd: str, **fields: Any) -> Any:
        """Send any command of docs/PROTOCOL.md with its fields, once, and return the response.

        ``from_`` means the field ``from``.
        """
        said = {name.rstrip("_"): value for name, value in fields.items() if value is not None}
        wait_ms = said.get("wait_ms", 0)
        if not isinstance(wait_ms, int):
            raise Invalid("wait_ms", "a whole number of milliseconds")
        if self.tenant is not None and cmd != "AUTH":
            said.setdefault("tenant", self.tenant)
        return decoder()(await self._carry({"cmd": cmd, **said}, wait_ms, False, None))

    async def _ask(
        self,
        request: Struct,
        *,
        again: bool = True,
        unclaimed: Unclaimed | None = None,
        kind: Any = None,
        within: Within = ORDINARY,
    ) -> Any:
        """Return the answer to a request, as the operation declares it unless another type is given."""
        if self.tenant is not None:
            for_tenant(request, self.tenant)
        answer = await self._carry(request, getattr(request, "wait_ms", 0), again, unclaimed, within)
        try:
            return decoder(kind or ANSWERS[type(request)])(answer)
        except msgspec.DecodeError as error:
            raise Disconnected(
                f"the server at {shown(self.server)} answered something else: {error}"
            ) from None

    async def _carry(
        self,
        request: Struct | dict[str, Any],
        wait_ms: int,
        again: bool,
        unclaimed: Unclaimed | None,
        within: Within = ORDINARY,
    ) -> bytes:
        """Return the response to a request, retried with backoff where that is safe."""
        body = body_of(request)
        over_at = now() + wait_ms / 1000 if wait_ms else 0.0
        patience = Patience(self._retry_s if within.retry_s is None else within.retry_s)
        unsure = False
        for attempt in count():
            if self._is_closed:
                raise Disconnected("the client is closed", sent=False)
            left_s = 0.0
            if wait_ms:
                left_s = max(over_at - now(), 0.0) if attempt else wait_ms / 1000
                if attempt:
                    body = body_of(_waiting(request, int(left_s * 1000)))
            try:
                return await self._link.ask(body, left_s, unclaimed, within.timeout_s)
            except NotForebay:
                raise
            except Disconnected as error:
                if error.sent and not again:
                    raise
                unsure = unsure or error.sent
                problem: Disconnected | Busy = error
                least_s = 0.0
            except Busy as error:
                if not again:
                    raise
                problem = error
                least_s = min(error.retry_after_ms / 1000, 1.0)
            except Conflict as error:
                if unsure:
                    error.add_note("the connection was lost before: it may have been carried out then")
                raise
            pause_s = patience.pause_s(now(), least_s)
            if pause_s is None:
                raise problem
            await sleep(pause_s)
        raise AssertionError("unreachable")

    def _once(self, within: Within = ORDINARY) -> dict[str, Any]:
        """Return the fields by which the server recognizes a retried push."""
        timeout_s = self._timeout_s if within.timeout_s is None else within.timeout_s
        retry_s = self._retry_s if within.retry_s is None else within.retry_s
        known_ms = int(min(2_000 * (retry_s + timeout_s), KNOWN_MS_MAX))
        return {
            "idempotency_key": str(next(self._numbers)),
            # After a fork, both processes count on from the same number.
            "producer": f"{self._producer}-{os.getpid()}",
            "idempotency_ms": max(KNOWN_MS_MIN, known_ms),
        }

    async def close(self) -> None:
        """Close the connections. Later requests are refused."""
        self._is_closed = True
        await self._link.close()


def _waiting(request: Struct | dict[str, Any], wait_ms: int) -> Struct | dict[str, Any]:
    """Return a request that waits for what is left of its time."""
    if isinstance(request, dict):
        return {**request, "wait_ms": wait_ms}
    return msgspec.structs.replace(request, wait_ms=wait_ms)
