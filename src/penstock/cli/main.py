"""``penstock``: the command line.

Exit codes: 0 done, 1 wrong usage or input, 2 no server, 3 denied, 4 nothing to do, 5 damage found.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TextIO

import msgspec

from penstock import __version__, app, config
from penstock.client.wire import Disconnected, Wire
from penstock.core.errors import Damaged, Denied, PenstockError
from penstock.core.verify import Report, verify
from penstock.store.base import Broken, StoreError
from penstock.store.files import looking_at, repair, restore

DONE, USAGE, SERVER, DENIED, NOTHING, DAMAGE = range(6)
SERVER_VARIABLE = f"{config.PREFIX}SERVER"
DEFAULT_SERVER = "127.0.0.1:6789"
DATA = config.Settings().data
BATCH = 10_000
BATCH_BYTES = 8 * 1024 * 1024
"""Messages, and bytes of them, that ``push -`` sends at a time."""


class CliError(Exception):
    """What is wrong and what to do about it."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    try:
        code: int = given.run(given, sys.stdout)
    except config.BadSettings as error:
        return _fail(USAGE, *error.problems)
    except (Damaged, Broken) as error:
        return _fail(DAMAGE, str(error))
    except (CliError, StoreError) as error:
        return _fail(USAGE, str(error))
    except (app.CantStart, app.CantGoOn, Disconnected) as error:
        return _fail(SERVER, str(error))
    except PenstockError as error:
        codes = {"busy": SERVER, Denied.code: DENIED}
        return _fail(codes.get(error.code, USAGE), f"{error.code}: {error.message}")
    except KeyboardInterrupt:
        return _fail(USAGE, "interrupted")
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(SERVER, f"can't read or write: {error}")
    return code


def _fail(code: int, *lines: str) -> int:
    for line in lines:
        print(f"penstock: {line}", file=sys.stderr)
    return code


class Parser(argparse.ArgumentParser):
    """Wrong usage exits with 1, as ``penstock`` says it does."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="penstock",
        description="A multi-tenant message and job queue.",
        epilog="Exit codes: 0 done, 1 wrong usage or input, 2 no server, 3 denied, 4 nothing to do,"
        " 5 damage found.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_push(commands)
    _add_pop(commands)
    _add_ack(commands)
    _add_queues(commands)
    _add_backup(commands)
    _add_restore(commands)
    _add_verify(commands)
    _add_repair(commands)
    return parser


Run = Callable[[argparse.Namespace, TextIO], int]


def _command(commands: Any, name: str, run: Run, about: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _asks_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        default=os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER),
        help=f"HOST:PORT or the path of a Unix socket ({SERVER_VARIABLE}; default {DEFAULT_SERVER})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


# serve


def _add_serve(commands: Any) -> None:
    about = "Run the server until SIGTERM or Ctrl-C. Prints one line of JSON when it is ready."
    parser = _command(commands, "serve", _serve, about, "penstock serve --tcp 127.0.0.1:6789")
    parser.add_argument("--config", type=Path, help=f"settings file (default: ./{config.FILE} if it exists)")
    defaults = config.Settings()
    for name in config.names():
        about = f"{config.about(name)} (default {getattr(defaults, name)})"
        parser.add_argument(_flag(name), dest=f"set_{name}", metavar="VALUE", help=about)
    for name in config.LATER:
        parser.add_argument(_flag(name), dest=f"set_{name}", nargs="?", const="", help=argparse.SUPPRESS)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _serve(given: argparse.Namespace, out: TextIO) -> int:
    flags = {
        name.removeprefix("set_"): value
        for name, value in vars(given).items()
        if name.startswith("set_") and value is not None
    }
    settings = config.load(flags, os.environ, given.config, cwd=Path.cwd())
    app.serve(settings, out)
    return DONE


# push


def _add_push(commands: Any) -> None:
    about = "Push messages: each PAYLOAD is one JSON value; - reads one a line from standard input."
    example = 'penstock push emails \'{"to": "ada@example.com"}\''
    parser = _command(commands, "push", _push, about, example)
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("payloads", metavar="PAYLOAD", nargs="+")
    parser.add_argument("--partition", default="default", help="the partition they go to (default: default)")
    parser.add_argument("--durability", help="what they must survive: fsync or os (default: the queue's)")
    _asks_server(parser)


def _push(given: argparse.Namespace, out: TextIO) -> int:
    if "-" in given.payloads and len(given.payloads) > 1:
        raise CliError("- reads standard input and stands alone")
    payloads = _lines(sys.stdin) if given.payloads == ["-"] else iter(given.payloads)
    count = 0
    with Wire(given.server) as wire:
        for batch in _batches(_checked(payloads)):
            reply = wire.ask(
                "PUSHB",
                queue=given.queue,
                messages=batch,
                partition=given.partition,
                durability=given.durability,
            )
            count += reply["count"]
            if given.json:
                _print_json(out, {key: reply[key] for key in ("first", "count", "durability")})
            else:
                print(f"pushed {reply['count']} to {given.queue}, first id {reply['first']}", file=out)
    if not count:
        print("nothing to push", file=sys.stderr)
    return DONE if count else NOTHING


def _lines(source: TextIO) -> Iterable[str]:
    try:
        yield from (line for line in source if line.strip())
    except UnicodeDecodeError as error:
        raise CliError(f"standard input is not UTF-8: {error}") from None


def _checked(payloads: Iterable[str]) -> Iterable[msgspec.Raw]:
    for number, payload in enumerate(payloads, 1):
        try:
            text = payload.strip().encode()
            msgspec.json.decode(text)
        except UnicodeEncodeError:
            raise CliError(f"payload {number} is not UTF-8") from None
        except RecursionError:
            raise CliError(f"payload {number} is nested too deep") from None
        except msgspec.DecodeError:
            hint = " (a plain word needs quotes: '\"word\"')" if payload.strip().isalnum() else ""
            raise CliError(f"payload {number} is not JSON: {payload.strip()[:80]}{hint}") from None
        yield msgspec.Raw(text)


def _batches(payloads: Iterable[msgspec.Raw]) -> Iterable[list[msgspec.Raw]]:
    batch: list[msgspec.Raw] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += len(payload)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# pop


def _add_pop(commands: Any) -> None:
    about = "Lease messages and print them. Ack the lease when they are done, or pop with --ack."
    parser = _command(commands, "pop", _pop, about, "penstock pop emails --count 10 --wait-ms 5000")
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--count", type=int, default=1, help="at most this many (default 1)")
    parser.add_argument("--wait-ms", type=int, default=0, help="how long to wait for the first (default 0)")
    parser.add_argument("--group", default="default", help="the group that reads (default: default)")
    parser.add_argument("--partition", help="only from this partition")
    parser.add_argument("--lease-ms", type=int, help="how long they are leased (default: the queue's)")
    parser.add_argument("--ack", action="store_true", help="ack them once they are printed")
    _asks_server(parser)


class Job(msgspec.Struct):
    """A message as ``--json`` prints it; its data stays as it was written."""

    id: int | str
    queue: str
    partition: str
    offset: int
    data: msgspec.Raw
    created_at: int
    attempts: int
    priority: int
    lease: str
    expires_at: int


class Jobs(msgspec.Struct):
    jobs: list[Job]


def _pop(given: argparse.Namespace, out: TextIO) -> int:
    with Wire(given.server) as wire:
        answer = wire.ask_raw(
            "PULLB",
            queue=given.queue,
            count=given.count,
            timeout=given.wait_ms,
            group=given.group,
            partition=given.partition,
            lease_ms=given.lease_ms,
        )
        jobs = msgspec.json.decode(answer, type=Jobs).jobs
        if not jobs:
            if not given.json:
                print(f"nothing to pop from {given.queue}", file=sys.stderr)
            return NOTHING
        for job in jobs:
            if given.json:
                _print_json(out, job)
            else:
                print(f"{job.id}\t{bytes(job.data).decode()}", file=out)
        out.flush()
        lease = jobs[0].lease
        if given.ack:
            wire.ask("ACK", lease=lease)
        elif not given.json:
            print(f"leased until settled or out of time; done: penstock ack {lease}", file=sys.stderr)
    return DONE


# ack


def _add_ack(commands: Any) -> None:
    about = "Say that a lease, or some messages of the group's live leases, are done."
    parser = _command(
        commands, "ack", _ack, about, "penstock ack LEASE    or    penstock ack --id 274877906944"
    )
    parser.add_argument("lease", metavar="LEASE", nargs="?", help="as printed by pop")
    parser.add_argument(
        "--id", dest="ids", action="append", metavar="ID", help="a message id; may be repeated"
    )
    parser.add_argument("--group", help="the group they were popped for (default: default)")
    _asks_server(parser)


def _ack(given: argparse.Namespace, out: TextIO) -> int:
    if not given.lease and not given.ids:
        raise CliError("say what to ack: a LEASE, or --id ID")
    fields = {"lease": given.lease, "group": given.group}
    if given.ids:
        fields["ids"] = given.ids
    with Wire(given.server) as wire:
        reply = wire.ask("ACKB", **fields)
    if given.json:
        _print_json(out, {"count": reply["count"], "refused": reply["refused"]})
    else:
        print(f"acked {reply['count']}", file=out)
        for refused in reply["refused"]:
            print(f"not leased: {refused}", file=sys.stderr)
    return DONE if reply["count"] else NOTHING


# queues


def _add_queues(commands: Any) -> None:
    about = "List the queues and what is in them."
    _asks_server(_command(commands, "queues", _queues, about, "penstock queues --json"))


def _queues(given: argparse.Namespace, out: TextIO) -> int:
    with Wire(given.server) as wire:
        queues = wire.ask("LISTQUEUES")["queues"]
    words = {"queue": "name", "waiting": "pending", "active": "processing", "completed": "completed"}
    rows = [{ours: queue[theirs] for ours, theirs in words.items()} for queue in queues]
    if given.json:
        for row in rows:
            _print_json(out, row)
    else:
        _print_table(out, [word.upper() for word in words], [list(map(str, row.values())) for row in rows])
    return DONE


# backup, restore, verify, repair


def _add_backup(commands: Any) -> None:
    about = "Copy everything a running server keeps into a new directory on its machine."
    parser = _command(commands, "backup", _backup, about, "penstock backup /backups/monday")
    parser.add_argument("directory", metavar="DIRECTORY", help="must not exist yet")
    _asks_server(parser)


def _backup(given: argparse.Namespace, out: TextIO) -> int:
    with Wire(given.server) as wire:
        reply = wire.ask("BACKUP", directory=os.path.abspath(given.directory))
    if given.json:
        _print_json(out, {"directory": reply["directory"]})
    else:
        print(f"backed up to {reply['directory']}; check it: penstock verify {reply['directory']}", file=out)
    return DONE


def _add_restore(commands: Any) -> None:
    about = "Put a backup where a server will find it. No server may run there."
    parser = _command(commands, "restore", _restore, about, "penstock restore /backups/monday")
    parser.add_argument("backup", metavar="BACKUP", type=Path, help="a directory that backup made")
    parser.add_argument(
        "--data", type=Path, default=Path(DATA), help=f"where to (default {DATA}); empty or new"
    )


def _restore(given: argparse.Namespace, out: TextIO) -> int:
    def progress(done: int, of: int) -> None:
        _print_progress(f"copied {done} of {of} files", over=done == of)

    restore(given.backup, given.data, random.random(), progress)
    print(f"restored to {given.data}; what was pushed after the backup is not in it", file=out)
    return DONE


def _add_verify(commands: Any) -> None:
    about = (
        "Read everything in a data directory or a backup and say what is damaged. No server may run there."
    )
    parser = _command(commands, "verify", _verify, about, "penstock verify /backups/monday")
    parser.add_argument(
        "data", metavar="DIRECTORY", type=Path, nargs="?", default=Path(DATA), help=f"default {DATA}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a queue")


def _verify(given: argparse.Namespace, out: TextIO) -> int:
    named: set[bytes] = set()
    reports = []
    with looking_at(given.data) as (reader, shards):
        for report in verify(shards, reader.scan, reader.bodies, named):
            reports.append(report)
            if given.json:
                _print_json(out, report)
            else:
                _print_progress(f"read {len(reports)} queues")
        unnamed = sum(key not in named for key in reader.body_keys())
    damaged = any(report.damage for report in reports)
    if not given.json:
        _print_progress(f"read {len(reports)} queues", over=True)
        _print_reports(out, reports, unnamed)
    return DAMAGE if damaged else DONE


def _add_repair(commands: Any) -> None:
    about = "Make a data directory whose log is damaged open again, without what came after the damage."
    parser = _command(commands, "repair", _repair, about, "penstock repair ./penstock-data --accept-loss")
    parser.add_argument("data", metavar="DIRECTORY", type=Path)
    parser.add_argument(
        "--accept-loss", action="store_true", help="say that confirmed messages may be lost; needed"
    )


def _repair(given: argparse.Namespace, out: TextIO) -> int:
    if not given.accept_loss:
        raise CliError(
            "what came after the damage is lost for good, although it was confirmed;"
            " copy the directory first, then say --accept-loss"
        )
    if not repair(given.data, random.random()):
        print(f"{given.data} opens as it is; nothing was done", file=out)
        return NOTHING
    print(f"{given.data} opens again; see what is left: penstock verify {given.data}", file=out)
    return DONE


def _print_reports(out: TextIO, reports: list[Report], unnamed: int) -> None:
    head = ["QUEUE", "TENANT", "PARTITIONS", "SEGMENTS", "MESSAGES", "BYTES", "DAMAGE"]
    rows = [
        [
            each.queue,
            each.tenant,
            *map(str, (each.partitions, each.segments, each.messages, each.payload_bytes)),
            str(len(each.damage) or "none"),
        ]
        for each in reports
    ]
    _print_table(out, head, rows)
    for report in reports:
        for line in report.damage:
            print(f"damaged: tenant {report.tenant}, queue {report.queue}: {line}", file=out)
    if unnamed:
        print(f"{unnamed} bodies belong to no segment: left by a commit that did not finish", file=out)


def _print_progress(line: str, *, over: bool = False) -> None:
    """One line that changes, for people who watch."""
    if sys.stderr.isatty():
        print(f"\r{line}", end="\n" if over else "", file=sys.stderr, flush=True)


def _print_json(out: TextIO, value: object) -> None:
    print(msgspec.json.encode(value).decode(), file=out)


def _print_table(out: TextIO, head: list[str], rows: list[list[str]]) -> None:
    """Columns side by side; the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), file=out)


if __name__ == "__main__":
    sys.exit(main())
