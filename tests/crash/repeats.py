"""Pushes that are sent again because nobody knows what came of them: kept once, whatever was killed.

Three ways to say that a push is the same: an idempotency key of the whole request, a custom id, and a
transaction id, which counts in its partition.
"""

import random
from dataclasses import dataclass, field

from tests.crash.asking import Asker
from tests.crash.ledger import Violation
from tests.crash.parts import Client, Hands
from tests.serving import Reply, Request

QUEUE = "repeated"
PARTITIONS = ("default", "a")
PUSHED_MAX = 60
"""Pushes of one client between two kills."""
TRIED_MAX = 30
"""Confirmed pushes that are sent again after a restart."""


@dataclass
class Sent:
    """A push."""

    request: Request
    payloads: list[str]
    ids: list[int] | None = None
    """Once it was answered."""


@dataclass
class Repeats:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(2)])
    sent: list[Sent] = field(default_factory=list)
    known: dict[int, list[Sent]] = field(default_factory=dict)
    """Pushes since the last kill that were answered, by client."""
    repeated: int = 0
    cut_off: int = 0
    cut_off_kept: int = 0

    def turn(self, client: Client) -> None:
        known = self.known.setdefault(id(client), [])
        if len(known) < PUSHED_MAX and (not known or client.rng.random() < 0.7):
            known.append(self._push(client))
        else:
            client.rng.shuffle(known)
            self._repeat(known[0], client.done(known[0].request))

    def _push(self, client: Client) -> Sent:
        sent = client.rng.choice((self._request, self._custom_ids, self._transaction_ids))(client)
        self.sent.append(sent)
        reply = client.done(sent.request)
        if "duplicate" in reply or "duplicates" in reply:
            raise Violation(f"{sent} was told to be a duplicate: {reply}")
        sent.ids = _ids(reply)
        return sent

    def _request(self, client: Client) -> Sent:
        names = [client.new_name() for _ in range(client.rng.randrange(1, 6))]
        request: Request = {"cmd": "PUSH", "queue": QUEUE, "messages": names, "idempotency_key": names[0]}
        return Sent(request | {"producer": "p", "partition": client.rng.choice(PARTITIONS)}, names)

    def _custom_ids(self, client: Client) -> Sent:
        names = [client.new_name() for _ in range(client.rng.randrange(1, 4))]
        items = [
            {"payload": name, "job_id": f"job {name}", "partition": client.rng.choice(PARTITIONS)}
            for name in names
        ]
        return Sent({"cmd": "PUSH", "queue": QUEUE, "items": items, "durability": "os"}, names)

    def _transaction_ids(self, client: Client) -> Sent:
        name = client.new_name()
        request = {"cmd": "PUSH", "queue": QUEUE, "payload": name, "transaction_id": f"transaction {name}"}
        return Sent(request | {"partition": client.rng.choice(PARTITIONS)}, [name])

    def _repeat(self, sent: Sent, reply: Reply) -> None:
        """The answer to a push that was kept before is the same, and says so."""
        self.repeated += 1
        if _ids(reply) != sent.ids or not (reply.get("duplicate") or reply.get("duplicates")):
            raise Violation(f"{sent} was sent again: {reply}")

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        self.known = {}
        kept = self._kept(asker)
        for sent in self.sent:
            there = [kept[payload] for payload in sent.payloads if payload in kept]
            if sent.ids is None:
                self._send_again(asker, sent, there)
            elif there != sent.ids:
                raise Violation(f"{there} are there: {sent}")
        for sent in rng.sample(self.sent, min(TRIED_MAX, len(self.sent))):
            self._repeat(sent, asker.ask(sent.request))
        after = self._kept(asker)
        wanted = dict(pair for sent in self.sent for pair in zip(sent.payloads, sent.ids or (), strict=True))
        if after != wanted:
            raise Violation(f"kept and sent differ: {sorted(after.items() ^ wanted.items())[:5]}")

    def _kept(self, asker: Asker) -> dict[str, int]:
        kept: dict[str, int] = {}
        for each in asker.log(QUEUE):
            if kept.setdefault(each.payload, each.id) != each.id:
                raise Violation(f"{each} is there twice, and at {kept[each.payload]}")
        return kept

    def _send_again(self, asker: Asker, sent: Sent, there: list[int]) -> None:
        """A push that was never answered was kept whole or not at all; sent again, it is kept."""
        self.cut_off += 1
        self.cut_off_kept += bool(there)
        if there and len(there) != len(sent.payloads):
            raise Violation(f"only {there} are there: {sent}")
        reply = asker.ask(sent.request)
        sent.ids = there or _ids(reply)
        if there:
            self._repeat(sent, reply)
        elif "duplicate" in reply or "duplicates" in reply:
            raise Violation(f"{sent} is not there, and a duplicate: {reply}")

    def end(self, asker: Asker) -> None:
        """They can all be had, each once."""
        got = sorted(each.id for each in asker.pop_all(QUEUE, 60_000))
        if got != sorted(id for sent in self.sent for id in sent.ids or ()):
            raise Violation(f"delivered were {got}")

    def summary(self) -> str:
        messages = sum(len(sent.payloads) for sent in self.sent)
        return (
            f"repeats: {len(self.sent)} pushes of {messages} messages, {self.repeated} sent again,"
            f" {self.cut_off} cut off, {self.cut_off_kept} of them kept"
        )


def _ids(reply: Reply) -> list[int]:
    if "first" in reply:
        return list(range(int(reply["first"]), int(reply["first"]) + reply["count"]))
    return list(map(int, reply["ids"])) if "ids" in reply else [int(reply["id"])]
