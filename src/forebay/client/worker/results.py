"""Results of the jobs that a job waited for, as its first arguments."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from forebay.client.aio.client import Client
from forebay.client.tasks.call import Work
from forebay.client.tasks.task import GiveUp
from forebay.core.errors import NotFound


async def arguments(client: Client, work: Work, id: int) -> Sequence[Any]:
    """Return the arguments of a job, preceded by the results of its dependencies."""
    ids = (await client.message(id, type=Raw)).depends_on
    results = await asyncio.gather(*(_result(client, work, each) for each in ids[: work.members or None]))
    if work.results == "one":
        return [results[0] if results else None, *work.args]
    return [list(results), *work.args]


async def _result(client: Client, work: Work, id: int) -> Any:
    """Return the result of a dependency; raise rather than have the task go on without it."""
    try:
        found = await client.result(id)
    except NotFound:
        if work.lacks:
            return None
        raise GiveUp(_gone(id)) from None
    if found.state == "completed" and not found.has_result:
        raise GiveUp(_gone(id))
    if found.state != "completed" and not work.lacks:
        raise GiveUp(f"job {id}, whose result it takes, is {found.state}")
    return found.result


def _gone(id: int) -> str:
    bounds = "a queue keeps the newest 100,000, and 64 MiB of them, for result_retention_ms"
    return f"the result of job {id}, which it takes, is kept no longer: {bounds}"
