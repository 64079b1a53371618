"""The OpenAPI document and the server agree: requests made up from the one are answered as it says."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies as st
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.generation import GenerationMode

from forebay.server.http.operation import Operation
from forebay.server.http.routes import OPERATIONS
from tests.server.http.talking import Http
from tests.server.http.test_operations import prepare
from tests.serving import Server

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    """A server where nobody waits for long, with a queue that has something in it."""
    with Server("--store", "memory:", "--wait-ms-max", "1") as running:
        yield running


@pytest.fixture(scope="module")
def schema(served: Server) -> Any:
    return schemathesis.openapi.from_url(f"http://{served.http}/openapi.json")


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as kept:
        yield kept


def can_be_wrong(operation: Operation) -> bool:
    """Whether there is anything in a request that could be otherwise than the document says."""
    if operation.name == "Incoming":
        return False  # whatever it is, it is taken
    return operation.has_body or bool(operation.request.__struct_fields__)


WAYS = [(each, GenerationMode.POSITIVE) for each in OPERATIONS] + [
    (each, GenerationMode.NEGATIVE) for each in OPERATIONS if can_be_wrong(each)
]


UNLIKELY = {
    *("Ack", "Nack", "Extend", "Transaction", "Cancel", "Push", "ReadLog", "Bulk", "Seek"),
    *("PutCron", "WriteValues", "RegisterWebhook", "DeleteWebhook", "Command"),
}
"""Operations that want what can not be made up, such as a lease, or fields that go together."""


@pytest.mark.parametrize(("operation", "mode"), WAYS, ids=lambda each: each.name)
def test_answers_are_what_the_document_says(
    operation: Operation, mode: GenerationMode, served: Server, schema: Any, session: requests.Session
) -> None:
    made_up = schema[operation.path][operation.method].as_strategy(generation_mode=mode)
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS
    name = f"{operation.name}-{mode.name}"
    known = {"queue": name, "group": "audit", "name": name, "key": f"users/{name}"}
    with Http(served.http) as http:
        prepare(http, name)
        known["id"] = str(http.push(name, 1))
    seen: list[int] = []

    @settings(
        max_examples=15,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=made_up, is_there=st.booleans())
    def check(case: Any, is_there: bool) -> None:
        if is_there:
            case.path_parameters = {name: known[name] for name in case.path_parameters}
        answer = case.call_and_validate(session=session, checks=checks)
        seen.append(answer.status_code)

    check()
    if mode is GenerationMode.POSITIVE and operation.name not in UNLIKELY:
        assert 200 in seen, seen
