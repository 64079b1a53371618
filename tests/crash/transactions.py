"""Transactions under load: an ack, a push and a count agree, whenever the server is killed."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.crash.asking import Asker
from tests.crash.ledger import Violation
from tests.crash.parts import LEASE_MS, Client, Hands, Held, let_go, sort_out
from tests.serving import Request

INTAKE = "intake"
DONE = ("done", "done-too")
COUNT = "count"
"""The key that counts what was done."""
TEXT = "text"
"""A key that can't be counted in."""
PARTITIONS = ("default", "a")
LARGE_BYTES = 150 * 1024
"""Two of these are above what the store writes in one batch."""
PUSHED_MAX = 150
"""Messages that one client pushes between two kills."""


@dataclass
class Tx:
    """A transaction: acks of some messages, a push for each of them, a key, and a higher count."""

    name: str
    ids: list[int]
    fate: str = "unknown"
    """kept, absent or unknown."""


@dataclass
class Transactions:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(3)])
    sent: list[Tx] = field(default_factory=list)
    refused: int = 0
    """Transactions that were to be refused, and were."""
    cut_off: int = 0
    """Transactions that were never answered."""
    cut_off_kept: int = 0
    pushed: dict[int, int] = field(default_factory=dict)
    """Messages pushed since the last kill, by client."""

    def turn(self, client: Client) -> None:
        kinds = [(20, self._pop), (40, self._transact), (6, self._transact_in_vain)]
        if self.pushed.get(id(client), 0) < PUSHED_MAX:
            kinds.append((20, self._push))
        client.choose(*kinds)

    # What clients do.

    def _push(self, client: Client) -> None:
        names = [client.new_name() for _ in range(client.rng.randrange(1, 20))]
        self.pushed[id(client)] = self.pushed.get(id(client), 0) + len(names)
        request: Request = {"cmd": "PUSH", "queue": INTAKE, "messages": names}
        client.done(request | {"partition": client.rng.choice(PARTITIONS), "durability": "os"})

    def _pop(self, client: Client) -> None:
        client.pop(INTAKE)

    def _operations(self, client: Client, tx: Tx, taken: list[Held]) -> list[Request]:
        """An ack, a push for each of the messages, a key and the count, in any order."""
        rng = client.rng
        size = LARGE_BYTES if rng.random() < 0.04 else 0
        if rng.random() < 0.5:
            operations: list[Request] = [{"cmd": "ACK", "ids": tx.ids, "group": "default"}]
        else:
            operations = [{"cmd": "ACK", "ids": [held.id], "lease": held.lease} for held in taken]
        for number in tx.ids:
            data = {"of": number, "tx": tx.name, "more": "x" * size}
            place = {"queue": rng.choice(DONE), "partition": rng.choice(PARTITIONS)}
            operations.append({"cmd": "PUSH", "payload": data, **place})
        operations.append({"cmd": "KVADD", "key": COUNT, "by": len(tx.ids)})
        operations.append({"cmd": "KVSET", "key": ["tx", tx.name], "value": tx.ids})
        rng.shuffle(operations)
        return operations

    def _transact(self, client: Client) -> None:
        taken = client.hands.take(client.rng, 3)
        if not taken:
            return
        tx = Tx(client.new_name(), [held.id for held in taken])
        self.sent.append(tx)
        client.done({"cmd": "TX", "ops": self._operations(client, tx, taken)})
        tx.fate = "kept"
        client.hands.trying = []

    def _transact_in_vain(self, client: Client) -> None:
        """The last operation can't be carried out: then none is."""
        taken = client.hands.take(client.rng, 3)
        if not taken:
            return
        tx = Tx(client.new_name(), [held.id for held in taken], "absent")
        self.sent.append(tx)
        wrong = client.rng.choice(
            (
                {"cmd": "KVADD", "key": TEXT},
                {"cmd": "ACK", "ids": [taken[0].id], "lease": taken[0].lease},
                {"cmd": "ACK", "ids": [taken[0].id + (1 << 31)], "group": "default"},
                {"cmd": "PUSH", "queue": DONE[0], "payload": "", "depends_on": [1 << 50]},
            )
        )
        reply = client.ask({"cmd": "TX", "ops": [*self._operations(client, tx, taken), wrong]})
        if reply["ok"]:
            raise Violation(f"{tx} was carried out with {wrong}: {reply}")
        client.hands.held += taken
        client.hands.trying = []
        self.refused += 1

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        self.pushed = {}
        asker.ask({"cmd": "KVSET", "key": TEXT, "value": "not a number"})
        states = asker.states(each.id for each in asker.log(INTAKE))
        pushed = self._check_pushed(asker)
        completed = {number for number, state in states.items() if state == "completed"}
        if completed != pushed.keys():
            odd = sorted(completed ^ pushed.keys())
            told = [(number, states[number], pushed.get(number)) for number in odd[:5]]
            raise Violation(f"{len(completed)} were acked and {len(pushed)} pushed: {told}")
        count = asker.ask({"cmd": "KVMGET", "keys": [COUNT]})["values"][0] or 0
        if count != len(completed):
            raise Violation(f"{len(completed)} were acked, and {count} counted")
        self._check_fates(pushed)
        self._check_keys(asker)
        sort_out(asker, self, states)

    def _check_pushed(self, asker: Asker) -> dict[int, str]:
        """The transaction by the message that it acked."""
        pushed: dict[int, str] = {}
        for each in asker.log(*DONE):
            data: Any = each.payload
            if data["of"] in pushed:
                raise Violation(f"{data['of']} was done by {pushed[data['of']]} and by {data['tx']}")
            pushed[data["of"]] = data["tx"]
        return pushed

    def _check_fates(self, pushed: dict[int, str]) -> None:
        """Each transaction was carried out whole or not at all; those that were confirmed were."""
        done: dict[str, list[int]] = {}
        for number, name in pushed.items():
            done.setdefault(name, []).append(number)
        for tx in self.sent:
            found = sorted(done.pop(tx.name, []))
            if tx.fate == "unknown":
                tx.fate = "kept" if found else "absent"
                self.cut_off += 1
                self.cut_off_kept += bool(found)
            if found != (sorted(tx.ids) if tx.fate == "kept" else []):
                raise Violation(f"{found} were done by {tx}")
        if done:
            raise Violation(f"nobody sent {done}")

    def _check_keys(self, asker: Asker) -> None:
        for start in range(0, len(self.sent), 500):
            part = self.sent[start : start + 500]
            values = asker.ask({"cmd": "KVMGET", "keys": [["tx", tx.name] for tx in part]})["values"]
            for tx, value in zip(part, values, strict=True):
                if value != (tx.ids if tx.fate == "kept" else None):
                    raise Violation(f"the key has {value}: {tx}")

    def end(self, asker: Asker) -> None:
        """What was not done yet can be had, each once."""
        let_go(asker, self)
        states = asker.states(each.id for each in asker.log(INTAKE))
        wanted = sorted(number for number, state in states.items() if state != "completed")
        got = sorted(each.id for each in asker.pop_all(INTAKE, LEASE_MS))
        if got != wanted:
            raise Violation(f"not done are {wanted}, delivered were {got}")

    def summary(self) -> str:
        kept = [tx for tx in self.sent if tx.fate == "kept"]
        acked = sum(len(tx.ids) for tx in kept)
        return (
            f"transactions: {len(kept)} of {acked} messages, {self.refused} refused,"
            f" {self.cut_off} cut off, {self.cut_off_kept} of them kept"
        )
