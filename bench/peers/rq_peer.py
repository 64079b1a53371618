"""RQ, with the worker that does not fork for every job: the quickest it has."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers.contract import Peer, Sender, main, ran

# Results are not kept (0), as long as a job does not fail.
OPTIONS = {"result_ttl": 0}


class RqSender:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def one(self, stamp: int) -> object:
        return self.queue.enqueue(ran, stamp, **OPTIONS)

    def many(self, stamps: Sequence[int]) -> object:
        return self.queue.enqueue_many([Queue.prepare_data(ran, (stamp,), **OPTIONS) for stamp in stamps])


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    with Redis.from_url(url) as redis:
        yield RqSender(Queue(connection=redis))


def work(url: str) -> None:
    redis = Redis.from_url(url)
    worker = SimpleWorker([Queue(connection=redis)], connection=redis)
    worker.work(logging_level=logging.WARNING)


PEER = Peer(
    name="RQ", package="rq", worker="SimpleWorker, one at a time", sender=sender, work=work, bulk=True
)

if __name__ == "__main__":
    main(PEER)
