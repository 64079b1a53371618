"""Limits: an API that takes ten calls a second, two at a time, called by as many workers as there are.

The limits are the queue's. The server keeps to them over all workers, so a job waits in the queue and not
in a worker: ``forebay worker examples.rate_limited:app``

A rate is kept evenly: ten a second are one every tenth of a second, also after a pause.
"""

import asyncio
import time

from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker

RATE, AT_ONCE, CALLS = 10, 2, 15
app = App("rate-limited", queues={"rate-limited": {"concurrency": AT_ONCE}})  # options of its queue


class Api:
    """Somebody else's service, which counts."""

    def __init__(self) -> None:
        self.called_at: list[float] = []
        self.running = self.most_at_once = 0

    async def call(self, number: int) -> int:
        self.called_at.append(time.monotonic())
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0.15)
        self.running -= 1
        return number * number


api = Api()


@app.task(rate=f"{RATE}/s")
async def square(number: int) -> int:
    return await api.call(number)


async def main() -> None:
    workers = [Worker(app, concurrency=50) for _ in range(2)]
    async with asyncio.TaskGroup() as background:
        for worker in workers:
            background.create_task(worker.run())
        jobs = [app.job(id) for id in await square.apush_many(range(CALLS))]
        squares = await asyncio.gather(*(job.aresult() for job in jobs))
        for worker in workers:
            worker.stop()

    print(f"{len(api.called_at)} calls, the sum of their answers is {sum(squares)}")
    print(f"at most {api.most_at_once} at once")
    took_s = api.called_at[-1] - api.called_at[0]
    print(f"in {took_s:.1f} s, where {CALLS} calls, {RATE} a second, take {(CALLS - 1) / RATE:.1f} at least")


if __name__ == "__main__":
    asyncio.run(main())
