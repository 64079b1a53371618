"""One client: random requests over one connection until the server dies."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.crash.ledger import Hold, Lease, Record, Sent, Unknown
from tests.serving import Raw, Reply, Request

QUEUES = ("orders", "mails")
CALLS = "calls"
"""A queue that nobody pops from: what is in it is cancelled and moved while it is waiting or delayed."""
PARTITIONS = ("default", "a", "b")
GROUPS = ("default", "other")
LONG_MS = 60_000
SKEW_MS = 100
"""How far the client's clock and the server's may be apart."""
MESSAGES_MAX = 300
"""Messages one client pushes in one cycle."""
LARGE_BYTES = 280 * 1024
"""Above what the store writes in one batch."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Step(NamedTuple):
    """A request, and what to do when it is answered, or when it never is."""

    request: Request
    answered: Callable[[Reply], None]
    unanswered: Callable[[], None]


class Client:
    """Sends bursts of requests and keeps a record of what came of them."""

    def __init__(
        self,
        connection: Raw,
        where: str,
        rng: random.Random,
        leases: list[Lease],
        *,
        may_be_busy: bool = False,
    ) -> None:
        """``may_be_busy``: the server's database may go away, and with it what is not synced."""
        self._may_be_busy = may_be_busy
        self._connection = connection
        self._where = where
        self._rng = rng
        self._leases = leases
        """Leases it may settle; those of cycles before included."""
        self._calls: list[int] = []
        """Messages of its own that were confirmed in the queue nobody pops from, and not cancelled yet."""
        self._dead: list[tuple[str, str, int]] = []
        """Queue, group and id of dead letters it has seen."""
        self._pushed = 0
        self._large = 0
        self._made = 0
        self.record = Record()
        self.answers = 0

    def run(self) -> None:
        """Go on until the server is gone."""
        try:
            while True:
                self._burst()
        except (EOFError, OSError):
            self._connection.close()

    def _burst(self) -> None:
        steps = [self._step() for _ in range(self._rng.choice((1, 1, 2, 4)))]
        waiting = list(steps)
        try:
            self._connection.send(*(step.request for step in steps))
            for step in steps:
                reply = self._connection.receive()
                if self._may_be_busy and not reply["ok"] and reply["error"]["code"] == "busy":
                    raise EOFError("what was asked may have been done, or not")
                waiting.pop(0)
                self.answers += 1
                step.answered(reply)
        finally:
            for step in waiting:
                step.unanswered()

    def _step(self) -> Step:
        kinds: list[tuple[int, Callable[[], Step]]] = [
            (25, self._pop),
            (3, self._list_dead),
            (2, self._look),
        ]
        if self._calls:
            kinds += [(6, self._cancel_call), (4, self._move_call)]
        if self._dead:
            kinds += [(3, self._purge), (3, self._requeue)]
        if self._pushed < MESSAGES_MAX:
            kinds.append((8, self._push_call))
            kinds += [(30, self._push), (12, self._push_batch), (6, self._push_items)]
            if self._large < 2:
                kinds.append((3, self._push_large))
        lease = self._pick()
        if lease is not None:
            kinds += [
                (20, lambda: self._ack_lease(lease)),
                (10, lambda: self._ack_ids(lease)),
                (6, lambda: self._nack(lease)),
                (5, lambda: self._extend(lease)),
            ]
            if lease.expires_at > now_ms() + LONG_MS // 4:
                kinds.append((5, lambda: self._cancel(lease)))
        chosen: Callable[[], Step] = self._rng.choices(
            [kind for _, kind in kinds], [weight for weight, _ in kinds]
        )[0]
        return chosen()

    def _pick(self) -> Lease | None:
        """A lease that no request is about right now."""
        while self._leases:
            at = self._rng.randrange(len(self._leases))
            lease = self._leases[at]
            if lease.doubtful or lease.over or not lease.holds:
                self._leases[at] = self._leases[-1]
                self._leases.pop()
                continue
            return None if lease.in_flight else lease
        return None

    def _bad(self, what: str) -> None:
        self.record.violations.append(f"{self._where}: {what}")

    # Pushes.

    def _payload(self, size: int = 0) -> str:
        self._made += 1
        return f"{self._where} {self._made} ".ljust(size or self._rng.randrange(30, 200), "x")

    def _place(self) -> tuple[str, str]:
        return self._rng.choice(QUEUES), self._rng.choice(PARTITIONS)

    def _sent(
        self, queue: str, parts: dict[str, list[str]], request: Request, ids: Callable[[Reply], Any]
    ) -> Step:
        """A push; ``ids`` finds the ids by partition in the answer."""
        sent = Sent(self._where, queue, parts)
        self.record.sent.append(sent)
        self._pushed += sum(map(len, parts.values()))
        if self._rng.random() < 0.3 and not self._may_be_busy:
            request["durability"] = "os"

        def answered(reply: Reply) -> None:
            if reply["ok"]:
                sent.firsts, sent.fate = ids(reply), "kept"
            else:
                sent.fate = "absent"
                self._bad(f"a push was refused: {reply}")

        return Step(request, answered, lambda: None)

    def _options(self) -> Request:
        """Options of a message: mostly none but for its retries, which shall not take long."""
        found: Request = {"backoff": self._rng.choice((0, 10, [5, 20]))}
        if self._rng.random() < 0.3:
            found["priority"] = self._rng.randrange(-3, 4)
        if self._rng.random() < 0.2:
            found["delay_ms"] = self._rng.randrange(0, 50)
        if self._rng.random() < 0.1:
            found["lifo"] = True
        if self._rng.random() < 0.6:
            found["max_attempts"] = self._rng.choice((0, 2))
        return found

    def _push(self) -> Step:
        queue, partition = self._place()
        payload = self._payload()
        request = {
            "cmd": "PUSH",
            "queue": queue,
            "partition": partition,
            "payload": payload,
            **self._options(),
        }
        return self._sent(queue, {partition: [payload]}, request, lambda reply: {partition: [reply["id"]]})

    def _push_batch(self) -> Step:
        return self._batch([self._payload() for _ in range(self._rng.randrange(2, 9))])

    def _push_large(self) -> Step:
        self._large += 1
        count = self._rng.choice((2, 3, 8))
        return self._batch([self._payload(LARGE_BYTES // count + 1) for _ in range(count)])

    def _batch(self, payloads: list[str]) -> Step:
        queue, partition = self._place()
        request = {"cmd": "PUSH", "queue": queue, "partition": partition, "messages": payloads}
        request |= self._options()

        def ids(reply: Reply) -> dict[str, list[int]]:
            return {partition: list(range(reply["first"], reply["first"] + reply["count"]))}

        return self._sent(queue, {partition: payloads}, request, ids)

    def _push_items(self) -> Step:
        queue, _ = self._place()
        names = [self._rng.choice(PARTITIONS) for _ in range(self._rng.randrange(2, 7))]
        payloads = [self._payload() for _ in names]
        items = [
            {"payload": payload, "partition": name, **self._options()}
            for name, payload in zip(names, payloads, strict=True)
        ]

        def by_partition(values: list[Any]) -> dict[str, list[Any]]:
            found: dict[str, list[Any]] = {}
            for name, value in zip(names, values, strict=True):
                found.setdefault(name, []).append(value)
            return found

        request = {"cmd": "PUSH", "queue": queue, "items": items}
        return self._sent(queue, by_partition(payloads), request, lambda reply: by_partition(reply["ids"]))

    # The queue that nobody pops from.

    def _push_call(self) -> Step:
        partition = self._rng.choice(PARTITIONS)
        payloads = [self._payload() for _ in range(self._rng.randrange(1, 9))]
        request: Request = {"cmd": "PUSH", "queue": CALLS, "partition": partition, "messages": payloads}
        request["delay_ms"] = self._rng.choice((0, 0, 20, LONG_MS))

        def ids(reply: Reply) -> dict[str, list[int]]:
            found = list(range(reply["first"], reply["first"] + reply["count"]))
            self._calls += found
            return {partition: found}

        return self._sent(CALLS, {partition: payloads}, request, ids)

    def _look(self) -> Step:
        """Make a group of the queue that nobody pops from, or let it be."""
        group = self._rng.choice(GROUPS)
        request = {"cmd": "POP", "queue": CALLS, "partition": "none", "group": group, "wait_ms": 0}
        return Step(request, lambda reply: None, lambda: None)

    def _some_calls(self) -> list[int]:
        return self._rng.sample(self._calls, self._rng.randrange(1, min(6, len(self._calls)) + 1))

    def _cancel_call(self) -> Step:
        ids = self._some_calls()
        self._calls = [each for each in self._calls if each not in ids]
        request: Request = {"cmd": "CANCEL", "ids": ids}
        groups = GROUPS

        def answered(reply: Reply) -> None:
            if not reply["ok"] or reply["refused"] or reply["count"] != len(ids):
                self._bad(f"{request} was refused: {reply}")
            self.record.cancelled += [(group, each) for group in groups for each in ids]

        def unanswered() -> None:
            self.record.maybe += [(group, each) for group in groups for each in ids]

        return Step(request, answered, unanswered)

    def _move_call(self) -> Step:
        request: Request = {"ids": self._some_calls(), "group": self._rng.choice(GROUPS)}
        how = self._rng.choice(({"cmd": "PROMOTE"}, {"cmd": "DELAY", "delay_ms": 30}))
        if self._rng.random() < 0.4:
            how = {"cmd": "PRIORITY", "priority": self._rng.randrange(-3, 4)}
        request |= how

        def answered(reply: Reply) -> None:
            # A cancel that was sent in the same burst may have come before it.
            if not reply["ok"] and reply["error"]["code"] != "conflict":
                self._bad(f"{request} was refused: {reply}")

        return Step(request, answered, lambda: None)

    # Dead letters.

    def _list_dead(self) -> Step:
        queue, group = self._rng.choice(QUEUES), self._rng.choice(GROUPS)

        def answered(reply: Reply) -> None:
            if reply["ok"]:
                self._dead = [(queue, group, int(each["id"])) for each in reply["messages"]]
            elif reply["error"]["code"] != "not_found":
                self._bad(f"DEAD was refused: {reply}")

        return Step({"cmd": "DEAD", "queue": queue, "group": group, "limit": 50}, answered, lambda: None)

    def _of_dead(self, cmd: str, done: Callable[[str, list[int]], None], sent: Callable[..., None]) -> Step:
        queue, group, _ = self._dead[0]
        ids = [each for _, _, each in self._dead[: self._rng.randrange(1, 6)]]
        del self._dead[: len(ids)]

        def answered(reply: Reply) -> None:
            if reply["ok"]:
                done(group, [each for each in ids if each not in set(map(int, reply["refused"]))])
            elif reply["error"]["code"] != "not_found":
                self._bad(f"{cmd} was refused: {reply}")

        request = {"cmd": cmd, "queue": queue, "group": group, "ids": ids}
        return Step(request, answered, lambda: sent(group, ids))

    def _purge(self) -> Step:
        def done(group: str, ids: list[int]) -> None:
            self.record.purged += [(group, each) for each in ids]

        def sent(group: str, ids: list[int]) -> None:
            self.record.maybe += [(group, each) for each in ids]

        return self._of_dead("DEADPURGE", done, sent)

    def _requeue(self) -> Step:
        return self._of_dead("REQUEUE", lambda group, ids: None, lambda group, ids: None)

    # Pops.

    def _pop(self) -> Step:
        queue, group = self._rng.choice(QUEUES), self._rng.choice(GROUPS)
        lease_ms = self._rng.randrange(1, 40) if self._rng.random() < 0.15 else LONG_MS
        request: Request = {"cmd": "POP", "queue": queue, "group": group, "lease_ms": lease_ms}
        request["wait_ms"] = self._rng.choice((0, 0, 20))
        if self._rng.random() < 0.2:
            request["partition"] = self._rng.choice(PARTITIONS)
        if self._rng.random() < 0.7:
            request["count"] = self._rng.randrange(1, 40)
            request["compact"] = self._rng.random() < 0.5
        return Step(request, lambda reply: self._popped(request, reply), lambda: None)

    def _popped(self, request: Request, reply: Reply) -> None:
        if not reply["ok"]:
            self._bad(f"{request} was refused: {reply}")
            return
        queue, group, lease_ms = request["queue"], request["group"], request["lease_ms"]
        got = [(id, data, expires_at) for id, data, expires_at, _ in delivered(reply)]
        tokens = {token for _, _, _, token in delivered(reply)}
        if not got:
            return
        if len(tokens) != 1 or len({each for _, _, each in got}) != 1:
            self._bad(f"one pop, several leases or ends: {tokens}")
        expires_at = got[0][2]
        (token,) = tokens
        holds = {id: Hold(id, group, data, expires_at - lease_ms, expires_at) for id, data, _ in got}
        lease = Lease(token, queue, group, expires_at, expires_at, holds)
        for hold in holds.values():
            hold.happened(f"{self._where}: leased as {token} until {expires_at}")
        self.record.delivered += holds.values()
        self.record.leases.append(lease)
        self._leases.append(lease)

    # What becomes of leases. A request about one is the only one on its way.

    def _about(
        self, lease: Lease, request: Request, done: Callable[[Reply], None], unanswered: Callable[[], None]
    ) -> Step:
        lease.in_flight = True
        sent_at = now_ms()

        def answered(reply: Reply) -> None:
            lease.in_flight = False
            if reply["ok"]:
                if sent_at > lease.lasts_to + SKEW_MS:
                    self._bad(f"{request} was taken after the lease ended at {lease.lasts_to}")
                done(reply)
            elif reply["error"]["code"] != "conflict" or now_ms() < lease.expires_at - SKEW_MS:
                self._bad(f"{request} was refused while the lease ran to {lease.expires_at}: {reply}")
            else:
                lease.over = True

        return Step(request, answered, unanswered)

    def _ack_lease(self, lease: Lease) -> Step:
        ids = list(lease.holds)

        def done(reply: Reply) -> None:
            self._acked(lease, ids, "with its lease")

        request = {"cmd": "ACK", "lease": lease.token}
        return self._about(lease, request, done, lambda: self._unknown_ack(lease, ids))

    def _acked(self, lease: Lease, ids: list[int], how: str) -> None:
        for hold in lease.drop(ids):
            hold.settle(f"{self._where}: acked {how}")
            self.record.acked.append(hold)

    def _unknown_ack(self, lease: Lease, ids: list[int], results: dict[int, str] | None = None) -> None:
        self.record.unknown.append(Unknown(lease, ids, "completed", results or {}))
        for each in ids:
            lease.holds[each].happened(f"{self._where}: ack sent, never answered")

    def _cancel(self, lease: Lease) -> Step:
        """Cancel messages that it holds."""
        ids = self._some(lease)
        request: Request = {"cmd": "CANCEL", "ids": ids, "group": lease.group}

        def done(reply: Reply) -> None:
            if reply["refused"] or reply["count"] != len(ids):
                self._bad(f"{request} was not taken whole: {reply}")
                return
            for hold in lease.drop(ids):
                hold.settle(f"{self._where}: cancelled")
                self.record.cancelled.append((lease.group, hold.id))

        def unanswered() -> None:
            self.record.unknown.append(Unknown(lease, ids, "cancelled"))
            for each in ids:
                lease.holds[each].happened(f"{self._where}: cancel sent, never answered")

        return self._about(lease, request, done, unanswered)

    def _some(self, lease: Lease) -> list[int]:
        return self._rng.sample(list(lease.holds), self._rng.randrange(1, len(lease.holds) + 1))

    def _ack_ids(self, lease: Lease) -> Step:
        ids = self._some(lease)
        request: Request = {"cmd": "ACK", "ids": ids}
        if self._rng.random() < 0.5 and lease.expires_at > now_ms() + LONG_MS // 4:
            request["group"] = lease.group
        else:
            request["lease"] = lease.token
        results: dict[int, str] = {}
        if lease.group == "default" and self._rng.random() < 0.5:
            results = {each: f"{self._where} came of {each}" for each in ids}
            request["results"] = list(results.values())

        def done(reply: Reply) -> None:
            if reply["refused"] or reply["count"] != len(ids):
                self._bad(f"{request} was not taken whole: {reply}")
                return
            self._acked(lease, ids, "by id")
            self.record.results |= results

        return self._about(lease, request, done, lambda: self._unknown_ack(lease, ids, results))

    def _nack(self, lease: Lease) -> Step:
        ids = list(lease.holds) if self._rng.random() < 0.5 else self._some(lease)
        request: Request = {"cmd": "NACK", "lease": lease.token, "error": "try again"}
        if len(ids) < len(lease.holds):
            request["ids"] = ids
        holds = [lease.holds[each] for each in ids]
        sent_at = now_ms() - SKEW_MS
        for hold in holds:
            hold.free_from = min(hold.free_from, sent_at)
            hold.happened(f"{self._where}: nack sent at {sent_at}")

        def done(reply: Reply) -> None:
            lease.drop(ids)
            for hold in holds:
                hold.happened(f"{self._where}: nack confirmed")

        def unanswered() -> None:
            lease.doubtful = True

        return self._about(lease, request, done, unanswered)

    def _extend(self, lease: Lease) -> Step:
        lease_ms = self._rng.choice((20, LONG_MS))
        request = {"cmd": "EXTEND", "lease": lease.token, "lease_ms": lease_ms}

        def done(reply: Reply) -> None:
            lease.expires_at = max(lease.expires_at, reply["expires_at"])
            lease.lasts_to = max(lease.lasts_to, lease.expires_at)
            for hold in lease.holds.values():
                hold.free_from = max(hold.free_from, lease.expires_at)
                hold.happened(f"{self._where}: extended to {lease.expires_at}")

        def unanswered() -> None:
            lease.lasts_to = max(lease.lasts_to, now_ms() + lease_ms)

        return self._about(lease, request, done, unanswered)


def delivered(reply: Reply) -> list[tuple[int, str, int, str]]:
    """(id, payload, expires_at, lease) of every message in the answer to a POP."""
    if "runs" in reply:
        return [
            (int(run["first"]) + at, data, run["expires_at"], reply["lease"])
            for run in reply["runs"]
            for at, data in enumerate(run["payloads"])
        ]
    return [
        (int(each["id"]), each["payload"], each["expires_at"], each["lease"]) for each in reply["messages"]
    ]
