"""Long random lives of stages, and whether the model would notice a bug in them."""

from pathlib import Path

import pytest

from forebay.core.loading import build, decode
from forebay.core.log import log as logs
from forebay.core.records import stages as stage_records
from forebay.core.retention import removal
from forebay.core.stages import adopt as stage_adopt, expire as stage_expire, write as stage_write
from tests.sim.plant import Planted, planted
from tests.sim.stage_drive import StageDriver
from tests.sim.test_mutants import CAUGHT
from tests.sim.worlds import PostgresWorlds, RocksWorlds

SEEDS, STEPS = 8, 600
"""As many as any of the mutants needs."""


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few adoptions and queries are remembered that some are forgotten, and writes are cut soon."""
    monkeypatch.setattr(logs, "SEGMENT_BYTES_MAX", 100)
    monkeypatch.setattr(stage_adopt, "ADOPTIONS_MAX", 3)
    monkeypatch.setattr(stage_adopt, "QUERIES_MAX", 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_random_life_of_stages_agrees_with_the_model(seed: int) -> None:
    driver = StageDriver(seed)
    driver.run(3_000)
    kinds = (
        "write",
        "part again",
        "late write",
        "adoption",
        "adoption again",
        "another batch",
        "a later run",
        "write of a former run",
        "merge",
        "crash",
        "obliterate",
    )
    assert all(driver.told.get(each, 0) > 0 for each in kinds), driver.told


def test_a_long_random_life_of_stages_on_a_disk_agrees_with_the_model(tmp_path: Path) -> None:
    worlds = RocksWorlds(tmp_path)
    worlds.begin_stages(100).run(1_000)
    worlds.close()


def test_a_long_random_life_of_stages_in_a_database_agrees_with_the_model() -> None:
    worlds = PostgresWorlds()
    worlds.begin_stages(200).run(1_000)
    worlds.close()


def test_a_seed_replays_the_same_life_of_stages() -> None:
    first, second = StageDriver(7), StageDriver(7)
    first.run(400)
    second.run(400)
    assert (first.told, first.now, first.model) == (second.told, second.now, second.model)


MUTANTS: dict[str, Planted] = {
    # Writes.
    "a part that comes again is kept again": (
        stage_write.write,
        "if command.part < stage.writes:",
        "if False:",
    ),
    "a gap between parts goes unnoticed": (stage_write.write, "if command.part > stage.writes:", "if False:"),
    "a later write makes a stage expire sooner": (
        stage_write.write,
        "max(stage.expires_at, now + command.expire_ms)",
        "now + command.expire_ms",
    ),
    "a late writer is let in": (
        stage_write._stage_of,
        "max(adopted) == command.batch",
        "False",
    ),
    "a stage takes what is for another batch": (
        stage_write._stage_of,
        "(stage.query, stage.batch, stage.run) != meant",
        "stage.query != command.query",
    ),
    "a part is not kept": (
        stage_write._keep,
        "shard.changes.put((key, stage_records.pack_staged(stage, part)))",
        "pass",
    ),
    "a body is not kept": (
        stage_write._keep,
        "shard.changes.put_body((keyspace.body_key(queue.prefix, part.body_name), each.body))",
        "pass",
    ),
    "a body leaves memory before the store has it": (
        stage_write._keep,
        "shard.changes.staged_now[1].append(part)",
        "part.body = None",
    ),
    "a body is kept in a queue that is not": (stage_write._keep, "if queue.stored:", "if True:"),
    "runs are cut one message too late": (stage_write._cut, "max(at, start)", "max(at, start - 1)"),
    # Adoptions.
    "an adoption that comes again is carried out again": (
        stage_adopt.adopt,
        "if command.batch in known:",
        "if False:",
    ),
    "an adoption that comes again drops nothing": (
        stage_adopt.adopt,
        "            drop_adopted(shard, queue, command)\n            return",
        "            return",
    ),
    "an old batch is adopted": (stage_adopt.adopt, "known and command.batch < max(known)", "False"),
    "what is late stays": (
        stage_adopt.adopt,
        "    drop_adopted(shard, queue, command)\n    if durability",
        "    if durability",
    ),
    "what is for this batch stays": (
        stage_expire._stages_of,
        "each.batch <= batch",
        "each.batch < batch",
    ),
    "what is for later batches goes": (stage_expire._stages_of, "each.batch <= batch", "True"),
    "a count is not looked at": (stage_adopt._stages, "command.count != count", "False"),
    "another batch is taken for the same": (stage_adopt._check_again, "command.count != had", "False"),
    "what was left out does not count": (
        stage_adopt._check_again,
        "first.count + first.duplicates",
        "first.count",
    ),
    "an old batch is staged": (stage_write._stage_of, "max(adopted) > command.batch", "False"),
    "an earlier run stays": (stage_write._former, "if run < command.run", "if False"),
    "a later run goes": (stage_write._former, "if run > command.run", "if False"),
    "what is dropped is still for a query": (stage_expire.forget_stage, "del of_query[stage.name]", "pass"),
    "a run is not kept": (stage_records.pack_staged, "stage.run", "0"),
    "a stream is forgotten before a write": (
        stage_adopt._remember,
        "[max(queue.adopted[each])].until",
        "[max(queue.adopted[each])].at",
    ),
    "a stage is adopted by whoever comes": (
        stage_adopt._stages,
        "if stage.query is not None and",
        "if False and",
    ),
    "stages are adopted in the order they were made": (
        stage_adopt.adopt,
        "for stage in stages:",
        "for stage in sorted(stages, key=list(queue.stages.values()).index):",
    ),
    "the first offset of the last part is told": (
        stage_adopt.adopt,
        "begun.setdefault(partition.name, partition.log.end)",
        "begun[partition.name] = partition.log.end",
    ),
    "what forms is not sealed first": (
        stage_adopt._adopt_part,
        "shard.changes.seal_now(queue, partition)",
        "pass",
    ),
    "a header is not kept": (
        stage_adopt._adopt_part,
        "shard.changes.put((key, codec.pack_header(segment)))",
        "pass",
    ),
    "what is adopted has no tags": (
        stage_adopt._adopt_part,
        "Run(count, created_at, attributes)",
        "Run(count, created_at, replace(attributes, tags=()))",
    ),
    "what is not in line is not scheduled": (
        stage_adopt._adopt_part,
        "if not attributes.in_line:",
        "if False:",
    ),
    "what is scheduled begins at the first message": (stage_adopt._adopt_part, "offset += count", "pass"),
    "delays begin too late": (
        stage_adopt._adopt_part,
        "Scheduled(created_at + attributes.delay_ms,",
        "Scheduled(created_at + attributes.delay_ms + 1,",
    ),
    "nobody is told": (stage_adopt._adopt_part, "wake_readers(shard, queue, partition)", "pass"),
    "keys are not held": (stage_adopt._jobs, "None if key is None else Identity(key)", "None"),
    "keys are not looked at": (stage_adopt.adopt, "if part.keys:", "if False:"),
    "a log does not know that it has attributes": (logs.adopt, "log.mixed += segment.mixed", "pass"),
    "a log does not know its size": (logs.adopt, "log.size += segment.size", "pass"),
    # What is remembered.
    "an adoption is not kept": (
        stage_adopt._remember,
        "shard.changes.put_row(queue, key, stage_records.pack_adopted(adopted))",
        "shard.changes.touch()",
    ),
    "an adoption is known for ever in the store": (
        stage_adopt._remember,
        "shard.changes.put_row(queue, stage_records.adopted_key(queue.prefix, query, oldest), None)",
        "shard.changes.touch()",
    ),
    "the newest adoption is forgotten first": (
        stage_adopt._remember,
        "oldest = min(batches)",
        "oldest = max(batches)",
    ),
    "the query that adopted first is the last": (
        stage_adopt._remember,
        "queue.adopted[query] = batches",
        "queue.adopted = {query: batches, **queue.adopted}",
    ),
    "a query is known for ever in the store": (
        stage_expire.forget_query,
        "shard.changes.put_row(queue, stage_records.adopted_key(queue.prefix, query, batch), None)",
        "shard.changes.touch()",
    ),
    "an earlier batch says how long a query is known": (
        stage_adopt._remember,
        "if batches and batches[max(batches)].until:",
        "if False:",
    ),
    # Ends.
    "a stage stays in the store": (
        stage_expire.forget_stage,
        "stage_records.staged_key(queue.prefix, part.body_name) for part in stage.parts",
        "stage_records.staged_key(queue.prefix, part.body_name) for part in ()",
    ),
    "the bytes of a stage are counted for ever": (
        stage_expire.forget_stage,
        "queue.staged.count(part, -1)",
        "pass",
    ),
    "a body stays in the store": (
        stage_expire.drop_stage,
        "shard.changes.deletes += [keyspace.body_key(queue.prefix, name) for name in named]",
        "pass",
    ),
    "stages never expire": (
        stage_expire.forget_staged,
        "if is_stage:",
        "if is_stage and (queue.stages.clear() or 1):",
    ),
    "stages expire with a queue that is gone": (removal.remove_queue, "forget_stages(shard, queue)", "pass"),
    # Loading.
    "a part that was cut is several after a restart": (
        decode._add_staged,
        "known.writes = max(known.writes, part.at + 1)",
        "known.writes += 1",
    ),
    "a stage expires as its first part said": (
        decode._add_staged,
        "known.expires_at = max(known.expires_at, stage.expires_at)",
        "pass",
    ),
    "stages expire no more after a restart": (
        build._add_stages,
        "shard.timers.staged.add(stage.expires_at, (queue.prefix, True, stage.name))",
        "pass",
    ),
    "adoptions are known for ever after a restart": (
        build._add_stages,
        "shard.timers.staged.add(until, (queue.prefix, False, query))",
        "pass",
    ),
    "stages are for no query after a restart": (
        build._add_stages,
        "queue.staged_for.setdefault(stage.query, {})[stage.name] = stage",
        "pass",
    ),
    "the bytes of stages are not counted after a restart": (
        build._add_stages,
        "queue.staged.count(part)",
        "pass",
    ),
    "adoptions are in another order after a restart": (
        build._add_stages,
        "(each[2].at, each[1])",
        "each[0]",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_of_stages_catches(name: str) -> None:
    with planted(*MUTANTS[name]), pytest.raises((*CAUGHT, TypeError, AttributeError)):
        live()


def live() -> None:
    for seed in range(SEEDS):
        StageDriver(seed).run(STEPS)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_without_a_bug_core_and_model_of_stages_agree(seed: int) -> None:
    StageDriver(seed).run(STEPS)
