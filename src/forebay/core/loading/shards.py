"""Load claimed shards, several at a time: for the engine, which adopts them."""

from collections.abc import Mapping

from msgspec import Struct

from forebay.core.bounds import Limits
from forebay.core.errors import Damaged
from forebay.core.loading.shard import Taken, load_names, load_tenant
from forebay.core.records.commit import Scan
from forebay.core.shard.shard import Shard
from forebay.core.words import FSYNC


class Loaded(Struct):
    """Shards that were loaded, and that no engine has yet."""

    now: int
    shards: list[Shard] = []
    damaged: dict[int, str] = {}
    """Shards whose names can't be read, and why."""


def load_shards(
    limits: Limits, count: int, claims: Mapping[int, Taken], scan: Scan, now: int, reach: str = FSYNC
) -> Loaded:
    """Load claimed shards of a store that has ``count``. This touches no engine: it may run in a thread."""
    loaded = Loaded(now)
    tenants: list[tuple[int, Shard, str]] = []
    for number, claim in claims.items():
        shard = Shard(number, count, limits, reach)
        shard.numbering.epoch = claim.epoch
        try:
            load_names(shard, scan)
        except Damaged as error:
            loaded.damaged[number] = error.message
            continue
        if claim.restored:
            shard.skip_numbers(claim.restored)
        tenants += [(tenant.number, shard, name) for name, tenant in shard.names.tenants.items()]
        loaded.shards.append(shard)
    # In the order of their keys, over all shards: a store that is far away is read in large pages.
    for _, shard, name in sorted(tenants, key=lambda each: each[0]):
        load_tenant(shard, name, scan, now, claims[shard.number])
    return loaded
