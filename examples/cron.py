"""Cron: calls that are pushed by a schedule, each slot once, however many workers there are.

The server keeps the schedules. A worker tells it of those in its code when it starts, and takes back those
that are not there any more: ``forebay worker examples.cron:app``. They push whether one runs or not, until
``forebay crons delete cron:beat`` and ``cron:report``.
"""

import asyncio
from datetime import UTC, datetime

from forebay.client.tasks.app import App
from forebay.client.worker.worker import Worker

app = App("cron")
beats = asyncio.Semaphore(0)


@app.task(cron="30 6 * * MON-FRI", timezone="Europe/Rome")
def report() -> None:
    """Every working day at half past six in Rome, in summer and in winter."""


@app.task(cron="@every 200ms")
async def beat() -> None:
    """Five times a second, so that there is something to see."""
    beats.release()


async def main() -> None:
    worker = Worker(app)
    async with asyncio.TaskGroup() as background:
        background.create_task(worker.run())
        for count in range(1, 4):
            await beats.acquire()
            print("beat", count)

        client = app.aclient
        for cron in await client.crons():
            if cron.name.startswith("cron:"):
                when = datetime.fromtimestamp((cron.next_at or 0) / 1000, UTC)
                print(f"{cron.name} comes next at {when:%A %H:%M} UTC")
                await client.delete_cron(cron.name)  # or it goes on for ever: this is an example
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
