"""An example of every operation, which works once LEASE, ID and WEBHOOK are replaced."""

from typing import Any

PLACES = {
    "queue": "emails",
    "id": "ID",
    "group": "audit",
    "name": "nightly",
    "key": "users/7",
    "DeleteWebhook.name": "WEBHOOK",
    "Incoming.name": "emails",
}
"""Path parameters, by name, or by operation and name."""
QUERIES: dict[str, dict[str, str | int]] = {
    "Browse": {"state": "waiting", "limit": 10},
    "Result": {"wait_ms": 1_000},
    "ReadLog": {"offset": 0},
    "PurgeDead": {"dry_run": "true"},
    "ListValues": {"prefix": "users"},
    "Listen": {"max": 10},
    "Events": {"queue": "emails", "kind": "dead"},
}
"""Query parameters, by operation."""
BODIES: dict[str, Any] = {
    "Push": {"payload": {"to": "ada@example.com"}, "tags": ["welcome"]},
    "Pop": {"count": 10, "wait_ms": 1_000},
    "Ack": {"lease": "LEASE"},
    "Nack": {"lease": "LEASE", "error": "no such address"},
    "Extend": {"lease": "LEASE", "lease_ms": 60_000},
    "Transaction": {
        "ops": [
            {"op": "push", "queue": "reports", "messages": [{"payload": 1}]},
            {"op": "write", "mutations": [{"kind": "sum", "key": "sent", "value": 1}]},
        ]
    },
    "Cancel": {"ids": ["ID"]},
    "Bulk": {"action": "cancel", "tag": "welcome", "dry_run": True},
    "Configure": {"options": {"max_attempts": 5}},
    "Drain": {"dry_run": True},
    "Purge": {"states": ["completed"]},
    "Seek": {"to": "all"},
    "RequeueDead": {"dry_run": True},
    "PutGroup": {"from": "new"},
    "PutCron": {"queue": "reports", "message": {"payload": "all"}, "schedule": "0 3 * * *"},
    "WriteValues": {"mutations": [{"kind": "sum", "key": ["users", "count"], "value": 1}]},
    "PutValue": {"value": {"name": "Ada"}},
    "RegisterWebhook": {"url": "https://example.com/hook", "kinds": ["dead"]},
    "Incoming": {"anything": 1},
    "Command": {"cmd": "KVINCR", "key": "visits"},
}
"""Request bodies, by operation."""
