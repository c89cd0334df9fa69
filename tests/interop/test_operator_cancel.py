"""A handler hears of it when an operator cancels its job, whichever client it runs in and whichever client is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import awa
import psycopg
import pytest
from django.db import connection

from awa_django import operations
from awa_django.enqueue import enqueue
from awa_django.jobs import JobInsert
from tests import databases
from tests.settings import SERVER_URL
from tests.workers import PROBE_TABLE, insert, labels, wait_until, worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop, pytest.mark.worker]

#: Seconds. The contract says one, and two cores may be shared by many; a heartbeat of the real worker would tell it
#: after half a minute.
SOON = 15.0


def url() -> str:
    return databases.address(SERVER_URL, str(connection.settings_dict["NAME"]))


def ours(job_id: int) -> None:
    assert operations.cancel(job_id).ids == [job_id]
    connection.close()  # of whatever thread this is


def theirs(job_id: int) -> None:
    databases.awa_cli(url(), "job", "cancel", str(job_id))


BOTH = pytest.mark.parametrize("cancel", [ours, theirs])


@BOTH
def test_a_handler_of_our_worker_is_told_to_stop(cancel: Callable[[int], None]) -> None:
    with psycopg.connect(url(), autocommit=True) as session:
        session.execute(PROBE_TABLE)
        with worker(url()):
            job_id = insert(session, "slow_at_first", {"seconds": 60})
            wait_until(lambda: labels(session, job_id) == ["slow_at_first"])
            began = time.monotonic()
            cancel(job_id)
            wait_until(lambda: "told to stop" in labels(session, job_id))
            assert time.monotonic() - began < SOON
    assert operations.load_job(job_id).job.state == "cancelled"


@BOTH
def test_a_handler_of_a_real_awa_worker_is_told_to_stop(cancel: Callable[[int], None]) -> None:
    async def run() -> None:
        client = awa.AsyncClient(url())
        begun, told = asyncio.Event(), asyncio.Event()
        ids: list[int] = []

        @client.task(dict, kind="patient")
        async def patient(job: awa.Job[Any]) -> None:
            ids.append(job.id)
            begun.set()
            while not job.is_cancelled():
                await asyncio.sleep(0.02)
            told.set()

        await client.start([("default", 2)])
        try:
            await asyncio.to_thread(insert_one)
            await asyncio.wait_for(begun.wait(), 30)
            await asyncio.to_thread(cancel, ids[0])
            await asyncio.wait_for(told.wait(), SOON)
        finally:
            await client.shutdown(timeout_ms=2000)
            await client.close()

    def insert_one() -> None:
        enqueue(JobInsert("patient", {}))
        connection.close()

    # Its leader forgets what has finished within seconds, so nothing is left to look at.
    asyncio.run(run())
