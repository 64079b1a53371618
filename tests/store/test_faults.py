"""A disk that is full, slow or broken: what was confirmed stays, and the rest is told."""

import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forebay.broker.node import RELOAD_RETRY_S, Node
from forebay.core.api.commands import Ack, Command, Pop, Popped, Push, Pushed, Reply, Settled
from forebay.core.api.queries import LogSlice, Read
from forebay.core.bounds import Limits
from forebay.core.errors import Busy, ForebayError
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit
from forebay.core.words import DEFAULT
from forebay.store.base import Claim, Full, Lost, StoreError
from forebay.store.rocksdb.store import BATCH_BYTES, RocksStore
from tests.broker.loop import FakeLoop, Recorder
from tests.store.faults import Faulty, in_child

PREFIX = keyspace.prefix(1, 1)
LOWEST, HIGHEST = PREFIX, PREFIX + b"\xff" * 32
NO_LIMIT = resource.RLIM_INFINITY


def commit(claim: Claim, number: int, size: int = 1_000, bodies: int = 1) -> list[Commit]:
    """A group with one record, and bodies of ``size`` bytes."""
    names = [keyspace.body_key(PREFIX, number << 8 | at) for at in range(bodies)]
    put = (PREFIX + b"c%06d" % number, b"%d" % number)
    return [Commit(0, claim.epoch, number, [put], [], [(name, bytes(size)) for name in names])]


def numbers(store: RocksStore) -> list[int]:
    """The commits that are there; whole, and with nothing beside them."""
    found = [int(value) for _, value in store.scan(LOWEST, HIGHEST)]
    assert {int.from_bytes(key[9:], "big") >> 8 for key in store.body_keys()} == set(found)
    return found


def begun(directory: Path) -> tuple[Faulty, Claim]:
    store = Faulty(directory)
    store.shards(1)
    return store, store.claim(0)


# The disk is full.


@pytest.mark.parametrize("writes", range(5))
def test_of_a_large_commit_on_a_full_disk_nothing_is_left(writes: int, tmp_path: Path) -> None:
    store, claim = begun(tmp_path / "data")
    store.commit(commit(claim, 1))
    store.full_in = writes  # an intent, three bodies, and the rest
    with pytest.raises(StoreError, match="No space left on device"):
        store.commit(commit(claim, 2, BATCH_BYTES // 2, bodies=3))
    store.full_in = None
    with pytest.raises(StoreError, match="opened again"):
        store.commit(commit(claim, 3))
    claim = store.claim(0)
    assert numbers(store) == [1]
    store.commit(commit(claim, 4, BATCH_BYTES // 2, bodies=3))
    assert numbers(store) == [1, 4]
    store.close()


def test_a_disk_that_stays_full_refuses_every_claim_and_is_good_afterwards(tmp_path: Path) -> None:
    store, claim = begun(tmp_path / "data")
    store.commit(commit(claim, 1))
    store.full_in = 0
    with pytest.raises(StoreError):
        store.commit(commit(claim, 2))
    for _ in range(3):
        with pytest.raises(StoreError, match="No space left on device"):
            store.claim(0)
    store.full_in = None
    store.commit(commit(store.claim(0), 3))
    assert numbers(store) == [1, 3]
    store.close()


def limit_files(bytes_max: int) -> None:
    """No file of this process gets longer than that."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, NO_LIMIT))


def fill_for_real(_: Callable[[object], None], directory: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = RocksStore(directory)
    store.shards(1)
    claim = store.claim(0)
    limit_files(200_000)
    confirmed: list[int] = []

    def fill() -> None:
        for number in range(1, 1_000):
            store.commit(commit(claim, number))
            confirmed.append(number)

    with pytest.raises(StoreError, match="File too large"):
        fill()
    assert confirmed
    limit_files(1_000)
    for _try in range(3):
        with pytest.raises(StoreError):
            store.claim(0)
    limit_files(NO_LIMIT)
    claim = store.claim(0)
    assert numbers(store) == confirmed
    store.commit(commit(claim, 1_000))
    store.close()
    store = RocksStore(directory)
    assert numbers(store) == [*confirmed, 1_000]
    store.close()


def test_a_disk_that_is_really_full_loses_nothing_and_is_good_again_later(tmp_path: Path) -> None:
    in_child(fill_for_real, tmp_path / "data")


# RocksDB is behind.


def test_a_write_that_is_turned_away_is_tried_again(tmp_path: Path) -> None:
    store, claim = begun(tmp_path / "data")
    store.stalls = 3
    store.commit(commit(claim, 1))
    store.stalls = 5
    store.commit(commit(claim, 2, BATCH_BYTES, bodies=2))
    assert numbers(store) == [1, 2]
    store.close()


# A sync fails.


def test_after_a_failed_sync_nothing_is_written_any_more_and_what_was_synced_is_there(tmp_path: Path) -> None:
    store, claim = begun(tmp_path / "data")
    store.commit(commit(claim, 1))
    store.sync_fails = True
    with pytest.raises(Lost, match="Input/output error"):
        store.commit(commit(claim, 2))
    store.sync_fails = False
    calls: list[Callable[[], object]] = [
        lambda: store.commit(commit(claim, 3)),
        lambda: store.claim(0),
        store.sync,
        lambda: store.backup(str(tmp_path / "backup")),
    ]
    for call in calls:
        with pytest.raises(Lost):
            call()
    store.close()
    again = RocksStore(tmp_path / "data")
    assert numbers(again) in ([1], [1, 2])
    again.close()


# The same under a node.


class Desk:
    """A node over a store, and somebody who asks it and waits for the answer."""

    def __init__(self, store: RocksStore) -> None:
        self.loop = FakeLoop()
        self.lost: list[str] = []
        self.node = Node(
            store,
            self.loop.as_loop,
            self.loop.now,
            Limits(pop_creates_queues=True),
            shards=4,
            lost=self.lost.append,
        )
        self._asker = Recorder()
        self._asked = 0
        self.push("first")

    def ask(self, command: Command) -> Reply | ForebayError:
        self._asked += 1
        self.node.ask(self._asker, self._asked, command)
        self.loop.run_ready()
        while self._asked not in self._asker.answers:
            self.loop.await_thread()
        self._await_reload()
        return self._asker.answers[self._asked]

    def ask_together(self, *commands: Command) -> list[Reply | ForebayError]:
        """The answers to commands of one group."""
        tickets = range(self._asked + 1, self._asked + 1 + len(commands))
        for ticket, command in zip(tickets, commands, strict=True):
            self.node.ask(self._asker, ticket, command)
        self._asked = tickets[-1]
        self.loop.run_ready()
        while not all(ticket in self._asker.answers for ticket in tickets):
            self.loop.await_thread()
        self._await_reload()
        return [self._asker.answers[ticket] for ticket in tickets]

    def _await_reload(self) -> None:
        while self.node.reloading:
            self.loop.await_thread()

    def push(self, payload: str) -> Reply | ForebayError:
        return self.ask(Push(DEFAULT, "q", [payload.encode()]))

    def wait(self) -> None:
        """Let as much time pass as the node takes between two tries to reload."""
        self.loop.advance(round(RELOAD_RETRY_S * 1_000))
        self._await_reload()

    def payloads(self) -> list[str]:
        log = self.ask(Read(DEFAULT, "q", 0, max_count=10_000))
        assert isinstance(log, LogSlice), log
        return [bytes(each).decode() for run in log.runs for each in run.payloads()]

    def push_until_good(self, payload: str) -> None:
        """Push again, with the waits that the node takes between two tries to reload."""
        for _ in range(5):
            if isinstance(self.push(payload), Pushed):
                return
            self.wait()
        raise AssertionError("the node does not come back")


def test_pushes_to_a_full_disk_are_busy_and_good_again_afterwards(tmp_path: Path) -> None:
    store = Faulty(tmp_path / "data")
    desk = Desk(store)
    assert isinstance(desk.push("a"), Pushed)
    store.full_in = 0
    for _ in range(4):
        assert isinstance(desk.push("lost"), Busy)
        desk.wait()
    store.full_in = None
    desk.push_until_good("b")
    assert desk.payloads() == ["first", "a", "b"]
    assert desk.lost == []
    desk.node.close()


class Cramped(Faulty):
    """A store on a disk that has room for acks, and none for messages."""

    is_cramped = False

    def commit(self, group: Sequence[Commit], *, sync: bool = True) -> None:
        if self.is_cramped and any(commit.bodies for commit in group):
            raise Full("IO error: No space left on device")
        super().commit(group, sync=sync)


def test_an_ack_beside_a_push_that_the_full_disk_refuses_is_carried_out(tmp_path: Path) -> None:
    store = Cramped(tmp_path / "data")
    desk = Desk(store)
    popped = desk.ask(Pop(DEFAULT, "q"))
    assert isinstance(popped, Popped)
    assert popped.lease is not None
    store.is_cramped = True
    pushed, acked = desk.ask_together(Push(DEFAULT, "q", [b"1"]), Ack(DEFAULT, popped.lease))
    assert isinstance(pushed, Busy)
    assert isinstance(acked, Settled), acked
    assert isinstance(desk.push("refused at once"), Busy)
    assert desk.node.failures == 1
    assert desk.payloads() == ["first"]
    desk.node.close()


def test_the_reserve_of_a_full_disk_is_given_up_and_made_again(tmp_path: Path) -> None:
    store = Faulty(tmp_path / "data", free_min_bytes=1 << 20)
    store.shards(1)
    claim = store.claim(0)
    before, reserve = store.room(0).free_bytes, tmp_path / "data" / "RESERVE"
    assert reserve.stat().st_blocks * 512 >= 1 << 19
    store.full_in = 0
    with pytest.raises(Full):
        store.commit(commit(claim, 1))
    assert not reserve.exists()
    store.full_in = None
    store.commit(commit(store.claim(0), 2))
    assert before > 0 < store.room(0).free_bytes
    assert reserve.stat().st_size == 1 << 19
    store.close()


def test_a_failed_sync_is_told_and_every_push_is_busy(tmp_path: Path) -> None:
    store = Faulty(tmp_path / "data")
    desk = Desk(store)
    store.sync_fails = True
    assert isinstance(desk.push("unsure"), Busy)
    assert len(desk.lost) == 1
    store.sync_fails = False
    for _ in range(3):
        assert isinstance(desk.push("never"), Busy)
        desk.wait()
    desk.node.close()
    again = Desk(RocksStore(tmp_path / "data"))
    assert again.payloads() in (["first", "first"], ["first", "unsure", "first"])
    again.node.close()


def node_for_real(_: Callable[[object], None], directory: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    desk = Desk(RocksStore(directory))
    confirmed = ["first"]
    limit_files(100_000)
    for number in range(1_000):
        payload = f"{number}".ljust(1_000)
        if not isinstance(desk.push(payload), Pushed):
            break
        confirmed.append(payload)
    assert 10 < len(confirmed) < 1_000
    limit_files(1_000)
    for _try in range(4):
        assert isinstance(desk.push("lost".ljust(2_000)), Busy)
        desk.wait()
    limit_files(NO_LIMIT)
    desk.push_until_good("b")
    assert desk.payloads() == [*confirmed, "b"]
    assert desk.lost == []
    desk.node.close()


def test_a_node_over_a_disk_that_is_really_full_comes_back_with_everything(tmp_path: Path) -> None:
    in_child(node_for_real, tmp_path / "data")


def test_a_sync_of_a_log_that_a_write_failed_to_is_a_failed_write_and_not_a_lost_disk(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "data")
    store.shards(1)
    claim = store.claim(0)

    def refused() -> None:
        raise Exception("IO error: Writer has previous error.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_sync_log", refused)
        for _ in range(2):
            with pytest.raises(StoreError) as raised:
                store.sync()
            assert not isinstance(raised.value, Lost)
    assert store.claim(0).epoch == claim.epoch + 1  # it was opened again
    store.close()
