"""``forebay``: the command line. Every command has a file of its own beside this one."""

import os
import sys

import click
import msgspec
from click.exceptions import Exit, NoArgsIsHelpError

from forebay import __version__
from forebay.cli.commands import LazyGroup, access_options
from forebay.cli.errors import ABOUT, DONE, SERVER, USAGE, CliError, told
from forebay.core.errors import ForebayError

PROGRAM = "forebay"
COMPLETE_VARIABLE = "_FOREBAY_COMPLETE"
"""Set by a shell to ask for completions."""

SECTIONS = {
    "Run": {
        "serve": "serve:serve",
        "certs": "certs:certs",
        "worker": "worker:worker",
        "bench": "bench:bench",
        "spark": "spark:spark",
    },
    "Messages": {
        "push": "push:push",
        "pop": "pop:pop",
        "ack": "pop:ack",
        "nack": "pop:nack",
        "messages": "messages:messages",
        "message": "messages:message",
        "cancel": "messages:cancel",
        "dead": "dead:dead",
    },
    "Queues": {
        "queues": "queues:queues",
        "queue": "queues:queue",
        "groups": "groups:groups",
        "seek": "groups:seek",
        "crons": "crons:crons",
    },
    "Watch": {
        "tail": "watch:tail",
        "top": "watch:top",
        "stats": "watch:stats",
        "workers": "workers:workers",
    },
    "Access": {
        "login": "login:login",
        "logout": "login:logout",
        "context": "login:context",
        "whoami": "login:whoami",
        "token": "tokens:token",
        "tenant": "tenants:tenant",
    },
    "Data": {
        "backup": "files:backup",
        "restore": "files:restore",
        "verify": "files:verify",
        "repair": "files:repair",
        "migrate": "database:migrate",
        "copy": "copy:copy",
        "hold": "copy:hold",
        "import": "import_flashq:import_",
    },
    "Shell": {"completion": "completion:completion"},
}
"""All commands by heading: the module of each, and its name there."""

cli = LazyGroup(
    PROGRAM,
    sections=SECTIONS,
    help="A message and job queue.",
    epilog=ABOUT,
    params=[*access_options(hidden=False)],
)
click.version_option(__version__, message=f"{PROGRAM} %(version)s")(cli)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except Exit as ended:
        return ended.exit_code
    except NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return USAGE
    except click.ClickException as error:
        return _explain(error)
    except CliError as error:
        return _fail(error.code, *error.lines)
    except ForebayError as error:
        meant = told(error)
        return _fail(meant.code, *meant.lines)
    except msgspec.DecodeError as error:
        return _fail(SERVER, f"what answers there is no Forebay server: {error}")
    except UnicodeEncodeError as error:
        return _fail(SERVER, f"the output can't take {error.object[error.start]!a}: set PYTHONUTF8=1")
    except (KeyboardInterrupt, click.Abort):
        return _fail(USAGE, "interrupted")
    except BrokenPipeError:  # the reader of our output is gone
        _close_output()
        return DONE
    except OSError as error:
        _close_output()
        return _fail(SERVER, f"can't read or write: {error}")


def _run(arguments: list[str]) -> int:
    with cli.make_context(PROGRAM, arguments) as context:
        code: int | None = cli.invoke(context)
    sys.stdout.flush()
    return code or DONE


def _explain(error: click.ClickException) -> int:
    """Print usage, what is wrong, and where to read more."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    if context is None:
        return _fail(USAGE, message)
    print(context.get_usage(), file=sys.stderr)
    hint = f"; see: {context.command_path} --help"
    return _fail(USAGE, message[:1].lower() + message[1:] + hint)


def _fail(code: int, *lines: str) -> int:
    for line in lines:
        print(f"{PROGRAM}: {line}", file=sys.stderr)
    return code


def _close_output() -> None:
    """Discard unwritten output: Python would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
