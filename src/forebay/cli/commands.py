"""What commands are made of: help with an example, the server, the queue."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forebay.cli.errors import SERVER, CliError
from forebay.client.address import DEFAULT_SERVER, SERVER_VARIABLE

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient

COMPLETE_S = 1.0
"""Timeout of the server's queue names for completion."""
Function = TypeVar("Function", bound=Callable[..., Any])


def _usage(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    pieces = command.collect_usage_pieces(context)
    formatter.write_usage(context.command_path, " ".join(pieces), prefix="usage: ")


class Command(click.Command):
    """A command with an example in its help."""

    def __init__(self, *given: Any, example: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.example = example

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _usage(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\nExample:\n  {self.example}\n")


class PayloadCommand(Command):
    """A command that takes payloads: -5 is a payload, not an option."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, context_settings={"ignore_unknown_options": True}, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        plain = args[: args.index("--")] if "--" in args else list(args)
        left = super().parse_args(ctx, args)
        arguments = [each.name for each in self.params if isinstance(each, click.Argument)]
        taken = [word for name in arguments for word in _words(ctx.params.get(name or ""))]
        for word in plain:
            if word in taken and re.match(r"-[^\d]", word) and not ctx.resilient_parsing:
                raise click.NoSuchOption(word.partition("=")[0], ctx=ctx)
        return left


def _words(value: Any) -> list[str]:
    """Return the arguments in the value of a parameter: one, several, or none."""
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, tuple) else []


class Group(click.Group):
    """Commands under one name."""

    command_class = Command

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _usage(self, ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def headings(self) -> dict[str, list[str]]:
        """Return the commands by heading, as help shows them."""
        return {"Commands": list(self.commands)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.headings().items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl(
                    [(name, each.get_short_help_str(limit=90)) for name, each in commands if each is not None]
                )


class LazyGroup(Group):
    """Commands that are imported when needed, so that each starts fast."""

    def __init__(self, *given: Any, sections: dict[str, dict[str, str]], **more: Any) -> None:
        """``sections`` has the commands by heading, each with its module and its name there."""
        super().__init__(*given, **more)
        self.sections = sections
        self.places = {name: place for names in sections.values() for name, place in names.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(f"forebay.cli.{module}"), name)
        return command

    def headings(self) -> dict[str, list[str]]:
        return {title: list(names) for title, names in self.sections.items()}


# Shared options.


def finds_server(function: Function) -> Function:
    where = "HOST:PORT, the path of a Unix socket, or a URL"
    return click.option(
        "--server",
        envvar=SERVER_VARIABLE,
        metavar="ADDRESS",
        help=f"{where} ({SERVER_VARIABLE}; default {DEFAULT_SERVER}).",
    )(function)


def asks_server(function: Function) -> Function:
    """Add the options of a command that asks a server and can print JSON."""
    return finds_server(prints_json(function))


def prints_json(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(function)


def of_group(function: Function) -> Function:
    about = "The group that is meant (default: default)."
    return click.option("--group", default="default", help=about)(function)


def may_be_dry(function: Function) -> Function:
    return click.option("--dry-run", is_flag=True, help="Only say what would be done.")(function)


def may_ask(function: Function) -> Function:
    about = "Do not ask. Needed without a terminal, where nobody can be asked."
    return click.option("--yes", is_flag=True, help=about)(function)


def connected(server: str | None, *, timeout_s: float = 30.0) -> "SyncClient":
    """Return a client of the selected server, without waiting for one that is not there."""
    from forebay.client.sync.client import SyncClient

    try:
        return SyncClient(server, timeout_s=timeout_s, retry_s=0)
    except ImportError as error:
        raise CliError(str(error), code=SERVER) from None


def known_queues(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return queue names for completion; none if the server does not respond."""
    from forebay.core.errors import ForebayError

    try:
        with connected(context.params.get("server"), timeout_s=COMPLETE_S) as client:
            return [each.queue for each in client.queues() if each.queue.startswith(incomplete)]
    except (CliError, ForebayError, OSError):
        return []


def about_queue(function: Function) -> Function:
    return click.argument("queue", metavar="QUEUE", shell_complete=known_queues)(function)
