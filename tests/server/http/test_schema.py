"""The OpenAPI document and the server agree: requests made up from the one are answered as it says."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.generation import GenerationMode

from penstock.server.http.base import Operation
from penstock.server.http.operations import OPERATIONS
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


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.name)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_answers_are_what_the_document_says(
    operation: Operation, mode: GenerationMode, schema: Any, session: requests.Session
) -> None:
    made_up = schema[operation.path][operation.method].as_strategy(generation_mode=mode)
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS

    @settings(
        max_examples=20,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=made_up)
    def check(case: Any) -> None:
        case.call_and_validate(session=session, checks=checks)

    check()
