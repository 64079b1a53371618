"""``forebay completion``: what a shell needs to complete commands, flags and queues."""

import click

from forebay.cli.commands import Command
from forebay.cli.errors import DONE


@click.command(cls=Command, example="forebay completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell: bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    from forebay.cli.main import COMPLETE_VARIABLE, PROGRAM, cli

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(cli, {}, PROGRAM, COMPLETE_VARIABLE)
    print(complete.source_template % complete.source_vars())
    return DONE
