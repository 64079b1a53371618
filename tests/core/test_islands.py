"""Islands: a message that waits for long, or is dead, no longer keeps the log; it is carved out of it."""

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.errors import ForebayError, NotFound
from forebay.core.log import log as logs
from forebay.core.records import codec, keyspace
from forebay.core.retention import carve, islands as retention_islands, merge as merges
from forebay.core.retention.carve import Carved, Carving
from forebay.core.shard.timers import SWEEP_MS
from forebay.core.state import Backoff, Log, Partition, Queue
from tests.core.harness import AT_ONCE, NOW, Core, payloads_of

DAY_MS = 86_400_000
BIG = 200
"""Bytes of a message here: settling ten of them is worth a carving."""


def queue_of(core: Core) -> Queue:
    return core.engine.queues["default", "q"]


def partition_of(core: Core) -> Partition:
    return queue_of(core).partitions["default"]


def log_of(core: Core) -> Log:
    return partition_of(core).log


def shape(core: Core) -> tuple[list[tuple[int, int]], int, int]:
    """The islands, and where the log begins and ends."""
    log = log_of(core)
    islands = [(each.base, each.end) for each in log.segments[: log.islands]]
    assert log.strays == sum(high - low for low, high in islands)
    assert log.size == sum(each.size for each in log.segments)
    return islands, log.first, log.end


def in_store(core: Core) -> tuple[int, int]:
    """Headers and bodies of the queue's messages."""
    core.commit()
    queue = queue_of(core)
    headers = list(core.store.scan(queue.prefix + b"h", queue.prefix + b"i"))
    bodies = [key for key in core.store._bodies if key.startswith(queue.prefix)]
    return len(headers), len(bodies) - sum(len(notes.log.segments) for notes in queue.notes.values())


def padded(*names: str) -> list[bytes]:
    return [name.encode().ljust(BIG, b".") for name in names]


def swept(core: Core, times: int = 1) -> None:
    for _ in range(times):
        core.commit()
        core.wait(SWEEP_MS)


def with_delayed() -> tuple[Core, int]:
    """Twenty messages in a segment, all done but one that is delayed for a day; and the id of that."""
    core = Core()
    core.configure(completed_retention_ms=0)
    core.push(*padded(*[f"a{at}" for at in range(10)]))
    far = core.push(*padded("far"), delay_ms=DAY_MS, max_attempts=2, backoff=Backoff("fixed", 5))
    core.push(*padded(*[f"b{at}" for at in range(9)]))
    core.commit()
    core.ack(core.pop(99).lease)
    core.commit()
    core.push(*padded("next"))
    core.ack(core.pop(99).lease)
    return core, far


def carved(core: Core) -> Carving | None:
    """Carve the next island, as the broker does; what was planned."""
    carving = core.engine.plan_carving()
    if carving is None:
        return None
    assert core.engine.apply_carving(carving, joined(core, carving))
    return carving


def joined(core: Core, carving: Carving) -> list[Carved]:
    body = carving.island.body
    if body is None:
        (found,) = core.store.bodies([keyspace.body_key(queue_of(core).prefix, carving.island.body_name)])
        assert isinstance(found, bytes)
        body = found
    return carve.join(carving, [body])


def show(core: Core, message: int) -> bytes:
    (found,) = core.ask(queries.Show("default", [message]), queries.ShownAll).deliveries
    if not found.segment.present:
        (body,) = core.store.bodies([keyspace.body_key(queue_of(core).prefix, found.segment.body_name)])
        assert isinstance(body, bytes)
        found.segment.body = body
    (payload,) = found.payloads()
    return bytes(payload)


# The log goes on.


def test_a_far_delay_does_not_keep_the_log() -> None:
    core, far = with_delayed()
    swept(core)
    assert shape(core) == ([(0, 20)], 21, 21)
    assert core.state(far) == "delayed"
    with pytest.raises(NotFound):
        core.state(far + 10)
    core.restart()
    assert shape(core) == ([(0, 20)], 21, 21)
    assert show(core, far) == padded("far")[0]


def test_an_island_is_carved_down_to_what_is_still_wanted() -> None:
    core, far = with_delayed()
    swept(core)
    assert in_store(core) == (1, 1)
    assert carved(core) is not None
    assert shape(core) == ([(10, 11)], 21, 21)
    assert in_store(core) == (1, 1)
    for restarted in (False, True):
        if restarted:
            core.restart()
        assert shape(core) == ([(10, 11)], 21, 21)
        assert (core.state(far), show(core, far)) == ("delayed", padded("far")[0])
        for other in (far - 1, far + 1, far + 10):
            with pytest.raises(NotFound):
                core.state(other)
    assert core.engine.plan_carving() is None


def test_what_was_carved_out_is_delivered_as_it_was_pushed() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.restart()
    core.wait(DAY_MS)
    reply = core.pop(9)
    ((delivery, payload),) = [(each, bytes(p)) for each in reply.deliveries for p in each.payloads()]
    assert (delivery.first, delivery.created_at, payload) == (far, NOW, padded("far")[0])
    core.nack(reply.lease)
    assert core.find(far).due_at == core.now + 5
    core.wait(5)
    core.nack(core.pop().lease)
    assert core.state(far) == "dead"
    letters = core.ask(queries.ListDead("default", "q"), queries.DeadFound)
    assert [each.first for each in letters.deliveries] == [far]


def test_an_island_goes_when_nobody_wants_it_any_more() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.wait(DAY_MS)
    lease = core.pop().lease
    swept(core)
    assert core.state(far) == "active"
    core.ack(lease)
    assert core.state(far) == "completed"
    swept(core)
    assert shape(core) == ([], 21, 21)
    assert in_store(core) == (0, 0)
    with pytest.raises(NotFound):
        core.state(far)
    core.restart()
    assert core.counts() == queries.Counts()


def test_counts_are_those_of_what_is_kept() -> None:
    core, _ = with_delayed()
    swept(core)
    assert core.counts() == queries.Counts(delayed=1, completed=19)
    carved(core)
    assert core.counts() == queries.Counts(delayed=1)
    core.push(b"new")
    core.restart()
    assert core.counts() == queries.Counts(waiting=1, delayed=1)
    browsed = core.ask(queries.Browse("default", "q", "delayed"), queries.ShownAll)
    assert (browsed.total, len(browsed.deliveries)) == (1, 1)


def test_a_dead_letter_does_not_keep_the_log() -> None:
    core = Core()
    core.configure(completed_retention_ms=0, max_attempts=1, backoff=AT_ONCE)
    first = core.push(*padded(*[f"{at}" for at in range(20)]))
    lease = core.pop(20).lease
    core.nack(lease, [first + 3, first + 4, first + 17], error="broken")
    core.ack(lease)
    swept(core)
    assert shape(core) == ([(0, 20)], 20, 20)
    carved(core)
    assert shape(core) == ([(3, 5), (17, 18)], 20, 20)
    assert in_store(core) == (2, 2)
    core.restart()
    letters = core.ask(queries.ListDead("default", "q"), queries.DeadFound)
    assert [(each.first, each.error) for each in letters.deliveries] == [
        (first + at, "broken") for at in (3, 4, 17)
    ]
    assert core.ask(c.Requeue("default", "q", ids=[first + 4]), c.Buried).count == 1
    assert core.popped(9) == padded("4")
    core.ask(c.Purge("default", "q"), c.Buried)
    core.ack(ids=[first + 4])
    swept(core)
    assert shape(core) == ([], 20, 20)
    assert in_store(core) == (0, 0)


def test_what_one_group_is_done_with_is_kept_for_another() -> None:
    core, far = with_delayed()
    lease = core.pop(99, group="audit").lease
    swept(core)
    assert shape(core) == ([], 0, 21)
    core.ack(lease)
    swept(core)
    assert shape(core) == ([(0, 20)], 21, 21)
    core.cancel(far, group="default")
    swept(core, 2)
    carved(core)
    core.restart()
    assert (core.state(far), core.state(far, "audit")) == ("cancelled", "delayed")
    core.wait(DAY_MS)
    assert core.popped(9) == []
    assert core.popped(9, group="audit") == padded("far")


def test_commands_about_messages_on_an_island_do_what_they_always_do() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.restart()
    core.ask(c.Move("default", [far], priority=5), c.Settled)
    assert core.find(far).priority == 5
    core.ask(c.Move("default", [far], delay_ms=0, only_delayed=True), c.Settled)
    reply = core.pop(9)
    assert [each.first for each in reply.deliveries] == [far]
    assert core.ask(c.Extend("default", ids=[far]), c.Extended).count == 1
    assert core.ack(ids=[far - 1, far, far + 1], partial=True) == c.Settled(1, [far - 1, far + 1])
    assert core.state(far) == "completed"


def test_a_message_on_an_island_can_be_cancelled_and_discarded() -> None:
    for command, state in (
        (c.Cancel("default", []), "cancelled"),
        (c.Discard("default", []), "dead"),
    ):
        core, far = with_delayed()
        swept(core)
        carved(core)
        command.ids = [far - 1, far, far + 1]
        assert core.ask(command, c.Settled) == c.Settled(1, [far - 1, far + 1])
        assert core.state(far) == state
        core.restart()
        assert core.state(far) == state


def test_a_message_on_an_island_can_be_updated() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.ask(c.Update("default", far, b"new"), c.Pushed)
    core.restart()
    assert core.find(far).due_at == NOW + DAY_MS
    core.wait(DAY_MS)
    reply = core.pop()
    assert [(each.first, bytes(p)) for each in reply.deliveries for p in each.payloads()] == [(far, b"new")]


def test_what_is_merged_and_carved_before_one_commit_is_kept() -> None:
    """The merge replaces the segment whose place the carving gives back to what is still wanted."""
    core = Core()
    core.configure(completed_retention_ms=0)
    core.push(*padded(*[f"a{at}" for at in range(10)]))
    core.commit()
    far = core.push(*padded("far"), delay_ms=DAY_MS)
    core.commit()
    for name in ("b", "c", "d"):
        core.push(*padded(*[f"{name}{at}" for at in range(10)]))
        core.commit()
    queue, partition = queue_of(core), partition_of(core)
    core.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
    merge = core.engine.plan_merge(2)
    assert merge is not None
    bodies = [bytes(each.body or b"") for each in merge.parts]
    core.ack(core.pop(99).lease)
    core.commit()
    assert core.engine.apply_merge(merge, merges.join(merge, bodies))
    core.engine.tick(core.now + SWEEP_MS)
    assert shape(core)[0] == [(0, 21)]
    assert carved(core) is not None
    core.restart()
    assert (10, 11) in shape(core)[0]
    assert show(core, far) == padded("far")[0]


def test_a_new_group_begins_where_the_log_does() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.push(b"new")
    reply = core.pop(9, group="later")
    assert payloads_of(reply) == [b"new"]
    core.ack(reply.lease)
    core.wait(DAY_MS)
    assert core.popped(9, group="later") == []
    assert sorted(core.popped(9)) == [*padded("far"), b"new"]
    assert core.state(far) == "active"


@pytest.mark.parametrize(
    "command",
    [
        c.Move("default", [], "later", delay_ms=0, only_delayed=True),
        c.Move("default", [], "later", priority=3),
        c.Discard("default", [], "later"),
    ],
    ids=["promote", "priority", "discard"],
)
def test_a_refused_command_makes_no_group_that_could_not_have_the_message(command: c.Move) -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.commit()
    command.ids = [far]
    with pytest.raises(ForebayError):
        core.engine.apply(command, core.now)
    assert core.engine.seal(core.now) == []
    assert list(queue_of(core).groups) == ["default"]


def test_reads_begin_where_the_log_does() -> None:
    core, _ = with_delayed()
    swept(core)
    core.push(b"new")
    reply = core.ask(queries.Read("default", "q", 0), queries.LogSlice)
    assert [(run.offset, run.count) for run in reply.runs] == [(21, 1)]
    found = core.ask(queries.Offsets("default", "q", NOW), queries.OffsetsFound)
    assert (found.partitions[0].first, found.partitions[0].at) == (21, 21)


# Carving.


def test_an_island_that_is_mostly_wanted_is_left_as_it_is() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    core.push(*padded(*map(str, range(12))), delay_ms=DAY_MS)
    core.push(*padded(*map(str, range(10))))
    core.ack(core.pop(10).lease)
    swept(core)
    assert shape(core) == ([(0, 22)], 22, 22)
    assert core.engine.plan_carving() is None


def test_an_island_that_is_too_small_to_bother_is_left_as_it_is() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    core.push(b"far", delay_ms=DAY_MS)
    core.push(b"1", b"2", b"3")
    core.ack(core.pop(9).lease)
    swept(core)
    assert shape(core) == ([(0, 4)], 4, 4)
    assert core.engine.plan_carving() is None


def test_what_is_settled_while_an_island_is_carved_is_settled_afterwards() -> None:
    core, far = with_delayed()
    swept(core)
    carving = core.engine.plan_carving()
    assert carving is not None
    parts = joined(core, carving)
    core.cancel(far)
    assert core.engine.apply_carving(carving, parts)
    core.restart()
    assert core.state(far) == "cancelled"
    swept(core)
    assert shape(core)[0] == []


def test_an_island_that_went_while_it_was_carved_does_not_come_back() -> None:
    core, far = with_delayed()
    swept(core)
    carving = core.engine.plan_carving()
    assert carving is not None
    parts = joined(core, carving)
    core.cancel(far)
    swept(core)
    assert shape(core)[0] == []
    assert not core.engine.apply_carving(carving, parts)
    assert in_store(core) == (0, 0)


def test_a_queue_that_was_obliterated_while_it_was_carved_does_not_come_back() -> None:
    core, _ = with_delayed()
    swept(core)
    carving = core.engine.plan_carving()
    assert carving is not None
    parts = joined(core, carving)
    core.ask(c.Obliterate("default", "q"), c.Cleaned)
    assert not core.engine.apply_carving(carving, parts)
    core.commit()
    assert not [key for key in core.store._bodies if key.startswith(carving.queue.prefix)]


def test_carved_parts_keep_the_times_of_a_merged_segment() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    first = core.push(*padded("0"))
    for number in range(1, 40):
        core.commit()
        core.now += 1
        core.push(*padded(str(number)), delay_ms=DAY_MS if number in (7, 30) else 0)
    core.commit()
    queue, partition = queue_of(core), partition_of(core)
    core.engine.shards[queue.shard].changes.to_merge[partition.key] = (queue, partition)
    merge = core.engine.plan_merge(2)
    assert merge is not None
    bodies = [each.body for each in merge.parts if each.body is not None]
    assert core.engine.apply_merge(merge, merges.join(merge, bodies))
    core.ack(core.pop(99).lease)
    swept(core)
    while carved(core) is not None:
        pass
    core.restart()
    for number in (7, 30):
        found = core.find(first + number)
        assert (found.state, found.created_at, found.due_at) == (
            "delayed",
            NOW + number,
            NOW + number + DAY_MS,
        )
        assert show(core, first + number) == padded(str(number))[0]


def test_an_island_goes_whose_message_was_updated() -> None:
    core, far = with_delayed()
    swept(core)
    carved(core)
    core.ask(c.Update("default", far, b"new"), c.Pushed)
    swept(core, 3)
    assert shape(core) == ([(21, 22)], 22, 22)


def test_many_islands_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_islands, "ISLANDS_MAX", 2)
    core = Core()
    core.configure(completed_retention_ms=0)
    for number in range(5):
        core.push(*padded(f"far{number}"), delay_ms=DAY_MS)
        core.commit()
    core.pop(partition="none")
    core.push(b"near")
    core.ack(core.pop().lease)
    swept(core)
    assert len(shape(core)[0]) == 5
    core.ask(c.Clean("default", "q", ("delayed",)), c.Cleaned)
    swept(core, 5)
    assert shape(core)[0] == []


# Loading.


def test_an_island_that_is_missing_is_damage_if_something_scheduled_needs_it() -> None:
    core, _ = with_delayed()
    swept(core)
    core.commit()
    key = keyspace.header_key(queue_of(core).prefix, partition_of(core).key, 0)
    del core.store._records[key]
    core.restart()
    assert "no segment" in core.engine.damaged["default", "q"]


def test_an_island_that_is_missing_is_damage_if_a_dead_letter_needs_it() -> None:
    core = Core()
    core.configure(completed_retention_ms=0, max_attempts=1)
    core.push(*padded("0"))
    core.nack(core.pop().lease)
    swept(core)
    core.commit()
    del core.store._records[keyspace.header_key(queue_of(core).prefix, partition_of(core).key, 0)]
    core.restart()
    assert "no segment" in core.engine.damaged["default", "q"]


def test_an_island_that_overlaps_the_log_is_damage() -> None:
    core, _ = with_delayed()
    swept(core)
    core.commit()
    partition = partition_of(core)
    island = log_of(core).segments[0]
    key = keyspace.header_key(queue_of(core).prefix, partition.key, 5)
    core.store._records[key] = codec.pack_header(island)
    core.restart()
    assert ("default", "q") in core.engine.damaged


def test_offsets_past_the_islands_are_found_by_their_time() -> None:
    core, _ = with_delayed()
    swept(core)
    carved(core)
    core.push(b"new")
    log = log_of(core)
    assert logs.offset_at(log, NOW) in (10, 21)
    assert logs.offset_at(log, core.now) == 21
    assert [logs.has(log, offset) for offset in (9, 10, 11, 20, 21, 22)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_so_many_islands_are_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_islands, "ISLANDS_MADE_MAX", 2)
    core = Core()
    core.configure(completed_retention_ms=0)
    core.pop()
    ids = []
    for number in range(6):
        ids.append(core.push(*padded(f"far{number}"), delay_ms=DAY_MS))
        core.push(*padded(f"near{number}"))
        core.commit()
    core.ack(core.pop(99).lease)
    firsts = []
    for _ in range(6):
        swept(core)
        firsts.append(shape(core)[1])
    assert firsts == sorted(firsts)
    assert firsts[-1] == 12
    core.restart()
    assert [core.state(each) for each in ids] == ["delayed"] * 6
    core.wait(DAY_MS)
    assert core.popped(99) == padded(*[f"far{number}" for number in range(6)])


def test_a_delivery_whose_first_messages_were_carved_away_is_extended_by_the_others() -> None:
    core = Core()
    core.configure(completed_retention_ms=0)
    payload = b"x" * 500
    core.push(payload, delay_ms=10**8, timeout_ms=5_000)
    core.push(payload, delay_ms=10**8, timeout_ms=6_000)
    core.commit()
    core.push(payload, priority=2)
    core.commit()
    first = core.push(*[payload] * 20, delay_ms=60_000, timeout_ms=600_000)
    core.push(*[payload] * 20)
    core.commit()
    core.ack(core.pop(99).lease)
    core.commit()
    core.push(payload)
    core.ack(core.pop(9).lease)
    core.commit()
    for _ in range(2):
        core.wait(SWEEP_MS)
        core.commit()
    core.wait(60_000)
    lease = core.pop(20).lease
    core.ack(ids=list(range(first, first + 19)))
    core.commit()
    for _ in range(2):
        core.wait(SWEEP_MS)
    while carved(core) is not None:
        pass
    core.commit()
    extended = core.ask(c.Extend("default", lease), c.Extended)
    assert extended.expires_at == core.now + 600_000
