"""What the demo asks the queue about its own jobs, which all carry the run's name as a tag."""

from __future__ import annotations

from django.db import connection

from example_project.shop.demo.account import Line

#: Jobs of one run, from the view that shows every job wherever it is stored.
JOBS = """
SELECT
    kind,
    state::text,
    attempt,
    count(*),
    min(split_part(errors[cardinality(errors)] ->> 'error', E'\\n', 1))
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
GROUP BY kind, state, attempt
ORDER BY kind, state, attempt
"""
ENDED = """
SELECT count(*)
FROM awa.jobs
WHERE %(tag)s = ANY (tags)
    AND state IN ('completed', 'failed', 'cancelled')
"""
OF_ORDER = "SELECT count(*) FROM awa.jobs WHERE args ->> 'order_id' = %(order_id)s::text"


def jobs_by_line(source: str) -> dict[Line, tuple[int, str | None]]:
    """How many jobs of a run ended how, with the first line of the last error of one of them."""
    with connection.cursor() as cursor:
        cursor.execute(JOBS, {"tag": source})
        return {
            Line(kind, state, attempts): (count, error)
            for kind, state, attempts, count, error in cursor.fetchall()
        }


def ended_jobs(source: str) -> int:
    """How many jobs of a run have ended, one way or another."""
    with connection.cursor() as cursor:
        cursor.execute(ENDED, {"tag": source})
        (count,) = cursor.fetchone()
    return int(count)


def jobs_of_order(order_id: int) -> int:
    """How many jobs name this order, as this connection sees it."""
    with connection.cursor() as cursor:
        cursor.execute(OF_ORDER, {"order_id": order_id})
        (count,) = cursor.fetchone()
    return int(count)
