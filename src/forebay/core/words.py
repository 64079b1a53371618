"""Every word that a user can send or see: states, outcomes, event kinds, options.

Constants that are stored or indexed by number say so; their order is part of the data format.
"""

DROP, REPLACE, DEBOUNCE, THROTTLE = DEDUP_MODES = ("drop", "replace", "debounce", "throttle")
"""What a push does whose unique key is held.

drop        nothing: the message that holds the key is the one
replace     takes its place, if nobody has had it yet; else it is a message of its own that holds the key now
debounce    the same, and is delivered when no other came for a while
throttle    the key is not held until the message ends, but for a while: one message in that time
"""
MISSED = ("none", "last", "all")
"""Which of the slots that a cron missed, because no server ran, are made up for."""
DEFAULT = "default"
"""The tenant, the partition and the group a command means when it names none."""
FSYNC, OS, MEMORY = "fsync", "os", "memory"
"""What a confirmed change survives: power loss, a crash of the process, nothing."""
BY_MESSAGE, BY_PARTITION = "message", "partition"
"""What is delivered in strict order: nothing, or each partition."""
REQUEUE = "requeue"
"""What an expired lease is if it is not a failure: nothing that counts."""
RESULT, LINE, PART = range(3)
"""What can be noted of a message: what came of it, a line of its log, a part of its result."""
EXPIRED, CANCELLED, DISCARDED, EVICTED = range(4)
"""How a message can be settled other than by an ack."""
OUTCOMES = ("expired", "cancelled", "discarded", "evicted")
COMPLETED, DIED, GONE = range(4, 7)
"""How else a message can end: by an ack, as a dead letter, or because it is no longer kept."""
NONE, FIXED, EXPONENTIAL, LIST = "none", "fixed", "exponential", "list"
"""How the wait before a retry grows."""
FAIL, IGNORE, WAIT = "fail", "ignore", "wait"
"""What becomes of a message when one it depends on fails."""
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
"""The tenant whose queues the node itself writes."""
OWN = "_"
"""What the names of tenants begin with that are the server's own: nobody hears of what happens there."""


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
)
"""Every kind of event. An outcome has its own number."""
PUSHED, POPPED, SETTLED, RETRIED, RETURNED, DEAD, REQUEUED, CREATED, CONFIGURED, DELETED = range(
    len(OUTCOMES), len(EVENT_KINDS) - 3
)
RETIRED, OUTDATED, REMOVED = range(len(EVENT_KINDS) - 3, len(EVENT_KINDS))
"""Why something is no longer kept: it was settled long ago, it is too old for all, or it was long empty."""
DURABILITY_LEVELS = (MEMORY, OS, FSYNC)
"""What a change survives, from nothing to power loss."""
OPEN = ("waiting", "delayed", "active", "parked")
"""States of a message that has not ended."""
BACKOFF_KINDS = (NONE, FIXED, EXPONENTIAL, LIST)
FAILURE_POLICIES = (FAIL, IGNORE, WAIT)
"""What may become of a message when one that it depends on fails."""
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
"""What a write can do to a key."""
