"""Do what is due in a shard: expire, fire, sweep."""

from forebay.core.delivery.give_back import expire
from forebay.core.delivery.limits import wake_limited
from forebay.core.jobs import cron
from forebay.core.jobs.dependencies import go_on, settle_consequences
from forebay.core.keyvalue import store as kv_store
from forebay.core.links.dedup import forget_due_remembered
from forebay.core.links.expiry import expire_tied
from forebay.core.queues import delete as queue_delete
from forebay.core.retention.sweep import sweep_due
from forebay.core.shard.shard import Shard
from forebay.core.stages.expire import forget_staged


def tick(shard: Shard, now: int, sweeps: int) -> int:
    """Do everything of a shard that is due; return how many queues may still be swept."""
    expire(shard, now)
    expire_tied(shard, now)
    forget_due_remembered(shard, now)
    forget_staged(shard, now)
    shard.fire_due(now)
    wake_limited(shard, now)
    if sweeps:
        sweeps = sweep_due(shard, now, sweeps)
    queue_delete.finish(shard)
    settle_consequences(shard, now)  # a cron may want the key of what ended just now
    cron.fire(shard, now)
    settle_consequences(shard, now)
    go_on(shard, now)
    settle_consequences(shard, now)
    kv_store.expire(shard, now)
    shard.timers.alarm.at = now if shard.notifications else shard.timers.next_at()
    return sweeps
