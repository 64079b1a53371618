"""Flows under load: a parent comes once, after all its children, whenever the server is killed.

Some messages die when they are nacked. Then their parent fails too, ignores it, or waits for ever.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.crash.asking import Asker
from tests.crash.ledger import Violation
from tests.crash.parts import LEASE_MS, Client, Hands, Held, let_go, sort_out
from tests.serving import Request

QUEUES = ("steps", "more-steps", "wholes")
"""The last one has the roots."""
PARTITIONS = ("default", "a", "b")
FLOWS_MAX = 60
"""Flows that one client pushes between two kills."""


@dataclass
class Node:
    """A message of a flow; its name is its payload."""

    name: str
    queue: str
    children: list["Node"]
    mortal: bool
    """Whether a nack kills it."""
    policy: str
    """What it does if one of its children fails: fail, ignore or wait."""
    id: int | None = None
    """Once it is known."""
    acks: int = 0
    """Acks that were sent."""
    acked: bool = False
    """Whether one was confirmed, or found to have been done."""
    nacks: int = 0
    """Nacks that were sent."""

    def may_have_failed(self) -> bool:
        """Whether something was sent that may have killed it, or one it can't do without."""
        below = self.policy == "fail" and any(child.may_have_failed() for child in self.children)
        return below or (self.mortal and self.nacks > 0)

    def is_met(self) -> bool:
        """Whether it may come, as far as anybody knows."""
        ignores = self.policy == "ignore"
        return all(child.acks or (ignores and child.may_have_failed()) for child in self.children)

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.walk()

    def request(self, rng: random.Random) -> Request:
        fields: Request = {"queue": self.queue, "payload": self.name, "partition": rng.choice(PARTITIONS)}
        fields |= {"max_attempts": int(self.mortal), "backoff": 0, "priority": rng.choice((0, 0, 0, 1))}
        if self.children:
            fields["on_failed"] = self.policy
            fields["children"] = [child.request(rng) for child in self.children]
        return fields


@dataclass
class Flows:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(3)])
    roots: list[Node] = field(default_factory=list)
    """Of flows that were sent; those that are not kept are dropped by the check that finds out."""
    nodes: dict[str, Node] = field(default_factory=dict)
    in_hands: dict[str, str] = field(default_factory=dict)
    """Lease by name, of all that somebody has."""
    absent: int = 0
    """Flows that were cut off, and nothing of which is there."""
    delivered: int = 0
    """Messages that waited for others and were delivered."""
    nacked: int = 0
    failed: int = 0
    waiting: int = 0
    pushed: dict[int, int] = field(default_factory=dict)
    """Flows pushed since the last kill, by client."""

    def turn(self, client: Client) -> None:
        kinds = [(30, self._pop), (40, self._ack), (10, self._nack)]
        if self.pushed.get(id(client), 0) < FLOWS_MAX:
            kinds.append((20, self._push))
        client.choose(*kinds)

    # What clients do.

    def _push(self, client: Client) -> None:
        self.pushed[id(client)] = self.pushed.get(id(client), 0) + 1
        rng = client.rng
        root = self._node(client, QUEUES[-1], rng.randrange(1, 5))
        self.roots.append(root)
        request = {"cmd": "FLOW", "durability": rng.choice((None, "os")), **root.request(rng)}
        reply = client.done(request)
        root.id = int(reply["id"])
        for child, number in zip(root.children, reply["children"], strict=True):
            child.id = int(number)

    def _node(self, client: Client, queue: str, children: int) -> Node:
        """A message with so many children, some of which have some of their own."""
        rng = client.rng
        below = [
            self._node(client, rng.choice(QUEUES[:-1]), rng.choice((0, 0, 0, 2))) for _ in range(children)
        ]
        policy = rng.choice(("fail", "ignore", "wait"))
        node = Node(client.new_name(), queue, below, rng.random() < 0.4, policy)
        self.nodes[node.name] = node
        return node

    def _pop(self, client: Client) -> None:
        for held in client.pop(client.rng.choice(QUEUES)):
            self._came(held)

    def _came(self, held: Held) -> None:
        """A message was delivered: it was in nobody's hands, not done, and all it waits for is."""
        node = self.nodes[held.payload]
        if self.in_hands.setdefault(node.name, held.lease) != held.lease:
            raise Violation(f"{node} was delivered twice, as {self.in_hands[node.name]} and {held.lease}")
        if node.acks:
            raise Violation(f"{node} was delivered after its ack")
        if not node.is_met():
            raise Violation(f"{node} was delivered before its children were done")
        self.delivered += bool(node.children)

    def _ack(self, client: Client) -> None:
        taken = client.hands.take(client.rng, 3)
        if not taken:
            return
        for held in taken:
            self.nodes[held.payload].acks += 1
        reply = client.done({"cmd": "ACK", "ids": [held.id for held in taken], "group": "default"})
        if reply["count"] != len(taken):
            raise Violation(f"{taken} were not acked: {reply}")
        client.hands.trying = []
        for held in taken:
            self.nodes[held.payload].acked = True

    def _nack(self, client: Client) -> None:
        held = client.hands.give_up(client.rng)
        if held is not None:
            del self.in_hands[held.payload]
            self.nodes[held.payload].nacks += 1
            client.done({"cmd": "NACK", "ids": [held.id], "lease": held.lease})
            client.hands.missed -= 1
            self.nacked += 1

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        self.pushed = {}
        self._check_kept(asker)
        nodes = {node.id: node for node in self.nodes.values() if node.id is not None}
        states = asker.states(nodes)
        for number, state in states.items():
            self._check_state(nodes[number], state, states)
        sort_out(asker, self, states)
        self.in_hands = {held.payload: held.lease for hands in self.hands for held in hands.held}
        whole = [root for root in self.roots if all(child.acked for child in root.children)]
        for root in rng.sample(whole, min(10, len(whole))):
            told = asker.ask({"cmd": "CHILDREN", "id": root.id})
            if not told["completed"] == told["total"] == len(root.children):
                raise Violation(f"{root}: {told}")

    def _check_kept(self, asker: Asker) -> None:
        """A flow is there whole or not at all, and those that were confirmed are."""
        kept: dict[str, int] = {}
        for each in asker.log(*QUEUES):
            if kept.setdefault(each.payload, each.id) != each.id or each.payload not in self.nodes:
                raise Violation(f"{each} is there twice, or nobody pushed it")
        for root in list(self.roots):
            nodes = list(root.walk())
            there = sum(node.name in kept for node in nodes)
            if not there and root.id is None:
                self.roots.remove(root)
                self.absent += 1
                for node in nodes:
                    del self.nodes[node.name]
            elif there != len(nodes):
                raise Violation(f"{there} of {len(nodes)} messages are there: {root}")
            for node in nodes:
                if there and node.id not in (None, kept[node.name]):
                    raise Violation(f"{node} is at {kept[node.name]}")
                node.id = kept.get(node.name)

    def _check_state(self, node: Node, state: str, states: dict[int, str]) -> None:
        if state == "completed" and not node.acks:
            raise Violation(f"{node} is completed, and nobody acked it")
        if node.acked and state != "completed":
            raise Violation(f"{node} was acked, and is {state}")
        below = [states[child.id or 0] for child in node.children]
        if state == "dead" and not node.may_have_failed():
            raise Violation(f"{node} is dead, and nothing killed it: {below}")
        if not _goes_with(node, state, below):
            raise Violation(f"{node} is {state}, its children are {below}")
        node.acked = state == "completed"
        node.acks = int(node.acked)

    def end(self, asker: Asker) -> None:
        """Children first, everything can be had and acked, once."""
        let_go(asker, self)
        self.in_hands = {}
        while True:
            got = [(queue, each) for queue in QUEUES for each in asker.pop_all(queue, LEASE_MS)]
            if not got:
                break
            for _, each in got:
                self._came(Held(each.id, each.payload, f"at the end, {each.id}"))
            asker.ask({"cmd": "ACK", "ids": [each.id for _, each in got]})
            for _, each in got:
                node = self.nodes[each.payload]
                node.acks, node.acked = node.acks + 1, True
        nodes = {node.id: node for node in self.nodes.values() if node.id is not None}
        states = asker.states(nodes)
        for number, state in states.items():
            self._check_state(nodes[number], state, states)
            if state not in ("completed", "dead", "parked"):
                raise Violation(f"{nodes[number]} never came: {state}")
        self.failed = sum(state == "dead" for state in states.values())
        self.waiting = sum(state == "parked" for state in states.values())

    def summary(self) -> str:
        acked = sum(node.acked for node in self.nodes.values())
        return (
            f"flows: {len(self.roots)} of {len(self.nodes)} messages, {acked} acked, {self.nacked} nacked,"
            f" {self.delivered} came after others, {self.absent} flows cut off,"
            f" {self.failed} failed and {self.waiting} wait for ever in the end"
        )


def _goes_with(node: Node, state: str, below: list[str]) -> bool:
    """Whether the state of a message goes with those of its children."""
    if "dead" in below and node.policy == "fail":
        return state == "dead"
    done = ("completed", "dead") if node.policy == "ignore" else ("completed",)
    if not all(each in done for each in below):
        return state == "parked"
    return state != "parked"
