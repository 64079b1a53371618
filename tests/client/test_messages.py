"""Messages: batches, leases, results, looking and changing."""

from collections.abc import Iterator
from typing import Any

import pytest

from forebay.client.sync.client import SyncClient
from forebay.client.types import Batch, New, PushedMany
from forebay.core.errors import Busy, Conflict, ForebayError, Invalid, NotFound
from forebay.store.rocksdb.offline import restore
from tests.client.blocking import Blocking
from tests.client.conftest import Dial
from tests.client.proxy import Proxy
from tests.serving import Server

HOUR_MS = 3_600_000


# Push.


def test_many_are_pushed_in_batches_in_order(dial: Dial, proxy: Proxy, queue: str) -> None:
    client = dial(proxy.address)
    pushed = client.push_many(queue, (at for at in range(25)), batch=10)
    assert (len(proxy.requests), pushed.count) == (3, 25)
    assert [(each.id, each.payload) for each in client.records(queue)] == [
        (id, at) for at, id in enumerate(pushed.ids)
    ]


def test_many_large_ones_are_pushed_in_batches_that_the_server_takes(client: Blocking, queue: str) -> None:
    assert client.push_many(queue, ["x" * 1_000_000] * 20).count == 20


def test_many_with_large_headers_are_pushed_in_batches_that_the_server_takes(
    client: Blocking, queue: str
) -> None:
    headers = {"large": "x" * 8_000}
    assert client.push_many(queue, [New(at, {"headers": headers}) for at in range(9_000)]).count == 9_000


def test_nothing_is_pushed_with_no_payloads(client: Blocking, queue: str) -> None:
    assert client.push_many(queue, []) == PushedMany([], "", [])


def test_each_of_many_may_have_options_of_its_own_beside_those_of_all(client: Blocking, queue: str) -> None:
    news = ["plain", New("high", {"priority": 9}), New("late", {"delay_ms": HOUR_MS})]
    pushed = client.push_many(queue, news, priority=1, headers={"a": "b"})
    first, second = client.pop(queue, 9)
    assert [(each.payload, each.priority, each.headers) for each in (first, second)] == [
        ("high", 9, {"a": "b"}),
        ("plain", 1, {"a": "b"}),
    ]
    assert client.state(pushed.ids[2]) == "delayed"


def test_an_error_among_many_has_what_was_pushed_before_it(client: Blocking, queue: str) -> None:
    payloads = [*range(20), "x" * (1 << 20), *range(20)]
    with pytest.raises(Invalid) as raised:
        client.push_many(queue, payloads, batch=10)
    pushed = raised.value.pushed  # type: ignore[attr-defined]
    assert pushed.ids == [each.id for each in client.records(queue)]
    assert pushed.count == 20


def test_a_payload_that_can_not_be_sent_among_many_has_what_was_pushed_before_it(
    client: Blocking, queue: str
) -> None:
    with pytest.raises(Invalid) as raised:
        client.push_many(queue, [*range(10), object()], batch=10)
    assert raised.value.pushed.count == 10  # type: ignore[attr-defined]


def test_many_with_a_key_are_pushed_once(client: Blocking, queue: str) -> None:
    first = client.push_many(queue, range(25), batch=10, idempotency_key="k")
    again = client.push_many(queue, range(25), batch=10, idempotency_key="k")
    assert (first.duplicates, again.ids, again.duplicates) == ([], first.ids, list(range(25)))
    one = client.push(queue, 1, idempotency_key="one")
    two = client.push(queue, 1, idempotency_key="one")
    assert (one.id, one.duplicate, two.duplicate) == (two.id, False, True)


# Pop and settle.


def test_a_batch_is_a_list_of_messages_under_one_lease(either: Blocking, queue: str) -> None:
    ids = either.push_many(queue, ["a", "b", "c"], tags=["t"]).ids
    batch = either.pop(queue, 9, lease_ms=HOUR_MS)
    assert isinstance(batch, Batch)
    assert (len(batch), batch.payloads, [each.id for each in batch]) == (3, ["a", "b", "c"], ids)
    assert batch[0].tags == ("t",)
    assert {each.lease for each in batch} == {batch.lease}
    assert (batch[-1], batch[:2]) == (batch.messages[2], batch.messages[:2])
    assert either.ack(batch[0]).count == 1
    assert either.ack(batch[1:]).count == 2
    empty = either.pop(queue, 9)
    assert (bool(empty), empty.lease, empty.payloads) == (False, None, [])


def test_an_empty_batch_can_not_be_settled(client: Blocking, queue: str) -> None:
    client.configure(queue)
    for settle in (client.ack, client.nack, client.extend):
        with pytest.raises(Invalid):
            settle(client.pop(queue))
        with pytest.raises(Invalid):
            settle([])


def test_messages_of_several_pops_are_settled_together(client: Blocking, queue: str) -> None:
    client.push_many(queue, range(4))
    found = [each for _ in range(4) for each in client.pop(queue)]
    assert client.extend(found, lease_ms=HOUR_MS).expires_at > found[0].expires_at
    assert client.ack(found).count == 4


def test_what_is_not_leased_any_more_is_told(client: Blocking, queue: str) -> None:
    ids = client.push_many(queue, range(2)).ids
    batch = client.pop(queue, 2)
    client.ack(ids[0])
    assert (client.ack(ids).count, client.state(ids[1])) == (1, "completed")
    with pytest.raises(Conflict):
        client.ack(batch)
    with pytest.raises(Conflict):
        client.ack(ids)


def test_a_batch_can_be_given_back_as_if_it_had_never_been_delivered(client: Blocking, queue: str) -> None:
    client.push_many(queue, range(3))
    batch = client.pop(queue, 3)
    assert client.release([each.id for each in batch]).count == 3
    assert client.release(client.pop(queue, 3)).count == 3
    assert client.release(client.pop(queue, 3).messages).count == 3
    again = client.pop(queue, 3)
    assert (again.payloads, {each.failures for each in again}) == ([0, 1, 2], {0})


def test_messages_can_be_changed_by_themselves_or_by_their_ids(client: Blocking, queue: str) -> None:
    client.push_many(queue, range(3))
    first, second, third = client.pop(queue, 3)
    assert client.delay(first.id, HOUR_MS).count == 1
    assert client.delay([second], HOUR_MS).count == 1
    assert client.cancel(third).count == 1
    assert client.promote([first.id, second.id]).count == 2


def test_an_id_means_the_same_whichever_connection_it_was_popped_on(client: Blocking, queue: str) -> None:
    """A pop that waits has a connection of its own."""
    acked = []
    for wait_ms in (0, 1_000):
        client.push(queue, 1)
        (message,) = client.pop(queue, group="audit", wait_ms=wait_ms)
        client.pop(queue, wait_ms=wait_ms)
        client.ack(message.id)
        acked.append((client.state(message.id, group="audit"), client.state(message.id)))
    assert acked[0] == acked[1]


def test_a_block_acks_what_it_leased(either: Blocking, queue: str) -> None:
    ids = either.push_many(queue, range(3)).ids
    with either.leased(queue, 3) as batch:
        assert batch.payloads == [0, 1, 2]
    assert [either.state(each) for each in ids] == ["completed"] * 3
    with either.leased(queue) as batch:
        assert not batch


def test_a_block_that_raises_nacks_what_it_leased(either: Blocking, queue: str) -> None:
    either.configure(queue, max_attempts=1)
    either.push(queue, 1)
    with pytest.raises(ZeroDivisionError), either.leased(queue) as batch:
        _ = batch.payloads[0] / 0
    (dead,) = either.dead(queue).messages
    assert "ZeroDivisionError" in dead.error


def test_what_a_block_settled_itself_is_left_alone(client: Blocking, queue: str) -> None:
    ids = client.push_many(queue, range(2)).ids
    with client.leased(queue, 2) as batch:
        client.ack(batch[0])
        client.nack(batch[1], delay_ms=HOUR_MS)
    assert [client.state(each) for each in ids] == ["completed", "delayed"]


def test_results_can_be_waited_for(either: Blocking, queue: str) -> None:
    ids = either.push_many(queue, range(3)).ids
    assert not either.result(ids[0]).done
    either.ack(either.pop(queue, 2).messages, results=[{"a": 1}, None])
    first, second = either.result(ids[0], wait_ms=1_000), either.result(ids[1])
    assert (first.id, first.done, first.state, first.result) == (ids[0], True, "completed", {"a": 1})
    assert (second.done, second.result) == (True, None)
    with pytest.raises(NotFound):
        either.result(1 << 50)


def test_a_batch_has_a_result_for_each_of_its_messages(client: Blocking, queue: str) -> None:
    ids = client.push_many(queue, range(2)).ids
    client.ack(client.pop(queue, 2), results=["a", "b"])
    assert [client.result(each).result for each in ids] == ["a", "b"]


def test_messages_of_several_leases_have_a_result_each(client: Blocking, queue: str) -> None:
    ids = client.push_many(queue, range(2)).ids
    found = [*client.pop(queue), *client.pop(queue)]
    client.ack(found, results=["a", "b"])
    assert [client.result(each).result for each in ids] == ["a", "b"]


def test_progress_and_lines_are_kept(either: Blocking, queue: str) -> None:
    pushed = either.push(queue, 1)
    (message,) = either.pop(queue)
    assert either.progress(pushed.id).progress == 0
    either.set_progress(pushed.id, 40, "so far", lease=message.lease)
    either.log(pushed.id, "one")
    either.log(pushed.id, "two", level="warning")
    assert (either.progress(pushed.id).progress, either.progress(pushed.id).message) == (40, "so far")
    assert [(each.level, each.message) for each in either.logs(pushed.id)] == [
        ("info", "one"),
        ("warning", "two"),
    ]


# Look.


def test_all_of_a_queue_can_be_looked_at_page_by_page(either: Blocking, queue: str) -> None:
    ids = either.push_many(queue, range(1_500)).ids
    either.pop(queue, 200)
    found = list(either.browse(queue))
    assert [each.id for each in found] == ids
    assert [each.payload for each in found] == list(range(1_500))
    assert [each.id for each in either.browse(queue, state="active")] == ids[:200]
    page = either.page(queue, limit=1_000)
    assert (len(page.messages), page.total) == (1_000, 1_500)
    rest = either.page(queue, limit=1_000, cursor=page.cursor)
    assert [each.id for each in rest.messages] == ids[1_000:]


def test_the_log_is_read_to_its_end(either: Blocking, queue: str) -> None:
    ids = either.push_many(queue, range(2_500)).ids
    found = list(either.records(queue))
    assert [(each.id, each.offset, each.payload) for each in found] == [
        (id, at, at) for at, id in enumerate(ids)
    ]
    assert [each.payload for each in either.records(queue, offset=2_498)] == [2_498, 2_499]
    stretch = either.read(queue, offset=10, max_count=5)
    assert (len(stretch.records), stretch.next, stretch.end) == (5, 15, 2_500)
    assert [each.offset for each in stretch] == list(range(10, 15))
    assert len(stretch) == 5


def test_the_log_of_a_queue_without_messages_is_empty(client: Blocking, queue: str) -> None:
    client.configure(queue)
    assert list(client.records(queue)) == []


def test_dead_letters_can_be_seen_requeued_and_purged(either: Blocking, queue: str) -> None:
    either.configure(queue, max_attempts=1)
    ids = either.push_many(queue, range(5)).ids
    either.nack(either.pop(queue, 5), error="no")
    dead = either.dead(queue, limit=2, skip=1)
    assert [(each.id, each.error, each.state) for each in dead.messages] == [
        (id, "no", "dead") for id in ids[1:3]
    ]
    assert dead.total == 5
    assert either.requeue_dead(queue, dry_run=True).count == 5
    assert either.requeue_dead(queue, [ids[0]]).count == 1
    assert either.purge_dead(queue, dry_run=True).count == 4
    assert either.dead(queue).total == 4
    assert either.purge_dead(queue).count == 4
    assert either.pop(queue, 9).payloads == [0]
    with pytest.raises(NotFound):
        either.requeue_dead(queue, [ids[1]])


def test_a_message_can_be_changed(either: Blocking, queue: str) -> None:
    one, two, three, four = either.push_many(queue, range(4), delay_ms=HOUR_MS).ids
    either.update(one, "new")
    either.promote(one)
    either.prioritise(two, 9)
    either.promote([two])
    either.cancel(three)
    either.discard(four)
    assert either.pop(queue, 9).payloads == [1, "new"]
    assert [either.state(each) for each in (three, four)] == ["cancelled", "dead"]
    seen = either.message(four)
    assert (seen.payload, seen.state, seen.queue) == (3, "dead", queue)


# Ids that are too large for JSON.


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that gives out ids from 2**53 on: a restore passes over many."""
    home = tmp_path_factory.mktemp("large")
    with Server("--shards", "256") as first, SyncClient(first.tcp) as client:
        client.backup(str(home / "backup"))
    restore(home / "backup", home / "data", 1.0, lambda *_: None)
    with Server("--data", str(home / "data"), "--shards", "256") as running:
        yield running


@pytest.mark.parametrize("web", [False, True])
def test_ids_from_2_53_on_are_numbers(web: bool, dial: Dial, large: Server, queue: str) -> None:
    client = dial(f"http://{large.http}" if web else large.tcp)
    one = client.push(queue, 1).id
    assert one >= 1 << 53
    many = client.push_many(queue, [2, 3]).ids
    news = client.push_many(queue, [New(4, {"priority": -1})]).ids
    ids = [one, *many, *news]
    assert ids == list(range(one, one + 4))
    assert [each.id for each in client.records(queue)] == ids
    assert [each.id for each in client.browse(queue)] == ids
    assert client.message(one).id == one
    batch = client.pop(queue, 9)
    assert [each.id for each in batch] == ids
    assert client.ack([one, one + 9]).refused == [one + 9]
    assert client.result(one).id == one
    client.ack(batch[1])
    parent = client.push(queue, "p", depends_on=[ids[3]]).id
    assert client.message(parent).depends_on == [ids[3]]
    client.discard(ids[2])
    assert [each.id for each in client.dead(queue).messages] == [ids[2]]
    assert client.update(client.push(queue, 5).id, 6).id > one


def test_what_is_asked_by_hand_is_what_the_wire_says(client: Blocking, queue: str) -> None:
    assert client.ask("PUSH", queue=queue, payload=1)["ok"]
    assert client.ask("POP", queue=queue, count=1, wait_ms=0, from_="all")["messages"][0]["payload"] == 1
    with pytest.raises(ForebayError):
        client.ask("PUSH", queue=queue)


def test_a_move_that_ends_in_an_error_says_how_many_were_moved(
    dial: Dial, server: Server, queue: str
) -> None:
    client = dial(server.tcp, retry_s=0)
    to = f"{queue}-small"
    client.configure(to, max_size=2, ordering="partition")
    client.configure(queue, max_attempts=1)
    for priority in (5, 0, 0, 0):  # a strict queue takes no priorities: so they are moved one by one
        client.push(queue, 1, priority=priority)
        client.nack(client.pop(queue))
    with pytest.raises(Busy) as refused:
        client.move_dead(queue, to)
    assert refused.value.__notes__ == ["2 were done before that; the others are as they were"]
    assert client.dead(queue).total == 2


@pytest.mark.parametrize("of", [{"error": ""}, {"task": None}, {"error": None, "task": None}, {"text": ""}])
def test_a_filter_without_a_value_never_means_all_dead_letters(
    either: Blocking, queue: str, of: dict[str, Any]
) -> None:
    either.push(queue, 1, max_attempts=1)
    either.nack(either.pop(queue))
    for act in (either.purge_dead, either.requeue_dead):
        with pytest.raises(Invalid):
            act(queue, **of)
    with pytest.raises(Invalid):
        either.move_dead(queue, f"{queue}-to", create=True, **of)
    assert either.dead(queue).total == 1
