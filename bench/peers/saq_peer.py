"""SAQ on Redis, under uvloop. ``Queue.map`` sends every job on its own, so there is no bulk API.

In single short runs, 50 coroutines ran somewhat more tasks than 20, with many times the latency (50 ms to 3).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop
from saq import Queue, Worker

from bench.peers.contract import AsyncSender, NoBulk, Peer, main, ran

CONCURRENCY = 20


async def task(_: object, *, stamp: int) -> None:
    ran(stamp)


class SaqSender(NoBulk):
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    async def one(self, stamp: int) -> None:
        # A ttl below 0: nothing is kept of a job that is done.
        await self.queue.enqueue("task", stamp=stamp, ttl=-1)


@asynccontextmanager
async def async_sender(url: str) -> AsyncIterator[AsyncSender]:
    queue = Queue.from_url(url)
    yield SaqSender(queue)
    await queue.disconnect()


async def run(url: str) -> None:
    await Worker(Queue.from_url(url), [("task", task)], concurrency=CONCURRENCY).start()


def work(url: str) -> None:
    uvloop.run(run(url))


PEER = Peer(
    name="SAQ", package="saq", worker=f"{CONCURRENCY} coroutines", async_sender=async_sender, work=work
)

if __name__ == "__main__":
    main(PEER)
