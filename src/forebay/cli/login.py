"""``forebay login``, ``logout``, ``context`` and ``whoami``: which server, and who you are there."""

import os
import sys
from ipaddress import ip_address
from urllib.parse import urlsplit

import click
from msgspec.structs import asdict

from forebay.cli import contexts
from forebay.cli.commands import Command, Group, asks_server, connected, given_access, prints_json
from forebay.cli.contexts import Context
from forebay.cli.errors import DONE, NOTHING, CliError
from forebay.cli.output import note, print_fields, print_json, print_table, shown_time
from forebay.client.access import Access, of_environment
from forebay.client.address import (
    DEFAULT_SERVER,
    SERVER_VARIABLE,
    check_address,
    is_tls,
    is_web,
    shown,
    where,
)
from forebay.client.identities import Identity


@click.command(cls=Command, example="forebay login tls://queue.example:6780 --name production")
@click.argument("address", required=False)
@click.option("--name", help="What the context is called (default: the address, or that of --context).")
@asks_server
def login(address: str | None, name: str | None, server: str | None, as_json: bool) -> int:
    """Show a server your token, and keep both as the current context.

    The token is that of --token, the first line of standard input, or typed at the terminal, where it is not
    shown. It is kept in a file that only you can read.
    """
    given, named = given_access()
    kept = contexts.load()
    before = kept.contexts.get(named or kept.current or "")
    place = (
        address or server or os.environ.get(SERVER_VARIABLE) or (before.server if before else DEFAULT_SERVER)
    )
    check_address(place)
    files = given.over(of_environment())
    token = given.token or _read_token(place)
    ca, cert, key = (_absolute(each) if is_tls(place) else "" for each in (files.ca, files.cert, files.key))
    access = Access(token, given.tenant or "", ca, cert, key)
    with connected(place, access=access) as client:
        found = client.whoami()
    name = name or named or shown(place).partition("://")[2] or shown(place)
    values = {key: value or None for key, value in asdict(access).items()}
    kept.contexts[name] = Context(place, **values)
    kept.current = name
    contexts.save(kept)
    _warn(place)
    if as_json:
        print_json({"context": name, "server": shown(place), **_identity(found)})
    else:
        who = found.name or "a principal without a name"
        print(f"logged in to {shown(place)} as {who}, {found.role} of {found.tenant}; context {name}")
    return DONE


def _read_token(place: str) -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        token: str = click.prompt(f"Token for {shown(place)}", hide_input=True, err=True)
    else:
        token = (sys.stdin.readline() if sys.stdin is not None else "") or of_environment().token or ""
    if not token.strip():
        raise CliError("there is no token", "give it on standard input, or as --token")
    return token.strip()


def _absolute(file: str | None) -> str:
    """Return the path of a file as it is found from any directory."""
    return os.path.abspath(file) if file else ""


def _warn(place: str) -> None:
    """Tell of a token that travels over a network as it is."""
    if is_tls(place):
        return
    if is_web(place):
        name = urlsplit(place).hostname or ""
    else:
        found = where(place)
        if isinstance(found, str):  # a Unix socket
            return
        name = found[0]
    try:
        is_here = ip_address(name).is_loopback
    except ValueError:
        is_here = name == "localhost"
    if not is_here:
        note(f"the token goes to {shown(place)} unprotected: use tls:// or https://")


@click.command(cls=Command, example="forebay logout")
@click.argument("name", required=False)
@prints_json
def logout(name: str | None, as_json: bool) -> int:
    """Forget a context with its token: the current one, or NAME. The token stays good: see token revoke."""
    kept = contexts.load()
    if name is None and kept.current is None:
        if as_json:
            print_json({"context": None})
        else:
            note("nobody is logged in")
        return NOTHING
    name = name or str(kept.current)
    kept.named(name)
    del kept.contexts[name]
    kept.current = None if kept.current == name else kept.current
    contexts.save(kept)
    if as_json:
        print_json({"context": name})
    else:
        print(f"forgot the context {name}")
    return DONE


@click.group(cls=Group, invoke_without_command=True)
@prints_json
@click.pass_context
def context(here: click.Context, as_json: bool) -> int:
    """List the servers that you have logged in to, or switch to one."""
    if here.invoked_subcommand is not None:
        return DONE
    kept = contexts.load()
    for name, each in kept.contexts.items() if as_json else ():
        is_current = name == kept.current
        print_json(
            {"context": name, "current": is_current, "server": shown(each.server), "tenant": each.tenant}
        )
    if not as_json and kept.contexts:
        rows = [
            ["*" if name == kept.current else "", name, shown(each.server), each.tenant]
            for name, each in kept.contexts.items()
        ]
        print_table(["", "CONTEXT", "SERVER", "TENANT"], rows, left=["CONTEXT", "SERVER", "TENANT"])
    elif not as_json:
        note("nobody is logged in: forebay login ADDRESS")
    return DONE if kept.contexts else NOTHING


@context.command(cls=Command, example="forebay context use production")
@click.argument("name")
@prints_json
def use(name: str, as_json: bool) -> int:
    """Make a context the current one."""
    kept = contexts.load()
    found = kept.named(name)
    kept.current = name
    contexts.save(kept)
    if as_json:
        print_json({"context": name, "server": shown(found.server)})
    else:
        print(f"the context is {name}: {shown(found.server)}")
    return DONE


@click.command(cls=Command, example="forebay whoami")
@asks_server
def whoami(server: str | None, as_json: bool) -> int:
    """Say who you are to the server: your tenant, your role, your queues."""
    with connected(server) as client:
        found = client.whoami()
        place, tenant = shown(client.server), client.tenant
    if as_json:
        print_json({"server": place, **_identity(found), "acts_for": tenant or found.tenant})
        return DONE
    fields = {"server": place, "tenant": found.tenant, "role": found.role, "name": found.name}
    queues = ", ".join(found.queues) or "all"
    acts = {} if tenant in (None, found.tenant) else {"acts for": tenant}
    ends = shown_time(found.expires_at) if found.expires_at else "never"
    print_fields({**fields, **acts, "queues": queues, "expires": ends})
    return DONE


def _identity(found: Identity) -> dict[str, object]:
    return {**asdict(found), "queues": list(found.queues)}
