"""Our plane on the schema of the real client, with a real awa-pg worker on the same canonical tables.

The installation is pinned to them as the real client pins one: by a job that is enqueued before any worker starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import awa
import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.jobs import Attempt
from awa_django.maintenance import Context, promote, rescue
from awa_django.outcomes import Cancel, Completed, Failed, Outcome, RetryAfter, Snooze, Terminal
from awa_django.planes.base import Beat
from awa_django.planes.canonical import CanonicalPlane
from tests.interop.test_mixed_fleet import PATIENT, awa_pg_worker, stop
from tests.planes.canonical.rows import all_rows, claims, row_of, states
from tests.planes.outcome_cases import differences, expected, play, playable_cases
from tests.planes.world import World, job
from tests.workers import wait_until

pytestmark = [pytest.mark.worker, pytest.mark.interop]

KEY = b"0123456789abcdef"


@pytest.fixture
def pinned(oracle_database: str) -> Iterator[World]:
    """The schema of the real client with one job in it."""
    client = awa.Client(oracle_database)
    client.insert({"n": 0}, kind="noop")
    client.close()
    with psycopg.connect(oracle_database, autocommit=True) as connection:
        world = World(connection, CanonicalPlane())
        assert world.one("SELECT count(*) FROM awa.jobs_hot") == 1
        assert world.one("SELECT awa.active_queue_storage_schema()") is None
        yield world


def run_beside(world: World, *, batch: int = 3) -> list[Attempt]:
    """Claim and complete jobs of queue ``default`` until none is unfinished; what was ours."""
    ours: list[Attempt] = []

    def done() -> bool:
        attempts = world.claim("default", batch)
        ours.extend(attempts)
        world.end(attempts)
        left = "SELECT count(*) FROM awa.jobs_hot WHERE state IN ('available', 'running')"
        return bool(world.one(f"SELECT ({left}) = 0 AND NOT EXISTS (SELECT FROM awa.scheduled_jobs)"))

    wait_until(done, seconds=60, what="all jobs to finish")
    return ours


def test_both_take_jobs_of_one_queue_and_none_is_lost_or_done_twice(
    pinned: World, oracle_database: str
) -> None:
    client = awa.Client(oracle_database)
    for number in range(1, 40):
        client.insert({"n": number}, kind="noop")
    pinned.enqueue(*[job(kind="noop", queue="default", args={"n": number}) for number in range(40, 160)])
    first = pinned.claim("default", 3)  # so that there is something for each, whoever is quicker
    with awa_pg_worker(oracle_database, 2, stale_after=PATIENT) as worker:
        wait_until(lambda: pinned.rows("SELECT FROM probe"), what="the other worker to begin")
        pinned.end(first)
        ours = first + run_beside(pinned)
        stop(worker)
    client.close()
    theirs = {row["job_id"]: row["attempt"] for row in pinned.rows("SELECT * FROM probe")}
    assert ours, "we ran nothing"
    assert theirs, "the other worker ran nothing"
    assert not theirs.keys() & {attempt.job_id for attempt in ours}
    assert len(theirs) + len(ours) == 160
    assert {(row["state"], row["attempt"], row["run_lease"]) for row in all_rows(pinned)} == {
        ("completed", 1, 1)
    }


def test_what_we_put_off_the_other_worker_runs_and_the_other_way_round(
    pinned: World, oracle_database: str
) -> None:
    pinned.end(pinned.claim("default"))
    outcomes: list[Outcome] = [RetryAfter(0.1), Snooze(0.1), Failed("ValueError: ours")]
    attempts = pinned.running(*[job(kind="noop", queue="default", args={"n": 1}) for _ in outcomes])
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        pinned.end([attempt], outcome)
    with awa_pg_worker(oracle_database, 2, stale_after=PATIENT) as worker:
        wait_until(
            lambda: set(states(pinned)) == {"completed"}, seconds=60, what="the other worker to run them"
        )
        rows = [row_of(pinned, attempt.job_id) for attempt in attempts]
        assert [(row["attempt"], row["run_lease"]) for row in rows] == [(2, 2), (1, 2), (2, 2)]
        assert [entry["error"] for entry in rows[2]["errors"]] == ["ValueError: ours"]
        # It fails whenever they run it, which may be again before they stop.
        pinned.enqueue(job(kind="flaky", queue="default", args={"failures": 99}))
        wait_until(lambda: "retryable" in states(pinned), what="their failure")
        stop(worker)
    pinned.run("UPDATE awa.scheduled_jobs SET run_at = now()")
    for duty in promote.duties(Settings(), pinned.plane):
        duty.run(Context(pinned.connection, Settings()))
    (again,) = pinned.claim("default")
    failures = [entry["attempt"] for entry in again.job.errors]
    assert failures
    assert failures == list(range(1, len(failures) + 1))
    assert again.attempt == again.run_lease == len(failures) + 1
    pinned.end([again])
    assert set(states(pinned)) == {"completed"}


def test_their_leader_leaves_our_attempts_alone_as_long_as_we_beat(
    pinned: World, oracle_database: str
) -> None:
    pinned.end(pinned.claim("default"))
    beaten, silent = pinned.running(
        *[job(kind="noop", queue="default", args={"n": 1}) for _ in range(2)], deadline=timedelta(hours=1)
    )

    def rescued() -> bool:
        pinned.within(lambda cursor: pinned.plane.heartbeat(cursor, [Beat(beaten, {"percent": 7})]))
        row = row_of(pinned, silent.job_id)
        return row["state"] == "completed"

    pinned.run(
        "UPDATE awa.jobs_hot SET heartbeat_at = heartbeat_at - interval '5 minutes' WHERE state = 'running'"
    )
    pinned.within(lambda cursor: pinned.plane.heartbeat(cursor, [Beat(beaten)]))
    with awa_pg_worker(oracle_database, 2, stale_after=PATIENT) as worker:
        wait_until(rescued, what="the silent attempt to be rescued and run by the other worker")
        stop(worker)
    assert pinned.end([silent]).stale, "its late answer counts for nothing"
    row = row_of(pinned, silent.job_id)
    assert (row["attempt"], [entry["error"] for entry in row["errors"]]) == (
        2, ["heartbeat stale: worker presumed dead"],
    )  # fmt: skip
    assert (row_of(pinned, beaten.job_id)["state"], row_of(pinned, beaten.job_id)["progress"]) == (
        "running", {"percent": 7},
    )  # fmt: skip
    assert not pinned.end([beaten]).stale


def test_our_leader_rescues_what_a_killed_worker_left(pinned: World, oracle_database: str) -> None:
    pinned.end(pinned.claim("default"))
    with awa_pg_worker(oracle_database, 2, stale_after=PATIENT) as worker:
        pinned.enqueue(job(kind="spell", queue="default", args={"seconds": 60}))
        wait_until(lambda: "running" in states(pinned), what="the other worker to begin")
        worker.kill()
        worker.wait(10)
    pinned.run(
        "UPDATE awa.jobs_hot SET heartbeat_at = heartbeat_at - interval '5 minutes' WHERE state = 'running'"
    )
    context = Context(pinned.connection, Settings())
    for duty in rescue.duties(context.settings, pinned.plane):
        duty.run(context)
    (row,) = [row for row in all_rows(pinned) if row["kind"] == "spell"]
    assert row["state"] == "retryable"
    assert 2.0 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= 2.5


@pytest.mark.parametrize(
    ("mask", "outcome", "ends"),
    [
        ("11001000", Failed("no"), "cancelled"),
        ("11001000", Snooze(5), "cancelled"),
        ("11001010", Failed("no"), "cancelled"),
        ("11011000", Completed(), "cancelled"),
        ("11001000", Completed(), "completed"),
        ("11001000", Cancel(), "cancelled"),
        ("00000100", Terminal("no"), "failed"),
    ],
)
def test_unique_keys_are_kept_by_their_triggers_and_taken_by_us(
    pinned: World, mask: str, outcome: Outcome, ends: str
) -> None:
    pinned.end(pinned.claim("default"))
    keyed: dict[str, Any] = {"unique_key": KEY, "unique_states": mask}
    (attempt,) = pinned.running(job(**keyed))
    assert claims(pinned) == {}
    holder = None
    if mask[1] == "1":
        pinned.enqueue(job(**keyed))
        holder = all_rows(pinned)[-1]["id"]
    pinned.end([attempt], outcome)
    assert row_of(pinned, attempt.job_id)["state"] == ends
    assert claims(pinned) == {KEY: holder or attempt.job_id}


@pytest.mark.parametrize("case", playable_cases()[::4], ids=lambda case: case["id"])
def test_recorded_cases_leave_the_same_rows_on_their_schema(pinned: World, case: dict[str, Any]) -> None:
    job_id = play(pinned, case, deferred="scheduled_jobs")
    assert differences(row_of(pinned, job_id), expected(case, "canonical")) == []


def test_their_backoff_function_is_kept_from_its_overflow(pinned: World) -> None:
    """DEC-15."""
    pinned.end(pinned.claim("default"))
    pinned.enqueue(job(max_attempts=1000))
    pinned.run("UPDATE awa.jobs_hot SET attempt = 60 WHERE state = 'available'")
    (attempt,) = pinned.claim()
    pinned.end([attempt], Failed("no"))
    row = row_of(pinned, attempt.job_id)
    assert row["run_at"] - row["finalized_at"] == timedelta(days=1)
