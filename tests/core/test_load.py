"""Loading what is damaged: the queue it concerns is refused, and no other notices."""

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import CODES, Damaged, ForebayError
from forebay.core.records import codec, keyspace
from forebay.core.records.commit import Record
from forebay.core.state import PLAIN, Queue
from forebay.store.memory import MemoryStore
from tests.core.harness import Core


def two_queues() -> Core:
    """A good queue and a bad one, each with groups and messages in every state, attributes among them."""
    core = Core()
    for queue in ("good", "bad"):
        core.forgive(queue)
        cancelled = core.push(b"a", b"b", queue=queue, partition="r") + 1
        core.push(b"u", queue=queue, partition="r", priority=5, max_attempts=1)
        core.commit()
        core.cancel(cancelled)
        for number in range(6):
            core.push(b"%d" % number, b"x", queue=queue, partition="pq"[number % 2])
            core.commit()
        core.pop(3, queue, partition="p")
        core.nack(core.pop(3, queue, group="other", partition="p").lease)
        core.nack(core.pop(1, queue, group="third").lease, error="no")
        core.commit()
    return core


def bad(core: Core) -> Queue:
    return core.engine.queues["default", "bad"]


def stored(core: Core) -> dict[bytes, bytes]:
    """The records of the bad queue."""
    return dict(core.store.scan(*keyspace.queue_bounds(bad(core).prefix)))


def of_kind(core: Core, kind: bytes) -> list[bytes]:
    return sorted(key for key in stored(core) if key[8:9] == kind)


def change(core: Core, key: bytes, value: bytes | None) -> None:
    """Damage a record, and load again."""
    core.store._records.pop(key, None)
    if value is not None:
        core.store._records[key] = value
    core.store._sorted = None
    core.restart()


def why(core: Core) -> str:
    assert list(core.engine.damaged) == [("default", "bad")]
    return core.engine.damaged["default", "bad"]


def check_good(core: Core) -> None:
    """The good queue is as it should be."""
    counts = core.ask(queries.Describe("default", "good"), queries.QueueFound).groups
    assert [(each.name, each.counts) for each in counts] == [
        ("default", queries.Counts(waiting=11, active=3, cancelled=1)),
        ("other", queries.Counts(waiting=14, cancelled=1)),
        ("third", queries.Counts(waiting=13, cancelled=1, dead=1)),
    ]
    assert len(core.popped(100, "good", group="other")) == 14


KINDS = [b"c", b"d", b"e", b"g", b"h", b"l", b"o", b"p", b"q", b"s", b"v"]


def test_the_queues_here_have_records_of_every_kind() -> None:
    core = two_queues()
    assert all(of_kind(core, kind) for kind in KINDS)
    core.restart()
    assert core.engine.damaged == {}


NONSENSE = [b"", b"\xc1", b"\x93\x01", b"\x90", b"\x91\xc3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", NONSENSE)
def test_a_record_that_can_not_be_decoded_is_damage(kind: bytes, value: bytes) -> None:
    core = two_queues()
    change(core, of_kind(core, kind)[0], value)
    assert "can't be decoded" in why(core) or "a row has" in why(core)
    check_good(core)


@pytest.mark.parametrize("at", [1, 2])
def test_a_missing_header_is_damage(at: int) -> None:
    core = two_queues()
    change(core, of_kind(core, b"h")[at], None)
    assert "have no segment" in why(core)
    check_good(core)


def test_a_missing_last_header_below_a_cursor_is_damage() -> None:
    core = two_queues()
    core.pop(100, "bad")
    core.commit()
    change(core, of_kind(core, b"h")[-1], None)
    assert "a cursor is at 6, the log ends at 4" in why(core)
    check_good(core)


@pytest.mark.parametrize("kind", [b"g", b"p"])
def test_records_that_speak_of_a_missing_group_or_partition_are_damage(kind: bytes) -> None:
    core = two_queues()
    change(core, of_kind(core, kind)[0], None)
    assert "missing" in why(core)
    check_good(core)


def test_a_lease_of_a_group_nobody_knows_is_damage() -> None:
    core = two_queues()
    (key,) = of_kind(core, b"l")
    _, runs, *_ = codec.unpack_lease(stored(core)[key])
    assert runs
    lease = next(iter(core.engine.shards[bad(core).shard].leases.values()))
    lease.group.number = 99
    change(core, key, codec.pack_lease(lease))
    assert "missing: [(99," in why(core)
    check_good(core)


def test_every_command_for_a_damaged_queue_says_so() -> None:
    core = two_queues()
    identity = core.push(b"1", queue="bad")
    change(core, of_kind(core, b"h")[0], None)
    for command in (
        c.Push("default", "bad", [b"1"]),
        c.PushMany("default", "bad", [("p", [b"1"], PLAIN)]),
        c.Pop("default", "bad"),
        queries.Read("default", "bad", 0),
        queries.Offsets("default", "bad"),
        c.Configure("default", "bad", lease_ms=5),
        queries.Describe("default", "bad"),
    ):
        with pytest.raises(Damaged) as refused:
            core.engine.apply(command, core.now)
        assert "bad" in refused.value.message
        assert "forebay verify" in refused.value.message
    assert core.engine.seal(core.now) == []
    with pytest.raises(ForebayError):
        core.state(identity)
    listed = core.ask(queries.ListQueues("default"), queries.QueuesFound)
    assert [each.name for each in listed.queues] == ["good"]
    assert core.ask(queries.Stats("default"), queries.StatsFound).queues == 1


def test_a_damaged_queue_is_as_it_was_once_its_records_are() -> None:
    core = two_queues()
    before = stored(core)
    key = of_kind(core, b"h")[0]
    change(core, key, None)
    core.push(b"1", queue="good")
    core.push(b"1", queue="new")
    core.commit()
    change(core, key, before[key])
    assert core.engine.damaged == {}
    assert stored(core) == before
    assert len(core.popped(100, "bad", group="fresh")) == 14


def test_numbers_of_a_damaged_queue_are_not_given_out_again() -> None:
    core = two_queues()
    used = {number for place in bad(core).partitions.values() for number, _ in place.numbers}
    change(core, of_kind(core, b"p")[0], b"")
    for at in range(20):
        assert core.push(queue=f"new {at}".replace(" ", "-")) >> 32 not in used


def packed(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


IMPOSSIBLE: dict[str, tuple[bytes, Callable[[bytes], tuple[bytes, bytes]]]] = {
    "a lease of nothing": (b"l", lambda key: (key, packed(1, []))),
    "two groups of one name": (b"g", lambda key: (key[:-1] + b"\x63", packed("default"))),
    "two partitions of one name": (
        b"p",
        lambda key: (key[:-1] + b"\x63", packed("p", [(99, 0)], 0, [], False)),
    ),
    "a partition without a number": (b"p", lambda key: (key, packed("r", [], 0, [], False))),
    "a segment of nothing": (b"h", lambda key: (key, packed(0, 2, 5, bytes(12), b""))),
    "runs cut short": (b"h", lambda key: (key, packed(2, 2, 5, bytes(12), bytes(7)))),
    "runs that do not add up": (b"h", lambda key: (key, packed(2, 2, 5, bytes(12), bytes(8)))),
    "a scheduled run with a key cut short": (b"v", lambda key: (key[:-1], packed(1, 1, 1, ""))),
    "a cursor with a key cut short": (b"c", lambda key: (key[:-1], packed(1, 1))),
    "a scheduled run past the end": (b"v", lambda key: (key[:-8] + b"\x01" + key[-7:], packed(1, 1, 1, ""))),
    "a dead letter past the end": (b"d", lambda key: (key, packed(9, 1, 1, 5, "", 1))),
    "a skip past the end": (b"s", lambda key: (key, packed(9))),
    "an outcome past the end": (b"o", lambda key: (key, packed(9, 0, 5))),
    "an outcome nobody knows": (b"o", lambda key: (key, packed(1, 9, 5))),
    "an outcome without a time": (b"o", lambda key: (key, packed(1, 0))),
    "a withdrawn run past the end": (b"e", lambda key: (key, packed(9))),
    "a dead letter of a group nobody knows": (
        b"d",
        lambda key: (key[:12] + b"\x63" + key[13:], packed(1, 1, 1, 5, "", 1)),
    ),
    "attributes that can't be decoded": (
        b"h",
        lambda key: (key, packed(3, 3, 5, bytes(12), b"", b"\xc1", b"", 0)),
    ),
    "attributes that are not there": (
        b"h",
        lambda key: (key, packed(3, 3, 5, bytes(12), b"", packed(()), b"\x07\0\0\0", 0)),
    ),
    "more out of line than there are": (
        b"h",
        lambda key: (key, packed(3, 3, 5, bytes(12), b"", packed(()), b"", 4)),
    ),
    "a kind nobody knows": (b"c", lambda key: (key[:8] + b"f" + key[9:], packed(1, 1))),
}
"""Records that can be decoded and can't be true, each made from the key of one that there is."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_record_that_can_not_be_true_is_damage(name: str) -> None:
    kind, change_to = IMPOSSIBLE[name]
    core = two_queues()
    change(core, *change_to(of_kind(core, kind)[0]))
    assert why(core)
    check_good(core)


def test_damage_has_a_code_of_its_own() -> None:
    assert CODES["damaged"] is Damaged


@pytest.mark.parametrize("seed", range(4))
def test_whatever_becomes_of_one_record_the_other_queues_are_loaded(seed: int) -> None:
    pick = random.Random(seed)
    core = two_queues()
    before = stored(core)
    values = list(before.values())
    for key, value in before.items():
        at = pick.randrange(len(value))
        for changed in (
            None,
            value[:at],
            value[:at] + bytes([pick.randrange(256)]) + value[at + 1 :],
            pick.choice(values),
        ):
            for each, kept in before.items():
                core.store._records[each] = kept
            try:
                change(core, key, changed)
            except Exception as error:
                error.add_note(f"{key[8:]!r}: {value!r} became {changed!r}")
                raise
            assert set(core.engine.damaged) <= {("default", "bad")}
            found = core.ask(queries.Describe("default", "good"), queries.QueueFound)
            assert [each.counts.waiting for each in found.groups] == [11, 14, 13]


@pytest.mark.parametrize("level", [1 << 40, -(1 << 40)])
def test_a_number_that_fits_no_column_is_damage(level: int) -> None:
    core = two_queues()
    key = of_kind(core, b"v")[0]
    change(core, key, msgspec.msgpack.encode((1, 0, 0, "", level)))
    assert why(core)
    check_good(core)


def test_a_header_whose_counts_are_wrong_is_damage() -> None:
    core = two_queues()
    headers = [key for key in of_kind(core, b"h") if len(msgspec.msgpack.decode(stored(core)[key])) > 5]
    fields = msgspec.msgpack.decode(stored(core)[headers[0]])
    change(core, headers[0], msgspec.msgpack.encode([*fields[:-1], fields[-1] + 1]))
    assert "attributes" in why(core)
    check_good(core)


class TornStore(MemoryStore):
    """A store in which a scan that reaches some keys meets a damaged block, and counts its scans."""

    def __init__(self, before: MemoryStore, torn: bytes) -> None:
        super().__init__()
        self._records, self._bodies, self._torn = before._records, before._bodies, torn
        self.scans = 0

    def scan(self, lower: bytes, upper: bytes) -> Iterator[Record]:
        self.scans += 1
        for record in super().scan(lower, upper):
            if self._torn and record[0].startswith(self._torn):
                raise Damaged("Corruption: block checksum mismatch")
            yield record


def queues(count: int) -> Core:
    core = Core()
    for number in range(count):
        core.push(b"%d" % number, queue=f"q{number}")
    core.commit()
    return core


@pytest.mark.parametrize("torn", ["q0", "q3", "q6"])
def test_a_damaged_block_is_the_damage_of_its_own_queue_and_of_no_neighbour(torn: str) -> None:
    core = queues(7)
    prefix = core.engine.queues["default", torn].prefix
    core.store = TornStore(core.store, prefix)
    core.restart()
    assert list(core.engine.damaged) == [("default", torn)]
    for number in range(7):
        if torn != f"q{number}":
            assert core.popped(queue=f"q{number}") == [b"%d" % number]


def test_queues_of_a_tenant_are_loaded_with_one_scan() -> None:
    scans = []
    for count in (1, 50):
        core = queues(count)
        store = core.store = TornStore(core.store, b"")
        core.restart()
        assert len(core.engine.queues) >= count
        scans.append(store.scans)
    assert scans[0] == scans[1]
