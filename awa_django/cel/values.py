"""Values of callback expressions: what JSON becomes, how values compare, what becomes of a result.

CEL's int is ``int``, its uint is :class:`Uint`, double, string, bool, bytes, null and list are the obvious types;
a map is a ``dict`` whose keys are text or :class:`Key` (contract: api/cel sections 3 and 4).
"""

from __future__ import annotations

import base64
import math
from typing import NamedTuple, TypeAlias, TypeVar

from awa_django.cel.faults import CelFault
from awa_django.cel.times import Duration, Timestamp

_Text = TypeVar("_Text", str, bytes)

__all__ = [
    "INT_MAX",
    "INT_MIN",
    "UINT_MAX",
    "Budget",
    "Key",
    "Uint",
    "Value",
    "compare",
    "equal",
    "from_json",
    "holds",
    "key_of",
    "to_json",
    "type_name",
    "value_of_key",
]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
UINT_MAX = 2**64 - 1

#: Steps of comprehensions in one evaluation (contract: api/cel section 6).
MAX_ITERATIONS = 100_000
#: Elements touched in one evaluation, where 64 characters read or 16 written count as one: a second or two, and
#: some 100 MB, at most. Measured with CPython 3.11.
MAX_WORK = 2_000_000


class Uint(int):
    """An unsigned integer, unequal to every signed one."""

    __slots__ = ()


class Key(NamedTuple):
    """A key of a map that is no text; ``{1: ...}``, ``{1u: ...}`` and ``{true: ...}`` are three maps."""

    type: type
    value: int


#: A value while an expression is evaluated.
Value: TypeAlias = object

_TYPE_NAMES: dict[type, str] = {
    int: "int",
    Uint: "uint",
    float: "double",
    bool: "bool",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    list: "list",
    dict: "map",
    Duration: "duration",
    Timestamp: "timestamp",
}


def type_name(value: Value) -> str:
    """The name CEL has for the type of a value."""
    return _TYPE_NAMES[type(value)]


class Budget:
    """What one evaluation may still do, so that no payload can hold up the transaction that evaluates it."""

    __slots__ = ("_iterations", "_work")

    def __init__(self) -> None:
        self._iterations = MAX_ITERATIONS
        self._work = MAX_WORK

    def iterate(self) -> None:
        """One step of a comprehension."""
        self._iterations -= 1
        if self._iterations < 0:
            raise CelFault(f"more than {MAX_ITERATIONS} steps of comprehensions")

    def work(self, amount: int) -> None:
        """So many elements touched."""
        self._work -= amount
        if self._work < 0:
            raise CelFault(f"more than {MAX_WORK} elements compared or copied")

    def read(self, text: str | bytes) -> None:
        """A text searched, compared or parsed."""
        self.work(len(text) >> 6)

    def write(self, text: _Text) -> _Text:
        """A text made, which is returned."""
        self.work(len(text) >> 4)
        return text


def from_json(value: object) -> Value:
    """A JSON value as an expression sees it: an integer from 0 up is a uint, a smaller one an int."""
    kind = type(value)
    if kind is str or kind is bool or kind is float or value is None:
        return value
    if isinstance(value, int):
        if value > UINT_MAX or value < INT_MIN:
            return float(value)
        return Uint(value) if value >= 0 else int(value)
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise CelFault(f"the payload is no JSON: a member is named by a {type(name).__name__}")
        return {name: from_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [from_json(item) for item in value]
    raise CelFault(f"the payload is no JSON: it holds a {kind.__name__}")


def to_json(value: Value, budget: Budget) -> object:
    """A result as JSON. Raises ``CelFault`` for a duration of more than 292 years, and for a result without end."""
    match value:
        case str():
            return budget.write(value)
        case float():
            return value if math.isfinite(value) else None
        case Uint():
            return int(value)
        case list():
            budget.work(len(value))
            return [to_json(item, budget) for item in value]
        case dict():
            budget.work(len(value))
            return {_key_text(key): to_json(member, budget) for key, member in value.items()}
        case bytes():
            budget.write(value)
            return base64.b64encode(value).decode()
        case Duration():
            if not INT_MIN <= value.nanoseconds <= INT_MAX:
                raise CelFault("a duration of more than 292 years is no JSON")
            return value.nanoseconds
        case Timestamp():
            return value.text()
    return value


def _key_text(key: str | Key) -> str:
    if isinstance(key, str):
        return key
    return str(key.value).lower() if key.type is bool else str(int(key.value))


def key_of(value: Value) -> str | Key:
    """A value as key of a map. Raises ``CelFault`` for types that are none."""
    kind = type(value)
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return Key(kind, value)
    raise CelFault(f"a {type_name(value)} cannot be the key of a map")


def value_of_key(key: str | Key) -> Value:
    """A key as the value that a comprehension sees."""
    return key if isinstance(key, str) else key.value


_NUMBERS = (int, Uint, float)


def compare(left: Value, right: Value, budget: Budget) -> int:
    """Below, at or above 0, as ``left`` is less than, equal to or greater than ``right``.

    Numbers compare by value across types, with a double after conversion to double. Raises ``CelFault`` for
    NaN and for types without a common order.
    """
    kinds = type(left), type(right)
    if kinds[0] in _NUMBERS and kinds[1] in _NUMBERS:
        if float in kinds:
            left, right = float(left), float(right)  # type: ignore[arg-type]
            if math.isnan(left) or math.isnan(right):
                raise CelFault("NaN is neither less nor greater than anything")
    elif kinds[0] is not kinds[1] or kinds[0] not in (str, bytes, bool, Duration, Timestamp):
        raise CelFault(f"a {type_name(left)} and a {type_name(right)} have no order")
    elif isinstance(left, str | bytes):
        budget.read(left)
    return int(left > right) - int(left < right)  # type: ignore[operator]


def equal(left: Value, right: Value, budget: Budget, *, by_value: bool = False) -> bool:
    """``==``: values of different types are unequal, numbers too; containers compare element by element.

    ``by_value`` is how ``contains`` compares: numbers of any type by value, but keys of maps as ever.
    """
    kinds = type(left), type(right)
    if kinds[0] is not kinds[1]:
        if not by_value or kinds[0] not in _NUMBERS or kinds[1] not in _NUMBERS:
            return False
        return left == right if float not in kinds else float(left) == float(right)  # type: ignore[arg-type]
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return False
        budget.work(len(left))
        pairs = zip(left, right, strict=True)
        return all(equal(one, other, budget, by_value=by_value) for one, other in pairs)
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return False
        budget.work(len(left))
        return all(equal(member, right[key], budget, by_value=by_value) for key, member in left.items())
    if isinstance(left, str | bytes):
        budget.read(left)
    return left == right


def holds(items: list[Value], value: Value, budget: Budget, *, by_value: bool = False) -> bool:
    """Whether an item of a list is equal to ``value``."""
    place = next((at for at, item in enumerate(items) if equal(item, value, budget, by_value=by_value)), None)
    budget.work(len(items) if place is None else place + 1)
    return place is not None
