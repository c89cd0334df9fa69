"""Tests that share something dear run in one process."""

from __future__ import annotations

import pytest

from tests.together import group


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("tests/chaos/test_chaos.py", "chaos"),
        ("tests/browser/test_desk.py", "browser"),
        ("tests/scenarios/test_large_tables.py", "large"),
        ("tests/example/test_demo.py", "example"),
        ("tests/example/test_shop.py", "example"),
        ("tests/worker/test_outcomes_of_handlers.py", "tests/worker/test_outcomes_of_handlers.py"),
        ("tests/test_encoding.py", None),
        ("tests/test_that_is_not_there.py", None),
    ],
)
def test_files_belong_to_the_group_that_they_name_or_that_they_are(file: str, expected: str | None) -> None:
    assert group(file) == expected
