"""Tasks and a worker: functions that run elsewhere, and are tried again when they fail.

Here the worker runs in the same program. In earnest it is a process of its own, as many as you like:
``forebay worker examples.worker:app``
"""

import asyncio
import logging
import time

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Failed, GiveUp, Retry
from forebay.client.worker.run import current
from forebay.client.worker.worker import Worker

app = App("worker", retry=Retry(max_attempts=3, base_ms=50))


@app.task
async def fetch(url: str) -> int:
    """A coroutine runs in the worker's event loop."""
    await asyncio.sleep(0.05)
    return len(url)


@app.task
def resize(image: str, width: int = 100) -> str:
    """A plain function runs in a thread."""
    time.sleep(0.05)
    return f"{image}@{width}"


@app.task
async def call_home() -> str:
    """Whatever it raises, it is tried again, up to three times in all."""
    if current().attempt < 3:
        raise ConnectionError("nobody is at home")
    return f"somebody answered call {current().attempt}"


@app.task
async def charge(card: str) -> None:
    """What will never succeed is given up, and becomes a dead letter."""
    raise GiveUp(f"{card} has expired")


async def main() -> None:
    logging.getLogger("forebay.worker").setLevel(logging.ERROR)  # the failures here are meant to be
    worker = Worker(app, concurrency=10)
    async with asyncio.TaskGroup() as background:
        background.create_task(worker.run())

        page = await fetch.apush("https://example.com")
        image = await resize.apush("cat.png", width=32)
        home = await call_home.apush()
        print("fetch returned", await page.aresult())
        print("resize returned", await image.aresult())
        print("call_home returned:", await home.aresult())
        try:
            await (await charge.apush("4242")).aresult()
        except Failed as error:
            print("charge failed:", error)
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
