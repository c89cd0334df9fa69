"""Jobs that wait for a callback, and the job that a callback belongs to (contract: api/web_ui section 2)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from awa_django.errors import CallbackNotFound
from awa_django.operations.desk import Desk, desk
from awa_django.operations.reading import HIGHEST_ID, JobFilter, load, storable_id, storable_ids
from awa_django.planes.arrays import ints
from awa_django.planes.base import Plane
from awa_django.planes.records import JobRecord, PlaneName
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["WaitingJob", "WaitingPage", "WaitingPosition", "find_callback", "waiting_callbacks"]

#: Waiting attempts of a plane looked at for one page, before it is handed out short.
_WALK = 20_000
#: Later than this the driver hands out a time that Python can hold instead of the one that is stored.
_FOREVER = datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job whose attempt waits; ``overdue`` once its time is up, until the leader rescues it."""

    record: JobRecord
    overdue: bool


class WaitingPosition(NamedTuple):
    """Where a page ended: the time of its last attempt, its job, and the plane that has it."""

    timeout_at: datetime | None
    job_id: int
    plane: PlaneName = "queue_storage"


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Some jobs that wait, the one whose time is up first. ``next`` is where to go on, None at the end.

    A page may be short or even empty and still have a ``next``, as with :class:`~awa_django.operations.Page`.
    """

    items: Sequence[WaitingJob]
    next: WaitingPosition | None


class _Found(NamedTuple):
    timeout_at: datetime | None
    plane: PlaneName
    job_id: int
    overdue: bool
    passes: bool
    #: Whether the search of its plane was broken off here.
    is_last: bool

    @property
    def order(self) -> tuple[bool, datetime, bool, int]:
        return self.timeout_at is None, self.timeout_at or _FOREVER, self.plane == "canonical", self.job_id

    @property
    def position(self) -> WaitingPosition:
        return WaitingPosition(self.timeout_at, self.job_id, self.plane)


def waiting_callbacks(
    filter: JobFilter | None = None,
    *,
    after: WaitingPosition | None = None,
    limit: int = 50,
    using: str | None = None,
    plane: PlaneName | None = None,
) -> WaitingPage:
    """Jobs that wait for a callback over all planes, soonest timeout first, those without one last; takes no locks.

    ``after`` is the ``next`` of the page before. At most 1000.
    """
    chosen = JobFilter() if filter is None else filter
    size = max(0, min(limit, 1000))
    if JobState.WAITING_EXTERNAL not in chosen.wanted or not size:
        return WaitingPage((), after if not size else None)
    with desk(using, plane) as at:
        found = sorted(
            (one for each in at.planes for one in _soonest(at, each, chosen, after, size)),
            key=lambda one: one.order,
        )
        # Beyond the place where a search was broken off nothing is known of its plane.
        end = next((number for number, one in enumerate(found) if one.is_last), None)
        passing = [one for one in (found if end is None else found[: end + 1]) if one.passes]
        shown = passing[:size]
        records = _records(at, shown)
    items = [
        WaitingJob(record, one.overdue)
        for one, record in zip(shown, records, strict=True)
        if record is not None and chosen.passes(record.job)
    ]
    if len(passing) > size:
        return WaitingPage(items, shown[-1].position)
    return WaitingPage(items, None if end is None else found[end].position)


def _soonest(
    at: Desk, plane: Plane, filter: JobFilter, after: WaitingPosition | None, size: int
) -> list[_Found]:
    after_at: str | None = None
    after_id = None
    if after is not None:
        if after.timeout_at is not None:
            after_at = "infinity" if after.timeout_at >= _FOREVER else after.timeout_at.isoformat()
        # Of two that time out at once queue storage comes first.
        after_id = storable_id(after.job_id)
        if plane.name != after.plane:
            after_id = HIGHEST_ID if plane.name == "queue_storage" else 0
    # Only what is not told by the lease itself has to be looked for.
    body = (filter.kind, filter.tag, filter.created_from, filter.created_before)
    is_narrow = any(member is not None for member in body)
    at.cursor.execute(
        statement(f"{plane.name}/waiting", "waiting"),
        {
            "kind": filter.kind,
            "queue": filter.queue,
            "tag": filter.tag,
            "created_from": filter.created_from,
            "created_before": filter.created_before,
            "after_at": after_at,
            "after_id": after_id,
            "job_ids": None if filter.ids is None else ints(storable_ids(filter.ids)),
            "walk": max(_WALK, size + 1) if is_narrow else size + 1,
            "limit": size + 1,
        },
        prepare=False,
    )
    name: PlaneName = "canonical" if plane.name == "canonical" else "queue_storage"
    return [
        _Found(timeout_at, name, job_id, overdue, passes, is_last)
        for job_id, timeout_at, overdue, passes, is_last in at.cursor.fetchall()
    ]


def _records(at: Desk, found: Sequence[_Found]) -> list[JobRecord | None]:
    """The jobs, each if it still waits."""
    by_place: dict[tuple[Any, int], JobRecord] = {}
    for plane in at.planes:
        ids = [one.job_id for one in found if one.plane == plane.name]
        for record in load(at.cursor, plane, ids):
            if record.job.state is JobState.WAITING_EXTERNAL:
                by_place[record.plane, record.job.id] = record
    return [by_place.get((one.plane, one.job_id)) for one in found]


def find_callback(
    callback_id: uuid.UUID | str, *, using: str | None = None, plane: PlaneName | None = None
) -> JobRecord:
    """The job that waits for this callback, or runs and may be answered by it; takes no locks.

    Raises ``CallbackNotFound`` if there is none, or none any more, and for a text that is no UUID.
    """
    missing = CallbackNotFound(
        f"no job waits for callback {callback_id}; it was answered, timed out, or never was"
    )
    try:
        token = callback_id if isinstance(callback_id, uuid.UUID) else uuid.UUID(callback_id)
    except (ValueError, AttributeError, TypeError):
        raise missing from None
    with desk(using, plane) as at:
        for each in at.planes:
            at.cursor.execute(statement(f"{each.name}/waiting", "with_callback"), {"callback_id": token})
            ids = [row[0] for row in at.cursor.fetchall()]
            for record in load(at.cursor, each, ids):
                if record.job.callback_id == token:
                    return record
    raise missing
