"""Callbacks between us and real awa-pg: registered by a worker of one, answered by the client of the other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Queue
from typing import Any

import awa
import pytest
from django.db import connection

from awa_django import CallbackNotFound, JobContext, WaitForCallback, callbacks, job, registry
from awa_django.conf import QueueConfig
from tests import databases, invariants
from tests.inprocess import working
from tests.stored import rows, run
from tests.workers import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

QUEUE = "shared"
SECONDS = 60.0


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


@pytest.fixture
def url(server_url: str) -> str:
    """Django's test database, as the awa client reads it."""
    return databases.address(server_url, str(connection.settings_dict["NAME"]))


def state_of(job_id: int) -> str | None:
    found = rows("SELECT state::text AS state FROM awa.jobs WHERE id = %s", job_id)
    return found[0]["state"] if found else None


def wait_for(job_id: int, *states: str | None) -> None:
    """Wait until a job is in one of these states; None stands for one that history has forgotten."""
    wait_until(lambda: state_of(job_id) in states, seconds=SECONDS, what=f"job {job_id} to be {states[0]}")


def lasting(job_id: int) -> dict[str, Any]:
    """State and errors of a job that history keeps.

    A look that has to wait while a leader empties a slot misses what that carries on to the next.
    """
    (row,) = wait_until(
        lambda: rows("SELECT state::text AS state, errors FROM awa.jobs WHERE id = %s", job_id),
        seconds=SECONDS,
        what=f"job {job_id}",
    )
    return row


def wait_for_error(job_id: int) -> None:
    """Wait until an attempt has ended with an error. The states that follow on each other do not last."""
    wait_until(
        lambda: any(row["errors"] for row in rows("SELECT errors FROM awa.jobs WHERE id = %s", job_id)),
        seconds=SECONDS,
        what=f"an error of job {job_id}",
    )


def errors_of(job_id: int) -> list[str]:
    return [json.loads(entry)["error"] for entry in lasting(job_id)["errors"] or []]


def entries_of(job_id: int) -> list[dict[str, Any]]:
    """The errors of a job, whole but for when they were."""
    errors = lasting(job_id)["errors"]
    return [{k: v for k, v in json.loads(entry).items() if k != "at"} for entry in errors]


#: What every client records of a callback whose expression failed the job, and of one that failed by default.
MATCHED = {
    "error": "callback failed: on_fail expression matched",
    "attempt": 1,
    "terminal": True,
    "expression": "payload.bad",
}
BY_DEFAULT = {"error": "callback failed: default action", "attempt": 1, "terminal": True}


# Their worker, our client ----------------------------------------------------------------------------------


class Theirs:
    """A real awa-pg worker in a thread, and what its handlers tell."""

    def __init__(self, client: awa.AsyncClient, told: Queue[Any]) -> None:
        self.client = client
        self.told = told

    def next(self) -> Any:
        return self.told.get(timeout=SECONDS)


@contextmanager
def awa_pg(url: str) -> Iterator[Theirs]:
    """It parks jobs of kind ``park`` and waits in place in those of kind ``wait``."""
    started, stop = threading.Event(), threading.Event()
    told: Queue[Any] = Queue()
    made: list[awa.AsyncClient] = []

    async def serve() -> None:
        client = awa.AsyncClient(url)
        made.append(client)

        @client.task(dict, kind="park", queue=QUEUE)
        async def park(job: awa.Job[dict[str, Any]]) -> Any:
            token = await job.register_callback(timeout_seconds=60.0, **job.args)
            told.put((job.id, token.id))
            return awa.WaitForCallback(token)

        @client.task(dict, kind="wait", queue=QUEUE)
        async def wait(job: awa.Job[dict[str, Any]]) -> None:
            token = await job.register_callback(timeout_seconds=60.0)
            told.put((job.id, token.id))
            told.put(await job.wait_for_callback(token))

        await client.start([(QUEUE, 5)], leader_election_interval_ms=300, callback_rescue_interval_ms=300)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.05)
        await client.shutdown(timeout_ms=2000)
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="awa-pg")
    thread.start()
    try:
        assert started.wait(SECONDS), "the awa-pg worker did not start"
        yield Theirs(made[0], told)
    finally:
        stop.set()
        thread.join(SECONDS)


def parked(theirs: Theirs, url: str, **judges: str) -> tuple[int, str]:
    client = awa.Client(url)
    job_id = client.insert(judges, kind="park", queue=QUEUE).id
    client.close()
    told_id, token = theirs.next()
    assert told_id == job_id
    wait_for(job_id, "waiting_external")
    return job_id, token


def test_our_client_answers_callbacks_that_an_awa_pg_worker_registered(url: str) -> None:
    with awa_pg(url) as theirs:
        job_id, token = parked(theirs, url)
        assert callbacks.heartbeat(token, 120).id == job_id
        completed = callbacks.complete(token.upper())
        assert (completed.id, completed.state.value) == (job_id, "completed")
        assert state_of(job_id) in ("completed", None)  # their leader forgets it within seconds
        with pytest.raises(CallbackNotFound):
            callbacks.complete(token)

        job_id, token = parked(theirs, url)
        callbacks.fail(token, "declined")
        assert (lasting(job_id)["state"], errors_of(job_id)) == ("failed", ["declined"])

        job_id, token = parked(theirs, url)
        callbacks.retry(token)
        again, second = theirs.next()
        assert (again, second != token) == (job_id, True)
        wait_for(job_id, "waiting_external")
        assert callbacks.resolve(second, default="complete").is_completed()

        job_id, token = parked(
            theirs, url, filter="payload.final", on_complete="payload.n >= 3", transform="payload.n"
        )
        assert callbacks.resolve(token, {"final": False}).is_ignored()
        resolution = callbacks.resolve(token, {"final": True, "n": 7})
        assert (resolution.outcome, resolution.payload) == ("completed", 7)

        job_id, token = parked(theirs, url, on_fail="payload.bad", on_complete="true")
        assert callbacks.resolve(token, {"bad": True}).is_failed()
        assert (lasting(job_id)["state"], entries_of(job_id)) == ("failed", [MATCHED])
        job_id, token = parked(theirs, url, on_complete="payload.n == 7", on_fail="payload.missing")
        assert callbacks.resolve(token, {"n": 7}, default="fail").is_failed()  # 7u is not 7
        assert (lasting(job_id)["state"], entries_of(job_id)) == ("failed", [BY_DEFAULT])

        job_id, token = parked(theirs, url)
        callbacks.heartbeat(token, 0)
        wait_for_error(job_id)
    with connection.cursor() as cursor:
        assert invariants.violated(cursor.connection, mixed=True) == []


def test_our_client_resumes_a_handler_of_an_awa_pg_worker(url: str) -> None:
    with awa_pg(url) as theirs:
        client = awa.Client(url)
        for payload in ({"step": 1}, None, [1, "two"]):
            job_id = client.insert({}, kind="wait", queue=QUEUE).id
            told_id, token = theirs.next()
            assert told_id == job_id
            wait_for(job_id, "waiting_external")
            callbacks.resume(token, payload)
            assert theirs.next() == payload
            # Their leader forgets a completed job within seconds, and a look may take one.
            wait_for(job_id, "completed", None)
        client.close()


# Our worker, their client ----------------------------------------------------------------------------------


@pytest.fixture
def told() -> Queue[Any]:
    return Queue()


@pytest.fixture
def client(url: str) -> Iterator[awa.Client]:
    opened = awa.Client(url)
    yield opened
    opened.close()


def parks(told: Queue[Any]) -> Any:
    @job(queue=QUEUE)
    def park(ctx: JobContext, judges: dict[str, str] | None = None) -> WaitForCallback:
        ctx.set_progress(50)
        token = ctx.register_callback(timeout=60, **(judges or {}))
        told.put(str(token))
        return WaitForCallback(token)

    return park


def test_the_awa_pg_client_answers_callbacks_that_our_worker_registered(
    client: awa.Client, told: Queue[Any]
) -> None:
    park = parks(told)

    def waiting(**judges: str) -> tuple[int, str]:
        parked = park.enqueue(judges=judges)
        token = told.get(timeout=SECONDS)
        wait_for(parked.id, "waiting_external")
        return parked.id, token

    with working({QUEUE: 2}):
        job_id, token = waiting()
        client.heartbeat_callback(token, timeout_seconds=120.0)
        client.complete_external(token)
        assert state_of(job_id) == "completed"
        with pytest.raises(awa.CallbackNotFound):
            client.complete_external(token)

        job_id, token = waiting()
        client.fail_external(token, "declined")
        assert (state_of(job_id), errors_of(job_id)) == ("failed", ["declined"])

        job_id, token = waiting()
        client.retry_external(token)
        second = told.get(timeout=SECONDS)
        wait_for(job_id, "waiting_external")
        assert client.resolve_callback(second, {}, default_action="complete").is_completed()

        job_id, token = waiting(on_complete="payload.n >= 3", transform="payload.n")
        result = client.resolve_callback(token, {"n": 7})
        assert (result.is_completed(), result.payload) == (True, 7)

        job_id, token = waiting(on_fail="payload.bad", on_complete="true")
        assert client.resolve_callback(token, {"bad": True}).is_failed()
        assert (state_of(job_id), entries_of(job_id)) == ("failed", [MATCHED])
        job_id, token = waiting(on_complete="payload.n == 7", on_fail="payload.missing")
        assert client.resolve_callback(token, {"n": 7}, default_action="fail").is_failed()
        assert (state_of(job_id), entries_of(job_id)) == ("failed", [BY_DEFAULT])
        job_id, token = waiting(filter="payload.final")
        assert client.resolve_callback(token, {"final": False}, default_action="complete").is_ignored()
        assert client.resolve_callback(token, {"final": True}, default_action="complete").is_completed()
    with connection.cursor() as cursor:
        assert invariants.violated(cursor.connection, mixed=True) == []


def test_the_awa_pg_client_resumes_a_handler_of_our_worker(client: awa.Client, told: Queue[Any]) -> None:
    @job(queue=QUEUE)
    def wait(ctx: JobContext) -> None:
        for _ in range(2):
            token = ctx.register_callback()
            told.put(str(token))
            told.put(ctx.wait_for_callback(token))

    with working({QUEUE: 1}):
        running = wait.enqueue()
        for payload in ({"step": 1}, None):
            token = told.get(timeout=SECONDS)
            wait_for(running.id, "waiting_external")
            client.resume_external(token, payload)
            assert told.get(timeout=SECONDS) == payload
        wait_for(running.id, "completed")


def test_the_awa_pg_client_finds_attempts_that_our_worker_claimed_with_an_aged_priority(
    client: awa.Client, told: Queue[Any]
) -> None:
    park = parks(told)
    queues = {QUEUE: QueueConfig(QUEUE, priority_aging_interval=timedelta(seconds=60))}
    answers: list[tuple[Callable[[str], Any], str]] = [
        (client.complete_external, "completed"),
        (lambda token: client.fail_external(token, "x"), "failed"),
        (lambda token: client.resolve_callback(token, {}, default_action="complete"), "completed"),
        (client.resume_external, "running"),
    ]
    for answer, state in answers:
        waiting = park.using(priority=4).enqueue()
        run("UPDATE awa.ready_entries SET run_at = run_at - interval '1 hour'")
        with working({QUEUE: 1}, queues=queues):
            token = told.get(timeout=SECONDS)
            wait_for(waiting.id, "waiting_external")
            answer(token)
            assert state_of(waiting.id) == state
            (row,) = rows("SELECT priority FROM awa.jobs WHERE id = %s", waiting.id)
            assert row["priority"] == 4
