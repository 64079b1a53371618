"""What does it cost to leave the straight line? Priorities, delays, retries, in the core alone.

python -m bench.delivery
"""

import gc
import random
import time

from bench.core import NOW, PAYLOAD, best, in_fresh_process, new_engine, resident
from forebay.core.api.commands import Ack, Configure, Nack, Pop, Popped, Push, Seek
from forebay.core.engine import Engine
from forebay.core.state import PLAIN, Attributes, Backoff

SINGLES = 20_000
COMMIT_EVERY = 50
POP_COUNT = 100


def ready_engine() -> Engine:
    """An engine whose queue has a group that read nothing yet."""
    engine = new_engine()
    engine.apply(Configure("default", "q", max_attempts=0, backoff=Backoff("none")), NOW)
    engine.apply(Pop("default", "q"), NOW)
    engine.seal(NOW)
    return engine


def singles(kinds: list[Attributes]) -> tuple[float, float, float]:
    """Messages a second, one by one: pushed, popped one at a time, popped by the hundred."""
    payload = [PAYLOAD % 1]
    pushed: list[float] = []
    popped: list[float] = []
    by_hundred: list[float] = []
    for _ in range(3):
        for count, found in ((1, popped), (POP_COUNT, by_hundred)):
            engine = ready_engine()
            start = time.perf_counter()
            for at in range(SINGLES):
                engine.apply(Push("default", "q", payload, attributes=kinds[at % len(kinds)]), NOW)
                if not at % COMMIT_EVERY:
                    engine.seal(NOW)
            pushed.append(time.perf_counter() - start)
            start = time.perf_counter()
            left = SINGLES
            while left:
                reply = engine.apply(Pop("default", "q", count=count), NOW)
                assert isinstance(reply, Popped)
                left -= sum(each.count for each in reply.deliveries)
                if count > 1 or not left % COMMIT_EVERY:
                    engine.seal(NOW)
            found.append(time.perf_counter() - start)
    return SINGLES / min(pushed), SINGLES / min(popped), SINGLES / min(by_hundred)


def batches(attributes: Attributes, wait_ms: int = 0) -> float:
    """Messages a second in batches of 10,000, pushed, popped and acked."""
    payloads = [PAYLOAD % number for number in range(10_000)]
    engine = ready_engine()
    now = NOW

    def there_and_back() -> None:
        nonlocal now
        for _ in range(10):
            engine.apply(Push("default", "q", payloads, attributes=attributes), now)
            engine.seal(now)
            now += wait_ms
            reply = engine.apply(Pop("default", "q", count=10_000), now)
            assert isinstance(reply, Popped)
            assert sum(each.count for each in reply.deliveries) == 10_000
            engine.seal(now)
            engine.apply(Ack("default", reply.lease), now)
            engine.seal(now)

    return 100_000 / best(there_and_back)


def nack_ms(lease: int) -> float:
    """Milliseconds that the nack of a lease takes."""
    engine = ready_engine()
    engine.apply(Push("default", "q", [PAYLOAD % 1] * lease), NOW)
    times = []
    for _ in range(50):
        reply = engine.apply(Pop("default", "q", count=lease), NOW)
        assert isinstance(reply, Popped)
        start = time.perf_counter()
        engine.apply(Nack("default", reply.lease, error="no"), NOW)
        engine.seal(NOW)
        times.append(time.perf_counter() - start)
    return min(times) * 1_000


def acks(results: bool) -> float:
    """Messages a second acked by id, a hundred at a time, with a result each or without."""
    payloads = [PAYLOAD % number for number in range(POP_COUNT)]
    times = []
    for _ in range(3):
        engine = ready_engine()
        spent = 0.0
        for _ in range(100):
            engine.apply(Push("default", "q", payloads), NOW)
            reply = engine.apply(Pop("default", "q", count=POP_COUNT), NOW)
            assert isinstance(reply, Popped)
            first = reply.deliveries[0].first
            command = Ack("default", ids=list(range(first, first + POP_COUNT)))
            command.results = payloads if results else None
            engine.seal(NOW)
            start = time.perf_counter()
            engine.apply(command, NOW)
            engine.seal(NOW)
            spent += time.perf_counter() - start
        times.append(spent)
    return 100 * POP_COUNT / min(times)


def seek_ms(scheduled: int) -> float:
    """Milliseconds that it takes to begin again with a log of so many messages, each with its own delay."""
    engine = ready_engine()
    for at in range(scheduled):
        engine.apply(Push("default", "q", [b"1"], attributes=Attributes(delay_ms=3_600_000 + at)), NOW)
    engine.seal(NOW)
    start = time.perf_counter()
    engine.apply(Seek("default", "q", "default", "all"), NOW)
    engine.seal(NOW)
    return (time.perf_counter() - start) * 1_000


def pop_beside(scheduled: list[int]) -> list[float]:
    """Microseconds of a pop of one fresh message beside so many scheduled ones of which none is due."""
    engines = [ready_engine() for _ in scheduled]
    for engine, count in zip(engines, scheduled, strict=True):
        delays = random.Random(1)
        for at in range(count):
            delayed = Attributes(delay_ms=3_600_000 + delays.randrange(3_600_000))
            engine.apply(Push("default", "q", [b"1"], attributes=delayed), NOW)
            if not at % 1_000:
                engine.seal(NOW)
        engine.seal(NOW)
        engine.apply(Push("default", "q", [b"1"] * 10_000), NOW)
        engine.seal(NOW)
    times: list[list[float]] = [[] for _ in scheduled]
    for _ in range(100):
        for engine, found in zip(engines, times, strict=True):
            start = time.perf_counter()
            for _ in range(20):
                engine.apply(Pop("default", "q"), NOW)
            found.append((time.perf_counter() - start) / 20 * 1e6)
            engine.seal(NOW)
    return list(map(min, times))


def delayed_memory(messages: int) -> float:
    """Bytes that a delayed message takes beyond its body, each pushed alone with a delay of its own."""
    engine = ready_engine()
    delays = random.Random(1)
    gc.collect()
    before = resident()
    for at in range(messages):
        delayed = Attributes(delay_ms=1 + delays.randrange(86_400_000))
        engine.apply(Push("default", "q", [b"1"], attributes=delayed), NOW + at // 100)
        if not at % COMMIT_EVERY:
            engine.seal(NOW + at // 100)
            for _, segment in engine.take_sealed():
                segment.body = None
    return (resident() - before) / messages


def main() -> None:
    gc.disable()
    mixed = [Attributes(priority=level) if level else PLAIN for level in range(-2, 8)]
    random.Random(1).shuffle(mixed)
    print("leaving the straight line, core alone, one thread, a commit per 50 pushes")
    plain, priorities = singles([PLAIN]), singles(mixed)
    for name, at in (("pushed", 0), ("popped one by one", 1), ("popped by the hundred", 2)):
        rates = f"plain {plain[at]:9,.0f}/s, mixed priorities {priorities[at]:9,.0f}/s"
        print(f"  singles {name:<22} {rates}: ratio {priorities[at] / plain[at]:.2f}")
    base = batches(PLAIN)
    for name, attributes, wait_ms in (
        ("one priority", Attributes(priority=3), 0),
        ("one delay", Attributes(delay_ms=1_000), 1_000),
        ("ttl and attempts", Attributes(ttl_ms=60_000, max_attempts=5), 0),
    ):
        rate = batches(attributes, wait_ms)
        print(f"  batches of 10,000 with {name:<18} {rate / 1e6:.2f} M msg/s: {rate / base:.2f} of plain")
    print(f"  nack of a lease of 10,000: {nack_ms(10_000):.3f} ms")
    bare, noted = acks(results=False), acks(results=True)
    rates = f"{bare / 1e6:.2f} M msg/s without results, {noted / 1e6:.2f} with"
    print(f"  acks of 100 by id: {rates}: ratio {noted / bare:.2f}")
    print(f"  seek to the beginning past 100,000 delayed singles: {seek_ms(100_000):.1f} ms")
    none, many = pop_beside([0, 1_000_000])
    print(
        f"  pop beside 1 million scheduled {many:.2f} µs, beside none {none:.2f} µs: ratio {many / none:.2f}"
    )
    each = in_fresh_process("__import__('bench.delivery').delivery.delayed_memory(500_000)")
    print(f"  delayed singles with a delay of their own: {each} bytes each beyond their bodies")


if __name__ == "__main__":
    main()
