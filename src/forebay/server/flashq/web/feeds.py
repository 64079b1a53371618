"""The feeds of events, one for each tenant that anybody listens to."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from forebay.server.events.hub import Hub, Listener
from forebay.server.flashq.door import Door
from forebay.server.flashq.web.feed import Feed, Interest
from forebay.server.node_client import NodeClient


class Feeds:
    """Makes events of jobs for all who listen at this door."""

    def __init__(
        self, hub: Hub, questions: NodeClient, loop: AbstractEventLoop, clock: Callable[[], int]
    ) -> None:
        self._hub, self._questions, self._loop, self._clock = hub, questions, loop, clock
        self._feeds: dict[str, Feed] = {}
        """By tenant; each has listeners."""

    def join(self, tenant: str, interest: Interest) -> Listener:
        """Subscribe to a tenant: everything that happens from now on is told."""
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = Feed(self._hub, self._questions, self._loop, self._clock, tenant)
            self._feeds[tenant] = feed
        return feed.join(interest)

    def leave(self, tenant: str, listener: Listener) -> None:
        feed = self._feeds.get(tenant)
        if feed is not None and not feed.leave(listener):
            del self._feeds[tenant]

    def notice(self, tenant: str, request: Any, reply: object) -> None:
        """Make an event of a request that took a note of a job."""
        feed = self._feeds.get(tenant)
        if feed is not None:
            feed.notice(request, reply)

    def end(self) -> None:
        """End all subscriptions: the server shuts down."""
        for feed in self._feeds.values():
            feed.end()


class Noticing:
    """A codec that tells the feeds of the notes taken over TCP."""

    def __init__(self, door: Door, feeds: Feeds) -> None:
        self._door, self._feeds = door, feeds
        self.context, self.opened, self.ended = door.context, door.opened, door.ended
        self.suspend = door.suspend
        self.anonymous, self.identify, self.allowed = door.anonymous, door.identify, door.allowed
        self.decode, self.decode_packed, self.is_packed = door.decode, door.decode_packed, door.is_packed
        self.glimpse, self.encode_error = door.glimpse, door.encode_error

    def encode(self, request: Any, reply: Any, context: Any, *, packed: bool = False) -> bytes:
        self._feeds.notice(context.tenant, request, reply)
        return self._door.encode(request, reply, context, packed=packed)
