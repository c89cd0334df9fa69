from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.planes.conformance.worlds import WORLDS, AnyWorld, opened


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, world_database: str) -> Iterator[AnyWorld]:
    """An empty queue on either plane, with each sort of receipt."""
    with opened(request.param, world_database) as found:
        yield found
