"""TCP and HTTP carry the same operations: the same fields there, the same fields back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES
from forebay.server.operations.table import COMMANDS
from forebay.wire.operation import Operation
from forebay.wire.table import OPERATIONS
from tests.server.http.examples import call, fields_of, filled, prepare
from tests.server.http.talking import Http
from tests.serving import Server

SHARED = {each.name: each for each in OPERATIONS}


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with Server() as running:
        yield running


def routes_of(operation: Operation) -> list[Bound]:
    return [each for each in ROUTES if each.operation is operation]


def fields(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    """Fields of a class, each with whether it is required and what it is if absent."""
    return {
        each.encode_name: (each.required, each.default, each.default_factory)
        for each in msgspec.structs.fields(kind)
        if each.name not in ("reqId", "tenant")
    }


@pytest.mark.parametrize("name", SHARED)
def test_a_request_has_the_same_fields_over_tcp_and_http(name: str) -> None:
    operation = SHARED[name]
    over_tcp = fields(COMMANDS[name])
    assert over_tcp == fields(operation.request), "what is declared is what is carried out"
    if name == "AUTH":
        over_tcp.pop("token")  # which is in a header over HTTP
    bounds = routes_of(operation)
    carried = [fields_of(bound) | set(bound.route.places) - {"tenant"} for bound in bounds]
    assert set(over_tcp) in carried, "one route has them all"
    for bound, names in zip(bounds, carried, strict=True):
        assert names <= set(over_tcp)
        for field, (is_required, default, factory) in fields(bound.kind).items():
            if field in names and field not in bound.route.given:
                assert (is_required, default, factory) == over_tcp[field], field


@pytest.mark.parametrize("name", SHARED)
def test_an_answer_has_the_same_fields_over_tcp_and_http(name: str, served: Server, tmp_path: Path) -> None:
    operation = SHARED[name]
    with Http(served.http) as http, served.connect() as client:
        for bound in routes_of(operation):
            example = filled(operation.example, prepare(http, name, tmp_path))
            carried = fields_of(bound) | set(bound.route.places)
            request = {field: value for field, value in example.items() if field in carried}
            over_tcp = client.ask({"cmd": name, **request})
            assert over_tcp.pop("ok") is True, over_tcp
            over_http = call(http, bound, prepare(http, name, tmp_path))
            assert over_http.status == 200, over_http
            assert shape(over_http.json) == shape(over_tcp)


@pytest.mark.parametrize("name", SHARED)
def test_any_request_of_tcp_may_be_a_command_over_http(name: str, served: Server, tmp_path: Path) -> None:
    operation = SHARED[name]
    with Http(served.http) as http, served.connect() as client:
        request = {"cmd": name, "reqId": "mine"}
        example = filled(operation.example, prepare(http, name, tmp_path))
        over_tcp = client.ask({**request, **example})
        assert (over_tcp["ok"], over_tcp["reqId"]) == (True, "mine"), over_tcp
        example = filled(operation.example, prepare(http, name, tmp_path))
        over_http = http.post("/v1/commands", **request, **example)
        assert shape(over_http) == shape(over_tcp)


@pytest.mark.parametrize("name", SHARED)
def test_a_refusal_is_the_same_over_tcp_and_http(name: str, served: Server) -> None:
    with Http(served.http) as http, served.connect() as client:
        over_tcp = client.ask({"cmd": name, "surprise": 1})
        over_http = http.ask("POST", "/v1/commands", {"cmd": name, "surprise": 1})
    assert over_tcp["ok"] is False
    assert (over_http.status, over_http.json["error"]) == (400, over_tcp["error"])
    assert over_tcp["error"]["code"] == "invalid"


def shape(value: Any) -> Any:
    """Names of fields at every level; the items of a list as the set of theirs."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted({repr(shape(each)) for each in value})
    return type(value).__name__
