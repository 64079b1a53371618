"""Drop stages and forget remembered adoptions."""

from forebay.core.api.stages import Adopt, Unstage, Unstaged
from forebay.core.bounds import BATCH_MAX, STAGES_MAX, check_range
from forebay.core.records import keyspace, stages as stage_records
from forebay.core.shard.shard import Shard
from forebay.core.state import Queue, Stage


def unstage(shard: Shard, command: Unstage, now: int) -> Unstaged:
    """Drop stages; missing ones are ignored."""
    check_range("batch", command.batch, 0, BATCH_MAX)
    check_range("stages", len(command.stages), 1 if command.query is None else 0, STAGES_MAX)
    queue = shard.names.known(command.tenant, command.queue)
    found = [queue.stages[name] for name in dict.fromkeys(command.stages) if name in queue.stages]
    if command.query is not None:
        named = set(command.stages)
        found += [each for each in _stages_of(queue, command.query, command.batch) if each.name not in named]
    for stage in found:
        drop_stage(shard, queue, stage)
    return Unstaged(len(found), sum(stage.count for stage in found))


def forget_stage(shard: Shard, queue: Queue, stage: Stage) -> None:
    """Remove a stage, but keep its bodies."""
    del queue.stages[stage.name]
    if stage.query is not None:
        of_query = queue.staged_for[stage.query]
        del of_query[stage.name]
        if not of_query:
            del queue.staged_for[stage.query]
    for part in stage.parts:
        queue.staged.count(part, -1)
    shard.timers.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    if queue.stored:
        shard.changes.deletes += [
            stage_records.staged_key(queue.prefix, part.body_name) for part in stage.parts
        ]
    shard.changes.touch()


def drop_stage(shard: Shard, queue: Queue, stage: Stage) -> None:
    """Remove a stage and everything in it."""
    forget_stage(shard, queue, stage)
    if queue.stored:
        named = [part.body_name for part in stage.parts if not part.keys]
        shard.changes.deletes += [keyspace.body_key(queue.prefix, name) for name in named]


def forget_query(shard: Shard, queue: Queue, query: str) -> None:
    batches = queue.adopted.pop(query)
    until = batches[max(batches)].until
    if until:
        shard.timers.staged.remove(until, (queue.prefix, False, query))
    for batch in batches:
        shard.changes.put_row(queue, stage_records.adopted_key(queue.prefix, query, batch), None)


def drop_adopted(shard: Shard, queue: Queue, command: Adopt) -> None:
    """Drop stages that can't be adopted any more: the named ones, and the query's up to this batch."""
    for stage in _stages_of(queue, command.query, command.batch):
        drop_stage(shard, queue, stage)
    for name in command.stages:
        if name in queue.stages and queue.stages[name].query is None:
            drop_stage(shard, queue, queue.stages[name])


def _stages_of(queue: Queue, query: str, batch: int) -> list[Stage]:
    """Return the stages of a query up to a batch."""
    return [each for each in queue.staged_for.get(query, {}).values() if each.batch <= batch]


def forget_staged(shard: Shard, now: int) -> None:
    """Drop expired stages, and forget expired adoptions."""
    while items := shard.timers.staged.first_due(now):
        for prefix, is_stage, name in items:
            queue = shard.queues[prefix]
            if is_stage:
                drop_stage(shard, queue, queue.stages[name])
            else:
                forget_query(shard, queue, name)


def forget_stages(shard: Shard, queue: Queue) -> None:
    """Remove the timers of a queue that is being removed."""
    for stage in queue.stages.values():
        shard.timers.staged.remove(stage.expires_at, (queue.prefix, True, stage.name))
    for query, batches in queue.adopted.items():
        until = batches[max(batches)].until
        if until:
            shard.timers.staged.remove(until, (queue.prefix, False, query))
