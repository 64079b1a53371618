"""The OpenAPI document, generated from the classes of requests and replies."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from forebay.core.errors import CODES
from forebay.server.http.docs import examples
from forebay.server.http.docs.fields import about, choices
from forebay.server.http.endpoint import Errors
from forebay.server.http.operation import Operation, View
from forebay.server.http.operations.push import Message, Push
from forebay.server.http.operations.webhooks import Incoming
from forebay.server.http.push_stream import Streamed

PLACES = {
    "queue": "Name of the queue: 1 to 256 characters of A-Z a-z 0-9 _ . -",
    "id": "Id of the message.",
    "group": "Name of the group.",
    "name": "Name of the cron.",
    "key": "The key: its parts with / between them.",
    "DeleteWebhook.name": "Id of the webhook.",
    "Incoming.name": "Name of the queue that it is pushed to.",
}
"""Descriptions of path parameters, by name, or by operation and name."""
STATUSES = {
    400: "Malformed, or breaks a limit.",
    403: "Not allowed: it is the request of a page of another origin, or not signed.",
    404: "There is no such thing, or it is no longer kept.",
    408: "The request did not come in time.",
    409: "What was asked for is not so: a lease is not live, say, or a queue is being deleted.",
    413: "The body is too large.",
    431: "The request line and headers are too large.",
    500: "What is kept of it is damaged.",
    501: "Not supported: the body is packed in another way than gzip, or the server keeps no events.",
    503: "Try again after Retry-After: the queue is full, or the server is busy.",
}
ALWAYS = (400, 408, 431, 503)
"""Statuses that any request may get."""
SETTLING = ("Ack", "Nack", "Extend", "Transaction", "Cancel")
"""Operations that name messages or queues in their bodies."""
REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation], views: Sequence[View], version: str) -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    for view in views:
        paths.setdefault(view.path, {})["get"] = _view(view)
    return {
        "openapi": "3.1.0",
        "servers": [{"url": "/"}],
        "info": {
            "title": "Forebay",
            "version": version,
            "description": "A multi-tenant message and job queue. Times are integers in milliseconds. Errors "
            f"have a stable code: {', '.join(CODES)}.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(operations, views)},
    }


def _schemas(operations: Sequence[Operation], views: Sequence[View]) -> dict[str, Any]:
    kinds: list[Any] = [Errors, Message, Streamed]
    for each in operations:
        kinds += [each.request, each.answer] if each.has_body else [each.answer]
    kinds += [view.answer for view in views if view.answer is not None]
    kinds = [kind for kind in kinds if kind is not Incoming]
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in _structs(kinds):
        _explain(kind, components[kind.__name__])
    return components


def _structs(kinds: Iterable[Any]) -> Iterator[type[Struct]]:
    """Yield all Struct classes that some types are made of."""
    seen: set[Any] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if not isinstance(kind, type) or not issubclass(kind, Struct):
            waiting += get_args(kind)
        elif kind not in seen:
            seen.add(kind)
            waiting += [each.type for each in msgspec.structs.fields(kind)]
            yield kind


def _explain(kind: type[Struct], schema: dict[str, Any]) -> None:
    """Add descriptions and accepted values to the fields of a schema."""
    for name, each in schema["properties"].items():
        if told := about(kind, name):
            each["description"] = told
        if can_be := choices(kind, name):
            _limit(each, list(can_be))
    if "description" in schema:
        schema["description"] = _text(schema["description"])


def _limit(schema: dict[str, Any], can_be: list[str]) -> None:
    if schema.get("type") == "string":
        schema["enum"] = can_be
    for each in (*schema.get("anyOf", ()), schema.get("items", {})):
        if each:
            _limit(each, can_be)


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _text(operation.request.__doc__),
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": {
            "200": {"description": _text(operation.answer.__doc__), "content": _json(_answers(operation))},
            **_errors(_statuses(operation)),
        },
    }
    if operation.has_body:
        content = _json({"$ref": REF.format(name=operation.name)})
        if operation.request is Push:
            content["application/x-ndjson"] = {"schema": {"$ref": REF.format(name=Message.__name__)}}
        elif operation.request is Incoming:
            content = {
                **_json({}),
                "text/plain": {"schema": {"type": "string"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            }
        content["application/json"]["example"] = examples.BODIES.get(operation.name, {})
        found["requestBody"] = {"required": _needs_body(operation.request), "content": content}
    return found


def _view(view: View) -> dict[str, Any]:
    if view.answer is None or view.events:
        content: dict[str, Any] = {view.kind: {"schema": {"type": "string"}}}
    else:
        content = _json({"$ref": REF.format(name=view.answer.__name__)})
    found: dict[str, Any] = {
        "operationId": view.name,
        "summary": view.summary,
        "description": view.about,
        "tags": [view.tag],
        "parameters": _parameters(view),
        "responses": {
            "200": {"description": view.summary, "content": content},
            **_errors({*view.statuses, 408, 431, 503}),
        },
    }
    if view.answer is not None and view.events:
        data = {"$ref": REF.format(name=view.answer.__name__)}
        content[view.kind]["x-events"] = dict.fromkeys(view.events, data)
    elif view.answer is not None and view.path == "/readyz":
        found["responses"]["503"]["content"] = content
    return found


def _statuses(operation: Operation) -> set[int]:
    """Return the error statuses of an operation."""
    found = set(ALWAYS)
    if operation.method != "GET":
        found |= {403, 409}
    if operation.has_body:
        found |= {413, 501}
    if "{" in operation.path or operation.name in SETTLING:
        found.add(404)
    if "{queue}" in operation.path or operation.name in SETTLING:
        found |= {409, 500}
    return found


def _errors(statuses: Iterable[int]) -> dict[str, Any]:
    content = _json({"$ref": REF.format(name=Errors.__name__)})
    return {str(each): {"description": STATUSES[each], "content": content} for each in sorted(statuses)}


def _answers(operation: Operation) -> dict[str, Any]:
    one = {"$ref": REF.format(name=operation.answer.__name__)}
    if operation.request is Push:
        return {"anyOf": [one, {"$ref": REF.format(name=Streamed.__name__)}]}
    return one


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _needs_body(kind: type[Struct]) -> bool:
    return any(each.required for each in msgspec.structs.fields(kind)) or kind is Push


def _of(table: dict[str, str], name: str, place: str) -> str:
    return table.get(f"{name}.{place}") or table[place]


def _parameters(asked: Operation | View) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": place,
            "in": "path",
            "required": True,
            "description": _of(PLACES, asked.name, place),
            "schema": {"type": "string"},
            "example": _of(examples.PLACES, asked.name, place),
        }
        for place in re.findall(r"\{(\w+)\}", asked.path)
    ]
    if isinstance(asked, View) or not asked.has_body:
        (schema,), components = msgspec.json.schema_components([asked.request], ref_template=REF)
        whole = components[schema["$ref"].rpartition("/")[2]]
        _explain(asked.request, whole)
        required = whole.get("required", [])
        for name, each in whole["properties"].items():
            described = {"description": told} if (told := each.pop("description", "")) else {}
            one = {"name": name, "in": "query", "required": name in required, **described, "schema": each}
            if name in examples.QUERIES.get(asked.name, {}):
                one["example"] = examples.QUERIES[asked.name][name]
            found.append(one)
    return found


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").replace("``", "`").split())
