"""Read the records of many queues, one queue after another, in as few scans as that takes.

A scan of its own for each queue took a third of the time in which 10,000 small queues are loaded.
"""

from collections.abc import Iterator

from forebay.core.records import keyspace
from forebay.core.records.commit import Record, Scan


class QueueRecords:
    """Records of queues, which are best asked for in the order of their prefixes."""

    def __init__(self, scan: Scan, last: bytes) -> None:
        """``last`` is the prefix of the last queue that will be asked for."""
        self._scan = scan
        self._end = keyspace.queue_bounds(last)[1]
        self._ahead: Iterator[Record] | None = None
        self._next: Record | None = None
        """The first record that was read and not yet asked for."""
        self._reached = b""
        """Where the queue ends that was asked for last."""

    def of(self, prefix: bytes) -> Iterator[Record]:
        """Yield the records of a queue; those before it that nobody asked for are passed over."""
        lower, upper = keyspace.queue_bounds(prefix)
        if self._ahead is None or lower < self._reached:
            self._ahead = iter(self._scan(lower, self._end))
            self._next = next(self._ahead, None)
        self._reached = upper
        record = self._next
        while record is not None and record[0] < upper:
            if record[0] >= lower:
                yield record
            record = self._next = next(self._ahead, None)

    def alone(self, prefix: bytes) -> Iterator[Record]:
        """Yield the same by a scan of its own, which meets no damage but that of this queue."""
        self._ahead = self._next = None
        yield from self._scan(*keyspace.queue_bounds(prefix))
