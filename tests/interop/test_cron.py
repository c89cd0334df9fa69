"""Schedules of ours that the real awa client lists and fires, and schedules of its that we fire."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import awa
import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.maintenance.cron import evaluate, sync
from awa_django.periodic import cron, declared
from awa_django.schedule import Schedule
from awa_django.worker.scheduler import Scheduler
from tests import databases
from tests.workers import ROOT, wait_until

pytestmark = [pytest.mark.worker, pytest.mark.interop]


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with declared.isolated():
        yield


@dataclass
class Report:
    """The arguments of a schedule that the wheel declares."""

    days: int


async def declare_with_the_wheel(url: str) -> None:
    """Run a real awa-pg worker until it has stored its schedule."""
    client = awa.AsyncClient(url)

    @client.task(Report, kind="report", queue="unused")
    async def report(job: awa.Job[Report]) -> None:
        """Succeed."""

    client.periodic(
        "wheel",
        "30 2 1 1 *",
        Report,
        Report(7),
        timezone="Pacific/Auckland",
        queue="reports",
        priority=3,
        tags=["t"],
        metadata={"m": 1},
    )
    await client.start([("unused", 1)], leader_election_interval_ms=200)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        async with asyncio.timeout(30):
            while not await (await connection.execute("SELECT name FROM awa.cron_jobs")).fetchone():
                await asyncio.sleep(0.05)
    await client.shutdown(timeout_ms=2000)
    await client.close()


@contextlib.contextmanager
def leading_awa_pg_worker(url: str) -> Iterator[None]:
    """A real awa-pg worker that leads; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.worker.awa_pg_worker", url],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def fires(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What the jobs of schedules are made of, in the order of their ids."""
    return connection.execute(
        "SELECT kind, queue, args, priority, payload->'metadata', payload->'tags'"
        " FROM awa.ready_entries ORDER BY job_id"
    ).fetchall()


def test_the_awa_client_lists_and_removes_what_code_declares_here(awa_database: str) -> None:
    cron("nightly rebuild", "0 3 * * MON#1", "rebuild_search", timezone="Pacific/Auckland", queue="bulk")
    with psycopg.connect(awa_database, autocommit=True) as connection:
        sync(connection, declared.values())
        listed = databases.awa_cli(awa_database, "cron", "list").stdout
        for part in ("nightly rebuild", "0 3 * * MON#1", "rebuild_search", "Pacific/Auckland"):
            assert part in listed
        databases.awa_cli(awa_database, "cron", "remove", "nightly rebuild")
        assert connection.execute("SELECT FROM awa.cron_jobs").fetchall() == []


def test_what_the_wheel_declares_we_fire(awa_database: str) -> None:
    asyncio.run(declare_with_the_wheel(awa_database))
    with psycopg.connect(awa_database, autocommit=True) as connection:
        connection.execute("UPDATE awa.cron_jobs SET last_enqueued_at = '2020-06-01 00:00+00'")
        service = Scheduler(
            Settings(),
            lambda: True,
            connection=lambda: psycopg.connect(awa_database, autocommit=True),
        )
        service.start()
        try:
            wait_until(lambda: fires(connection), what="its job")
        finally:
            service.stop()
            assert service.join(30)
        last = Schedule.parse("30 2 1 1 *", "Pacific/Auckland").last_until(datetime.now(UTC))
        metadata = {"m": 1, "cron_name": "wheel", "cron_fire_time": f"{last:%Y-%m-%d %H:%M:%S}+00"}
        assert fires(connection) == [("report", "reports", {"days": 7}, 3, metadata, ["t"])]


def test_both_make_the_same_job_of_a_fire(awa_database: str) -> None:
    cron("s", "0 12 * 1 *", "kind", args={"a": [1]}, queue="other", metadata={"m": {"n": 1}}, tags=["t"])
    with psycopg.connect(awa_database, autocommit=True) as connection:

        def fire_again() -> None:
            connection.execute("UPDATE awa.cron_jobs SET last_enqueued_at = '2020-06-01 00:00+00'")

        sync(connection, declared.values())
        fire_again()
        assert evaluate(connection).fired == 1
        fire_again()
        with leading_awa_pg_worker(awa_database):
            wait_until(lambda: len(fires(connection)) == 2, what="the job that the wheel made")
        ours, theirs = fires(connection)
        assert ours == theirs
        ((moved,),) = connection.execute("SELECT updated_at > created_at FROM awa.cron_jobs").fetchall()
        assert moved


def test_a_pause_of_ours_stops_the_fires_of_their_leader_and_a_trigger_goes_through(
    awa_database: str,
) -> None:
    cron("stopped", "* * * * * *", "kind", queue="other")
    cron("running", "* * * * * *", "kind", queue="other")
    with psycopg.connect(awa_database, autocommit=True) as connection:
        sync(connection, declared.values())
        databases.manage(
            awa_database,
            "shell",
            "--verbosity",
            "0",
            "-c",
            "from awa_django.periodic import pause, trigger; pause('stopped', 'ops'); trigger('stopped')",
        )

        def names() -> list[str]:
            return [metadata["cron_name"] for _, _, _, _, metadata, _ in fires(connection)]

        with leading_awa_pg_worker(awa_database):
            wait_until(lambda: names().count("running") >= 2, what="fires of their leader")
        assert names().count("stopped") == 1
        (stopped,) = [item[4] for item in fires(connection) if item[4]["cron_name"] == "stopped"]
        assert stopped == {"cron_name": "stopped", "triggered_manually": True}


def test_their_leader_and_ours_at_once_take_each_fire_once(awa_database: str) -> None:
    cron("s", "* * * * * *", "kind", queue="other", missed="catch_up")
    with psycopg.connect(awa_database, autocommit=True) as connection:
        sync(connection, declared.values())
        connection.execute("UPDATE awa.cron_jobs SET last_enqueued_at = date_trunc('second', now())")
        service = Scheduler(
            Settings(), lambda: True, connection=lambda: psycopg.connect(awa_database, autocommit=True)
        )
        with leading_awa_pg_worker(awa_database):
            service.start()
            try:
                wait_until(lambda: len(fires(connection)) >= 5, what="five fires")
            finally:
                service.stop()
                assert service.join(30)
        found = [datetime.fromisoformat(item[4]["cron_fire_time"]) for item in fires(connection)]
        assert sorted(found) == [min(found) + timedelta(seconds=number) for number in range(len(found))]
