"""What maintenance takes and places: rescues and promotion (contract: runtime/maintenance sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.jobs import Landed, Taken
from awa_django.maintenance import Context
from awa_django.maintenance.promote import duties as promotions
from awa_django.maintenance.rescue import LEASE_STALE, UNANSWERED
from awa_django.maintenance.rescue import duties as rescues
from awa_django.outcomes import Failed
from awa_django.planes.base import Cursor, Due, PastDeadline, Stale, Unanswered
from awa_django.states import JobState
from tests.planes.canonical.rows import all_rows, claims, park, row_of, states
from tests.planes.outcome_cases import RECORDED, promote_due
from tests.planes.world import World, ids, job

STALE = Stale(timedelta(seconds=90))
DEADLINE = timedelta(minutes=5)
KEY = b"0123456789abcdef"
RESCUES = {case["id"]: case for case in RECORDED["rescue"]}


def run(world: World, duties: Any, **settings: Any) -> list[tuple[str, Landed]]:
    """These duties of a leader, once each; what the rescues among them took away, by kind."""
    found: list[tuple[str, Landed]] = []
    context = Context(
        world.connection,
        Settings(**settings),
        rescued=lambda kind, landed: found.extend((kind, item) for item in landed),
    )
    for duty in duties(context.settings, world.plane):
        duty.run(context)
    return found


def rescue(world: World, **settings: Any) -> list[tuple[str, Landed]]:
    """All the leader's rescues, once."""
    return run(world, rescues, **settings)


def promotion(world: World) -> None:
    """The leader's promotion, once."""
    run(world, promotions)


def took(world: World, guard: Any) -> list[Taken]:
    return world.within(lambda cursor: world.plane.take(cursor, guard))


def test_a_silent_attempt_is_retried_after_the_backoff(canonical: World) -> None:
    """DEC-17: other clients retry it at once."""
    assert RESCUES["rescue_stale_heartbeat_ignores_max_attempts"]["product"] == {
        "canonical": {"run_at": "backoff"}
    }
    (attempt,) = canonical.running(job(max_attempts=1, metadata={"m": 1}), deadline=timedelta(hours=1))
    canonical.beat(attempt, {"percent": 5})
    canonical.run("UPDATE awa.jobs_hot SET callback_id = gen_random_uuid(), callback_timeout_at = now()")
    canonical.age()
    ((kind, landed),) = rescue(canonical)
    row = row_of(canonical, attempt.job_id)
    assert kind == "heartbeat"
    assert (row["table"], row["state"], row["attempt"], row["run_lease"]) == (
        "scheduled_jobs",
        "retryable",
        1,
        1,
    )
    assert 2.0 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= 2.5
    assert landed.run_at == row["run_at"]
    (entry,) = row["errors"]
    assert (entry["error"], entry["attempt"], "terminal" in entry) == (LEASE_STALE, 1, False)
    assert row["progress"] == {"percent": 5}
    cleared = ("heartbeat_at", "deadline_at", "callback_id", "callback_timeout_at")
    assert [row[column] for column in cleared] == [None] * 4


def test_an_attempt_past_its_deadline_is_retried_even_if_it_was_the_last(canonical: World) -> None:
    expect = RESCUES["rescue_deadline_ignores_max_attempts"]["expect"]["canonical"]
    (attempt,) = canonical.running(job(max_attempts=1), deadline=DEADLINE)
    canonical.run("UPDATE awa.jobs_hot SET deadline_at = now() - interval '1 second'")
    ((kind, _),) = rescue(canonical)
    row = row_of(canonical, attempt.job_id)
    assert (kind, row["state"]) == ("deadline", "retryable")
    assert [{key: entry[key] for key in ("error", "attempt")} for entry in row["errors"]] == expect["errors"]
    assert 2.0 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= 2.5
    canonical.run("UPDATE awa.scheduled_jobs SET run_at = now()")
    promote_due(canonical)
    (again,) = canonical.claim()
    assert (again.attempt, again.run_lease) == (2, expect["run_lease"])


def test_a_rescue_of_the_last_attempt_fails_the_job_if_the_settings_say_so(canonical: World) -> None:
    """DEC-16; there are no dead letters here."""
    (attempt,) = canonical.running(job(max_attempts=1))
    canonical.age()
    rescue(canonical, rescue_exhausts=True, dlq_enabled=True)
    row = row_of(canonical, attempt.job_id)
    assert (row["table"], row["state"]) == ("jobs_hot", "failed")
    assert canonical.one("SELECT count(*) FROM awa.dlq_entries") == 0


@pytest.mark.parametrize(
    ("case", "most"), [("rescue_callback_timeout_at_max", 1), ("rescue_callback_timeout_below_max", 3)]
)
def test_a_callback_that_never_came_ends_the_last_attempt_only(
    canonical: World, case: str, most: int
) -> None:
    (attempt,) = canonical.running(job(max_attempts=most))
    park(canonical, attempt.job_id)
    assert rescue(canonical) == []
    canonical.age("2 hours")
    ((kind, _),) = rescue(canonical)
    expect = RESCUES[case]["expect"]["canonical"]
    row = row_of(canonical, attempt.job_id)
    assert (kind, row["state"]) == ("callback_timeout", "failed" if most == 1 else "retryable")
    assert [{key: entry.get(key) for key in ("error", "attempt", "terminal")} for entry in row["errors"]] == [
        {"error": UNANSWERED, "attempt": 1, "terminal": None}
    ]
    assert [entry["error"] for entry in expect["errors"]] == [UNANSWERED]
    assert (row["callback_id"], row["callback_timeout_at"], row["callback_filter"]) == (None, None, None)
    if most > 1:
        assert 2.0 <= (row["run_at"] - row["finalized_at"]).total_seconds() <= 2.5


def test_there_are_no_receipts_to_look_at(canonical: World) -> None:
    canonical.running(job())
    canonical.age()
    assert took(canonical, Stale(timedelta(seconds=1), receipts=True)) == []
    assert len(took(canonical, Stale(timedelta(seconds=1)))) == 1


def test_six_hundred_silent_attempts_take_two_passes(canonical: World) -> None:
    canonical.enqueue(*[job() for _ in range(600)])
    canonical.claim(limit=600)
    canonical.age()
    first, second, third = rescue(canonical), rescue(canonical), rescue(canonical)
    assert (len(first), len(second), len(third)) == (500, 100, 0)
    assert set(states(canonical)) == {"retryable"}


GUARDS: list[tuple[Callable[..., Any], str]] = [
    (lambda **bounds: Stale(timedelta(seconds=90), **bounds), "heartbeat_at"),
    (PastDeadline, "deadline_at"),
    (Unanswered, "callback_timeout_at"),
    (lambda **bounds: Due(JobState.SCHEDULED, **bounds), "run_at"),
    (lambda **bounds: Due(JobState.RETRYABLE, **bounds), "run_at"),
]


@pytest.mark.parametrize(
    ("guard", "column"), GUARDS, ids=["stale", "late", "unanswered", "scheduled", "retryable"]
)
def test_the_longest_due_come_first_and_held_ones_are_passed_over(
    canonical: World, world_database: str, guard: Callable[..., Any], column: str
) -> None:
    attempts = canonical.running(*[job() for _ in range(4)], deadline=timedelta(hours=1))
    table = "jobs_hot"
    if column == "run_at":
        canonical.end(attempts, Failed("no"))
        table = "scheduled_jobs"
        if guard().state is JobState.SCHEDULED:
            canonical.run("UPDATE awa.scheduled_jobs SET state = 'scheduled'")
    elif column == "callback_timeout_at":
        for attempt in attempts:
            park(canonical, attempt.job_id)
    order = [attempts[place].job_id for place in (2, 0, 3, 1)]
    for hours, job_id in zip((40, 30, 20, 10), order, strict=True):
        canonical.run(
            f"UPDATE awa.{table} SET {column} = now() - %s * interval '1 hour' WHERE id = %s", hours, job_id
        )
    assert ids(took(canonical, guard())) == order
    assert ids(took(canonical, guard(limit=3))) == order[:3]
    assert ids(took(canonical, guard(passed_over=order[1:3]))) == [order[0], order[3]]
    with psycopg.connect(world_database) as other:
        other.execute(f"SELECT FROM awa.{table} WHERE id = %s FOR UPDATE", [order[0]])
        assert ids(took(canonical, guard())) == order[1:]
    assert {item.taken_at for item in took(canonical, guard())} != set()


def test_what_no_job_falls_due_as_is_refused(canonical: World) -> None:
    with pytest.raises(ValueError, match="jobs that are running do not fall due"):
        took(canonical, Due(JobState.RUNNING))


def test_due_jobs_become_available_now_with_all_they_had(canonical: World) -> None:
    (attempt,) = canonical.running(job(args={"x": 1}, metadata={"m": 1}, tags=("a",), priority=3))
    canonical.end([attempt], Failed("ValueError: no"), progress={"percent": 5})
    canonical.run("UPDATE awa.scheduled_jobs SET callback_id = gen_random_uuid(), heartbeat_at = now()")
    promotion(canonical)
    assert states(canonical) == ["retryable"]
    canonical.run("UPDATE awa.scheduled_jobs SET run_at = now() - interval '1 hour'")
    before = row_of(canonical, attempt.job_id)
    promotion(canonical)
    after = row_of(canonical, attempt.job_id)
    changed = {"table", "state", "run_at", "callback_id", "heartbeat_at"}
    assert {key for key in after if after[key] != before[key]} == changed
    assert (after["table"], after["state"], after["callback_id"], after["heartbeat_at"]) == (
        "jobs_hot", "available", None, None,
    )  # fmt: skip
    assert canonical.one("SELECT %s > now() - interval '1 minute'", after["run_at"])
    assert after["finalized_at"] is not None


def test_waiting_workers_hear_of_promoted_jobs_once_a_queue(canonical: World, world_database: str) -> None:
    canonical.enqueue(*[job(run_at=canonical.one("SELECT now()")) for _ in range(3)])
    with psycopg.connect(world_database, autocommit=True) as listener:
        listener.execute('LISTEN "awa:q"')
        promotion(canonical)
        canonical.run("NOTIFY \"awa:q\", 'end'")
        heard = []
        for notification in listener.notifies(timeout=10):
            heard.append(notification.payload)
            if notification.payload == "end":
                break
    assert heard == ["", "end"]


def test_one_job_that_cannot_be_promoted_keeps_no_other_waiting(canonical: World) -> None:
    """DEC-18: a name too long for a channel is refused by the trigger that wakes workers."""
    due = canonical.one("SELECT now() - interval '1 hour'")
    canonical.enqueue(*[job(run_at=due) for _ in range(5)])
    long = all_rows(canonical)[2]["id"]
    canonical.run("UPDATE awa.scheduled_jobs SET queue = repeat('x', 100) WHERE id = %s", long)
    promotion(canonical)
    assert states(canonical) == ["available", "available", "scheduled", "available", "available"]


@pytest.mark.parametrize("when", ["-infinity", "0044-03-15 BC"])
def test_a_due_time_that_python_cannot_hold_keeps_no_job_waiting(canonical: World, when: str) -> None:
    canonical.enqueue(*[job(run_at=canonical.one("SELECT now()")) for _ in range(2)])
    odd = all_rows(canonical)[0]["id"]
    canonical.run("UPDATE awa.scheduled_jobs SET run_at = %s::text::timestamptz WHERE id = %s", when, odd)
    promotion(canonical)
    assert states(canonical) == ["available", "available"]


def test_a_due_job_whose_key_a_newer_job_holds_ends_cancelled(canonical: World) -> None:
    mask: dict[str, Any] = {"unique_key": KEY, "unique_states": "01100000"}
    due = canonical.one("SELECT now()")
    canonical.enqueue(job(run_at=due, **mask), job(run_at=due))
    canonical.enqueue(job(**mask))
    old, _, new = [row["id"] for row in all_rows(canonical)]
    promotion(canonical)
    assert states(canonical) == ["cancelled", "available", "available"]
    row = row_of(canonical, old)
    assert row["table"] == "jobs_hot"
    assert [entry["error"] for entry in row["errors"]] == [
        "rescued as duplicate: unique claim held by a newer job"
    ]
    assert claims(canonical) == {KEY: new}


SUPERSEDED = [
    ("heartbeat", "heartbeat stale"),
    ("deadline", "deadline expired"),
    ("callback_timeout", "callback timed out"),
]


@pytest.mark.parametrize(("kind", "cause"), SUPERSEDED)
def test_a_rescued_job_that_was_superseded_is_cancelled_between_two_that_were_not(
    canonical: World, kind: str, cause: str
) -> None:
    mask: dict[str, Any] = {"unique_key": KEY, "unique_states": "11001000"}
    attempts = canonical.running(job(), job(**mask), job(), deadline=timedelta(minutes=1))
    canonical.enqueue(job(**mask))
    newer = all_rows(canonical)[3]["id"]
    match kind:
        case "heartbeat":
            canonical.run("UPDATE awa.jobs_hot SET heartbeat_at = heartbeat_at - interval '1 hour'")
        case "deadline":
            canonical.run(
                "UPDATE awa.jobs_hot SET deadline_at = now() - interval '1 second' WHERE state = 'running'"
            )
        case "callback_timeout":
            for attempt in attempts:
                park(canonical, attempt.job_id)
            canonical.age("2 hours")
    landed = rescue(canonical)
    assert {kind for kind, _ in landed} == {kind}
    assert {item.landing.taken.job_id: item.duplicate for _, item in landed} == {
        attempts[0].job_id: False, attempts[1].job_id: True, attempts[2].job_id: False,
    }  # fmt: skip
    assert states(canonical) == ["retryable", "cancelled", "retryable", "available"]
    said = [entry["error"] for entry in row_of(canonical, attempts[1].job_id)["errors"]]
    assert said[-1] == f"rescued as duplicate: {cause} and unique claim held by a newer job"
    assert claims(canonical) == {KEY: newer}


def test_a_rescue_does_not_wait_for_a_row_that_is_being_settled(
    canonical: World, world_database: str
) -> None:
    first, second = canonical.running(job(), job())
    canonical.age()

    def settle(cursor: Cursor) -> None:
        cursor.execute("SET LOCAL lock_timeout = '5s'")
        canonical.plane.take(cursor, STALE)

    with psycopg.connect(world_database) as other:
        other.execute("UPDATE awa.jobs_hot SET progress = '{}' WHERE id = %s", [first.job_id])
        canonical.within(settle)
        assert [item.landing.taken.job_id for _, item in rescue(canonical)] == [second.job_id]
