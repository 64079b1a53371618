"""The table of operations and views. Paths are matched in this order, so the busiest stand first."""

from forebay.core.words import EVENT_KINDS
from forebay.server.http import event_streams, health, metrics, wire_command
from forebay.server.http.operation import Operation, Request, View
from forebay.server.http.operations import (
    crons,
    dead_letters,
    groups,
    messages,
    pop,
    push,
    queues,
    transactions,
    values,
    webhooks,
)

QUEUE = "/v1/queues/{queue}"
DEAD = "dead letters"
VALUES = "keys and values"
JSON = "application/json"

OPERATIONS = [
    Operation("POST", f"{QUEUE}/messages", push.Push, push.Pushed, "Push messages", "messages"),
    Operation("GET", f"{QUEUE}/messages", messages.Browse, messages.Browsed, "Browse messages", "messages"),
    Operation("POST", f"{QUEUE}/pop", pop.Pop, pop.Popped, "Pop messages", "messages"),
    Operation("POST", "/v1/ack", pop.Ack, pop.Settled, "Acknowledge messages", "messages"),
    Operation("POST", "/v1/nack", pop.Nack, pop.Settled, "Give messages back", "messages"),
    Operation("POST", "/v1/extend", pop.Extend, pop.Extended, "Extend leases", "messages"),
    Operation(
        "POST",
        "/v1/transaction",
        transactions.Transaction,
        transactions.Results,
        "Several commands in one commit",
        "messages",
    ),
    Operation(
        "GET", f"{QUEUE}/messages/{{id}}", messages.GetMessage, messages.Seen, "Look at a message", "messages"
    ),
    Operation(
        "GET",
        f"{QUEUE}/messages/{{id}}/result",
        messages.Result,
        messages.Came,
        "What came of a message",
        "messages",
    ),
    Operation("POST", "/v1/cancel", messages.Cancel, pop.Settled, "Cancel messages", "messages"),
    Operation(
        "POST", f"{QUEUE}/bulk", messages.Bulk, messages.Acted, "Act on all messages that match", "messages"
    ),
    Operation("GET", f"{QUEUE}/log", messages.ReadLog, messages.Stretch, "Read the log", "messages"),
    Operation("GET", "/v1/queues", queues.ListQueues, queues.Queues, "List queues", "queues"),
    Operation("GET", QUEUE, queues.Describe, queues.Queue, "Describe a queue", "queues"),
    Operation("PUT", QUEUE, queues.Configure, queues.Queue, "Configure a queue", "queues"),
    Operation("DELETE", QUEUE, queues.Delete, queues.Deleted, "Delete a queue", "queues"),
    Operation("POST", f"{QUEUE}/pause", queues.Pause, queues.Pausing, "Pause a queue", "queues"),
    Operation("POST", f"{QUEUE}/resume", queues.Resume, queues.Pausing, "Resume a queue", "queues"),
    Operation("POST", f"{QUEUE}/drain", queues.Drain, queues.Cleared, "Cancel what waits", "queues"),
    Operation("POST", f"{QUEUE}/purge", queues.Purge, queues.Cleared, "Clear messages out", "queues"),
    Operation("POST", f"{QUEUE}/seek", groups.Seek, groups.Sought, "Read on from another place", "queues"),
    Operation(
        "GET", f"{QUEUE}/dead", dead_letters.ListDead, dead_letters.DeadLetters, "List dead letters", DEAD
    ),
    Operation(
        "POST",
        f"{QUEUE}/dead",
        dead_letters.RequeueDead,
        dead_letters.Buried,
        "Deliver dead letters again",
        DEAD,
    ),
    Operation(
        "DELETE", f"{QUEUE}/dead", dead_letters.PurgeDead, dead_letters.Buried, "Give dead letters up", DEAD
    ),
    Operation("GET", "/v1/groups/{queue}", groups.ListGroups, groups.Groups, "List groups", "groups"),
    Operation(
        "GET", "/v1/groups/{queue}/{group}", groups.Group, queues.GroupSummary, "Look at a group", "groups"
    ),
    Operation("PUT", "/v1/groups/{queue}/{group}", groups.PutGroup, groups.Groups, "Make a group", "groups"),
    Operation(
        "DELETE", "/v1/groups/{queue}/{group}", groups.DeleteGroup, groups.Groups, "Delete a group", "groups"
    ),
    Operation("GET", "/v1/crons", crons.ListCrons, crons.Crons, "List crons", "crons"),
    Operation("GET", "/v1/crons/{name}", crons.GetCron, crons.Cron, "Look at a cron", "crons"),
    Operation("PUT", "/v1/crons/{name}", crons.PutCron, crons.Cron, "Make or change a cron", "crons"),
    Operation("DELETE", "/v1/crons/{name}", crons.DeleteCron, crons.Gone, "Delete a cron", "crons"),
    Operation("GET", "/v1/kv", values.ListValues, values.Listed, "List keys and values", VALUES),
    Operation("POST", "/v1/kv", values.WriteValues, values.Written, "Change keys", VALUES),
    Operation("GET", "/v1/kv/{key}", values.GetValue, values.Entry, "Get a value", VALUES),
    Operation("PUT", "/v1/kv/{key}", values.PutValue, values.Written, "Set a value", VALUES),
    Operation("DELETE", "/v1/kv/{key}", values.DeleteValue, values.Written, "Delete a key", VALUES),
    Operation(
        "GET", "/v1/webhooks", webhooks.ListWebhooks, webhooks.WebhookList, "List webhooks", "webhooks"
    ),
    Operation(
        "POST",
        "/v1/webhooks",
        webhooks.RegisterWebhook,
        webhooks.Registered,
        "Have events posted somewhere",
        "webhooks",
    ),
    Operation(
        "DELETE",
        "/v1/webhooks/{name}",
        webhooks.DeleteWebhook,
        webhooks.Unregistered,
        "Delete a webhook",
        "webhooks",
    ),
    Operation(
        "POST",
        "/v1/webhooks/{name}",
        webhooks.Incoming,
        push.Pushed,
        "Push what a webhook of others sends",
        "webhooks",
    ),
    Operation(
        "POST", "/v1/commands", wire_command.Command, wire_command.Carried, "Any command of TCP", "server"
    ),
    Operation("GET", "/v1/stats", queues.Stats, queues.Totals, "Count over all queues", "server"),
]

STREAM = "text/event-stream"
VIEWS = [
    View(
        f"{QUEUE}/listen",
        "Listen",
        event_streams.Listen,
        pop.Delivered,
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
        event_streams.Happened,
        STREAM,
        "Hear of what happens",
        "Lifecycle events as they happen. The last event of a batch has an `id`, to go on from. `lost` "
        "stands for events that are not kept any more; a `ping` comes after 15 s without anything else. The "
        "same as a WebSocket: `/v1/events/ws`.",
        EVENT_KINDS,
        (400,),
        "events",
    ),
    View(
        "/healthz",
        "Healthz",
        Request,
        health.Health,
        JSON,
        "Is it alive?",
        "The process answers.",
    ),
    View(
        "/readyz",
        "Readyz",
        Request,
        health.Readiness,
        JSON,
        "Is it ready?",
        "200 if it takes requests, 503 if it can't write its store, or is about to stop.",
    ),
    View(
        "/metrics",
        "Metrics",
        Request,
        None,
        metrics.TEXT.decode(),
        "Figures for Prometheus",
        "Figures of queues, of the server and of its process, in the text format of Prometheus.",
    ),
]
"""Read-only resources: streams, health and metrics."""
