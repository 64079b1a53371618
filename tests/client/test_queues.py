"""Queues, groups, crons, limits, keys and values, transactions."""

import threading

import pytest

from forebay.client.sync.client import SyncClient
from forebay.core.errors import Conflict, Invalid, NotFound
from forebay.testing.server import Server
from tests.client.blocking import Blocking

HOUR_MS = 3_600_000


def test_a_queue_is_made_shown_cleared_and_deleted(either: Blocking, queue: str) -> None:
    shown = either.configure(queue, max_attempts=7)
    assert (shown.queue, shown.options["max_attempts"], shown.partitions) == (queue, 7, [])
    either.push_many(queue, range(5))
    either.push(queue, "late", delay_ms=HOUR_MS)
    either.pop(queue)
    counts = either.queue(queue).groups[0].counts
    assert (counts.waiting, counts.delayed, counts.active) == (4, 1, 1)
    (mine,) = [each for each in either.queues() if each.queue == queue]
    assert (mine.counts.waiting, mine.counts.delayed, mine.counts.active) == (4, 1, 1)
    assert either.stats().counts.waiting >= 4
    assert either.drain(queue, dry_run=True).count == 5
    assert either.purge(queue, ["delayed"]).count == 1
    assert either.purge(queue, ["waiting"], limit=3).count == 3
    assert either.purge(queue, grace_ms=HOUR_MS).count == 0
    assert either.drain(queue).count == 1
    assert either.offsets(queue)["default"].end == 6
    assert not either.delete_queue(queue).deleted
    assert either.delete_queue(queue, force=True).deleted
    with pytest.raises(NotFound):
        either.queue(queue)


@pytest.mark.parametrize("http", [False, True])
def test_how_long_partitions_keep_messages_and_messages_wait_can_be_configured(http: bool) -> None:
    with Server() as server:
        client = server.client(http=http)
        client.pop("q", group="reads", create=True)
        ids = {name: client.push("q", name, partition=name).id for name in ("short", "usual")}
        client.configure("q", partition="short", retention_ms=HOUR_MS, completed_retention_ms=60_000)
        client.configure("q", partition="short", partition_retention_ms=HOUR_MS)
        server.jump(minutes=61)
        assert client.state(ids["usual"]) == "waiting"
        with pytest.raises(NotFound):
            client.state(ids["short"])
        assert [each.partition for each in client.queue("q").partitions] == ["short", "usual"]
        server.jump(minutes=61)
        assert [each.partition for each in client.queue("q").partitions] == ["usual"]
        assert client.configure("q", max_wait_ms=300_000).options["max_wait_ms"] == 300_000
        server.jump(minutes=6)
        assert client.state(ids["usual"], group="reads") == "evicted"


def test_a_queue_can_be_paused(either: Blocking, queue: str) -> None:
    either.push(queue, 1)
    either.pause(queue)
    assert (either.queue(queue).paused, either.pop(queue).payloads) == (True, [])
    either.resume(queue)
    assert either.pop(queue).payloads == [1]


def test_groups_are_made_moved_and_deleted(either: Blocking, queue: str) -> None:
    either.push_many(queue, range(3))
    either.create_group(queue, "all")
    either.create_group(queue, "new", start="new")
    assert {each.group for each in either.groups(queue)} == {"all", "new"}
    assert either.pop(queue, 9, group="all").payloads == [0, 1, 2]
    assert not either.pop(queue, 9, group="new")
    assert either.seek(queue, "all", group="new") == {"default": 0}
    assert either.seek(queue, group="new", partition="default", offset=2) == {"default": 2}
    assert either.pop(queue, 9, group="new").payloads == [2]
    assert [each.group for each in either.delete_group(queue, "new")] == ["all"]


def test_crons_are_set_seen_and_deleted(either: Blocking, queue: str) -> None:
    made = either.set_cron(queue, queue, {"a": 1}, schedule="@yearly", timezone="Europe/Rome", priority=3)
    assert (made.name, made.payload, made.timezone, made.fired) == (queue, {"a": 1}, "Europe/Rome", 0)
    assert made == either.cron(queue)
    assert made in either.crons()
    either.set_cron(f"{queue}-often", queue, 1, every_ms=100, limit=1)
    assert either.pop(queue, wait_ms=30_000).payloads == [1]
    either.delete_cron(queue)
    with pytest.raises(NotFound):
        either.cron(queue)
    with pytest.raises(Invalid):
        either.set_cron(queue, queue, 1, schedule="whenever")


def test_limits_are_set_seen_and_deleted(either: Blocking, queue: str) -> None:
    either.set_limit(queue, concurrency=1)
    either.configure(queue, limits=[queue])
    either.push_many(queue, range(3))
    assert len(either.pop(queue, 3)) == 1
    (mine,) = [each for each in either.limits() if each["name"] == queue]
    assert (mine["concurrency"], mine["active"]) == (1, 1)
    either.delete_limit(queue)
    assert len(either.pop(queue, 3)) == 2


# Keys and values.


def test_values_are_set_listed_and_deleted(either: Blocking, queue: str) -> None:
    kv = either.kv
    assert kv.get([queue, 0], "nothing") == "nothing"
    assert kv.entry([queue, 0]).version is None
    kv.write([{"kind": "set", "key": [queue, at], "value": {"at": at}} for at in range(250)])
    found = list(kv.list([queue]))
    assert [each.key for each in found] == [[queue, at] for at in range(250)]
    assert next(kv.list([queue], reverse=True)).value == {"at": 249}
    entry = kv.entry([queue, 7])
    assert (entry.key, entry.value, entry.version) == ([queue, 7], {"at": 7}, found[7].version)
    kv.set([queue, 7], None)
    assert kv.get([queue, 7], "nothing") is None
    assert kv.delete([queue, 7], [queue, 8], [queue, 1_000]) == 2
    assert kv.delete(queue) == 0
    kv.set([queue, 9], 1, ttl_ms=HOUR_MS)
    (only,) = [each for each in kv.list([queue]) if each.expires_at]
    assert only.key == [queue, 9]


def test_keys_of_a_text_and_of_one_part_are_the_same(client: Blocking, queue: str) -> None:
    client.kv.set(queue, 1)
    assert client.kv.get([queue]) == 1
    assert client.kv.entry(queue).key == [queue]


def test_numbers_are_added_to(either: Blocking, queue: str) -> None:
    assert either.kv.add(queue) == 1
    assert either.kv.add(queue, 41) == 42
    assert either.kv.add(queue, -0.5) == 41.5
    either.kv.set(queue, "text")
    with pytest.raises(Conflict):
        either.kv.add(queue)


def test_values_are_written_if_others_are_as_they_are_known(either: Blocking, queue: str) -> None:
    version = either.kv.set([queue, "a"], 1)
    checks = [{"key": [queue, "a"], "version": version}, {"key": [queue, "b"], "version": None}]
    mutations = [
        {"kind": "set", "key": [queue, "b"], "value": [1]},
        {"kind": "sum", "key": [queue, "a"], "value": 1},
    ]
    assert either.kv.write(mutations, checks) > version
    assert (either.kv.get([queue, "a"]), either.kv.get([queue, "b"])) == (2, [1])
    with pytest.raises(Conflict):
        either.kv.write(mutations, checks)
    assert either.kv.get([queue, "a"]) == 2


def test_a_change_of_a_value_can_be_waited_for(either: Blocking, direct: SyncClient, queue: str) -> None:
    assert either.kv.watch(queue, None, wait_ms=1) is None
    timer = threading.Timer(0.1, lambda: direct.kv.set(queue, "new"))
    timer.start()
    found = either.kv.watch(queue, None, wait_ms=30_000)
    timer.join()
    assert (found.key, found.value) == ([queue], "new")
    assert either.kv.watch(queue, "0" * 24, wait_ms=30_000).version == found.version


# Transactions.


def test_a_transaction_is_done_whole(either: Blocking, queue: str) -> None:
    either.push_many(queue, range(4))
    batch = either.pop(queue, 2)
    third, fourth = either.pop(queue, 2)
    with either.transaction() as transaction:
        transaction.ack(batch)
        transaction.ack(third, results=["done"])
        transaction.nack(fourth, error="no", delay_ms=HOUR_MS)
        transaction.push(f"{queue}-out", 1, priority=4)
        transaction.set([queue, "a"], {"b": 1})
        transaction.add([queue, "n"], 3)
        transaction.delete([queue, "gone"])
        transaction.check([queue, "x"], None)
    assert len(transaction.results) == 8
    assert [either.state(each.id) for each in (*batch, third, fourth)] == ["completed"] * 3 + ["delayed"]
    assert either.result(third.id).result == "done"
    assert either.pop(f"{queue}-out")[0].priority == 4
    assert (either.kv.get([queue, "a"]), either.kv.get([queue, "n"])) == ({"b": 1}, 3)


def test_a_transaction_of_which_one_part_is_refused_is_not_done(either: Blocking, queue: str) -> None:
    either.kv.set([queue, "x"], 1)
    transaction = either.transaction()
    transaction.push(queue, 1)
    transaction.set([queue, "a"], 1)
    transaction.check([queue, "x"], None)
    with pytest.raises(Conflict) as raised:
        transaction.commit()
    assert raised.value.details["field"] == "ops[2]"
    assert either.kv.get([queue, "a"]) is None
    with pytest.raises(NotFound):
        either.queue(queue)


def test_a_transaction_whose_block_raises_is_not_sent(client: Blocking, queue: str) -> None:
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        transaction.set([queue], 1 / 0)
    assert client.kv.get([queue]) is None


def test_a_transaction_with_nothing_to_do_is_no_request(client: Blocking, queue: str) -> None:
    with client.transaction() as transaction:
        pass
    with pytest.raises(Invalid):
        transaction.commit()
    with client.transaction() as transaction:
        transaction.set([queue], 1)
        transaction.commit()
    assert client.kv.get([queue]) == 1


def test_a_batch_is_acked_with_a_result_in_a_transaction(client: Blocking, queue: str) -> None:
    pushed = client.push(queue, 1)
    with client.transaction() as transaction:
        transaction.ack(client.pop(queue), results=["done"])
    assert client.result(pushed.id).result == "done"
