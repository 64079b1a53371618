"""What an import did, and whether the server has it."""

from msgspec import Struct

from forebay.client.types import Counts

EXPIRED = "the time to live is over"
COMPLETED = "completed"
LIMIT_REACHED = "a cron that has run as often as it should"
HARMLESS = {EXPIRED, COMPLETED, LIMIT_REACHED}
"""Reasons for which a job is skipped and nothing is lost."""
NOT_JSON = "the data is not JSON"
DEPENDENCY = "it waits for a job that is not imported"
TAKEN = "another message has its unique key or id"
OTHER_CRON = "another cron has its name"
CRON = "cron"
"""Shown as the state of crons."""
COMPARED = (("waiting", "delayed"), ("parked",), ("dead",))
"""States whose counts are compared. A delay may end meanwhile, so the first two are one count."""


class Tally(Struct):
    """What became of the jobs of a queue that had a state."""

    in_file: int = 0
    imported: int = 0
    known: int = 0
    """Were there already."""
    skipped: int = 0


class Difference(Struct, frozen=True):
    """Counts of a queue that did not grow by what was imported."""

    queue: str
    states: str
    expected: int
    found: int


class Report:
    """All that an import did, and whether the server has it."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.skipped: dict[tuple[str, str], list[int | str]] = {}
        """Ids by queue and reason."""
        self.differences: list[Difference] = []
        self.after: dict[str, Counts] = {}

    def tally(self, queue: str, state: str) -> Tally:
        return self.tallies.setdefault((queue, state), Tally())

    def skip(self, queue: str, state: str, id: int | str, reason: str) -> None:
        self.tally(queue, state).skipped += 1
        self.skipped.setdefault((queue, reason), []).append(id)

    def compare(self, before: dict[str, Counts], after: dict[str, Counts]) -> None:
        """Note every queue whose counts did not grow by what was imported."""
        self.after = after
        for queue in sorted({queue for queue, _ in self.tallies}):
            for states in COMPARED:
                old, new = (
                    sum(getattr(each.get(queue, Counts()), name) for name in states)
                    for each in (before, after)
                )
                expected = old + sum(self.tallies.get((queue, name), Tally()).imported for name in states)
                if new != expected:
                    self.differences.append(Difference(queue, "+".join(states), expected, new))

    def check_all_read(self, rows: dict[str, int]) -> None:
        """Note every queue of which not each row of the file was counted."""
        for queue, count in rows.items():
            read = sum(each.in_file for (name, _), each in self.tallies.items() if name == queue)
            if read != count:
                self.differences.append(Difference(queue, "read from the file", count, read))

    @property
    def is_whole(self) -> bool:
        """Whether everything that should have been imported is there."""
        return not self.differences and all(reason in HARMLESS for _, reason in self.skipped)

    def on_server(self, queue: str, state: str) -> int | None:
        found: int | None = getattr(self.after.get(queue), state, None)
        return found

    def shown(self) -> dict[str, object]:
        """Return the report as ``--json`` prints it."""
        rows = [
            {
                "queue": queue,
                "state": state,
                "in_file": each.in_file,
                "imported": each.imported,
                "already_there": each.known,
                "skipped": each.skipped,
                "on_server": self.on_server(queue, state),
            }
            for (queue, state), each in sorted(self.tallies.items())
        ]
        skipped = [
            {"queue": queue, "reason": reason, "count": len(ids), "ids": ids}
            for (queue, reason), ids in sorted(self.skipped.items())
        ]
        return {"same": self.is_whole, "rows": rows, "skipped": skipped, "differences": self.differences}
