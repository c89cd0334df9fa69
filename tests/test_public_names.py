"""The names that application code imports."""

from __future__ import annotations

import awa
import pytest

import awa_django

#: What code for other awa clients imports under these names (contract: api/python_surface section 2).
KEPT = (
    "RetryAfter", "Snooze", "Cancel", "WaitForCallback", "TerminalError", "UniqueConflict", "CallbackNotFound",
    "PartitionedQueue", "JobState", "derive_kind",
)  # fmt: skip


@pytest.mark.parametrize("name", awa_django.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    found = getattr(awa_django, name)
    assert found.__doc__
    assert name in dir(awa_django)


def test_names_that_code_for_other_clients_imports_are_kept() -> None:
    assert set(KEPT) <= set(awa_django.__all__)
    for name in KEPT:
        assert hasattr(awa, name), "it is one of the real client's"
    assert sorted(awa_django.__all__) == list(awa_django.__all__)


def test_no_other_name_is_public() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = awa_django.Nonsense
    assert set(awa_django.__all__) == set(awa_django._HOMES)


def test_states_are_those_of_the_real_client() -> None:
    theirs = {str(getattr(awa.JobState, name)) for name in dir(awa.JobState) if name[0].isupper()}
    assert {name.rpartition(".")[2].lower().replace("_", "") for name in theirs} == {
        state.value.replace("_", "") for state in awa_django.JobState
    }
