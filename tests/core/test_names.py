"""Names and the numbers they stand for: given out once, kept, and at the beginning of every key."""

from forebay.core.api import commands as c
from tests.core.harness import Core
from tests.sim.checks import SHARDS
from tests.sim.drive import Driver
from tests.sim.inside import tenants_in
from tests.sim.job_drive import JobDriver

META = bytes(8)
"""What the keys of the node's own records begin with."""
STORE = b"\xff" * 8
"""What the keys of the store's own records begin with."""
EVERYTHING = (b"", STORE + b"\xff")


def prefixes(core: Core) -> dict[tuple[str, str], bytes]:
    """What the keys of each queue begin with, by tenant and name."""
    return {name: queue.prefix for name, queue in core.engine.queues.items()}


def kept(core: Core) -> list[tuple[bytes, bytes]]:
    """The node's own records: the names."""
    return list(core.store.scan(META, META + b"\xff"))


def number(count: int) -> bytes:
    return count.to_bytes(4, "big")


def test_tenants_and_their_queues_have_numbers_of_four_bytes() -> None:
    """Counted by their shard: counter times shards plus shard, so that no two shards give out the same."""
    core = Core()
    wanted: dict[tuple[str, str], bytes] = {}
    for shard in range(SHARDS):
        for at, tenant in enumerate(tenants_in(core.engine, shard, 2)):
            for place, queue in enumerate(("mails", "bills", "mails")[:2]):
                core.push(tenant=tenant, queue=queue)
                core.push(tenant=tenant, queue=queue)
                made = 2 * at + place + 1
                wanted[tenant, queue] = number((at + 1) * SHARDS + shard) + number(made * SHARDS + shard)
    assert prefixes(core) == wanted
    assert len(set(wanted.values())) == len(wanted) == 4 * SHARDS


def test_the_numbers_of_names_are_kept_and_known_after_a_restart() -> None:
    core = Core()
    ids = {tenant: core.push(tenant.encode(), tenant=tenant) for tenant in ("acme", "globex")}
    core.commit()
    keys = [key for key, _ in kept(core)]
    for tenant in ids:
        shard = core.engine.queues[tenant, "q"].shard
        place = core.engine.shards[shard].names.tenants[tenant].number
        assert META + b"T" + tenant.encode() in keys
        assert META + b"S" + number(shard) + b"T" + tenant.encode() in keys
        assert META + b"S" + number(shard) + b"Q" + number(place) + b"q" in keys
    before, names = prefixes(core), kept(core)
    core.restart()
    assert (prefixes(core), kept(core)) == (before, names)
    for tenant, message in ids.items():
        reply = core.pop(tenant=tenant)
        assert (reply.queue.tenant, reply.queue.name) == (tenant, "q")
        assert reply.deliveries[0].first == message


def test_a_name_is_made_with_its_first_use_and_its_number_is_never_given_out_again() -> None:
    core = Core()
    core.push(queue="first")
    core.commit()
    (known,) = prefixes(core).values()
    core.ask(c.Obliterate("default", "first"), c.Cleaned)
    core.restart()
    assert prefixes(core) == {}
    core.push(queue="second")
    core.push(queue="first")
    core.restart()
    assert known not in prefixes(core).values()
    assert len(set(prefixes(core).values())) == 2


def test_every_key_begins_with_the_tenant_and_the_number_of_its_queue() -> None:
    for driver in (Driver(5), JobDriver(5)):
        driver.run(400)
        world = driver.world
        world.commit()
        known = {queue.prefix for queue in world.engine.queues.values()}
        own = {prefix[:4] + bytes(4) for prefix in known}
        kinds: set[bytes] = set()
        for key in [*(key for key, _ in world.store.scan(*EVERYTHING)), *world.store.body_keys()]:
            assert key[:8] in known | own | {META}, key
            kinds.add(key[8:9])
        assert len(kinds) > 10


def test_the_name_of_a_queue_is_kept_once_however_many_messages_it_has() -> None:
    core = Core()
    name = "a-rather-long-name"
    for _ in range(50):
        core.push(b"1", b"2", b"3", queue=name, priority=1)
        core.push(b"1", b"2", queue=name)
        core.pop(2, queue=name)
        core.commit()
    records = [*core.store.scan(*EVERYTHING), *((key, b"") for key in core.store.body_keys())]
    bodies = core.store.bodies(list(core.store.body_keys()))
    texts = [key + value for key, value in records] + [each for each in bodies if isinstance(each, bytes)]
    assert len(texts) > 100
    assert sum(text.count(name.encode()) for text in texts) == 1
