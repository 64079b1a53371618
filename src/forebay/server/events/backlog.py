"""The backlog of events: read from the event logs up to the position where a live subscription begins."""

from collections.abc import AsyncIterator

import msgspec

from forebay.core.api.queries import LogSlice, Read
from forebay.core.errors import Damaged, ForebayError
from forebay.core.words import EVENTS, system_of
from forebay.server.events.hub import Batch, Hub, Positions, Wanted, matching, shown_positions
from forebay.server.node_client import NodeClient

encode = msgspec.json.Encoder().encode


class Lost(msgspec.Struct, gc=False, kw_only=True, rename={"start": "from", "end": "to"}):
    """Sent in place of events of a shard, from offset ``from`` up to ``to``, that are no longer kept."""

    kind: str = "lost"
    shard: int
    start: int
    end: int


class Backlog:
    """Reads events that a subscriber missed."""

    def __init__(self, hub: Hub, questions: NodeClient) -> None:
        self.hub = hub
        self.questions = questions

    async def check_kept(self, positions: Positions) -> None:
        """Raise unless events up to these positions are stored: an id must not be ahead of a restart."""
        for shard, end in positions.items():
            reply = await self.questions.ask(Read(system_of(shard), EVENTS, end))
            if isinstance(reply, ForebayError):
                raise reply
            break  # one shard is enough: the node commits the changes of all its shards together

    async def missed(self, wanted: Wanted, begin: Positions, end: Positions) -> AsyncIterator[Batch]:
        """Yield matching events from ``begin`` to ``end``, shard by shard; the last batch is empty."""
        at = {shard: offset for shard, offset in begin.items() if shard in end}
        for shard, limit in end.items():
            offset = at.get(shard, 0)
            if offset > limit:  # the log was lost, or restored from an older backup
                lost = Lost(shard=shard, start=0, end=0)
                yield Batch([(lost.kind, encode(lost))], shown_positions(at | {shard: 0}))
                offset = 0
            while offset < limit:
                reply = await self.questions.ask(Read(system_of(shard), EVENTS, offset))
                if isinstance(reply, ForebayError) and not isinstance(reply, Damaged):
                    raise reply
                assert isinstance(reply, LogSlice | Damaged)
                runs = reply.runs if isinstance(reply, LogSlice) else []
                after = reply.next if isinstance(reply, LogSlice) else self.hub.past_damage(shard, offset)
                first = runs[0].offset if runs else min(max(after, offset + 1), limit)
                # A gap before the first run means that retention dropped events. A subscriber that starts
                # from the first kept event (``begin`` is empty) has missed none of them.
                if first > offset and (begin or isinstance(reply, Damaged)):
                    lost = Lost(shard=shard, start=offset, end=min(first, limit))
                    yield Batch([(lost.kind, encode(lost))], shown_positions(at | {shard: first}))
                payloads = [
                    payload
                    for run in runs
                    for place, payload in enumerate(run.payloads(), run.offset)
                    if place < limit
                ]
                offset = max(after, offset + 1)
                at[shard] = min(offset, limit)
                events = list(matching(payloads, wanted))
                if events:
                    yield Batch(events, shown_positions(at))
        yield Batch([], shown_positions(end))
