"""What each role may ask for: every command, route, stream and command of flashQ, as the one table says."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from forebay.core.api.principals import ADMIN, ANY, INCLUDES, OWNER, POP, PUSH, READ, ROLES, WRITE, Principal
from forebay.core.bounds import Limits
from forebay.core.errors import Denied
from forebay.server.flashq import door
from forebay.server.flashq.commands.needs import NEEDS
from forebay.server.flashq.commands.table import COMMANDS as FLASHQ
from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES, VIEWS
from forebay.server.operations import codec
from forebay.server.operations.carried import Context
from forebay.wire.operation import Operation
from forebay.wire.table import OPERATIONS
from tests.server.foreign import ADMIN as ADMIN_TOKEN, VICTIM as TENANT
from tests.server.http.examples import fields_of, filled, send
from tests.server.http.talking import Http
from tests.serving import Server

KNOWN = {"ID": "1", "LEASE": "1", "WEBHOOK": "none", "TOKEN": "none", "DIRECTORY": "/nowhere/at/all"}
NEVER = ("HOLD", "BACKUP")
"""Commands that no test asks for as an admin: they stop everything else, or write to the disk."""


def test_roles_include_each_other_as_the_protocol_says() -> None:
    least = {role: INCLUDES[role] - {ANY} for role in ROLES}
    assert least == {
        READ: {READ},
        PUSH: {PUSH},
        POP: {POP},
        WRITE: {READ, PUSH, POP, WRITE},
        OWNER: {READ, PUSH, POP, WRITE, OWNER},
        ADMIN: {READ, PUSH, POP, WRITE, OWNER, ADMIN},
    }


def test_every_command_and_route_says_what_it_needs() -> None:
    for each in OPERATIONS:
        assert each.roles, each.name
        assert set(each.roles) <= {*ROLES, ANY}, each.name
    for bound in ROUTES:
        assert bound.operation.roles, bound.name
        assert set(bound.route.needs) <= set(ROLES), bound.name
    assert {each.name for each in VIEWS if not each.request.needs} == {"Healthz", "Readyz"}
    assert NEEDS.keys() == FLASHQ.keys()
    assert all(set(needs) <= {*ROLES, ANY} for needs in NEEDS.values())


@pytest.mark.parametrize("role", ROLES)
def test_what_is_enough_for_an_operation_is_what_its_declaration_says(role: str) -> None:
    principal = Principal(TENANT, role)
    context = codec.context(1, Limits(), principal)
    for each in OPERATIONS:
        example = {"cmd": each.name, **filled(each.example, KNOWN)}
        if role != ADMIN:
            example.pop("tenant", None)
        request = codec.decode(msgspec.json.encode(example))
        assert _is_allowed(request, context) == principal.may(needs_of(each)), each.name


def needs_of(operation: Operation) -> tuple[str, ...]:
    """What an example needs: of a transaction, what its parts do, which push and write a key."""
    return (WRITE,) if operation.name in ("TX", "Command") else operation.roles


def _is_allowed(request: Any, context: Context) -> bool:
    try:
        codec.allowed(request, context)
    except Denied:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_a_transaction_needs_what_its_parts_need(role: str) -> None:
    principal = Principal(TENANT, role)
    context = codec.context(1, Limits(), principal)
    parts = {
        PUSH: {"cmd": "PUSH", "queue": "q", "payload": 1},
        POP: {"cmd": "ACK", "ids": [1]},
        WRITE: {"cmd": "KVADD", "key": "k"},
    }
    for needs, part in parts.items():
        request = codec.decode(msgspec.json.encode({"cmd": "TX", "ops": [part]}))
        assert _is_allowed(request, context) == principal.may((needs,)), needs


@pytest.mark.parametrize("role", ROLES)
def test_the_commands_of_flashq_need_what_ours_do(role: str) -> None:
    principal = Principal(TENANT, role)
    may = {name for name, needs in NEEDS.items() if principal.may(needs)}
    assert {door.COMMAND_NAMES[each] for each in door.MAY[role]} | {"AUTH"} >= may - {"AUTH"}
    assert {door.COMMAND_NAMES[each] for each in door.MAY[role]} <= may


# A server with a token of each role.


class World:
    def __init__(self, server: Server) -> None:
        self.server = server
        with Http(server.http, ADMIN_TOKEN) as admin:
            self.tokens: dict[str, str] = {
                role: admin.post(f"/v1/tenants/{TENANT}/tokens", role=role)["token"] for role in ROLES
            }


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Server("--store", "memory:", "--admin-token", ADMIN_TOKEN) as server:
        yield World(server)


def example_of(operation: Operation) -> dict[str, Any]:
    request = {**filled(operation.example, KNOWN)}
    return {**request, "wait_ms": 0} if "wait_ms" in request else request


@pytest.mark.parametrize("role", ROLES)
def test_over_tcp(world: World, role: str) -> None:
    with world.server.connect() as client:
        assert client.ask({"cmd": "AUTH", "token": world.tokens[role]})["role"] == role
        for each in OPERATIONS:
            if each.name in NEVER and role == ADMIN:
                continue
            answer = client.ask({"cmd": each.name, **example_of(each)})
            _check(answer, Principal(role=role).may(needs_of(each)), each.name)


@pytest.mark.parametrize("role", ROLES)
def test_over_http(world: World, role: str) -> None:
    with Http(world.server.http, world.tokens[role]) as client:
        for bound in ROUTES:
            if bound.operation.name in NEVER and role == ADMIN:
                continue
            answer = _sent(client, bound)
            needs = bound.route.needs or needs_of(bound.operation)
            _check(answer.json, Principal(role=role).may(needs), bound.name)
            assert (answer.status == 403) == (answer.status != 200 and answer.code == "denied")


def _sent(client: Http, bound: Bound) -> Any:
    example = example_of(bound.operation)
    taken = {*fields_of(bound), *bound.route.places, "cmd", "key"}
    return send(client, bound, {name: value for name, value in example.items() if name in taken})


def _check(answer: dict[str, Any], is_allowed: bool, name: str) -> None:
    error = answer.get("error")
    error = error if isinstance(error, dict) else {}
    assert (error.get("code") != "denied") == is_allowed, (name, answer)
    if not is_allowed:
        assert "needs the role" in error["message"], name


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "view", [each for each in VIEWS if each.name != "Listen"], ids=lambda each: each.name
)
def test_views(world: World, role: str, view: Any) -> None:
    with Http(world.server.http, world.tokens[role]) as client:
        answer = (
            client.ask("GET", view.path, after="nonsense")
            if view.name == "Events"
            else client.ask("GET", view.path)
        )
        is_allowed = not view.request.needs or Principal(role=role).may(view.request.needs)
        assert (answer.status != 403) == is_allowed, answer


@pytest.mark.parametrize("role", [READ, PUSH])
def test_a_stream_of_messages_needs_pop(world: World, role: str) -> None:
    with Http(world.server.http, world.tokens[role]) as client:
        answer = client.ask("GET", "/v1/queues/emails/listen")
        assert (answer.status, answer.code) == (403, "denied")


def test_only_an_admin_names_another_tenant(world: World) -> None:
    for role, token in world.tokens.items():
        for tenant in ("other", "nobody-made-this-one"):
            with Http(world.server.http, token) as http, world.server.connect() as client:
                client.ask({"cmd": "AUTH", "token": token})
                answers = [
                    http.ask("GET", "/v1/queues", headers={"x-forebay-tenant": tenant}).json,
                    client.ask({"cmd": "QUEUES", "tenant": tenant}),
                ]
            for answer in answers:
                assert ("error" not in answer) == (role == ADMIN), answer


def test_without_a_token_nothing_but_auth_is_answered(world: World) -> None:
    with world.server.connect() as client:
        for each in OPERATIONS:
            answer = client.ask({"cmd": each.name, **example_of(each)})
            assert answer["error"]["code"] == "denied", each.name
            assert answer["error"]["message"].startswith("Authentication required"), each.name
    with Http(world.server.http) as http:
        for bound in ROUTES:
            refused = _sent(http, bound)
            assert (refused.status, refused.code) == (401, "denied"), bound.name
        for view in VIEWS:
            assert http.ask("GET", view.path.format(queue="q")).status == (401 if view.request.needs else 200)
        for path in ("/docs", "/openapi.json"):
            assert http.ask("GET", path).status == 200


def test_patterns_narrow_what_a_role_may(world: World) -> None:
    with Http(world.server.http, ADMIN_TOKEN) as admin:
        fields = {"role": OWNER, "queues": ["orders*", "*.eu"]}
        token = admin.post(f"/v1/tenants/{TENANT}/tokens", **fields)["token"]
        admin.ask("POST", "/v1/queues/invoices/messages", {"payload": 1}, {"x-forebay-tenant": TENANT})
    with world.server.connect() as client:
        client.ask({"cmd": "AUTH", "token": token})
        for queue in ("orders", "orders.us", "mails.eu"):
            assert client.ask({"cmd": "PUSH", "queue": queue, "payload": 1})["ok"], queue
        for request in (
            {"cmd": "PUSH", "queue": "invoices", "payload": 1},
            {"cmd": "POP", "queue": "invoices", "wait_ms": 0},
            {"cmd": "QUEUE", "queue": "invoices"},
            {
                "cmd": "FLOW",
                "queue": "orders",
                "payload": 1,
                "children": [{"queue": "invoices", "payload": 1}],
            },
            {"cmd": "TX", "ops": [{"cmd": "PUSH", "queue": "invoices", "payload": 1}]},
            {"cmd": "KVGET", "key": "k"},
            {"cmd": "TOKENS"},
            {"cmd": "LIMITS"},
            {
                "cmd": "CRONPUT",
                "name": "c",
                "queue": "invoices",
                "message": {"payload": 1},
                "every_ms": 60_000,
            },
        ):
            answer = client.ask(request)
            assert answer.get("error", {}).get("code") == "denied", (request, answer)
        listed = [each["queue"] for each in client.ask({"cmd": "QUEUES"})["queues"]]
        assert sorted(listed) == ["mails.eu", "orders", "orders.us"]
