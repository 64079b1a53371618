"""Forms of deliveries that are not the native one: those of other systems' webhooks."""

from collections.abc import Iterable
from typing import Protocol


class Form(Protocol):
    """How a door for another system has its webhooks delivered: one event of one message each."""

    def spread(self, event: bytes) -> Iterable[bytes]:
        """Return the deliveries that an event makes, each JSON; they are kept in this form."""
        ...

    async def body(self, tenant: str, delivery: bytes) -> bytes:
        """Return what is posted for a delivery to a tenant: with what is known of the message by now."""
        ...

    def headers(self, secret: str, body: bytes) -> dict[str, str]:
        """Return the headers besides those that every delivery has."""
        ...
