"""The functions that callback expressions may call (contract: api/cel section 4).

Each takes its values, the receiver of a method first. ``matches`` uses the
regular expressions of the ``common-expression-language`` package, which run in linear time; the rest needs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache, partial
from typing import Any, NamedTuple

from awa_django.cel.faults import CelFault
from awa_django.cel.times import Duration, Timestamp, parse_duration, parse_timestamp
from awa_django.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    Budget,
    Uint,
    Value,
    compare,
    holds,
    key_of,
    type_name,
)
from awa_django.errors import CelNotInstalled

__all__ = ["FUNCTIONS", "Function", "regular_expressions"]

Body = Callable[[Sequence[Any], Budget], Value]


class Function(NamedTuple):
    """A function takes ``needs`` values, the receiver of a method counted, unless ``takes_receiver`` is false.

    What is given beyond them is not looked at. None is a function of any number of arguments.
    """

    body: Body
    needs: int | None = 1
    takes_receiver: bool = True

    def arguments(self, *, method: bool) -> int | None:
        """How many arguments it takes beside the receiver; None for all there are."""
        return None if self.needs is None else self.needs - (method and self.takes_receiver)


def _mismatch(function: str, *values: Value) -> CelFault:
    return CelFault(f"{function} does not take {', '.join(type_name(value) for value in values)}")


def _size(values: Sequence[Any], budget: Budget) -> int:
    value = values[0]
    if isinstance(value, str):
        return len(budget.write(value).encode())
    if isinstance(value, list | dict | bytes):
        return len(value)
    raise _mismatch("size", value)


def _contains(values: Sequence[Any], budget: Budget) -> bool:
    whole, part = values[:2]
    if isinstance(whole, list):
        return holds(whole, part, budget, by_value=True)
    if isinstance(whole, dict):
        return key_of(part) in whole
    if type(whole) is type(part) and isinstance(whole, str | bytes):
        budget.read(whole)
        return part in whole
    return False


def _affix(values: Sequence[Any], budget: Budget, *, function: str) -> bool:
    text, part = values[:2]
    if not isinstance(text, str) or not isinstance(part, str):
        raise _mismatch(function, text, part)
    budget.read(part)
    return text.startswith(part) if function == "startsWith" else text.endswith(part)


@cache
def regular_expressions() -> Any:
    """The program that searches ``text`` for ``pattern``. Raises ``CelNotInstalled``."""
    try:
        import cel
    except ImportError as error:
        raise CelNotInstalled("matches") from error
    return cel.compile("text.matches(pattern)")


def _matches(values: Sequence[Any], budget: Budget) -> bool:
    text, pattern = values[:2]
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise _mismatch("matches", text, pattern)
    # The pattern is compiled at each call: 0.02 to 1 ms, up to a thousand elements.
    budget.work(1000)
    budget.read(text)
    program = regular_expressions()
    try:
        found: bool = program.execute({"text": text, "pattern": pattern})
    except (ValueError, TypeError, RuntimeError) as error:
        raise CelFault("matches with a pattern that is no regular expression of linear time") from error
    return found


def _string(values: Sequence[Any], budget: Budget) -> str:
    match values[0]:
        case str() as text:
            return text
        case bool():
            pass
        case int() as number:
            return str(int(number))
        case float() as number:
            return budget.write(_double_text(number))
        case bytes() as data:
            return budget.write(data).decode(errors="replace")
        case Timestamp() | Duration() as time:
            return time.text()
    raise _mismatch("string", values[0])


def _double_text(value: float) -> str:
    """All digits that tell a double from its neighbours, without an exponent."""
    text = repr(value)
    if text in ("inf", "-inf"):
        return text
    if text == "nan":
        return "NaN"
    return f"{Decimal(text):f}".removesuffix(".0")


_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
#: More digits than 64 bits have, leading zeros apart; ``int`` refuses texts of thousands.
_MOST_DIGITS = 20


def _whole(values: Sequence[Any], budget: Budget, *, function: str) -> int:
    """``int`` and ``uint``: numbers truncated, decimal text with an optional sign."""
    value = values[0]
    least, most = (INT_MIN, INT_MAX) if function == "int" else (0, UINT_MAX)
    if isinstance(value, float):
        if value != value:
            return 0 if function == "int" else Uint(0)
        # The bounds as doubles: the double above the greatest int is taken for it.
        if not float(least) <= value <= float(most):
            raise CelFault(f"{function} of a double out of range")
        number = min(int(value), most)
    elif isinstance(value, str):
        budget.read(value)
        if not _INTEGER.fullmatch(value) or (function == "uint" and value.startswith("-")):
            raise CelFault(f"{function} of a text that is no decimal number in its range")
        digits = value.lstrip("+-").lstrip("0") or "0"
        if len(digits) > _MOST_DIGITS:
            raise CelFault(f"{function} of a text out of range")
        number = int(digits) * (-1 if value.startswith("-") else 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = int(value)
    else:
        raise _mismatch(function, value)
    if not least <= number <= most:
        raise CelFault(f"{function} of a number out of range")
    return number if function == "int" else Uint(number)


def _double(values: Sequence[Any], budget: Budget) -> float:
    value = values[0]
    if isinstance(value, str):
        budget.read(value)
        if not _DOUBLE.fullmatch(value):
            raise CelFault("double of a text that is no number")
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _mismatch("double", value)


def _of_text(values: Sequence[Any], budget: Budget, *, function: str, make: Callable[[str], Value]) -> Value:
    if not isinstance(values[0], str):
        raise _mismatch(function, values[0])
    return make(budget.write(values[0]))


def _extreme(values: Sequence[Any], budget: Budget, *, sign: int) -> Value:
    """``max`` (sign 1) and ``min`` (sign -1) of the values, or of one list; of equal ones the last."""
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values:
        return None
    budget.work(len(values))
    found = values[0]
    for value in values[1:]:
        if isinstance(value, bytes):
            raise _mismatch("max" if sign > 0 else "min", value)
        if (value is None and found is None) or compare(value, found, budget) * sign >= 0:
            found = value
    return found


def _getter(values: Sequence[Any], budget: Budget, *, function: str) -> int:
    value = values[0]
    if isinstance(value, Timestamp):
        return _TIMESTAMP_PARTS[function](value)
    if isinstance(value, Duration) and function in _DURATION_UNITS:
        return value.whole(_DURATION_UNITS[function])
    raise _mismatch(function, value)


_TIMESTAMP_PARTS: dict[str, Callable[[Timestamp], int]] = {
    "getFullYear": lambda time: time.day[0],
    "getMonth": lambda time: time.day[1].month - 1,
    "getDate": lambda time: time.day[1].day,
    "getDayOfMonth": lambda time: time.day[1].day - 1,
    "getDayOfYear": lambda time: time.day[1].timetuple().tm_yday - 1,
    "getDayOfWeek": lambda time: time.day[1].isoweekday() % 7,
    "getHours": lambda time: time.time[0],
    "getMinutes": lambda time: time.time[1],
    "getSeconds": lambda time: time.time[2],
    "getMilliseconds": lambda time: time.nanoseconds // 1_000_000,
}
_DURATION_UNITS = {"getHours": "h", "getMinutes": "m", "getSeconds": "s", "getMilliseconds": "ms"}

FUNCTIONS: dict[str, Function] = {
    "size": Function(_size),
    "contains": Function(_contains, 2),
    "startsWith": Function(partial(_affix, function="startsWith"), 2),
    "endsWith": Function(partial(_affix, function="endsWith"), 2),
    "matches": Function(_matches, 2),
    "string": Function(_string),
    "int": Function(partial(_whole, function="int")),
    "uint": Function(partial(_whole, function="uint")),
    "double": Function(_double),
    "bytes": Function(partial(_of_text, function="bytes", make=str.encode), takes_receiver=False),
    "timestamp": Function(
        partial(_of_text, function="timestamp", make=parse_timestamp), takes_receiver=False
    ),
    "duration": Function(partial(_of_text, function="duration", make=parse_duration), takes_receiver=False),
    "max": Function(partial(_extreme, sign=1), None, takes_receiver=False),
    "min": Function(partial(_extreme, sign=-1), None, takes_receiver=False),
    **{name: Function(partial(_getter, function=name)) for name in _TIMESTAMP_PARTS},
}
