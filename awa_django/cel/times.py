"""Timestamps and durations of callback expressions, with nanoseconds (contract: api/cel section 4)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import date

from awa_django.cel.faults import CelFault

__all__ = ["Duration", "Timestamp", "parse_duration", "parse_timestamp"]

SECOND = 1_000_000_000
_MAX = 2**63 - 1
_DAY = 86400
_EPOCH = date(1970, 1, 1).toordinal()
#: The Gregorian calendar repeats after so many days; ``date`` has no year 0 and none above 9999.
_CYCLE = 146_097
#: What arithmetic on timestamps may reach: the years 1 to 9999, UTC, in seconds.
_FIRST = -62_135_596_800
_LAST = 253_402_300_799

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}
_TERM = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|nan))(ns|us|ms|s|m|h)"
)


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time in nanoseconds."""

    nanoseconds: int

    def whole(self, unit: str) -> int:
        """The duration in ``unit``, truncated toward zero, and to 32 bits with a sign.

        Every evaluator of a stored expression lets these counts overflow: milliseconds after 24 days, seconds after 68
        years.
        """
        size = abs(self.nanoseconds) // _UNITS[unit]
        return ((size if self.nanoseconds >= 0 else -size) + 2**31) % 2**32 - 2**31

    def text(self) -> str:
        """The duration as ``1h0m0s``, ``1m30s``, ``1.5s``, ``1.5ms`` or ``0s``.

        A negative one is printed as its complement to 2**64, and one beyond that modulo 2**64: every evaluator
        of a stored expression prints them so.
        """
        sign = "-" if self.nanoseconds < 0 else ""
        rest = self.nanoseconds % 2**64
        if rest < SECOND:
            for unit, name in (("ms", "ms"), ("us", "µs"), ("ns", "ns")):
                if rest >= _UNITS[unit]:
                    return f"{sign}{_decimal(rest, _UNITS[unit])}{name}"
            return "0s"
        minutes, rest = divmod(rest, 60 * SECOND)
        hours, minutes = divmod(minutes, 60)
        text = f"{_decimal(rest, SECOND)}s"
        if hours or minutes:
            text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
        return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)


def parse_duration(text: str) -> Duration:
    """Terms such as ``1h30m`` with an optional sign; what follows the last term is not looked at."""
    if text in ("0", "-0"):
        return Duration(0)
    negative = text.startswith("-")
    at = first = int(negative)
    total = 0
    while match := _TERM.match(text, at):
        total += _saturated(float(match[1]) * _UNITS[match[2]])
        at = match.end()
    if at == first:
        raise CelFault("duration(...) of a text that is no duration such as 1h30m")
    return Duration(-total if negative else total)


def _saturated(number: float) -> int:
    """A double as 64 bits: truncated, and the nearest of them if it is beyond."""
    if math.isnan(number):
        return 0
    return _MAX if number >= _MAX else -_MAX if number <= -_MAX else int(number)


@dataclass(frozen=True, order=True)
class Timestamp:
    """An instant, with the offset it was written in. Equal instants are equal, whatever their offsets.

    A leap second is the second before it with a second too many nanoseconds.
    """

    seconds: int
    nanoseconds: int
    offset: int = field(compare=False, default=0)

    @property
    def _local(self) -> tuple[int, int]:
        return divmod(self.seconds + self.offset, _DAY)

    @property
    def day(self) -> tuple[int, date]:
        """The year, and a date of the same month, day, weekday and place in a year of the same length."""
        cycles, place = divmod(self._local[0] + _EPOCH - 1, _CYCLE)
        # One cycle later, so that the year 0 has a date.
        found = date.fromordinal(place + 1 + _CYCLE)
        return found.year - 400 + 400 * cycles, found

    @property
    def time(self) -> tuple[int, int, int]:
        """Hour, minute and second."""
        minutes, second = divmod(self._local[1], 60)
        return *divmod(minutes, 60), second

    def text(self) -> str:
        """RFC 3339 with a numeric offset, and 0, 3, 6 or 9 digits of a second's fraction."""
        year, day = self.day
        hour, minute, second = self.time
        fraction = self.nanoseconds
        if fraction >= SECOND:
            second, fraction = second + 1, fraction - SECOND
        digits = f"{fraction:09d}"
        while digits.endswith("000"):
            digits = digits[:-3]
        sign = "-" if self.offset < 0 else "+"
        ahead = divmod(abs(self.offset) // 60, 60)
        return (
            f"{'+' if year > 9999 else '-' if year < 0 else ''}{abs(year):04d}-{day.month:02d}-{day.day:02d}"
            f"T{hour:02d}:{minute:02d}:{second:02d}{'.' if digits else ''}{digits}"
            f"{sign}{ahead[0]:02d}:{ahead[1]:02d}"
        )

    def plus(self, change: Duration) -> Timestamp:
        """The instant after (or before) this; the offset stays."""
        nanoseconds = self.nanoseconds + change.nanoseconds
        if self.nanoseconds >= SECOND:
            if SECOND <= nanoseconds < 2 * SECOND:
                return Timestamp(self.seconds, nanoseconds, self.offset)
            if nanoseconds >= 2 * SECOND:
                nanoseconds -= SECOND
        seconds, nanoseconds = divmod(nanoseconds, SECOND)
        seconds += self.seconds
        if not _FIRST <= seconds <= _LAST:
            raise CelFault("a timestamp outside the years 1 to 9999")
        return Timestamp(seconds, nanoseconds, self.offset)

    def minus(self, other: Timestamp) -> Duration:
        """The time from ``other`` to this."""
        return Duration((self.seconds - other.seconds) * SECOND + self.nanoseconds - other.nanoseconds)


_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+\u2212-])([0-9]{2}):([0-9]{2}))"
)


def parse_timestamp(text: str) -> Timestamp:
    """An RFC 3339 date and time with offset; digits of a fraction after the ninth are cut off."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise CelFault("timestamp(...) of a text that is no RFC 3339 date and time with offset")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        # The same day one calendar cycle later: the year 0 is written, and ``date`` lacks it.
        ordinal = date(year + 400 if year < 400 else year, month, day).toordinal()
    except ValueError:
        raise CelFault("timestamp(...) of a day that is in no calendar") from None
    if year < 400:
        ordinal -= _CYCLE
    ahead = (int(match[9] or 0), int(match[10] or 0))
    if hour > 23 or minute > 59 or second > 60 or ahead[0] > 23 or ahead[1] > 59:
        raise CelFault("timestamp(...) of a time that is on no clock")
    offset = (ahead[0] * 3600 + ahead[1] * 60) * (-1 if match[8] in ("-", "\u2212") else 1)
    nanoseconds = int((match[7] or "")[:9].ljust(9, "0"))
    if second == 60:
        second, nanoseconds = 59, nanoseconds + SECOND
    seconds = (ordinal - _EPOCH) * _DAY + hour * 3600 + minute * 60 + second - offset
    return Timestamp(seconds, nanoseconds, offset)
