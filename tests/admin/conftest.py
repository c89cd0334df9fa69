"""What all tests of the admin's pages need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from awa_django.admin.kept import forget


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    """Pages keep some figures for seconds, which is longer than a test lasts."""
    forget()
    yield
    forget()
