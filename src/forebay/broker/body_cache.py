"""The body cache: bodies that were pushed or read last, up to a number of bytes.

Most queues are read as fast as they are filled, so the newest bodies are popped next. For a reader that is
far behind, missing bodies are read with the commit of its reply, and those after them by read-ahead.
"""

import logging
from collections import deque
from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from forebay.broker.committer import Bodies, Committer
from forebay.core.api.commands import Popped, Reply
from forebay.core.api.queries import LogSlice
from forebay.core.engine import Engine
from forebay.core.errors import Damaged, ForebayError
from forebay.core.log import log as logs
from forebay.core.log.bodies import is_whole
from forebay.core.queries import payloads
from forebay.core.queries.payloads import Absent
from forebay.core.records import keyspace
from forebay.core.state import Log as PartitionLog, Queue, Segment
from forebay.store.base import Store

logger = logging.getLogger("forebay.bodies")

ENTRY_BYTES = 400
"""Memory of an entry besides the body: its segment, and its row in the cache."""
AHEAD_BYTES = 4 * 1024 * 1024
"""Payload bytes of read-ahead in front of a cursor."""


class BodyCache:
    """Bodies in memory, evicted oldest first."""

    def __init__(self, store: Store, committer: Committer, bytes_max: int) -> None:
        self._store = store
        self._committer = committer
        self._bytes_max = bytes_max
        self._bodies: deque[tuple[PartitionLog, Segment, int]] = deque()
        self._reading: set[int] = set()
        """Names of bodies that a read-ahead is fetching."""
        self.bytes = 0
        """Bytes of all entries."""
        self.lacks = False
        """Whether any body may be missing; until then read-ahead is skipped."""

    def add(self, log: PartitionLog, segment: Segment) -> None:
        """Add a stored segment, whose body is in memory, and evict the oldest ones beyond the limit."""
        assert segment.body is not None
        if not self._store.blocking:
            return  # a store in memory holds all bodies anyway
        size = len(segment.body) + ENTRY_BYTES
        self._bodies.append((log, segment, size))
        self.bytes += size
        while self.bytes > self._bytes_max:
            oldest_log, oldest, size = self._bodies.popleft()
            self.bytes -= size
            self.lacks = True
            logs.drop_body(oldest_log, oldest)

    def clear(self) -> None:
        """Empty the cache after a reload: its entries belong to the old engine, the new one has none."""
        self._bodies.clear()
        self.bytes = 0
        self.lacks = True

    def missing(self, replies: Iterable[Reply | ForebayError]) -> list[Absent]:
        """Return the segments whose bodies must be read before these replies can be sent."""
        found: dict[int, Absent] = {}
        for reply in replies:
            if isinstance(reply, payloads.Payloads):
                for each in payloads.absent(reply):
                    known = found.get(id(each.segment))
                    if known is None or known.passing:
                        found[id(each.segment)] = each
        return list(found.values())

    def read(self, absent: list[Absent]) -> Bodies:
        """Return the bodies of segments, checked. Runs in a thread."""
        return read_bodies(self._store, [(each.queue, each.segment) for each in absent])

    def put_back(self, absent: list[Absent], bodies: Bodies) -> None:
        """Give segments the bodies that were read for them, and cache those not read in passing."""
        for (_, log, segment, passing), body in zip(absent, bodies, strict=True):
            if isinstance(body, bytes) and segment.body is None:
                segment.body = body
                if passing and self._store.blocking:
                    logs.drop_body(log, segment)
                else:
                    self.add(log, segment)

    def read_ahead(self, reply: Reply | ForebayError) -> None:
        """Start a read-ahead of the bodies that the next pop or read will need."""
        if type(reply) is not Popped and (type(reply) is not LogSlice or reply.passing):
            return
        ahead = payloads.ahead(reply, AHEAD_BYTES)
        ahead = [each for each in ahead if each.segment.body_name not in self._reading]
        if not ahead:
            return
        names = {each.segment.body_name for each in ahead}
        self._reading |= names

        def done(bodies: Bodies | Exception) -> None:
            self._reading.difference_update(names)
            if isinstance(bodies, Exception):
                logger.error("bodies could not be read ahead: %s", bodies)
            else:
                self.put_back(ahead, bodies)

        self._committer.aside(partial(self.read, ahead), done)


def read_bodies(store: Store, absent: list[tuple[Queue, Segment]]) -> Bodies:
    """Return the bodies of segments from the store; ``Damaged`` where one fails its check."""
    if not absent:
        return []
    bodies = store.bodies([keyspace.body_key(queue.prefix, each.body_name) for queue, each in absent])
    return [_checked(segment, body) for (_, segment), body in zip(absent, bodies, strict=True)]


def _checked(segment: Segment, body: bytes | Damaged | None) -> bytes | Damaged | None:
    if isinstance(body, bytes) and not is_whole(body, segment.count, segment.size):
        return Damaged("the body is not what was written")
    return body


class Damage:
    """Logs damaged bodies, each once."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def without(self, reply: Reply | ForebayError, engine: Engine) -> Reply | ForebayError:
        """Return a reply without its damaged messages, which go back: no client knows of their lease."""
        left = readable(reply)
        if left is not reply:
            assert isinstance(reply, Popped | LogSlice)
            self._tell(reply)
            if isinstance(reply, Popped):
                engine.put_off(reply)
        return left

    def _tell(self, reply: Popped | LogSlice) -> None:
        """Log the bodies of a reply that could not be read."""
        for each in payloads.absent(reply):
            if each.segment.body_name not in self._told:
                self._told.add(each.segment.body_name)
                place = (each.queue.name, each.queue.tenant, each.segment.base, each.segment.end)
                logger.error("damaged: queue %s of tenant %s, offsets %d up to %d", *place)


def readable(reply: Reply | ForebayError) -> Reply | ForebayError:
    """Return a reply without its unreadable messages, or an error if none is left."""
    if not isinstance(reply, Popped | LogSlice) or not payloads.absent(reply):
        return reply
    parts = reply.deliveries if isinstance(reply, Popped) else reply.runs
    if isinstance(reply, Popped):
        lacking = set(map(id, payloads.lacking(reply)))
        good = [each for each in reply.deliveries if id(each) not in lacking]
        if good:
            return replace(reply, deliveries=good)
    elif parts[0].segment.present:
        return payloads.cut_log(reply)
    first, end = parts[0].offset, parts[0].segment.end
    return Damaged(f"the messages from offset {first} up to {end} can't be read back: they are damaged")
