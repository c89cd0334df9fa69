"""Batch operations as they are stored and shown, whichever of the two tables they are in."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from awa_django.operations.batch.changes import CHANGES, BatchChange, read_spec
from awa_django.operations.batch.filters import describe_filter
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = [
    "SKIPPED_BECAUSE",
    "BatchOperation",
    "BatchProblems",
    "BatchState",
    "Preview",
    "Problem",
    "read_bulk",
    "read_operations",
]

#: Why jobs were skipped, by the word it is counted under; beside the reasons of a single change.
SKIPPED_BECAUSE: Mapping[str, str] = {
    "missing": "they are gone",
    "wrong_state": "their state does not allow it",
    "unchanged": "there was nothing to change",
    "unique_conflict": "another job holds their unique key",
    "not_meant": "they were not what was asked for any more",
    "moved_on": "they had moved on before it was their turn",
    "stopped": "the operation was stopped before it was their turn",
}


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


class Preview(NamedTuple):
    """What an operation would match now: how many jobs, and the lowest ids among them.

    Not ``is_exact`` means that there are so many that counting was broken off: at least ``total_matched``, and the
    sample is of those that were seen.
    """

    total_matched: int
    sample: list[int]
    is_exact: bool = True


class Problem(NamedTuple):
    """One job that did not change, and why: an error, or another job that holds its unique key."""

    job_id: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class BatchProblems:
    """What did not go through: how many jobs were skipped for which reason, and jobs with their errors.

    ``jobs`` are the first ones of each reason, at most as many as asked for. Other clients record no reasons.
    """

    skipped: Mapping[str, int]
    jobs: Sequence[Problem]

    @property
    def sentences(self) -> list[str]:
        """The reasons for people, the most frequent first: ``12 jobs: another job holds their unique key``."""
        return [
            f"{count} job{'' if count == 1 else 's'}: {SKIPPED_BECAUSE.get(reason, reason.replace('_', ' '))}"
            for reason, count in sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
        ]


@dataclass(frozen=True, slots=True)
class BatchOperation:
    """An operation as it is stored; ``filter`` and ``spec`` in the words of every client.

    ``is_wire`` says that any client may have submitted it and may run it. ``skip_reasons`` counts the skipped jobs by
    reason, as far as known.
    """

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
    is_wire: bool = True
    skip_reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Jobs that had their turn."""
        return self.processed + self.skipped + self.errored

    @property
    def progress(self) -> float | None:
        """The part that is done, 0 to 1; None while jobs are still collected."""
        if self.state is BatchState.COMPLETED:
            return 1.0  # awa's own leader may count a job twice that it then changes once
        if self.total_matched is None:
            return None
        return 1.0 if self.total_matched == 0 else min(self.done / self.total_matched, 1.0)

    @property
    def change(self) -> BatchChange:
        """What it does to jobs; raises ``ValueError`` where a stranger's words say nothing."""
        return read_spec(self.op_kind, self.spec)

    @property
    def description(self) -> str:
        """What it does, to which jobs: ``cancel jobs, queue=mail, state=available``."""
        try:
            said = CHANGES[self.op_kind].sentence(self.change)
            return f"{said}, {describe_filter(self.filter) or 'all'}"
        except (ValueError, TypeError, LookupError, AttributeError):
            return self.op_kind.replace("_", " ")


_WIRE = [item.name for item in fields(BatchOperation) if item.name not in ("is_wire", "skip_reasons")]


def _operation(row: Mapping[str, Any], *, is_wire: bool) -> BatchOperation:
    values = {name: row[name] for name in _WIRE}
    reasons = {} if is_wire else row["skip_reasons"]
    return BatchOperation(
        **{**values, "state": BatchState(row["state"])}, is_wire=is_wire, skip_reasons=reasons
    )


def read_operations(cursor: Cursor, name: str, **values: Any) -> list[BatchOperation]:
    """The operations that a statement of ``control/batch`` answers with, of the table that every client knows."""
    return _read(cursor, "control/batch", name, values, is_wire=True)


def read_bulk(cursor: Cursor, name: str, **values: Any) -> list[BatchOperation]:
    """The operations that a statement of ``control/bulk`` answers with, of our own table."""
    return _read(cursor, "control/bulk", name, values, is_wire=False)


def _read(
    cursor: Cursor, subject: str, name: str, values: Mapping[str, Any], *, is_wire: bool
) -> list[BatchOperation]:
    cursor.execute(statement(subject, name), values)
    names = [column.name for column in cursor.description or ()]
    return [_operation(dict(zip(names, row, strict=True)), is_wire=is_wire) for row in cursor.fetchall()]
