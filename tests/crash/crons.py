"""Kills the server around the slots of crons: each slot comes once.

    python -m tests.crash.crons --kills 200 --seed 1

Four crons run: by the calendar at every second, and every half second, each with ``missed`` all and last. A
fifth comes a number of times and is removed.
The kills are aimed at the slots: mostly within some milliseconds of one, where the message is pushed, the
slot moves on and both are kept. A message does not tell its slot, but the time it was pushed and its place in
the log do.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.asking import Asker, Found
from tests.crash.ledger import Violation
from tests.crash.load import now_ms
from tests.crash.process import Process
from tests.serving import PATIENCE_S, Raw, Reply, Request

FLAGS = ("--shards", "8")
NEAR_MS = (-3.0, 15.0)
"""Where most of the kills are, measured from a slot."""
FAR_MS = (-250.0, 400.0)
"""Where the others are."""
NEAR_PART = 0.75
SPIN_MS = 2.0
"""The last of a wait is not slept through: the system wakes a sleeper too late."""
LIMIT = 9
"""How often the cron comes that is removed then."""
LEASE_MS = 10_000
LOOK_S = 0.01
"""How long to wait before a server is asked again that has not made up for everything yet."""

Say = Callable[[str], object]


@dataclass
class Cron:
    """A cron, and what is known about it."""

    name: str
    schedule: str
    every_ms: int
    missed: str
    limit: int | None = None
    """How often it comes."""
    first: int = 0
    """Its first slot."""
    last_at: int = 0
    fired: int = 0
    """As it was told last: it does not go back."""
    delivered: set[int] = field(default_factory=set)
    """Ids that somebody has had."""
    log: list[Found] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.fired >= self.limit

    def last_slot(self, now: int) -> int:
        """The last slot up to an instant; one before the first if there was none."""
        return self.first + (now - self.first) // self.every_ms * self.every_ms

    def is_behind(self, now: int) -> bool:
        """Whether it has not come at the last slot up to an instant."""
        return not self.is_over and now >= self.first and self.last_at < self.last_slot(now)


def _crons() -> list[Cron]:
    found = []
    for missed in ("all", "last"):
        found.append(Cron(f"second-{missed}", "* * * * * *", 1_000, missed))
        found.append(Cron(f"half-{missed}", "@every 500ms", 500, missed))
    return [*found, Cron("limited", "@every 500ms", 500, "all", LIMIT)]


@dataclass
class Figures:
    """What a run came to."""

    kills: int = 0
    slots: int = 0
    """Slots of crons with ``missed`` all: all of them came."""
    messages: int = 0
    passed_over: int = 0
    """Slots of crons with ``missed`` last that no server ran at, and that another came for."""
    near: int = 0
    """Kills from 3 ms before up to 15 ms after a slot."""
    cut_off: int = 0
    """Slots, of all crons, that had come when the server was killed, and were made up for after it."""
    just_kept: int = 0
    """Slots that were kept at most 15 ms before the kill."""


class Life:
    """One data directory, and the crons in it."""

    def __init__(self, home: Path, rng: random.Random, planted: str = "") -> None:
        self._home = home
        self._rng = rng
        self._planted = planted
        self._killed_at = 0
        self.crons = _crons()
        self.figures = Figures()

    def process(self) -> Process:
        return Process(self._home, *FLAGS, planted=self._planted)

    def begin(self) -> None:
        """Make the crons, and kill the server for the first time."""
        with self.process() as server, server.connect() as connection:
            for cron in self.crons:
                request: Request = {
                    "cmd": "CRONPUT",
                    "name": cron.name,
                    "queue": cron.name,
                    "message": {"payload": cron.name},
                }
                request |= {"schedule": cron.schedule, "missed": cron.missed, "limit": cron.limit}
                cron.first = Asker(connection).ask(request)["next_at"]
            self._aim(server)
        server.check_log()

    def cycle(self) -> None:
        """Start, check, wait for a slot to come up, kill."""
        with self.process() as server:
            with server.connect() as connection:
                self.check(Asker(connection))
            self._aim(server)
        server.check_log()

    def end(self) -> None:
        with self.process() as server, server.connect() as connection:
            self.check(Asker(connection))
        server.check_log()

    # The kill.

    def _aim(self, server: Process) -> None:
        """Kill the server around the next slot of a cron, while others wait for what it brings."""
        cron = self._rng.choice([cron for cron in self.crons if not cron.is_over])
        near = self._rng.random() < NEAR_PART
        off_ms = self._rng.uniform(*(NEAR_MS if near else FAR_MS))
        waiting = [server.connect() for _ in self.crons]
        for each, connection in zip(self.crons, waiting, strict=True):
            request = {"cmd": "POP", "queue": each.name, "count": 100, "lease_ms": LEASE_MS}
            connection.send(*[request | {"wait_ms": 5_000}] * 3)
        slot = cron.last_slot(now_ms()) + cron.every_ms
        target_ms = slot + off_ms
        if target_ms < _now_ms():
            target_ms += cron.every_ms
        _wait_until(target_ms)
        server.kill()
        self._killed_at = now_ms()
        self.figures.kills += 1
        self.figures.near += near
        for each, connection in zip(self.crons, waiting, strict=True):
            each.delivered.update(_drained(connection))

    # What must be so.

    def check(self, asker: Asker) -> None:
        """Look at everything once the crons have come at all slots up to now.

        That may take a server some turns, and its clock may be a little behind ours.
        """
        began, give_up_at = now_ms(), time.monotonic() + PATIENCE_S
        self._look(asker)
        while behind := [cron for cron in self.crons if cron.is_behind(began)]:
            if time.monotonic() > give_up_at:
                raise Violation(f"they did not come at their last slots before {began}: {behind}")
            time.sleep(LOOK_S)
            self._look(asker)
        for cron in self.crons:
            log = asker.log(cron.name)
            told = {each["name"]: each["fired"] for each in asker.ask({"cmd": "CRONS"})["crons"]}
            if not cron.fired <= len(log) <= told.get(cron.name, cron.limit or 0):
                raise Violation(f"{cron.name}: {len(log)} messages, fired {cron.fired} times, then {told}")
            self._check_log(cron, log)

    def _look(self, asker: Asker) -> None:
        """See how far the crons have come."""
        shown = {each["name"]: each for each in asker.ask({"cmd": "CRONS"})["crons"]}
        now = now_ms()
        for cron in self.crons:
            if cron.name in shown:
                self._check_shown(cron, shown[cron.name], now)
            elif cron.limit is None:
                raise Violation(f"{cron.name} is gone; left are {sorted(shown)}")
            else:
                # It was removed with the last of its messages.
                cron.fired, cron.last_at = cron.limit, cron.first + (cron.limit - 1) * cron.every_ms

    def _check_shown(self, cron: Cron, told: Reply, now: int) -> None:
        """What CRONS tells is a slot that has come, and never goes back."""
        last, upcoming = told["last_at"] or 0, told["next_at"]
        if told["skipped"] or told["error"] or cron.is_over:
            raise Violation(f"{cron.name} was skipped, or came after it was over: {told}")
        if last < cron.last_at or told["fired"] < cron.fired:
            raise Violation(f"{cron.name} went back from {cron.last_at}, {cron.fired}: {told}")
        if last and upcoming != last + cron.every_ms:
            raise Violation(f"{cron.name}: {upcoming} is not the slot after {last}")
        if (last - cron.first) % cron.every_ms and last:
            raise Violation(f"{cron.name}: {last} is no slot")
        if last > now:
            raise Violation(f"{cron.name} came at {last}, and it is {now}")
        cron.last_at, cron.fired = last, told["fired"]

    def _check_log(self, cron: Cron, log: list[Found]) -> None:
        """Each message is at a slot of its own, and nothing that was seen is gone."""
        if log[: len(cron.log)] != cron.log:
            raise Violation(f"{cron.name}: what was read before the kill has changed")
        strays = cron.delivered - {each.id for each in log}
        if strays:
            raise Violation(f"{cron.name}: {sorted(strays)} were delivered, and are not in the log")
        if cron.missed == "all":
            self._check_all(cron, log)
        else:
            self._check_last(cron, log)
        self._count(cron, log)
        cron.log = log

    def _check_all(self, cron: Cron, log: list[Found]) -> None:
        """The messages are those of the slots from the first on, one each."""
        for number, each in enumerate(log):
            slot = cron.first + number * cron.every_ms
            if each.created_at < slot:
                raise Violation(f"{cron.name}: message {number} at {each.created_at}, before its slot {slot}")
        slots = (cron.last_at - cron.first) // cron.every_ms + 1 if cron.last_at else 0
        if cron.fired != slots:
            raise Violation(f"{cron.name}: {cron.fired} times in {slots} slots")

    def _check_last(self, cron: Cron, log: list[Found]) -> None:
        """No two messages are of one slot: a message is of the last slot before it was pushed."""
        slot = cron.first - cron.every_ms
        for each in log:
            slot = max(slot + cron.every_ms, cron.last_slot(each.created_at))
            if slot > each.created_at:
                raise Violation(f"{cron.name}: {each} came before {slot}, and those before it have their own")

    def _count(self, cron: Cron, log: list[Found]) -> None:
        """See how close the last kill was to what came before and after it."""
        fresh = [each.created_at for each in log[len(cron.log) :]]
        kept = [at for at in fresh if at <= self._killed_at]
        self.figures.just_kept += bool(kept) and self._killed_at - kept[-1] <= NEAR_MS[1]
        slot = cron.last_slot(self._killed_at)
        if slot >= cron.first and not cron.is_over and self._killed_at - slot <= NEAR_MS[1]:
            self.figures.cut_off += not any(at >= slot for at in kept)

    def add_up(self) -> None:
        for cron in self.crons:
            slots = (cron.last_at - cron.first) // cron.every_ms + 1
            self.figures.messages += len(cron.log)
            if cron.missed == "all":
                self.figures.slots += slots
            else:
                self.figures.passed_over += slots - cron.fired


def _now_ms() -> float:
    return time.time_ns() / 1e6


def _wait_until(target_ms: float) -> None:
    left_ms = target_ms - _now_ms() - SPIN_MS
    if left_ms > 0:
        time.sleep(left_ms / 1_000)
    while _now_ms() < target_ms:
        pass


def _drained(connection: Raw) -> list[int]:
    """Ids of what was delivered on a connection before its server was killed."""
    with connection:
        return [int(each["id"]) for reply in connection.drain() for each in reply["messages"]]


def run(kills: int, seed: int, say: Say = lambda line: None, planted: str = "") -> Figures:
    """So many kills from a seed; ``Violation`` tells what broke, and leaves the directory."""
    home = Path(tempfile.mkdtemp(prefix="forebay-crons-"))
    life = Life(home, random.Random(seed), planted)
    try:
        life.begin()
        while life.figures.kills < kills:
            life.cycle()
            if life.figures.kills % 10 == 0:
                say(f"{life.figures.kills} kills: {sum(len(cron.log) for cron in life.crons)} messages")
        life.end()
    except BaseException as error:
        error.add_note(f"seed {seed}, kill {life.figures.kills}, data in {home}")
        raise
    life.add_up()
    shutil.rmtree(home)
    return life.figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.crons", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    figures = run(given.kills, given.seed, lambda line: sys.stdout.write(line + "\n"))
    sys.stdout.write(
        f"{figures.kills} kills, {figures.near} of them aimed within 15 ms of a slot:"
        f" every slot came once, in {figures.messages:,} messages.\n"
        f"Of crons that make up for all they missed {figures.slots:,} slots, none missing;"
        f" of those that make up for the last one {figures.passed_over:,} passed over, none twice.\n"
        f"Slots that had come up to 15 ms before a kill: {figures.just_kept:,} were kept,"
        f" {figures.cut_off:,} were cut off and made up for.\n"
    )


if __name__ == "__main__":
    main()
