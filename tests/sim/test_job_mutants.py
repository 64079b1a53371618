"""Would the model notice? Bugs in keys, dependencies, limits, crons, values and transactions."""

from itertools import cycle

import pytest

from forebay.core import transact
from forebay.core.delivery import groups, limits, pop, settle, take
from forebay.core.jobs import check as job_check, cron, dependencies, flows, push as job_push, requeue
from forebay.core.keyvalue import store as kv_store
from forebay.core.links import cleanup, dedup, expiry, successors, ties
from forebay.core.loading import build, decode
from forebay.core.queues import named_limits, seek
from forebay.core.shard import limiters, shard
from forebay.core.shard.shard import Shard
from forebay.core.state import Bucket
from forebay.core.tracks import dead_letters as dead_runs, dropped, outcomes, planning
from tests.core import test_revived
from tests.core.harness import Core
from tests.sim.job_drive import JobDriver
from tests.sim.test_drive import PLANS
from tests.sim.test_jobs import STEP
from tests.sim.test_mutants import CAUGHT, Planted, planted

SEEDS, STEPS = 36, 1_000
"""As many as any of them needs."""

MUTANTS: dict[str, Planted] = {
    # Keys and ids.
    "a key is not freed when its message ends": (
        ties.untie,
        "del queue.uniques[tied.unique_key]",
        "pass",
    ),
    "a key is not freed by an eviction": (
        outcomes.record_outcome,
        "if track.partition.links_count:",
        "if track.partition.links_count and outcome != 3:",
    ),
    "a key is freed by any group": (
        shard.Shard.end,
        "track.group.name == DEFAULT",
        "True",
    ),
    "a key is not freed by an ack of a lease": (
        settle.ack_lease,
        "_done(shard, lease, track, first, count, now)",
        "pass",
    ),
    "a key is not freed by an ack by id": (
        settle.ack_ids,
        "_done(shard, each.lease, track, each.offset, each.length, now)",
        "pass",
    ),
    "a key is not freed by a death": (
        dead_runs.add_dead,
        "shard.end(track, run.first, run.first + run.count, DIED)",
        "pass",
    ),
    "a key is not freed when the work queue reads on elsewhere": (
        seek.seek,
        "recheck(shard, queue, track.partition)",
        "pass",
    ),
    "a key is not freed when the work queue begins behind it": (
        groups.new_group,
        "recheck(shard, queue, partition)",
        "pass",
    ),
    "a tie is not stored": (
        ties.tie,
        "shard.changes.put_row(queue, "
        "keyspace.tie_key(queue.prefix, partition.key, offset), codec.pack_tie(tied))",
        "shard.changes.touch()",
    ),
    "a tie stays in the store": (
        ties.untie,
        "shard.changes.put_row(queue, keyspace.tie_key(queue.prefix, partition.key, offset), None)",
        "shard.changes.touch()",
    ),
    "a key stays with what was updated": (ties.move, "if offset in partition.ties:", "if False:"),
    "a time to live that is over frees no key": (
        expiry.expire_tied,
        "shard.timers.expiry.first_due(now)",
        "[]",
    ),
    "what is worked on loses its key with its time to live": (
        expiry._expire,
        "if held is not None:",
        "if False:",
    ),
    "what comes back too late keeps its key": (
        expiry.come_back,
        "tie(shard, queue, partition, offset, replace(tied, expires_at=now + 1))",
        "tie(shard, queue, partition, offset, tied)",
    ),
    "a single push takes a key that is held": (job_push.push_key, "key in queue.uniques", "False"),
    "a single push does not hold its key": (
        job_push.push_key,
        "tie(shard, queue, partition, partition.log.end, Tie(key))",
        "pass",
    ),
    "a single push does not look at what it is": (job_push.push_key, "not own.is_key_alone", "False"),
    "the second of equal keys counts": (job_push.Pushing.find, "own.dedup != DROP", "True"),
    "throttle lets one through too early": (
        job_push.Pushing.find,
        "once.until <= self.now",
        "once.until <= self.now + 1",
    ),
    "throttle holds its key": (
        job_push.Pushing._enter,
        "own.unique_key is not None and own.dedup != THROTTLE else",
        "own.unique_key is not None else",
    ),
    "debounce puts off for ever": (
        job_push.Pushing._put_off,
        "min(attributes.delay_ms, left)",
        "attributes.delay_ms",
    ),
    "replace leaves the one in another partition": (
        job_push.Pushing._replace,
        "cancel_everywhere(self.shard, where, self.now)",
        "pass",
    ),
    "a custom id is not stored": (
        job_push.Pushing._enter,
        "shard.changes.put_row(queue, row, own.job_id.encode())",
        "shard.changes.touch()",
    ),
    "a custom id is taken from whoever has it": (
        job_push.Pushing.find,
        "own.retakes and self._is_withdrawn(named, offset)",
        "own.retakes",
    ),
    "the custom id of a withdrawn message is never free": (
        job_push.Pushing.find,
        "own.retakes and self._is_withdrawn(named, offset)",
        "False",
    ),
    "the custom id of an updated message is free": (
        job_push.Pushing._is_withdrawn,
        "current_ids(self.shard, [id_at(partition, first)])",
        "[id_at(partition, first)]",
    ),
    "the custom id of a discarded message is not free": (
        job_push.Pushing._is_withdrawn,
        "return not is_in(self.shard, track, DEAD, offset_of(self.shard, message))",
        "return False",
    ),
    "a custom id that was taken leads back after a restart": (
        job_push.Pushing._enter,
        "forget_job_id(shard, queue, shard.places[key].partition, withdrawn)",
        "pass",
    ),
    "a custom id outlives its message": (
        dedup.forget_job_id,
        "del queue.named[name]",
        "pass",
    ),
    "a transaction id is known in every partition": (
        job_push.Pushing.find,
        "offset, at = partition.transactions.get(own.transaction_id, (-1, 0))",
        "offset, at = next((each.transactions[own.transaction_id] for each in queue.partitions.values()"
        " if own.transaction_id in each.transactions), (-1, 0))",
    ),
    "a transaction id is known a little too long": (
        job_push.Pushing.find,
        "> self.now - window",
        ">= self.now - window",
    ),
    "transaction ids are not stored": (
        job_push.Pushing._take,
        "self.shard.changes.put_row(self.queue, key, codec.pack_taken(self.now, taken))",
        "self.shard.changes.touch()",
    ),
    "the answer to a request is not stored": (
        dedup.remember,
        "shard.changes.put_row(queue, "
        "keyspace.remembered_key(queue.prefix, name), codec.pack_remembered(once))",
        "shard.changes.touch()",
    ),
    # Dependencies.
    "one that is waited for is not counted": (
        dependencies.depend,
        "shard.park(queue, partition, first, count, unmet)",
        "shard.park(queue, partition, first, count, max(unmet - 1, 1))",
    ),
    "what is parked is released one too early": (
        dependencies._notify_one,
        "if unmet > met:",
        "if unmet > met + 1:",
    ),
    "one end counts twice": (
        dependencies._notify_one,
        "length, unmet - met)",
        "length, max(unmet - 2 * met, 1))",
    ),
    "a failure fails nobody": (
        dependencies._notify_one,
        "if policy != IGNORE:",
        "if False:",
    ),
    "a failure is never ignored": (
        dependencies._notify_one,
        "if policy != IGNORE:",
        "if ended.how != COMPLETED:",
    ),
    "nobody waits for a requeue": (
        dependencies._notify_one,
        "if ended.how == DIED and (policy == WAIT or not parked):",
        "if ended.how == DIED and not parked:",
    ),
    "what died of another is delivered when it is requeued": (
        requeue.requeue,
        "if run.unmet >= 0:",
        "if False:",
    ),
    "one that is requeued revives nobody": (
        dependencies.tell_revived,
        "if revives:",
        "if False:",
    ),
    "the dead do not count what is completed": (
        dependencies._notify_one,
        "replace(run, unmet=run.unmet - met)",
        "run",
    ),
    "the dead wait for what can't complete": (
        dependencies._notify_one,
        "for run in died if is_lost else ():",
        "for run in ():",
    ),
    "nobody is known to have died of one that is requeued": (
        dependencies._notify_one,
        "failed, is_lost = id_at(ended.partition, waited_for), ended.how != DIED",
        "failed, is_lost = id_at(ended.partition, waited_for), True",
    ),
    "what is revived stays cancelled for other groups": (
        dependencies.revive,
        "erase_outcome(shard, group.tracks[partition.key], low, high, CANCELLED)",
        "pass",
    ),
    "what is revived stays cancelled for groups to come": (
        dependencies.revive,
        "restore(shard, place, low, high)",
        "pass",
    ),
    "a push forgets that it depends on a dead letter": (
        dependencies._wanted,
        "if attributes.on_failed != WAIT:",
        "if False:",
    ),
    "what failed before fails nobody": (
        dependencies._wanted,
        "elif how != DIED or _is_lost(place, low, high):",
        "elif False:",
    ),
    "who waits for what can't be requeued waits for ever": (
        dependencies._tell_lost,
        "if place.partition.dependents.size:",
        "if False:",
    ),
    "a push waits for what can't be requeued": (
        dependencies._is_lost,
        "run.unmet == LOST",
        "False",
    ),
    "a row of a message that ended stays": (
        Shard.remove_wait,
        "self.changes.put_row(queue, key, None)",
        "self.changes.touch()",
    ),
    "the rest of a row is forgotten": (
        Shard.mark_met,
        "if met.bit_count() == count:",
        "if True:",
    ),
    "what of a row was met is forgotten": (
        Shard.mark_met,
        "partition.met[first, dependent] = met",
        "pass",
    ),
    "what of a row was met is not stored": (
        Shard.mark_met,
        "codec.pack_dependent(count, waiting, met, since)",
        "codec.pack_dependent(count, waiting, 0, since)",
    ),
    "who waits for what is not stored": (
        Shard.add_wait,
        "self.changes.put_row(queue, key, codec.pack_dependent(count, waiting, 0, since))",
        "self.changes.touch()",
    ),
    "what is parked is not stored": (
        Shard.park,
        "self.changes.put_row(queue, key, codec.pack_numbers((count, unmet)))",
        "self.changes.touch()",
    ),
    "what is released stays parked in the store": (
        Shard.unpark,
        "self.changes.put_row(queue, keyspace.parked_key(queue.prefix, partition.key, first), None)",
        "self.changes.touch()",
    ),
    "what is released is due since it was pushed": (
        dependencies._runs,
        "max(created_at + attributes.delay_ms, now)",
        "created_at + attributes.delay_ms",
    ),
    "what is released is not counted where it is still to be planned": (
        dependencies.release,
        "track.unplanned += run.count - below",
        "pass",
    ),
    "other groups keep what failed": (
        dependencies.fail,
        "record_outcome(shard, other.tracks[partition.key], first, end, CANCELLED, now)",
        "pass",
    ),
    "groups to come get what failed": (
        dependencies.fail,
        "withdraw(shard, Place(queue, partition, 0), max(first, partition.log.first), end, now)",
        "pass",
    ),
    "what is parked is planned": (
        planning._to_plan,
        "outside(track.partition.parked, low, high)",
        "[(low, high)]",
    ),
    "a cut leaves too much parked": (
        Shard.take_parked,
        "self.park(queue, partition, low, first - low, unmet)",
        "self.park(queue, partition, low, first - low, unmet + 1)",
    ),
    "nobody is told of what is gone": (
        successors.forget_gone,
        "shard.ends.append(Ended(queue, partition, low, high, GONE))",
        "pass",
    ),
    "the rest is never told": (dependencies.go_on, "while shard.notifications", "while False"),
    "who was not told is forgotten by a restart": (
        decode._decode,
        "found.ended.append((serial, how, partition, begin[0] if begin else serial, end))",
        "pass",
    ),
    "what waits is told but not those who wait for it": (
        dependencies.settle_consequences,
        "while shard.ends:",
        "if shard.ends:",
    ),
    "what is being told is not stored": (
        dependencies.notify_dependents,
        "shard.changes.put_row(queue, key, pack_numbers((end, first)))",
        "shard.changes.touch()",
    ),
    "who comes later is told of what was before": (
        dependencies._notify_some,
        "later.get((row[0], row[1]), 0) < notification.serial",
        "True",
    ),
    "who comes later is not known as such after a restart": (
        Shard.add_wait,
        "pack_dependent(count, waiting, 0, since)",
        "pack_dependent(count, waiting, 0, 0)",
    ),
    # Flows, and what waits for a batch.
    "what waits for a batch waits for the first of it": (
        job_push.apply,
        "waiting_for(job.attributes, pushing.ids)",
        "waiting_for(job.attributes, pushing.ids[:1])",
    ),
    "a request that is repeated forgets what waits for it": (
        job_push.apply,
        "RememberedPush(until, _in_order(pushing.ids), durability, pushed.then, throttled)",
        "RememberedPush(until, _in_order(pushing.ids), durability, None, throttled)",
    ),
    "what waits for a batch needs no room": (
        job_check.check,
        "check(shard, PushJobs(command.tenant, name, [job]), now, plan)",
        "check(shard, PushJobs(command.tenant, name, [job]), now, plan, room=False)",
    ),
    "strict order has something that waits for a batch": (
        job_check.check,
        "check_ordered(shard.names.queues.get((command.tenant, name)), WAITING)",
        "pass",
    ),
    "a flow that is known is pushed again": (flows.apply, "if parent is not None:", "if False:"),
    "a parent does not wait for its children": (flows._push_one, "if children:", "if False:"),
    "strict order has a parent": (flows.check, "if node.children:", "if False:"),
    "a flow has room for each of its messages alone": (
        flows.check,
        "job_check.check(shard, alone, now, plan,",
        "job_check.check(shard, alone, now, None,",
    ),
    "children are shown as they were pushed": (
        flows.children,
        "current_ids(shard, given)",
        "given",
    ),
    # Limits.
    "a cancel does not lower what is active": (
        settle._take_out,
        "release_slots(shard, track, found.length)",
        "pass",
    ),
    "the end of a lease does not lower what is active": (
        settle._unlease,
        "        release_slots(shard, track, left)",
        "        pass",
    ),
    "a token is spent on an empty pop": (
        pop.pop,
        "    if not runs:\n",
        "    if not runs:\n        [limiter.bucket.spend(1) for limiter in limits if limiter.bucket]\n",
    ),
    "no token is spent": (pop.pop, "bucket.parts -= taken * bucket.per_ms", "pass"),
    "tokens come in whole": (
        Bucket.refill,
        "(now - self.at) * rate.limit",
        "(now - self.at) * rate.limit // rate.per_ms * rate.per_ms",
    ),
    "there are more tokens than there may be": (
        Bucket.refill,
        "rate.capacity * rate.per_ms)",
        "rate.capacity * rate.per_ms + 1)",
    ),
    "one too many is active": (
        limits.room,
        "limiter.concurrency - limiter.active - limiter.taken if",
        "limiter.concurrency - limiter.active - limiter.taken + 1 if",
    ),
    "what a pop has taken of a partition is not counted": (
        take.PopCursor._take_level,
        "own.taken += taken",
        "pass",
    ),
    "a limit of a partition spends nothing": (take.PopCursor._take_level, "spend((own,), taken, 0)", "pass"),
    "a named limit does not know what a queue brings along": (
        named_limits.configure,
        "_count(shard, queue, queue.options.limits, leased(queue))",
        "pass",
    ),
    "a named limit begins as if nothing were leased": (
        named_limits.reattach,
        "limiter.active += leased(queue)",
        "pass",
    ),
    "a queue that goes leaves what it had leased": (
        named_limits.leave,
        "_count(shard, queue, queue.options.limits, -leased(queue))",
        "pass",
    ),
    "nobody is told when something is settled": (
        limits.wake_starved,
        "shard.changes.woken[queue, name, None] = None",
        "pass",
    ),
    "nobody is told when tokens come": (
        limits.wake_limited,
        "shard.changes.woken[queue, name, None] = None",
        "pass",
    ),
    "a lane is none after a restart": (build._partition, "lane=packed.lane", "lane=False"),
    "a partition at its limit is not looked at again": (
        limits.release_slots,
        "list_ready(track, FIRST_LEVEL)",
        "pass",
    ),
    "a limit is full after a restart": (
        limiters._bucket,
        "Bucket(rate, 0, since, rate.per_ms)",
        "Bucket(rate, 0, 0, rate.per_ms)",
    ),
    "who is out of bytes gets more": (
        limits.allowance,
        "if limiter.byte_bucket is not None and limiter.byte_bucket.tokens(now) <= 0:",
        "if False:",
    ),
    "a pop takes more bytes than there are": (
        pop._bytes_allowed,
        "most = min(most, limiter.byte_bucket.tokens(now))",
        "pass",
    ),
    "no bytes are spent": (pop.pop, "limiter.byte_bucket.spend(size - taking.bytes_left)", "pass"),
    "nobody is told when bytes come": (
        limits.ready_at,
        "at = max(at, limiter.byte_bucket.ready_at(1, now))",
        "at = NEVER",
    ),
    "what a limit of a partition holds back counts for min_count": (
        pop.available,
        "min(here, room(track.own_limit, now))",
        "here",
    ),
    # Crons.
    "a slot is not moved in the commit": (cron._fire, "_keep(shard, cron)", "pass"),
    "a slot comes twice": (cron._fire, "_next(cron, slot)", "_next(cron, slot - 1)"),
    "all missed slots are made up for": (cron._fire, 'if cron.missed != "all":', "if False:"),
    "what came too late comes all the same": (
        cron._fire,
        'if cron.missed != "none" or now - slot <= LATE_MS:',
        "if True:",
    ),
    "a cron comes once too often": (
        cron._fire,
        "0 < cron.limit <= cron.fired",
        "0 < cron.limit < cron.fired",
    ),
    "the message of a cron is older than its slot": (cron._seal_older, "< cron.last_slot", "< 0"),
    "a cron begins anew when it is put again": (cron.put, "_when(before) == _when(cron)", "False"),
    "a cron that was removed comes back": (
        cron._remove,
        "shard.changes.put_own(_key(shard, cron), None)",
        "shard.changes.touch()",
    ),
    # Values and transactions.
    "a value is not stored": (
        kv_store.apply,
        "shard.changes.put_own(keyspace.value_key(own, key), codec.pack_value(kept))",
        "shard.changes.touch()",
    ),
    "a value that was deleted is stored": (
        kv_store.apply,
        "shard.changes.put_own(keyspace.value_key(own, key), None)",
        "shard.changes.touch()",
    ),
    "a value lasts a little too long": (
        kv_store.expire,
        "shard.timers.values.first_due(now)",
        "shard.timers.values.first_due(now - 1)",
    ),
    "a check of a version is not made": (kv_store.check, "!= version:", "!= version and False:"),
    "a sum forgets when the value goes": (
        kv_store._changed,
        "if change.ttl_ms is None and found is not None:",
        "if False:",
    ),
    "a transaction does not see what it wrote": (transact.transact, "left |= writes[at]", "pass"),
    "a transaction settles what is not leased": (
        transact._leased,
        "if refused:",
        "if False:",
    ),
    "a transaction settles a message twice": (
        transact._check_leased,
        "if mine & settled:",
        "if False:",
    ),
    "a transaction frees no room": (transact._check_leased, "+= end - first", "+= 0"),
    "a transaction frees room that others still take": (
        transact._check_leased,
        "len(lease.queue.groups) == 1",
        "True",
    ),
    "what a transaction pushes is not added up": (
        job_check.check,
        "plan.messages[command.queue] += new",
        "plan.messages[command.queue] = new",
    ),
    "in strict order, a nack in a transaction is about one message": (
        transact._leased,
        "if isinstance(command, Nack) and each.lease.queue.ordered:",
        "if False:",
    ),
    "what dies leaves nothing to its keys": (
        dependencies.settle_consequences,
        "ended.how in (DIED, DISCARDED)",
        "False",
    ),
    # What is dropped after its end.
    "what is removed on completion stays": (cleanup.clean_up, "elif cleanup.on_complete:", "elif False:"),
    "what is removed on failure stays": (
        cleanup.clean_up,
        "in (DIED, DISCARDED) and cleanup.on_fail",
        "in (DIED, DISCARDED) and False",
    ),
    "a cleanup is forgotten by a requeue": (
        cleanup.clean_up,
        "tie(shard, queue, partition, offset, Tie(cleanup=cleanup))",
        "pass",
    ),
    "a cleanup is forgotten by a replacement": (
        job_push.Pushing._tie,
        "tied = replace(tied, cleanup=untie(self.shard, self.queue, partition, offset).cleanup)",
        "untie(self.shard, self.queue, partition, offset)",
    ),
    "what is kept goes a little late": (
        cleanup.clean_up,
        "now + cleanup.keep_ms",
        "now + 1 + cleanup.keep_ms",
    ),
    "the id of what was dropped leads nowhere": (cleanup._forget_job_id, "in partition.job_ids", "in ()"),
    "neighbours that were dropped are stored twice": (
        dropped._drop,
        "shard.changes.put_row(track.queue, key, None)",
        "shard.changes.touch()",
    ),
    "what is discarded leaves nothing to its keys": (
        dependencies.settle_consequences,
        "ended.how in (DIED, DISCARDED)",
        "ended.how == DIED",
    ),
}


LIVES = list(zip(range(SEEDS), cycle([500, PLANS]), cycle([STEP, STEP, 1_000]), strict=False))
"""Seeds, runs that a pop plans, and rows that are told in one turn."""
FIRST = {
    "the custom id of a discarded message is not free": 32,
    "a single push does not hold its key": 18,
    "a flow has room for each of its messages alone": 19,
    "a named limit begins as if nothing were leased": 6,
    "a cron comes once too often": 8,
    "a queue that goes leaves what it had leased": 1,
    "a transaction settles what is not leased": 15,
    "what waits for a batch needs no room": 4,
    "nobody is told of what is gone": 4,
    "a value that was deleted is stored": 4,
    "a cancel does not lower what is active": 3,
    "a pop takes more bytes than there are": 3,
    "nobody is told when bytes come": 3,
    "who is out of bytes gets more": 3,
    "a value lasts a little too long": 1,
    "a transaction does not see what it wrote": 3,
    "the message of a cron is older than its slot": 6,
    "neighbours that were dropped are stored twice": 4,
}
"""Seeds whose lives meet a bug that others seldom do: they go first."""


class Dense(JobDriver):
    """More of its steps are about jobs."""

    share = 0.6


class Told(Dense):
    """Much happens while those who wait are told."""

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.meanwhile()
        else:
            super().step()


def live(kind: type[JobDriver], monkeypatch: pytest.MonkeyPatch, first: int = 0) -> None:
    for seed, plans, step in LIVES[first:] + LIVES[:first]:
        monkeypatch.setattr(pop, "PLANS_MAX", plans)
        monkeypatch.setattr(dependencies, "STEP", step)
        kind(seed).run(STEPS)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Told if name.startswith("who comes later") else Dense
    with planted(*MUTANTS[name]), pytest.raises((*CAUGHT, TypeError)):
        live(kind, monkeypatch, FIRST.get(name, 0))


@pytest.mark.parametrize(("seed", "plans", "step"), LIVES[:6])
def test_without_a_bug_core_and_model_agree(
    seed: int, plans: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "PLANS_MAX", plans)
    monkeypatch.setattr(dependencies, "STEP", step)
    Dense(seed).run(STEPS)


def test_without_a_bug_core_and_model_agree_while_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "STEP", STEP)
    Told(0).run(300)
    Told(1).run(300)


def test_a_chain_catches_that_one_that_is_revived_revives_nobody() -> None:
    """Random lives hardly ever requeue the first of three that died of each other."""
    bug = (dependencies.revive, "tell_revived(shard, place, low, high)", "pass")
    with planted(*bug), pytest.raises(AssertionError):
        test_revived.test_a_requeued_child_revives_the_whole_chain_that_died_of_it(Core())
    test_revived.test_a_requeued_child_revives_the_whole_chain_that_died_of_it(Core())
