"""What the clients know: what they sent, what was confirmed, and what has an unknown fate.

A request whose answer never came may have been carried out or not. The checks after a restart find out which,
and from then on its fate is known.

    Sent     a push: kept, absent, or unknown
    Hold     one delivery of one message to one group: until when nobody else may get it
    Lease    the holds that share a token
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

FOREVER = 1 << 62
"""When a settled message may be delivered again."""


@dataclass(eq=False)
class Sent:
    """A push, with its payloads by partition."""

    where: str
    """Cycle and client that sent it."""
    queue: str
    parts: dict[str, list[str]]
    firsts: dict[str, list[int]] | None = None
    """Ids by partition, once confirmed."""
    fate: str = "unknown"
    """kept, absent or unknown."""

    def __str__(self) -> str:
        shape = {name: len(payloads) for name, payloads in self.parts.items()}
        return f"{self.where}: pushed to {self.queue} {shape}, {self.fate}, ids {self.firsts}"


@dataclass(eq=False)
class Hold:
    """A delivery of one message."""

    id: int
    group: str
    payload: str
    popped_at: int
    free_from: int
    """Nobody else gets the message before this instant, on the server's clock."""
    events: list[str] = field(default_factory=list)

    def happened(self, what: str) -> None:
        self.events.append(what)

    def settle(self, what: str) -> None:
        self.free_from = FOREVER
        self.happened(what)


@dataclass(eq=False)
class Lease:
    """A token, and what it still holds as far as is known."""

    token: str
    queue: str
    group: str
    expires_at: int
    """It lasts at least until then."""
    lasts_to: int
    """It lasts at most until then: an extend that was never answered and every restart may add to it."""
    holds: dict[int, Hold]
    doubtful: bool = False
    """A nack of it was never answered: anything about it may be so or not."""
    over: bool = False
    """The server said that it is not live any more."""
    in_flight: bool = False
    """A request about it is on its way."""

    def drop(self, ids: Iterable[int]) -> list[Hold]:
        """These are not in it any more."""
        return [self.holds.pop(each) for each in ids]


@dataclass(eq=False)
class Unknown:
    """An ack or a cancel whose answer never came: all of it or nothing was done."""

    lease: Lease
    ids: list[int]
    state: str
    """What the messages are if it was done: completed or cancelled."""
    results: dict[int, str] = field(default_factory=dict)
    """What came of them, if that was said along."""


class Violation(AssertionError):
    """A promise was broken. The harness adds seed and cycle."""


class Record:
    """What one client did in one cycle."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.delivered: list[Hold] = []
        self.leases: list[Lease] = []
        self.acked: list[Hold] = []
        self.cancelled: list[tuple[str, int]] = []
        """Group and id of what was cancelled, confirmed."""
        self.purged: list[tuple[str, int]] = []
        """Group and id of dead letters that were given up, confirmed."""
        self.maybe: list[tuple[str, int]] = []
        """Group and id of what was cancelled or given up, if those requests were carried out."""
        self.results: dict[int, str] = {}
        """By id: what came of messages, confirmed."""
        self.unknown: list[Unknown] = []
        self.violations: list[str] = []


class Ledger:
    """Everything that is known about one data directory."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.by_payload: dict[str, Sent] = {}
        self.payloads: dict[int, str] = {}
        """By id: what was confirmed or read."""
        self.queue_of: dict[int, str] = {}
        self.logs: dict[tuple[str, str], list[str]] = {}
        """By queue and partition: what was read last."""
        self.holds: dict[tuple[str, int], list[Hold]] = {}
        """By group and id."""
        self.acked: set[tuple[str, int]] = set()
        """By group and id, like what follows."""
        self.cancelled: set[tuple[str, int]] = set()
        self.purged: set[tuple[str, int]] = set()
        self.maybe: set[tuple[str, int]] = set()
        """Cancelled or given up, if requests were carried out that were never answered."""
        self.leases: list[Lease] = []
        self.ended: list[Lease] = []
        """Leases that were settled or have run out for certain: their tokens are refused for good."""
        self.results: dict[int, str] = {}
        """By id: what came of messages that were acked."""
        self.unknown: list[Unknown] = []

    def add(self, record: Record) -> None:
        """Enter what a client did."""
        for sent in record.sent:
            self.sent.append(sent)
            for payloads in sent.parts.values():
                for payload in payloads:
                    self.by_payload[payload] = sent
        for hold in record.delivered:
            self.holds.setdefault((hold.group, hold.id), []).append(hold)
        self.acked.update((hold.group, hold.id) for hold in record.acked)
        known = set(map(id, self.leases))
        self.leases += [lease for lease in record.leases if id(lease) not in known]
        self.cancelled.update(record.cancelled)
        self.purged.update(record.purged)
        self.maybe.update(record.maybe)
        self.results |= record.results
        self.unknown += record.unknown

    def summary(self) -> str:
        settled = f"{len(self.acked)} acked, {len(self.cancelled)} cancelled, {len(self.purged)} given up"
        return f"{len(self.payloads)} messages, {settled}, {len(self.leases)} leases"

    def latest(self, group: str, message: int) -> Hold:
        """The last delivery of a message to a group that anybody knows of."""
        return max(self.holds[group, message], key=lambda hold: hold.popped_at)

    def history(self, group: str | None, message: int) -> str:
        """All that is known about a message."""
        payload = self.payloads.get(message)
        sent = self.by_payload.get(payload) if payload is not None else None
        lines = [f"message {message} ({payload and payload[:40]!r})", f"  {sent}"]
        for (each_group, each), holds in self.holds.items():
            if each == message and group in (None, each_group):
                for hold in sorted(holds, key=lambda hold: hold.popped_at):
                    lines.append(f"  {each_group}: popped at {hold.popped_at}, free from {hold.free_from}")
                    lines += [f"    {event}" for event in hold.events]
        return "\n".join(lines)
