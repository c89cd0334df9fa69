from __future__ import annotations

from collections.abc import Iterator

import pytest

from awa_django.planes.canonical import CanonicalPlane
from awa_django.sql import statement
from tests.planes.sessions import session
from tests.planes.world import World, use_canonical_tables


@pytest.fixture
def canonical(world_database: str) -> Iterator[World]:
    """An empty queue on the canonical tables, with a session of it. Job ids go on counting from test to test."""
    with session(world_database) as connection:
        connection.execute(statement("testing", "reset"), {})
        use_canonical_tables(connection)
        yield World(connection, CanonicalPlane())
