from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_django import cel
from awa_django.cel import Complete, Expressions, Fail, Ignored, check, decide, functions, hints
from awa_django.errors import CelNotInstalled, InvalidJob
from tests.vectors import load

VECTORS = load("cel")
GROUPS = [*VECTORS["expressions"], VECTORS["stored_expressions"]]
RECORDED = [(group["payload"], vector) for group in GROUPS for vector in group["vectors"]]


class Failed:
    """What :func:`value` says of an expression that has none."""

    def __repr__(self) -> str:
        return "failed"


FAILED = Failed()


def value(text: str, payload: object = None) -> Any:
    """The result of an expression as JSON, or ``FAILED``."""
    decision = decide(Expressions(on_complete="true", transform=f"[\n{text}\n]"), payload)
    assert isinstance(decision, Complete)
    # A transform that fails leaves the payload, which is the same object.
    return FAILED if decision.payload is payload else decision.payload[0]


def alike(left: Any, right: Any) -> bool:
    """Equality of JSON that tells ``1`` from ``1.0`` and ``true``, and ``0.0`` from ``-0.0``."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


# --- What the recorded client did --------------------------------------------------------------------------


def name_of(vector: Any) -> str:
    return str(vector.get("expr", vector))[:60] if isinstance(vector, dict) else ""


@pytest.mark.parametrize(
    ("payload", "vector"),
    [(payload, vector) for payload, vector in RECORDED if "evaluates" in vector],
    ids=name_of,
)
def test_recorded_results_are_reproduced(payload: Any, vector: dict[str, Any]) -> None:
    result = value(vector["expr"], payload)
    if vector["evaluates"] is not True:  # an error, or a crash of the recorded client
        assert result is FAILED
    elif isinstance(vector["result"], float) and isinstance(result, int):
        # The recording client's binding made floats of integers above 2**63.
        assert result >= 2**63
        assert float(result) == vector["result"]
    else:
        assert alike(result, vector["result"])


#: What is refused although the recorded client stores it, since no evaluation can succeed.
STRICTER = (
    "unknown function ",
    "messages such as ",
    "has(...) takes 1 argument",
    "startsWith(...) lacks",
    "size(...) lacks",
    "string(...) lacks",
    "int(...) lacks",
    "matches(...) lacks",
)


@pytest.mark.parametrize(
    "vector", [vector for _, vector in RECORDED if "registration" in vector], ids=name_of
)
def test_recorded_registrations_are_reproduced(vector: dict[str, Any]) -> None:
    refusal: InvalidJob | None = None
    try:
        check(Expressions(transform=vector["expr"]))
    except InvalidJob as error:
        refusal = error
    assert refusal is None or refusal.path == "transform"
    if vector["registration"] == "ok":
        if refusal is not None:
            assert vector["evaluates"] is not True
            assert refusal.reason.startswith(STRICTER)
    elif refusal is None:
        assert vector.get("quirk") == "macro-variable-rejected"
        assert "x" not in vector["expr"].split(".")[0]
    elif vector["rejection"] == "syntax":
        assert refusal.reason.startswith("no CEL expression: ")
    else:
        assert any(f"unknown variable {name}" in refusal.reason for name in vector["undeclared"])


@pytest.mark.parametrize(
    "flow",
    VECTORS["flow"],
    ids=lambda flow: f"{'+'.join(flow['config']) or 'none'}-{flow['default_action']}",
)
def test_recorded_outcomes_are_reproduced(flow: dict[str, Any]) -> None:
    expressions = Expressions(**flow["config"])
    arguments: dict[str, Any] = {"payload": flow["payload"]} if flow["payload_given"] else {}
    if flow["default_action"] is not None:
        arguments["default"] = flow["default_action"]
    expected = flow["result"]
    if expected.get("registration") == "rejected":
        with pytest.raises(InvalidJob) as refusal:
            check(expressions)
        assert refusal.value.path in flow["config"]
        return
    check(expressions)
    if "error_type" in expected:
        with pytest.raises(InvalidJob) as refusal:
            decide(expressions, **arguments)
        assert refusal.value.reason == expected["message"]
        return
    match decide(expressions, **arguments):
        case Complete(payload):
            assert expected["outcome"] == "completed"
            assert expected["job_state"] == "completed"
            assert alike(payload, expected["payload"])
        case Fail(error, expression):
            entry = {"error": error} | ({"expression": expression} if expression is not None else {})
            assert expected["outcome"] == "failed"
            assert expected["job_state"] == "failed"
            assert entry == {
                key: text for key, text in expected["error_entry"].items() if key in ("error", "expression")
            }
        case Ignored(reason):
            assert expected["outcome"] == "ignored"
            assert expected["job_state"] == "waiting_external"
            assert reason == expected["reason"]


def test_all_recordings_are_there() -> None:
    assert len(VECTORS["flow"]) == 204
    assert len(RECORDED) == 804 + 27


PAYLOAD = {"n": 5, "s": "hello", "arr": [3, 1, 2], "m": {"a": 1}, "f": 1.5, "t": True, "nul": None, "neg": -3}

#: More answers of the recorded client (awa-pg 0.6.9), where a reader of the standard would expect others.
PECULIAR: list[tuple[str, Any]] = [
    # Signs: a run of one of them is one of it, and a minus before a decimal number belongs to the number.
    ("!!!payload.t", False),
    ("!(!payload.t)", True),
    ("--1", -1),
    ("- - payload.f", -1.5),
    ("- 9223372036854775808", -9223372036854775808),
    ("1---1", 2),
    ("-5.double()", -5.0),
    ("-payload.t", False),
    ("-(-9223372036854775808)", -9223372036854775808),
    ("-0.0", -0.0),
    # Strings.
    (r"'\"'", '\\"'),
    (r'"\'"', "\\'"),
    ("'''x''y'''", "xy"),
    ("'''a\"b'''", 'a"b'),
    (r"r'''a\'b'''", "a'b"),
    ("bR'a'", "J2E="),
    ("b'''a'''", "JydhJyc="),
    # Members.
    (".payload.n", 5),
    ("1.e5", False),
    ("payload.n.n.n", False),
    ("has(has(payload.m))", True),
    ("has((payload.m.a))", True),
    ("{'`n`': 1}.`n`", 1),
    ("payload.s.`n`", False),
    ("has(payload.n.size)", False),
    ("[,]", []),
    ("{,}", {}),
    # Functions: of equal extremes the last, of surplus arguments none is evaluated.
    ("min(1, 1.0)", 1.0),
    ("min(1.0, 1)", 1),
    ("max([1, 1.0])", 1.0),
    ("max(null, null)", None),
    ("max(b'a', b'b')", FAILED),
    ("max(0.0/0.0, 1.0)", FAILED),
    ("max({'a': 1})", {"a": 1}),
    ("size('abc', payload.missing)", 3),
    ("'a'.bytes()", FAILED),
    ("'x'.bytes('a')", "YQ=="),
    ("'1'.duration('1h')", 3600000000000),
    (".size('a')", FAILED),
    ("[1.0].contains(1)", True),
    ("[[1], {'a': 1}].contains({'a': 1u})", True),
    ("[{1: 1}].contains({1u: 1})", False),
    ("{1: 1}.contains(1u)", False),
    ("{1: 1}.contains(1.0)", FAILED),
    ("b'abc'.startsWith(b'a')", FAILED),
    ("string(b'\\xff')", "\ufffd"),
    ("string(1.7976931348623157e308)", f"{17976931348623157 * 10**292}"),
    ("int(0.0/0.0)", 0),
    ("int(9223372036854775807.0)", 9223372036854775807),
    ("uint('-0')", FAILED),
    ("uint('+5')", 5),
    ("double('1.e5')", 100000.0),
    ("double('INF')", None),
    ("int('00000000000000000000000000001')", 1),
    (f"int('{'9' * 9000}')", FAILED),
    (f"{'0' * 9000}7", 7),
    # Comprehensions.
    ("[1, 1, 0].exists_one(payload, 1/payload == 1)", FAILED),
    ("[0, 1].exists(payload, 1/payload == 1)", FAILED),
    ("[1, 0].exists(payload, 1/payload == 1)", True),
    ("[false, 1].all(payload, payload)", False),
    ("[1].map((payload), payload)", [1]),
    # Durations: read as doubles, up to the first thing that is no term; negative ones print as complements.
    ("duration('1h 1m')", 3600000000000),
    ("duration('1msx')", 1000000),
    ("duration('1h-1m')", 3540000000000),
    ("duration('-1h1m')", -3660000000000),
    ("duration('--1s')", 1000000000),
    ("duration('1e3s')", 1000000000000),
    ("duration('00')", FAILED),
    ("duration('-0')", 0),
    ("duration('infs')", 9223372036854775807),
    ("duration('2562048h')", 9223372036854775807),
    ("duration('123456789.123456789s')", 123456789123456784),
    ("string(duration('1.000001s'))", "1.000000999s"),
    ("string(duration('-1.5s'))", "-5124095h34m32.209551616s"),
    ("string(duration('1500us'))", "1.5ms"),
    ("string(duration('1001ns'))", "1.001µs"),
    ("string(duration('1h0.5s'))", "1h0m0.5s"),
    ("duration('2562047h') + duration('2562047h')", FAILED),
    ("(duration('2562047h') + duration('2562047h')).getHours()", 5124094),
    (
        "string(duration('2562047h') + duration('2562047h') + duration('2562047h'))",
        "2562045h25m26.290448384s",
    ),
    ("duration('-90s').getMinutes()", -1),
    # Counts of a unit have 32 bits.
    ("duration('2147483647ms').getMilliseconds()", 2**31 - 1),
    ("duration('2147483648ms').getMilliseconds()", -(2**31)),
    ("duration('-2147483649ms').getMilliseconds()", 2**31 - 1),
    ("duration('30m').getMilliseconds()", 1_800_000),
    ("duration('597h').getMilliseconds()", -2_145_767_296),
    ("duration('2147483648s').getSeconds()", -(2**31)),
    ("duration('4294967296s').getSeconds()", 0),
    ("(timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z')).getMinutes()", 963_997_663),
    ("(timestamp('2024-02-29T12:00:00Z') - timestamp('1969-12-31T16:00:00Z')).getSeconds()", 1_709_236_800),
    # Timestamps: the years 1 to 9999 after arithmetic, and leap seconds.
    ("timestamp('2024-01-02t03:04:05z')", "2024-01-02T03:04:05+00:00"),
    ("timestamp('2024-01-02T03:04:05−01:00')", "2024-01-02T03:04:05-01:00"),
    ("timestamp('2024-01-02T03:04:05.1234567891Z')", "2024-01-02T03:04:05.123456789+00:00"),
    ("timestamp('2024-01-02T03:04:05.1234Z')", "2024-01-02T03:04:05.123400+00:00"),
    ("timestamp('0000-01-01T00:00:00Z').getFullYear()", 0),
    ("timestamp('0000-03-01T00:00:00Z').getDayOfYear()", 60),
    ("timestamp('0000-01-01T00:00:00Z') + duration('0s')", FAILED),
    ("timestamp('0001-01-01T00:00:00-01:00') - duration('1h')", "0000-12-31T23:00:00-01:00"),
    ("timestamp('9999-12-31T23:59:59+01:00') + duration('30m')", "+10000-01-01T00:29:59+01:00"),
    ("timestamp('2024-01-02T23:59:60Z')", "2024-01-02T23:59:60+00:00"),
    ("timestamp('2024-01-02T23:59:60Z') + duration('1s')", "2024-01-03T00:00:00+00:00"),
    ("timestamp('2024-01-02T23:59:60.5Z').getMilliseconds()", 1500),
    ("timestamp('2024-01-03T00:00:00Z') - timestamp('2024-01-02T23:59:60Z')", 0),
    ("timestamp('2024-01-02T24:00:00Z')", FAILED),
    ("duration('1h') + timestamp('2024-01-02T03:04:05Z')", FAILED),
    # Regular expressions.
    ("'a\\n'.matches('a$')", False),
    ("'٣'.matches('\\\\d')", True),
    ("'a'.matches('a(?=b)')", FAILED),
    ("'x'.matches('[\\\\w&&[^a]]')", True),
]


@pytest.mark.parametrize(
    ("text", "result"), PECULIAR, ids=lambda part: part[:60] if isinstance(part, str) else ""
)
def test_peculiar_answers_are_kept(text: str, result: Any) -> None:
    found = value(text, PAYLOAD)
    assert found is FAILED if result is FAILED else alike(found, result)


@pytest.mark.parametrize(
    "text",
    [
        "-0x1", "--9223372036854775808", "-!true", "!-payload.f", "1-9223372036854775808", "1.", "1e400", "0X1F",
        "'''a'b'''", r"b'\n'", r"'\ud800'", r"'\400'", r"'\q'", "payload.true", "payload.1", "!.true", "[1,,2]",
        "size('a',)", "true ? false ? 1 : 2 : 3", "[1].map(1, 2)", "has(payload)", "payload.?a", "{?'a': 1}", "\0",
        "9" * 9000, "-" + "9" * 9000, "9" * 9000 + "u", "0x" + "f" * 9000,
        "payload /* c */", "日本", "'a' 'b'", "1 = 1", "payload{", "payload{a}", "[1]{}", "(payload){}",
    ],
)  # fmt: skip
def test_texts_that_no_evaluator_reads_are_refused(text: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        check(Expressions(filter=text))
    assert refusal.value.path == "filter"
    assert value(text, PAYLOAD) is FAILED


# --- Registration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["filter", "on_complete", "on_fail", "transform"])
def test_a_refusal_names_the_expression_and_the_place(name: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        check(Expressions(**{name: "payload.n == "}))
    assert refusal.value.path == name
    assert refusal.value.reason == "no CEL expression: a value is needed at character 14, not the end"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x + y + x", "unknown variable x; an expression knows payload alone; unknown variable y"),
        ("[1].all(x, x > y)", "unknown variable y"),
        ("[1].all(x, true) && x", "unknown variable x"),
        ("x.map(x, x)", "unknown variable x"),
        ("math.abs(1)", "unknown variable math"),
        ("payload.s.trim()", "unknown function trim(...)"),
        ("contains('a')", "contains(...) lacks 1 argument"),
        ("contains()", "contains(...) lacks 2 arguments"),
        ("'a'.bytes()", "bytes(...) lacks 1 argument"),
        ("[1].map(x)", "map(...) takes 2 or 3 arguments, not 1"),
        ("[1].all(i, v, true)", "all(...) takes 2 arguments, not 3"),
        ("has(payload.n, 1)", "has(...) takes 1 argument, not 2"),
        ("T{a: 1}", "messages such as T{...} do not exist here"),
        ("", "no CEL expression: a value is needed at character 1, not the end"),
        ("'\0'", "U+0000 cannot be stored in PostgreSQL"),
        ("'\ud800'", "a lone surrogate (U+D800) is not text"),
        (b"true", "an expression is text, not b'true'"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(text: Any, reason: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        check(Expressions(on_fail=text))
    assert reason in refusal.value.reason


@pytest.mark.parametrize(
    "text",
    [
        "payload.items.all(item, item.price > 0u && payload.tags.exists(tag, tag == item.tag))",
        "payload.a.map(x, x.map(x, x))",
        "size('a', 'b') == 1",
        "payload.arr.max()",
        "timestamp(payload.ts).getHours('UTC') > 3",
        "payload.`a`",
        "payload // the amount\n.amount >= 100",
    ],
)
def test_expressions_that_can_succeed_are_accepted(text: str) -> None:
    check(Expressions(text, text, text, text))


def test_no_expression_is_no_fault() -> None:
    check(Expressions())
    assert not Expressions().any
    assert Expressions(transform="payload").any


@pytest.mark.parametrize(
    ("text", "hinted"),
    [
        ("payload.amount == 100", True),
        ("100 != payload.amount", True),
        ("payload.items[0].n == 1.0", True),
        ("payload.n in [1u, 5]", True),
        ("payload.n + 1 > 3u", True),
        ("has(payload.a) && payload.n % 2 == 0u", True),
        ("payload.amount == 100u", False),
        ("payload.amount >= 100", False),
        ("int(payload.amount) == 100", False),
        ("payload.balance == -1", False),
        ("payload.s == 'a' && payload.ok == true", False),
        ("size(payload.a) == 3", False),
        ("1 + 2 == 3", False),
    ],
)
def test_comparisons_that_are_never_true_are_hinted_at(text: str, hinted: bool) -> None:
    assert bool(hints(text)) is hinted


def test_a_hint_is_logged_once_for_each_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "awa_django.cel")
    for _ in range(3):
        check(Expressions(on_complete="payload.logged_once == 100"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "on_complete: payload... == 100 is false for every uint" in caplog.text


# --- Decisions ---------------------------------------------------------------------------------------------


def test_a_failing_expression_is_logged_without_the_payload(caplog: pytest.LogCaptureFixture) -> None:
    payload = {"secret": "hunter2", "n": 5}
    expressions = Expressions(
        filter="payload.secret",
        on_fail="payload.secret > payload.n",
        on_complete="{payload.secret: 1}.x == 1",
    )
    assert decide(expressions, payload, "fail", job_id=41) == Fail("callback failed: default action")
    assert [record.__dict__["expression"] for record in caplog.records] == [
        "filter",
        "on_fail",
        "on_complete",
    ]
    assert {record.__dict__["job_id"] for record in caplog.records} == {41}
    assert "hunter2" not in caplog.text
    assert "a string and a uint have no order" in caplog.text


def test_the_payload_is_left_as_it_was() -> None:
    payload = {"a": [1, {"b": 2}]}
    decision = decide(Expressions(on_complete="true", transform="payload.a + [3u]"), payload)
    assert decision == Complete([1, {"b": 2}, 3])
    assert payload == {"a": [1, {"b": 2}]}


def test_a_payload_that_is_no_json_decides_nothing() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for payload in ({1: 2}, {"a": object()}, {"a": {1, 2}}, [10**400], deep):
        expressions = Expressions(on_complete="payload == payload")
        assert decide(expressions, payload) == decide(Expressions(), payload)


def test_integers_beyond_64_bits_are_doubles() -> None:
    payload = {"over": 2**64, "under": -(2**63) - 1, "most": 2**64 - 1, "least": -(2**63)}
    assert value("payload.over == 18446744073709551616.0", payload) is True
    assert value("payload.under == -9223372036854775808.0", payload) is True
    assert value("payload.most == 18446744073709551615u", payload) is True
    assert value("payload.least == -9223372036854775808", payload) is True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values)
def test_json_goes_through_unchanged(payload: Any) -> None:
    assert alike(value("payload", [payload])[0], payload)
    assert value("payload == payload && payload in [payload]", [payload]) is True


@given(st.text(st.sampled_from("payloadn.s[]()!-+1u'\"\\?:&|=<>{},xr ") | st.characters(), max_size=30))
def test_no_text_makes_a_decision_raise(text: str) -> None:
    assert isinstance(decide(Expressions(text, text, text, text), PAYLOAD), Complete | Fail | Ignored)


@given(
    # In UTC, and then changed, still within the years 1 to 9999.
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 30)),
    st.integers(-1439, 1439),
    st.timedeltas(timedelta(days=-1), timedelta(days=1)),
)
def test_timestamps_agree_with_datetime(local: datetime, minutes: int, change: timedelta) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    text = f"{local.isoformat()}{offset}"
    assert value(f"timestamp('{text}') == timestamp(payload)", text) is True
    microseconds = change // timedelta(microseconds=1)
    later = value(f"timestamp(payload) + duration('{microseconds}us')", text)
    assert datetime.fromisoformat(later) == moment + change
    parts = ("FullYear", "Month", "Date", "DayOfYear", "DayOfWeek", "Hours", "Minutes", "Seconds")
    assert value(f"[{', '.join(f'timestamp(payload).get{part}()' for part in parts)}]", text) == [
        local.year, local.month - 1, local.day, local.timetuple().tm_yday - 1, local.isoweekday() % 7,
        local.hour, local.minute, local.second,
    ]  # fmt: skip


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_divide_toward_zero_within_64_bits(left: int, right: int) -> None:
    payload = {"a": str(left), "b": str(right)}
    quotient = value("int(payload.a) / int(payload.b)", payload)
    remainder = value("int(payload.a) % int(payload.b)", payload)
    if right == 0 or (left, right) == (-(2**63), -1):
        assert quotient is FAILED
        assert remainder is FAILED
    else:
        assert quotient == math.trunc(abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1)
        assert quotient * right + remainder == left


def test_utc_is_printed_as_an_offset() -> None:
    assert (
        value("timestamp(payload)", datetime(2024, 1, 2, tzinfo=UTC).isoformat())
        == "2024-01-02T00:00:00+00:00"
    )


# --- Limits ------------------------------------------------------------------------------------------------


def test_expressions_are_at_most_ten_kilobytes() -> None:
    check(Expressions(filter=f"'{'x' * 9_998}'"))
    with pytest.raises(InvalidJob, match="longer than 10000 bytes"):
        check(Expressions(filter=f"'{'x' * 9_999}'"))
    with pytest.raises(InvalidJob, match="longer than 10000 bytes"):
        check(Expressions(filter=f"'{'é' * 5_000}'"))


def nested(levels: int) -> str:
    return "(" * levels + "payload.ok" + ")" * levels


@pytest.mark.parametrize(
    "make",
    [
        nested,
        lambda levels: "[" * levels + "]" * levels,
        lambda levels: f"payload{'.a' * levels}",
        lambda levels: "1 ? 1 : " * levels + "2",
        lambda levels: f"{'!(' * levels}true{')' * levels}",
        lambda levels: "size([" * levels + "])" * levels,
    ],
)
def test_expressions_nest_at_most_a_hundred_levels(make: Callable[[int], str]) -> None:
    check(Expressions(filter=make(45)))
    for levels in (101, 900):
        with pytest.raises(InvalidJob, match="nested deeper than 100 levels"):
            check(Expressions(filter=make(levels)))


def test_a_long_chain_of_operators_is_not_nested() -> None:
    assert value(" + ".join(["1"] * 2_000)) == 2_000
    assert value(" || ".join(["false"] * 900)) is False


def test_comprehensions_make_at_most_a_hundred_thousand_steps() -> None:
    assert value("payload.map(x, x).size()", list(range(100_000))) == 100_000
    assert value("payload.map(x, x).size()", list(range(100_001))) is FAILED
    assert value("payload.all(x, payload.all(y, true))", list(range(400))) is FAILED


@pytest.mark.parametrize(
    "text",
    [
        "payload.all(x, payload == payload + [])",
        "payload.map(x, payload)",
        "payload.map(x, payload.map(y, y))",
        "payload.all(x, !(-1 in payload))",
        "payload.all(x, !payload.contains(-1))",
        "payload.all(x, max(payload) > 0u)",
        "payload.all(x, string(x).matches('^[0-9]+$'))",
    ],
)
def test_work_that_would_hold_up_the_transaction_ends_in_an_error(text: str) -> None:
    assert value(text, list(range(1, 20_000))) is FAILED


@pytest.mark.parametrize(
    "text",
    [
        "payload.items.map(x, payload.text)",
        "payload.items.map(x, payload.text + payload.text)",
        "payload.items.map(x, bytes(payload.text))",
        "payload.items.all(x, size(payload.text) > 0)",
        "payload.items.all(x, payload.text.startsWith(payload.text))",
        "payload.items.all(x, payload.text <= payload.text)",
        "payload.items.all(x, !payload.text.contains('b'))",
    ],
)
def test_long_texts_count_as_work(text: str) -> None:
    assert value(text, {"items": [1] * 5_000, "text": "a" * 500_000}) is FAILED


def test_no_regular_expression_runs_away() -> None:
    assert value("payload.matches('^(a+)+$')", "a" * 100_000 + "b") is False


def test_one_expression_is_used_by_many_threads() -> None:
    expressions = Expressions(on_complete="payload.items.exists(x, x == payload.n)", transform="payload.n")

    def run(number: int) -> object:
        return decide(expressions, {"n": number, "items": list(range(50))})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run, range(400)))
    assert found[:50] == [Complete(number) for number in range(50)]
    assert found[50:] == [decide(Expressions(), None)] * 350


# --- Without the extra -------------------------------------------------------------------------------------


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    functions.regular_expressions.cache_clear()
    monkeypatch.setitem(sys.modules, "cel", None)
    yield
    functions.regular_expressions.cache_clear()


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_extra_only_matches_is_missing() -> None:
    check(Expressions(on_complete="payload.n == 5u"))
    assert decide(Expressions(on_complete="payload.n == 5u"), {"n": 5}) == Complete({"n": 5})


@pytest.mark.usefixtures("without_the_extra")
@pytest.mark.parametrize("name", ["filter", "on_complete", "on_fail", "transform"])
def test_without_the_extra_nothing_that_calls_matches_is_stored_or_decided(name: str) -> None:
    expressions = Expressions(**{name: "false && payload.s.matches('a')"})
    for call in (lambda: check(expressions), lambda: decide(expressions, {"s": "a"}, "complete")):
        with pytest.raises(CelNotInstalled, match=r"matches.*pip install awa-django\[cel\]"):
            call()


def test_the_package_of_the_extra_is_not_loaded_before_it_is_needed() -> None:
    assert "cel" not in vars(cel)
    assert "cel" not in vars(functions)
