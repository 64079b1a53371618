"""Whoever sends commands: one TCP connection, or one HTTP request."""

from hmac import compare_digest

from forebay.core.bounds import Limits
from forebay.core.errors import Denied
from forebay.core.words import DEFAULT
from forebay.server.flashq.errors import INVALID_TOKEN, not_authenticated
from forebay.server.flashq.rates import Completions
from forebay.server.flashq.subscription import Subscriptions
from forebay.server.workers import Workers

WAIT_MS = 60_000
"""Wait of a PULL without a timeout, unless the server's limit is lower."""


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
        self, owner: int, limits: Limits, tokens: Tokens, workers: Workers, completions: Completions
    ) -> None:
        self.tenant = DEFAULT
        self.owner = owner
        """Number of the connection."""
        self.limits = limits
        self.tokens = tokens
        self.workers = workers
        self.completions = completions
        self.is_known = not tokens
        """Whether it has shown its token, or needs none."""
        self.subscriptions = Subscriptions()

    def check(self) -> None:
        """Raise unless it may send commands."""
        if not self.is_known:
            raise not_authenticated()

    def show(self, token: str) -> None:
        """Take a token; raise if it is none. Where none is needed, any is good, as it is in flashQ."""
        if self.tokens and not self.tokens.has(token):
            raise Denied(INVALID_TOKEN)
        self.is_known = True

    def wait_ms(self, given: int | None, default: int = WAIT_MS) -> int:
        """Return how long a command may wait: no longer than the server lets it."""
        return min(default if given is None else given, self.limits.wait_ms_max)
