"""A worker in the test's own process, on Django's test database: for handlers and receivers that a test declares."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.db import connections

from awa_django.conf import Settings, get_settings
from awa_django.worker.process import Worker
from tests.workers import wait_until


@contextmanager
def working(
    slots: Mapping[str, int] | None = None, *, lead: bool = False, **changes: Any
) -> Iterator[Worker]:
    """A worker of these queues (name to slots), claiming until the block ends. Settings are given by field name."""
    settings: Settings = replace(get_settings(), **changes)
    worker = Worker(
        settings,
        [
            replace(settings.queue(name), max_workers=workers)
            for name, workers in (slots or {"default": 4}).items()
        ],
        lead=lead,
    )
    interval = sys.getswitchinterval()
    worker.prepare()
    worker.start()
    try:
        yield worker
    finally:
        hurry = threading.Event()
        hurry.set()
        worker.stop(hurry)
        sys.setswitchinterval(interval)


ENDED = """
    SELECT job_id, kind, state::text, attempt, run_lease, finalized_at, payload FROM awa.terminal_jobs
    UNION ALL
    SELECT job_id, kind, state::text, attempt, run_lease, finalized_at, payload FROM awa.dlq_entries
    UNION ALL
    SELECT job_id, kind, state::text, attempt, run_lease, finalized_at, payload FROM awa.deferred_jobs
"""


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Where jobs of a kind are that have run: finished, dead or put off; by id."""
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT * FROM ({ENDED}) AS ended WHERE kind = %s ORDER BY job_id", [kind])
        names = [column.name for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    # Django's cursors leave JSON as text.
    return [{**row, "payload": json.loads(row["payload"] or "{}")} for row in found]


def ended(kind: str, count: int = 1, *, seconds: float = 60) -> list[dict[str, Any]]:
    """Wait until so many jobs of a kind have run and are written down; their rows."""
    wait_until(lambda: len(rows_of(kind)) >= count, seconds=seconds, what=f"{count} jobs of kind {kind}")
    return rows_of(kind)
