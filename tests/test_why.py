"""Why a job is not running: one reason, the right one, on either plane."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from awa_django import operations
from awa_django.enqueue import enqueue_many
from awa_django.errors import JobNotFound
from awa_django.jobs import UNKNOWN_KIND_KEY, JobInsert
from awa_django.operations import Why, WhyReason
from awa_django.operations.leading import LEADER_KEY
from tests import stored
from tests.console.test_verbs import runtime
from tests.test_operations import added, claimed, in_state
from tests.test_operator_reads import canonical

pytestmark = pytest.mark.django_db


def why(job_id: int, reason: WhyReason, *words: str, **facts: Any) -> Why:
    """The answer about a job, which is for this reason, says these words and has these facts."""
    found = operations.why(job_id)
    assert found.reason is reason, found
    for word in words:
        assert word in f"{found.sentence} {found.hint}", found
    assert {name: found.facts[name] for name in facts} == facts
    return found


def worker(**about: Any) -> None:
    """A live worker of queue ``q`` that knows kind ``k``; ``config`` and ``in_flight`` are of the queue."""
    config = {"mode": "hard_reserved", "max_workers": 5, **about.pop("config", {})}
    queues = about.pop("queues", None) or [
        {"queue": about.pop("queue", "q"), "in_flight": about.pop("in_flight", 0), "config": config}
    ]
    runtime(**{"kinds": ["k"], "hostname": "w1", "queues": queues, **about})


@pytest.fixture
def leading() -> None:
    """Somebody leads: this session does, as far as others can see."""
    stored.run("SELECT pg_advisory_xact_lock(%s)", LEADER_KEY)


# Ends


def test_a_finished_job_has_ended_and_when() -> None:
    why(in_state("completed"), WhyReason.FINISHED, "It completed at 20", state="completed")
    why(in_state("cancelled"), WhyReason.FINISHED, "was cancelled at", "awa job retry")
    failed = in_state("failed")
    why(
        failed, WhyReason.FINISHED, "failed at", "attempt 1 of 25: ", f"job retry {failed}", last_error="gone"
    )
    dead = in_state("dead")
    why(
        dead,
        WhyReason.DEAD_LETTERED,
        "(terminal_error): gone.",
        f"dlq retry {dead}",
        dlq_reason="terminal_error",
    )


def test_an_error_is_shown_as_far_as_it_may_be(settings: Any) -> None:
    settings.AWA = {"REDACT": lambda kind, part, value: "hidden" if part == "errors" else value}
    assert why(in_state("failed"), WhyReason.FINISHED).facts["last_error"] == "hidden"


def test_a_job_that_there_is_not_is_not_found() -> None:
    # Canonical jobs of earlier tests may have been given higher ids.
    stored.run("SELECT setval('awa.job_id_seq', nextval('awa.job_id_seq') + nextval('awa.jobs_id_seq'))")
    job_id = added()
    with pytest.raises(JobNotFound, match=f"ids here go up to {job_id}, so it is one of another database"):
        operations.why(job_id + 1)
    stored.run("DELETE FROM awa.ready_entries")
    with pytest.raises(JobNotFound, match="is forgotten, or whoever enqueued it has not committed"):
        operations.why(job_id)


# Waiting for a time


def test_a_scheduled_job_is_not_due() -> None:
    job_id = in_state("scheduled")
    why(job_id, WhyReason.NOT_DUE, "not due before 2999-01-01 00:00:00 UTC, in", f"job run {job_id}")


def test_a_job_that_is_not_due_on_a_paused_queue_says_both() -> None:
    job_id = in_state("scheduled")
    operations.pause("q", "ann")
    why(job_id, WhyReason.NOT_DUE, "not due before 2999", "queue q is paused besides", "queue resume q")


def test_a_retry_says_when_and_what_went_wrong() -> None:
    job_id = in_state("retryable")
    # The backoff of a first attempt may be over before anybody asks.
    stored.run("UPDATE awa.deferred_jobs SET run_at = run_at + interval '1 hour'")
    why(job_id, WhyReason.RETRYING, "Attempt 1 of 25 failed: again; the next one is due at")


def test_a_job_whose_time_has_come_waits_for_the_leader() -> None:
    late = added(run_at=datetime.now(UTC) - timedelta(minutes=5))
    why(late, WhyReason.NOT_PROMOTED, "due for 5 min, but no worker leads", leader=False)


@pytest.mark.usefixtures("leading")
def test_a_leader_that_does_not_come_to_a_due_job_is_looked_into() -> None:
    late = added(run_at=datetime.now(UTC) - timedelta(minutes=5))
    why(late, WhyReason.NOT_PROMOTED, "has not come to this one", "awa doctor", leader=True)
    just = added(run_at=datetime.now(UTC) - timedelta(seconds=1))
    why(just, WhyReason.NOT_PROMOTED, "within a second")
    operations.pause("q", "ann")
    why(late, WhyReason.PAUSED, "paused by ann")


def test_a_kind_that_workers_handed_back_is_named() -> None:
    job_id = in_state("scheduled", kind="strange")
    mark = {UNKNOWN_KIND_KEY: {"since": "2026-03-01T09:00:00+00:00", "times": 3}}
    stored.run("UPDATE awa.deferred_jobs SET payload = %s::jsonb", json.dumps({"metadata": mark}))
    why(
        job_id, WhyReason.UNKNOWN_KIND, "'strange' handed it back 3 times since 2026-03-01", "Deploy", times=3
    )
    worker(kinds=["strange"])
    why(job_id, WhyReason.UNKNOWN_KIND, f"job run {job_id}", known_by=["w1:7"])


# Waiting for a worker


def test_a_paused_queue_says_by_whom_and_since_when() -> None:
    job_id = added()
    operations.pause("q", "ann")
    why(job_id, WhyReason.PAUSED, "Queue q is paused by ann since 20", "awa queue resume q", paused_by="ann")


def test_a_queue_without_a_worker_says_what_the_workers_there_are_serve() -> None:
    job_id = added()
    why(
        job_id, WhyReason.NO_WORKER_FOR_QUEUE, "No worker is running.", "awa_worker --queue q", live_workers=0
    )
    worker(silent="1 hour")
    why(job_id, WhyReason.NO_WORKER_FOR_QUEUE, "No worker is running (w1:7 did until")
    worker(queue="mail", hostname="w2")
    why(job_id, WhyReason.NO_WORKER_FOR_QUEUE, "those there are serve mail.", served=["mail"])
    worker(shutting_down=True)
    why(job_id, WhyReason.NO_WORKER_FOR_QUEUE)


def test_a_kind_without_a_worker_says_who_else_knows_it() -> None:
    job_id = added()
    worker(kinds=["other"])
    why(job_id, WhyReason.NO_WORKER_FOR_KIND, "No live worker of queue q (w1:7) knows kind 'k'", "Deploy")
    worker(queue="mail", hostname="w2")
    why(job_id, WhyReason.NO_WORKER_FOR_KIND, "w2:7", f"job move --to mail {job_id}`", known_by=["w2:7"])


def test_a_kind_that_another_clients_worker_would_fail_for_good_says_so() -> None:
    job_id = added()
    worker(kinds=["other"], hostname="rust", version="0.6.9")
    why(
        job_id, WhyReason.NO_WORKER_FOR_KIND, "whoever claims it fails it for good if it is rust:7",
        "`manage.py awa queue pause q` keeps it",
    )  # fmt: skip


def test_workers_that_look_for_no_jobs_are_not_said_to_have_a_free_slot() -> None:
    job_id = added()
    runtime(hostname="w1", kinds=["k"], queues=[{"queue": "q", "config": {"max_workers": 5}}])
    stored.run("UPDATE awa.runtime_instances SET poll_loop_alive = false, healthy = false")
    why(
        job_id,
        WhyReason.NO_WORKER_FOR_QUEUE,
        "No worker of queue q looks for jobs: w1:7 does not look",
        "log",
    )


def test_a_worker_that_is_late_to_report_may_be_gone() -> None:
    def late(**about: Any) -> None:
        """One that reports every ten minutes: a second more or less does not matter to what is said of it."""
        worker(**about)
        stored.run("UPDATE awa.runtime_instances SET snapshot_interval_ms = 600000")

    job_id = added()
    late(silent="25 minutes")
    why(job_id, WhyReason.NEXT, "nothing was heard of it for 25 min: it may be gone")
    late(hostname="w2", in_flight=5, silent="26 minutes")
    stored.run(
        "UPDATE awa.runtime_instances SET queues = (SELECT queues FROM awa.runtime_instances WHERE hostname = 'w2')"
    )
    why(job_id, WhyReason.AT_CAPACITY, "nothing was heard of them for 25 min: they may be gone")
    worker(hostname="w3", in_flight=5)
    assert "may be gone" not in operations.why(job_id).sentence


def test_the_name_of_a_queue_is_one_word_of_a_command_that_is_copied() -> None:
    job_id = added(queue="a; rm -rf ~")
    why(job_id, WhyReason.NO_WORKER_FOR_QUEUE, "awa_worker --queue 'a; rm -rf ~'`")
    operations.pause("a; rm -rf ~", "ann")
    why(job_id, WhyReason.PAUSED, "queue resume 'a; rm -rf ~'`", "No live worker serves it besides.")


def test_full_workers_say_how_many_jobs_run() -> None:
    job_id = added()
    worker(in_flight=5)
    why(
        job_id,
        WhyReason.AT_CAPACITY,
        "The worker of queue q has no free slot: 5 of its jobs run",
        in_flight=5,
    )
    worker(in_flight=5, hostname="w2")
    why(job_id, WhyReason.AT_CAPACITY, "All 2 workers", in_flight=10)
    worker(in_flight=4, hostname="w3")
    assert operations.why(job_id).reason is WhyReason.NEXT


def test_a_queue_that_claims_nothing_says_so() -> None:
    job_id = added()
    worker(config={"max_workers": 0})
    why(job_id, WhyReason.AT_CAPACITY, "claim nothing: their max_workers is 0")


def test_shared_slots_are_counted_over_the_queues() -> None:
    job_id = added()

    def both(mine: int, lent: int, other: int, other_lent: int) -> None:
        stored.run("DELETE FROM awa.runtime_instances")
        weighted = {"mode": "weighted", "weight": 1}
        worker(
            global_max_workers=4,
            queues=[
                {"queue": "q", "in_flight": mine, "overflow_held": lent, "config": {**weighted, "min_workers": 1}},
                {
                    "queue": "r", "in_flight": other, "overflow_held": other_lent,
                    "config": {**weighted, "min_workers": 1},
                },
            ],
        )  # fmt: skip

    both(1, 0, 3, 2)
    why(job_id, WhyReason.AT_CAPACITY, in_flight=1)
    both(0, 0, 3, 2)
    assert operations.why(job_id).reason is WhyReason.NEXT
    both(1, 0, 2, 1)
    assert operations.why(job_id).reason is WhyReason.NEXT


def test_older_and_more_urgent_work_comes_first() -> None:
    enqueue_many([JobInsert("k", {}, "q") for _ in range(4)])
    job_id = added()
    added(priority=1)
    added(priority=3)
    added()
    worker()
    why(job_id, WhyReason.BEHIND_OTHERS, "5 jobs of queue q come first.", "job priority", ahead=5)
    cancelled = operations.list_jobs(operations.JobFilter(queue="q"), limit=10).jobs[-1].job.id
    operations.cancel(cancelled)
    why(job_id, WhyReason.BEHIND_OTHERS, ahead=4)
    claimed(limit=2)
    assert operations.why(job_id).facts["ahead"] < 4


def test_what_has_waited_long_ranks_higher() -> None:
    urgent = added(priority=1)
    old = added(priority=4)
    worker()
    assert operations.why(urgent).reason is WhyReason.NEXT
    stored.run("UPDATE awa.ready_entries SET run_at = now() - interval '1 hour' WHERE job_id = %s", old)
    why(urgent, WhyReason.BEHIND_OTHERS, ahead=1)
    stored.run("DELETE FROM awa.runtime_instances")
    worker(config={"priority_aging_interval_secs": 0})
    assert operations.why(urgent).reason is WhyReason.NEXT


def test_the_speed_of_late_tells_how_long_it_takes() -> None:
    for _ in range(6):
        in_state("completed")
    added()
    job_id = added()
    worker()
    found = why(job_id, WhyReason.BEHIND_OTHERS, "1 job of queue q come", "at the present speed", ahead=1)
    assert found.facts["jobs_per_second"] == pytest.approx(0.01)


def test_more_work_than_is_counted_is_at_least_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has the function under the module's name.
    monkeypatch.setattr(sys.modules["awa_django.operations.why"], "COUNT_UP_TO", 3)
    enqueue_many([JobInsert("k", {}, "q") for _ in range(9)])
    job_id = added()
    worker()
    why(job_id, WhyReason.BEHIND_OTHERS, "At least 3 jobs", ahead=3)


def test_a_rate_limit_tells_how_long_it_takes() -> None:
    enqueue_many([JobInsert("k", {}, "q") for _ in range(10)])
    job_id = added()
    worker(config={"rate_limit": {"max_rate": 2, "burst": 0}})
    worker(config={"rate_limit": {"max_rate": 0.5, "burst": 0}}, hostname="w2")
    why(
        job_id,
        WhyReason.RATE_LIMITED,
        "start 2.5 jobs of queue q a second at most, and 10 jobs",
        "4 s",
        max_rate=2.5,
    )
    worker(hostname="w3")
    assert operations.why(job_id).reason is WhyReason.BEHIND_OTHERS


def test_the_next_job_of_a_slow_queue_waits_for_its_turn() -> None:
    job_id = added()
    worker(config={"rate_limit": {"max_rate": 0.05, "burst": 1}}, version="0.6.9")
    why(job_id, WhyReason.RATE_LIMITED, "the next of queue q, of which workers start one in 20 s", ahead=0)


def test_the_next_job_of_an_idle_worker_is_any_moment() -> None:
    job_id = added()
    worker()
    why(job_id, WhyReason.NEXT, "claims it any moment.")
    stored.run("UPDATE awa.ready_entries SET run_at = now() - interval '10 minutes'")
    why(job_id, WhyReason.NEXT, "it has waited for 10 min", "may hold its lane", "awa doctor")


# Taken


def test_a_running_job_names_who_may_hold_it() -> None:
    job_id = in_state("running")
    why(job_id, WhyReason.RUNNING, "though no live worker says", "If that worker is gone", workers=[])
    worker(in_flight=1)
    why(
        job_id,
        WhyReason.RUNNING,
        "Attempt 1 of 25".lower(),
        "by w1:7; no heartbeat is due",
        f"job cancel {job_id}",
    )
    worker(in_flight=1, hostname="w2")
    assert sorted(why(job_id, WhyReason.RUNNING, "by one of").facts["workers"]) == ["w1:7", "w2:7"]


def test_a_worker_that_takes_its_leave_may_still_run_a_job() -> None:
    running, waiting = in_state("running"), added()
    worker(in_flight=1, shutting_down=True)
    why(running, WhyReason.RUNNING, "by w1:7, which is shutting down;", workers=["w1:7"])
    why(waiting, WhyReason.NO_WORKER_FOR_QUEUE, "No worker is running (w1:7, which did, is shutting down).")


def test_a_job_whose_worker_went_quiet_is_to_be_rescued() -> None:
    job_id = in_state("running")
    worker(silent="5 minutes")
    stored.run("UPDATE awa.lease_claim_batches SET claimed_at = claimed_at - interval '10 minutes'")
    why(job_id, WhyReason.STALE, "no sign of life for 10 min", "w1:7 is silent since", "No worker leads")
    stored.run("SELECT pg_advisory_xact_lock(%s)", LEADER_KEY)
    assert "No worker leads" not in operations.why(job_id).sentence


def test_a_job_that_outlived_its_deadline_is_to_be_taken_away() -> None:
    added(priority=1)
    (attempt,) = claimed(deadline=timedelta(seconds=30))
    stored.run("UPDATE awa.lease_claims SET deadline_at = now() - interval '5 minutes'")
    why(attempt.job_id, WhyReason.PAST_DEADLINE, "5 min past its deadline")


def test_a_job_that_waits_for_a_callback_names_it_and_its_time() -> None:
    job_id = in_state("waiting_external")
    stored.run("UPDATE awa.leases SET callback_timeout_at = now() + interval '90 minutes 30 seconds'")
    callback = str(operations.load_job(job_id).job.callback_id)
    why(
        job_id,
        WhyReason.WAITING_FOR_CALLBACK,
        callback,
        "in 90 min",
        "callback complete",
        callback_id=callback,
    )
    stored.run("UPDATE awa.leases SET callback_timeout_at = now() - interval '90 minutes'")
    why(job_id, WhyReason.WAITING_FOR_CALLBACK, "its time was up 90 min ago", "no worker leads", overdue=True)
    stored.run("UPDATE awa.leases SET callback_timeout_at = NULL")
    why(job_id, WhyReason.WAITING_FOR_CALLBACK, "for as long as it takes")
    stored.run("UPDATE awa.leases SET callback_id = NULL")
    why(job_id, WhyReason.WAITING_FOR_CALLBACK, "no answer can arrive", f"job retry {job_id}")


# The canonical tables


def test_a_canonical_job_needs_a_worker_that_drains() -> None:
    added()
    job_id = canonical(id=2**40)
    worker()
    why(
        job_id, WhyReason.STORAGE_TRANSITION, "lies in canonical, while new jobs go to queue storage",
        "--role canonical_drain", plane="canonical",
    )  # fmt: skip
    worker(capability="canonical_drain_only", hostname="drain")
    assert operations.why(job_id).reason is WhyReason.NEXT


def test_where_canonical_storage_is_in_force_its_workers_serve_it() -> None:
    stored.use_canonical()
    first = canonical(run_at=datetime.now(UTC) - timedelta(minutes=1))
    second = canonical()
    worker()
    why(second, WhyReason.BEHIND_OTHERS, ahead=1, plane="canonical")
    assert operations.why(first).reason is WhyReason.NEXT
    running = canonical("running", attempted_at=datetime.now(UTC), heartbeat_at=datetime.now(UTC))
    why(running, WhyReason.RUNNING, "the last sign of life is")
    why(canonical("scheduled", run_at=datetime(2999, 1, 1, tzinfo=UTC)), WhyReason.NOT_DUE)


def test_an_answer_takes_no_locks() -> None:
    def held() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT locktype, relation, mode FROM pg_locks"
                " WHERE pid = pg_backend_pid() AND mode <> 'AccessShareLock' ORDER BY 1, 2, 3"
            )
            return list(cursor.fetchall())

    job_id = added()
    worker()
    before = held()
    operations.why(job_id)
    assert held() == before
