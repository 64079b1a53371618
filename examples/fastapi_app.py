"""FastAPI: an endpoint that pushes a job and answers at once, and one that shows what came of it.

Serve it with ``uvicorn examples.fastapi_app:web`` and run its jobs with ``forebay worker
examples.fastapi_app:app``. Run as a program, it does both for a moment, and asks itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Failed, NotDone
from forebay.client.worker.worker import Worker
from forebay.core.errors import NotFound

app = App("fastapi")


class Order(BaseModel):
    customer: str
    pieces: int


@app.task
async def bill(order: Order) -> dict[str, Any]:
    """Gets the model as a model: it was checked again on the way in."""
    return {"customer": order.customer, "euros": 5 * order.pieces}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await app.aclose()


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(order: Order) -> dict[str, str]:
    job = await bill.apush(order)  # on disk when this returns; requests at the same time share a push
    return {"job": str(job.id)}


@web.get("/orders/{id}")
async def show(id: int, wait_s: float = 0) -> dict[str, Any]:
    try:
        return {"state": "done", "bill": await bill.job(id).aresult(wait_s)}
    except NotDone:
        return {"state": "open"}
    except Failed as error:
        return {"state": "failed", "why": str(error)}
    except NotFound:
        raise HTTPException(404, "there is no such order") from None


async def main() -> None:
    transport = httpx.ASGITransport(web)
    async with lifespan(web), httpx.AsyncClient(transport=transport, base_url="http://shop") as browser:
        made = await browser.post("/orders", json={"customer": "ada", "pieces": 3})
        print("POST /orders:", made.status_code)
        where = f"/orders/{made.json()['job']}"
        print("GET it:", (await browser.get(where)).json())

        worker = Worker(app)
        async with asyncio.TaskGroup() as background:
            background.create_task(worker.run())
            print("GET it, and wait:", (await browser.get(where, params={"wait_s": 10})).json())
            worker.stop()
        print("GET another:", (await browser.get("/orders/1")).status_code)


if __name__ == "__main__":
    asyncio.run(main())
