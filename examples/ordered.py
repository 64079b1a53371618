"""Order: what one customer does happens in its order, while customers are served side by side.

Two ways. A queue with ``ordering="partition"`` delivers each partition in strict order, under one lease at a
time: a message that fails holds up those behind it. A ``key`` makes a lane of any queue: one job of it runs
at a time, in the order they came, but one that is retried is overtaken.
"""

import asyncio
from collections import defaultdict

from forebay.client.aio.client import Client
from forebay.client.tasks.app import App
from forebay.client.types import New
from forebay.client.worker.worker import Worker

CUSTOMERS = ["ada", "alan", "grace", "edsger"]
STEPS = ["order", "pay", "ship", "review"]
app = App("ordered", queue="ordered-tasks")


class Desk:
    """Where work is done: notes who was served in which order, and how many were at once."""

    def __init__(self) -> None:
        self.done: dict[str, list[str]] = defaultdict(list)
        self.busy = self.busiest = 0

    async def serve(self, customer: str, step: str) -> None:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0.02)
        self.done[customer].append(step)
        self.busy -= 1

    def told(self) -> str:
        in_order = all(self.done[customer] == STEPS for customer in CUSTOMERS)
        return f"in order: {in_order}, {self.busiest} customers at once"


async def consume(client: Client, desk: Desk) -> None:
    while batch := await client.pop("ordered-steps", wait_ms=300):
        await desk.serve(batch[0].partition, batch[0].payload)
        await client.ack(batch)


lanes = Desk()


@app.task
async def serve(customer: str, step: str) -> None:
    await lanes.serve(customer, step)


async def main() -> None:
    async with Client() as client:
        await client.configure("ordered-steps", ordering="partition")
        news = [New(step, {"partition": customer}) for step in STEPS for customer in CUSTOMERS]
        await client.push_many("ordered-steps", news)
        partitions = Desk()
        await asyncio.gather(*(consume(client, partitions) for _ in range(8)))
        print("partitions", partitions.told())

    worker = Worker(app)
    async with asyncio.TaskGroup() as background:
        background.create_task(worker.run())
        jobs = [await serve.options(key=each).apush(each, step) for step in STEPS for each in CUSTOMERS]
        await asyncio.gather(*(job.aresult() for job in jobs))
        print("lanes", lanes.told())
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
