"""Stages: messages written by many writers, appended in one commit."""

from msgspec import UNSET

from forebay.core.api import commands as core, stages as stage_commands
from forebay.core.errors import Invalid
from forebay.core.log.bodies import check_body
from forebay.core.state import Attributes, stages as state_stages
from forebay.server.operations.carried import Carried, Context, longest, shown
from forebay.server.operations.push import run_attributes
from forebay.wire.operations import stages as wire
from forebay.wire.operations.stages import Adopted, Staged, Unstaged
from forebay.wire.text import check_values


class Stage(Carried, wire.Stage):
    def nested(self) -> tuple[int, int]:
        return (0, 0) if self.messages is UNSET else (2, longest(self.messages))

    def command(self, context: Context) -> core.Command:
        if (self.messages is UNSET) == (self.body is UNSET):
            raise Invalid("messages", "given, or else body, but not both")
        _check_batch(self.query, self.batch)
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
        shared = run_attributes(self)
        if self.runs is UNSET:
            return [(count, shared)]
        if shared != Attributes():
            raise Invalid("runs", "given without options beside it: each run has its own")
        if not self.runs:
            raise Invalid("runs", "a list of one or more")
        return [(each.count, run_attributes(each)) for each in self.runs]

    def reply(self, reply: stage_commands.Staged, context: Context) -> Staged:
        return Staged(
            stage=reply.stage,
            part=reply.part,
            count=reply.count,
            bytes=reply.size,
            expires_at=reply.expires_at,
        )


def _check_batch(query: str | None, batch: int | None) -> None:
    if (query is None) != (batch is None):
        raise Invalid("query", "given along with batch, or both left out")


class Adopt(Carried, wire.Adopt):
    def command(self, context: Context) -> core.Command:
        common = (context.tenant, self.queue, self.query, self.batch, self.stages)
        return stage_commands.Adopt(*common, self.count, self.durability, self.keep_ms)

    def reply(self, reply: state_stages.Adopted, context: Context) -> Adopted:
        return Adopted(
            count=reply.count,
            partitions=[
                {"partition": name, "first": shown(first), "offset": offset, "count": count}
                for name, first, offset, count in reply.ranges
            ],
            durability=reply.durability,
            duplicates=reply.duplicates,
            repeated=reply.repeated,
        )


class Unstage(Carried, wire.Unstage):
    def command(self, context: Context) -> core.Command:
        _check_batch(self.query, self.batch)
        stages = self.stages or []
        return stage_commands.Unstage(context.tenant, self.queue, stages, self.query, self.batch or 0)

    def reply(self, reply: stage_commands.Unstaged, context: Context) -> Unstaged:
        return Unstaged(stages=reply.stages, count=reply.count)
