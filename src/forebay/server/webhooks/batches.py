"""Divide events that were read together into deliveries for webhooks, and deliveries into commits.

Nothing here does I/O: events of a shard come in; messages to push and progress to store go out.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.api.jobs import Job
from forebay.core.bounds import OPERATIONS_MAX

logger = logging.getLogger("forebay.webhooks")

TOGETHER_MAX = 100
"""Events of one delivery."""
TOGETHER_BYTES = 128 * 1024
"""Bytes of one delivery's events; a larger event is sent alone."""
WAITING_MAX = 10_000
"""Deliveries that wait for one webhook, about; it then gets no more until half of them are gone."""

_encode = msgspec.json.Encoder().encode


def lost(shard: int, first: int, end: int) -> bytes:
    """Return the event that is delivered in place of lost ones."""
    return _encode({"kind": "lost", "shard": shard, "from": first, "to": end})


class Progress(Struct, frozen=True):
    """How far a webhook is told of the events of one shard; stored in that shard when it changes."""

    since: int
    """First event to deliver."""
    lost: int | None = None
    """First event that was left out because too many deliveries wait."""

    def told_up_to(self, at: int) -> "Progress":
        """Return progress without the events before a position, even if others are still sent them."""
        return replace(self, since=max(at, self.since))

    def is_full(self, waiting: int) -> bool:
        """Whether so many deliveries wait that none are added."""
        # Two thresholds: with one, a full webhook would alternate between a few events and another gap.
        return waiting >= (WAITING_MAX if self.lost is None else WAITING_MAX // 2)


class Round:
    """One round of forwarding in a shard: the events for each webhook, of those that were read together."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.events: dict[str, list[bytes]] = {}
        self.changed: dict[str, Progress] = {}
        """Progress that has to be stored, by webhook."""
        self.alone: set[str] = set()
        """Webhooks that get one event in a delivery."""
        self._full: dict[str, Progress] = {}

    def begin(self, webhook: str, progress: Progress, waiting: int, at: int) -> None:
        """Skip a webhook with too many deliveries waiting; report lost events to one that has caught up."""
        if progress.is_full(waiting):
            self._full[webhook] = progress
        elif progress.lost is not None:
            end = progress.told_up_to(at).since
            self.events[webhook] = [lost(self._shard, progress.lost, end)]
            self.changed[webhook] = replace(progress, lost=None)

    def tell(self, webhook: str, offset: int, event: bytes) -> None:
        if webhook not in self._full:
            self.events.setdefault(webhook, []).append(event)
        elif webhook not in self.changed and self._full[webhook].lost is None:
            logger.warning("webhook %s: %d deliveries wait, no more are added", webhook, WAITING_MAX)
            self.changed[webhook] = replace(self._full[webhook], lost=offset)


class Part(Struct):
    """What one commit does for a webhook."""

    webhook: str
    progress: Progress
    """Progress as it is to be stored."""
    jobs: list[Job]
    is_changed: bool
    is_last: bool
    """Whether this is its last part in the round."""


def parts(
    told: Round, webhooks: Mapping[str, Progress], payload_bytes_max: int, batch_max: int
) -> Iterator[Part]:
    """Yield the work of a round for each webhook, in parts that fit into a commit."""
    for webhook, progress in webhooks.items():
        kept = told.changed.get(webhook, progress)
        is_changed = kept is not progress
        at_once = 1 if webhook in told.alone else TOGETHER_MAX
        jobs = [Job(each) for each in together(told.events.get(webhook, []), payload_bytes_max, at_once)]
        while len(jobs) > batch_max:
            yield Part(webhook, progress, jobs[:batch_max], is_changed=False, is_last=False)
            jobs = jobs[batch_max:]
        if jobs or is_changed:
            yield Part(webhook, kept, jobs, is_changed, is_last=True)


def commits(parts: Iterable[Part], batch_max: int) -> list[list[Part]]:
    """Group parts into commits within the limits on messages and operations. There is at least one commit."""
    found: list[list[Part]] = [[]]
    count = 0
    for part in parts:
        count += len(part.jobs)
        if found[-1] and (count > batch_max or len(found[-1]) == OPERATIONS_MAX - 1):
            found.append([])
            count = len(part.jobs)
        found[-1].append(part)
    return found


def together(events: list[bytes], most: int, at_once: int = TOGETHER_MAX) -> Iterator[bytes]:
    """Yield events as JSON arrays, one per delivery, within the limits on number and size.

    >>> list(together([b"1", b"2", b"[3, 4]"], 7))
    [b'[1,2]']
    """
    room = min(TOGETHER_BYTES, most)
    some: list[bytes] = []
    size = 2
    for each in chain(events, [b""]):
        if some and (not each or len(some) == at_once or size + len(each) > room):
            yield b"[" + b",".join(some) + b"]"
            some, size = [], 2
        if len(each) + 2 > most:
            logger.error(
                "an event of %d bytes is larger than payload_bytes_max, and was not forwarded", len(each)
            )
        elif each:
            some.append(each)
            size += len(each) + 1
