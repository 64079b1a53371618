"""The PostgreSQL store keeps every store's promises, and those of its own."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from forebay.core.records import keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import CONTROL
from forebay.store.base import CantOpen, Claim, Fenced, Full, Store, StoreError
from forebay.store.postgres import commits, session as postgres_session
from forebay.store.postgres.migrate import migrate, missing
from forebay.store.postgres.session import Blocking, Gone, Refused, Session
from forebay.store.postgres.sql import Migration, as_text, migrations
from forebay.store.postgres.store import PostgresStore
from tests.postgres import Cluster, ask_sql, cluster, find_binaries, run_sql
from tests.store.conformance import StoreConformance, StoreMachine, body_key, key

T = TypeVar("T")


class Databases:
    """Stores in databases of their own, opened again where they were."""

    def make(self) -> Store:
        self.url = cluster().database()
        return PostgresStore(self.url)

    def reopen(self, store: Store) -> Store:
        store.shards(64)  # what has no number of shards yet is not whole
        store.close()
        return PostgresStore(self.url)


class TestPostgres(Databases, StoreConformance):
    pass


class PostgresMachine(Databases, StoreMachine):
    pass


TestPostgresMachine = PostgresMachine.TestCase
# Every example makes a database, and every restart connects again.
TestPostgresMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


# What is its own.


@pytest.fixture
def url() -> str:
    return cluster().database()


def commit(
    store: Store, epoch: int, puts: list[Record], bodies: list[Record] | None = None, shard: int = 0
) -> None:
    store.commit([Commit(shard, epoch, 1, puts, [], bodies or [])])


def test_a_second_server_is_told_that_the_database_is_in_use(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PATIENCE_S", 0.1)
    first = PostgresStore(url)
    with pytest.raises(CantOpen, match="in use by another server"):
        PostgresStore(url)
    first.close()
    PostgresStore(url).close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda url: url.replace("127.0.0.1", "127.0.0.1.nowhere"), "can't be reached"),
        (lambda url: url.rpartition(":")[0] + ":1/x", "can't be reached"),
        (lambda url: url + "_not_there", "can't be opened"),
        (lambda url: url.replace("postgres@", "nobody:secret@"), "can't be opened"),
        (lambda url: url.replace("postgres@", "nobody:secret/1@"), "can't be opened"),
        (lambda url: url.replace("postgres@", "nobody:a?secret@"), "can't be opened"),
        (lambda url: url.replace("postgres@", "nobody:a#secret@"), "can't be opened"),
        (lambda url: url.replace("127.0.0.1", "[::x"), "can't be opened"),
    ],
)
def test_a_database_that_can_not_be_opened_is_said_so_without_its_password(
    url: str, change: Callable[[str], str], why: str
) -> None:
    with pytest.raises(CantOpen, match=why) as refused:
        PostgresStore(change(url))
    assert "secret" not in str(refused.value)


def test_a_role_that_may_not_make_the_schema_is_told_to_have_it_made(url: str) -> None:
    run_sql(url, "create role poor login")
    poor = url.replace("postgres@", "poor@")
    with pytest.raises(CantOpen, match="forebay migrate"):
        PostgresStore(poor)
    run_sql(url, "drop role poor")


def test_two_that_commit_under_one_claim_never_both_succeed(url: str) -> None:
    """However the store's memory is wrong: the primary key decides."""
    first = PostgresStore(url, alone=False)
    first.shards(4)
    claim = first.claim(0)
    second = PostgresStore(url, alone=False)
    commit(first, claim.epoch, [(key("a"), b"first")])
    second._keeper._epochs[0], second._keeper._numbers[0] = claim.epoch, first._keeper._numbers[0] - 1
    commit(second, claim.epoch, [(key("a"), b"second")])  # it is taken for its own, tried again
    assert second.get([key("a")]) == [b"first"]
    third = PostgresStore(url, alone=False)
    third.claim(0)
    for loser in (first, second):
        with pytest.raises(Fenced):
            commit(loser, claim.epoch, [(key("a"), b"late")])
    assert third.get([key("a")]) == [b"first"]
    for store in (first, second, third):
        store.close()


def test_a_loser_is_refused_however_many_commits_later(url: str) -> None:
    """Old numbers are cleared away; what was claimed since is seen all the same."""
    loser, winner = PostgresStore(url, alone=False), PostgresStore(url, alone=False)
    old = loser.claim(0)
    commit(loser, old.epoch, [(key("a"), b"old")])
    new = winner.claim(0)
    for number in range(1_100):
        commit(winner, new.epoch, [(key("a"), b"%d" % number)])
    assert len(ask_sql(url, "select * from forebay.commits")) == 1_024
    with pytest.raises(Fenced):
        commit(loser, old.epoch, [(key("a"), b"late")])
    assert winner.get([key("a")]) == [b"1099"]
    assert len(ask_sql(url, "select * from forebay.records")) == 1
    loser.close()
    winner.close()


def test_commits_that_the_database_has_lost_are_noticed_and_no_name_is_given_out_again(url: str) -> None:
    store = PostgresStore(url)
    store.shards(4)
    claim = store.claim(0)
    for number in range(3):
        commit(store, claim.epoch, [(key("a"), b"%d" % number)])
    run_sql(url, "delete from forebay.commits where number > 2")  # as one that falls back to an old replica
    with pytest.raises(StoreError, match="lost commits"):
        commit(store, claim.epoch, [(key("b"), b"on sand")])
    assert store.get([key("b")]) == [None]
    again = store.claim(0)
    assert again.epoch > claim.epoch
    assert again.restored > 0
    again = store.claim(0)  # a load that failed half way is tried again
    assert again.restored > 0
    commit(store, again.epoch, [(key("b"), b"good")])
    assert store.claim(0).restored == 0
    store.close()


def test_commits_that_were_lost_are_noticed_by_a_claim_too(url: str) -> None:
    store = PostgresStore(url)
    store.shards(4)
    claim = store.claim(0)
    for number in range(3):
        commit(store, claim.epoch, [(key("a"), b"%d" % number)])
    run_sql(url, "delete from forebay.commits where number > 2")
    again = store.claim(0)
    assert (again.epoch > claim.epoch, again.restored > 0) == (True, True)
    store.close()


def test_what_follows_a_begin_that_was_given_up_is_no_part_of_that_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "ANSWER_S", 0.5)
    monkeypatch.setattr(commits, "STREAM_BYTES", 100)
    store = PostgresStore(url)
    store.shards(4)
    claim = store.claim(0)
    assert store._backend is not None
    pid = store._backend[0]
    os.kill(pid, signal.SIGSTOP)
    resume = threading.Timer(1.0, lambda: os.kill(pid, signal.SIGCONT))
    resume.start()
    commit(store, claim.epoch, [(key("a"), b"1")], [(body_key(1), bytes(500))])
    commit(store, claim.epoch, [(key("b"), b"2")])
    resume.join()
    found = ask_sql(url, "select count(*) from forebay.records")
    assert found == [{"count": 2}]
    store.close()


def test_a_store_that_was_restored_from_a_dump_passes_over_names(url: str) -> None:
    store = PostgresStore(url)
    store.shards(4)
    claim = store.claim(0)
    commit(store, claim.epoch, [(key("a"), b"1")])
    store.close()
    run_sql(url, "select forebay.mark_restored()")
    store = PostgresStore(url)
    again = store.claim(0)
    assert again.restored >= 4_096
    assert again.epoch > claim.epoch + 4_096
    commit(store, again.epoch, [(key("a"), b"2")])
    assert store.claim(0).restored == 0
    store.close()


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_whose_answer_is_lost_is_kept_once(
    url: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "STREAM_BYTES", 100 if large else 1 << 20)
    store = PostgresStore(url)
    claim = store.claim(0)
    fetchval, cut = Session.value, ["commit" if not large else "apply"]

    async def value(self: Session, name: str, *arguments: object) -> Any:
        found = await fetchval(self, name, *arguments)
        if name in cut:
            cut.clear()
            if not large:
                self.drop()
                raise Gone("cut off")
        return found

    transaction = Session.transaction

    @asynccontextmanager
    async def cut_off(self: Session) -> AsyncIterator[None]:
        was_cut = bool(cut)
        async with transaction(self):
            yield
        if was_cut:
            self.drop()
            raise Gone("cut off")

    monkeypatch.setattr(Session, "value", value)
    monkeypatch.setattr(Session, "transaction", cut_off)
    commit(store, claim.epoch, [(key("a"), b"1")], [(body_key(1), bytes(500))])
    assert not cut
    numbers = [row["number"] for row in ask_sql(url, "select number from forebay.commits order by number")]
    assert numbers == [1, 2]
    commit(store, claim.epoch, [(key("a"), b"2")])
    assert store.get([key("a")]) == [b"2"]
    assert store.bodies([body_key(1)]) == [bytes(500)]
    store.close()


def test_while_the_database_is_away_commits_fail_and_afterwards_all_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "PATIENCE_S", 0.2)
    binaries = find_binaries()
    assert binaries is not None
    mine = Cluster(binaries)
    try:
        store = PostgresStore(mine.database())
        claim = store.claim(0)
        commit(store, claim.epoch, [(key("a"), b"1")])
        mine.stop()
        with pytest.raises(StoreError):
            commit(store, claim.epoch, [(key("a"), b"lost")])
        with pytest.raises(StoreError, match="can't be reached"):
            commit(store, claim.epoch, [(key("a"), b"lost")])
        with pytest.raises(StoreError):
            store.get([key("a")])
        mine.start()
        assert store.get([key("a")]) == [b"1"]
        commit(store, claim.epoch, [(key("a"), b"2")])
        assert store.get([key("a")]) == [b"2"]
        store.close()
    finally:
        mine.close()


def rows_touched(url: str) -> dict[str, int]:
    """How many rows were updated, and fetched by an index, until all other connections were closed.

    A connection reports what it did a second later, or when it ends.
    """
    others = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    while ask_sql(url, others):
        pass
    (row,) = ask_sql(
        url, "select n_tup_upd, idx_tup_fetch from pg_stat_user_tables where relname = 'records'"
    )
    return row


def test_what_is_replaced_is_found_at_once_while_somebody_holds_a_snapshot(url: str) -> None:
    """2,000 dead rows of one key stand side by side, and a commit looks at none of them."""
    store = PostgresStore(url)
    store.shards(64)
    claim = store.claim(0)

    async def hold(session: Session) -> None:
        async with session.transaction("repeatable_read"):
            connection = await session.open()
            await connection.fetchval("select count(*) from forebay.records")
            for number in range(2_000):
                await asyncio.to_thread(commit, store, claim.epoch, [(key("cursor"), b"%d" % number)])

    run_async(url, hold)
    store.close()
    before = rows_touched(url)
    store = PostgresStore(url)
    claim = store.claim(0)
    for number in range(100):
        commit(store, claim.epoch, [(key("cursor"), b"last %d" % number)])
    assert store.get([key("cursor")]) == [b"last 99"]
    store.close()
    after = rows_touched(url)
    assert after["n_tup_upd"] == 0
    assert after["idx_tup_fetch"] - before["idx_tup_fetch"] < 1_000
    store = PostgresStore(url)
    assert store.get([key("cursor")]) == [b"last 99"]
    assert len(ask_sql(url, "select * from forebay.records")) == 1
    store.close()


def test_a_copy_gives_out_no_name_that_the_original_did(url: str) -> None:
    store = PostgresStore(url)
    store.be_copy(8, {CONTROL: Claim(7, 5), 0: Claim(9, 6), 3: Claim(2, 0, restored=50)})
    assert store.shards(64) == 8
    assert store.claims() == {CONTROL: Claim(7, 5), 0: Claim(9, 6), 3: Claim(2, 0, restored=50)}
    control, first = store.claim(CONTROL), store.claim(0)
    found = (control.epoch, control.committed_at, first.epoch, first.committed_at)
    assert found == (8, 5, 10, 6)
    third = store.claim(3)
    assert (third.epoch, third.restored) == (53, 50)
    store.close()


# Migrations.


FULL_FOR_BODIES = """
create function public.full_disk() returns trigger language plpgsql as
$$begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end$$;
create trigger full_disk before insert on forebay.bodies for each row execute function public.full_disk()
"""
"""A disk that has no room for bodies, as PostgreSQL tells it."""


def test_a_full_disk_is_told_and_a_commit_that_adds_nothing_goes_on(url: str) -> None:
    store = PostgresStore(url)
    store.shards(1)
    epoch = store.claim(0).epoch
    run_sql(url, FULL_FOR_BODIES)
    with pytest.raises(Full, match="No space left"):
        commit(store, epoch, [], [(keyspace.body_key(keyspace.prefix(1, 1), 1), b"1")])
    commit(store, epoch, [(keyspace.prefix(1, 1) + b"c", b"acked")])
    assert store.get([keyspace.prefix(1, 1) + b"c"]) == [b"acked"]
    store.close()


def run_async(url: str, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
    blocking, session = Blocking(), Session(url)
    try:
        return blocking.run(work(session))
    finally:
        blocking.run(session.close())
        blocking.close()


def test_every_step_can_be_carried_out_twice_and_one_after_the_other(url: str) -> None:
    for count in range(1, len(migrations()) + 1):
        done = run_async(url, lambda session, count=count: migrate(session, migrations()[:count]))  # type: ignore[misc]
        assert [each.number for each in done] == [count]
    for each in migrations():
        run_sql(url, each.text)
    assert run_async(url, migrate) == []
    assert run_async(url, missing) == []


def test_servers_that_start_together_carry_out_each_step_once(url: str) -> None:
    async def together(session: Session) -> list[list[Migration]]:
        sessions = [Session(url) for _ in range(4)]
        try:
            return await asyncio.gather(*map(migrate, sessions))
        finally:
            for each in sessions:
                await each.close()

    found = run_async(url, together)
    assert sorted(map(len, found)) == [0, 0, 0, len(migrations())]
    numbers = [row["number"] for row in ask_sql(url, "select number from forebay.migrations order by number")]
    assert numbers == [each.number for each in migrations()] == list(range(1, len(migrations()) + 1))


def test_migrations_can_be_carried_out_by_hand(url: str) -> None:
    run_sql(url, as_text(migrations()))
    assert run_async(url, missing) == []
    assert as_text([]) == ""


def test_who_only_looks_makes_nothing(url: str) -> None:
    with pytest.raises(CantOpen, match="forebay migrate"):
        PostgresStore(url, only_look=True)
    assert ask_sql(url, "select to_regnamespace('forebay') as found") == [{"found": None}]


def test_a_schema_of_a_newer_version_is_left_alone(url: str) -> None:
    run_async(url, migrate)
    run_sql(url, "insert into forebay.migrations values (9999, 'later')")
    with pytest.raises(CantOpen, match="run a newer one"):
        PostgresStore(url)


OLD_SCHEMA = """
create schema forebay;
create table forebay.migrations (number integer primary key, name text not null);
insert into forebay.migrations values (1, 'records'), (2, 'push'), (3, 'views');
create table forebay.format (one boolean primary key, format integer not null, shards integer not null);
"""
"""What a version before the first release left, as far as it is looked at."""


@pytest.mark.parametrize("row", ["", "insert into forebay.format values (true, 1, 64)"])
def test_a_schema_from_before_the_first_release_is_refused_and_left_as_it_is(url: str, row: str) -> None:
    run_sql(url, OLD_SCHEMA + row)
    names = (
        "select relname, relkind::text from pg_class where relnamespace = 'forebay'::regnamespace order by 1"
    )
    before = ask_sql(url, names)
    for work in (
        lambda: PostgresStore(url),
        lambda: PostgresStore(url, only_look=True),
        lambda: run_async(url, migrate),
    ):
        with pytest.raises(CantOpen) as refused:
            work()
        assert str(refused.value) == (
            "the schema forebay of this database was made by a version of Forebay before its first release,"
            " which this one does not read: use another database, or start over in this one, after"
            " drop schema forebay cascade"
        )
    assert ask_sql(url, names) == before
    run_sql(url, "drop schema forebay cascade")
    PostgresStore(url).close()


def test_a_database_in_a_newer_format_is_refused_and_left_as_it_is(url: str) -> None:
    store = PostgresStore(url)
    assert store.shards(8) == 8
    store.close()
    run_sql(url, "update forebay.format set version = 2")
    with pytest.raises(CantOpen, match="is in format 2, and this version reads format 1: run the version"):
        PostgresStore(url)
    assert ask_sql(url, "select version, shards from forebay.format") == [{"version": 2, "shards": 8}]


def test_two_that_make_a_store_together_agree_on_its_shards(url: str) -> None:
    first, second = PostgresStore(url, alone=False), PostgresStore(url, alone=False)
    assert (first.shards(8), second.shards(64)) == (8, 8)
    first.close()
    second.close()


def test_a_step_that_fails_leaves_nothing(url: str) -> None:
    bad = Migration(2, "bad", "create table forebay.half (id integer); select 1 / 0;")
    with pytest.raises(Refused):
        run_async(url, lambda session: migrate(session, [migrations()[0], bad]))
    assert ask_sql(url, "select to_regclass('forebay.records') as found") == [{"found": None}]
