"""A real awa-pg worker as a process of its own: ``python -m tests.interop.awa_pg_worker URL SLOTS ROLE STALE_AFTER``.

It serves queue ``default``, notes each run in table ``probe`` as our handlers do, with the process number
negative, says "started" once it runs, and stops on TERM. When it leads it takes attempts away after STALE_AFTER
seconds of silence.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, Literal, cast

import awa
import psycopg

PROBE = "INSERT INTO probe (label, job_id, attempt, pid) VALUES (%s, %s, %s, %s)"


@dataclass
class Numbered:
    """The arguments of ``noop``."""

    n: int = 0


@dataclass
class Timed:
    """The arguments of ``spell``."""

    seconds: float


@dataclass
class Failing:
    """The arguments of ``flaky``."""

    failures: int


Role = Literal["auto", "canonical_drain", "queue_storage_target"]


async def serve(url: str, slots: int, role: Role, stale_after: float) -> None:
    client = awa.AsyncClient(url)
    probe = await psycopg.AsyncConnection.connect(url, autocommit=True)
    lock = asyncio.Lock()

    async def note(job: awa.Job[Any], label: str) -> None:
        async with lock:
            await probe.execute(PROBE, [label, job.id, job.attempt, -os.getpid()])

    @client.task(Numbered, kind="noop")
    async def noop(job: awa.Job[Numbered]) -> None:
        await note(job, "noop")

    @client.task(Timed, kind="spell")
    async def spell(job: awa.Job[Timed]) -> None:
        await note(job, "start")
        await asyncio.sleep(job.args.seconds)
        await note(job, "end")

    @client.task(Failing, kind="flaky")
    async def flaky(job: awa.Job[Failing]) -> None:
        await note(job, "flaky")
        if job.attempt <= job.args.failures:
            raise RuntimeError(f"failure {job.attempt}")

    @client.task(dict, kind="echo")
    async def echo(job: awa.Job[dict[str, Any]]) -> None:
        await note(job, json.dumps(job.args, sort_keys=True))

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await client.start(
        [("default", slots)],
        leader_election_interval_ms=300,
        heartbeat_interval_ms=500,
        heartbeat_staleness_ms=int(1000 * stale_after),
        heartbeat_rescue_interval_ms=500,
        storage_transition_role=role,
    )
    print("started", flush=True)
    await stop.wait()
    await client.shutdown(timeout_ms=2000)
    await client.close()
    await probe.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), cast(Role, sys.argv[3]), float(sys.argv[4])))
