"""What is said while a store is loaded, and when it fails."""

import logging
from collections.abc import Iterator

from penstock.core import engine as engines
from penstock.core.records import Record
from penstock.store.base import Claim

logger = logging.getLogger("penstock.node")

PROGRESS_RECORDS = 200_000
"""Records loaded between two lines of progress: about a second's worth."""


def counting(scan: engines.Scan) -> engines.Scan:
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
    """What a client is told of a store that failed: not its paths."""
    if "No space left" in str(error):
        return "the server's disk is full"
    return "the server's store could not keep a commit"


def down(claim: Claim, now: int) -> int:
    """How long a shard was down: since its last commit, if it has any."""
    return max(now - claim.committed_at, 0) if claim.committed_at else 0
