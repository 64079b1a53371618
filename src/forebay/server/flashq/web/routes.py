"""The table of routes: which command a route runs, where its fields come from, and what it shows.

Fields of the path have the names of the command's fields. Routes that run more than one command are in
``several``. Those marked as aliases are called by flashQ's clients, but do not exist in flashQ itself.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct

from forebay.server.flashq.web import answers, several
from forebay.server.flashq.web.calls import Call, Handler


class Route(Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    about: str
    is_plain: bool = False
    """Whether its answer has no envelope: it is one already."""
    needs: tuple[str, ...] = ()
    """What it needs beside what its commands need: one of these roles, for all queues of the tenant."""
    of_server: bool = False
    """Whether it tells of the server: to principals of the tenant ``default`` and admins only."""


class Run(Struct, frozen=True):
    """Run one command."""

    cmd: str
    show: answers.Show = answers.nothing
    body: Mapping[str, str] = {}
    query: tuple[str, ...] = ()
    given: Mapping[str, bytes] = {}
    """Fields that are not given by the client, where they are to be another than the command's default."""

    async def __call__(self, call: Call) -> Raw:
        fields = {name: Raw(value) for name, value in self.given.items()}
        fields |= call.of_query(self.query)
        if self.body:
            fields |= await call.of_body(self.body)
        fields |= call.of_path()  # last: a body can't lead elsewhere than its path
        fields.pop("reqId", None)
        return self.show(await call.ask(self.cmd, fields))


def same(*names: str) -> dict[str, str]:
    """Take these fields of a body."""
    return {name: name for name in names}


Q, J = "/queues/{queue}", "/jobs/{id}"
FLOW = same("queue", "data", "children", "priority", "delay") | {"parent_data": "data"}
LIMIT = Run("RATELIMIT", body=same("limit"))
PULLED = ("count", "timeout")

QUEUES = (
    Route("GET", "/queues", Run("LISTQUEUES", answers.field("queues")), "List all queues."),
    Route("POST", f"{Q}/jobs", several.push, "Push a job."),
    Route(
        "GET",
        f"{Q}/jobs",
        Run("PULLB", answers.field("jobs"), query=PULLED, given={"count": b"1"}),
        "Pull jobs: up to count, waiting up to timeout for the first.",
    ),
    Route("POST", f"{Q}/jobs/batch", Run("PUSHB", answers.field("ids"), same("jobs")), "Alias: push jobs."),
    Route("POST", f"{Q}/pause", Run("PAUSE"), "Stop delivering."),
    Route("POST", f"{Q}/resume", Run("RESUME"), "Deliver again."),
    Route("GET", f"{Q}/paused", Run("ISPAUSED", answers.field("paused")), "Whether a queue is paused."),
    Route("GET", f"{Q}/counts", Run("GETJOBCOUNTS", answers.everything), "Count jobs by state."),
    Route("GET", f"{Q}/count", Run("COUNT", answers.count), "Count jobs that wait."),
    Route("GET", f"{Q}/dlq", Run("DLQ", answers.field("jobs"), query=("count",)), "List dead letters."),
    Route("DELETE", f"{Q}/dlq", Run("PURGEDLQ", answers.count), "Remove all dead letters."),
    Route(
        "POST",
        f"{Q}/dlq/retry",
        Run("RETRYDLQ", answers.count, {"job_id": "id", "id": "id"}),
        "Retry one dead letter, or all.",
    ),
    Route("POST", f"{Q}/dlq/{{id}}/retry", Run("RETRYDLQ", answers.count), "Alias: retry a dead letter."),
    Route("POST", f"{Q}/rate-limit", LIMIT, "Limit the jobs delivered per second."),
    Route("DELETE", f"{Q}/rate-limit", Run("RATELIMITCLEAR"), "Remove this limit."),
    Route("POST", f"{Q}/ratelimit", LIMIT, "Alias of rate-limit."),
    Route("DELETE", f"{Q}/ratelimit", Run("RATELIMITCLEAR"), "Alias of rate-limit."),
    Route(
        "POST", f"{Q}/concurrency", Run("SETCONCURRENCY", body=same("limit")), "Limit jobs active at a time."
    ),
    Route("DELETE", f"{Q}/concurrency", Run("CLEARCONCURRENCY"), "Remove this limit."),
    Route("POST", f"{Q}/drain", Run("DRAIN", answers.count), "Remove jobs that wait."),
    Route("DELETE", f"{Q}/obliterate", Run("OBLITERATE", answers.count), "Remove a queue and its jobs."),
    Route(
        "POST",
        f"{Q}/clean",
        Run("CLEAN", answers.count, same("grace", "state", "limit")),
        "Remove jobs in a state that are older than grace ms.",
    ),
    Route("POST", f"{Q}/flow", Run("FLOW", answers.everything, FLOW), "Push a job and those it waits for."),
    Route("POST", "/flows", Run("FLOW", answers.everything, FLOW), "Alias of flow."),
)

JOBS = (
    Route(
        "GET",
        "/jobs",
        Run("GETJOBS", answers.field("jobs"), query=("queue", "state", "limit", "offset")),
        "List jobs, the newest first: of a queue or all, in a state or any.",
    ),
    Route(
        "GET",
        "/jobs/custom/{job_id:path}",
        Run("GETJOBBYCUSTOMID", answers.everything, query=("queue",)),
        "Alias: find a job by its custom id.",
    ),
    Route("POST", "/jobs/ack-batch", Run("ACKB", answers.count, same("ids")), "Acknowledge jobs."),
    Route("POST", "/jobs/ack/batch", Run("ACKB", answers.count, same("ids")), "Alias of ack-batch."),
    Route("GET", J, several.show_job, "A job, its state and its result."),
    Route("PATCH", J, Run("UPDATEJOB", body=same("data")), "Alias of update."),
    Route("POST", f"{J}/update", Run("UPDATEJOB", body=same("data")), "Replace the data of a job."),
    Route("POST", f"{J}/ack", Run("ACK", body=same("result")), "Acknowledge a job."),
    Route("POST", f"{J}/fail", Run("FAIL", body=same("error")), "Fail a job."),
    Route("POST", f"{J}/cancel", Run("CANCEL"), "Cancel a job."),
    Route("POST", f"{J}/progress", Run("PROGRESS", body=same("progress", "message")), "Report progress."),
    Route("GET", f"{J}/progress", Run("GETPROGRESS", answers.progress), "Progress that was reported."),
    Route("POST", f"{J}/partial", Run("PARTIAL", body=same("data", "index")), "Send a partial result."),
    Route("GET", f"{J}/result", Run("GETRESULT", answers.field("result")), "The result of a job."),
    Route("GET", f"{J}/state", Run("GETSTATE", answers.field("state")), "The state of a job."),
    Route("GET", f"{J}/logs", Run("GETLOGS", answers.field("logs")), "The log of a job."),
    Route("POST", f"{J}/logs", Run("LOG", body=same("message", "level")), "Add a line to its log."),
    Route(
        "GET",
        "/jobs/{parent_id}/children",
        Run("GETCHILDREN", answers.field("children")),
        "The jobs that a job waits for.",
    ),
    Route(
        "GET",
        f"{J}/wait",
        Run("WAITJOB", answers.field("result"), query=("timeout",)),
        "Wait for the result of a job.",
    ),
    Route("POST", f"{J}/heartbeat", Run("HEARTBEAT"), "Alias: extend the lease of a job."),
    Route("POST", f"{J}/priority", Run("CHANGEPRIORITY", body=same("priority")), "Change its priority."),
    Route("POST", f"{J}/move-to-delayed", Run("MOVETODELAYED", body=same("delay")), "Delay a job."),
    Route("POST", f"{J}/delay", Run("MOVETODELAYED", body=same("delay")), "Alias of move-to-delayed."),
    Route("POST", f"{J}/promote", Run("PROMOTE"), "Make a delayed job due."),
    Route("POST", f"{J}/discard", Run("DISCARD"), "Move a job to the dead letters."),
)

CRON = same("queue", "data", "schedule", "repeat_every", "priority", "limit", "options")

OTHERS = (
    Route("GET", "/crons", Run("CRONLIST", answers.field("crons")), "List crons."),
    Route("POST", "/crons/{name:path}", Run("CRON", body=CRON), "Add a cron."),
    Route("PUT", "/crons/{name:path}", Run("CRON", body=CRON), "Alias: add a cron."),
    Route("DELETE", "/crons/{name:path}", several.delete_cron, "Delete a cron."),
    Route("GET", "/stats", Run("STATS", answers.everything), "Jobs by state, of all queues."),
    Route("GET", "/metrics", Run("METRICS", answers.field("metrics")), "Totals, and figures of queues."),
    Route("POST", "/server/clear-queues", several.clear_queues, "Remove jobs that wait, of all queues."),
    Route("POST", "/server/clear-dlq", several.clear_dead, "Remove the dead letters of all queues."),
    Route("POST", "/server/clear-completed", several.clear_completed, "Remove completed jobs of all queues."),
)

TABLE = (*QUEUES, *JOBS, *OTHERS)
"""Routes that run commands."""
