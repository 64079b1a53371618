"""What carriers ask of every request: its command, its answer, and how deep its payloads are wrapped."""

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from forebay.broker.node import Node
from forebay.core import ids
from forebay.core.api import commands as core
from forebay.core.api.principals import ANYONE, WRITE, Principal, check_tenant, has_queue
from forebay.core.errors import Denied, ForebayError, Invalid
from forebay.core.keyvalue import keys
from forebay.core.words import DEFAULT
from forebay.server.tcp.codec import Services
from forebay.wire.operation import Answer
from forebay.wire.table import BY_NAME
from forebay.wire.types import Id, Key, RequestId


class Context(Struct, frozen=True, gc=False):
    """The principal of a request, its tenant and its connection."""

    tenant: str = DEFAULT
    owner: int = 0
    """The connection that leases belong to; 0 for none."""
    principal: Principal | None = ANYONE
    """None until the client has authenticated, if that is required."""
    queues: tuple[str, ...] = ()
    """Patterns of the queues that the principal is for; all if empty."""
    may: frozenset[type] = frozenset()
    """Classes of requests that need no further look: the role of the principal is enough for all of these."""
    is_narrow: bool = False
    """Whether each command has to be looked at: the principal is for some queues, or may only push."""
    is_suspended: bool = False
    """Whether the tenant of the principal is suspended."""

    def check_command(self, node: Node, command: core.Command) -> None:
        """Raise if a command is about more than the principal may."""
        if self.queues:
            node.engine.check_queues(command, self.queues)
        if self.principal is not None and not self.principal.may((WRITE,)):
            node.engine.check_values(command)

    def check_whole(self) -> None:
        """Raise if the principal is for some queues only: the request is about more than queues."""
        if self.queues:
            only = f"this principal is for the queues {', '.join(self.queues)} only"
            raise Denied(f"{only}, and this belongs to its whole tenant")

    def check_queue(self, queue: str) -> None:
        """Raise if the principal is for other queues than this one."""
        if not has_queue(self.queues, queue):
            raise Denied(f"this principal is for the queues {', '.join(self.queues)} only")


def check_role(principal: Principal, needs: tuple[str, ...], name: str) -> None:
    """Raise unless a principal has one of the roles that something needs."""
    if not principal.may(needs):
        raise Denied(f"{name} needs the role {' or '.join(needs)}, and this principal has {principal.role}")


def for_tenant(context: Context, tenant: str) -> Context:
    """Return the context of a request that names a tenant; raise if its principal may not."""
    if tenant == context.tenant:
        return context
    principal = context.principal
    if principal is None or not principal.is_admin:
        raise Denied("only an admin may name another tenant")
    check_tenant(tenant)
    return replace(context, tenant=tenant)


class Carried:
    """A request that carriers can carry out. Mixed into the class that declares its fields."""

    __slots__ = ()
    is_command: ClassVar[bool] = True
    """Whether it is one command of the core."""
    is_auth: ClassVar[bool] = False
    """Whether it shows the token of its connection."""
    reqId: RequestId | UnsetType
    tenant: str | UnsetType

    def check_allowed(self, principal: Principal) -> None:
        """Raise unless a principal may ask for this."""
        operation = BY_NAME[str(type(self).__struct_config__.tag)]  # type: ignore[attr-defined]
        check_role(principal, operation.roles, operation.name)

    def nested(self) -> tuple[int, int]:
        """Return the levels of nesting around its payloads and the length of the longest, 0 for none."""
        return 0, 0

    def command(self, context: Context) -> core.Command:
        raise NotImplementedError

    def reply(self, reply: Any, context: Context) -> Answer:
        raise NotImplementedError

    async def carry_out(self, services: Services, context: Context) -> Any:
        """Carry out a request that is more than one command; ``reply`` gets what it returns."""
        raise NotImplementedError

    def packed_command(self, context: Context) -> core.Command:
        """Return the command for a request that came as MessagePack."""
        return self.command(context)

    def packed_reply(self, reply: Any, context: Context) -> Answer | None:
        """Return the answer in a form of its own for MessagePack, or None to convert the JSON answer."""
        return None


async def ask(services: Services, context: Context, command: core.Command) -> Any:
    """Return the reply of the core; raise if it is an error."""
    if context.is_narrow:
        context.check_command(services.questions.node, command)
    reply = await services.questions.ask(command)
    if isinstance(reply, ForebayError):
        raise reply
    return reply


def shown(message: int) -> Id:
    """Return an id for an answer: as a string if it is too large for JavaScript's numbers."""
    return message if message < ids.JSON_SAFE else str(message)


def shown_all(messages: Sequence[int]) -> Sequence[Id]:
    return messages if not messages or max(messages) < ids.JSON_SAFE else list(map(str, messages))


def addresses(given: Sequence[Id]) -> list[int]:
    """Parse the ids of a request. A list of valid integers is returned as it is, checked by loops in C."""
    if len(given) == 1 and type(given[0]) is int and 0 <= given[0] < 1 << 64:
        return given  # type: ignore[return-value]
    if given and set(map(type, given)) == {int} and min(given) >= 0 and max(given) < 1 << 64:  # type: ignore[operator]
        return given  # type: ignore[return-value]
    try:
        return list(map(ids.parse, given))
    except Invalid as error:
        raise Invalid("ids", f"a list of ids, and one of them {error.accepted}") from None


def packed(key: Key) -> bytes:
    """Return a key in the core's encoding."""
    return keys.pack([key] if isinstance(key, str) else key)


def longest(payloads: Sequence[Raw]) -> int:
    return max(map(len, payloads), default=0)


def given_or_unset(value: Any) -> Any:
    """Return UNSET for None: an answer leaves out what is not known."""
    return UNSET if value is None else value
