"""Fan-out: every group gets every message, and the consumers of one group share them.

So one queue is publish/subscribe (billing and shipping both hear of every order) and a work queue (two
packers of shipping never get the same order) at once. Nothing is copied: a group is a cursor in the log.
"""

import asyncio
from collections import Counter

from forebay.client.aio.client import Client

QUEUE = "fanout-orders"
ORDERS = 100


async def consume(client: Client, group: str, seen: Counter[int]) -> int:
    """Take orders until no more come; how many there were."""
    count = 0
    while batch := await client.pop(QUEUE, 10, group=group, wait_ms=300):
        seen.update(batch.payloads)
        count += len(batch)
        await client.ack(batch)
    return count


async def main() -> None:
    async with Client() as client:
        await client.configure(QUEUE)
        for group in ("billing", "shipping"):
            await client.create_group(QUEUE, group, start="new")  # from now on; "all" begins with the oldest
        await client.push_many(QUEUE, range(ORDERS))

        billed: Counter[int] = Counter()
        shipped: Counter[int] = Counter()
        counts = await asyncio.gather(
            consume(client, "billing", billed),
            consume(client, "shipping", shipped),
            consume(client, "shipping", shipped),
        )
        print(f"billing saw {counts[0]} orders")
        print(f"shipping saw {counts[1] + counts[2]}, and both packers had some: {min(counts[1:]) > 0}")
        once = Counter(range(ORDERS))
        print("each saw every order once:", billed == once and shipped == once)


if __name__ == "__main__":
    asyncio.run(main())
