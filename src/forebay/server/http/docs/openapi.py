"""The OpenAPI document, generated from the classes of requests and replies."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from forebay.core.errors import CODES
from forebay.server.decode_errors import HIDDEN
from forebay.server.http.docs.fields import about, choices
from forebay.server.http.endpoint import Errors
from forebay.server.http.incoming import Incoming
from forebay.server.http.operation import UNSAID, Bound, View
from forebay.server.http.push_stream import Streamed
from forebay.wire.operation import Answer, Request
from forebay.wire.operations.push import Item, Push

PLACES = {
    "queue": "Name of the queue: 1 to 256 characters of A-Z a-z 0-9 _ . -",
    "id": "Id of the message.",
    "group": "Name of the group.",
    "name": "Name of the cron.",
    "PutLimit.name": "Name of the limit.",
    "DeleteLimit.name": "Name of the limit.",
    "job_id": "The job_id it was pushed with.",
    "stage": "Name of the stage.",
    "key": "The key: its parts with / between them.",
    "DeleteWebhook.id": "Id of the webhook.",
    "tenant": "Name of the tenant.",
    "RevokeToken.id": "Id of the token.",
    "Incoming.id": "Name of the queue that it is pushed to.",
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
SETTLING = (
    *("Ack", "Nack", "Release", "Extend", "Transact", "Cancel"),
    *("Promote", "Delay", "Prioritise", "Discard", "AddValue"),
)
"""Operations that name messages or queues in their bodies."""
REF = "#/components/schemas/{name}"
CARRYING = "forebay.server.operations."
"""Module names of classes that carry out what others declare."""


def document(operations: Sequence[Bound], views: Sequence[View], version: str) -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.route.path, {})[each.route.method.lower()] = _operation(each)
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


def _schemas(operations: Sequence[Bound], views: Sequence[View]) -> dict[str, Any]:
    kinds: list[Any] = [Errors, Item, Streamed]
    for each in operations:
        answer = each.operation.answer
        kinds += [each.kind, answer] if each.route.has_body else [answer]
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
    """Add descriptions and accepted values to the fields of a schema; leave out what HTTP does not carry."""
    _leave_out(kind, schema)
    for name, each in schema["properties"].items():
        if told := about(kind, name):
            each["description"] = told
        if can_be := choices(kind, name):
            _limit(each, list(can_be))
    schema["description"] = _about(kind)


def _about(kind: type[Struct]) -> str:
    """Return the docstring of the class that declares what another one carries."""
    docs = (each.__doc__ for each in kind.__mro__ if not each.__module__.startswith(CARRYING))
    return _text(next(filter(None, docs)))


def _leave_out(kind: type[Struct], schema: dict[str, Any]) -> None:
    unsaid: tuple[str, ...] = ("reqId",)
    if issubclass(kind, Answer) and "cmd" not in schema["properties"]:
        unsaid = ("ok", "reqId")
    elif issubclass(kind, Request):
        unsaid = UNSAID
    for name in list(schema["properties"]):
        if name.startswith(HIDDEN) or name in unsaid:
            del schema["properties"][name]
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name in schema["properties"]]


def _limit(schema: dict[str, Any], can_be: list[str]) -> None:
    if schema.get("type") == "string":
        schema["enum"] = can_be
    for each in (*schema.get("anyOf", ()), schema.get("items", {})):
        if each:
            _limit(each, can_be)


def _operation(bound: Bound) -> dict[str, Any]:
    operation, route = bound.operation, bound.route
    found: dict[str, Any] = {
        "operationId": bound.name,
        "summary": bound.summary,
        "description": _text(operation.request.__doc__),
        "tags": [operation.tag],
        "parameters": _parameters(bound),
        "responses": {
            "200": {"description": _text(operation.answer.__doc__), "content": _json(_answers(bound))},
            **_errors(_statuses(bound)),
        },
    }
    if route.has_body:
        content = _json({"$ref": REF.format(name=bound.kind.__name__)})
        if operation.request is Push:
            content["application/x-ndjson"] = {"schema": {"$ref": REF.format(name=Item.__name__)}}
        elif operation.request is Incoming:
            content = {
                **_json({}),
                "text/plain": {"schema": {"type": "string"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            }
        example = {name: value for name, value in operation.example.items() if name not in route.places}
        content["application/json"]["example"] = example
        found["requestBody"] = {"required": _needs_body(bound.kind), "content": content}
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


def _statuses(bound: Bound) -> set[int]:
    """Return the error statuses of an operation."""
    found = set(ALWAYS)
    if bound.route.method != "GET":
        found |= {403, 409}
    if bound.route.has_body:
        found |= {413, 501}
    if bound.route.places or bound.name in SETTLING:
        found.add(404)
    if {"queue", "id"} & set(bound.route.places) or bound.name in SETTLING:
        found |= {409, 500}
    if bound.operation.tag in ("events", "webhooks"):
        found.add(501)
    return found


def _errors(statuses: Iterable[int]) -> dict[str, Any]:
    content = _json({"$ref": REF.format(name=Errors.__name__)})
    return {str(each): {"description": STATUSES[each], "content": content} for each in sorted(statuses)}


def _answers(bound: Bound) -> dict[str, Any]:
    one = {"$ref": REF.format(name=bound.operation.answer.__name__)}
    if bound.operation.request is Push:
        return {"anyOf": [one, {"$ref": REF.format(name=Streamed.__name__)}]}
    return one


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _needs_body(kind: type[Struct]) -> bool:
    return any(each.required for each in msgspec.structs.fields(kind)) or issubclass(kind, Push)


def _of(table: dict[str, str], name: str, place: str) -> str:
    return table.get(f"{name}.{place}") or table[place]


def _parameters(asked: Bound | View) -> list[dict[str, Any]]:
    path = asked.path if isinstance(asked, View) else asked.route.path
    examples = VIEW_EXAMPLES if isinstance(asked, View) else asked.operation.example
    found: list[dict[str, Any]] = [
        {
            "name": place,
            "in": "path",
            "required": True,
            "description": _of(PLACES, asked.name, place),
            "schema": {"type": "string"},
            "example": _text_of(examples[place]),
        }
        for place in re.findall(r"\{(\w+)\}", path)
    ]
    if isinstance(asked, View) or not asked.route.has_body:
        kind = asked.request if isinstance(asked, View) else asked.kind
        (schema,), components = msgspec.json.schema_components([kind], ref_template=REF)
        whole = components[schema["$ref"].rpartition("/")[2]]
        _explain(kind, whole)
        required = whole.get("required", [])
        for name, each in whole["properties"].items():
            described = {"description": told} if (told := each.pop("description", "")) else {}
            one = {"name": name, "in": "query", "required": name in required, **described, "schema": each}
            if name in examples:
                one["example"] = _text_of(examples[name])
            found.append(one)
    return found


VIEW_EXAMPLES: dict[str, Any] = {"queue": "emails", "max": 10, "kind": "dead"}


def _text_of(value: Any) -> Any:
    """Return a value as it stands in a URL: a key, or a list of one, as its text."""
    return "/".join(map(str, value)) if isinstance(value, list) else value


def _text(docstring: str | None) -> str:
    return " ".join((docstring or "").replace("``", "`").split())
