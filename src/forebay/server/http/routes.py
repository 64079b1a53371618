"""The routes of all operations, and the views that only HTTP has. Paths are matched in this order."""

from forebay.core.api.principals import ANY, PUSH
from forebay.core.state import Event
from forebay.core.words import EVENT_KINDS
from forebay.server.http import event_streams, health, incoming, metrics, wire_command
from forebay.server.http.operation import Bound, Query, View, bound
from forebay.server.operations.table import COMMANDS
from forebay.wire.operation import Operation, Route
from forebay.wire.operations.pop import Delivered
from forebay.wire.operations.push import Pushed
from forebay.wire.table import OPERATIONS

QUEUE = "/v1/queues/{queue}"
JSON = "application/json"

INCOMING = Operation(
    incoming.Incoming,
    Pushed,
    PUSH,
    "webhooks",
    "Push what a webhook of others sends",
    (Route("POST", "/v1/webhooks/{id}"),),
    {"id": "emails", "anything": 1},
)
COMMAND = Operation(
    wire_command.Command,
    wire_command.CommandAnswer,
    ANY,
    "server",
    "Any request of TCP",
    (Route("POST", "/v1/commands"),),
    {"cmd": "KVADD", "key": "visits"},
)
"""Operations that only HTTP has."""

ROUTES: list[Bound] = [
    *(bound(each, route, COMMANDS[each.name]) for each in OPERATIONS for route in each.routes),
    *(Bound(each, route, each.request) for each in (INCOMING, COMMAND) for route in each.routes),
]

STREAM = "text/event-stream"
VIEWS = [
    View(
        f"{QUEUE}/listen",
        "Listen",
        event_streams.Listen,
        Delivered,
        STREAM,
        "Be sent messages as they come",
        "Leases messages to this connection, at most `max` at a time that are not settled; settle them with "
        "`POST /v1/ack`. When the connection ends, what it still holds is there for others. A `ping` comes "
        "after 15 s without anything else.",
        ("message",),
        (400, 403, 409),
        "messages",
    ),
    View(
        "/v1/events",
        "Events",
        event_streams.Events,
        Event,
        STREAM,
        "Hear of what happens",
        "Lifecycle events as they happen. The last event of a batch has an `id`, to go on from. `lost` "
        "stands for events that are not kept any more; a `ping` comes after 15 s without anything else. "
        "`worker_started`, `worker_stopped` and `worker_gone` have fields of their own, and are not kept. "
        "The same as a WebSocket: `/v1/events/ws`.",
        EVENT_KINDS,
        (400,),
        "events",
    ),
    View(
        "/healthz",
        "Healthz",
        Query,
        health.Health,
        JSON,
        "Is it alive?",
        "The process answers.",
    ),
    View(
        "/readyz",
        "Readyz",
        Query,
        health.Readiness,
        JSON,
        "Is it ready?",
        "200 if it takes requests, 503 if it can't write its store, or is about to stop.",
    ),
    View(
        "/metrics",
        "Metrics",
        metrics.Scraped,
        None,
        metrics.TEXT.decode(),
        "Figures for Prometheus",
        "Figures of queues, of the server and of its process, in the text format of Prometheus.",
    ),
]
"""Read-only resources: streams, health and metrics."""
