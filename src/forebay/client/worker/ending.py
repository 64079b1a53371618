"""How long a worker takes to end: ``STOP_S`` after ``drain_s`` at most, whatever happens.

By default that is less than the 30 s that Kubernetes leaves to a container.
"""

from forebay.client.later import FLUSH_S

DRAIN_S = 20.0
"""Time for running jobs to finish on shutdown."""
RELEASE_S = 1.0
"""Least time allowed for the release of jobs that have not begun."""
INTERRUPTED_S = 3.0
"""Time for jobs to end after an interrupt."""
LAST_S = 0.5
"""Time for runners to end after each of the two cancels."""
CLOSE_S = 1.0
"""Least time for what ``push_later`` buffered. Closing the client takes as long, at the same time."""
END_S = 1.5
"""Time for threads and coroutines to end after the worker has stopped."""
LOGS_S = 0.5
"""Time to flush the logs of a process that is left though they have not ended."""
STOP_S = RELEASE_S + INTERRUPTED_S + 2 * LAST_S + CLOSE_S + END_S + LOGS_S


def flush_s(since_stop_s: float, drain_s: float) -> float:
    """Return how long a worker that stops may wait for what ``push_later`` buffered.

    >>> flush_s(0.1, drain_s=20.0), flush_s(23.0, drain_s=20.0), flush_s(25.0, drain_s=20.0)
    (5.0, 3.0, 1.0)
    """
    left_s = drain_s + STOP_S - END_S - LOGS_S - since_stop_s
    return max(min(FLUSH_S, left_s), CLOSE_S)
