"""Huey on Redis. No bulk API. Two threads, best of 1 to 8 in single short runs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from huey import RedisHuey

from bench.peers.contract import NoBulk, Peer, Sender, main, ran

THREADS = 2


def queue(url: str) -> tuple[RedisHuey, Callable[[int], object]]:
    """A queue and its task. Blocking, so that a task is run as soon as it comes; results are off."""
    huey = RedisHuey("bench", url=url, results=False, blocking=True)
    return huey, huey.task(name="ran")(ran)


class HueySender(NoBulk):
    def __init__(self, url: str) -> None:
        _, self.one = queue(url)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    yield HueySender(url)


def work(url: str) -> None:
    logging.getLogger("huey").setLevel(logging.WARNING)
    huey, _ = queue(url)
    huey.create_consumer(workers=THREADS, worker_type="thread", periodic=False).run()


PEER = Peer(name="Huey", package="huey", worker=f"{THREADS} threads", sender=sender, work=work)

if __name__ == "__main__":
    main(PEER)
