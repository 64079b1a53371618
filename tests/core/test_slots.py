"""When a cron comes: through changes of the clocks in many zones, against a scan of every minute."""

import random
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from forebay.core.bounds import DELAY_MS_MAX, NEVER
from forebay.core.errors import Invalid
from forebay.core.jobs.calendar import SCHEDULE_CHARS_MAX, last_slot, next_slot, parse, zone_of

MINUTE_MS = 60_000
MINUTE = timedelta(minutes=1)


def ms(text: str) -> int:
    """An instant in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000


def slots(schedule: str, zone: str, after: str, count: int) -> list[str]:
    """The next slots after an instant, in UTC."""
    found, at = [], ms(after)
    for _ in range(count):
        at = next_slot(schedule, zone, 0, 0, at)
        found.append(f"{datetime.fromtimestamp(at / 1_000, UTC):%m-%d %H:%M}")
    return found


# Changes of the clocks, worked out by hand.


@pytest.mark.parametrize(
    ("zone", "schedule", "after", "came"),
    [
        # 02:00 becomes 03:00 at 01:00Z; 03:00 becomes 02:00 at 01:00Z.
        ("Europe/Rome", "30 2 * * *", "2025-03-29", ["03-29 01:30", "03-30 01:00", "03-31 00:30"]),
        ("Europe/Rome", "30 2 * * *", "2025-10-25", ["10-25 00:30", "10-26 00:30", "10-27 01:30"]),
        ("Europe/Rome", "0 3 * * *", "2025-03-29", ["03-29 02:00", "03-30 01:00", "03-31 01:00"]),
        ("Europe/Rome", "0 3 * * *", "2025-10-25", ["10-25 01:00", "10-26 02:00", "10-27 02:00"]),
        ("Europe/Rome", "0 2,3 * * *", "2025-03-30", ["03-30 01:00", "03-31 00:00", "03-31 01:00"]),
        ("Europe/Rome", "30 2 30 3 *", "2024-06-01", ["03-30 01:00"]),
        # 02:00 becomes 03:00 at 07:00Z; 02:00 becomes 01:00 at 06:00Z.
        ("America/New_York", "30 2 * * *", "2025-03-08", ["03-08 07:30", "03-09 07:00", "03-10 06:30"]),
        ("America/New_York", "30 1 * * *", "2025-11-01", ["11-01 05:30", "11-02 05:30", "11-03 06:30"]),
        # 02:00 becomes 02:30 at 15:30Z; 02:00 becomes 01:30 at 15:00Z: half an hour.
        ("Australia/Lord_Howe", "15 2 * * *", "2025-10-03", ["10-03 15:45", "10-04 15:30", "10-05 15:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2025-04-04", ["04-04 14:45", "04-05 14:45", "04-06 15:15"]),
        # 02:00 becomes 03:00 at 05:30Z; 02:00 becomes 01:00 at 04:30Z.
        ("America/St_Johns", "15 2 * * *", "2025-03-08", ["03-08 05:45", "03-09 05:30", "03-10 04:45"]),
        ("America/St_Johns", "15 1 * * *", "2025-11-01", ["11-01 03:45", "11-02 03:45", "11-03 04:45"]),
        # Nothing is changed.
        ("Asia/Kolkata", "30 2 * * *", "2025-03-29", ["03-29 21:00", "03-30 21:00", "03-31 21:00"]),
        ("Asia/Kolkata", "30 2 * * *", "2025-10-25", ["10-25 21:00", "10-26 21:00", "10-27 21:00"]),
        # Ramadan: 03:00 becomes 02:00 at 02:00Z; 02:00 becomes 03:00 at 02:00Z.
        ("Africa/Casablanca", "30 2 * * *", "2025-02-22", ["02-22 01:30", "02-23 01:30", "02-24 02:30"]),
        ("Africa/Casablanca", "30 2 * * *", "2025-04-05", ["04-05 02:30", "04-06 02:00", "04-07 01:30"]),
        # At midnight: 00:00 becomes 01:00 at 05:00Z; 01:00 becomes 00:00 at 05:00Z.
        ("America/Havana", "0 0 * * *", "2025-03-08", ["03-08 05:00", "03-09 05:00", "03-10 04:00"]),
        ("America/Havana", "0 0 * * *", "2025-11-01", ["11-01 04:00", "11-02 04:00", "11-03 05:00"]),
        # A whole day is left out.
        ("Pacific/Apia", "0 12 * * *", "2011-12-29", ["12-29 22:00", "12-30 10:00", "12-30 22:00"]),
    ],
)
def test_a_fixed_time_comes_once_a_day_whatever_the_clocks_do(
    zone: str, schedule: str, after: str, came: list[str]
) -> None:
    assert slots(schedule, zone, after, len(came)) == came


@pytest.mark.parametrize(
    ("zone", "after", "came"),
    [
        ("Europe/Rome", "2025-03-29 22:59", ["23:00", "00:00", "01:00", "02:00"]),
        ("Europe/Rome", "2025-10-25 22:59", ["23:00", "00:00", "01:00", "02:00"]),
        ("America/New_York", "2025-03-09 05:59", ["06:00", "07:00", "08:00"]),
        ("America/New_York", "2025-11-02 04:59", ["05:00", "06:00", "07:00"]),
        ("Australia/Lord_Howe", "2025-04-05 13:30", ["14:00", "15:30", "16:30"]),
        ("Australia/Lord_Howe", "2025-10-04 14:00", ["14:30", "16:00", "17:00"]),
        ("America/St_Johns", "2025-03-09 04:00", ["04:30", "05:30", "06:30"]),
        ("America/St_Johns", "2025-11-02 03:00", ["03:30", "04:30", "05:30"]),
        ("Asia/Kolkata", "2025-03-30 00:00", ["00:30", "01:30", "02:30"]),
        ("Africa/Casablanca", "2025-02-23 00:30", ["01:00", "02:00", "03:00"]),
        ("Pacific/Apia", "2011-12-30 08:30", ["09:00", "10:00", "11:00"]),
    ],
)
def test_every_hour_goes_by_real_time(zone: str, after: str, came: list[str]) -> None:
    assert [each[6:] for each in slots("0 * * * *", zone, after, len(came))] == came


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Rome", "2025-03-30 01:00"),
        ("Europe/Rome", "2025-10-26 01:00"),
        ("America/New_York", "2025-03-09 07:00"),
        ("America/New_York", "2025-11-02 06:00"),
        ("Australia/Lord_Howe", "2025-04-05 15:00"),
        ("Australia/Lord_Howe", "2025-10-04 15:30"),
        ("America/St_Johns", "2025-03-09 05:30"),
        ("America/St_Johns", "2025-11-02 04:30"),
        ("Asia/Kolkata", "2025-03-30 01:00"),
        ("Africa/Casablanca", "2025-04-06 02:00"),
        ("Pacific/Apia", "2011-12-30 10:00"),
    ],
)
def test_every_quarter_of_an_hour_is_every_quarter_of_an_hour(zone: str, change: str) -> None:
    begin = ms(change) - 8 * 15 * MINUTE_MS
    at, came = begin, []
    for _ in range(16):
        at = next_slot("*/15 * * * *", zone, 0, 0, at)
        came.append(at)
    assert came == [begin + (number + 1) * 15 * MINUTE_MS for number in range(16)]


def test_every_quarter_of_one_hour_comes_twice_or_not_at_all_where_the_hour_does() -> None:
    twice = slots("*/15 2 * * *", "Europe/Rome", "2025-10-25 12:00", 9)
    assert twice == [
        f"10-26 {hour}:{minute}" for hour in ("00", "01") for minute in ("00", "15", "30", "45")
    ] + ["10-27 01:00"]
    assert slots("*/15 2 * * *", "Europe/Rome", "2025-03-29 01:30", 2) == ["03-29 01:45", "03-31 00:00"]


def test_an_hour_that_comes_twice_does_so_for_one_that_waited_all_year() -> None:
    assert slots("*/30 2 26 10 *", "Europe/Rome", "2025-01-01", 4) == [
        "10-26 00:00",
        "10-26 00:30",
        "10-26 01:00",
        "10-26 01:30",
    ]


# Against a scan of every minute.

CHANGES = [
    ("UTC", "2025-03-30"),
    ("Europe/Rome", "2025-03-30"),
    ("Europe/Rome", "2025-10-26"),
    ("America/New_York", "2025-03-09"),
    ("America/New_York", "2025-11-02"),
    ("Australia/Lord_Howe", "2025-04-05"),
    ("Australia/Lord_Howe", "2025-10-04"),
    ("America/St_Johns", "2025-03-09"),
    ("America/St_Johns", "2025-11-02"),
    ("Africa/Casablanca", "2025-02-23"),
    ("Africa/Cairo", "2025-04-24"),
    ("America/Havana", "2025-03-09"),
    ("America/Havana", "2025-11-02"),
    ("Pacific/Apia", "2011-12-30"),
]
"""Changes that were: those to come may still be called off."""
MINUTES = ("0", "30", "59", "*", "*/7", "*/15", "5,35", "10-12")
HOURS = ("*", "*", "0", "2", "3", "1-3", "*/2", "0,2", "23")
DAYS = ("* * *", "* * *", "* * 0", "* * 1-5", "30 * *", "* 3 *", "2,9,26 * *", "* 2-11 6,0")
ALL = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@cache
def matching(field: str, low: int, high: int) -> frozenset[int]:
    """The numbers that a field means."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(found)


def is_slot(schedule: str, wall: datetime) -> bool:
    shown = (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7)
    fields = zip(schedule.split(), ALL, shown, strict=True)
    return all(number in matching(field, *bounds) for field, bounds, number in fields)


@cache
def walls(zone: str, day: str) -> list[tuple[int, datetime]]:
    """Two days before and after a day: every minute, and what clocks show then."""
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=2)
    instants = [begin + number * MINUTE for number in range(4 * 24 * 60)]
    return [
        (int(each.timestamp()) * 1_000, each.astimezone(zone_of(zone)).replace(tzinfo=None))
        for each in instants
    ]


def scanned(schedule: str, zone: str, day: str) -> list[int]:
    """Slots as somebody finds them who looks at a clock every minute.

    Who goes by real time comes when it shows the right time. Who does not comes when it first shows that, or
    something later.
    """
    minute, hour, *_ = schedule.split()
    real = minute.startswith("*") or hour.startswith("*")
    found = []
    seen = walls(zone, day)[0][1] - MINUTE
    for instant, wall in walls(zone, day):
        if real:
            comes = is_slot(schedule, wall)
        else:
            missed = range(1, max((wall - seen) // MINUTE, 0) + 1)
            comes = any(is_slot(schedule, seen + number * MINUTE) for number in missed)
            seen = max(seen, wall)
        if comes:
            found.append(instant)
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_slots_are_those_that_a_scan_of_every_minute_finds(zone: str, day: str) -> None:
    rng = random.Random(f"{zone}{day}")
    first, last = walls(zone, day)[0][0], walls(zone, day)[-1][0]
    for _ in range(6):
        schedule = f"{rng.choice(MINUTES)} {rng.choice(HOURS)} {rng.choice(DAYS)}"
        expected = scanned(schedule, zone, day)
        came: list[int] = []
        at = first - 1
        while (at := next_slot(schedule, zone, 0, 0, at)) <= last and len(came) < 150:
            came.append(at)
        assert came == expected[:150], schedule
        for _ in range(20):
            after = rng.randrange(first, last)
            later = [each for each in expected if each > after]
            found = next_slot(schedule, zone, 0, 0, after)
            assert found == later[0] if later else found > last, (schedule, after)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_slots_that_come_once_a_year_are_those_that_a_scan_finds(zone: str, day: str) -> None:
    """They are asked for from far away, with other changes of the clocks between."""
    rng = random.Random(f"{day} {zone}")
    first, last = walls(zone, day)[0][0], walls(zone, day)[-1][0]
    for _ in range(6):
        on = datetime.fromisoformat(day) + timedelta(days=rng.choice([-1, 0, 0, 1]))
        schedule = f"{rng.choice(MINUTES)} {rng.choice(HOURS)} {on.day} {on.month} *"
        came: list[int] = []
        at = first - rng.randrange(360 * 86_400_000)
        while (at := next_slot(schedule, zone, 0, 0, at)) <= last and len(came) < 50:
            came.append(at)
        assert came == scanned(schedule, zone, day)[:50], schedule


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_the_last_slot_is_the_last_of_the_next_ones(zone: str, day: str) -> None:
    rng = random.Random(f"{day}{zone}")
    first, last = walls(zone, day)[0][0], walls(zone, day)[-1][0]
    for _ in range(3):
        schedule = f"{rng.choice(MINUTES)} {rng.choice(HOURS)} {rng.choice(DAYS)}"
        expected = scanned(schedule, zone, day)
        for _ in range(12):
            after, upto = sorted(rng.randrange(first, last) for _ in range(2))
            between = [each for each in expected if after < each <= upto]
            assert last_slot(schedule, zone, 0, 0, after, upto) == (between[-1] if between else 0), schedule


def test_the_last_slot_may_be_at_the_very_end_and_not_at_the_very_beginning() -> None:
    begin, end = ms("2026-01-01 09:00"), ms("2026-01-02 09:00")
    assert last_slot("0 9 * * *", "UTC", 0, 0, begin, end) == end
    assert last_slot("0 9 * * *", "UTC", 0, 0, begin, end - 1) == 0
    assert last_slot("0 9 * * *", "UTC", 0, 0, begin - 1, end - 1) == begin


def test_the_last_of_very_many_slots_is_found_fast() -> None:
    upto = ms("2026-01-01") + 999
    assert last_slot("* * * * * *", "UTC", 0, 0, ms("2016-01-01"), upto) == upto - 999
    assert last_slot("0 0 29 2 *", "UTC", 0, 0, ms("1980-01-01"), upto) == ms("2024-02-29")


def test_seconds_are_counted() -> None:
    at = ms("2026-01-01")
    assert next_slot("*/20 * * * * *", "UTC", 0, 0, at) == at + 20_000
    assert next_slot("*/20 * * * * *", "UTC", 0, 0, at + 19_999) == at + 20_000
    assert next_slot("*/20 * * * * *", "UTC", 0, 0, at + 20_000) == at + 40_000
    assert next_slot("7 30 9 * * *", "Europe/Rome", 0, 0, at) == ms("2026-01-01 08:30:07")


def test_a_slot_is_after_what_it_is_asked_for_to_the_millisecond() -> None:
    nine = ms("2026-01-01 09:00")
    for after, slot in ((nine - 1, nine), (nine, nine + 86_400_000), (nine + 1, nine + 86_400_000)):
        assert next_slot("0 9 * * *", "UTC", 0, 0, after) == slot


def test_there_is_no_slot_past_the_end_of_all_calendars() -> None:
    assert next_slot("0 0 1 1 *", "UTC", 0, 0, ms("9999-06-01")) == NEVER


# Every so often.


@pytest.mark.parametrize("every_ms", [100, 1_000, 90_000])
def test_every_so_often_is_counted_from_the_beginning(every_ms: int) -> None:
    began = 1_700_000_000_123
    for after, number in ((0, 1), (began, 1), (began + every_ms - 1, 1), (began + every_ms, 2)):
        assert next_slot("", "UTC", every_ms, began, after) == began + number * every_ms
    rng = random.Random(every_ms)
    for _ in range(100):
        after, upto = sorted(began + rng.randrange(10 * every_ms) for _ in range(2))
        between, at = [], next_slot("", "UTC", every_ms, began, after)
        while at <= upto:
            between.append(at)
            at = next_slot("", "UTC", every_ms, began, at)
        assert last_slot("", "UTC", every_ms, began, after, upto) == (between[-1] if between else 0)


# What is a schedule.


@pytest.mark.parametrize(
    ("schedule", "fields", "every_ms"),
    [
        ("0 9 * * *", "0 9 * * *", 0),
        ("  0 9 * * *\n", "0 9 * * *", 0),
        ("30 0 9 * * *", "30 0 9 * * *", 0),
        ("*/10", "*/10 * * * * *", 0),
        ("0 0 1 JAN *", "0 0 1 JAN *", 0),
        ("0 9 * * mon-FRI", "0 9 * * mon-FRI", 0),
        ("@hourly", "0 * * * *", 0),
        ("@Daily", "0 0 * * *", 0),
        ("@midnight", "0 0 * * *", 0),
        ("@weekly", "0 0 * * 0", 0),
        ("@monthly", "0 0 1 * *", 0),
        ("@yearly", "0 0 1 1 *", 0),
        ("@annually", "0 0 1 1 *", 0),
        ("@minutely", "* * * * *", 0),
        ("@every 100ms", "", 100),
        ("@every 90s", "", 90_000),
        ("@every  5m", "", 300_000),
        ("@every 1h30m", "", 5_400_000),
        ("@every 1w2d3h4m5s6ms", "", 788_645_006),
        ("@every 3650d", "", DELAY_MS_MAX),
    ],
)
def test_a_schedule_is_fields_or_a_while(schedule: str, fields: str, every_ms: int) -> None:
    assert parse(schedule) == (fields, every_ms)


def test_names_mean_their_numbers() -> None:
    for named, numbers in (("0 9 * MAR mon", "0 9 * 3 1"), ("0 9 * * sun", "0 9 * * 7")):
        assert slots(parse(named)[0], "UTC", "2026-01-01", 5) == slots(numbers, "UTC", "2026-01-01", 5)


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "   ",
        "x",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "-1 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 * ",
        "* * * 0 *",
        "* * * * 8",
        "* * * FOO *",
        "* * * * FUN",
        "60 * * * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        "1- * * * *",
        "*/ * * * *",
        "*/x",
        "*/0",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "@reboot",
        "@never",
        "@every",
        "@every 5",
        "@every 5 s",
        "@every 1.5s",
        "@every -5s",
        "@every 1y",
        "every 5s",
        "* * * * *" + " " * SCHEDULE_CHARS_MAX + "x",
        "1" + ",1" * 128 + " * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(schedule)
    assert refused.value.field == "schedule"


@pytest.mark.parametrize("schedule", ["@every 99ms", "@every 0s", "@every 3650d1ms", "@every 9999999999999w"])
def test_a_while_that_is_too_short_or_too_long_is_refused(schedule: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(schedule)
    assert refused.value.field == "schedule"


@pytest.mark.parametrize("zone", ["UTC", "GMT", "Etc/GMT+5", "EST5EDT", "America/Argentina/Ushuaia"])
def test_zones_have_the_names_of_the_database(zone: str) -> None:
    assert NEVER > next_slot("0 9 * * *", zone, 0, 0, ms("2026-01-01")) > ms("2026-01-01")


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Rome",
        "Europe",
        "Europe/",
        "/Europe/Rome",
        "Europe/Rome/",
        "Europe//Rome",
        "Europe/Rome\n",
        "europe/rome",
        "../zoneinfo/Europe/Rome",
        "Europe/../Europe/Rome",
        "zone.tab",
        "tzdata.zi",
        "zones",
        "leapseconds",
        "__init__",
        "__pycache__",
        "+02:00",
        "Europe/Rome\0",
        "Europe/R\u00f6m",
    ],
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(Invalid) as refused:
        zone_of(zone)
    assert refused.value.field == "timezone"
