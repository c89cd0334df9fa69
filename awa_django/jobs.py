"""The values that travel between producers, planes and workers.

``JobInsert`` is a job to be stored, ``Attempt`` one execution as it was claimed, ``Taken`` a job
lifted off its place, ``Landing`` where it goes next, ``Landed`` what was written, and ``Job``
what people see of any of them.

What a job was given and what it left behind is in none of their reprs, which end up in logs and reports
(contract: api/security section 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from awa_django.states import JobState

__all__ = [
    "Attempt",
    "Callback",
    "Job",
    "JobInsert",
    "JsonValue",
    "Landed",
    "Landing",
    "Taken",
    "join_payload",
    "payload_parts",
]

JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]

#: Metadata under which our own marks and results are kept; readable by every client.
RESULT_KEY = "_awa_django_result"
UNKNOWN_KIND_KEY = "_awa_django_unknown_kind"
#: Metadata under which a handler finds the payload that its callback was resumed with; every client's key.
CALLBACK_RESULT_KEY = "_awa_callback_result"
#: The place of an attempt that was claimed from the canonical tables, which have neither slots nor receipts.
NO_RECEIPT = -1

DEFAULT_PRIORITY = 2
DEFAULT_MAX_ATTEMPTS = 25


@dataclass(frozen=True, slots=True)
class JobInsert:
    """A validated job, ready to be stored. Everything in it is plain JSON or a plain value.

    ``run_at`` set means the job starts as ``scheduled``, even for an instant in the past.
    ``unique_key`` (16 bytes) and ``unique_states`` (eight characters, leftmost ``scheduled``) come together.
    """

    kind: str
    args: JsonValue = field(repr=False)
    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    run_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    unique_key: bytes | None = None
    unique_states: str | None = None
    ordering_key: bytes | None = None

    @property
    def state(self) -> JobState:
        """The state the job is stored in."""
        return JobState.AVAILABLE if self.run_at is None else JobState.SCHEDULED


def claims(unique_key: bytes | None, unique_states: str | None, state: JobState) -> bool:
    """Whether a job with this key and mask holds its key in this state."""
    return unique_key is not None and unique_states is not None and unique_states[state.bit] == "1"


def join_payload(
    metadata: Mapping[str, Any], tags: Sequence[str], errors: Sequence[Mapping[str, Any]], progress: JsonValue
) -> dict[str, Any] | None:
    """The compact form of a job's ``payload``: defaults left out, None when nothing is left.

    (contract: queue-storage/layout section 3)
    """
    payload: dict[str, Any] = {}
    if metadata:
        payload["metadata"] = dict(metadata)
    if tags:
        payload["tags"] = list(tags)
    if errors:
        payload["errors"] = list(errors)
    if progress is not None:
        payload["progress"] = progress
    return payload or None


def payload_parts(
    payload: Any,
) -> tuple[Mapping[str, Any], tuple[str, ...], tuple[Mapping[str, Any], ...], Any]:
    """Metadata, tags, errors and progress of a stored payload; a part of a shape that no contract knows is absent."""
    stored = payload if isinstance(payload, dict) else {}
    metadata, tags, errors = stored.get("metadata"), stored.get("tags"), stored.get("errors")
    return (
        metadata if isinstance(metadata, dict) else {},
        tuple(tags) if isinstance(tags, list) else (),
        tuple(errors) if isinstance(errors, list) else (),
        stored.get("progress"),
    )


class Attempt(NamedTuple):
    """One execution as it was claimed; identified by ``(job_id, run_lease)`` on the plane it was claimed from.

    ``priority`` is the effective, possibly aged one; ``lane_priority`` the job's own. ``batch_id`` and
    ``batch_index`` are None for an attempt with a deadline, whose receipt is a row. An attempt from the canonical
    tables has ``NO_RECEIPT`` for its slots, generation, lane position and receipt.
    """

    job_id: int
    run_lease: int
    kind: str
    queue: str
    args: JsonValue
    attempt: int
    max_attempts: int
    priority: int
    lane_priority: int
    ready_slot: int
    ready_generation: int
    lane_seq: int
    enqueue_shard: int
    claim_slot: int
    receipt_id: int
    batch_id: int | None
    batch_index: int | None
    run_at: datetime
    deadline_at: datetime | None
    attempted_at: datetime | None
    created_at: datetime
    unique_key: bytes | None
    unique_states: str | None
    payload: Mapping[str, Any] | None

    def __repr__(self) -> str:
        return (
            f"Attempt(job_id={self.job_id}, run_lease={self.run_lease}, kind={self.kind!r}, queue={self.queue!r}, "
            f"attempt={self.attempt} of {self.max_attempts})"
        )

    @property
    def is_last(self) -> bool:
        """Whether a failure of this attempt is final."""
        return self.attempt >= self.max_attempts

    @property
    def is_canonical(self) -> bool:
        """Whether the attempt was claimed from the canonical tables."""
        return self.receipt_id == NO_RECEIPT

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The stored metadata."""
        return (self.payload or {}).get("metadata") or {}

    @property
    def job(self) -> Job:
        """The claimed job as people see it."""
        payload = self.payload or {}
        metadata = dict(payload.get("metadata") or {})
        if self.priority != self.lane_priority:
            metadata.setdefault("_awa_original_priority", self.lane_priority)
        return Job(
            id=self.job_id,
            kind=self.kind,
            queue=self.queue,
            args=self.args,
            state=JobState.RUNNING,
            priority=self.priority,
            attempt=self.attempt,
            max_attempts=self.max_attempts,
            run_at=self.run_at,
            created_at=self.created_at,
            attempted_at=self.attempted_at,
            deadline_at=self.deadline_at,
            metadata=metadata,
            tags=tuple(payload.get("tags") or ()),
            errors=tuple(payload.get("errors") or ()),
            progress=payload.get("progress"),
            run_lease=self.run_lease,
            unique_key=self.unique_key,
        )


class Callback(NamedTuple):
    """What an attempt waits for: the token, until when, and the expressions that judge the answer (CEL, or None)."""

    id: UUID | None
    timeout_at: datetime | None
    filter: str | None = None
    on_complete: str | None = None
    on_fail: str | None = None
    transform: str | None = None

    def __repr__(self) -> str:
        return f"Callback(id={self.id}, timeout_at={self.timeout_at})"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as handlers, follow-ups and operators see it. A copy: changing it changes nothing stored."""

    id: int
    kind: str
    queue: str
    args: JsonValue = field(repr=False)
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    attempted_at: datetime | None = None
    finalized_at: datetime | None = None
    deadline_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    progress: JsonValue = field(default=None, repr=False)
    run_lease: int = 0
    unique_key: bytes | None = None
    #: What an outside system answers with, while the job is to be or being waited for.
    callback_id: UUID | None = None
    callback_timeout_at: datetime | None = None
    #: True when an enqueue found this job already holding the unique key instead of storing a new one.
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A job lifted off its place, with all that any next place needs.

    ``lane_seq`` is None for a job that had no lane position (it was deferred). ``taken_at`` is the
    database's clock, one value for all jobs taken together. ``callback`` is None where nothing of a callback is stored.
    ``canonical`` says which plane it was taken from: ids of the two planes overlap.
    """

    job_id: int
    run_lease: int
    kind: str
    queue: str
    args: JsonValue = field(repr=False)
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    run_at: datetime
    attempted_at: datetime | None
    created_at: datetime
    unique_key: bytes | None
    unique_states: str | None
    metadata: Mapping[str, Any] = field(repr=False)
    tags: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...] = field(repr=False)
    progress: JsonValue = field(repr=False)
    taken_at: datetime
    ready_slot: int | None = None
    ready_generation: int | None = None
    enqueue_shard: int = 0
    lane_seq: int | None = None
    finalized_at: datetime | None = None
    stored_payload: Mapping[str, Any] | None = field(default=None, repr=False)
    callback: Callback | None = None
    canonical: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        """What identifies the attempt that was taken."""
        return self.job_id, self.run_lease

    def claims(self, state: JobState) -> bool:
        """Whether the job holds its unique key in this state."""
        return claims(self.unique_key, self.unique_states, state)

    def yielding(self, state: JobState) -> Taken:
        """The same job with a mask that leaves this state out, as another job holds the key that it would claim there.

        The key itself stays, so that the job asks for it when it goes on to another state that claims it.
        """
        if not self.claims(state):
            return self
        assert self.unique_states is not None
        mask = self.unique_states
        return replace(self, unique_states=f"{mask[: state.bit]}0{mask[state.bit + 1 :]}")


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a taken job goes, decided before any further SQL.

    ``run_at`` is an instant; else ``delay`` counts from ``taken.taken_at`` in seconds; neither with ``state``
    retryable means the database's backoff. What else should differ from the taken job (queue, priority,
    ``attempted_at``) is changed in ``taken``. ``errors``, ``metadata`` and ``progress`` are complete, not additions.
    ``dlq_reason`` set means the dead-letter table.
    """

    taken: Taken
    state: JobState
    attempt: int
    errors: tuple[Mapping[str, Any], ...] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    progress: JsonValue = field(default=None, repr=False)
    delay: float | None = None
    run_at: datetime | None = None
    finalized_at: datetime | None = None
    dlq_reason: str | None = None

    def replace(self, **changes: Any) -> Landing:
        """The same landing with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Landed:
    """A transition that was written: what it was, and where the job is now.

    ``duplicate`` says that the job lost its unique key to a newer one and ended cancelled instead. ``job_id`` is set
    where the job went to the other plane and got a new id there.
    """

    landing: Landing
    run_at: datetime
    duplicate: bool = False
    job_id: int | None = None

    @property
    def job(self) -> Job:
        """The job as the transition left it."""
        landing, taken = self.landing, self.landing.taken
        waits = landing.state is JobState.WAITING_EXTERNAL and taken.callback is not None
        return Job(
            id=taken.job_id if self.job_id is None else self.job_id,
            kind=taken.kind,
            queue=taken.queue,
            args=taken.args,
            state=landing.state,
            priority=taken.priority,
            attempt=landing.attempt,
            max_attempts=taken.max_attempts,
            run_at=self.run_at,
            created_at=taken.created_at,
            attempted_at=taken.attempted_at,
            finalized_at=landing.finalized_at,
            metadata=landing.metadata,
            tags=taken.tags,
            errors=landing.errors,
            progress=landing.progress,
            run_lease=taken.run_lease,
            unique_key=taken.unique_key,
            callback_id=taken.callback.id if waits and taken.callback else None,
            callback_timeout_at=taken.callback.timeout_at if waits and taken.callback else None,
        )
