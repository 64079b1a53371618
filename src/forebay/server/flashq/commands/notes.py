"""What is kept beside a job: its result, progress, log and partial results."""

import msgspec
from msgspec import UNSET, Raw, Struct

from forebay.core.api import commands as core, queries
from forebay.core.errors import Conflict, ForebayError, NotFound
from forebay.core.words import LINE, PART, RESULT
from forebay.server.flashq import answers
from forebay.server.flashq.caller import Caller
from forebay.server.flashq.command import AboutJob, Whole, shown
from forebay.server.flashq.errors import Refused, job_not_found
from forebay.server.operations.notes import LEVEL_CHARS_MAX, Line, payload_of

AWAITED_MS = 30_000
"""Wait of WAITJOB without a timeout."""

_encode = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(Line).decode


class GetResult(AboutJob, tag="GETRESULT", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.GetNotes(caller.tenant, self.number, (RESULT,))

    def reply(self, reply: queries.NotesFound, caller: Caller) -> Struct:
        (results,) = reply.notes
        result = Raw(payload_of(results[-1])) if results else None
        return answers.Result(id=shown(reply.state.id), result=result)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Result(id=self.id, result=None) if isinstance(error, NotFound) else error


class WaitJob(AboutJob, tag="WAITJOB", gc=False, kw_only=True):
    """The result of a job, once there is one. That it takes too long, or fails, is an error."""

    timeout: Whole | None = None

    def asked(self, caller: Caller) -> core.Command:
        return queries.Await(caller.tenant, self.number, caller.wait_ms(self.timeout, AWAITED_MS))

    def reply(self, reply: queries.NotesFound, caller: Caller) -> Struct:
        if not reply.is_over:
            waited = AWAITED_MS if self.timeout is None else self.timeout
            raise Conflict(f"Timeout waiting for job {self.id} after {waited}ms")
        state = reply.state
        if state.state == "dead":
            raise Conflict(f"Job {self.id} failed{': ' if state.error else ''}{state.error}")
        if state.state != "completed":
            raise job_not_found(self.id)
        (results,) = reply.notes
        return answers.Awaited(result=Raw(payload_of(results[-1])) if results else UNSET)


class Progress(AboutJob, tag="PROGRESS", gc=False, kw_only=True):
    progress: int
    message: str | None = None

    def asked(self, caller: Caller) -> core.Command:
        percent = min(max(self.progress, 0), 100)
        return core.TellProgress(caller.tenant, self.number, percent, self.message or "", owner=caller.owner)

    def reply(self, reply: core.Noted, caller: Caller) -> Struct:
        return answers.Answer()


class GetProgress(AboutJob, tag="GETPROGRESS", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.GetNotes(caller.tenant, self.number)

    def reply(self, reply: queries.NotesFound, caller: Caller) -> Struct:
        told = reply.progress
        percent, message = (told.percent, told.message or None) if told is not None else (0, None)
        return answers.Progress(progress=answers.ProgressTold(shown(reply.state.id), percent, message))


class Log(AboutJob, tag="LOG", gc=False, kw_only=True):
    message: str
    level: str | None = None

    def asked(self, caller: Caller) -> core.Command:
        level = self.level or "info"
        if len(level) > LEVEL_CHARS_MAX:
            raise Refused("level", f"Invalid level: at most {LEVEL_CHARS_MAX} characters")
        line = _encode(Line(level, self.message))
        return core.AddNote(caller.tenant, self.number, LINE, line)

    def reply(self, reply: core.Noted, caller: Caller) -> Struct:
        return answers.Answer()


class GetLogs(AboutJob, tag="GETLOGS", gc=False, kw_only=True):
    def asked(self, caller: Caller) -> core.Command:
        return queries.GetNotes(caller.tenant, self.number, (LINE,))

    def reply(self, reply: queries.NotesFound, caller: Caller) -> Struct:
        (lines,) = reply.notes
        logs = []
        for note in lines:
            line = _line(payload_of(note))
            logs.append(answers.LogLine(note.created_at, line.message, line.level))
        return answers.Logs(id=shown(reply.state.id), logs=logs)

    def otherwise(self, error: ForebayError) -> Struct | ForebayError:
        return answers.Logs(id=self.id, logs=[]) if isinstance(error, NotFound) else error


class Partial(AboutJob, tag="PARTIAL", gc=False, kw_only=True):
    """A part of the result of an active job. Parts are kept in the order in which they come."""

    data: Raw
    index: int | None = None

    def nested(self) -> tuple[int, int]:
        return 1, len(self.data)

    def asked(self, caller: Caller) -> core.Command:
        return core.AddNote(caller.tenant, self.number, PART, bytes(self.data), owner=caller.owner)

    def reply(self, reply: core.Noted, caller: Caller) -> Struct:
        return answers.Answer()
