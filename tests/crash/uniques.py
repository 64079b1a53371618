"""Unique keys under load: of each key at most one message is open, whenever the server is killed.

Some messages also name a key that gets their payload if they die: it is there if and only if they did.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.crash.asking import OPEN, Asker
from tests.crash.ledger import Violation
from tests.crash.parts import Client, Hands, Held, let_go, sort_out
from tests.serving import Request

QUEUE = "keyed"
KEYS = tuple(f"key-{number}" for number in range(12))
PARTITIONS = ("default", "a")
LISTED_MAX = 500
"""Keys that are asked for at once."""


@dataclass
class Pushed:
    """A push with a key."""

    key: str
    id: int | None = None
    """Of the message it made, or that it is a duplicate of; None as long as it was not answered."""
    duplicate: bool = False


@dataclass
class Ending:
    """What was sent that may end a message."""

    tries: int = 0
    """Acks, cancels and nacks that were sent."""
    cancels: int = 0
    ended_at: float | None = None
    """When an ack or a cancel of it was confirmed, on the clock of this process."""


@dataclass
class Uniques:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(3)])
    pushes: dict[str, Pushed] = field(default_factory=dict)
    """By payload."""
    endings: dict[int, Ending] = field(default_factory=dict)
    wills: set[str] = field(default_factory=set)
    """Payloads that get a key of their own if they die."""
    died: int = 0
    """Those that did."""
    ended: int = 0
    duplicates: int = 0
    probed: int = 0
    """Keys that were pushed again after a restart, to see what comes of it."""

    def turn(self, client: Client) -> None:
        client.choose(
            (30, self._push),
            (10, self._push_items),
            (25, self._pop),
            (25, self._ack),
            (18, self._nack),
            (4, self._cancel),
        )

    # Pushes.

    def _options(self, client: Client, key: str) -> tuple[str, Request]:
        """The payload of a message with a key, and its options."""
        payload = client.new_name()
        self.pushes[payload] = Pushed(key)
        options: Request = {"payload": payload, "unique_key": key, "max_attempts": 2, "backoff": 0}
        options["partition"] = client.rng.choice(PARTITIONS)
        if client.rng.random() < 0.1:
            options["delay_ms"] = 5
        if client.rng.random() < 0.5:
            self.wills.add(payload)
            options["keys_if_undelivered"] = [["dead", payload]]
        return payload, options

    def _push(self, client: Client) -> None:
        payload, options = self._options(client, client.rng.choice(KEYS))
        durability = client.rng.choice((None, "os"))
        sent_at = time.monotonic()
        reply = client.done({"cmd": "PUSH", "queue": QUEUE, "durability": durability, **options})
        self._answered(payload, int(reply["id"]), reply.get("duplicate", False), sent_at)

    def _push_items(self, client: Client) -> None:
        made = [self._options(client, client.rng.choice(KEYS)) for _ in range(client.rng.randrange(2, 5))]
        sent_at = time.monotonic()
        reply = client.done({"cmd": "PUSH", "queue": QUEUE, "items": [options for _, options in made]})
        duplicates = set(reply.get("duplicates", ()))
        for at, ((payload, _), id) in enumerate(zip(made, reply["ids"], strict=True)):
            self._answered(payload, int(id), at in duplicates, sent_at)

    def _answered(self, payload: str, id: int, duplicate: bool, sent_at: float) -> None:
        pushed = self.pushes[payload]
        pushed.id, pushed.duplicate = id, duplicate
        self.duplicates += duplicate
        ending = self.endings.get(id)
        if duplicate and ending is not None and ending.ended_at is not None and ending.ended_at < sent_at:
            raise Violation(f"{payload} with {pushed.key} is a duplicate of {id}, which had ended: {ending}")

    # Ends.

    def _pop(self, client: Client) -> None:
        client.pop(QUEUE)

    def _ending(self, id: int) -> Ending:
        ending = self.endings.setdefault(id, Ending())
        ending.tries += 1
        return ending

    def _ack(self, client: Client) -> None:
        for held in client.hands.take(client.rng):
            ending = self._ending(held.id)
            if self._took(client, {"cmd": "ACK", "ids": [held.id], "lease": held.lease}, ending):
                ending.ended_at = time.monotonic()
        client.hands.trying = []

    def _nack(self, client: Client) -> None:
        held = client.hands.give_up(client.rng)
        if held is not None:
            self._took(client, {"cmd": "NACK", "ids": [held.id], "lease": held.lease}, self._ending(held.id))
            client.hands.missed -= 1

    def _took(self, client: Client, request: Request, ending: Ending) -> bool:
        """Whether a lease was still good; only a cancel ends it."""
        reply = client.ask(request)
        if not reply["ok"] and not (reply["error"]["code"] == "conflict" and ending.cancels):
            raise Violation(f"{request} was refused: {reply}")
        return bool(reply["ok"])

    def _cancel(self, client: Client) -> None:
        pushed = self.pushes[client.rng.choice(list(self.pushes))] if self.pushes else Pushed("")
        if pushed.id is not None:
            ending = self._ending(pushed.id)
            ending.cancels += 1
            reply = client.ask({"cmd": "CANCEL", "ids": [pushed.id]})
            if reply["ok"]:
                ending.ended_at = time.monotonic()
            elif reply["error"]["code"] != "conflict":
                raise Violation(f"{pushed} could not be cancelled: {reply}")

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        kept = {each.payload: each.id for each in asker.log(QUEUE)}
        self._check_pushes(kept)
        states = asker.states(kept.values())
        self._check_ends(states)
        for hands in self.hands:
            hands.held = [held for held in hands.held if not self._was_cancelled(held, states)]
        sort_out(asker, self, states)
        self._check_wills(asker, {payload: states[id] for payload, id in kept.items()})
        opened = self._check_open(kept, states)
        self._probe(asker, rng, opened)

    def _check_pushes(self, kept: dict[str, int]) -> None:
        by_id = {id: payload for payload, id in kept.items()}
        for payload, pushed in self.pushes.items():
            if pushed.duplicate and payload in kept:
                raise Violation(f"{payload} was told to be a duplicate, and is kept: {pushed}")
            if pushed.id is not None and not pushed.duplicate and kept.get(payload) != pushed.id:
                raise Violation(f"{payload} is at {kept.get(payload)}: {pushed}")
            if pushed.duplicate and self.pushes[by_id[pushed.id or 0]].key != pushed.key:
                raise Violation(f"{payload} is told to be a duplicate of another key's: {pushed}")
        if strays := kept.keys() - self.pushes.keys():
            raise Violation(f"nobody pushed {sorted(strays)[:5]}")

    def _check_ends(self, states: dict[int, str]) -> None:
        """What was confirmed to have ended has; what nobody tried to end has not."""
        for id, state in states.items():
            ending = self.endings.get(id, Ending())
            if state in OPEN and ending.ended_at is not None:
                raise Violation(f"message {id} is {state}: {ending}")
            if state not in OPEN and not ending.tries:
                raise Violation(f"message {id} is {state}, and nobody tried to end it")
            if state not in OPEN and ending.ended_at is None:
                ending.ended_at = time.monotonic()
        self.ended = sum(ending.ended_at is not None for ending in self.endings.values())

    def _check_wills(self, asker: Asker, states: dict[str, str]) -> None:
        """The payloads of those that died, and of no others, are under their keys."""
        wills = sorted(self.wills)
        self.died = 0
        for start in range(0, len(wills), LISTED_MAX):
            part = wills[start : start + LISTED_MAX]
            values = asker.ask({"cmd": "KVMGET", "keys": [["dead", payload] for payload in part]})["values"]
            for payload, value in zip(part, values, strict=True):
                died = states.get(payload) == "dead"
                self.died += died
                if value != (payload if died else None):
                    raise Violation(f"{payload} is {states.get(payload)}, and its key has {value}")

    def _was_cancelled(self, held: Held, states: dict[int, str]) -> bool:
        return states[held.id] == "cancelled" and self.endings[held.id].cancels > 0

    def _check_open(self, kept: dict[str, int], states: dict[int, str]) -> dict[str, int]:
        """The open message of each key that has one."""
        opened = [(self.pushes[payload].key, id) for payload, id in kept.items() if states[id] in OPEN]
        for key, count in Counter(key for key, _ in opened).items():
            if count > 1:
                several = [(id, states[id]) for each, id in opened if each == key]
                raise Violation(f"{key} has several open messages: {several}")
        return dict(opened)

    def _probe(self, asker: Asker, rng: random.Random, opened: dict[str, int]) -> None:
        """Push some keys again: a duplicate if one is open, else a message of its own, once."""
        for key in rng.sample(KEYS, len(KEYS) // 2):
            self.probed += 1
            for _ in range(2):
                payload = f"probe.{len(self.pushes)}"
                pushed = self.pushes[payload] = Pushed(key)
                request = {"cmd": "PUSH", "queue": QUEUE, "payload": payload, "unique_key": key}
                reply = asker.ask(request | {"max_attempts": 2, "backoff": 0})
                pushed.id, pushed.duplicate = int(reply["id"]), reply.get("duplicate", False)
                if pushed.duplicate != (key in opened) or opened.get(key, pushed.id) != pushed.id:
                    raise Violation(f"{payload}: {reply}, but the open message of {key} is {opened.get(key)}")
                opened[key] = pushed.id

    def end(self, asker: Asker) -> None:
        """Every message ends, and every key is free."""
        let_go(asker, self)
        kept = {each.payload: each.id for each in asker.log(QUEUE)}
        later = [id for id, state in asker.states(kept.values()).items() if state == "delayed"]
        asker.move_back(later)
        wanted = {id for id, state in asker.states(kept.values()).items() if state in OPEN}
        got = asker.pop_all(QUEUE, 60_000)
        if {each.id for each in got} != wanted or len(got) != len(wanted):
            raise Violation(f"open are {sorted(wanted)}, delivered were {sorted(each.id for each in got)}")
        if got:
            asker.ask({"cmd": "ACK", "ids": [each.id for each in got]})
        for key in KEYS:
            reply = asker.ask({"cmd": "PUSH", "queue": QUEUE, "payload": "last", "unique_key": key})
            if "duplicate" in reply:
                raise Violation(f"{key} is not free: {reply}")

    def summary(self) -> str:
        made = sum(pushed.id is not None and not pushed.duplicate for pushed in self.pushes.values())
        ended = f"{self.ended} ended, {self.died} of them died with a key for that"
        return f"keys: {made} pushed, {self.duplicates} duplicates, {ended}, {self.probed} probed"
