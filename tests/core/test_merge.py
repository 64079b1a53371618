"""Merging: many small segments become few, and nothing that anyone can see changes."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.delivery import take
from forebay.core.engine import MERGE_MIN
from forebay.core.log import log as logs
from forebay.core.records import keyspace
from forebay.core.retention import merge as merges
from forebay.core.retention.merge import Joined, Merge
from forebay.core.shard.changes import MERGE_AT
from forebay.core.state import Partition, Queue, Segment
from tests.core.harness import Core, payloads_of

DAY_MS = 86_400_000


def filled(count: int, size: int = 0) -> Core:
    """A core with messages of a segment each, a millisecond apart."""
    core = Core()
    for number in range(count):
        core.push(b"%d" % number + b"." * size)
        core.commit()
        core.now += 1
    return core


def queue_of(core: Core) -> Queue:
    return core.engine.queues["default", "q"]


def partition_of(core: Core) -> Partition:
    return queue_of(core).partitions["default"]


def planned(core: Core, at_least: int = 2) -> Merge | None:
    """The next merge, however few segments there are."""
    queue, partition = queue_of(core), partition_of(core)
    core.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
    return core.engine.plan_merge(at_least)


def plan(core: Core, at_least: int = 2) -> Merge:
    found = planned(core, at_least)
    assert found is not None
    return found


def join(core: Core, merge: Merge) -> Joined:
    bodies = [body_of(core, each) for each in merge.parts]
    return merges.join(merge, bodies)


def body_of(core: Core, segment: Segment) -> bytes:
    if segment.body is not None:
        return segment.body
    (body,) = core.store.bodies([keyspace.body_key(queue_of(core).prefix, segment.body_name)])
    assert isinstance(body, bytes)
    return body


def merged(core: Core, at_least: int = 2) -> Merge:
    merge = plan(core, at_least)
    core.engine.apply_merge(merge, join(core, merge))
    return merge


def sizes(core: Core) -> list[int]:
    return [segment.count for segment in partition_of(core).log.segments]


def seen(core: Core, group: str) -> list[tuple[bytes, int, int]]:
    """Payload, time and id of everything a new group gets."""
    reply = core.pop(1_000, group=group)
    return [
        (bytes(payload), each.created_at, each.first + at)
        for each in reply.deliveries
        for at, payload in enumerate(each.payloads())
    ]


def read(core: Core) -> list[tuple[int, int, int]]:
    reply = core.ask(queries.Read("default", "q", 0), queries.LogSlice)
    return [
        (run.offset + at, run.created_at, run.first + at) for run in reply.runs for at in range(run.count)
    ]


def test_a_merge_changes_nothing_that_is_popped_or_read() -> None:
    core = filled(12)
    before, log = seen(core, "before"), read(core)
    merged(core)
    assert sizes(core) == [10, 1, 1]
    assert seen(core, "after") == before
    assert read(core) == log
    core.restart()
    assert sizes(core) == [10, 1, 1]
    assert seen(core, "restarted") == before
    assert read(core) == log


def test_every_message_of_a_merged_segment_is_found_by_its_time() -> None:
    core = filled(12)
    begin = core.now - 12
    merged(core)
    for restart in (False, True):
        if restart:
            core.restart()
        for number in range(12):
            found = core.ask(queries.Offsets("default", "q", begin + number), queries.OffsetsFound)
            assert found.partitions[0].at == number
        assert core.popped(100, group=f"late {restart}", start=begin + 7) == [
            b"%d" % at for at in range(7, 12)
        ]


def test_the_store_has_one_header_and_one_body_in_the_place_of_many() -> None:
    core = filled(12)
    merged(core)
    core.commit()
    prefix = queue_of(core).prefix
    names = [key for key, _ in core.store.scan(*keyspace.queue_bounds(prefix))]
    segments = partition_of(core).log.segments
    assert [key for key in names if key[8:9] == b"h"] == [
        keyspace.header_key(prefix, partition_of(core).key, segment.base) for segment in segments
    ]
    assert core.store._bodies.keys() == {keyspace.body_key(prefix, each.body_name) for each in segments}


def test_merging_begins_with_many_small_segments_and_leaves_the_newest_alone() -> None:
    core = filled(MERGE_AT - 1)
    assert core.engine.plan_merge() is None
    core.push(b"one more")
    core.commit()
    merge = core.engine.plan_merge()
    assert merge is not None
    assert merge.parts == partition_of(core).log.segments[: MERGE_AT - MERGE_MIN]


def test_after_a_restart_many_small_segments_are_merged_too() -> None:
    core = filled(MERGE_AT)
    core.restart()
    merge = core.engine.plan_merge()
    assert merge is not None
    assert merge.absent() == merge.parts
    core.engine.apply_merge(merge, join(core, merge))
    assert [payload for payload, _, _ in seen(core, "g")] == [b"%d" % number for number in range(MERGE_AT)]


def test_a_plan_that_finds_nothing_asks_for_nothing_until_more_is_sealed() -> None:
    core = filled(3)
    assert planned(core) is None
    assert core.engine.plan_merge(2) is None
    assert not core.engine.shards[queue_of(core).shard].changes.to_merge


def test_a_segment_that_still_forms_is_not_merged() -> None:
    core = filled(6)
    core.push(b"forming")
    merge = plan(core)
    assert all(part.payloads is None for part in merge.parts)


def test_large_segments_are_left_as_they_are() -> None:
    core = filled(12, size=merges.TIERS[0])
    assert planned(core) is None


def test_a_large_segment_parts_the_small_ones_around_it() -> None:
    core = filled(4)
    core.push(b"." * merges.TIERS[1])
    core.commit()
    for number in range(6):
        core.push(b"%d" % number)
        core.commit()
    assert len(merged(core).parts) == 4
    core.commit()
    assert len(merged(core).parts) == 4
    assert sizes(core) == [4, 1, 4, 1, 1]


def test_small_segments_become_full_ones_in_a_second_step() -> None:
    core = filled(300, size=2_000)
    while (merge := planned(core, 16)) is not None:
        weight = sum(logs.body_bytes(each.count, each.size) for each in merge.parts)
        assert weight <= SEGMENT_BYTES_MAX
        core.engine.apply_merge(merge, join(core, merge))
        core.commit()
    segments = partition_of(core).log.segments
    assert max(segment.size for segment in segments) > SEGMENT_BYTES_MAX // 2
    assert len(segments) < 40
    core.restart()
    assert [payload.rstrip(b".") for payload, _, _ in seen(core, "g")] == [b"%d" % at for at in range(300)]


def test_a_message_is_rewritten_at_most_twice() -> None:
    core = Core()
    rewritten: dict[int, int] = {}
    for number in range(600):
        core.push(b"%d" % number + b"." * 1_500)
        core.commit()
        while (merge := planned(core, 8)) is not None:
            for part in merge.parts:
                for offset in range(part.base, part.end):
                    rewritten[offset] = rewritten.get(offset, 0) + 1
            core.engine.apply_merge(merge, join(core, merge))
            core.commit()
    assert set(rewritten.values()) == {1, 2}


def test_a_merged_segment_never_crosses_a_number() -> None:
    core = filled(6)
    core.engine.shards[queue_of(core).shard].renumber(queue_of(core), partition_of(core))
    for number in range(6, 12):
        core.push(b"%d" % number)
        core.commit()
    before = seen(core, "before")
    assert len({identity >> 32 for _, _, identity in before}) == 2
    merged(core)
    core.commit()
    assert sizes(core)[0] == 6
    merged(core)
    assert sizes(core) == [6, 4, 1, 1]
    core.restart()
    assert seen(core, "after") == before


def test_a_merged_segment_never_crosses_what_is_counted_as_settled() -> None:
    core = filled(12)
    core.ack(core.pop(5).lease)
    core.now += 10_000
    core.engine.tick(core.now)
    assert partition_of(core).settled_to == 5
    assert len(merged(core).parts) == 5
    counted = partition_of(core).settled_bytes
    assert counted == partition_of(core).log.segments[0].weight
    core.commit()
    assert len(merged(core).parts) == 5
    assert partition_of(core).settled_bytes == counted


def test_empty_payloads_are_merged_and_swept() -> None:
    core = Core()
    for _ in range(8):
        core.push(b"")
        core.commit()
    core.ask(c.Configure("default", "q", completed_retention_bytes=0), queries.QueueFound)
    core.ack(core.pop(8).lease)
    core.engine.tick(core.now)
    merged(core)
    core.now += 20_000
    core.engine.tick(core.now)
    assert partition_of(core).log.segments == []
    assert partition_of(core).settled_bytes == 0
    core.restart()
    assert (partition_of(core).log.first, partition_of(core).log.end) == (8, 8)
    assert core.store._bodies == {}


def test_a_merge_whose_segments_were_swept_meanwhile_does_nothing() -> None:
    core = filled(12)
    merge = plan(core)
    joined = join(core, merge)
    core.ask(c.Configure("default", "q", completed_retention_ms=0), queries.QueueFound)
    core.ack(core.pop(3).lease)
    core.now += 20_000
    core.engine.tick(core.now)
    assert partition_of(core).log.first == 3
    core.commit()
    before = sizes(core)
    core.engine.apply_merge(merge, joined)
    assert sizes(core) == before
    assert core.engine.seal(core.now) == []
    assert [payload for payload, _, _ in seen(core, "g")] == [b"%d" % at for at in range(3, 12)]


def test_a_merge_is_applied_once() -> None:
    core = filled(12)
    merge = plan(core)
    joined = join(core, merge)
    core.engine.apply_merge(merge, joined)
    core.commit()
    core.engine.apply_merge(merge, joined)
    assert core.engine.seal(core.now) == []
    assert sizes(core) == [10, 1, 1]


def test_bodies_that_left_memory_meanwhile_are_no_hindrance() -> None:
    core = filled(12)
    merge = plan(core)
    joined = join(core, merge)
    for part in merge.parts[::2]:
        logs.drop_body(partition_of(core).log, part)
    core.engine.apply_merge(merge, joined)
    assert sizes(core) == [10, 1, 1]


def test_leases_and_cursors_stay_where_they_were() -> None:
    core = filled(12)
    core.forgive()
    held = core.pop(3)
    merged(core)
    assert core.popped(2) == [b"3", b"4"]
    core.nack(held.lease)
    assert core.popped(4) == [b"0", b"1", b"2", b"5"]
    core.restart()
    assert core.popped(100) == [b"%d" % number for number in range(6, 12)]


def test_who_holds_a_delivery_still_has_its_payloads() -> None:
    core = filled(12)
    held = core.pop(8)
    merged(core)
    assert payloads_of(held) == [b"%d" % number for number in range(8)]


def test_messages_too_far_apart_in_time_are_not_merged() -> None:
    core = filled(4)
    core.now += 60 * DAY_MS
    for number in range(4, 10):
        core.push(b"%d" % number)
        core.commit()
    before = read(core)
    assert len(merged(core).parts) == 4
    core.commit()
    assert len(merged(core).parts) == 4
    core.restart()
    assert read(core) == before


def test_segments_of_which_a_body_is_lost_are_given_up() -> None:
    core = filled(12)
    merge = plan(core)
    merges.give_up(merge)
    assert planned(core) is None
    assert sizes(core) == [1] * 12


def test_a_queue_that_is_not_stored_is_merged_in_memory() -> None:
    core = Core()
    core.ask(c.Configure("default", "q", durability="memory"), queries.QueueFound)
    for number in range(8):
        core.push(b"%d" % number)
        core.commit()
    merge = plan(core)
    core.engine.apply_merge(merge, join(core, merge))
    assert core.engine.seal(core.now) == []
    assert sizes(core) == [6, 1, 1]
    assert payloads_of(core.ask(c.Pop("default", "q", count=8), c.Popped)) == [b"%d" % at for at in range(8)]
    assert core.store._bodies == {}


def test_a_pop_takes_no_more_pieces_of_a_merged_segment_than_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = filled(30)
    merged(core)
    monkeypatch.setattr(take, "PIECES_MAX", 7)
    got = []
    while (reply := core.pop(100)).deliveries:
        assert len(reply.deliveries) <= 7
        got += [bytes(payload) for each in reply.deliveries for payload in each.payloads()]
    assert got == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("start", range(0, 12, 3))
def test_any_stretch_of_a_merged_segment_has_its_own_times(start: int) -> None:
    core = filled(14)
    times = {offset: at for offset, at, _ in read(core)}
    merged(core)
    (segment, *_) = partition_of(core).log.segments
    assert segment.count == 12
    for count in range(1, 12 - start + 1):
        pieces = list(logs.by_run(segment, start, count))
        found = {each.offset + at: each.created_at for each in pieces for at in range(each.count)}
        assert found == {offset: times[offset] for offset in range(start, start + count)}
