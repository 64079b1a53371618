"""The format ``forebay``: queues as tables and as streams, and the entry to the sink."""

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from forebay.client.errors import Refused
from forebay.core.words import DEFAULT
from forebay.spark.columns import Batches, Parser
from forebay.spark.link import FIRST_MS, Link
from forebay.spark.options import EARLIEST, LATEST, At, BadOption, SourceOptions, sink_options, source_options
from forebay.spark.ranges import (
    BEHIND,
    Extents,
    Offsets,
    Place,
    Range,
    ends_of,
    keys_of,
    limited,
    new_of,
    offsets_of,
    tasks,
)
from forebay.spark.schemas import TYPES, checked, schema_of
from forebay.spark.worker_path import leave_out_spark_core

logger = logging.getLogger("forebay.spark")

leave_out_spark_core()

LAST = (1 << 63) - 1
IDLE_SHARE = 10
"""How many times longer an idle stream waits than its last poll took."""
IDLE_S_MAX = 1.0
"""Longest such wait: a poll may have taken long because the server was away."""


class DataLoss(Exception):
    """Rows that were to be read no longer exist."""


class Forebay(DataSource):
    """``format("forebay")``."""

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> str:
        return schema_of(source_options({**self.options}))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options({**self.options}, streaming=False)
        kind = FilteringReader if options.push_filters else BatchReader
        return kind(options, checked(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options({**self.options}, streaming=True)
        return StreamReader(options, checked(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from forebay.spark.sink import BatchWriter

        return BatchWriter(sink_options({**self.options}, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from forebay.spark.sink import StreamWriter

        return StreamWriter(sink_options({**self.options}, streaming=True), schema, overwrite)


class Task(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges


class Reading:
    """What batch and stream reads have in common."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    # On the driver.

    def _queues(self, link: Link) -> list[str]:
        """Return the queues selected by the options, each once."""
        wanted = self.options.queue
        if not wanted.patterns:
            return list(wanted.names)
        known = link.queues()
        matching = [name for name in known if any(fnmatchcase(name, each) for each in wanted.patterns)]
        return list(dict.fromkeys([*wanted.names, *matching]))

    def _extents(self, link: Link, at: int | None = None, since: dict[Place, int] | None = None) -> Extents:
        """Return the extents of the selected partitions."""
        found: Extents = {}
        for queue in self._queues(link):
            mine = {name: offset for (other, name), offset in (since or {}).items() if other == queue}
            try:
                found |= link.extents(queue, at, mine or None)
            except Refused as error:
                raise _explained(error, queue) from None
        only = self.options.partition
        if only:
            known = {partition for _, partition in found}
            missing = [name for name in only if name not in known]
            if missing and not self.options.queue.patterns:
                raise BadOption(
                    "partition",
                    f"one that the queue has: {', '.join(sorted(known)[:20]) or 'it has none yet'}; "
                    f"there is no {missing[0]!r}",
                )
            found = {place: each for place, each in found.items() if place[1] in only}
        return found

    def _resolved(self, link: Link, name: str, where: At) -> tuple[dict[Place, int], Extents]:
        """Return the offsets of the positions that an option names, and all extents."""
        extents = self._extents(link, where if isinstance(where, int) else None)
        default = EARLIEST if name == "startingOffsets" else LATEST
        given: dict[Place, int | str] = {}
        if isinstance(where, dict):
            given = _by_place(name, where, extents)
        found: dict[Place, int] = {}
        for place, extent in extents.items():
            wanted = given.get(place, default if isinstance(where, dict) else where)
            if isinstance(where, int):
                found[place] = extent.at if extent.at is not None else extent.end
            elif wanted == EARLIEST:
                found[place] = extent.first
            elif wanted == LATEST:
                found[place] = extent.end
            else:
                assert isinstance(wanted, int)
                if wanted > extent.end:
                    raise BadOption(
                        name,
                        f"between {extent.first} and {extent.end} for partition {place[1]!r} of queue "
                        f"{place[0]!r}: it ends there, and {wanted} is past that",
                    )
                found[place] = wanted
        return found, extents

    def _tasks(self, starts: dict[Place, int], ends: dict[Place, int], extents: Extents) -> list[Task]:
        """Return the tasks; rows that are gone already are reported."""
        ranges = []
        for place, end in sorted(ends.items()):
            extent = extents.get(place)
            if extent is None:
                if end > starts.get(place, 0):
                    self._lost(place, starts.get(place, 0), end)
                continue
            start = starts.get(place, 0)
            if start < extent.first and end > start:
                self._lost(place, start, min(extent.first, end))
                start = min(extent.first, end)
            ranges.append(Range(*place, start, end, extent.key))
        means = {place: extent.mean for place, extent in extents.items()}
        options = self.options
        found = tasks(ranges, means, options.bytes_per_partition, options.min_partitions)
        return [Task(each) for each in found]

    def _lost(self, place: Place, start: int, end: int) -> None:
        """Report lost rows: an error, or a warning if the options allow it."""
        told = (
            f"offsets {start} up to {end} of partition {place[1]!r} of queue {place[0]!r} are not there any "
            "more: retention dropped them, or the queue was deleted"
        )
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{told}. Keep them longer (completed_retention_ms of the queue), or go on without them: "
                'option "failOnDataLoss" = false'
            )
        logger.warning("%s; going on without them", told)

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, a few megabytes at a time."""
        ranges = partition.ranges if isinstance(partition, Task) else []
        schema = to_arrow_schema(self.schema, timezone="UTC")
        parser = None
        if "_corrupt" in schema.names:
            parser = Parser(to_arrow_type(self.schema["value"].dataType, timezone="UTC"))
        with Link(self.options.server, self.options.retry_ms, self.options.access) as link:
            tenant = link.tenant() if "tenant" in schema.names else DEFAULT
            for each in ranges:
                batches = Batches(schema, each.queue, each.partition, parser, tenant)
                yield from self._read(link, each, batches)

    def _read(self, link: Link, wanted: Range, batches: Batches) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        place = (wanted.queue, wanted.partition)
        try:
            for log in link.read(*place, at, wanted.end):
                if log.number != wanted.key:
                    self._lost(place, at, wanted.end)  # it was deleted and made again since
                    return
                begins = log.runs[0].offset if log.runs else wanted.end
                if begins > at:
                    self._lost(place, at, min(begins, wanted.end))
                at = log.next
                if begins < wanted.end:
                    found = batches.batch(log.runs)
                    # Reads count rows, so after a gap one may reach beyond the end.
                    yield found.slice(0, wanted.end - begins) if at > wanted.end else found
        except Refused as error:
            if error.code != "not_found" and error.details.get("field") != "offset":
                raise
            self._lost(place, at, wanted.end)


def _by_place(name: str, where: dict[str, Any], extents: Extents) -> dict[Place, int | str]:
    """Return what an option says of each partition."""
    queues = {queue for queue, _ in extents}
    found: dict[Place, int | str] = {}
    for queue, partitions in where.items():
        if queue.startswith("#"):
            continue
        for partition, offset in partitions.items():
            if (queue, partition) not in extents:
                known = sorted(each for other, each in extents if other == queue)
                there = (
                    f"its partitions are {', '.join(known[:20])}" if known else f"it reads {sorted(queues)}"
                )
                raise BadOption(
                    name, f"about partitions that are read; {partition!r} of queue {queue!r} is not: {there}"
                )
            found[queue, partition] = offset
    return found


def _explained(error: Refused, queue: str) -> Exception:
    if error.code == "not_found":
        return BadOption(
            "queue",
            f"the name of a queue that is there; {queue!r} is not: push to it first, or look for it with "
            "`forebay queues`",
        )
    return error


class BatchReader(Reading, DataSourceReader):
    """A queue as a table: its messages at planning time."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._only: dict[str, set[str]] = {}
        """Names that pass the filters, by column."""
        self._low, self._high = 0, LAST
        """Offsets that pass the filters: [low, high)."""
        self._after, self._before = 0, LAST
        """Times that pass the filters, in ms: [after, before]."""

    def takes(self, filter: Filter) -> bool:
        """Return whether a filter is applied here completely, so that Spark need not check the rows again."""
        (column, *inside) = filter.attribute if hasattr(filter, "attribute") else ("",)
        if inside or column not in TYPES:
            return False
        if isinstance(filter, IsNotNull):
            return column not in ("headers", "tags", "value")
        if column in ("tenant", "queue", "partition") and isinstance(filter, EqualTo | In):
            values = {filter.value} if isinstance(filter, EqualTo) else set(filter.value)
            self._only[column] = self._only.get(column, values) & values
            return True
        if column == "offset" and type(getattr(filter, "value", None)) is int:
            return self._takes_offset(filter)
        if column == "created_at" and isinstance(getattr(filter, "value", None), datetime):
            self._note_time(filter)
        return False

    def _takes_offset(self, filter: Any) -> bool:
        match filter:
            case EqualTo():
                low, high = filter.value, filter.value + 1
            case GreaterThan():
                low, high = filter.value + 1, LAST
            case GreaterThanOrEqual():
                low, high = filter.value, LAST
            case LessThan():
                low, high = 0, filter.value
            case LessThanOrEqual():
                low, high = 0, filter.value + 1
            case _:
                return False
        self._low, self._high = max(self._low, low), min(self._high, high)
        return True

    def _note_time(self, filter: Any) -> None:
        """Narrow the time range. Spark applies the filter, too, because its timestamps have microseconds."""
        millis = int(filter.value.timestamp() * 1000)
        if isinstance(filter, GreaterThan | GreaterThanOrEqual | EqualTo):
            self._after = max(self._after, millis)
        if isinstance(filter, LessThan | LessThanOrEqual | EqualTo):
            self._before = min(self._before, millis)

    def partitions(self) -> list[InputPartition]:
        options = self.options
        with Link(options.server, min(options.retry_ms, FIRST_MS), options.access) as link:
            if options.queue.patterns and not self._queues(link):
                raise BadOption(
                    "queue",
                    f"a pattern that a queue matches; none matches {', '.join(options.queue.patterns)}",
                )
            starts, _ = self._resolved(link, "startingOffsets", options.starting)
            ends, extents = self._resolved(link, "endingOffsets", options.ending)
            if self._after > 0:
                for place, extent in self._extents(link, self._after).items():
                    starts[place] = max(starts.get(place, 0), extent.at or 0)
            if self._before < LAST:
                for place, extent in self._extents(link, self._before + 1).items():
                    if place in ends and extent.at is not None:
                        ends[place] = min(ends[place], extent.at)
            tenant = link.tenant() if "tenant" in self._only else DEFAULT
        places = [place for place in ends if self._is_left(tenant, place)]
        starts = {place: max(starts.get(place, 0), self._low) for place in places}
        ends = {place: max(min(ends[place], self._high), starts[place]) for place in places}
        return list(self._tasks(starts, ends, extents))

    def _is_left(self, tenant: str, place: Place) -> bool:
        names = {"tenant": tenant, "queue": place[0], "partition": place[1]}
        return all(names[column] in left for column, left in self._only.items())


class FilteringReader(BatchReader):
    """A table that leaves out rows which a query filters.

    Spark keeps pushed filters with the DataFrame, not with the query: another query of the same DataFrame, or
    another branch of the same query, gets the same rows (seen in 4.3). So this needs an option, and is for
    DataFrames that are used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return [each for each in filters if not self.takes(each)]


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A queue as a stream. Offsets are the log's, so a micro-batch that is run again reads the same rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._link: Link | None = None
        self._last: dict[Place, int] = {}
        """End of the newest micro-batch."""
        self._target: dict[Place, int] | None = None
        """End of the query, if it has one."""
        self._seen: dict[Place, tuple[int, int]] = {}
        """Number and end of each partition at the last poll."""
        self._idle = False
        """Whether the last poll found nothing new."""
        self._look_at = 0.0
        """Time of the next poll in that case."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_link": None}

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(self.options.server, self.options.retry_ms, self.options.access)
        return self._link

    def initialOffset(self) -> Offsets:
        # Do not wait for a server that was never reached.
        with Link(self.options.server, min(self.options.retry_ms, FIRST_MS), self.options.access) as link:
            starts, extents = self._resolved(link, "startingOffsets", self.options.starting)
        return offsets_of(starts, {place: extent.key for place, extent in extents.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if not options.max_rows and not options.max_bytes:
            return ReadAllAvailable()
        return ReadMaxRows(options.max_rows or LAST)

    def _look(self) -> Extents:
        """Return the current extents. Spark polls 100 times a second while idle: here, at a bounded rate."""
        if self._idle:
            time.sleep(max(self._look_at - time.monotonic(), 0))
        began = time.monotonic()
        extents = self._extents(self._connected())
        ended = time.monotonic()
        self._look_at = ended + min(IDLE_SHARE * (ended - began), IDLE_S_MAX)
        self._idle = all(extent.end <= self._last.get(place, 0) for place, extent in extents.items())
        return extents

    def prepareForTriggerAvailableNow(self) -> None:
        extents = self._extents(self._connected())
        self._target = {place: extent.end for place, extent in extents.items()}

    def latestOffset(self, start: Offsets | None = None, limit: ReadLimit | None = None) -> Offsets:
        """Return the end of the next micro-batch. Spark before 4.2 passes neither a start nor a limit."""
        extents = self._look()
        starts = ends_of(start) if start is not None else dict(self._last)
        ends = {place: extent.end for place, extent in extents.items()}
        if self._target is not None:
            # Later messages are not read any more, nor are later partitions.
            target = {**starts, **self._target}
            ends = {place: min(end, target[place]) for place, end in ends.items() if place in target}
        self._see_to_gone(starts, ends, extents, keys_of(start or {}))
        new = {place: min(extents[place].first, end) for place, end in ends.items() if place not in starts}
        starts |= new
        if not isinstance(limit, ReadAllAvailable):
            if self.options.max_rows:
                limited(starts, ends, {}, self.options.max_rows)
            if self.options.max_bytes:
                means = {place: extent.mean for place, extent in extents.items()}
                limited(starts, ends, means, self.options.max_bytes)
        self._last = ends
        self._seen = {place: (extent.key, extent.end) for place, extent in extents.items()}
        return offsets_of(ends, {place: extent.key for place, extent in extents.items()}, new)

    def _see_to_gone(
        self, starts: dict[Place, int], ends: dict[Place, int], extents: Extents, keys: dict[Place, int]
    ) -> None:
        """Forget partitions that are gone, were made again, or end too early; report rows lost with them.

        If all rows of one were read, nothing is lost: a queue may drop empty partitions.
        """
        for place, begin in list(starts.items()):
            extent = extents.get(place)
            if extent is None and not self._is_meant(place):
                raise BadOption(
                    "queue",
                    f"that of the checkpoint, or the checkpoint another one: this one has read partition "
                    f"{place[1]!r} of queue {place[0]!r}, which the options leave out",
                )
            if extent is not None and extent.key == keys.get(place, extent.key):
                if extent.end < begin:
                    self._gone(place, f"ends at {extent.end}, and offset {begin} was reached before")
                    starts[place] = extent.end
                ends[place] = max(ends.get(place, begin), starts[place])
                continue
            if self._seen.get(place) != (keys.get(place), begin):
                self._gone(place, "was removed" if extent is None else "was deleted and made again")
            del starts[place]  # if it exists, it is a new one
            if extent is None:
                ends.pop(place, None)

    def _is_meant(self, place: Place) -> bool:
        """Return whether the options select a partition, existing or not."""
        queue, partition = place
        wanted = self.options.queue
        matches = queue in wanted.names or any(fnmatchcase(queue, each) for each in wanted.patterns)
        return matches and (not self.options.partition or partition in self.options.partition)

    def _gone(self, place: Place, what: str) -> None:
        """Report that rows of a partition may be gone: an error, or a warning if the options allow it."""
        told = f"partition {place[1]!r} of queue {place[0]!r} {what}"
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{told}: what was in it and not read yet is gone. Go on with what is there: option "
                '"failOnDataLoss" = false'
            )
        logger.warning("%s; going on with what is there", told)

    def reportLatestOffset(self) -> Offsets:
        """Return the current ends, and how far the query is behind them: shown in its progress."""
        extents = self._extents(self._connected(), since=self._last)
        ends = {place: extent.end for place, extent in extents.items()}
        rows = sum(max(end - self._last.get(place, extents[place].first), 0) for place, end in ends.items())
        oldest = [extent.since for extent in extents.values() if extent.since is not None]
        age_ms = max(int(time.time() * 1000) - min(oldest), 0) if oldest else 0
        found = offsets_of(ends, {place: extent.key for place, extent in extents.items()})
        return {**found, BEHIND: {"rows": rows, "age_ms": age_ms}}

    def partitions(self, start: Offsets, end: Offsets) -> list[Task]:
        extents = self._extents(self._connected())
        starts, ends = {**ends_of(start), **new_of(end)}, ends_of(end)
        for place, key in keys_of(end).items():
            if place in extents and extents[place].key != key and ends.get(place, 0) > starts.get(place, 0):
                self._lost(place, starts.get(place, 0), ends[place])
                starts[place] = ends[place]
        return self._tasks(starts, ends, extents)

    def commit(self, end: Offsets) -> None:
        """Do nothing: reading holds nothing back, and the checkpoint knows the position."""

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()
