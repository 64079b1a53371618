"""Timers of a shard: one agenda per kind of work that falls due."""

from forebay.core.bounds import NEVER
from forebay.core.state import Queue, Track
from forebay.core.structures.agenda import Agenda, Alarm

SWEEP_MS = 10_000
"""Sweeps run at multiples of this, so that a restart does not change when they run."""


SOON_MS = 100
"""When a sweep that was cut short goes on."""


def next_sweep_at(now: int) -> int:
    """Return the first multiple of ``SWEEP_MS`` after ``now``."""
    return (now // SWEEP_MS + 1) * SWEEP_MS


class Timers:
    """Everything in a shard that is due at some instant."""

    __slots__ = (
        "alarm",
        "crons",
        "crons_wait",
        "expiry",
        "leases",
        "limited",
        "pauses",
        "remembered",
        "staged",
        "sweeps",
        "tracks",
        "values",
    )

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        """The earliest instant of the shard: it is ticked no earlier."""
        self.leases = Agenda[int]()
        """Lease expiry, by lease name."""
        self.sweeps = Agenda[bytes]()
        """Sweeps, by queue prefix."""
        self.tracks = Agenda[Track]()
        """Schedules with a run that becomes due."""
        self.pauses = Agenda[bytes]()
        """Ends of pauses, by queue prefix."""
        self.expiry = Agenda[tuple[int, int]]()
        """End of the ttl of messages whose end has consequences, by partition key and offset."""
        self.remembered = Agenda[tuple[bytes, bytes]]()
        """Remembered pushes to forget, by queue prefix and key."""
        self.crons = Agenda[tuple[str, str]]()
        """Next slots of crons, by tenant and name."""
        self.crons_wait = False
        """Whether crons that are due wait: the store may not grow."""
        self.limited = Agenda[tuple[bytes, str]]()
        """Groups held back by a rate limit, by queue prefix and group name."""
        self.staged = Agenda[tuple[bytes, bool, str]]()
        """Stages to drop and adoptions to forget: queue prefix, whether it is a stage, name."""
        self.values = Agenda[tuple[str, bytes]]()
        """Expiry of values, by tenant and key."""

    def next_at(self) -> int:
        """Return the earliest instant of all agendas; ``NEVER`` if all are empty."""
        often = (self.leases, self.sweeps, self.tracks, self.pauses)
        rare = (self.expiry, self.remembered, self.limited, self.staged, self.values)
        earliest = min(agenda.next_at() for agenda in (*often, *rare))
        return earliest if self.crons_wait else min(earliest, self.crons.next_at())

    def hold_crons(self, wait: bool) -> None:
        """Have crons that are due wait, or fire."""
        self.crons_wait = wait
        if not wait:
            self.alarm.sooner(self.crons.next_at())

    def schedule_check(self, track: Track, due_at: int) -> None:
        """Check the schedule of a track at ``due_at``, and at no other time."""
        if track.due_at != NEVER:
            self.tracks.remove(track.due_at, track)
        track.due_at = due_at
        if due_at != NEVER:
            self.tracks.add(due_at, track)
            self.alarm.sooner(due_at)

    def plan_sweep(self, queue: Queue, now: int) -> None:
        """Sweep a queue at the next round time, because messages of it were settled."""
        queue.unswept = True
        self.sweep_again(queue, now)

    def sweep_soon(self, queue: Queue, now: int) -> None:
        """Sweep a queue again in a moment: there was more to do than one sweep does."""
        self._sweep_by(queue, now + SOON_MS)

    def sweep_again(self, queue: Queue, now: int) -> None:
        """Sweep a queue at the next round time after ``now``, or earlier if that is planned."""
        self._sweep_by(queue, next_sweep_at(now))

    def _sweep_by(self, queue: Queue, at: int) -> None:
        if queue.sweep_at:
            if queue.sweep_at <= at:
                return
            self.sweeps.remove(queue.sweep_at, queue.prefix)
        queue.sweep_at = at
        self.sweeps.add(at, queue.prefix)
        self.alarm.sooner(at)
