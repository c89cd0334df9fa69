"""Changes of many waiting jobs that the leader of the fleet makes bit by bit, whichever client it is.

An operation is stored and survives its submitter and any number of leaders. It gives the jobs that its filter matches
when it begins another priority or another queue; each job is asked again when its turn comes.
(contract: api/admin_ops section 5, schema section 5.8)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from awa_django.encoding import dump_json
from awa_django.errors import BatchOperationNotFound, InvalidJob, WrongState
from awa_django.operations.change import Verb
from awa_django.operations.desk import Desk, desk
from awa_django.operations.reading import JobFilter, waiting_ids
from awa_django.operations.verbs import move_verb
from awa_django.planes.base import Cursor
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.validation import checked_priority, checked_queue

__all__ = [
    "BatchChange",
    "BatchOperation",
    "BatchState",
    "MoveQueue",
    "Preview",
    "SetPriority",
    "batch_operation",
    "batch_operations",
    "cancel_batch",
    "eligible_states",
    "preview_batch",
    "purge_batches",
    "read_filter",
    "read_operations",
    "read_spec",
    "submit_batch",
    "verb_of",
]

#: Ids that a preview names.
SAMPLE = 10
ELIGIBLE = frozenset({JobState.AVAILABLE, JobState.SCHEDULED})
_MEMBERS = ("kind", "queue", "ids", "tag", "state", "created_at_gte", "created_at_lt")


class BatchState(StrEnum):
    """Where an operation is."""

    PENDING = "pending"
    SCANNING = "scanning"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more."""
        return self in (BatchState.COMPLETED, BatchState.CANCELLED, BatchState.FAILED)


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Another priority, 1 (first) to 4."""

    priority: int

    def __post_init__(self) -> None:
        checked_priority(self.priority)


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """Another queue, and another priority if one is given."""

    queue: str
    priority: int | None = None

    def __post_init__(self) -> None:
        checked_queue(self.queue)
        if self.priority is not None:
            checked_priority(self.priority)


BatchChange = SetPriority | MoveQueue


class Preview(NamedTuple):
    """What an operation would match now: how many jobs, and the lowest ids."""

    total_matched: int
    sample: list[int]


@dataclass(frozen=True, slots=True)
class BatchOperation:
    """An operation as it is stored; ``filter`` and ``spec`` in the words of every client."""

    id: uuid.UUID
    op_kind: str
    filter: Mapping[str, Any]
    spec: Mapping[str, Any]
    state: BatchState
    submitted_by: str | None
    submitted_at: datetime
    started_at: datetime | None
    finalized_at: datetime | None
    cursor: Mapping[str, Any] | None
    total_matched: int | None
    processed: int
    skipped: int
    errored: int
    last_error: str | None
    runner_instance: uuid.UUID | None
    retention_until: datetime | None
    updated_at: datetime

    @property
    def progress(self) -> float | None:
        """The part that is done, 0 to 1; None while jobs are still collected."""
        if self.total_matched is None:
            return None
        done = self.processed + self.skipped + self.errored
        return 1.0 if self.total_matched == 0 else min(done / self.total_matched, 1.0)


def _operation(row: Mapping[str, Any]) -> BatchOperation:
    values = {item.name: row[item.name] for item in fields(BatchOperation)}
    return BatchOperation(**{**values, "state": BatchState(row["state"])})


# What is to be done, and to which jobs, as stored


def read_spec(op_kind: str, spec: Mapping[str, Any]) -> BatchChange:
    """The change that an operation makes; raises ``ValueError`` for one that no client writes."""
    match op_kind:
        case "set_priority":
            return SetPriority(spec["priority"])
        case "move_queue":
            return MoveQueue(spec["queue"], spec.get("priority"))
    raise ValueError(f"op_kind: 'set_priority' or 'move_queue' is needed, not {op_kind!r}")


def _spec(change: BatchChange) -> dict[str, Any]:
    match change:
        case SetPriority(priority):
            return {"op_kind": "set_priority", "priority": priority}
        case MoveQueue(queue, priority):
            return {"op_kind": "move_queue", "queue": queue, "priority": priority}


def verb_of(change: BatchChange) -> Verb:
    """What is done to each job."""
    match change:
        case SetPriority(priority):
            return move_verb(None, priority)
        case MoveQueue(queue, priority):
            return move_verb(queue, priority)


def read_filter(stored: Mapping[str, Any]) -> JobFilter:
    """A filter from its stored words. A member that no client knows is refused, since it would widen the selection."""
    for name in stored:
        if name not in _MEMBERS:
            raise ValueError(f"filter.{name}: unknown member; known are {', '.join(_MEMBERS)}")
    return JobFilter(
        state=stored.get("state"),
        kind=stored.get("kind"),
        queue=stored.get("queue"),
        tag=stored.get("tag"),
        ids=stored.get("ids") or None,
        created_from=_instant(stored.get("created_at_gte")),
        created_before=_instant(stored.get("created_at_lt")),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _stored(filter: JobFilter) -> dict[str, Any]:
    return {
        "kind": filter.kind,
        "queue": filter.queue,
        "ids": None if filter.ids is None else sorted(set(filter.ids)),
        "tag": filter.tag,
        "state": None if filter.state is None else JobState(filter.state).value,
        "created_at_gte": _text(filter.created_from),
        "created_at_lt": _text(filter.created_before),
    }


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()


def eligible_states(filter: JobFilter) -> frozenset[JobState]:
    """The states in which jobs can be changed, as far as the filter wants them."""
    return ELIGIBLE & filter.wanted


def _checked(filter: JobFilter | Mapping[str, Any], *, allow_all: bool) -> JobFilter:
    if isinstance(filter, Mapping):
        if filter.get("ids") is not None and not filter["ids"]:
            raise InvalidJob("filter.ids", "an empty list matches nothing; leave it out to match any id")
        try:
            filter = read_filter(filter)
        except ValueError as error:
            raise InvalidJob("filter", str(error)) from None
    if filter.states is not None:
        raise InvalidJob(
            "filter.states", "a batch operation knows one state, or none for both that it can change"
        )
    if filter.ids is not None and not filter.ids:
        raise InvalidJob("filter.ids", "an empty list matches nothing; leave it out to match any id")
    if filter.state is not None and not eligible_states(filter):
        raise InvalidJob(
            "filter.state", f"only available and scheduled jobs can be changed, not {filter.state!r}"
        )
    for name in ("created_from", "created_before"):
        instant = getattr(filter, name)
        if instant is not None and instant.tzinfo is None:
            raise InvalidJob(f"filter.{name}", f"an aware instant is needed, not {instant!r}")
    if filter.is_empty and not allow_all:
        raise ValueError("the filter means all jobs; say allow_all=True if that is what you want")
    return filter


# The operator's side


def preview_batch(
    change: BatchChange,
    filter: JobFilter | Mapping[str, Any],
    *,
    allow_all: bool = False,
    using: str | None = None,
) -> Preview:
    """What an operation would match if it began now; writes nothing."""
    if not isinstance(change, BatchChange):
        raise TypeError(f"change: SetPriority or MoveQueue is needed, not {change!r}")
    chosen = _checked(filter, allow_all=allow_all)
    with desk(using) as at:
        found = waiting_ids(at, at.planes[0], eligible_states(chosen), chosen, limit=SAMPLE)
    return Preview(found.total, found.ids)


def submit_batch(
    change: BatchChange,
    filter: JobFilter | Mapping[str, Any],
    *,
    submitted_by: str | None = None,
    allow_all: bool = False,
    using: str | None = None,
) -> BatchOperation:
    """Store an operation; the leader begins it within a second or two after the commit, when earlier ones are done.

    Which jobs it is about is settled when it begins.
    """
    if not isinstance(change, BatchChange):
        raise TypeError(f"change: SetPriority or MoveQueue is needed, not {change!r}")
    chosen = _checked(filter, allow_all=allow_all)
    spec = _spec(change)
    with desk(using) as at:
        (operation,) = _rows(
            at,
            "submit",
            id=uuid.uuid4(),
            op_kind=spec["op_kind"],
            filter=dump_json(_stored(chosen)),
            spec=dump_json(spec),
            submitted_by=submitted_by,
        )
    return operation


def batch_operation(operation_id: uuid.UUID | str, *, using: str | None = None) -> BatchOperation:
    """One operation; raises ``BatchOperationNotFound``."""
    with desk(using) as at:
        return _one(at, operation_id)


def batch_operations(
    state: BatchState | str | None = None, *, limit: int = 100, using: str | None = None
) -> list[BatchOperation]:
    """Operations, the newest first, at most 1000; a state that there is not has none."""
    with desk(using) as at:
        return _rows(at, "list", state=state, limit=max(1, min(limit, 1000)))


def cancel_batch(operation_id: uuid.UUID | str, *, using: str | None = None) -> BatchOperation:
    """Have an operation stop after the jobs it is at; what is left counts as skipped.

    Raises ``BatchOperationNotFound``, or ``WrongState`` for one that has ended or is being stopped.
    """
    with desk(using) as at:
        for operation in _rows(at, "request_cancel", id=_uuid(operation_id)):
            return operation
        found = _one(at, operation_id)
    raise WrongState(f"batch operation {operation_id} is {found.state}")


def purge_batches(before: datetime, *, limit: int = 1000, using: str | None = None) -> int:
    """Forget operations that ended before an instant, the oldest first; returns how many.

    The leader forgets those whose ``retention_until`` has passed by itself.
    """
    if before.tzinfo is None:
        raise ValueError(f"before: an aware instant is needed, not {before!r}")
    with desk(using) as at:
        at.cursor.execute(statement("control/batch", "purge"), {"before": before, "limit": limit})
        return max(at.cursor.rowcount, 0)


def _one(at: Desk, operation_id: uuid.UUID | str) -> BatchOperation:
    for operation in _rows(at, "load", id=_uuid(operation_id)):
        return operation
    raise BatchOperationNotFound(f"there is no batch operation {operation_id}")


def _uuid(operation_id: uuid.UUID | str) -> uuid.UUID:
    if isinstance(operation_id, uuid.UUID):
        return operation_id
    try:
        return uuid.UUID(operation_id)
    except (ValueError, AttributeError, TypeError):
        raise BatchOperationNotFound(f"{operation_id!r} is no id of a batch operation") from None


def _rows(at: Desk, name: str, **values: Any) -> list[BatchOperation]:
    return read_operations(at.cursor, name, **values)


def read_operations(cursor: Cursor, name: str, **values: Any) -> list[BatchOperation]:
    """The operations that a statement of ``control/batch`` answers with."""
    cursor.execute(statement("control/batch", name), values)
    names = [column.name for column in cursor.description or ()]
    return [_operation(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
