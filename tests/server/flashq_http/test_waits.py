"""Requests that wait: they are answered when there is something, and end with their client."""

from concurrent.futures import ThreadPoolExecutor

from tests.server.flashq_http.talking import Door, DoorServer


def test_a_pull_waits_for_a_job(served: DoorServer, door: Door, queue: str) -> None:
    with Door(served.door) as other, ThreadPoolExecutor() as threads:
        pulled = threads.submit(other.data, "GET", f"/queues/{queue}/jobs")
        job = door.push_job(queue, 1)
        assert [each["id"] for each in pulled.result()] == [job]


def test_a_result_is_waited_for(served: DoorServer, door: Door, queue: str) -> None:
    job = door.push_job(queue, 1)
    with Door(served.door) as other, ThreadPoolExecutor() as threads:
        waited = threads.submit(other.data, "GET", f"/jobs/{job}/wait", timeout=30_000)
        door.pull_job(queue)
        door.data("POST", f"/jobs/{job}/ack", {"result": "there"})
        assert waited.result() == "there"


def test_a_result_that_does_not_come_is_an_error(door: Door, queue: str) -> None:
    job = door.push_job(queue, 1)
    refused = door.refusal("GET", f"/jobs/{job}/wait", timeout=0)
    assert refused == (408, f"Timeout waiting for job {job} after 0ms")


def waiting(door: Door) -> float:
    """How many pulls wait."""
    text = door.ask("GET", "/metrics").body.decode()
    (line,) = (each for each in text.splitlines() if each.startswith("forebay_waiting_pops "))
    return float(line.split()[1])


def test_a_pull_whose_client_went_takes_no_job(queue: str) -> None:
    with DoorServer("--store", "memory:") as server, Door(server.http) as native:
        gone = Door(server.door)
        gone.connection.request("GET", f"/queues/{queue}/jobs")
        while waiting(native) < 1:
            pass
        gone.close()
        while waiting(native) > 0:
            pass
        with Door(server.door) as door:
            job = door.push_job(queue, 1)
            assert door.state_of(job) == "waiting"
            assert door.pull_job(queue)["id"] == job


def test_a_pull_whose_answer_can_not_be_sent_gives_its_job_back(served: DoorServer, queue: str) -> None:
    """The client closes its side at once: it may be gone, so nothing is leased to it."""
    with Door(served.door) as door:
        job = door.push_job(queue, 1)
        with served.connect_door() as tcp:
            # Wait behind the job on the other door, so that a job that was given back is seen at once.
            assert tcp.ask({"cmd": "PULL", "queue": queue, "timeout": 0})["job"]["id"] == job
            pull = {"cmd": "PULL", "queue": queue, "timeout": 30_000, "reqId": "waiting"}
            tcp.send(pull, {"cmd": "STATS", "reqId": "done"})
            assert tcp.receive()["reqId"] == "done"
            with Door(served.door) as half:
                half.connection.connect()
                sock = half.connection.sock
                assert sock is not None
                head = f"GET /queues/{queue}/jobs HTTP/1.1\r\nhost: x\r\n\r\n"
                sock.sendall(head.encode())
                sock.shutdown(1)
                while sock.recv(1 << 16):
                    pass
            second = door.push_job(queue, 2)
            assert tcp.receive()["job"]["id"] == second


def test_an_idle_pull_is_answered_with_nothing_when_the_server_stops(queue: str) -> None:
    with (
        DoorServer("--store", "memory:") as server,
        Door(server.door) as door,
        ThreadPoolExecutor() as threads,
    ):
        with Door(server.http) as native:
            pulled = threads.submit(door.data, "GET", f"/queues/{queue}/jobs")
            while waiting(native) < 1:
                pass
        server.terminate()
        assert pulled.result() == []
