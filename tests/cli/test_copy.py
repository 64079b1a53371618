"""Everything moves from a directory to a database and back, and a server answers questions meanwhile."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.core.records.commit import Commit
from forebay.store import copy
from forebay.store.base import CantOpen, StoreError
from forebay.store.memory import MemoryStore
from forebay.store.postgres.store import PostgresStore
from tests.cli.running import run
from tests.postgres import cluster, run_sql
from tests.serving import Raw, Server, pop, pop_all, push, refused, state


def fill(client: Raw) -> dict[str, int]:
    """A little of everything; ids by what became of them."""
    push(client, "a", *range(500), backoff=600_000)
    push(client, "a", *(["x" * 3_000] * 200), partition="side")
    found = {"delayed": push(client, "a", "later", delay_ms=600_000), "key": push(client, "b", 1)}
    client.ask({"cmd": "PUSH", "queue": "b", "payload": 2, "unique_key": "k"})
    done, failed, held = (pop(client, "a", partition="default", lease_ms=600_000) for _ in range(3))
    client.ask({"cmd": "ACK", "ids": [done["id"]], "result": "fine"})
    client.ask({"cmd": "NACK", "ids": [failed["id"]], "error": "no"})
    client.ask({"cmd": "KVSET", "key": "k", "value": {"v": 1}})
    cron = {"cmd": "CRONPUT", "name": "c", "queue": "b", "schedule": "0 3 * * *", "message": {"payload": 1}}
    assert client.ask(cron)["ok"]
    return {**found, "done": done["id"], "failed": failed["id"], "active": held["id"]}


def looks(client: Raw, ids: dict[str, int]) -> dict[str, object]:
    """All that can be seen from outside, but for times."""
    states = {name: state(client, id)["state"] for name, id in ids.items()}
    log = client.ask({"cmd": "READ", "queue": "a", "partition": "side", "offset": 0, "max_count": 1_000})
    return {
        "states": states,
        "queues": client.ask({"cmd": "QUEUES"})["queues"],
        "side": [message for run in log["runs"] for message in run["payloads"]],
        "value": client.ask({"cmd": "KVGET", "key": "k"})["value"],
        "result": client.ask({"cmd": "RESULT", "id": ids["done"]})["result"],
        "crons": [each["name"] for each in client.ask({"cmd": "CRONS"})["crons"]],
    }


def test_everything_moves_to_a_database_and_back_and_ids_are_never_given_out_twice(tmp_path: Path) -> None:
    url, back = cluster().database(), tmp_path / "back"
    with Server() as server:
        with server.connect() as client:
            ids = fill(client)
            before = looks(client, ids)
        server.terminate()
        assert server.wait() == 0
        there = run(tmp_path, "copy", f"rocksdb:{server.data}", url, "--json")
        assert there.code == 0, there.err
        figures = json.loads(there.out)
        assert figures["bodies"] > 3
        assert figures["records"] > 20
        assert figures["messages"] >= 703
        assert figures["seconds"] > 0
    with Server("--store", url) as moved, moved.connect() as client:
        assert looks(client, ids) == before
        later = push(client, "a", "new")
    assert later not in ids.values()
    home = run(tmp_path, "copy", url, f"rocksdb:{back}")
    assert home.code == 0, home.err
    assert re.fullmatch(
        rf"copied to rocksdb:{back} and compared, [\d,]+ records and \d+ bodies, all the same:"
        r" [\d,]+ messages, [\d,]+ bytes, \d+\.\d s\n",
        home.out,
    )
    assert run(tmp_path, "verify", str(back)).code == 0
    assert run(tmp_path, "verify", url).code == 0
    with Server("--data", str(back)) as again, again.connect() as client:
        assert looks(client, ids)["states"] == before["states"]
        assert state(client, later)["state"] == "waiting"
        assert push(client, "a", "newer") > later
        lease = pop(client, "a", partition="default")["lease"]
        assert lease is not None


@pytest.fixture(params=["rocksdb", "postgresql"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the address of its store."""
    place = cluster().database() if request.param == "postgresql" else f"rocksdb:{tmp_path / 'data'}"
    with Server("--store", place) as made:
        yield made, place


def test_a_server_answers_questions_while_it_is_copied_and_nothing_else(
    source: tuple[Server, str], tmp_path: Path
) -> None:
    server, place = source
    target = cluster().database()
    with server.connect() as client:
        ids = fill(client)
        before = looks(client, ids)
        first = run(tmp_path, "copy", place, target)
        assert first.code == 1
        assert "in use" in first.err
        done = run(tmp_path, "copy", place, target, "--server", server.tcp)
        assert done.code == 0, done.err
        assert "is held" in done.err
        assert looks(client, ids) == before
        for request in (
            {"cmd": "PUSH", "queue": "a", "payload": 1},
            {"cmd": "POP", "queue": "a", "wait_ms": 50},
            {"cmd": "ACK", "ids": [ids["active"]]},
            {"cmd": "KVSET", "key": "k", "value": 2},
        ):
            assert refused(client.ask(request), "busy"), request
        with Server("--store", target) as moved, moved.connect() as other:
            assert looks(other, ids) == before
        assert run(tmp_path, "hold", "--off", "--server", server.tcp).code == 0
        assert state(client, ids["active"])["state"] == "active"
        assert client.ask({"cmd": "ACK", "ids": [ids["active"]]})["ok"]
        assert pop_all(client, "b") == [1, 2]
    assert not list(tmp_path.glob("*copying*"))


def test_the_server_that_is_named_has_to_be_the_one_on_the_source(tmp_path: Path) -> None:
    url, target = cluster().database(), cluster().database()
    with Server("--store", url) as one, Server() as other, other.connect() as client:
        push(client, "a", 1)
        for place, server in ((url, other), (f"rocksdb:{other.data}", one), (f"rocksdb:{tmp_path}", other)):
            done = run(tmp_path, "copy", place, target, "--server", server.tcp)
            assert (done.code, "keeps its data in" in done.err) == (1, True), done.err
        assert client.ask({"cmd": "PUSH", "queue": "a", "payload": 2})["ok"]
        assert run(tmp_path, "copy", f"rocksdb:{other.data}", target, "--server", other.tcp).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--store", "mysql://u:s3cret@h/x"),
        ("serve", "--store", "host=h password=s3cret"),
        ("serve", "--data", "postgresql://u:s3cret@h/x"),
        ("copy", "mysql://u:s3cret@h/x", "rocksdb:there"),
        ("verify", "postgresq://u:s3cret@h/x"),
        ("verify", "postgresql://u:s3cret@127.0.0.1:1/x"),
        ("restore", "postgresql://u:s3cret@h/x"),
        ("repair", "postgresql://u:s3cret@h/x", "--accept-loss"),
        ("migrate", "--store", "postgresql://u:s3c/s3cret@127.0.0.1:1/x"),
        ("migrate", "--store", "postgresql://u:s3cret@127.0.0.1:5x/x"),
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.code in (1, 2)
    assert "s3cret" not in done.out + done.err
    assert "Traceback" not in done.err
    assert done.err.startswith("forebay: ")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_not_made_where_something_is(tmp_path: Path) -> None:
    url = cluster().database()
    with Server() as server:
        with server.connect() as client:
            push(client, "a", 1)
        server.terminate()
        server.wait()
        place = f"rocksdb:{server.data}"
        assert run(tmp_path, "copy", place, url).code == 0
        again = run(tmp_path, "copy", place, url)
        assert again.code == 1
        assert "is not empty" in again.err
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("kept")
        other = run(tmp_path, "copy", place, f"rocksdb:{tmp_path / 'full'}")
        assert other.code == 1
        assert (tmp_path / "full" / "mine").read_text() == "kept"
    nothing = run(tmp_path, "copy", cluster().database(), f"rocksdb:{tmp_path / 'new'}")
    assert nothing.code == 1
    assert "has no data" in nothing.err
    assert not (tmp_path / "new").exists()
    odd = run(tmp_path, "copy", "sqlite:x", url)
    assert (odd.code, "rocksdb:DIR or postgresql://" in odd.err) == (1, True)


def test_a_copy_that_was_not_finished_is_not_served() -> None:
    url = cluster().database()
    with Server("--store", url) as server, server.connect() as client:
        push(client, "a", 1)
    run_sql(url, "delete from forebay.format")
    with pytest.raises(CantOpen, match="was not finished"):
        PostgresStore(url)


def filled(store: MemoryStore, *extra: tuple[bytes, bytes]) -> MemoryStore:
    claim = store.claim(0)
    puts = [(b"%08dc%d" % (1, number), b"x") for number in range(10)]
    store.commit([Commit(0, claim.epoch, 5, [*puts, *extra], [], [(b"00000001bname", b"body")])])
    return store


@pytest.mark.parametrize("key", [b"00000001c5", b"00000001d", b"00000000"])
def test_a_copy_that_is_not_the_same_is_said_so(key: bytes) -> None:
    def nothing(what: str, done: int) -> None: ...

    source, target = filled(MemoryStore()), MemoryStore()
    assert copy.copy(source, 4, target, nothing).records == 10
    assert copy.compare(source, target, nothing) == copy.Figures(10, 1, 14)
    with pytest.raises(StoreError, match=f"the record {key.hex()} differs"):
        copy.compare(filled(MemoryStore(), (key, b"other")), target, nothing)


def test_the_copy_has_the_shards_of_its_original_wherever_a_server_ran_before(tmp_path: Path) -> None:
    url, other = cluster().database(), cluster().database()
    with Server("--store", url, "--shards", "4") as server, server.connect() as client:
        push(client, "a", 1)
    store = PostgresStore(other)
    store.shards(64)
    store.close()
    assert run(tmp_path, "copy", url, other).code == 0
    moved = PostgresStore(other)
    assert moved.shards(64) == 4
    moved.close()


def test_what_waits_to_be_taken_over_is_not_left_behind_in_silence(tmp_path: Path) -> None:
    url = cluster().database()
    with Server("--store", url):
        pass
    run_sql(url, "select forebay.push('q', '1')")
    done = run(tmp_path, "copy", url, f"rocksdb:{tmp_path / 'new'}")
    assert (done.code, "1 messages that were pushed from SQL wait" in done.err) == (1, True)
