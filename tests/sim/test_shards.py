"""Tenants over shards and engines live as each of them would alone, and bugs in that are caught."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay.core import engine as engines
from forebay.core.bounds import Limits
from forebay.core.handlers import HANDLERS
from forebay.core.jobs.dependencies import settle_consequences
from forebay.core.loading import shard as loading
from forebay.core.loading.shards import load_shards
from forebay.core.routing import spread
from forebay.core.shard import addresses, numbering, shard as shards
from forebay.core.shard.shard import Shard
from forebay.store.base import StoreError
from tests.sim.plant import Planted, planted
from tests.sim.shards_life import LIFE, ShardsLife
from tests.sim.test_mutants import CAUGHT


@pytest.mark.parametrize("seed", range(6))
def test_tenants_over_several_shards_live_as_each_of_them_alone(seed: int) -> None:
    life = ShardsLife(seed)
    life.run(LIFE)
    for kind in ("pushed", "popped", "settled", "transacted", "written", "state", "flow", "jobs"):
        assert life.answers[kind] > 5, life.answers


def test_no_command_and_no_tick_touches_another_shard_than_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a handler or a tick runs, whoever looks at another shard is caught."""
    at_work: list[Shard] = []

    def guarded(work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(shard: Shard, *more: Any) -> Any:
            at_work.append(shard)
            try:
                return work(shard, *more)
            finally:
                at_work.pop()

        return watched

    def look(shard: Shard, name: str) -> Any:
        if at_work and shard is not at_work[-1]:
            raise AssertionError(f"{name} of another shard")
        return object.__getattribute__(shard, name)

    for command, handler in HANDLERS.items():
        monkeypatch.setitem(HANDLERS, command, guarded(handler))
    monkeypatch.setattr(engines, "tick", guarded(engines.tick))
    monkeypatch.setattr(engines, "settle_consequences", guarded(settle_consequences))
    monkeypatch.setattr(Shard, "__getattribute__", look, raising=False)
    ShardsLife(1).run(500)
    at_work.append(Shard(0, 2, Limits()))
    with pytest.raises(AssertionError, match="another shard"):
        _ = Shard(1, 2, Limits()).leases


MUTANTS: dict[str, Planted] = {
    "a shard has the messages of others": (
        shards.Shard.__init__,
        "self.places: dict[int, Place] = {}",
        'self.places = globals().setdefault("_places", {})',
    ),
    "a shard has the leases of others": (
        shards.Shard.__init__,
        "self.leases: dict[int, Lease] = {}",
        'self.leases = globals().setdefault("_leases", {})',
    ),
    "a shard has the values of others": (
        shards.Shard.__init__,
        "self.values = ValueStore()",
        'self.values = globals().setdefault("_values", ValueStore())',
    ),
    "two shards give out one number": (
        numbering.Numbering.next_number,
        "self.made * self.stride + self.number",
        "self.made * self.stride",
    ),
    "two shards give a queue one number": (
        numbering.Numbering.next_queue,
        "self.queues_made * self.stride + self.number",
        "7",
    ),
    "two shards give a tenant one number": (
        numbering.Numbering.next_tenant,
        "self.tenants_made * self.stride + self.number",
        "self.tenants_made * self.stride",
    ),
    "a shard forgets the numbers it gave out": (
        loading.load_names,
        "numbering.made, numbering.queues_made = found.partitions_made, found.queues_made",
        "numbering.made, numbering.queues_made = found.partitions_made, 0",
    ),
    "an id leads to the wrong shard": (
        spread.Touched.shards_of_ids,
        "yield number % shards, is_mine(number % shards,",
        "yield (number + 1) % shards, is_mine((number + 1) % shards,",
    ),
    "a queue of a spread tenant is in the wrong shard": (
        spread.Touched.shards_of_names,
        "shard_of_queue(tenant, queue, shards)",
        "home_of(tenant, shards)",
    ),
    "a spread transaction is half done": (
        engines.Engine._apply_spread,
        "raise about.refuse()",
        "places = {min(places)}",
    ),
    "queues of a spread tenant are joined if they share a shard": (
        spread.Touched.check,
        "if len(self.queues | {queue.name for queue in mine if queue is not None}) > 1:",
        "if False:",
    ),
    "an answer lacks the shards that are elsewhere": (
        engines.Engine._of_spread,
        "map(self._owned, found)",
        "self.shards.values()",
    ),
    "a shard that is elsewhere has changed something": (
        engines.Engine._owned,
        "raise Elsewhere(number)",
        "[each.changes.ask_sync() for each in self.shards.values()]; raise Elsewhere(number)",
    ),
    "a shard that was released goes on": (engines.Engine.release, "if each is not shard", "if True"),
    "a shard is taken under the claim of another": (
        load_shards,
        "shard.numbering.epoch = claim.epoch",
        "shard.numbering.epoch = claim.epoch - 1",
    ),
    "a lease of another shard is live": (addresses.leased, "if number != shard.number:", "if False:"),
    "a tenant is stored before it is listed": (
        engines.Engine._route,
        "self.control.add(tenant, spread=False, now=self.now)",
        "pass",
    ),
    "a shard that was taken is not sealed": (
        engines.Engine.adopt,
        "shard.changes.on_first = partial(self.changed.append, shard)",
        "pass",
    ),
    "what is due in a shard that was taken waits": (
        engines.Engine.release,
        "self.alarm.at = min((each.timers.alarm.at for each in self.shards.values()), default=NEVER)",
        "self.alarm.at = NEVER",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_in_how_shards_live_is_caught(name: str) -> None:
    with planted(*MUTANTS[name]), pytest.raises((*CAUGHT, StoreError)):
        live()


def live() -> None:
    for seed in range(8):
        ShardsLife(seed).run(500)
