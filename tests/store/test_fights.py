"""Of nodes that fight for a shard of a shared database one wins, however long the others pause.

``python -m tests.store.fights`` plays more fights. The planted bugs prove that a lost fight would be noticed.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import NamedTuple

import pytest

from forebay.core import engine as engines
from forebay.core.api import commands as c
from forebay.core.records.commit import Commit
from forebay.store.base import Claim, Unknown
from forebay.store.postgres import commits as postgres_commits
from forebay.store.postgres.commits import FENCE, Keeper, patiently
from forebay.store.postgres.session import Refused, Row
from forebay.store.postgres.store import migrate_at
from tests.postgres import cluster, run_sql
from tests.sim.plant import planted
from tests.store.fights import LONG_S, TENANT, Arena, Node, fights
from tests.store.gates import Gated

FIGHTS = 250
WITHIN = 200
"""Fights in which a planted bug is found: far more than any of them takes."""


def test_the_loser_of_a_fight_commits_nothing_and_no_message_is_lost_or_held_twice() -> None:
    url = cluster().database()
    migrate_at(url)
    told = fights(url, range(FIGHTS))
    for what in ("commits kept", "commits fenced", "cuts", "deliveries"):
        assert told[what] > FIGHTS / 2, told
    for what in ("commits unknown", "held up"):
        assert told[what] > FIGHTS / 50, told


# Planted bugs.


class TakesRefusedForKept(Keeper):
    async def _look_up(
        self, error: Refused, shards: list[int], epochs: list[int], numbers: list[int]
    ) -> None:
        if error.constraint != FENCE:
            await super()._look_up(error, shards, epochs, numbers)


class TriesAgainUnderAnotherNumber(Keeper):
    async def commit(self, group: Sequence[Commit], sync: bool) -> None:
        while True:
            postgres_commits.PATIENCE_S = -1.0
            try:
                return await super().commit(group, sync)
            except Unknown:
                postgres_commits.PATIENCE_S = LONG_S
                for each in group:
                    await self._count_on(each)

    async def _count_on(self, commit: Commit) -> None:
        row = await patiently(lambda: self.session.row("last", commit.shard))
        if row is not None and row[0] == commit.epoch:
            self._numbers[commit.shard] = row[1]


class ForgetsVersions(Keeper):
    async def claim(self, shard: int) -> Claim:
        claim = await super().claim(shard)
        self._version = 0
        return claim


class LoadsBeforeItClaims(Node):
    async def start(self) -> None:
        rows = await self.read()
        self.load(await self.claim(), rows)
        self.engine.apply(c.TenantPut(TENANT, spread=self.fight.is_spread), self.fight.now)


class ForgetsWhatWasDelivered(Node):
    def load(self, claims: Mapping[int, engines.Taken], rows: list[Row]) -> None:
        super().load(claims, [row for row in rows if row[0][8:9] not in (b"c", b"l")])


class NoTransactions(Gated):
    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncIterator[None]:
        yield


ANY_NUMBER = """
create or replace function forebay.fence(
    p_shards integer[], p_epochs bigint[], p_numbers bigint[], p_ats bigint[],
    p_version bigint, p_restored integer, p_node text, p_sync boolean
) returns void language sql as $$
    insert into forebay.commits (shard, number, epoch, version, at, restored, node)
    select u.shard, {number}, u.epoch, p_version, u.at, p_restored, p_node
    from unnest(p_shards, p_epochs, p_numbers, p_ats) as u (shard, epoch, number, at)
    order by u.shard;
$$;"""
NUMBER = ANY_NUMBER.format(number="u.number")
NEXT_NUMBER = ANY_NUMBER.format(
    number="(select max(c.number) + 1 from forebay.commits c where c.shard = u.shard)"
)
NOT_UNIQUE = "alter table forebay.commits drop constraint commits_pkey;"
ONLY_LOOKS = """
create or replace function forebay.claim(
    p_shard integer, p_least bigint, p_node text,
    out epoch bigint, out number bigint, out version bigint, out at bigint, out passed integer, out now bigint
) language sql as $$
    select greatest(coalesce(max(c.epoch), 0), p_least) + 1, coalesce(max(c.number), 0),
        coalesce(max(c.version), 0), coalesce(max(c.at), 0), 0, 0::bigint
    from forebay.commits c where c.shard = p_shard;
$$;"""


class Bug(NamedTuple):
    """What to change of the database, of the code, and of those who fight."""

    sql: str = ""
    code: Callable[[], AbstractContextManager[None]] = nullcontext
    keeper: type[Keeper] = Keeper
    node: type[Node] = Node
    session: type[Gated] = Gated


PLANTED = {
    "a number can be taken twice": Bug(NOT_UNIQUE + NUMBER),
    "a commit gets whatever number is free": Bug(NEXT_NUMBER),
    "a claim takes no number": Bug(ONLY_LOOKS + NUMBER),
    "what is refused is taken for kept": Bug(keeper=TakesRefusedForKept),
    "what was cut off is tried again under another number": Bug(keeper=TriesAgainUnderAnotherNumber),
    "what was cut off is told to have failed": Bug(
        code=lambda: planted(patiently, "is_open = is_open or", "is_open = False and")
    ),
    "versions begin anew with each claim": Bug(keeper=ForgetsVersions),
    "a large commit is no transaction": Bug(session=NoTransactions),
    "a node loads before it claims": Bug(node=LoadsBeforeItClaims),
    "a node forgets what was delivered": Bug(node=ForgetsWhatWasDelivered),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = PLANTED[name]

    class Planted(Arena):
        keeper, node, session = bug.keeper, bug.node, bug.session

    url = cluster().database()
    migrate_at(url)
    if bug.sql:
        run_sql(url, bug.sql)
    with bug.code(), pytest.raises(AssertionError, match="seed"):
        fights(url, range(WITHIN), Planted)
