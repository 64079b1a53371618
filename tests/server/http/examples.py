"""The declared example of every operation, and a server on which it works.

``ID``, ``LEASE``, ``WEBHOOK``, ``TOKEN`` and ``DIRECTORY`` stand for what only a server or its machine knows.
"""

from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from forebay.server.decode_errors import HIDDEN
from forebay.server.http.operation import Bound
from tests.server.http.talking import Answer, Http, at

NOWHERE = "http://1.1.1.1:9/"
"""Where a webhook is never delivered to."""
LEASED = ("PARTIAL", "SETPROGRESS", "LOG")
"""Requests whose message is held by a consumer."""

Known = dict[str, str]

_directories = count(1)


def prepare(http: Http, name: str, home: Path) -> Known:
    """Make all that the example of a request asks for, anew; return what its placeholders stand for."""
    for each in ("emails", "reports"):
        http.ask("DELETE", at(each), force=True)
    for key in ("users/7", "users/count", "visits", "sent"):
        http.ask("DELETE", f"/v1/kv/{key}")
    http.push("emails", 1)
    lease = http.pop("emails")["lease"]
    http.post(f"{at('emails')}/messages", payload=2, job_id="welcome-7", tags=["welcome"], headers={"a": "b"})
    http.put("/v1/groups/emails/audit")
    http.put("/v1/crons/nightly", queue="reports", message={"payload": 1}, every_ms=3_600_000)
    http.put("/v1/limits/smtp", rate_limit=1)
    http.put("/v1/kv/users/7", value=1)
    http.post(f"{at('emails')}/stages/task-1", messages=[1], query="load", batch=1)
    for each in http.get("/v1/webhooks")["webhooks"]:
        http.delete(f"/v1/webhooks/{each['id']}")
    webhook = http.post("/v1/webhooks", url=NOWHERE, queues=["nobodys"])["id"]
    return {
        "ID": str(_message(http, name)),
        "LEASE": lease,
        "WEBHOOK": webhook,
        "TOKEN": http.post("/v1/tenants/acme/tokens", role="read")["id"],
        "DIRECTORY": str(home / f"copy-{next(_directories)}"),
        "https://example.com/hook": NOWHERE,
    }


def _message(http: Http, name: str) -> int:
    """A message in a state that a request can be about."""
    first = http.push("emails", 3, delay_ms=3_600_000 if name == "PROMOTE" else 0)
    if name in LEASED:
        http.pop("emails", 10)
    if name in ("RESULT", "CHILDREN"):
        parent = {"payload": 4, "children": [{"queue": "emails", "payload": 5, "priority": 9}]}
        flow = http.post(f"{at('emails')}/flows", **parent)
        http.post("/v1/ack", ids=[http.pop("emails")["messages"][0]["id"]], result=6)
        first = flow["id"] if name == "CHILDREN" else flow["children"][0]
    return first


def filled(value: Any, known: Known) -> Any:
    """An example with what its placeholders stand for."""
    if isinstance(value, dict):
        return {name: filled(each, known) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, known) for each in value]
    return known.get(value, value) if isinstance(value, str) else value


def fields_of(bound: Bound) -> set[str]:
    """Fields that a body or query may have."""
    names = {each.encode_name for each in msgspec.structs.fields(bound.kind)}
    return {name for name in names if not name.startswith(HIDDEN)}


def path_of(bound: Bound, **places: Any) -> str:
    """Path of a route; a key has / between its parts."""
    return bound.route.path.format(
        **{
            name: "/".join(map(str, value)) if isinstance(value, list) else value
            for name, value in places.items()
        }
    )


def call(http: Http, bound: Bound, known: Known) -> Answer:
    """Send the example of an operation over one of its routes."""
    return send(http, bound, filled(bound.operation.example, known))


def send(http: Http, bound: Bound, request: dict[str, Any]) -> Answer:
    """Send a request over one of the routes of its operation."""
    path = path_of(bound, **request)
    rest = {name: value for name, value in request.items() if name not in bound.route.places}
    if bound.route.has_body:
        return http.ask(bound.route.method, path, rest)
    query = {name: _in_query(name, value) for name, value in rest.items() if name in fields_of(bound)}
    return http.ask(bound.route.method, path, **query)


def _in_query(name: str, value: Any) -> Any:
    return "/".join(map(str, value)) if name in ("prefix", "start", "end") else value
