"""Flows, jobs that depend on each other: chains, and groups with a callback. Pushed whole or not at all."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, overload

from msgspec import Raw

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Call, Job, R, Step
from forebay.client.translate import options_of
from forebay.core.errors import Invalid
from forebay.core.words import IGNORE

JOBS_MAX = 1_000
"""Most jobs of one flow that the server takes."""


class Flow(Step[R], frozen=True):
    """A call that depends on others, which may be flows themselves."""

    last: Call[R]
    before: Sequence["Call[Any] | Flow[Any]"]
    results: str
    on_failed: str = "fail"

    def push(self) -> Job[R]:
        """Push the whole flow and return the job of its last call."""
        pushed = self.app.backend.push_flow(self.app, self._fields(), self.last.within)
        return Job(self.app, pushed, self.last.task)

    async def apush(self) -> Job[R]:
        """Like ``push``, for asyncio."""
        pushed = await self.app.backend.apush_flow(self.app, self._fields(), self.last.within)
        return Job(self.app, pushed, self.last.task)

    @property
    def app(self) -> App:
        return self.last.task.app

    def _fields(self) -> dict[str, Any]:
        if (count := self._count()) > JOBS_MAX:
            raise Invalid("calls", f"at most {JOBS_MAX} in one flow, the last one counted; these are {count}")
        fields = self.node()
        # Makes a retry after a lost connection idempotent.
        fields.setdefault("job_id", secrets.token_hex(16))
        return fields

    def _count(self) -> int:
        return 1 + sum(each._count() if isinstance(each, Flow) else 1 for each in self.before)

    def node(self, *, awaited: bool = False) -> dict[str, Any]:
        """Return the last call in the server's format, with its dependencies as children, in their order."""
        results = {"results": self.results, "members": len(self.before), "lacks": self.on_failed == IGNORE}
        return {
            **_node(self.last, awaited=awaited, **results),
            "on_failed": self.on_failed,
            "children": [
                each.node(awaited=True) if isinstance(each, Flow) else _node(each, awaited=True)
                for each in self.before
            ],
        }


def _node(call: Call[Any], **more: Any) -> dict[str, Any]:
    payload = Raw(call.payload(**more))
    return {"queue": call.task.queue, "payload": payload, **options_of(call.message())}


# The first one reads: any number of calls, and a last one, which gives the chain its type.
@overload
def chain(first: Step[Any], *calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Flow[R]: ...
@overload
def chain(first: Step[R]) -> Step[R]: ...
@overload
def chain(first: Step[Any], *calls: Call[Any]) -> Step[Any]: ...
def chain(first: Step[Any], *calls: Call[Any]) -> Step[Any]:  # type: ignore[misc]
    """Run calls one after the other; each but the first gets the result of the one before as first argument.

    Make those with ``task.then(…)``. If one fails for good, those behind it fail, too. The result is that of
    the last one.
    """
    (made,) = _checked([first])
    for call in calls:
        _check_last(call)
        made = Flow(call, [made], "one")
    return made


def group(calls: Iterable[Step[Any]], then: Call[R], *, on_failed: str = "fail") -> Flow[R]:
    """Run calls in parallel, then ``then`` with the list of their results: its result is that of the group.

    Make ``then`` with ``task.then(…)``. With ``on_failed="ignore"`` it runs even if some of them failed, with
    None as their results.
    """
    members = _checked(calls)
    if not members:
        raise Invalid("calls", "one or more")
    _check_last(then)
    return Flow(then, members, "all", on_failed)


def _checked(calls: Iterable[Any]) -> list[Call[Any] | Flow[Any]]:
    """Return calls and flows; raise unless they need no results of others."""
    found = list(calls)
    for each in found:
        if not isinstance(each, Call | Flow):
            raise Invalid("calls", f"made with task.call(…); this is a {type(each).__name__}")
        if isinstance(each, Call) and each.takes_result:
            raise Invalid("calls", f"made with {each.task.name}.call(…): nothing comes before this one")
    return found


def _check_last(call: Any) -> None:
    """Raise unless this is a call that takes the result of others."""
    if not isinstance(call, Call) or not call.takes_result:
        name = call.task.name if isinstance(call, Call) else "task"
        why = "the result of what comes before is its first argument"
        raise Invalid("calls", f"made with {name}.then(…): {why}")
