"""What one client stores the other one runs, holds back, refuses a duplicate of, and cancels by its unique key."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import awa
import psycopg
import pytest
from django.db import connection

from awa_django import Unique, job, operations, registry
from awa_django.enqueue import enqueue_many
from awa_django.jobs import JobInsert
from tests import databases, stored
from tests.inprocess import working
from tests.settings import SERVER_URL
from tests.test_operations import claimed, in_state
from tests.workers import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

SECONDS = 60.0
PAST = datetime(2020, 1, 1, tzinfo=UTC)
EVER = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def url() -> str:
    """Django's test database, as the awa client reads it."""
    return databases.address(SERVER_URL, str(connection.settings_dict["NAME"]))


@pytest.fixture
def client(url: str) -> Iterator[awa.Client]:
    opened = awa.Client(url)
    yield opened
    opened.close()


# Workers of one on jobs of the other


class Ran:
    """The jobs that a worker ran, as its handlers tell."""

    def __init__(self) -> None:
        self.queues: Counter[str] = Counter()
        self.ids: Counter[int] = Counter()
        self._lock = threading.Lock()

    def note(self, found: Any) -> None:
        with self._lock:  # handlers of ours run in threads
            self.queues[found.queue] += 1
            self.ids[found.id] += 1


@contextmanager
def theirs(url: str, *queues: str) -> Iterator[Ran]:
    """A real awa-pg worker that leads and serves these queues, in a thread."""
    started, stop = threading.Event(), threading.Event()
    ran = Ran()

    async def serve() -> None:
        client = awa.AsyncClient(url)

        @client.task(dict, kind="told", queue=queues[0])
        async def told(found: awa.Job[Any]) -> None:
            ran.note(found)

        await client.start([(queue, 20) for queue in queues], leader_election_interval_ms=200)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        await client.shutdown(timeout_ms=2000)
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="awa-pg")
    thread.start()
    try:
        assert started.wait(SECONDS), "the awa-pg worker did not start"
        yield ran
    finally:
        stop.set()
        thread.join(SECONDS)


@contextmanager
def ours(url: str, *queues: str) -> Iterator[Ran]:
    """The same of ours."""
    ran = Ran()
    with registry.registry.isolated():

        @job(kind="told")
        def told(ctx: Any, **_: Any) -> None:
            ran.note(ctx.job)

        with working(dict.fromkeys(queues, 20), lead=True, leader_election_interval=timedelta(seconds=0.2)):
            yield ran


@pytest.mark.parametrize("serving", [theirs, ours], ids=["their worker", "our worker"])
@pytest.mark.parametrize("pausing", ["we pause", "they pause"])
def test_a_paused_queue_is_left_alone_by_workers_and_leaders_of_either_until_the_other_resumes_it(
    url: str, client: awa.Client, serving: Any, pausing: str
) -> None:
    if pausing == "we pause":
        operations.pause("paused", "ann")
    else:
        client.pause_queue("paused", "bob")
    due = enqueue_many([JobInsert("told", {}, "paused"), JobInsert("told", {}, "paused", run_at=PAST)])
    # Promotion takes what has been due the longest first, and claims of two queues take turns.
    enqueue_many(
        [JobInsert("told", {}, "open"), JobInsert("told", {}, "open", run_at=PAST + timedelta(days=1))]
    )
    with serving(url, "paused", "open") as ran:
        wait_until(lambda: ran.queues["open"] == 2, seconds=SECONDS, what="both jobs of the open queue")
        again = enqueue_many([JobInsert("told", {}, "open", run_at=PAST + timedelta(days=1))]).ids
        wait_until(lambda: ran.ids[again[0] or 0], seconds=SECONDS, what="a job promoted afterwards")
        assert ran.queues["paused"] == 0
        states = [operations.load_job(job_id or 0).job.state.value for job_id in due.ids]
        assert states == ["available", "scheduled"]
        if pausing == "we pause":
            client.resume_queue("paused")
        else:
            assert operations.resume("paused")
        wait_until(lambda: ran.queues["paused"] == 2, seconds=SECONDS, what="both jobs of the resumed queue")


def test_a_real_worker_runs_what_one_large_batch_left_ready_in_two_queues(url: str) -> None:
    jobs = [
        JobInsert("told", {"n": n}, f"q{n % 2}", priority=1 + n % 4, run_at=EVER if n % 3 == 0 else None)
        for n in range(1000)
    ]
    with theirs(url, "q0", "q1") as ran:
        stored_jobs = enqueue_many(jobs)
        ready = [job_id for job_id, each in zip(stored_jobs.ids, jobs, strict=True) if each.run_at is None]
        wait_until(lambda: len(ran.ids) == len(ready), seconds=SECONDS, what="the jobs that are due")
    assert ran.ids == Counter(ready)
    assert ran.queues == {"q0": 333, "q1": 333}
    assert len(stored.deferred()) == 334


# Unique keys

#: Masks of states, as numbers.
EVERY, UNFINISHED = 255, 151


def unique(n: int, states: int) -> dict[str, Any]:
    """The fields of a unique job of ours."""
    by = Unique(by_args=True, by_queue=True, states=states)
    return {"args": {"n": n}, "unique_key": by.key("k", "q", {"n": n}), "unique_states": by.bits}


def theirs_unique(client: awa.Client, n: int, states: int, **options: Any) -> int:
    """The id of a job of the real client with the same key."""
    opts = {"by_args": True, "by_queue": True, "states": states}
    return int(client.insert({"n": n}, kind="k", queue="q", unique_opts=opts, **options).id)


def test_a_key_that_we_purged_or_discarded_is_free_for_the_real_client(client: awa.Client) -> None:
    dead, failed = in_state("dead", **unique(1, EVERY)), in_state("failed", **unique(2, EVERY))
    for n, forget in ((1, lambda: operations.purge_dead(dead)), (2, lambda: operations.discard(failed))):
        with pytest.raises(awa.UniqueConflict):
            theirs_unique(client, n, EVERY)
        assert forget().count == 1
        again = theirs_unique(client, n, EVERY)
        assert stored.claims()[unique(n, EVERY)["unique_key"]] == again


@pytest.mark.parametrize("state", ["running", "leased", "waiting_external", "scheduled", "available"])
def test_each_client_cancels_by_unique_key_what_the_other_enqueued(
    url: str, client: awa.Client, state: str
) -> None:
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute('LISTEN "awa:cancel"')
        mine = in_state("waiting_external" if state == "leased" else state, **unique(1, UNFINISHED))
        if state == "leased":
            stored.run("UPDATE awa.leases SET state = 'running'")
        with pytest.raises(awa.UniqueConflict):
            theirs_unique(client, 1, UNFINISHED)
        found = client.cancel_by_unique_key("k", queue="q", args={"n": 1})
        if state == "running":
            # The real client does not find what runs on a receipt alone (D7); we do.
            assert found is None
            found = operations.cancel_by_unique_key("k", queue="q", args={"n": 1})
        assert found is not None
        assert (found.id, operations.load_job(mine).job.state.value) == (mine, "cancelled")

        run_at = EVER.isoformat() if state == "scheduled" else None
        other = theirs_unique(client, 1, UNFINISHED, run_at=run_at)
        runs = state not in ("scheduled", "available")
        assert [attempt.job_id for attempt in claimed()] == [other] * runs if runs else True
        again = operations.cancel_by_unique_key("k", queue="q", args={"n": 1})
        assert again is not None
        assert again.id == other
        assert str(client.get_job(other).state).lower().endswith("cancelled")
        assert operations.cancel_by_unique_key("k", queue="q", args={"n": 1}) is None
        assert client.cancel_by_unique_key("k", queue="q", args={"n": 1}) is None
        if runs:
            told = [json.loads(each.payload) for each in listener.notifies(timeout=SECONDS, stop_after=2)]
            assert told == [{"job_id": mine, "run_lease": 1}, {"job_id": other, "run_lease": 1}]
