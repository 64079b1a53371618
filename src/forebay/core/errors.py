"""Every error a caller can get.

    ForebayError
    ├── Invalid        malformed, or breaks a limit; names the field and what would be accepted
    ├── Denied         no token, or one that may not do this
    ├── NotFound       no such queue, message, … (or another tenant's: it looks the same)
    ├── Conflict       what was asked for is not so: the lease is not live, the message is not leased
    ├── Busy           try again later: a commit failed, a limit is reached; carries retry_after_ms
    ├── Elsewhere      another node has the shard it is about; names the shard
    ├── Damaged        the store holds it, but what it holds is broken
    └── Unsupported    a command or option whose part does not exist in this server

``code`` is stable and goes over every wire; ``status`` is the hint for HTTP.
An error changes nothing: a command either applies whole or raises before its first change.
"""

from typing import ClassVar


class ForebayError(Exception):
    """An error for the caller, with a stable code. Our own bugs are assertions, never this."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = ""
        """Which item of the request it is about, if there are several."""

    @property
    def details(self) -> dict[str, str | int]:
        """Machine-readable details."""
        return {"field": self.place} if self.place else {}


class Invalid(ForebayError):
    """Malformed input: the field, and what would be accepted."""

    code = "invalid"
    status = 400

    def __init__(self, field: str, accepted: str) -> None:
        super().__init__(f"{field} must be {accepted}")
        self.field = field
        self.accepted = accepted

    @property
    def details(self) -> dict[str, str | int]:
        return {"field": self.field, "accepted": self.accepted}


class Denied(ForebayError):
    """The principal may not do this."""

    code = "denied"
    status = 403


class Suspended(Denied):
    """The tenant is suspended."""

    def __init__(self, tenant: str) -> None:
        super().__init__(f"tenant {tenant} is suspended; nothing of it is lost, and an admin can resume it")


class NotFound(ForebayError):
    """There is no such queue, message, lease, …, or it is another tenant's."""

    code = "not_found"
    status = 404


class Conflict(ForebayError):
    """It is not in the state that this needs: not leased any more, being deleted, of another version, …"""

    code = "conflict"
    status = 409


class Busy(ForebayError):
    """There is no room or time for it now: try again after ``retry_after_ms``."""

    code = "busy"
    status = 503

    def __init__(self, message: str, *, retry_after_ms: int = 1_000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms

    @property
    def details(self) -> dict[str, str | int]:
        return {**super().details, "retry_after_ms": self.retry_after_ms}


class Elsewhere(ForebayError):
    """The shard of a command is not here, or the command was routed by other control records."""

    code = "elsewhere"
    status = 421

    def __init__(self, shard: int, message: str = "") -> None:
        super().__init__(message or f"shard {shard} is served by another node; ask there")
        self.shard = shard

    @property
    def details(self) -> dict[str, str | int]:
        return {**super().details, "shard": self.shard}


class Damaged(ForebayError):
    """The data is stored, but can't be read back as it was written."""

    code = "damaged"
    status = 500


class Unsupported(ForebayError):
    """This server, or its store, can't do that."""

    code = "unsupported"
    status = 501


CODES: dict[str, type[ForebayError]] = {
    kind.code: kind for kind in (Invalid, Denied, NotFound, Conflict, Busy, Elsewhere, Damaged, Unsupported)
}
