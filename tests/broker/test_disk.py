"""When the store may grow: below a mark not, after a commit without room not for a while, and said truly."""

import asyncio
import logging
import threading

import pytest

from forebay.broker.committer import Committer
from forebay.broker.disk import AGAIN_TIMES, HIT_S, LOOK_S, Disk
from forebay.store.base import Room
from forebay.store.memory import MemoryStore
from tests.broker.loop import FakeLoop

MARK = 1_000_000
LOOK_MS = round(LOOK_S * 1_000) + 1
HIT_MS = round(HIT_S * 1_000)


class Spacious(MemoryStore):
    """A store on a disk with as much room as a test says."""

    free_bytes = 10 * MARK

    def room(self, now: float) -> Room:  # type: ignore[override]
        return Room(self.free_bytes)


class Watch:
    """A disk that is looked at, on a loop whose time only the test moves."""

    def __init__(self) -> None:
        self.store, self.loop = Spacious(), FakeLoop()
        loop = self.loop.as_loop
        self.disk = Disk(self.store, Committer(self.store, loop), loop, MARK)

    def see(self, free_bytes: int) -> bool:
        """Whether pushes are refused once the disk is seen to have so much room."""
        self.store.free_bytes = free_bytes
        self.pass_ms(LOOK_MS)
        return self.disk.is_full

    def pass_ms(self, ms: int) -> None:
        self.loop.advance(ms)
        self.disk.look()
        self.loop.run_ready()


def test_below_the_mark_nothing_grows_and_at_the_mark_it_does() -> None:
    watch = Watch()
    assert not watch.see(MARK)
    assert watch.disk.may_grow()
    assert watch.see(MARK - 1)
    assert not watch.disk.may_grow()


def test_growth_goes_on_only_with_clearly_more_room_than_the_mark(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    again = round(AGAIN_TIMES * MARK)
    assert watch.see(MARK - 1)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert watch.see(MARK + 1)
            assert watch.see(MARK - 1)
    assert not caplog.records
    assert watch.see(again - 1)
    assert not watch.see(again)
    assert not watch.see(MARK)


def test_after_a_commit_without_room_nothing_grows_for_a_while_whatever_is_free() -> None:
    watch = Watch()
    watch.disk.hit_end()
    looks = HIT_MS // LOOK_MS
    for _ in range(looks):
        assert watch.see(10 * MARK)
    watch.pass_ms(HIT_MS - looks * LOOK_MS - 1)
    assert watch.disk.is_full
    watch.pass_ms(1)
    assert not watch.see(10 * MARK)


def test_a_warning_does_not_say_that_little_is_free_when_much_is() -> None:
    watch = Watch()
    watch.disk.hit_end()
    said = watch.disk.warning() or ""
    assert "10.0 MB are free now" in said
    assert "quota" in said
    assert "below" not in said


def test_a_warning_says_how_much_is_free_and_how_much_is_needed() -> None:
    watch = Watch()
    watch.see(2 * MARK - 1)
    assert "below 1.0 MB nothing more will be taken" in (watch.disk.warning() or "")
    watch.see(MARK // 2)
    assert "has 0.5 MB free, and below 1.0 MB nothing more is taken" in (watch.disk.warning() or "")
    watch.see(round(1.1 * MARK))
    assert "has 1.1 MB free, and nothing more is taken below 1.2 MB" in (watch.disk.warning() or "")
    watch.see(3 * MARK)
    assert watch.disk.warning() is None


def test_who_waits_for_a_look_sees_the_disk_as_it_is_now_and_waits_for_no_slow_one() -> None:
    class InThread(Spacious):
        blocking = True
        leave = threading.Event()

        def room(self, now: float) -> Room:  # type: ignore[override]
            assert self.leave.wait(30)
            return super().room(now)

    async def watched() -> None:
        store, loop = InThread(), asyncio.get_running_loop()
        store.leave.set()
        committer = Committer(store, loop)
        disk = Disk(store, committer, loop, MARK)
        store.free_bytes, disk._looked_at = 0, float("-inf")
        await asyncio.gather(disk.looked(), disk.looked())
        assert disk.is_full
        store.free_bytes, disk._looked_at = 10 * MARK, float("-inf")
        store.leave.clear()
        await disk.looked()
        assert disk.is_full
        store.leave.set()
        await disk.looked()
        assert not disk.is_full
        committer.close()

    asyncio.run(watched())
