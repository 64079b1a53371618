"""Base class, context and field types of all TCP commands."""

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.errors import Invalid
from forebay.core.keyvalue import keys
from forebay.server.flashq.replies import Id, RequestId
from forebay.server.tcp.codec import Services

WAIT_MS = 60_000
"""Default wait of PULL and PULLB, unless the server's limit is lower."""


STATES = {"dead": "failed", "parked": "waiting-children"}
"""flashQ's names of states, where they differ from Forebay's."""
OUR_STATES = {theirs: ours for ours, theirs in STATES.items()}


def our_state(given: str, accepted: Sequence[str]) -> str:
    """Return Forebay's name of a state; raise unless flashQ's name is among ``accepted``."""
    if given not in accepted:
        raise Invalid("state", f"one of {', '.join(accepted)}")
    return OUR_STATES.get(given, given)


KeyPart = str | int | float | bool
KeyIn = str | list[KeyPart]
"""Key of a value; a string is a key of one part."""


def packed(key: KeyIn) -> bytes:
    """Return a key in the core's encoding."""
    return keys.pack([key] if isinstance(key, str) else key)


class Context(Struct, frozen=True, gc=False):
    """Tenant and connection of a request."""

    tenant: str
    owner: int
    """Number of the connection."""
    wait_ms: int = WAIT_MS
    """Default wait of PULL and PULLB."""


class Request(Struct, tag_field="cmd", forbid_unknown_fields=True, gc=False, kw_only=True):
    """Base class of all commands."""

    is_command: ClassVar[bool] = True
    reqId: RequestId | UnsetType = UNSET

    def nested(self) -> tuple[int, int]:
        """Return the levels of nesting around its payloads and the length of the longest, 0 for none."""
        return 0, 0

    def command(self, context: Context) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, context: Context) -> Struct:
        raise NotImplementedError

    async def carry_out(self, services: Services, context: Context) -> Any:
        """Carry out a request that is more than one command of the core."""
        raise NotImplementedError

    def packed_command(self, context: Context) -> core.Command:
        """Return the command for a request that came as MessagePack."""
        return self.command(context)

    def packed_reply(self, reply: Any, context: Context) -> Struct | None:
        """Return the reply in a form of its own for MessagePack, or None to convert the JSON reply."""
        return None


def addresses(given: list[Id]) -> list[int]:
    """Parse the ids of a request. A list of valid integers is returned as it is, checked by loops in C."""
    if given and set(map(type, given)) == {int} and min(given) >= 0 and max(given) < 1 << 64:  # type: ignore[operator]
        return given  # type: ignore[return-value]
    return list(map(ids.parse, given))
