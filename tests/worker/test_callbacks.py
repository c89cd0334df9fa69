"""Callbacks through a real worker: registering, parking, and time."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from awa_django import (
    CallbackNotFound,
    InvalidJob,
    Job,
    JobContext,
    WaitForCallback,
    callbacks,
    job,
    signals,
)
from awa_django.jobs import JobInsert
from tests.worker.calling import (
    QUICK,
    SECONDS,
    Database,
    Told,
    database,
    declared,
    first_line,
    queue_storage,
    told,
)
from tests.workers import wait_until

__all__ = ["database", "declared", "queue_storage", "told"]

pytestmark = pytest.mark.django_db(transaction=True)

#: For leaders that rescue at once and leave what they put back where it is, however late one looks.
RESCUING = {**QUICK, "promote_interval": timedelta(hours=1)}


# Parking ---------------------------------------------------------------------------------------------------


def test_a_job_parks_frees_its_slot_and_is_completed_from_outside(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        ctx.set_progress(33, "asked")
        token = ctx.register_callback(timeout=3600)
        told(token)
        return WaitForCallback(token)

    @job
    def other() -> None:
        told("other")

    with database.working({"default": 1}):
        waiting = pay.enqueue()
        token = told.next()
        database.wait_waiting(waiting.id)
        other.enqueue()
        assert told.next() == "other", "the slot is free"
        row = database.held(waiting.id)
        assert str(row["callback_id"]) == str(token)
        assert (row["heartbeat_at"], row["deadline_at"]) == (None, None)
        assert database.job(waiting.id)["progress"] == {"percent": 33, "message": "asked"}
        callbacks.complete(token)
        done = database.job(waiting.id)
    assert (done["state"], done["attempt"], done["progress"]) == ("completed", 1, None)


def test_coroutines_register_and_park_too(database: Database, told: Told) -> None:
    @job
    async def pay(ctx: JobContext) -> WaitForCallback:
        token = await ctx.aregister_callback(timeout=timedelta(minutes=5))
        told(token)
        return WaitForCallback(token)

    with database.working():
        waiting = pay.enqueue()
        token = told.next()
        database.wait_waiting(waiting.id)
        callbacks.fail(token, "declined")
        failed = database.job(waiting.id)
    assert (failed["state"], first_line(failed)) == ("failed", "declined")


def test_a_token_is_stored_before_it_is_returned_whatever_becomes_of_the_handlers_transaction(
    database: Database, told: Told
) -> None:
    go_on = threading.Event()

    class Undone(Exception):
        pass

    @job
    def pay(ctx: JobContext) -> None:
        with transaction.atomic():
            connection.ensure_connection()
            told(ctx.register_callback())
            assert go_on.wait(SECONDS)
            raise Undone

    with database.working():
        running = pay.enqueue()
        token = told.next()
        assert str(database.held(running.id)["callback_id"]) == str(token)
        assert callbacks.complete(token).id == running.id
        go_on.set()
        wait_until(lambda: database.job(running.id)["state"] == "completed")


def test_a_handler_that_forgot_to_register_fails_for_good(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        ctx.set_progress(5)
        return WaitForCallback("nothing")

    with database.working():
        failed = database.wait_for(pay.enqueue().id, "failed")
    assert first_line(failed) == "WaitForCallback returned without calling register_callback"
    assert failed["errors"][0]["terminal"] is True
    assert (failed["attempt"], failed["progress"]) == (1, {"percent": 5})
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_a_handler_that_returns_an_older_token_parks_on_the_newer_one(
    database: Database, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        first = ctx.register_callback()
        told(ctx.register_callback())
        return WaitForCallback(first)

    with database.working():
        waiting = pay.enqueue()
        token = told.next()
        database.wait_waiting(waiting.id)
        callbacks.complete(token)
    assert database.job(waiting.id)["state"] == "completed"
    assert any("returned another one" in record.getMessage() for record in caplog.records)


def test_a_handler_that_does_not_wait_after_all_completes_its_job(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        told(ctx.register_callback())

    with database.working():
        jobs = [pay.enqueue() for _ in range(20)]
        tokens = [told.next() for _ in jobs]
        for each in jobs:
            assert database.wait_for(each.id, "completed")["attempt"] == 1
    with pytest.raises(CallbackNotFound):
        callbacks.complete(tokens[0])
    assert database.rows("SELECT * FROM awa.leases") == []


def test_a_withdrawn_callback_is_dead_and_the_job_goes_on(database: Database, told: Told) -> None:
    @job
    def plain(ctx: JobContext) -> None:
        told(ctx.cancel_callback())
        told(ctx.register_callback())
        told(ctx.cancel_callback())
        told(ctx.cancel_callback())

    with database.working():
        done = plain.enqueue()
        assert told.next() is False
        token = told.next()
        assert (told.next(), told.next()) == (True, False)
        database.wait_for(done.id, "completed")
    with pytest.raises(CallbackNotFound):
        callbacks.complete(token)


def test_what_cannot_be_registered_is_refused_in_the_handler(queue_storage: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        for arguments in (
            {"timeout": 0},
            {"timeout": float("inf")},
            {"filter": "payload.a ="},
            {"on_complete": "other.a"},
            {"transform": ""},
        ):
            with pytest.raises(InvalidJob) as raised:
                ctx.register_callback(**arguments)  # type: ignore[arg-type]
            told(raised.value.path)

    with queue_storage.working():
        done = pay.enqueue()
        assert [told.next() for _ in range(5)] == ["timeout", "timeout", "filter", "on_complete", "transform"]
        queue_storage.wait_for(done.id, "completed")
    assert queue_storage.rows("SELECT * FROM awa.leases") == []


def test_expressions_judge_the_answer_to_a_parked_job(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        token = ctx.register_callback(
            filter="payload.final",
            on_complete="payload.status == 'paid'",
            on_fail="payload.status == 'declined'",
            transform="payload.id",
        )
        told(token)
        return WaitForCallback(token)

    with database.working():
        waiting = pay.enqueue()
        token = told.next()
        database.wait_waiting(waiting.id)
        assert callbacks.resolve(token, {"final": False, "status": "paid"}).is_ignored()
        resolution = callbacks.resolve(token, {"final": True, "status": "paid", "id": 7})
    assert (resolution.outcome, resolution.payload) == ("completed", 7)


def test_listeners_hear_of_the_wait_with_its_callback(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        token = ctx.register_callback()
        told(token)
        return WaitForCallback(token)

    def hear(sender: Any, job: Job, **values: Any) -> None:
        told((job.state, str(job.callback_id), job.callback_timeout_at is not None))

    signals.job_waiting.connect(hear, weak=False)
    try:
        with database.working():
            pay.enqueue()
            token = told.next()
            assert told.next() == ("waiting_external", str(token), True)
    finally:
        signals.job_waiting.disconnect(hear)


def test_an_answer_while_the_handler_runs_is_final_and_no_error(
    database: Database, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        token = ctx.register_callback()
        told(token)
        assert go_on.wait(SECONDS)
        return WaitForCallback(token)

    with database.working() as worker:
        running = pay.enqueue()
        callbacks.complete(told.next())
        go_on.set()
        wait_until(lambda: len(worker.runtime.flights) == 0)
        done = database.job(running.id)
    assert (done["state"], done["attempt"], done["errors"] or []) == ("completed", 1, [])
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "state"), [(2, "retryable"), (1, "failed")])
def test_an_answer_that_does_not_come_in_time_costs_the_attempt(
    database: Database, told: Told, most: int, state: str
) -> None:
    @job(max_attempts=most)
    def pay(ctx: JobContext) -> WaitForCallback:
        token = ctx.register_callback(timeout=0.5)
        told(token)
        return WaitForCallback(token)

    with database.working(lead=True, **RESCUING):
        waiting = pay.enqueue()
        token = told.next()
        row = database.wait_for(waiting.id, state)
    (entry,) = row["errors"]
    assert entry["error"] == "callback timed out"
    final = most == 1 and database.storage == "queue_storage"  # other clients mark it there alone
    assert entry.get("terminal") is (True if final else None)
    with pytest.raises(CallbackNotFound):
        callbacks.complete(token)


def test_no_time_left_has_the_leader_retry_the_job(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        token = ctx.register_callback()
        told(token)
        return WaitForCallback(token)

    with database.working(lead=True, **RESCUING):
        waiting = pay.enqueue()
        token = told.next()
        database.wait_waiting(waiting.id)
        callbacks.heartbeat(token, 0)
        database.wait_for(waiting.id, "retryable")


def test_a_retry_from_outside_runs_the_job_again_at_once(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> WaitForCallback | None:
        told((ctx.attempt, ctx.job.run_lease))
        if ctx.job.run_lease > 1:
            return None
        token = ctx.register_callback()
        told(token)
        return WaitForCallback(token)

    with database.working():
        waiting = pay.enqueue()
        assert told.next() == (1, 1)
        token = told.next()
        database.wait_waiting(waiting.id)
        callbacks.retry(token)
        assert told.next() == (1, 2)
        database.wait_for(waiting.id, "completed")


def test_an_early_answer_of_a_parked_job_is_there_in_its_next_run(
    database: Database, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    @job
    def pay(ctx: JobContext) -> WaitForCallback | None:
        if "_awa_callback_result" in ctx.job.metadata:
            told((ctx.attempt, ctx.job.metadata["_awa_callback_result"]))
            return None
        token = ctx.register_callback()
        told(token)
        assert go_on.wait(SECONDS)
        return WaitForCallback(token)

    with database.working(lead=True, **QUICK):
        running = pay.enqueue()
        callbacks.resume(told.next(), {"ok": 1})
        go_on.set()
        assert told.next() == (1, {"ok": 1})
        database.wait_for(running.id, "completed")


def test_a_follow_up_of_the_wait_is_stored_with_it(database: Database, told: Told) -> None:
    @job
    def remind(job_id: int) -> None:
        told(job_id)

    @job
    def pay(ctx: JobContext) -> WaitForCallback:
        return WaitForCallback(ctx.register_callback())

    @pay.on_waiting
    def then(waiting: Job) -> JobInsert:
        return remind.request(job_id=waiting.id)

    with database.working():
        waiting = pay.enqueue()
        assert told.next() == waiting.id
