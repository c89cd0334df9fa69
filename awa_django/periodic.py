"""Periodic jobs: schedules declared in code, and what operators do with those in the database.

:func:`cron` declares a schedule when its module is imported; ``declared`` holds those of this process. The
process that leads writes its declarations to ``awa.cron_jobs`` and enqueues a job for each fire, whoever declared
the schedule and whoever runs the kind (contract: runtime/cron). The other functions here read and change the
rows, in the caller's transaction on Django's connection; ``using`` is a database alias and means the queue's own
where it is None. A schedule that the database does not hold raises ``ScheduleNotFound``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, get_args

from awa_django.conf import get_settings
from awa_django.db import job_cursor, postgres, read_json
from awa_django.encoding import encode, text_fault
from awa_django.enqueue import queue_alias, translated
from awa_django.errors import ConfigurationError, InvalidJob, ScheduleNotFound
from awa_django.jobs import JobInsert, JsonValue
from awa_django.registry import BoundJob, JobOptions
from awa_django.schedule import InvalidSchedule, Schedule
from awa_django.sql import statement
from awa_django.validation import validated

__all__ = [
    "MissedFires",
    "PeriodicJob",
    "PeriodicJobs",
    "ScheduleStatus",
    "cron",
    "declared",
    "delete",
    "next_fires",
    "pause",
    "resume",
    "schedules",
    "trigger",
]

MissedFires = Literal["coalesce", "catch_up"]

MAX_NAME_CHARACTERS = 200


# Declaring


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """One schedule as code declares it: when it fires, and the job that each fire enqueues."""

    name: str
    schedule: Schedule
    job: JobInsert
    missed: MissedFires = "coalesce"
    #: Where it was declared, for people.
    place: str = field(default="", compare=False)


class PeriodicJobs(Mapping[str, PeriodicJob]):
    """The schedules that this process declares, by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, PeriodicJob] = {}

    def __getitem__(self, name: str) -> PeriodicJob:
        return self._jobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, periodic: PeriodicJob) -> None:
        """Register a schedule; the same again, as from a module that is imported twice, changes nothing."""
        known = self._jobs.setdefault(periodic.name, periodic)
        if known != periodic:
            raise ConfigurationError(
                f"two schedules are named {periodic.name!r}, at {known.place} and at {periodic.place}; a name means "
                "one schedule in the whole database, so give one of them another"
            )

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Forget what is declared inside this block when it ends; for tests that declare schedules."""
        before = dict(self._jobs)
        try:
            yield
        finally:
            self._jobs = before


declared = PeriodicJobs()


def cron(
    name: str,
    expression: str,
    job: BoundJob | str,
    *,
    args: Any = None,
    timezone: str = "UTC",
    missed: MissedFires = "coalesce",
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    tags: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> PeriodicJob:
    """Declare a schedule: a job of a kind whenever the expression matches the wall clock of the zone.

    ``job`` is a kind, with or without options, or the name of one whose handler lives elsewhere. ``args`` are a dict or
    an instance of the kind's ``args`` class, the same for every fire. Options that are not given are those of the job.
    ``missed`` says what becomes of fires that nobody was there for: with "coalesce" the latest counts, with "catch_up"
    each of them. Nothing is stored here; the leader does that when a worker starts.

    Raises ``ConfigurationError`` for anything that cannot work, and for a name that means another schedule already.
    """
    caller = sys._getframe(1)
    place = f"{caller.f_globals.get('__name__', '?')}:{caller.f_lineno}"
    options = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "tags": tags,
        "metadata": metadata,
    }
    try:
        _check_name(name)
        if missed not in get_args(MissedFires):
            raise ConfigurationError(f"missed is 'coalesce' or 'catch_up', not {missed!r}")
        periodic = PeriodicJob(
            name,
            _schedule(expression, timezone),
            _job(job, args, {key: value for key, value in options.items() if value is not None}),
            missed,
            place,
        )
    except (ConfigurationError, InvalidJob, InvalidSchedule) as fault:
        raise ConfigurationError(f"cron({name!r}) at {place}: {fault}") from None
    declared.add(periodic)
    return periodic


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"a schedule needs a name, not {name!r}")
    if len(name) > MAX_NAME_CHARACTERS:
        raise ConfigurationError(
            f"the name has {len(name)} characters, at most {MAX_NAME_CHARACTERS} are possible"
        )
    if fault := text_fault(name):
        raise ConfigurationError(f"the name cannot be stored: {fault}")


def _schedule(expression: object, timezone: object) -> Schedule:
    if not isinstance(expression, str):
        raise ConfigurationError(f"a cron expression is text, not {expression!r}")
    if not isinstance(timezone, str):
        raise ConfigurationError(
            f"a time zone is given by its name, such as 'Pacific/Auckland', not {timezone!r}"
        )
    return Schedule.parse(expression, timezone)


def _job(job: object, args: Any, changes: Mapping[str, Any]) -> JobInsert:
    """The job of each fire, checked."""
    if isinstance(job, BoundJob):
        bound = job.using(**changes)
        _check_options(bound.options)
        return bound.request(*([] if args is None else [args]))
    if not isinstance(job, str):
        raise ConfigurationError(
            f"a kind of job, declared with @job, or the name of one is needed, not {job!r}"
        )
    options = JobOptions().changed(changes)
    return validated(
        JobInsert(
            kind=job,
            args=encode({} if args is None else args),
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            metadata=options.metadata,
            tags=options.tags,
        )
    )


def _check_options(options: JobOptions) -> None:
    """Refuse options that a schedule's row has no place for; dropping them would surprise."""
    for name, why in (
        ("unique", "a fire is enqueued once by itself, and its job takes no unique key"),
        ("run_at", "its jobs are due when it fires"),
        ("ordering_key", "its jobs have no ordering key"),
    ):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"{name} cannot be used by a schedule: {why}; pass the job as KIND.using({name}=None)"
            )
    if options.using is not None and options.using != (alias := get_settings().database):
        raise ConfigurationError(
            f"using={options.using!r}: schedules live in the queue's database, AWA['DATABASE'], which is {alias!r}"
        )


# Operating


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule as the database holds it.

    ``last_enqueued_at`` is the time of its last fire, ``next_fire_at`` that of the next, also while it is paused. A row
    that nobody can evaluate has no next fire, and ``fault`` says why.
    """

    name: str
    cron_expr: str
    timezone: str
    kind: str
    queue: str
    args: JsonValue = field(repr=False)
    priority: int
    max_attempts: int
    tags: tuple[str, ...]
    metadata: JsonValue = field(repr=False)
    missed_fire_policy: str
    last_enqueued_at: datetime | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    next_fire_at: datetime | None = None
    fault: str | None = None

    @property
    def is_paused(self) -> bool:
        """Whether its automatic fires are stopped."""
        return self.paused_at is not None


_COLUMNS = tuple(item.name for item in fields(ScheduleStatus) if item.name not in ("next_fire_at", "fault"))


def schedules(*, using: str | None = None) -> list[ScheduleStatus]:
    """Every schedule of the database, by name, whoever declared it."""
    return [status for status, _ in _read(None, using)]


def next_fires(name: str, count: int = 10, *, using: str | None = None) -> list[datetime]:
    """When a schedule fires next, by the database's clock, in UTC; also while it is paused.

    Raises ``InvalidSchedule`` for a row that nobody can evaluate.
    """
    for status, now in _read(name, using):
        return Schedule.parse(status.cron_expr, status.timezone).next_fires(now, count)
    raise _not_found(name)


def pause(name: str, by: str = "django", *, using: str | None = None) -> None:
    """Stop the automatic fires of a schedule, whoever leads. Pausing again renews time and name."""
    if not isinstance(by, str) or not 1 <= len(by) <= MAX_NAME_CHARACTERS or text_fault(by):
        raise ValueError(
            f"by names who pauses the schedule, in 1 to {MAX_NAME_CHARACTERS} characters without U+0000, not {by!r}"
        )
    _change("pause", {"name": name, "by": by}, using)


def resume(name: str, *, using: str | None = None) -> None:
    """Let a schedule fire again. Its policy decides which of the fires it missed are made up."""
    _change("resume", {"name": name}, using)


def trigger(name: str, *, using: str | None = None) -> int:
    """Enqueue one job of a schedule now, paused or not, and return its id; its automatic fires are not touched.

    The job's metadata says ``cron_name`` and ``triggered_manually``. Holds the job's lane, as an enqueue does. Raises
    ``InvalidJob`` for a row that holds no job that can be stored.
    """
    return int(_change("trigger", {"name": name}, using)[0])


def delete(name: str, *, using: str | None = None) -> bool:
    """Remove a schedule; whether there was one. A worker that declares it brings it back when it leads."""
    try:
        _change("delete", {"name": name}, using)
    except ScheduleNotFound:
        return False
    return True


def _read(name: str | None, using: str | None) -> list[tuple[ScheduleStatus, datetime]]:
    """One schedule or all, each with the time by the database's clock."""
    found = []
    for *values, now in _execute("schedules", {"name": name}, using):
        columns = dict(zip(_COLUMNS, values, strict=True))
        next_fire_at = fault = None
        try:
            next_fire_at = Schedule.parse(columns["cron_expr"], columns["timezone"]).next_after(now)
        except InvalidSchedule as error:
            fault = str(error)
        columns |= {
            # One row that Python cannot hold must not keep the others from being read.
            "args": read_json(columns["args"]),
            "metadata": read_json(columns["metadata"]),
            "tags": tuple(columns["tags"]),
        }
        found.append((ScheduleStatus(**columns, next_fire_at=next_fire_at, fault=fault), now))
    return found


def _change(action: str, parameters: Mapping[str, Any], using: str | None) -> tuple[Any, ...]:
    """Run a statement that answers with one row if the schedule exists."""
    for row in _execute(action, parameters, using):
        return row
    raise _not_found(parameters["name"])


def _execute(action: str, parameters: Mapping[str, Any], using: str | None) -> Sequence[tuple[Any, ...]]:
    alias = queue_alias(using)
    # Not by Django's cursor, whose times are naive where a project has no time zones.
    with translated(alias), postgres(alias).wrap_database_errors, job_cursor(alias) as cursor:
        cursor.execute(statement("control/cron", action), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f"no schedule is named {name!r}; one that code declares is stored once a worker with that code leads"
    )
