"""Celery on Redis.

A ``group`` sends one message after the other, so there is no bulk API. With one process, its pools (solo,
threads, prefork) and how much they take ahead (1 to 256) made no difference beyond noise in single short
runs; solo is the simplest.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import celery

from bench.peers.contract import NoBulk, Peer, Sender, main, ran

POOL = "solo"


def make(url: str) -> celery.Celery:
    app = celery.Celery("bench", broker=url)
    app.conf.task_ignore_result = True
    app.conf.worker_enable_remote_control = False
    app.conf.broker_connection_retry_on_startup = True
    app.task(name="ran")(ran)
    app.finalize()
    return app


class CelerySender(NoBulk):
    def __init__(self, app: celery.Celery) -> None:
        self.one = app.tasks["ran"].delay


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    yield CelerySender(make(url))


def work(url: str) -> None:
    # Gossip, mingle and heartbeats are for many workers that watch each other: here is one.
    options = ["--pool", POOL, "--concurrency", "1", "--loglevel", "WARNING"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    make(url).worker_main(["worker", *options, *quiet])


PEER = Peer(name="Celery", package="celery", worker=f"{POOL} pool", sender=sender, work=work)

if __name__ == "__main__":
    main(PEER)
