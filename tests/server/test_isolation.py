"""Another tenant's thing looks exactly like a missing one: by every command and route, for every role."""

import json
import re
from collections.abc import Iterator

import pytest

from forebay.server.flashq.web.routes import TABLE, Route
from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES
from tests.server import foreign
from tests.server.flashq_http.talking import DoorServer
from tests.server.foreign import ADMIN, ASKED, ASKER, THERE, VICTIM, Request
from tests.server.http.examples import fields_of, filled, send
from tests.server.http.talking import Http
from tests.serving import Raw

CELLS_MIN, FLASHQ_CELLS_MIN = 800, 300
"""Of each test: together there are more than 2,000."""


class World:
    """A server with a tenant that has everything, and one that has nothing but tokens."""

    def __init__(self, server: DoorServer) -> None:
        self.server = server
        with Http(server.http, ADMIN) as admin:
            self.victim = admin.post(f"/v1/tenants/{VICTIM}/tokens", role="owner")["token"]
            made: dict[str, Request] = {role: {"role": role} for role in foreign.ROLES}
            made["narrowed"] = {"role": "write", "queues": ["emails*", "reports*"]}
            self.askers = {
                name: admin.post(f"/v1/tenants/{ASKER}/tokens", **fields)["token"]
                for name, fields in made.items()
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
    with DoorServer(*flags) as server:
        yield World(server)


def same(world: World, name: str, request: Request, found: list[str], role: str) -> None:
    """Compare the answer about another's thing with that about nothing."""
    there, nowhere = (
        foreign.plain(name, things.hide(answer))
        for things, answer in zip((world.there, world.nowhere), found, strict=True)
    )
    assert there == nowhere, (name, request, role)
    assert foreign.SECRET not in found[0], (name, request, role)
    assert THERE not in found[1], (name, request, role)
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
                same(world, operation.name, request, found, role)
        assert world.look() == before, operation.name
    for client in clients.values():
        client.close()
    assert world.cells >= CELLS_MIN, world.cells


ALIKE = {
    *("TENANT", "EVENTS"),  # which are about the asker
    *("CRONPUT", "LIMITPUT", "STAGE", "WORKER", "TENANTPUT"),  # which make what is not there
    *("NACK", "RELEASE", "ACK", "QUEUEDELETE"),  # of which others have left nothing
}


def test_the_questions_are_good_ones(world: World) -> None:
    """Whose the things are gets another answer about them than about what is nowhere, by most commands."""
    alike = []
    with world.server.connect() as client:
        client.ask({"cmd": "AUTH", "token": world.victim})
        last = (
            "EXTEND",
            "NACK",
            "GROUPDELETE",
            "QUEUEDELETE",
            "ACK",
            "RELEASE",
        )  # which leave less to ask for
        for operation in sorted(ASKED, key=lambda each: each.name in last and last.index(each.name) + 1):
            request = next(foreign.questions(operation))
            found = [
                _text(client, {"cmd": operation.name, **things.fill(request)})
                for things in (world.there, world.nowhere)
            ]
            hidden = [world.there.hide(found[0]), world.nowhere.hide(found[1])]
            if hidden[0] == hidden[1]:
                alike.append(operation.name)
    assert set(alike) <= ALIKE


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
                    same(world, bound.operation.name, request, found, role)
        assert world.look() == before, bound.name
    for client in clients.values():
        client.close()
    assert world.cells >= CELLS_MIN, world.cells


def test_over_the_doors_of_flashq(world: World) -> None:
    before = world.look()
    clients = {role: world.server.connect_door() for role in world.askers}
    for role, client in clients.items():
        assert client.ask_line({"cmd": "AUTH", "token": world.askers[role]})["ok"]
    for name in foreign.FLASHQ_ASKED:
        for role, client in clients.items():
            request = foreign.flashq_question(name)
            found = [
                json.dumps(client.ask_line(things.fill(request))) for things in (world.there, world.nowhere)
            ]
            same(world, name, request, found, role)
        assert world.look() == before, name
    for client in clients.values():
        client.close()
    assert world.cells >= FLASHQ_CELLS_MIN, world.cells


def test_over_the_http_of_flashq(world: World) -> None:
    before = world.look()
    web = {role: Http(world.server.door, token) for role, token in world.askers.items()}
    for route in sorted(TABLE, key=_makes):
        for role, http in web.items():
            found = [_asked(http, route, things.known) for things in (world.there, world.nowhere)]
            found = [re.sub(r"\d+", "#", each) for each in found if _makes(route)] or found
            same(world, route.path, {}, found, role)
        assert world.look() == before, route.path
    for http in web.values():
        http.close()
    assert world.cells >= FLASHQ_CELLS_MIN, world.cells


def _makes(route: Route) -> bool:
    """Whether it may make something: a look at the asker's own things comes before that."""
    return route.method != "GET" or route.handler is PULLS


PULLS = next(each.handler for each in TABLE if (each.method, each.path) == ("GET", "/queues/{queue}/jobs"))


def _asked(http: Http, route: Route, known: dict[str, str]) -> str:
    path = route.path.replace(":path", "").format(
        queue=known["emails"],
        id=known["ID"],
        parent_id=known["ID"],
        name=known["nightly"],
        job_id=known["welcome-7"],
    )
    body = None if route.method == "GET" else filled(foreign.OF_FLASHQ, known)
    answer = http.ask(route.method, path, body, timeout=1)  # for those that pull
    return f"{answer.status} {answer.body.decode()}"


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
