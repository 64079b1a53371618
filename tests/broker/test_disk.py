"""When the store may grow: below a mark not, after a commit without room not for a while, and said truly."""

import asyncio
import logging
import threading

import pytest

from forebay.broker.committer import Committer
from forebay.broker.disk import AGAIN_S, AGAIN_TIMES, HIT_S, LOOK_S, Disk
from forebay.core.api.jobs import CronPut, Job
from forebay.core.api.queries import CronList, CronsFound
from forebay.core.errors import Busy
from forebay.core.words import DEFAULT
from forebay.store.base import Full, Room
from forebay.store.memory import MemoryStore
from tests.broker.loop import FakeLoop, ObedientStore, Rig, payloads, pop, push

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


def test_a_disk_that_fills_again_and_again_is_looked_at_by_one_timer() -> None:
    store = Filling()
    rig = Rig(store, disk_free_min_bytes=MARK)
    before = rig.loop.timers()
    for _ in range(9):
        rig.node.disk._set_full(True)
        rig.node.disk._set_full(False)
    rig.node.disk._set_full(True)
    rig.loop.run_ready()
    assert rig.loop.timers() <= before + 1
    rig.close()
    assert rig.loop.timers() == 0


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


class Filling(ObedientStore):
    """The same for a whole node."""

    free_bytes = 10 * MARK

    def room(self, now: float) -> Room:  # type: ignore[override]
        return Room(self.free_bytes)


def tick() -> CronPut:
    """A cron that fires every ten seconds."""
    return CronPut(DEFAULT, "tick", "q", Job(b"cron"), every_ms=10_000)


def error_of_tick(rig: Rig) -> str:
    found = rig.get(CronList(DEFAULT))
    assert isinstance(found, CronsFound)
    return found.crons[0].error


def test_crons_wait_for_room_on_the_disk_and_fire_their_last_slot_without_anybody_asking() -> None:
    store = Filling()
    rig = Rig(store, disk_free_min_bytes=MARK)
    assert isinstance(rig.get(tick()), CronsFound)
    store.free_bytes = MARK - 1
    rig.loop.advance(LOOK_MS)
    rig.get(push("one that has the disk looked at"))
    assert isinstance(rig.get(push("2")), Busy)
    rig.loop.advance(45_000)
    assert payloads(rig.get(pop(10))) == ["one that has the disk looked at"]
    assert rig.node.engine.next_due_at() > rig.loop.now(), "a cron that waits keeps the loop busy"
    assert error_of_tick(rig) == "it waits for room on the server's disk"
    store.free_bytes = 2 * MARK
    rig.loop.advance(round(AGAIN_S * 1_000))
    rig.loop.run_ready()
    assert payloads(rig.get(pop(10))) == ["cron"]
    assert error_of_tick(rig) == ""
    rig.close()
    assert not rig.loop.timers()


def test_a_cron_whose_message_found_no_room_waits_as_long_as_all_that_grows_and_then_fires_once() -> None:
    store = Filling()
    rig = Rig(store, disk_free_min_bytes=MARK)
    assert isinstance(rig.get(tick()), CronsFound)
    store.commit_error = Full("No space left on device")
    rig.loop.advance(10_000)
    rig.await_reload()
    assert rig.node.disk.is_full
    assert payloads(rig.get(pop(10))) == []
    rig.loop.advance(HIT_MS + round(AGAIN_S * 1_000))
    assert payloads(rig.get(pop(10))) == ["cron"]
    rig.close()
