"""What do jobs cost? Unique keys, dependencies, crons and limits, in the core alone.

python -m bench.jobs
"""

import gc
import statistics
import time

from tests.sim.inside import notifying

from bench.core import NOW, PAYLOAD, best, new_engine
from bench.delivery import COMMIT_EVERY, ready_engine
from forebay.core.api.commands import Ack, Configure, Pop, Popped, Push, Pushed
from forebay.core.api.jobs import CronPut, Job, PushJobs
from forebay.core.engine import Engine
from forebay.core.state import Attributes, Identity, Rate

MESSAGES = 20_000
PARKED = 1_000_000


def keyed(size: int) -> tuple[float, float]:
    """Messages a second with a unique key each, in batches of ``size``: pushed, popped and acked."""
    payload = PAYLOAD % 1
    pushed: list[float] = []
    settled: list[float] = []
    for turn in range(3):
        engine = ready_engine()
        batches = [
            [Job(payload, own=Identity(f"{turn}:{at + n}")) for n in range(size)]
            for at in range(0, MESSAGES, size)
        ]
        start = time.perf_counter()
        for at, jobs in enumerate(batches):
            engine.apply(PushJobs("default", "q", jobs), NOW)
            if size > 1 or not at % COMMIT_EVERY:
                engine.seal(NOW)
        engine.seal(NOW)
        pushed.append(time.perf_counter() - start)
        start = time.perf_counter()
        settle(engine, 100)
        settled.append(time.perf_counter() - start)
        assert not engine.queues["default", "q"].uniques
    return MESSAGES / min(pushed), MESSAGES / min(settled)


def settle(engine: Engine, count: int) -> None:
    """Pop and ack all there is."""
    while True:
        reply = engine.apply(Pop("default", "q", count=count), NOW)
        assert isinstance(reply, Popped)
        if reply.lease is None:
            return
        engine.apply(Ack("default", reply.lease), NOW)
        engine.seal(NOW)


def plain(size: int) -> tuple[float, float]:
    """The same without keys."""
    payloads = [PAYLOAD % 1] * size
    pushed: list[float] = []
    settled: list[float] = []
    for _ in range(3):
        engine = ready_engine()
        start = time.perf_counter()
        for at in range(0, MESSAGES, size):
            engine.apply(Push("default", "q", payloads), NOW)
            if size > 1 or not at % COMMIT_EVERY:
                engine.seal(NOW)
        pushed.append(time.perf_counter() - start)
        start = time.perf_counter()
        settle(engine, 100)
        settled.append(time.perf_counter() - start)
    return MESSAGES / min(pushed), MESSAGES / min(settled)


def released(parked: int, size: int) -> tuple[float, list[float]]:
    """Seconds in which messages are released by one completion, and those of each turn."""
    engine = ready_engine()
    first = engine.apply(Push("default", "first", [b"1"]), NOW)
    assert isinstance(first, Pushed)
    waits = Attributes(depends_on=((first.first, 1),))
    for at in range(0, parked, size):
        engine.apply(Push("default", "q", [b"1"] * size, attributes=waits), NOW)
        if size > 1 or not at % COMMIT_EVERY:
            engine.seal(NOW)
    engine.apply(Pop("default", "first"), NOW)
    engine.seal(NOW)
    engine.take_sealed()
    gc.collect()
    turns: list[float] = []
    start = time.perf_counter()
    engine.apply(Ack("default", ids=[first.first]), NOW)
    engine.seal(NOW)
    turns.append(time.perf_counter() - start)
    while notifying(engine):
        begin = time.perf_counter()
        engine.tick(NOW)
        engine.seal(NOW)
        turns.append(time.perf_counter() - begin)
    (partition,) = engine.queues["default", "q"].partitions.values()
    assert partition.parked_messages == 0
    return time.perf_counter() - start, turns


def cycles(engine: Engine, count: int, size: int) -> float:
    """Seconds for push, pop and ack of so many messages in batches."""
    payloads = [PAYLOAD % 1] * size

    def work() -> None:
        for _ in range(count // size):
            engine.apply(Push("default", "q", payloads), NOW)
            reply = engine.apply(Pop("default", "q", count=size), NOW)
            assert isinstance(reply, Popped)
            engine.apply(Ack("default", reply.lease), NOW)
            engine.seal(NOW)
        engine.take_sealed()

    return best(work)


def compared(one: Engine, other: Engine, size: int) -> float:
    """How many times as long the same work takes in one engine as in another: the median of many turns."""
    count = 200 if size == 1 else 2 * size
    return statistics.median(cycles(one, count, size) / cycles(other, count, size) for _ in range(100))


def idle_crons(crons: int) -> float:
    """A cycle of one message beside so many crons that do not come, to one beside none."""
    engine = ready_engine()
    for at in range(crons):
        command = CronPut("default", f"c{at}", "crons", Job(b"1"), schedule=f"{at % 60} {at % 24} 1 1 *")
        engine.apply(command, NOW)
    engine.seal(NOW)
    return compared(engine, ready_engine(), 1)


def limited(size: int) -> float:
    """Work with limits that never hold anything back, to the same without."""
    engines: list[Engine] = []
    for options in ({"rate_limit": Rate(1 << 40), "concurrency": 1 << 40}, {}):
        engine = new_engine()
        engine.apply(Configure("default", "q", max_attempts=0, **options), NOW)  # type: ignore[arg-type]
        engine.apply(Pop("default", "q"), NOW)
        engines.append(engine)
    having, without = engines
    return compared(having, without, size)


def main() -> None:
    gc.disable()
    print("jobs, core alone, one thread")
    for size in (1, 100):
        (push, settled), (bare, bare_settled) = keyed(size), plain(size)
        print(
            f"  pushes with unique keys, by {size:>3}: {push:9,.0f}/s, {push / bare:.2f} of plain; "
            f"popped and acked {settled:9,.0f}/s, {settled / bare_settled:.2f} of plain"
        )
    for size in (10_000, 1):
        seconds, turns = released(PARKED, size)
        print(
            f"  {PARKED:,} parked by {size:,} released by one completion: {seconds:.2f} s in {len(turns):,} "
            f"turns, of {statistics.median(turns) * 1e3:.1f} ms; the longest {max(turns) * 1e3:.1f} ms"
        )
    beside = idle_crons(10_000)
    print(f"  push, pop and ack singly beside 10,000 idle crons: {beside:.3f} times as long as beside none")
    for size in (1, 100, 10_000):
        print(f"  push, pop and ack by {size:>6,} with limits: {limited(size):.3f} times as long as without")


if __name__ == "__main__":
    main()
