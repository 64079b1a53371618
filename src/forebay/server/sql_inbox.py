"""Move messages pushed from SQL into their queues: a listener whose client is a table.

    look ──> rows, in the order of their transactions ──> one push per queue ──> look again
                                                           │ refused: moved aside with the reason
                                                           └ busy, suspended: left in place for AGAIN_S

Rows are deleted in the commit that appends their messages (``Arrive``), so a crash at any instant loses none
and duplicates none.
"""

import asyncio
import logging

import msgspec
from msgspec import Raw

from forebay.broker.node import Node
from forebay.core.api.commands import Arrive
from forebay.core.errors import Busy, Damaged, Denied, ForebayError, Invalid
from forebay.core.words import is_own
from forebay.server.node_client import NodeClient
from forebay.server.operations.push import attributes_of, job_of, push_of
from forebay.store.base import Arrival, Arrivals, StoreError
from forebay.wire.operations.push import Item
from forebay.wire.text import check_depth

logger = logging.getLogger("forebay.inbox")

LOOK_MAX = 10_000
"""Rows taken per look."""
AGAIN_S = 1.0
"""Wait before a busy queue, or an unreachable database, is tried again."""

Refused = tuple[int, str, str]
"""Row number, error code and reason."""


class InboxReader:
    """Moves rows to their queues until it is stopped."""

    def __init__(self, node: Node, arrivals: Arrivals) -> None:
        self._questions = NodeClient(node)
        self._arrivals = arrivals
        self._task: asyncio.Task[None] | None = None
        self._busy: dict[str, float] = {}
        """Busy queues, and until when each is left alone."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="forebay inbox")

    async def stop(self) -> None:
        """Stop taking rows. A push under way commits with the deletion of its rows, or not at all."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._arrivals.close()

    async def _run(self) -> None:
        away = False
        while True:
            try:
                if await self._take() == 0:
                    await self._wait()
                away = False
            except StoreError as error:
                if not away:
                    logger.error("what was pushed from SQL can't be looked at: %s", error)
                away = True
                await asyncio.sleep(AGAIN_S)
            except Exception:
                logger.exception("bug: what was pushed from SQL could not be taken over")
                await asyncio.sleep(AGAIN_S)

    async def _wait(self) -> None:
        if self._busy:  # these queues have rows already: a notification would not come
            await asyncio.sleep(AGAIN_S)
        else:
            await self._arrivals.wait()

    async def _take(self) -> int:
        """Push the rows that wait; return how many rows there were."""
        now = asyncio.get_running_loop().time()
        self._busy = {queue: until for queue, until in self._busy.items() if until > now}
        rows = await self._arrivals.look(LOOK_MAX, list(self._busy))
        refused: list[Refused] = []
        queues: dict[tuple[str, str], list[tuple[Arrival, Item]]] = {}
        for row in rows:
            try:
                message = message_of(row)
            except ForebayError as error:
                refused.append((row.number, error.code, error.message))
            else:
                queues.setdefault((row.tenant, row.queue), []).append((row, message))
        for found in await asyncio.gather(*(self._push(each) for each in queues.values())):
            refused += found
        if refused:
            told = "refused %d messages pushed from SQL (table forebay.refused), the first because: %s"
            logger.warning(told, len(refused), refused[0][2])
            await self._arrivals.refuse(refused)
        return len(rows)

    async def _push(self, rows: list[tuple[Arrival, Item]]) -> list[Refused]:
        """Push rows of one queue, in order; return those that were refused."""
        first = rows[0][0]
        place = f"{first.tenant}/{first.queue}"
        if place in self._busy:
            return []
        try:
            push = push_of(first.tenant, first.queue, [message for _, message in rows])
            reply = await self._questions.ask(Arrive(push, [row.number for row, _ in rows]))
        except ForebayError as error:
            reply = error
        if not isinstance(reply, ForebayError):
            return []
        if isinstance(reply, Denied):  # the tenant is suspended, or not created yet: its rows wait
            self._busy[place] = asyncio.get_running_loop().time() + AGAIN_S
            return []
        if len(rows) == 1:
            if not isinstance(reply, Busy | Damaged):
                return [(first.number, reply.code, reply.message)]
            self._busy[place] = asyncio.get_running_loop().time() + AGAIN_S
            return []
        # One bad row refuses the whole push, or the queue lacks room for all: halve until the row is alone.
        half = len(rows) // 2
        return await self._push(rows[:half]) + await self._push(rows[half:])


def message_of(row: Arrival) -> Item:
    """Convert a row to a message; raise Invalid with what is wrong with it."""
    if is_own(row.tenant):
        raise Invalid("tenant", "a name without _ at its start: those are the server's own")
    payload = row.payload.encode()
    check_depth(payload, 0, len(payload))
    if row.options is None:
        return Item(payload=Raw(payload))
    try:
        message = _decode(b'{"payload":' + payload + b"," + row.options.encode()[1:])
    except msgspec.ValidationError as error:
        raise Invalid("options", f"what HTTP takes: {error}") from None
    attributes_of(message)
    job_of(message, payload)
    return message


_decode = msgspec.json.Decoder(Item).decode
