"""Types of arguments: times, pairs, options of queues, payloads, options of messages."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from forebay.cli.errors import CliError
from forebay.client.types import Options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])


class Time(click.ParamType[Any]):
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC. ``words`` are taken as they are."""

    name = "time"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words or isinstance(value, int):
            return value
        try:
            return time_of(value)
        except (ValueError, OverflowError):
            words = "".join(f"{word}, " for word in self.words)
            self.fail(
                f"{value!r} is not {words}a time in ms, or one such as 2026-11-16T08:30:00Z", param, ctx
            )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(each) for each in self.words if each.startswith(incomplete)]


def time_of(text: str) -> int:
    """
    >>> time_of("1794847104183"), time_of("2026-11-16T16:38:24.183"), time_of("2026-11-16T17:38:24.183+01:00")
    (1794847104183, 1794847104183, 1794847104183)
    """
    if text.isascii() and text.isdigit():
        return int(text)
    when = datetime.fromisoformat(text)
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


class Span(click.ParamType[int]):
    """A length of time, in ms: 90d, 12h, 30m, 45s."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number, unit = value[:-1], value[-1:]
        if unit not in UNITS_MS or not number.isascii() or not number.isdigit() or not int(number):
            self.fail(f"{value!r} is not a time such as 90d, 12h, 30m or 45s", param, ctx)
        return int(number) * UNITS_MS[unit]


UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, found, text = value.partition("=")
        if not name or not found:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def json_or_text(text: str) -> Any:
    """Return a value as JSON if it is JSON, else as text.

    >>> json_or_text("5"), json_or_text("null"), json_or_text('{"limit": 5}'), json_or_text("fsync")
    (5, None, {'limit': 5}, 'fsync')
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def checked(payload: bytes, number: int | None = None) -> msgspec.Raw:
    """Return a payload as it was written; raise if it is not JSON. ``number`` says which of several it is."""
    which = "the payload" if number is None else f"payload {number}"
    text = payload.strip()
    try:
        shown = text.decode()
        msgspec.json.decode(text)
    except UnicodeDecodeError:
        raise CliError(f"{which} is not UTF-8") from None
    except RecursionError:
        raise CliError(f"{which} is nested too deep") from None
    except msgspec.DecodeError:
        hint = " (a plain word needs quotes: '\"word\"')" if shown.isalnum() else ""
        raise CliError(f"{which} is not JSON: {shown[:80]}{hint}") from None
    return msgspec.Raw(text)


def argument_bytes(argument: str) -> bytes:
    """Return an argument as the bytes that the shell passed."""
    return os.fsencode(argument)


# Options of a message.

_OPTIONS = (
    click.option("--partition", help="The partition they go to (default: default)."),
    click.option("--key", help="The lane they go to: one at a time, in order; instead of a partition."),
    click.option("--priority", type=int, help="Higher is delivered first (default 0)."),
    click.option(
        "--delay-ms", type=click.IntRange(min=0), help="Deliver them no earlier than this from now."
    ),
    click.option("--ttl-ms", type=click.IntRange(min=0), help="Deliver them no later than this from now."),
    click.option("--unique-key", help="Not pushed again while one with this key has not ended."),
    click.option("--tag", "tags", multiple=True, help="File them under this; may be repeated."),
    click.option(
        "--header",
        "headers",
        type=Pair(),
        multiple=True,
        metavar="NAME=VALUE",
        help="For whoever gets them; may be repeated.",
    ),
    click.option("--max-attempts", type=int, help="Failures that make them dead (default: the queue's)."),
)


def message_options(function: Function) -> Function:
    """Add the options of a pushed message, which ``options_given`` reads."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def options_given(given: dict[str, Any]) -> Options:
    """Return the options of a message, without those not given."""
    options = {name: value for name, value in given.items() if value is not None and value != ()}
    if "headers" in options:
        options["headers"] = dict(options["headers"])
    if "tags" in options:
        options["tags"] = list(options["tags"])
    return msgspec.convert(options, Options)


def that_match(function: Function) -> Function:
    """Add the options that select messages, in the words of ``DeadFilter``."""
    for option in reversed(
        (
            click.option("--error", help="Only dead letters with this in their error; * is any text."),
            click.option("--type", "error_type", help="Only dead letters with this type of error."),
            click.option("--dead-since", type=Time(), help="Only those that died then or later."),
            click.option("--dead-before", type=Time(), help="Only those that died before: ms, or ISO 8601."),
            click.option("--task", help="Only those of this task."),
            click.option("--partition", help="Only of this partition."),
            click.option("--tag", help="Only those with this tag."),
            click.option("--text", help="Only those with this text in their payload."),
            click.option("--since", type=Time(), help="Only those pushed at or after this time."),
            click.option("--before", type=Time(), help="Only those pushed before this time."),
        )
    ):
        function = option(function)
    return function
