"""``forebay tenant``: the tenants of a server, for its admins."""

import click
from msgspec.structs import asdict

from forebay.cli.commands import Command, Group, asks_server, connected
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import note, print_fields, print_json, print_table, shown_time
from forebay.client.identities import Tenant

named = click.argument("name")


@click.group(cls=Group)
def tenant() -> None:
    """Tenants of a server: create, list, show, suspend, resume."""


@tenant.command(cls=Command, example="forebay tenant create acme")
@named
@click.option(
    "--spread",
    is_flag=True,
    default=None,
    help="Spread its queues over shards, for good: for a very large one.",
)
@asks_server
def create(name: str, spread: bool | None, server: str | None, as_json: bool) -> int:
    """Create a tenant, unless it is there."""
    with connected(server) as client:
        found = client.tenants.create(name, spread=spread)
    return _print(found, as_json)


@tenant.command("list", cls=Command, example="forebay tenant list")
@asks_server
def list_(server: str | None, as_json: bool) -> int:
    """List the tenants by name."""
    with connected(server) as client:
        found = client.tenants.list()
    for each in found if as_json else ():
        print_json(asdict(each))
    if not as_json and found:
        rows = [[each.tenant, _state(each), each.spread, shown_time(each.created_at)] for each in found]
        print_table(["TENANT", "STATE", "SPREAD", "CREATED"], rows, left=["STATE", "SPREAD", "CREATED"])
    elif not as_json:
        note("no tenants")
    return DONE if found else NOTHING


@tenant.command(cls=Command, example="forebay tenant show acme")
@click.argument("name", required=False)
@asks_server
def show(name: str | None, server: str | None, as_json: bool) -> int:
    """Show a tenant: your own, or NAME."""
    with connected(server) as client:
        found = client.tenants.get(name)
    return _print(found, as_json)


@tenant.command(cls=Command, example="forebay tenant suspend acme")
@named
@asks_server
def suspend(name: str, server: str | None, as_json: bool) -> int:
    """Deny everything that a tenant asks for; nothing of it is lost."""
    with connected(server) as client:
        client.tenants.get(name)  # a mistyped name must not create a tenant
        found = client.tenants.suspend(name)
    return _print(found, as_json)


@tenant.command(cls=Command, example="forebay tenant resume acme")
@named
@asks_server
def resume(name: str, server: str | None, as_json: bool) -> int:
    """Let a suspended tenant go on."""
    with connected(server) as client:
        client.tenants.get(name)
        found = client.tenants.resume(name)
    return _print(found, as_json)


def _state(found: Tenant) -> str:
    return "suspended" if found.suspended else "active"


def _print(found: Tenant, as_json: bool) -> int:
    if as_json:
        print_json(asdict(found))
    else:
        created = shown_time(found.created_at)
        print_fields(
            {"tenant": found.tenant, "state": _state(found), "spread": found.spread, "created": created}
        )
    return DONE
