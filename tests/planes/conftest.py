from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from awa_django.planes.queue_storage import QueueStoragePlane
from tests.planes.world import World


@pytest.fixture
def world(awa_database: str) -> Iterator[World]:
    """A fresh database with a session of it."""
    with psycopg.connect(awa_database, autocommit=True) as connection:
        yield World(connection, QueueStoragePlane())
