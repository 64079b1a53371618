"""Generated from ``aio/messages.py`` by tools/make_sync.py: change that, and run ``make sync``."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Unpack

from msgspec import Raw

from forebay.client.access import Access
from forebay.client.backoff import Within
from forebay.client.later import Later
from forebay.client.payloads import decoder, encode, is_bytes, result_as
from forebay.client.sync.push_batcher import Pusher
from forebay.client.sync.requests import Asking
from forebay.client.translate import (
    EACH_ITS_OWN,
    OF_ALL,
    body_of,
    delivered,
    filter_of,
    ids_of,
    ids_pushed,
    item_of,
    meant,
    message_of,
    options_of,
    pushed_one,
    records,
    seen,
)
from forebay.client.types import (
    DEFAULT,
    Batch,
    Extended,
    Id,
    Line,
    Message,
    MessageFilter,
    New,
    Options,
    Page,
    Progress,
    Pushed,
    PushedMany,
    Record,
    Result,
    Seen,
    Settled,
    Settling,
    Stretch,
)
from forebay.core.errors import Conflict, ForebayError, Invalid, NotFound
from forebay.wire.operations import messages, notes, pop as wire_pop, push as wire_push, queues

OUT_OF_TIME = "lease expired"
"""The server's error for a message whose lease expired."""
BATCH = 10_000
BATCH_BYTES = 8 * 1024 * 1024
"""Messages, and bytes of them, per request."""


class Messages(Asking):
    """Everything about messages."""

    def __init__(
        self, server: str | None, access: Access, *, timeout_s: float = 30.0, retry_s: float = 10.0
    ) -> None:
        super().__init__(server, access, timeout_s=timeout_s, retry_s=retry_s)
        self._pusher = Pusher(self._ask, self._once, Later(self.server, timeout_s, access))

    # Push.

    def push(
        self,
        queue: str,
        payload: Any,
        *,
        timeout_s: float | None = None,
        retry_s: float | None = None,
        **options: Unpack[Options],
    ) -> Pushed:
        """Push a message; it is stored when this returns. Concurrent pushes share a request.

        ``timeout_s`` and ``retry_s`` are as of the client, for this push.
        """
        within = Within(timeout_s, retry_s)
        return self._pusher.push(queue, *message_of(payload, options), within)

    def push_later(self, queue: str, payload: Any, **options: Unpack[Options]) -> None:
        """Put a message into a buffer in memory, from which a thread pushes it; returns at once.

        It is lost if the process dies before. Raises ``Busy`` if the buffer is full.
        """
        self._pusher.later.add(queue, *message_of(payload, options))

    def push_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        batch: int = BATCH,
        timeout_s: float | None = None,
        retry_s: float | None = None,
        **options: Unpack[Options],
    ) -> PushedMany:
        """Push any number of payloads, or of ``New(payload, options)``, in order and in batches.

        The options apply to all of them. If a batch is refused, those before it stay pushed: the error has
        them as ``pushed``. ``timeout_s`` and ``retry_s`` are as of the client, for each batch.
        """
        if isinstance(payloads, str | bytes):
            raise Invalid("payloads", "a list, or what else there is one after the other of")
        shared = options_of(options)
        within = Within(timeout_s, retry_s)
        ids: list[int] = []
        duplicates: list[int] = []
        durability = ""
        try:
            for number, chunk in enumerate(_chunks(payloads, batch)):
                pushed = self._push_chunk(queue, chunk, shared, number, within)
                new = ids_pushed(pushed)
                if pushed.duplicate and "idempotency_key" in shared:
                    duplicates += range(len(ids), len(ids) + len(new))
                for at in sorted(pushed.duplicates or ()):
                    if "idempotency_key" in shared or _says_what_it_is(chunk[at], shared):
                        duplicates.append(len(ids) + at)
                ids += new
                durability = pushed.durability
        except ForebayError as error:
            error.pushed = PushedMany(ids, durability, duplicates)  # type: ignore[attr-defined]
            raise
        return PushedMany(ids, durability, duplicates)

    def _push_chunk(
        self, queue: str, chunk: list[Any], shared: dict[str, Any], number: int, within: Within
    ) -> wire_push.Pushed:
        known = self._once(within)
        if "idempotency_key" in shared:
            key = shared["idempotency_key"]
            known = {"idempotency_key": f"{key}/{number}" if number else key}
        if any(isinstance(each, New) for each in chunk) or shared.keys() & EACH_ITS_OWN:
            beside = {name: value for name, value in shared.items() if name in OF_ALL}
            apart = {name: value for name, value in shared.items() if name not in OF_ALL}
            items = [item_of(each, apart) for each in chunk]
            request = wire_push.Push(queue=queue, items=items, **{**beside, **known})
        else:
            request = wire_push.Push(queue=queue, messages=chunk, **{**shared, **known})
        pushed: wire_push.Pushed = self._ask(request, within=within)
        return pushed

    def close(self) -> None:
        """Push what is buffered, for 5 s at most, and close the connections. Later requests are refused."""
        self._pusher.close()
        super().close()

    # Pop and settle.

    def pop(
        self,
        queue: str,
        count: int = 1,
        *,
        wait_ms: int = 0,
        min_count: int | None = None,
        group: str = DEFAULT,
        partition: str | None = None,
        lease_ms: int | None = None,
        start: str | int | None = None,
        worker: str | None = None,
        create: bool | None = None,
        type: Any = Any,
    ) -> Batch:
        """Lease up to ``count`` messages; if there is none, wait for the first up to ``wait_ms``.

        A missing queue raises ``NotFound``, unless ``create`` is set: it is created then.

        ``type`` is what payloads are decoded into; a message that does not fit is nacked and left out.
        ``start`` is where a new group begins: all, new or a time. ``worker`` is the name of the
        consumer: it is shown as the holder.
        """
        request = wire_pop.Pop(
            queue=queue,
            count=count,
            wait_ms=wait_ms,
            min_count=1 if min_count is None else min_count,
            group=group,
            partition=partition,
            lease_ms=lease_ms,
            start="all" if start is None else start,
            compact=True,
            worker=worker,
            create=create,
        )
        decoder(type)  # raises before anything is leased, if nothing can be of this type
        popped: wire_pop.Popped = self._ask(request, unclaimed=_given_back)
        found, bad = delivered(popped, queue, group, type)
        if bad:
            found = self._without(bad, found, popped.lease)
        return Batch(found, popped.lease if found else None)

    def _without(self, bad: list[tuple[int, str]], found: list[Message], lease: str | None) -> list[Message]:
        """Nack undecodable messages and return those of the others that are still leased.

        In strict order, the messages behind a nacked one go back with it.
        """
        try:
            for id, why in bad:
                error = f"the payload is not what was asked for: {why}"
                with suppress(Conflict):  # it went back with the one before
                    self._ask(wire_pop.Nack(ids=[id], lease=lease, error=error))
            if not found:
                return []
            kept: wire_pop.Extended = self._ask(wire_pop.Extend(ids=[each.id for each in found], lease=lease))
            gone = set(map(int, kept.refused))
            return [each for each in found if each.id not in gone]
        except Conflict:
            return []
        except BaseException:
            with suppress(ForebayError):
                self._link.ask(body_of(wire_pop.Release(lease=lease)))
            raise

    @contextmanager
    def leased(
        self,
        queue: str,
        count: int = 1,
        *,
        wait_ms: int = 0,
        group: str = DEFAULT,
        partition: str | None = None,
        lease_ms: int | None = None,
        create: bool | None = None,
        type: Any = Any,
    ) -> Iterator[Batch]:
        """Lease messages that are acked at the end of the block, or nacked if it raises."""
        batch = self.pop(
            queue,
            count,
            wait_ms=wait_ms,
            group=group,
            partition=partition,
            lease_ms=lease_ms,
            create=create,
            type=type,
        )
        try:
            yield batch
        except Exception as error:
            self._end(batch, repr(error))
            raise
        except BaseException:
            if batch:
                self.release(batch)
            raise
        self._end(batch, None)

    def _end(self, batch: Batch, error: str | None) -> None:
        """Settle the rest of a batch. No error if all of it was settled before."""
        if not batch:
            return
        try:
            if error is None:
                self.ack(batch)
            else:
                self.nack(batch, error=error)
        except Conflict:
            for each in batch:
                seen = self.message(each.id, group=each.group)
                if seen.state == "active" or seen.error == OUT_OF_TIME:
                    raise

    def ack(
        self,
        what: Settling | None = None,
        *,
        results: Sequence[Any] | None = None,
        lease: str | None = None,
        group: str | None = None,
    ) -> Settled:
        """Ack messages as done: a batch, messages, ids, or a whole ``lease``. ``results`` has one for each.

        Raises ``Conflict`` if none of them is leased any more.
        """
        settled = []
        for fields in meant(what, lease, group, results):
            settled.append(self._ask(wire_pop.Ack(**fields)))
        return _settled(settled)

    def nack(
        self,
        what: Settling | None = None,
        *,
        error: str = "",
        error_type: str = "",
        traceback: str = "",
        delay_ms: int | None = None,
        final: bool = False,
        lease: str | None = None,
        group: str | None = None,
    ) -> Settled:
        """Nack failed messages: they are retried after their backoff or ``delay_ms``, or become dead letters.

        With ``final`` they become dead letters at once. The error, its type and its traceback are kept with
        the messages: ``attempts`` returns them.
        """
        about = {"error": error, "error_type": error_type, "traceback": traceback}
        also: dict[str, Any] = {**about, "delay_ms": delay_ms, "final": final}
        settled = []
        for fields in meant(what, lease, group):
            # Without a lease, a retry could fail the next delivery.
            again = fields["lease"] is not None
            settled.append(self._ask(wire_pop.Nack(**fields, **also), again=again))
        return _settled(settled)

    def extend(
        self,
        what: Settling | None = None,
        *,
        lease_ms: int | None = None,
        lease: str | None = None,
        group: str | None = None,
    ) -> Extended:
        """Extend leases to ``lease_ms`` from now."""
        found: list[wire_pop.Extended] = [
            self._ask(wire_pop.Extend(**each, lease_ms=lease_ms)) for each in meant(what, lease, group)
        ]
        return Extended(min(each.expires_at for each in found), any(each.cancelled for each in found))

    def release(
        self,
        what: Settling | None = None,
        *,
        defer_ms: int | None = None,
        error: str | None = None,
        lease: str | None = None,
        group: str | None = None,
    ) -> Settled:
        """Return leased messages, as if they had never been delivered: at once, for other consumers.

        With ``defer_ms`` they come after a growing delay, and are dead letters with ``error`` when nobody
        could handle them for so long.
        """
        also: dict[str, Any] = {"error": error, "defer_ms": defer_ms}
        settled = []
        for fields in meant(what, lease, group):
            again = fields["lease"] is not None
            settled.append(self._ask(wire_pop.Release(**fields, **also), again=again))
        return _settled(settled)

    # Read.

    def message(self, id: Id, *, group: str = DEFAULT, type: Any = Any) -> Seen:
        """Return a message, with its state in a group."""
        return seen(self._ask(messages.GetMessage(id=id, group=group)), type)

    def state(self, id: Id, *, group: str = DEFAULT) -> str:
        """Return the state of a message: waiting, delayed, parked, active, completed, dead, …"""
        found: messages.Stands = self._ask(messages.GetState(id=id, group=group))
        return found.state

    def page(
        self,
        queue: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        type: Any = Any,
        **of: Unpack[MessageFilter],
    ) -> Page:
        """Return messages of a queue that match. A page may be short or empty: continue at its cursor."""
        request = messages.Browse(queue=queue, limit=limit, cursor=cursor, **filter_of(of))
        found: messages.Browsed = self._ask(request)
        return Page([seen(each, type) for each in found.messages], found.total, found.cursor)

    def browse(self, queue: str, *, type: Any = Any, **of: Unpack[MessageFilter]) -> Iterator[Seen]:
        """Yield all messages of a queue that match, without a lease, page by page."""
        cursor: str | None = None
        while True:
            page = self.page(queue, cursor=cursor, type=type, **of)
            for each in page.messages:
                yield each
            cursor = page.cursor
            if cursor is None:
                return

    def read(
        self,
        queue: str,
        *,
        offset: int = 0,
        partition: str = DEFAULT,
        max_count: int | None = None,
        max_bytes: int | None = None,
        type: Any = Any,
    ) -> Stretch:
        """Return a part of a partition's log from an offset on, without a lease. Read on at ``next``."""
        request = messages.ReadLog(
            queue=queue, offset=offset, partition=partition, max_count=max_count, max_bytes=max_bytes
        )
        found: messages.Stretch = self._ask(request)
        return Stretch(records(found, type), found.next, found.end)

    def records(
        self, queue: str, *, offset: int = 0, partition: str = DEFAULT, type: Any = Any
    ) -> Iterator[Record]:
        """Yield the log of a partition from an offset up to its end."""
        while True:
            try:
                stretch = self.read(queue, offset=offset, partition=partition, type=type)
            except NotFound:
                # The partition has no messages yet; if the queue is missing, this raises.
                self._ask(queues.Configure(queue=queue))
                return
            for each in stretch.records:
                yield each
            offset = stretch.next
            if offset >= stretch.end:
                return

    def result(self, id: Id, *, wait_ms: int = 0, group: str = DEFAULT, type: Any = Any) -> Result:
        """Return the outcome of a message; waits for its end up to ``wait_ms``.

        Raises ``Invalid`` if its result is not of the ``type``.
        """
        found: notes.Came = self._ask(notes.GetResult(id=id, wait_ms=wait_ms, group=group))
        value = result_as(type, found.result, int(found.id))
        error = found.error or None
        return Result(int(found.id), found.done, found.state, value, error, found.has_result)

    # Change.

    def cancel(self, what: Settling, *, group: str | None = None) -> Settled:
        """Stop the delivery of messages: to one group, or to all."""
        return self._change(messages.Cancel(ids=ids_of(what), group=group))

    def promote(self, what: Settling, *, group: str = DEFAULT) -> Settled:
        """Deliver delayed messages now."""
        return self._change(messages.Promote(ids=ids_of(what), group=group))

    def delay(self, what: Settling, delay_ms: int, *, group: str = DEFAULT) -> Settled:
        """Deliver messages so many ms from now; leased ones are taken from their consumers."""
        return self._change(messages.Delay(ids=ids_of(what), delay_ms=delay_ms, group=group))

    def prioritise(self, what: Settling, priority: int, *, group: str = DEFAULT) -> Settled:
        """Change the priority of messages that wait or are delayed."""
        return self._change(messages.Prioritise(ids=ids_of(what), priority=priority, group=group))

    def discard(self, what: Settling, *, group: str = DEFAULT) -> Settled:
        """Make messages dead letters at once."""
        return self._change(messages.Discard(ids=ids_of(what), group=group))

    def _change(self, request: messages.Cancel | messages.OfGroup) -> Settled:
        return _settled([self._ask(request)])

    def update(self, id: Id, payload: Any) -> Pushed:
        """Replace the payload of a message that waits or is delayed."""
        # Not retried: a second one would append another message.
        body, given = message_of(payload, {})
        request = messages.Update(id=id, payload=Raw(body), **given)
        return pushed_one(self._ask(request, again=False), {})

    # Progress and logs.

    def set_progress(
        self, id: Id, progress: int, message: str | None = None, *, lease: str | None = None
    ) -> None:
        """Report the progress of a leased message, from 0 to 100."""
        self._ask(notes.SetProgress(id=id, progress=progress, message=message, lease=lease))

    def progress(self, id: Id) -> Progress:
        """Return how far the work on a message is, in percent, as its worker last reported."""
        found: notes.Progressed = self._ask(notes.GetProgress(id=id))
        return Progress(found.progress, found.message, found.updated_at)

    def log(self, id: Id, message: str, *, level: str = "info") -> None:
        """Add a line to a message's log."""
        self._ask(notes.AddLog(id=id, message=message, level=level), again=False)

    def logs(self, id: Id) -> list[Line]:
        """Return the newest lines of a message's log, oldest first."""
        found: notes.Logs = self._ask(notes.GetLogs(id=id))
        return [Line(each.timestamp, each.level, each.message) for each in found.logs]


def _chunks(payloads: Iterable[Any], most: int) -> Iterable[list[Any]]:
    """Split payloads into batches; plain ones are encoded already."""
    chunk: list[Any] = []
    size = 0
    for payload in payloads:
        item = payload if isinstance(payload, New) else Raw(encode(payload))
        if is_bytes(payload):
            item = New(payload)
        chunk.append(item)
        size += len(item) if isinstance(item, Raw) else len(encode(item.payload)) + len(encode(item.options))
        if len(chunk) >= most or size >= BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _says_what_it_is(item: Any, shared: dict[str, Any]) -> bool:
    """Return whether a message has a key or id that duplicates are known by."""
    own = item.options if isinstance(item, New) else {}
    return bool(EACH_ITS_OWN & {*shared, *own})


def _settled(found: list[wire_pop.Settled]) -> Settled:
    return Settled(sum(each.count for each in found), [int(id) for each in found for id in each.refused])


def _given_back(answer: bytes) -> bytes | None:
    """Return the request that releases the messages of an unclaimed pop."""
    lease = decoder(wire_pop.Popped)(answer).lease
    return None if lease is None else body_of(wire_pop.Release(lease=lease))
