"""Divide events that were read together into deliveries for webhooks, and deliveries into commits.

Nothing here does I/O: events come in; messages to push and webhooks to store go out.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.core.api.jobs import Job
from forebay.core.bounds import OPERATIONS_MAX
from forebay.server.events.hub import Positions
from forebay.server.webhooks.courier import Webhook

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


class Round:
    """One round of forwarding: the events for each webhook, of those that were read together."""

    def __init__(self) -> None:
        self.events: dict[str, list[bytes]] = {}
        self.changed: dict[str, Webhook] = {}
        """Webhooks whose stored record has to change."""
        self._full: set[str] = set()

    def begin(self, webhook: Webhook, waiting: int, at: Positions) -> None:
        """Skip a webhook with too many deliveries waiting; report lost events to one that has caught up."""
        # Two thresholds: with one, a full webhook would alternate between a few events and another gap.
        if waiting >= (WAITING_MAX // 2 if webhook.lost else WAITING_MAX):
            self._full.add(webhook.id)
        elif webhook.lost:
            ends = told_up_to(webhook, at).since
            self.events[webhook.id] = [
                lost(shard, first, ends[shard]) for shard, first in webhook.lost.items()
            ]
            self.changed[webhook.id] = replace(webhook, lost={})

    def tell(self, webhook: Webhook, shard: int, offset: int, event: bytes) -> None:
        if webhook.id not in self._full:
            self.events.setdefault(webhook.id, []).append(event)
            return
        known = self.changed.get(webhook.id, webhook).lost
        if shard not in known:
            if not known:
                logger.warning("webhook %s: %d deliveries wait, no more are added", webhook.id, WAITING_MAX)
            self.changed[webhook.id] = replace(webhook, lost={**known, shard: offset})


class Part(Struct):
    """What one commit does for a webhook."""

    webhook: Webhook
    """The webhook as it is to be stored."""
    jobs: list[Job]
    is_changed: bool
    is_last: bool
    """Whether this is its last part in the round."""


def parts(told: Round, webhooks: Iterable[Webhook], payload_bytes_max: int, batch_max: int) -> Iterator[Part]:
    """Yield the work of a round for each webhook, in parts that fit into a commit."""
    for webhook in webhooks:
        kept = told.changed.get(webhook.id, webhook)
        is_changed = kept is not webhook
        jobs = [Job(each) for each in together(told.events.get(webhook.id, []), payload_bytes_max)]
        while len(jobs) > batch_max:
            yield Part(webhook, jobs[:batch_max], is_changed=False, is_last=False)
            jobs = jobs[batch_max:]
        if jobs or is_changed:
            yield Part(kept, jobs, is_changed, is_last=True)


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


def told_up_to(webhook: Webhook, at: Positions) -> Webhook:
    """Return a webhook that gets no events before these positions, even if others are still sent them."""
    since = webhook.since
    return replace(webhook, since=since | {shard: max(at[shard], since.get(shard, 0)) for shard in at})


def together(events: list[bytes], most: int) -> Iterator[bytes]:
    """Yield events as JSON arrays, one per delivery, within the limits on number and size.

    >>> list(together([b"1", b"2", b"[3, 4]"], 7))
    [b'[1,2]']
    """
    room = min(TOGETHER_BYTES, most)
    some: list[bytes] = []
    size = 2
    for each in chain(events, [b""]):
        if some and (not each or len(some) == TOGETHER_MAX or size + len(each) > room):
            yield b"[" + b",".join(some) + b"]"
            some, size = [], 2
        if len(each) + 2 > most:
            logger.error(
                "an event of %d bytes is larger than payload_bytes_max, and was not forwarded", len(each)
            )
        elif each:
            some.append(each)
            size += len(each) + 1
