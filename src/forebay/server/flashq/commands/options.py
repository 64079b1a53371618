"""Options of a job, as PUSH, PUSHB, FLOW and CRON have them.

SDKs write some of them in camel case, too. Null means that an option is not given.
"""

from functools import lru_cache
from operator import attrgetter

from msgspec import Struct

from forebay.core.api.jobs import Job
from forebay.core.bounds import DELAY_MS_MAX, Limits, check_name
from forebay.core.ids import spans_of
from forebay.core.state import DOUBLINGS, Attributes, Backoff, Cleanup, Identity
from forebay.core.words import DEFAULT, DROP, NONE, THROTTLE, WAIT
from forebay.server.flashq.command import Whole, parse_ids
from forebay.server.flashq.errors import Refused
from forebay.wire.types import Id

DEBOUNCE_MS = 5_000
"""Default hold time of a debounce_id."""
AT_ONCE = Backoff(NONE, 0, 0)


class Options(Struct, gc=False, kw_only=True):
    """Everything that can be said of a job besides its queue and data."""

    priority: int | None = None
    delay: Whole | None = None
    ttl: Whole | None = None
    timeout: Whole | None = None
    max_attempts: Whole | None = None
    backoff: Whole | None = None
    unique_key: str | None = None
    depends_on: list[Id] | None = None
    tags: list[str] | None = None
    lifo: bool | None = None
    remove_on_complete: bool | None = None
    remove_on_fail: bool | None = None
    stall_timeout: Whole | None = None
    debounce_id: str | None = None
    debounce_ttl: Whole | None = None
    job_id: str | None = None
    keep_completed_age: Whole | None = None
    keep_completed_count: Whole | None = None
    group_id: str | None = None
    # The same in camel case, and the other name of a custom id.
    maxAttempts: Whole | None = None
    uniqueKey: str | None = None
    dependsOn: list[Id] | None = None
    removeOnComplete: bool | None = None
    removeOnFail: bool | None = None
    stallTimeout: Whole | None = None
    debounceId: str | None = None
    debounceTtl: Whole | None = None
    jobId: str | None = None
    customId: str | None = None
    custom_id: str | None = None
    keepCompletedAge: Whole | None = None
    keepCompletedCount: Whole | None = None
    groupId: str | None = None

    def settle(self) -> None:
        """Move what was given under another name to the name that is used here."""
        if not any(_aliases(self)):
            return
        for name, other in ALIASES:
            value = getattr(self, other)
            if value is not None and getattr(self, name) is None:
                setattr(self, name, value)


ALIASES = [
    ("max_attempts", "maxAttempts"),
    ("unique_key", "uniqueKey"),
    ("depends_on", "dependsOn"),
    ("remove_on_complete", "removeOnComplete"),
    ("remove_on_fail", "removeOnFail"),
    ("stall_timeout", "stallTimeout"),
    ("debounce_id", "debounceId"),
    ("debounce_ttl", "debounceTtl"),
    ("job_id", "jobId"),
    ("job_id", "customId"),
    ("job_id", "custom_id"),
    ("keep_completed_age", "keepCompletedAge"),
    ("keep_completed_count", "keepCompletedCount"),
    ("group_id", "groupId"),
]
_aliases = attrgetter(*(other for _, other in ALIASES))
_every = attrgetter(*Options.__struct_fields__)


def is_plain(given: Options) -> bool:
    """Return whether no option is given, or none but those that mean nothing, as 0 and false do."""
    return not any(_every(given))


@lru_cache(maxsize=8)
def plain_attributes(limits: Limits) -> Attributes:
    """Return the attributes of a job without options."""
    return attributes_of(Options(), limits)


def cleanup_of(given: Options) -> Cleanup | None:
    """Return when a job is dropped after its end, if it says so."""
    completed, failed = bool(given.remove_on_complete), bool(given.remove_on_fail)
    age, count = given.keep_completed_age or 0, given.keep_completed_count or 0
    return Cleanup(completed, failed, age, count) if completed or failed or age or count else None


def attributes_of(given: Options, limits: Limits) -> Attributes:
    """Return how a job is delivered.

    *Attempts.* flashQ shows 0 for a job without ``max_attempts``; its documents promise 3 attempts, its code
    retries for ever. We keep the promise: 0 is the queue's ``max_attempts``, which is 3 unless it is set.
    *Backoff.* Without one a job is retried at once, which is what flashQ does.
    *Timeout.* flashQ has no leases: without ``timeout`` and ``stall_timeout`` a worker may take as long as it
    likes. The longest lease that the server allows stands for that.
    *Dependencies.* A job whose dependency failed waits until that is retried.
    """
    backoff = AT_ONCE
    if given.backoff:
        backoff = Backoff(base_ms=given.backoff, cap_ms=min(given.backoff << DOUBLINGS, DELAY_MS_MAX))
    is_watched = given.timeout or given.stall_timeout
    return Attributes(
        priority=given.priority or 0,
        delay_ms=given.delay or 0,
        lifo=bool(given.lifo),
        ttl_ms=given.ttl or 0,
        timeout_ms=(given.timeout or 0) if is_watched else limits.lease_ms_max,
        max_attempts=given.max_attempts or None,
        backoff=backoff,
        depends_on=spans_of(parse_ids(given.depends_on)) if given.depends_on else (),
        on_failed=WAIT,
        tags=tuple(dict.fromkeys(given.tags)) if given.tags else (),
        cleanup=cleanup_of(given),
        stall_ms=given.stall_timeout or 0,
    )


def identity_of(given: Options) -> Identity | None:
    """Return what a job is known by, or None."""
    key, job_id = given.unique_key or None, given.job_id or None
    ttl = DEBOUNCE_MS if given.debounce_ttl is None else given.debounce_ttl
    if given.debounce_id and ttl:
        if key is not None:
            raise Refused("debounce_id", "A job has a unique_key or a debounce_id, not both")
        return Identity(given.debounce_id, THROTTLE, ttl, job_id=job_id, retakes=True)
    # The id of a job that is gone for clients is free, or a push would be confirmed and never delivered.
    known = key is not None or job_id is not None
    return Identity(key, DROP, job_id=job_id, retakes=True) if known else None


def job_of(given: Options, data: bytes, limits: Limits) -> Job:
    """Return a job for the core. Jobs of a group go one by one: the group is a lane of its own."""
    if is_plain(given):
        return Job(data, DEFAULT, plain_attributes(limits))
    given.settle()
    group = given.group_id or DEFAULT
    if given.group_id:
        check_name("group_id", group)
        if group == DEFAULT:
            raise Refused("group_id", f"Invalid group_id: {DEFAULT} is where all other jobs are")
    return Job(data, group, attributes_of(given, limits), identity_of(given), group != DEFAULT)
