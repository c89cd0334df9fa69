"""Everybody who may end an attempt, against everybody else: one of them does, whoever comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import (
    CallbackFailed,
    CallbackRetried,
    Completed,
    Failed,
    OperatorCancel,
    Outcome,
    Rescued,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Answered, Beat, Cursor, Guard, Stale
from awa_django.settle import settle
from awa_django.states import JobState
from awa_django.transitions import RULES, land_one, plan
from tests.planes.conformance.worlds import SILENCE, AnyWorld
from tests.planes.world import job
from tests.races.sides import Side, race


@dataclass(frozen=True)
class Contest:
    """A running attempt that is waiting to be ended; it registered a callback, unless told otherwise."""

    world: AnyWorld
    attempt: Attempt
    token: UUID | None

    def settled(self, cursor: Cursor, outcome: Outcome) -> bool:
        """Its worker's way; whether it counted."""
        transition = plan(self.attempt, outcome)._replace(has_lease=self.token is not None)
        settlement = self.world.plane.settle(cursor, [transition])
        return not settlement.stale

    def changed(self, cursor: Cursor, guard: Guard, outcome: Outcome) -> bool:
        """The way of everybody who takes by a guard and places."""
        taken = self.world.plane.take(cursor, guard)
        landed = self.world.plane.place(cursor, [land_one(item, outcome) for item in taken])
        return len(landed) == 1


Act = Callable[[Contest, Cursor], bool]


def settles(outcome: Outcome) -> Act:
    return lambda contest, cursor: contest.settled(cursor, outcome)


def answers(outcome: Outcome) -> Act:
    def act(contest: Contest, cursor: Cursor) -> bool:
        assert contest.token is not None
        return contest.changed(cursor, Answered(contest.token, closes=RULES[type(outcome)].closes), outcome)

    return act


def rescues(contest: Contest, cursor: Cursor) -> bool:
    return any(
        contest.changed(cursor, Stale(SILENCE, receipts=receipts), Rescued("silent"))
        for receipts in (True, False)
    )


def cancels(contest: Contest, cursor: Cursor) -> bool:
    return contest.changed(
        cursor, contest.world.named(contest.attempt.job_id, states=_LIVE), OperatorCancel()
    )


_LIVE = [state for state in JobState if not state.is_terminal]
#: Who may end an attempt, and the state that it leaves the job in.
ACTS: dict[str, tuple[Act, str]] = {
    "success": (settles(Completed()), "completed"),
    "failure": (settles(Failed("no")), "retryable"),
    "last failure": (settles(Terminal("no")), "failed"),
    "snooze": (settles(Snooze(60)), "scheduled"),
    "rescue": (rescues, "retryable"),
    "cancel": (cancels, "cancelled"),
    "answer": (answers(Completed()), "completed"),
    "refusal": (answers(CallbackFailed("no")), "failed"),
}
NEED_TOKEN = {"answer", "refusal"}
#: Sweeps come again: they pass over what somebody holds.
SWEEPS = {"rescue"}
#: After these the job has not finished, so that an operator may still cancel it.
OPEN = {"retryable", "scheduled"}


def contest(world: AnyWorld, *names: str, leased: bool = False) -> Contest:
    """A fresh attempt, whose worker has been silent for long."""
    (attempt,) = world.running(job())
    token = world.register(attempt) if leased or NEED_TOKEN & set(names) else None
    world.age()
    return Contest(world, attempt, token)


def still_open(first: str, second: str) -> bool:
    """Whether the second has something to do that the first left."""
    return second == "cancel" and ACTS[first][1] in OPEN


@pytest.mark.parametrize("leased", [False, True], ids=["", "lease"])
@pytest.mark.parametrize("first", ACTS)
def test_whoever_commits_first_ends_the_attempt_and_the_other_changes_nothing(
    world: AnyWorld, sides: tuple[Side, Side], first: str, leased: bool
) -> None:
    for second in ACTS:
        run = contest(world, first, second, leased=leased)
        one, other = race(
            *sides,
            lambda cursor, run=run: ACTS[first][0](run, cursor),
            lambda cursor, run=run, second=second: ACTS[second][0](run, cursor),
            commit=True,
        )
        assert one, (first, second)
        assert other is still_open(first, second), (first, second)
        ends = ACTS[second if other else first][1]
        assert world.state(run.attempt.job_id) == ends, (first, second)
        finish(world, run)
    world.check()


@pytest.mark.parametrize("first", ACTS)
def test_if_the_first_rolls_back_the_second_ends_the_attempt(
    world: AnyWorld, sides: tuple[Side, Side], first: str
) -> None:
    for second in ACTS:
        run = contest(world, first, second)
        act = ACTS[second][0]
        one, other = race(
            *sides,
            lambda cursor, run=run: ACTS[first][0](run, cursor),
            lambda cursor, run=run, act=act: act(run, cursor),
            commit=False,
        )
        assert one, (first, second)
        if second in SWEEPS and not other:
            other = world.within(lambda cursor, run=run, act=act: act(run, cursor))
        assert other, (first, second)
        assert world.state(run.attempt.job_id) == ACTS[second][1], (first, second)
        finish(world, run)
    world.check()


def finish(world: AnyWorld, run: Contest) -> None:
    """Leave nothing that a later sweep would find."""
    world.change(world.named(run.attempt.job_id, states=_LIVE), OperatorCancel())


# Parking ---------------------------------------------------------------------------------------------------------


def parks(contest: Contest, cursor: Cursor) -> bool:
    return contest.settled(cursor, WaitForCallback(contest.token))


@pytest.mark.parametrize(
    ("other", "state"),
    [("answer", "completed"), ("refusal", "failed"), ("cancel", "cancelled"), ("rescue", "waiting_external")],
)
def test_a_parked_attempt_is_there_for_who_waited_for_it(
    world: AnyWorld, sides: tuple[Side, Side], other: str, state: str
) -> None:
    """An answer that comes while the park commits is not lost; a rescue finds nothing to do."""
    run = contest(world, leased=True)
    act = ACTS[other][0]
    parked, ended = race(
        *sides, lambda cursor: parks(run, cursor), lambda cursor: act(run, cursor), commit=True
    )
    assert parked
    assert ended is (other != "rescue")
    assert world.state(run.attempt.job_id) == state
    finish(world, run)
    world.check()


@pytest.mark.parametrize("first", ["answer", "refusal", "cancel", "rescue"])
def test_an_attempt_that_ended_first_is_not_parked(
    world: AnyWorld, sides: tuple[Side, Side], first: str
) -> None:
    """DEC-8: the worker is told nothing but that its outcome came too late."""
    run = contest(world, leased=True)
    act, state = ACTS[first]
    ended, parked = race(
        *sides, lambda cursor: act(run, cursor), lambda cursor: parks(run, cursor), commit=True
    )
    assert ended
    assert not parked
    assert world.state(run.attempt.job_id) == state
    world.check()


def test_an_answer_that_resumes_a_park_or_comes_before_it_is_never_lost(
    world: AnyWorld, sides: tuple[Side, Side]
) -> None:
    """DEC-6: before the park it puts the job off, at once; after it the attempt runs on."""

    def resumes(contest: Contest, cursor: Cursor) -> bool:
        assert contest.token is not None
        found = world.plane.find_callback(
            cursor, contest.token, None, (JobState.WAITING_EXTERNAL, JobState.RUNNING)
        )
        if found is not None:
            world.plane.resume(cursor, found, {"v": 1})
        return found is not None

    early = contest(world, leased=True)
    assert race(
        *sides, lambda cursor: resumes(early, cursor), lambda cursor: parks(early, cursor), commit=True
    ) == (True, True)
    row = world.job(early.attempt.job_id)
    assert (row["state"], row["metadata"]) == ("scheduled", {"_awa_callback_result": {"v": 1}})
    late = contest(world, leased=True)
    assert race(
        *sides, lambda cursor: parks(late, cursor), lambda cursor: resumes(late, cursor), commit=True
    ) == (True, True)
    standing = world.within(lambda cursor: world.plane.consume_result(cursor, late.attempt))
    assert standing is not None
    assert (standing.state, standing.result) == ("running", {"v": 1})
    world.check()


def test_of_two_answers_to_a_parked_attempt_one_counts(world: AnyWorld, sides: tuple[Side, Side]) -> None:
    for first, second in ((Completed(), CallbackFailed("no")), (CallbackRetried(), Completed())):
        run = contest(world, leased=True)
        assert world.within(lambda cursor, run=run: parks(run, cursor))
        assert race(
            *sides,
            lambda cursor, run=run, first=first: answers(first)(run, cursor),
            lambda cursor, run=run, second=second: answers(second)(run, cursor),
            commit=True,
        ) == (True, False)
        assert world.state(run.attempt.job_id) == RULES[type(first)].state
        finish(world, run)
    world.check()


# Signs of life ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "answer"])
def test_a_heartbeat_that_waits_for_an_end_is_not_heard(
    world: AnyWorld, sides: tuple[Side, Side], end: str
) -> None:
    run = contest(world, end)

    def beats(cursor: Cursor) -> bool:
        return bool(world.plane.heartbeat(cursor, [Beat(run.attempt, {"percent": 9})]))

    assert race(*sides, lambda cursor: ACTS[end][0](run, cursor), beats, commit=True) == (True, False)
    assert world.state(run.attempt.job_id) == ACTS[end][1]
    world.check()


def test_an_attempt_that_gives_a_sign_of_life_is_not_rescued_in_that_moment(
    world: AnyWorld, sides: tuple[Side, Side]
) -> None:
    run = contest(world)
    assert race(
        *sides,
        lambda cursor: bool(world.plane.heartbeat(cursor, [Beat(run.attempt)])),
        lambda cursor: rescues(run, cursor),
        commit=True,
    ) == (True, False)
    assert world.state(run.attempt.job_id) == "running"


# Two workers that settle batches -----------------------------------------------------------------------------------


def test_batches_that_share_an_attempt_do_not_deadlock_and_end_it_once(
    world: AnyWorld, sides: tuple[Side, Side]
) -> None:
    """As after a lost connection: the settler sends the batch again while the server still works on the first."""
    attempts = world.running(*[job() for _ in range(6)], deadline=timedelta(hours=1))
    batches = [
        [plan(attempt, Failed("one")) for attempt in attempts[:4]],
        [plan(attempt, Terminal("other")) for attempt in reversed(attempts[2:])],
    ]

    def settles_batch(number: int) -> Callable[[Cursor], Any]:
        return lambda cursor: world.plane.settle(cursor, batches[number])

    one, other = race(*sides, settles_batch(0), settles_batch(1), commit=True)
    assert len(one.landed) == 4
    assert {item.pair for item in other.stale} == {(attempt.job_id, 1) for attempt in attempts[2:4]}
    assert len(other.landed) == 2
    assert world.states([attempt.job_id for attempt in attempts]) == ["retryable"] * 4 + ["failed"] * 2
    world.check()


def test_an_outcome_that_is_sent_again_after_its_connection_died_is_stale(
    world: AnyWorld, world_database: str
) -> None:
    (attempt,) = world.running(job())
    transition = plan(attempt, Failed("once"))
    with psycopg.connect(world_database, autocommit=True) as dying:
        assert not settle(dying, world.plane, [transition]).stale
    assert settle(world.connection, world.plane, [transition]).stale
    assert len(world.job(attempt.job_id)["errors"]) == 1
