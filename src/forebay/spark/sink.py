"""The sink: rows become messages of a queue, exactly once.

Every task stages its rows under a name of its own, invisible to consumers. When all tasks are done, the
driver adopts the stages in one commit, under the id of the query and the number of its batch. A batch that is
run again is adopted once; a task that comes too late finds its batch adopted and is refused; the stages of a
dead task expire.
"""

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from forebay.client.errors import Refused
from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.spark.bad_rows import explained, misfit
from forebay.spark.columns import same
from forebay.spark.link import FIRST_MS, UNANSWERED_MAX, Link, StageWriter, Unreachable
from forebay.spark.options import SinkOptions
from forebay.spark.schemas import ABOUT, check_schema

logger = logging.getLogger("forebay.spark")

GATHER_BYTES = 2 * 1024 * 1024
"""Payload bytes of a partition that are buffered before full bodies are cut from them."""
GATHERED_BYTES_MAX = 64 * 1024 * 1024
"""Most payload bytes buffered by a task, over all partitions."""
KEEP_MS = 86_400_000
"""How long the server remembers a batch write, so that a retry does not write twice."""


@dataclass
class Done(WriterCommitMessage):
    """A task's report of what it has staged."""

    query: str
    task: int
    """Its position in the order of the rows."""
    stage: str
    """Empty if it had no rows, or its batch was adopted already: run again after the driver died."""
    rows: int


class OtherBatch(Exception):
    """A batch that was written before has other rows now."""

    def __init__(self, told: str, name: str | None) -> None:
        if name is not None:
            advice = (
                f'In option "query", {name!r}, give every write to a queue a name of its own, and another '
                "one with a new checkpoint"
            )
        else:
            advice = (
                "Begin a new checkpoint where the last progress ended: option "
                '"startingOffsets" of the source = its endOffset'
            )
        super().__init__(
            f"{told}. {advice}. If the query itself may come to other rows each time (sample, rand), those "
            'written first are as good: option "failOnDataLoss" = false'
        )


class Writing:
    """What batch and stream writes have in common."""

    options: SinkOptions
    run: int
    """Rises from run to run: stages of a dead run are dropped when the next one stages."""

    def _stage(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> Done:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "a task runs in Spark"
        task = context.partitionId()
        name = f"{task}.{context.attemptNumber()}.{uuid.uuid4().hex}"
        options = self.options
        with Link(options.server, options.retry_ms, options.access) as link:
            about = {"queue": options.queue, "stage": name, "query": query, "batch": batch, "run": self.run}
            stage = StageWriter(link, **about, expire_ms=options.expire_ms)
            gathering = Gathering(stage, options.partition)
            count = 0
            try:
                for each in rows:
                    count += each.num_rows
                    gathering.add(each)
                gathering.finish()
            except BaseException as error:
                if isinstance(error, Refused) and _is_over(error):
                    # Counts as the same batch if it has as many rows.
                    return Done(query, task, "", count + sum(each.num_rows for each in rows))
                # No driver will adopt it, and it takes up space.
                self._drop(stages=[name])
                if isinstance(error, Refused) and _is_other(error):
                    raise OtherBatch(error.message, options.query) from None
                if isinstance(error, Refused):
                    raise explained(error, task, gathering.sent) from None
                raise
        return Done(query, task, name if count else "", count)

    def _adopt(self, done: Sequence[Done], query: str, batch: int, keep_ms: int | None) -> None:
        ordered = sorted((each for each in done if each.stage), key=lambda each: each.task)
        options = self.options
        about = {"queue": options.queue, "query": query, "batch": batch, "durability": options.durability}
        about |= {"stages": [each.stage for each in ordered], "keep_ms": keep_ms}
        with Link(options.server, options.retry_ms, options.access) as link:
            try:
                reply = link.ask("ADOPT", **about, count=sum(each.rows for each in done))
            except Refused as error:
                if not _is_other(error):
                    raise
                if options.fail_on_data_loss or error.details["field"] != "count":
                    raise OtherBatch(error.message, options.query) from None
                reply = link.ask("ADOPT", **about)
        if reply.get("repeated"):
            logger.warning(
                "batch %d of query %s was written before (%d rows), so nothing is written now. After a driver"
                " died that is as it should be. If this is another write, it needs another name (query)",
                batch,
                query,
                reply["count"],
            )
        elif reply.get("duplicates"):
            logger.info(
                "batch %d of query %s: %d rows were left out, because their unique keys are held",
                batch,
                query,
                reply["duplicates"],
            )

    def _drop(self, **what: Any) -> None:
        """Drop stages of a failed write. If this fails, too, they expire."""
        try:
            with Link(self.options.server, 1_000, self.options.access) as link:
                link.ask("UNSTAGE", queue=self.options.queue, **what)
        except (Refused, Unreachable) as error:
            if not (isinstance(error, Refused) and error.code == "not_found"):
                logger.warning("what a failed write has staged is left to expire: %s", error)


class BatchWriter(Writing, DataSourceArrowWriter):
    """A DataFrame into a queue: all of it in one commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(schema, overwrite)
        # Do not wait for a server that was never reached; foreachBatch may meet one that restarts.
        patience_ms = options.retry_ms if options.query else min(options.retry_ms, FIRST_MS)
        with Link(options.server, patience_ms, options.access) as link:
            link.ask("AUTH")
        self.options = options
        self.run = time.time_ns()
        self.query = options.query or f"write.{uuid.uuid4().hex}"
        self.batch = options.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self.query, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [each for each in messages if isinstance(each, Done)]
        self._adopt(done, self.query, self.batch, None if self.options.query else KEEP_MS)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [each.stage for each in messages if isinstance(each, Done) and each.stage]
        if self.options.query is None:
            self._drop(query=self.query, batch=self.batch)  # the name is ours alone
        elif done:
            self._drop(stages=done)


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """A stream into a queue: each micro-batch in one commit, once."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(schema, overwrite, streaming=True)
        self.options = options
        self.run = time.time_ns()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # ``commit`` has no context: what it needs is part of the message.
        context = TaskContext.get()
        assert context is not None, "a task runs in Spark"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError("Spark does not say which query and batch this is: it can't be written once")
        return self._stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        done = [each for each in messages if isinstance(each, Done)]
        if done:
            self._adopt(done, done[0].query, batchId, None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        stages = [each.stage for each in messages if isinstance(each, Done) and each.stage]
        if stages:
            self._drop(stages=stages)


def _is_other(error: Refused) -> bool:
    """Return whether the batch was refused because it differs from the one adopted."""
    return error.code == "conflict" and error.details.get("field") in ("count", "query")


def _is_over(error: Refused) -> bool:
    """Return whether a write to a stage was refused because its batch was adopted."""
    return error.code == "conflict" and error.details.get("field") == "batch"


class Gathering:
    """Rows buffered by partition, until there are enough for full bodies."""

    def __init__(self, stage: StageWriter, partition: str) -> None:
        self._stage = stage
        self._partition = partition
        self._waiting: dict[str, list[Rows]] = {}
        self.sent: deque[dict[str, Any]] = deque(maxlen=UNANSWERED_MAX)
        """The last parts sent, which may not be answered yet and may be refused."""
        self._size = 0
        """Buffered payload bytes."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch: its rows by partition, in order."""
        try:
            if batch.num_rows:
                self._add(batch)
        except (OverflowError, UnicodeDecodeError, pa.ArrowInvalid) as error:
            raise misfit(batch) or error from None

    def _add(self, batch: pa.RecordBatch) -> None:
        rows = Rows.of(batch)
        for partition, theirs in self._by_partition(batch, rows):
            waiting = self._waiting.setdefault(partition, [])
            waiting.append(theirs)
            self._size += theirs.size
            if sum(each.size for each in waiting) >= GATHER_BYTES:
                self._send(partition, waiting, is_last=False)
        if self._size >= GATHERED_BYTES_MAX:
            self._send_all()

    def finish(self) -> None:
        self._send_all()
        self._stage.finish()

    def _send_all(self) -> None:
        for partition, waiting in self._waiting.items():
            self._send(partition, waiting, is_last=True)
        self._waiting.clear()

    def _by_partition(self, batch: pa.RecordBatch, rows: "Rows") -> Iterator[tuple[str, "Rows"]]:
        if "partition" not in batch.schema.names:
            yield self._partition, rows
            return
        names = pc.fill_null(batch.column("partition"), same(self._partition, 1)[0]).dictionary_encode()
        if len(names.dictionary) == 1:
            yield names.dictionary[0].as_py(), rows
            return
        codes = np.frombuffer(names.indices.buffers()[1], np.int32, len(names), 4 * names.indices.offset)
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(names.dictionary))
        ordered, start = rows.take(order), 0
        for name, count in zip(names.dictionary.to_pylist(), counts.tolist(), strict=True):
            # Copied: a slice would keep the whole batch in memory while it is buffered.
            yield name, ordered.slice(start, count).copied()
            start += count

    def _send(self, partition: str, waiting: list["Rows"], *, is_last: bool) -> None:
        """Send full bodies of the buffered rows; the rest stays buffered, unless it is the last."""
        rows = Rows.joined(waiting)
        waiting.clear()
        self._size -= rows.size
        start = 0
        for end in rows.cuts():
            if end == rows.count and not is_last:
                break
            part = rows.slice(start, end - start)
            what = {"partition": partition, "body": part.body(), **part.about()}
            self.sent.append({"count": part.count, **what})
            self._stage.write(part.count, **what)
            start = end
        if start < rows.count:
            rest = rows.slice(start, rows.count - start)
            waiting.append(rest)
            self._size += rest.size


class Rows:
    """Payloads, and the attributes of each."""

    def __init__(self, values: pa.Array, columns: dict[str, Any]) -> None:
        self._values = values
        self._columns = columns
        """If present, ``priority``, ``delay_ms``: numbers; ``unique_key``, ``headers``, ``tags``: objects."""
        offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
        self._offsets = offsets
        self.count = len(values)
        self.size = int(offsets[-1]) - int(offsets[0])

    @staticmethod
    def of(batch: pa.RecordBatch) -> "Rows":
        columns: dict[str, Any] = {}
        for name in ("priority", "delay_ms"):
            if name in batch.schema.names:
                columns[name] = pc.fill_null(batch.column(name), 0).to_numpy().astype(np.int64)
        for name, as_sent in (("unique_key", None), ("headers", _headers), ("tags", _tags)):
            if name in batch.schema.names:
                given = batch.column(name).to_pylist()
                found = np.empty(len(given), dtype=object)
                found[:] = given if as_sent is None else list(map(as_sent, given))
                columns[name] = found
        return Rows(_values(batch), columns)

    @staticmethod
    def joined(several: list["Rows"]) -> "Rows":
        if len(several) == 1:
            return several[0]
        columns = {
            name: np.concatenate([each._columns[name] for each in several]) for name in several[0]._columns
        }
        return Rows(pa.concat_arrays([each._values for each in several]), columns)

    def take(self, order: "np.ndarray[Any, Any]") -> "Rows":
        columns = {name: column[order] for name, column in self._columns.items()}
        places = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        return Rows(self._values.take(places), columns)

    def copied(self) -> "Rows":
        """Return the same rows in memory of their own."""
        offsets = self._offsets - self._offsets[0]
        data = memoryview(self._values.buffers()[2])[int(self._offsets[0]) : int(self._offsets[-1])].tobytes()
        values = pa.StringArray.from_buffers(self.count, pa.py_buffer(offsets), pa.py_buffer(data))
        return Rows(values, {name: column.copy() for name, column in self._columns.items()})

    def slice(self, start: int, count: int) -> "Rows":
        columns = {name: column[start : start + count] for name, column in self._columns.items()}
        return Rows(self._values.slice(start, count), columns)

    def cuts(self) -> Iterator[int]:
        """Yield the ends of bodies that are as full as allowed; a payload too large for that is one alone."""
        ends = self._offsets[1:].astype(np.int64) - int(self._offsets[0])
        weight = ends + 4 * np.arange(1, self.count + 1, dtype=np.int64)
        if "headers" in self._columns:
            weight += np.cumsum([_weight(each) for each in self._columns["headers"]])
        if "tags" in self._columns:
            weight += np.cumsum([sum(map(len, each or ())) for each in self._columns["tags"]])
        start, used = 0, 0
        while start < self.count:
            end = int(np.searchsorted(weight, used + SEGMENT_BYTES_MAX - 4, side="right"))
            end = max(end, start + 1)
            yield end
            start, used = end, int(weight[end - 1])

    def body(self) -> bytes:
        """Return the payloads in the stored layout: offsets from 0 on, then the texts."""
        low, high = int(self._offsets[0]), int(self._offsets[-1])
        offsets = (self._offsets - low).astype("<i4") if low else self._offsets.astype("<i4", copy=False)
        data = self._values.buffers()[2]
        return offsets.tobytes() + (memoryview(data)[low:high].tobytes() if data is not None else b"")

    def about(self) -> dict[str, Any]:
        """Return the attributes of the rows in the format of STAGE."""
        found: dict[str, Any] = {}
        if "unique_key" in self._columns:
            found["unique_keys"] = self._columns["unique_key"].tolist()
        columns = {name: column for name, column in self._columns.items() if name != "unique_key"}
        if not columns:
            return found
        changes = np.zeros(self.count, dtype=bool)
        changes[0] = True
        for column in columns.values():
            changes[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(changes)
        lengths = np.diff(starts, append=self.count)
        runs: list[dict[str, Any]] = [{"count": each} for each in lengths.tolist()]
        for name, column in columns.items():
            for run, value in zip(runs, column[starts].tolist(), strict=True):
                if value:
                    run[name] = dict(value) if name == "headers" else value
        if len(runs) == 1:
            runs[0].pop("count")
            return found | runs[0]
        return found | {"runs": runs}


def _headers(given: list[tuple[str, str | None]] | None) -> tuple[tuple[str, str], ...] | None:
    """Return headers to send; one without a value is left out."""
    return None if given is None else tuple((name, value) for name, value in given if value is not None)


def _tags(given: list[str | None] | None) -> tuple[str, ...] | None:
    """Return tags to send, each once."""
    return None if given is None else tuple(dict.fromkeys(tag for tag in given if tag is not None))


def _weight(headers: tuple[tuple[str, str], ...] | None) -> int:
    """Return the bytes of one row's headers."""
    return sum(len(name) + len(value) for name, value in headers) if headers else 0


_encode = msgspec.json.Encoder(decimal_format="number").encode


def _values(batch: pa.RecordBatch) -> pa.Array:
    """Return the payloads of the rows as JSON text."""
    if "value" in batch.schema.names:
        column = batch.column("value")
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            column = column.cast(pa.string())  # checked: it is UTF-8, and not too large for one column
        if pa.types.is_string(column.type):
            text = pc.fill_null(column, "null") if column.null_count else column
            return pc.ascii_trim(text, characters=" \t\r\n")
    else:
        names = [name for name in batch.schema.names if name not in ABOUT]
        column = pa.StructArray.from_arrays([batch.column(name) for name in names], names=names)
    return pa.array([_encode(each).decode() for each in _plain(column)], pa.string())


def _plain(column: pa.Array) -> list[Any]:
    """Return values that JSON can encode; maps as objects."""
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return found
