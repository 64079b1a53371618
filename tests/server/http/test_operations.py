"""Every operation is asked for once on each of its routes, and answers what the OpenAPI document says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES
from forebay.wire.table import OPERATIONS
from tests.server.http.examples import call, fields_of, path_of, prepare
from tests.server.http.talking import Http
from tests.serving import Server

PLACES = {"group": "g", "name": "n", "key": "k", "id": 1, "job_id": "j", "stage": "s", "tenant": "t"}


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.parametrize("bound", ROUTES, ids=lambda bound: bound.name)
def test_every_operation_answers_what_its_schema_says(bound: Bound, served: Server, tmp_path: Path) -> None:
    with Http(served.http) as http:
        answer = call(http, bound, prepare(http, bound.operation.name, tmp_path))
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    kind = bound.operation.answer
    msgspec.json.decode(answer.body, type=kind)
    if bound.name != "Command":  # which answers whatever was asked for
        unknown = set(answer.json) - {each.encode_name for each in msgspec.structs.fields(kind)}
        assert not unknown
        assert not {"ok", "reqId"} & set(answer.json)


def test_no_two_routes_have_one_name_or_one_place() -> None:
    assert len({each.name for each in ROUTES}) == len(ROUTES)
    assert len({(each.route.method, each.route.path) for each in ROUTES}) == len(ROUTES)
    assert {id(each.operation) for each in ROUTES} >= {id(each) for each in OPERATIONS}


@pytest.mark.parametrize(
    "bound",
    [each for each in ROUTES if each.route.has_body and each.name not in ("Incoming", "Command")],
    ids=lambda bound: bound.name,
)
def test_a_field_that_nobody_knows_is_refused_by_every_body(bound: Bound, http: Http, queue: str) -> None:
    answer = http.ask(bound.route.method, path_of(bound, queue=queue, **PLACES), {"surprise": 1})
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "surprise")
    assert "known here are" in answer.details["accepted"] or "nothing is known" in answer.details["accepted"]


@pytest.mark.parametrize(
    "bound",
    [each for each in ROUTES if each.route.places and each.name not in ("Incoming", "Command")],
    ids=lambda bound: bound.name,
)
def test_what_stands_in_the_path_is_not_said_again(bound: Bound, http: Http, queue: str) -> None:
    path = path_of(bound, queue=queue, **PLACES)
    for place in bound.route.places:
        assert place not in fields_of(bound)
        given: dict[str, Any] = {place: "other"}
        if bound.route.has_body:
            answer = http.ask(bound.route.method, path, given)
        else:
            answer = http.ask(bound.route.method, path, **given)
        assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", place)


@pytest.mark.parametrize(
    "bound", [each for each in ROUTES if not each.route.has_body], ids=lambda bound: bound.name
)
def test_a_field_that_nobody_knows_is_refused_by_every_query(bound: Bound, http: Http, queue: str) -> None:
    answer = http.ask(bound.route.method, path_of(bound, queue=queue, **PLACES), surprise=1)
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "surprise")


@pytest.mark.parametrize("bound", ROUTES, ids=lambda bound: bound.name)
def test_a_method_that_is_not_supported_is_told_what_is(bound: Bound, http: Http, queue: str) -> None:
    path = path_of(bound, queue=queue, **PLACES)
    here = {each.route.method for each in ROUTES if each.route.path == bound.route.path}
    here |= {"HEAD"} if "GET" in here else set()
    for method in ("PATCH", "OPTIONS", *({"GET", "POST", "PUT", "DELETE"} - here)):
        answer = http.ask(method, path)
        assert (answer.status, answer.code) == (405, "unsupported")
        assert set(answer.headers["allow"].split(", ")) == here
