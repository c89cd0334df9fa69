"""What the demo asks the queue about its own jobs, which all carry the run's name as a tag."""

from __future__ import annotations

from django.db import connection

from example_project.shop.demo.account import Line

#: Jobs of one run, and the ticks of its time; from the view that shows every job wherever it is stored.
JOBS = """
SELECT
    kind,
    state::text,
    attempt,
    count(*),
    min(split_part(errors[cardinality(errors)] ->> 'error', E'\\n', 1))
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
    OR (
        metadata ->> 'cron_name' = 'dress-window'
        AND id > %(first_job)s
        AND state IN ('completed', 'failed', 'cancelled')
    )
GROUP BY kind, state, attempt
ORDER BY kind, state, attempt
"""
ENDED = """
SELECT count(*)
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
    AND (
        state IN ('completed', 'failed', 'cancelled')
        OR state = 'waiting_external' AND %(waiting)s
    )
"""
TICKS = """
SELECT count(*)
FROM awa.jobs
WHERE metadata ->> 'cron_name' = 'dress-window'
    AND id > %(first_job)s
    AND state = 'completed'
"""
OF_ORDER = "SELECT count(*) FROM awa.jobs WHERE args ->> 'order_id' = %(order_id)s::text"


def jobs_by_line(source: str, first_job: int) -> dict[Line, tuple[int, str | None]]:
    """How many jobs of a run ended how, with the first line of the last error of one of them."""
    with connection.cursor() as cursor:
        cursor.execute(JOBS, {"tag": source, "first_job": first_job})
        return {
            Line(kind, state, attempts): (count, error)
            for kind, state, attempts, count, error in cursor.fetchall()
        }


def ended_jobs(source: str, *, waiting: bool = False) -> int:
    """How many jobs of a run have ended, one way or another; with those that wait for somebody outside, or without."""
    return _count(ENDED, tag=source, waiting=waiting)


def ticks(first_job: int) -> int:
    """How many ticks of the schedule have completed since a job."""
    return _count(TICKS, first_job=first_job)


def jobs_of_order(order_id: int) -> int:
    """How many jobs name this order, as this connection sees it."""
    return _count(OF_ORDER, order_id=order_id)


def _count(question: str, **values: str | int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(question, values)
        (count,) = cursor.fetchone()
    return int(count)
