"""Taskiq with the broker for Redis streams, which acknowledges, under uvloop. No bulk API.

100 coroutines are its default; 20 and 300 were not better in single short runs. Without a limit it opens a
connection for every send that is under way: 20 connections sent more in most runs.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.contract import AsyncSender, NoBulk, Peer, main, ran_async

CONCURRENCY = 100
CONNECTIONS = 20


def make(url: str) -> RedisStreamBroker:
    """A broker that knows the task. Consumers begin with what is there already."""
    broker = RedisStreamBroker(url, consumer_id="0", max_connection_pool_size=CONNECTIONS)
    broker.register_task(ran_async, task_name="ran")
    return broker


class TaskiqSender(NoBulk):
    def __init__(self, broker: RedisStreamBroker) -> None:
        task = broker.find_task("ran")
        assert task is not None
        self.one = task.kiq


@asynccontextmanager
async def async_sender(url: str) -> AsyncIterator[AsyncSender]:
    broker = make(url)
    await broker.startup()
    yield TaskiqSender(broker)
    await broker.shutdown()


async def run(url: str) -> None:
    broker = make(url)
    broker.is_worker_process = True
    await run_receiver_task(broker, run_startup=True, max_async_tasks=CONCURRENCY, validate_params=False)


def work(url: str) -> None:
    uvloop.run(run(url))


PEER = Peer(
    name="Taskiq",
    package="taskiq",
    worker=f"{CONCURRENCY} coroutines",
    async_sender=async_sender,
    work=work,
)

if __name__ == "__main__":
    main(PEER)
