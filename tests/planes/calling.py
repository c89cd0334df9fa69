"""Jobs with callbacks on either plane, answered as the client and the worker do it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from awa_django.jobs import Attempt, Callback, Job, Landed, Taken
from awa_django.outcomes import (
    Outcome,
    WaitForCallback,
)
from awa_django.planes.base import Answered, Cursor, Settlement
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import RULES, Standing, land_one, plan
from tests import invariants
from tests.planes.sessions import session
from tests.planes.world import World, job, use_canonical_tables

NONE = Callback(None, None)
JUDGES = Callback(None, None, "payload.a", "payload.b", "payload.c", "payload.d")
HOUR = timedelta(hours=1)
EITHER = (JobState.WAITING_EXTERNAL, JobState.RUNNING)
KEY = b"0123456789abcdef"


@pytest.fixture(params=["queue_storage", "canonical"])
def world(request: pytest.FixtureRequest, world_database: str) -> Iterator[World]:
    """An empty queue on either plane; queue storage is left with its invariants unharmed."""
    with session(world_database) as connection:
        connection.execute(statement("testing", "reset"), {})
        if request.param == "canonical":
            use_canonical_tables(connection)
            yield World(connection, CanonicalPlane())
        else:
            yield World(connection, QueueStoragePlane())
            assert invariants.violated(connection) == []


def is_canonical(world: World) -> bool:
    return world.plane.name == "canonical"


def register(world: World, attempt: Attempt, *, timeout: timedelta = HOUR, judges: Callback = NONE) -> UUID:
    token = uuid4()
    assert registers(world, attempt, token, timeout=timeout, judges=judges)
    return token


def registers(
    world: World, attempt: Attempt, token: UUID, *, timeout: timedelta = HOUR, judges: Callback = NONE
) -> bool:
    return world.within(lambda cursor: world.plane.register_callback(cursor, attempt, token, timeout, judges))


def settled(world: World, attempt: Attempt, outcome: Outcome, *, progress: Any = None) -> Settlement:
    """The attempt ended as its worker does it, which knows that it registered a callback."""
    transition = plan(attempt, outcome, progress=progress)._replace(has_lease=True)
    return world.within(lambda cursor: world.plane.settle(cursor, [transition]))


def parked(world: World, **fields: Any) -> tuple[Attempt, UUID]:
    (attempt,) = world.running(job(**fields))
    token = register(world, attempt)
    assert settled(world, attempt, WaitForCallback(token)).landed
    return attempt, token


def pending(
    world: World, token: UUID, run_lease: int | None = None, states: tuple[JobState, ...] = EITHER
) -> Taken | None:
    return world.within(lambda cursor: world.plane.find_callback(cursor, token, run_lease, states))


def end(
    world: World,
    token: UUID,
    outcome: Outcome,
    *,
    run_lease: int | None = None,
    states: tuple[JobState, ...] = EITHER,
) -> list[Landed]:
    """What a client does with an outcome."""

    def work(cursor: Cursor) -> list[Landed]:
        guard = Answered(token, run_lease, states, RULES[type(outcome)].closes)
        return world.plane.place(
            cursor, [land_one(item, outcome) for item in world.plane.take(cursor, guard)]
        )

    return world.within(work)


def resume(world: World, token: UUID, payload: Any) -> bool:
    def work(cursor: Cursor) -> bool:
        found = world.plane.find_callback(cursor, token, None, EITHER)
        if found is None:
            return False
        world.plane.resume(cursor, found, payload)
        return True

    return world.within(work)


def extend(world: World, token: UUID, timeout: timedelta) -> bool:
    def work(cursor: Cursor) -> bool:
        found = world.plane.find_callback(cursor, token, None, (JobState.WAITING_EXTERNAL,))
        if found is None:
            return False
        world.plane.extend_callback(cursor, found, timeout)
        return True

    return world.within(work)


def begins(world: World, attempt: Attempt, token: UUID) -> bool:
    return world.within(lambda cursor: world.plane.begin_wait(cursor, attempt, token))


def ends(world: World, attempt: Attempt, token: UUID) -> bool:
    return world.within(lambda cursor: world.plane.end_wait(cursor, attempt, token))


def look(world: World, attempt: Attempt) -> Standing | None:
    return world.within(lambda cursor: world.plane.consume_result(cursor, attempt))


def standing(world: World, job_id: int) -> Standing | None:
    return world.within(lambda cursor: world.plane.standings(cursor, [job_id])).get(job_id)


def state_of(world: World, attempt: Attempt) -> JobState | None:
    found = standing(world, attempt.job_id)
    return None if found is None else found.state


def only(landed: list[Landed]) -> Job:
    (item,) = landed
    assert not item.duplicate
    return item.job


def key_holder(world: World) -> int | None:
    rows = world.rows("SELECT job_id FROM awa.job_unique_claims WHERE unique_key = %s", KEY)
    return rows[0]["job_id"] if rows else None


def lease_of(world: World, attempt: Attempt) -> dict[str, Any]:
    """The row of the plane that holds a running or waiting attempt."""
    table, column = ("jobs_hot", "id") if is_canonical(world) else ("leases", "job_id")
    (row,) = world.rows(f"SELECT * FROM awa.{table} WHERE {column} = %s", attempt.job_id)
    return row


def attempt_pair(attempt: Attempt) -> tuple[int, int]:
    return attempt.job_id, attempt.run_lease


def withdraws(world: World, attempt: Attempt) -> bool:
    return world.within(lambda cursor: world.plane.withdraw_callback(cursor, attempt))


def answerable(world: World, state: JobState, **fields: Any) -> tuple[Attempt, UUID]:
    """An attempt with a token, waiting or still running."""
    if state is JobState.WAITING_EXTERNAL:
        return parked(world, **fields)
    (attempt,) = world.running(job(**fields))
    return attempt, register(world, attempt)
