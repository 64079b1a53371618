"""``forebay certs``: certificates to try TLS with, of a CA of one's own."""

import os
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from forebay.cli.commands import Command, prints_json
from forebay.cli.errors import DONE, CliError
from forebay.cli.output import print_json, print_table

if TYPE_CHECKING:
    from forebay.cli.issue import Pair

HOSTS = ("localhost", "127.0.0.1", "::1")
"""What a server is called by clients of its own machine."""
DAYS = 365
CA_DAYS = 3_650
HEAD = ("WHAT", "NAMES", "CERTIFICATE", "KEY", "GOOD UNTIL", "NEW")
DAYS_MAX = 36_500


class Made(Struct, frozen=True):
    """A certificate, and the files it is in."""

    what: str
    names: tuple[str, ...]
    certificate: Path
    key: Path
    pair: "Pair"
    is_new: bool = True


@click.command(cls=Command, example="forebay certs ./tls --host queue.example.com --client billing.example")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host", "hosts", multiple=True, help="Name or address of the server (default: those of this machine)."
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    help="Make a certificate of a client, too: a DNS name, a URI or an email address; may be repeated.",
)
@click.option("--days", type=click.IntRange(1, DAYS_MAX), default=DAYS, help="How long they are good.")
@click.option("--force", is_flag=True, help="Overwrite certificates that exist; the CA stays.")
@prints_json
def certs(
    directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, force: bool, as_json: bool
) -> int:
    """Make certificates for TLS, of a CA of your own.

    DIRECTORY gets those of the CA, of a server and of clients, with keys that only you can read. A CA that is
    in it already signs the new ones, too. For development and for machines of one team:
    whoever has the key of the CA can be anybody.
    """
    try:
        made = _Maker(directory, datetime.now(UTC), days, force=force).make(hosts, clients)
    except OSError as error:
        raise CliError(f"{error.filename or directory}: {error.strerror}") from None
    if as_json:
        for each in made:
            print_json(_shown(each))
    else:
        print_table(HEAD, map(_row, made), left=HEAD)
        print("\n" + "\n".join(_next(directory, made)))
    return DONE


class _Maker:
    """Makes certificates in a directory; before the first is written, all are made."""

    def __init__(self, directory: Path, now: datetime, days: int, *, force: bool) -> None:
        self._directory, self._now, self._days, self._force = directory, now, days, force
        try:
            from forebay.cli import issue
        except ImportError:
            raise CliError(
                "certificates are made by a package that is not installed: pip install 'forebay[auth]'"
            ) from None
        self._issue = issue

    def make(self, hosts: Sequence[str], clients: Sequence[str]) -> list[Made]:
        ca = self._ca()
        made = [ca]
        # Whoever comes back for one more client keeps the server as it is.
        if hosts or not clients or not self._files("server")[0].exists():
            names = tuple(hosts) or HOSTS
            made.append(self._named("server", "server", names, ca.pair))
        for name in dict.fromkeys(clients):
            made.append(self._named("client", f"client-{file_name(name)}", (name,), ca.pair))
        self._write([each for each in made if each.is_new])
        return made

    def _files(self, name: str) -> tuple[Path, Path]:
        return self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"

    def _ca(self) -> Made:
        certificate, key = self._files("ca")
        if not certificate.exists() and not key.exists():
            pair = self._issue.make_ca(self._now, max(CA_DAYS, self._days))
            return Made("ca", (), certificate, key, pair)
        pair = self._issue.Pair(certificate.read_bytes(), key.read_bytes())
        try:
            if not pair.fits() or pair.good_until <= self._now:
                raise ValueError("its key does not fit, or it has expired")
        except ValueError as error:
            raise CliError(f"{certificate}, {key}: no CA to go on with: {error}") from None
        return Made("ca", (), certificate, key, pair, is_new=False)

    def _named(self, what: str, file: str, names: tuple[str, ...], ca: "Pair") -> Made:
        certificate, key = self._files(file)
        for each in (certificate, key):
            if each.exists() and not self._force:
                raise CliError(f"{each} exists; --force overwrites it")
        try:
            if what == "server":
                pair = self._issue.make_server(ca, names, self._now, self._days)
            else:
                pair = self._issue.make_client(ca, names[0], self._now, self._days)
        except ValueError as error:
            raise CliError(f"{', '.join(names)}: can't stand in a certificate: {error}") from None
        return Made(what, names, certificate, key, pair)

    def _write(self, made: Sequence[Made]) -> None:
        files = [each.certificate for each in made]
        for one in files:
            if files.count(one) > 1:
                raise CliError(f"two of the clients would share {one}: make them one after the other")
        self._directory.mkdir(parents=True, exist_ok=True)
        for each in made:
            _replace(each.key, each.pair.key, 0o600)
            _replace(each.certificate, each.pair.certificate, 0o644)


def file_name(name: str) -> str:
    """Return what the files of a client are called.

    >>> file_name("spiffe://corp.example/acme/worker")
    'spiffe-corp.example-acme-worker'
    """
    return re.sub(r"[^A-Za-z0-9._@]+", "-", name).strip("-.")


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole or not at all; it never has more readers than it is to have."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)


def _shown(made: Made) -> dict[str, object]:
    return {
        "what": made.what,
        "names": list(made.names),
        "certificate": str(made.certificate),
        "key": str(made.key),
        "good_until": made.pair.good_until.isoformat().replace("+00:00", "Z"),
        "new": made.is_new,
    }


def _row(made: Made) -> tuple[str, ...]:
    until = f"{made.pair.good_until:%Y-%m-%d}"
    new = "yes" if made.is_new else "no"
    return made.what, ", ".join(made.names), str(made.certificate), str(made.key), until, new


def _next(directory: Path, made: Sequence[Made]) -> list[str]:
    """Return the commands to go on with."""
    here = shlex.quote(str(directory))
    serve = f"forebay serve --tls-cert {here}/server.pem --tls-key {here}/server-key.pem"
    ask = f"curl --cacert {here}/ca.pem"
    clients = [each for each in made if each.what == "client"]
    if clients:
        grants = ",".join(f"{each.names[0]}=default/write" for each in clients)
        serve += f" --tls-client-ca {here}/ca.pem --tls-principals {shlex.quote(grants)}"
        mine = clients[0]
        ask += f" --cert {shlex.quote(str(mine.certificate))} --key {shlex.quote(str(mine.key))}"
    return ["next:", f"  {serve}", f"  {ask} https://localhost:8080/v1/auth"]
