"""Push what is in flashQ's file, in batches, each message once.

Every message has a ``job_id``: an import that was interrupted is run again, and pushes what is not there yet.
(A ``transaction_id`` would be forgotten after an hour, and the jobs that still wait would be there twice.)

Dead letters are pushed with a delay and then discarded: nobody can pop one in between.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from forebay.cli.flashq.file import FAILED, CronRow, FlashqFile, Job
from forebay.cli.flashq.plan import (
    Planned,
    is_json,
    known_by,
    options_of,
    priority_of,
    reason_to_end,
    reason_to_skip,
    state_of,
)
from forebay.cli.flashq.report import (
    CRON,
    DEPENDENCY,
    LIMIT_REACHED,
    NOT_JSON,
    OTHER_CRON,
    TAKEN,
    Report,
    Tally,
)
from forebay.cli.output import Advance
from forebay.client.types import New
from forebay.core.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from forebay.client.sync.client import SyncClient

BATCH = 5_000
BATCH_BYTES = 4 * 1024 * 1024
"""Jobs, and bytes of them, per request: below what the client splits, so a batch is pushed whole or not."""


class Import:
    """One import. Without a client it only counts what it would do."""

    def __init__(
        self,
        source: FlashqFile,
        queues: list[str],
        client: "SyncClient | None",
        report: Report,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._queues = queues
        self._client = client
        self._report = report
        self._clock = clock
        self._ids: dict[int, int] = {}
        """New ids by old ones, of jobs that others wait for."""
        self._wanted: set[int] = set()
        """Old ids of these."""
        self._began = 0
        """When the import began: what is over then is skipped, and nothing waits for it."""

    def run(self, advance: Advance) -> None:
        self._began = self._now()
        chosen = set(self._queues)
        waiting = [job for job in self._source.waiting_jobs() if job.queue in chosen]
        asked_for = {id for job in waiting for id in job.waits_for}
        self._wanted = set(filter(self._is_left, asked_for))
        for queue in self._queues:
            for jobs in (self._source.dead_jobs(queue), self._source.jobs(queue)):
                for batch in batches(jobs):
                    self._push(queue, batch)
                    advance(len(batch))
        self._push_waiting(waiting, advance)
        for cron in self._source.crons():
            if cron.queue in chosen:
                self._set_cron(cron)
                advance(1)

    def _push_waiting(self, waiting: list[Job], advance: Advance) -> None:
        """Push jobs that wait for others, each after those."""
        while ready := [job for job in waiting if self._is_ready(job)]:
            waiting = [job for job in waiting if not self._is_ready(job)]
            for queue in sorted({job.queue for job in ready}):
                for batch in batches(job for job in ready if job.queue == queue):
                    self._push(queue, batch)
                    advance(len(batch))
        now = self._now()
        for job in waiting:
            state = state_of(job, now, job.waits_for)
            self._report.tally(job.queue, state).in_file += 1
            self._report.skip(job.queue, state, job.id, DEPENDENCY)

    def _is_left(self, id: int) -> bool:
        """Return whether a job is not done: what is not in the file any more is, and what is over."""
        return any(reason_to_end(job, self._began) is None for job in self._source.jobs_with(id))

    def _is_ready(self, job: Job) -> bool:
        """Return whether all that a job waits for is imported, or done; or whether it is over itself."""
        waits_for = (id for id in job.waits_for if id in self._wanted)
        return all(id in self._ids for id in waits_for) or reason_to_end(job, self._began) is not None

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _push(self, queue: str, jobs: list[Job]) -> None:
        now = self._now()
        planned = []
        for job in jobs:
            waits_for = [id for id in job.waits_for if id in self._wanted]
            state = state_of(job, now, waits_for)
            self._report.tally(queue, state).in_file += 1
            reason = reason_to_skip(job, self._began)
            if reason is not None:
                self._report.skip(queue, state, job.id, reason)
            else:
                depends_on = [self._ids[id] for id in waits_for]
                message = New(msgspec.Raw(job.data or b""), options_of(job, now, depends_on))
                planned.append(Planned(job, state, message))
        if planned:
            self._push_planned(queue, planned)

    def _push_planned(self, queue: str, planned: list[Planned]) -> None:
        """Push a batch; if it is refused, its halves, down to the job that is the reason."""
        if self._client is None:
            self._settle(queue, planned, [each.job.id for each in planned], set())
            return
        try:
            pushed = self._client.push_many(queue, [each.message for each in planned])
        except (Invalid, NotFound, Conflict) as error:
            if len(planned) == 1 or getattr(error, "field", None) == "queue":
                for each in planned:
                    self._report.skip(queue, each.state, each.job.id, error.message)
            else:
                half = len(planned) // 2
                self._push_planned(queue, planned[:half])
                self._push_planned(queue, planned[half:])
            return
        self._settle(queue, planned, pushed.ids, set(pushed.duplicates))

    def _settle(self, queue: str, planned: list[Planned], ids: list[int], known: set[int]) -> None:
        """Count what was pushed, and make dead letters dead."""
        dead = []
        for at, (each, id) in enumerate(zip(planned, ids, strict=True)):
            if at in known and not self._is_same(each, id):
                self._report.skip(queue, each.state, each.job.id, TAKEN)
                continue
            tally = self._report.tally(queue, each.state)
            if at in known:
                tally.known += 1
            else:
                tally.imported += 1
            if each.job.id in self._wanted:
                self._ids[each.job.id] = id
            if each.job.state == FAILED and (at not in known or self._is_undead(id)):
                dead.append(id)
        if dead and self._client is not None:
            self._client.discard(dead)

    def _is_same(self, planned: Planned, id: int) -> bool:
        """Return whether a known message is this job, and not another with its unique key or id."""
        job = planned.job
        if self._client is None or not (job.unique_key or job.custom_id):
            return True
        try:
            found = self._client.message(id)
        except NotFound:
            return True
        if found.job_id != known_by(job):
            return False
        return not job.custom_id or bool(found.payload == msgspec.json.decode(planned.message.payload))

    def _is_undead(self, id: int) -> bool:
        """Return whether a known dead letter was never discarded; one that was requeued is left alone."""
        assert self._client is not None
        try:
            return self._client.state(id) == "delayed"
        except NotFound:
            return False

    def _set_cron(self, cron: CronRow) -> None:
        """Set a cron, unless there is one of that name."""
        tally = self._report.tally(cron.queue, CRON)
        tally.in_file += 1
        left = None if cron.limit is None else cron.limit - cron.executions
        if not is_json(cron.data):
            self._report.skip(cron.queue, CRON, cron.name, NOT_JSON)
        elif left is not None and left <= 0:
            self._report.skip(cron.queue, CRON, cron.name, LIMIT_REACHED)
        elif self._client is None:
            tally.imported += 1
        else:
            self._set_new_cron(self._client, cron, left, tally)

    def _set_new_cron(self, client: "SyncClient", cron: CronRow, left: int | None, tally: Tally) -> None:
        try:
            if client.cron(cron.name).queue == cron.queue:
                tally.known += 1
            else:
                self._report.skip(cron.queue, CRON, cron.name, OTHER_CRON)
            return
        except NotFound:
            pass
        except Invalid as error:
            self._report.skip(cron.queue, CRON, cron.name, error.message)
            return
        try:
            client.set_cron(
                cron.name,
                cron.queue,
                msgspec.Raw(cron.data or b""),
                schedule=cron.schedule if cron.every_ms is None else None,
                every_ms=cron.every_ms,
                limit=left,
                priority=priority_of(cron.priority),
            )
            tally.imported += 1
        except (Invalid, Conflict) as error:
            self._report.skip(cron.queue, CRON, cron.name, error.message)


def batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Cut jobs into batches of one request each."""
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.data or b"")
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
