"""Whoever sends commands: one TCP connection, or one HTTP request."""

from hmac import compare_digest

from forebay.broker.node import Node
from forebay.core.api.commands import Command
from forebay.core.api.principals import OWNER, Principal, has_queue
from forebay.core.bounds import Limits
from forebay.core.errors import Denied
from forebay.core.words import DEFAULT
from forebay.server.flashq.rates import Completions
from forebay.server.flashq.subscription import Subscriptions
from forebay.server.workers import Workers

WAIT_MS = 60_000
"""Wait of a PULL without a timeout, unless the server's limit is lower."""
OF_TOKENS = Principal(DEFAULT, OWNER, "flashq_tokens")
"""Who shows one of the door's own tokens."""


class Tokens:
    """Tokens of which a client must have one; none takes any client."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        self._tokens = [each.encode() for each in tokens]

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def has(self, token: str) -> bool:
        """Compare with every token, in a time that tells nothing about them."""
        given = token.encode(errors="surrogatepass")
        return bool(sum([compare_digest(each, given) for each in self._tokens]))


class Caller:
    """One client: who it is, what it may, and what it listens to."""

    def __init__(
        self,
        owner: int,
        limits: Limits,
        principal: Principal | None,
        may: frozenset[type],
        workers: Workers,
        completions: Completions,
    ) -> None:
        self.principal = principal
        """None as long as it has shown no token where one is asked for."""
        self.tenant = DEFAULT if principal is None else principal.tenant
        self.queues = () if principal is None else principal.queues
        self.may = may
        """Classes of commands that need no further look."""
        self.owner = owner
        """Number of the connection."""
        self.limits = limits
        self.workers = workers
        self.completions = completions
        self.subscriptions = Subscriptions()
        self.is_narrow = bool(self.queues)
        self.is_suspended = False

    def check_command(self, node: Node, command: Command) -> None:
        """Raise if a command is about more than its queues."""
        if self.queues:
            node.engine.check_queues(command, self.queues)

    def check_whole(self) -> None:
        """Raise if it is for some queues only: what it asks for is about all of them."""
        if self.queues:
            raise Denied(f"This token is for the queues {', '.join(self.queues)} only")

    def subscribe(self, queue: str, events: list[str], *, packed: bool) -> None:
        """Have the events of a queue sent."""
        if not has_queue(self.queues, queue):
            self.check_whole()
        self.subscriptions.add(self.tenant, queue, events, packed=packed)

    def wait_ms(self, given: int | None, default: int = WAIT_MS) -> int:
        """Return how long a command may wait: no longer than the server lets it."""
        return min(default if given is None else given, self.limits.wait_ms_max)
