from __future__ import annotations

from collections.abc import Iterator

import pytest

from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.sql import statement
from tests import databases
from tests.planes.sessions import session
from tests.planes.world import World


@pytest.fixture(scope="session")
def world_database(server_url: str, awa_template: str) -> Iterator[str]:
    """The URL of one database for all tests of this process that leave it to ``world`` to empty it."""
    with databases.scratch(server_url, "world", template=awa_template) as url:
        yield url


@pytest.fixture
def world(world_database: str) -> Iterator[World]:
    """An empty queue with a session of it. Job ids go on counting from test to test."""
    with session(world_database) as connection:
        connection.execute(statement("testing", "reset"), {})
        yield World(connection, QueueStoragePlane())
