"""An engine from what a store has: what is said meanwhile, and when it fails."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from forebay.core import engine as engines
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.records import commit
from forebay.core.records.commit import Record
from forebay.core.records.keyspace import META_SHARD
from forebay.core.words import is_own
from forebay.store.base import Claim, Store, Unknown

logger = logging.getLogger("forebay.node")

LAST = b"\xff" * 8
"""Above the key of every record that is not a store's own."""
AHEAD_RECORDS = 5_000
"""Records that are read along with those that are wanted."""
PAGES_MAX = 20
"""How many times so many are remembered."""
PROGRESS_RECORDS = 200_000
"""Records loaded between two lines of progress: about a second's worth."""


Loaded = tuple[Engine, int]
"""An engine, and how far its time is ahead of the wall clock."""


def claim_all(
    store: Store,
    shards: int,
    limits: Limits,
    wall: Callable[[], int],
    ahead_ms: int | None,
    down_ms: int | None,
) -> Loaded:
    """Claim every shard, and an engine from what the store has.

    Its time is the store's if that has a clock, else that of ``wall``; it never goes back behind the last
    commit, nor behind ``ahead_ms``, which was said when the store was loaded before.
    """
    meta = store.claim(META_SHARD)
    found = [store.claim(number) for number in range(shards)]
    latest = max(claim.committed_at for claim in found)
    ahead = max(latest, meta.now or wall()) - wall()
    if ahead_ms is not None:
        ahead = max(ahead, ahead_ms)
    return load(store, limits, meta.epoch, found, wall() + ahead, down_ms), ahead


def load(
    store: Store, limits: Limits, meta: int, found: Sequence[Claim], now: int, down_ms: int | None
) -> Engine:
    """An engine from claimed shards. Leases gain the time they could not be settled in.

    That is ``down_ms``, or for a node that starts, the time since a shard's last commit.
    """
    taken = [
        engines.Taken(claim.epoch, down(claim, now) if down_ms is None else down_ms, claim.restored)
        for claim in found
    ]
    # No name of this epoch is given out before the epoch itself survives power loss.
    store.sync()
    scan = reading_ahead(store.scan) if store.far else store.scan
    engine = engines.load(limits, taken, meta, counting(scan), now)
    logger.info("loaded %d queues", sum(not is_own(tenant) for tenant, _ in engine.queues))
    for (tenant, name), why in engine.damaged.items():
        logger.error("queue %s of tenant %s is damaged and left out: %s", name, tenant, why)
    for tenant, why in engine.lost.items():
        logger.error("keys, values and limits of tenant %s are damaged and left out: %s", tenant, why)
    return engine


def reading_ahead(scan: commit.Scan) -> commit.Scan:
    """Serves scans that are near each other in key order by few large ones. Nothing may change meanwhile."""
    pages: list[tuple[bytes, bytes, list[Record]]] = []
    """All records from a key up to another, those read last last."""

    def page_at(lower: bytes) -> tuple[bytes, bytes, list[Record]]:
        for page in reversed(pages):
            if page[0] <= lower < page[1]:
                return page
        found = list(islice(scan(lower, LAST), AHEAD_RECORDS))
        pages.append((lower, found[-1][0] + b"\0" if len(found) == AHEAD_RECORDS else LAST, found))
        if len(pages) > PAGES_MAX:
            del pages[0]
        return pages[-1]

    def ahead(lower: bytes, upper: bytes) -> Iterator[Record]:
        while lower < upper:
            _, end, page = page_at(lower)
            low, high = (bisect_left(page, each, key=_key) for each in (lower, upper))
            lower = end
            yield from page[low:high]

    return ahead


def _key(record: Record) -> bytes:
    return record[0]


def counting(scan: commit.Scan) -> commit.Scan:
    """Says now and then how much has been loaded."""
    seen = 0

    def counted(lower: bytes, upper: bytes) -> Iterator[Record]:
        nonlocal seen
        for record in scan(lower, upper):
            yield record
            seen += 1
            if seen % PROGRESS_RECORDS == 0:
                logger.info("loading: %d records so far", seen)

    return counted


def cause(error: Exception) -> str:
    """What a client is told of a store that failed, and of what it asked: not where the store is."""
    if isinstance(error, Unknown):
        return (
            "the server's database went away; whether this was carried out is not known yet:"
            " ask again, a push with the same idempotency_key"
        )
    if "can't be reached" in str(error):
        return "the server's database can't be reached; nothing of this was carried out"
    if "No space left" in str(error):
        return "the server's disk is full; nothing of this was carried out"
    return "the server's store could not keep a commit; nothing of this was carried out"


def down(claim: Claim, now: int) -> int:
    """How long a shard was down: since its last commit, if it has any."""
    return max(now - claim.committed_at, 0) if claim.committed_at else 0
