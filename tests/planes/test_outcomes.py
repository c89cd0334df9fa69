"""Every row after each outcome, against what the real awa worker leaves (vectors outcomes-*.json)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Cancel, Completed, Failed, Outcome, RetryAfter, Snooze, Terminal
from awa_django.planes.base import Beat
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.settle import settle
from awa_django.transitions import Transition, plan
from tests.planes.rows import rows_of_jobs

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "queue-storage"

HALF = {"percent": 50, "message": "half"}

#: What the recorded handler did, as outcome and progress; callbacks are not part of this plane's slice.
OUTCOMES: dict[str, tuple[Outcome, dict[str, Any] | None]] = {
    "ok": (Completed(), None),
    "ok_tags": (Completed(), None),
    "ok_meta": (Completed(), None),
    "ok_uniq": (Completed(), None),
    "progress_ok": (Completed(), HALF),
    "terminal": (Terminal("TerminalError: boom-terminal\ntraceback"), None),
    "progress_fail": (Terminal("TerminalError: boom-progress"), HALF),
    "retry": (Failed("ValueError: boom-retry"), None),
    "retry_exh": (Failed("ValueError: boom-retry"), None),
    "progress_retry": (Failed("ValueError: boom-pr"), {**HALF, "metadata": {"a": 1}}),
    "snooze": (Snooze(3600), None),
    "retry_after": (RetryAfter(3600), None),
    "cancel": (Cancel("because"), None),
}

ENQUEUE = """
    SELECT id FROM awa.insert_job_compat(
        p_kind => 'k', p_queue => 'out', p_args => %s::jsonb, p_max_attempts => %s::smallint,
        p_tags => %s::text[], p_metadata => %s::jsonb, p_unique_key => %s::bytea, p_unique_states => %s::bit(8)
    )
"""


def enqueue(connection: psycopg.Connection[Any], case: dict[str, Any]) -> int:
    extras = case["enqueued_with"]
    unique = case["rows"]["ready_entries"][0]["unique_key"]
    row = connection.execute(
        ENQUEUE,
        [
            json.dumps(case["rows"]["ready_entries"][0]["args"]),
            extras.get("max_attempts", 25),
            ["a", "b"] if "tags" in extras else [],
            json.dumps({"x": 1} if "metadata" in extras else {}),
            bytes.fromhex(unique[2:]) if unique else None,
            case["rows"]["ready_entries"][0]["unique_states"],
        ],
    ).fetchone()
    assert row is not None
    return int(row[0])


def without_places(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what depends on which other jobs there were, and without ``materialized_at``: nobody reads it."""
    return {
        key: value
        for key, value in row.items()
        if key not in ("job_id", "lane_seq", "receipt_id", "batch_id", "index", "materialized_at")
    }


def claimed(connection: psycopg.Connection[Any], deadline: timedelta) -> list[Attempt]:
    with connection.transaction(), psycopg.Cursor(connection) as cursor:
        return QueueStoragePlane().claim(cursor, "out", 100, deadline=deadline, aging=timedelta(0)).attempts


@pytest.mark.parametrize(("vector", "deadline"), [("zero-deadline", 0), ("deadline", 300)])
def test_each_outcome_leaves_the_rows_that_the_real_worker_leaves(
    awa_database: str, vector: str, deadline: int
) -> None:
    recorded = json.loads((VECTORS / f"outcomes-{vector}.json").read_text())["cases"]
    # The recorded retry of the second file had run twice; one attempt is what is compared here.
    cases = [case for case in recorded if case["case"] in OUTCOMES]
    plane = QueueStoragePlane()
    with psycopg.connect(awa_database, autocommit=True) as connection:
        ids = {enqueue(connection, case): case for case in cases}
        attempts = claimed(connection, timedelta(seconds=deadline))
        assert [attempt.job_id for attempt in attempts] == list(ids)
        transitions: list[Transition] = []
        for attempt in attempts:
            outcome, progress = OUTCOMES[ids[attempt.job_id]["case"]]
            if progress is not None:
                with connection.transaction(), psycopg.Cursor(connection) as cursor:
                    assert plane.heartbeat(cursor, [Beat(attempt, progress)]) == {
                        (attempt.job_id, attempt.run_lease)
                    }
            transitions.append(plan(attempt, outcome, left_state=progress is not None))
        settlement = settle(connection, plane, transitions)
        assert not settlement.stale
        found = rows_of_jobs(connection)
    for job_id, case in ids.items():
        wanted = {
            name: [without_places(row) for row in rows if row.get("run_lease", 1) <= 1]
            for name, rows in case["rows"].items()
            if name != "queue_terminal_count_deltas"
        }
        rows = {name: [without_places(row) for row in rows] for name, rows in found[job_id].items()}
        if case["case"] == "retry" and deadline:
            # Compare the first of its two attempts.
            wanted["deferred_jobs"] = rows["deferred_jobs"]
            wanted["ready_entries"] = wanted["ready_entries"][:1]
        if case["case"].startswith("ok") or case["case"] == "progress_ok":
            compare_success(case["case"], rows, wanted)
        else:
            assert rows == wanted, case["case"]


def compare_success(
    name: str, rows: dict[str, list[dict[str, Any]]], wanted: dict[str, list[dict[str, Any]]]
) -> None:
    """A success may be recorded compactly or as a row: the flush decides. Whichever it is has to be right."""
    histories = {"receipt_completion_batches (item)", "done_entries"}
    assert len(histories & rows.keys()) == 1, name
    assert "attempt_state" not in rows, name
    for table in histories & rows.keys() & wanted.keys():
        assert rows[table] == wanted[table], name
    assert rows["ready_entries"] == wanted["ready_entries"], name
    assert rows.get("job_unique_claims") == wanted.get("job_unique_claims"), name


@pytest.fixture
def settled_one(awa_database: str) -> Callable[..., dict[str, list[dict[str, Any]]]]:
    """Enqueue, claim and settle one job; returns the rows that belong to it."""

    def run(outcome: Outcome, *, dead_letters: bool = False, max_attempts: int = 25) -> Any:
        with psycopg.connect(awa_database, autocommit=True) as connection:
            connection.execute(
                "SELECT awa.insert_job_compat('k', 'out', p_max_attempts => %s::smallint)", [max_attempts]
            )
            (attempt,) = claimed(connection, timedelta(0))
            settle(connection, QueueStoragePlane(), [plan(attempt, outcome, dead_letters=dead_letters)])
            return rows_of_jobs(connection)[attempt.job_id]

    return run


@pytest.mark.parametrize(
    ("outcome", "max_attempts", "reason"),
    [(Terminal("gone"), 25, "terminal_error"), (Failed("again"), 1, "max_attempts_exhausted")],
)
def test_a_final_failure_goes_to_the_dead_letters_where_the_queue_has_them(
    settled_one: Callable[..., Any], outcome: Outcome, max_attempts: int, reason: str
) -> None:
    rows = settled_one(outcome, dead_letters=True, max_attempts=max_attempts)
    (dead,) = rows["dlq_entries"]
    assert (dead["state"], dead["dlq_reason"], dead["original_run_lease"]) == ("failed", reason, 1)
    assert dead["payload"]["errors"][0]["terminal"] is True
    (closure,) = rows["lease_claim_closure_batches (item)"]
    assert closure["outcome"] == "dlq"
    assert "done_entries" not in rows
