"""What an application pushes in its own SQL transaction is there when that commits, once, and never else."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.core.errors import Invalid
from forebay.server.sql_inbox import message_of
from forebay.store.base import Arrival
from forebay.store.postgres.session import Blocking, Refused, Session
from forebay.store.postgres.sql import migrations
from forebay.wire.operations.push import Item
from tests.crash.process import Process
from tests.postgres import ask_sql, cluster, run_sql
from tests.serving import PATIENCE_S, Raw, Server, pop, pop_all


@pytest.fixture(scope="module")
def url() -> str:
    return cluster().database()


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    with Server("--store", url) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Raw]:
    with server.connect() as made:
        yield made


def take(client: Raw, queue: str, count: int) -> list[Any]:
    """The payloads of so many messages, as soon as they are there."""
    reply = client.ask({"cmd": "POP", "queue": queue, "count": count, "min_count": count, "wait_ms": 20_000})
    return [each["payload"] for each in reply["messages"]]


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline


def in_sessions(url: str, work: Callable[[Session, Session], Coroutine[Any, Any, None]]) -> None:
    """Have two applications at work, each with a connection of its own."""
    blocking = Blocking()
    one, other = Session(url), Session(url)
    try:
        blocking.run(work(one, other))
    finally:
        blocking.run(one.close())
        blocking.run(other.close())
        blocking.close()


def test_nothing_is_seen_before_the_transaction_commits_and_nothing_of_one_that_does_not(
    client: Raw, url: str
) -> None:
    async def work(one: Session, other: Session) -> None:
        await one.execute("begin; select forebay.push('seen', '1'); rollback")
        async with one.transaction():
            await one.execute("create table mine (id integer)")
            await one.execute("insert into mine values (7)")
            await one.execute("select forebay.push('seen', to_jsonb(id)) from mine")
            await other.execute("select forebay.push('seen', '3')")
            assert take(client, "seen", 1) == [3]

    in_sessions(url, work)
    assert take(client, "seen", 1) == [7]
    assert pop_all(client, "seen") == []


def test_messages_come_in_the_order_in_which_their_transactions_committed(client: Raw, url: str) -> None:
    client.ask({"cmd": "PUSH", "queue": "order", "payload": 0})

    async def work(one: Session, other: Session) -> None:
        for number in range(20):
            async with one.transaction():
                await one.execute(f"select forebay.push('order', '{4 * number + 3}')")
                async with other.transaction():
                    await other.execute(f"select forebay.push('order', '{4 * number + 1}')")
                    await other.execute(f"select forebay.push('order', '{4 * number + 2}')")
                await one.execute(f"select forebay.push('order', '{4 * number + 4}')")

    in_sessions(url, work)
    assert take(client, "order", 81) == list(range(81))


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_pushes_along(client: Raw, url: str) -> None:
    run_sql(
        url,
        """
        begin;
        savepoint a; select forebay.push('points', '1'); rollback to a;
        select forebay.push('points', '2');
        savepoint b; select forebay.push('points', '3'); rollback to b;
        select forebay.push('points', '4');
        commit;
        """,
    )
    assert take(client, "points", 2) == [2, 4]
    assert pop_all(client, "points") == []
    assert ask_sql(url, "select * from forebay.inbox_turns") == []


def test_options_are_those_of_a_push_over_the_wire(client: Raw, url: str) -> None:
    (push,) = (each.text for each in migrations() if each.name == "push")
    names = {field.name for field in msgspec.structs.fields(Item)} - {"payload"}
    assert all(f"'{name}'" in push for name in names)
    run_sql(
        url,
        """
        select forebay.push('opts', '"low"', '{"priority": 1, "tags": ["a"]}'),
               forebay.push('opts', '"high"', '{"priority": 9, "partition": "side", "unique_key": "k"}'),
               forebay.push('opts', '"again"', '{"unique_key": "k"}');
        """,
    )
    assert take(client, "opts", 2) == ["high", "low"]
    assert pop_all(client, "opts") == []


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("'no name', '1'", "is no name of a queue"),
        ("null, '1'", "is no name of a queue"),
        (f"'{'q' * 257}', '1'", "is no name of a queue"),
        ("'q', null", "the payload is null"),
        ("'q', '1', '[1]'", "options are no JSON object"),
        ("'q', '1', null", "options are no JSON object"),
        ("'q', '1', '{\"prio\": 1}'", "there is no option prio"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_pushed(url: str, call: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        run_sql(url, f"select forebay.push({call})")


def test_what_can_not_be_taken_over_is_put_aside_with_the_reason_and_holds_up_nobody(
    client: Raw, url: str
) -> None:
    run_sql(
        url,
        """
        select forebay.push('aside', '1'), forebay.push('aside', '2', '{"priority": "high"}'),
               forebay.push('aside', '3', '{"depends_on": [123456789]}'),
               forebay.push('aside', '4', '{"delay_ms": -1}'), forebay.push('aside', '5');
        select forebay.push('aside', (repeat('[', 200) || repeat(']', 200))::jsonb);
        """,
    )
    assert take(client, "aside", 2) == [1, 5]
    query = "select id, payload, code, error from forebay.refused where queue = 'aside' order by id"
    until(lambda: len(ask_sql(url, query)) == 4)
    rows = ask_sql(url, query)
    assert [row["code"] for row in rows] == ["invalid", "not_found", "invalid", "invalid"]
    assert all(row["error"] for row in rows)
    run_sql(url, f"update forebay.refused set options = '{{}}' where id = {rows[0]['id']}")
    run_sql(url, f"select forebay.push_again({rows[0]['id']})")
    assert take(client, "aside", 1) == [2]
    with pytest.raises(Refused, match="nothing was refused"):
        run_sql(url, "select forebay.push_again(0)")


def test_a_queue_that_is_full_holds_up_no_other_and_gets_its_messages_in_order_later(
    client: Raw, url: str
) -> None:
    client.ask({"cmd": "QUEUE", "queue": "full", "options": {"max_size": 1}})
    client.ask({"cmd": "PUSH", "queue": "full", "payload": 0})
    run_sql(url, "select forebay.push('full', '1'), forebay.push('open', '2');")
    assert take(client, "open", 1) == [2]
    message = pop(client, "full")
    client.ask({"cmd": "ACK", "ids": [message["id"]]})
    assert take(client, "full", 1) == [1]


def test_rows_of_a_suspended_tenant_wait_and_hold_up_nobody(client: Raw, url: str) -> None:
    assert client.ask({"cmd": "TENANTPUT", "tenant": "halted", "suspended": True})["ok"]
    run_sql(
        url,
        """
        begin;
        select forebay.push('mine', '1');
        update forebay.inbox set tenant = 'halted' where queue = 'mine';
        commit;
        """,
    )
    run_sql(url, "select forebay.push('others', '2')")
    assert take(client, "others", 1) == [2]
    assert client.ask({"cmd": "TENANTPUT", "tenant": "halted", "suspended": False})["ok"]
    waits = {"queue": "mine", "tenant": "halted", "wait_ms": 20_000, "create": True}
    assert [each["payload"] for each in client.ask({"cmd": "POP", **waits})["messages"]] == [1]
    assert ask_sql(url, "select id from forebay.refused where tenant = 'halted'") == []


def test_a_transaction_that_is_slow_to_commit_is_not_passed_over(client: Raw, url: str) -> None:
    """It has its turn, others come and go behind it, and it is seen when it is there."""
    client.ask({"cmd": "PUSH", "queue": "slow", "payload": 0})

    async def work(one: Session, other: Session) -> None:
        for number in range(5):
            async with one.transaction():
                await one.execute(f"select forebay.push('slow', '{number}'); set constraints all immediate")
                for _ in range(4):
                    await other.execute("select forebay.push('quick', '1')")
                    assert take(client, "quick", 1) == [1]
            assert take(client, "slow", 1) == [number]

    assert take(client, "slow", 1) == [0]
    in_sessions(url, work)


def test_a_queue_takes_as_many_as_it_has_room_for(client: Raw, url: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": "room", "options": {"max_size": 3}})
    client.ask({"cmd": "PUSH", "queue": "room", "payload": 0})
    assert pop(client, "room")["payload"] == 0
    run_sql(url, "select forebay.push('room', to_jsonb(n)) from generate_series(1, 3) as n")
    assert take(client, "room", 2) == [1, 2]
    client.ask({"cmd": "QUEUE", "queue": "room", "options": {"max_size": 0}})
    assert take(client, "room", 1) == [3]


def test_a_role_that_may_only_push_can_do_nothing_else(client: Raw, url: str) -> None:
    database = url.rpartition("/")[2]
    run_sql(url, "create role app login; grant usage on schema forebay to app")
    theirs = cluster().url(database).replace("postgres@", "app@")
    run_sql(theirs, "select forebay.push('role', '1')")
    assert take(client, "role", 1) == [1]
    for statement in (
        "select * from forebay.records",
        "select * from forebay.inbox",
        "insert into forebay.inbox (queue, payload, options) values ('q', '1', '{}')",
        "select forebay.claim(0, 0, 'me')",
        "select forebay.mark_restored()",
        "create temp table t (xid xid8); create trigger t after insert on t"
        " for each row execute function forebay.take_turn()",
        "select * from forebay.messages",
    ):
        with pytest.raises(Refused, match="permission denied"):
            run_sql(theirs, statement)


def test_a_server_that_sleeps_is_woken_by_who_pushes_and_one_that_is_awake_is_not(
    client: Raw, url: str
) -> None:
    run_sql(url, "select forebay.push('wake', '1')")
    assert take(client, "wake", 1) == [1]
    asleep = (
        "select count(*) from pg_locks where locktype = 'advisory' and objid = 3 and mode = 'ExclusiveLock'"
    )
    until(lambda: bool(ask_sql(url, asleep)[0]["count"]))
    run_sql(url, "select forebay.push('wake', '2')")
    assert take(client, "wake", 1) == [2]


class Application:
    """Transactions that push, some of which are rolled back, until it is told to stop."""

    def __init__(self, url: str, name: str, seed: int) -> None:
        self._url, self._name, self._random = url, name, random.Random(seed)
        self.committed: list[list[str]] = []
        """What each transaction pushed, in the order in which they committed."""
        self.stopped = threading.Event()

    def run(self) -> None:
        blocking, session = Blocking(), Session(self._url)
        try:
            blocking.run(self._work(session))
        finally:
            blocking.run(session.close())
            blocking.close()

    async def _work(self, session: Session) -> None:
        number = 0
        while not self.stopped.is_set():
            names = [f"{self._name}.{number + at}" for at in range(self._random.choice((1, 1, 3, 40)))]
            number += len(names)
            try:
                async with session.transaction():
                    for name in names:
                        await session.execute(f"select forebay.push('work', '\"{name}\"')")
                    if self._random.random() < 0.2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            self.committed.append(names)
            await asyncio.sleep(0)


def test_kills_of_the_server_lose_no_push_and_double_none(tmp_path: Path) -> None:
    url = cluster().database()
    rng = random.Random(1)
    applications = [Application(url, f"a{number}", number) for number in range(3)]
    threads = [threading.Thread(target=each.run) for each in applications]
    flags = ("--store", url, "--shards", "4")
    with Process(tmp_path, *flags):
        for thread in threads:
            thread.start()
    for _ in range(6):
        with Process(tmp_path, *flags) as server, server.connect() as client:
            client.ask({"cmd": "POP", "queue": "nothing", "wait_ms": rng.randrange(30, 300)})
    for each in applications:
        each.stopped.set()
    for thread in threads:
        thread.join()
    wanted = [name for each in applications for names in each.committed for name in names]
    assert len(wanted) > 100
    with Process(tmp_path, *flags) as server, server.connect() as client:
        client.ask({"cmd": "PUSH", "queue": "work", "payload": "end"})
        until(lambda: not ask_sql(url, "select count(*) from forebay.inbox")[0]["count"])
        log = client.ask({"cmd": "READ", "queue": "work", "offset": 0, "max_count": 100_000})
        found = [name for run in log["runs"] for name in run["payloads"] if name != "end"]
    assert sorted(found) == sorted(wanted)
    for each in applications:
        mine = [name for name in found if name.startswith(each._name)]
        assert mine == [name for names in each.committed for name in names]


def test_nobody_pushes_to_the_tenants_of_the_server_itself() -> None:
    """Their queues are event logs and deliveries: a message of a stranger would be taken for one of them."""
    with pytest.raises(Invalid, match="tenant must be"):
        message_of(Arrival(1, "_system.0", "events", "{}", None))
    assert bytes(message_of(Arrival(1, "acme", "events", "{}", None)).payload) == b"{}"
