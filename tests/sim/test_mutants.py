"""Would the model notice? Bugs are planted in the core one at a time, and each must be caught."""

import pytest

from forebay.core.delivery import dead_letters, extend, give_back, groups, move, pop, retry, settle, take
from forebay.core.errors import ForebayError
from forebay.core.jobs import requeue
from forebay.core.loading import build
from forebay.core.log import log as logs, runs, slices
from forebay.core.log.bodies import body_slices
from forebay.core.push import push, update
from forebay.core.queries import message_state
from forebay.core.records import codec
from forebay.core.retention import islands, merge, sweep
from forebay.core.shard import addresses, changes, numbering, shard, timers
from forebay.core.state import Schedule, attributes
from forebay.core.structures.agenda import Agenda
from forebay.core.tracks import (
    cursor,
    dead_letters as dead_runs,
    leased,
    outcomes,
    places,
    planning,
    withdrawn,
)
from tests.sim import test_schedule
from tests.sim.drive import Driver
from tests.sim.plant import Planted as Planted, planted as planted

SEEDS, STEPS = 12, 5_000
"""Far more than any of them needs."""

CAUGHT = (AssertionError, KeyError, IndexError, ValueError, ForebayError)
"""The core and the model disagree, the core itself notices, or it refuses what it should not."""

MUTANTS: dict[str, Planted] = {
    "a lease lasts one millisecond too long": (Agenda.first_due, "at <= now", "at < now"),
    "the cursor skips a message": (
        take.PopCursor._take_fresh,
        "track.cursor = cursor + run.count",
        "track.cursor = cursor + run.count + (run.count == 3 < end - cursor)",
    ),
    "a late ack with its token settles another's lease": (
        addresses.live_lease,
        "shard.leases.get(name)",
        "shard.leases.get(name) or next(iter(shard.leases.values()), None)",
    ),
    "a failure is not counted": (give_back._come_back, "failures + 1, how.error", "failures, how.error"),
    "a partial ack settles the neighbour": (settle._take_out, "<< found.at", "<< max(found.at - 1, 0)"),
    "an acked lease stays in the store": (
        changes.Changes.seal,
        "elif lease.stored:",
        "elif not lease.stored:",
    ),
    "a group that wants only what is new gets everything": (
        groups.begin_of,
        "return log.end",
        "return log.first",
    ),
    "a cursor is not stored": (take.PopCursor._take, "self.shard.changes.touch_track(track)", "pass"),
    "leased messages are swept away": (
        sweep._lowest_leased,
        "lowest = min(lowest, track.spans[at][0])",
        "pass",
    ),
    "the busiest partition is always served first": (
        take.PopCursor._take,
        "track.turn = group.turn",
        "track.turn = -group.turn",
    ),
    "names are given out again after a restart": (
        numbering.Numbering.next_name,
        "lease_name(self.epoch, self.counter)",
        "lease_name(1, self.counter)",
    ),
    "a nacked message keeps its place in the old lease": (
        settle.cut_out,
        "begin = high",
        "begin = high - 1 if high < run.count else high",
    ),
    "an id of a connection's own delivery means the default group": (
        leased._meant,
        "command.owner and",
        "False and",
    ),
    "an extended lease may get shorter": (extend._prolong, "max(run.expires_at, until)", "until"),
    "a body's last payload is cut short": (body_slices, "data + ends[-1]", "data + ends[-1] - 1"),
    "a new group does not hold what it has not read": (
        sweep._mark,
        "marks[-1].offset > settled",
        "False",
    ),
    "a merge leaves a header behind": (merge.apply, "for each in parts[1:]", "for each in parts[2:]"),
    "a merge crosses a partition number": (
        merge._go_together,
        "number_of(partition, first.base) == number_of(partition, segment.base)",
        "True",
    ),
    "merged messages all have the time of the first": (
        runs.pack_runs,
        "packed += (end, time - created_at)\n            which",
        "packed += (end, 0)\n            which",
    ),
    "merged segments are counted as settled twice": (
        merge.apply,
        "merged.weight - sum(each.weight for each in parts)",
        "merged.weight",
    ),
    "a body that leaves memory takes another segment along": (
        logs.drop_body,
        "log.segments[position] is segment",
        "True",
    ),
    "ids confirmed as os are not marked in the store": (
        changes.Changes.mark_os,
        "self.touch_partition(queue, partition)",
        "pass",
    ),
    "marks are cleared in memory only": (
        changes.Changes.clear_marks,
        "self.touch_partition(queue, partition)",
        "pass",
    ),
    # The order of service.
    "the lowest priority goes first": (attributes.level_of, "-2 * priority", "2 * priority"),
    "last in, first out is first in, first out": (
        Schedule.due,
        "line.head() if level % 2 else line.upto(now)",
        "line.head()",
    ),
    "a batch pushed last in, first out is read forwards": (
        take.PopCursor._take_scheduled,
        "if run.level % 2:",
        "if True:",
    ),
    "what is fresh goes before what has a priority": (
        take.PopCursor._level,
        "if level is None or level > IN_LINE:",
        "if True:",
    ),
    "a retry loses its priority": (
        give_back._come_back,
        "Scheduled(due_at, first, count, run.level,",
        "Scheduled(due_at, first, count, 1,",
    ),
    "a message moved to another priority is no longer last in, first out": (
        move._move,
        "lifo=taken.level % 2 == 0",
        "lifo=False",
    ),
    "after a restart a partition waits behind its own low priority": (
        build._start,
        "IN_LINE if level is None else min(level, IN_LINE)",
        "IN_LINE if level is None else level",
    ),
    # Time.
    "a message lives one millisecond too long": (
        take.PopCursor._alive,
        "self.now - attributes.ttl_ms + 1",
        "self.now - attributes.ttl_ms",
    ),
    "an expired message takes the place of another in a pop": (
        take.PopCursor._end,
        "self.passes -= 1",
        "self.left -= 1",
    ),
    "an expired message still shows as waiting": (
        message_state._state,
        "attributes.ttl_ms and expired_at <= now",
        "False",
    ),
    "a delay counts from the first message of the commit": (
        push._from,
        "attributes.delay_ms + later_ms",
        "attributes.delay_ms",
    ),
    "a delay counts for nothing in a group that is made later": (
        planning.plan,
        "created_at + attributes.delay_ms",
        "created_at",
    ),
    "what becomes due is not listed": (
        shard.Shard.fire_due,
        "relist(track, now)",
        "pass",
    ),
    "what becomes due does not ring": (timers.Timers.schedule_check, "self.alarm.sooner(due_at)", "pass"),
    "the next of a line is forgotten when its head is taken away": (
        Schedule._correct,
        "if line is not None and level not in self._ready_levels:",
        "if False:",
    ),
    "a line that is due is not looked at for what comes later": (
        Schedule._expect_more,
        "due_at < self._more.get(level, NEVER)",
        "False",
    ),
    "the message's own timeout counts for nothing": (
        take.PopCursor._expires_at,
        "self.lease_ms or attributes.timeout_ms or ",
        "self.lease_ms or ",
    ),
    "one message that runs out takes its lease along": (
        give_back.expire,
        "if run.expires_at == due_at",
        "if True",
    ),
    # Retries and dead letters.
    "a list of waits allows one retry too many": (
        retry.attempts,
        "len(attributes.backoff.steps) + 1",
        "len(attributes.backoff.steps) + 2",
    ),
    "the message's own limit of failures counts for nothing": (
        retry.attempts,
        "return attributes.max_attempts",
        "return options.max_attempts",
    ),
    "a list of waits begins with its second": (
        retry.wait_ms,
        "min(failures, len(backoff.steps)) - 1",
        "min(failures, len(backoff.steps) - 1)",
    ),
    "an exponential wait has no end": (
        retry.wait_ms,
        "min(backoff.base_ms << min(failures - 1, 42), backoff.cap_ms)",
        "backoff.base_ms << failures - 1",
    ),
    "the delay of a nack counts for nothing": (
        give_back._come_back,
        "if how.delay_ms is None else how.delay_ms",
        "if True else 0",
    ),
    "deliveries that are too many do not matter when a lease runs out": (
        give_back._come_back,
        "0 < options.max_deliveries <= deliveries",
        "0 < options.max_deliveries < deliveries",
    ),
    "a lease that runs out is a failure though it shall not be": (
        give_back.expire,
        "_Requeued(due_at) if requeue else",
        "",
    ),
    "dead letters are kept though they shall not be": (
        dead_runs.add_dead,
        "not track.queue.options.dead_letters",
        "False",
    ),
    "a dead letter is not stored": (
        dead_runs.put_dead,
        "shard.changes.put_row(track.queue, dead_letter_key(track, run.first), codec.pack_dead(run))",
        "shard.changes.touch()",
    ),
    "a requeued dead letter stays in the store": (
        dead_runs.remove_dead,
        "shard.changes.put_row(track.queue, dead_letter_key(track, run.first), None)",
        "shard.changes.touch()",
    ),
    "a requeued dead letter keeps its failures": (
        requeue._schedule,
        "high - low, run.level)",
        "high - low, run.level, run.deliveries, run.failures)",
    ),
    "a dry run purges": (dead_letters.purge, "() if command.dry_run else parts", "parts"),
    "a part of a run of dead letters takes the rest along": (
        dead_runs.cut_dead,
        "if high < end:",
        "if high < end - 1:",
    ),
    "dead letters are swept away": (islands._next_aside, ", next_dead(track, offset)", ", 1 << 62"),
    "scheduled messages are swept away": (
        islands._next_aside,
        "track.schedule.next_from(offset), ",
        "1 << 62, ",
    ),
    # Cancel and move.
    "a cancelled message is still in line": (
        places.take_out,
        "skip(shard, track, low, high)",
        "pass",
    ),
    "a cancelled message is cancelled for nobody to come": (
        withdrawn.withdraw_unless,
        "withdraw(shard, place, *part, now)",
        "pass",
    ),
    "a new group gets what was cancelled": (
        groups.start_track,
        "_withdraw(shard, track, max(first, begin), first + count, at)",
        "pass",
    ),
    "a new group is planned what was cancelled": (
        planning._to_plan,
        "outside(track.outcomes, first, end)",
        "[(first, end)]",
    ),
    "a skip is not stored": (
        cursor.skip,
        "shard.changes.put_row(track.queue, _skip_key(track, first), codec.pack_numbers((end - first,)))",
        "shard.changes.touch()",
    ),
    "a skip that was passed stays in the store": (
        cursor.pass_skips,
        "shard.changes.put_row(track.queue, _skip_key(track, first), None)",
        "shard.changes.touch()",
    ),
    "an outcome is not stored": (
        outcomes.add_outcome,
        "shard.changes.put_row(track.queue, key, codec.pack_numbers((end - first, outcome, now)))",
        "shard.changes.touch()",
    ),
    "what is withdrawn is not stored": (
        withdrawn.withdraw,
        "_put(shard, place, first, (end - first, now))",
        "shard.changes.touch()",
    ),
    "a lease is not told what was cancelled": (
        settle.take_cancelled,
        "each.lease.cancelled = True",
        "pass",
    ),
    "a lease that was cancelled is forgotten": (
        settle.take_cancelled,
        "if each.lease.ended:",
        "if False:",
    ),
    "a cut takes a message too many out of a scheduled run": (
        planning.cut_scheduled,
        "count=low - run.first",
        "count=max(low - run.first - 1, 1)",
    ),
    "a moved message keeps its old time": (
        move._move,
        "taken.due_at if command.delay_ms is None else now + command.delay_ms",
        "taken.due_at",
    ),
    "a delivery that was taken back by a move counts": (
        move._move,
        "run.deliveries - 1",
        "run.deliveries",
    ),
    "a delivery nobody heard of counts": (give_back._come_back, "deliveries -= 1", "pass"),
    # The rest of what is kept.
    "what is delivered stays in the stored schedule": (
        shard.Shard.unschedule,
        "self.changes.rows[scheduled_key_of(track, run)] = None",
        "pass",
    ),
    "what is scheduled is not stored": (
        shard.Shard.schedule,
        "changes.rows[scheduled_key_of(track, run)] = codec.pack_scheduled(run)",
        "pass",
    ),
    "how far a group is planned is not stored": (codec.pack_cursor, "track.planned", "1 << 62"),
    "a paused queue delivers": (pop.pop, "queue.paused_until > now", "False"),
    "a pause is not stored": (shard.Shard.pause, "self.changes.touch_queue(queue)", "pass"),
    "a pause does not end": (shard.Shard.pause, "self.timers.pauses.add(until, queue.prefix)", "pass"),
    "a pause does not end after a restart": (
        build.load_queue,
        "shard.timers.pauses.add(queue.paused_until, queue.prefix)",
        "pass",
    ),
    "a merge loses attributes": (merge.apply, "joined.runs.sets", 'b""'),
    "a merge gives all messages the attributes of the first": (merge.apply, "joined.runs.which", 'b""'),
    "a merge forgets how many are not in line": (merge.apply, "joined.runs.aside", "0"),
    "messages in one commit share their attributes": (
        logs._mark,
        "marks[-1][1] == attributes",
        "True",
    ),
    "singles become a batch though their attributes differ": (
        push.schedule,
        "if joined else run",
        "if True else run",
    ),
    # Headers and tags.
    "a message has the headers of the one behind it": (
        slices.labelled,
        "yield begin - piece.start, start - begin, known",
        "yield begin - piece.start, start - begin, attributes",
    ),
    "neighbours that differ in tags have those of the first": (
        slices.labelled,
        "(attributes.headers, attributes.tags) != (known.headers, known.tags)",
        "attributes.headers != known.headers",
    ),
    "tags without headers are not stored": (
        runs._packed,
        "if attributes.headers or attributes.tags else",
        "if attributes.headers else",
    ),
    "an updated message has no headers": (
        update._remaining,
        "replace(attributes, ",
        "replace(attributes, headers=(), ",
    ),
}


def live() -> None:
    test_schedule.live(1, 10_000)
    for seed in range(SEEDS):
        Driver(seed).run(STEPS)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches(name: str) -> None:
    with planted(*MUTANTS[name]), pytest.raises(CAUGHT):
        live()
