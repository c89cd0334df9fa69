"""The database server goes away under a worker, and comes back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import databases, invariants, servers
from tests.workers import (
    PROBE_TABLE,
    count,
    insert,
    insert_many,
    open_attempts,
    runs,
    states,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.worker, pytest.mark.server]

SLOTS = 10


class Cluster:
    """A PostgreSQL server of this module's own that can be stopped and started."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._home = Path(str(conninfo_to_dict(url)["host"]))
        self._data = self._home / "data"
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        self._programs = Path(os.readlink(f"/proc/{pid}/exe")).parent

    def control(self, *command: str) -> None:
        """Run ``pg_ctl`` as the user that the server belongs to."""
        owner = self._data.stat()
        account: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        options = (self._data / "postmaster.opts").read_text().split(" ", 1)[1].strip()
        start = ["-l", str(self._home / "log"), "-o", options] if command[0] == "start" else []
        done = subprocess.run(
            [self._programs / "pg_ctl", "-D", self._data, "-w", *start, *command],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
            **account,
        )
        assert done.returncode == 0, f"pg_ctl {command[0]} ended with {done.returncode}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.server(18) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            # What was committed has to survive an immediate shutdown.
            connection.execute("ALTER ROLE postgres SET synchronous_commit = on")
        yield Cluster(url)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    with databases.scratch(cluster.url, "restart") as url:
        databases.migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(PROBE_TABLE)
        yield url


def test_a_worker_outlives_a_restart_of_the_server_and_no_outcome_is_lost(
    cluster: Cluster, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(3):
            insert(connection, "sleeper", {"seconds": 8})
        insert_many(connection, "noop", 1000)
        insert_many(connection, "async_noop", 1000)
        ids = [job_id for (job_id,) in connection.execute("SELECT job_id FROM awa.ready_entries")]
    # What waits to be stored when the server is back is not taken away by then.
    with worker(database, QUEUES={"default": SLOTS}, STALE_AFTER=10) as process:
        with psycopg.connect(database, autocommit=True) as connection:
            wait_until(lambda: count(connection, "SELECT count(*) FROM probe") > 300, what="jobs that ran")
            assert open_attempts(connection) >= 3, "the restart comes in the middle"
        cluster.control("restart", "-m", "immediate")
        with psycopg.connect(database, autocommit=True) as connection:
            insert(connection, "noop")
            wait_until(
                lambda: states(connection) == {"completed": 2004}, seconds=90, what="all jobs completed"
            )
            often = runs(connection)
            assert process.process.poll() is None
            assert process.stop() == 0
        assert len(often) == 2004
        assert set(often.values()) <= {1, 2}
        # What ran twice was cut off while it wrote its note; what had returned was not run again.
        assert sum(often.values()) <= 2004 + SLOTS
    invariants.assert_all_hold(database, ids=ids)


def test_a_worker_can_be_stopped_while_the_server_is_down(cluster: Cluster, database: str) -> None:
    with worker(database, DRAIN_TIMEOUT=1) as process:
        with psycopg.connect(database, autocommit=True) as connection:
            for _ in range(4):
                insert(connection, "sleeper", {"seconds": 30})
            wait_until(lambda: len(runs(connection)) == 4)
        cluster.control("stop", "-m", "immediate")
        try:
            began = time.monotonic()
            # Its handlers return when they are told to, but nobody can store that.
            assert process.stop() == 3
            assert time.monotonic() - began < 25, "long before they return by themselves"
            assert "left 4 attempts behind" in process.output()
        finally:
            cluster.control("start")
    # Nobody promotes them, so that they are found where the rescue left them.
    with (
        worker(database, PROMOTE_INTERVAL=3600) as process,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        wait_until(lambda: states(connection).get("retryable") == 4, what="four rescued jobs")
        process.stop()
    invariants.assert_all_hold(database, drained=False)
