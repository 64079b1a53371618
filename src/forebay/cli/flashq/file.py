"""flashQ's SQLite file: the jobs, dead letters and crons in it.

flashQ works in memory and writes down what it needs to start again. The file has less than a server:

- ``jobs`` has what is not done. A completed job is deleted, and so is a cancelled one. A pop is not written
  down: a job that was being worked on is ``waiting``.
- ``dlq_jobs`` has the dead letters, without their options.
- ``cron_jobs`` has the crons.
- Keys and values, pauses, limits, logs and completed jobs are in memory only.

Columns were added over time. One that is missing has flashQ's default.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from forebay.cli.errors import CliError

FAILED = "failed"
"""State of dead letters; in ``jobs``, of those that were discarded."""
REQUIRED = frozenset({"id", "job_id", "name", "queue", "data", "state", "priority", "created_at", "run_at"})
"""Columns without which a table is not flashQ's. They may be null."""
JOB_COLUMNS = {
    "id": "0",
    "queue": "''",
    "data": "NULL",
    "state": "'waiting'",
    "priority": "0",
    "created_at": "0",
    "run_at": "0",
    "attempts": "0",
    "max_attempts": "0",
    "backoff": "0",
    "ttl": "0",
    "timeout": "0",
    "lifo": "0",
    "unique_key": "NULL",
    "custom_id": "NULL",
    "group_id": "NULL",
    "tags": "NULL",
    "depends_on": "NULL",
    "children_ids": "NULL",
}
"""Columns of ``jobs``, and what stands for one that is missing or null. The order is that of ``Job``."""
DEAD_COLUMNS = {
    "job_id": "-rowid",
    "queue": "''",
    "data": "NULL",
    "failed_at": "0",
    "attempts": "0",
    "error": "NULL",
}
CRON_COLUMNS = {
    "name": "''",
    "queue": "''",
    "data": "NULL",
    "schedule": "NULL",
    "repeat_every": "NULL",
    "priority": "0",
    "executions": "0",
    "max_limit": "NULL",
}
"""Columns of ``cron_jobs``, in the order of ``CronRow``."""
WAITS = "replace(lower(coalesce(state, '')), '-', '_') IN ('waiting_children', 'waiting_parent')"
"""Whether a job waits for others: for its dependencies, or as the parent of a flow for its children."""


class Job(Struct, frozen=True):
    """A job as flashQ wrote it down. Times are ms; 0 means none, as it does there."""

    id: int
    queue: str
    data: bytes | None
    state: str
    priority: int = 0
    created_at: int = 0
    run_at: int = 0
    attempts: int = 0
    max_attempts: int = 0
    backoff: int = 0
    ttl: int = 0
    timeout: int = 0
    lifo: int = 0
    unique_key: str | None = None
    custom_id: str | None = None
    group_id: str | None = None
    tags: tuple[str, ...] = ()
    waits_for: tuple[int, ...] = ()
    """Ids of the jobs that it waits for, done or not."""
    failed_at: int = 0
    error: str | None = None


class CronRow(Struct, frozen=True):
    """A cron as flashQ wrote it down."""

    name: str
    queue: str
    data: bytes | None
    schedule: str | None
    every_ms: int | None
    priority: int
    executions: int
    limit: int | None


class FlashqFile:
    """An open file of flashQ's. All that is read is of one moment, also while flashQ goes on writing."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise CliError(f"there is no file {path}")
        self._path = path
        self._database = sqlite3.connect(_uri(path), uri=True, isolation_level=None)
        try:
            self._columns = self._read_columns()
        except sqlite3.Error as error:
            self._database.close()
            raise self._explain(error) from None
        if not {"id", "queue", "data"} <= self._columns.get("jobs", set()):
            self._database.close()
            raise CliError(f"{path} is a SQLite file, but not flashQ's: it has no table of jobs")

    def __enter__(self) -> "FlashqFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def rows(self) -> dict[str, int]:
        """Return how many jobs, dead letters and crons each queue has together."""
        found: dict[str, int] = {}
        for table in filter(self._has, ("jobs", "dlq_jobs", "cron_jobs")):
            for queue, count in self._rows(f"SELECT coalesce(queue, ''), count(*) FROM {table} GROUP BY 1"):
                found[queue] = found.get(queue, 0) + count
        return found

    def count(self, table: str) -> int:
        """Return how many rows a table has; none if it is missing."""
        count: int = next(self._rows(f"SELECT count(*) FROM {table}"))[0] if self._has(table) else 0
        return count

    def jobs(self, queue: str) -> Iterator[Job]:
        """Yield the jobs of a queue that wait for no other, in flashQ's order of delivery."""
        return self._jobs(f"{_of_queue(queue)} AND NOT {WAITS}", queue)

    def waiting_jobs(self) -> Iterator[Job]:
        """Yield the jobs of all queues that wait for others."""
        return self._jobs(WAITS)

    def dead_jobs(self, queue: str) -> Iterator[Job]:
        """Yield the dead letters of a queue, oldest first."""
        if self._has("dlq_jobs"):
            yield from self._dead_jobs(_of_queue(queue), queue)

    def jobs_with(self, id: int) -> Iterator[Job]:
        """Yield the jobs and dead letters with an id, of all queues."""
        yield from self._jobs("id = ?", id)
        if self._has("dlq_jobs"):
            yield from self._dead_jobs("job_id = ?", id)

    def crons(self) -> Iterator[CronRow]:
        if self._has("cron_jobs"):
            columns = self._select("cron_jobs", CRON_COLUMNS)
            for row in self._rows(f"SELECT {columns} FROM cron_jobs ORDER BY name"):
                yield CronRow(*row)

    def _jobs(self, where: str, *values: object) -> Iterator[Job]:
        columns = self._select("jobs", JOB_COLUMNS)
        query = f"SELECT {columns}, {WAITS} FROM jobs WHERE {where} ORDER BY priority DESC, run_at, id"
        for row in self._rows(query, *values):
            tags, depends_on, children, waits = row[-4:]
            waits_for = _listed(depends_on, int) + _listed(children, int) if waits else []
            fields: list[Any] = [*row[:-4], _once_each(_listed(tags, str)), _once_each(waits_for)]
            yield Job(*fields)

    def _dead_jobs(self, where: str, *values: object) -> Iterator[Job]:
        columns = self._select("dlq_jobs", DEAD_COLUMNS)
        query = f"SELECT {columns} FROM dlq_jobs WHERE {where} ORDER BY rowid"
        for id, queue, data, failed_at, attempts, error in self._rows(query, *values):
            yield Job(id, queue, data, FAILED, failed_at=failed_at, attempts=attempts, error=error)

    def _has(self, table: str) -> bool:
        return table in self._columns

    def _read_columns(self) -> dict[str, set[str]]:
        """Return the columns by table. From here on the file is seen as it is now."""
        self._database.execute("BEGIN")
        tables = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: {row[1] for row in self._database.execute(f'PRAGMA table_info("{_quoted(table)}")')}
            for (table,) in tables
        }

    def _select(self, table: str, wanted: dict[str, str]) -> str:
        """Return the columns of a query, with defaults for what is missing."""
        found = []
        for name, default in wanted.items():
            if name not in self._columns[table]:
                if name in REQUIRED:
                    raise CliError(f"{self._path} is not flashQ's: its table {table} has no column {name}")
                found.append(default)
            elif name == "data":  # as bytes: it may be text that is not UTF-8
                found.append("CAST(data AS BLOB)")
            else:
                found.append(f"coalesce({name}, {default})")
        return ", ".join(found)

    def _rows(self, query: str, *values: object) -> Iterator[Any]:
        try:
            # Not "yield from": that would close the cursor of a generator that is dropped after the database.
            for row in self._database.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise self._explain(error) from None

    def _explain(self, error: sqlite3.Error) -> CliError:
        if "not a database" in str(error):
            return CliError(f"{self._path} is not a SQLite file")
        return CliError(
            f"can't read {self._path}: {error}",
            "stop flashQ, or copy the file together with its -wal to where it can be written, and read that",
        )


def _uri(path: Path) -> str:
    """Return how to open a file without changing it.

    Without a write-ahead log or a journal nobody has it open, and nothing beside it is needed: so it can be
    read from where nothing can be written. With one, what is in there belongs to it.
    """
    in_use = any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal"))
    return f"file:{quote(str(path.absolute()))}?mode=ro" + ("" if in_use else "&immutable=1")


def _of_queue(queue: str) -> str:
    """Return the condition for rows of a queue. Those without one are found under an empty name."""
    return "queue = ?" if queue else "coalesce(queue, '') = ?"


def _quoted(name: str) -> str:
    return name.replace('"', '""')


def _once_each(items: list[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))


def _listed(text: str | None, kind: Any) -> list[Any]:
    """Return a list that flashQ wrote as JSON; none if it is not one, as flashQ reads it.

    >>> _listed("[1, 2]", int), _listed(None, int), _listed("?", str)
    ([1, 2], [], [])
    """
    try:
        found: list[Any] = msgspec.json.decode(text, type=list[kind]) if text else []
    except msgspec.DecodeError:
        return []
    return found
