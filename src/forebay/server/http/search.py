"""Browse messages by a filter, page by page."""

from msgspec import Struct
from starlette.types import Receive, Scope

from forebay.core.api.commands import Command, Reply
from forebay.core.api.queries import Shown, ShownAll, Spot
from forebay.core.bounds import SHOWN_MAX, check_range
from forebay.core.errors import ForebayError
from forebay.server.cursors import cursor_of, holds, parse_cursor
from forebay.server.http.endpoint import Endpoint
from forebay.server.http.operation import Asked
from forebay.server.http.operations import messages
from forebay.server.http.operations.messages import Browsed, seen

STEPS_MAX = 100
"""Pages that one search, or one bulk action, scans before it returns a cursor."""


class BrowseEndpoint(Endpoint):
    """Browses messages, and searches payloads: the core finds candidates, page by page."""

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        assert isinstance(request, messages.Browse)
        asked = Asked(path=scope["path_params"])
        check_range("limit", request.limit, 1, SHOWN_MAX)
        after = parse_cursor(request.cursor)
        text = None if request.text is None else request.text.encode()
        found = Browsed(messages=[], total=0, cursor=None)
        for step in range(STEPS_MAX):
            wanted = request.limit - len(found.messages)
            count = wanted if text is None else SHOWN_MAX
            reply = await self._page(request, asked, count, after, counted=not step)
            found.total, after = found.total + reply.total, reply.next
            for each in reply.deliveries:
                if text is None or holds(each, text):
                    if len(found.messages) == request.limit:
                        after = spot_of(each)
                        break
                    found.messages.append(seen(each))
            is_enough = len(found.messages) >= request.limit or (text is None and found.messages)
            if after is None or is_enough:
                break
        found.cursor = cursor_of(after)
        return found

    async def _page(
        self, request: messages.Filter, asked: Asked, count: int, after: Spot | None, *, counted: bool
    ) -> ShownAll:
        reply = await self._ask(request.browse(asked, count, after, counted))
        assert isinstance(reply, ShownAll)
        return reply

    async def _ask(self, command: Command) -> Reply:
        reply = await self._questions.ask(command)
        if isinstance(reply, ForebayError):
            raise reply
        return reply


def spot_of(found: Shown) -> Spot:
    """Return the position at which a browse resumes with this message."""
    return found.queue.partitions[found.partition].key, found.offset
