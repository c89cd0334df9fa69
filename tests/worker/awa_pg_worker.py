"""A real awa-pg worker as a process of its own: ``python -m tests.worker.awa_pg_worker URL``.

It serves queue ``q``, tries to lead every 200 ms, says "started" once it runs, and stops on TERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass

import awa


@dataclass
class Nothing:
    """No arguments."""


async def serve(url: str) -> None:
    client = awa.AsyncClient(url)

    @client.task(Nothing, kind="k", queue="q")
    async def handle(job: awa.Job) -> None:
        """Succeed."""

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await client.start([("q", 20)], leader_election_interval_ms=200)
    print("started", flush=True)
    await stop.wait()
    await client.shutdown(timeout_ms=1000)
    await client.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
