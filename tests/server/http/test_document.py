"""The OpenAPI document is whole, the reference page shows all of it, and what they show works."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from starlette.routing import Route

from forebay.server.http.docs import fields
from forebay.server.http.docs.openapi import STATUSES, document
from forebay.server.http.docs.page import curl, page
from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES, VIEWS
from tests.server.http.examples import fields_of, prepare
from tests.server.http.streaming import Here, Stream
from tests.server.http.talking import Http
from tests.serving import Server

DOCUMENT = document(ROUTES, VIEWS, "0")
PAGE = page(DOCUMENT)
SCHEMAS = DOCUMENT["components"]["schemas"]
ASKED = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
NAMES = [operation["operationId"] for _, _, operation in ASKED]
REQUESTS = {bound.name: bound.operation.name for bound in ROUTES}
"""Names of the requests over TCP."""


def inside(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inside(each)


def test_the_document_is_valid_openapi() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_every_route_and_every_view_is_in_the_document_once() -> None:
    assert sorted(NAMES) == sorted([each.name for each in ROUTES] + [each.name for each in VIEWS])


@pytest.mark.parametrize("bound", ROUTES, ids=lambda bound: bound.name)
def test_the_document_has_the_fields_that_are_taken(bound: Bound) -> None:
    operation = DOCUMENT["paths"][bound.route.path][bound.route.method.lower()]
    found = {
        place: {each["name"] for each in operation["parameters"] if each["in"] == place}
        for place in ("path", "query")
    }
    assert found["path"] == set(bound.route.places)
    if not bound.route.has_body:
        assert found["query"] == fields_of(bound)
        return
    assert found["query"] == set()
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    if bound.name == "Incoming":
        assert schema == {}
        return
    properties = SCHEMAS[schema["$ref"].rpartition("/")[2]]["properties"]
    assert set(properties) == fields_of(bound)


def test_every_reference_leads_to_a_schema_and_no_schema_is_unused() -> None:
    used = {each["$ref"] for each in inside(DOCUMENT) if "$ref" in each}
    assert used == {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_every_field_is_explained() -> None:
    for name, schema in SCHEMAS.items():
        assert schema["description"], name
        for field, each in schema["properties"].items():
            assert each.get("description"), f"{name}.{field}"
    for path, _, operation in ASKED:
        assert operation["description"], path
        for each in operation["parameters"]:
            assert each.get("description"), (path, each["name"])


def test_every_word_that_is_explained_is_used() -> None:
    told = {each["description"] for each in inside(DOCUMENT) if isinstance(each.get("description"), str)}
    assert set(fields.WORDS.values()) <= told
    can_be = {tuple(each["enum"]) for each in inside(DOCUMENT) if "enum" in each}
    assert set(map(tuple, fields.CHOICES.values())) <= can_be


def test_options_of_queues_are_explained_where_they_are_kept() -> None:
    options = SCHEMAS["OptionsIn"]["properties"]
    assert options["max_size"]["description"].startswith(
        "Most messages that may be waiting, delayed, parked or active;"
    )
    assert options["ordering"]["enum"] == ["message", "partition"]


def test_every_status_is_that_of_some_operation_and_every_error_looks_alike() -> None:
    seen = {int(status) for _, _, operation in ASKED for status in operation["responses"]} - {200}
    assert seen == set(STATUSES)
    for _, _, operation in ASKED:
        for status, answer in operation["responses"].items():
            if status != "200" and operation["operationId"] != "Readyz":
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Errors"}


def test_every_path_of_the_server_is_in_the_document() -> None:
    with Here() as here:
        routes = [each for each in here.server.routes if isinstance(each, Route)]
    served = {re.sub(r":path\}", "}", each.path) for each in routes}
    assert served - {"/openapi.json", "/docs"} == set(DOCUMENT["paths"])


# The page.


def test_the_page_needs_nothing_from_outside() -> None:
    links = set(re.findall(r'(?:href|src)="([^"]*)"', PAGE))
    assert all(link == "/openapi.json" or link.startswith("#") for link in links)
    assert not re.search(r"<script [^>]|<link|<img|url\(|@import", PAGE)


def test_the_page_shows_what_lies_in_what() -> None:
    part = PAGE.split('id="Configure"')[1].split('<details id="')[0]
    assert "<summary" in part.partition("OptionsIn</summary>")[0]
    assert "<code>max_size</code>" in part
    assert "<code>per_ms</code>" in part


def test_the_page_links_to_each_of_its_sections() -> None:
    for link in re.findall(r'href="#([^"]*)"', PAGE):
        assert f'<h2 id="{link}">' in PAGE


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.mark.parametrize(("path", "method", "operation"), ASKED, ids=NAMES)
def test_every_example_of_the_page_works(
    path: str, method: str, operation: dict[str, Any], served: Server, tmp_path: Path
) -> None:
    command = curl(path, method, operation)
    with Http(served.http) as http:
        for name, value in prepare(http, REQUESTS.get(operation["operationId"], ""), tmp_path).items():
            command = command.replace(name, value)
        program, *arguments = shlex.split(command)
        assert program == "curl"
        given = dict(pairwise(arguments))
        body = given.get("-d")
        used = given.get("-X", "GET" if body is None else "POST")
        (url,) = (each for each in arguments if each.startswith("http://localhost:8080/"))
        place = url.removeprefix("http://localhost:8080")
        if "-N" in arguments:
            with Stream(served.http, place) as stream:
                assert stream.ready().status == 200
            return
        answer = http.send(used, place, None if body is None else body.encode())
        assert (answer.status, used) == (200, method.upper()), answer
