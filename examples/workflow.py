"""Workflows: jobs that hand their results on, that wait for each other, and that say how far they are.

All of a chain or a group is pushed at once, or nothing of it: ``forebay worker examples.workflow:app``
"""

import asyncio

from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain, group
from forebay.client.worker.run import current
from forebay.client.worker.worker import Worker

app = App("workflow")
PAGES = {"ada": "a machine that weaves numbers", "alan": "can it think", "grace": "a moth in a relay"}


@app.task
async def download(page: str) -> str:
    return PAGES[page]


@app.task
async def count(text: str) -> int:
    return len(text.split())


@app.task
async def total(counts: list[int], unit: str) -> str:
    return f"{sum(counts)} {unit}"


@app.task
async def publish(title: str) -> str:
    for percent in (0, 50, 100):
        await current().aprogress(percent, f"{title} is {percent} % there")
        await asyncio.sleep(0.1)
    return f"published {title}"


@app.task
async def announce() -> str:
    return "announced"


async def main() -> None:
    worker = Worker(app)
    async with asyncio.TaskGroup() as background:
        background.create_task(worker.run())

        # One after the other: count gets what download returned.
        words = await chain(download.call("ada"), count.then()).apush()
        print("a chain counted", await words.aresult(), "words")

        # Side by side, and then one with the list of all results. Its members may be chains.
        branches = [chain(download.call(page), count.then()) for page in PAGES]
        everything = await group(branches, then=total.then("words")).apush()
        print("a group counted", await everything.aresult())

        # Waiting for others, without their results.
        published = await publish.apush("the news")
        announced = await announce.options(depends_on=[published]).apush()
        print("announce is", await announced.astate(), "until then")
        print(await published.aresult(), "and", await announced.aresult())
        print("progress:", (await published.aprogress()).message)
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
