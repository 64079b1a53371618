"""Ids are addresses, and names never repeat."""

import uuid

import pytest
from hypothesis import given, strategies as st

from forebay.core import ids
from forebay.core.api import commands as c, queries
from forebay.core.bounds import OFFSETS_PER_NUMBER
from forebay.core.errors import Conflict, Invalid
from forebay.core.records import keyspace
from tests.core.harness import NOW, Core, payloads_of

addresses = st.integers(0, (1 << 64) - 1)
times = st.integers(0, (1 << 48) - 1)


@given(addresses, times)
def test_an_id_is_a_uuid_of_version_7_that_carries_its_address_and_time(address: int, at: int) -> None:
    text = ids.to_uuid(address, at)
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == at
    assert ids.from_uuid(text) == ids.parse(text) == address
    assert ids.parse(text.upper()) == address


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 2), times)
def test_uuids_of_neighbours_are_1024_apart(number: int, offset: int, at: int) -> None:
    first = uuid.UUID(ids.to_uuid(ids.address(number, offset), at)).int
    assert uuid.UUID(ids.to_uuid(ids.address(number, offset + 1), at)).int == first + 1024


@given(addresses, times, addresses, times)
def test_uuids_sort_by_time(first: int, early: int, second: int, late: int) -> None:
    if early < late:
        assert ids.to_uuid(first, early) < ids.to_uuid(second, late)


@given(addresses)
def test_a_number_and_its_decimal_string_are_the_same_id(address: int) -> None:
    assert ids.parse(address) == ids.parse(str(address)) == address


@pytest.mark.parametrize(
    "bad",
    [
        -1,
        1 << 64,
        "",
        "x",
        "-1",
        "1.0",
        "\uff11\uff12",
        str(1 << 64),
        "9" * 21,
        "018bcfe5-67ff-4000-8001-040000000400",  # version 4
        "018bcfe5-67ff-7000-0001-040000000400",  # no variant
        "018bcfe5-67ff-7000-8001-040000000401",  # not a multiple of 1,024
        "018bcfe567ff70008001040000000400",
        "018bcfe5-67ff-7000-8001-04000000040_",
        "018bcfe5-67ff-7000-8001-04000000040g",
        "018bcfe5+67ff-7000-8001-040000000400",
    ],
)
def test_what_is_no_id_is_invalid(bad: int | str) -> None:
    with pytest.raises(Invalid) as caught:
        ids.parse(bad)
    assert caught.value.field == "id"


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1))
def test_a_lease_token_leads_to_its_shard_and_its_lease(shard: int, epoch: int, counter: int) -> None:
    name = ids.lease_name(epoch, counter)
    assert ids.parse_lease(ids.lease_token(shard, name)) == (shard, name)


@pytest.mark.parametrize("bad", ["", "x", "-1", " 1", "1_0", "0x1", "\uff11", "1" * 40])
def test_what_is_no_lease_is_invalid(bad: str) -> None:
    with pytest.raises(Invalid) as caught:
        ids.parse_lease(bad)
    assert caught.value.field == "lease"


def test_a_partition_number_leads_back_to_its_shard() -> None:
    core = Core()
    for name in ("a", "b", "c", "d", "e"):
        first = core.push(queue=name)
        queue = core.engine.queues["default", name]
        assert (first >> ids.OFFSET_BITS) % len(core.engine.shards) == queue.shard


def test_a_full_partition_number_is_followed_by_a_fresh_one_and_old_ids_stay_good() -> None:
    core = Core()
    number = core.push() >> ids.OFFSET_BITS
    _move_end(core, OFFSETS_PER_NUMBER - 3)
    before = core.push(b"1", b"2")
    assert before == ids.address(number, OFFSETS_PER_NUMBER - 3)
    # One place is left: a push of two takes a fresh number, so that its ids are consecutive.
    after = core.push(b"3", b"4")
    fresh = after >> ids.OFFSET_BITS
    assert fresh != number
    assert after == ids.address(fresh, 0)
    # The last place of the old number is never used.
    with pytest.raises(Exception, match="no such message"):
        core.state(before + 2)
    never = before + 2
    core.pop(3, group="other")
    for command in (c.Ack, c.Nack, c.Extend):
        with pytest.raises(Conflict):
            core.engine.apply(command("default", ids=[never], group="other"), core.now)
    both = core.ack(ids=[never, after], group="other", partial=True)
    assert (both.count, both.refused) == (1, [never])
    for _ in range(2):
        assert [core.state(each) for each in (before, before + 1, after, after + 1)] == ["waiting"] * 4
        core.restart()
    reply = core.pop(10)
    assert payloads_of(reply) == [b"1", b"2", b"3", b"4"]
    given_out = [each.first + at for each in reply.deliveries for at in range(each.count)]
    assert given_out == [before, before + 1, after, after + 1]
    assert core.ack(ids=[before + 1, after]).count == 2
    assert [core.state(each) for each in (before, before + 1, after, after + 1)] == [
        "active",
        "completed",
        "completed",
        "active",
    ]
    offsets = core.ask(queries.Offsets("default", "q"), queries.OffsetsFound).partitions[0]
    assert offsets.numbers == [(number, 0), (fresh, OFFSETS_PER_NUMBER - 1)]


def _move_end(core: Core, end: int) -> None:
    """As if ``end`` messages had been pushed and swept."""
    core.commit()
    queue = core.engine.queues["default", "q"]
    partition = queue.partitions["default"]
    shard = core.engine.shards[queue.shard]
    shard.changes.deletes.append(keyspace.header_key(queue.prefix, partition.key, 0))
    partition.log.first = end
    shard.changes.touch_partition(queue, partition)
    core.restart()
    assert core.engine.queues["default", "q"].partitions["default"].log.end == end


def test_a_restart_never_gives_out_a_name_again() -> None:
    core = Core()
    tokens: set[str | None] = set()
    names: set[int] = set()
    for _ in range(5):
        core.push(b"1", b"2", b"3")
        for _ in range(3):
            tokens.add(core.pop(lease_ms=1_000_000).lease)
        core.restart()
        log = core.engine.queues["default", "q"].partitions["default"].log
        names |= {segment.body_name for segment in log.segments}
    assert len(tokens) == 15
    assert len(names) == 5


def test_a_live_lease_survives_a_restart_and_an_ended_one_stays_ended() -> None:
    core = Core()
    core.push(b"1", b"2")
    ended, live = core.pop().lease, core.pop().lease
    core.ack(ended)
    core.restart()
    with pytest.raises(Conflict):
        core.ack(ended)
    assert core.ack(live).count == 1


def test_when_leases_end_is_known_again_after_a_restart() -> None:
    core = Core()
    core.push(b"1", b"2")
    for ms in (300, 200):
        core.pop(lease_ms=ms)
    core.restart()
    for _ in range(2):
        assert core.engine.next_due_at() == NOW + 200
        core.restart()
    core.wait(200)
    assert core.engine.next_due_at() == NOW + 300


def test_a_lease_gains_the_time_the_shard_was_down_but_no_more_than_a_lease() -> None:
    core = Core()
    core.forgive()
    message = core.push()
    core.pop(lease_ms=1_000)
    core.restart(down_ms=20_000)
    core.now += 999
    assert core.state(message) == "active"
    core.now += 1
    assert core.state(message) == "waiting"
    core.pop(lease_ms=1_000)
    core.restart(down_ms=40_000)
    core.now = NOW + 61_000
    assert core.state(message) == "waiting"
