"""Bulk actions on all messages that match a filter."""

from msgspec import Struct
from starlette.types import Receive, Scope

from forebay.core.api.commands import Buried, Cancel, Command, GroupPut, Settled
from forebay.core.api.queries import Shown
from forebay.core.bounds import SHOWN_MAX, check_range
from forebay.core.errors import Busy, Conflict, NotFound
from forebay.server.cursors import cursor_of, holds, parse_cursor
from forebay.server.http.operation import Asked
from forebay.server.http.operations import messages
from forebay.server.http.operations.messages import Acted
from forebay.server.http.search import STEPS_MAX, BrowseEndpoint, spot_of


class BulkEndpoint(BrowseEndpoint):
    """Acts on all messages that match a filter: page by page, each page in one commit."""

    async def _answer(self, scope: Scope, receive: Receive) -> Struct:
        request = await self._request(scope, receive)
        assert isinstance(request, messages.Bulk)
        request.check()
        asked = Asked(path=scope["path_params"])
        if len(states := messages.ACTIONS[request.action]) == 1:
            (request.state,) = states
        check_range("limit", request.limit, 1, self._questions.node.limits.batch_max)
        after = parse_cursor(request.cursor)
        text = None if request.text is None else request.text.encode()
        done = Acted(matched=0, count=0, dry_run=request.dry_run, cursor=None)
        for step in range(STEPS_MAX):
            left = request.limit - done.matched
            most = min(SHOWN_MAX, left) if text is None else SHOWN_MAX
            reply = await self._page(request, asked, most, after, counted=False)
            meant = [
                each
                for each in reply.deliveries
                if request.reaches(each) and (text is None or holds(each, text))
            ]
            try:
                if request.action == "cancel" and not (request.dry_run or step):
                    # Create the group first: in a group that does not exist yet, nothing can be cancelled.
                    await self._ask(GroupPut(asked.tenant, asked.queue, request.group))
                done.count += await self._act(request, asked, meant[:left])
            except Busy:
                if not done.count:
                    raise
                break  # the cursor continues with the rest
            done.matched += len(meant[:left])
            after = spot_of(meant[left]) if len(meant) > left else reply.next
            if after is None or done.matched >= request.limit:
                break
        done.cursor = cursor_of(after)
        return done

    async def _act(self, request: messages.Bulk, asked: Asked, meant: list[Shown]) -> int:
        if request.dry_run or not meant:
            return 0
        if request.action != "cancel":
            return await self._do(request.act(asked.tenant, asked.queue, [each.state.id for each in meant]))
        parked = [each.state.id for each in meant if each.state.state == "parked"]  # in every group
        others = [each.state.id for each in meant if each.state.state != "parked"]
        count = await self._do(Cancel(asked.tenant, parked)) if parked else 0
        return count + (await self._do(request.act(asked.tenant, asked.queue, others)) if others else 0)

    async def _do(self, command: Command) -> int:
        """Carry out a command; return how many messages it changed."""
        try:
            reply = await self._ask(command)
        except (Conflict, NotFound):
            return 0  # another client was faster
        assert isinstance(reply, Settled | Buried)
        return reply.count
