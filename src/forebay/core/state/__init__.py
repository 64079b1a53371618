"""The data, first: everything Forebay knows about a queue, field by field.

    tenant ── queue ──┬── partition ── log ── segments ── runs (and one body each, kept apart)
                      └── group ──┬── track per partition: cursor, skips, schedule, dead, outcomes, leased
                                  └── leases ── runs

A message has no object of its own. It is an offset in a partition; its state follows from
where that offset lies. For every group, at every instant, a message is in exactly one of:

    fresh       at or past the track's cursor, in line, and not in its skips
    leased      in an unsettled place of a live lease
    scheduled   in a run of the track's schedule (or about to be put there: out of line, past ``planned``)
    dead        in a run of the track's dead letters
    parked      in a run of the partition that waits for other messages: so in every group
    settled     in none of these: completed, unless an outcome of the track says otherwise

Fields marked *memory* are rebuilt at load; all others are stored. Instants end in ``_at`` and durations in
``_ms``, both in milliseconds.
"""

from forebay.core.state.attributes import (
    BASE_MS as BASE_MS,
    DOUBLINGS as DOUBLINGS,
    IN_LINE as IN_LINE,
    PLACE_BYTES as PLACE_BYTES,
    PLAIN as PLAIN,
    Attributes as Attributes,
    Backoff as Backoff,
    Cleanup as Cleanup,
    are_treated_alike as are_treated_alike,
    count_sets as count_sets,
    level_of as level_of,
    priority_of as priority_of,
    set_at as set_at,
)
from forebay.core.state.events import (
    BUCKETS_MS as BUCKETS_MS,
    NOT_KEPT as NOT_KEPT,
    Change as Change,
    EmittedEvent as EmittedEvent,
    Event as Event,
    EventLog as EventLog,
    Ran as Ran,
    ShownRun as ShownRun,
    Tally as Tally,
    tally as tally,
)
from forebay.core.state.group import (
    Group as Group,
)
from forebay.core.state.jobs import (
    Cron as Cron,
    Identity as Identity,
    RememberedPush as RememberedPush,
    Tie as Tie,
)
from forebay.core.state.lease import (
    Lease as Lease,
    LeaseRun as LeaseRun,
)
from forebay.core.state.limits import (
    Bucket as Bucket,
    Limiter as Limiter,
    NamedLimit as NamedLimit,
    Rate as Rate,
)
from forebay.core.state.notes import (
    Attempt as Attempt,
    Notes as Notes,
)
from forebay.core.state.partition import (
    SPAN_MAX as SPAN_MAX,
    Mark as Mark,
    Partition as Partition,
    Progress as Progress,
    Retention as Retention,
)
from forebay.core.state.queue import (
    Queue as Queue,
    QueueOptions as QueueOptions,
)
from forebay.core.state.schedule import (
    NO_PAST as NO_PAST,
    Past as Past,
    Schedule as Schedule,
    Scheduled as Scheduled,
)
from forebay.core.state.segment import (
    Log as Log,
    Run as Run,
    Segment as Segment,
)
from forebay.core.state.stages import (
    Adopted as Adopted,
    Part as Part,
    Stage as Stage,
    Sums as Sums,
)
from forebay.core.state.tokens import Token as Token
from forebay.core.state.track import (
    BY_ITSELF as BY_ITSELF,
    LOST as LOST,
    Dead as Dead,
    Track as Track,
    fresh_count as fresh_count,
)
from forebay.core.state.values import (
    OVERHEAD as OVERHEAD,
    Keys as Keys,
    Value as Value,
    Values as Values,
    weight as weight,
)
