"""What every command of the wire has in common."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.core.keyvalue import keys
from forebay.server.flashq.replies import Id, RequestId

WAIT_MS = 60_000
"""How long PULL and PULLB wait when they do not say, if the server lets anyone wait that long."""


STATES = {"dead": "failed", "parked": "waiting-children"}
"""flashQ's words for states, where it has another; ours for the rest."""
OUR_STATES = {theirs: ours for ours, theirs in STATES.items()}


def our_state(given: str, accepted: Sequence[str]) -> str:
    """Our word for a state, of those that are accepted in the words of this wire."""
    if given not in accepted:
        raise Invalid("state", f"one of {', '.join(accepted)}")
    return OUR_STATES.get(given, given)


KeyPart = str | int | float | bool
KeyIn = str | list[KeyPart]
"""A key of a value: a text alone is a key of one part."""


def packed(key: KeyIn) -> bytes:
    """A key as the core knows it."""
    return keys.pack([key] if isinstance(key, str) else key)


class Context(Struct, frozen=True, gc=False):
    """Who asks."""

    tenant: str
    owner: int
    """Number of the connection."""
    wait_ms: int = WAIT_MS
    """How long PULL and PULLB wait when they do not say."""


class Request(Struct, tag_field="cmd", forbid_unknown_fields=True, gc=False, kw_only=True):
    """What all commands share."""

    reqId: RequestId | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        """Levels of nesting around its payloads, and the length of the longest; 0 if it has none."""
        return 0, 0

    def command(self, context: Context) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, context: Context) -> Struct:
        raise NotImplementedError

    def packed_command(self, context: Context) -> core.Command:
        """The command, if the request came as MessagePack."""
        return self.command(context)

    def packed_reply(self, reply: Any, context: Context) -> Struct | None:
        """The reply, if it has a form of its own in MessagePack; None if it has the one of JSON."""
        return None


def addresses(given: list[Id]) -> list[int]:
    """The ids of a request as numbers; all at once if they came as numbers."""
    if given and set(map(type, given)) == {int} and min(given) >= 0 and max(given) < 1 << 64:  # type: ignore[operator]
        return given  # type: ignore[return-value]
    return list(map(ids.parse, given))
