"""Keys that get the payload of a message if it dies, in the commit in which it does."""

from typing import Any

import pytest

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.keyvalue.keys import pack
from forebay.core.state import Attributes, Identity
from tests.core.harness import AT_ONCE, Core
from tests.sim.world import load

T = "default"
KEY, OTHER = pack(("k",)), pack(("other",))


@pytest.fixture
def core() -> Core:
    return Core()


def get(core: Core, key: bytes = KEY) -> bytes | None:
    (value,) = core.ask(queries.KvGet(T, [key]), queries.KvFound).values
    return value.data if value is not None else None


PAYLOAD = b'{"n":1}'


def push(core: Core, *keys: bytes, **attributes: Any) -> int:
    own = Identity(keys=keys or (KEY,))
    job = job_commands.Job(PAYLOAD, attributes=Attributes(**attributes), own=own)
    return core.ask(job_commands.PushJobs(T, "q", [job]), job_commands.PushedJobs).ids[0]


def end(core: Core, message: int, how: str) -> None:
    match how:
        case "ack":
            core.ack(core.pop().lease)
        case "nack":
            core.nack(core.pop().lease)
        case "nack by id":
            core.pop()
            core.nack(ids=[message])
        case "lease runs out":
            core.pop(lease_ms=1_000)
            core.wait(1_000)
        case "discard":
            core.ask(c.Discard(T, [message]), c.Settled)
        case "discard what is leased":
            core.pop()
            core.ask(c.Discard(T, [message]), c.Settled)
        case "cancel":
            core.cancel(message)
        case "expire":
            core.wait(60_000)
        case "seek":
            core.ask(c.Seek(T, "q", "default", "new"), c.Sought)
        case "obliterate":
            core.ask(c.Obliterate(T, "q"), c.Cleaned)


DEATHS = ("nack", "nack by id", "lease runs out", "discard", "discard what is leased")
ENDS = ("ack", "cancel", "expire", "seek", "obliterate")


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("how", DEATHS)
def test_a_message_that_dies_leaves_its_payload_under_its_keys(
    core: Core, how: str, letters: bool, reload: bool
) -> None:
    core.configure(max_attempts=1, backoff=AT_ONCE, dead_letters=letters)
    core.pop()
    message = push(core, KEY, OTHER)
    core.commit()
    if reload:
        core.restart()
    end(core, message, how)
    assert (get(core), get(core, OTHER)) == (PAYLOAD, PAYLOAD)
    core.restart()
    assert (get(core), get(core, OTHER)) == (PAYLOAD, PAYLOAD)


@pytest.mark.parametrize("how", ["nack", "discard"])
def test_what_a_message_leaves_is_kept_with_its_death_and_not_before(core: Core, how: str) -> None:
    core.configure(max_attempts=1)
    message = push(core)
    core.commit()
    end(core, message, how)
    commits = core.engine.seal(core.now)
    core.engine = load(core.store, core.limits, core.now)  # a crash before the commit
    assert get(core) is None
    assert core.state(message) in ("active", "waiting")
    assert any(key.endswith(KEY) for commit in commits for key, _ in commit.puts)


@pytest.mark.parametrize("how", ENDS)
def test_a_message_that_ends_otherwise_leaves_nothing(core: Core, how: str) -> None:
    core.configure(max_attempts=1)
    core.pop()
    message = push(core, ttl_ms=60_000)
    end(core, message, how)
    core.restart()
    assert get(core) is None


def test_a_message_leaves_nothing_before_its_last_failure(core: Core) -> None:
    core.configure(max_attempts=3, backoff=AT_ONCE)
    push(core)
    for _ in range(2):
        core.nack(core.pop().lease)
        assert get(core) is None
    core.nack(core.pop().lease)
    assert get(core) == PAYLOAD


def test_only_the_work_queue_counts_for_what_is_left(core: Core) -> None:
    core.configure(max_attempts=1)
    push(core)
    core.nack(core.pop(group="audit").lease)
    assert get(core) is None


def test_a_message_that_fails_with_what_it_waits_for_leaves_its_payload(core: Core) -> None:
    core.configure("first", max_attempts=1)
    first = core.push(queue="first")
    push(core, depends_on=((first, 1),))
    core.nack(core.pop(queue="first").lease)
    assert get(core) == PAYLOAD


def test_a_dead_letter_that_is_requeued_leaves_nothing_a_second_time(core: Core) -> None:
    core.configure(max_attempts=1)
    push(core)
    core.nack(core.pop().lease)
    core.ask(job_commands.KvWrite(T, [job_commands.KvChange("delete", KEY)]), job_commands.KvWritten)
    core.ask(c.Requeue(T, "q"), c.Buried)
    core.nack(core.pop().lease)
    assert get(core) is None


def test_an_updated_message_leaves_the_payload_that_it_has(core: Core) -> None:
    core.configure(max_attempts=1)
    message = push(core)
    core.ask(c.Update(T, message, b'"new"'), c.Pushed)
    core.nack(core.pop().lease)
    assert get(core) == b'"new"'
