"""Jobs as people see them: one, or a page of many, over all planes.

A page is found by keyset, newest id first: the newest ids of each place that may hold a wanted state, each by
its own index and within a limit, then the jobs of those ids. Nothing here counts or sorts a table, and nothing reads
the view ``awa.jobs``, which makes all jobs before it filters any. Reads take no locks.
(contract: api/admin_ops section 6, queue-storage/admin sections 6 and 7)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

from awa_django.errors import JobNotFound
from awa_django.jobs import Callback, Job, payload_parts
from awa_django.operations.desk import Desk, desk
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Plane
from awa_django.planes.queue_storage.read import read_jobs
from awa_django.planes.records import DeadLetter, JobRecord, PlaneName
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.unreadable import Unreadable

__all__ = [
    "HIGHEST_ID",
    "DeadLetter",
    "JobFilter",
    "JobRecord",
    "Page",
    "Position",
    "candidates",
    "dead_letters",
    "list_jobs",
    "load",
    "load_job",
    "pick_out",
    "storable_id",
    "storable_ids",
    "waiting_ids",
]

#: Ids that one look finds in a place, at the most, for who wants them all.
_SCAN = 20_000
#: Rows of a place that one look for a page walks over: where each has to be asked for what the filter says of it, and
#: where only what waits is in the way; there the first look, which nearly always is enough, walks over few.
_WALK, _LONG_WALK, _FIRST_WALK = 60_000, 150_000, 5_000
#: Looks that find less than a page, at the most, and the seconds after which there is no further one. The page is then
#: handed out short, with the position to go on from.
_WALKS, _PATIENCE = 4, 0.25
#: Attempts that wait for an answer, whose kinds and tags have to be asked for one by one.
_PARKED_WALK = 20_000
#: Positions and ends of a queue up to which all are read, since among the newest of all queues there may be none of it.
_FEW = 50_000
#: The highest id that the database can hold.
HIGHEST_ID = 2**63 - 1
#: Looks for one page, which matter where many ids pass and their jobs do not.
_LOOKS = 8
#: Jobs put together by one statement.
_LOAD = 500
#: How far the order of ids may be from that of times: clocks of producers differ, and a transaction may be open for
#: a while before it stores the jobs that say they were created when it began.
_SLACK = timedelta(minutes=15)

_STATES = {state.value: state for state in JobState}
_DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
_HELD = frozenset({JobState.RUNNING, JobState.WAITING_EXTERNAL})
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant; members that are set must all hold.

    ``state`` is a state or its name, ``states`` several; a name that is no state matches nothing. ``tag`` is one tag
    that the job must have. ``created_from`` is inclusive, ``created_before`` exclusive; both are aware instants. Lists
    look for such jobs where ids of that time are, give or take a quarter of an hour.
    """

    state: JobState | str | None = None
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    ids: Collection[int] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    states: Collection[JobState | str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it means all jobs."""
        return all(getattr(self, item.name) is None for item in fields(self))

    @property
    def wanted(self) -> frozenset[JobState]:
        """The states that pass."""
        wanted = frozenset(JobState)
        for given in (None if self.state is None else (self.state,), self.states):
            if given is not None:
                wanted &= {_STATES[name] for name in given if name in _STATES}
        return wanted

    def passes(self, job: Job) -> bool:
        """Whether a job is meant."""
        return (
            job.state in self.wanted
            and (self.kind is None or job.kind == self.kind)
            and (self.queue is None or job.queue == self.queue)
            and (self.tag is None or self.tag in job.tags)
            and (self.ids is None or job.id in self.ids)
            and (self.created_from is None or job.created_at >= self.created_from)
            and (self.created_before is None or job.created_at < self.created_before)
        )


class Position(NamedTuple):
    """Where a page ended: the id of its last job, and the plane, since both may have it."""

    job_id: int
    plane: PlaneName = "canonical"


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first. ``next`` is where to go on, None at the end.

    A page may be short or even empty and still have a ``next``: then few jobs pass the filter, and the search was
    broken off so as not to keep its caller waiting.
    """

    jobs: Sequence[JobRecord]
    next: Position | None


def storable_ids(job_ids: Iterable[int]) -> list[int]:
    """Each id once, lowest first. One beyond the database's integers names no job, and is left out."""
    return sorted({job_id for job_id in job_ids if abs(job_id) <= HIGHEST_ID})


def storable_id(job_id: int) -> int:
    """An id to begin at, or else the outermost that the database can hold."""
    return max(-HIGHEST_ID, min(job_id, HIGHEST_ID))


# One job


def load_job(job_id: int, *, using: str | None = None, plane: PlaneName | None = None) -> JobRecord:
    """The job with this id, wherever it is; of a job on both planes the one where new jobs go.

    Raises ``JobNotFound`` for an id that names no job, or none any more.
    """
    with desk(using, plane) as at:
        for each in at.planes:
            for record in load(at.cursor, each, [job_id]):
                return record
    raise JobNotFound(f"there is no job {job_id}; finished ones are forgotten in time")


def load(cursor: Cursor, plane: Plane, job_ids: Sequence[int]) -> list[JobRecord]:
    """The jobs of one plane with these ids, highest first; those that do not exist are absent."""
    records: list[JobRecord] = []
    ordered = storable_ids(job_ids)[::-1]
    for start in range(0, len(ordered), _LOAD):
        piece = ordered[start : start + _LOAD]
        if plane.name == "queue_storage":
            records += read_jobs(cursor, piece)
        else:
            cursor.execute(statement("canonical/listing", "load"), {"job_ids": ints(piece)}, prepare=False)
            records += [_canonical(row) for row in cursor.fetchall()]
    return records


def _canonical(row: Sequence[Any]) -> JobRecord:
    (
        job_id, run_lease, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at,
        created_at, unique_key, unique_states, payload, progress, finalized_at, deadline_at, heartbeat_at,
        callback_id, callback_timeout_at, filter_, on_complete, on_fail, transform,
    ) = row  # fmt: skip
    metadata, tags, errors, _ = payload_parts(payload)
    job = Job(
        id=job_id,
        kind=kind,
        queue=queue,
        args=args,
        state=JobState(state),
        priority=priority,
        attempt=attempt,
        max_attempts=max_attempts,
        run_at=run_at,
        created_at=created_at,
        attempted_at=attempted_at,
        finalized_at=finalized_at,
        deadline_at=deadline_at,
        metadata=metadata,
        tags=tags,
        errors=errors,
        progress=progress,
        run_lease=run_lease,
        unique_key=unique_key,
        callback_id=callback_id,
        callback_timeout_at=callback_timeout_at,
    )
    callback = None
    if callback_id is not None:
        callback = Callback(callback_id, callback_timeout_at, filter_, on_complete, on_fail, transform)
    return JobRecord(
        job,
        "canonical",
        heartbeat_at,
        unique_states,
        callback,
        payload_is_unreadable=isinstance(payload, Unreadable),
    )


# A page of jobs


def list_jobs(
    filter: JobFilter | None = None,
    *,
    after: Position | int | None = None,
    limit: int = 100,
    using: str | None = None,
    plane: PlaneName | None = None,
) -> Page:
    """Jobs over all planes, newest id first; dead letters are among the failed ones.

    ``after`` is the ``next`` of the page before, or an id to begin below. At most 1000.
    """
    chosen = JobFilter() if filter is None else filter
    size = max(0, min(limit, 1000))
    position = Position(after) if isinstance(after, int) else after
    with desk(using, plane) as at:
        found: list[JobRecord] = []
        floor = 0
        for each in at.planes:
            before = HIGHEST_ID
            if position is not None:
                # Of one id queue storage comes first.
                same = position.plane == "queue_storage" and each.name == "canonical"
                before = storable_id(position.job_id + 1 if same else position.job_id)
            records, reached = pick_out(at, each, chosen, before, size + 1)
            found += records
            floor = max(floor, reached)
    # What lies below the place where a search was broken off is not complete.
    found = [record for record in found if record.job.id >= floor]
    found.sort(key=lambda record: (record.job.id, record.plane == "queue_storage"), reverse=True)
    if len(found) > size:
        last = found[:size]
        return Page(last, Position(last[-1].job.id, last[-1].plane) if last else position)
    return Page(found, Position(floor) if floor else None)


def candidates(at: Desk, plane: Plane, filter: JobFilter, *, dead_only: bool = False) -> list[int]:
    """Ids of one plane that may pass the filter, lowest first; ``dead_only`` looks among the dead letters alone.

    Whoever takes the jobs asks again, under their locks.
    """
    wanted = filter.wanted
    if not wanted or (dead_only and plane.name == "canonical"):
        return []
    if filter.ids is not None:
        return storable_ids(filter.ids)
    if dead_only:
        return sorted(_dead_ids(at, filter, None, None))
    ids: set[int] = set()
    before = HIGHEST_ID
    while True:
        some, before = _newest(at, plane, filter, wanted, before, walk=_SCAN, size=_SCAN)
        ids.update(some)
        if not before:
            return sorted(ids)


def pick_out(
    at: Desk, plane: Plane, filter: JobFilter, before: int, size: int
) -> tuple[list[JobRecord], int]:
    """The newest jobs of one plane below an id that pass the filter, at most ``size``.

    Also the id down to which all was looked at; 0 when there is nothing below.
    """
    wanted = filter.wanted
    if not wanted or not size:
        return [], 0
    if filter.ids is not None:
        ids = sorted((job_id for job_id in set(filter.ids) if job_id < before), reverse=True)
        records = [record for record in load(at.cursor, plane, ids) if filter.passes(record.job)]
        return records[:size], 0
    found: list[JobRecord] = []
    lowest, before = _of_time(at.cursor, plane, filter, before)
    asked = (filter.kind, filter.queue, filter.tag, filter.created_from, filter.created_before)
    longest = _LONG_WALK if all(member is None for member in asked) else _WALK
    walk = _FIRST_WALK if longest == _LONG_WALK and JobState.COMPLETED in wanted else longest
    # Without a filter every id that is found is a job, save those that are two rows. Of what the lanes have handed out
    # some runs that is not wanted; a few more are less than another look.
    taken = size if JobState.COMPLETED not in wanted or wanted == frozenset(JobState) else 2 * size
    # Where history is not wanted a look takes several statements.
    walks = _WALKS if JobState.COMPLETED in wanted else min(_WALKS, 2)
    began = monotonic()
    unread: list[int] = []
    for further in reversed(range(_LOOKS)):
        ids, floor = _newest(at, plane, filter, wanted, before, walk=walk, size=taken)
        unread += ids
        before = floor if floor > lowest else 0
        is_last = not before or not further
        if len(ids) < taken and walk == longest:
            # So few found means that the next look will walk as far again.
            walks -= 1
            is_last = is_last or walks == 0 or monotonic() - began > _PATIENCE
        walk = longest
        if is_last or len(unread) >= taken:
            found += [record for record in load(at.cursor, plane, unread) if filter.passes(record.job)]
            if len(found) >= size:
                return found[:size], found[size - 1].job.id
            unread = []
            taken = min(taken * 4, _LOAD)
        if is_last:
            break
    return found, before


def _of_time(cursor: Cursor, plane: Plane, filter: JobFilter, before: int) -> tuple[int, int]:
    """The id at and below which no job is of the filter's time, and ``before`` or a lower id from which on none is."""
    if filter.created_from is None and filter.created_before is None:
        return 0, before
    cursor.execute(
        statement(f"{plane.name}/newest", "ids_created"),
        {"created_from": filter.created_from, "created_before": filter.created_before, "slack": _SLACK},
        prepare=False,
    )
    row = cursor.fetchone()
    assert row is not None
    first, later = row
    return 0 if first is None else first - 1, before if later is None else min(before, later)


def _newest(
    at: Desk,
    plane: Plane,
    filter: JobFilter,
    wanted: frozenset[JobState],
    before: int,
    *,
    walk: int,
    size: int,
) -> tuple[list[int], int]:
    """Ids that may pass, highest first, and the lowest id down to which none is missing; 0 for all.

    Of each place at most ``size``, among at most ``walk`` rows.
    """
    common = {
        "before": before,
        "walk": walk,
        "size": size,
        "kind": filter.kind,
        "queue": filter.queue,
        "tag": filter.tag,
        "created_from": filter.created_from,
        "created_before": filter.created_before,
        "deferred": _names(wanted & _DEFERRED),
    }
    rows: list[tuple[str, list[int], int | None]]
    if plane.name == "canonical":
        rows = _found(at.cursor, "canonical", "newest", {**common, "hot": _names(wanted - _DEFERRED)})
    else:
        rows = _newest_in_rings(at, common, wanted)
    # Of a place that has more, nothing is known below its last id.
    floor = max((found[-1] if len(found) == size else lowest or 0 for _, found, lowest in rows), default=0)
    ids = {job_id for _, found, _ in rows for job_id in found}
    return sorted((job_id for job_id in ids if job_id >= floor), reverse=True), floor


def _newest_in_rings(
    at: Desk, common: Mapping[str, Any], wanted: frozenset[JobState]
) -> list[tuple[str, list[int], int | None]]:
    # Where history is not wanted, what waits in lanes is found from their cursors on, and attempts that go on by what
    # is open.
    lanes = JobState.COMPLETED in wanted
    places = {
        "ready": lanes,
        "available": JobState.AVAILABLE in wanted,
        "held": bool(wanted & _HELD),
        "narrow": wanted != frozenset(JobState),
        "done": _names(wanted & _ENDED),
        "dead": JobState.FAILED in wanted,
    }
    rows = []
    large = ("large", common["queue"])
    if common["queue"] is not None and (lanes or wanted & _ENDED) and large not in at.known:
        rows = _found(at.cursor, "queue_storage", "newest_of_queue", {**common, **places, "few": _FEW})
        if rows:
            places |= {"ready": False, "done": [], "dead": False}
        else:
            at.known[large] = True
    rows += _found(at.cursor, "queue_storage", "newest", {**common, **places})
    elsewhere = (
        ("newest_available", JobState.AVAILABLE),
        ("newest_running", JobState.RUNNING),
        ("newest_parked", JobState.WAITING_EXTERNAL),
    )
    for name, state in elsewhere:
        if not lanes and state in wanted:
            walk = min(common["walk"], _PARKED_WALK) if name == "newest_parked" else common["walk"]
            rows += _found(at.cursor, "queue_storage", name, {**common, "walk": walk})
    return rows


def _found(
    cursor: Cursor, plane: PlaneName, name: str, values: Mapping[str, Any]
) -> list[tuple[str, list[int], int | None]]:
    cursor.execute(statement(f"{plane}/newest", name), values, prepare=False)
    return cursor.fetchall()


def _names(states: Collection[JobState]) -> list[str]:
    return sorted(state.value for state in states)


# Dead letters


def dead_letters(
    filter: JobFilter | None = None,
    *,
    after: tuple[datetime, int] | None = None,
    limit: int = 100,
    using: str | None = None,
) -> list[JobRecord]:
    """Dead letters by kind, queue and tag, the newest first.

    ``after`` is the time and id of the last one seen: ``(record.dead_letter.at, record.job.id)``.
    """
    if limit < 0:
        raise ValueError(f"limit: zero or more is needed, not {limit}")
    chosen = JobFilter() if filter is None else filter
    with desk(using, "queue_storage") as at:
        ids = _dead_ids(at, chosen, after, limit)
        records = {record.job.id: record for record in load(at.cursor, at.planes[0], ids)}
    return [
        records[job_id]
        for job_id in ids
        if job_id in records and records[job_id].dead_letter and chosen.passes(records[job_id].job)
    ]


def _dead_ids(
    at: Desk, filter: JobFilter, after: tuple[datetime, int] | None, limit: int | None
) -> list[int]:
    dlq_at, job_id = (None, None) if after is None else after
    at.cursor.execute(
        statement("queue_storage/listing", "dead_letters"),
        {
            "kind": filter.kind,
            "queue": filter.queue,
            "tag": filter.tag,
            "dlq_at": dlq_at,
            "job_id": None if job_id is None else storable_id(job_id),
            "limit": limit,
        },
        prepare=False,
    )
    return [row[0] for row in at.cursor.fetchall()]


# What nobody runs


class Waiting(NamedTuple):
    """Ids of jobs that nobody runs, lowest first, and how many there are in all."""

    ids: list[int]
    total: int


def waiting_ids(
    at: Desk,
    plane: Plane,
    states: Collection[JobState],
    filter: JobFilter | None = None,
    *,
    queue: str | None = None,
    after: int = 0,
    until: int | None = None,
    limit: int | None = None,
) -> Waiting:
    """Jobs of one plane in some of the states available, scheduled, retryable and waiting_external.

    Of ``filter`` all members but the state count; with ``after`` and ``until`` those with ids above the one, up to the
    other. One statement over what waits, however much has finished.
    """
    chosen = filter or JobFilter(queue=queue)
    wanted = frozenset(states)
    at.cursor.execute(
        statement(f"{plane.name}/listing", "waiting"),
        {
            "available": JobState.AVAILABLE in wanted,
            "parked": JobState.WAITING_EXTERNAL in wanted,
            "deferred": _names(wanted & _DEFERRED),
            "hot": _names(wanted - _DEFERRED),
            "kind": chosen.kind,
            "queue": chosen.queue,
            "tag": chosen.tag,
            "job_ids": None if chosen.ids is None else ints(storable_ids(chosen.ids)),
            "created_from": chosen.created_from,
            "created_before": chosen.created_before,
            "after": after,
            "until": until,
            "limit": limit,
        },
        prepare=False,
    )
    rows = at.cursor.fetchall()
    return Waiting([row[0] for row in rows], rows[0][1] if rows else 0)
