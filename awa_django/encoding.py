"""Arguments on their way into the database and back (contract: api/producing section 4).

:func:`encode` turns Python values into plain JSON and refuses what JSON cannot hold, with a path such
as ``args.items[3].when``. :func:`decoder` builds from type hints what turns the JSON back:

===============================================  ==================================  =========================
given                                            stored                              comes back as
===============================================  ==================================  =========================
str, bool, None, list, dict with str keys        as they are                         the same
int from -2^63 to 2^64-1                         number                              int
float, finite                                    number                              float, if annotated
tuple                                            list                                tuple, if annotated
datetime, date, time                             ISO 8601 text, UTC as ``Z``         the same, if annotated
timedelta                                        ISO 8601 duration                   the same, if annotated
UUID, Decimal                                    text                                the same, if annotated
str or int Enum                                  its value                           the member, if annotated
lazy text                                        text                                str
dataclass, model with ``model_dump``             object of its fields                the same, if annotated
===============================================  ==================================  =========================

The texts are those of ``DjangoJSONEncoder`` with one difference: it drops microseconds, which are kept here, so
that what the handler gets is equal to what was enqueued.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string
from django.utils.functional import Promise

from awa_django.errors import ConfigurationError, InvalidJob
from awa_django.jobs import JsonValue

__all__ = [
    "Decoder",
    "annotations_of",
    "decoder",
    "dump_json",
    "encode",
    "member_path",
    "members_decoder",
    "named",
    "names_fault",
    "text_fault",
]

#: Levels of lists and objects, the outermost counted; deeper values cannot be read by every client.
MAX_DEPTH = 64
_LEAST_INT = -(2**63)
_GREATEST_INT = 2**64 - 1
#: PostgreSQL writes this number with 309 digits, which the parser of other clients rounds to infinity.
_GREATEST_FLOAT = 1.7976931348623157e308

Decoder = Callable[[Any], Any]

#: JSON text as PostgreSQL gets it; one encoder for all, since making one costs more than a small job.
dump_json: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


class _Refusal(Exception):
    """A value that cannot be stored; collects the path while it unwinds, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str | int] = []

    def at(self, root: str) -> InvalidJob:
        path = root
        for step in reversed(self.steps):
            path = member_path(path, step)
        return InvalidJob(path, self.reason)


def member_path(parent: str, step: str | int) -> str:
    """The path of an element: ``args.when``, ``args["odd key"]`` or ``args[3]``."""
    if isinstance(step, int):
        return f"{parent}[{step}]"
    if step.isidentifier():
        return f"{parent}.{step}"
    return f"{parent}[{json.dumps(step)}]"


def text_fault(value: str) -> str | None:
    """Why PostgreSQL cannot store a text, or None."""
    if "\0" in value:
        return "U+0000 cannot be stored in PostgreSQL"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"a lone surrogate (U+{ord(value[error.start]):04X}) is not text"
    return None


def encode(value: object, path: str = "args") -> JsonValue:
    """``value`` as plain JSON, a copy. Raises ``InvalidJob`` with the path of what cannot be stored."""
    try:
        return _encode(value, MAX_DEPTH)
    except _Refusal as refusal:
        raise refusal.at(path) from None


def _encode(value: Any, room: int) -> JsonValue:
    kind = type(value)
    if kind is str:
        if (fault := text_fault(value)) is not None:
            raise _Refusal(fault)
        return value  # type: ignore[no-any-return]
    if kind is int:
        if not _LEAST_INT <= value <= _GREATEST_INT:
            raise _Refusal(
                f"an integer of {value.bit_length()} bits; numbers from -2^63 to 2^64-1 can be stored, "
                "greater ones as text"
            )
        return value  # type: ignore[no-any-return]
    if value is None or kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return _encode_mapping(value, room)
    if kind is list or kind is tuple:
        return _encode_sequence(value, room)
    if kind is float:
        if not math.isfinite(value):
            raise _Refusal(f"{value} is not a JSON number; use None or text")
        if abs(value) >= _GREATEST_FLOAT:
            raise _Refusal(f"{value!r} is stored, but other clients cannot read it back")
        return value  # type: ignore[no-any-return]
    return _encode_other(value, room)


def _encode_mapping(value: Mapping[Any, Any], room: int) -> dict[str, Any]:
    if not room:
        raise _Refusal(f"nested deeper than {MAX_DEPTH} levels")
    result: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            if not isinstance(key, str) or isinstance(key, enum.Enum):
                raise _Refusal(f"the key {key!r} is not text; JSON objects have text keys")
            key = str(key)
        if (fault := text_fault(key)) is not None:
            raise _Refusal(f"the key {key!r}: {fault}")
        try:
            result[key] = _encode(item, room - 1)
        except _Refusal as refusal:
            refusal.steps.append(key)
            raise
    return result


def _encode_sequence(value: Sequence[Any], room: int) -> list[Any]:
    if not room:
        raise _Refusal(f"nested deeper than {MAX_DEPTH} levels")
    result: list[Any] = []
    for index, item in enumerate(value):
        try:
            result.append(_encode(item, room - 1))
        except _Refusal as refusal:
            refusal.steps.append(index)
            raise
    return result


def _encode_other(value: Any, room: int) -> JsonValue:
    """Values that are none of JSON's own types, and subclasses of those."""
    match value:
        case enum.Enum():
            if isinstance(value, str | int):
                return _encode(value.value, room)
            raise _Refusal(
                f"{value!r} is neither a str nor an int enum; pass its value or derive the enum from StrEnum or IntEnum"
            )
        case str():
            return _encode(str.__str__(value), room)
        case int():
            return _encode(int(value), room)
        case float():
            return _encode(float(value), room)
        case datetime():
            text = value.isoformat(timespec=_timespec(value))
            return f"{text[:-6]}Z" if text.endswith("+00:00") else text
        case date():
            return value.isoformat()
        case time():
            if value.tzinfo is not None:
                raise _Refusal("a time with a time zone means nothing without its date; pass a datetime")
            return value.isoformat(timespec=_timespec(value))
        case timedelta():
            return duration_iso_string(value)
        case uuid.UUID():
            return str(value)
        case Decimal():
            if not value.is_finite():
                raise _Refusal(f"{value} is not a number; use None or text")
            return str(value)
        case Promise():
            return _encode(str(value), room)
        case list() | tuple():
            return _encode_sequence(value, room)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_mapping(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, room
        )
    if not isinstance(value, type) and callable(getattr(value, "model_dump", None)):
        return _encode(value.model_dump(mode="json"), room)
    if isinstance(value, Mapping):
        return _encode_mapping(value, room)
    raise _refusal(value)


def _timespec(value: datetime | time) -> str:
    """Milliseconds where they say it all, as ``DjangoJSONEncoder`` writes; else every digit there is."""
    return "milliseconds" if value.microsecond and value.microsecond % 1000 == 0 else "auto"


def _refusal(value: object) -> _Refusal:
    name = type(value).__name__
    # Looked at by their members, since this module imports no database.
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return _Refusal(
            f"a model instance ({name}) would be stale when the job runs; pass its primary key, .pk, "
            "and load the row in the handler"
        )
    if hasattr(value, "values_list"):
        return _Refusal(f"a {name} cannot be stored; pass a list of primary keys")
    match value:
        case set() | frozenset():
            return _Refusal(f"a {name} has no order; pass a sorted list")
        case bytes() | bytearray() | memoryview():
            return _Refusal(f"{name} is not text; pass it base64-encoded, or a reference to where it is kept")
    return _Refusal(f"a value of type {name} has no JSON form; pass text, numbers, lists or dicts instead")


# Decoding


def _mismatch(value: object, wanted: str) -> _Refusal:
    # The value itself may be what nobody is to see; the path says where it is.
    return _Refusal(f"{named(value)} is not {wanted}")


def named(value: object) -> str:
    """What a JSON value is, without its contents."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return f"a text of {len(value)} characters"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case int() | float():
            return "a number"
    return repr(value)


def _parsed(parse: Callable[[str], Any], wanted: str) -> Decoder:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            raise _mismatch(value, wanted)
        try:
            result = parse(value)
        except (ValueError, InvalidOperation):
            raise _mismatch(value, wanted) from None
        if result is None:
            raise _mismatch(value, wanted)
        return result

    return convert


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _mismatch(value, "a decimal number")
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise _mismatch(value, "a decimal number") from None


def _float(value: Any) -> Any:
    # The database writes 1e16 as an integer.
    return float(value) if type(value) is int else value


_SCALARS: Mapping[Any, Decoder] = {
    datetime: _parsed(datetime.fromisoformat, "a datetime in ISO 8601"),
    date: _parsed(date.fromisoformat, "a date in ISO 8601"),
    time: _parsed(time.fromisoformat, "a time in ISO 8601"),
    timedelta: _parsed(parse_duration, "a duration in ISO 8601"),
    uuid.UUID: _parsed(uuid.UUID, "a UUID"),
    Decimal: _decimal,
    float: _float,
}


def decoder(hint: Any) -> Decoder | None:
    """What restores a value annotated with ``hint`` from its JSON; None where the JSON is the value.

    The result raises ``InvalidJob`` for a value that does not fit; its path starts at ``args``.
    """
    convert = _decoder(hint)
    return None if convert is None else _located(convert)


def _located(convert: Decoder) -> Decoder:
    def decode(value: Any) -> Any:
        try:
            return convert(value)
        except _Refusal as refusal:
            raise refusal.at("args") from None

    return decode


def _decoder(hint: Any) -> Decoder | None:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _decoder(typing.get_args(hint)[0])
    if isinstance(hint, typing.NewType):
        return _decoder(hint.__supertype__)
    if origin is typing.Union or origin is types.UnionType:
        return _union(typing.get_args(hint))
    if origin is not None:
        return _container(origin, typing.get_args(hint))
    if not isinstance(hint, type):
        return None
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hint is tuple:
        return _sequence(tuple, None)
    if issubclass(hint, enum.Enum):
        return _enum(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    if callable(getattr(hint, "model_validate", None)):
        return _validated_model(hint)
    return None


def _union(members: Sequence[Any]) -> Decoder | None:
    """The first member that fits, in the order written."""
    converters = [_decoder(member) for member in members if member is not type(None)]
    optional = type(None) in members
    if all(convert is None for convert in converters):
        return None
    if optional and len(converters) == 1:
        only = converters[0]
        assert only is not None
        return lambda value: None if value is None else only(value)

    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        refusal: _Refusal | None = None
        for member in converters:
            if member is None:
                return value
            try:
                return member(value)
            except _Refusal as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    return convert


def _container(origin: Any, arguments: Sequence[Any]) -> Decoder | None:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _sequence(tuple, _decoder(arguments[0]))
        return _fixed_tuple([_decoder(argument) for argument in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        convert = _decoder(arguments[1])
        return None if convert is None else _mapping(convert)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        convert = _decoder(arguments[0])
        return None if convert is None else _sequence(list, convert)
    return None


def _each(value: Any, convert: Decoder | None) -> list[Any]:
    if not isinstance(value, list):
        raise _mismatch(value, "a list")
    if convert is None:
        return value
    result: list[Any] = []
    for index, item in enumerate(value):
        try:
            result.append(convert(item))
        except _Refusal as refusal:
            refusal.steps.append(index)
            raise
    return result


def _sequence(build: Callable[[list[Any]], Any], convert: Decoder | None) -> Decoder:
    return lambda value: build(_each(value, convert))


def _fixed_tuple(converters: Sequence[Decoder | None]) -> Decoder:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(converters):
            raise _mismatch(value, f"a list of {len(converters)} values")
        result: list[Any] = []
        for index, (item, member) in enumerate(zip(value, converters, strict=True)):
            try:
                result.append(item if member is None else member(item))
            except _Refusal as refusal:
                refusal.steps.append(index)
                raise
        return tuple(result)

    return convert


def _mapping(convert: Decoder) -> Decoder:
    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch(value, "an object")
        return _converted(value, dict.fromkeys(value, convert))

    return decode


def _converted(value: dict[str, Any], converters: Mapping[str, Decoder]) -> dict[str, Any]:
    """A copy of an object with the members that have a converter converted."""
    result = dict(value)
    for name, convert in converters.items():
        if name in result:
            try:
                result[name] = convert(result[name])
            except _Refusal as refusal:
                refusal.steps.append(name)
                raise
    return result


def _enum(hint: type[enum.Enum]) -> Decoder:
    def convert(value: Any) -> enum.Enum:
        try:
            return hint(value)
        except ValueError:
            raise _mismatch(value, f"a value of {hint.__name__}") from None

    return convert


def _validated_model(hint: Any) -> Decoder:
    def convert(value: Any) -> Any:
        try:
            return hint.model_validate(value)
        except ValueError as error:
            raise _Refusal(f"does not fit {hint.__name__}: {_faults(error)}") from None

    return convert


def _faults(error: ValueError) -> str:
    """What a model says about values, without the values where it can be told to leave them out."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return str(error)
    try:
        faults = listed(include_input=False, include_context=False, include_url=False)
    except TypeError:  # pydantic 1 leaves inputs out by itself
        faults = listed()
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


def _dataclass(hint: type[Any]) -> Decoder:
    """Builds an instance by keyword. Hints are read on first use, when classes named later exist."""
    converters: dict[str, Decoder] | None = None
    accepted = frozenset(field.name for field in dataclasses.fields(hint) if field.init)
    required = frozenset(
        field.name
        for field in dataclasses.fields(hint)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    )

    def convert(value: Any) -> Any:
        nonlocal converters
        if not isinstance(value, dict):
            raise _mismatch(value, f"an object with the fields of {hint.__name__}")
        if converters is None:
            converters = _field_decoders(hint, accepted)
        if fault := names_fault(value.keys(), accepted, required, f"{hint.__name__} has"):
            raise _Refusal(fault)
        values = _converted(value, converters) if converters else value
        try:
            return hint(**values)
        except (TypeError, ValueError) as error:
            raise _Refusal(f"{hint.__name__} refuses it: {error}") from error

    return convert


def annotations_of(owner: Any, *, skip: Collection[str] = ()) -> dict[str, Any]:
    """The annotations of a class or function, evaluated; those in ``skip`` are left out, readable or not.

    Raises ``ConfigurationError`` naming the owner if one cannot be read.
    """
    try:
        if isinstance(owner, type):
            return typing.get_type_hints(owner, include_extras=True)
        # One by one, since a context's annotation is often importable by type checkers only.
        raw = types.SimpleNamespace(
            __annotations__={name: hint for name, hint in owner.__annotations__.items() if name not in skip}
        )
        return typing.get_type_hints(raw, getattr(owner, "__globals__", {}), include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"the annotations of {owner.__module__}.{owner.__qualname__} cannot be read: {error}; "
            "import what they name at run time, not under TYPE_CHECKING"
        ) from error


def _field_decoders(hint: type[Any], names: frozenset[str]) -> dict[str, Decoder]:
    hints = annotations_of(hint)
    found = {name: _decoder(hints[name]) for name in names if name in hints}
    return {name: convert for name, convert in found.items() if convert is not None}


def members_decoder(hints: Mapping[str, Any]) -> Decoder | None:
    """What restores the annotated members of an object; None if all of them are their JSON."""
    found = {name: _decoder(hint) for name, hint in hints.items()}
    converters = {name: convert for name, convert in found.items() if convert is not None}
    if not converters:
        return None
    return _located(lambda value: _converted(value, converters))


def names_fault(
    given: typing.AbstractSet[str], accepted: frozenset[str], required: frozenset[str], owner: str
) -> str | None:
    """Which names are missing or unknown, as a reason, or None. ``owner`` begins "... has no such name"."""
    if required <= given <= accepted:
        return None
    if missing := sorted(required - given):
        return f"missing {', '.join(missing)}"
    unknown = sorted(given - accepted)
    known = f"; {owner} {', '.join(sorted(accepted))}" if accepted else f"; {owner} no arguments"
    return f"unknown {', '.join(unknown)}{known}"
