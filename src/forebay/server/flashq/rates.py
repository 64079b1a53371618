"""How many jobs are completed per second, for METRICS."""

WINDOW_MS = 60_000
"""Time over which the rate is measured."""
SAMPLES_MAX = 1_000


class Completions:
    """Counts of completed jobs at the times that METRICS was asked."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []

    def rate(self, now: int, completed: int) -> float:
        """Return jobs per second since the first question of the last minute.

        >>> rates = Completions()
        >>> rates.rate(0, 5), rates.rate(2_000, 25)
        (0.0, 10.0)
        """
        recent = [each for each in self._samples if now - WINDOW_MS <= each[0] and each[1] <= completed]
        self._samples = [*recent[: SAMPLES_MAX - 1], (now, completed)]
        at, before = self._samples[0]
        return (completed - before) * 1_000 / (now - at) if now > at else 0.0
