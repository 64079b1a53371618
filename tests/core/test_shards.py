"""What each shard has and does for itself."""

from collections import Counter

from tests.core.harness import Core


def shards_of(core: Core) -> dict[str, int]:
    return {name: queue.shard for (_, name), queue in core.engine.queues.items()}


def test_queues_are_spread_evenly_over_shards_and_stay_where_they_are() -> None:
    core = Core()
    count = len(core.engine.shards)
    for number in range(5 * count):
        core.push(queue=f"q{number}")
    found = shards_of(core)
    assert Counter(found.values()) == dict.fromkeys(range(count), 5)
    core.restart()
    assert shards_of(core) == found


def test_every_shard_ends_its_own_leases_once_and_at_their_time() -> None:
    core = Core()
    names = [f"q{number}" for number in range(3 * len(core.engine.shards))]
    ids = {}
    for at, name in enumerate(names):
        core.forgive(name)
        ids[name] = core.push(queue=name)
        core.pop(queue=name, lease_ms=100 + at)
    assert len(set(shards_of(core).values())) == len(core.engine.shards)
    for at, _ in enumerate(names):
        core.wait(100 if at == 0 else 1)
        failures = [core.find(ids[name]).failures for name in names]
        assert failures == [1] * (at + 1) + [0] * (len(names) - at - 1)
    core.restart()
    core.wait(10_000)
    assert {core.find(message).failures for message in ids.values()} == {1}
