"""STAGE, ADOPT and UNSTAGE: messages written by many writers, appended in one commit."""

from msgspec import UNSET, Raw, Struct, UnsetType

from forebay.core.api import commands as core, stages as stage_commands
from forebay.core.api.stages import STAGED_MS
from forebay.core.errors import Invalid
from forebay.core.log.bodies import check_body
from forebay.core.state import Attributes, stages as state_stages
from forebay.core.words import DEFAULT
from forebay.server.flashq import replies
from forebay.server.flashq.push import plain_attributes
from forebay.server.flashq.replies import shown
from forebay.server.flashq.request import Context, Request
from forebay.server.options import AnyBackoff
from forebay.wire.text import check_values


class RunIn(Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """Consecutive messages that share their options."""

    count: int
    priority: int = 0
    delay: int = 0
    ttl: int = 0
    timeout: int = 0
    max_attempts: int | None = None
    backoff: AnyBackoff | None = None
    lifo: bool = False
    headers: dict[str, str] | None = None
    tags: list[str] | None = None


class Stage(Request, tag="STAGE", gc=False, kw_only=True):
    queue: str
    stage: str
    messages: list[Raw] | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    count: int | None = None
    partition: str = DEFAULT
    priority: int = 0
    delay: int = 0
    ttl: int = 0
    timeout: int = 0
    max_attempts: int | None = None
    backoff: AnyBackoff | None = None
    lifo: bool = False
    headers: dict[str, str] | None = None
    tags: list[str] | None = None
    runs: list[RunIn] | UnsetType = UNSET
    unique_keys: list[str | None] | UnsetType = UNSET
    part: int | None = None
    query: str | None = None
    batch: int | None = None
    run: int = 0
    expire_ms: int = STAGED_MS

    def nested(self) -> tuple[int, int]:
        if self.messages is UNSET:
            return 0, 0
        return 2, max(map(len, self.messages), default=0)

    def command(self, context: Context) -> core.Command:
        if (self.messages is UNSET) == (self.body is UNSET):
            raise Invalid("messages", "given, or else body, but not both")
        if (self.query is None) != (self.batch is None):
            raise Invalid("query", "given along with batch, or both left out")
        payloads: list[bytes] = []
        if self.body is not UNSET:
            if self.count is None:
                raise Invalid("count", "given along with body: how many messages it has")
            check_body(self.body, self.count)
            check_values(self.body, self.count)
        else:
            assert self.messages is not UNSET
            payloads = self.messages  # type: ignore[assignment]
            if self.count is not None and self.count != len(payloads):
                raise Invalid("count", f"the number of messages, {len(payloads)}, or left out")
            if not payloads:
                raise Invalid("messages", "a list of one or more")
        return stage_commands.StageWrite(
            context.tenant,
            self.queue,
            self.stage,
            self.partition,
            payloads,
            None if self.body is UNSET else self.body,
            self.count or 0,
            self._runs(len(payloads) or self.count or 0),
            [] if self.unique_keys is UNSET else self.unique_keys,
            self.part,
            self.query,
            self.batch or 0,
            self.expire_ms,
            self.run,
        )

    def _runs(self, count: int) -> list[tuple[int, Attributes]]:
        shared = plain_attributes(self)
        if self.runs is UNSET:
            return [(count, shared)]
        if shared != Attributes():
            raise Invalid("runs", "given without options beside it: each run has its own")
        if not self.runs:
            raise Invalid("runs", "a list of one or more")
        return [(each.count, plain_attributes(each)) for each in self.runs]

    def reply(self, reply: stage_commands.Staged, context: Context) -> Struct:
        return replies.OkStaged(
            ok=True,
            stage=reply.stage,
            part=reply.part,
            count=reply.count,
            bytes=reply.size,
            expires_at=reply.expires_at,
            reqId=self.reqId,
        )


class Adopt(Request, tag="ADOPT", gc=False, kw_only=True):
    queue: str
    query: str
    batch: int
    stages: list[str]
    count: int | None = None
    durability: str | None = None
    keep_ms: int | None = None

    def command(self, context: Context) -> core.Command:
        common = (context.tenant, self.queue, self.query, self.batch, self.stages)
        return stage_commands.Adopt(*common, self.count, self.durability, self.keep_ms)

    def reply(self, reply: state_stages.Adopted, context: Context) -> Struct:
        return replies.OkAdopted(
            ok=True,
            count=reply.count,
            partitions=[
                {"partition": name, "first": shown(first), "offset": offset, "count": count}
                for name, first, offset, count in reply.ranges
            ],
            durability=reply.durability,
            duplicates=reply.duplicates or UNSET,
            repeated=True if reply.repeated else UNSET,
            reqId=self.reqId,
        )


class Unstage(Request, tag="UNSTAGE", gc=False, kw_only=True):
    queue: str
    stages: list[str] | None = None
    query: str | None = None
    batch: int | None = None

    def command(self, context: Context) -> core.Command:
        if (self.query is None) != (self.batch is None):
            raise Invalid("query", "given along with batch, or both left out")
        return stage_commands.Unstage(
            context.tenant, self.queue, self.stages or [], self.query, self.batch or 0
        )

    def reply(self, reply: stage_commands.Unstaged, context: Context) -> Struct:
        return replies.OkUnstaged(ok=True, stages=reply.stages, count=reply.count, reqId=self.reqId)
