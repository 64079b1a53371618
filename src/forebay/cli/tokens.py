"""``forebay token``: tokens of a tenant, for programs and people."""

import click
from msgspec.structs import asdict

from forebay.cli.commands import Command, Group, asks_server, connected
from forebay.cli.errors import DONE, NOTHING
from forebay.cli.output import note, print_fields, print_json, print_table, shown_time
from forebay.cli.parameters import Span
from forebay.core.api.principals import ROLES


@click.group(cls=Group)
def token() -> None:
    """Tokens of a tenant: create, list, revoke."""


@token.command(
    cls=Command,
    example="forebay token create --tenant acme --role write --queues 'orders*' --name ci --expires 90d",
)
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option(
    "--queues",
    multiple=True,
    metavar="PATTERNS",
    help="Only queues like these, with commas between them, * is any text; may be repeated (default: all).",
)
@click.option("--name", default="", help="What it is for, for people.")
@click.option(
    "--expires", type=Span(), metavar="TIME", help="How long it is good: 90d, 12h, 30m (default: for good)."
)
@asks_server
def create(
    role: str, queues: tuple[str, ...], name: str, expires: int | None, server: str | None, as_json: bool
) -> int:
    """Create a token. It is printed this once, and not kept in a form that could be shown again."""
    patterns = [each.strip() for given in queues for each in given.split(",") if each.strip()]
    with connected(server) as client:
        made = client.tokens.create(role, queues=patterns, name=name, expires_ms=expires)
    if as_json:
        print_json({"token": made.token, "id": made.id, **asdict(made), "queues": list(made.queues)})
        return DONE
    ends = shown_time(made.expires_at) if made.expires_at else "never"
    about = {"id": made.id, "tenant": made.tenant, "role": made.role, "name": made.name}
    print_fields({"token": made.token, **about, "queues": ", ".join(made.queues) or "all", "expires": ends})
    note("keep the token now: it is not shown again")
    return DONE


HEAD = ["ID", "ROLE", "NAME", "QUEUES", "CREATED", "EXPIRES", "LAST USED"]


@token.command("list", cls=Command, example="forebay token list --tenant acme")
@asks_server
def list_(server: str | None, as_json: bool) -> int:
    """List the tokens, without their secrets, the oldest first."""
    with connected(server) as client:
        found = client.tokens.list()
    for each in found if as_json else ():
        print_json({**asdict(each), "queues": list(each.queues)})
    if not as_json and found:
        rows = [
            [
                each.id,
                each.role,
                each.name,
                ", ".join(each.queues) or "all",
                shown_time(each.created_at),
                shown_time(each.expires_at) if each.expires_at else "never",
                shown_time(each.last_used_at) if each.last_used_at else "never",
            ]
            for each in found
        ]
        print_table(HEAD, rows, left=HEAD)
    elif not as_json:
        note("no tokens")
    return DONE if found else NOTHING


@token.command(cls=Command, example="forebay token revoke 0123456789ab")
@click.argument("id")
@asks_server
def revoke(id: str, server: str | None, as_json: bool) -> int:
    """Revoke a token by its id: it is refused from now on, and its connections end."""
    with connected(server) as client:
        client.tokens.revoke(id)
    if as_json:
        print_json({"id": id, "revoked": True})
    else:
        print(f"revoked {id}")
    return DONE
