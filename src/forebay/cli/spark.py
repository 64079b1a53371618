"""``forebay spark env``: the environment of Spark's own programs."""

import os
import shlex

import click

from forebay.cli.commands import Command, Group, prints_json
from forebay.cli.errors import DONE, CliError
from forebay.cli.output import print_json


@click.group(cls=Group)
def spark() -> None:
    """Run Spark's own programs."""


@spark.command("env", cls=Command, example='forebay spark env    or    eval "$(forebay spark env)"')
@prints_json
def env(as_json: bool) -> int:
    """Print the environment of spark-submit and of Spark's daemons, for a shell to evaluate."""
    from forebay.spark.environment import NotInstalled, environment

    try:
        found = environment(os.environ)
    except NotInstalled as error:
        raise CliError(str(error)) from None
    if as_json:
        print_json(found)
    else:
        for name, value in found.items():
            print(f"export {name}={shlex.quote(value)}")
    return DONE
