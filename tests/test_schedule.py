"""Cron arithmetic against what a real awa worker fired, a naive calendar, and cronsim where the two mean the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_django.schedule import InvalidSchedule, Schedule, zone_fault
from tests.vectors import load

VECTORS = load("cron")
SECOND = timedelta(seconds=1)


def instant(text: str) -> datetime:
    """An instant of the vectors, or of a test that means UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def fires(expression: str, zone: str, after: str, until: str) -> list[datetime]:
    return Schedule.parse(expression, zone).fires_between(instant(after), instant(until), 10_000)


def backwards(schedule: Schedule, after: datetime, until: datetime) -> list[datetime]:
    """The same fires, found from the end."""
    found = []
    fire = schedule.last_until(until)
    while fire is not None and fire > after:
        found.append(fire)
        fire = schedule.last_until(fire - SECOND)
    return found[::-1]


def seconds(work: Callable[[], object]) -> float:
    """What the quickest of some tries took: in the others is what the machine did besides."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


# What is read


@pytest.mark.parametrize("expression", VECTORS["accept"])
def test_what_every_client_reads_is_read(expression: str) -> None:
    Schedule.parse(expression)


@pytest.mark.parametrize("expression", VECTORS["reject"])
def test_what_no_client_reads_is_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule):
        Schedule.parse(expression)


@pytest.mark.parametrize("zone", VECTORS["timezone"]["accept"])
def test_zones_of_the_database_are_known(zone: str) -> None:
    assert Schedule.parse("0 0 * * *", zone).can_fire


@pytest.mark.parametrize(
    "zone", [*VECTORS["timezone"]["reject"], "", "localtime", "Factory", "europe/london"]
)
def test_other_zones_are_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="time zone"):
        Schedule.parse("0 0 * * *", zone)


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("60 * * * *", "UTC", "minute '60' of cron expression '60 \\* \\* \\* \\*': 60 is outside 0 to 59"),
        ("0 0 * * FRI-MON", "UTC", "range FRI-MON runs backwards; write it as two, such as 5-7,0-1"),
        ("*/0 * * * *", "UTC", "step 0 is outside 1 to 255"),
        ("* * * *", "UTC", "has 4 fields; needed are five"),
        ("", "UTC", "has 0 fields"),
        ("@midnight", "UTC", "write '@daily' instead"),
        ("@hourli", "UTC", "write '@hourly' instead"),
        ("@reboot", "UTC", "known are @yearly"),
        ("0 0 LW * *", "UTC", "'LW' cannot be read; .* L for the last day, and 15W"),
        ("0 0 * * 1#0", "UTC", "the first to the fifth of a weekday"),
        ("0 0 * MOO *", "UTC", "'MOO' is no number; names are JAN, FEB"),
        ("0 0 *,15 * *", "UTC", "'\\*' stands alone, not in a list"),
        ("\uff10 * * * *", "UTC", "digits and letters of ASCII"),
        ("0 0 * * \u017fun", "UTC", "digits and letters of ASCII"),
        ("0 0 * * *", "utc", "did you mean 'UTC'\\?"),
        ("0 0 * * *", "Pacific/Aukland", "did you mean 'Pacific/Auckland'\\?"),
    ],
)
def test_a_refusal_names_the_part_and_the_way_out(expression: str, zone: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        Schedule.parse(expression, zone)


def test_a_zone_is_faulted_by_its_spelling() -> None:
    assert zone_fault("Pacific/Auckland") is None
    assert "tzdata" in (zone_fault("Nope/X") or "")


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("?/20 0 1 * *", "*/20 0 1 * *"),
        ("0 0 * * SAT-SUN", "0 0 * * 6,0"),
        ("0 0 * * SUN-SUN", "0 0 * * 0-7"),
        ("0 0 * * 1/2", "0 0 * * 1,3,5,0"),
        ("0 0 * * 1-3#2", "0 0 * * 1#2,2#2,3#2"),
        ("1-+5 * * * *", "1-5 * * * *"),
        ("0\u00a03\n* * *", "0 3 * * *"),
        ("0 0 1-10/+3 * *", "0 0 1,4,7,10 * *"),
    ],
)
def test_ways_of_writing_the_same(written: str, same: str) -> None:
    span = instant("2026-01-01"), instant("2026-04-01"), 10_000
    found = Schedule.parse(written).fires_between(*span)
    assert found
    assert found == Schedule.parse(same).fires_between(*span)


# When it fires


@pytest.mark.parametrize(
    "vector",
    VECTORS["fires"],
    ids=lambda vector: f"{vector['expr']} {vector['timezone']} {vector['after'][:10]}",
)
def test_fires_are_those_of_a_real_worker_in_both_directions(vector: dict[str, Any]) -> None:
    schedule = Schedule.parse(vector["expr"], vector["timezone"])
    after, until = instant(vector["after"]), instant(vector["until"])
    expected = [instant(fire) for fire in vector["fires"]]
    assert schedule.fires_between(after, until, 10_000) == expected
    assert backwards(schedule, after, until) == expected


@pytest.mark.parametrize("expression", [*VECTORS["never_fires"], "0 0 * * 7#L", "0 0 30W 2 *", "0 , * * *"])
def test_what_never_fires_says_so_at_once(expression: str) -> None:
    def ask() -> None:
        schedule = Schedule.parse(expression)
        assert not schedule.can_fire
        assert schedule.next_after(instant("2026-11-30")) is None
        assert schedule.last_until(instant("2026-11-30")) is None

    assert seconds(ask) < 0.5


def test_a_rare_date_is_found_over_decades() -> None:
    leap_mondays = Schedule.parse("0 0 * 2 MON#5")
    assert leap_mondays.next_after(instant("2026-11-30")) == instant("2044-02-29")
    assert leap_mondays.last_until(instant("2026-11-30")) == instant("2016-02-29")
    assert Schedule.parse("0 0 29 2 *").next_after(instant("2097-01-01")) == instant("2104-02-29")


def test_the_latest_fire_costs_no_more_after_years_than_after_seconds() -> None:
    every_second = Schedule.parse("* * * * * *", "US/Eastern")
    new_year = Schedule.parse("0 0 1 1 *", "US/Eastern")

    def ask() -> None:
        for _ in range(100):
            assert every_second.last_until(instant("2026-11-30T12:00:00.9")) == instant("2026-11-30T12:00:00")
            assert new_year.last_until(instant("2026-11-30T12:00:00")) == instant("2026-01-01T05:00:00")

    assert seconds(ask) < 1


def test_a_gap_of_a_whole_day_fires_once_at_its_end() -> None:
    """Samoa had no 30 December 2011."""
    assert fires("0 */6 * * *", "Pacific/Apia", "2011-12-30T04:00", "2011-12-30T16:00") == [
        instant("2011-12-30T10:00"),
        instant("2011-12-30T16:00"),
    ]
    assert fires("0 12 30 12 *", "Pacific/Apia", "2011-12-01", "2012-01-30") == [instant("2011-12-30T10:00")]


def test_a_gap_of_two_hours_ends_too() -> None:
    found = fires("*/30 * * * *", "Antarctica/Troll", "2026-03-29T00:00", "2026-03-29T02:00")
    assert found == [instant(f"2026-03-29T{time_}") for time_ in ("00:30", "01:00", "01:30", "02:00")]


def test_each_second_of_a_repeated_hour_is_passed_over_in_one_step() -> None:
    schedule = Schedule.parse("* * * * * *", "US/Eastern")

    def ask() -> None:
        for minute in range(60):
            inside = instant(f"2026-11-01T06:{minute:02}:30.5")
            assert schedule.next_after(inside) == instant("2026-11-01T07:00:00")
            assert schedule.last_until(inside) == instant("2026-11-01T05:59:59")

    assert seconds(ask) < 0.5


def test_seconds_in_a_gap_merge_with_the_fire_at_its_end() -> None:
    found = fires("*/20 59,0,1 1-3 8 3 *", "US/Eastern", "2026-03-08T06:59:30", "2026-03-08T07:00:30")
    assert found == [instant(f"2026-03-08T{time_}") for time_ in ("06:59:40", "07:00:00", "07:00:20")]


def test_the_edges_of_the_calendar_end_the_search() -> None:
    daily = Schedule.parse("@daily", "Pacific/Auckland")
    assert daily.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert daily.last_until(datetime.min.replace(tzinfo=UTC)) is None
    assert daily.next_after(datetime.min.replace(tzinfo=UTC)) is not None
    assert daily.last_until(datetime.max.replace(tzinfo=UTC)) is not None
    assert Schedule.parse("0 0 29 2 *").next_after(instant("9997-01-01")) is None


def test_fires_are_counted_out() -> None:
    hourly = Schedule.parse("@hourly")
    start = instant("2026-11-30T10:00")
    assert hourly.next_fires(start, 2) == [start + timedelta(hours=1), start + timedelta(hours=2)]
    assert hourly.next_fires(start, 0) == []
    assert hourly.fires_between(start, start + timedelta(minutes=59), 5) == []
    assert hourly.fires_between(start, start + timedelta(hours=1), 5) == [start + timedelta(hours=1)]


def test_instants_of_any_zone_are_understood_and_naive_ones_refused() -> None:
    hourly = Schedule.parse("@hourly")
    in_auckland = datetime(2026, 11, 30, 23, 30, tzinfo=ZoneInfo("Pacific/Auckland"))
    assert hourly.next_after(in_auckland) == instant("2026-11-30T11:00")
    with pytest.raises(TypeError):
        hourly.next_after(datetime(2026, 11, 30))


# Against other calendars


def numbers(least: int, greatest: int) -> st.SearchStrategy[str]:
    listed = st.sets(st.integers(least, greatest), min_size=1, max_size=4)
    return st.one_of(
        st.just("*"),
        listed.map(lambda values: ",".join(map(str, sorted(values)))),
        st.tuples(st.integers(least, greatest), st.integers(least, greatest)).map(
            lambda pair: f"{min(pair)}-{max(pair)}"
        ),
    )


days = st.one_of(numbers(1, 31), st.just("L"))
weekdays = st.one_of(
    numbers(0, 6),
    st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda pair: f"{pair[0]}#{pair[1]}"),
    st.integers(0, 6).map(lambda day: f"{day}L"),
)
expressions = st.tuples(numbers(0, 59), numbers(0, 23), days, numbers(1, 12), weekdays).map(" ".join)
instants = st.datetimes(datetime(1990, 1, 1), datetime(2037, 1, 1)).map(
    lambda value: value.replace(microsecond=0, tzinfo=UTC)
)


@settings(max_examples=150, deadline=None)
@given(expression=expressions, start=instants)
def test_in_utc_it_agrees_with_cronsim_in_both_directions(expression: str, start: datetime) -> None:
    schedule = Schedule.parse(expression)
    try:
        theirs = CronSim(expression, start)
        expected = [fire for fire, _ in zip(theirs, range(4), strict=False)]
    except ValueError:
        expected = []  # it refuses what never fires
    assert [fire for fire in schedule.next_fires(start, 4) if fire.year <= start.year + 50] == expected
    if expected:
        last = CronSim(expression, start + SECOND, reverse=True)
        assert schedule.last_until(start) == next(last, None)


#: Zones whose clocks jump by an hour, half an hour, over midnight, by two hours, and by a day.
ZONES = [
    "US/Eastern",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "America/Sao_Paulo",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Africa/Casablanca",
]


def shown_first(wall: datetime, zone: ZoneInfo) -> datetime:
    """When a clock first shows a wall time, or a later one: found by walking through the instants around it."""
    start = wall.replace(tzinfo=UTC) - timedelta(hours=26)
    for minutes in range(0, 60 * 52, 15):
        if (start + timedelta(minutes=minutes)).astimezone(zone).replace(tzinfo=None) >= wall:
            return start + timedelta(minutes=minutes)
    raise AssertionError(f"{zone} never shows {wall}")


@settings(max_examples=120, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    year=st.integers(2005, 2030),
    change=st.integers(0, 3),
    minutes=st.sampled_from(["0", "15", "*/15", "30,45", "0,30"]),
    hours=st.one_of(
        st.just("*"), st.just("*/2"), st.integers(0, 4).map(str), st.just("22-23"), st.just("0-3")
    ),
)
def test_around_every_change_of_the_clock_fires_are_the_walls_first_showings(
    zone: str, year: int, change: int, minutes: str, hours: str
) -> None:
    local = ZoneInfo(zone)
    middles = [
        day
        for number in range(365)
        if (day := datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=number)).astimezone(local).utcoffset()
        != (day + timedelta(days=1)).astimezone(local).utcoffset()
    ]
    if not middles:
        return
    middle = middles[change % len(middles)]
    expression = f"{minutes} {hours} * * *"
    walls = Schedule.parse(expression).fires_between(
        middle - timedelta(days=3), middle + timedelta(days=4), 10_000
    )
    mapped = sorted({shown_first(wall.replace(tzinfo=None), local) for wall in walls})
    after, until = middle - timedelta(days=1), middle + timedelta(days=2)
    expected = [fire for fire in mapped if after < fire <= until]
    schedule = Schedule.parse(expression, zone)
    assert schedule.fires_between(after, until, 10_000) == expected
    assert backwards(schedule, after, until) == expected
