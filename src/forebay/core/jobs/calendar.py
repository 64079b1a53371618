"""Cron slot calculation: by calendar in a time zone, or at a fixed interval.

At a clock change, a cron with a fixed minute and hour still fires once a day: in a skipped hour it fires when
that hour is over, in a repeated hour it fires the first time. A cron that fires every hour or minute follows
elapsed time: no slot in a skipped hour, and slots in both passes of a repeated one.

Time zone rules come from the tzdata package, whatever the machine has.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from forebay.core.bounds import DELAY_MS_MAX, NEVER
from forebay.core.errors import Invalid

SCHEDULE_CHARS_MAX = 256
EVERY_MS_MIN = 100
SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@minutely": "* * * * *",
}
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+)(ms|[smhdw])")
_EVERY = re.compile(r"@every\s+((?:\d+(?:ms|[smhdw]))+)", re.ASCII)
_SECONDS = re.compile(r"\*/\d+")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_SECOND = timedelta(seconds=1)
_NEAR = timedelta(days=2)
"""Longer than any clock change."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ACCEPTED = (
    "5 fields (minute hour day month weekday), 6 with seconds first, @hourly, @daily, @weekly, @monthly, "
    "@yearly, or @every with a duration such as 90s or 1h30m"
)


def parse(schedule: str) -> tuple[str, int]:
    """Return the fields of a schedule, or its interval in ms.

    >>> parse("@daily"), parse("@every 1h30m"), parse("*/10")
    (('0 0 * * *', 0), ('', 5400000), ('*/10 * * * * *', 0))
    """
    text = schedule.strip()
    if not 1 <= len(text) <= SCHEDULE_CHARS_MAX:
        raise Invalid("schedule", f"1 to {SCHEDULE_CHARS_MAX} characters")
    every = _EVERY.fullmatch(text)
    if every is not None:
        every_ms = sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(every[1]))
        check_every(every_ms, "schedule")
        return "", every_ms
    fields = SHORT.get(text.lower(), text)
    if text.startswith("@") and fields == text:
        raise Invalid("schedule", ACCEPTED)
    if _SECONDS.fullmatch(fields):
        if not 1 <= int(fields[2:]) <= 59:
            raise Invalid("schedule", f"@every {fields[2:]}s: seconds of a minute have steps of 1 to 59")
        fields += " * * * * *"
    try:
        next(CronSim(fields, datetime(2000, 1, 1)))
    except CronSimError as error:
        raise Invalid("schedule", f"{ACCEPTED}: {str(error).lower()}") from None
    except StopIteration:
        raise Invalid("schedule", "one that ever comes") from None
    return fields, 0


def check_every(every_ms: int, field: str = "every_ms") -> None:
    if not EVERY_MS_MIN <= every_ms <= DELAY_MS_MAX:
        raise Invalid(field, f"between {EVERY_MS_MIN} and {DELAY_MS_MAX} ms")


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> tzinfo:
    """Return the rules of a time zone."""
    if name == "UTC":
        return UTC
    if _ZONE.fullmatch(name):
        try:
            with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as rules:
                return ZoneInfo.from_file(rules, key=name)
        except (OSError, ValueError):
            pass
    raise Invalid("timezone", "a name of the time zone database, such as Europe/Rome")


def next_slot(schedule: str, zone: str, every_ms: int, began_at: int, after: int) -> int:
    """Return the first slot after an instant; ``NEVER`` if there is none.

    >>> next_slot("0 9 * * *", "UTC", 0, 0, 1_700_000_000_000)
    1700038800000
    """
    if every_ms:
        return began_at + max((after - began_at) // every_ms + 1, 1) * every_ms
    minute, hour = schedule.split()[-5:-3]
    instant = _EPOCH + timedelta(seconds=after // 1_000)
    find = _real if minute.startswith("*") or hour.startswith("*") else _fixed
    try:
        found = find(schedule, zone_of(zone), instant)
    except (StopIteration, OverflowError):
        return NEVER
    return round((found - _EPOCH) / _SECOND) * 1_000


def last_slot(schedule: str, zone: str, every_ms: int, began_at: int, after: int, upto: int) -> int:
    """Return the last slot in (after, upto]; 0 if there is none."""
    if every_ms:
        slot = began_at + (upto - began_at) // every_ms * every_ms
        return slot if slot > after and slot > began_at else 0
    span = 1_000
    while True:
        slot = next_slot(schedule, zone, 0, 0, max(upto - span, after))
        if slot <= upto:
            break
        if upto - span <= after:
            return 0
        span *= 30
    while (following := next_slot(schedule, zone, 0, 0, slot)) <= upto:
        slot, high = following, upto
        while high - slot > 1_000:  # in halves: there may be millions of them
            middle = (slot + high) // 2
            later = next_slot(schedule, zone, 0, 0, middle)
            slot, high = (later, high) if later <= upto else (slot, middle)
    return slot


def _fixed(schedule: str, zone: tzinfo, after: datetime) -> datetime:
    """Return the next slot of a cron with a fixed minute and hour."""
    walls = CronSim(schedule, after.astimezone(zone).replace(tzinfo=None))
    while True:
        found = _instant(next(walls), zone)
        if found > after:
            return found


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """Return when clocks first show a wall time or, if they skip it, when they jump."""
    found = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return found
    return _change(zone, found - timedelta(days=1), found)


def _change(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """Return when the clocks of a zone change between two instants with different offsets."""
    before = _offset(zone, low)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _real(schedule: str, zone: tzinfo, after: datetime) -> datetime:
    """Return the next slot of a cron that follows elapsed time."""
    begin, offset = after, _offset(zone, after)
    while True:
        wall = next(CronSim(schedule, (begin + offset).replace(tzinfo=None)))
        found = wall.replace(tzinfo=UTC) - offset
        low = begin if _offset(zone, begin) == offset else begin + _SECOND
        near = min(found, low + _NEAR)
        if _offset(zone, near) == offset:
            if near == found:
                return found
            # Nothing between comes at any offset: look again from shortly before it.
            begin = max(low, found - _NEAR)
            offset = _offset(zone, begin)
            continue
        change = _change(zone, low, near)
        # From the change on, it included, clocks show something else.
        begin, offset = change - _SECOND, _offset(zone, change)


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    """Return the UTC offset of a zone at an instant."""
    found = at.astimezone(zone).utcoffset()
    assert found is not None
    return found
