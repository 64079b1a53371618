"""Descriptions of the fields of requests and replies, and the values that some of them accept.

A name means the same in every class, so it is explained once. Where it does not, the class is named in front
of it, or the field has a docstring of its own.
"""

import ast
import inspect
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct

from forebay.core import words
from forebay.core.api.principals import ROLES
from forebay.core.state import queue
from forebay.core.words import EVENT_KINDS, WORKER_KINDS
from forebay.server.workers import GONE, SAID
from forebay.wire.operations import messages, queues
from forebay.wire.options import OptionsIn

WORDS = {
    # Address and content of a message.
    "id": "Id of the message.",
    "uuid": "The id as a UUID.",
    "queue": "Name of the queue.",
    "partition": "Name of the partition.",
    "offset": "Place in the log of the partition.",
    "payload": "Any JSON.",
    "created_at": "When it was pushed.",
    "deliveries": "How often it was delivered.",
    "failures": "How many deliveries failed.",
    "priority": "The higher goes first.",
    "headers": "Texts by name that come with the message.",
    "tags": "Words that messages can be found by.",
    "RunOptions.task": "Name of its task: events, metrics and searches tell tasks apart.",
    "state": "Where messages stand in the group.",
    "group": "The group that is meant.",
    "damaged": "Whether the payload can't be read back; it is null then.",
    "error": "What the last failure said.",
    "error_type": "Type of the error: a name such as ValueError.",
    "traceback": "Where in the code it was raised: the last 8,000 characters are kept.",
    "due_at": "When it is delivered at the earliest.",
    "leased_at": "If it is leased: since when. If it is dead: when its last delivery began.",
    "lease_until": "If it is leased: until when, unless the lease is extended.",
    "holder": "If it is leased by a consumer that named itself: that name.",
    "ended_at": "When it ended.",
    "job_id": "A name of its own, which no other message of the queue has.",
    "unique_key": "No other message of the queue with this key is taken until this one has ended.",
    # Push.
    "Push.payload": "One message: any JSON.",
    "Push.messages": "Many payloads that share the options beside them.",
    "Push.items": "Many messages, each with options of its own.",
    "Push.partition": "Partition it goes to.",
    "key": "Messages of one key are delivered one at a time, in order.",
    "delay_ms": "Deliver it no earlier than this from now on.",
    "ttl_ms": "It expires after this; 0 is never.",
    "timeout_ms": "How long a delivery of it is leased, if the pop does not say; 0 is as the queue says.",
    "max_attempts": "Failures that make it a dead letter; as the queue says if absent.",
    "backoff": "Wait before a retry: ms that double, a list of waits, or an object.",
    "lifo": "Before others of its priority.",
    "dedup": "What to do if the unique key is held.",
    "dedup_window_ms": "Of debounce: the wait after the last push. Of throttle: how long the key is held.",
    "dedup_max_ms": "Of debounce: how long after the first push it is delivered at the latest.",
    "transaction_id": "The same one again in its partition is known, and not pushed.",
    "depends_on": "Ids of messages that have to be completed first.",
    "on_failed": "What becomes of it if one of those fails.",
    "keys_if_undelivered": "Keys that get the payload if it becomes a dead letter.",
    "durability": "What it survives: power loss, a crash of the server, or nothing.",
    "idempotency_ms": "How long the key is known; 0 is as the queue says.",
    "on_complete": "A message that waits for all of these.",
    "completion_id": "Id of the message that waits for all of these.",
    "cmd": "Which request, as over TCP; its fields stand beside it.",
    "idempotency_key": "Names the request: the same one again is known, and does nothing.",
    "producer": "Whose idempotency key it is.",
    "ids": "Ids of messages.",
    "first": "Id of the first message; the others follow.",
    "count": "How many messages it was.",
    "duplicate": "It was known already, and was not pushed.",
    "replaced": "It took the place of another.",
    "duplicates": "How many were known already.",
    # Pop and settle.
    "Pop.count": "How many messages, at most.",
    "min_count": "Wait until there are so many.",
    "wait_ms": "How long to wait.",
    "lease_ms": "How long the lease lasts; as the queue says if absent.",
    "from": "Where a group begins that does not exist yet: all, new, or a time.",
    "compact": "Runs of payloads instead of messages.",
    "lease": "What they are leased under.",
    "messages": "The messages.",
    "runs": "Messages that lie together, as one.",
    "payloads": "The payloads, one for each message.",
    "expires_at": "When the lease ends, or the value.",
    "refused": "Ids that it could not be done to.",
    "cancelled": "Messages that were cancelled.",
    "Extended.cancelled": "Whether one of them was cancelled meanwhile: its work may stop.",
    "results": "What came of them, one for each of the ids.",
    "Transacted.results": "What each of the requests was answered.",
    "Ack.result": "What came of the message, if it is one; it is kept with the message.",
    "Nack.error": "What went wrong: the first 2,000 characters are kept.",
    "defer_ms": "Deliver them after a growing delay, since this consumer can't handle them yet; make them "
    "dead letters when that lasts so long.",
    "final": "They will never succeed: make them dead letters at once.",
    "Nack.delay_ms": "Deliver them again after this, instead of their backoff.",
    "ops": "The requests, in order.",
    # Browse and bulk.
    "Browse.state": "Only those in this state.",
    "Bulk.state": "Only those in this state.",
    "Browse.partition": "Only those of this partition.",
    "Bulk.partition": "Only those of this partition.",
    "tag": "Only those with this tag.",
    "since": "Only those pushed at this time or later.",
    "before": "Only those pushed before this time.",
    "Filter.task": "Only those of this task.",
    "Filter.error": "Only dead letters with this text in their error; * in it stands for any text.",
    "Filter.error_type": "Only dead letters whose error is of this type.",
    "dead_since": "Only those that died at this time or later.",
    "dead_before": "Only those that died before this time.",
    "Bulk.to": "For the action move: the queue to push them to.",
    "Bulk.create": "For the action move: whether to create that queue if there is none.",
    "Bulk.dependents": "For the action requeue: whether those that died of these are parked again.",
    "text": "Only those whose payload, as it was pushed, has this in it.",
    "limit": "How many, at most.",
    "cursor": "Where to go on, as the answer before said; null if there is no more.",
    "total": "How many there are in that state.",
    "action": "What to do.",
    "Bulk.delay_ms": "For the action delay.",
    "Bulk.priority": "For the action priority.",
    "dependents": "Whether those that died of requeued messages are parked again.",
    "Update.headers": "Headers to set; null removes one. The others stay.",
    "freed": "Bytes of payloads that are no longer kept.",
    "Acted.dependents": "Others that died of requeued ones and are parked again.",
    "Acted.kept": "Dead letters that stay: see the action move; for requeue: what they depend on is gone.",
    "dry_run": "Only count.",
    "matched": "How many messages matched.",
    "done": "Whether it has ended.",
    "result": "What the ack said, or null.",
    "has_result": "Whether there is a result, which may be null.",
    "max_bytes": "Bytes of payloads, at most.",
    "max_count": "Messages, at most.",
    "next": "Where to read on.",
    "end": "Where the log ends now.",
    "numbers": "Numbers of the partition, which ids are made of, each with the offset it begins at.",
    "synced": "Up to where the log survives power loss.",
    "Offsets.at": "A time: also return the first offset pushed then or later.",
    "Offsets.since": "Offsets by partition: also return when the first message from there on was pushed.",
    "PartitionOffsets.first": "The first offset that is kept.",
    "PartitionOffsets.at": "The first offset pushed at that time or later; null if no time was given.",
    "PartitionOffsets.since": "When the first message from that offset on was pushed; null if there is none.",
    # Beside a message.
    "partials": "The partial results, oldest first.",
    "progress": "From 0 to 100.",
    "SetProgress.message": "What is done at the moment.",
    "Progressed.message": "What is done at the moment.",
    "updated_at": "When it was reported; null if never.",
    "attempts": "The failed attempts, oldest first.",
    "Attempt.at": "When it failed.",
    "Attempt.deliveries": "Which delivery of the message it was.",
    "Attempt.error": "What went wrong.",
    "Attempt.worker": "The consumer that had it, if it told its name.",
    "logs": "The newest lines, oldest first.",
    "level": "Such as info, warning or error.",
    "timestamp": "When it was added.",
    "AddLog.message": "The line.",
    "LogLine.message": "The line.",
    # Flows.
    "children": "The messages it waits for.",
    "FlowPushed.children": "Ids of the messages it waits for.",
    "Children.completed": "How many of them are completed.",
    "Children.total": "How many it waits for.",
    # Queues.
    "queues": "Queues.",
    "Totals.queues": "How many queues there are.",
    "paused": "Whether nothing is delivered.",
    "paused_until": "When it is delivered again.",
    "counts": "Messages by state.",
    "oldest_at": "When the oldest of the messages that wait was pushed.",
    "options": "Options of the queue.",
    "partitions": "Its partitions.",
    "groups": "Its groups.",
    "Partition.first": "The first offset that is kept.",
    "bytes": "Bytes of payloads that are kept.",
    "lane": "Whether each group has one message of it leased at a time.",
    "Configure.partition": "Set the retention of this partition only.",
    "force": "Do not wait for what is leased.",
    "deleted": "How many keys are there no more.",
    "Deleted.deleted": "Whether it is gone.",
    "Deleted.active": "Messages that are still leased.",
    "until": "When it ends, or the queue goes at the latest.",
    "more": "Whether there is more than one request takes, within its limit: ask again.",
    "states": "Which states; all of these if absent.",
    "grace_ms": "Only those that are in their state for this long.",
    "staged": "What is staged, and not adopted yet.",
    "to": "all, new, or a time.",
    "Cursor.cursor": "The next offset the group has not looked at.",
    "skip": "How many to pass over.",
    "DeadGroups.groups": "The causes, the most frequent first.",
    "DeadGroups.total": "How many dead letters there are.",
    "DeadGroup.count": "How many dead letters it is.",
    "DeadGroup.error": "First line of their errors, with * for numbers and ids.",
    "DeadGroup.task": "Name of their task.",
    "DeadGroup.first_at": "When the first of them died.",
    "DeadGroup.last_at": "When the last of them died.",
    "example": "Id of one of them.",
    "rest": "Dead letters of causes beyond the limit.",
    "DeadLetter.ended_at": "When it became a dead letter.",
    "DeadLetters.total": "How many dead letters there are.",
    "left": "How many dead letters are left.",
    "waiting": "Messages that can be delivered.",
    "delayed": "Messages that are due later.",
    "parked": "Messages that wait for others.",
    "active": "Messages that are leased.",
    "completed": "Messages that were acked, and are kept.",
    "dead": "Dead letters.",
    "expired": "Messages whose time to live was over.",
    "evicted": "Messages that waited too long.",
    "discarded": "Messages that were given up.",
    "deferred": "Of those that wait or are delayed: messages that no consumer could handle yet.",
    # Crons.
    "name": "Its name.",
    "schedule": "When, as five or six fields of cron or a word like @daily.",
    "every_ms": "Every so many milliseconds.",
    "timezone": "Time zone of the schedule.",
    "Cron.limit": "How often it is pushed at most.",
    "PutCron.limit": "How often it is pushed at most.",
    "missed": "What to push of slots that were missed.",
    "fired": "How often it was pushed.",
    "skipped": "Slots at which the queue took no message.",
    "last_at": "The last slot.",
    "next_at": "The next slot.",
    "Cron.error": "Why it was not pushed the last time.",
    "message": "The message to push.",
    "crons": "The crons.",
    "ListCrons.after": "Only those whose names come behind this one.",
    # Limits.
    "limits": "The named limits.",
    "rate_limit": "How many messages in a time; null or 0 is no limit.",
    "byte_limit": "How many bytes of payloads in a time; null or 0 is no limit.",
    "concurrency": "Messages that may be leased at once; 0 is no limit.",
    "Limit.active": "Messages that are leased under it.",
    # Keys and values.
    "GetValue.key": "A text, or a list of parts.",
    "SetValue.key": "A text, or a list of parts.",
    "DeleteValue.key": "A text, or a list of parts.",
    "AddValue.key": "A text, or a list of parts.",
    "Entry.key": "The parts of the key.",
    "Check.key": "A text, or a list of parts.",
    "Mutation.key": "A text, or a list of parts.",
    "value": "Any JSON.",
    "version": "Version of the value.",
    "SetValue.version": "Only if the key is at this version; null: only if it does not exist.",
    "DeleteValue.version": "Only if the key is at this version.",
    "Check.version": "The version it must be at; null if it must not exist.",
    "Written.version": "Version of all that was written.",
    "by": "What to add.",
    "keys": "The keys: each a text, or a list of parts.",
    "values": "Values in the order of the keys; null where there is none.",
    "versions": "Versions in the order of the keys; null where there is none.",
    "changed": "Whether one of the keys has another version.",
    "Mutation.ttl_ms": "The value expires after this.",
    "SetValue.ttl_ms": "The value expires after this.",
    "entries": "Keys and values.",
    "prefix": "Only keys below this one.",
    "start": "Only keys from this one on.",
    "ListValues.end": "Only keys before this one.",
    "pattern": "Only keys of one part that match this; * is any text, ? any character.",
    "reverse": "The last first.",
    "checks": "Keys that have to be of some version, or nothing is done.",
    "mutations": "Changes to make.",
    "Mutation.kind": "What to do to the key.",
    # Stages.
    "stage": "Name of the stage.",
    "Stage.messages": "The payloads.",
    "body": "Instead of messages: a segment body.",
    "Stage.count": "How many messages there are; needed with a body.",
    "Stage.runs": "Consecutive messages that share options, instead of options beside them.",
    "unique_keys": "The unique key of each message, or null.",
    "Stage.part": "Which write to the stage this is, from 0 on; one that was made is not made again.",
    "Staged.part": "Which write to the stage it was.",
    "query": "Name of the query that the batch is of.",
    "batch": "Number of the batch.",
    "run": "Larger each time the query is started: what earlier runs have left is dropped.",
    "expire_ms": "How long the stage is kept after its last write.",
    "Staged.count": "Messages in the stage by now.",
    "Staged.expires_at": "When it is dropped, if it is not adopted.",
    "StageRun.count": "How many messages the run has.",
    "stages": "Names of the stages.",
    "Adopt.count": "How many messages it must be.",
    "keep_ms": "How long the answer must be known; as long as there is room if absent.",
    "Adopted.partitions": "Where they went: partition, first id, offset and count.",
    "repeated": "It was adopted before, and is answered as then.",
    "Unstage.query": "Also all stages of this query up to the batch.",
    "Unstaged.stages": "How many stages were dropped.",
    "Unstaged.count": "How many messages were in them.",
    "StagedSummary.stages": "How many stages there are.",
    "StagedSummary.messages": "How many messages are in them.",
    # Backoffs and rates.
    "BackoffIn.kind": "How waits grow.",
    "base_ms": "The first wait.",
    "cap_ms": "The longest wait.",
    "jitter": "Part of the wait, 0 to 1, that may be left out.",
    "steps": "Each wait, the last one for all further retries.",
    "RateIn.limit": "So many,",
    "per_ms": "in this time,",
    "burst": "and so many at once; the limit if 0.",
    # Webhooks.
    "webhooks": "The webhooks.",
    "Webhook.id": "Id of the webhook.",
    "Registered.id": "Id of the webhook.",
    "Unregistered.id": "Id of the webhook.",
    "Webhook.created_at": "When it was registered.",
    "url": "Where events are posted to.",
    "secret": "What deliveries are signed with.",
    "Webhook.queues": "Queues it is told of; null is all.",
    "RegisterWebhook.queues": "Queues it is told of; all if absent.",
    "kinds": "Kinds of events it is told of; all if absent.",
    "delivered": "Deliveries that were taken.",
    "failed": "Attempts that failed.",
    "Webhook.waiting": "Deliveries that wait.",
    "Webhook.dead": "Deliveries that were given up.",
    # The server.
    "held": "Whether all state is frozen.",
    "store": "Address of the store.",
    "directory": "Directory of the copy, on the server's machine.",
    # Events, streams, health.
    "events": "The events.",
    "PollEvents.queues": "Only events of these queues; of all if absent.",
    "PollEvents.kinds": "Only events of these kinds; of all if absent.",
    "PollEvents.after": "Go on behind this id; if absent, none are returned, only the id to go on from.",
    "Polled.after": "The id to go on from.",
    "Events.queue": "Only events of these queues.",
    "Events.kind": "Only events of these kinds.",
    "Events.after": "Go on behind this id. The header Last-Event-ID goes before it.",
    "Events.from": "Where to begin without an id: with what comes next, or the first event that is kept.",
    "Listen.max": "How many messages it may hold at a time.",
    "Listen.partition": "Only messages of this partition.",
    "kind": "What happened.",
    "Seen.task": "Name of the task that it is a call of.",
    "tenant": "Whose queue it is.",
    "at": "When it happened.",
    "status": "ok.",
    "ready": "Whether requests are taken.",
    "why": "Why not.",
    # Workers.
    "create": "Whether a missing queue is created, and not answered with `not_found`. "
    "The default is the setting `pop_creates_queues`.",
    "Pop.worker": "The name of the consumer, printable; shown with messages that it holds, and with those "
    "that failed.",
    "TellWorker.name": "Its name, printable. Another process of the same name takes its place in the list.",
    "ListWorkers.after": "Only names after this one.",
    "ListWorkers.queue": "Only workers of this queue.",
    "host": "The machine it runs on.",
    "pid": "Its process.",
    "TellWorker.version": "Its version.",
    "WorkerShown.version": "Its version.",
    "TellWorker.group": "The group it pops for.",
    "WorkerShown.group": "The group it pops for.",
    "TellWorker.queues": "Queues it works on.",
    "WorkerShown.queues": "Queues it works on.",
    "tasks": "Names of the tasks it runs.",
    "WorkerShown.concurrency": "Jobs that it runs at once, at most.",
    "TellWorker.concurrency": "Jobs that it runs at once, at most.",
    "TellWorker.state": "draining: it takes no more jobs; stopped: forget it.",
    "WorkerShown.state": "gone: it fell silent, and is forgotten after 10 minutes.",
    "up_ms": "How long it is up.",
    "running": "Jobs that it runs; of more than 100, those that run longest.",
    "running_count": "How many jobs it runs.",
    "TellWorker.done": "Jobs that it has finished.",
    "WorkerShown.done": "Jobs that it has finished.",
    "TellWorker.failed": "Jobs of them that failed.",
    "WorkerShown.failed": "Jobs of them that failed.",
    "task": "Name of its task.",
    "for_ms": "How long it runs.",
    "RunningJob.since": "When it began.",
    "started_at": "When it started.",
    "seen_at": "When it was last heard of.",
    "workers": "The workers.",
    # Tenants.
    "TenantShown.tenant": "Its name.",
    "Identity.tenant": "The tenant of the principal.",
    "CreatedToken.tenant": "The tenant that it is for.",
    "role": "What it may do: one of the roles.",
    "Identity.name": "Its name.",
    "CreateToken.name": "A name for people.",
    "TokenShown.name": "A name for people.",
    "CreatedToken.name": "A name for people.",
    "CreateToken.queues": "Names of queues, in which `*` stands for any text; all queues if empty.",
    "TokenShown.queues": "Patterns of its queues; all queues if empty.",
    "CreatedToken.queues": "Patterns of its queues; all queues if empty.",
    "Identity.queues": "Patterns of its queues; all queues if empty.",
    "Identity.expires_at": "When it expires; absent for never.",
    "TokenShown.expires_at": "When it expires; absent for never.",
    "CreatedToken.expires_at": "When it expires; absent for never.",
    "CreatedToken.token": "The token: keep it as a secret.",
    "expires_ms": "How long it is good; for ever if absent.",
    "last_used_at": "When it was last used; absent for never.",
    "TokenShown.id": "Id of the token, which is no secret.",
    "CreatedToken.id": "Id of the token, which is no secret.",
    "RevokeToken.id": "Id of the token.",
    "Revoked.id": "Id of the token.",
    "TenantShown.created_at": "When it was created.",
    "TokenShown.created_at": "When it was created.",
    "CreatedToken.created_at": "When it was created.",
    "spread": "Whether its queues are spread over shards.",
    "suspended": "Whether what it asks for is denied.",
    "PutTenant.spread": "Whether its queues are spread over shards; fixed once it exists.",
    "PutTenant.suspended": "Whether what it asks for is denied from now on.",
    "ListTenants.after": "Only names after this one.",
    "tenants": "The tenants, by name.",
    "tokens": "The tokens, the oldest first.",
    # Errors.
    "Errors.error": "What went wrong.",
    "code": "Stable.",
    "Problem.message": "For people.",
    "details": "For programs.",
}
"""Descriptions by field, or by class and field."""

CHOICES: dict[str, Sequence[str]] = {
    "state": words.STATES,
    "action": tuple(messages.ACTIONS),
    "role": ROLES,
    "states": queues.PURGED,
    "dedup": words.DEDUP_MODES,
    "on_failed": words.FAILURE_POLICIES,
    "durability": words.DURABILITY_LEVELS,
    "Push.durability": (words.FSYNC, words.OS),
    "ordering": (words.BY_MESSAGE, words.BY_PARTITION),
    "on_lease_expiry": (words.FAIL, words.REQUEUE),
    "missed": words.MISSED,
    "BackoffIn.kind": words.BACKOFF_KINDS,
    "Mutation.kind": words.CHANGE_KINDS,
    "Events.from": ("new", "all"),
    "Events.kind": (*EVENT_KINDS, *WORKER_KINDS),
    "PollEvents.kinds": (*EVENT_KINDS, *WORKER_KINDS),
    "TellWorker.state": SAID,
    "WorkerShown.state": (*SAID, GONE),
    "kinds": EVENT_KINDS,
    "Event.kind": EVENT_KINDS,
}
"""Accepted values of a field, or of the items of a list, by field, or by class and field."""

ALIKE: dict[type[Struct], type[Struct]] = {OptionsIn: queue.QueueOptions}
"""Classes whose fields are explained in another class."""


def about(kind: type[Struct], field: str) -> str:
    """Return the description of a field; empty if there is none."""
    told = _docstrings(ALIKE.get(kind, kind)).get(field)
    return told or _named(WORDS, kind, field) or ""


def choices(kind: type[Struct], field: str) -> Sequence[str] | None:
    """Return the accepted values of a field; None if they are not listed."""
    return _named(CHOICES, kind, field)


T = TypeVar("T")


def _named(table: dict[str, T], kind: type[Struct], field: str) -> T | None:
    for each in kind.__mro__:
        if (found := table.get(f"{each.__name__}.{field}")) is not None:
            return found
    return table.get(field)


@cache
def _docstrings(kind: type[Struct]) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        body = _classes(each.__module__).get(each.__name__, [])
        for line, below in pairwise(body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module; none if its source is missing."""
    if not module.startswith("forebay."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}
