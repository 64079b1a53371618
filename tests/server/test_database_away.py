"""While the database is away, what can't be kept is not confirmed; afterwards all goes on."""

import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from forebay.client.sync.client import SyncClient
from forebay.core.errors import Busy
from tests.postgres import Cluster, cluster, find_binaries
from tests.serving import Server, pop_all, refused


@pytest.fixture
def database() -> Iterator[Cluster]:
    cluster()  # skipped if there is none
    binaries = find_binaries()
    assert binaries is not None
    made = Cluster(binaries)
    yield made
    made.close()


def test_while_the_database_is_away_pushes_are_busy_and_a_client_that_tries_again_pushes_once(
    database: Cluster,
) -> None:
    with Server("--store", database.database(), complains=True) as server, server.connect() as client:
        patient = SyncClient(server.tcp, retry_s=60)
        hasty = SyncClient(server.tcp, retry_s=0)
        patient.push("q", "before")
        database.stop(signal.SIGINT)
        with pytest.raises(Busy):
            hasty.push("q", "never")
        assert refused(client.ask({"cmd": "PUSH", "queue": "q", "payload": "nor this"}), "busy")
        request = urllib.request.Request(
            f"http://{server.http}/v1/queues/q/messages", data=b'{"payload": 1}', method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(request)
        with told.value as answer:
            assert (answer.code, int(answer.headers["Retry-After"]) > 0) == (503, True)
        pushing = threading.Thread(target=lambda: patient.push("q", "later"))
        pushing.start()
        database.start()
        pushing.join()
        assert set(pop_all(client, "q")) - {"never", "nor this"} == {"before", "later"}
        assert pop_all(client, "q") == []
        patient.close()
        hasty.close()


def test_a_restart_of_the_database_is_hardly_noticed(database: Cluster) -> None:
    with Server("--store", database.database(), complains=True) as server, SyncClient(server.tcp) as client:
        for number in range(3):
            client.push("q", number)
            database.stop(signal.SIGINT)
            database.start()
        with server.connect() as raw:
            assert pop_all(raw, "q") == [0, 1, 2]
