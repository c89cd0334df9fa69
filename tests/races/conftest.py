from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.planes.conformance.conftest import world
from tests.planes.conftest import world_database
from tests.races.sides import Side, two_sides

__all__ = ["sides", "world", "world_database"]


@pytest.fixture
def sides(world_database: str) -> Iterator[tuple[Side, Side]]:
    """Two sessions of the world's database."""
    with two_sides(world_database) as found:
        yield found
