"""Every outcome on the canonical tables, against what the real worker leaves there (vectors/outcomes.json)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from awa_django.outcomes import (
    Cancel,
    Completed,
    Exhausted,
    Failed,
    MissingCallback,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
)
from awa_django.planes.base import Beat
from awa_django.settle import settle
from awa_django.states import JobState
from awa_django.transitions import plan
from tests.planes.canonical.rows import row_of, states
from tests.planes.outcome_cases import differences, expected, play, playable_cases
from tests.planes.world import World, job

HALF = {"percent": 50, "message": "half"}
FIVE_MINUTES = timedelta(minutes=5)


@pytest.mark.parametrize("case", playable_cases(), ids=lambda case: case["id"])
def test_a_recorded_case_leaves_the_row_that_the_real_worker_leaves(
    canonical: World, case: dict[str, Any]
) -> None:
    job_id = play(canonical, case, deferred="scheduled_jobs")
    assert differences(row_of(canonical, job_id), expected(case, "canonical")) == []


#: Outcome, and what the matrix says of the canonical row (contract: runtime/outcomes section 3): its table, its state,
#: whether the attempt is counted, whether the end, heartbeat and deadline are there, and what is left of progress.
MATRIX: list[tuple[Outcome, str, str, int, bool, bool, Any]] = [
    (Completed(), "jobs_hot", "completed", 1, True, True, None),
    (RetryAfter(0.5), "scheduled_jobs", "retryable", 1, True, False, HALF),
    (Snooze(0.5), "scheduled_jobs", "scheduled", 0, False, False, HALF),
    (Cancel("because"), "jobs_hot", "cancelled", 1, True, True, HALF),
    (Terminal("TerminalError: no"), "jobs_hot", "failed", 1, True, True, HALF),
    (Exhausted("ValueError: no"), "jobs_hot", "failed", 1, True, True, HALF),
    (MissingCallback(), "jobs_hot", "failed", 1, True, True, HALF),
    (Failed("ValueError: no"), "scheduled_jobs", "retryable", 1, True, False, HALF),
]


@pytest.mark.parametrize("dead_letters", [False, True], ids=["", "dead letters wanted"])
@pytest.mark.parametrize(
    ("outcome", "table", "state", "attempt", "ended", "clock", "progress"),
    MATRIX,
    ids=[type(row[0]).__name__ for row in MATRIX],
)
def test_the_matrix_holds(
    canonical: World,
    outcome: Outcome,
    table: str,
    state: str,
    attempt: int,
    ended: bool,
    clock: bool,
    progress: Any,
    dead_letters: bool,
) -> None:
    carried: dict[str, Any] = {"metadata": {"m": 1}, "tags": ("a", "b"), "args": {"x": [1]}, "priority": 3}
    (claimed,) = canonical.running(job(**carried), deadline=FIVE_MINUTES)
    before = row_of(canonical, claimed.job_id)
    transition = plan(claimed, outcome, progress=HALF, dead_letters=dead_letters)
    settlement = settle(canonical.connection, canonical.plane, [transition])
    assert not settlement.stale
    after = row_of(canonical, claimed.job_id)
    assert (after["table"], after["state"], after["attempt"]) == (table, state, attempt)
    assert (after["finalized_at"] is not None) is ended
    assert (after["heartbeat_at"] is not None, after["deadline_at"] is not None) == (clock, clock)
    assert after["progress"] == progress
    assert after["run_lease"] == 1
    for column in (
        "kind",
        "queue",
        "args",
        "priority",
        "max_attempts",
        "created_at",
        "metadata",
        "tags",
        "attempted_at",
    ):
        assert after[column] == before[column], column
    if clock:
        assert (after["heartbeat_at"], after["deadline_at"], after["run_at"]) == (
            before["heartbeat_at"], before["deadline_at"], before["run_at"],
        )  # fmt: skip
    for landed in settlement.landed:
        assert landed.job.state is JobState(state)
        assert landed.run_at == after["run_at"]
        assert landed.landing.dlq_reason is None, "there are no dead letters on this plane"
    assert canonical.one("SELECT count(*) FROM awa.dlq_entries") == 0


def test_an_attempt_beyond_the_end_of_its_type_can_be_claimed_and_ended(canonical: World) -> None:
    canonical.enqueue(job(), job())
    canonical.run("UPDATE awa.jobs_hot SET attempt = 32767 WHERE id = (SELECT min(id) FROM awa.jobs_hot)")
    first, second = canonical.claim()
    assert (first.attempt, second.attempt) == (32767, 1)
    canonical.end([first, second])
    assert states(canonical) == ["completed", "completed"]


def test_errors_are_added_to_those_that_are_there(canonical: World) -> None:
    canonical.enqueue(job())
    canonical.run("UPDATE awa.jobs_hot SET errors = ARRAY['{\"error\": \"x\"}', '7', 'null']::jsonb[]")
    (attempt,) = canonical.claim()
    canonical.end([attempt], Failed("ValueError: no"))
    errors = row_of(canonical, attempt.job_id)["errors"]
    assert errors[:3] == [{"error": "x"}, 7, None]
    assert (errors[3]["error"], errors[3]["attempt"], "terminal" in errors[3]) == ("ValueError: no", 1, False)


def test_a_job_without_an_array_of_errors_gets_one(canonical: World) -> None:
    canonical.enqueue(job(), job())
    canonical.run("UPDATE awa.jobs_hot SET errors = NULL")
    first, second = canonical.claim()
    canonical.end([first], Failed("no"))
    canonical.end([second], Cancel())
    assert [len(row_of(canonical, attempt.job_id)["errors"]) for attempt in (first, second)] == [1, 1]


def test_numbers_too_long_for_python_come_through_a_retry(canonical: World) -> None:
    number = "0." + "1234567890" * 5
    canonical.enqueue(job())
    canonical.run(f"UPDATE awa.jobs_hot SET args = '{{\"n\": {number}}}', metadata = '{{\"n\": {number}}}'")
    (attempt,) = canonical.claim()
    canonical.end([attempt], Failed("no"))
    found = canonical.one("SELECT concat(args ->> 'n', ' ', metadata ->> 'n') FROM awa.scheduled_jobs")
    assert found == f"{number} {number}"


def test_what_no_object_is_does_not_keep_a_job_from_ending(canonical: World) -> None:
    """DEC-18: the job ends and its payload is reduced to what can be read."""
    canonical.enqueue(job(), job(), job())
    canonical.run("UPDATE awa.jobs_hot SET metadata = '[1]'")
    attempts = canonical.claim()
    for attempt, outcome in zip(
        attempts, (Terminal("invalid stored payload"), Failed("no"), Completed()), strict=True
    ):
        assert not canonical.end([attempt], outcome).stale
    assert states(canonical) == ["failed", "retryable", "completed"]
    assert [row_of(canonical, attempt.job_id)["metadata"] for attempt in attempts[:2]] == [{}, {}]


def test_a_callback_survives_a_snooze_and_no_end(canonical: World) -> None:
    """The wiring of a job that puts itself off stays (contract: queue-storage/transition section 2)."""
    attempts = canonical.running(*[job() for _ in range(4)])
    canonical.run(
        """
        UPDATE awa.jobs_hot
        SET callback_id = gen_random_uuid(), callback_timeout_at = now(), callback_filter = 'a',
            callback_on_complete = 'b', callback_on_fail = 'c', callback_transform = 'd'
        """
    )
    before = {attempt.job_id: row_of(canonical, attempt.job_id) for attempt in attempts}
    for attempt, outcome in zip(
        attempts, (Snooze(1), Failed("no"), Completed(), Terminal("no")), strict=True
    ):
        canonical.end([attempt], outcome)
    columns = [name for name in before[attempts[0].job_id] if name.startswith("callback")]
    assert len(columns) == 6
    for attempt, kept in zip(attempts, (True, True, False, False), strict=True):
        row = row_of(canonical, attempt.job_id)
        assert [row[name] for name in columns] == [
            before[attempt.job_id][name] if kept else None for name in columns
        ]


def test_a_heartbeat_renews_what_still_runs_and_says_so(canonical: World) -> None:
    alive, changed, again, gone = canonical.running(*[job() for _ in range(4)])
    canonical.beat(alive, HALF)
    canonical.run("UPDATE awa.jobs_hot SET heartbeat_at = now() - interval '1 hour'")
    canonical.run("UPDATE awa.jobs_hot SET run_lease = 2 WHERE id = %s", again.job_id)
    canonical.end([gone])
    beats = [Beat(alive), Beat(changed, {"percent": 1}), Beat(again, {"percent": 9}), Beat(gone)]
    held = canonical.within(lambda cursor: canonical.plane.heartbeat(cursor, beats))
    assert held == {(alive.job_id, 1), (changed.job_id, 1)}
    rows = [row_of(canonical, attempt.job_id) for attempt in (alive, changed, again, gone)]
    fresh = [canonical.one("SELECT %s > now() - interval '1 minute'", row["heartbeat_at"]) for row in rows]
    assert fresh == [True, True, False, False]
    assert [row["progress"] for row in rows] == [HALF, {"percent": 1}, None, None]
