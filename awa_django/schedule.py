"""Cron arithmetic: when an expression fires, in the wall time of a zone. Pure; asks no database and no clock.

:meth:`Schedule.parse` reads an expression of five fields (minute, hour, day, month, weekday) or six (second
first) and a zone. The search works on the calendar, not tick by tick: it goes to the nearest matching month, day and
second, in either direction, and ends after one cycle of the calendar. So the latest fire before now costs the
same after a year of silence as after a second, and a date that never comes costs milliseconds, once.
(contract: runtime/cron sections 4 and 5)

**Fields match the wall clock, and the wall clock is not steady.** Every matching wall time stands for one instant:
itself where the clock shows it once; its first showing where the clock goes back over it; the end of the gap where
the clock jumps over it. That map never decreases, so both directions search wall times and translate what they
find; several matches inside one gap stand for the same instant and are one fire.

Cron libraries disagree on all of this, so the arithmetic is our own. cronsim, which the tests run beside it where the
two mean the same, ANDs day and weekday when either begins with ``*``, has no ``nW``, repeats wildcards in a
repeated hour, and drops its rules for gaps where there are six fields.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from awa_django.errors import AwaError

__all__ = ["InvalidSchedule", "Schedule", "zone_fault"]

#: The Gregorian calendar repeats itself after this many years, weekdays included.
_CYCLE_YEARS = 400
#: The years searched are those of Python's calendar but for its edges, beyond which an offset from UTC may reach.
_YEARS = range(2, 9999)
_EARLIEST, _LATEST = datetime(2, 1, 2, tzinfo=UTC), datetime(9998, 12, 30, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
#: The greatest step that every client reads. One beyond its field means the first value only.
_GREATEST_STEP = 255

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = dict(
    zip(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
        range(1, 13),
        strict=True,
    )
)
_WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
_SUNDAY = 7
#: These depend on the machine, or mean no zone at all.
_NO_ZONES = frozenset({"Factory", "localtime", "posixrules"})

_VALUE = r"\+?[0-9]+|\+?[A-Z]{3}"
_SPAN = re.compile(rf"(?:(?P<all>[*?])|(?P<first>{_VALUE})(?:-(?P<last>{_VALUE}))?)(?:/(?P<step>\+?[0-9]+))?")
_NEAREST = re.compile(r"(?P<day>\+?[0-9]+)W")
_NTH = re.compile(rf"(?P<first>{_VALUE})(?:-(?P<last>{_VALUE}))?#(?P<nth>\+?[0-9]+|L)")
_LAST = re.compile(rf"(?P<weekday>{_VALUE})L")

_Direction = Literal[1, -1]


class InvalidSchedule(AwaError, ValueError):
    """An expression or zone that cannot be read; the message names the part and says what is possible."""


class _Field(NamedTuple):
    name: str
    least: int
    greatest: int
    names: Mapping[str, int] = MappingProxyType({})


_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("weekday", 0, _SUNDAY, _WEEKDAYS),
)
_DAY, _WEEKDAY = _FIELDS[3], _FIELDS[5]


@dataclass(slots=True)
class _Values:
    """What one field matches. ``nth`` are pairs of a weekday and its number in the month, 0 for the last."""

    restricted: bool = True
    numbers: set[int] = field(default_factory=set)
    last: bool = False
    nearest: set[int] = field(default_factory=set)
    nth: set[tuple[int, int]] = field(default_factory=set)

    @property
    def ascending(self) -> tuple[int, ...]:
        return tuple(sorted(self.numbers))


@dataclass(frozen=True, slots=True)
class _Days:
    """Which days of a month match: if both fields restrict, either suffices."""

    numbers: _Values
    weekdays: _Values

    def of(self, year: int, month: int) -> tuple[int, ...]:
        """The matching days of a month, ascending."""
        first_weekday, length = monthrange(year, month)
        numbers, weekdays = self.numbers, self.weekdays
        if not numbers.restricted and not weekdays.restricted:
            return tuple(range(1, length + 1))
        found: set[int] = set()
        if numbers.restricted:
            found.update(day for day in numbers.numbers if day <= length)
            if numbers.last:
                found.add(length)
            if numbers.nearest:
                found.update(_nearest_weekdays(numbers.nearest, year, month))
        if weekdays.restricted and (weekdays.numbers or weekdays.nth):
            for day in range(1, length + 1):
                # monthrange counts from Monday as 0, cron from Sunday.
                weekday = (first_weekday + day) % 7
                if (
                    weekday in weekdays.numbers
                    or (weekday, (day + 6) // 7) in weekdays.nth
                    or (day + 7 > length and (weekday, 0) in weekdays.nth)
                ):
                    found.add(day)
        return tuple(sorted(found))


def _nearest_weekdays(days: set[int], year: int, month: int) -> Iterator[int]:
    """The days of a month that are the weekday nearest to one of these days, be that of a neighbouring month."""
    for index in range(year * 12 + month - 2, year * 12 + month + 1):
        year_, month_ = index // 12, index % 12 + 1
        length = monthrange(year_, month_)[1]
        for day in days:
            if day <= length:
                wanted = date(year_, month_, day)
                landed = wanted + timedelta(days={5: -1, 6: 1}.get(wanted.weekday(), 0))
                if (landed.year, landed.month) == (year, month):
                    yield landed.day


@dataclass(frozen=True)
class Schedule:
    """An expression in a zone, read. Made by :meth:`parse`."""

    expression: str
    timezone: str
    _zone: tzinfo = field(repr=False, compare=False)
    _seconds: tuple[int, ...] = field(repr=False, compare=False)
    _minutes: tuple[int, ...] = field(repr=False, compare=False)
    _hours: tuple[int, ...] = field(repr=False, compare=False)
    _months: tuple[int, ...] = field(repr=False, compare=False)
    _days: _Days = field(repr=False, compare=False)

    @staticmethod
    def parse(expression: str, timezone: str = "UTC") -> Schedule:
        """Read an expression. Raises ``InvalidSchedule`` naming what is wrong with it, or with the zone."""
        return _parse(expression, timezone)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first fire later than an aware instant, in UTC; None if the calendar holds none."""
        instant = max(instant, _EARLIEST)
        if instant >= _LATEST or not self.can_fire:
            return None
        found = self._search(self._spent(instant) + _SECOND, 1)
        return None if found is None else _instant(found, self._zone)

    def last_until(self, instant: datetime) -> datetime | None:
        """The last fire at or before an aware instant, in UTC; None if the calendar holds none."""
        instant = min(instant, _LATEST)
        if instant <= _EARLIEST or not self.can_fire:
            return None
        found = self._search(self._spent(instant), -1)
        return None if found is None else _instant(found, self._zone)

    def fires_between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Fires later than ``after`` and at or before ``until``, ascending; the first ``limit`` of them."""
        fires: list[datetime] = []
        fire = self.next_after(after) if limit > 0 else None
        while fire is not None and fire <= until:
            fires.append(fire)
            fire = self.next_after(fire) if len(fires) < limit else None
        return fires

    def next_fires(self, after: datetime, count: int) -> list[datetime]:
        """The next ``count`` fires later than an aware instant; fewer if the calendar ends."""
        return self.fires_between(after, _LATEST, count)

    @cached_property
    def can_fire(self) -> bool:
        """Whether any date and time match: ``0 0 31 2 *`` is accepted and never fires."""
        if not (self._seconds and self._minutes and self._hours):
            return False
        years = range(2000, 2000 + _CYCLE_YEARS)
        return any(self._days.of(year, month) for year in years for month in self._months)

    def _spent(self, instant: datetime) -> datetime:
        """The last second on the wall that stands for no later instant than this one.

        In the second showing of repeated time that is the end of the repetition: all of it stood for the first showing.
        """
        local = instant.replace(microsecond=0).astimezone(self._zone)
        wall = local.replace(tzinfo=None, fold=0)
        if not local.fold:
            return wall
        before, after = _offsets(wall, self._zone)
        change = _change(self._zone, local - (before - after), local)
        return (change + before).replace(tzinfo=None) - _SECOND

    def _search(self, wall: datetime, direction: _Direction) -> datetime | None:
        """The nearest matching wall time, this one or one that lies in that direction."""
        for year in range(wall.year, wall.year + direction * (_CYCLE_YEARS + 1), direction):
            if year not in _YEARS:
                break
            here = year == wall.year
            for month in _onward(self._months, wall.month if here else None, direction):
                here = (year, month) == (wall.year, wall.month)
                for day in _onward(self._days.of(year, month), wall.day if here else None, direction):
                    start = wall if here and day == wall.day else None
                    for hour, minute, second in self._times(start, direction):
                        return datetime(year, month, day, hour, minute, second)
        return None

    def _times(self, start: datetime | None, direction: _Direction) -> Iterator[tuple[int, int, int]]:
        """The matching times of a day, from ``start`` on in that direction."""
        for hour in _onward(self._hours, start.hour if start else None, direction):
            in_hour = start if start and start.hour == hour else None
            for minute in _onward(self._minutes, in_hour.minute if in_hour else None, direction):
                in_minute = in_hour if in_hour and in_hour.minute == minute else None
                for second in _onward(self._seconds, in_minute.second if in_minute else None, direction):
                    yield hour, minute, second


def _onward(values: Sequence[int], start: int | None, direction: _Direction) -> Sequence[int]:
    """Ascending values from ``start`` on, or all of them, in that direction."""
    if direction > 0:
        return values if start is None else values[bisect_left(values, start) :]
    return values[::-1] if start is None else values[: bisect_right(values, start)][::-1]


# Wall time and instants


def _offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """The offsets from UTC before and after a change of the clock that a wall time lies in; equal where it does not."""
    before = wall.replace(tzinfo=zone).utcoffset()
    after = wall.replace(tzinfo=zone, fold=1).utcoffset()
    assert before is not None
    assert after is not None
    return before, after


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """What a wall time stands for: its first showing, or the first instant after the gap that it lies in."""
    before, after = _offsets(wall, zone)
    if before >= after:
        return (wall - before).replace(tzinfo=UTC)
    return _change(zone, (wall - after).replace(tzinfo=UTC), (wall - before).replace(tzinfo=UTC))


def _change(zone: tzinfo, earlier: datetime, later: datetime) -> datetime:
    """The instant between two, in UTC, from which on the offset of the later one is in force."""
    earlier, offset = earlier.astimezone(UTC), later.astimezone(zone).utcoffset()
    low, high = 0, round((later - earlier).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (earlier + middle * _SECOND).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return earlier + high * _SECOND


# Reading


@lru_cache(maxsize=4096)
def _parse(expression: str, timezone: str) -> Schedule:
    if fault := zone_fault(timezone):
        raise InvalidSchedule(fault)
    fields = expression.split()
    if len(fields) == 1 and expression.strip().startswith("@"):
        fields = _nickname(fields[0]).split()
    if len(fields) not in (5, 6):
        raise InvalidSchedule(
            f"cron expression {expression!r} has {len(fields)} field{'' if len(fields) == 1 else 's'}; needed are five "
            "(minute, hour, day of month, month, weekday), six (second first), or a nickname such as '@daily'"
        )
    if len(fields) == 5:
        fields.insert(0, "0")
    values = []
    for described, text in zip(_FIELDS, fields, strict=True):
        try:
            values.append(_read(described, text))
        except InvalidSchedule as fault_:
            raise InvalidSchedule(
                f"{described.name} {text!r} of cron expression {expression!r}: {fault_}"
            ) from None
    seconds, minutes, hours, days, months, weekdays = values
    return Schedule(
        expression=expression,
        timezone=timezone,
        _zone=ZoneInfo(timezone),
        _seconds=seconds.ascending,
        _minutes=minutes.ascending,
        _hours=hours.ascending,
        _months=months.ascending,
        _days=_Days(days, weekdays),
    )


def _nickname(name: str) -> str:
    if (meaning := _NICKNAMES.get(name.lower())) is not None:
        return meaning
    near = next(iter(difflib.get_close_matches(name.lower(), _NICKNAMES)), None)
    if name.lower() == "@midnight":
        near = "@daily"
    raise InvalidSchedule(
        f"nickname {name!r} is unknown{f'; write {near!r} instead' if near else ''}; known are {', '.join(_NICKNAMES)}"
    )


def _read(described: _Field, text: str) -> _Values:
    """One field. Raises ``InvalidSchedule`` with what is wrong, without naming the field."""
    if not text.isascii():
        raise InvalidSchedule("only the digits and letters of ASCII are read")
    if text in ("*", "?"):
        return _Values(False, set(range(described.least, described.greatest + 1)))
    values = _Values()
    for item in filter(None, text.upper().split(",")):
        _read_item(described, item, values)
    return values


def _read_item(described: _Field, item: str, values: _Values) -> None:
    """Add what one item of a list matches."""
    if item in ("*", "?"):
        raise InvalidSchedule(f"{item!r} stands alone, not in a list")
    if item == "L" and described in (_DAY, _WEEKDAY):
        # As a weekday it means nothing, and every client accepts it.
        values.last = described is _DAY
    elif described is _DAY and (match := _NEAREST.fullmatch(item)):
        values.nearest.add(_value(described, match["day"]))
    elif described is _WEEKDAY and (match := _NTH.fullmatch(item)):
        nth = 0 if match["nth"] == "L" else int(match["nth"])
        if match["nth"] != "L" and not 1 <= nth <= 5:
            raise InvalidSchedule(
                f"{item!r}: a month has the first to the fifth of a weekday, '#1' to '#5', or '#L'"
            )
        # 7L and 7#L are read by every client and match nothing, so there 7 is not made Sunday.
        weekdays = _range(described, match["first"], match["last"])
        values.nth.update((weekday % 7 if nth else weekday, nth) for weekday in weekdays)
    elif described is _WEEKDAY and (match := _LAST.fullmatch(item)):
        values.nth.add((_value(described, match["weekday"]), 0))
    elif match := _SPAN.fullmatch(item):
        numbers = _span(described, match)
        values.numbers.update(number % 7 if described is _WEEKDAY else number for number in numbers)
    else:
        raise InvalidSchedule(f"{item!r} cannot be read; {_HINTS[described.name]}")


_NUMBERS = "possible are a value, a range 1-5, steps */2, 1-9/2 and 3/2, and lists of them"
_HINTS = {
    "second": _NUMBERS,
    "minute": _NUMBERS,
    "hour": _NUMBERS,
    "day of month": f"{_NUMBERS}, L for the last day, and 15W for the weekday nearest to the 15th",
    "month": f"{_NUMBERS}, with JAN to DEC for 1 to 12",
    "weekday": f"{_NUMBERS}, with SUN to SAT for 0 to 6, 5#2 for the second Friday, and 5L for the last",
}


def _span(described: _Field, match: re.Match[str]) -> Sequence[int]:
    step = int(match["step"] or 1)
    if not 1 <= step <= _GREATEST_STEP:
        raise InvalidSchedule(f"step {match['step']} is outside 1 to {_GREATEST_STEP}")
    if match["all"]:
        return range(described.least, described.greatest + 1)[::step]
    if match["step"] and not match["last"]:
        return range(_value(described, match["first"]), described.greatest + 1)[::step]
    return _range(described, match["first"], match["last"])[::step]


def _range(described: _Field, first: str, last: str | None) -> Sequence[int]:
    low = _value(described, first)
    # A week that ends on Sunday ends on its seventh day.
    high = low if last is None else _SUNDAY if last == "SUN" else _value(described, last)
    if high < low:
        raise InvalidSchedule(
            f"range {first}-{last} runs backwards; write it as two, such as {_two(described, low, high)}"
        )
    return range(low, high + 1)


def _two(described: _Field, low: int, high: int) -> str:
    return f"{low}-{described.greatest},{described.least}-{high}"


def _value(described: _Field, text: str) -> int:
    text = text.removeprefix("+")
    number = described.names.get(text)
    if number is None:
        if not text.isdigit():
            names = f"; names are {', '.join(described.names)}" if described.names else ""
            raise InvalidSchedule(f"{text!r} is no number{names}")
        number = int(text)
    if not described.least <= number <= described.greatest:
        raise InvalidSchedule(f"{text} is outside {described.least} to {described.greatest}")
    return number


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - _NO_ZONES


def zone_fault(name: str) -> str | None:
    """Why a name is no time zone, or None. Spelled exactly, since other clients and file systems differ in case."""
    if name in _zones():
        return None
    near = next((zone for zone in _zones() if zone.lower() == name.lower()), None)
    if near is None:
        near = next(iter(difflib.get_close_matches(name, _zones(), n=1)), None)
    return (
        f"time zone {name!r} is unknown here{f'; did you mean {near!r}?' if near else ''}; names are those of the IANA "
        "database, exactly as spelled there, and package tzdata brings those that the system lacks"
    )
