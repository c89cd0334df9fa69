"""The real awa command line reads what our worker wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from tests import databases
from tests.workers import drain, insert, job

pytestmark = [pytest.mark.worker, pytest.mark.interop]


class Ran:
    """A database with a job in each state that lasts."""

    def __init__(self, url: str) -> None:
        self.url = url
        with psycopg.connect(url, autocommit=True) as connection:
            self.ids = {
                "completed": insert(connection, "noop", {"n": 7}),
                "failed": insert(connection, "hopeless"),
                "cancelled": insert(connection, "cancelling"),
                "retryable": insert(connection, "flaky", {"failures": 9}),
                "dead": insert(connection, "hopeless", queue="dead"),
                "scheduled": insert(connection, "noop", state="scheduled", run_at="2100-01-01"),
            }
        with psycopg.connect(url, autocommit=True) as connection:
            drain_once = drain(
                url,
                "--drain-ahead",
                "0",
                QUEUES={"default": 5, "dead": {"dlq_enabled": True}},
                STALE_AFTER=60,
            )
            assert "TerminalError" in drain_once
            self.ids["available"] = insert(connection, "noop", {"n": 8}, tags=["waiting"])

    def awa(self, *arguments: str) -> str:
        return databases.awa_cli(self.url, *arguments).stdout


@pytest.fixture(scope="module")
def ran(server_url: str, awa_template: str) -> Iterator[Ran]:
    with databases.scratch(server_url, "cli", template=awa_template) as url:
        yield Ran(url)


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "retryable", "scheduled", "available"])
def test_it_lists_our_jobs_by_state(ran: Ran, state: str) -> None:
    lines = [line.split() for line in ran.awa("job", "list", "--state", state).splitlines()]
    assert str(ran.ids[state]) in {line[0] for line in lines if line}


def test_it_lists_our_jobs_by_kind(ran: Ran) -> None:
    found = ran.awa("job", "list", "--kind", "cancelling")
    assert "cancelling" in found
    assert "hopeless" not in found


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "retryable", "dead"])
def test_it_dumps_our_jobs_whole(ran: Ran, state: str) -> None:
    found = json.loads(ran.awa("job", "dump", str(ran.ids[state])))
    assert found["job"]["id"] == ran.ids[state]
    errors = len(found["job"]["errors"] or ())
    # A drain that takes longer than the backoff comes to a retry as well.
    assert found["job"]["attempt"] == (errors if state == "retryable" else 1)
    if state not in ("completed",):
        assert errors == found["job"]["attempt"]


def test_it_dumps_a_run_of_ours(ran: Ran) -> None:
    found = json.loads(ran.awa("job", "dump-run", str(ran.ids["retryable"]), "--attempt", "1"))
    assert "RuntimeError: failure 1" in json.dumps(found)


def test_it_counts_our_queues(ran: Ran) -> None:
    counted = {line.split()[0]: line.split()[1:5] for line in ran.awa("queue", "stats").splitlines()[1:]}
    # Available, running, failed with the dead letters, and completed within the hour.
    assert counted == {"default": ["1", "0", "1", "1"], "dead": ["0", "0", "1", "0"]}


def test_it_sees_our_dead_letters(ran: Ran) -> None:
    assert str(ran.ids["dead"]) in ran.awa("dlq", "list")
    assert ran.awa("dlq", "depth").split() == ["Total:", "1", "dead:", "1"]


def test_it_sees_that_queue_storage_is_in_force(ran: Ran) -> None:
    found = json.loads(ran.awa("storage", "status"))
    assert (found["state"], found["current_engine"]) == ("active", "queue_storage")


def test_what_it_retries_our_worker_runs(ran: Ran) -> None:
    ran.awa("job", "retry", str(ran.ids["failed"]))
    ran.awa("dlq", "retry", str(ran.ids["dead"]))
    with psycopg.connect(ran.url, autocommit=True) as connection:
        drain(ran.url, "--drain-ahead", "0", QUEUES={"default": 5, "dead": 5}, STALE_AFTER=60)
        for name in ("failed", "dead"):
            found = job(connection, ran.ids[name])
            assert (found["state"], found["attempt"]) == ("failed", 1)


def test_what_it_cancels_our_worker_leaves(ran: Ran) -> None:
    ran.awa("job", "cancel", str(ran.ids["scheduled"]))
    with psycopg.connect(ran.url, autocommit=True) as connection:
        assert job(connection, ran.ids["scheduled"])["state"] == "cancelled"
