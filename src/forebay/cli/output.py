"""What is printed: tables for people, JSON for programs, progress bars for terminals.

rich is imported for terminals only: what goes into a pipe is plain, and comes at once.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec

from forebay.cli.errors import DONE, NOTHING, CliError
from forebay.client.types import Settled
from forebay.core.ids import JSON_SAFE

if TYPE_CHECKING:
    from rich.table import Table

PAYLOAD_SHOWN = 80
"""Most characters of a payload in a table."""

CUT = ("PAYLOAD", "ERROR")
"""Columns that are cut on a narrow terminal. The others stay whole: people copy ids out of them."""
CUT_CELLS_MIN = 6
"""Least width of such a column; with it, messages fit into 80 columns."""

Row = Sequence[object]


def print_json(value: object) -> None:
    print(one_line(msgspec.json.encode(value)))


def one_line(json: bytes | msgspec.Raw) -> str:
    """Return JSON without line breaks: payloads stay as they were written, and may have some between tokens.

    What a terminal would act on is escaped.

    >>> one_line(msgspec.Raw(b'{"a":\\n "b\\\\n"}'))
    '{"a":  "b\\\\n"}'
    """
    text = bytes(json).translate(_BREAKS).decode()
    return text if text.isascii() and "\x7f" not in text else _ACTS.sub(_as_json, text)


_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_ACTS = re.compile("[\x7f-\x9f]")


def _as_json(found: "re.Match[str]") -> str:
    return f"\\u{ord(found.group()):04x}"


def json_id(id: int) -> int | str:
    """Return an id for JSON: a string where many programs' numbers lose precision, as over the wire.

    >>> json_id(7), json_id(1 << 53)
    (7, '9007199254740992')
    """
    return id if id < JSON_SAFE else str(id)


def note(line: str) -> None:
    """Print a line to people, beside the output."""
    print(line, file=sys.stderr)


# Tables.


def print_table(head: Sequence[str], rows: Iterable[Row], left: Sequence[str] = ()) -> None:
    """Print a table; the first column and those of ``left`` are left-aligned, numbers right-aligned."""
    cells = [[clean(cell) for cell in row] for row in rows]
    is_left = [not at or name in left for at, name in enumerate(head)]
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(head, cells, is_left), crop=False)
    else:
        for line in plain_table(head, cells, is_left):
            print(line)


def plain_table(head: Sequence[str], cells: list[list[str]], is_left: list[bool]) -> Iterator[str]:
    """
    >>> list(plain_table(["QUEUE", "WAITING"], [["emails", "12"]], [True, False]))
    ['QUEUE   WAITING', 'emails       12']
    """
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for row in [list(head), *cells]:
        shown = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_left, strict=True)
        ]
        yield "  ".join(shown).rstrip()


def rich_table(head: Sequence[str], cells: list[list[str]], is_left: list[bool]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold"
    )
    columns = zip(head, is_left, zip(*cells, strict=True) if cells else [()] * len(head), strict=True)
    for at, (name, left, column) in enumerate(columns):
        table.add_column(
            name,
            justify="left" if left else "right",
            style="" if at else "cyan",
            # Columns that may wrap are the ones rich makes narrower; their cells do not wrap all the same.
            no_wrap=name not in CUT,
            min_width=CUT_CELLS_MIN if name in CUT else max(map(cell_len, [name, *column])),
        )
    for row in cells:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def print_settled(settled: Settled, done: str, refused: str, as_json: bool) -> int:
    """Print how many messages were changed and which were not; return the exit code."""
    others = list(map(json_id, settled.refused))
    if as_json:
        print_json({"count": settled.count, "refused": others})
    else:
        print(f"{done} {settled.count}")
        for each in others:
            note(f"{refused}: {each}")
    return DONE if settled.count else NOTHING


def print_fields(fields: dict[str, object]) -> None:
    """Print names and values of one thing, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {clean(value)}".rstrip())


def clean(value: object) -> str:
    """Return a value on one line, without control characters that a terminal would act on.

    >>> clean("a\\x1b[31m"), clean(None), clean(True), clean(("a", "b"))
    ('a\\\\x1b[31m', '-', 'yes', 'a, b')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shortened(payload: msgspec.Raw) -> str:
    """Return the beginning of a payload."""
    text = one_line(payload)
    return text if len(text) <= PAYLOAD_SHOWN else text[: PAYLOAD_SHOWN - 1] + "…"


def shown_time(at_ms: int | None) -> str | None:
    """Return a time for people.

    >>> shown_time(1794847104183)
    '2026-11-16T16:38:24.183Z'
    """
    if at_ms is None:
        return None
    shown = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def shown_age(seconds: float | None) -> str | None:
    """Return an age for people: whole seconds, minutes, hours or days.

    >>> shown_age(59.2), shown_age(7_300), shown_age(None)
    ('59s', '2h', None)
    """
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds // 1:.0f}s"


def age_s(at_ms: int | None, now_ms: int) -> float | None:
    """Return how many seconds ago a time was; 0 if it is still to come by this machine's clock."""
    return None if at_ms is None else max(now_ms - at_ms, 0) / 1000


def shown_second(at_ms: int) -> str:
    """Return a short time, for narrow columns.

    >>> shown_second(1794847104183)
    '2026-11-16 16:38:24'
    """
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(tzinfo=None).isoformat(" ")


# Progress and questions.


class Advance(Protocol):
    """Called as the work advances: by how much, and the total if that was unknown before."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


@contextmanager
def progress(
    label: str, total: Callable[[], int] | int | None = None, *, show: bool = True
) -> Iterator[Advance]:
    """Yield a function to call as the work advances; a bar shows it on a terminal.

    ``total`` may be a function, which is called only if there is a bar.
    """
    if not show or not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # On a shared terminal, other output is printed above the bar.
    above = sys.stdout.isatty()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as bar:
        task = bar.add_task(label, total=None)
        bar.update(task, total=total() if callable(total) else total)

        def advance(done: int, total: int | None = None) -> None:
            bar.update(task, advance=done, total=total)

        yield advance


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless ``yes``; raise on a no, or without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError("this can't be undone, and nobody can be asked here: say --yes")
    if not click.confirm(question, err=True):
        raise CliError("nothing was done")


def counted(number: int, noun: str = "message") -> str:
    """
    >>> counted(1), counted(2_000)
    ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


class Stopwatch:
    """Counts the seconds since it was made, for a summary."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._begun, 3)

    def summary(self, messages: int, bytes: int) -> str:
        """Return what ends every summary: messages, bytes, and how long it took."""
        return f"{counted(messages)}, {counted(bytes, 'byte')}, {self.seconds:.1f} s"


def flat(name: str, value: str, counts: Any) -> dict[str, object]:
    """Return a name and its counts as one object."""
    return {name: value, **msgspec.structs.asdict(counts)}
