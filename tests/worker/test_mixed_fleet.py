"""Our leader, a real awa-pg worker: rings that turn twenty times a second under a queue that is being worked on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.worker.leader import Leadership
from tests.planes.world import World, job
from tests.worker.test_leader import PATIENCE, wait_for

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "queue-storage"
INVARIANTS = json.loads((VECTORS / "invariants.json").read_text())["queries"]

#: A history of half a second, in slots of a fifteenth of that or of a hundred rows.
FAST = replace(
    Settings(),
    ring_rotate_interval=timedelta(milliseconds=50),
    completed_retention=timedelta(seconds=0.5),
    history_max_rows=1500,
    rollup_interval=timedelta(milliseconds=200),
    leader_election_interval=timedelta(milliseconds=100),
)
JOBS = 900
CHUNK = 60


@pytest.mark.interop
def test_no_job_is_lost_and_every_one_is_counted_while_the_rings_turn_fast(
    world: World,
    world_database: str,
    connecting: Callable[[str], Callable[[], psycopg.Connection[Any]]],
    awa_pg_worker: Callable[[str], subprocess.Popen[str]],
) -> None:
    def generation(ring: str) -> int:
        return int(world.one(f"SELECT generation FROM awa.{ring}_ring_state"))

    def finished() -> int:
        with world.connection.transaction():
            world.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            pruned = world.one(
                "SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups"
            )
            return int(pruned + world.one("SELECT count(*) FROM awa.terminal_jobs"))

    def wait_for_finished(count: int) -> None:
        wait_for(lambda: finished() >= count)

    leader = Leadership(FAST, [world.plane], connection=connecting(world_database))
    leader.start()
    try:
        assert leader.wait_until_leader(PATIENCE)
        worker = awa_pg_worker(world_database)
        done = 0
        began = time.monotonic()
        # Until both rings have come round, so that slots are used again.
        while done < JOBS or generation("queue") <= 16 or generation("claim") <= 8:
            assert time.monotonic() - began < 3 * PATIENCE
            # A third of them is promoted by the leader.
            later = world.one("SELECT clock_timestamp() + interval '100 milliseconds'")
            world.enqueue(
                *[
                    job(tags=("t",) if number % 5 == 0 else (), run_at=later if number % 3 == 0 else None)
                    for number in range(CHUNK)
                ]
            )
            done += CHUNK
            wait_for_finished(done - 2 * CHUNK)
        wait_for_finished(done)
        wait_for(lambda: world.one("SELECT count(*) FROM awa.ready_entries") < 200)
        worker.terminate()
        worker.wait(PATIENCE)
    finally:
        leader.stop()
        assert leader.join(PATIENCE)
    assert finished() == done
    for invariant in INVARIANTS:
        if invariant["applies"].startswith("always"):
            broken = world.connection.execute(invariant["sql"]).fetchall()
            assert broken == [], f"{invariant['id']}: {invariant['name']}"
