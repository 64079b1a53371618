"""Push and pop: messages go in, come out under a lease, and are done when they are acked.

Run it with a server beside it (``make serve``): ``.venv/bin/python examples/hello.py``
"""

import asyncio

from forebay.client.aio.client import Client
from forebay.client.sync.client import SyncClient

QUEUE = "hello"


def greet_blocking() -> None:
    """In threads, scripts and the shell: every call waits for its answer."""
    with SyncClient() as client:
        pushed = client.push(QUEUE, {"to": "ada"})
        print(f"pushed {pushed.id}, which now survives {pushed.durability}")

        client.push_many(QUEUE, [{"to": "alan"}, {"to": "grace"}])
        batch = client.pop(QUEUE, 10)
        print("popped", [message.payload["to"] for message in batch])
        client.ack(batch)  # until then they are leased: nobody else gets them


async def greet_async() -> None:
    """In an event loop: the same calls, awaited. Pushes at the same time share a request."""
    async with Client() as client:
        await asyncio.gather(*(client.push(QUEUE, {"to": name}) for name in ("barbara", "edsger")))
        async with client.leased(QUEUE, 10, wait_ms=1_000) as batch:
            for name in batch.payloads:
                print("hello", name["to"])
        # The end of the block acked them. Had it raised, they would come again.


if __name__ == "__main__":
    greet_blocking()
    asyncio.run(greet_async())
