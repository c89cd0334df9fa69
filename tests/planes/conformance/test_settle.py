"""Ending attempts, on both planes: the matrix, its guards, and batches.

(contract: runtime/outcomes sections 2 and 3)
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    OperatorCancel,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Settlement
from awa_django.transitions import Transition, plan
from tests.planes.conformance.worlds import AnyWorld
from tests.planes.world import job

HALF = {"percent": 50, "message": "half"}
BOOM = "ValueError: boom\nTraceback ..."
#: Every end that a handler can bring about by itself, and one of those that it parks with.
ENDS: dict[str, Outcome] = {
    "completed": Completed(),
    "retry after": RetryAfter(100.75),
    "snooze": Snooze(100.75),
    "cancel": Cancel("because"),
    "terminal": Terminal(BOOM),
    "failed": Failed(BOOM),
    "park": WaitForCallback(None),
}
#: State, attempt after the first, whether it is finalized, the text of its error, and its delay from then on.
MATRIX: dict[str, tuple[str, int, bool, str | None, tuple[float, float] | None]] = {
    "completed": ("completed", 1, True, None, None),
    "retry after": ("retryable", 1, True, None, (100.75, 100.75)),
    "snooze": ("scheduled", 0, False, None, (100.75, 100.75)),
    "cancel": ("cancelled", 1, True, "cancelled: because", None),
    "terminal": ("failed", 1, True, BOOM, None),
    "failed": ("retryable", 1, True, BOOM, (2, 2.5)),
    "park": ("waiting_external", 1, False, None, None),
    "failed at last": ("failed", 1, True, BOOM, None),
}


def settled(
    world: AnyWorld,
    attempt: Attempt,
    outcome: Outcome,
    *,
    dead_letters: bool = False,
    progress: Any = None,
    leased: bool = False,
) -> Settlement:
    """One attempt ended as its worker does it, which knows whether it registered a callback."""
    transition = plan(attempt, outcome, progress=progress, dead_letters=dead_letters)
    transition = transition._replace(has_lease=leased or type(outcome) is WaitForCallback)
    return world.within(lambda cursor: world.plane.settle(cursor, [transition]))


def prepared(world: AnyWorld, name: str, **fields: Any) -> tuple[Attempt, Outcome]:
    """A running attempt that is ready for an end."""
    last = name == "failed at last"
    (attempt,) = world.running(job(metadata={"m": 1}, tags=("t",), max_attempts=1 if last else 25, **fields))
    if name == "park":
        world.register(attempt)
    return attempt, Failed(BOOM) if last else ENDS[name]


def is_terminal_marked(world: AnyWorld, name: str) -> bool:
    """Whether the error says that it is final: exhaustion says so in queue storage only."""
    return name == "terminal" or (name == "failed at last" and not world.is_canonical)


@pytest.mark.parametrize("progress", [None, HALF], ids=["", "progress"])
@pytest.mark.parametrize("name", MATRIX)
def test_each_outcome_leads_where_the_contract_says(world: AnyWorld, name: str, progress: Any) -> None:
    state, attempt_after, finalized, text, delay = MATRIX[name]
    attempt, outcome = prepared(world, name)
    settled(world, attempt, outcome, progress=progress)
    row = world.job(attempt.job_id)
    assert (row["state"], row["attempt"], row["run_lease"]) == (state, attempt_after, 1)
    assert (row["finalized_at"] is not None) is finalized
    assert row["progress"] == (None if name == "completed" else progress)
    assert (row["metadata"], row["tags"], row["queue"], row["priority"]) == ({"m": 1}, ["t"], "q", 2)
    assert (row["args"], row["created_at"]) == ({}, attempt.created_at)
    if text is None:
        assert not row["errors"]
    else:
        (entry,) = row["errors"]
        at = datetime.fromisoformat(entry.pop("at"))
        assert at.utcoffset() is not None
        marked = {"terminal": True} if is_terminal_marked(world, name) else {}
        assert entry == {"error": text, "attempt": 1, **marked}
    if delay is not None:
        since = row["finalized_at"] or world.one("SELECT now()")
        waits = (row["run_at"] - since).total_seconds()
        # A snooze leaves no instant that its delay counts from: it began a moment ago.
        slack = 0.01 if finalized else 60
        assert delay[0] - slack <= waits <= delay[1] + 0.01


@pytest.mark.parametrize("name", ["terminal", "failed at last"])
def test_a_final_failure_is_a_dead_letter_where_there_are_any(world: AnyWorld, name: str) -> None:
    attempt, outcome = prepared(world, name)
    settled(world, attempt, outcome, dead_letters=True, progress=HALF)
    row = world.job(attempt.job_id)
    reason = {"terminal": "terminal_error", "failed at last": "max_attempts_exhausted"}[name]
    assert row["dlq_reason"] == (None if world.is_canonical else reason)
    assert (row["state"], row["progress"], len(row["errors"])) == ("failed", HALF, 1)
    assert str(world.state(attempt.job_id)) == "failed"


@pytest.mark.parametrize("seconds", [0.0, 0.25, 59.5])
def test_a_delay_keeps_its_fraction(world: AnyWorld, seconds: float) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], RetryAfter(seconds))
    row = world.job(attempt.job_id)
    assert (row["run_at"] - row["finalized_at"]).total_seconds() == seconds


def test_a_retry_after_is_not_bounded_by_the_attempts(world: AnyWorld) -> None:
    (attempt,) = world.running(job(max_attempts=1))
    world.end([attempt], RetryAfter(5))
    assert world.state(attempt.job_id) == "retryable"


@pytest.mark.parametrize(
    ("number", "low", "high"), [(3, 8, 10), (10, 1024, 1280), (43, 86400, 86400), (999, 86400, 86400)]
)
def test_the_backoff_grows_to_a_day_and_never_overflows(
    world: AnyWorld, number: int, low: int, high: int
) -> None:
    """DEC-15."""
    world.enqueue(job(max_attempts=1000))
    for table in ("ready_entries", "jobs_hot"):
        world.run(f"UPDATE awa.{table} SET attempt = %s", number - 1)
    (attempt,) = world.claim()
    assert attempt.attempt == number
    world.end([attempt], Failed("x"))
    row = world.job(attempt.job_id)
    assert low - 0.01 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= high + 0.01


def test_errors_are_added_to_those_that_are_there_and_progress_replaces_the_stored_one(
    world: AnyWorld,
) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], Failed("one"), progress={"percent": 10})
    world.promote_all()
    world.end(world.claim(), RetryAfter(0), progress={"percent": 20, "metadata": {"a": 1}})
    world.promote_all()
    world.end(world.claim(), Terminal("three"))
    row = world.job(attempt.job_id)
    assert [(entry["error"], entry["attempt"]) for entry in row["errors"]] == [("one", 1), ("three", 3)]
    assert row["progress"] == {"percent": 20, "metadata": {"a": 1}}


def test_metadata_that_an_outcome_brings_is_merged_into_the_stored_one(world: AnyWorld) -> None:
    (attempt,) = world.running(job(metadata={"kept": 1, "changed": 1}))
    transition = plan(attempt, Completed(), metadata={"changed": 2, "new": 3})
    world.within(lambda cursor: world.plane.settle(cursor, [transition]))
    assert world.job(attempt.job_id)["metadata"] == {"kept": 1, "changed": 2, "new": 3}


# Guards ---------------------------------------------------------------------------------------------------------


def assert_nothing_changes(
    world: AnyWorld, attempt: Attempt, outcome: Outcome, *, leased: bool = False
) -> None:
    """An outcome that comes too late says so, and leaves no trace."""
    before = world.state(attempt.job_id), world.jobs().get(attempt.job_id)
    settlement = settled(world, attempt, outcome, progress={"percent": 99}, leased=leased)
    assert [item.pair for item in settlement.stale] == [(attempt.job_id, attempt.run_lease)]
    assert not settlement.landed
    assert not settlement.completed
    assert (world.state(attempt.job_id), world.jobs().get(attempt.job_id)) == before


@pytest.mark.parametrize("first", [name for name in ENDS if name != "park"])
@pytest.mark.parametrize("leased", [False, True], ids=["", "lease"])
def test_an_attempt_ends_once(world: AnyWorld, first: str, leased: bool) -> None:
    (attempt,) = world.running(job())
    if leased:
        world.register(attempt)
    settlement = settled(world, attempt, ENDS[first], leased=leased)
    assert len(settlement.landed) + len(settlement.completed) == 1
    for second in ENDS.values():
        assert_nothing_changes(world, attempt, second, leased=leased)
    world.check()


@pytest.mark.parametrize("leased", [False, True], ids=["", "lease"])
def test_a_rescued_attempt_cannot_end_nor_the_next_one_be_ended_by_it(world: AnyWorld, leased: bool) -> None:
    (attempt,) = world.running(job())
    if leased:
        world.register(attempt)
    assert len(world.rescue()) == 1
    for outcome in ENDS.values():
        assert_nothing_changes(world, attempt, outcome, leased=leased)
    world.promote_all()
    (again,) = world.claim()
    for outcome in ENDS.values():
        assert_nothing_changes(world, attempt, outcome, leased=leased)
    assert not world.end([again]).stale
    world.check()


def test_a_cancelled_attempt_cannot_end(world: AnyWorld) -> None:
    (attempt,) = world.running(job())
    assert world.change(world.named(attempt.job_id), OperatorCancel())
    for outcome in ENDS.values():
        assert_nothing_changes(world, attempt, outcome)


def test_an_earlier_lease_of_a_running_job_is_not_its_attempt(world: AnyWorld) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], Snooze(0))
    world.promote_all()
    (again,) = world.claim()
    for outcome in ENDS.values():
        assert_nothing_changes(world, attempt, outcome)
    assert not world.end([again]).stale


def test_of_two_attempts_of_one_job_in_one_batch_the_current_one_counts(world: AnyWorld) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], RetryAfter(0))
    world.promote_all()
    (again,) = world.claim()
    batch = [plan(attempt, Terminal("older")), plan(again, Failed("current"))]
    settlement = world.within(lambda cursor: world.plane.settle(cursor, batch))
    assert [item.pair for item in settlement.stale] == [batch[0].pair]
    assert [landed.landing.taken.pair for landed in settlement.landed] == [batch[1].pair]
    assert [entry["error"] for entry in world.job(attempt.job_id)["errors"]] == ["current"]


def test_a_settlement_that_is_undone_leaves_its_attempts_current(world: AnyWorld) -> None:
    attempts = world.running(*[job() for _ in ENDS])
    transitions = [plan(attempt, outcome) for attempt, outcome in zip(attempts, ENDS.values(), strict=True)]
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        world.plane.settle(cursor, transitions)
    assert world.states([attempt.job_id for attempt in attempts]) == ["running"] * len(attempts)
    assert not world.within(lambda cursor: world.plane.settle(cursor, transitions)).stale


# Batches --------------------------------------------------------------------------------------------------------


def varied(world: AnyWorld) -> list[Transition]:
    """Attempts of every shape with every end, in an order that is not that of their ids."""
    attempts = world.running(
        *[
            job(
                args={"n": n},
                priority=1 + n % 3,
                max_attempts=1 if n % 4 == 3 else 25,
                tags=("t",) if n % 5 == 0 else (),
                metadata={"m": n} if n % 3 == 0 else {},
            )
            for n in range(4 * len(ENDS))
        ]
    )
    attempts.sort(key=lambda attempt: attempt.args["n"])
    transitions = []
    for number, attempt in enumerate(attempts):
        outcome = list(ENDS.values())[number % len(ENDS)]
        if number % 2 or type(outcome) is WaitForCallback:
            world.register(attempt)
        progress = {"percent": number} if number % 3 else None
        transitions.append(
            plan(attempt, outcome, progress=progress, dead_letters=number % 2 == 0)._replace(has_lease=True)
        )
    return transitions[::-1]


def told(world: AnyWorld) -> list[dict[str, Any]]:
    """What is stored of all jobs, without what differs from run to run."""
    differs = {"id", "callback_id"}
    return sorted(
        (
            {
                key: value is not None if key.endswith("_at") else value
                for key, value in row.items()
                if key not in differs
            }
            | {"errors": [{**entry, "at": None} for entry in row["errors"] or []]}
            | {"waits": row["callback_id"] is not None if "callback_id" in row else False}
            for row in world.jobs().values()
        ),
        key=lambda row: str(row.get("args")) + str(row),
    )


def test_a_batch_is_written_as_if_its_transitions_came_one_by_one(world: AnyWorld) -> None:
    transitions = varied(world)
    for transition in transitions:
        world.within(lambda cursor, one=transition: world.plane.settle(cursor, [one]))
    singly = told(world)
    world.empty()
    transitions = varied(world)
    world.within(lambda cursor: world.plane.settle(cursor, transitions))
    assert told(world) == singly
    world.check()


def test_a_batch_answers_for_each_of_its_transitions(world: AnyWorld) -> None:
    transitions = varied(world)
    gone = transitions[::3]
    world.within(lambda cursor: world.plane.settle(cursor, [replaced(item) for item in gone]))
    settlement = world.within(lambda cursor: world.plane.settle(cursor, transitions))
    answered = [*settlement.completed, *settlement.transitions, *settlement.stale]
    assert sorted(item.pair for item in answered) == sorted(item.pair for item in transitions)
    assert {item.pair for item in settlement.stale} == {item.pair for item in gone}
    assert len(settlement.landed) == len(settlement.transitions)
    for item in settlement.completed:
        assert world.job(item.attempt.job_id)["finalized_at"] == settlement.finalized_at
    for landed, item in zip(settlement.landed, settlement.transitions, strict=True):
        assert landed.landing.taken.pair == item.pair
        assert landed.job.state == world.state(landed.job.id)
    world.check()


def replaced(transition: Transition) -> Transition:
    """The same attempt, cancelled instead."""
    return plan(transition.attempt, Cancel("before"))


def test_what_was_written_is_what_is_told(world: AnyWorld) -> None:
    """DEC-9: the row that the transition wrote, not one that is read later."""
    attempts = world.running(job(), job(metadata={"m": 1}, tags=("t",)))
    settlement = world.end(attempts, Failed("no"), progress=HALF)
    assert len(settlement.landed) == len(attempts)
    for landed in settlement.landed:
        row, seen = world.job(landed.job.id), landed.job
        assert (seen.state, seen.attempt, seen.run_at, seen.finalized_at) == (
            row["state"], row["attempt"], row["run_at"], row["finalized_at"],
        )  # fmt: skip
        assert (list(seen.errors), seen.progress, seen.metadata) == (
            row["errors"], row["progress"], row["metadata"],
        )  # fmt: skip
