"""Clean: clear out waiting, delayed, parked, dead or completed messages by age."""

from collections.abc import Iterator
from itertools import chain, islice

from forebay.core.api.commands import Clean, Cleaned
from forebay.core.api.queries import WouldClean
from forebay.core.bounds import DELAY_MS_MAX, check_name, check_range
from forebay.core.delivery.cancel import cancel_parked
from forebay.core.errors import Invalid, NotFound
from forebay.core.log import log as logs
from forebay.core.queries.describe import counts as counts_of
from forebay.core.retention.sweep import drop_completed
from forebay.core.shard.shard import Place, Shard
from forebay.core.state import Group, Queue, Scheduled, Track
from forebay.core.tracks.cursor import fresh, skip
from forebay.core.tracks.dead_letters import cut_dead
from forebay.core.tracks.outcomes import record_outcome
from forebay.core.tracks.planning import check_planned, cut_scheduled, finish_plan
from forebay.core.words import CANCELLED, DEFAULT, DISCARDED

CLEANED_STATES = ("waiting", "delayed", "parked", "dead", "completed")
RUNS_MAX = 2_000
"""Runs cleared per command: about 100 ms."""
COUNT_MAX = 1 << 62
SHOWN_MAX = 10
"""Groups that an error names."""


def check(command: Clean) -> None:
    check_name("group", command.group)
    check_range("grace_ms", command.grace_ms, 0, DELAY_MS_MAX)
    if command.count is not None:
        check_range("limit", command.count, 1, COUNT_MAX)
    if not command.states or not set(command.states) <= set(CLEANED_STATES):
        raise Invalid("states", f"one of {', '.join(CLEANED_STATES)}")


def group_of(queue: Queue, command: Clean | WouldClean) -> Group | None:
    """Return the group that is meant. One that is missing may be mistyped, or left out by mistake: clearing
    it would create it, and from then on everything would wait for it."""
    group = queue.groups.get(command.group)
    if group is None and not command.create and (queue.groups or command.group != DEFAULT):
        groups = ", ".join(islice(sorted(queue.groups), SHOWN_MAX)) or "none yet"
        why = "name one with group, or create it first"
        raise NotFound(f"queue {queue.name} has no group {command.group}; its groups: {groups}: {why}")
    return group


def clean(shard: Shard, queue: Queue, group: Group | None, command: Clean, now: int) -> Cleaned:
    """Apply a checked command. A group is given unless only completed messages are dropped."""
    left = COUNT_MAX if command.count is None else command.count
    before = now - command.grace_ms
    cleaned = Cleaned(0)
    is_whole = command.count is None and not command.grace_ms
    if "completed" in command.states and group is not None and not is_whole:
        dropped = drop_completed(shard, queue, group, command.grace_ms, left, now)
        cleaned = Cleaned(dropped.count, dropped.more, dropped.bytes)
    waits = {"waiting", "delayed"} & set(command.states)
    runs = RUNS_MAX
    if _reaches_parked(queue, command.states):
        for partition in queue.partitions.values():
            place = Place(queue, partition, 0)
            count, cut_up = _cancel_parked(shard, place, before, left - cleaned.count, runs, now)
            cleaned.count, runs = cleaned.count + count, runs - cut_up
        cleaned.more = cleaned.more or (runs <= 0 and cleaned.count < left)
    for track in group.tracks.values() if group is not None else ():
        if waits:
            count, cut_up = _cancel(shard, track, waits, before, left - cleaned.count, runs, now)
            cleaned.count, runs = cleaned.count + count, runs - cut_up
        if "dead" in command.states:
            count, cut_up = _discard_dead(shard, track, before, left - cleaned.count, runs, now)
            cleaned.count, runs = cleaned.count + count, runs - cut_up
        if runs <= 0 and cleaned.count < left:
            cleaned.more = True
            break
    cleaned.more = cleaned.more and cleaned.count < left
    if "completed" in command.states and group is not None and is_whole and not cleaned.more:
        # Last: with them goes what was just settled, and its room comes back.
        dropped = drop_completed(shard, queue, group, 0, left, now, all_settled=True)
        cleaned = Cleaned(cleaned.count + dropped.count, dropped.more, dropped.bytes)
    if cleaned.count or cleaned.freed:
        shard.changes.sync_for(queue)
        shard.timers.plan_sweep(queue, now)
    return cleaned


def would_clean(queue: Queue, command: WouldClean, now: int) -> Cleaned:
    """Count the messages that the command would clear now."""
    counts = counts_of(queue, queue.groups.get(command.group), now)
    states = set(command.states)
    found = sum(getattr(counts, state) for state in states & {"waiting", "delayed", "dead", "completed"})
    if _reaches_parked(queue, command.states):
        found += counts.parked
    return Cleaned(found)


def _reaches_parked(queue: Queue, states: tuple[str, ...]) -> bool:
    """Whether parked messages, which are parked in every group, are cleared too."""
    return set(states) == {"parked"} or ("parked" in states and len(queue.groups) <= 1)


def check_cancel(queue: Queue, command: Clean) -> None:
    """Raise unless the group's schedule is planned, or nearly so."""
    if {"waiting", "delayed"} & set(command.states):
        check_planned(queue, command.group)


def _cancel(
    shard: Shard, track: Track, states: set[str], before: int, left: int, runs: int, now: int
) -> tuple[int, int]:
    """Cancel waiting or delayed messages of a track; return the numbers of messages and runs."""
    finish_plan(shard, track, now)
    end = logs.offset_at(track.partition.log, before + 1)
    spans: list[tuple[int, int]] = []
    if "waiting" in states:
        for low, high in list(_up_to(islice(fresh(track, track.cursor, end), runs), left)):
            skip(shard, track, low, high)
            spans.append((low, high))
            left -= high - low
    found: Iterator[Scheduled] = iter(())
    if "waiting" in states:
        found = track.schedule.each_due_before(now + 1)
    if "delayed" in states:
        found = chain(found, track.schedule.due_after(now))
    old = (run for run in found if run.first < end)
    for run in list(islice(old, runs - len(spans))):
        if left > 0:
            high = min(run.first + run.count, end, run.first + left)
            cut_scheduled(shard, track, run, run.first, high, now)
            spans.append((run.first, high))
            left -= high - run.first
    for low, high in spans:
        record_outcome(shard, track, low, high, CANCELLED, now)
    if spans:
        shard.reconsider(track, now)
    return sum(high - low for low, high in spans), len(spans)


def _cancel_parked(
    shard: Shard, place: Place, before: int, left: int, runs: int, now: int
) -> tuple[int, int]:
    """Cancel parked messages of a partition; return the numbers of messages and runs."""
    partition = place.partition
    end = logs.offset_at(partition.log, before + 1)
    old = ((first, min(first + count, end)) for first, count, _ in partition.parked if first < end)
    spans = list(_up_to(islice(old, runs), left))
    for low, high in spans:
        cancel_parked(shard, place, low, high, now)
    return sum(high - low for low, high in spans), len(spans)


def _up_to(spans: Iterator[tuple[int, int]], left: int) -> Iterator[tuple[int, int]]:
    """Cut spans to ``left`` messages in total."""
    for low, high in spans:
        if left <= 0:
            return
        high = min(high, low + left)
        left -= high - low
        yield low, high


def _discard_dead(shard: Shard, track: Track, before: int, left: int, runs: int, now: int) -> tuple[int, int]:
    """Discard dead letters of a track; return the numbers of messages and runs."""
    letters = (track.letters[first] for first, _ in track.dead)
    old = (letter for letter in letters if letter.dead_at <= before)
    spans = list(_up_to(((each.first, each.first + each.count) for each in islice(old, runs)), left))
    for low, high in spans:
        cut_dead(shard, track, track.letters[low], low, high)
        record_outcome(shard, track, low, high, DISCARDED, now)
    return sum(high - low for low, high in spans), len(spans)
