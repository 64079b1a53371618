"""What is kept beside a message: its result, partial results, progress and log."""

import msgspec
from msgspec import UNSET, Raw, Struct

from forebay.core import ids
from forebay.core.api import commands as core, queries
from forebay.core.errors import Damaged, Invalid
from forebay.core.state import Attempt as KeptAttempt
from forebay.core.words import LINE, PART
from forebay.server.operations.carried import Carried, Context, shown
from forebay.server.operations.messages import missing
from forebay.wire.operation import Done
from forebay.wire.operations import notes as wire
from forebay.wire.operations.notes import Attempt, Attempts, Came, LogLine, Logs, Partials, Progressed

LEVEL_CHARS_MAX = 32

_encode = msgspec.json.Encoder().encode


class Line(Struct, gc=False):
    """A log line as it is stored."""

    level: str
    message: str


_line = msgspec.json.Decoder(Line).decode
_attempt = msgspec.json.Decoder(KeptAttempt).decode


def payload_of(note: queries.Note) -> bytes:
    if not note.segment.present:
        raise Damaged("what was kept beside the message can't be read back: it is damaged")
    (payload,) = note.payloads()
    return payload


class GetResult(Carried, wire.GetResult):
    def command(self, context: Context) -> core.Command:
        return queries.Await(context.tenant, ids.parse(self.id), self.wait_ms, self.group)

    def reply(self, reply: queries.NotesFound, context: Context) -> Came:
        if self.queue not in (None, reply.queue.name):
            raise missing()
        (results,) = reply.notes
        state = reply.state
        has_result = results and state.state == "completed"
        return Came(
            id=shown(state.id),
            state=state.state,
            done=reply.is_over,
            result=Raw(payload_of(results[-1]) if has_result else b"null"),
            error=state.error or UNSET,
            has_result=bool(has_result),
        )


class AddPartial(Carried, wire.AddPartial):
    def nested(self) -> tuple[int, int]:
        return 1, len(self.payload)

    def command(self, context: Context) -> core.Command:
        note = (PART, bytes(self.payload), self.lease, context.owner)
        return core.AddNote(context.tenant, ids.parse(self.id), *note)

    def reply(self, reply: core.Noted, context: Context) -> Done:
        return Done()


class GetPartials(Carried, wire.GetPartials):
    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id), (PART,))

    def reply(self, reply: queries.NotesFound, context: Context) -> Partials:
        (parts,) = reply.notes
        return Partials(id=shown(reply.state.id), partials=[Raw(payload_of(part)) for part in parts])


class SetProgress(Carried, wire.SetProgress):
    def command(self, context: Context) -> core.Command:
        told = (self.progress, self.message or "", self.lease, context.owner)
        return core.TellProgress(context.tenant, ids.parse(self.id), *told)

    def reply(self, reply: core.Noted, context: Context) -> Done:
        return Done()


class GetProgress(Carried, wire.GetProgress):
    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id))

    def reply(self, reply: queries.NotesFound, context: Context) -> Progressed:
        told = reply.progress
        return Progressed(
            id=shown(reply.state.id),
            progress=told.percent if told is not None else 0,
            message=told.message or None if told is not None else None,
            updated_at=told.at if told is not None else None,
        )


class AddLog(Carried, wire.AddLog):
    def command(self, context: Context) -> core.Command:
        if not 1 <= len(self.level) <= LEVEL_CHARS_MAX:
            raise Invalid("level", f"1 to {LEVEL_CHARS_MAX} characters, such as info, warning or error")
        line = _encode(Line(self.level, self.message))
        return core.AddNote(context.tenant, ids.parse(self.id), LINE, line)

    def reply(self, reply: core.Noted, context: Context) -> Done:
        return Done()


class GetLogs(Carried, wire.GetLogs):
    def command(self, context: Context) -> core.Command:
        return queries.GetNotes(context.tenant, ids.parse(self.id), (LINE,))

    def reply(self, reply: queries.NotesFound, context: Context) -> Logs:
        (lines,) = reply.notes
        found = ((note.created_at, _line(payload_of(note))) for note in lines)
        return Logs(
            id=shown(reply.state.id), logs=[LogLine(at, each.level, each.message) for at, each in found]
        )


class GetAttempts(Carried, wire.GetAttempts):
    def command(self, context: Context) -> core.Command:
        return queries.GetAttempts(context.tenant, ids.parse(self.id), self.group)

    def reply(self, reply: queries.NotesFound, context: Context) -> Attempts:
        (kept,) = reply.notes
        found = ((note.created_at, _attempt(payload_of(note))) for note in kept)
        return Attempts(
            id=shown(reply.state.id),
            attempts=[
                Attempt(
                    at,
                    each.deliveries,
                    each.error,
                    each.type or UNSET,
                    each.traceback or UNSET,
                    each.worker or UNSET,
                )
                for at, each in found
            ],
        )
