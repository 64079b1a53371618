"""Lifecycle events as server-sent events: who hears of what, and goes on exactly where it stopped."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from forebay.broker.node import Node
from forebay.core import event_log as kept
from forebay.core.api.commands import TenantPut
from forebay.core.bounds import Limits
from forebay.core.errors import Damaged, ForebayError
from forebay.core.records.keyspace import body_key
from forebay.core.routing.placement import shard_of_queue
from forebay.core.state import Event
from forebay.core.words import DEFAULT
from forebay.server.events import hub
from forebay.server.http import event_streams
from forebay.server.node_client import NodeClient
from forebay.store.base import StoreError
from tests.broker.loop import ObedientStore, SlowStore
from tests.server.http.streaming import Here, Sse, Stream, ask, get, narrow
from tests.serving import Raw, Server, pop, push


def listen(server: Server | Here, query: str = "", **headers: str) -> Stream:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Stream(server.http, f"/v1/events?{query}", given)


def told(found: list[Sse]) -> list[tuple[str, int]]:
    return [(each.name, each.told.get("count", 0)) for each in found]


def test_a_life_is_told_as_it_happens(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}").ready() as stream:
        first = push(client, queue, 1, 2, 3)
        created, pushed = stream.take(2)
        reply = client.ask({"cmd": "POP", "queue": queue, "count": 3, "wait_ms": 0})
        popped = stream.next()
        client.ask({"cmd": "ACK", "ids": [each["id"] for each in reply["messages"]]})
        settled = stream.next()
    assert (created.name, created.told["kind"]) == ("created", "created")
    assert pushed.told == {
        "kind": "pushed",
        "tenant": "default",
        "queue": queue,
        "at": pushed.told["at"],
        "count": 3,
        "runs": [["default", 0, 3, first]],
    }
    assert (popped.told["kind"], popped.told["group"]) == ("popped", "default")
    assert settled.told["kind"] == "settled"
    assert settled.told["duration_ms"] >= 0
    assert settled.told["runs"] == pushed.told["runs"]


def test_what_is_evicted_is_told_with_its_count(server: Server, client: Raw, queue: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": queue, "options": {"max_wait_ms": 1}})
    with listen(server, f"queue={queue}&kind=evicted").ready() as stream:
        push(client, queue, 1, 2)
        client.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 5})
        assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
        evicted = stream.next()
    assert evicted.told["kind"] == "evicted"
    assert (evicted.told["queue"], evicted.told["count"]) == (queue, 2)


def test_what_expired_is_told(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}&kind=expired").ready() as stream:
        client.ask({"cmd": "PUSH", "queue": queue, "payload": 1, "ttl_ms": 1})
        client.ask({"cmd": "POP", "queue": f"{queue}.none", "wait_ms": 5})
        assert client.ask({"cmd": "POP", "queue": queue, "wait_ms": 0})["messages"] == []
        assert stream.next().told["kind"] == "expired"


def test_an_ack_of_a_batch_is_told(server: Server, client: Raw, queue: str) -> None:
    first = push(client, queue, 1, 2)
    client.ask({"cmd": "POP", "queue": queue, "count": 2, "wait_ms": 0})
    with listen(server, f"queue={queue}&kind=settled").ready() as stream:
        client.ask({"cmd": "ACK", "ids": [first, first + 1]})
        assert stream.next().told["count"] == 2


def test_filters_by_queue_and_kind(server: Server, client: Raw, queue: str) -> None:
    one, two, three = (f"{queue}.{n}" for n in "123")
    with (
        listen(server, f"queue={one}&queue={two}").ready() as queues,
        listen(server, f"queue={one}&kind=dead&kind=popped").ready() as kinds,
        listen(server, f"queue={three}").ready() as last,
    ):
        for each in (one, two, three):
            client.ask({"cmd": "QUEUE", "queue": each, "options": {"max_attempts": 1}})
            push(client, each, 1)
            client.ask({"cmd": "NACK", "ids": [pop(client, each)["id"]], "error": "no"})
        found = queues.take(10)
        assert {each.told["queue"] for each in found} == {one, two}
        assert [each.name for each in kinds.take(2)] == ["popped", "dead"]
        assert {each.told["queue"] for each in last.take(5)} == {three}


@pytest.mark.parametrize(
    "query",
    [
        "kind=nothing",
        "kind=",
        "from=yesterday",
        "colour=red",
        "queue=a&after=x",
        "after=",
        "after=16.0",
        "after=2.1-2.2",
    ],
)
def test_a_bad_question_is_answered_before_the_stream_begins(server: Server, query: str) -> None:
    status, answer = get(server.http, f"/v1/events?{query}")
    assert (status, answer["error"]["code"]) == (400, "invalid")


@pytest.mark.parametrize("last", ["1", "1.2.3", "-", "a.b", "1.-2", "1.2-", "\u00b2.1", "9" * 40 + ".1"])
def test_an_id_that_was_never_given_out_is_refused(server: Server, last: str) -> None:
    status, answer = get(server.http, "/v1/events", {"Last-Event-ID": last})
    assert (status, answer["error"]["code"]) == (400, "invalid")


def test_only_get_is_there(server: Server) -> None:
    for method in ("POST", "HEAD"):
        assert ask(server.http, method, "/v1/events")[0] == 405


# Going on where one stopped.


def busy(client: Raw, queue: str, chance: random.Random, steps: int) -> None:
    """Something happens to a few queues."""
    for _ in range(steps):
        name = f"{queue}.{chance.randrange(5)}"
        if chance.random() < 0.6:
            push(client, name, *range(chance.randint(1, 4)))
        else:
            reply = client.ask({"cmd": "POP", "queue": name, "count": 3, "wait_ms": 0})
            if reply["messages"]:
                client.ask({"cmd": "ACK", "ids": [each["id"] for each in reply["messages"]]})


class Follower:
    """Goes on after the last id it was given, and keeps what it heard up to there."""

    def __init__(self, last: str) -> None:
        self.last = last
        self.heard: list[str] = []

    def follow(self, stream: Stream, batches: int) -> None:
        """Hear up to so many batches of what was missed, then be cut off in the middle of the next."""
        batch: list[str] = []
        while (block := stream.block()) is not None:
            if block.name:
                batch.append(block.data)
            if block.id is not None:
                self.heard += batch
                self.last = block.id
                batch, batches = [], batches - 1
            if block.is_ready or batches < 0:
                return


def everything(server: Server | Here, queue: str) -> list[str]:
    """All events of a test's queues that are kept."""
    follower = Follower("")
    with listen(server, "from=all") as stream:
        follower.follow(stream, 1_000_000)
    return mine(follower, queue)


def mine(follower: Follower, queue: str) -> list[str]:
    return sorted(each for each in follower.heard if f'"queue":"{queue}' in each)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_header", [True, False])
def test_every_event_comes_once_however_often_one_is_cut_off(
    server: Server, client: Raw, queue: str, seed: int, by_header: bool
) -> None:
    chance = random.Random(seed)

    def resumed() -> Stream:
        if by_header:
            return listen(server, Last_Event_ID=follower.last)
        return listen(server, f"after={follower.last}")

    with listen(server).ready() as stream:
        assert stream.last_id is not None
        follower = Follower(stream.last_id)
    for _ in range(40):
        busy(client, queue, chance, chance.randrange(6))
        with resumed() as stream:
            busy(client, queue, chance, chance.randrange(6))
            follower.follow(stream, chance.randrange(5))
            busy(client, queue, chance, chance.randrange(2))
    with resumed() as stream:
        follower.follow(stream, 1_000_000)
    heard = mine(follower, queue)
    assert len(heard) > 100
    assert heard == everything(server, queue)


@pytest.mark.parametrize("seed", range(3))
def test_every_event_comes_once_while_others_come_and_go(
    server: Server, client: Raw, queue: str, seed: int
) -> None:
    chance = random.Random(seed)
    with listen(server).ready() as stream:
        assert stream.last_id is not None
        follower = Follower(stream.last_id)
    for at in range(20):
        with listen(server, f"after={follower.last}").ready() as stream:
            last = stream.last_id
            busy(client, queue, chance, chance.randrange(8))
            push(client, f"{queue}.{at}.end", 1)
            heard: list[Sse] = []
            while not (heard and heard[-1].id and any(is_end(each, f"{queue}.{at}.end") for each in heard)):
                heard.append(stream.next())
            follower.heard += [each.data for each in heard]
            assert heard[-1].id is not None
            assert last is None or last != heard[-1].id
            follower.last = heard[-1].id
    assert mine(follower, queue) == everything(server, queue)


def is_end(told: Sse, queue: str) -> bool:
    return told.name == "pushed" and told.told["queue"] == queue


def test_from_all_begins_with_the_first_event_that_is_kept(server: Server, client: Raw, queue: str) -> None:
    push(client, queue, 1)
    pop(client, queue)
    with listen(server, f"from=all&queue={queue}") as stream:
        assert told(stream.take(3)) == [("created", 0), ("pushed", 1), ("popped", 1)]
        push(client, queue, 2)
        assert told([stream.next()]) == [("pushed", 1)]


def test_last_event_id_goes_before_what_the_address_says(server: Server, client: Raw, queue: str) -> None:
    with listen(server).ready() as stream:
        early = stream.last_id
    push(client, queue, 1)
    with listen(server).ready() as stream:
        late = stream.last_id
        assert late is not None
    push(client, queue, 2, 3)
    with listen(server, f"queue={queue}&after={early}&from=all", Last_Event_ID=late) as stream:
        assert told([stream.next()]) == [("pushed", 2)]


def test_events_go_on_over_restarts_and_kills(tmp_path: Path) -> None:
    chance = random.Random(5)
    follower = Follower("0.0")
    for life in range(3):
        with Server("--data", str(tmp_path / "data")) as server, server.connect() as client:
            busy(client, "q", chance, 10)
            with listen(server, f"after={follower.last}") as stream:
                busy(client, "q", chance, 10)
                follower.follow(stream, chance.randrange(6))
            busy(client, "q", chance, 5)
            if life < 2:
                server.kill()
    with Server("--data", str(tmp_path / "data")) as server, server.connect() as client:
        with listen(server, f"after={follower.last}") as stream:
            follower.follow(stream, 1_000_000)
        assert mine(follower, "q") == everything(server, "q")
        pushed = [Event(**each) for each in map(plain, follower.heard) if each["kind"] == "pushed"]
        assert len(pushed) > 20
        for name in sorted({each.queue for each in pushed}):
            counted = sum(each.count for each in pushed if each.queue == name)
            (kept_here,) = client.ask({"cmd": "OFFSETS", "queue": name})["partitions"]
            assert counted == kept_here["end"]


def plain(data: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def test_an_id_of_a_stream_that_only_began_is_one_to_go_on_from() -> None:
    store = ObedientStore()
    with Here(store) as here, here.connect() as client:
        push(client, "q", 1)
        with listen(here).ready() as stream:
            last = stream.last_id
    with Here(store) as here, here.connect() as client:
        push(client, "q", 2, 3)
        with listen(here, f"after={last}") as stream:
            assert told([stream.next()]) == [("pushed", 2)]


def test_what_retention_dropped_is_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "SEAL_COUNT", 10)
    with Here(limits=Limits(events_bytes_max=4_000)) as here, here.connect() as client:
        with listen(here, "queue=q").ready() as stream:
            push(client, "q", 0)
            stream.take(2)
            last = stream.last_id
            assert last is not None
        for at in range(200):
            push(client, "q", at)
        shard, _, offset = last.partition(".")
        with listen(here, f"queue=q&after={last}") as stream:
            lost, *others = [stream.next(), stream.next()]
            assert (lost.name, lost.told["kind"]) == ("lost", "lost")
            assert (lost.told["shard"], lost.told["from"]) == (int(shard), int(offset))
            assert lost.told["to"] > int(offset)
            assert lost.id == f"{shard}.{lost.told['to']}"
            following = 202 - lost.told["to"]
            others += stream.take(following - 1)
            assert told(others) == [("pushed", 1)] * following
            push(client, "q", 1, 2)
            assert told([stream.next()]) == [("pushed", 2)]
        with listen(here, "queue=q&from=all") as stream:
            assert told(stream.take(following + 1)) == [*told(others), ("pushed", 2)]


# What is told, and when.


def test_what_a_failed_commit_held_is_not_told() -> None:
    store = ObedientStore()
    with Here(store) as here, here.connect() as client:
        push(client, "q", 1)
        with listen(here, "queue=q").ready() as stream:
            store.commit_error = StoreError("no")
            assert client.ask({"cmd": "PUSH", "queue": "q", "payload": 2})["error"]["code"] == "busy"
            push(client, "q", 3, 4, 5)
            assert told([stream.next()]) == [("pushed", 3)]
            last = stream.last_id
        push(client, "q", 6)
        with listen(here, f"queue=q&after={last}") as stream:
            assert told([stream.next()]) == [("pushed", 1)]
        with listen(here, "queue=q&from=all") as stream:
            assert told(stream.take(4)) == [("created", 0), ("pushed", 1), ("pushed", 3), ("pushed", 1)]


def test_one_batch_is_one_event_with_its_range(server: Server, client: Raw, queue: str) -> None:
    with listen(server, f"queue={queue}&kind=pushed").ready() as stream:
        first = push(client, queue, *range(10_000))
        push(client, queue, 1)
        one, two = stream.take(2)
    assert (one.told["count"], one.told["runs"]) == (10_000, [["default", 0, 10_000, first]])
    assert two.told["runs"] == [["default", 10_000, 1, first + 10_000]]


def test_without_a_log_events_are_told_all_the_same(queue: str) -> None:
    with Here(limits=Limits(events_bytes_max=0)) as server, server.connect() as client:
        with listen(server, f"queue={queue}").ready() as stream:
            push(client, queue, 1, 2)
            assert told(stream.take(2)) == [("created", 0), ("pushed", 2)]
            last = stream.last_id
        with listen(server, f"queue={queue}&after={last}").ready() as stream:
            push(client, queue, 3)
            assert told([stream.next()]) == [("pushed", 1)]
        with listen(server, f"queue={queue}&from=all").ready() as stream:
            pop(client, queue)
            assert told([stream.next()]) == [("popped", 1)]


def test_a_silent_stream_has_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "PING_S", 0.01)
    with Here() as here, here.connect() as client, listen(here, "queue=q").ready() as stream:
        for _ in range(3):
            assert stream.block() == Sse("ping", "", "0.0")
        push(client, "q", 1)
        assert told(stream.take(2)) == [("created", 0), ("pushed", 1)]
        assert stream.block() == Sse("ping", "", stream.last_id)


def test_a_silent_listener_goes_on_from_where_all_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "PING_S", 0.01)
    with Here() as here, here.connect() as client:
        push(client, "busy", 1)
        with listen(here, "queue=quiet").ready() as stream:
            before = stream.last_id
            push(client, "busy", 2, 3)
            while stream.last_id == before:
                assert stream.block() is not None
            last = stream.last_id
        push(client, "busy", 4)
        with listen(here, f"after={last}") as stream:
            assert told([stream.next()]) == [("pushed", 1)]


def test_who_caught_up_has_the_id_of_that(server: Server, client: Raw, queue: str) -> None:
    push(client, queue, 1)
    with listen(server, "from=all&queue=none").ready() as stream:
        last = stream.last_id
    push(client, queue, 2, 3)
    with listen(server, f"queue={queue}&after={last}") as stream:
        assert told([stream.next()]) == [("pushed", 2)]


def test_an_id_of_a_log_that_began_anew_is_told_as_lost_and_nothing_of_the_new_one_is() -> None:
    with Here() as here, here.connect() as client:
        push(client, "q", 1)
        with listen(here).ready() as stream:
            assert stream.last_id is not None
            shard, _, offset = stream.last_id.partition(".")
        ahead = f"{shard}.{int(offset) + 5}"
        with listen(here, f"after={ahead}") as stream:
            lost = stream.next()
            assert (lost.name, lost.told["shard"], lost.told["to"]) == ("lost", int(shard), 0)
            assert told(stream.take(2)) == [("created", 0), ("pushed", 1)]


def test_what_is_damaged_is_told_as_lost_and_what_is_behind_it_is_told() -> None:
    store = ObedientStore()
    with Here(store) as here, here.connect() as client:
        push(client, "q", 1)
    with Here(store) as here, here.connect() as client:  # what was open has become a segment
        push(client, "q", 2, 3)
        found = here.call(lambda: [shard.events.log for shard in here.node.engine.shards.values()])
        (log,) = (each for each in found if each is not None)
        segment = log.partition.log.segments[0]
    store.damage[body_key(log.queue.prefix, segment.body_name)] = Damaged("Corruption")
    with Here(store) as here:
        for query in ("from=all", f"after={log.queue.shard}.0"):
            with listen(here, query) as stream:
                lost = stream.next()
                assert (lost.name, lost.told["from"], lost.told["to"]) == ("lost", 0, segment.end)
                assert told([stream.next()]) == [("pushed", 2)]


def test_events_of_a_tenant_in_several_shards_are_one_stream_to_go_on_with() -> None:
    store = ObedientStore()

    async def spread(node: Node) -> None:
        assert not isinstance(await NodeClient(node).ask(TenantPut(DEFAULT, spread=True)), ForebayError)

    def pushes(stream: Stream, most: int) -> list[tuple[str, int]]:
        """Queues and counts of the pushes among the next events."""
        events = [each.told for each in stream.take(most)]
        return [(each["queue"], each["count"]) for each in events if each["kind"] == "pushed"]

    with Here(store) as here, here.connect() as client:
        here._run(spread(here.node))
        shards = here.node.engine.count
        names = {shard_of_queue(DEFAULT, name, shards): name for name in map("q{}".format, range(20))}
        one, two, *_ = names.values()
        with listen(here).ready() as stream:
            push(client, one, 1)
            push(client, two, 1, 2)
            assert sorted(pushes(stream, 4)) == sorted([(one, 1), (two, 2)])
            last = stream.last_id
        assert last is not None
        assert len(hub.parse_positions(last, 16)) == 2
        push(client, one, 1, 2, 3)
        push(client, two, 1, 2, 3, 4)
    with Here(store) as here, here.connect() as client:
        with listen(here, f"after={last}") as stream:
            assert sorted(pushes(stream, 2)) == sorted([(one, 3), (two, 4)])
            stream.ready()
            push(client, two, *range(5))
            assert pushes(stream, 1) == [(two, 5)]
        with listen(here, "from=all") as stream:
            assert sorted(pushes(stream, 7)) == sorted([(one, 1), (two, 2), (one, 3), (two, 4), (two, 5)])


def test_events_reach_those_who_want_them_by_queue_by_kind_or_all(
    server: Server, client: Raw, queue: str
) -> None:
    filters = [f"queue={queue}.a", f"queue={queue}.b", f"queue={queue}.a&queue={queue}.b", "kind=pushed", ""]
    with ExitStack() as stack:
        streams = [stack.enter_context(listen(server, each).ready()) for each in filters]
        push(client, f"{queue}.a", 1)
        push(client, f"{queue}.b", 1, 2)
        push(client, f"{queue}.end", 1)
        heard = [
            [each.told["count"] for each in stream.take(2 * count) if each.name == "pushed"]
            for stream, count in zip(streams[:3], (1, 1, 2), strict=True)
        ]
        assert heard == [[1], [2], [1, 2]]
        for stream in streams[3:]:
            counts: list[Sse] = []
            while not counts or not is_end(counts[-1], f"{queue}.end"):
                counts.append(stream.next())
            mine = [each.told["count"] for each in counts if each.name == "pushed"]
            assert mine[-3:] == [1, 2, 1]


def test_those_who_want_the_same_share_what_is_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    as_stream = hub.Batch.as_stream

    def counted(batch: hub.Batch) -> bytes:
        made.append(as_stream(batch))
        return made[-1]

    monkeypatch.setattr(hub.Batch, "as_stream", counted)
    with Here() as here, here.connect() as client:
        streams = [listen(here, "queue=q&kind=pushed").ready() for _ in range(20)]
        push(client, "q", 1, 2)
        assert len({stream.next().data for stream in streams}) == 1
        assert len(made) == 1
        for stream in streams:
            stream.close()


# Polls.


def polled(server: Server | Here, **query: str) -> dict[str, Any]:
    status, answer = get(server.http, f"/v1/events/poll?{urlencode(query)}")
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def test_a_poll_goes_on_from_where_the_last_one_was(server: Server, client: Raw, queue: str) -> None:
    begin = polled(server, queues=queue)
    assert begin["events"] == []
    push(client, queue, 1, 2)
    found = polled(server, queues=queue, after=begin["after"])
    assert [(each["kind"], each.get("count", 0)) for each in found["events"]] == [
        ("created", 0),
        ("pushed", 2),
    ]
    assert polled(server, queues=queue, after=found["after"])["events"] == []
    pop(client, queue)
    kinds = [each["kind"] for each in polled(server, queues=queue, after=found["after"])["events"]]
    assert kinds == ["popped"]
    assert polled(server, queues=queue, kinds="dead", after=begin["after"])["events"] == []


def test_a_poll_waits_for_an_event(server: Server, client: Raw, queue: str) -> None:
    after = polled(server)["after"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(polled, server, queues=queue, after=after, wait_ms="30000")
        push(client, queue, 1)
        assert {each["queue"] for each in waiting.result()["events"]} == {queue}


@pytest.mark.parametrize("query", ["kinds=nothing", "wait_ms=-1", "after=x", "queue=q", "kind=dead"])
def test_a_bad_poll_is_refused(server: Server, query: str) -> None:
    status, answer = get(server.http, f"/v1/events/poll?{query}")
    assert (status, answer["error"]["code"]) == (400, "invalid")


def test_one_who_leaves_while_a_poll_waits_is_forgotten() -> None:
    with Here() as here:
        after = polled(here)["after"]
        leaving = narrow(here.http, 4_096)
        path = f"/v1/events/poll?after={after}&wait_ms=60000"
        leaving.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        while not here.call(lambda: here.server.hub.count):
            pass
        leaving.close()
        while here.call(lambda: here.server.hub.count):
            pass


def test_a_poll_that_waits_is_answered_when_the_server_stops() -> None:
    with Server("--store", "memory:") as server, ThreadPoolExecutor() as pool:
        after = polled(server)["after"]
        waiting = pool.submit(polled, server, after=after, wait_ms="60000")
        while not streams(server):
            pass
        server.terminate()
        assert waiting.result()["events"] == []
        assert server.wait() == 0


# Those who do not read, and those who leave.


def noisy(client: Raw, queue: str) -> None:
    """Half a megabyte of events: an ack here and there, so that each has a thousand runs."""
    first = push(client, queue, *[0] * 20_000)
    client.ask({"cmd": "POP", "queue": queue, "count": 20_000, "wait_ms": 0})
    client.ask({"cmd": "ACK", "ids": list(range(first, first + 20_000, 2))})
    client.ask({"cmd": "ACK", "ids": list(range(first + 1, first + 20_000, 2))})


def heard_all(stream: Stream, count: int) -> None:
    """Hear of so many messages that are settled."""
    while count:
        each = stream.next()
        count -= each.told["count"] if each.name == "settled" else 0


def streams(server: Server | Here) -> int:
    """How many streams there are."""
    (line,) = (
        line for line in get(server.http, "/metrics")[1].splitlines() if line.startswith("forebay_streams ")
    )
    return int(float(line.split()[1]))


def test_a_listener_that_does_not_read_is_dropped_and_nobody_else_is(queue: str) -> None:
    with Server("--store", "memory:") as server, server.connect() as client:
        path = f"/v1/events?queue={queue}"
        with (
            Stream(server.http, path, window=4_096).ready() as lazy,
            Stream(server.http, path).ready() as good,
        ):
            before = server.rss_bytes()
            for _ in range(20):
                noisy(client, queue)
                heard_all(good, 20_000)
                if streams(server) == 1:
                    break
            else:
                raise AssertionError("the listener was not dropped")
            assert server.rss_bytes() < before + (100 << 20)
            assert lazy.is_over()
            push(client, queue, 1)
            good.until("pushed")


def test_a_large_batch_alone_drops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "WAITING_BYTES_MAX", 1_000)
    with Here() as here, here.connect() as client, listen(here, "queue=q").ready() as stream:
        first = push(client, "q", *range(1_000))
        client.ask({"cmd": "POP", "queue": "q", "count": 1_000, "wait_ms": 0})
        client.ask({"cmd": "ACK", "ids": list(range(first, first + 1_000, 2))})
        settled = stream.until("settled")[-1]
        assert len(settled.data) > 10_000


def test_a_server_that_stops_ends_its_streams() -> None:
    with Server() as server, server.connect() as client:
        streams = [listen(server).ready() for _ in range(3)]
        push(client, "q", 1)
        server.terminate()
        for stream in streams:
            for _ in stream:
                pass
            assert stream.response.isclosed()
            stream.close()
        assert server.wait() == 0


def test_a_listener_that_leaves_is_forgotten() -> None:
    with Here() as here, here.connect() as client:
        for _ in range(20):
            with listen(here).ready():
                pass
        push(client, "q", 1)
        with listen(here, "from=all") as stream:
            stream.until("pushed")
            while here.server.hub.count > 1:
                push(client, "q", 1)
                stream.next()
        while here.server.hub.count:
            push(client, "q", 1)
        shards = here.node.engine.shards
        assert not here.call(lambda: any(shard.events.listening for shard in shards.values()))


def settle_in(store: SlowStore) -> Here:
    """A server whose commits wait to be let go, from when it has started."""
    store.open_gate()
    return Here(store)


def test_an_event_that_is_on_its_way_when_one_leaves_and_another_comes_is_heard_once() -> None:
    store = SlowStore()
    with settle_in(store) as here, here.connect() as client:
        push(client, "q", 1)
        with listen(here, "queue=q").ready() as stream:
            last = stream.last_id
            store.shut()
            client.send({"cmd": "PUSH", "queue": "q", "payload": 2})
            while not here.call(lambda: here.node._committer.busy):
                pass
        while here.call(lambda: here.server.hub.count):
            pass
        with ThreadPoolExecutor() as pool:
            opening = pool.submit(listen, here, f"queue=q&after={last}")
            while not here.call(lambda: here.server.hub.count):
                pass
            store.open_gate()
            with opening.result() as stream:
                assert told([stream.next()]) == [("pushed", 1)]
                push(client_of(client), "q", 3, 4, 5)
                assert told([stream.next()]) == [("pushed", 3)]


def client_of(client: Raw) -> Raw:
    """The connection, once the answer that was under way has come."""
    assert client.receive()["ok"]
    return client


def opened_amid_a_commit_that_fails(store: SlowStore, here: Here, client: Raw, query: str) -> Stream:
    """A stream that somebody opens while a push is being kept, which then is not."""
    push(client, "q", 1)
    store.shut()
    client.send({"cmd": "PUSH", "queue": "q", "payload": 2})
    while not here.call(lambda: here.node._committer.busy):
        pass
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(listen, here, query)
        while not here.call(lambda: here.server.hub.count):
            pass
        store.commit_error = StoreError("no")
        store.open_gate()
        return opening.result()


def test_nobody_is_given_an_id_that_is_ahead_of_what_is_kept() -> None:
    store = SlowStore()
    with settle_in(store) as here, here.connect() as client:
        with opened_amid_a_commit_that_fails(store, here, client, "queue=q") as stream:
            assert stream.status == 503
        assert client.receive()["error"]["code"] == "busy"
        with listen(here, "queue=q").ready() as stream:
            push(client, "q", 3, 4)
            assert told([stream.next()]) == [("pushed", 2)]


def test_one_who_goes_on_while_the_store_fails_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore()
    with settle_in(store) as here, here.connect() as client:
        with opened_amid_a_commit_that_fails(store, here, client, "queue=q&from=all") as stream:
            error = stream.next()
            assert (error.name, error.told["error"]["code"]) == ("error", "busy")
            assert stream.is_over()
        assert client.receive()["error"]["code"] == "busy"
        with listen(here, "queue=q&from=all") as stream:
            assert told(stream.take(2)) == [("created", 0), ("pushed", 1)]
    assert "bug" not in caplog.text


def test_events_of_a_queue_in_memory_are_told_though_nothing_is_kept() -> None:
    with Here(limits=Limits(events_bytes_max=0)) as here, here.connect() as client:
        client.ask({"cmd": "QUEUE", "queue": "q", "options": {"durability": "memory"}})
        with listen(here, "queue=q").ready() as stream:
            push(client, "q", 1)
            assert told([stream.next()]) == [("pushed", 1)]
