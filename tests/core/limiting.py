"""Short words for tests of limits on delivery."""

from typing import Any

from forebay.core.api import commands as c, jobs as job_commands, queries
from forebay.core.state import NamedLimit
from tests.core.harness import Core


def fill(core: Core, count: int = 100, queue: str = "q", partition: str = "default") -> None:
    core.push(*[b"x"] * count, queue=queue, partition=partition)


def share(core: Core, name: str = "n", **fields: Any) -> list[queries.LimitFound]:
    """Set a limit that has a name."""
    return core.ask(job_commands.LimitPut("default", name, NamedLimit(**fields)), queries.LimitsFound).limits


def active(core: Core, name: str = "n") -> int:
    limits = core.ask(queries.LimitList("default"), queries.LimitsFound).limits
    return next(each.active for each in limits if each.name == name)


def got(core: Core, count: int = 1_000, **fields: Any) -> int:
    return len(core.popped(count, **fields))


def woken(core: Core) -> set[tuple[str, str | None]]:
    """Queues and groups in which something became deliverable."""
    return {(queue.name, group) for queue, group, _ in core.engine.take_woken()}


def ids_of(popped: c.Popped) -> list[int]:
    return [each.first + at for each in popped.deliveries for at in range(each.count)]
