"""Kills the server while it tells thousands of messages that what they wait for is done.

    python -m tests.crash.dependents --rounds 60 --seed 1

A round: one message, and thousands that wait for it, each pushed for itself; the one is acked, and the server
is killed while it tells the others, a step at a time; again while it goes on after the restart. In the end
all are released, each once. Every other round the one is failed instead, and all that wait for it fail.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import msgpack

from forebay.store.rocksdb.opening import open_db
from forebay.store.rocksdb.store import RocksReader
from tests.crash.asking import Asker, Found
from tests.crash.ledger import Violation
from tests.crash.process import DATA, Process
from tests.serving import Request

FLAGS = ("--shards", "8")
FIRST = "first"
THEN = ("then", "then-too", "then-last")
GROUPS = ("default", "other")
PARTITIONS = ("default", "a")
DEPENDENTS = 5_000
KILLS = (1, 4)
"""How often the server is killed in a round."""
SOON = (-3.2, -0.5)
"""After how long the server is killed: powers of ten of a second, as nobody knows how fast the machine is."""
STARTING_S = (0.1, 0.6)
"""The same for a server that starts."""
PARKED = b"y"
"""The kind of record that a message has which waits for others."""
STUCK_S = 2.0
"""How long telling may take to tell one more."""
LEASE_MS = 3_600_000
FRESH_AFTER = 5
"""Rounds after which a new directory is taken."""

Say = Callable[[str], object]


@dataclass
class Figures:
    """What a run came to."""

    rounds: int = 0
    kills: int = 0
    released: int = 0
    failed: int = 0
    halfway: int = 0
    """Kills that left some told and some not, as the files tell."""
    undone: int = 0
    """Kills that left all of them waiting."""


@dataclass
class Round:
    """One message, and those that wait for it."""

    number: int
    target: int
    lease: str
    waiting: dict[int, str]
    """Payload by id."""
    fails: bool
    """Whether the one fails in the end, and with it the others."""
    confirmed: bool = False
    """Whether its end was."""
    left: int = 0
    """How many still waited when somebody looked last."""


class Life:
    """A data directory, and the rounds in it."""

    def __init__(self, home: Path, rng: random.Random, figures: Figures, count: int, planted: str) -> None:
        self._home = home
        self._rng = rng
        self._figures = figures
        self._count = count
        self._planted = planted
        self._got: dict[str, set[int]] = {group: set() for group in GROUPS}
        """Ids that each group has had, of this round."""

    def play(self, number: int) -> None:
        """One round."""
        self._got = {group: set() for group in GROUPS}
        with self._process() as server:
            with server.connect() as connection:
                round = self._begin(Asker(connection), number)
            self._end_and_kill(server, round)
        server.check_log()
        self._killed(round)
        for _ in range(self._rng.randrange(*KILLS) - 1):
            self._start_and_kill(round)
            self._killed(round)
        with self._process() as server, server.connect() as connection:
            self._check(Asker(connection), round)
        server.check_log()
        self._figures.rounds += 1

    def _process(self) -> Process:
        return Process(self._home, *FLAGS, planted=self._planted)

    def _begin(self, asker: Asker, number: int) -> Round:
        """The one message, in somebody's hands, and all that wait for it."""
        target = int(
            asker.ask({"cmd": "PUSH", "queue": FIRST, "payload": f"r{number}", "max_attempts": 1})["id"]
        )
        request: Request = {"cmd": "POP", "queue": FIRST, "wait_ms": 0, "lease_ms": LEASE_MS}
        message = asker.ask(request)["messages"][0]
        if int(message["id"]) != target:
            raise Violation(f"{message} was delivered, and not {target}")
        for queue in THEN:
            for group in GROUPS:
                asker.pop_all(queue, LEASE_MS, group)
        names = [f"r{number}.{at}" for at in range(self._count)]
        replies = asker.ask_all(
            {
                "cmd": "PUSH",
                "queue": self._rng.choice(THEN),
                "partition": self._rng.choice(PARTITIONS),
                "payload": name,
                "depends_on": [target],
                "durability": "os",
            }
            for name in names
        )
        waiting = {int(reply["id"]): name for reply, name in zip(replies, names, strict=True)}
        fails = number % 2 == 1
        return Round(number, target, message["lease"], waiting, fails, left=self._count)

    # Kills.

    def _end_and_kill(self, server: Process, round: Round) -> None:
        """End the one message, and kill the server somewhere in what follows from that."""
        request = _ending(round)
        with server.connect() as connection:
            connection.send(request)
            if self._rng.random() < 0.7:
                replies = [connection.receive()]
                self._wait_a_little()
                server.kill()
            else:
                self._wait_a_little()
                server.kill()
                replies = connection.drain()
        if replies:
            if not replies[0]["ok"]:
                raise Violation(f"{request} was refused: {replies[0]}")
            round.confirmed = True

    def _wait_a_little(self) -> None:
        time.sleep(10 ** self._rng.uniform(*SOON))

    def _start_and_kill(self, round: Round) -> None:
        """Kill a server while it starts and goes on telling, or a little later."""
        server = self._process()
        try:
            if self._rng.random() < 0.5:
                server.said(self._rng.uniform(*STARTING_S))
                return
            server.wait_ready()
            if self._rng.random() < 0.5:
                self._wait_a_little()
                return
            with server.connect() as connection:
                self._see(Asker(connection), round)
                self._take_some(Asker(connection), round)
            if not round.confirmed:
                self._end_and_kill(server, round)
        finally:
            server.kill()
            server.check_log()

    def _take_some(self, asker: Asker, round: Round) -> None:
        """Have some of what was released before the others are."""
        if round.confirmed and not round.fails:
            queue, group = self._rng.choice(THEN), self._rng.choice(GROUPS)
            request: Request = {"cmd": "POP", "queue": queue, "group": group, "wait_ms": 0}
            messages = asker.ask(request | {"count": 300, "lease_ms": LEASE_MS})["messages"]
            self._came(group, [Found(int(each["id"]), each["payload"], 0) for each in messages], round)

    def _killed(self, round: Round) -> None:
        """See how many still wait, in the files that a kill left."""
        self._figures.kills += 1
        reader = RocksReader(*open_db(self._home / DATA / "db", read_only=True))
        rows = [value for key, value in reader.scan(b"", b"\xff" * 8) if key[8:9] == PARKED]
        reader.close()
        left = sum(msgpack.decode(value)[0] for value in rows)
        self._see_left(round, left)
        self._figures.undone += left == self._count
        self._figures.halfway += 0 < left < self._count

    def _see_left(self, round: Round, left: int) -> None:
        if left > round.left or (round.confirmed and left == self._count):
            raise Violation(f"{left} wait, {round.left} did before; confirmed: {round.confirmed}")
        round.left = left

    def _waiting(self, asker: Asker) -> int:
        counts = asker.ask_all({"cmd": "GROUP", "queue": queue} for queue in THEN)
        return sum(each["counts"]["parked"] for each in counts)

    def _see(self, asker: Asker, round: Round) -> None:
        """How many have not been told, and whether the end of the one was kept."""
        state = asker.states([round.target])[round.target]
        ended = "dead" if round.fails else "completed"
        if state not in ("active", ended) or (round.confirmed and state != ended):
            raise Violation(f"the message is {state}: {round.target}, confirmed: {round.confirmed}")
        round.confirmed = state == ended
        if round.left < self._count and not round.confirmed:
            raise Violation(f"{self._count - round.left} were told, but the message is {state}")
        self._see_left(round, self._waiting(asker))

    # What must be so.

    def _check(self, asker: Asker, round: Round) -> None:
        self._see(asker, round)
        if not round.confirmed:
            asker.ask(_ending(round))
            round.confirmed = True
        # Telling goes on by itself, a step after another, while these are answered.
        progress_at = time.monotonic()
        while round.left:
            before = round.left
            self._see(asker, round)
            if round.left < before:
                progress_at = time.monotonic()
            elif time.monotonic() > progress_at + STUCK_S:
                raise Violation(f"{round.left} messages are not told that what they wait for ended")
        states = asker.states(round.waiting)
        if round.fails:
            self._check_failed(asker, round, states)
        else:
            self._check_released(asker, round)

    def _check_released(self, asker: Asker, round: Round) -> None:
        for group in GROUPS:
            for queue in THEN:
                self._came(group, asker.pop_all(queue, LEASE_MS, group), round)
            missing = round.waiting.keys() - self._got[group]
            if missing:
                raise Violation(f"{len(missing)} never came to {group}: {sorted(missing)[:5]}")
        self._figures.released += len(round.waiting)

    def _came(self, group: str, got: list[Found], round: Round) -> None:
        """Messages were delivered: none of them before."""
        had = self._got[group]
        for each in got:
            if each.id in had or round.waiting.get(each.id) != each.payload or not round.confirmed:
                raise Violation(f"{each} came to {group} twice, too early, or with another payload")
            had.add(each.id)

    def _check_failed(self, asker: Asker, round: Round, states: dict[int, str]) -> None:
        others = {id: state for id, state in states.items() if state != "dead"}
        if others:
            raise Violation(f"{len(others)} did not fail with {round.target}: {list(others.items())[:5]}")
        dead = 0
        for queue in THEN:
            if any(asker.pop_all(queue, LEASE_MS, group) for group in GROUPS):
                raise Violation(f"something of {queue} was delivered that failed")
            while True:
                purged = asker.ask({"cmd": "DEADPURGE", "queue": queue})
                dead += purged["count"]
                if not purged["left"]:
                    break
        if dead != len(round.waiting):
            raise Violation(f"{dead} dead letters of {len(round.waiting)} messages that failed")
        self._figures.failed += dead


def _ending(round: Round) -> Request:
    """The end of the one message."""
    return {"cmd": "NACK" if round.fails else "ACK", "ids": [round.target], "lease": round.lease}


def run(
    rounds: int, seed: int, say: Say = lambda line: None, planted: str = "", count: int = DEPENDENTS
) -> Figures:
    """So many rounds from a seed; ``Violation`` tells what broke, and leaves the directory."""
    figures = Figures()
    rng = random.Random(seed)
    while figures.rounds < rounds:
        home = Path(tempfile.mkdtemp(prefix="forebay-dependents-"))
        life = Life(home, rng, figures, count, planted)
        try:
            for _ in range(min(FRESH_AFTER, rounds - figures.rounds)):
                began = time.monotonic()
                life.play(figures.rounds)
                say(f"round {figures.rounds}: {figures}, {time.monotonic() - began:.1f} s")
        except BaseException as error:
            error.add_note(f"seed {seed}, round {figures.rounds}, data in {home}")
            raise
        shutil.rmtree(home)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.dependents", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    figures = run(given.rounds, given.seed, lambda line: sys.stdout.write(line + "\n"))
    sys.stdout.write(
        f"{figures.rounds} rounds, {figures.kills} kills, {figures.halfway} of them halfway,"
        f" {figures.undone} before anything was kept:\n{figures.released:,} messages were released once,"
        f" {figures.failed:,} failed once with what they waited for.\n"
    )


if __name__ == "__main__":
    main()
