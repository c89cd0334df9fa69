"""Values as JSON documents, in shapes that stay (docs/cli.md, "JSON")."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from awa_django.operations import BatchOperation, Changed, JobRecord, Skipped
from awa_django.operations.words import last_error
from awa_django.redaction import shown
from awa_django.storage import StorageStatus
from awa_django.unreadable import Unreadable

__all__ = [
    "batch_document",
    "changed_document",
    "document",
    "job_document",
    "storage_document",
]


def document(value: Any) -> Any:
    """A value in JSON's own types: times are RFC 3339 in UTC, durations seconds, bytes hex."""
    match value:
        case None | bool() | int() | float() if not isinstance(value, Enum):
            return value
        case Enum():
            return document(value.value)
        case str():
            return str(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case uuid.UUID():
            return str(value)
        case bytes() | memoryview():
            return bytes(value).hex()
        case Unreadable():
            return None
        case Mapping():
            return {str(key): document(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: document(getattr(value, item.name)) for item in fields(value)}
    if hasattr(value, "_asdict"):
        return document(value._asdict())
    return [document(item) for item in value]


def job_document(record: JobRecord, *, payloads: bool = False) -> dict[str, Any]:
    """A job; with ``payloads`` also what it carries, as far as it may be shown."""
    job, dead, callback = record.job, record.dead_letter, record.callback
    found: dict[str, Any] = {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "run_lease": job.run_lease,
        "run_at": job.run_at,
        "created_at": job.created_at,
        "attempted_at": job.attempted_at,
        "heartbeat_at": record.heartbeat_at,
        "deadline_at": job.deadline_at,
        "finalized_at": job.finalized_at,
        "tags": job.tags,
        "unique_key": job.unique_key,
        "callback_id": None if callback is None else callback.id,
        "callback_timeout_at": None if callback is None else callback.timeout_at,
        "dlq": None if dead is None else dead,
        "plane": record.plane,
        "latest_error": last_error(job),
        "is_unreadable": record.is_unreadable,
    }
    if payloads:
        found |= {
            "args": shown(job.kind, "args", job.args),
            "metadata": shown(job.kind, "metadata", job.metadata),
            "errors": shown(job.kind, "errors", list(job.errors)),
            "progress": shown(job.kind, "progress", job.progress),
        }
    answer: dict[str, Any] = document(found)
    return answer


def changed_document(changed: Changed) -> dict[str, Any]:
    """What became of a selection of jobs."""
    return {
        "changed": changed.count,
        "ids": changed.ids,
        "skipped": [_skipped_document(item) for item in changed.skipped],
        "pruned_failed": changed.pruned_failed,
    }


def _skipped_document(item: Skipped) -> dict[str, Any]:
    return {
        "id": item.job_id,
        "reason": document(item.reason),
        "state": document(item.state),
        "holder_id": item.holder_id,
        "message": str(item),
    }


def batch_document(operation: BatchOperation) -> dict[str, Any]:
    """A batch operation, with the part that is done."""
    found: dict[str, Any] = document(operation)
    return {**found, "progress": operation.progress}


def storage_document(status: StorageStatus) -> dict[str, Any]:
    """How far a move to queue storage is, and what stands in the way of the next step."""
    found: dict[str, Any] = document(status)
    return {**found, "next_step": document(status.next_step), "blockers": list(status.blockers)}
