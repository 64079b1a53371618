"""What is known of jobs: their data, errors and results."""

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

from forebay.core.api.queries import GetNotes, NotesFound, Show, Shown, ShownAll
from forebay.core.log.slices import SegmentSlice
from forebay.core.words import RESULT
from forebay.server.node_client import NodeClient


class Details:
    """Looks jobs up. Those that are gone, or can't be read, are left out."""

    def __init__(self, questions: NodeClient, tenant: str) -> None:
        self._questions, self._tenant = questions, tenant

    async def shown(self, jobs: Sequence[int]) -> dict[int, Shown]:
        reply = await self._questions.ask(Show(self._tenant, list(jobs), dropped=True))
        return {each.state.id: each for each in reply.deliveries} if isinstance(reply, ShownAll) else {}

    async def results(self, jobs: Sequence[int]) -> dict[int, Raw]:
        asked = [self._questions.ask(GetNotes(self._tenant, job, (RESULT,))) for job in jobs]
        found: dict[int, Raw] = {}
        for job, answer in zip(jobs, asked, strict=True):
            reply = await answer
            if isinstance(reply, NotesFound) and reply.notes[0]:
                result = payload_of(reply.notes[0][-1])
                if result is not UNSET:
                    found[job] = result
        return found


def payload_of(found: SegmentSlice) -> Raw | UnsetType:
    if not found.segment.present:
        return UNSET
    (payload,) = found.payloads()
    return Raw(bytes(payload))
