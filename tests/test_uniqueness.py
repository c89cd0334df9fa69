from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_django import uniqueness
from awa_django.errors import InvalidJob
from awa_django.states import NON_TERMINAL_STATES, JobState, mask_bits, state_mask
from awa_django.uniqueness import (
    ALL_STATES,
    AWA_DEFAULT_STATES,
    UNTIL_STARTED_STATES,
    Unique,
    canonical_json,
    mask_hazards,
    unique_key,
)
from tests.vectors import load

VECTORS = load("unique_keys")
#: Recorded with values that are refused here before a key is computed; their JSON is what upstream made of them.
REFUSED_ARGS = {"args_nan_becomes_null", "args_int_above_i64_becomes_float"}


def vector_args(vector: dict[str, Any]) -> Any:
    text = vector["canonical_args"] if vector["name"] in REFUSED_ARGS else vector["args_json"]
    return json.loads(text)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_recorded_keys_are_reproduced(vector: dict[str, Any]) -> None:
    args = vector_args(vector)
    options = dict(vector["unique_opts"])
    mask = options.pop("states", AWA_DEFAULT_STATES)
    unique = Unique(**options)
    assert unique.key(vector["kind"], vector["queue"], args).hex() == vector["unique_key_hex"]
    assert mask_bits(mask) == vector["unique_states_bits"]
    if "canonical_args" in vector:
        assert canonical_json(args) == vector["canonical_args"]


@pytest.mark.parametrize("vector", VECTORS["lookup_vectors"], ids=lambda vector: vector["name"])
def test_recorded_keys_of_any_json_are_reproduced(vector: dict[str, Any]) -> None:
    text = canonical_json(json.loads(vector["args_json"]))
    assert text == vector["canonical_args"]
    assert unique_key(vector["kind"], canonical_args=text).hex() == vector["unique_key_hex"]


def test_key_order_does_not_matter_and_number_types_do() -> None:
    unique = Unique()
    assert unique.key("k", "q", {"b": 1, "a": 2}) == unique.key("k", "q", {"a": 2, "b": 1})
    assert unique.key("k", "q", {"v": 1}) != unique.key("k", "q", {"v": 1.0})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "0.00001"),
        (-1.25e-5, "-0.0000125"),
        (9.99e-5, "0.0000999"),
        (1e-6, "1e-6"),
        (1.2e-6, "1.2e-6"),
        (5e-324, "5e-324"),
        (1e16, "1e+16"),
        (1000000000000000.0, "1000000000000000.0"),
        (123456789012345.6, "123456789012345.6"),
        (-0.0, "-0.0"),
    ],
)
def test_floats_switch_to_exponents_where_the_contract_does(value: float, text: str) -> None:
    assert canonical_json(value) == text


def test_keys_sort_by_code_point_and_strings_are_raw() -> None:
    value = {"\U0001f600": 1, "\uffff": '/\x7f\u2028é\x01\n"\\'}
    assert canonical_json(value) == '{"\uffff":"/\x7f\u2028é\\u0001\\n\\"\\\\","\U0001f600":1}'


def test_the_default_states_are_the_non_terminal_ones() -> None:
    assert Unique().mask == NON_TERMINAL_STATES == 151
    assert Unique().bits == "11101001"
    assert mask_hazards(151) == ()


def test_named_masks_are_what_they_say() -> None:
    assert AWA_DEFAULT_STATES == 31
    assert ALL_STATES == 255
    assert state_mask(JobState.SCHEDULED, JobState.AVAILABLE) == UNTIL_STARTED_STATES == 3


def test_states_may_be_listed() -> None:
    assert Unique(states=[JobState.SCHEDULED, JobState.AVAILABLE]).mask == 3
    assert Unique(states=["available"]).mask == 2  # type: ignore[list-item]


@pytest.mark.parametrize("mask", [4, 5, 0b10000100, 252])
def test_a_mask_that_would_make_claims_fail_is_refused(mask: int) -> None:
    with pytest.raises(InvalidJob, match="add available") as refusal:
        Unique(states=mask)
    assert refusal.value.path == "unique.states"


def test_a_mask_that_lets_go_and_takes_again_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    mask = state_mask(JobState.AVAILABLE, JobState.RETRYABLE)
    uniqueness._warn_once.cache_clear()  # an earlier test of the process may have been warned
    with caplog.at_level(logging.WARNING, "awa_django.uniqueness"):
        Unique(states=mask)
        Unique(states=mask)
    assert len(caplog.records) == 1
    assert "running to retryable" in caplog.text
    assert "ends cancelled" in caplog.text


def test_a_period_is_counted_in_whole_periods_since_1970() -> None:
    at = datetime(2026, 1, 1, 0, 0, 59, tzinfo=UTC)
    unique = Unique(period=60)
    bucket = unique.bucket(at)
    assert bucket == int(at.timestamp()) // 60
    assert unique.bucket(at + timedelta(seconds=1)) == bucket + 1
    assert Unique(period=timedelta(minutes=1)).key("k", "q", {}, at) == Unique(by_period=bucket).key(
        "k", "q", {}
    )
    assert Unique(period=60).bucket(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1
    assert Unique().bucket() is None


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"by_period": timedelta(1)}, "unique.by_period"),
        ({"by_period": True}, "unique.by_period"),
        ({"by_period": 2**63}, "unique.by_period"),
        ({"by_period": -(2**63) - 1}, "unique.by_period"),
        ({"by_period": 1, "period": 60}, "unique.period"),
        ({"period": 0}, "unique.period"),
        ({"period": float("nan")}, "unique.period"),
        ({"period": "1h"}, "unique.period"),
        ({"by_args": 1}, "unique.by_args"),
        ({"by_queue": None}, "unique.by_queue"),
        ({"states": 256}, "unique.states"),
        ({"states": -1}, "unique.states"),
        ({"states": ["asleep"]}, "unique.states"),
        ({"states": None}, "unique.states"),
        ({"by_arg": True}, "unique.by_arg"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        Unique.of(options)
    assert refusal.value.path == path


def test_options_may_be_given_short() -> None:
    assert Unique.of(None) is None
    assert Unique.of(False) is None
    assert Unique.of(True) == Unique()
    assert Unique.of({}) == Unique()
    assert Unique.of({"by_queue": True}) == Unique(by_queue=True)
    with pytest.raises(InvalidJob, match="dict of its options"):
        Unique.of("yes")  # type: ignore[arg-type]
