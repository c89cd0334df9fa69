"""A worker in this process on either storage, and what its handlers tell the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from queue import Queue
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from awa_django import (
    registry,
)
from awa_django.worker.process import Worker
from tests import invariants
from tests.inprocess import working
from tests.planes.world import use_canonical_tables
from tests.workers import wait_until

#: For leaders that rescue at once.
QUICK = {
    "rescue_interval": timedelta(seconds=0.2),
    "leader_election_interval": timedelta(seconds=0.2),
    "promote_interval": timedelta(seconds=0.1),
}
SECONDS = 30.0


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


class Database:
    """Django's test database through a session beside Django's."""

    def __init__(self, opened: psycopg.Connection[Any], storage: str) -> None:
        self.connection = opened
        self.storage = storage

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values or None).fetchall()

    def job(self, job_id: int) -> dict[str, Any]:
        """A job as readers see it; None for every field while it runs without a lease."""
        found = self.rows("SELECT *, state::text AS state FROM awa.jobs WHERE id = %s", job_id)
        return found[0] if found else {"state": None}

    def wait_for(self, job_id: int, *states: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The job once it is in one of these states."""
        # The row that was seen: by the next look the job may have gone on.
        return wait_until(
            lambda: found if (found := self.job(job_id))["state"] in states else {},
            seconds=seconds,
            what=f"job {job_id} to be {' or '.join(states)}; it is {self.job(job_id)}",
        )

    def held(self, job_id: int) -> dict[str, Any]:
        """The row that holds a running or waiting attempt."""
        if self.storage == "canonical":
            (row,) = self.rows("SELECT *, state::text AS state FROM awa.jobs_hot WHERE id = %s", job_id)
        else:
            (row,) = self.rows("SELECT *, state::text AS state FROM awa.leases WHERE job_id = %s", job_id)
        return row

    def working(self, slots: dict[str, int] | None = None, **settings: Any) -> AbstractContextManager[Worker]:
        """A worker in this process that serves this storage."""
        role = "canonical_drain" if self.storage == "canonical" else "auto"
        return working(slots, transition_role=role, **settings)

    def wait_waiting(self, job_id: int) -> None:
        """Until the job waits for its callback."""
        self.wait_for(job_id, "waiting_external")


@contextmanager
def opened(storage: str) -> Iterator[Database]:
    params = {**connection.get_connection_params(), "cursor_factory": None, "context": None}
    params = {key: value for key, value in params.items() if value is not None}
    with psycopg.connect(**params, autocommit=True) as session:
        set_json_loads(json.loads, session)
        if storage == "canonical":
            use_canonical_tables(session)
        yield Database(session, storage)
        if storage == "queue_storage":
            assert invariants.violated(session) == []


@pytest.fixture(params=["queue_storage", "canonical"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """On either storage."""
    with opened(request.param) as found:
        yield found


@pytest.fixture
def queue_storage() -> Iterator[Database]:
    with opened("queue_storage") as found:
        yield found


class Told:
    """What handlers tell the test, in order."""

    def __init__(self) -> None:
        self._told: Queue[Any] = Queue()

    def __call__(self, value: Any) -> None:
        self._told.put(value)

    def next(self, seconds: float = SECONDS) -> Any:
        return self._told.get(timeout=seconds)


@pytest.fixture
def told() -> Told:
    return Told()


def first_line(row: dict[str, Any]) -> str:
    """What the last error of a job says."""
    return str(row["errors"][-1]["error"]).partition("\n")[0]
