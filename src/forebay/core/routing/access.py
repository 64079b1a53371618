"""What a principal for some queues may do: only what is about these queues, and nothing of the whole tenant.

Most principals are for all queues, and nothing here is run for them.
"""

from collections.abc import Iterable

from forebay.core.api.commands import Backup, Command, Hold, Pop, Push, Transact
from forebay.core.api.jobs import PushFlow, PushJobs
from forebay.core.api.principals import Patterns, has_queue
from forebay.core.api.queries import Children, CronList, FindJob, ListQueues, Stats
from forebay.core.api.tenants import OfControl
from forebay.core.errors import Denied
from forebay.core.routing.spread import Touched, touched

LISTS = (ListQueues, Stats, CronList, FindJob)
"""Queries that say themselves which queues they are about."""


def is_plain(command: Command, patterns: Patterns) -> bool:
    """Return whether a command is about one queue and nothing else, and that matches: most are."""
    if isinstance(command, Pop) or (isinstance(command, Push) and not command.attributes.depends_on):
        return has_queue(patterns, command.queue)
    return False


def about(command: Command, patterns: Patterns, *, is_spread: bool) -> Touched:
    """Return what a command is about; raise if that is more than queues."""
    if isinstance(command, OfControl | Backup | Hold) or not command.tenant:
        raise Denied(only(patterns))
    if isinstance(command, FindJob) and command.queue is not None:
        return Touched(queues={command.queue})
    if isinstance(command, LISTS):
        if tuple(command.within) != tuple(patterns):
            raise Denied(only(patterns))
        return Touched()
    if isinstance(command, Children) and tuple(command.within) != tuple(patterns):
        raise Denied(only(patterns))
    found = touched(command, is_spread=is_spread)
    if found.has_values:
        raise Denied(f"{only(patterns)}, and this belongs to its whole tenant")
    return found


def check_values(command: Command) -> None:
    """Raise if a push writes values, should it not be delivered: who may only push may not."""
    if isinstance(command, PushJobs | PushFlow | Transact) and touched(command, is_spread=False).has_values:
        raise Denied("keys_if_undelivered needs the role write: it writes values")


def check(queues: Iterable[str], patterns: Patterns) -> None:
    """Raise unless all queues match."""
    for queue in queues:
        if not has_queue(patterns, queue):
            raise Denied(f"{only(patterns)}, and this is about {queue}")


def only(patterns: Patterns) -> str:
    return f"this principal is for the queues {', '.join(patterns)} only"
