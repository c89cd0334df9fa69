"""Outcomes become durable whatever is wrong with one of them, and leave nothing behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import psycopg
import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Completed, Failed
from awa_django.planes.base import Plane, Settlement
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.transitions import Transition, plan
from awa_django.worker import settler
from awa_django.worker.dispatcher import Dispatcher
from awa_django.worker.flights import Flight, Flights
from awa_django.worker.heartbeat import Heartbeat
from awa_django.worker.settler import Settler
from tests.planes.world import World, job
from tests.workers import wait_until


class Desk:
    """A settler with what belongs to it."""

    def __init__(self, plane: Plane, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self.outcomes: deque[Transition] = deque()
        self.flights = Flights()
        self.settlements: list[Settlement] = []
        self.settler = Settler(
            self.outcomes,
            plane=plane,
            flights=self.flights,
            connect=connect,
            batch_size=100,
            settled=self.settlements.append,
            more_expected=lambda: False,
        )

    def fly(self, attempts: Sequence[Attempt]) -> list[Flight]:
        flights = [Flight(attempt, cast("Dispatcher", None)) for attempt in attempts]
        self.flights.add(flights)
        return flights

    def settled(self) -> list[Transition]:
        return [item for settlement in self.settlements for item in settlement.completed]


class Picky(QueueStoragePlane):
    """Refuses what the test says, and takes the rest as written."""

    def __init__(self, refuse: Callable[[Transition], Exception | None]) -> None:
        self.refuse = refuse
        self.batches: list[int] = []

    def settle(self, cursor: Any, transitions: Sequence[Transition]) -> Settlement:
        self.batches.append(len(transitions))
        for item in transitions:
            if error := self.refuse(item):
                raise error
        return Settlement(completed=list(transitions))


@pytest.fixture
def desk(
    world_database: str, connecting: Callable[[str], Callable[[], psycopg.Connection[Any]]]
) -> Iterator[Callable[[Plane], Desk]]:
    """A function that makes a desk on a plane; its settler ends with the test."""
    made: list[Desk] = []

    def make(plane: Plane) -> Desk:
        made.append(Desk(plane, connecting(world_database)))
        return made[-1]

    yield make
    for item in made:
        item.settler.abandon.set()
        item.settler.stop()
        assert item.settler.join(30)


def _poisoned(error: Exception) -> Callable[[Transition], Exception | None]:
    return lambda item: (
        error if isinstance(item.outcome, Completed) and item.outcome.result == "poison" else None
    )


@pytest.mark.parametrize(
    "error", [TypeError("a set is no JSON"), psycopg.DataError("no"), psycopg.IntegrityError("never")]
)
def test_an_outcome_that_cannot_be_stored_becomes_a_failure_and_the_others_are_stored(
    world: World, desk: Callable[[Plane], Desk], error: Exception
) -> None:
    table = desk(Picky(_poisoned(error)))
    attempts = world.running(job(), job(), job())
    for attempt, result in zip(attempts, ["a", "poison", "b"], strict=True):
        table.outcomes.append(plan(attempt, Completed(result)))
    table.settler.start()
    wait_until(lambda: len(table.settled()) == 3)
    by_job = {item.attempt.job_id: item.outcome for item in table.settled()}
    first, second, third = [by_job[attempt.job_id] for attempt in attempts]
    assert (first, third) == (Completed("a"), Completed("b"))
    assert isinstance(second, Failed)
    assert second.error == f"{type(error).__name__}: the outcome could not be stored: {error}"


@pytest.mark.parametrize(
    "error", [psycopg.errors.InsufficientPrivilege("not yours"), psycopg.OperationalError("gone")]
)
def test_an_outcome_is_not_changed_for_a_trouble_that_passes(
    world: World, desk: Callable[[Plane], Desk], error: Exception
) -> None:
    troubles = [error] * 3
    picky = Picky(lambda item: troubles.pop() if troubles else None)
    table = desk(picky)
    attempts = world.running(job(), job())
    table.outcomes.extend(plan(attempt, Completed()) for attempt in attempts)
    table.settler.start()
    wait_until(lambda: len(table.settled()) == 2)
    assert {type(item.outcome) for item in table.settled()} == {Completed}
    assert picky.batches == [2, 2, 2, 2]


def test_deadlocks_are_tried_again_at_once(
    world: World, desk: Callable[[Plane], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler, "RETRY_PAUSES", (3600.0,))
    troubles = [psycopg.errors.DeadlockDetected("again")] * 3
    table = desk(Picky(lambda item: troubles.pop() if troubles else None))
    (attempt,) = world.running(job())
    table.outcomes.append(plan(attempt, Completed()))
    table.settler.start()
    wait_until(lambda: table.settled())


def test_a_heartbeat_that_came_after_the_handler_leaves_no_row_behind(
    world: World, world_database: str, desk: Callable[[Plane], Desk], connecting: Any
) -> None:
    table = desk(world.plane)
    heartbeat = Heartbeat(table.flights, plane=world.plane, connect=connecting(world_database), interval=60)
    (flight,) = table.fly(world.running(job()))
    assert table.flights.finish(flight)
    table.outcomes.append(plan(flight.attempt, Completed(), left_state=flight.left_state))
    heartbeat.beat()
    assert world.one("SELECT count(*) FROM awa.attempt_state") == 1, "a finished attempt keeps its heartbeat"
    table.settler.start()
    wait_until(lambda: table.settled())
    assert world.one("SELECT count(*) FROM awa.attempt_state") == 0
    heartbeat.stop()
    heartbeat.run()  # the last round, and the end of its session


def test_an_attempt_whose_outcome_is_being_written_gets_no_heartbeat(
    world: World, world_database: str, desk: Callable[[Plane], Desk], connecting: Any
) -> None:
    table = desk(world.plane)
    heartbeat = Heartbeat(table.flights, plane=world.plane, connect=connecting(world_database), interval=60)
    one, two = table.fly(world.running(job(), job()))
    assert table.flights.settle([one.pair]) == set()
    heartbeat.beat()
    assert world.rows("SELECT job_id FROM awa.attempt_state") == [{"job_id": two.attempt.job_id}]
    assert table.flights.settle([one.pair]) == {one.pair}, "it may have been under way"
    table.flights.resume([one.pair])
    heartbeat.beat()
    assert world.one("SELECT count(*) FROM awa.attempt_state") == 2
    heartbeat.stop()
    heartbeat.run()  # the last round, and the end of its session


def test_an_outcome_whose_job_somebody_holds_keeps_no_other_waiting(
    world: World, world_database: str, desk: Callable[[Plane], Desk]
) -> None:
    table = desk(QueueStoragePlane())
    attempts = world.running(*[job() for _ in range(8)])
    table.fly(attempts)
    key = "SELECT pg_advisory_xact_lock(hashtextextended('awa.receipt.complete:' || %s || ':' || %s, 0))"
    held = attempts[3]
    with psycopg.connect(world_database) as other:
        other.execute(key, [held.job_id, held.run_lease])
        table.outcomes.extend(plan(attempt, Completed()) for attempt in attempts)
        table.settler.start()
        wait_until(lambda: len(table.settled()) == 7)
        flight = table.flights.get(held.job_id, held.run_lease)
        wait_until(lambda: flight is not None and not flight.settling, what="heartbeats of the held job")
        other.rollback()
    wait_until(lambda: len(table.settled()) == 8)
