"""The views say what the core says, after whatever random lives have left."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forebay.core.api import commands as c, queries
from forebay.core.ids import address, to_uuid
from forebay.core.log.numbers import number_of
from forebay.core.state import Queue
from forebay.core.tracks.dropped import is_dropped
from forebay.store.postgres.store import migrate_at
from tests.postgres import ask_sql, cluster, run_sql
from tests.serving import Raw, Server, pop, push
from tests.sim.checks import TENANT
from tests.sim.drive import Driver
from tests.sim.job_drive import JobDriver
from tests.sim.world import World
from tests.sim.worlds import PostgresWorlds

PAGE = (Path(__file__).parents[2] / "docs" / "POSTGRES.md").read_text()


@pytest.fixture
def worlds() -> Iterator[PostgresWorlds]:
    made = PostgresWorlds()
    yield made
    made.close()


def shown_ids(queue: Queue, group: str) -> set[int]:
    """Every message that is kept, and not dropped in a group, by the id it is shown under."""
    found = set()
    for partition in queue.partitions.values():
        track = queue.groups[group].tracks[partition.key] if group in queue.groups else None
        for segment in partition.log.segments:
            for at in range(segment.count):
                if track is not None and is_dropped(track, segment.base + at):
                    continue
                origin = segment.run_at(at)[2].origin
                number, first = number_of(partition, segment.base + at)
                own = address(number, segment.base + at - first)
                successor = partition.successors.upto(segment.base + at)
                if origin is not None:
                    found.add(origin[0])
                elif successor is None or successor[0] != segment.base + at:
                    found.add(own)
    return found


def compare(world: World, url: str) -> int:
    """See that the view and the core say the same of every message; how many rows there are."""
    world.commit()
    engine, rows = world.engine, 0
    for queue in engine.queues.values():
        if not queue.stored or queue.tenant != TENANT:
            continue
        found = ask_sql(url, "select * from forebay.messages_of($1, $2)", queue.prefix, engine.now)
        groups = [*queue.groups] or ["default"]
        by_group = {name: [row for row in found if row["group"] == name] for name in groups}
        assert sum(map(len, by_group.values())) == len(found)
        for group, theirs in by_group.items():
            assert {int(row["number"]) for row in theirs} == shown_ids(queue, group)
            for row in theirs:
                said = engine.apply(queries.State(TENANT, int(row["number"]), group), engine.now)
                assert isinstance(said, queries.StateFound)
                assert as_said(row) == as_found(said), (queue.name, group, row, said)
                rows += 1
    return rows


def as_said(row: dict[str, Any]) -> tuple[object, ...]:
    counts = (row["state"], row["priority"], row["attempts"], row["deliveries"], row["error"] or "")
    ids = (row["id"], row["unique_key"], row["job_id"])
    return *counts, *ids, row["started_at"], row["run_at"] if row["state"] == "delayed" else None


def as_found(said: queries.StateFound) -> tuple[object, ...]:
    counts = (said.state, said.priority, said.failures, said.deliveries, said.error)
    ids = (UUID(to_uuid(said.id, said.created_at)), said.unique_key, said.job_id)
    started_at = instant(said.leased_at) if said.leased_at else None
    due_at = instant(said.due_at) if said.state == "delayed" and said.due_at else None
    return *counts, *ids, started_at, due_at


def instant(ms: int) -> object:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize("seed", range(3))
def test_the_view_of_messages_says_what_the_core_says(seed: int, worlds: PostgresWorlds) -> None:
    driver, rows = Driver(300 + seed, worlds.begin), 0
    for _ in range(6):
        driver.run(150)
        rows += compare(driver.world, worlds.url)
    assert rows > 100


def test_the_view_of_messages_says_what_the_core_says_of_jobs(worlds: PostgresWorlds) -> None:
    driver, rows = JobDriver(310, worlds.begin_jobs), 0
    for _ in range(6):
        driver.run(150)
        rows += compare(driver.world, worlds.url)
    assert rows > 100


def test_the_last_activity_of_a_partition_is_its_newest_message_or_when_it_was_found_empty(
    worlds: PostgresWorlds,
) -> None:
    world = worlds.begin()
    engine, now, begin = world.engine, world.now, world.now

    def done(command: c.Command) -> None:
        engine.apply(command, now)
        world.store.commit(engine.seal(now))

    def swept() -> tuple[int, object]:
        engine.tick(now)
        world.store.commit(engine.seal(now))
        (row,) = ask_sql(worlds.url, "select * from forebay.partitions")
        return row["messages"], row["last_activity"]

    done(c.Configure(TENANT, "q", completed_retention_ms=0))
    done(c.Push(TENANT, "q", [b"1"]))
    now += 1_000
    done(c.Push(TENANT, "q", [b"2"]))
    done(c.Ack(TENANT, ids=[first_of(engine.apply(c.Pop(TENANT, "q"), now))]))
    now += 20_000
    assert swept() == (1, instant(begin + 1_000))
    done(c.Ack(TENANT, ids=[first_of(engine.apply(c.Pop(TENANT, "q"), now))]))
    now += 20_000
    assert swept() == (0, instant(now))
    emptied, now = now, now + 60_000
    assert swept() == (0, instant(emptied))


def test_the_queues_of_all_tenants_and_shards_are_found(worlds: PostgresWorlds) -> None:
    world = worlds.begin()
    engine, now = world.engine, world.now
    assert ask_sql(worlds.url, "select * from forebay.queue_keys") == []
    engine.apply(c.TenantPut("wide", spread=True), now)
    for shard in engine.shards.values():  # as if so many had been made and deleted: numbers need all 32 bits
        shard.numbering.queues_made = shard.numbering.tenants_made = 3 * (1 << 28)
    for tenant in (*"abcdefgh", "wide"):
        for queue in ("q", "qq", "r-1", "_", "gone"):
            engine.apply(c.Push(tenant, queue, [b"1"]), now)
    world.store.commit(engine.seal(now))
    for tenant in ("a", "wide"):
        engine.apply(c.Obliterate(tenant, "gone"), now)
    world.store.commit(engine.seal(now))
    rows = ask_sql(worlds.url, "select tenant, queue, prefix, shard from forebay.queue_keys")
    found = {(row["tenant"], row["queue"]): (bytes(row["prefix"]), row["shard"]) for row in rows}
    assert found == {place: (queue.prefix, queue.shard) for place, queue in engine.queues.items()}
    assert len(found) == len(rows) >= 43
    assert {shard for _, shard in found.values()} == set(engine.shards)
    assert len({shard for (tenant, _), (_, shard) in found.items() if tenant == "wide"}) > 1
    for view in ("queues", "partitions"):
        rows = ask_sql(worlds.url, f"select distinct tenant, queue from forebay.{view}")
        assert {(row["tenant"], row["queue"]) for row in rows} == set(found)


def test_a_schema_that_no_server_has_used_has_no_queues() -> None:
    url = cluster().database()
    migrate_at(url)
    for view in ("queues", "messages", "retention_history"):
        assert ask_sql(url, f"select * from forebay.{view}") == []


def first_of(popped: object) -> int:
    assert isinstance(popped, c.Popped)
    return popped.deliveries[0].first


# A server's.


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


def test_queues_partitions_and_groups_have_the_columns_that_people_look_for(client: Raw, url: str) -> None:
    client.ask({"cmd": "QUEUE", "queue": "shown", "options": {"max_wait_ms": 90_000, "lease_ms": 5_000}})
    push(client, "shown", 1, 2, partition="side")
    client.ask({"cmd": "POP", "queue": "shown", "count": 1, "group": "audit", "wait_ms": 0})
    (queue,) = ask_sql(url, "select * from forebay.queues where queue = 'shown'")
    assert (queue["max_wait_ms"], queue["max_wait_time_seconds"], queue["lease_ms"]) == (90_000, 90, 5_000)
    assert (queue["encryption_enabled"], queue["paused"], queue["max_attempts"]) == (False, False, 3)
    (partition,) = ask_sql(url, "select * from forebay.partitions where queue = 'shown'")
    assert (partition["partition"], partition["first_offset"], partition["end_offset"]) == ("side", 0, 2)
    assert (partition["messages"], partition["payload_bytes"]) == (2, 2)
    assert partition["last_activity"] == partition["last_pushed_at"] is not None
    (group,) = ask_sql(url, "select * from forebay.groups where queue = 'shown'")
    assert group["group"] == "audit"
    client.ask({"cmd": "PAUSE", "queue": "shown"})
    (queue,) = ask_sql(url, "select paused from forebay.queues where queue = 'shown'")
    assert queue["paused"]


def test_a_message_is_shown_with_its_result_its_progress_and_its_error(client: Raw, url: str) -> None:
    push(
        client, "work", {"n": "ä\u0000b"}, {"n": 2}, {"n": 3}, timeout_ms=7_000, ttl_ms=60_000, max_attempts=5
    )
    done, failed, active = (pop(client, "work") for _ in range(3))
    client.ask({"cmd": "ACK", "ids": [done["id"]], "result": {"sum": 7}})
    client.ask({"cmd": "NACK", "ids": [failed["id"]], "error": "no \u0000 way"})
    client.ask({"cmd": "SETPROGRESS", "id": active["id"], "progress": 40, "message": "so far"})
    rows = ask_sql(url, "select * from forebay.messages where queue = 'work' order by \"offset\"")
    assert [row["state"] for row in rows] == ["completed", "delayed", "active"]
    first, second, third = rows
    assert (first["result"], first["data"], first["payload"]) == (
        '{"sum": 7}',
        None,
        '{"n": "\\u00e4\\u0000b"}',
    )
    assert (second["attempts"], second["error"], second["data"]) == (1, "no \\000 way", '{"n": 2}')
    assert (third["progress"], third["progress_msg"], third["attempts"]) == (40, "so far", 0)
    assert third["started_at"] is not None
    assert (third["timeout"], third["ttl"], third["max_attempts"], third["backoff"]) == (
        7_000,
        60_000,
        5,
        1_000,
    )
    assert (third["is_encrypted"], third["lifo"], third["number"]) == (False, False, active["id"])


def test_dependencies_crons_and_nodes_are_shown(client: Raw, url: str) -> None:
    first = push(client, "flow", "first")
    then = client.ask({"cmd": "PUSH", "queue": "flow", "payload": "then", "depends_on": [first]})["id"]
    found = ask_sql(url, "select number, depends_on from forebay.dependencies where queue = 'flow'")
    assert found == [{"number": then, "depends_on": first}]
    cron = {"cmd": "CRONPUT", "name": "nightly", "queue": "flow", "schedule": "0 3 * * *"}
    assert client.ask(cron | {"message": {"payload": {"a": 1}}})["ok"]
    (row,) = ask_sql(url, "select * from forebay.crons")
    assert (row["name"], row["queue"], row["schedule"], row["data"]) == (
        "nightly",
        "flow",
        "0 3 * * *",
        '{"a": 1}',
    )
    assert row["next_run"].hour == 3
    (node,) = ask_sql(url, "select * from forebay.nodes")
    assert node["is_leader"]
    assert node["shards"] == 65


def test_what_retention_took_is_shown_with_the_reason(client: Raw, url: str) -> None:
    options = {"max_attempts": 1, "dead_letters": False, "completed_retention_ms": 0}
    client.ask({"cmd": "QUEUE", "queue": "short", "options": options})
    push(client, "short", *range(4), partition="p")
    ids = [pop(client, "short")["id"] for _ in range(4)]
    client.ask({"cmd": "NACK", "ids": ids[:1], "error": "no"})
    client.ask({"cmd": "ACK", "ids": ids[1:]})
    assert client.ask({"cmd": "PURGE", "queue": "short", "states": ["completed"]})["ok"]
    rows = ask_sql(url, "select * from forebay.retention_history where queue = 'short' order by executed_at")
    told = {
        (row["retention_type"], row["messages_deleted"], row["completed_deleted"], row["failed_deleted"])
        for row in rows
    }
    assert told == {("failed", 0, 0, 1), ("completed", 4, 4, 0)}
    assert {row["partition"] for row in rows} == {"p"}
    assert len({row["id"] for row in rows}) == len(rows)


def test_what_a_plain_message_is_shown_with(client: Raw, url: str) -> None:
    push(client, "plain", 1)
    (row,) = ask_sql(url, "select * from forebay.messages where queue = 'plain'")
    names = ("max_attempts", "backoff", "ttl", "timeout", "priority", "progress", "lifo", "attempts", "state")
    assert [row[name] for name in names] == [3, 1_000, 0, 30_000, 0, 0, False, 0, "waiting"]


WANTED = {
    "queues": "encryption_enabled max_wait_time_seconds",
    "partitions": "id last_activity",
    "messages": "id number queue data priority state created_at run_at started_at attempts max_attempts "
    "backoff ttl timeout unique_key progress progress_msg error result lifo transaction_id partition_id "
    "payload is_encrypted",
    "retention_history": "id messages_deleted completed_deleted failed_deleted retention_type executed_at",
    "dependencies": "number depends_on",
    "crons": "name queue schedule data priority next_run",
    "nodes": "node_id host port is_leader last_heartbeat",
}


def test_every_view_has_the_columns_that_coverage_names(server: Server, url: str) -> None:
    rows = ask_sql(
        url, "select table_name, column_name from information_schema.columns where table_schema = 'forebay'"
    )
    found = {(row["table_name"], row["column_name"]) for row in rows}
    assert {(view, name) for view, names in WANTED.items() for name in names.split()} <= found


def test_every_statement_of_the_page_about_postgresql_works(server: Server, url: str) -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        run_sql(url, block)


def test_every_view_is_on_the_page_about_postgresql(server: Server, url: str) -> None:
    rows = ask_sql(url, "select viewname from pg_views where schemaname = 'forebay'")
    shown = set(re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE))
    assert {row["viewname"] for row in rows} - {"queue_keys"} == shown
