"""The OpenAPI document, made from the classes that requests are checked by and answers are made of."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core.errors import CODES
from penstock.server.http.base import Operation
from penstock.server.http.endpoints import Errors
from penstock.server.http.pushes import Message, Push
from penstock.server.http.streams import Streamed
from penstock.server.http.webhooks import Incoming

PLACES = {
    "queue": "Name of the queue: 1 to 256 characters of A-Z a-z 0-9 _ . -",
    "id": "Id of the message.",
    "group": "Name of the group.",
    "name": "Name of the cron; the id of a webhook; the queue that an incoming one is pushed to.",
    "key": "The key: its parts with / between them.",
}
"""What stands in the places of paths."""
STATUSES = {
    "400": "Malformed, or breaks a limit.",
    "403": "Not allowed.",
    "404": "There is no such thing, or it is no longer kept.",
    "405": "The method is not supported here.",
    "409": "What was asked for is not so: a lease is not live, a message is not leased.",
    "413": "The body is too large.",
    "501": "Not supported.",
    "503": "Try again after Retry-After.",
}
REF = "#/components/schemas/{name}"


def document(operations: list[Operation], version: str) -> dict[str, Any]:
    """The whole document."""
    kinds: list[Any] = [Errors, Message, Streamed]
    for each in operations:
        kinds += [each.request, each.answer]
    _, components = msgspec.json.schema_components(kinds, ref_template=REF)
    queries = {each.request for each in operations if not each.has_body}
    for kind in queries:
        components.pop(kind.__name__, None)
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "A multi-tenant message and job queue. Times are integers in milliseconds. Errors "
            f"have a stable code: {', '.join(CODES)}.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _about(operation.request),
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": {
            "200": {"description": _about(operation.answer), "content": _json(_answers(operation))},
            **{
                status: {"description": text, "content": _json({"$ref": REF.format(name="Errors")})}
                for status, text in STATUSES.items()
            },
        },
    }
    if operation.has_body:
        content = _json({"$ref": REF.format(name=operation.name)})
        if operation.request is Push:
            content["application/x-ndjson"] = {"schema": {"$ref": REF.format(name="Message")}}
        elif operation.request is Incoming:
            content = {
                **_json({}),
                "text/plain": {"schema": {"type": "string"}},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            }
        found["requestBody"] = {"required": _needs_body(operation.request), "content": content}
    return found


def _answers(operation: Operation) -> dict[str, Any]:
    one = {"$ref": REF.format(name=operation.answer.__name__)}
    if operation.request is Push:
        return {"anyOf": [one, {"$ref": REF.format(name="Streamed")}]}
    return one


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _needs_body(kind: type[Struct]) -> bool:
    return any(each.required for each in msgspec.structs.fields(kind)) or kind is Push


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PLACES[name],
            "schema": {"type": "string"},
        }
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    if not operation.has_body:
        (schema,), components = msgspec.json.schema_components([operation.request], ref_template=REF)
        whole = components[schema["$ref"].rpartition("/")[2]]
        required = whole.get("required", [])
        for name, each in whole["properties"].items():
            found.append({"name": name, "in": "query", "required": name in required, "schema": each})
    return found


def _about(kind: type[Struct]) -> str:
    return " ".join((kind.__doc__ or "").replace("``", "`").split())
