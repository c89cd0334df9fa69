from __future__ import annotations

import pytest

from awa_django.conf import Settings
from awa_django.db import read_any_job
from awa_django.maintenance import Context
from tests.planes.conftest import world, world_database
from tests.planes.world import World

__all__ = ["context", "world", "world_database"]


@pytest.fixture
def context(world: World) -> Context:
    """What a duty of the leader gets, with default settings."""
    world.run("SET jit = off")
    read_any_job(world.connection)
    return Context(connection=world.connection, settings=Settings())
