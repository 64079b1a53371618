"""GETJOBS reads no more than it shows."""

import asyncio
from typing import Any, cast

import pytest

from forebay.core.api import queries
from forebay.core.api.principals import ANYONE
from forebay.core.bounds import Limits
from forebay.server.flashq.browse import newest
from forebay.server.flashq.door import Door
from forebay.server.tcp.codec import Services
from forebay.server.workers import Workers

CALLER = Door(Workers(lambda: 0)).context(1, Limits(), ANYONE)


class Asked:
    """Answers with counts of one queue, and fails if jobs are read."""

    @property
    def questions(self) -> "Asked":
        return self

    async def ask(self, command: object) -> Any:
        assert isinstance(command, queries.GroupCounts), "jobs are read"
        return queries.Counts(waiting=2, completed=3)


@pytest.mark.parametrize(("limit", "offset"), [(10, 5), (10, 1 << 60), (0, 0)])
def test_nothing_is_read_for_a_page_without_jobs(limit: int, offset: int) -> None:
    services = cast(Services, Asked())
    assert asyncio.run(newest(services, CALLER, "q", None, limit, offset)) == ([], 5)


def test_a_page_with_jobs_is_read() -> None:
    with pytest.raises(AssertionError, match="jobs are read"):
        asyncio.run(newest(cast(Services, Asked()), CALLER, "q", None, 10, 4))
