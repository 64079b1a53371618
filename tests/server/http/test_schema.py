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

from forebay.server.http.operation import Bound
from forebay.server.http.routes import ROUTES
from tests.server.http.examples import fields_of
from tests.server.http.talking import Http, at, bearer
from tests.serving import Server

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


ADMIN = "of-the-admin-of-this-test"


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    """A server where nobody waits for long, whatever tokens are made up."""
    with Server("--store", "memory:", "--wait-ms-max", "1", "--admin-token", ADMIN) as running:
        yield running


@pytest.fixture(scope="module")
def schema(served: Server) -> Any:
    return schemathesis.openapi.from_url(f"http://{served.http}/openapi.json", headers=bearer(ADMIN))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as kept:
        kept.headers.update(bearer(ADMIN))
        yield kept


def can_be_wrong(bound: Bound) -> bool:
    """Whether there is anything in a request that could be otherwise than the document says."""
    if bound.name == "Incoming":
        return False  # whatever it is, it is taken
    return bound.route.has_body or bool(fields_of(bound))


WAYS = [(each, GenerationMode.POSITIVE) for each in ROUTES] + [
    (each, GenerationMode.NEGATIVE) for each in ROUTES if can_be_wrong(each)
]


UNLIKELY = {
    *("Ack", "Nack", "Release", "Extend", "Transact", "Push", "PushFlow", "ReadLog", "Bulk", "Seek"),
    *("Cancel", "Promote", "Delay", "Prioritise", "Discard", "SetProgress", "AddPartial"),
    *("PutCron", "WriteValues", "RegisterWebhook", "DeleteWebhook", "Command", "Backup"),
    *("Stage", "Adopt", "Unstage", "RevokeToken", "TellWorker"),
}
"""Operations that want what can not be made up, such as a lease, or fields that go together."""


def prepare(http: Http, queue: str) -> dict[str, str]:
    """Something for everyone to find; what paths may name."""
    http.put(at(queue), options={"max_attempts": 1})
    http.push(queue, "dead")
    http.post("/v1/nack", lease=http.pop(queue)["lease"], error="no")
    http.post(f"{at(queue)}/messages", payload="waits", tags=["blue"], headers={"a": "b"}, job_id=queue)
    http.put(f"/v1/groups/{queue}/audit")
    http.put(f"/v1/crons/{queue}", queue="ticks", message={"payload": 1}, every_ms=3_600_000)
    http.put(f"/v1/limits/{queue}", concurrency=5)
    http.put(f"/v1/kv/users/{queue}", value=1)
    http.put("/v1/tenants/acme", suspended=False)
    return {
        "queue": queue,
        "group": "audit",
        "name": queue,
        "key": f"users/{queue}",
        "job_id": queue,
        "stage": "s",
        "tenant": "acme",
        "id": str(http.push(queue, 1)),
    }


@pytest.mark.parametrize(("bound", "mode"), WAYS, ids=lambda each: each.name)
def test_answers_are_what_the_document_says(
    bound: Bound, mode: GenerationMode, served: Server, schema: Any, session: requests.Session
) -> None:
    made_up = schema[bound.route.path][bound.route.method].as_strategy(generation_mode=mode)
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS
    with Http(served.http, ADMIN) as http:
        known = prepare(http, f"{bound.name}-{mode.name}")
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

    try:
        check()
    finally:
        if bound.name == "Hold":
            with Http(served.http, ADMIN) as http:
                http.post("/v1/hold", held=False)
    if mode is GenerationMode.POSITIVE and bound.name not in UNLIKELY:
        assert 200 in seen, seen
