"""What commands are made of: help with an example, the server, the queue."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec.structs import asdict

from forebay.cli.errors import SERVER, CliError
from forebay.client.address import DEFAULT_SERVER, SERVER_VARIABLE

if TYPE_CHECKING:
    from forebay.client.access import Access
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
        taken = {each for param in self.params for each in param.opts}
        if "--server" in taken:
            self.params += [each for each in access_options() if taken.isdisjoint(each.opts)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _usage(self, ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        names = [each.opts[0] for each in self.params if (each.name or "").startswith(OF_ACCESS)]
        if names:
            formatter.write(f"\n  Also those of forebay: {', '.join(names)}\n")

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

OF_ACCESS = "access_"
"""How the names of the options begin that say who asks. They are kept beside the arguments of commands."""
ABOUT_ACCESS = {
    "token": ("TOKEN", "Who you are (FOREBAY_TOKEN). Others of this machine see it: better log in."),
    "tenant": ("TENANT", "The tenant that an admin acts for (FOREBAY_TENANT)."),
    "ca": ("FILE", "Authorities to trust instead of the system's, as PEM (FOREBAY_CA)."),
    "cert": ("FILE", "Your own certificate, as PEM (FOREBAY_CERT)."),
    "key": ("FILE", "Its private key (FOREBAY_KEY)."),
    "context": ("NAME", "The server and identity of this context (see login)."),
}


def access_options(*, hidden: bool = True) -> list[click.Option]:
    """Return the options that say who asks: they may stand behind forebay, or behind a command."""
    return [
        click.Option(
            [f"--{name}", OF_ACCESS + name],
            metavar=metavar,
            help=about,
            hidden=hidden,
            expose_value=False,
            callback=_keep,
        )
        for name, (metavar, about) in ABOUT_ACCESS.items()
    ]


def _keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[str(option.name)] = value


def given_access() -> tuple["Access", str | None]:
    """Return who asks as flags say, and the context that they name."""
    from forebay.client.access import Access

    here = click.get_current_context(silent=True)
    meta = here.meta if here is not None else {}
    given = {name: meta.get(OF_ACCESS + name) for name in ABOUT_ACCESS}
    name = given.pop("context")
    return Access(**given), name


def finds_server(function: Function) -> Function:
    where = "HOST:PORT, the path of a Unix socket, or a URL"
    return click.option(
        "--server",
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


def connected(server: str | None, *, timeout_s: float = 30.0, access: "Access | None" = None) -> "SyncClient":
    """Return a client of the selected server, without waiting for one that is not there.

    ``access`` is how to get in, if that is not what flags, environment and context say.
    """
    from forebay.cli.contexts import selected
    from forebay.client.sync.client import SyncClient

    if access is None:
        server, access = selected(server, *given_access())
    try:
        return SyncClient(server, **asdict(access), timeout_s=timeout_s, retry_s=0)
    except ImportError as error:
        raise CliError(str(error), code=SERVER) from None


def known_queues(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return queue names for completion; none if the server does not respond."""
    from forebay.core.errors import ForebayError

    try:
        with (
            context.scope(cleanup=False),
            connected(context.params.get("server"), timeout_s=COMPLETE_S) as client,
        ):
            return [each.queue for each in client.queues() if each.queue.startswith(incomplete)]
    except (CliError, ForebayError, OSError):
        return []


def about_queue(function: Function) -> Function:
    return click.argument("queue", metavar="QUEUE", shell_complete=known_queues)(function)
