"""Follow-up jobs: stored exactly when the outcome is (contract: runtime/followups-events section 1)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from awa_django import Cancel, Job, RetryAfter, TerminalError, Unique, followups, job, registry
from awa_django.conf import QueueConfig
from awa_django.followups import FollowUpFailed, follow_up
from awa_django.outcomes import Completed, Outcome
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.settle import settle
from awa_django.sql import statement
from awa_django.transitions import Event, Notice, plan
from tests.inprocess import ended, working
from tests.planes.conftest import world_database
from tests.planes.world import World
from tests.planes.world import job as made
from tests.stored import rows, run

__all__ = ["world_database"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


@pytest.fixture
def after() -> Any:
    """A kind whose jobs wait for somebody; follow-ups of these tests are jobs of it."""

    @job(queue="later")
    def after(of: str, number: int = 0) -> None: ...

    return after


def stored(of: str | None = None) -> list[dict[str, Any]]:
    """Follow-ups that were stored, oldest first."""
    found = rows("SELECT job_id, args, payload FROM awa.ready_entries WHERE kind = 'after' ORDER BY job_id")
    return [row for row in found if of is None or row["args"]["of"] == of]


def entries(row: dict[str, Any]) -> list[dict[str, Any]]:
    return list((row["payload"] or {}).get("errors", []))


# Declaring ------------------------------------------------------------------------------------------------


def test_a_coroutine_cannot_decide_a_follow_up() -> None:
    @job
    def trigger() -> None: ...

    async def later(job: Job) -> None: ...

    with pytest.raises(ImproperlyConfigured, match="not by a coroutine"):
        trigger.on_completed(later)


def test_a_follow_up_takes_the_job_and_perhaps_the_notice() -> None:
    @job
    def trigger() -> None: ...

    with pytest.raises(ImproperlyConfigured, match="takes the job"):
        trigger.on_completed(lambda one, two, three: None)
    with pytest.raises(ValueError, match="finished"):
        follow_up("trigger", "finished")


# Outcomes --------------------------------------------------------------------------------------------------


def test_a_success_stores_its_follow_ups_in_the_order_they_were_declared(after: Any) -> None:
    @job
    def trigger(order: int) -> None: ...

    @trigger.on_completed
    def first(job: Job) -> Any:
        return after.request(of=f"order {job.args['order']}", number=1)

    @trigger.on_completed
    def second(job: Job, notice: Notice) -> Any:
        assert notice.event is Event.COMPLETED
        return [after.request(of=str(job.state), number=2), after.request(of="third", number=3)]

    @trigger.on_completed
    def nothing(job: Job) -> None: ...

    with working():
        trigger.enqueue(order=7)
        (row,) = ended("trigger")
    assert row["state"] == "completed"
    assert [item["args"] for item in stored()] == [
        {"of": "order 7", "number": 1},
        {"of": "completed", "number": 2},
        {"of": "third", "number": 3},
    ]


def test_each_outcome_has_follow_ups_of_its_own(after: Any) -> None:
    heard: dict[str, Notice] = {}

    @job(max_attempts=2)
    def trigger(how: str) -> Any:
        if how == "retry_after":
            return RetryAfter(3600)
        if how == "cancel":
            return Cancel("no longer wanted")
        if how == "terminal":
            raise TerminalError("never")
        raise ValueError("once more")

    for declare in (trigger.on_retried, trigger.on_exhausted, trigger.on_cancelled, trigger.on_completed):

        @declare
        def note(job: Job, notice: Notice) -> Any:
            heard[f"{notice.event}:{job.args['how']}"] = notice
            return after.request(of=f"{notice.event}:{job.args['how']}")

    with working():
        for how in ("retry_after", "cancel", "terminal", "error"):
            trigger.enqueue(how=how)
        ended("trigger", 4)
    assert sorted(item["args"]["of"] for item in stored()) == [
        "cancelled:cancel", "exhausted:terminal", "retried:error", "retried:retry_after",
    ]  # fmt: skip
    after_delay = heard["retried:retry_after"]
    assert after_delay.error == ""
    assert after_delay.attempt == 1
    assert after_delay.next_run_at == after_delay.job.run_at
    assert after_delay.job.state == "retryable"
    assert heard["retried:error"].error.startswith("ValueError: once more")
    assert heard["cancelled:cancel"].reason == "no longer wanted"
    assert heard["exhausted:terminal"].error.startswith("TerminalError: never")
    assert heard["exhausted:terminal"].job.state == "failed"


def test_a_dead_letter_and_its_follow_up_appear_together(after: Any) -> None:
    @job
    def trigger() -> None:
        raise TerminalError("never")

    @trigger.on_exhausted
    def note(job: Job) -> Any:
        return after.request(of="dead")

    with working(dlq_enabled=True):
        trigger.enqueue()
        ended("trigger")
    assert rows("SELECT dlq_reason FROM awa.dlq_entries") == [{"dlq_reason": "terminal_error"}]
    assert len(stored("dead")) == 1


def test_a_follow_up_of_a_batch_does_not_keep_the_others_apart(after: Any) -> None:
    @job
    def trigger(number: int) -> None: ...

    @trigger.on_completed
    def note(job: Job) -> Any:
        if job.args["number"] % 10 == 3:
            raise LookupError("there is no such order")
        return after.request(of="batch", number=job.args["number"])

    with working():
        trigger.enqueue_many([{"number": number} for number in range(40)])
        found = ended("trigger", 40)
    failed = [row for row in found if row["state"] == "retryable"]
    assert len(failed) == 4
    assert sorted(item["args"]["number"] for item in stored("batch")) == [
        number for number in range(40) if number % 10 != 3
    ]
    for row in failed:
        (entry,) = entries(row)
        assert entry["error"] == "follow-up enqueue failed (completed): LookupError: there is no such order"


# Failures of follow-ups (DEC-11) ---------------------------------------------------------------------------


def test_a_second_follow_up_that_fails_undoes_the_first(after: Any, caplog: pytest.LogCaptureFixture) -> None:
    @job(max_attempts=1)
    def trigger() -> None: ...

    @trigger.on_completed
    def good(job: Job) -> Any:
        return after.request(of="first")

    @trigger.on_completed
    def bad(job: Job) -> Any:
        return {"kind": "after"}

    with caplog.at_level(logging.ERROR), working():
        trigger.enqueue()
        (row,) = ended("trigger")
    assert row["state"] == "failed"
    assert row["attempt"] == 1
    assert stored() == []
    assert entries(row)[0]["error"].startswith("follow-up enqueue failed (completed): InvalidJob: ")
    assert "follow-up of completed" in caplog.text


def test_the_new_outcome_has_its_own_follow_ups(after: Any) -> None:
    @job(max_attempts=1)
    def trigger() -> None: ...

    @trigger.on_completed
    def bad(job: Job) -> Any:
        raise ValueError("no")

    @trigger.on_exhausted
    def note(job: Job) -> Any:
        return after.request(of="exhausted")

    with working():
        trigger.enqueue()
        ended("trigger")
    assert len(stored("exhausted")) == 1


def test_a_retry_whose_follow_up_fails_is_the_same_retry_without_it() -> None:
    @job
    def trigger() -> RetryAfter:
        return RetryAfter(3600)

    @trigger.on_retried
    def bad(job: Job) -> Any:
        raise ValueError("no")

    with working():
        trigger.enqueue()
        (row,) = ended("trigger")
    assert (row["state"], row["attempt"], entries(row)) == ("retryable", 1, [])


def test_a_final_failure_whose_follow_up_fails_says_both() -> None:
    @job
    def trigger() -> None:
        raise TerminalError("never")

    @trigger.on_exhausted
    def bad(job: Job) -> Any:
        raise ValueError("no")

    with working():
        trigger.enqueue()
        (row,) = ended("trigger")
    first, second = entries(row)
    assert first["error"].startswith("TerminalError: never")
    assert first["terminal"] is True
    assert second["error"] == "follow-up enqueue failed (exhausted): ValueError: no"


def test_a_unique_key_that_is_held_is_a_failure_of_the_follow_up(after: Any) -> None:
    once = after.using(unique=Unique(by_args=True))

    @job(max_attempts=1)
    def trigger(number: int) -> None: ...

    @trigger.on_completed
    def note(job: Job) -> Any:
        return once.request(of="once")

    once.enqueue(of="once")
    with working():
        trigger.enqueue_many([{"number": number} for number in range(3)])
        found = ended("trigger", 3)
    assert [row["state"] for row in found] == ["failed"] * 3
    assert "UniqueViolation" in entries(found[0])[0]["error"]
    assert len(stored("once")) == 1


# In the transaction ----------------------------------------------------------------------------------------


Connecting = Callable[[str], Callable[[], psycopg.Connection[Any]]]


@pytest.fixture
def claimed(world_database: str) -> Iterator[tuple[psycopg.Connection[Any], list[Any]]]:
    """A session with three running attempts of kind ``k``."""
    with psycopg.connect(world_database, autocommit=True) as connection:
        connection.execute(statement("testing", "reset"), {})  # whatever tests of other files have left
        world = World(connection, QueueStoragePlane())
        yield connection, world.running(*[made() for _ in range(3)])


def count_after(connection: psycopg.Connection[Any], of: str) -> int:
    row = connection.execute(
        "SELECT count(*) FROM awa.ready_entries WHERE kind = 'after' AND args ->> 'of' = %s", [of]
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_stale_outcome_has_no_follow_up(
    after: Any, claimed: tuple[psycopg.Connection[Any], list[Any]]
) -> None:
    connection, attempts = claimed
    follow_up(attempts[0].kind, "completed")(lambda job: after.request(of="stale"))
    settle(connection, QueueStoragePlane(), [plan(attempts[0], Completed())])
    assert count_after(connection, "stale") == 1
    settlement = settle(connection, QueueStoragePlane(), [plan(attempts[0], Completed())])
    assert len(settlement.stale) == 1
    assert count_after(connection, "stale") == 1


@pytest.mark.parametrize("outcome", [Completed(), RetryAfter(5), Cancel("x")])
def test_a_crash_before_the_commit_leaves_neither(
    after: Any, claimed: tuple[psycopg.Connection[Any], list[Any]], outcome: Outcome
) -> None:
    connection, attempts = claimed
    event = plan(attempts[0], outcome).rule.event
    assert event is not None
    follow_up(attempts[0].kind, event)(lambda job: after.request(of=f"crash {job.id}"))
    with connection.transaction() as transaction:
        settle(connection, QueueStoragePlane(), [plan(attempts[0], outcome)])
        raise psycopg.Rollback(transaction)
    assert count_after(connection, f"crash {attempts[0].job_id}") == 0
    assert len(settle(connection, QueueStoragePlane(), [plan(attempts[0], outcome)]).stale) == 0
    assert count_after(connection, f"crash {attempts[0].job_id}") == 1


def test_a_failing_follow_up_names_the_outcome_that_asked_for_it(
    claimed: tuple[psycopg.Connection[Any], list[Any]],
) -> None:
    connection, attempts = claimed

    @followups.follow_up(attempts[0].kind, "completed")
    def bad(job: Job) -> Any:
        if job.id == attempts[1].job_id:
            raise ValueError("this one")

    with pytest.raises(FollowUpFailed, match=f"completed of job {attempts[1].job_id}") as failure:
        settle(connection, QueueStoragePlane(), [plan(attempt, Completed()) for attempt in attempts])
    assert failure.value.notice is not None
    assert failure.value.notice.pair == (attempts[1].job_id, attempts[1].run_lease)
    assert settle(connection, QueueStoragePlane(), [plan(attempts[0], Completed())]).stale == ()


def test_the_row_of_a_success_is_the_row_that_was_stored(
    claimed: tuple[psycopg.Connection[Any], list[Any]],
) -> None:
    connection, attempts = claimed
    seen: list[Job] = []
    followups.follow_up(attempts[0].kind, "completed")(seen.append)
    settle(connection, QueueStoragePlane(), [plan(attempts[0], Completed())])
    row = connection.execute(
        "SELECT job_id, state::text, attempt, run_lease, finalized_at FROM awa.terminal_jobs WHERE job_id = %s",
        [attempts[0].job_id],
    ).fetchone()
    (job,) = seen
    assert row == (job.id, job.state, job.attempt, job.run_lease, job.finalized_at)
    assert job.progress is None


# Rescue ----------------------------------------------------------------------------------------------------


def quick() -> dict[str, Any]:
    return {
        "rescue_interval": timedelta(seconds=0.3),
        "leader_election_interval": timedelta(seconds=0.3),
    }


@pytest.mark.parametrize("broken", [False, True])
def test_a_rescue_has_follow_ups_and_stands_without_them(
    after: Any, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, datetime]] = []

    @job(queue="dated")
    def trigger(ctx: Any) -> None:
        while not ctx.is_cancelled():
            pass

    @trigger.on_rescued
    def note(job: Job, notice: Notice) -> Any:
        heard.append((notice.reason, job.run_at))
        if broken:
            raise ValueError("no")
        return after.request(of=notice.reason)

    queues = {"dated": QueueConfig("dated", deadline=timedelta(seconds=0.5))}
    trigger.enqueue()
    # The backoff of so late an attempt is hours, so it is not promoted before anybody looks.
    run("UPDATE awa.ready_entries SET attempt = 16")
    with caplog.at_level(logging.ERROR), working({"dated": 1}, lead=True, queues=queues, **quick()):
        (row,) = ended("trigger")
    assert row["state"] == "retryable"
    assert heard[0][0] == "deadline_exceeded"
    assert len(stored("deadline_exceeded")) == (0 if broken else 1)
    assert ("its follow-up was not stored" in caplog.text) is broken
    assert json.dumps(entries(row)[0]["error"]) == '"hard deadline exceeded"'
