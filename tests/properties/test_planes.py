"""Each plane beside a model of it: no job is lost, none lives twice, leases only grow, and counts agree.

``AWA_PROPERTY_EXAMPLES`` asks for more runs than the default, and for other ones each time; ``AWA_PROPERTY_STEPS`` for
longer ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.planes.conformance.worlds import AnyWorld, opened
from tests.planes.conftest import world_database
from tests.properties.machine import PlaneMachine
from tests.settings import database

__all__ = ["world_database"]

ALIAS = "properties"
EXAMPLES = int(os.environ.get("AWA_PROPERTY_EXAMPLES", "0"))
PROFILE = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=int(os.environ.get("AWA_PROPERTY_STEPS", "40")),
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(params=["queue_storage", "canonical"])
def world(request: pytest.FixtureRequest, world_database: str, django_db_blocker: Any) -> Iterator[AnyWorld]:
    """A world that Django knows by an alias of its own, for what operators see."""
    connections.databases[ALIAS] = connections.configure_settings(
        {"default": {}, ALIAS: database(world_database)}
    )[ALIAS]
    try:
        with opened(request.param, world_database) as found, django_db_blocker.unblock():
            yield found
            connections[ALIAS].close()
    finally:
        del connections[ALIAS]
        del connections.databases[ALIAS]


@pytest.mark.timeout(0 if EXAMPLES else 400)
def test_whatever_is_done_in_whatever_order_no_job_is_lost_and_none_lives_twice(world: AnyWorld) -> None:
    machine = type("Machine", (PlaneMachine,), {"world": world, "alias": ALIAS})
    run_state_machine_as_test(machine, settings=PROFILE)
