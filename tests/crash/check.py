"""What must be so after a restart, whatever the kill cut off.

Every check asks the server over a connection of its own, while nobody else does. An error is a ``Violation``
that tells the history of the message it is about.
"""

import random
from itertools import pairwise

from tests.crash.ledger import Lease, Ledger, Sent, Unknown, Violation
from tests.crash.load import CALLS, GROUPS, LONG_MS, QUEUES, SKEW_MS, delivered, now_ms
from tests.serving import Raw, Reply, Request

GAIN_MS = 30_000
"""What a restart adds to a lease at most: the queue's own ``lease_ms``."""
ENDED_MS = 500
"""How long before the kill a lease must have run out for its end to be kept for certain."""
RESULTS_TRIED = 100
"""Results that are looked at after a restart."""
TRIED_MAX = 12
"""Leases of each kind that are tried after a restart."""
PIPELINE = 500


class Check:
    """The checks of one restart."""

    def __init__(self, connection: Raw, ledger: Ledger, rng: random.Random, where: str) -> None:
        self._connection = connection
        self._ledger = ledger
        self._rng = rng
        self._where = where

    def all(self, killed_at: int) -> None:
        """Everything that can be known about what a kill at ``killed_at`` left."""
        self.logs()
        self.unknown()
        self.results()
        self.deliveries()
        self.counts()
        self.ended(killed_at)
        self.live()
        self.counts()

    def _ask(self, request: Request) -> Reply:
        reply = self._connection.ask(request)
        if not reply["ok"]:
            raise Violation(f"{request} was refused: {reply}")
        return reply

    # The logs.

    def logs(self) -> None:
        """Every confirmed message is at its id; every other push is there whole or not at all."""
        known = {queue["queue"] for queue in self._ask({"cmd": "QUEUES"})["queues"]}
        found: dict[str, tuple[str, str, int]] = {}
        """Queue, partition and offset by payload."""
        for queue in (*QUEUES, CALLS):
            if queue in known:
                for partition in self._ask({"cmd": "OFFSETS", "queue": queue})["partitions"]:
                    self._read(queue, partition["partition"], partition["end"], found)
        for sent in self._ledger.sent:
            self._check_sent(sent, found)

    def _read(self, queue: str, partition: str, end: int, found: dict[str, tuple[str, str, int]]) -> None:
        ledger = self._ledger
        log: list[str] = []
        while len(log) < end:
            reply = self._ask(
                {
                    "cmd": "READ",
                    "queue": queue,
                    "partition": partition,
                    "offset": len(log),
                    "max_bytes": 1 << 24,
                }
            )
            for run in reply["runs"]:
                if run["offset"] != len(log):
                    raise Violation(f"{queue}/{partition}: offsets {len(log)} to {run['offset']} are missing")
                first = int(run["first"])
                for at, payload in enumerate(run["payloads"]):
                    if ledger.payloads.setdefault(first + at, payload) != payload:
                        raise Violation(f"READ says {payload[:40]!r}: {ledger.history(None, first + at)}")
                    ledger.queue_of[first + at] = queue
                log += run["payloads"]
        for offset, payload in enumerate(log):
            if payload not in ledger.by_payload:
                raise Violation(f"{queue}/{partition}: nobody pushed {payload[:40]!r} at {offset}")
            if payload in found:
                raise Violation(f"{payload[:40]!r} is at {found[payload]} and at {queue, partition, offset}")
            found[payload] = (queue, partition, offset)
        before = ledger.logs.get((queue, partition), [])
        if log[: len(before)] != before:
            raise Violation(f"{queue}/{partition}: what was read before the kill has changed")
        ledger.logs[queue, partition] = log

    def _check_sent(self, sent: Sent, found: dict[str, tuple[str, str, int]]) -> None:
        there = sum(payload in found for payloads in sent.parts.values() for payload in payloads)
        total = sum(map(len, sent.parts.values()))
        if sent.fate == "unknown":
            sent.fate = "kept" if there else "absent"
        if there != (total if sent.fate == "kept" else 0):
            raise Violation(f"{there} of {total} messages are there: {sent}")
        if not there:
            return
        for partition, payloads in sent.parts.items():
            first = found[payloads[0]][2]
            wanted = [(sent.queue, partition, first + at) for at in range(len(payloads))]
            if [found[payload] for payload in payloads] != wanted:
                raise Violation(f"the messages are not where they belong, one after another: {sent}")
            for id, payload in zip((sent.firsts or {}).get(partition, ()), payloads, strict=False):
                if self._ledger.payloads.get(int(id)) != payload:
                    raise Violation(f"id {id} is not {payload[:40]!r}: {self._ledger.history(None, int(id))}")

    # Acks, cancels and deliveries.

    def unknown(self) -> None:
        """An ack or a cancel that was never answered was done whole or not at all."""
        unknown, self._ledger.unknown = self._ledger.unknown, []
        for each in unknown:
            self._settle_unknown(each)

    def _settle_unknown(self, each: Unknown) -> None:
        lease, ledger = each.lease, self._ledger
        states = self._states(lease.group, each.ids)
        latest = [id for id in each.ids if ledger.latest(lease.group, id) is lease.holds[id]]
        done = [id for id in latest if states[each.ids.index(id)] == each.state]
        # If one was delivered again the lease had ended: then none was settled with it.
        if done and len(done) != len(each.ids):
            raise Violation(f"settled in part, {done}:\n{ledger.history(lease.group, done[0])}")
        settled = ledger.acked if each.state == "completed" else ledger.cancelled
        for hold in lease.drop(done):
            hold.settle(f"{self._where}: that was done, {each.state}")
            settled.add((lease.group, hold.id))
            if hold.id in each.results:
                ledger.results[hold.id] = each.results[hold.id]

    def results(self) -> None:
        """What came of a message is there if its ack is."""
        known = sorted(self._ledger.results)
        for id in self._rng.sample(known, min(RESULTS_TRIED, len(known))):
            found = self._ask({"cmd": "RESULT", "id": id})["result"]
            if found != self._ledger.results[id]:
                raise Violation(f"RESULT says {found!r}: {self._ledger.history('default', id)}")

    def _states(self, group: str, ids: list[int]) -> list[str]:
        states: list[str] = []
        for start in range(0, len(ids), PIPELINE):
            part = ids[start : start + PIPELINE]
            self._connection.send(*({"cmd": "STATE", "id": each, "group": group} for each in part))
            for each in part:
                reply = self._connection.receive()
                if not reply["ok"]:
                    raise Violation(f"STATE says {reply}: {self._ledger.history(group, each)}")
                states.append(reply["state"])
        return states

    def deliveries(self) -> None:
        """No message was delivered inside a live lease, nor after its ack, nor with another payload."""
        ledger = self._ledger
        for (group, id), holds in ledger.holds.items():
            if any(hold.payload != ledger.payloads.get(id) for hold in holds):
                raise Violation(f"delivered with another payload: {ledger.history(group, id)}")
            holds.sort(key=lambda hold: hold.popped_at)
            for before, after in pairwise(holds):
                if after.popped_at < before.free_from:
                    raise Violation(f"delivered twice: {ledger.history(group, id)}")

    def counts(self) -> None:
        """As many messages are completed as were acked, no more and no less."""
        acked = {(queue, group): 0 for queue in (*QUEUES, CALLS) for group in GROUPS}
        for group, id in self._ledger.acked:
            acked[self._ledger.queue_of[id], group] += 1
        for queue in {queue for queue, _ in self._ledger.logs}:
            reply = self._ask({"cmd": "QUEUE", "queue": queue})
            for group in reply["groups"]:
                wanted = acked[queue, group["group"]]
                if group["counts"]["completed"] != wanted:
                    raise Violation(
                        f"{wanted} messages were acked in {queue}: {group}\n{self._strays(queue)}"
                    )

    def _strays(self, queue: str) -> str:
        """Messages whose state is not what their acks say."""
        lines = []
        for group in GROUPS:
            ids = [id for id, each in self._ledger.queue_of.items() if each == queue]
            for id, state in zip(ids, self._states(group, ids), strict=True):
                if not self._is_good(group, id, state):
                    lines.append(f"{group}: {state}: {self._ledger.history(group, id)}")
        return "\n".join(lines[:5])

    def _is_good(self, group: str, id: int, state: str) -> bool:
        """Whether a message may be in this state, as far as its acks, cancels and purges are known."""
        ledger, which = self._ledger, (group, id)
        settled = {"completed": ledger.acked, "cancelled": ledger.cancelled, "dead": ledger.purged}
        for name, those in settled.items():
            if which in those:
                return state == name
        if state == "completed":
            return False
        return state != "cancelled" or which in ledger.maybe

    def states(self) -> None:
        """Message by message: completed if and only if it was acked; what was cancelled stays so."""
        for queue in (*QUEUES, CALLS):
            strays = self._strays(queue)
            if strays:
                raise Violation(strays)

    def rest(self) -> None:
        """Whatever is neither acked, cancelled nor given up is still there: it can be had, once."""
        for queue in {queue for queue, _ in self._ledger.logs}:
            for group in GROUPS:
                ids = [id for id, each in self._ledger.queue_of.items() if each == queue]
                self._take_rest(queue, group, ids)

    def _take_rest(self, queue: str, group: str, ids: list[int]) -> None:
        while self._ask({"cmd": "REQUEUE", "queue": queue, "group": group})["left"]:
            pass
        states = dict(zip(ids, self._states(group, ids), strict=True))
        gone = {id for id, state in states.items() if state in ("completed", "cancelled", "dead")}
        strays = [id for id in gone if not self._may_be_gone(group, id, states[id])]
        if strays:
            raise Violation(f"{group}, {states[strays[0]]}: {self._ledger.history(group, strays[0])}")
        later = [id for id, state in states.items() if state in ("active", "delayed")]
        if later:
            self._ask({"cmd": "DELAY", "ids": later, "group": group, "delay_ms": 0})
        got: list[int] = []
        while True:
            request = {"cmd": "POP", "queue": queue, "group": group, "count": 1_000, "wait_ms": 0}
            messages = delivered(self._ask(request | {"lease_ms": LONG_MS}))
            if not messages:
                break
            got += [id for id, *_ in messages]
        if sorted(got) != sorted(states.keys() - gone):
            odd = sorted(set(got) ^ (states.keys() - gone)) or got
            raise Violation(f"{group}, {states.get(odd[0])}: {self._ledger.history(group, odd[0])}")

    def _may_be_gone(self, group: str, id: int, state: str) -> bool:
        ledger = self._ledger
        return self._is_good(group, id, state) and (
            state != "dead" or (group, id) in ledger.purged | ledger.maybe
        )

    # Leases.

    def ended(self, killed_at: int) -> None:
        """Tokens of leases that ended are refused for good."""
        ledger = self._ledger
        still: list[Lease] = []
        for lease in ledger.leases:
            lease.in_flight = False
            if lease.over or not (lease.holds or lease.doubtful) or lease.lasts_to < killed_at - ENDED_MS:
                ledger.ended.append(lease)
            else:
                lease.lasts_to += GAIN_MS
                still.append(lease)
        ledger.leases = still
        for lease in self._rng.sample(ledger.ended, min(TRIED_MAX, len(ledger.ended))):
            cmd = self._rng.choice(("ACK", "NACK", "EXTEND", "RELEASE"))
            reply = self._connection.ask({"cmd": cmd, "lease": lease.token})
            if reply["ok"] or reply["error"]["code"] != "conflict":
                raise Violation(f"{cmd} with the token of an ended lease, {lease}: {reply}")

    def live(self) -> None:
        """Tokens of leases that are live are as good after a kill as before it."""
        far = now_ms() + LONG_MS // 4
        live = [
            each for each in self._ledger.leases if each.holds and not each.doubtful and each.expires_at > far
        ]
        for lease in self._rng.sample(live, min(TRIED_MAX, len(live))):
            self._use(lease)

    def _use(self, lease: Lease) -> None:
        ids = list(lease.holds)
        request: Request = {"cmd": self._rng.choice(("ACK", "ACK", "ACK", "EXTEND", "NACK"))}
        if request["cmd"] == "ACK" and self._rng.random() < 2 / 3:
            ids = self._rng.sample(ids, self._rng.randrange(1, len(ids) + 1))
            request |= {"ids": ids, "group": lease.group}
        else:
            request["lease"] = lease.token
        if request["cmd"] == "NACK":
            for id in ids:
                lease.holds[id].free_from = now_ms() - SKEW_MS
        reply = self._connection.ask(request)
        if not reply["ok"] or reply.get("refused") or reply.get("count", len(ids)) != len(ids):
            history = self._ledger.history(lease.group, ids[0])
            raise Violation(f"{request} with a live lease until {lease.expires_at}: {reply}\n{history}")
        if request["cmd"] == "EXTEND":
            lease.expires_at = max(lease.expires_at, reply["expires_at"])
            lease.lasts_to = max(lease.lasts_to, lease.expires_at)
            return
        for hold in lease.drop(ids):
            if request["cmd"] == "NACK":
                hold.happened(f"{self._where}: nacked after the restart")
            else:
                hold.settle(f"{self._where}: acked after the restart")
                self._ledger.acked.add((lease.group, hold.id))
