"""Those who wait for keys to change: when they are answered, and with what."""

import pytest

from forebay.core.api.commands import Ack, Configure, Nack, Transact, Transacted
from forebay.core.api.jobs import Job, KvChange, KvWrite, KvWritten, PushedJobs, PushJobs
from forebay.core.api.queries import KvFound, KvWatch
from forebay.core.engine import Engine
from forebay.core.errors import Busy, Invalid
from forebay.core.keyvalue.keys import pack
from forebay.core.records.commit import Commit
from forebay.core.state import Identity
from forebay.core.words import DEFAULT
from tests.broker.conftest import Start
from tests.broker.loop import Recorder, Rig, SlowStore, pop, push

HOUR_MS = 3_600_000
KEY, OTHER, THIRD = pack(("k",)), pack(("other",)), pack(("third",))


@pytest.fixture
def rig(start: Start) -> Rig:
    return start()


def write(
    rig: Rig,
    kind: str = "set",
    key: bytes = KEY,
    data: bytes = b"1",
    ttl_ms: int | None = None,
    tenant: str = DEFAULT,
) -> int:
    """Change a key; the version."""
    reply = rig.get(KvWrite(tenant, [KvChange(kind, key, data, ttl_ms)]))
    assert isinstance(reply, KvWritten), reply
    return reply.version


def ask(
    rig: Rig,
    keys: list[bytes],
    versions: list[int | None],
    wait_ms: int = HOUR_MS,
    asker: Recorder | None = None,
) -> int:
    return rig.ask(KvWatch(DEFAULT, keys, versions, wait_ms), asker)


def watch(
    rig: Rig,
    *keys: bytes,
    versions: list[int | None] | None = None,
    wait_ms: int = HOUR_MS,
    asker: Recorder | None = None,
) -> int:
    """Wait for keys to change, which are not there unless told otherwise; the ticket."""
    asked = list(keys or (KEY,))
    ticket = ask(rig, asked, [None] * len(asked) if versions is None else versions, wait_ms, asker)
    rig.loop.run_ready()
    assert ticket not in (asker or rig.asker).answers
    return ticket


def found(rig: Rig, ticket: int) -> KvFound:
    reply = rig.reply(ticket)
    assert isinstance(reply, KvFound), reply
    return reply


def told(rig: Rig, ticket: int) -> list[bytes | None]:
    """What somebody was told that keys hold now."""
    reply = found(rig, ticket)
    assert reply.changed
    return [value.data if value is not None else None for value in reply.values]


# A change.


def test_who_waits_is_told_with_the_commit_of_the_write(start: Start) -> None:
    store = SlowStore()
    rig = start(store)
    ticket = watch(rig)
    written = rig.ask(KvWrite(DEFAULT, [KvChange("set", KEY, b"7")]))
    rig.loop.run_ready()
    assert rig.waits(ticket)
    assert rig.waits(written)
    store.let_go()
    rig.loop.await_thread()
    assert told(rig, ticket) == [b"7"]
    assert not rig.waits(written)


@pytest.mark.parametrize("kind", ["set", "delete", "sum", "max", "min", "expire"])
def test_every_kind_of_change_is_told(rig: Rig, kind: str) -> None:
    version = write(rig)
    ticket = watch(rig, versions=[version])
    write(rig, kind)
    assert told(rig, ticket) == [{"delete": None, "sum": b"2"}.get(kind, b"1")]
    assert rig.node._key_watchers.count == 0


def test_who_knows_another_version_is_told_at_once(rig: Rig) -> None:
    write(rig)
    version = write(rig, data=b"2")
    for known in (None, version - 1, version + 1):
        ticket = ask(rig, [KEY], [known])
        rig.loop.run_ready()
        assert told(rig, ticket) == [b"2"]
    assert rig.node._key_watchers.count == 0


def test_a_key_that_went_and_came_back_has_changed(rig: Rig) -> None:
    version = write(rig)
    write(rig, "delete")
    write(rig)
    ticket = ask(rig, [KEY], [version])
    rig.loop.run_ready()
    assert told(rig, ticket) == [b"1"]


def test_any_of_several_keys_is_enough_and_all_are_shown(rig: Rig) -> None:
    version = write(rig)
    ticket = watch(rig, KEY, OTHER, THIRD, versions=[version, None, None])
    write(rig, key=OTHER, data=b"2")
    assert told(rig, ticket) == [b"1", b"2", None]


def test_a_key_that_is_named_twice_is_watched(rig: Rig) -> None:
    ticket = watch(rig, KEY, KEY)
    write(rig)
    assert told(rig, ticket) == [b"1", b"1"]
    assert rig.node._key_watchers._by_key == {}


def test_several_keys_written_at_once_are_one_answer(rig: Rig) -> None:
    ticket = watch(rig, KEY, OTHER)
    rig.get(KvWrite(DEFAULT, [KvChange("set", key, b"5") for key in (KEY, OTHER)]))
    assert told(rig, ticket) == [b"5", b"5"]


def test_everyone_who_waits_is_told_in_the_order_they_came(rig: Rig) -> None:
    other = Recorder()
    mine = [watch(rig), watch(rig, OTHER, KEY), watch(rig)]
    theirs = watch(rig, asker=other)
    write(rig)
    assert [each for each in rig.asker.answers if each in mine] == mine
    assert isinstance(other.answers[theirs], KvFound)


def test_a_transaction_that_writes_is_told(rig: Rig) -> None:
    ticket = watch(rig)
    rig.get(push("job"))
    lease = rig.lease(pop()).lease
    reply = rig.get(
        Transact(DEFAULT, [Ack(DEFAULT, lease), KvWrite(DEFAULT, [KvChange("set", KEY, b'"done"')])])
    )
    assert isinstance(reply, Transacted)
    assert told(rig, ticket) == [b'"done"']


def test_a_message_that_dies_and_leaves_its_payload_is_told(rig: Rig) -> None:
    rig.get(Configure(DEFAULT, "q", max_attempts=1))
    job = Job(b'{"n":1}', own=Identity(keys=(KEY,)))
    assert isinstance(rig.get(PushJobs(DEFAULT, "q", [job])), PushedJobs)
    ticket = watch(rig)
    rig.get(Nack(DEFAULT, rig.lease(pop()).lease))
    assert told(rig, ticket) == [b'{"n":1}']


def test_a_lease_that_runs_out_once_too_often_is_told_without_anybody_asking(rig: Rig) -> None:
    rig.get(Configure(DEFAULT, "q", max_attempts=1))
    rig.get(PushJobs(DEFAULT, "q", [Job(b"1", own=Identity(keys=(KEY,)))]))
    rig.get(pop(lease_ms=1_000))
    ticket = watch(rig)
    rig.loop.advance(999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert told(rig, ticket) == [b"1"]


def test_a_value_whose_time_is_over_has_changed_at_that_instant(rig: Rig) -> None:
    version = write(rig, ttl_ms=5_000)
    ticket = watch(rig, versions=[version])
    rig.loop.advance(4_999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert told(rig, ticket) == [None]


# No change.


@pytest.mark.parametrize("what", ["another key", "another tenant", "nothing deleted", "refused"])
def test_who_waits_is_not_told_of_what_is_none_of_its_keys(rig: Rig, what: str) -> None:
    ticket = watch(rig)
    match what:
        case "another key":
            write(rig, key=OTHER)
        case "another tenant":
            write(rig, tenant="acme")
        case "nothing deleted":
            write(rig, "delete")
        case "refused":
            assert isinstance(rig.get(KvWrite(DEFAULT, [KvChange("sum", KEY, b'"a"')])), Invalid)
    assert rig.waits(ticket)
    write(rig)
    assert told(rig, ticket) == [b"1"]


def test_nobody_waits_longer_than_it_said(rig: Rig) -> None:
    version = write(rig)
    short, long = (watch(rig, versions=[version], wait_ms=ms) for ms in (1_000, 2_000))
    rig.loop.advance(999)
    assert rig.waits(short)
    rig.loop.advance(1)
    reply = found(rig, short)
    assert (reply.changed, [value and value.version for value in reply.values]) == (False, [version])
    assert rig.waits(long)
    rig.loop.advance(1_000)
    assert not found(rig, long).changed
    assert rig.node._key_watchers.count == 0


def test_who_does_not_wait_is_answered_at_once(rig: Rig) -> None:
    ticket = ask(rig, [KEY], [None], 0)
    rig.loop.run_ready()
    assert not found(rig, ticket).changed


def test_a_bad_watch_is_refused_and_not_waited_for(rig: Rig) -> None:
    assert isinstance(rig.get(KvWatch(DEFAULT, [KEY], [], HOUR_MS)), Invalid)
    assert isinstance(rig.get(KvWatch(DEFAULT, [], [], HOUR_MS)), Invalid)
    assert rig.node._key_watchers.count == 0


# Those who leave, and nodes that stop.


def test_nothing_is_left_of_an_asker_that_is_gone(rig: Rig) -> None:
    timers = rig.loop.timers()
    gone = Recorder()
    for keys in ((KEY,), (KEY, OTHER), (THIRD,)):
        watch(rig, *keys, asker=gone)
    ticket = watch(rig)
    rig.node.forget(gone)
    assert (rig.node._key_watchers.count, rig.loop.timers()) == (1, timers + 1)
    write(rig)
    assert told(rig, ticket) == [b"1"]
    rig.loop.advance(2 * HOUR_MS)
    assert gone.answers == {}
    assert rig.node._key_watchers._by_key == {}
    assert not any(shard.values.is_watched for shard in rig.node._engine.shards.values())


def test_an_asker_that_sends_no_more_is_told_what_there_is(rig: Rig) -> None:
    done = Recorder()
    ticket, other = watch(rig, asker=done), watch(rig)
    rig.node.give_up(done)
    rig.loop.run_ready()
    reply = done.answers[ticket]
    assert isinstance(reply, KvFound)
    assert not reply.changed
    assert rig.waits(other)


def test_a_node_that_stops_answers_everyone(rig: Rig) -> None:
    ticket = watch(rig)
    rig.loop.run(rig.node.drain())
    assert not found(rig, ticket).changed
    late = ask(rig, [KEY], [None])
    rig.loop.run_ready()
    assert not found(rig, late).changed


def test_a_watch_goes_on_after_a_restart_by_its_version(start: Start) -> None:
    first = start()
    version = write(first)
    first.close()
    rig = start(first.store)
    ticket = watch(rig, versions=[version])
    write(rig, "sum")
    assert told(rig, ticket) == [b"2"]


def test_who_waits_waits_on_after_a_failed_commit(rig: Rig) -> None:
    version = write(rig)
    ticket = watch(rig, versions=[version])
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(push("x")), Busy)
    rig.loop.run_ready()
    assert rig.waits(ticket)
    write(rig, "sum")
    assert told(rig, ticket) == [b"2"]


def test_who_was_to_be_told_of_a_write_that_could_not_be_kept_is_told_busy(rig: Rig) -> None:
    version = write(rig)
    ticket = watch(rig, versions=[version])
    rig.store.commit_error = OSError("disk full")
    assert isinstance(rig.get(KvWrite(DEFAULT, [KvChange("set", KEY, b"lost")])), Busy)
    rig.loop.run_ready()
    assert isinstance(rig.reply(ticket), Busy)
    again = watch(rig, versions=[version])
    assert rig.waits(again)


def test_a_wait_that_ends_during_an_outage_is_answered(rig: Rig) -> None:
    ticket = watch(rig, wait_ms=5_000)
    rig.store.commit_error = OSError("disk full")
    rig.store.claim_error = OSError("disk full")
    rig.get(push("2"))
    rig.loop.advance(6_000)
    assert isinstance(rig.reply(ticket), Busy)
    rig.store.claim_error = None
    rig.loop.advance(10_000)
    assert write(rig)


def test_a_wait_goes_on_over_an_outage_and_ends_in_time(rig: Rig) -> None:
    ticket = watch(rig, wait_ms=60_000)
    rig.store.commit_error = OSError("disk full")
    rig.get(push("2"))
    rig.loop.advance(59_999)
    assert rig.waits(ticket)
    rig.loop.advance(1)
    assert not found(rig, ticket).changed
    assert rig.node._key_watchers.count == 0


def test_a_bug_reloads_the_node_and_who_waits_waits_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = watch(rig)
    with monkeypatch.context() as patch:
        patch.setattr(rig.node._engine, "seal", lambda *_: 1 // 0)
        assert isinstance(rig.get(push("2")), Busy)
    rig.loop.run_ready()
    assert rig.waits(ticket)
    write(rig)
    assert told(rig, ticket) == [b"1"]


def test_a_watcher_that_gives_up_after_a_reload_leaves_nothing_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer began under an engine that is gone; the one that is there notes no more keys."""
    ticket = watch(rig, wait_ms=1_000)
    seal = Engine.seal

    def broken(engine: Engine, now: int) -> list[Commit]:
        monkeypatch.setattr(Engine, "seal", seal)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Engine, "seal", broken)
    before = rig.node.engine
    rig.ask(push("lost"))
    rig.loop.run_ready()
    rig.await_reload()
    assert rig.node.engine is not before
    rig.loop.advance(2_000)
    assert ticket in rig.asker.answers
    for at in range(50):
        write(rig, key=pack((f"k{at}",)))
    shards = rig.node.engine.shards.values()
    assert not any(shard.values.is_watched or shard.values.touched for shard in shards)
