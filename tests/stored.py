"""What the database holds of jobs, as plain dicts, read with SQL of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

_JSON = {"args", "payload", "metadata"}


def rows(query: str, *values: Any, using: str = "default") -> list[dict[str, Any]]:
    """The rows of a query, JSON decoded and bytes plain."""
    with connections[using].cursor() as cursor:
        cursor.execute(query, values)
        names = [column.name for column in cursor.description]
        return [
            {name: _plain(name, value) for name, value in zip(names, row, strict=True)}
            for row in cursor.fetchall()
        ]


def _plain(name: str, value: Any) -> Any:
    if name in _JSON and isinstance(value, str):
        return json.loads(value)
    return bytes(value) if isinstance(value, memoryview) else value


def run(statement: str, *values: Any, using: str = "default") -> None:
    """Run one statement."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)


def ready(using: str = "default") -> list[dict[str, Any]]:
    """Jobs that a worker could claim now."""
    return rows("SELECT * FROM awa.ready_entries ORDER BY job_id", using=using)


def deferred(using: str = "default") -> list[dict[str, Any]]:
    """Jobs that wait for their time."""
    return rows("SELECT * FROM awa.deferred_jobs ORDER BY job_id", using=using)


def claims(using: str = "default") -> dict[bytes, int]:
    """Who holds which unique key."""
    found = rows("SELECT unique_key, job_id FROM awa.job_unique_claims", using=using)
    return {row["unique_key"]: row["job_id"] for row in found}


def segments(using: str = "default") -> list[dict[str, Any]]:
    """The ranges that lead claims to ready rows."""
    return rows(
        "SELECT * FROM awa.ready_segments ORDER BY queue, priority, enqueue_shard, first_lane_seq",
        using=using,
    )


def use_canonical(using: str = "default") -> None:
    """Send new jobs to the canonical tables, as on a cluster that was never promoted."""
    run(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', prepared_engine = NULL, "
        "state = 'canonical', details = '{}', finalized_at = NULL",
        using=using,
    )


def use_shards(queue: str, shards: int, using: str = "default") -> None:
    """Give a queue this many lanes for each priority."""
    run(
        "INSERT INTO awa.queue_meta (queue, enqueue_shards) VALUES (%s, %s) "
        "ON CONFLICT (queue) DO UPDATE SET enqueue_shards = excluded.enqueue_shards",
        queue,
        shards,
        using=using,
    )


def unseen(*tables: str, using: str = "default") -> None:
    """Have tables be as new: without pages of rows that were taken back, and without statistics.

    Rows that nobody committed leave pages, and an autovacuum that passes leaves figures of them, by which a plan or an
    estimate may be another. Until the transaction ends none passes here.
    """
    for table in tables:
        run(f"TRUNCATE awa.{table}", using=using)
        run(
            """
            DELETE FROM pg_statistic
            WHERE starelid = %s::regclass
                OR starelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = %s::regclass)
            """,
            f"awa.{table}",
            f"awa.{table}",
            using=using,
        )


@contextmanager
def rolled_back(using: str = "default") -> Iterator[None]:
    """A transaction, or a savepoint in one, that is undone at its end."""
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)
