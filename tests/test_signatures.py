from __future__ import annotations

import hmac
from typing import Any
from unittest import mock

import pytest
from awa import callback_contract as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_django.errors import ConfigurationError
from awa_django.signatures import (
    DEFAULT_PATH_PREFIX,
    SIGNATURE_HEADER,
    build_callback_url,
    parse_secret,
    sign,
    verify,
)
from tests.vectors import load

VECTORS = load("callback_signatures")
SECRET = b"\x07" * 32
OTHER = b"\x08" * 32


def test_the_pinned_example_is_reproduced() -> None:
    assert sign("abc", SECRET) == "b1495225f01fa8cd09e410d288d09b68c1cc9fb2414686c0d3ac13fc905497d9"


@pytest.mark.parametrize("vector", VECTORS["sign"], ids=lambda vector: vector["signature"][:12])
def test_recorded_signatures_are_reproduced(vector: dict[str, Any]) -> None:
    secret = parse_secret(vector["secret_hex"])
    assert sign(vector["callback_id"], secret) == vector["signature"]
    assert verify(vector["callback_id"], vector["signature"], [secret])


@pytest.mark.parametrize("case", VECTORS["verify"]["cases"], ids=lambda case: case["case"])
def test_recorded_verifications_are_reproduced(case: dict[str, Any]) -> None:
    named = VECTORS["verify"] | case
    secret = parse_secret(named["secret_hex"])
    assert verify(named["callback_id"], named["signature"], [secret]) is case["valid"]


@pytest.mark.parametrize("refusal", VECTORS["secret_refusals"], ids=str)
def test_recorded_refusals_of_secrets_are_reproduced(refusal: dict[str, Any]) -> None:
    if refusal["error_type"] == "TypeError":
        with pytest.raises(TypeError):
            sign("abc", "x" * 32)  # type: ignore[arg-type]
        return
    secret = b"x" * refusal["secret_length"]
    for call in (lambda: sign("abc", secret), lambda: verify("abc", "0" * 64, [secret])):
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value) == refusal["message"]


@pytest.mark.parametrize("vector", VECTORS["urls"], ids=lambda vector: vector["url"])
def test_recorded_addresses_are_reproduced(vector: dict[str, Any]) -> None:
    assert (
        build_callback_url(vector["base"], vector["prefix"], vector["callback_id"], vector["action"])
        == vector["url"]
    )


def test_the_names_are_those_of_the_recorded_client() -> None:
    assert SIGNATURE_HEADER == VECTORS["header"] == oracle.SIGNATURE_HEADER
    assert DEFAULT_PATH_PREFIX == VECTORS["default_path_prefix"] == oracle.DEFAULT_PATH_PREFIX


words = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.interop
@settings(deadline=None)
@given(words, st.binary(min_size=32, max_size=32))
def test_the_awa_client_signs_and_verifies_alike(callback_id: str, secret: bytes) -> None:
    signature = sign(callback_id, secret)
    assert signature == oracle.sign(secret, callback_id)
    assert oracle.verify(secret, callback_id, signature.upper())
    assert verify(callback_id, oracle.sign(secret, callback_id), [secret])


@pytest.mark.interop
@settings(deadline=None)
@given(
    words | st.from_regex(r"\A[ /a]{0,5}\Z"),
    words | st.from_regex(r"\A[ \t\n\x1c\x85\u3000/a]{0,6}\Z"),
    words,
    words,
)
def test_the_awa_client_builds_the_same_addresses(base: str, prefix: str, id: str, action: str) -> None:
    assert build_callback_url(base, prefix, id, action) == oracle.build_callback_url(base, prefix, id, action)


def test_a_secret_is_replaced_without_a_gap() -> None:
    old, new = sign("abc", OTHER), sign("abc", SECRET)
    assert verify("abc", new, [SECRET, OTHER])
    assert verify("abc", old, [SECRET, OTHER])
    assert not verify("abc", old, [SECRET])


def test_without_secrets_nothing_is_verified() -> None:
    assert not verify("abc", sign("abc", SECRET), [])


def test_what_cannot_be_a_signature_is_wrong_rather_than_an_error() -> None:
    for wrong in ("", "é" * 64, "0" * 63, "０" * 64, "\ud800" * 64, sign("abc", SECRET) + "\n"):
        assert not verify("abc", wrong, [SECRET])
    assert not verify("\ud800", sign("abc", SECRET), [SECRET])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not 0 characters"),
        ("07" * 31, "not 62 characters"),
        ("07" * 33, "not 66 characters"),
        ("0x" + "07" * 31, "not something else"),
        ("07" * 31 + "0\n", "not something else"),
        ("０７" * 32, "not something else"),
        (b"\x07" * 32, "not bytes"),
        (None, "not NoneType"),
    ],
)
def test_secrets_that_are_not_64_hex_digits_are_refused_by_name(text: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_secret(text, name="AWA['CALLBACK_SECRETS'][0]")
    assert str(refusal.value).startswith("AWA['CALLBACK_SECRETS'][0]: 64 hex digits")
    assert fault in str(refusal.value)
    assert not text or str(text) not in str(refusal.value)


def test_a_secret_is_the_bytes_its_digits_spell() -> None:
    assert parse_secret("07" * 32) == SECRET
    assert parse_secret("aB" * 32) == b"\xab" * 32


def test_a_signature_is_compared_in_constant_time_with_that_of_every_secret() -> None:
    """However much of it is right, and whichever secret it belongs to: the time tells neither."""
    secrets = [bytes([number]) * 32 for number in (1, 2, 3)]
    right = sign("abc", secrets[0])
    for claimed, good in (
        (right, True),
        (right[:-1] + "0", right[-1] == "0"),
        ("0" * 64, False),
        ("no hex", False),
    ):
        with mock.patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compared:
            assert verify("abc", claimed, secrets) is good
        assert [call.args[0] for call in compared.call_args_list] == [
            sign("abc", secret) for secret in secrets
        ]
