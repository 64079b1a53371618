"""What one tenant has, and questions about it that another one asks.

Each question comes twice: about what is there, but not the asker's, and about what is nowhere. Whatever
differs between the two answers tells the asker of another's things.
"""

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from forebay.core import ids
from forebay.core.api.principals import OWNER, POP, PUSH, READ, WRITE
from forebay.core.routing.placement import home_of
from forebay.server.flashq.commands.table import COMMANDS as FLASHQ
from forebay.wire.operation import Operation
from forebay.wire.table import OPERATIONS
from tests.server.http.examples import filled
from tests.server.http.talking import Http, at

ADMIN = "of-the-admin-of-this-test"
SECRET = "confidential"
"""What the victim has written wherever one can write something."""
VICTIM = "acme"
ASKER = next(name for name in map("evil-{}".format, count()) if home_of(name, 16) == home_of(VICTIM, 16))
"""A tenant that lives in the same shard: whatever is kept by shard must not mix them up."""
ROLES = (READ, PUSH, POP, WRITE, OWNER)
NAMES = (
    *("emails", "reports", "audit", "nightly", "smtp", "users", "visits", "sent", "task-1", "load"),
    *("welcome-7", "mailer-1"),
)
"""Names in the examples of the declarations: the victim has them with ``-there`` behind them."""
THERE, NOWHERE = "-there", "-nowhere"
MAKES = (
    *("PUSH", "POP", "FLOW", "TX", "QUEUE", "STAGE", "ADOPT", "GROUPPUT", "CRONPUT", "LIMITPUT", "SEEK"),
    *("KVSET", "KVADD", "KVWRITE", "KVDELETE", "WEBHOOKPUT", "TOKENCREATE", "TENANTPUT", "WORKER"),
)
"""Commands that make something of the asker's own, or count: their answers have numbers of their own."""
NOT_ASKED = ("AUTH", "BACKUP", "HOLD", "TENANTS")
"""Commands that are about nothing of a tenant, or an admin's."""
ALSO: dict[str, list[dict[str, Any]]] = {
    "ACK": [{"lease": None, "ids": ["ID"]}, {"ids": ["ID"]}, {"lease": None, "ids": ["UUID"]}],
    "NACK": [{"lease": None, "ids": ["ID"]}, {"lease": None, "ids": ["UUID"], "group": "audit"}],
    "RELEASE": [{"lease": None, "ids": ["ID"]}],
    "EXTEND": [{"lease": None, "ids": ["ID"]}],
    "POP": [{"group": "audit"}, {"partition": "default"}, {"create": False}],
    "PUSH": [
        {"depends_on": ["ID"]},
        {"depends_on": ["UUID"]},
        {"job_id": "welcome-7"},
        {"unique_key": "sent"},
    ],
    "FLOW": [{"depends_on": ["ID"]}],
    "BROWSE": [{"cursor": "CURSOR"}, {"group": "audit"}, {"state": "active"}],
    "BULK": [{"cursor": "CURSOR"}, {"dry_run": False}, {"dry_run": False, "action": "move", "to": "reports"}],
    "MESSAGE": [{"group": "audit"}, {"queue": None}],
    "KVLIST": [{"cursor": "KEYS"}, {"start": ["users"], "prefix": None}],
    "EVENTS": [{"after": "EVENT", "wait_ms": 0}, {"after": "", "wait_ms": 0}],
    "PARTIAL": [{"lease": "LEASE"}],
    "SETPROGRESS": [{"lease": "LEASE"}],
    "DEAD": [{"group": "audit"}],
    "REQUEUE": [{"ids": ["ID"], "dry_run": False}],
    "DEADPURGE": [{"ids": ["ID"], "dry_run": False}],
    "DRAIN": [{"dry_run": False}, {"group": "audit"}],
    "QUEUE": [{"partition": "default"}, {"options": None}],
    "QUEUEDELETE": [{"force": True}],
    "SEEK": [{"group": "audit"}],
    "CRONS": [{"after": "nightly"}],
    "WORKERS": [{"queue": None}, {"after": "mailer-1"}],
    "UNSTAGE": [{"query": "load", "batch": 1}],
    "TX": [
        {"ops": [{"cmd": "ACK", "ids": ["ID"]}]},
        {"ops": [{"cmd": "ACK", "lease": "LEASE"}, {"cmd": "PUSH", "queue": "emails", "payload": 1}]},
        {"ops": [{"cmd": "NACK", "ids": ["ID"]}]},
    ],
}
"""Fields that questions have beside those of the examples of the declarations; None leaves one out."""

Request = dict[str, Any]


class Things(Struct):
    """Something of a tenant, or nothing of anybody: what stands for each placeholder."""

    known: dict[str, str]

    def fill(self, value: Any) -> Any:
        return filled(value, self.known)

    def hide(self, answer: str) -> str:
        """An answer without the names that were asked for."""
        for name, value in sorted(self.known.items(), key=lambda each: -len(each[1])):
            answer = answer.replace(value, f"<{name}>")
        return answer


def prepare(http: Http) -> tuple[Things, Things]:
    """Make everything a tenant can have; return it, and what is nowhere."""
    there, nowhere = ({name: name + suffix for name in NAMES} for suffix in (THERE, NOWHERE))
    emails, reports, limit = at(there["emails"]), at(there["reports"]), there["smtp"]
    for key in (f"{there['users']}/7", there["visits"], there["sent"]):
        http.put(f"/v1/kv/{key}", value={SECRET: key})
    http.put(reports, options={"max_attempts": 1})
    http.push(there["reports"], "dead")
    http.post("/v1/nack", lease=http.pop(there["reports"])["lease"], error=f"{SECRET} error")
    first = http.push(there["emails"], f"{SECRET} payload")
    lease = http.pop(there["emails"])["lease"]
    http.post(f"/v1/messages/{first}/logs", message=f"{SECRET} line")
    for number in range(3):
        http.post(f"{emails}/messages", payload=f"{SECRET} {number}", tags=["welcome"])
    http.post(f"{emails}/messages", payload=SECRET, job_id=there["welcome-7"], unique_key=there["sent"])
    http.put(f"/v1/groups/{there['emails']}/{there['audit']}")
    cron = {"queue": there["reports"], "message": {"payload": SECRET}, "every_ms": 3_600_000}
    http.put(f"/v1/crons/{there['nightly']}", **cron)
    http.put(f"/v1/limits/{limit}", rate_limit=1)
    http.post(f"{emails}/stages/{there['task-1']}", messages=[SECRET], query=there["load"], batch=1)
    webhook = http.post("/v1/webhooks", url=_url(there), queues=["nobodys"], secret=SECRET)["id"]
    token = http.post(f"/v1/tenants/{VICTIM}/tokens", role=READ)["id"]
    worker = {"cmd": "WORKER", "name": there["mailer-1"], "host": SECRET, "queues": [there["emails"]]}
    http.post("/v1/commands", **worker)
    message = http.get(f"/v1/messages/{first}")
    there |= {
        "ID": str(first),
        "UUID": message["uuid"],
        "LEASE": lease,
        "WEBHOOK": webhook,
        "TOKEN": token,
        "CURSOR": http.get(f"{emails}/messages", state="waiting", limit=1)["cursor"],
        "KEYS": http.get("/v1/kv", limit=1)["cursor"],
        "EVENT": http.post("/v1/commands", cmd="EVENTS")["after"],
        "https://example.com/hook": _url(there),
    }
    nowhere |= {
        "ID": str(first + 1_000),
        "UUID": ids.to_uuid(first + 1_000, message["created_at"]),
        "LEASE": str(int(lease) + 1_000),
        "WEBHOOK": _other(webhook),
        "TOKEN": _other(token),
        **{name: there[name] for name in ("CURSOR", "KEYS", "EVENT")},  # which name nothing: places in a list
        "https://example.com/hook": _url(nowhere),
    }
    return Things(there), Things(nowhere)


def _url(names: dict[str, str]) -> str:
    return f"http://1.1.1.1:9/{names['emails']}"


def _other(name: str) -> str:
    """A name of the same length that nobody has."""
    return name[:-1] + ("0" if name[-1] != "0" else "1")


def questions(operation: Operation) -> Iterator[Request]:
    """Everything that is asked by one command."""
    known = {each.encode_name for each in msgspec.structs.fields(operation.request)}
    yield _request(operation, {})
    for fields in ALSO.get(operation.name, []):
        yield _request(operation, fields)
    if "ID" in operation.example.values():
        (name,) = (name for name, value in operation.example.items() if value == "ID")
        yield _request(operation, {name: "UUID"})
    if operation.example.get("ids") == ["ID"]:
        yield _request(operation, {"ids": ["UUID"]})
        if "group" in known:
            yield _request(operation, {"ids": ["ID", "UUID"], "group": "audit"})


def _request(operation: Operation, fields: Request) -> Request:
    request = {**operation.example, **fields}
    if "wait_ms" in request:
        request["wait_ms"] = 0
    return {name: value for name, value in request.items() if value is not None}


ASKED = sorted(
    (each for each in OPERATIONS if each.name not in NOT_ASKED),
    key=lambda each: each.name in MAKES,  # what makes things comes last: the asker has nothing until then
)


def plain(name: str, answer: str) -> str:
    """An answer without what differs anyway: two messages never have the same id, and tokens are in use."""
    answer = re.sub(r'"last_used_at":\d+', "", answer)
    if name not in (*MAKES, *FLASHQ_MAKES):
        return answer
    return re.sub(r"fb_[\w-]+|[0-9a-f]*[0-9][0-9a-f]*", "#", answer)


OF_FLASHQ: Request = {
    "id": "ID",
    "parent_id": "ID",
    "ids": ["ID"],
    "depends_on": ["ID"],
    "queue": "emails",
    "name": "nightly",
    "key": "visits",
    "keys": ["visits"],
    "entries": [{"key": "sent", "value": 1}],
    "job_id": "welcome-7",
    "data": {"a": 1},
    "jobs": [{"data": 1}],
    "children": [{"queue": "emails", "data": 1}],
    "value": 1,
    "by": 1,
    "delay": 5,
    "priority": 1,
    "timeout": 0,
    "count": 1,
    "progress": 5,
    "message": "m",
    "limit": 5,
    "grace": 0,
    "state": "completed",
    "ttl": 5,
    "schedule": "0 3 * * *",
    "error": "no",
}
"""Fields of flashQ's commands, with names of the victim's things."""
FLASHQ_MAKES = (
    *("PUSH", "PUSHB", "FLOW", "PULL", "PULLB", "CRON", "CRONDELETE", "RATELIMIT", "SETCONCURRENCY"),
    *(
        "RATELIMITCLEAR",
        "CLEARCONCURRENCY",
        "PAUSE",
        "RESUME",
        "KVSET",
        "KVMSET",
        "KVDEL",
        "KVEXPIRE",
        "KVINCR",
    ),
    *("OBLITERATE", "DRAIN", "CLEAN", "PURGEDLQ", "RETRYDLQ"),
)
FLASHQ_ASKED = sorted(
    (name for name in FLASHQ if name not in ("AUTH", "SUBSCRIBE", "UNSUBSCRIBE")),
    key=lambda name: name in FLASHQ_MAKES,
)


def flashq_question(name: str) -> Request:
    """What is asked by a command of flashQ."""
    known = {each.encode_name for each in msgspec.structs.fields(FLASHQ[name])}
    return {"cmd": name, **{field: value for field, value in OF_FLASHQ.items() if field in known}}


LOOKS: list[Request] = [
    {"cmd": "QUEUES"},
    {"cmd": "STATS"},
    *({"cmd": "QUEUE", "queue": each + THERE} for each in ("emails", "reports")),
    *({"cmd": "GROUPS", "queue": each + THERE} for each in ("emails", "reports")),
    *({"cmd": "BROWSE", "queue": f"emails{THERE}", "state": each} for each in ("waiting", "active")),
    {"cmd": "DEAD", "queue": f"reports{THERE}"},
    {"cmd": "CRONS"},
    {"cmd": "LIMITS"},
    {"cmd": "KVLIST"},
    {"cmd": "WEBHOOKS"},
    {"cmd": "WORKERS"},
    {"cmd": "TENANT"},
    {"cmd": "TOKENS"},
]
"""Everything of a tenant that somebody can see."""


def look(http: Http) -> str:
    """All that a tenant has, but for when its tokens were used and how old things are."""
    answers = [http.post("/v1/commands", **each) for each in LOOKS]
    text = json.dumps(answers)
    return re.sub(r'"(last_used_at|seen_at|oldest_ms|for_ms|ago_ms|lag_ms|now)": [\d.]+', "", text)
