"""Load an engine from a store: claims, clock, progress in the log, and the reply when it fails."""

import gc
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from forebay.core import engine as engines
from forebay.core.bounds import Limits
from forebay.core.engine import Engine
from forebay.core.records import commit
from forebay.core.records.commit import Record
from forebay.core.records.keyspace import CONTROL
from forebay.core.words import is_own
from forebay.store.base import Claim, Store, Unknown

logger = logging.getLogger("forebay.node")

LAST = b"\xff" * 8
"""Upper bound of all keys but the store's own."""
AHEAD_RECORDS = 5_000
"""Records in a page of read-ahead."""
PAGES_MAX = 20
"""Pages of read-ahead that are cached."""
PROGRESS_RECORDS = 200_000
"""Records between two log lines of progress: about a second."""


Loaded = tuple[Engine, int]
"""An engine, and how far its clock is ahead of the wall clock."""


def claim_all(
    store: Store,
    shards: int,
    limits: Limits,
    wall: Callable[[], int],
    ahead_ms: int | None,
    down_ms: int | None,
    *,
    crons_wait: bool = False,
) -> Loaded:
    """Claim every shard and load an engine from the store; with ``crons_wait``, no cron fires in it.

    Its clock is the store's if that has one, else ``wall``. It never goes back behind the last commit, nor
    behind ``ahead_ms``, the offset of the previous load.
    """
    control = store.claim(CONTROL)
    found = {number: store.claim(number) for number in range(shards)}
    latest = max(claim.committed_at for claim in (control, *found.values()))
    ahead = max(latest, control.now or wall()) - wall()
    if ahead_ms is not None:
        ahead = max(ahead, ahead_ms)
    return load(store, limits, control.epoch, found, wall() + ahead, down_ms, crons_wait), ahead


def load(
    store: Store,
    limits: Limits,
    control: int,
    found: Mapping[int, Claim],
    now: int,
    down_ms: int | None,
    crons_wait: bool,
) -> Engine:
    """Return an engine loaded from claimed shards. Leases are extended by the downtime.

    That is ``down_ms``, or for a node that starts, the time since a shard's last commit.
    """
    taken = {
        number: engines.Taken(claim.epoch, down(claim, now) if down_ms is None else down_ms, claim.restored)
        for number, claim in found.items()
    }
    # Leases are named by epoch: without this fsync, a power loss could undo the claim after such a name was
    # sent, and the next process would issue the same names again.
    store.sync()
    scan = reading_ahead(store.scan) if store.far else store.scan
    with _uncollected():
        count, reach = len(found), store.durability
        engine = engines.load(
            limits, count, taken, control, counting(scan), now, reach, crons_wait=crons_wait
        )
    logger.info("loaded %d queues", sum(not is_own(tenant) for tenant, _ in engine.queues))
    for number, why in engine.damaged_shards.items():
        logger.error("shard %d is damaged and left out with all its tenants: %s", number, why)
    for tenant in engine.listed_again:
        logger.error("the control record of tenant %s was lost, and is written again", tenant)
    for (tenant, name), why in engine.damaged.items():
        logger.error("queue %s of tenant %s is damaged and left out: %s", name, tenant, why)
    for tenant, why in engine.lost.items():
        logger.error("keys, values and limits of tenant %s are damaged and left out: %s", tenant, why)
    return engine


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection: nothing that is loaded is garbage, and to look through it took 70 % of the
    time with 10,000 tenants."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def reading_ahead(scan: commit.Scan) -> commit.Scan:
    """Wrap a scan to serve neighbouring small scans from large pages. Nothing may be written meanwhile."""
    pages: list[tuple[bytes, bytes, list[Record]]] = []
    """First key, end key and all records between, the newest page last."""

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
    """Wrap a scan so that it logs progress."""
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
    """Return the message for clients about a failed commit, without the store's address."""
    if isinstance(error, Unknown):
        return (
            "the server's database went away; whether this was carried out is not known yet:"
            " ask again, a push with the same idempotency_key"
        )
    if "can't be reached" in str(error):
        return "the server's database can't be reached; nothing of this was carried out"
    if "No space left" in str(error):
        return "the server's disk is full; nothing of this was carried out: free space on it"
    return "the server's store could not keep a commit; nothing of this was carried out"


def down(claim: Claim, now: int) -> int:
    """Return how long a shard was down: the time since its last commit, 0 if it has none."""
    return max(now - claim.committed_at, 0) if claim.committed_at else 0
