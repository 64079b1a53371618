"""Odd bodies and queries at every route: each is answered in the envelope, and none meets a bug."""

import json
import random
from typing import Any

from tests.server.flashq_http.talking import Door, DoorServer
from tests.server.flashq_http.test_routes import PAGES, ROUTES

SEED = 20261118
ROUNDS = 12
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 64,
    1.5,
    "",
    "q",
    "\x00",
    "é" * 300,
    [],
    [None],
    [{"data": 1}],
    [1, "2"],
    {},
    {"a": {"b": []}},
)
FIELDS = (
    "data",
    "jobs",
    "ids",
    "id",
    "job_id",
    "limit",
    "grace",
    "state",
    "children",
    "queue",
    "schedule",
    "repeat_every",
    "progress",
    "delay",
    "priority",
    "error",
    "result",
    "message",
    "level",
    "timeout",
    "tags",
    "unique_key",
    "depends_on",
    "stall_timeout",
    "queues",
    "cmd",
    "url",
    "events",
)
QUERIES = (
    "",
    "count=-1",
    "count=99999999999",
    "limit=x",
    "timeout=-5",
    "offset=1&limit=0",
    "%ff=1",
    "a=1&a=2",
)
IDS = ("1", "0", "-1", "18446744073709551616", "abc", "%00", "1e3")


def test_nothing_odd_meets_a_bug() -> None:
    """Leaving the server fails if its log tells of a bug."""
    chance = random.Random(SEED)
    with DoorServer("--store", "memory:") as server, Door(server.door) as door:
        for method, path in ROUTES * ROUNDS:
            if path in PAGES or path == "/webhooks":
                continue
            place = path.replace("{q}", "q").replace("{id}", chance.choice(IDS)).replace("{name}", "n")
            query = chance.choice(QUERIES)
            waits = method == "GET" and place.endswith(("/jobs", "/wait"))
            query = f"{query}&timeout=0" if waits else query
            fields = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randint(0, 6))}
            body = None if method == "GET" else json.dumps(fields).encode()
            answer = door.send(method, f"{place}?{query}" if query else place, body)
            assert answer.status < 500 or answer.status == 501, (method, place, query, fields, answer)
            assert isinstance(answer.json["ok"], bool)
            assert answer.json["ok"] is (answer.status == 200)
        assert door.data("GET", "/health")["status"] == "healthy"
