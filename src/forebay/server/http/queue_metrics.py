"""Metrics of queues in the Prometheus text format, written slice by slice.

The objects of prometheus_client would be easier, and took 20 times as long: 2 s for 10,000 queues.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from operator import add, sub

from forebay.core.api.queries import Counts, GroupFound, QueueMeasured
from forebay.core.state import BUCKETS_MS, Tally
from forebay.core.words import EVENT_KINDS

ALWAYS = ("waiting", "delayed", "active", "completed", "dead")
"""States that have a series even at 0: dashboards and alerts are made of them."""
RARE = ("parked", "expired", "cancelled", "evicted", "discarded")
"""States that have a series while they are not 0."""
REST_TENANT, REST_QUEUE, REST_GROUP = "_rest", "*", "*"
"""Labels of the sum of all queues without series of their own: names that no tenant and no queue can have."""
FAMILIES = (
    ("forebay_queue_messages", "gauge", "Messages by state: of the group default, or the last of others."),
    ("forebay_queue_oldest_seconds", "gauge", "Age of the oldest message that waits."),
    ("forebay_queue_deferred", "gauge", "Messages that no consumer could handle yet, while there are any."),
    ("forebay_messages_total", "counter", "What happened to messages since the server started."),
    ("forebay_message_duration_seconds", "histogram", "From delivery to ack."),
    ("forebay_task_messages_total", "counter", "What happened to messages of a task since then."),
    ("forebay_task_duration_seconds", "histogram", "From delivery to ack, by task."),
    ("forebay_group_lag_messages", "gauge", "Messages that wait for a group other than default."),
    ("forebay_group_oldest_seconds", "gauge", "Age of the oldest of them."),
    ("forebay_group_dead_messages", "gauge", "Dead letters of a group other than default."),
)
"""Name, type and description."""
_BOUNDS = (*(f"{each / 1000:g}" for each in BUCKETS_MS), "+Inf")
Lines = list[str]
Values = list[int]
"""Counters of queues: by kind, by bucket of time, and the time itself."""
VALUES = len(EVENT_KINDS) + len(_BOUNDS) + 1


class QueueText:
    """The text of all metrics of queues."""

    def __init__(self, now: int, tasks_max: int) -> None:
        self._now = now
        self._tasks_left = tasks_max
        """Tasks that may still have series of their own; messages of the others are in those of queues."""
        # One list per family, whose lines must not be mixed with others; joined slice by slice, as to join
        # all lines at the end would take long in one step.
        self._parts = [
            [f"# HELP {name} {told}\n# TYPE {name} {kind}\n".encode()] for name, kind, told in FAMILIES
        ]

    def add(self, queues: Iterable[QueueMeasured]) -> None:
        """Add the series of a slice of queues."""
        lines: list[Lines] = [[] for _ in FAMILIES]
        depth, oldest, deferred, happened, times, of_tasks, task_times, *of_groups = lines
        for each in queues:
            queue, tenant = f'queue="{escaped(each.queue)}"', f'tenant="{escaped(each.tenant)}"'
            _depth(depth, each.counts, queue, tenant)
            oldest.append(f"forebay_queue_oldest_seconds{{{queue},{tenant}}} {self._age_s(each.oldest_at)}\n")
            if each.counts.deferred:
                deferred.append(f"forebay_queue_deferred{{{queue},{tenant}}} {each.counts.deferred}\n")
            if each.tally is not None:
                place = f"{queue},{tenant}"
                _happened(happened, "forebay_messages_total", each.tally, place)
                _times(times, "forebay_message_duration_seconds", each.tally, place)
                for name, tally in islice(each.tally.tasks.items(), self._tasks_left):
                    self._tasks_left -= 1
                    place = f'{queue},task="{escaped(name)}",{tenant}'
                    _happened(of_tasks, "forebay_task_messages_total", tally, place)
                    _times(task_times, "forebay_task_duration_seconds", tally, place)
            for group in each.groups:
                self._add_group(of_groups, group, f"{queue},{tenant}")
        for part, added in zip(self._parts, lines, strict=True):
            part.append("".join(added).encode())

    def add_groups(self, groups: Iterable[GroupFound]) -> None:
        """Add the sum of groups without series of their own, if there are any."""
        total: GroupFound | None = None
        for each in groups:
            total = total or GroupFound(REST_GROUP, Counts())
            total.counts.waiting += each.counts.waiting
            total.counts.dead += each.counts.dead
            if each.oldest_at is not None:
                total.oldest_at = min(each.oldest_at, total.oldest_at or each.oldest_at)
        if total is not None:
            lines: list[Lines] = [[], [], []]
            self._add_group(lines, total, f'queue="{REST_QUEUE}",tenant="{REST_TENANT}"')
            for part, added in zip(self._parts[-len(lines) :], lines, strict=True):
                part.append("".join(added).encode())

    def _add_group(self, of_groups: list[Lines], found: GroupFound, place: str) -> None:
        lag, oldest, dead = of_groups
        labels = f'{{group="{escaped(found.name)}",{place}}}'
        lag.append(f"forebay_group_lag_messages{labels} {found.counts.waiting}\n")
        oldest.append(f"forebay_group_oldest_seconds{labels} {self._age_s(found.oldest_at)}\n")
        dead.append(f"forebay_group_dead_messages{labels} {found.counts.dead}\n")

    def _age_s(self, at: int | None) -> float:
        return 0.0 if at is None else (self._now - at) / 1000

    def text(self) -> bytes:
        return b"".join(each for part in self._parts for each in part)


def _depth(lines: Lines, counts: Counts, queue: str, tenant: str) -> None:
    for state in ALWAYS:
        lines.append(f'forebay_queue_messages{{{queue},state="{state}",{tenant}}} {getattr(counts, state)}\n')
    for state in RARE:
        if count := getattr(counts, state):
            lines.append(f'forebay_queue_messages{{{queue},state="{state}",{tenant}}} {count}\n')


def _happened(lines: Lines, name: str, tally: Tally, place: str) -> None:
    """Add the counters of a queue or task."""
    for kind, count in zip(EVENT_KINDS, tally.counts, strict=True):
        if count:
            lines.append(f'{name}{{kind="{kind}",{place}}} {count}\n')


def _times(lines: Lines, name: str, tally: Tally, place: str) -> None:
    """Add the histogram of a queue or task, if it has settled anything."""
    total = sum(tally.times)
    if not total:
        return
    below = 0
    for bound, count in zip(_BOUNDS, tally.times, strict=True):
        below += count
        lines.append(f'{name}_bucket{{le="{bound}",{place}}} {below}\n')
    lines.append(f"{name}_count{{{place}}} {total}\n")
    lines.append(f"{name}_sum{{{place}}} {tally.spent_ms / 1000}\n")


def escaped(label: str) -> str:
    r"""Return a label's value as it stands between quotes.

    >>> print(escaped('a"\\'))
    a\"\\
    """
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Rest:
    """The sum of all queues without series of their own.

    A queue that is deleted, or gets series of its own, takes its counts out of the sum. Prometheus would take
    the lower counter for one that was reset, and all of it for an increase: what was once told stays in. A
    queue that loses its series of its own brings along only what these have not told.
    """

    def __init__(self) -> None:
        self._inside: set[Tally] = set()
        """Counters of queues that were in the sum when it was last told; they outlast their queue."""
        self._outside: Mapping[Tally, Values] = {}
        """What series of their own told of others."""
        self._extra: Values = [0] * VALUES
        """What is told beyond the counters of queues that are in the sum."""

    def told(self, found: Iterable[QueueMeasured], outside: Mapping[Tally, Values]) -> QueueMeasured:
        """Return the sum of sums; ``outside`` are counters of all others, as their own series tell them."""
        total = QueueMeasured(REST_TENANT, REST_QUEUE, Counts(), None, None, [])
        now, inside = [0] * VALUES, set[Tally]()
        for each in found:
            for state in (*ALWAYS, *RARE, "deferred"):
                setattr(total.counts, state, getattr(total.counts, state) + getattr(each.counts, state))
            if each.oldest_at is not None:
                total.oldest_at = min(each.oldest_at, total.oldest_at or each.oldest_at)
            if each.tally is not None:
                now = list(map(add, now, _values(each.tally)))
            inside.update(each.tallies)
        for left in self._inside - inside:
            self._extra = list(map(add, self._extra, outside.get(left) or _values(left)))
        for known in self._outside.keys() & inside:
            self._extra = list(map(sub, self._extra, self._outside[known]))
        self._inside, self._outside = inside, outside
        sums, kinds = list(map(add, now, self._extra)), len(EVENT_KINDS)
        total.tally = Tally(REST_TENANT, REST_QUEUE, sums[:kinds], sums[kinds:-1], sums[-1])
        return total


def values_of(queues: Iterable[QueueMeasured]) -> dict[Tally, Values]:
    """Return the counters of queues as they are now."""
    return {each.tally: _values(each.tally) for each in queues if each.tally is not None}


def _values(tally: Tally) -> Values:
    return [*tally.counts, *tally.times, tally.spent_ms]
