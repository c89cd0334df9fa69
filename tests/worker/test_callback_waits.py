"""Handlers of a real worker that wait in place, and what becomes of a wait that ends otherwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from awa_django import (
    CallbackNotFound,
    CallbackRefused,
    CallbackToken,
    JobContext,
    callbacks,
    job,
    operations,
)
from awa_django.conf import QueueConfig
from awa_django.worker import context
from awa_django.worker.attendant import SESSIONS
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
from tests.workers import terminate, wait_until

__all__ = ["database", "declared", "queue_storage", "told"]

pytestmark = pytest.mark.django_db(transaction=True)


# Waiting in place ------------------------------------------------------------------------------------------


def test_a_handler_waits_twice_and_finds_both_answers_in_one_attempt(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        for _ in range(2):
            token = ctx.register_callback()
            told(token)
            told(ctx.wait_for_callback(token))

    with database.working():
        running = pay.enqueue()
        first = told.next()
        database.wait_waiting(running.id)
        callbacks.resume(first, {"step": 1})
        assert told.next() == {"step": 1}
        second = told.next()
        with pytest.raises(CallbackNotFound):
            callbacks.resume(first, "again")
        database.wait_waiting(running.id)
        callbacks.resume(second)
        assert told.next() is None
        done = database.wait_for(running.id, "completed")
    assert (done["attempt"], done["run_lease"], done["metadata"]) == (1, 1, {})


def test_coroutines_wait_in_place_also_as_handlers_of_other_clients_write_it(
    database: Database, told: Told
) -> None:
    @job
    async def ported(ctx: Any) -> None:
        token = await ctx.register_callback(timeout_seconds=60.0)
        ctx.set_progress(20, "asked")
        await ctx.flush_progress()
        told(token)
        told(await ctx.wait_for_callback(token))
        told(await ctx.cancel_callback())

    @job
    async def ours(ctx: JobContext) -> None:
        token = await ctx.aregister_callback()
        ctx.set_progress(20, "asked")
        await ctx.aflush_progress()
        told(token)
        told(await ctx.await_for_callback(token))
        told(await ctx.acancel_callback())

    with database.working(heartbeat_interval=timedelta(hours=1)):
        for kind in (ported, ours):
            running = kind.enqueue()
            token = told.next()
            database.wait_waiting(running.id)
            assert database.job(running.id)["progress"] == {"percent": 20, "message": "asked"}
            callbacks.resume(token, [1])
            assert (told.next(), told.next()) == ([1], False)
            database.wait_for(running.id, "completed")


@pytest.mark.parametrize("payload", [None, {"a": 1}])
def test_an_answer_before_the_wait_ends_it_at_once(
    database: Database, told: Told, payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "POLL_SECONDS", 3600.0)  # a second look would never come
    go_on = threading.Event()

    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        assert go_on.wait(SECONDS)
        told(ctx.wait_for_callback(token))

    with database.working():
        running = pay.enqueue()
        callbacks.resume(told.next(), payload)
        go_on.set()
        assert told.next() == payload
        database.wait_for(running.id, "completed")


def test_a_handler_cannot_wait_for_a_token_that_is_not_its_current_one(
    database: Database, told: Told
) -> None:
    @job
    def one(ctx: JobContext) -> None:
        first = ctx.register_callback()
        told(first)
        second = ctx.register_callback()
        for token in (first, CallbackToken("3fa85f64-5717-4562-b3fc-2c963f66afa6")):
            with pytest.raises(CallbackRefused) as raised:
                ctx.wait_for_callback(token)
            told(str(raised.value))
        told(second)
        told(ctx.wait_for_callback(second))

    with database.working():
        running = one.enqueue()
        first = told.next()
        for _ in range(2):
            assert "stale token" in told.next()
        second = told.next()
        assert second != first
        database.wait_waiting(running.id)
        callbacks.resume(second, "mine")
        assert told.next() == "mine"
        database.wait_for(running.id, "completed")


def test_a_wait_that_the_handler_gives_up_counts_as_if_it_had_not_been(
    database: Database, told: Told
) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        ctx.wait_for_callback(token, timeout=0.5)

    @job
    async def apay(ctx: JobContext) -> None:
        token = await ctx.aregister_callback()
        told(token)
        async with asyncio.timeout(0.5):
            await ctx.await_for_callback(token)

    @job
    async def atimed(ctx: JobContext) -> None:
        token = await ctx.aregister_callback()
        told(token)
        await ctx.await_for_callback(token, timeout=0.5)

    @job(timeout=2)  # that is for registering, too
    async def limited(ctx: JobContext) -> None:
        token = await ctx.aregister_callback()
        told(token)
        await ctx.await_for_callback(token)

    with database.working():
        for kind in (pay, apay, atimed, limited):
            running = kind.enqueue()
            token = told.next()
            row = database.wait_for(running.id, "retryable")
            assert len(row["errors"]) == 1
            assert first_line(row).startswith("TimeoutError"), kind
            with pytest.raises(CallbackNotFound):
                callbacks.resume(token)


def test_a_handler_may_give_up_a_wait_and_take_it_up_again(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        with pytest.raises(TimeoutError, match=r"was not answered within 0\.3"):
            ctx.wait_for_callback(token, timeout=0.3)
        told(token)
        told(ctx.wait_for_callback(token))

    with database.working():
        running = pay.enqueue()
        token = told.next()
        database.wait_waiting(running.id)
        callbacks.resume(token, 7)
        assert told.next() == 7
        assert database.wait_for(running.id, "completed")["attempt"] == 1


def test_a_handler_whose_job_is_completed_while_it_waits_is_told_and_changes_nothing(
    database: Database, told: Told
) -> None:
    answers: list[tuple[Callable[[CallbackToken], Any], str]] = [
        (callbacks.complete, "completed"),
        (lambda token: callbacks.fail(token, "declined"), "failed"),
    ]

    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        try:
            ctx.wait_for_callback(token)
        except CallbackRefused as refused:
            told(str(refused))
            raise

    with database.working() as worker:
        for answer, state in answers:
            running = pay.enqueue()
            token = told.next()
            database.wait_waiting(running.id)
            answer(token)
            assert f"the job is {state}" in told.next()
            wait_until(lambda: len(worker.runtime.flights) == 0)
            row = database.job(running.id)
            assert (row["state"], row["attempt"]) == (state, 1)


def test_a_cancelled_job_ends_the_wait_of_its_handler(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        try:
            ctx.wait_for_callback(token)
        except CallbackRefused as refused:
            told(str(refused))

    with database.working():
        running = pay.enqueue()
        told.next()
        database.wait_waiting(running.id)
        operations.cancel(running.id)
        assert f"job {running.id}" in told.next()
        assert database.job(running.id)["state"] == "cancelled"


def test_a_worker_that_stops_ends_the_waits_of_its_handlers_and_their_jobs_run_again(
    database: Database, told: Told
) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        ctx.wait_for_callback(token)

    with database.working() as worker:
        running = pay.enqueue()
        told.next()
        database.wait_waiting(running.id)
        worker.runtime.stop()
        row = database.wait_for(running.id, "retryable")
    assert "was asked to stop while it waited" in first_line(row)


def test_a_wait_is_not_ended_by_the_deadline_of_its_queue(database: Database, told: Told) -> None:
    """The deadline passes by moving it into the past, so that only the wait is late."""

    @job(queue="dated")
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        told(ctx.wait_for_callback(token))

    queues = {"dated": QueueConfig("dated", deadline=timedelta(minutes=5))}
    with database.working({"dated": 1}, lead=True, queues=queues, **QUICK):
        running = pay.enqueue()
        token = told.next()
        database.wait_waiting(running.id)
        for table in ("jobs_hot", "leases", "lease_claims"):
            database.connection.execute(
                f"UPDATE awa.{table} SET deadline_at = deadline_at - interval '10 minutes'"
            )
        with pytest.raises(AssertionError):
            wait_until(lambda: database.job(running.id)["state"] != "waiting_external", seconds=2)
        callbacks.resume(token, "late")
        assert told.next() == "late"
        done = database.wait_for(running.id, "completed")
    assert done["attempt"] == 1


def test_a_waiting_handler_gives_signs_of_life_and_stores_progress(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        ctx.set_progress(50)
        told(ctx.wait_for_callback(token))
        told(ctx.is_cancelled())

    with database.working(heartbeat_interval=timedelta(seconds=0.1)):
        running = pay.enqueue()
        token = told.next()
        database.wait_waiting(running.id)
        wait_until(lambda: database.job(running.id)["progress"] == {"percent": 50})
        callbacks.resume(token)
        assert told.next() is None
        assert told.next() is False, "the attempt counts as current"
        assert database.wait_for(running.id, "completed")["attempt"] == 1


def test_a_long_transaction_of_an_answer_does_not_silence_the_other_attempts(
    database: Database, told: Told
) -> None:
    enough = threading.Event()

    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told((ctx.job.id, token))
        told(ctx.wait_for_callback(token))

    @job
    def busy(ctx: JobContext) -> None:
        told(ctx.job.id)
        percent = 0
        while not enough.wait(0.02):
            percent = percent % 100 + 1
            ctx.set_progress(percent)

    def stored(job_id: int) -> Any:
        table, column = ("jobs_hot", "id") if database.storage == "canonical" else ("attempt_state", "job_id")
        found = database.rows(f"SELECT progress FROM awa.{table} WHERE {column} = %s", job_id)
        return found[0]["progress"] if found else None

    with database.working(heartbeat_interval=timedelta(seconds=0.1)):
        pay.enqueue()
        waiting, token = told.next()
        database.wait_waiting(waiting)
        busy.enqueue()
        other = told.next()
        wait_until(lambda: stored(other), what="a first heartbeat")
        with transaction.atomic():
            callbacks.resume(token, "late")
            for _ in range(3):
                last = stored(other)
                wait_until(lambda last=last: stored(other) != last, what="a heartbeat of the other")
        assert told.next() == "late"
        enough.set()
        for each in (waiting, other):
            assert database.wait_for(each, "completed")["attempt"] == 1


def test_many_handlers_wait_on_few_sessions(queue_storage: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext, n: int) -> None:
        token = ctx.register_callback()
        told((n, token))
        told((n, ctx.wait_for_callback(token)))

    count = 4 * SESSIONS
    with queue_storage.working({"default": count}):
        jobs = [pay.enqueue(n=n) for n in range(count)]
        tokens = dict(told.next() for _ in jobs)
        for each in jobs:
            queue_storage.wait_waiting(each.id)

        def sessions() -> dict[str, Any]:
            (row,) = queue_storage.rows(
                "SELECT count(*) AS all, count(*) FILTER (WHERE state <> 'idle' AND xact_start IS NOT NULL "
                "AND clock_timestamp() - xact_start > interval '1 second') AS busy FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'awa_worker attend'"
            )
            return row

        assert 1 <= sessions()["all"] <= SESSIONS
        # A look may be held up by the machine, but is over then.
        wait_until(lambda: sessions()["busy"] == 0, what="no session that is kept in a transaction")
        for n, token in tokens.items():
            callbacks.resume(token, n)
        assert sorted(told.next() for _ in jobs) == [(n, n) for n in range(count)]
        for each in jobs:
            queue_storage.wait_for(each.id, "completed")


def test_a_wait_survives_the_loss_of_the_workers_sessions(database: Database, told: Told) -> None:
    @job
    def pay(ctx: JobContext) -> None:
        token = ctx.register_callback()
        told(token)
        told(ctx.wait_for_callback(token))

    with database.working():
        running = pay.enqueue()
        token = told.next()
        database.wait_waiting(running.id)
        assert terminate(database.connection, "awa_worker attend") >= 1
        callbacks.resume(token, "found")
        assert told.next() == "found"
        database.wait_for(running.id, "completed")


def test_a_payload_that_comes_as_the_wait_is_given_up_is_not_lost(
    queue_storage: Database, told: Told
) -> None:
    @job
    async def pay(ctx: JobContext) -> None:
        token = await ctx.aregister_callback()
        told(token)
        while True:
            try:
                async with asyncio.timeout(0.21):
                    told(await ctx.await_for_callback(token))
                return
            except TimeoutError:
                continue

    with queue_storage.working():
        running = pay.enqueue()
        token = told.next()
        wait_until(lambda: resumed(token))
        assert told.next() == {"a": 1}
        assert queue_storage.wait_for(running.id, "completed")["attempt"] == 1


def resumed(token: CallbackToken) -> bool:
    callbacks.resume(token, {"a": 1})
    return True


def test_a_handler_beyond_its_limit_cannot_register_any_more(queue_storage: Database, told: Told) -> None:
    over = threading.Event()

    @job(timeout=0.2)
    def slow(ctx: JobContext) -> None:
        assert over.wait(SECONDS)
        try:
            ctx.register_callback()
        except CallbackRefused as refused:
            told(str(refused))

    with queue_storage.working():
        running = slow.enqueue()
        queue_storage.wait_for(running.id, "retryable")
        over.set()
        assert told.next() == f"job {running.id} is not in running state"
    assert queue_storage.rows("SELECT * FROM awa.leases") == []
