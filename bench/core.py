"""How fast is the core alone? No sockets, no disk: commands in, records out.

python -m bench.core
"""

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain

from forebay.core.api.commands import Ack, Pop, Popped, Push
from forebay.core.bounds import Limits
from forebay.core.engine import Engine, Taken, load
from forebay.store.memory import MemoryStore

NOW = 1_700_000_000_000
SHARDS = 16
ROUNDS = 7
PAYLOAD = b'{"to":"user@example.com","n":%d}'


def new_engine() -> Engine:
    claims = {number: Taken(1) for number in range(SHARDS)}
    return load(Limits(), SHARDS, claims, 1, lambda low, high: (), NOW)


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs: the one that was disturbed least."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def batches(size: int, count: int) -> tuple[float, float]:
    """Messages a second from payloads to a sealed commit, and from sealed segments to a JSON array."""
    payloads = [PAYLOAD % number for number in range(size)]
    engine = new_engine()

    def there() -> None:
        for _ in range(count):
            engine.apply(Push("default", "q", payloads), NOW)
            engine.seal(NOW)

    def back() -> None:
        for _ in range(count):
            reply = engine.apply(Pop("default", "q", count=size), NOW)
            assert isinstance(reply, Popped)
            b",".join(chain.from_iterable(each.payloads() for each in reply.deliveries))
            engine.seal(NOW)

    pushed, popped = best(there), best(back)
    return size * count / pushed, size * count / popped


def singles(cycles: int, group: int) -> dict[str, float]:
    """Microseconds a command of push, pop and ack of one message, sealed every ``group`` commands."""
    engine, found = new_engine(), dict[str, float]()
    payload, leases = [PAYLOAD % 1], list[str | None]()

    def push() -> None:
        for at in range(cycles):
            engine.apply(Push("default", "q", payload), NOW)
            if not at % group:
                engine.seal(NOW)

    def pop() -> None:
        for at in range(cycles):
            reply = engine.apply(Pop("default", "q"), NOW)
            assert isinstance(reply, Popped)
            leases.append(reply.lease)
            if not at % group:
                engine.seal(NOW)

    def ack() -> None:
        for at in range(cycles):
            engine.apply(Ack("default", leases.pop()), NOW)
            if not at % group:
                engine.seal(NOW)

    def cycle() -> None:
        for at in range(cycles):
            engine.apply(Push("default", "c", payload), NOW)
            if group == 1:
                engine.seal(NOW)
            reply = engine.apply(Pop("default", "c"), NOW)
            assert isinstance(reply, Popped)
            if group == 1:
                engine.seal(NOW)
            engine.apply(Ack("default", reply.lease), NOW)
            if group == 1 or not at % (group // 3):
                engine.seal(NOW)

    for name, work in (("push", push), ("pop", pop), ("ack", ack), ("cycle", cycle)):
        found[name] = best(work) / cycles * 1e6
    return found


def waiting(counts: list[int]) -> list[float]:
    """Microseconds of a pop of one message with so many messages waiting; measured in turns."""
    engines = [new_engine() for _ in counts]
    for engine, count in zip(engines, counts, strict=True):
        for _ in range(count // 1_000):
            engine.apply(Push("default", "q", [b"1"] * 1_000), NOW)
            engine.seal(NOW)
    times: list[list[float]] = [[] for _ in counts]
    for _ in range(45):
        for engine, found in zip(engines, times, strict=True):
            start = time.perf_counter()
            for _ in range(20):
                engine.apply(Pop("default", "q"), NOW)
            found.append((time.perf_counter() - start) / 20 * 1e6)
            engine.seal(NOW)
    return list(map(min, times))


def memory(messages: int, batch: int) -> float:
    """Bytes a message takes beyond its payload, in core and memory store together."""
    store = MemoryStore()
    engine = new_engine()
    for number in range(-1, SHARDS):
        store.claim(number)
    payloads = [PAYLOAD % 12345678] * batch
    engine.apply(Push("default", "q", payloads), NOW)
    store.commit(engine.seal(NOW))
    gc.collect()
    before = resident()
    for _ in range(messages // batch):
        engine.apply(Push("default", "q", payloads), NOW)
        store.commit(engine.seal(NOW))
    return (resident() - before) / messages - len(payloads[0])


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def in_fresh_process(question: str) -> str:
    """The answer of a process that has not used any memory yet."""
    code = f"from bench.core import *; print(round({question}))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.strip()


def main() -> None:
    gc.disable()
    print("core, in process, one thread")
    for size, count in ((10_000, 20), (1_000, 100), (100, 500)):
        pushed, popped = batches(size, count)
        rates = f"to records {pushed / 1e6:5.2f} M msg/s, back {popped / 1e6:5.2f} M msg/s"
        print(f"  batches of {size:>6,}: {rates}")
    for group in (1, 50):
        us = singles(3_000, group)
        parts = ", ".join(f"{name} {us[name]:.1f} µs" for name in ("push", "pop", "ack"))
        print(f"  singles, a commit per {group:>2}: {parts}; push+pop+ack {1e6 / us['cycle']:,.0f} cycles/s")
    few, many = waiting([1_000, 10_000_000])
    print(
        f"  pop with 1 thousand waiting {few:.1f} µs, with 10 million {many:.1f} µs: ratio {many / few:.2f}"
    )
    beyond = in_fresh_process("memory(2_000_000, 100)")
    print(f"  memory beyond payloads, batches of 100: {beyond} bytes a message")


if __name__ == "__main__":
    main()
