"""What Django's settings say of connections."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from awa_django.db import pool_size


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (None, None),
        (False, None),
        ({}, None),  # as Django reads it
        (True, 4),
        ({"timeout": 2}, 4),
        ({"min_size": 3}, 3),
        ({"min_size": 3, "max_size": 20}, 20),
    ],
)
def test_a_pool_has_as_many_connections_as_its_options_say(
    pool: Any, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", pool)
    assert pool_size("default") == size
