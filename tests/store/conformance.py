"""What every store promises, as tests.

A store's own test file says how to make one and how to open again what it left:

    class TestMine(StoreConformance):
        def make(self) -> Store: ...
        def reopen(self, store: Store) -> Store: ...

A store that can be copied also says how a copy is opened:

        def open_copy(self, directory: Path) -> Store: ...

    class MineMachine(StoreMachine):
        def make(self) -> Store: ...
        def reopen(self, store: Store) -> Store: ...

    TestMineMachine = MineMachine.TestCase
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.core.bounds import SEGMENT_BYTES_MAX
from forebay.core.keyvalue.keys import KEY_BYTES_MAX
from forebay.core.records import keyspace
from forebay.core.records.commit import Commit, Record
from forebay.core.records.keyspace import CONTROL
from forebay.store.base import Claim, Fenced, Store, StoreError

PREFIX = keyspace.prefix(1, 1)
LOWEST, HIGHEST = PREFIX, PREFIX + b"\xff" * 32
"""Bounds around every key used here, bodies' included."""


def key(tail: bytes | str) -> bytes:
    """The key of a record."""
    return PREFIX + b"c" + (tail.encode() if isinstance(tail, str) else tail)


def body_key(number: int) -> bytes:
    """The key of a body. It lies between the bounds of a scan, and no scan shows it."""
    return keyspace.body_key(PREFIX, number)


class StoreConformance:
    """The contract of ``forebay.store.base.Store``."""

    store: Store

    def make(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Close ``store`` and open what it left; a store that leaves nothing is returned as it is."""
        raise NotImplementedError

    def open_copy(self, directory: Path) -> Store:
        """Open a copy that ``backup`` made. A store that can't be copied leaves this out."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self.store = self.make()
        yield
        self.store.close()

    # Short forms.

    def commit(
        self,
        claim: Claim,
        puts: list[Record] | None = None,
        deletes: list[bytes] | None = None,
        bodies: list[Record] | None = None,
        ranges: list[tuple[bytes, bytes]] | None = None,
        body_ranges: list[tuple[bytes, bytes]] | None = None,
        clears: list[tuple[bytes, bytes]] | None = None,
        *,
        shard: int = 0,
        at: int = 1,
        sync: bool = True,
    ) -> None:
        lists = (puts or [], deletes or [], bodies or [], ranges or [], body_ranges or [], clears or [])
        commit = Commit(shard, claim.epoch, at, *lists)
        self.store.commit([commit], sync=sync)

    def records(self) -> list[Record]:
        return list(self.store.scan(LOWEST, HIGHEST))

    def again(self) -> None:
        self.store = self.reopen(self.store)

    # What it says of itself.

    def test_a_store_says_what_it_is(self) -> None:
        assert self.store.name
        assert self.store.durability in ("memory", "os", "fsync")
        assert self.store.blocking in (True, False)
        assert self.store.far in (True, False)
        assert self.store.shards_default in (16, 64)

    def test_the_number_of_shards_is_fixed_by_the_first_call(self) -> None:
        assert self.store.shards(8) == 8
        assert self.store.shards(64) == 8
        self.again()
        assert self.store.shards(3) == 8

    # Claims.

    def test_the_first_claim_knows_of_no_commit(self) -> None:
        claim = self.store.claim(0)
        assert claim.epoch > 0
        assert claim.committed_at == 0

    def test_epochs_rise_with_every_claim(self) -> None:
        epochs = [self.store.claim(0).epoch for _ in range(3)]
        self.again()
        epochs += [self.store.claim(0).epoch for _ in range(3)]
        assert epochs == sorted(set(epochs))

    def test_a_claim_of_one_shard_leaves_the_others_alone(self) -> None:
        mine, control = self.store.claim(0), self.store.claim(CONTROL)
        self.store.claim(1)
        self.commit(mine, [(key("mine"), b"1")])
        self.commit(control, [(key("control"), b"2")], shard=CONTROL)
        assert self.store.get([key("mine"), key("control")]) == [b"1", b"2"]

    def test_a_claim_tells_the_time_of_the_last_commit(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"")], at=1_700_000_000_000)
        assert self.store.claim(0).committed_at == 1_700_000_000_000
        self.commit(self.store.claim(0), [(key("a"), b"")], at=1_700_000_000_001)
        self.again()
        assert self.store.claim(0).committed_at == 1_700_000_000_001
        assert self.store.claim(1).committed_at == 0

    def test_claiming_is_not_committing(self) -> None:
        self.commit(self.store.claim(0), at=5)
        self.store.claim(0)
        assert self.store.claim(0).committed_at == 5

    def test_a_group_sets_the_time_of_each_of_its_shards(self) -> None:
        first, second = self.store.claim(0), self.store.claim(1)
        self.store.commit([Commit(0, first.epoch, 10, [], [], []), Commit(1, second.epoch, 20, [], [], [])])
        assert [self.store.claim(shard).committed_at for shard in (0, 1)] == [10, 20]

    def test_what_was_claimed_is_known_without_claiming_it(self) -> None:
        self.store.shards(8)
        first, control = self.store.claim(0), self.store.claim(CONTROL)
        self.commit(first, [(key("a"), b"1")], at=7)
        assert self.store.claims() == {CONTROL: Claim(control.epoch, 0), 0: Claim(first.epoch, 7)}
        self.commit(first, [(key("a"), b"2")], at=8)
        self.again()
        assert self.store.claims()[0] == Claim(first.epoch, 8)

    def test_a_copy_goes_on_behind_the_claims_of_its_original(self) -> None:
        mine = self.store.claim(CONTROL)
        puts, bodies = [(key("a"), b"1")], [(body_key(2), b"two"), (body_key(1), b"one")]
        self.commit(mine, puts, bodies=bodies, shard=CONTROL)
        claims = {CONTROL: Claim(40, 5), 0: Claim(70, 6), 2: Claim(3, 0)}
        self.store.be_copy(8, claims)
        assert self.store.claims() == claims
        self.again()
        assert self.store.shards(3) == 8
        assert self.records() == puts
        assert list(self.store.body_keys()) == [body_key(1), body_key(2)]
        found = [self.store.claim(shard) for shard in (CONTROL, 0, 1, 2)]
        assert [claim.epoch > old for claim, old in zip(found, (40, 70, 0, 3), strict=True)] == [True] * 4
        assert [claim.committed_at for claim in found] == [5, 6, 0, 0]
        assert [claim.restored for claim in found] == [0, 0, 0, 0]
        self.commit(found[1], [(key("a"), b"2")])
        assert self.records() == [(key("a"), b"2")]

    # Fenced.

    def test_a_commit_under_an_old_epoch_is_refused_and_changes_nothing(self) -> None:
        old = self.store.claim(0)
        self.commit(old, [(key("kept"), b"1")], bodies=[(body_key(1), b"body")], at=1)
        new = self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(
                old,
                [(key("kept"), b"2"), (key("late"), b"3")],
                [body_key(1)],
                [(body_key(2), b"late")],
                at=2,
            )
        assert self.records() == [(key("kept"), b"1")]
        assert self.store.bodies([body_key(1), body_key(2)]) == [b"body", None]
        self.commit(new, [(key("kept"), b"4")], at=3)
        assert self.records() == [(key("kept"), b"4")]
        assert self.store.claim(0).committed_at == 3

    def test_an_empty_commit_under_an_old_epoch_is_refused_too(self) -> None:
        old = self.store.claim(0)
        self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(old, at=9)
        assert self.store.claim(0).committed_at == 0

    def test_a_claim_from_before_a_restart_is_old_once_the_shard_is_claimed_again(self) -> None:
        old = self.store.claim(0)
        self.again()
        new = self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(old, [(key("a"), b"old")])
        self.commit(new, [(key("a"), b"new")])
        assert self.store.get([key("a")]) == [b"new"]

    # Atomic and ordered.

    def test_a_group_with_one_fenced_commit_changes_nothing_at_all(self) -> None:
        claims = [self.store.claim(shard) for shard in range(3)]
        before = [(key(f"{shard} {name}"), b"before") for shard in range(3) for name in "ab"]
        for shard, claim in enumerate(claims):
            self.commit(claim, before[2 * shard : 2 * shard + 2], shard=shard, at=1)
        for fenced in range(3):
            current = [self.store.claim(shard) for shard in range(3)]
            self.store.claim(fenced)
            group = [
                Commit(
                    shard,
                    claim.epoch,
                    2,
                    [(key(f"{shard} a"), b"after"), (key(f"{shard} c"), b"new")],
                    [key(f"{shard} b")],
                    [(body_key(shard + 1), b"body")],
                )
                for shard, claim in enumerate(current)
            ]
            with pytest.raises(Fenced):
                self.store.commit(group)
            assert self.records() == before
            assert self.store.bodies([body_key(shard + 1) for shard in range(3)]) == [None] * 3
            assert [self.store.claim(shard).committed_at for shard in range(3)] == [1, 1, 1]

    def test_a_group_of_several_shards_is_there_whole(self) -> None:
        claims = [(shard, self.store.claim(shard)) for shard in (CONTROL, 0, 1, 2)]
        self.store.commit(
            [
                Commit(
                    shard,
                    claim.epoch,
                    1,
                    [(key(f"{shard + 1}"), b"%d" % shard)],
                    [],
                    [(body_key(shard + 1), b"%d" % shard)],
                )
                for shard, claim in claims
            ]
        )
        self.again()
        assert self.records() == [(key(f"{shard + 1}"), b"%d" % shard) for shard, _ in claims]
        assert self.store.bodies([body_key(shard + 1) for shard, _ in claims]) == [
            b"%d" % shard for shard, _ in claims
        ]

    def test_groups_apply_in_call_order(self) -> None:
        first, second = self.store.claim(0), self.store.claim(1)
        for number in range(20):
            self.commit(first if number % 2 else second, [(key("a"), b"%d" % number)], shard=(number + 1) % 2)
        self.again()
        assert self.store.get([key("a")]) == [b"19"]

    def test_a_group_without_commits_is_nothing(self) -> None:
        self.store.claim(0)
        self.store.commit([])
        assert self.records() == []
        assert self.store.claim(0).committed_at == 0

    def test_an_empty_commit_changes_only_the_time(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], at=1)
        self.commit(claim, at=2)
        assert self.records() == [(key("a"), b"1")]
        assert self.store.claim(0).committed_at == 2

    # Puts and deletes.

    def test_the_last_put_of_a_key_counts(self) -> None:
        claim = self.store.claim(0)
        for value in (b"first", b"", b"a longer one"):
            self.commit(claim, [(key("a"), value)], bodies=[(body_key(1), value)])
            assert self.store.get([key("a")]) == [value]
            assert self.store.bodies([body_key(1)]) == [value]
        self.again()
        assert self.records() == [(key("a"), b"a longer one")]

    def test_records_and_bodies_can_be_deleted(self) -> None:
        claim = self.store.claim(0)
        self.commit(
            claim,
            [(key("a"), b"1"), (key("b"), b"2")],
            bodies=[(body_key(1), b"one"), (body_key(2), b"two")],
        )
        self.commit(claim, deletes=[key("a"), body_key(2)])
        self.again()
        assert self.records() == [(key("b"), b"2")]
        assert self.store.get([key("a")]) == [None]
        assert self.store.bodies([body_key(1), body_key(2)]) == [b"one", None]

    def test_deleting_what_is_not_there_is_no_error(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], [key("never"), body_key(7)])
        self.commit(claim, deletes=[key("a")])
        self.commit(claim, deletes=[key("a")])
        assert self.records() == []

    def test_a_deleted_key_can_be_put_again(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], bodies=[(body_key(1), b"1")])
        self.commit(claim, deletes=[key("a"), body_key(1)])
        assert self.store.get([key("a")]) == [None]
        self.commit(claim, [(key("a"), b"2")], bodies=[(body_key(1), b"2")])
        self.again()
        assert self.store.get([key("a")]) == [b"2"]
        assert self.store.bodies([body_key(1)]) == [b"2"]

    def test_what_a_commit_both_puts_and_deletes_is_gone(self) -> None:
        claim = self.store.claim(0)
        for _ in range(2):
            self.commit(
                claim,
                [(key("a"), b"1"), (key("b"), b"2")],
                [key("a"), body_key(1)],
                [(body_key(1), b"one"), (body_key(2), b"two")],
            )
            assert self.records() == [(key("b"), b"2")]
            assert self.store.bodies([body_key(1), body_key(2)]) == [None, b"two"]
        self.again()
        assert self.records() == [(key("b"), b"2")]
        assert self.store.bodies([body_key(1), body_key(2)]) == [None, b"two"]

    # Ranges.

    def test_a_range_is_deleted_with_its_lower_and_without_its_upper_bound(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key(name), name.encode()) for name in "abcde"])
        self.commit(claim, ranges=[(key("b"), key("d"))])
        assert [value for _, value in self.records()] == [b"a", b"d", b"e"]
        self.commit(claim, ranges=[(key("a") + b"\0", key("d") + b"\0")])
        self.again()
        assert [value for _, value in self.records()] == [b"a", b"e"]

    def test_a_range_deletes_no_bodies(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], bodies=[(body_key(1), b"one")])
        self.commit(claim, ranges=[(LOWEST, HIGHEST)])
        self.again()
        assert self.records() == []
        assert self.store.bodies([body_key(1)]) == [b"one"]

    def test_an_empty_range_deletes_nothing(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key(name), b"") for name in "abc"])
        self.commit(claim, ranges=[(key("b"), key("b")), (key("x"), key("z"))])
        assert [name for name, _ in self.records()] == [key("a"), key("b"), key("c")]

    def test_several_ranges_in_one_commit_may_overlap(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key(name), b"") for name in "abcdefg"])
        self.commit(claim, ranges=[(key("a"), key("c")), (key("b"), key("d")), (key("f"), key("g"))])
        self.again()
        assert [name for name, _ in self.records()] == [key("d"), key("e"), key("g")]

    def test_a_range_deletes_what_its_own_commit_put_and_nothing_put_later(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"old"), (key("c"), b"old")])
        self.commit(
            claim, [(key("a"), b"1"), (key("b"), b"2"), (key("d"), b"3")], ranges=[(key("a"), key("d"))]
        )
        assert self.records() == [(key("d"), b"3")]
        self.commit(claim, [(key("b"), b"later")])
        self.again()
        assert self.records() == [(key("b"), b"later"), (key("d"), b"3")]

    def test_what_is_cleared_goes_before_the_puts_of_the_same_commit(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key(name), b"old") for name in "abcde"], bodies=[(body_key(1), b"one")])
        self.commit(
            claim,
            [(key("c"), b"new"), (key("f"), b"new")],
            [key("f")],
            clears=[(key("b"), key("d")), (key("d"), key("e")), (key("x"), key("x"))],
        )
        self.again()
        assert self.records() == [(key("a"), b"old"), (key("c"), b"new"), (key("e"), b"old")]
        assert self.store.bodies([body_key(1)]) == [b"one"]

    def test_a_commit_of_nothing_but_a_range_is_fenced_like_any_other(self) -> None:
        old = self.store.claim(0)
        self.commit(old, [(key("a"), b"1")])
        self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(old, ranges=[(LOWEST, HIGHEST)])
        assert self.records() == [(key("a"), b"1")]

    def test_many_records_are_deleted_by_one_range(self) -> None:
        claim = self.store.claim(0)
        puts = [(key(b"%06d" % number), b"%d" % number) for number in range(5_000)]
        self.commit(claim, puts)
        self.commit(claim, ranges=[(puts[10][0], puts[-10][0])])
        self.again()
        assert self.records() == puts[:10] + puts[-10:]

    def test_a_range_of_bodies_is_deleted_with_its_lower_and_without_its_upper_bound(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, bodies=[(body_key(number), b"%d" % number) for number in range(1, 6)])
        self.commit(claim, body_ranges=[(body_key(2), body_key(4))])
        self.again()
        found = self.store.bodies([body_key(number) for number in range(1, 6)])
        assert found == [b"1", None, None, b"4", b"5"]

    def test_a_range_of_bodies_deletes_no_records_and_no_bodies_of_others(self) -> None:
        claim = self.store.claim(0)
        other = keyspace.body_key(keyspace.prefix(1, 2), 1)
        self.commit(claim, [(key("a"), b"1")], bodies=[(body_key(1), b"body"), (other, b"other")])
        self.commit(claim, body_ranges=[keyspace.body_bounds(PREFIX), (body_key(9), body_key(9))])
        self.again()
        assert self.records() == [(key("a"), b"1")]
        assert self.store.bodies([body_key(1), other]) == [None, b"other"]

    def test_a_queue_is_deleted_with_its_records_and_its_bodies_at_once(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], bodies=[(body_key(1), b"old")])
        self.commit(
            claim,
            [(key("b"), b"2")],
            bodies=[(body_key(2), b"new")],
            ranges=[keyspace.queue_bounds(PREFIX)],
            body_ranges=[keyspace.body_bounds(PREFIX)],
        )
        self.again()
        assert self.records() == []
        assert self.store.bodies([body_key(1), body_key(2)]) == [None, None]
        claim = self.store.claim(0)
        self.commit(claim, bodies=[(body_key(3), b"later")])
        assert self.store.bodies([body_key(3)]) == [b"later"]

    def test_a_commit_of_nothing_but_a_range_of_bodies_is_fenced_like_any_other(self) -> None:
        old = self.store.claim(0)
        self.commit(old, bodies=[(body_key(1), b"kept")])
        self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(old, body_ranges=[keyspace.body_bounds(PREFIX)])
        assert self.store.bodies([body_key(1)]) == [b"kept"]

    def test_ranges_of_bodies_go_with_a_large_commit_too(self) -> None:
        claim = self.store.claim(0)
        large = bytes(SEGMENT_BYTES_MAX)
        self.commit(claim, bodies=[(body_key(number), large) for number in range(1, 9)])
        self.commit(
            claim,
            bodies=[(body_key(number), large) for number in range(9, 17)],
            body_ranges=[(body_key(1), body_key(5)), (body_key(12), body_key(14))],
        )
        self.again()
        found = self.store.bodies([body_key(number) for number in range(1, 17)])
        gone = {1, 2, 3, 4, 12, 13}
        assert [each is None for each in found] == [number in gone for number in range(1, 17)]

    # Syncing.

    def test_what_was_committed_without_a_sync_is_there_for_every_reader(self) -> None:
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), b"1")], bodies=[(body_key(1), b"one")], at=3, sync=False)
        assert self.records() == [(key("a"), b"1")]
        assert self.store.bodies([body_key(1)]) == [b"one"]
        self.commit(claim, [(key("b"), b"2")], [key("a")], at=4, sync=False)
        self.store.sync()
        self.store.sync()
        assert self.records() == [(key("b"), b"2")]
        self.again()
        assert self.records() == [(key("b"), b"2")]
        assert self.store.bodies([body_key(1)]) == [b"one"]
        assert self.store.claim(0).committed_at == 4

    def test_commits_with_and_without_a_sync_apply_in_call_order(self) -> None:
        claim = self.store.claim(0)
        for number in range(10):
            self.commit(claim, [(key("a"), b"%d" % number)], sync=number % 3 == 0)
        self.again()
        assert self.store.get([key("a")]) == [b"9"]

    def test_a_commit_without_a_sync_is_fenced_too(self) -> None:
        old = self.store.claim(0)
        self.store.claim(0)
        with pytest.raises(Fenced):
            self.commit(old, [(key("a"), b"1")], sync=False)
        assert self.records() == []

    # Large commits.

    def test_many_large_bodies_in_one_group_are_there_whole(self) -> None:
        claims = [self.store.claim(shard) for shard in range(3)]
        large = [
            (body_key(number), bytes([number]) * (SEGMENT_BYTES_MAX - number)) for number in range(1, 10)
        ]
        self.store.commit(
            [
                Commit(shard, claim.epoch, 7, [(key(f"{shard}"), b"x")], [], large[shard::3])
                for shard, claim in enumerate(claims)
            ]
        )
        self.again()
        assert self.records() == [(key(f"{shard}"), b"x") for shard in range(3)]
        assert self.store.bodies([name for name, _ in large]) == [value for _, value in large]
        assert [self.store.claim(shard).committed_at for shard in range(3)] == [7, 7, 7]

    def test_a_large_commit_deletes_and_replaces_as_a_small_one_does(self) -> None:
        claim = self.store.claim(0)
        large = bytes(SEGMENT_BYTES_MAX)
        self.commit(
            claim, [(key("a"), b"1"), (key("b"), b"1")], bodies=[(body_key(1), b"1"), (body_key(2), b"1")]
        )
        self.commit(
            claim,
            [(key("b"), b"2"), (key("c"), b"2"), (key("d"), b"2")],
            [key("a"), body_key(1), body_key(4)],
            [(body_key(2), large), (body_key(3), large), (body_key(4), large)],
            [(key("c"), key("d"))],
        )
        self.again()
        assert self.records() == [(key("b"), b"2"), (key("d"), b"2")]
        found = self.store.bodies([body_key(number) for number in range(1, 5)])
        assert found == [None, large, large, None]

    def test_a_large_commit_under_an_old_epoch_leaves_nothing(self) -> None:
        old = self.store.claim(0)
        self.store.claim(0)
        names = [body_key(number) for number in range(1, 4)]
        with pytest.raises(Fenced):
            self.commit(old, [(key("a"), b"")], bodies=[(name, bytes(SEGMENT_BYTES_MAX)) for name in names])
        self.again()
        assert self.records() == []
        assert self.store.bodies(names) == [None] * 3

    # Backups.

    def test_a_copy_has_what_there_was_and_nothing_that_came_later(self, tmp_path: Path) -> None:
        self.store.shards(8)
        claim, other = self.store.claim(0), self.store.claim(1)
        large = bytes(range(256)) * 1024
        self.commit(claim, [(key("a"), b"1"), (key("b"), b"1")], bodies=[(body_key(1), large)], at=5)
        self.commit(other, [(key("c"), b"1")], shard=1, at=6, sync=False)
        copy = self.copied(tmp_path / "copy")
        try:
            self.commit(
                claim, [(key("a"), b"2"), (key("d"), b"2")], [key("b"), body_key(1)], [(body_key(2), b"2")]
            )
            assert list(copy.scan(LOWEST, HIGHEST)) == [(key(name), b"1") for name in "abc"]
            assert copy.bodies([body_key(1), body_key(2)]) == [large, None]
            assert copy.shards(3) == 8
            assert [copy.claim(shard).committed_at for shard in (0, 1)] == [5, 6]
        finally:
            copy.close()
        self.again()
        assert self.records() == [(key("a"), b"2"), (key("c"), b"1"), (key("d"), b"2")]

    def test_a_copy_lives_on_without_touching_its_original(self, tmp_path: Path) -> None:
        self.store.shards(8)
        self.commit(self.store.claim(0), [(key("a"), b"1")], bodies=[(body_key(1), b"1")])
        copy = self.copied(tmp_path / "copy")
        try:
            epoch = copy.claim(0).epoch
            copy.commit([Commit(0, epoch, 9, [(key("z"), b"9")], [key("a"), body_key(1)], [])])
            assert list(copy.scan(LOWEST, HIGHEST)) == [(key("z"), b"9")]
        finally:
            copy.close()
        self.again()
        assert self.records() == [(key("a"), b"1")]
        assert self.store.bodies([body_key(1)]) == [b"1"]

    def test_a_copy_is_not_made_where_something_is(self, tmp_path: Path) -> None:
        self.store.shards(8)
        (tmp_path / "mine").write_text("kept")
        with pytest.raises(StoreError):
            self.store.backup(str(tmp_path))
        assert [each.name for each in tmp_path.iterdir()] == ["mine"]

    def copied(self, directory: Path) -> Store:
        """A copy of the store, opened; a store that can't be copied says so, and the test ends there."""
        if type(self).open_copy is StoreConformance.open_copy:
            with pytest.raises(StoreError):
                self.store.backup(str(directory))
            assert not directory.exists()
            pytest.skip("this store can't be copied, and says so")
        self.store.backup(str(directory))
        return self.open_copy(directory)

    # Reading.

    def test_get_answers_in_the_order_asked_and_none_for_what_is_missing(self) -> None:
        self.commit(self.store.claim(0), [(key("a"), b"1"), (key("b"), b""), (key("c"), b"3")])
        asked = [key("c"), key("x"), key("b"), key("a"), key("c")]
        assert self.store.get(asked) == [b"3", None, b"", b"1", b"3"]
        assert self.store.get([]) == []

    def test_bodies_answers_in_the_order_asked_and_none_for_what_is_missing(self) -> None:
        self.commit(self.store.claim(0), bodies=[(body_key(1), b"one"), (body_key(2), b"")])
        assert self.store.bodies([body_key(2), body_key(3), body_key(1)]) == [b"", None, b"one"]
        assert self.store.bodies([]) == []

    def test_bodies_and_records_are_apart(self) -> None:
        self.commit(self.store.claim(0), [(key("a"), b"1")], bodies=[(body_key(1), b"body")])
        assert self.records() == [(key("a"), b"1")]
        assert self.store.get([body_key(1)]) == [None]
        assert self.store.bodies([key("a")]) == [None]

    def test_a_scan_includes_its_lower_and_excludes_its_upper_bound(self) -> None:
        self.commit(self.store.claim(0), [(key(name), name.encode()) for name in "abcde"])
        found = [value for _, value in self.store.scan(key("b"), key("d"))]
        assert found == [b"b", b"c"]
        between = self.store.scan(key("b") + b"\0", key("d") + b"\0")
        assert [value for _, value in between] == [b"c", b"d"]

    def test_a_scan_between_equal_or_crossed_bounds_is_empty(self) -> None:
        self.commit(self.store.claim(0), [(key(name), b"") for name in "abc"])
        assert list(self.store.scan(key("b"), key("b"))) == []
        assert list(self.store.scan(key("c"), key("a"))) == []
        assert list(self.store.scan(key("x"), key("z"))) == []

    def test_a_scan_is_in_key_order_byte_by_byte(self) -> None:
        tails = [
            b"",
            b"\0",
            b"\0\0",
            b"\0\xff",
            b"\x01",
            b"a",
            b"a\0",
            b"aa",
            b"\x7f",
            b"\x80",
            b"\xff",
            b"\xff\0",
        ]
        self.commit(self.store.claim(0), [(key(tail), tail) for tail in reversed(tails)])
        self.again()
        assert self.records() == [(key(tail), tail) for tail in tails]

    def test_a_scan_shows_the_records_of_every_shard(self) -> None:
        for shard in (2, 0, 1):
            self.commit(self.store.claim(shard), [(key(f"{shard}"), b"")], shard=shard)
        assert [found for found, _ in self.records()] == [key("0"), key("1"), key("2")]

    def test_keys_and_values_are_any_bytes(self) -> None:
        every = bytes(range(256))
        tails = [b"\0", b"\xff\xff", b"a\0b", every[:20]]
        values = [b"\0", b"\xff" * 9, b"\0\0\xff\0", every, b"'; --\\", "ä€".encode()]
        puts = [(key(tail + b"%d" % at), value) for tail in tails for at, value in enumerate(values)]
        bodies = [(body_key((1 << 96) - 1 - at), value) for at, value in enumerate(values)]
        self.commit(self.store.claim(0), puts, bodies=bodies)
        self.again()
        assert self.records() == sorted(puts)
        assert self.store.get([name for name, _ in puts]) == [value for _, value in puts]
        assert self.store.bodies([name for name, _ in bodies]) == values

    def test_a_key_may_be_as_long_as_any_there_is(self) -> None:
        tails = [bytes(random.Random(seed).randbytes(KEY_BYTES_MAX + 20)) for seed in range(3)]
        puts = sorted((key(tail), b"%d" % at) for at, tail in enumerate(tails))
        self.commit(self.store.claim(0), puts)
        self.again()
        assert self.records() == puts

    def test_large_values_come_back_whole(self) -> None:
        large = bytes(range(256)) * 4096
        claim = self.store.claim(0)
        self.commit(claim, [(key("a"), large)], bodies=[(body_key(1), large), (body_key(2), large[::-1])])
        self.again()
        assert self.store.get([key("a")]) == [large]
        assert self.store.bodies([body_key(2), body_key(1)]) == [large[::-1], large]

    def test_many_records_in_one_commit(self) -> None:
        puts = [(key(b"%06d" % number), b"%d" % number) for number in range(5_000)]
        self.commit(self.store.claim(0), puts)
        self.again()
        assert self.records() == puts


TAILS = [b"", b"\0", b"\0\xff", b"a", b"a\0", b"\xff", b"\xff\xff"]
SHARDS = range(CONTROL, 3)


def keys_of(shard: int) -> list[bytes]:
    """The keys of a shard's records: no other shard has them."""
    return [key(bytes([shard + 1]) + tail) for tail in TAILS]


def body_keys_of(shard: int) -> list[bytes]:
    return [body_key(2 * (shard + 1) + number) for number in (1, 2)]


VALUES = st.binary(max_size=12)
LARGE = st.sampled_from([bytes(SEGMENT_BYTES_MAX), b"x" * (SEGMENT_BYTES_MAX - 1)])
"""Two of these are more than a store writes at once."""
KEYS = st.sampled_from([name for shard in SHARDS for name in keys_of(shard) + body_keys_of(shard)])


Bounds = list[tuple[bytes, bytes]]
Changes = tuple[list[Record], list[bytes], list[Record], Bounds, Bounds]


@st.composite
def changes(draw: st.DrawFn, shard: int) -> Changes:
    """Puts, deletes, bodies, ranges and ranges of bodies of one commit."""
    mine = st.sampled_from(keys_of(shard))
    puts = draw(st.dictionaries(mine, VALUES, max_size=4))
    bodies = draw(st.dictionaries(st.sampled_from(body_keys_of(shard)), VALUES | LARGE))
    deletes = draw(st.lists(mine | st.sampled_from(body_keys_of(shard)), max_size=4, unique=True))
    ranges = draw(bounds(keys_of(shard)))
    lowest, highest = body_keys_of(shard)
    body_ranges = draw(bounds([lowest, highest, highest + b"\0"]))
    return list(puts.items()), deletes, list(bodies.items()), ranges, body_ranges


def bounds(names: list[bytes]) -> st.SearchStrategy[Bounds]:
    """A few ranges between some keys."""
    name = st.sampled_from(names)
    pairs = st.lists(st.tuples(name, name), max_size=2)
    return pairs.map(lambda found: [(min(pair), max(pair)) for pair in found])


class StoreMachine(RuleBasedStateMachine):
    """Random calls to a store, compared with plain dicts."""

    def make(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Close ``store`` and open what it left; a store that leaves nothing is returned as it is."""
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.store = self.make()
        self.kept: dict[bytes, bytes] = {}
        self.kept_bodies: dict[bytes, bytes] = {}
        self.epochs: dict[int, int] = {}
        self.times: dict[int, int] = {}
        self.now = 0

    @rule(shard=st.sampled_from(SHARDS))
    def claim(self, shard: int) -> None:
        claim = self.store.claim(shard)
        assert claim.epoch > self.epochs.get(shard, 0)
        assert claim.committed_at == self.times.get(shard, 0)
        self.epochs[shard] = claim.epoch

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), fenced=st.integers(0, 5), sync=st.booleans())
    def commit(self, data: st.DataObject, fenced: int, sync: bool) -> None:
        shards = data.draw(st.lists(st.sampled_from(sorted(self.epochs)), unique=True))
        self.now += 1
        group = [Commit(shard, self.epochs[shard], self.now, *data.draw(changes(shard))) for shard in shards]
        if fenced < len(group):
            group[fenced].epoch -= 1
            with pytest.raises(Fenced):
                self.store.commit(group, sync=sync)
            return
        self.store.commit(group, sync=sync)
        for commit in group:
            self.kept.update(commit.puts)
            self.kept_bodies.update(commit.bodies)
            for name in commit.deletes:
                self.kept.pop(name, None)
                self.kept_bodies.pop(name, None)
            for lower, upper in commit.ranges:
                for name in [name for name in self.kept if lower <= name < upper]:
                    del self.kept[name]
            for lower, upper in commit.body_ranges:
                for name in [name for name in self.kept_bodies if lower <= name < upper]:
                    del self.kept_bodies[name]
            self.times[commit.shard] = self.now

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule()
    def restart(self) -> None:
        self.store = self.reopen(self.store)

    @rule(keys=st.lists(KEYS, max_size=4))
    def get(self, keys: list[bytes]) -> None:
        assert self.store.get(keys) == [self.kept.get(name) for name in keys]
        assert self.store.bodies(keys) == [self.kept_bodies.get(name) for name in keys]

    @rule(lower=KEYS, upper=KEYS)
    def scan(self, lower: bytes, upper: bytes) -> None:
        wanted = [(name, self.kept[name]) for name in sorted(self.kept) if lower <= name < upper]
        assert list(self.store.scan(lower, upper)) == wanted

    @invariant()
    def everything_is_there(self) -> None:
        if hasattr(self, "store"):
            assert list(self.store.scan(LOWEST, HIGHEST)) == sorted(self.kept.items())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
