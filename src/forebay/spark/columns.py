"""From read responses to Arrow, without a step per row.

A segment's body has the layout of an Arrow string column, so the payloads are used as they are. Their offsets
and UTF-8 are checked, because a bad offset would read out of bounds.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from forebay.core.words import DEFAULT
from forebay.spark.link import Run

OFFSET_BYTES = 4
BLOCK_BYTES = 256 * 1024
"""Bytes parsed at a time: as much as stays in the CPU cache."""


class Batches:
    """Turns runs of one partition into batches of a schema."""

    def __init__(
        self, schema: pa.Schema, queue: str, partition: str, parsed: "Parser | None", tenant: str = DEFAULT
    ) -> None:
        self._schema = schema
        self._parser = parsed
        self._texts = {"tenant": tenant, "queue": queue, "partition": partition}
        self._same: dict[str, pa.Array] = {}
        """Columns with one value in every row, as long as the longest batch so far."""

    def batch(self, runs: Sequence[Run]) -> pa.RecordBatch:
        """Return the rows of some consecutive runs."""
        count = sum(run.count for run in runs)
        values = pa.concat_arrays(list(map(_payloads, runs))) if self._wants_values else None
        parsed: dict[str, pa.Array] = {}
        if self._parser is not None and values is not None:
            fitting, corrupt = self._parser.parse(values)
            parsed = {"value": fitting, "_corrupt": corrupt}
        columns = []
        for field in self._schema:
            if field.name in parsed:
                columns.append(parsed[field.name])
            elif field.name == "value":
                columns.append(values)
            else:
                columns.append(self._column(field, runs, count))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @property
    def _wants_values(self) -> bool:
        return "value" in self._schema.names or "_corrupt" in self._schema.names

    def _column(self, field: pa.Field, runs: Sequence[Run], count: int) -> pa.Array:
        match field.name:
            case "offset":
                return _numbers(field.type, np.arange(runs[0].offset, runs[0].offset + count, dtype=np.int64))
            case "id":
                return _numbers(field.type, _ids(runs))
            case "created_at":
                return _numbers(field.type, _times(runs) * 1000)
            case "priority" if any(run.attributes for run in runs):
                return _numbers(field.type, _priorities(runs))
            case "headers" | "tags" if any(field.name in each for run in runs for each in run.attributes):
                return _attributes(field, runs)
        return self._repeated(field, count)

    def _repeated(self, field: pa.Field, count: int) -> pa.Array:
        """Return a column with the same value in every row."""
        known = self._same.get(field.name)
        if known is None or len(known) < count:
            if field.name in self._texts:
                known = same(self._texts[field.name], count)
            elif field.name == "priority":
                known = _numbers(field.type, np.zeros(count, dtype=np.int32))
            else:
                known = pa.nulls(count, field.type)
            self._same[field.name] = known
        return known.slice(0, count)


def _numbers(kind: pa.DataType, numbers: "np.ndarray[Any, Any]") -> pa.Array:
    """Wrap numbers without a copy. ``pa.array`` and ``pa.scalar`` would do, but import pandas first."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def same(text: str, count: int) -> pa.Array:
    """Return an array of the same text, repeated."""
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data * count))


NOTHING, LINE_END = same("", 1)[0], same("\n", 1)[0]


def _payloads(run: Run) -> pa.Array:
    """Return the payloads of a run; checked, not copied."""
    start = OFFSET_BYTES * (run.count + 1)
    offsets, data = run.payloads[:start], run.payloads[start:]
    found = pa.StringArray.from_buffers(run.count, pa.py_buffer(offsets), pa.py_buffer(data))
    found.validate(full=True)
    return found


def _ids(runs: Sequence[Run]) -> "np.ndarray[Any, Any]":
    parts = [np.arange(run.count, dtype=np.uint64) + np.uint64(run.first) for run in runs]
    return np.concatenate(parts).view(np.int64)


def _lengths(run: Run) -> "np.ndarray[Any, Any]":
    """Return how many rows are in each of a segment's runs."""
    return np.diff(np.frombuffer(run.ends, np.uint32).astype(np.int64), prepend=0)


def _times(runs: Sequence[Run]) -> "np.ndarray[Any, Any]":
    """Return the push time of each row, in ms."""
    if not any(run.ends for run in runs):
        return np.repeat(
            np.array([run.created_at for run in runs], dtype=np.int64), [run.count for run in runs]
        )
    parts = []
    for run in runs:
        if run.ends:
            times = np.frombuffer(run.times, np.uint32).astype(np.int64) + run.created_at
            parts.append(np.repeat(times, _lengths(run)))
        else:
            parts.append(np.full(run.count, run.created_at, dtype=np.int64))
    return np.concatenate(parts)


def _which(run: Run) -> "np.ndarray[Any, Any]":
    """Return the index of each row's attributes in its segment."""
    if not run.ends:
        return np.zeros(run.count, dtype=np.int64)
    lengths = _lengths(run)
    which = np.frombuffer(run.which, np.uint32) if run.which else np.zeros(len(lengths), dtype=np.uint32)
    return np.repeat(which.astype(np.int64), lengths)


def _priorities(runs: Sequence[Run]) -> "np.ndarray[Any, Any]":
    parts = []
    for run in runs:
        if run.attributes:
            known = np.array([each.get("priority", 0) for each in run.attributes], dtype=np.int32)
            parts.append(known[_which(run)])
        else:
            parts.append(np.zeros(run.count, dtype=np.int32))
    return np.concatenate(parts)


def _attributes(field: pa.Field, runs: Sequence[Run]) -> pa.Array:
    """Return headers or tags: built once per set of attributes, then taken by row."""
    parts = []
    for run in runs:
        if run.attributes:
            sets = [each.get(field.name) for each in run.attributes]
            known = [list(each.items()) if isinstance(each, dict) else each for each in sets]
            parts.append(pa.array(known, field.type).take(_numbers(pa.int64(), _which(run))))
        else:
            parts.append(pa.nulls(run.count, field.type))
    return pa.concat_arrays(parts)


class Parser:
    """Parses payloads into columns of a type; those that don't fit are returned as they are."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._fields = list(kind)
        self._first = {field.name: first for field in self._fields if (first := _read_first(field.type))}
        """Columns that are read as another type first, then cast with checks."""
        read = [pa.field(each.name, self._first.get(each.name, each.type)) for each in self._fields]
        self._options = pj.ParseOptions(explicit_schema=pa.schema(read), unexpected_field_behavior="ignore")
        self._look_at = msgspec.json.Decoder(_shape(kind)).decode

    def parse(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return a struct for each payload, null if it does not fit; and the payloads that don't."""
        # Only objects may reach Arrow's reader: a bare null has crashed it.
        is_object = pc.starts_with(values, "{")
        if pc.all(is_object).as_py():
            whole = self._read(values)
            if whole is not None:
                return whole, pa.nulls(len(values), pa.string())
        fits = np.array(is_object.to_pylist())
        for place, text in enumerate(values.to_pylist()):
            if fits[place]:
                fits[place] = self._may_fit(text)
        places = np.flatnonzero(fits)
        chosen = values.take(_numbers(pa.int64(), places))
        found = self._search(chosen, places, fits) if len(places) else []
        good = pa.concat_arrays(found) if found else pa.array([], self._kind)
        index = np.zeros(len(values), dtype=np.int64)
        index[fits] = np.arange(int(fits.sum()))
        is_good = pa.array(fits.tolist(), pa.bool_())
        taken = good.take(pc.if_else(is_good, _numbers(pa.int64(), index), pa.scalar(None, pa.int64())))
        return taken, pc.if_else(is_good, pa.scalar(None, pa.string()), values)

    def _may_fit(self, text: str) -> bool:
        """Return whether no value has a wrong type: Arrow's reader would stop there, and not say where."""
        try:
            self._look_at(text)
        except msgspec.ValidationError:
            return False
        except msgspec.DecodeError:
            pass  # a number too large, say: Arrow's reader decides
        return True

    def _search(
        self, values: pa.Array, places: "np.ndarray[Any, Any]", fits: "np.ndarray[Any, Any]"
    ) -> list[pa.Array]:
        """Read payloads, halving where one does not fit; misfits are removed from ``fits``."""
        whole = self._read(values)
        if whole is not None:
            return [whole]
        if len(values) == 1:
            fits[places[0]] = False
            return []
        middle = len(values) // 2
        low = self._search(values.slice(0, middle), places[:middle], fits)
        return low + self._search(values.slice(middle), places[middle:], fits)

    def _read(self, values: pa.Array) -> pa.Array | None:
        """Return all payloads parsed, or None if any does not fit."""
        lines = pc.binary_join_element_wise(values, NOTHING, LINE_END)
        data = lines.buffers()[2].slice(0, _end(lines))
        if np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")) != len(values):
            # A line break in JSON is white space between two tokens, but the reader takes it for the end of a
            # row.
            flat = pc.replace_substring(pc.replace_substring(values, "\n", " "), "\r", " ")
            lines = pc.binary_join_element_wise(flat, NOTHING, LINE_END)
            data = lines.buffers()[2].slice(0, _end(lines))
        longest = pc.max(pc.binary_length(values)).as_py()
        block = pj.ReadOptions(use_threads=False, block_size=max(BLOCK_BYTES, 2 * longest))
        try:
            table = pj.read_json(pa.BufferReader(data), read_options=block, parse_options=self._options)
            if table.num_rows != len(values):
                return None
            columns = []
            for field in self._fields:
                column = table.column(field.name).combine_chunks()
                column = column.cast(field.type) if field.name in self._first else column
                columns.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return pa.StructArray.from_arrays(columns, fields=self._fields)


DAY = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
"""Pattern of the beginning of everything that is read as a time."""


def _shape(kind: pa.DataType) -> Any:
    """Return a type that accepts whatever a column can be read from, and little else."""
    if pa.types.is_struct(kind):
        fields = [(f"_{at}", _shape(field.type) | None, None) for at, field in enumerate(kind)]
        names = {f"_{at}": field.name for at, field in enumerate(kind)}
        if any(json.dumps(name) != f'"{name}"' for name in names.values()):
            return dict[str, Any]  # msgspec does not take names that need escaping
        return msgspec.defstruct("Shape", fields, rename=names, gc=False)
    if pa.types.is_list(kind):
        return list[_shape(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_signed_integer(kind):
        top = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-top, le=top - 1)]
    if pa.types.is_timestamp(kind):
        return Annotated[str, msgspec.Meta(pattern=DAY)]
    if pa.types.is_date(kind):
        return Annotated[str, msgspec.Meta(pattern=f"{DAY}$")]
    if pa.types.is_floating(kind):
        return int | float  # an integer of any length
    if pa.types.is_boolean(kind):
        return bool
    return str if pa.types.is_string(kind) else int | float | str


def _read_first(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a column is read as before it is cast to its own, if another.

    Dates would be read from numbers only, and a decimal that has too many digits as another number.
    """
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_decimal128(kind):
        return pa.decimal256(76, kind.scale)
    return None


def _end(lines: pa.Array) -> int:
    """Return the size in bytes of all strings of an array without an offset."""
    return int(np.frombuffer(lines.buffers()[1], np.int32, 1, OFFSET_BYTES * len(lines))[0])
