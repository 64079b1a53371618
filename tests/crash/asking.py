"""Questions about what a kill left, asked while nobody else asks anything."""

from collections.abc import Iterable
from typing import NamedTuple

from tests.crash.ledger import Violation
from tests.serving import Raw, Reply, Request

PIPELINE = 500
OPEN = ("waiting", "delayed", "active", "parked")
"""States of a message that has not ended."""


Labels = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]
"""Headers and tags of a message."""


def labels_of(told: Reply) -> Labels:
    """What a message, a run of the log or the options of a push say of headers and tags."""
    return tuple(told.get("headers", {}).items()), tuple(told.get("tags", ()))


class Found(NamedTuple):
    """A message as the log has it."""

    id: int
    payload: str
    created_at: int
    labels: Labels = ((), ())


class Asker:
    """One connection on which everything has to be answered with ok."""

    def __init__(self, connection: Raw) -> None:
        self._connection = connection

    def ask(self, request: Request) -> Reply:
        (reply,) = self.ask_all([request])
        return reply

    def ask_all(self, requests: Iterable[Request]) -> list[Reply]:
        """Many requests, some on their way at a time."""
        given = list(requests)
        replies: list[Reply] = []
        for start in range(0, len(given), PIPELINE):
            part = given[start : start + PIPELINE]
            self._connection.send(*part)
            for request in part:
                reply = self._connection.receive()
                if not reply["ok"]:
                    raise Violation(f"{request} was refused: {reply}")
                replies.append(reply)
        return replies

    def log(self, *queues: str) -> list[Found]:
        """Everything in these queues, partition by partition; those that do not exist have nothing."""
        known = {queue["queue"] for queue in self.ask({"cmd": "QUEUES"})["queues"]}
        found: list[Found] = []
        for queue in queues:
            if queue in known:
                for partition in self.ask({"cmd": "OFFSETS", "queue": queue})["partitions"]:
                    found += self._read(queue, partition["partition"], partition["end"])
        return found

    def _read(self, queue: str, partition: str, end: int) -> list[Found]:
        found: list[Found] = []
        place = {"cmd": "READ", "queue": queue, "partition": partition, "max_bytes": 1 << 24}
        while len(found) < end:
            for run in self.ask(place | {"offset": len(found), "max_count": 10_000})["runs"]:
                if run["offset"] != len(found):
                    raise Violation(f"{queue}/{partition}: offsets {len(found)} to {run['offset']} are gone")
                first, about = int(run["first"]), (run["created_at"], labels_of(run))
                found += [Found(first + number, each, *about) for number, each in enumerate(run["payloads"])]
        return found

    def states(self, ids: Iterable[int], group: str = "default") -> dict[int, str]:
        asked = list(ids)
        replies = self.ask_all({"cmd": "STATE", "id": each, "group": group} for each in asked)
        return {each: reply["state"] for each, reply in zip(asked, replies, strict=True)}

    def move_back(self, ids: list[int], group: str = "default") -> None:
        """Take messages from consumers that never heard of them."""
        for start in range(0, len(ids), PIPELINE):
            part = ids[start : start + PIPELINE]
            self.ask({"cmd": "DELAY", "ids": part, "group": group, "delay_ms": 0})

    def pop_all(self, queue: str, lease_ms: int, group: str = "default", count: int = 1_000) -> list[Found]:
        """Everything that can be had right now, under leases."""
        found: list[Found] = []
        request = {"cmd": "POP", "queue": queue, "group": group, "count": count, "wait_ms": 0}
        while messages := self.ask(request | {"lease_ms": lease_ms})["messages"]:
            found += [
                Found(int(each["id"]), each["payload"], each["created_at"], labels_of(each))
                for each in messages
            ]
        return found
