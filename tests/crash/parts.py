"""What the parts of a life share: clients that work until the server is gone, and what they hold.

A part is one promise under load: it has queues of its own, clients that use them, and checks of what a kill
left. Parts run side by side in one server, so that their changes share commits.
"""

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.crash.asking import Asker
from tests.crash.ledger import Violation
from tests.serving import Raw, Reply, Request

LEASE_MS = 3_600_000
"""Longer than any life: no lease runs out."""


class Held(NamedTuple):
    """A message that a client has."""

    id: int
    payload: str
    lease: str


class Hands:
    """What one client has, and what it can't know. It lasts over kills."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.trying: list[Held] = []
        """What a request is about that was sent and not answered yet."""
        self.missed = 0
        """Messages that may be leased without it knowing the lease, at most: those of a pop that was not
        answered, and those it gave back in a nack that was not, as somebody may have them already."""

    def take(self, rng: random.Random, most: int = 1) -> list[Held]:
        """Some of those it has, to send a request about; ``trying`` is emptied when that is answered."""
        count = min(rng.randrange(1, most + 1), len(self.held))
        self.trying = [self.held.pop(rng.randrange(len(self.held))) for _ in range(count)]
        return self.trying

    def give_up(self, rng: random.Random) -> Held | None:
        """One of those it has, to send a nack of it; ``missed`` falls again when that is answered."""
        if not self.held:
            return None
        self.missed += 1
        return self.held.pop(rng.randrange(len(self.held)))


class Part(Protocol):
    """A promise, and how it is put to the test."""

    hands: list[Hands]
    """One for each of its clients."""

    def turn(self, client: "Client") -> None:
        """Let a client do something, once."""

    def check(self, asker: Asker, rng: random.Random) -> None:
        """See that what a kill left is good."""

    def end(self, asker: Asker) -> None:
        """See that everything can be brought to its end."""

    def summary(self) -> str:
        """How much was done so far."""


class Client:
    """A connection in the service of a part, used until the server is gone."""

    def __init__(self, part: Part, number: int, connection: Raw, name: str, rng: random.Random) -> None:
        self._part = part
        self._connection = connection
        self._name = name
        self._made = 0
        self.hands = part.hands[number]
        self.rng = rng
        self.answers = 0
        self.error: Exception | None = None

    def run(self) -> None:
        with self._connection:
            try:
                while True:
                    self._part.turn(self)
            except (EOFError, OSError):
                return
            except Exception as error:
                self.error = error

    def ask(self, request: Request) -> Reply:
        reply = self._connection.ask(request)
        self.answers += 1
        return reply

    def ask_packed(self, request: Request) -> Reply:
        """The same as MessagePack."""
        reply = self._connection.ask_packed(request)
        self.answers += 1
        return reply

    def done(self, request: Request) -> Reply:
        """Ask what can't be refused."""
        reply = self.ask(request)
        if not reply["ok"]:
            raise Violation(f"{self._name}: {request} was refused: {reply}")
        return reply

    def new_name(self) -> str:
        """A name that nobody else has."""
        self._made += 1
        return f"{self._name}.{self._made}"

    def pop(self, queue: str) -> list[Held]:
        """Lease some messages, now in its hands."""
        count = self.rng.randrange(1, 7)
        self.hands.missed += count
        request: Request = {"cmd": "POP", "queue": queue, "count": count, "lease_ms": LEASE_MS}
        reply = self.done(request | {"wait_ms": self.rng.choice((0, 0, 10))})
        self.hands.missed -= count
        got = [Held(int(each["id"]), each["payload"], each["lease"]) for each in reply["messages"]]
        self.hands.held += got
        return got

    def choose(self, *kinds: tuple[int, Callable[["Client"], None]]) -> None:
        """Do one of several things, some more often than others."""
        chosen = self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        chosen(self)


def sort_out(asker: Asker, part: Part, states: dict[int, str]) -> None:
    """Find out who has what after a restart.

    What a request was about that was cut off is held as before, or was settled. What was handed out in
    answers that never came is taken back. Nothing else is leased, and whatever was held is.
    """
    for hands in part.hands:
        hands.held += [held for held in hands.trying if states[held.id] == "active"]
        hands.trying = []
        for held in hands.held:
            if states[held.id] != "active":
                raise Violation(f"{held} is in somebody's hands, and {states[held.id]}")
    known = {held.id for hands in part.hands for held in hands.held}
    missed = [id for id, state in states.items() if state == "active" and id not in known]
    if len(missed) > sum(hands.missed for hands in part.hands):
        raise Violation(f"{len(missed)} messages are leased to nobody: {missed[:10]}")
    for hands in part.hands:
        hands.missed = 0
    asker.move_back(missed)


def let_go(asker: Asker, part: Part) -> None:
    """Take everything from its consumers, and have nothing delayed."""
    for hands in part.hands:
        asker.move_back([held.id for held in hands.held])
        hands.held = []
