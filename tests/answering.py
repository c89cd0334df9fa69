"""Jobs that wait on either plane of Django's test database, for tests that answer them from application code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, transaction
from psycopg.types.json import set_json_loads

from awa_django import (
    registry,
)
from awa_django.jobs import Attempt, Callback, JobInsert
from awa_django.outcomes import WaitForCallback
from awa_django.planes.base import Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from tests.planes.world import World, use_canonical_tables

HOUR = timedelta(hours=1)
NONE = Callback(None, None)
PLANES: dict[str, type[Plane]] = {"queue_storage": QueueStoragePlane, "canonical": CanonicalPlane}


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


def session() -> psycopg.Connection[Any]:
    """A session of Django's test database that is not Django's."""
    params = {**connection.get_connection_params(), "cursor_factory": None, "context": None}
    params = {key: value for key, value in params.items() if value is not None}
    opened = psycopg.connect(**params, autocommit=True)
    set_json_loads(json.loads, opened)
    return opened


@pytest.fixture(params=PLANES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Django's test database with new jobs on either plane, seen through a session beside Django's."""
    with session() as opened:
        if request.param == "canonical":
            use_canonical_tables(opened)
        yield World(opened, PLANES[request.param]())


def registered(
    world: World, kind: str = "k", *, judges: Callback = NONE, **fields: Any
) -> tuple[Attempt, UUID]:
    """A running attempt with a token."""
    (attempt,) = world.running(JobInsert(kind=kind, args={}, queue="q", **fields))
    token = uuid4()
    assert world.within(lambda cursor: world.plane.register_callback(cursor, attempt, token, HOUR, judges))
    return attempt, token


def parked(world: World, kind: str = "k", *, judges: Callback = NONE, **fields: Any) -> tuple[Attempt, UUID]:
    """A waiting attempt and its token."""
    attempt, token = registered(world, kind, judges=judges, **fields)
    assert world.end([attempt], WaitForCallback(token)).landed
    return attempt, token


def state_of(world: World, job_id: int) -> JobState | None:
    found = world.within(lambda cursor: world.plane.standings(cursor, [job_id])).get(job_id)
    return None if found is None else found.state


class Declined(Exception):
    """What a caller raises after answering."""


@contextmanager
def undone() -> Iterator[None]:
    """A transaction of the caller's that ends with an exception."""
    with contextlib.suppress(Declined), transaction.atomic():
        yield
        raise Declined
