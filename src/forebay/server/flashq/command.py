"""What every command of flashQ's door is made of.

flashQ decodes leniently: a field it does not know is ignored, and null is the same as a field that is not
given. A value of a wrong type is an error, and changes nothing.
"""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.core import ids
from forebay.core.api.commands import Command as CoreCommand, Reply
from forebay.core.errors import Conflict, ForebayError, NotFound
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.errors import Refused, job_not_found
from forebay.server.tcp.codec import Services
from forebay.wire.types import Id, RequestId

Whole = Annotated[int, Meta(ge=0)]
"""An unsigned number."""

STATES = {
    "waiting": "waiting",
    "delayed": "delayed",
    "active": "active",
    "completed": "completed",
    "dead": "failed",
    "parked": "waiting-children",
}
"""flashQ's names of states. It does not know the others: such a job is gone."""
UNKNOWN = "unknown"
COMPLETED_MAX = 50_000
"""Completed jobs that a queue made by this door keeps, as flashQ does: beyond it, the older half goes."""
OUR_STATES = {theirs: ours for ours, theirs in STATES.items()} | {"waiting-parent": "parked"}


class Command:
    """One command: to the core, and its answer back."""

    __slots__ = ()
    is_command: ClassVar[bool] = True
    is_auth: ClassVar[bool] = False
    """Whether it shows the token of its connection."""
    tenant: ClassVar[UnsetType] = UNSET
    """flashQ knows no tenants: each command is about that of its token."""
    reqId: RequestId | UnsetType

    def nested(self) -> tuple[int, int]:
        """Return the levels of nesting around its payloads and the length of the longest, 0 for none."""
        return 0, 0

    def command(self, caller: Caller) -> CoreCommand:
        """Return the command of the core; raise ``Ready`` if none is needed."""
        return self.asked(caller)

    def packed_command(self, caller: Caller) -> CoreCommand:
        return self.command(caller)

    async def carry_out(self, services: Services, caller: Caller) -> Any:
        """Carry out a command that takes several of the core."""
        return await self.steps(services, caller)

    def asked(self, caller: Caller) -> CoreCommand:
        raise NotImplementedError

    async def steps(self, services: Services, caller: Caller) -> Any:
        raise NotImplementedError

    def reply(self, reply: Any, caller: Caller) -> Struct:
        raise NotImplementedError

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        """Return what is answered in place of an error: flashQ has no error where we have one."""
        return error


class Asked(Command, Struct, tag_field="cmd", gc=False, kw_only=True):
    """Base class of commands."""

    reqId: RequestId | UnsetType | None = UNSET  # type: ignore[assignment]


class AboutJob(Asked, gc=False, kw_only=True):
    """Commands about one job."""

    id: Id

    @property
    def number(self) -> int:
        return parse_id(self.id)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        """Return flashQ's error: a job in another state than a command needs is not found, either."""
        return job_not_found(self.id) if isinstance(error, NotFound | Conflict) else error


async def ask(services: Services, caller: Caller, command: CoreCommand) -> Reply:
    """Return the reply of the core, or raise its error."""
    if caller.is_narrow:
        caller.check_command(services.questions.node, command)
    reply = await services.questions.ask(command)
    if isinstance(reply, ForebayError):
        raise reply
    return reply


def parse_id(given: Id) -> int:
    """Return an id as a number. Ids from 2**53 on are shown as strings, so these are taken, too."""
    if isinstance(given, str):
        if not (given.isascii() and given.isdigit() and len(given) <= 20):
            raise Refused("id", "Invalid id")
        given = int(given)
    if not 0 <= given < 1 << 64:
        raise Refused("id", "Invalid id")
    return given


def parse_ids(given: list[Id]) -> list[int]:
    return list(map(parse_id, given))


def shown(message: int) -> Id:
    """Return an id for a reply: as a string if it is too large for JavaScript's numbers."""
    return message if message < ids.JSON_SAFE else str(message)
