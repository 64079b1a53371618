"""Limits on delivery under load: never more is active than a limit allows, nor less than it could be.

Two queues share a limit with a name; in a third, what has a key is delivered one after another.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from tests.crash.asking import Asker, Found
from tests.crash.ledger import Violation
from tests.crash.parts import LEASE_MS, Client, Hands, let_go, sort_out
from tests.serving import Request

SHARING = ("slow", "slower")
LANES = "lanes"
LIMIT = "narrow"
ACTIVE_MAX = 4
KEYS = tuple(f"lane-{number}" for number in range(5))
PUSHED_MAX = 60
"""Messages that one client pushes between two kills."""


@dataclass
class Limited:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(2)])
    is_set: bool = False
    """Whether the limits are: they are set once, and have to be kept."""
    pushed: dict[int, int] = field(default_factory=dict)
    """Messages pushed since the last kill, by client."""
    acked: int = 0
    full: int = 0
    """Restarts at which as much was active as may be."""

    def turn(self, client: Client) -> None:
        kinds = [(40, self._pop), (20, self._ack), (10, self._nack)]
        if self.pushed.get(id(client), 0) < PUSHED_MAX:
            kinds.append((30, self._push))
        client.choose(*kinds)

    def _push(self, client: Client) -> None:
        queue = client.rng.choice((*SHARING, LANES))
        items: list[Request] = []
        for _ in range(client.rng.randrange(1, 5)):
            lane = {"key": client.rng.choice(KEYS)} if queue == LANES else {}
            name = f"{lane.get('key')} {client.new_name()}"
            items.append({"payload": name, "backoff": 0, "max_attempts": 0, **lane})
        self.pushed[id(client)] = self.pushed.get(id(client), 0) + len(items)
        client.done({"cmd": "PUSH", "queue": queue, "items": items, "durability": "os"})

    def _pop(self, client: Client) -> None:
        client.pop(client.rng.choice((*SHARING, LANES)))

    def _ack(self, client: Client) -> None:
        taken = client.hands.take(client.rng, 2)
        if taken:
            client.done({"cmd": "ACK", "ids": [held.id for held in taken], "group": "default"})
            client.hands.trying = []
            self.acked += len(taken)

    def _nack(self, client: Client) -> None:
        held = client.hands.give_up(client.rng)
        if held is not None:
            client.done({"cmd": "NACK", "ids": [held.id], "lease": held.lease})
            client.hands.missed -= 1

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        self.pushed = {}
        if not self.is_set:
            asker.ask({"cmd": "LIMITPUT", "name": LIMIT, "concurrency": ACTIVE_MAX})
            for queue in SHARING:
                asker.ask({"cmd": "QUEUE", "queue": queue, "options": {"limits": [LIMIT]}})
            self.is_set = True
        shared, lanes = asker.log(*SHARING), asker.log(LANES)
        states = asker.states(each.id for each in (*shared, *lanes))
        active = sum(states[each.id] == "active" for each in shared)
        self._check_active(asker, active)
        self.full += active == ACTIVE_MAX
        lane_of = {each.id: each.payload.split()[0] for each in lanes}
        busy = Counter(lane for number, lane in lane_of.items() if states[number] == "active")
        if any(count > 1 for count in busy.values()):
            raise Violation(f"of some keys several messages are active: {busy}")
        sort_out(asker, self, states)
        held = {held.id for hands in self.hands for held in hands.held}
        self._check_room(asker, shared, states, held)
        self._check_lanes(asker, lane_of, states, held)

    def _check_active(self, asker: Asker, active: int) -> None:
        (limit,) = asker.ask({"cmd": "LIMITS"})["limits"]
        if not limit["active"] == active <= ACTIVE_MAX:
            raise Violation(f"{active} messages are active: {limit}")

    def _check_room(self, asker: Asker, shared: list[Found], states: dict[int, str], held: set[int]) -> None:
        """As many can be had as there is room for."""
        mine = sum(each.id in held for each in shared)
        left = sum(states[each.id] != "completed" for each in shared) - mine
        got = [each for queue in SHARING for each in asker.pop_all(queue, LEASE_MS)]
        if len(got) != min(left, ACTIVE_MAX - mine):
            raise Violation(f"{len(got)} were delivered; {mine} were active, {left} could have been")
        self._check_active(asker, mine + len(got))
        asker.move_back([each.id for each in got])
        self._check_active(asker, mine)

    def _check_lanes(
        self, asker: Asker, lane_of: dict[int, str], states: dict[int, str], held: set[int]
    ) -> None:
        """One of each key can be had, unless somebody has one."""
        wanted = {lane for number, lane in lane_of.items() if states[number] != "completed"}
        wanted -= {lane_of[number] for number in held if number in lane_of}
        got = asker.pop_all(LANES, LEASE_MS)
        if sorted(lane_of[each.id] for each in got) != sorted(wanted):
            raise Violation(f"{got} were delivered, and one each of {sorted(wanted)} could have been")
        asker.move_back([each.id for each in got])

    def end(self, asker: Asker) -> None:
        """All can be had and acked, a few at a time."""
        let_go(asker, self)
        while got := [each for queue in (*SHARING, LANES) for each in asker.pop_all(queue, LEASE_MS)]:
            asker.ask({"cmd": "ACK", "ids": [each.id for each in got]})
        states = asker.states(each.id for each in asker.log(*SHARING, LANES))
        if set(states.values()) - {"completed"}:
            raise Violation(f"something never came: {Counter(states.values())}")

    def summary(self) -> str:
        return f"limits: {self.acked} acked, reached at {self.full} restarts"
