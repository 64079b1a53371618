"""Forebay with threads: functions that block, and pushes that do. Each push waits for its own sync."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.peers.contract import Peer, Sender, main, ran
from bench.peers.forebay_peer import server
from forebay.client.tasks.app import App
from forebay.client.worker.main import run_worker
from forebay.client.worker.worker import CONCURRENCY

app = App("bench", queue="tasks")


@app.task
def task(stamp: int) -> None:
    ran(stamp)


class BlockingSender:
    def one(self, stamp: int) -> None:
        task.push(stamp)

    def many(self, stamps: Sequence[int]) -> None:
        task.push_many(stamps)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    app.server = url
    yield BlockingSender()
    app.close()


def work(url: str) -> None:
    run_worker(app, server=url)


PEER = Peer(
    name="Forebay",
    package="forebay",
    worker=f"{CONCURRENCY} threads, fsync",
    sender=sender,
    work=work,
    bulk=True,
    server=server,
)

if __name__ == "__main__":
    main(PEER)
