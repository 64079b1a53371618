"""Flows, jobs that depend on each other: chains, and groups with a callback. Pushed whole or not at all."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw, Struct

from forebay.client.tasks.app import App
from forebay.client.tasks.task import Call, Job
from forebay.client.translate import options_of
from forebay.core.errors import Invalid

JOBS_MAX = 1_000
"""Most jobs of one flow that the server takes."""


class Flow(Struct, frozen=True):
    """A call that depends on others, which may be flows themselves."""

    last: Call
    before: Sequence["Call | Flow"]
    results: str
    on_failed: str = "fail"

    def push(self) -> Job:
        """Push the whole flow and return the job of its last call."""
        return Job(self.app, self.app.backend.push_flow(self.app, self._fields(), self.last.within))

    async def apush(self) -> Job:
        """Like ``push``, for asyncio."""
        return Job(self.app, await self.app.backend.apush_flow(self.app, self._fields(), self.last.within))

    @property
    def app(self) -> App:
        return self.last.task.app

    def _fields(self) -> dict[str, Any]:
        if (count := self._count()) > JOBS_MAX:
            raise Invalid("calls", f"at most {JOBS_MAX} in one flow, the last one counted; these are {count}")
        fields = self.node(0)
        # Makes a retry after a lost connection idempotent.
        fields.setdefault("job_id", secrets.token_hex(16))
        return fields

    def _count(self) -> int:
        return 1 + sum(each._count() if isinstance(each, Flow) else 1 for each in self.before)

    def node(self, place: int) -> dict[str, Any]:
        """Return the last call in the server's format, with its dependencies as children."""
        return {
            **_node(self.last, place, self.results),
            "on_failed": self.on_failed,
            "children": [
                each.node(at) if isinstance(each, Flow) else _node(each, at)
                for at, each in enumerate(self.before)
            ],
        }


def _node(call: Call, place: int, results: str = "") -> dict[str, Any]:
    payload = Raw(call.payload(results=results, place=place))
    return {"queue": call.task.queue, "payload": payload, **options_of(call.message())}


def chain(first: Call | Flow, *calls: Call) -> Call | Flow:
    """Run calls one after the other; each but the first gets the result of the one before as first argument.

    Make those with ``task.then(…)``. If one fails for good, those behind it fail, too.
    """
    _check([first])
    made: Call | Flow = first
    for call in calls:
        _check_last(call)
        made = Flow(call, [made], "one")
    return made


def group(calls: Iterable[Call | Flow], then: Call, *, on_failed: str = "fail") -> Flow:
    """Run calls in parallel, then ``then`` with the list of their results.

    Make ``then`` with ``task.then(…)``. With ``on_failed="ignore"`` it runs even if some of them failed, with
    None as their results.
    """
    members = list(calls)
    if not members:
        raise Invalid("calls", "one or more")
    _check(members)
    _check_last(then)
    return Flow(then, members, "all", on_failed)


def _check(calls: Sequence[Any]) -> None:
    """Raise unless these are calls that need no results of others."""
    for each in calls:
        if not isinstance(each, Call | Flow):
            raise Invalid("calls", f"made with task.call(…); this is a {type(each).__name__}")
        if isinstance(each, Call) and each.takes_result:
            raise Invalid("calls", f"made with {each.task.name}.call(…): nothing comes before this one")


def _check_last(call: Any) -> None:
    """Raise unless this is a call that takes the result of others."""
    if not isinstance(call, Call) or not call.takes_result:
        name = call.task.name if isinstance(call, Call) else "task"
        why = "the result of what comes before is its first argument"
        raise Invalid("calls", f"made with {name}.then(…): {why}")
