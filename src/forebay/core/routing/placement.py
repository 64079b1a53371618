"""Where things live: from the names of tenants and queues, from ids and leases to shards.

A tenant lives in one shard; each queue of a spread tenant has a shard of its own. The number of shards is
fixed when a store is made, so a place never changes.
"""

from functools import lru_cache
from hashlib import blake2b

from forebay.core.ids import OFFSET_BITS
from forebay.core.words import SYSTEM

_OWN = f"{SYSTEM}."


@lru_cache(maxsize=100_000)
def home_of(tenant: str, shards: int) -> int:
    """Return the shard of a tenant: for one of the server's own, the shard that it is named after.

    >>> home_of("acme", 16), home_of("_system.3", 16)
    (1, 3)
    """
    if tenant.startswith(_OWN):
        number = tenant[len(_OWN) :]
        if number.isdecimal() and int(number) < shards:
            return int(number)
    return _hashed(tenant, shards)


def shard_of_queue(tenant: str, queue: str, shards: int) -> int:
    """Return the shard of a queue of a spread tenant.

    >>> [shard_of_queue("acme", queue, 16) for queue in ("mail", "bills")]
    [12, 6]
    """
    return _hashed(f"{tenant}\0{queue}", shards)


def shard_of_id(message: int, shards: int) -> int:
    """Return the shard that gave out an id."""
    return (message >> OFFSET_BITS) % shards


def _hashed(text: str, shards: int) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards
