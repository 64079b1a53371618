"""What an engine has inside, gathered over its shards: for tests only."""

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from forebay.core.engine import Engine
from forebay.core.shard.shard import Shard
from forebay.core.state import Cron, EventLog, Limiter, NamedLimit, Queue, Tally, Values

K = TypeVar("K")
V = TypeVar("V")


def _joined(parts: Iterable[dict[K, V]]) -> dict[K, V]:
    return {key: value for part in parts for key, value in part.items()}


def home(engine: Engine, tenant: str = "default") -> Shard:
    """The shard in which a tenant lives."""
    return engine.shards[engine.shard_of(tenant, "")]


def notifying(engine: Engine) -> bool:
    """Whether dependents are still to be notified."""
    return any(shard.notifications for shard in engine.shards.values())


def values_of(engine: Engine) -> dict[str, Values]:
    return _joined(shard.values.by_tenant for shard in engine.shards.values())


def crons_of(engine: Engine) -> dict[str, dict[str, Cron]]:
    return _joined(shard.crons.by_tenant for shard in engine.shards.values())


def limits_of(engine: Engine) -> dict[str, dict[str, NamedLimit]]:
    return _joined(shard.named_limits.limits for shard in engine.shards.values())


def limiters_of(engine: Engine) -> dict[str, dict[str, Limiter]]:
    return _joined(shard.named_limits.limiters for shard in engine.shards.values())


def event_logs(engine: Engine) -> dict[int, EventLog]:
    return {number: shard.events.log for number, shard in engine.shards.items() if shard.events.log}


def tallies(engine: Engine) -> dict[bytes, Tally]:
    return _joined(shard.events.tallies for shard in engine.shards.values())


def closing(engine: Engine) -> dict[tuple[str, str], Queue]:
    return _joined(shard.names.closing for shard in engine.shards.values())


def tenants_in(engine: Engine, shard: int, count: int = 1) -> list[str]:
    """Names of tenants that live in a shard."""
    names = (f"t{number}" for number in range(1_000_000))
    return list(islice((name for name in names if engine.shard_of(name, "") == shard), count))


def queues_in(engine: Engine, tenant: str, shard: int, count: int = 1) -> list[str]:
    """Names of queues of a spread tenant that live in a shard."""
    names = (f"q{number}" for number in range(1_000_000))
    return list(islice((name for name in names if engine.shard_of(tenant, name) == shard), count))
