"""Notes of a message: its result, progress and log."""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.errors import Damaged, Invalid
from forebay.core.words import DEFAULT, LINE, PART, RESULT
from forebay.server.flashq import replies
from forebay.server.flashq.replies import Id, shown
from forebay.server.flashq.request import STATES, Context, Request

AWAITED_MS = 30_000
"""Default wait of WAITJOB, unless the server's limit is lower."""
LEVEL_CHARS_MAX = 32

_encode = msgspec.json.Encoder().encode


class Line(Struct, gc=False):
    """A log line as it is stored."""

    level: str
    message: str


_line = msgspec.json.Decoder(Line).decode


def _payload(note: queries.Note) -> bytes:
    if not note.segment.present:
        raise Damaged("what was kept beside the message can't be read back: it is damaged")
    (payload,) = note.payloads()
    return payload


class GetResult(Request, tag="GETRESULT", gc=False, kw_only=True):
    id: Id

    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id), (RESULT, PART))

    def reply(self, reply: queries.NotesFound, context: Context) -> Struct:
        results, parts = reply.notes
        return replies.OkResult(
            ok=True,
            id=shown(reply.state.id),
            result=Raw(_payload(results[-1])) if results else None,
            partials=[Raw(_payload(part)) for part in parts] or UNSET,
            reqId=self.reqId,
        )


class WaitJob(Request, tag="WAITJOB", gc=False, kw_only=True):
    id: Id
    timeout: int | UnsetType = UNSET
    group: str = DEFAULT

    def command(self, context: Context) -> core.Command:
        wait_ms = min(AWAITED_MS, context.wait_ms) if self.timeout is UNSET else self.timeout
        return queries.Await(context.tenant, ids.parse(self.id), wait_ms, self.group)

    def reply(self, reply: queries.NotesFound, context: Context) -> Struct:
        (results,) = reply.notes
        state = reply.state
        return replies.OkAwaited(
            ok=True,
            id=shown(state.id),
            done=reply.is_over,
            state=STATES.get(state.state, state.state),
            result=Raw(_payload(results[-1])) if results and state.state == "completed" else None,
            error=state.error or UNSET,
            reqId=self.reqId,
        )


class Progress(Request, tag="PROGRESS", gc=False, kw_only=True):
    id: Id
    progress: int
    message: str | None = None
    lease: str | None = None

    def command(self, context: Context) -> core.Command:
        told = (self.progress, self.message or "", self.lease, context.owner)
        return core.TellProgress(context.tenant, ids.parse(self.id), *told)

    def reply(self, reply: core.Noted, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class GetProgress(Request, tag="GETPROGRESS", gc=False, kw_only=True):
    id: Id

    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id))

    def reply(self, reply: queries.NotesFound, context: Context) -> Struct:
        told = reply.progress
        progress = replies.ProgressTold(
            id=shown(reply.state.id),
            progress=told.percent if told is not None else 0,
            message=told.message or None if told is not None else None,
            updated_at=told.at if told is not None else None,
        )
        return replies.OkProgress(ok=True, progress=progress, reqId=self.reqId)


class Log(Request, tag="LOG", gc=False, kw_only=True):
    id: Id
    message: str
    level: str = "info"

    def command(self, context: Context) -> core.Command:
        if not 1 <= len(self.level) <= LEVEL_CHARS_MAX:
            raise Invalid("level", f"1 to {LEVEL_CHARS_MAX} characters, such as info, warning or error")
        line = _encode(Line(self.level, self.message))
        return core.AddNote(context.tenant, ids.parse(self.id), LINE, line)

    def reply(self, reply: core.Noted, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)


class GetLogs(Request, tag="GETLOGS", gc=False, kw_only=True):
    id: Id

    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id), (LINE,))

    def reply(self, reply: queries.NotesFound, context: Context) -> Struct:
        (lines,) = reply.notes
        logs = []
        for note in lines:
            line = _line(_payload(note))
            logs.append(replies.LogLine(timestamp=note.created_at, level=line.level, message=line.message))
        return replies.OkLogs(ok=True, id=shown(reply.state.id), logs=logs, reqId=self.reqId)


class Partial(Request, tag="PARTIAL", gc=False, kw_only=True):
    id: Id
    data: Raw
    lease: str | None = None

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def command(self, context: Context) -> core.Command:
        note = (PART, bytes(self.data), self.lease, context.owner)
        return core.AddNote(context.tenant, ids.parse(self.id), *note)

    def reply(self, reply: core.Noted, context: Context) -> Struct:
        return replies.Ok(ok=True, reqId=self.reqId)
