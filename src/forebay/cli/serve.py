"""``forebay serve``: the server. Its flags are the settings, imported only when they are needed."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from forebay.cli.commands import Command
from forebay.cli.errors import DONE, SERVER, CliError


class Serve(Command):
    """A command whose flags are the settings of a server."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if len(self.params) == 1:
            self.params += _settings()
        return super().get_params(ctx)


def _settings() -> list[click.Parameter]:
    from forebay import config

    found: list[click.Parameter] = []
    for name in config.names():
        about = f"{config.about(name)} (default {config.default(name)})"
        alone: dict[str, Any] = {"is_flag": False, "flag_value": config.ON} if name in config.SWITCHES else {}
        found.append(click.Option([_flag(name), f"set_{name}"], metavar="VALUE", help=about, **alone))
    for name in config.LATER:
        found.append(click.Option([_flag(name), f"set_{name}"], is_flag=False, flag_value="", hidden=True))
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@click.command(cls=Serve, example="forebay serve --tcp 127.0.0.1:6780")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Settings file (default: ./forebay.toml if it exists).",
)
def serve(file: Path | None, **given: Any) -> int:
    """Run the server until SIGTERM or Ctrl-C. Prints one line of JSON when it is ready."""
    from forebay import app, config

    flags = {name.removeprefix("set_"): value for name, value in given.items() if value is not None}
    try:
        settings = config.load(flags, os.environ, file, cwd=Path.cwd())
        app.serve(settings, sys.stdout)
    except config.BadSettings as error:
        raise CliError(*error.problems) from None
    except (app.CantStart, app.CantGoOn) as error:
        raise CliError(str(error), code=SERVER) from None
    return DONE
