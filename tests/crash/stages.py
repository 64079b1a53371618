"""Batches that are staged bit by bit and adopted: each is there once or not at all, whatever was killed.

    python -m tests.crash.jobs --cycles 60 --seed 1 --only stages

Each client is a query: its tasks stage parts, some of them twice, some in stages that nobody names; its
driver adopts batch after batch, and now and then one of them again. Tasks that are late are sent away, and
stages are dropped. Others push to the same partitions meanwhile. After a kill, a batch whose adoption was cut
off is there wholly or not at all; whatever was not answered is sent again as it was, and is answered as if
nothing had happened.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from forebay.core.bounds import ADOPTIONS_MAX, SEGMENT_BYTES_MAX
from forebay.core.log.bodies import pack_body
from tests.crash.asking import Asker, Labels, labels_of
from tests.crash.ledger import Violation
from tests.crash.parts import Client, Hands
from tests.serving import Reply, Request

QUEUE = "staged"
PARTITIONS = ("default", "a", "b")
CLIENTS = 4
TASKS = 3
"""Stages of a batch, at most."""
LARGE = 300_000
"""Bytes of a part that is more than one commit takes at once."""
LARGE_PART = 0.01
TRIED_MAX = 10
"""Batches of a query that are adopted again after a restart."""
LEASE_MS = 3_600_000

Row = tuple[str, Labels]
"""A payload, and its headers and tags."""


@dataclass
class Write:
    """A part of a stage."""

    stage: str
    part: int
    partition: str
    payloads: list[str]
    options: Request


@dataclass
class Batch:
    """What is staged for one batch of a query."""

    query: str
    number: int
    writes: list[Write] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    """Stages that were, and have no parts since."""
    adopting: Request | None = None
    """Once it was sent."""
    reply: Reply | None = None
    """Once it was answered."""

    def counts(self) -> dict[str, int]:
        """Messages by stage."""
        found: Counter[str] = Counter()
        for write in self.writes:
            found[write.stage] += len(write.payloads)
        return dict(found)

    def wanted(self) -> dict[str, list[Row]]:
        """What the adoption appends to each partition."""
        assert self.adopting is not None
        found: dict[str, list[Row]] = {}
        for stage in self.adopting["stages"]:
            for write in self.writes:
                if write.stage == stage:
                    labels = labels_of(write.options)
                    rows = [(payload, labels) for payload in write.payloads]
                    found.setdefault(write.partition, []).extend(rows)
        return found


@dataclass
class Stages:
    """The part."""

    hands: list[Hands] = field(default_factory=lambda: [Hands() for _ in range(CLIENTS)])
    batches: list[list[Batch]] = field(
        default_factory=lambda: [[Batch(f"query-{at}", 0)] for at in range(CLIENTS)]
    )
    """Those of each client; the last is the one it is at."""
    pushed: dict[str, bool] = field(default_factory=dict)
    """Payloads that were pushed, and whether that was confirmed."""
    writes: int = 0
    adopted: int = 0
    repeated: int = 0
    late: int = 0
    dropped: int = 0
    cut_off: int = 0
    """Adoptions that the kill cut off."""
    cut_off_kept: int = 0
    """Those of them that had been carried out."""

    def turn(self, client: Client) -> None:
        client.choose(
            (10, self._write),
            (2, self._write_again),
            (6, self._adopt),
            (1, self._adopt_again),
            (1, self._come_late),
            (2, self._drop),
            (3, self._push),
        )

    def _of(self, client: Client) -> list[Batch]:
        return self.batches[self.hands.index(client.hands)]

    # Tasks.

    def _write(self, client: Client) -> None:
        batch, rng = self._of(client)[-1], client.rng
        task = rng.randrange(TASKS + 1)  # the last is one that nobody names
        stage = f"{batch.query}.{batch.number}.{task}"
        part = sum(write.stage == stage for write in batch.writes)
        size = LARGE if rng.random() < LARGE_PART else rng.randrange(30)
        payloads = [client.new_name() + "." * size for _ in range(rng.choice((1, 2, 5)))]
        options: Request = {}
        if rng.random() < 0.2:
            options["priority"] = 3
        elif rng.random() < 0.2 and size < LARGE:
            options["unique_keys"] = payloads
        if rng.random() < 0.3:
            options |= {"headers": {"stage": stage, "part": str(part)}, "tags": [f"task-{task}"]}
        write = Write(stage, part, rng.choice(PARTITIONS), payloads, options)
        batch.writes.append(write)
        batch.dropped.discard(stage)
        reply = self._send(client, batch, write)
        self.writes += 1
        if not reply["ok"] or reply["part"] != part or reply["count"] != batch.counts()[stage]:
            raise Violation(f"part {part} of {stage} was answered {reply}")

    def _send(self, client: Client, batch: Batch, write: Write) -> Reply:
        request = _packed(batch, write)
        too_large = len(request["body"]) > SEGMENT_BYTES_MAX and request["count"] > 1
        if too_large or client.rng.random() < 0.5:
            return client.ask(_staging(batch, write))
        return client.ask_packed(request)

    def _write_again(self, client: Client) -> None:
        """A task that did not hear what came of its part."""
        batch = self._of(client)[-1]
        if batch.writes:
            write = client.rng.choice(batch.writes)
            reply = self._send(client, batch, write)
            if (
                not reply["ok"]
                or reply["part"] != write.part
                or reply["count"] != batch.counts()[write.stage]
            ):
                raise Violation(f"part {write.part} of {write.stage} was answered {reply} when it came again")

    def _come_late(self, client: Client) -> None:
        """A task that goes on with a batch that is over."""
        known = self._of(client)[:-1]
        if known:
            batch = client.rng.choice(known[-5:])
            stage = f"{batch.query}.{batch.number}.{client.rng.randrange(TASKS + 2)}"
            write = Write(stage, client.rng.randrange(3), "default", [client.new_name()], {})
            reply = self._send(client, batch, write)
            if reply["ok"] or reply["error"]["code"] != "conflict":
                raise Violation(f"{stage} is late, and was answered {reply}")
            self.late += 1

    def _drop(self, client: Client) -> None:
        """A task that gives up drops its stage, and may begin anew."""
        batch = self._of(client)[-1]
        if batch.writes:
            stage = client.rng.choice(batch.writes).stage
            reply = client.done({"cmd": "UNSTAGE", "queue": QUEUE, "stages": [stage, "another"]})
            if (reply["stages"], reply["count"]) != (1, batch.counts()[stage]):
                raise Violation(f"{stage} has {batch.counts()[stage]} messages, and {reply} were dropped")
            batch.writes = [write for write in batch.writes if write.stage != stage]
            batch.dropped.add(stage)
            self.dropped += 1

    # Drivers.

    def _adopt(self, client: Client) -> None:
        batches, rng = self._of(client), client.rng
        batch = batches[-1]
        counts = batch.counts()
        names = [name for name in counts if not name.endswith(f".{TASKS}")]
        rng.shuffle(names)
        batch.adopting = {
            "cmd": "ADOPT",
            "queue": QUEUE,
            "query": batch.query,
            "batch": batch.number,
            "stages": names,
            "count": sum(counts[name] for name in names),
            "durability": rng.choice((None, "os", "fsync")),
        }
        ask = client.ask if rng.random() < 0.5 else client.ask_packed
        reply = ask(batch.adopting)
        if not reply["ok"] or "repeated" in reply:
            raise Violation(f"{batch.adopting} was answered {reply}")
        self._adopted(batches, reply)

    def _adopted(self, batches: list[Batch], reply: Reply) -> None:
        batch = batches[-1]
        batch.reply = {name: value for name, value in reply.items() if name != "repeated"}
        batches.append(Batch(batch.query, batch.number + 1))
        self.adopted += 1

    def _adopt_again(self, client: Client) -> None:
        known = self._of(client)[:-1]
        if known:
            batch = client.rng.choice(known[-5:])
            assert batch.adopting is not None
            self._check_again(batch, client.ask(batch.adopting))

    def _check_again(self, batch: Batch, reply: Reply) -> None:
        assert batch.reply is not None
        if reply != batch.reply | {"repeated": True}:
            raise Violation(f"{batch.adopting} was answered {batch.reply}, and then {reply}")
        self.repeated += 1

    def _push(self, client: Client) -> None:
        payload = client.new_name()
        self.pushed[payload] = False
        partition = client.rng.choice(PARTITIONS)
        client.done({"cmd": "PUSH", "queue": QUEUE, "payload": payload, "partition": partition})
        self.pushed[payload] = True

    # What must be so.

    def check(self, asker: Asker, rng: random.Random) -> None:
        there = {each.payload for each in asker.log(QUEUE)}
        for batches in self.batches:
            newest = batches[-2:-1]
            self._go_on(asker, batches, there)
            known = batches[-ADOPTIONS_MAX:-1]
            for batch in [*newest, *rng.sample(known, min(TRIED_MAX, len(known)))]:
                assert batch.adopting is not None
                self._check_again(batch, asker.ask(batch.adopting))
        self._check_log(asker)

    def _go_on(self, asker: Asker, batches: list[Batch], there: set[str]) -> None:
        """Send again what was cut off; what is adopted has only parts that were confirmed: it can't fail."""
        batch = batches[-1]
        if batch.adopting is not None:
            wanted = {payload for rows in batch.wanted().values() for payload, _ in rows}
            left = wanted & there
            if left not in (set(), wanted):
                raise Violation(f"{batch.adopting} was cut off, and is there in part: {_some(left)}")
            reply = asker.ask(batch.adopting)
            if wanted and ("repeated" in reply) != (left == wanted):
                raise Violation(f"{batch.adopting} was answered {reply}, there is {_some(left)}")
            self.cut_off += 1
            self.cut_off_kept += "repeated" in reply
            self._adopted(batches, reply)
            return
        if batch.dropped:
            reply = asker.ask({"cmd": "UNSTAGE", "queue": QUEUE, "stages": sorted(batch.dropped)})
            if reply["stages"]:
                raise Violation(f"{batch.dropped} were dropped, and are there again: {reply}")
        so_far: Counter[str] = Counter()
        totals = batch.counts()
        for write in batch.writes:
            reply = asker.ask(_staging(batch, write))
            so_far[write.stage] += len(write.payloads)
            if (
                reply["part"] != write.part
                or not so_far[write.stage] <= reply["count"] <= totals[write.stage]
            ):
                raise Violation(f"part {write.part} of {write.stage} was answered {reply} after a restart")

    def _check_log(self, asker: Asker) -> None:
        """Everything adopted is there once and where its answer says; nothing else but what was pushed is."""
        found = asker.log(QUEUE)
        by_id = {each.id: (each.payload, each.labels) for each in found}
        counted = Counter(each.payload for each in found)
        wanted: set[str] = set()
        for batch in (batch for batches in self.batches for batch in batches[:-1]):
            assert batch.reply is not None
            got: dict[str, list[Row | None]] = {}
            for part in batch.reply["partitions"]:
                first = int(part["first"])
                ids = range(first, first + part["count"])
                got.setdefault(part["partition"], []).extend(by_id.get(each) for each in ids)
            if got != batch.wanted():
                raise Violation(
                    f"batch {batch.number} of {batch.query} is not where it was told: {batch.reply}"
                )
            wanted.update(row[0] for rows in got.values() for row in rows if row)
        wanted.update(payload for payload, confirmed in self.pushed.items() if confirmed)
        twice = [payload for payload, count in counted.items() if count > 1]
        missing = wanted - counted.keys()
        strays = counted.keys() - wanted - self.pushed.keys()
        if twice or missing or strays:
            raise Violation(f"twice {_some(twice)}, missing {_some(missing)}, nobody adopted {_some(strays)}")
        for payload in self.pushed:
            self.pushed[payload] = payload in counted
        self.pushed = {payload: True for payload, kept in self.pushed.items() if kept}

    def end(self, asker: Asker) -> None:
        """What was begun is adopted, and everything is delivered once."""
        for batches in self.batches:
            batch = batches[-1]
            counts = batch.counts()
            batch.adopting = {"cmd": "ADOPT", "queue": QUEUE, "query": batch.query, "batch": batch.number}
            batch.adopting |= {"stages": list(counts), "count": sum(counts.values())}
            reply = asker.ask(batch.adopting)
            self._adopted(batches, reply)
        self._check_log(asker)
        if sorted(asker.pop_all(QUEUE, LEASE_MS)) != sorted(asker.log(QUEUE)):
            raise Violation("what is delivered is not what is there")

    def summary(self) -> str:
        again = f"{self.repeated} answered again, {self.late} sent away, {self.dropped} dropped"
        cut_off = f"{self.cut_off} cut off, {self.cut_off_kept} of them carried out"
        return f"stages: {self.writes} parts, {self.adopted} adopted, {again}, {cut_off}"


def _some(payloads: Any) -> list[str]:
    return [payload[:40] for payload in sorted(payloads)[:5]]


def _about(batch: Batch, write: Write) -> Request:
    where = {"cmd": "STAGE", "queue": QUEUE, "stage": write.stage, "partition": write.partition}
    return where | {"part": write.part, "query": batch.query, "batch": batch.number} | write.options


def _staging(batch: Batch, write: Write) -> Request:
    return _about(batch, write) | {"messages": write.payloads}


def _packed(batch: Batch, write: Write) -> Request:
    """The same as a body."""
    payloads = [json.dumps(payload).encode() for payload in write.payloads]
    body = pack_body(payloads, list(map(len, payloads)))
    return _about(batch, write) | {"body": body, "count": len(payloads)}
