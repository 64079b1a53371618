"""Explains what is wrong with a row: the column, and how its value begins."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from forebay.client.errors import Refused
from forebay.core.api.checks import check_attributes
from forebay.core.bounds import Limits, check_name
from forebay.core.errors import Invalid
from forebay.core.log.bodies import body_slices
from forebay.core.state import Attributes
from forebay.spark.schemas import ABOUT, BadRows

SHOWN_MAX = 80
"""Most characters of a bad value shown in an error."""
COLUMNS = {"body": "value", "frame": "value", "payload": "value"}
"""Columns by their name at the server, where that differs."""


def explained(error: Refused, task: int, sent: Iterable[dict[str, Any]]) -> Exception:
    """Return the server's error about one of the rows sent last, in Spark's terms."""
    field = error.details.get("field", "")
    column = COLUMNS.get(field, field)
    if column != "value" and column not in ABOUT:
        return error
    found = _offending(error, sent)
    shown = "" if found is None else f"; it is {_cut(found)}"
    if field in ("body", "frame"):
        return BadRows(
            f"column value of a row of task {task} is not JSON{shown}: it must be JSON text, or a struct, "
            "which becomes JSON; wrap text as struct(text)"
        )
    return BadRows(f"column {column} of a row of task {task} can't be written: {error.message}{shown}")


def _offending(error: Refused, sent: Iterable[dict[str, Any]]) -> Any:
    """Return the refused value among the rows sent last; None if it can't be determined."""
    field = error.details.get("field")
    for part in sent:
        if field in ("body", "frame", "payload"):
            for text in body_slices(part["body"], part["count"], 0, part["count"]):
                if not _is_json(text) or error.message.endswith(f"one has {len(text)}"):
                    return text.decode(errors="replace")
        elif field in ("partition", "unique_key"):
            for name in [part["partition"]] if field == "partition" else part["unique_keys"]:
                if name is not None and not _is_name(name):
                    return name
        else:
            for run in part.get("runs", [part]):
                if field in run and not _is_fine(run):
                    return run[field]
    return None


def _cut(found: Any) -> str:
    """Return the beginning of a value, for an error message."""
    if not isinstance(found, str | bytes):
        found = str(found)
    return repr(found) if len(found) <= SHOWN_MAX else f"{found[:SHOWN_MAX]!r}… ({len(found)} in all)"


def _is_json(text: bytes) -> bool:
    try:
        return len(msgspec.json.decode(text, type=msgspec.Raw)) == len(text) and bool(text.decode())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def _is_name(name: str) -> bool:
    try:
        check_name("name", name)
    except Invalid:
        return False
    return True


def _is_fine(run: dict[str, Any]) -> bool:
    """Return whether a run's attributes are valid."""
    headers, tags = tuple(run.get("headers", {}).items()), tuple(run.get("tags", ()))
    given = Attributes(run.get("priority", 0), run.get("delay_ms", 0), headers=headers, tags=tags)
    try:
        check_attributes(Limits(), given)
    except Invalid:
        return False
    return True


def misfit(batch: pa.RecordBatch) -> BadRows | None:
    """Return the error for a value that a message can't carry, or None."""
    for name in batch.schema.names:
        column = batch.column(name)
        told = _misfit_text(name, column) if name == "value" else None
        told = told or _misfit_in(name, column)
        if told is not None:
            return BadRows(told)
    return None


def _misfit_in(where: str, column: pa.Array) -> str | None:
    kind = column.type
    inside: list[tuple[str, pa.Array]] = []
    if pa.types.is_struct(kind):
        names = [f"{where}.{field.name}" for field in kind]
        inside = list(zip(names, column.flatten(), strict=True))
    elif pa.types.is_map(kind):
        inside = [(f"{where}[]", column.keys), (f"{where}[]", column.items)]
    elif pa.types.is_list(kind):
        inside = [(f"{where}[]", column.flatten())]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _misfit_text(where, column)
    elif pa.types.is_temporal(kind):
        try:
            column.to_pylist()
        except OverflowError:
            return f"{where} has a time beyond the years 1 to 9999: write it as text, cast({where} AS string)"
    return next((told for each in inside if (told := _misfit_in(*each))), None)


def _misfit_text(where: str, column: pa.Array) -> str | None:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return None
    for text in column.to_pylist():
        try:
            _ = text is None or text.decode()
        except UnicodeDecodeError:
            return f"{where} has bytes that are no UTF-8, {_cut(text)}: write them as text, base64({where})"
    return None
