"""A job, or one run of it, as a document to attach to a ticket (contract: api/admin_ops section 7).

Documents hold plain JSON and the members that every client's dumps have; times are RFC 3339 in UTC. What may be shown
of a job's values is asked of :mod:`awa_django.redaction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from awa_django.jobs import Callback, Job
from awa_django.operations.reading import load_job
from awa_django.operations.words import error_text
from awa_django.planes.records import JobRecord, PlaneName
from awa_django.redaction import Part, shown
from awa_django.states import JobState
from awa_django.unreadable import Unreadable

__all__ = ["TimelineEntry", "dump_job", "dump_run", "timeline"]

_ENDS = {
    JobState.COMPLETED: "Completed",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Cancelled",
}


# What happened


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened to a job. ``state`` is where the job was from then on, None before it had run at all."""

    timestamp: datetime
    label: str
    state: JobState | None = None
    detail: str | None = field(default=None, repr=False)
    is_error: bool = False


def timeline(record: JobRecord) -> list[TimelineEntry]:
    """What is known to have happened to a job, in time order; no database is asked and nothing is redacted.

    It was created; each error entry; the current attempt began, runs or waits; the job ended. Successful attempts
    before the current one (it was put off, or waited) left no trace. An error entry without a time that can be read
    has that of the attempt or, in a job that never ran, of the job.
    """
    job = record.job
    found = [TimelineEntry(job.created_at, "Created")]
    if job.attempted_at is not None:
        found.append(_attempt(job, job.attempted_at))
    unknown = job.finalized_at or job.attempted_at or job.created_at
    for entry in job.errors:
        number = _attempt_of(entry)
        found.append(
            TimelineEntry(
                _time_of(entry) or unknown,
                "Error" if number is None else f"Attempt {number} failed",
                JobState.FAILED,
                error_text(entry),
                is_error=True,
            )
        )
    if job.state.is_terminal and job.finalized_at is not None:
        found.append(TimelineEntry(job.finalized_at, _ENDS[job.state], job.state))
    return sorted(
        found, key=lambda entry: entry.timestamp
    )  # stable: what is simultaneous stays as it was added


def _attempt(job: Job, at: datetime) -> TimelineEntry:
    match job.state:
        case JobState.RUNNING:
            return TimelineEntry(at, f"Attempt {job.attempt} is running", job.state)
        case JobState.WAITING_EXTERNAL:
            return TimelineEntry(at, f"Attempt {job.attempt} waits for its callback", job.state)
    return TimelineEntry(at, f"Attempt {job.attempt} started", JobState.RUNNING)


def _attempt_of(entry: Any) -> int | None:
    number = entry.get("attempt") if isinstance(entry, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _time_of(entry: Any) -> datetime | None:
    text = entry.get("at") if isinstance(entry, Mapping) else None
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# Documents


def dump_job(
    job_id: int, *, redacted: bool = True, using: str | None = None, plane: PlaneName | None = None
) -> dict[str, Any]:
    """A job with a summary of it, its timeline and, of a dead letter, why and when it became one.

    ``redacted=False`` shows secrets. Raises ``JobNotFound``.
    """
    record = load_job(job_id, using=using, plane=plane)
    show = _Shown(record.job.kind, redacted)
    errors = [show("errors", entry) for entry in record.job.errors]
    document: dict[str, Any] = {
        "job": _members(record, show, errors),
        "summary": {
            "original_priority": record.original_priority,
            "can_retry": record.can_retry,
            "can_cancel": record.can_cancel,
            "error_count": len(errors),
            "latest_error": errors[-1] if errors else None,
        },
        "timeline": [
            {
                "timestamp": _stamp(entry.timestamp),
                "label": entry.label,
                "state": None if entry.state is None else entry.state.value,
                "detail": entry.detail,
                "is_error": entry.is_error,
            }
            # An error may be an object: only as long as it is one, what is secret in it is known by its name.
            for entry in timeline(replace(record, job=replace(record.job, errors=tuple(errors))))
        ],
    }
    if record.dead_letter is not None:
        document["dlq"] = {
            "reason": record.dead_letter.reason,
            "dlq_at": _stamp(record.dead_letter.at),
            "original_run_lease": record.dead_letter.original_run_lease,
        }
    return document


def dump_run(
    job_id: int,
    attempt: int | None = None,
    *,
    redacted: bool = True,
    using: str | None = None,
    plane: PlaneName | None = None,
) -> dict[str, Any]:
    """One attempt of a job; None is the current one, 0 the state before the first.

    An attempt before the current one left nothing but its error entry, if it failed: it is put together from that.
    ``redacted=False`` shows secrets. Raises ``JobNotFound``, and ``ValueError`` for an attempt that left nothing.
    """
    if attempt is not None and (isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 0):
        raise ValueError(f"attempt: 0 or a number of an attempt is needed, not {attempt!r}")
    record = load_job(job_id, using=using, plane=plane)
    job = record.job
    show = _Shown(job.kind, redacted)
    wanted = job.attempt if attempt is None else attempt
    if wanted == 0 and job.attempt:
        raise ValueError(
            f"attempt: job {job_id} has started, so there is no attempt 0; the current one is {job.attempt}"
        )
    if 0 < job.attempt < wanted:
        raise ValueError(f"attempt: job {job_id} is at attempt {job.attempt}, there is no {wanted} yet")
    if wanted == job.attempt:
        return _current_run(record, show)
    entry = next((entry for entry in reversed(job.errors) if _attempt_of(entry) == wanted), None)
    if entry is None:
        raise ValueError(
            f"attempt: job {job_id} has no error entry of attempt {wanted}, and nothing else is kept of it"
        )
    return _past_run(record, wanted, entry, show)


def _current_run(record: JobRecord, show: _Shown) -> dict[str, Any]:
    job = record.job
    entry = _own_error(job)
    notes = []
    if not job.attempt:
        notes.append("The job has not started: this is how it waits for its first attempt.")
    if record.is_unreadable:
        notes.append("Parts of the job cannot be read here and are left out or shown as text.")
    return {
        **_run(record, job.attempt),
        "selected_run_lease": job.run_lease,
        "source": "current_job_row",
        "state": job.state.value,
        "started_at": _stamp(job.attempted_at),
        "finished_at": _stamp(job.finalized_at) if job.state.is_terminal else None,
        **_failure(entry, show),
        "progress": show("progress", job.progress),
        "metadata": show("metadata", dict(job.metadata)),
        "callback": _callback(record, show) if record.callback is not None else None,
        "raw_error_entry": None if entry is None else show("errors", entry),
        "notes": notes,
    }


def _past_run(record: JobRecord, attempt: int, entry: Mapping[str, Any], show: _Shown) -> dict[str, Any]:
    failure = _failure(entry, show)
    return {
        **_run(record, attempt),
        "selected_run_lease": None,
        "source": "error_history",
        "state": (JobState.FAILED if failure["terminal"] else JobState.RETRYABLE).value,
        "started_at": None,
        "finished_at": _stamp(_time_of(entry)),
        **failure,
        "progress": None,
        "metadata": None,
        "callback": None,
        "raw_error_entry": show("errors", entry),
        "notes": [
            "Of an attempt before the current one only the error entry is kept: its start and run lease are not known.",
            "Progress, metadata and callback are those of the current attempt and are not shown here.",
        ],
    }


def _run(record: JobRecord, attempt: int) -> dict[str, Any]:
    job = record.job
    return {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "selected_attempt": attempt,
        "current_attempt": job.attempt,
        "current_run_lease": job.run_lease,
    }


def _own_error(job: Job) -> Any:
    """The entry that the current attempt left; one of its number from before the job was retried is not its own."""
    for entry in reversed(job.errors):
        if job.attempt and _attempt_of(entry) == job.attempt:
            at = _time_of(entry)
            return entry if at is None or job.attempted_at is None or at >= job.attempted_at else None
    return None


def _failure(entry: Any, show: _Shown) -> dict[str, Any]:
    if entry is None:
        return {"error": None, "terminal": None}
    # Shown before it is made text, as in the timeline.
    return {
        "error": error_text(show("errors", entry)),
        "terminal": isinstance(entry, Mapping) and entry.get("terminal") is True,
    }


def _members(record: JobRecord, show: _Shown, errors: Sequence[Any]) -> dict[str, Any]:
    job = record.job
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "args": show("args", job.args),
        "state": job.state.value,
        "priority": job.priority,
        "attempt": job.attempt,
        "run_lease": job.run_lease,
        "max_attempts": job.max_attempts,
        "run_at": _stamp(job.run_at),
        "heartbeat_at": _stamp(record.heartbeat_at),
        "deadline_at": _stamp(job.deadline_at),
        "attempted_at": _stamp(job.attempted_at),
        "finalized_at": _stamp(job.finalized_at),
        "created_at": _stamp(job.created_at),
        "errors": list(errors) or None,
        "metadata": show("metadata", dict(job.metadata)),
        "tags": [tag if isinstance(tag, str) else str(tag) for tag in job.tags],
        # Other clients write the bytes as numbers, and the mask not at all.
        "unique_key": None if job.unique_key is None else list(job.unique_key),
        "unique_states": None,
        **_callback(record, show),
        "progress": show("progress", job.progress),
    }


def _callback(record: JobRecord, show: _Shown) -> dict[str, Any]:
    callback = record.callback or Callback(None, None)
    expressions = {
        "callback_filter": callback.filter,
        "callback_on_complete": callback.on_complete,
        "callback_on_fail": callback.on_fail,
        "callback_transform": callback.transform,
    }
    return {
        "callback_id": None if callback.id is None else str(callback.id),
        "callback_timeout_at": _stamp(callback.timeout_at),
        **{name: None if text is None else show("expression", text) for name, text in expressions.items()},
    }


class _Shown:
    """What may be shown of the values of one kind, as JSON."""

    def __init__(self, kind: str, redacted: bool) -> None:
        self._kind = kind
        self._redacted = redacted

    def __call__(self, part: Part, value: Any) -> Any:
        value = shown(self._kind, part, value) if self._redacted else value
        return value.text if isinstance(value, Unreadable) else value


def _stamp(at: datetime | None) -> str | None:
    """RFC 3339 in UTC."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
