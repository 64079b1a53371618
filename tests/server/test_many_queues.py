"""Many clients at once over many queues: whatever they do, each message is delivered once."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.serving import Raw, Server

HOUR_MS = 3_600_000
CLIENTS = 8
QUEUES = 40
ROUNDS = 120


class Worker:
    """Pushes, pops, extends, acks and cancels at random; knows what it pushed and what it got."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._random = random.Random(number)
        self._pushed = 0
        self._open: list[int] = []
        """Messages of its own that it may cancel."""
        self.sent: dict[int, tuple[str, str]] = {}
        """Queue and payload, by id."""
        self.got: list[tuple[int, str, str]] = []
        """Id, queue and payload of every delivery."""
        self.cancelled: list[int] = []

    def run(self, client: Raw) -> None:
        for _ in range(ROUNDS):
            queue = f"q{self._random.randrange(QUEUES)}"
            self._push(client, queue)
            self._cancel(client)
            self._work(client, f"q{self._random.randrange(QUEUES)}")

    def drain(self, client: Raw, queue: str) -> None:
        while self._work(client, queue):
            pass

    def _push(self, client: Raw, queue: str) -> None:
        texts = [f"{self._number}.{self._pushed + at}" for at in range(self._random.randint(1, 4))]
        self._pushed += len(texts)
        first = client.ask({"cmd": "PUSH", "queue": queue, "messages": texts})["first"]
        for at, text in enumerate(texts):
            self.sent[first + at] = (queue, text)
        self._open.append(first)

    def _cancel(self, client: Raw) -> None:
        if self._open and self._random.random() < 0.3:
            message = self._open.pop(self._random.randrange(len(self._open)))
            reply = client.ask({"cmd": "STATE", "id": message})
            if reply["state"] == "waiting" and client.ask({"cmd": "CANCEL", "ids": [message]})["ok"]:
                self.cancelled.append(message)

    def _work(self, client: Raw, queue: str) -> int:
        asked = {"cmd": "POP", "queue": queue, "count": self._random.randint(1, 5), "wait_ms": 0}
        popped = client.ask({**asked, "lease_ms": HOUR_MS})
        messages = popped["messages"]
        self.got += [(each["id"], queue, each["payload"]) for each in messages]
        if messages and self._random.random() < 0.5:
            client.ask({"cmd": "EXTEND", "lease": popped["lease"], "lease_ms": 2 * HOUR_MS})
        if self._random.random() < 0.8 and messages:
            client.ask({"cmd": "ACK", "ids": [each["id"] for each in messages]})
        return len(messages)


def test_many_clients_over_many_queues_get_each_message_once_and_from_its_own_queue() -> None:
    workers = [Worker(number) for number in range(CLIENTS)]

    def work(server: Server, worker: Worker) -> None:
        with server.connect() as client:
            worker.run(client)

    with Server() as server:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda worker: work(server, worker), workers))
        with server.connect() as client:
            for number in range(QUEUES):
                workers[0].drain(client, f"q{number}")
    sent = {message: place for worker in workers for message, place in worker.sent.items()}
    got = [each for worker in workers for each in worker.got]
    cancelled = {message for worker in workers for message in worker.cancelled}
    assert len(sent) > CLIENTS * ROUNDS
    assert cancelled
    counted = Counter(message for message, _, _ in got)
    assert max(counted.values()) == 1
    assert all(sent[message] == (queue, text) for message, queue, text in got)
    assert counted.keys() | cancelled == sent.keys()
