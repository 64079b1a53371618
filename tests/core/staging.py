"""Short words for what tests of stages say often."""

from typing import Any

from forebay.core.api import queries, stages as stage_commands
from forebay.core.log.bodies import pack_body
from forebay.core.queries import payloads as queries_payloads
from forebay.core.records import keyspace
from forebay.core.state import Attributes, Queue, stages
from tests.core.harness import Core
from tests.sim.snapshot import differences, snapshot
from tests.sim.world import load

QUERY = "query"
HOUR_MS = 3_600_000


def write_of(name: str, *payloads: bytes, **fields: Any) -> stage_commands.StageWrite:
    """The command that stages payloads, for batch 0 of the query unless it says otherwise."""
    where = (fields.pop("tenant", "default"), fields.pop("queue", "q"))
    meant: dict[str, Any] = {"query": QUERY, "batch": 0} | fields
    return stage_commands.StageWrite(*where, name, payloads=list(payloads) or [b"1"], **meant)


def stage(core: Core, name: str, *payloads: bytes, **fields: Any) -> stage_commands.Staged:
    return core.ask(write_of(name, *payloads, **fields), stage_commands.Staged)


def stage_body(core: Core, name: str, *payloads: bytes, **fields: Any) -> stage_commands.Staged:
    """Stage payloads as a body."""
    meant: dict[str, Any] = {"query": QUERY, "batch": 0} | fields
    body = pack_body(payloads, list(map(len, payloads)))
    return core.ask(
        stage_commands.StageWrite("default", "q", name, body=body, count=len(payloads), **meant),
        stage_commands.Staged,
    )


def adopt_of(batch: int, *names: str, **fields: Any) -> stage_commands.Adopt:
    where = (fields.pop("tenant", "default"), fields.pop("queue", "q"), fields.pop("query", QUERY))
    return stage_commands.Adopt(*where, batch, list(names), **fields)


def adopt(core: Core, batch: int, *names: str, **fields: Any) -> stages.Adopted:
    return core.ask(adopt_of(batch, *names, **fields), stages.Adopted)


def unstage(core: Core, *names: str, queue: str = "q") -> tuple[int, int]:
    """How many stages, and messages in them, were dropped."""
    reply = core.ask(stage_commands.Unstage("default", queue, list(names)), stage_commands.Unstaged)
    return reply.stages, reply.count


def run(count: int, **attributes: Any) -> tuple[int, Attributes]:
    return count, Attributes(**attributes)


def logged(core: Core, partition: str = "default", *, whole: bool = False, **fields: Any) -> list[bytes]:
    """Everything in a log, as it is read by offset; whatever is not in memory comes from the store."""
    most = {"max_count": 10_000, "max_bytes": 1 << 24} | fields
    found: list[bytes] = []
    while True:
        command = queries.Read("default", "q", len(found), partition, whole=whole, **most)
        reply = core.ask(command, queries.LogSlice)
        for each in queries_payloads.absent(reply):
            (body,) = core.store.bodies([keyspace.body_key(each.queue.prefix, each.segment.body_name)])
            assert isinstance(body, bytes), "a log has the bodies of its segments"
            each.segment.body = body
        found += [bytes(payload) for each in reply.runs for payload in each.payloads()]
        assert reply.next == len(found) <= reply.end
        if reply.next == reply.end:
            return found


def queue_of(core: Core, name: str = "q") -> Queue:
    return core.engine.queues["default", name]


def names(core: Core) -> list[str]:
    """The stages that are there."""
    return list(queue_of(core).stages)


def staged(core: Core) -> object:
    """Everything that is known of stages and adoptions, in a form that can be compared."""
    return {
        key: (
            queue.staged.bytes,
            {name: _stage(each) for name, each in queue.stages.items()},
            {name: dict(each) for name, each in queue.adopted.items()},
        )
        for key, queue in core.engine.queues.items()
        if queue.stored
    }


def _stage(each: Any) -> object:
    about = (each.query, each.batch, each.expires_at, each.writes, each.count, each.size)
    parts = [
        (part.at, part.partition, part.count, part.size, part.body_name, part.runs, part.keys)
        for part in each.parts
    ]
    return about, parts


def restart(core: Core) -> None:
    """End after a commit and begin anew: all is as it was, and the store has no body too many."""
    core.engine.clear_marks()
    core.commit()
    before, known = staged(core), snapshot(core.engine)
    core.restart()
    assert not core.engine.damaged
    assert staged(core) == before
    found = list(differences(snapshot(core.engine), known))
    assert not found, found
    assert core.store._bodies.keys() == bodies_named(core)


def crash(core: Core) -> None:
    """Start again from the last commit."""
    core.engine = load(core.store, core.limits, core.now)
    assert not core.engine.damaged


def bodies_named(core: Core) -> set[bytes]:
    """The keys of all bodies that segments and stages name."""
    found: set[bytes] = set()
    for queue in core.engine.queues.values():
        if queue.stored:
            names = [each.body_name for part in queue.partitions.values() for each in part.log.segments]
            names += [
                part.body_name for each in queue.stages.values() for part in each.parts if not part.keys
            ]
            found |= {keyspace.body_key(queue.prefix, name) for name in names}
    return found


def stage_records(core: Core, queue: str = "q") -> list[bytes]:
    """The keys of what the store has of stages."""
    prefix = queue_of(core, queue).prefix
    return [key for key, _ in core.store.scan(*keyspace.queue_bounds(prefix)) if key[8:9] == b"n"]
