"""Every word that a user can send or see: states, outcomes, event kinds, options.

Constants that are stored or indexed by number say so; their order is part of the data format.
"""

DROP, REPLACE, DEBOUNCE, THROTTLE = DEDUP_MODES = ("drop", "replace", "debounce", "throttle")
"""What a push does if its unique key is held by another message.

drop        nothing: the reply has the id of the holder
replace     replaces the holder if it was never delivered; otherwise the new message takes over the key
debounce    like replace, and the message is delivered once no other push came for a while
throttle    the key is held for a time window instead of until the message ends: one message per window
"""
MISSED = ("none", "last", "all")
"""Which missed slots of a cron are made up for."""
DEFAULT = "default"
"""Default tenant, partition and group."""
FSYNC, OS, MEMORY = "fsync", "os", "memory"
"""What a confirmed change survives: power loss, a crash of the process, nothing."""
BY_MESSAGE, BY_PARTITION = "message", "partition"
"""Ordering: none, or strict per partition."""
REQUEUE = "requeue"
"""on_lease_expiry: deliver again without counting a failure (FAIL counts one)."""
RESULT, LINE, PART, ATTEMPT, AWAITED = range(5)
"""Kinds of notes: result, log line, partial result, failed attempt, result that other messages waited for.
Stored as numbers; those of attempts have the number of their group on top, ``NOTE_KINDS`` times."""
NOTE_KINDS = 8
EXPIRED, CANCELLED, DISCARDED, EVICTED = range(4)
"""Outcomes: ways to be settled other than by an ack. Stored as numbers."""
OUTCOMES = ("expired", "cancelled", "discarded", "evicted")
COMPLETED, DIED, GONE = range(4, 7)
"""Other ends of a message: acked, dead, no longer kept. Stored as numbers."""
DROPPED, DROPPED_DEAD = DROPS = (7, 8)
"""Outcomes of messages that were completed, or dead, and then dropped: their group shows them no longer,
though their segment is kept. That is no news, so there is no event of it. Stored as numbers."""
REVIVED = 9
"""No end, but the opposite, told to dependents in the same way: a dead message was requeued. Stored as a
number."""
HOPELESS = 10
"""No end either: a dead message can't be requeued any more. Stored as a number."""
ENDS = 11
"""All of these numbers are below it."""
NONE, FIXED, EXPONENTIAL, LIST = "none", "fixed", "exponential", "list"
"""Kinds of backoff."""
FAIL, IGNORE, WAIT = "fail", "ignore", "wait"
"""on_failed: what happens to a message when a dependency fails."""
STATES = (
    "waiting",
    "delayed",
    "parked",
    "active",
    "completed",
    "dead",
    "expired",
    "cancelled",
    "evicted",
    "discarded",
)
SYSTEM = "_system"
"""The server's own tenants, one per shard: event log, webhooks and their queues, of the shard's tenants."""
EVENTS = "events"
"""The event log: a queue of such a tenant."""
OWN = "_"
"""Prefix of the server's own tenants, which emit no events."""


def system_of(shard: int) -> str:
    """Return the server's own tenant in a shard."""
    return f"{SYSTEM}.{shard}"


def is_own(tenant: str) -> bool:
    """Whether a tenant is the server's own."""
    return tenant.startswith(OWN)


EVENT_KINDS = (
    *OUTCOMES,
    "pushed",
    "popped",
    "settled",
    "retried",
    "returned",
    "dead",
    "requeued",
    "created",
    "configured",
    "deleted",
    "retired",
    "outdated",
    "removed",
    "progressed",
    "deferred",
)
"""Every kind of event; an outcome has its own number. Stored as numbers."""
PUSHED, POPPED, SETTLED, RETRIED, RETURNED, DEAD, REQUEUED, CREATED, CONFIGURED, DELETED = range(
    len(OUTCOMES), len(EVENT_KINDS) - 5
)
RETIRED, OUTDATED, REMOVED, PROGRESSED, DEFERRED = range(len(EVENT_KINDS) - 5, len(EVENT_KINDS))
"""The first three say why data is no longer kept: settled long ago, too old, or a partition long empty."""
WORKER_STARTED, WORKER_STOPPED, WORKER_GONE = WORKER_KINDS = (
    "worker_started",
    "worker_stopped",
    "worker_gone",
)
"""Kinds of events about workers: told to whoever listens, and never stored."""
DEFERRED_SINCE = "deferred since "
"""Begins the error of a message that its consumers can't handle yet. Stored with it."""
DURABILITY_LEVELS = (MEMORY, OS, FSYNC)
"""Durability levels, weakest first."""
OPEN = ("waiting", "delayed", "active", "parked")
"""States of a message that has not ended."""
BACKOFF_KINDS = (NONE, FIXED, EXPONENTIAL, LIST)
FAILURE_POLICIES = (FAIL, IGNORE, WAIT)
"""Valid values of on_failed."""
SET, DELETE, SUM, MAX, MIN, APPEND, PREPEND, EXPIRE = CHANGE_KINDS = (
    "set",
    "delete",
    "sum",
    "max",
    "min",
    "append",
    "prepend",
    "expire",
)
"""Changes that a write can make to a key."""
