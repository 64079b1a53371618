"""Another tenant's thing looks exactly like a missing one: by every command and route, for every role."""

from collections.abc import Iterator

import pytest

from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES
from forebay.wire.operation import Operation
from tests.server import foreign
from tests.server.foreign import ADMIN, ASKED, ASKER, THERE, VICTIM, Request
from tests.server.http.examples import fields_of, send
from tests.server.http.talking import Http
from tests.serving import Raw, Server

CELLS_MIN = 800
"""Of each test: with those of both carriers there are far more than 1,000."""


class World:
    """A server with a tenant that has everything, and one that has nothing but tokens."""

    def __init__(self, server: Server) -> None:
        self.server = server
        with Http(server.http, ADMIN) as admin:
            self.victim = admin.post(f"/v1/tenants/{VICTIM}/tokens", role="owner")["token"]
            narrowed = ["emails*", "reports*"]
            made = [(role, {}) for role in foreign.ROLES] + [
                ("narrowed", {"role": "write", "queues": narrowed})
            ]
            self.askers = {
                name: admin.post(f"/v1/tenants/{ASKER}/tokens", **{"role": name, **fields})["token"]
                for name, fields in made
            }
        with Http(server.http, self.victim) as http:
            self.there, self.nowhere = foreign.prepare(http)
        self.cells = 0

    def look(self) -> str:
        with Http(self.server.http, self.victim) as http:
            return foreign.look(http)


@pytest.fixture
def world() -> Iterator[World]:
    flags = ("--store", "memory:", "--admin-token", ADMIN, "--webhooks-private", "on")
    with Server(*flags) as server:
        yield World(server)


def same(world: World, operation: Operation, request: Request, found: list[str], role: str) -> None:
    """Compare the answer about another's thing with that about nothing."""
    there, nowhere = (
        foreign.plain(operation, things.hide(answer))
        for things, answer in zip((world.there, world.nowhere), found, strict=True)
    )
    assert there == nowhere, (operation.name, request, role)
    assert foreign.SECRET not in found[0], (operation.name, request, role)
    assert THERE not in found[1], (operation.name, request, role)
    world.cells += 1


def test_over_tcp(world: World) -> None:
    before = world.look()
    clients = {role: world.server.connect() for role in world.askers}
    for role, client in clients.items():
        assert client.ask({"cmd": "AUTH", "token": world.askers[role]})["tenant"] == ASKER
    for operation in ASKED:
        for role, client in clients.items():
            for request in foreign.questions(operation):
                found = [
                    _text(client, {"cmd": operation.name, **things.fill(_own(request))})
                    for things in (world.there, world.nowhere)
                ]
                same(world, operation, request, found, role)
        assert world.look() == before, operation.name
    for client in clients.values():
        client.close()
    assert world.cells >= CELLS_MIN, world.cells


def test_over_http(world: World) -> None:
    before = world.look()
    clients = {role: Http(world.server.http, token) for role, token in world.askers.items()}
    routes = sorted(
        (each for each in ROUTES if each.operation in ASKED),
        key=lambda each: ASKED.index(each.operation),
    )
    for bound in routes:
        for role, client in clients.items():
            for request in foreign.questions(bound.operation):
                if set(bound.route.places) <= request.keys():
                    found = [
                        _sent(client, bound, things.fill(_own(request)))
                        for things in (world.there, world.nowhere)
                    ]
                    same(world, bound.operation, request, found, role)
        assert world.look() == before, bound.name
    for client in clients.values():
        client.close()
    assert world.cells >= CELLS_MIN, world.cells


def _sent(client: Http, bound: Bound, request: Request) -> str:
    taken = {*fields_of(bound), *bound.route.places}
    answer = send(client, bound, {name: value for name, value in request.items() if name in taken})
    return f"{answer.status} {answer.body.decode()}"


def _own(request: Request) -> Request:
    """A request that names the asker's tenant instead of another's, which only an admin may."""
    return {**request, "tenant": ASKER} if "tenant" in request else request


def _text(client: Raw, request: Request) -> str:
    client.send(request)
    length = int.from_bytes(client._exactly(4), "big")
    return client._exactly(length).decode()
