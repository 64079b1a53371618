"""What is adopted lies in logs like what was pushed: beside it, merged with it, verified with it."""

import random

import pytest

from forebay.core.api import jobs as job_commands, queries, stages as stage_commands
from forebay.core.bounds import SEGMENT_BYTES_MAX, STAGED_MS_MAX, Limits
from forebay.core.errors import Busy, Conflict, Invalid, NotFound
from forebay.core.loading import verify as verifies
from forebay.core.log.bodies import check_body, pack_body
from forebay.core.queries import payloads as queries_payloads
from forebay.core.records import keyspace
from forebay.core.retention import merge as merges
from forebay.core.shard.changes import MERGE_AT
from forebay.core.state import Attributes, Backoff, Identity
from tests.core.harness import Core
from tests.core.staging import (
    HOUR_MS,
    adopt,
    adopt_of,
    crash,
    logged,
    names,
    queue_of,
    restart,
    run,
    stage,
    stage_body,
    write_of,
)
from tests.core.test_stages import Again, again, refused
from tests.sim.world import load


def segments(core: Core) -> list[int]:
    """The messages of each segment."""
    return [each.count for each in queue_of(core).partitions["default"].log.segments]


# Pushes before, between and behind.


def test_pushes_and_adoptions_of_one_commit_lie_in_the_order_they_came() -> None:
    core = Core()
    core.push(b"1")
    stage(core, "a", b"2", b"3")
    core.push(b"before")
    adopt(core, 0, "a")
    core.push(b"4")
    core.push(b"5")
    stage(core, "b", b"6", batch=1)
    stage(core, "c", b"7", batch=1)
    adopt(core, 1, "b", "c")
    core.push(b"8")
    wanted = [b"1", b"before", *[b"%d" % at for at in range(2, 9)]]
    assert logged(core) == wanted
    assert segments(core) == [2, 2, 2, 1, 1, 1]
    restart(core)
    assert segments(core) == [2, 2, 2, 1, 1, 1]
    assert logged(core) == core.popped(100) == wanted


def test_a_push_behind_an_adoption_is_never_earlier_than_it() -> None:
    core = Core()
    stage(core, "s")
    core.now += 500
    adopt(core, 0, "s")
    core.now -= 400
    core.push(b"2")
    core.commit()
    core.push(b"3")
    reply = core.ask(queries.Read("default", "q", 0), queries.LogSlice)
    assert {each.created_at for each in reply.runs} == {core.now + 400}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_pushed_staged_adopted_and_committed_in_whatever_order_is_there_in_order(
    seed: int,
) -> None:
    """Messages with and without attributes, read by offset in both ways, and delivered."""
    pick, core = random.Random(seed), Core()
    if pick.random() < 0.5:
        core.pop(group="there")
    wanted: list[bytes] = []
    made: dict[str, list[bytes]] = {}
    batch = number = 0
    for _ in range(60):
        payloads = [b"%d" % (number + at) for at in range(pick.choice([1, 1, 2, 5]))]
        number += len(payloads)
        match pick.choice(["push", "push", "stage", "stage", "adopt", "commit", "restart"]):
            case "push":
                core.push(*payloads, priority=pick.choice([0, 0, 3]), delay_ms=pick.choice([0, 0, 50]))
                wanted += payloads
            case "stage":
                name = f"s{pick.randrange(3)}"
                attributes = Attributes(pick.choice([0, 0, 2]), pick.choice([0, 0, 70]))
                stage(core, name, *payloads, batch=batch, runs=[(len(payloads), attributes)])
                made.setdefault(name, []).extend(payloads)
            case "adopt":
                chosen = pick.sample(sorted(made), len(made))
                adopt(core, batch, *chosen, count=sum(len(made[name]) for name in chosen))
                wanted += [each for name in chosen for each in made[name]]
                made, batch = {}, batch + 1
            case "commit":
                core.commit()
            case "restart":
                restart(core)
        core.now += pick.choice([0, 0, 7])
        if wanted:
            assert logged(core) == logged(core, whole=True) == wanted
    core.wait(1_000)
    for group in ("there", "late"):
        assert sorted(core.popped(1_000, group=group)) == sorted(wanted)


@again
def test_a_read_begins_and_ends_anywhere_in_what_was_adopted(then: Again) -> None:
    core = Core()
    stage(core, "s", b"a", b"bb", b"ccc", b"d")
    stage(core, "t", b"e", b"f")
    then(core)
    adopt(core, 0, "s", "t")
    then(core)
    everything = logged(core)
    for whole in (False, True):
        for first in range(6):
            for most in range(1, 7):
                command = queries.Read("default", "q", first, max_count=most, whole=whole)
                reply = core.ask(command, queries.LogSlice)
                for each in queries_payloads.absent(reply):
                    (body,) = core.store.bodies(
                        [keyspace.body_key(each.queue.prefix, each.segment.body_name)]
                    )
                    assert isinstance(body, bytes)
                    each.segment.body = body
                found = [bytes(payload) for each in reply.runs for payload in each.payloads()]
                assert found == everything[first : first + most]
    assert logged(core, max_bytes=3) == everything


def test_what_was_adopted_is_found_by_its_time() -> None:
    core = Core()
    begin = core.now
    for batch in range(3):
        stage(core, "s", b"1", b"2", batch=batch)
        core.now += 10
        adopt(core, batch, "s")
    for at, wanted in ((begin, 0), (begin + 10, 0), (begin + 11, 2), (begin + 30, 4), (begin + 31, 6)):
        found = core.ask(
            queries.Offsets("default", "q", at, {"default": wanted}), queries.OffsetsFound
        ).partitions[0]
        assert (found.at, found.size) == (wanted, 6)
        assert found.since == (None if wanted == 6 else begin + 10 * (wanted // 2 + 1))


# Merging.


def merge_all(core: Core) -> int:
    """Merge whatever there is, however little; how often that was."""
    queue = queue_of(core)
    done = 0
    while True:
        for partition in queue.partitions.values():
            core.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
        merge = core.engine.plan_merge(2)
        if merge is None:
            return done
        bodies: list[bytes] = []
        for each in merge.parts:
            body = each.body
            if body is None:
                found = core.store.bodies([keyspace.body_key(queue.prefix, each.body_name)])[0]
                assert isinstance(found, bytes)
                body = found
            bodies.append(body)
        core.engine.apply_merge(merge, merges.join(merge, bodies))
        done += 1


def times(core: Core) -> list[int]:
    """When each message came."""
    reply = core.ask(queries.Read("default", "q", 0), queries.LogSlice)
    return [each.created_at for each in reply.runs for _ in range(each.count)]


@again
def test_what_was_adopted_is_merged_with_what_was_pushed(then: Again) -> None:
    core = Core()
    wanted: list[bytes] = []
    for batch in range(12):
        payloads = [b"%d.%d" % (batch, at) for at in range(3)]
        stage(core, "s", *payloads[:2], batch=batch, runs=[run(1), run(1, priority=batch % 2)])
        then(core)
        adopt(core, batch, "s")
        core.push(payloads[2])
        core.commit()
        core.now += 3
        wanted += payloads
    before = times(core)
    assert merge_all(core)
    assert len(segments(core)) < 12
    assert logged(core) == logged(core, whole=True) == wanted
    assert times(core) == before
    restart(core)
    assert logged(core) == wanted
    popped = core.popped(100)
    assert sorted(popped) == sorted(wanted)
    assert popped[:6] == [b"%d.1" % batch for batch in range(1, 12, 2)]


def test_many_adoptions_have_their_partition_merged() -> None:
    core = Core()
    for batch in range(MERGE_AT):
        stage(core, "s", batch=batch)
        adopt(core, batch, "s")
        core.commit()
    merge = core.engine.plan_merge()
    assert merge is not None
    assert merge.absent() == [], "what is adopted right away is still in memory"


def test_a_body_leaves_memory_when_the_store_has_it_and_is_read_from_there() -> None:
    core = Core()
    stage(core, "s", b"1")
    (part,) = queue_of(core).stages["s"].parts
    assert part.body is not None
    core.commit()
    assert part.body is not None, "it is on its way into the store"
    core.push(b"other")
    core.commit()
    assert part.body is None
    adopt(core, 0, "s")
    assert queue_of(core).partitions["default"].log.segments[-1].body is None
    assert logged(core) == [b"other", b"1"]


# Unique keys.


def push_keyed(core: Core, payload: bytes, key: str) -> bool:
    """Push a message with a unique key; whether it is a duplicate."""
    reply = core.ask(
        job_commands.PushJobs("default", "q", [job_commands.Job(payload, own=Identity(key))]),
        job_commands.PushedJobs,
    )
    return reply.duplicates == [0]


@again
def test_of_messages_with_unique_keys_only_those_are_appended_whose_keys_are_free(then: Again) -> None:
    core = Core()
    push_keyed(core, b"holder", "held")
    stage(core, "s", b"1", b"2", b"3", keys=["free", "held", None])
    stage(core, "t", b"4", b"5", keys=["free", "other"])
    then(core)
    reply = adopt(core, 0, "s", "t", count=5)
    assert (reply.count, reply.duplicates) == (3, 2)
    assert [each[2:] for each in reply.ranges] == [(1, 3)]
    then(core)
    again_ = adopt(core, 0, "s", "t")
    assert (again_.count, again_.duplicates, again_.ranges) == (3, 2, reply.ranges)
    assert logged(core) == [b"holder", b"1", b"3", b"5"]
    popped = core.pop(10)
    core.ack(popped.lease)
    stage(core, "u", b"6", b"7", batch=1, keys=["free", "held"])
    then(core)
    assert adopt(core, 1, "u").duplicates == 0
    assert logged(core)[-2:] == [b"6", b"7"]


def test_a_key_is_held_from_the_adoption_on_and_not_before() -> None:
    core = Core()
    stage(core, "s", b"staged", keys=["k"])
    assert not push_keyed(core, b"1", "k")
    core.ack(core.pop().lease)
    adopt(core, 0, "s")
    assert push_keyed(core, b"2", "k")
    restart(core)
    assert push_keyed(core, b"2", "k")
    assert logged(core) == [b"1", b"staged"]


@again
def test_messages_with_keys_without_keys_and_with_attributes_go_together(then: Again) -> None:
    core = Core()
    stage(core, "s", b"1", b"2", keys=["a", "b"], runs=[run(1), run(1, delay_ms=100)])
    stage(core, "s", b"3")
    stage(core, "s", b"4", keys=["a"], partition="p")
    stage(core, "s", b"5", keys=["c"])
    then(core)
    reply = adopt(core, 0, "s")
    assert (reply.count, reply.duplicates) == (4, 1)
    core.push(b"6")
    then(core)
    assert logged(core) == [b"1", b"2", b"3", b"5", b"6"]
    assert core.popped(10) == [b"1", b"3", b"5", b"6"]
    core.wait(100)
    assert core.popped(10) == [b"2"]
    assert logged(core, "p") == []


def test_keys_of_a_large_write_stay_with_their_messages() -> None:
    core = Core()
    payloads = [b"%d" % at + b"x" * 100_000 for at in range(8)]
    stage(core, "s", *payloads, keys=[f"k{at}" for at in range(8)])
    restart(core)
    push_keyed(core, b"1", "k5")
    assert adopt(core, 0, "s").duplicates == 1
    assert logged(core) == [b"1", *payloads[:5], *payloads[6:]]


# Durability.


def must_sync(core: Core) -> bool:
    """Commit, and say whether it has to be synced."""
    core.commit()
    return core.engine.must_sync


def test_an_adoption_is_synced_unless_it_need_not_be() -> None:
    core = Core()
    core.push()
    core.commit()
    stage(core, "s")
    assert not must_sync(core)
    assert adopt(core, 0, "s").durability == "fsync"
    assert must_sync(core)
    stage(core, "t", batch=1)
    core.commit()
    assert adopt(core, 1, "t", durability="os").durability == "os"
    assert must_sync(core), "the partition is marked first"
    stage(core, "u", batch=2)
    core.commit()
    assert adopt(core, 2, "u", durability="os").durability == "os"
    assert not must_sync(core)
    adopt(core, 3)
    assert must_sync(core)


def test_after_a_crash_what_follows_an_adoption_as_os_has_fresh_numbers() -> None:
    core = Core()
    stage(core, "s")
    first = adopt(core, 0, "s", durability="os").ranges[0][1]
    core.commit()
    crash(core)
    stage(core, "t", b"2", b"3", batch=1)
    (found,) = adopt(core, 1, "t").ranges
    assert found[1] >> 32 != first >> 32
    assert found[2:] == (1, 2)
    assert core.state(found[1]) == core.state(first) == "waiting"
    again_ = adopt(core, 0, "s")
    assert (again_.durability, again_.ranges[0][1]) == ("os", first)
    restart(core)
    assert adopt(core, 1, "t").ranges == (found,)
    assert logged(core) == [b"1", b"2", b"3"]


def test_an_adoption_asks_for_a_durability_that_there_is() -> None:
    core = Core()
    stage(core, "s")
    refused(core, adopt_of(0, "s", durability="memory"), Invalid)
    refused(core, adopt_of(0, "s", durability="nonsense"), Invalid)
    core.configure(durability="os")
    assert adopt(core, 0, "s").durability == "os"


def test_a_queue_in_memory_has_stages_in_memory() -> None:
    core = Core()
    core.configure(durability="memory")
    stage(core, "s", b"1", part=0)
    core.commit()
    stage(core, "s", b"2", part=1, keys=["k"])
    stage(core, "left")
    core.commit()
    core.push(b"0")
    core.commit()
    refused(core, adopt_of(0, "s", durability="fsync"), Conflict)
    assert adopt(core, 0, "s").durability == "memory"
    core.commit()
    assert adopt(core, 0, "s").repeated
    assert core.popped(10) == [b"0", b"1", b"2"]
    stage(core, "later", batch=1, expire_ms=1_000)
    core.wait(1_000)
    assert names(core) == []
    stage(core, "gone", batch=1)
    core.commit()
    prefix = queue_of(core).prefix
    assert [key for key, _ in core.store.scan(*keyspace.queue_bounds(prefix))] == [keyspace.queue_key(prefix)]
    assert core.store._bodies == {}
    core.restart()
    assert not core.engine.damaged
    assert names(core) == []
    stage(core, "s")
    assert not adopt(core, 0, "s").repeated
    core.wait(10 * STAGED_MS_MAX)


# What a queue allows.


@again
def test_a_queue_takes_no_more_than_it_may_hold(then: Again) -> None:
    core = Core()
    core.configure(max_size=3)
    core.push(b"0")
    stage(core, "s", b"1", b"2")
    stage(core, "t", b"3")
    then(core)
    refused(core, adopt_of(0, "s", "t"), Busy)
    core.ack(core.pop().lease)
    assert adopt(core, 0, "s", "t").count == 3
    with pytest.raises(Busy):
        core.push(b"4")
    assert logged(core) == [b"0", b"1", b"2", b"3"]
    core.ack(core.pop(1).lease)
    core.push(b"4")
    with pytest.raises(Busy):
        core.push(b"5")


def test_a_batch_that_a_queue_could_never_hold_is_refused_as_that() -> None:
    core = Core()
    core.configure(max_size=2)
    stage(core, "s", b"1", b"2", b"3")
    refused(core, adopt_of(0, "s"), Invalid)


def test_in_a_queue_in_strict_order_nothing_overtakes() -> None:
    core = Core()
    core.configure(ordering="partition", backoff=Backoff("none"))
    refused(core, write_of("s", runs=[run(1, priority=1)]), Invalid)
    stage(core, "s", b"1", b"2")
    stage(core, "t", b"3", partition="p")
    adopt(core, 0, "s", "t")
    restart(core)
    first = core.pop(1, partition="default")
    assert core.popped(10, partition="default") == []
    assert core.popped(10) == [b"3"]
    core.ack(first.lease)
    assert core.popped(10) == [b"2"]


def test_what_was_staged_before_a_queue_got_its_strict_order_has_to_obey_it() -> None:
    core = Core()
    stage(core, "s", runs=[run(1, priority=1)])
    stage(core, "k", runs=[run(1, priority=1)], keys=["k"])
    core.configure(ordering="partition")
    refused(core, adopt_of(0, "s"), Invalid)
    refused(core, adopt_of(0, "k"), Invalid)


def test_another_tenants_queue_looks_missing() -> None:
    core = Core()
    stage(core, "s")
    refused(core, adopt_of(0, "s", tenant="other"), NotFound)
    refused(core, stage_commands.Unstage("other", "q", ["s"]), NotFound)
    stage(core, "s", b"theirs", tenant="other")
    adopt(core, 0, "s", tenant="other")
    assert names(core) == ["s"]
    assert core.popped(tenant="other") == [b"theirs"]
    assert core.popped() == []


def test_a_new_queue_has_to_be_allowed() -> None:
    core = Core(Limits(queues_max=1))
    core.push(queue="first")
    refused(core, write_of("s"), Busy)
    refused(core, adopt_of(0), Busy)
    refused(core, write_of("s", queue="not a name"), Invalid)
    refused(core, adopt_of(0, queue="not a name"), Invalid)
    refused(core, adopt_of(0, "s", queue="not a name"), Invalid)


def test_partitions_that_a_queue_may_not_have_are_not_adopted() -> None:
    core = Core(Limits(partitions_max=2))
    for name in "abc":
        stage(core, name, partition=name)
    refused(core, adopt_of(0, "a", "b", "c"), Busy)
    assert adopt(core, 0, "a", "b").count == 2


# Limits.


def test_a_write_has_a_number_of_messages_and_each_a_size() -> None:
    core = Core(Limits(batch_max=3, payload_bytes_max=5))
    for write in (
        write_of("s", *[b"1"] * 4),
        write_of("s", b"123456"),
        stage_commands.StageWrite("default", "q", "s"),
        stage_commands.StageWrite("default", "q", "s", body=pack_body([b"1"] * 4, [1] * 4), count=4),
        stage_commands.StageWrite("default", "q", "s", body=pack_body([b"1", b"123456"], [1, 6]), count=2),
        stage_commands.StageWrite("default", "q", "s", body=pack_body([b"1"], [1]), count=0),
    ):
        refused(core, write, Invalid)
    assert stage(core, "s", *[b"12345"] * 3).count == 3
    assert stage_body(core, "s", *[b"12345"] * 3).count == 6
    adopt(core, 0, "s")
    assert logged(core, max_count=3) == [b"12345"] * 6


def test_a_body_is_as_large_as_a_segment_may_be_unless_it_holds_one_large_payload() -> None:
    core = Core()
    room = SEGMENT_BYTES_MAX - 12
    large = b"x" * (room - 1), b"y"
    stage_body(core, "s", *large)
    with pytest.raises(Invalid, match="at most 262144 bytes"):
        check_body(pack_body([b"x" * room, b"y"], [room, 1]), 2)
    check_body(pack_body([b"x" * 1_000_000], [1_000_000]), 1)
    stage_body(core, "s", b"z" * 1_000_000)
    adopt(core, 0, "s")
    restart(core)
    assert logged(core) == [*large, b"z" * 1_000_000]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 257},
        {"partition": ""},
        {"query": ""},
        {"batch": -1},
        {"batch": 1 << 63},
        {"part": -1},
        {"expire_ms": 999},
        {"expire_ms": STAGED_MS_MAX + 1},
        {"runs": [run(1)]},
        {"runs": [run(3)]},
        {"runs": [run(0), run(2)]},
        {"runs": [run(3), run(-1)]},
        {"runs": [run(2, delay_ms=-1)]},
        {"runs": [run(1), run(1, priority=1 << 40)]},
        {"runs": [run(2, depends_on=((1, 1),))]},
        {"keys": ["a"]},
        {"keys": ["a", "b", "c"]},
        {"keys": ["a", ""]},
    ],
    ids=str,
)
def test_a_write_that_is_none_is_refused(fields: dict[str, object]) -> None:
    core = Core()
    refused(core, write_of(str(fields.pop("name", "s")), b"1", b"2", **fields), Invalid)
    assert ("default", "q") not in core.engine.queues
    stage(core, "other")
    if fields:
        refused(core, write_of("s", b"1", b"2", **fields), Invalid)


@pytest.mark.parametrize(
    "fields",
    [{"query": ""}, {"batch": -1}, {"batch": 1 << 63}, {"keep_ms": 999}, {"keep_ms": STAGED_MS_MAX + 1}],
    ids=str,
)
def test_an_adoption_that_is_none_is_refused(fields: dict[str, object]) -> None:
    core = Core()
    stage(core, "s")
    command = adopt_of(int(str(fields.pop("batch", 0))), "s", **fields)
    refused(core, command, Invalid)


def test_a_queue_has_a_number_of_stages_and_so_many_bytes_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.core.stages.write.STAGES_MAX", 2)
    monkeypatch.setattr("forebay.core.stages.adopt.STAGES_MAX", 2)
    monkeypatch.setattr("forebay.core.stages.write.STAGED_BYTES_MAX", 60)
    core = Core()
    stage(core, "a")
    stage(core, "b", query="other")
    refused(core, write_of("c"), Busy)
    stage(core, "a", b"x" * 58)
    refused(core, write_of("a"), Busy)
    restart(core)
    refused(core, write_of("a"), Busy)
    refused(core, write_of("a", b"12"), Invalid)  # it would be too much even alone
    refused(core, adopt_of(0, "a", "b", "c"), Invalid)
    adopt(core, 0, "a")
    assert stage(core, "c", b"x" * 59, batch=1).size == 59


def test_messages_with_keys_are_in_memory_and_may_be_only_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.core.stages.write.KEYED_BYTES_MAX", 10)
    core = Core()
    stage(core, "s", b"x" * 100)
    stage(core, "s", b"x" * 10, keys=["k"], part=1)
    refused(core, write_of("t", keys=["l"]), Invalid)
    refused(core, write_of("t", keys=["l"], query="other"), Busy)
    restart(core)
    refused(core, write_of("t", keys=["l"], query="other"), Busy)
    stage(core, "t", b"x" * 100)
    adopt(core, 0, "s")
    assert stage(core, "t", keys=["l"], batch=1).count == 1


def test_a_part_with_keys_that_comes_again_is_known_even_if_there_is_no_room_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.core.stages.write.KEYED_BYTES_MAX", 10)
    core = Core()
    first = stage(core, "s", b"x" * 10, keys=["k"], part=0)
    assert stage(core, "s", b"x" * 10, keys=["k"], part=0) == first


def test_a_part_that_comes_again_is_known_even_if_there_is_no_room_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.core.stages.write.STAGED_BYTES_MAX", 10)
    core = Core()
    first = stage(core, "s", b"x" * 10, part=0)
    assert stage(core, "s", b"x" * 10, part=0) == first


def test_a_full_queue_adopts_what_would_not_be_appended() -> None:
    core = Core()
    core.configure(max_size=1)
    push_keyed(core, b"1", "k")
    stage(core, "s", b"again", keys=["k"])
    reply = adopt(core, 0, "s")
    assert (reply.count, reply.duplicates) == (0, 1)


def test_a_queue_remembers_the_queries_that_adopted_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.core.stages.adopt.QUERIES_MAX", 2)
    core = Core()
    for query in ("one", "two", "one", "three"):
        core.now += 1
        adopt(core, core.now, query=query)
        restart(core)
    assert list(queue_of(core).adopted) == ["one", "three"]


def test_a_queue_forgets_what_need_not_be_remembered_for_long_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.core.stages.adopt.QUERIES_MAX", 2)
    core = Core()
    adopt(core, 7, query="stream")
    for number in range(3):
        core.now += 1
        adopt(core, 0, query=f"write {number}", keep_ms=HOUR_MS)
        restart(core)
        assert list(queue_of(core).adopted) == ["stream", f"write {number}"]
    core.now += 1
    adopt(core, 0, query="another stream")
    assert list(queue_of(core).adopted) == ["stream", "another stream"]
    core.now += 1
    adopt(core, 0, query="write 3", keep_ms=HOUR_MS)
    assert list(queue_of(core).adopted) == ["another stream", "write 3"]


# Verifying.


def verified(core: Core) -> tuple[list[str], set[bytes]]:
    """What is damaged, and bodies that nobody names."""
    found: set[bytes] = set()
    shards = len(core.engine.shards)
    reports = list(verifies.verify(shards, core.store.scan, core.store.bodies, found))
    return [each for report in reports for each in report.damage], core.store._bodies.keys() - found


def full(core: Core) -> None:
    """Stages of every kind, and adopted ones."""
    stage(core, "s", b"1", b"2")
    stage(core, "s", b"3")
    stage(core, "k", b"4", b"5", keys=["k", None])
    stage(core, "adopted", query="other")
    adopt(core, 0, "adopted", query="other")
    core.commit()


def test_what_is_staged_is_neither_damaged_nor_an_orphan() -> None:
    core = Core()
    full(core)
    assert verified(core) == ([], set())


def test_a_damaged_body_of_a_stage_is_found_and_the_rest_is_good() -> None:
    core = Core()
    full(core)
    queue = queue_of(core)
    first, second = (keyspace.body_key(queue.prefix, part.body_name) for part in queue.stages["s"].parts)
    good = core.store._bodies[first]
    for bad in (good[:-1], b"", good[:4] + b"\xff" + good[5:]):
        core.store._bodies[first] = bad
        damage, orphans = verified(core)
        assert len(damage) == 1
        assert damage[0].startswith("stage s, write 0: ")
        assert orphans == set()
    core.store._bodies[first] = good
    del core.store._bodies[second]
    (only,) = verified(core)[0]
    assert only.startswith("stage s, write 1: ")


def keyed_record(core: Core) -> bytes:
    """The key of the record of the stage with unique keys."""
    queue = queue_of(core)
    (part,) = queue.stages["k"].parts
    return queue.prefix + b"n" + part.body_name.to_bytes(12, "big")


def test_a_damaged_body_with_unique_keys_is_found() -> None:
    core = Core()
    full(core)
    key = keyed_record(core)
    value = core.store._records[key]
    body = pack_body([b"4", b"5"], [1, 1])
    assert body in value
    core.store._records[key] = value.replace(body, b"\xff" * len(body))
    assert verified(core)[0] != []


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_record_of_a_stage_or_an_adoption_harms_no_other_queue(seed: int) -> None:
    pick, core = random.Random(seed), Core()
    full(core)
    core.push(b"good", queue="good")
    core.commit()
    prefix = queue_of(core).prefix
    kept = {
        key: value for key, value in core.store._records.items() if key[8:9] in b"nz" and key[:8] == prefix
    }
    assert {key[8:9] for key in kept} == {b"n", b"z"}
    both = {("default", "q"), ("default", "good")}
    for key, value in kept.items():
        for _ in range(30):
            bad = bytearray(value)
            bad[pick.randrange(len(bad))] ^= 1 << pick.randrange(8)
            core.store._records[key] = bytes(bad[: pick.choice([len(bad), len(bad) - 1])])
            core.store._sorted = None
            core.engine = load(core.store, core.limits, core.now)
            assert core.popped(queue="good", group="g") == [b"good"]
            assert core.engine.damaged.keys() | core.engine.queues.keys() == both
        core.store._records[key] = value
        core.store._sorted = None
