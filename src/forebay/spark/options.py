"""Options of the source and the sink: what each may be, and the error if it is something else."""

import difflib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from forebay.client.access import NO_ACCESS, VARIABLES, Access, access_of
from forebay.client.address import is_tls
from forebay.client.raw import where
from forebay.core.bounds import check_queue_name
from forebay.core.errors import Invalid
from forebay.core.words import DEFAULT

SERVER = "tcp://127.0.0.1:6780"
RAW = "raw"
EARLIEST, LATEST = "earliest", "latest"
COLUMNS = (
    "tenant",
    "queue",
    "partition",
    "offset",
    "id",
    "created_at",
    "value",
    "headers",
    "tags",
    "priority",
)
"""Columns of the source, in order."""
BYTES_PER_PARTITION = 32 * 1024 * 1024
"""Bytes per Spark partition: smaller queue partitions are combined, larger ones are split."""
YEAR_1973_MS = 100_000_000_000
"""A smaller number can't be meant as a time: it looks like an offset."""
RETRY_MS = 30_000
"""How long a server may be unreachable before a task fails."""

SHARED = ("server", "token", "tenant", "ca", "cert", "key", "queue", "retryMs")
SOURCE = (
    *SHARED,
    "partition",
    "startingOffsets",
    "endingOffsets",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "bytesPerPartition",
    "failOnDataLoss",
    "parse",
    "columns",
    "pushFilters",
)
SINK = (*SHARED, "partition", "query", "batch", "durability", "stageExpireMs", "failOnDataLoss")
OF_SPARK = frozenset({"checkpointlocation", "path", "queryname", "mergeschema", "__datasource__"})
"""Options that Spark itself adds to ours."""


class BadOption(ValueError):
    """An invalid option, and what is accepted."""

    def __init__(self, name: str, accepted: str) -> None:
        super().__init__(f'option "{name}" of format "forebay" must be {accepted}')


class Names(Struct, frozen=True):
    """Names: these, or those that match patterns."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()


At = str | int | dict[str, Any]
"""A position in the log: earliest, latest, a time in ms, or by queue and partition."""


class SourceOptions(Struct, frozen=True):
    server: str
    queue: Names
    partition: tuple[str, ...] = ()
    """Only these; all if empty."""
    starting: At = EARLIEST
    ending: At = LATEST
    max_rows: int = 0
    """Per micro-batch; 0 is no limit."""
    max_bytes: int = 0
    min_partitions: int = 1
    bytes_per_partition: int = BYTES_PER_PARTITION
    fail_on_data_loss: bool = True
    parse: str = RAW
    """``raw``, or the type of the payloads as Spark writes it: ``id long, name string``."""
    columns: tuple[str, ...] = COLUMNS
    push_filters: bool = False
    """Whether filters of the query reduce what is read."""
    retry_ms: int = RETRY_MS
    access: Access = NO_ACCESS


class SinkOptions(Struct, frozen=True):
    server: str
    queue: str
    partition: str = DEFAULT
    """For rows without one."""
    query: str | None = None
    batch: int | None = None
    durability: str | None = None
    expire_ms: int = 86_400_000
    fail_on_data_loss: bool = True
    retry_ms: int = RETRY_MS
    access: Access = NO_ACCESS


def source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Return the options of a read, streaming or not. Raise BadOption with what is wrong."""
    options = _known(given, SOURCE)
    if streaming and "endingOffsets" in options:
        raise BadOption(
            "endingOffsets", "left out of a stream: it has no end; use trigger(availableNow=True)"
        )
    for name in ("maxRowsPerTrigger", "maxBytesPerTrigger"):
        if streaming is False and name in options:
            raise BadOption(name, "left out of a batch read: it limits the micro-batches of a stream")
    server = _server(options)
    return SourceOptions(
        server=server,
        queue=_queues(options),
        partition=_listed(options, "partition", commas=False),
        starting=_place(options, "startingOffsets", EARLIEST),
        ending=_place(options, "endingOffsets", LATEST),
        max_rows=_number(options, "maxRowsPerTrigger", 0),
        max_bytes=_number(options, "maxBytesPerTrigger", 0),
        min_partitions=_number(options, "minPartitions", 1),
        bytes_per_partition=_number(options, "bytesPerPartition", BYTES_PER_PARTITION),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        parse=options.get("parse", RAW).strip() or RAW,
        columns=_columns(options),
        push_filters=_boolean(options, "pushFilters", default=False),
        retry_ms=_number(options, "retryMs", RETRY_MS),
        access=_access(options, server),
    )


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write. Raise BadOption with what is wrong."""
    options = _known(given, SINK)
    queue = options.get("queue", "")
    try:
        check_queue_name(queue)
    except Invalid as error:
        raise BadOption("queue", f"the name of one queue to write to: {error.accepted}") from None
    if streaming and ("query" in options or "batch" in options):
        raise BadOption("query", "left out of a stream, and batch too: Spark numbers its batches")
    if ("query" in options) != ("batch" in options):
        raise BadOption("query", "given along with batch: a write with both the same is made once")
    if options.get("durability", "fsync") not in ("fsync", "os"):
        raise BadOption("durability", "fsync or os")
    server = _server(options)
    return SinkOptions(
        server=server,
        queue=queue,
        partition=options.get("partition", DEFAULT),
        query=options.get("query"),
        batch=_number(options, "batch", 0, least=0) if "batch" in options else None,
        durability=options.get("durability"),
        expire_ms=_number(options, "stageExpireMs", 86_400_000, least=1_000),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        retry_ms=_number(options, "retryMs", RETRY_MS),
        access=_access(options, server),
    )


def meant(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, or nothing if none is close.

    >>> meant("PRIORTY", ["partition", "priority"])
    '; did you mean priority?'
    """
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _known(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options by our names; Spark ignores case."""
    by_lower = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in by_lower:
            found[by_lower[lower]] = str(value)
        elif lower not in OF_SPARK:
            raise BadOption(name, f"left out; known are {', '.join(known)}{meant(name, known)}")
    if "path" in {name.lower() for name in given}:
        raise BadOption("path", 'left out: call load() and save() without a path, and give option "queue"')
    return found


def _server(options: dict[str, str]) -> str:
    """Return the address in the client's format."""
    given = options.get("server", SERVER)
    try:
        place = where(given)
    except Invalid:
        place = ""
    if isinstance(place, tuple) or (place.startswith("/") and given.startswith("unix://")):
        return given if is_tls(given) else given.partition("://")[2] or given
    accepted = f"tcp://HOST:PORT, such as {SERVER}, tls://HOST:PORT, or unix:///PATH"
    raise BadOption("server", f"{accepted}; this is {given!r}")


def _access(options: dict[str, str], server: str) -> Access:
    """Return who asks: what no option says, the environment of the driver does."""
    given = Access(**{name: options[name] for name in VARIABLES if name in options})
    try:
        return access_of(server, given)
    except Invalid as error:
        raise BadOption(error.field, error.accepted) from None


def _queues(options: dict[str, str]) -> Names:
    names = _listed(options, "queue", commas=True)
    if not names:
        raise BadOption("queue", "given: a name, a list of names (a,b) or a pattern (orders-*)")
    patterns = tuple(name for name in names if any(each in name for each in "*?["))
    return Names(tuple(name for name in names if name not in patterns), patterns)


def _listed(options: dict[str, str], name: str, *, commas: bool) -> tuple[str, ...]:
    """Return one or several names: a JSON list, or separated by commas where no name can contain one."""
    given = options.get(name, "")
    if given.startswith("["):
        try:
            found = json.loads(given)
        except ValueError:
            found = None
        if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
            return tuple(dict.fromkeys(found))
        if name != "queue":
            raise BadOption(name, 'a name, or a JSON list of names: ["a", "b"]')
    parts = given.split(",") if commas else [given]
    return tuple(dict.fromkeys(part.strip() if commas else part for part in parts if part.strip()))


def _columns(options: dict[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return COLUMNS
    chosen = _listed(options, "columns", commas=True)
    accepted = f"some of {', '.join(COLUMNS)}, parted by commas"
    if not chosen:
        raise BadOption("columns", accepted)
    for name in chosen:
        if name not in COLUMNS:
            raise BadOption("columns", f"{accepted}; {name!r} is none of them{meant(name, COLUMNS)}")
    return tuple(name for name in COLUMNS if name in chosen)


def _number(options: dict[str, str], name: str, default: int, least: int = 1) -> int:
    given = options.get(name)
    if given is None:
        return default
    try:
        number = int(given)
    except ValueError:
        number = least - 1
    if number < least:
        raise BadOption(name, f"an integer from {least} on; this is {given!r}")
    return number


def _boolean(options: dict[str, str], name: str, *, default: bool) -> bool:
    given = options.get(name, str(default)).lower()
    if given not in ("true", "false"):
        raise BadOption(name, f"true or false; this is {given!r}")
    return given == "true"


def _place(options: dict[str, str], name: str, default: str) -> At:
    """Return the position in the log that an option names."""
    given = options.get(name, default).strip()
    if given in (EARLIEST, LATEST):
        return given
    if given.isascii() and given.isdigit():
        if int(given) < YEAR_1973_MS:
            raise BadOption(name, f'a time; for offset {given} write {{"QUEUE": {{"default": {given}}}}}')
        return int(given)
    accepted = (
        f"{EARLIEST}, {LATEST}, a time (2026-01-31T12:00:00Z, or ms since 1970), or JSON by partition: "
        '{"orders": {"default": 1000}}'
    )
    if given.startswith("{"):
        try:
            found = json.loads(given)
        except ValueError as error:
            raise BadOption(name, f"{accepted}; this is no JSON: {error}") from None
        return _checked(name, found, accepted)
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise BadOption(name, f"{accepted}; this is {given!r}") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(int(at.timestamp() * 1000), 0)


def _checked(name: str, found: dict[str, Any], accepted: str) -> dict[str, Any]:
    for queue, partitions in found.items():
        if queue.startswith("#"):
            continue
        if not isinstance(partitions, dict):
            raise BadOption(name, accepted)
        for offset in partitions.values():
            good = offset in (EARLIEST, LATEST) or (type(offset) is int and offset >= 0)
            if not good:
                raise BadOption(name, f"{accepted}; an offset is a number from 0 on, {EARLIEST} or {LATEST}")
    return found
