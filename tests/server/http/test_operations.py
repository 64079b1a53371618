"""Every operation of the table is asked for once, and answers what the OpenAPI document says it does."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forebay.server.http.operation import Operation
from forebay.server.http.routes import OPERATIONS
from tests.server.http.talking import Answer, Http, at

Example = Callable[[Http, str], Answer]


def asking(method: str, path: str, body: Any = None, **query: Any) -> Example:
    """Ask of a queue that has a message that waits, one that is leased, a dead letter and a group."""

    def ask(http: Http, queue: str) -> Answer:
        return http.ask(method, path.format(queue=queue), body, **query)

    return ask


def of_a_lease(path: str) -> Example:
    def ask(http: Http, queue: str) -> Answer:
        http.push(queue, "leased")
        return http.ask("POST", path, {"lease": http.pop(queue)["lease"]})

    return ask


def of_a_message(path: str) -> Example:
    def ask(http: Http, queue: str) -> Answer:
        return http.ask("GET", f"{at(queue)}{path.format(id=http.push(queue, 1))}")

    return ask


def cancelled(http: Http, queue: str) -> Answer:
    return http.ask("POST", "/v1/cancel", {"ids": [http.push(queue, 1)]})


NOWHERE = {"url": "http://1.1.1.1:9/", "queues": ["nobodys"], "kinds": ["completed"]}
"""A webhook that is never told of anything."""


def of_a_webhook(http: Http, queue: str) -> Answer:
    return http.ask("DELETE", f"/v1/webhooks/{http.post('/v1/webhooks', **NOWHERE)['id']}")


EXAMPLES: dict[str, Example] = {
    "Push": asking("POST", "/v1/queues/{queue}/messages", {"payload": 1}),
    "Browse": asking("GET", "/v1/queues/{queue}/messages", state="waiting"),
    "Pop": asking("POST", "/v1/queues/{queue}/pop", {"count": 2}),
    "Ack": of_a_lease("/v1/ack"),
    "Nack": of_a_lease("/v1/nack"),
    "Extend": of_a_lease("/v1/extend"),
    "Transaction": asking(
        "POST", "/v1/transaction", {"ops": [{"op": "push", "queue": "tx", "messages": [{"payload": 1}]}]}
    ),
    "GetMessage": of_a_message("/messages/{id}"),
    "Result": of_a_message("/messages/{id}/result"),
    "Cancel": cancelled,
    "Bulk": asking("POST", "/v1/queues/{queue}/bulk", {"action": "cancel"}),
    "ReadLog": asking("GET", "/v1/queues/{queue}/log", offset=0),
    "ListQueues": asking("GET", "/v1/queues"),
    "Describe": asking("GET", "/v1/queues/{queue}"),
    "Configure": asking("PUT", "/v1/queues/{queue}", {"options": {"lease_ms": 1_000}}),
    "Delete": asking("DELETE", "/v1/queues/{queue}"),
    "Pause": asking("POST", "/v1/queues/{queue}/pause", {}),
    "Resume": asking("POST", "/v1/queues/{queue}/resume", {}),
    "Drain": asking("POST", "/v1/queues/{queue}/drain", {}),
    "Purge": asking("POST", "/v1/queues/{queue}/purge", {}),
    "Seek": asking("POST", "/v1/queues/{queue}/seek", {"to": "new", "group": "audit"}),
    "ListDead": asking("GET", "/v1/queues/{queue}/dead"),
    "RequeueDead": asking("POST", "/v1/queues/{queue}/dead", {}),
    "PurgeDead": asking("DELETE", "/v1/queues/{queue}/dead"),
    "ListGroups": asking("GET", "/v1/groups/{queue}"),
    "Group": asking("GET", "/v1/groups/{queue}/audit"),
    "PutGroup": asking("PUT", "/v1/groups/{queue}/new", {"from": "new"}),
    "DeleteGroup": asking("DELETE", "/v1/groups/{queue}/audit"),
    "ListCrons": asking("GET", "/v1/crons"),
    "GetCron": asking("GET", "/v1/crons/{queue}"),
    "PutCron": asking(
        "PUT",
        "/v1/crons/{queue}",
        {"queue": "ticks", "message": {"payload": 1, "tags": ["a"]}, "schedule": "@yearly"},
    ),
    "DeleteCron": asking("DELETE", "/v1/crons/{queue}"),
    "ListValues": asking("GET", "/v1/kv", prefix="users"),
    "WriteValues": asking("POST", "/v1/kv", {"mutations": [{"kind": "sum", "key": ["n"], "value": 1}]}),
    "GetValue": asking("GET", "/v1/kv/users/{queue}"),
    "PutValue": asking("PUT", "/v1/kv/users/{queue}", {"value": [1]}),
    "DeleteValue": asking("DELETE", "/v1/kv/users/{queue}"),
    "ListWebhooks": asking("GET", "/v1/webhooks"),
    "RegisterWebhook": asking("POST", "/v1/webhooks", NOWHERE),
    "DeleteWebhook": of_a_webhook,
    "Incoming": asking("POST", "/v1/webhooks/{queue}", {"anything": 1}),
    "Stats": asking("GET", "/v1/stats"),
    "Command": asking("POST", "/v1/commands", {"cmd": "CLEARCONCURRENCY", "queue": "free"}),
}


def prepare(http: Http, queue: str) -> None:
    """Something for everyone to find."""
    http.put(at(queue), options={"max_attempts": 1})
    http.push(queue, "dead")
    http.post("/v1/nack", lease=http.pop(queue)["lease"], error="no")
    http.push(queue, "waits", tags=["blue"], headers={"a": "b"})
    http.put(f"/v1/groups/{queue}/audit")
    http.put(f"/v1/crons/{queue}", queue="ticks", message={"payload": 1}, every_ms=3_600_000)
    http.put(f"/v1/kv/users/{queue}", value=1)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_answers_what_its_schema_says(operation: Operation, http: Http, queue: str) -> None:
    asked: list[tuple[str, str]] = []
    send = http.send

    def watched(method: str, path: str, *also: Any) -> Answer:
        asked.append((method, path))
        return send(method, path, *also)

    prepare(http, queue)
    http.send = watched  # type: ignore[method-assign,assignment]
    answer = EXAMPLES[operation.name](http, queue)
    method, path = asked[-1]
    assert method == operation.method
    assert fits(path.partition("?")[0], operation.path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    msgspec.json.decode(answer.body, type=operation.answer)
    unknown = set(answer.json) - {each.encode_name for each in msgspec.structs.fields(operation.answer)}
    assert not unknown


def fits(path: str, template: str) -> bool:
    """Whether a path is one of those that a template means."""
    given, wanted = path.split("/"), template.split("/")
    if wanted[-1] in ("{key}",):
        given = given[: len(wanted)]
    return len(given) == len(wanted) and all(
        want == have or want.startswith("{") for want, have in zip(wanted, given, strict=True)
    )


def test_no_two_operations_have_one_name() -> None:
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS) == len(EXAMPLES)


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.has_body and each.name not in ("Incoming", "Command")],
    ids=lambda operation: operation.name,
)
def test_a_field_that_nobody_knows_is_refused_by_every_body(
    operation: Operation, http: Http, queue: str
) -> None:
    path = operation.path.format(queue=queue, group="g", name="n", key="k", id=1)
    answer = http.ask(operation.method, path, {"surprise": 1})
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "surprise")
    assert "known here are" in answer.details["accepted"] or "nothing is known" in answer.details["accepted"]


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if not each.has_body], ids=lambda operation: operation.name
)
def test_a_field_that_nobody_knows_is_refused_by_every_query(
    operation: Operation, http: Http, queue: str
) -> None:
    path = operation.path.format(queue=queue, group="g", name="n", key="k", id=1)
    answer = http.ask(operation.method, path, surprise=1)
    assert (answer.status, answer.code, answer.details["field"]) == (400, "invalid", "surprise")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_method_that_is_not_supported_is_told_what_is(operation: Operation, http: Http, queue: str) -> None:
    path = operation.path.format(queue=queue, group="g", name="n", key="k", id=1)
    here = {each.method for each in OPERATIONS if each.path == operation.path}
    here |= {"HEAD"} if "GET" in here else set()
    for method in ("PATCH", "OPTIONS", *({"GET", "POST", "PUT", "DELETE"} - here)):
        answer = http.ask(method, path)
        assert (answer.status, answer.code) == (405, "unsupported")
        assert set(answer.headers["allow"].split(", ")) == here
