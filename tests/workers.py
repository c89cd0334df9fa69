"""Real worker processes for tests, and waiting on what they do."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from psycopg.rows import dict_row

T = TypeVar("T")

ROOT = Path(__file__).parent.parent
PROBE_TABLE = """
    CREATE TABLE IF NOT EXISTS probe (
        label text NOT NULL,
        job_id bigint NOT NULL,
        attempt integer NOT NULL,
        pid integer NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""


def wait_until(look: Callable[[], T], *, seconds: float = 30, what: str = "") -> T:
    """Look until the answer is true; its value. Fails with ``what`` and the last answer after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what or look}; last answer {value!r}")
        time.sleep(0.02)


class Worker:
    """One ``manage.py awa_worker`` process (with its children) on a database.

    ``apps`` False leaves out the app with the handlers, as a release that does not have them yet. ``shell`` starts
    it as container images do, by a shell that it replaces.
    """

    def __init__(
        self, url: str, *options: str, apps: bool = True, shell: bool = False, **settings: Any
    ) -> None:
        self.log = tempfile.NamedTemporaryFile("w+", prefix="awa-worker-", suffix=".log")  # noqa: SIM115
        environment = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
            "AWA_TEST_WITHOUT_JOBS": "" if apps else "yes",
            "AWA_TEST_SETTINGS": json.dumps(settings),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "django", "awa_worker", *options]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {shlex.join(command)}"] if shell else command,
            cwd=ROOT,
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def output(self) -> str:
        """Everything it has printed so far."""
        self.log.flush()
        return Path(self.log.name).read_text()

    def wait_started(self) -> None:
        """Wait for the line that it prints before it claims."""
        wait_until(
            lambda: "kinds of jobs; queues:" in self.output() or self.process.poll() is not None,
            what="the worker's first line",
        )
        assert self.process.poll() is None, self.output()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        self.process.send_signal(number)

    def children(self) -> list[psutil.Process]:
        """The processes that it started, dead ones that nobody waited for left out."""
        living = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                # One may end, and be waited for, between two lines.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.status() != psutil.STATUS_ZOMBIE:
                        living.append(child)
        return living

    def kill(self) -> None:
        """kill -9, children included."""
        family = self.children()
        self.process.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.wait(10)

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds} s:\n{self.output()}") from None

    def stop(self, seconds: float = 30) -> int:
        """TERM, and wait; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)


@contextmanager
def worker(url: str, *options: str, **settings: Any) -> Iterator[Worker]:
    """A running worker; killed at the end if it still runs. Its output is shown when the block fails."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PROBE_TABLE)
    process = Worker(url, *options, **settings)
    try:
        yield process
    except BaseException:
        print(process.output())
        raise
    finally:
        if process.process.poll() is None:
            process.kill()
        process.log.close()


def drain(url: str, *options: str, **settings: Any) -> str:
    """Run a worker until the queues are empty, retries within ten seconds included; its output."""
    with worker(url, "--drain", "--drain-ahead", "10", *options, **settings) as process:
        code = process.wait(90)
        assert code == 0, process.output()
        return process.output()


def insert(
    connection: psycopg.Connection[Any], kind: str, args: dict[str, Any] | None = None, **options: Any
) -> int:
    """Enqueue one job by SQL; its id."""
    names = "".join(f", p_{name} => %({name})s" for name in options)
    row = connection.execute(
        f"SELECT id FROM awa.insert_job_compat(%(kind)s, p_args => %(args)s::jsonb{names})",
        {"kind": kind, "args": json.dumps(args or {}), **options},
    ).fetchone()
    assert row is not None
    return int(row[0])


def insert_many(
    connection: psycopg.Connection[Any], kind: str, count: int, *, queue: str = "default"
) -> None:
    """Enqueue many jobs ``{"n": 1}``, ``{"n": 2}`` and so on by SQL."""
    connection.execute(
        "SELECT awa.insert_job_compat(%s, %s, jsonb_build_object('n', n)) FROM generate_series(1, %s) AS n",
        [kind, queue, count],
    )


def states(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """How many jobs there are in each state, counted where they lie; dead letters are ``dead``.

    Only right while nothing has been pruned. Much cheaper than ``awa.jobs``.
    """
    rows = connection.execute(
        """
        WITH counted (state, number) AS (
            SELECT 'available', (SELECT count(*) FROM awa.ready_entries)
                - (SELECT count(*) FROM awa.ready_tombstones)
                - (
                    SELECT coalesce(sum(upper(span) - lower(span)), 0)
                    FROM awa.ready_claim_attempt_batches, unnest(lane_ranges) AS span
                )
            UNION ALL
            SELECT 'running', (SELECT coalesce(sum(claimed_count), 0) FROM awa.lease_claim_batches)
                + (SELECT count(*) FROM awa.lease_claims)
                - (SELECT coalesce(sum(closed_count), 0) FROM awa.lease_claim_closure_batches)
                - (SELECT count(*) FROM awa.lease_claim_closures)
            UNION ALL
            SELECT 'completed', coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches
            UNION ALL
            SELECT state::text, count(*) FROM awa.done_entries GROUP BY 1
            UNION ALL
            SELECT state::text, count(*) FROM awa.deferred_jobs GROUP BY 1
            UNION ALL
            SELECT 'dead', count(*) FROM awa.dlq_entries
        )
        SELECT state, sum(number)::bigint FROM counted GROUP BY state HAVING sum(number) <> 0
        """
    ).fetchall()
    return dict(rows)


def runs(connection: psycopg.Connection[Any]) -> dict[int, int]:
    """How often each job ran, as its handlers noted."""
    rows = connection.execute("SELECT job_id, count(*) FROM probe GROUP BY job_id").fetchall()
    return dict(rows)


def job(connection: psycopg.Connection[Any], job_id: int) -> dict[str, Any]:
    """One job as readers of ``awa.jobs`` see it; fails if there is none, as while it runs."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT *, state::text AS state FROM awa.jobs WHERE id = %s", [job_id]
        ).fetchone()
    assert row is not None, f"no job {job_id}"
    return row


def labels(connection: psycopg.Connection[Any], job_id: int) -> list[str]:
    """What the handlers of one job noted, in order."""
    rows = connection.execute("SELECT label FROM probe WHERE job_id = %s ORDER BY at", [job_id]).fetchall()
    return [label for (label,) in rows]


def count(connection: psycopg.Connection[Any], query: str, *values: Any) -> int:
    """The number that a query answers with."""
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return int(row[0])


def backends(connection: psycopg.Connection[Any]) -> list[str]:
    """The names of the sessions of workers on this database."""
    rows = connection.execute(
        "SELECT application_name FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' "
        "ORDER BY 1"
    ).fetchall()
    return [name for (name,) in rows]


def terminate(connection: psycopg.Connection[Any], pattern: str = "awa%") -> int:
    """Break off the sessions of workers with such a name; how many there were."""
    return count(
        connection,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE %s",
        pattern,
    )


def open_attempts(connection: psycopg.Connection[Any]) -> int:
    """Attempts that somebody holds."""
    return states(connection).get("running", 0)
