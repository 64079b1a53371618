"""Lines about requests: which get one, at which level, and what it says.

    debug      every request
    info       administrative acts; mistakes of a client (one a second in full, the others counted)
    warning    slow requests; failures of the server (one a second in full, the others counted)

A line names a request, and never what is in messages: no payloads, keys, headers, tokens or secrets.
"""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from forebay.core.api.commands import Popped
from forebay.core.errors import ForebayError, Invalid
from forebay.wire.table import OPERATIONS

logger = logging.getLogger("forebay.access")

SLOW_MS = 1_000
"""A request that takes longer, without the time it waits on purpose, is slow."""
WINDOW_S = 1.0
"""Of lines that a client can cause at will, one of a kind is written in this time, and the others counted."""
TEXT_MAX = 200
"""Most characters of a name that a client gives."""
UNREAD = "-"
"""Command of a request that could not be read."""
DONE = "ok"
"""Outcome of a request that was carried out; others are error codes."""

MISTAKES = {"invalid": logging.INFO, "denied": logging.INFO, "unsupported": logging.INFO}
"""Outcomes that are the client's doing, and the level of their lines."""
ORDINARY = ("not_found", "conflict", "error")
"""Outcomes that come in any healthy system, as with a late ack: seen at debug only."""

ACTS = {each.name for each in OPERATIONS if each.is_act} | {
    "OBLITERATE",
    "CLEAN",
    "RETRYDLQ",
    "PURGEDLQ",
    "CRON",
    "RATELIMIT",
    "RATELIMITCLEAR",
    "SETCONCURRENCY",
    "CLEARCONCURRENCY",
}
"""Administrative acts, by name; the second set is flashQ's."""

WHAT = (
    "group",
    "name",
    "directory",
    "held",
    "force",
    "until",
    "to",
    "states",
    "options",
    "action",
    "task",
    "error_type",
    "tag",
)
"""Fields of an act that its line shows."""


class Asked(Struct):
    """A request that was answered, as its line shows it."""

    command: str
    carrier: str
    tenant: str
    request: Any = None
    """None if it could not be read."""
    reply: Any = None
    outcome: str = DONE
    ms: float = 0.0
    id: object = UNSET
    """The id that the client gave, or that it was given."""
    peer: object = None
    path: str | None = None
    """Method and path of a request over HTTP that is no command, such as one of what is not there."""
    given: Mapping[str, Any] = {}
    """Fields that are not in the request, such as those of a path."""


class Acts(dict[type, bool]):
    """Whether requests of a class are administrative acts; found out once for each class."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = command_of(kind) in ACTS
        return found


def command_of(kind: type) -> str:
    """Return the name of the command that requests of a class are."""
    config = getattr(kind, "__struct_config__", None)
    tag = config.tag if config is not None else None
    return tag if isinstance(tag, str) else kind.__name__


Kind = tuple[str, str, str]
"""What a line says, the command and the outcome: one client's mistakes hide none with other commands."""


class AccessLog:
    """Writes lines about requests. Listeners call ``tell`` for those that may deserve one."""

    def __init__(self, loop: AbstractEventLoop, slow_ms: int = SLOW_MS) -> None:
        self._loop = loop
        self._slow_ms = slow_ms
        self._tells_all = logger.isEnabledFor(logging.DEBUG)
        self.over_s = 0.0 if self._tells_all else slow_ms / 1000
        """Listeners tell of requests that took at least this long, of acts, and of errors."""
        self.is_act = Acts()
        self._untold: dict[Kind, int] = {}
        """Lines of each kind that were not written in the current window."""

    def tell(self, asked: Asked) -> None:
        """Write the line of a request, if it deserves one."""
        is_slow = asked.ms - _waited_ms(asked) >= self._slow_ms
        if asked.outcome in MISTAKES:
            self._throttled(MISTAKES[asked.outcome], "refused", asked)
        elif asked.outcome != DONE and asked.outcome not in ORDINARY:
            self._throttled(logging.WARNING, "failed", asked)
        elif asked.outcome == DONE and asked.command in ACTS and not _only_looks(asked):
            _write(logging.INFO, "act", asked, _what(asked))
        elif is_slow:
            self._throttled(logging.WARNING, "slow", asked)
        else:
            _write(logging.DEBUG, "request", asked)

    def _throttled(self, level: int, what: str, asked: Asked) -> None:
        if self._tells_all:
            _write(level, what, asked)
            return
        kind = (what, asked.command, asked.outcome)
        if kind in self._untold:
            self._untold[kind] += 1
            return
        self._untold[kind] = 0
        self._loop.call_later(WINDOW_S, self._end_window, level, kind)
        _write(level, what, asked)

    def _end_window(self, level: int, kind: Kind) -> None:
        more = self._untold.pop(kind)
        if more:
            what, command, outcome = kind
            fields = {"command": command, "more": more, "outcome": outcome}
            logger.log(level, "%s, more of the kind", what, extra={"fields": fields})


def outcome_of(reply: object) -> str:
    return reply.code if isinstance(reply, ForebayError) else DONE


def code_in(body: bytes) -> str:
    """Return the code in an answer that is an error; those of other systems have none."""
    try:
        return msgspec.json.decode(body, type=_Failed).error.code
    except msgspec.DecodeError:
        return "error"


class _Code(Struct):
    code: str


class _Failed(Struct):
    error: _Code


def _write(level: int, what: str, asked: Asked, more: Mapping[str, object] | None = None) -> None:
    """Write a line. This alone decides what one looks like."""
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, object] = {"command": asked.command}
    if asked.path is not None:
        fields["path"] = _short(asked.path)
    queue = _named(asked, "queue")
    if queue is not None:
        fields["queue"] = _short(queue)
    fields |= more or {}
    count = _count(asked)
    if count is not None:
        fields["count"] = count
    fields |= {"ms": round(asked.ms, 1), "outcome": asked.outcome, "by": asked.carrier}
    if isinstance(asked.reply, Invalid):
        fields["field"] = _short(asked.reply.field)
    fields["tenant"] = asked.tenant
    if asked.peer:
        fields["peer"] = _peer(asked.peer)
    if asked.id is not UNSET and asked.id is not None:
        fields["id"] = _short(asked.id)
    logger.log(level, what, extra={"fields": fields})


def _named(asked: Asked, name: str) -> object:
    found = getattr(asked.request, name, None)
    found = asked.given.get(name) if found is None or found is UNSET else found
    return None if found is UNSET else found


def _what(asked: Asked) -> dict[str, object]:
    """Return what an act is about, without what it does not say."""
    found = {name: _named(asked, name) for name in WHAT}
    return {name: _short(value) for name, value in found.items() if value is not None and value is not False}


def _only_looks(asked: Asked) -> bool:
    """Return whether a request of an act changed nothing: a dry run, or QUEUE without options."""
    if _named(asked, "dry_run"):
        return True
    return asked.command == "QUEUE" and not _named(asked, "options")


def _short(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _peer(peer: object) -> str:
    """
    >>> _peer(("127.0.0.1", 5000)), _peer(("::1", 5000, 0, 0))
    ('127.0.0.1:5000', '[::1]:5000')
    """
    if not isinstance(peer, tuple | list) or len(peer) < 2:
        return str(peer)
    host = f"[{peer[0]}]" if ":" in str(peer[0]) else peer[0]
    return f"{host}:{peer[1]}"


def _waited_ms(asked: Asked) -> float:
    """Return how long a request may have waited on purpose."""
    wait_ms = getattr(asked.request, "wait_ms", None)
    if wait_ms is None and (isinstance(asked.reply, Popped) or asked.command == "WAITJOB"):
        return asked.ms  # of a door whose pops always wait
    return wait_ms if isinstance(wait_ms, int) else 0


def _count(asked: Asked) -> int | None:
    """Return how many messages a request was about, if that is known."""
    if isinstance(asked.reply, Popped):
        return sum(each.count for each in asked.reply.deliveries)
    for each in (asked.reply, asked.request):
        for name in ("count", "ids", "messages", "items"):
            found = getattr(each, name, None)
            if isinstance(found, int) and not isinstance(found, bool):
                return found
            if isinstance(found, list | tuple):
                return len(found)
    return None
