"""What people are shown of a job's values."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.test import override_settings

from awa_django.checks import check_redaction
from awa_django.conf import REDACTED_NAMES
from awa_django.errors import ConfigurationError
from awa_django.redaction import MASK, redactor, shown
from awa_django.unreadable import Unreadable

NOTHING: list[Any] = [
    None,
    True,
    0,
    1.5,
    "a password",
    [],
    {},
    [None, ["token"]],
    {"order": 7, "items": [{"id": 1}]},
]


@pytest.mark.parametrize("value", NOTHING, ids=repr)
def test_what_has_no_secret_key_is_shown_as_it_is(value: Any) -> None:
    assert shown("k", "args", value) == value


def test_values_of_secret_keys_are_masked_at_any_depth_and_in_any_spelling() -> None:
    value = {
        "user": {"Password": "x", "name": "ada"},
        "items": [{"api_key": "y"}, {"apiKey": "y", "n": 1}, [{"X-Api-Key": "y"}]],
        "AUTHORIZATION": "Bearer z",
        "privateKey": {"n": 1},
        "stripe_secret_2": ["a", "b"],
        "api key": "y",
        "http.api.key": "y",
        "API:KEY": "y",
        "cookies": 7,
        "pair": ({"token": "t"}, 2),
    }
    assert shown("k", "metadata", value) == {
        "user": {"Password": MASK, "name": "ada"},
        "items": [{"api_key": MASK}, {"apiKey": MASK, "n": 1}, [{"X-Api-Key": MASK}]],
        "AUTHORIZATION": MASK,
        "privateKey": MASK,
        "stripe_secret_2": MASK,
        "api key": MASK,
        "http.api.key": MASK,
        "API:KEY": MASK,
        "cookies": MASK,
        "pair": [{"token": MASK}, 2],
    }
    assert value["user"] == {"Password": "x", "name": "ada"}, "what is shown is a copy"


def test_that_a_secret_is_missing_may_be_seen() -> None:
    assert shown("k", "args", {"password": None, "token": ""}) == {"password": None, "token": MASK}


def test_each_name_that_is_secret_by_default_is_masked() -> None:
    for name in REDACTED_NAMES:
        assert shown("k", "args", {f"The {name.upper()}": 1}) == {f"The {name.upper()}": MASK}


def test_of_what_cannot_be_read_nothing_is_shown() -> None:
    broken = Unreadable('{"password": 1e999}', "beyond a float")
    assert shown("k", "args", broken) == MASK
    assert shown("k", "errors", [{"error": broken, "attempt": 1}]) == [{"error": MASK, "attempt": 1}]


@override_settings(AWA={"REDACTED_NAMES": ["IBAN", "x-account"]})
def test_the_project_says_which_names_are_secret() -> None:
    value = {"iban": "DE02", "X_Account_No": 7, "password": "x"}
    assert shown("k", "args", value) == {"iban": MASK, "X_Account_No": MASK, "password": "x"}


@override_settings(AWA={"REDACTED_NAMES": []})
def test_no_name_need_be_secret() -> None:
    assert shown("k", "args", {"password": "x"}) == {"password": "x"}


def recorded(kind: str, part: str, value: Any) -> Any:
    """A hook, found by its path."""
    return [kind, part, value]


def broken(kind: str, part: str, value: Any) -> Any:
    """A hook that fails."""
    raise ValueError("cannot hide")


def test_the_projects_function_gets_what_is_left() -> None:
    for hook in (recorded, "tests.test_redaction.recorded"):
        with override_settings(AWA={"REDACT": hook}):
            assert shown("mail", "progress", {"token": 1, "a": 2}) == [
                "mail",
                "progress",
                {"token": MASK, "a": 2},
            ]
            assert shown("mail", "errors", "text") == ["mail", "errors", "text"]
    assert redactor() is None, "settings are read again"


@override_settings(AWA={"REDACT": broken})
def test_nothing_is_shown_where_the_function_fails(caplog: pytest.LogCaptureFixture) -> None:
    assert shown("mail", "args", {"a": "topsecret"}) == MASK
    [record] = caplog.records
    assert (record.name, record.levelno) == ("awa_django", logging.ERROR)
    assert "'mail'" in record.getMessage()
    assert "topsecret" not in caplog.text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("tests.nowhere.redact", "cannot be imported"),
        ("tests.test_redaction.nothing", "cannot be imported"),
        ("tests.test_redaction.NOTHING", "is no function but list"),
    ],
)
def test_a_path_that_leads_to_no_function_is_an_error_of_the_check(path: str, words: str) -> None:
    assert check_redaction() == []
    with override_settings(AWA={"REDACT": path}):
        [error] = check_redaction()
        assert (error.id, path in error.msg, words in error.msg) == ("awa.E011", True, True)
        with pytest.raises(ConfigurationError, match=words):
            shown("k", "args", {"a": 1})
    with override_settings(AWA={"REDACT": "nodots"}):
        assert check_redaction() == [], "awa.E001 says it"
