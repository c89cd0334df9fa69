"""The sessions that handlers' callbacks go through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest

from awa_django.jobs import Attempt, Callback
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import Standing
from awa_django.worker.attendant import Attendant
from awa_django.worker.dispatcher import Dispatcher
from awa_django.worker.flights import Flight
from tests.planes.world import World, job
from tests.workers import wait_until

NAME = "awa test attendant"
Look = Callable[[Cursor], Standing | None]


class Scripted(QueueStoragePlane):
    """A plane that does what a test says when it is asked where a job is."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def consume_result(self, cursor: Cursor, attempt: Attempt) -> Standing | None:
        return self.look(cursor)


@pytest.fixture
def flight(world: World) -> Flight:
    (attempt,) = world.running(job())
    return Flight(attempt, cast("Dispatcher", None))


@pytest.fixture
def attend(world_database: str) -> Iterator[Callable[..., Attendant]]:
    """A function that makes an attendant on this database; closed with the test."""
    made: list[Attendant] = []

    def make(plane: QueueStoragePlane | None = None, sessions: int = 2) -> Attendant:
        made.append(
            Attendant(
                plane=plane or QueueStoragePlane(),
                connect=lambda: psycopg.connect(world_database, autocommit=True, application_name=NAME),
                flush=lambda flight: None,
                sessions=sessions,
            )
        )
        return made[-1]

    yield make
    for attendant in made:
        attendant.close()


def sessions(world: World) -> int:
    # Of this database: tests of another process may use the same name on the same server.
    return int(
        world.one(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            NAME,
        )
    )


def test_sessions_are_opened_as_needed_shared_and_kept(
    world: World, flight: Flight, attend: Callable[..., Attendant]
) -> None:
    inside = threading.Semaphore(0)
    go_on = threading.Event()

    def look(cursor: Cursor) -> None:
        inside.release()
        assert go_on.wait(60)

    attendant = attend(Scripted(look), sessions=2)
    wait_until(lambda: sessions(world) == 0, what="the end of those of the test before")
    with ThreadPoolExecutor(5) as threads:
        looks = [threads.submit(attendant.look, flight) for _ in range(5)]
        assert inside.acquire(timeout=30)
        assert inside.acquire(timeout=30)
        assert not inside.acquire(timeout=0.2), "a third one waits"
        go_on.set()
        for each in looks:
            each.result(30)
    assert sessions(world) == 2
    attendant.close()
    wait_until(lambda: sessions(world) == 0, what="the sessions to end")


def test_a_session_that_died_while_nobody_used_it_is_not_noticed(
    world: World, flight: Flight, attend: Callable[..., Attendant]
) -> None:
    attendant = attend()
    assert attendant.look(flight) is not None
    world.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s",
        NAME,
    )
    wait_until(lambda: sessions(world) == 0, what="the session to die")
    found = attendant.look(flight)
    assert found is not None
    assert found.state is JobState.RUNNING
    assert sessions(world) == 1


def test_an_error_of_a_statement_is_raised_undone_and_costs_no_session(
    world: World, flight: Flight, attend: Callable[..., Attendant]
) -> None:
    errors: list[Exception] = [psycopg.errors.DeadlockDetected("one"), ValueError("two")]

    def look(cursor: Cursor) -> None:
        cursor.execute("DELETE FROM awa.lease_claim_batches")
        if errors:
            raise errors.pop(0)

    attendant = attend(Scripted(look), sessions=1)
    for expected in (psycopg.errors.DeadlockDetected, ValueError):
        with pytest.raises(expected):
            attendant.look(flight)
    assert world.one("SELECT count(*) FROM awa.lease_claim_batches") == 1
    attendant.look(flight)
    # A session that was closed is seen until its process has ended.
    wait_until(lambda: sessions(world) == 1, what="one session")


@pytest.mark.parametrize("state", ["settling", "done"])
def test_an_attempt_whose_end_is_being_written_is_refused_and_marked(
    world: World, flight: Flight, attend: Callable[..., Attendant], state: str
) -> None:
    attendant = attend()
    setattr(flight, state, True)
    assert not attendant.register(flight, uuid4(), timedelta(hours=1), Callback(None, None))
    assert not attendant.begin_wait(flight, uuid4())
    assert flight.has_lease
    assert world.rows("SELECT * FROM awa.leases") == []


def test_a_registration_is_stored_when_it_returns_and_marks_the_attempt(
    world: World, flight: Flight, attend: Callable[..., Attendant]
) -> None:
    attendant = attend()
    assert not flight.has_lease
    token: Any = uuid4()
    assert attendant.register(flight, token, timedelta(hours=1), Callback(None, None))
    assert (flight.has_lease, flight.left_state) == (True, True)
    assert world.one("SELECT callback_id FROM awa.leases") == token
    assert attendant.withdraw(flight)
    assert not attendant.withdraw(flight)
