"""Answers that meet each other, the handler's outcome, or a rescue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connections, transaction

from awa_django import (
    CallbackNotFound,
    callbacks,
)
from awa_django.jobs import Attempt, JobInsert
from awa_django.outcomes import Completed, Failed, Rescued, WaitForCallback
from awa_django.planes.base import Cursor, Stale, Unanswered
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import land_one, plan
from tests.answering import (
    HOUR,
    NONE,
    parked,
    registered,
    session,
    state_of,
    undone,
    world,
)
from tests.planes.world import World
from tests.workers import wait_until

__all__ = ["world"]

pytestmark = pytest.mark.django_db(transaction=True)


# Races -----------------------------------------------------------------------------------------------------


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[Any]]]:
    """Runs something in a thread with Django connections of its own, until it ends or waits for a lock."""
    with ThreadPoolExecutor(2) as threads, session() as opened:

        def run(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
            def there() -> Any:
                try:
                    return work(*arguments)
                finally:
                    connections.close_all()

            future = threads.submit(there)
            wait_until(lambda: future.done() or waits(opened), what="the other side to end or to wait")
            return future

        yield run


def waits(opened: psycopg.Connection[Any]) -> bool:
    row = opened.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    return row is not None and row[0] > 0


def test_of_two_resolves_at_once_one_applies_and_the_other_finds_nothing(
    world: World, beside: Callable[..., Future[Any]]
) -> None:
    attempt, token = parked(world)
    with transaction.atomic():
        assert callbacks.resolve(token, default="complete").is_completed()
        other = beside(callbacks.resolve, token)
        assert not other.done(), "it waits for the first to commit"
    with pytest.raises(CallbackNotFound):
        other.result(10)
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_an_answer_that_waited_for_one_that_was_undone_applies(
    world: World, beside: Callable[..., Future[Any]]
) -> None:
    attempt, token = parked(world)
    with undone():
        callbacks.fail(token, "x")
        other = beside(callbacks.complete, token)
    assert other.result(10).state is JobState.COMPLETED
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


@pytest.mark.parametrize("outcome", ["completed", "failed", "waits"])
def test_a_handlers_outcome_waits_for_an_answer_that_is_being_given_and_is_stale_then(
    world: World, beside: Callable[..., Future[Any]], outcome: str
) -> None:
    attempt, token = registered(world)
    made = {"completed": Completed(), "failed": Failed("x"), "waits": WaitForCallback(token)}[outcome]
    with transaction.atomic():
        callbacks.complete(token)
        settling = beside(world.end, [attempt], made)
        assert not settling.done()
    assert len(settling.result(10).stale) == 1
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


@pytest.mark.parametrize("outcome", [Completed(), Failed("x")])
def test_an_answer_waits_for_a_handlers_outcome_that_is_being_written_and_finds_nothing_then(
    world: World, beside: Callable[..., Future[Any]], outcome: Any
) -> None:
    attempt, token = registered(world)
    transition = plan(attempt, outcome)._replace(has_lease=True)
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert not world.plane.settle(cursor, [transition]).stale
        answering = beside(callbacks.complete, token)
        assert not answering.done()
    with pytest.raises(CallbackNotFound):
        answering.result(10)


def test_an_answer_that_comes_while_the_handler_parks_completes_the_job(
    world: World, beside: Callable[..., Future[Any]]
) -> None:
    attempt, token = registered(world)
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert world.plane.settle(cursor, [plan(attempt, WaitForCallback(token))]).landed
        answering = beside(callbacks.complete, token)
        assert not answering.done()
    assert answering.result(10).state is JobState.COMPLETED


def test_a_rescue_passes_over_an_attempt_that_is_being_answered(world: World) -> None:
    attempt, token = parked(world)
    callbacks.heartbeat(token, 0)
    with transaction.atomic():
        callbacks.resume(token)
        assert world.within(lambda cursor: world.plane.take(cursor, Unanswered())) == []
        assert world.within(lambda cursor: world.plane.take(cursor, Stale(timedelta(0)))) == []
    assert state_of(world, attempt.job_id) is JobState.RUNNING


def test_an_answer_waits_for_a_rescue_and_finds_nothing_then(
    world: World, beside: Callable[..., Future[Any]]
) -> None:
    attempt, token = parked(world)
    callbacks.heartbeat(token, 0)
    with world.connection.transaction(), world.connection.cursor() as cursor:
        (taken,) = world.plane.take(cursor, Unanswered())
        world.plane.place(cursor, [land_one(taken, Rescued("callback timed out"))])
        answering = beside(callbacks.complete, token)
        assert not answering.done()
    with pytest.raises(CallbackNotFound):
        answering.result(10)
    assert state_of(world, attempt.job_id) is JobState.RETRYABLE


def test_siblings_of_an_answered_attempt_are_settled_while_the_callers_transaction_lasts(
    world: World,
) -> None:
    first, *rest = world.running(*[JobInsert(kind="k", args={}, queue="q")] * 5)
    token = uuid4()
    world.within(lambda cursor: world.plane.register_callback(cursor, first, token, HOUR, NONE))
    world.end([first], WaitForCallback(token))
    world.run("SET lock_timeout = '5s'")
    with transaction.atomic():
        callbacks.complete(token)
        assert not world.end(rest, Completed()).stale
    assert state_of(world, first.job_id) is JobState.COMPLETED


def test_many_answers_to_one_callback_apply_once() -> None:
    with session() as opened:
        world = World(opened, QueueStoragePlane())
        attempts = world.running(*[JobInsert(kind="k", args={}, queue="q")] * 10)
        tokens = [uuid4() for _ in attempts]
        for attempt, token in zip(attempts, tokens, strict=True):

            def register(cursor: Cursor, attempt: Attempt = attempt, token: UUID = token) -> bool:
                return world.plane.register_callback(cursor, attempt, token, HOUR, NONE)

            assert world.within(register)
        ready = threading.Barrier(3)
        verbs: list[Callable[[UUID], object]] = [
            callbacks.complete,
            lambda token: callbacks.fail(token, "x"),
            lambda token: callbacks.resolve(token, default="complete"),
        ]

        def answer(verb: Callable[[UUID], object]) -> int:
            applied = 0
            try:
                ready.wait(10)
                for token in tokens:
                    try:
                        verb(token)
                        applied += 1
                    except CallbackNotFound:
                        pass
            finally:
                connections.close_all()
            return applied

        with ThreadPoolExecutor(3) as threads:
            assert sum(threads.map(answer, verbs)) == len(tokens)
        assert {state_of(world, attempt.job_id) for attempt in attempts} <= {
            JobState.COMPLETED,
            JobState.FAILED,
        }


def test_times_are_aware(world: World) -> None:
    _, token = parked(world)
    due = callbacks.heartbeat(token, 60).callback_timeout_at
    assert isinstance(due, datetime)
    assert due.tzinfo is not None
