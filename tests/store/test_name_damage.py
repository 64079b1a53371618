"""Names and control records that are wrong are told: no queue is lost in silence, no number given out again.

RocksDB's checksums tell of bits that flipped. Here the records are whole, and wrong: what a database without
checksums may return, or a bug leave behind.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.core.api import commands as c
from forebay.core.errors import Damaged
from forebay.core.loading.verify import verify
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Commit
from forebay.core.records.keyspace import CONTROL
from forebay.store.base import Store
from forebay.store.memory import MemoryStore
from forebay.store.rocksdb.store import RocksStore
from tests.cli.running import run
from tests.store import flips
from tests.store.flips import NOW, QUEUES, SHARDS, SPREAD, TENANTS

DAMAGE = 5
"""Exit code."""
WHOLE, QUEUE = TENANTS[0], QUEUES[0]
"""A tenant that lives in one shard, and a queue of it."""


def fill(store: Store) -> tuple[int, int]:
    """Make tenants of both kinds; the shard of ``WHOLE``, and its number there."""
    engine = flips.load(store)
    engine.apply(c.TenantPut(SPREAD, spread=True), NOW)
    for tenant in TENANTS:
        for queue in QUEUES:
            engine.apply(c.Push(tenant, queue, [b"1", b"2"]), NOW)
    store.commit(engine.seal(NOW))
    shard = engine.shards[engine.shard_of(WHOLE, QUEUE)]
    return shard.number, shard.names.tenants[WHOLE].number


def change(store: Store, key: bytes, value: bytes | None) -> None:
    assert store.get([key]) not in ([None], [value]), "there is such a record, and it is another"
    puts, deletes = ([], [key]) if value is None else ([(key, value)], [])
    store.commit([Commit(CONTROL, store.claim(CONTROL).epoch, NOW, puts, deletes, [])])


def damage(store: Store) -> list[str]:
    """What verify tells."""
    try:
        reports = verify(SHARDS, store.scan, store.bodies, set())
        return [line for report in reports for line in report.damage]
    except Damaged as error:
        return [error.message]


KEYS: dict[str, Callable[[int, int], bytes]] = {
    "control record": lambda shard, number: keyspace.control_key(WHOLE),
    "control record of a spread tenant": lambda shard, number: keyspace.control_key(SPREAD),
    "version of the placement": lambda shard, number: keyspace.VERSION_KEY,
    "name of a tenant": lambda shard, number: keyspace.tenant_key(shard, WHOLE),
    "name of a queue": lambda shard, number: keyspace.queue_name_key(shard, number, QUEUE),
    "numbers given out": lambda shard, number: keyspace.numbers_key(shard),
}
"""By the shard and the number of ``WHOLE``."""
WRONG: dict[str, bytes | None] = {
    "gone": None,
    "garbage": b"\xc1",
    "text": b"\x91\xa1x",
    "empty": codec.pack_numbers(()),
    "0": codec.pack_numbers((0,)),
    "1": codec.pack_numbers((1,)),
    "negative": codec.pack_numbers((-1,)),
    "huge": codec.pack_numbers((1 << 40,)),
    "three zeros": codec.pack_numbers((0, 0, 0)),
    "three negative": codec.pack_numbers((-1, -1, -1)),
}
AS_IT_WAS = {
    ("control record", "0"),
    ("control record", "three zeros"),
    ("control record of a spread tenant", "1"),
    ("version of the placement", "1"),
}


def cases() -> Iterator[Any]:
    for key in KEYS:
        for wrong in WRONG:
            if (key, wrong) not in AS_IT_WAS:
                yield pytest.param(key, wrong)


UNSEEN = {("name of a queue", "gone")}
"""What a start does not notice: it would have to look for records that no name leads to, as verify does."""


@pytest.mark.parametrize(("key", "wrong"), list(cases()))
def test_a_name_that_is_wrong_is_told(key: str, wrong: str) -> None:
    store = MemoryStore()
    place = fill(store)
    assert damage(store) == []
    change(store, KEYS[key](*place), WRONG[wrong])
    assert damage(store)
    try:
        engine = flips.load(store)
    except Damaged:
        return
    told = bool(engine.damaged or engine.damaged_shards or engine.listed_again)
    assert told == ((key, wrong) not in UNSEEN)


def test_verify_exits_with_damage_for_a_wrong_name(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "data")
    shard, _ = fill(store)
    change(store, keyspace.tenant_key(shard, WHOLE), None)
    store.close()
    done = run(tmp_path, "verify", str(tmp_path / "data"))
    assert done.code == DAMAGE
    assert f"tenant (names), queue shard {shard}: queue {QUEUE} belongs to tenant number " in done.out
