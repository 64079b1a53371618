"""``forebay worker``: run the tasks of an application."""

from typing import Any

import click

from forebay.cli.commands import Command, finds_server, given_access
from forebay.cli.contexts import selected
from forebay.cli.errors import DONE


@click.command(cls=Command, example="forebay worker mailer:app --concurrency 32 --queues emails,reports")
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(min=1), help="Jobs that run at once (default 16).")
@click.option("--queues", help="Only these, with commas between them (default: all of the tasks).")
@click.option("--prefetch", type=click.IntRange(min=0), help="Jobs fetched ahead (default: by how fast).")
@click.option("--lease-ms", type=click.IntRange(min=1), help="How long jobs are leased (default 30000).")
@click.option(
    "--drain-s", type=click.FloatRange(min=0), help="How long jobs may take when it stops (default 20)."
)
@click.option(
    "--unknown-for",
    type=click.FloatRange(min=0),
    help="Seconds that jobs of unknown tasks are left to other workers (default 3600).",
)
@click.option("--name", help="Its name in the list of workers (default: host, process and chance).")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Logs on standard error as text or json (default text).",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least level logged (default info).",
)
@finds_server
def worker(target: str, queues: str | None, log_format: str, log_level: str, **given: Any) -> int:
    """Run the tasks of an application until SIGTERM or Ctrl-C."""
    from forebay.client.worker.main import find_app, run_worker
    from forebay.logs import set_up_logs

    set_up_logs(log_level, log_format)
    app = find_app(target)
    place, access = selected(given.pop("server") or app.server, *given_access(), own=app.access)
    names = [each.strip() for each in queues.split(",") if each.strip()] if queues else None
    settings = {name: value for name, value in given.items() if value is not None}
    run_worker(app, queues=names, server=place, access=access, **settings)
    return DONE
