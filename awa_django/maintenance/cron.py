"""Schedules: writing down what code declares, and enqueuing a job for each fire (contract: runtime/cron).

Both are for the process that leads. Two that believe they lead do no harm: a fire is taken by an update of the
schedule's row that holds only if nobody took one since it was read, in the statement that inserts the job.

Fires are judged by the database's clock, and evaluation reads the table: what another client declared, paused or
changed counts at the next look, and a schedule whose declaration is gone from the code fires on until it is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import psycopg

from awa_django import telemetry
from awa_django.encoding import dump_json
from awa_django.periodic import MissedFires, PeriodicJob
from awa_django.schedule import InvalidSchedule, Schedule
from awa_django.sql import statement

__all__ = ["CATCH_UP_LIMIT", "Pass", "evaluate", "sync"]

logger = logging.getLogger("awa_django.maintenance")

#: Missed fires of one schedule that one pass makes up.
CATCH_UP_LIMIT = 1000
#: Fires in one transaction; it holds the job's lane, so producers wait for it.
BATCH = 100
#: A schedule that never fired is looked at from this long before it was stored.
LOOK_BACK = timedelta(minutes=1)


class _Skipped(Exception):
    """A row that cannot be evaluated, and why."""


class _Row(NamedTuple):
    """A schedule as it was read. Instants are text, as the row may hold one that Python cannot."""

    name: str
    expression: str
    timezone: str
    policy: str
    last_enqueued_at: str | None
    created_at: str
    paused: bool
    metadata_type: str
    now: datetime


class _Stored(NamedTuple):
    """A job that a fire enqueued, as far as it is counted."""

    kind: str
    queue: str


@dataclass(frozen=True, slots=True)
class Pass:
    """What one evaluation found: schedules in the table, fires taken, and when to look again.

    ``next_in`` counts seconds to the next fire known, None if none is.
    """

    schedules: int = 0
    fired: int = 0
    next_in: float | None = None


def sync(connection: psycopg.Connection[Any], declared: Collection[PeriodicJob]) -> None:
    """Write the declarations to ``awa.cron_jobs``, in one transaction; last fires and pauses stay. Deletes nothing."""
    if not declared:
        return
    jobs = [periodic.job for periodic in declared]
    connection.execute(
        statement("control/cron", "declare"),
        {
            "names": [periodic.name for periodic in declared],
            "expressions": [periodic.schedule.expression for periodic in declared],
            "timezones": [periodic.schedule.timezone for periodic in declared],
            "kinds": [job.kind for job in jobs],
            "queues": [job.queue for job in jobs],
            "args": [dump_json(job.args) for job in jobs],
            "priorities": [job.priority for job in jobs],
            "max_attempts": [job.max_attempts for job in jobs],
            "tags": [dump_json(job.tags) for job in jobs],
            "metadata": [dump_json(job.metadata) for job in jobs],
            "policies": [periodic.missed for periodic in declared],
        },
    )


def evaluate(connection: psycopg.Connection[Any], *, leading: Callable[[], bool] = lambda: True) -> Pass:
    """Take every due fire of every schedule that is not paused, in name order; expects autocommit.

    A row that cannot be read, or whose job cannot be stored, is logged as an error and stops nothing else. Ends early
    when ``leading`` turns false. Raises only when the connection is lost.
    """
    rows = [_Row(*row) for row in connection.execute(statement("control/cron", "look"), {}).fetchall()]
    fired, coming = 0, []
    for row in rows:
        if not leading():
            break
        if row.paused:
            continue
        try:
            fires, following = _due(row)
        except _Skipped as fault:
            logger.error("schedule %r is skipped: %s", row.name, fault)
            continue
        except Exception:
            logger.exception("schedule %r is skipped: when it fires could not be computed", row.name)
            continue
        fired += _fire(connection, row, fires, leading)
        if following is not None:
            coming.append((following - row.now).total_seconds())
    return Pass(len(rows), fired, min(coming, default=None))


def _due(row: _Row) -> tuple[Sequence[datetime], datetime | None]:
    """The fires of a row that are due and not taken yet, ascending, and the first that is not due."""
    try:
        schedule = Schedule.parse(row.expression, row.timezone)
    except InvalidSchedule as fault:
        raise _Skipped(str(fault)) from None
    if row.policy not in get_args(MissedFires):
        raise _Skipped(f"missed_fire_policy is {row.policy!r}, known are {', '.join(get_args(MissedFires))}")
    if row.metadata_type != "object":
        raise _Skipped(
            f"its metadata is a JSON {row.metadata_type}, not an object, and would block whoever claims the job"
        )
    if row.last_enqueued_at is None:
        after = _read_instant("created_at", row.created_at, LOOK_BACK)
    else:
        after = _read_instant("last_enqueued_at", row.last_enqueued_at)
    first = _first_fire(schedule, after)
    if first is None or first > row.now:
        return [], first
    following = schedule.next_after(row.now)
    if row.policy == "coalesce" or row.last_enqueued_at is None:
        latest = schedule.last_until(row.now)
        return [] if latest is None else [latest], following
    fires = schedule.fires_between(after, row.now, CATCH_UP_LIMIT + 1)
    if len(fires) > CATCH_UP_LIMIT:
        del fires[CATCH_UP_LIMIT:]
        logger.warning(
            "schedule %r missed more than %d fires; this pass makes them up until %s, the next goes on",
            row.name, CATCH_UP_LIMIT, fires[-1].isoformat(),
        )  # fmt: skip
    return fires, following


@lru_cache(maxsize=4096)
def _first_fire(schedule: Schedule, after: datetime) -> datetime | None:
    """The first fire after the last one. Kept, as it is asked again each second until it comes."""
    return schedule.next_after(after)


def _read_instant(column: str, text: str, back: timedelta = timedelta(0)) -> datetime:
    try:
        return datetime.fromisoformat(text) - back
    except (ValueError, OverflowError):
        raise _Skipped(f"{column} is {text}, beyond the calendar that schedules are computed in") from None


def _fire(
    connection: psycopg.Connection[Any], row: _Row, fires: Sequence[datetime], leading: Callable[[], bool]
) -> int:
    """Take fires in order, a batch in a transaction, until another leader was first or something fails; how many."""
    taken, seen = 0, row.last_enqueued_at
    for start in range(0, len(fires), BATCH):
        batch = list(fires[start : start + BATCH])
        if not leading():
            break
        try:
            with connection.transaction():
                connection.execute(statement("control/cron", "limit_wait"), {})
                jobs = connection.execute(
                    statement("control/cron", "take_fires"), {"name": row.name, "seen": seen, "fires": batch}
                ).fetchall()
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise
            logger.error(
                "schedule %r: its job for %s could not be stored, to be tried again: %s",
                row.name, batch[0].isoformat(), str(error).partition("\n")[0],
            )  # fmt: skip
            break
        if not jobs:
            logger.debug(
                "schedule %r: another leader took the fire of %s, or it was paused", row.name, batch[0]
            )
            break
        taken, seen = taken + len(jobs), batch[-1].isoformat()
        telemetry.current().enqueued(_Stored(*job) for job in jobs)
    return taken
