from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NewType, Optional

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import lazystr
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

from awa_django.encoding import MAX_DEPTH, annotations_of, decoder, dump_json, encode, members_decoder
from awa_django.errors import ConfigurationError, InvalidJob
from tests.testapp.models import Order


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Shade(enum.Enum):
    DARK = "dark"


@dataclass
class Line:
    sku: str
    price: Decimal
    shipped: date | None = None


@dataclass
class Parcel:
    number: int
    lines: list[Line]
    weight: float = 0.0
    colour: Colour = Colour.RED
    labels: dict[str, timedelta] = field(default_factory=dict)
    corner: tuple[int, Decimal] = (0, Decimal("0"))
    trail: tuple[uuid.UUID, ...] = ()


class Model:
    """What a pydantic model looks like from outside."""

    def __init__(self, when: datetime) -> None:
        self.when = when

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"when": self.when.isoformat()}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if "when" not in value:
            raise ValueError("when is required")
        return cls(datetime.fromisoformat(value["when"]))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("text", "text"),
        ("", ""),
        ("emoji 🧾 and \u2028", "emoji 🧾 and \u2028"),
        (True, True),
        (None, None),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**63, 2**63),
        (2**64 - 1, 2**64 - 1),
        (1.5, 1.5),
        (-0.0, -0.0),
        (1.7976931348623155e308, 1.7976931348623155e308),
        ([1, "a"], [1, "a"]),
        ((1, (2, 3)), [1, [2, 3]]),
        ({"a": {"b": []}}, {"a": {"b": []}}),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "2026-01-02T03:04:05.678901Z"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST), "2026-01-02T03:04:05+05:30"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5, 6), "03:04:05.000006"),
        (timedelta(days=1, seconds=2, microseconds=3), "P1DT00H00M02.000003S"),
        (-timedelta(seconds=1), "-P0DT00H00M01S"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (lazystr("later"), "later"),
        (mark_safe("<b>"), "<b>"),
        (Line("a", Decimal("2"), date(2026, 1, 2)), {"sku": "a", "price": "2", "shipped": "2026-01-02"}),
        (Model(datetime(2026, 1, 2, tzinfo=UTC)), {"when": "2026-01-02T00:00:00+00:00"}),
    ],
)
def test_each_type_has_the_form_that_is_documented(value: object, stored: object) -> None:
    encoded = encode(value)
    assert encoded == stored
    assert type(encoded) is type(stored)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST),
        date(2026, 1, 2),
        time(3, 4, 5, 678000),
        timedelta(days=1, microseconds=5),
        Decimal("1E+5"),
        uuid.UUID(int=7),
    ],
)
def test_texts_are_those_of_djangos_encoder_where_that_loses_nothing(value: Any) -> None:
    assert encode(value) == DjangoJSONEncoder().default(value)


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        (float("nan"), "args", "not a JSON number"),
        ([1, float("inf")], "args[1]", "not a JSON number"),
        ({"a": -float("inf")}, "args.a", "not a JSON number"),
        (1.7976931348623157e308, "args", "cannot read it back"),
        (2**64, "args", "2^64-1"),
        (-(2**63) - 1, "args", "-2^63"),
        ({"items": [0, 0, 0, {"when": {1, 2}}]}, "args.items[3].when", "sorted list"),
        ({"a": frozenset()}, "args.a", "sorted list"),
        ({"a b": [b"x"]}, 'args["a b"][0]', "base64"),
        ({"a": bytearray()}, "args.a", "base64"),
        ({"a": "x\0"}, "args.a", "U+0000"),
        ({"a": {"k\0": 1}}, "args.a", "U+0000"),
        ({"a": "\ud800"}, "args.a", "U+D800"),
        ({"\udfff": 1}, "args", "U+DFFF"),
        ({"a": {1: 2}}, "args.a", "text keys"),
        ({Colour.RED: 2}, "args", "text keys"),
        ({"a": Shade.DARK}, "args.a", "StrEnum"),
        ({"a": object()}, "args.a", "object"),
        ({"a": Line}, "args.a", "type"),
        ({"a": Decimal("NaN")}, "args.a", "not a number"),
        ({"a": time(1, tzinfo=UTC)}, "args.a", "datetime"),
        ({"order": Order(pk=3)}, "args.order", ".pk"),
        ({"orders": Order.objects.none()}, "args.orders", "primary keys"),
        (nested(MAX_DEPTH + 1), "args" + "[0]" * MAX_DEPTH, "64 levels"),
        ({"a": (n for n in [1])}, "args.a", "generator"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value: object, path: str, words: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        encode(value)
    assert refusal.value.path == path
    assert words in refusal.value.reason
    assert str(refusal.value) == f"{path}: {refusal.value.reason}"
    assert isinstance(refusal.value, ValueError)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidJob, match="64 levels"):
        encode(value)


def test_sixty_four_levels_are_stored() -> None:
    assert encode(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_the_result_is_a_copy() -> None:
    inner = [1]
    encoded = encode({"inner": inner})
    inner.append(2)
    assert encoded == {"inner": [1]}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e308, max_value=1e308)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_plain_json_is_stored_as_it_is(value: Any) -> None:
    assert encode(value) == value


SCALARS: list[tuple[Any, Any]] = [
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST)),
    (datetime, datetime(2026, 1, 2)),
    (date, date(2026, 1, 2)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta(days=-3, seconds=5, microseconds=7)),
    (timedelta, timedelta(days=400)),
    (uuid.UUID, uuid.UUID(int=2**100)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (float, 1e16),
    (Optional[date], date(2026, 1, 2)),  # noqa: UP045 - the old spelling is common
    (date | None, None),
    (datetime | str, "not a date"),
    (datetime | str, datetime(2026, 1, 2, tzinfo=UTC)),
    (list[Decimal], [Decimal("1"), Decimal("2.50")]),
    (dict[str, uuid.UUID], {"a": uuid.UUID(int=1)}),
    (tuple[int, date], (1, date(2026, 1, 2))),
    (tuple[date, ...], (date(2026, 1, 2),)),
    (tuple, (1, 2)),
    (Annotated[date, "note"], date(2026, 1, 2)),
    (NewType("Day", date), date(2026, 1, 2)),
    (list[date | None], [None, date(2026, 1, 2)]),
    (Line, Line("a", Decimal("2"), date(2026, 1, 2))),
    (
        Parcel,
        Parcel(
            1,
            [Line("a", Decimal("2")), Line("b", Decimal("3"), date(2026, 1, 2))],
            weight=2.0,
            labels={"due": timedelta(hours=1)},
            corner=(4, Decimal("5.5")),
            trail=(uuid.UUID(int=9),),
        ),
    ),
]


@pytest.mark.parametrize(("hint", "value"), SCALARS)
def test_annotated_values_come_back_equal_and_of_the_same_type(hint: Any, value: Any) -> None:
    restore = decoder(hint)
    assert restore is not None
    # Through the text that is stored, and as PostgreSQL would hand it back.
    import json

    stored = json.loads(dump_json(encode(value)))
    restored = restore(int(stored) if hint is float else stored)
    assert restored == value
    assert type(restored) is type(value)


@pytest.mark.parametrize(
    "hint", [int, str, bool, Any, None, object, list[int], dict[str, int], list, dict, "text"]
)
def test_annotations_that_json_already_satisfies_cost_nothing(hint: Any) -> None:
    assert decoder(hint) is None


@pytest.mark.parametrize(
    ("hint", "value", "path", "words"),
    [
        (datetime, "yesterday", "args", "ISO 8601"),
        (datetime, 5, "args", "ISO 8601"),
        (date, "2026-13-01", "args", "a date"),
        (timedelta, "soon", "args", "duration"),
        (uuid.UUID, "x", "args", "a UUID"),
        (Decimal, "x", "args", "decimal"),
        (Decimal, True, "args", "decimal"),
        (Colour, "blue", "args", "Colour"),
        (list[date], ["2026-01-02", "x"], "args[1]", "a date"),
        (list[date], "2026-01-02", "args", "a list"),
        (dict[str, date], {"a": "x"}, "args.a", "a date"),
        (dict[str, date], [], "args", "an object"),
        (tuple[int, date], [1], "args", "2 values"),
        (Line, [], "args", "fields of Line"),
        (Line, {"sku": "a"}, "args", "missing price"),
        (Line, {"sku": "a", "price": "1", "extra": 1}, "args", "unknown extra; Line has price, shipped, sku"),
        (Parcel, {"number": 1, "lines": [{"sku": "a", "price": "x"}]}, "args.lines[0].price", "decimal"),
        (Model, {}, "args", "when is required"),
    ],
)
def test_stored_values_that_do_not_fit_are_refused_with_their_path(
    hint: Any, value: Any, path: str, words: str
) -> None:
    restore = decoder(hint)
    assert restore is not None
    with pytest.raises(InvalidJob) as refusal:
        restore(value)
    assert refusal.value.path == path
    assert words in refusal.value.reason


def test_only_annotated_members_that_need_it_are_converted() -> None:
    convert = members_decoder({"when": date, "count": int})
    assert convert is not None
    stored = {"when": "2026-01-02", "count": 3, "other": [1]}
    assert convert(stored) == {"when": date(2026, 1, 2), "count": 3, "other": [1]}
    assert stored["when"] == "2026-01-02"
    assert members_decoder({"count": int, "text": str}) is None


def test_annotations_only_type_checkers_can_read_are_named() -> None:
    def handler(ctx: NowhereToBeFound, when: AlsoMissing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"handler cannot be read.*AlsoMissing.*TYPE_CHECKING"):
        annotations_of(handler, skip={"ctx"})
    assert annotations_of(handler, skip={"ctx", "when"}) == {"return": type(None)}
