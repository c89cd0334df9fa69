"""What a batch operation can do to jobs: each change with the words it is stored in, and its verb.

Two of them every client knows, so whichever leads may make them. The others are ours alone.
(contract: api/admin_ops section 5, schema section 5.8)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from awa_django import telemetry
from awa_django.jobs import Job
from awa_django.operations.change import Verb
from awa_django.operations.verbs import (
    CANCEL,
    DISCARD,
    PURGE,
    RETRY,
    RUN_NOW,
    count_dead_lettered,
    dead_letter_verb,
    move_verb,
    redrive_verb,
)
from awa_django.states import JobState
from awa_django.validation import checked_priority, checked_queue, checked_run_at

__all__ = [
    "CHANGES",
    "BatchChange",
    "Cancel",
    "ChangeKind",
    "DeadLetter",
    "Discard",
    "MoveQueue",
    "Purge",
    "Redrive",
    "Retry",
    "RunNow",
    "SetPriority",
    "kind_of",
    "read_spec",
    "spec_of",
    "verb_of",
]


@dataclass(frozen=True, slots=True)
class SetPriority:
    """Another priority, 1 (first) to 4, of available and scheduled jobs."""

    priority: int

    def __post_init__(self) -> None:
        checked_priority(self.priority)


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """Another queue, and another priority if one is given, of available and scheduled jobs."""

    queue: str
    priority: int | None = None

    def __post_init__(self) -> None:
        checked_queue(self.queue)
        if self.priority is not None:
            checked_priority(self.priority)


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed, cancelled and waiting jobs run again, now, with all their attempts."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Jobs that have not finished end. One that runs is told to stop."""


@dataclass(frozen=True, slots=True)
class RunNow:
    """Scheduled and retryable jobs become available at once."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Failed jobs and dead letters are forgotten for good."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Failed jobs become dead letters, with this reason on record."""

    reason: str = "manual"

    def __post_init__(self) -> None:
        dead_letter_verb(self.reason)


@dataclass(frozen=True, slots=True)
class Redrive:
    """Dead letters run again with all their attempts: now, or at a time to come; elsewhere, if so given.

    ``run_at`` is an instant, or a timedelta from now; a naive one is of the current time zone.
    """

    run_at: datetime | timedelta | None = None
    priority: int | None = None
    queue: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_at", checked_run_at(self.run_at))
        if self.priority is not None:
            checked_priority(self.priority)
        if self.queue is not None:
            checked_queue(self.queue)


@dataclass(frozen=True, slots=True)
class Purge:
    """Dead letters are forgotten for good."""


BatchChange = SetPriority | MoveQueue | Retry | Cancel | RunNow | Discard | DeadLetter | Redrive | Purge


def _moved(change: Any, jobs: Sequence[Job]) -> None:
    count_dead_lettered(jobs, change.reason)


def _redriven(change: Any, jobs: Sequence[Job]) -> None:
    for queue, count in Counter(job.queue for job in jobs).items():
        telemetry.current().dlq_retried(count, queue=queue)


def _purged(change: Any, jobs: Sequence[Job]) -> None:
    for queue, count in Counter(job.queue for job in jobs).items():
        telemetry.current().dlq_purged(count, queue=queue)


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """One kind of change.

    ``does`` and ``after`` stand around "jobs" or whatever ``to`` calls them, in a sentence. ``is_wire`` says that every
    client knows it. ``counted`` is told of the jobs that changed, after the commit. ``rounds`` is how often all places
    are looked through: twice where jobs may come back to a place that was looked through already.
    """

    name: str
    made_by: type[BatchChange]
    verb: Callable[[Any], Verb]
    does: str
    to: str = "jobs"
    after: Callable[[Any], str] = lambda change: ""
    is_wire: bool = False
    counted: Callable[[Any, Sequence[Job]], None] | None = None
    rounds: int = 1

    def states(self, change: BatchChange) -> frozenset[JobState]:
        """The states in which jobs can be changed; dead letters are failed."""
        verb = self.verb(change)
        return verb.states | (frozenset({JobState.FAILED}) if verb.dead else frozenset())

    def sentence(self, change: BatchChange) -> str:
        """What is done, in words: ``move jobs to queue slow``."""
        return f"{self.does} {self.to}{self.after(change)}"


def _to_queue(change: Any) -> str:
    return f" to queue {change.queue}{_with_priority(change)}"


def _with_priority(change: Any) -> str:
    return "" if change.priority is None else f" with priority {change.priority}"


def _redrive_to(change: Any) -> str:
    to = "" if change.queue is None else f" to queue {change.queue}"
    at = "" if change.run_at is None else f" at {change.run_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return to + _with_priority(change) + at


CHANGES: Mapping[str, ChangeKind] = {
    kind.name: kind
    for kind in (
        ChangeKind(
            "set_priority",
            SetPriority,
            lambda change: move_verb(None, change.priority),
            "give",
            after=lambda change: f" priority {change.priority}",
            is_wire=True,
        ),
        ChangeKind(
            "move_queue",
            MoveQueue,
            lambda change: move_verb(change.queue, change.priority),
            "move",
            after=_to_queue,
            is_wire=True,
        ),
        ChangeKind("retry", Retry, lambda change: RETRY, "retry"),
        ChangeKind("cancel", Cancel, lambda change: CANCEL, "cancel", rounds=2),
        ChangeKind("run_now", RunNow, lambda change: RUN_NOW, "run", after=lambda change: " now"),
        ChangeKind("discard", Discard, lambda change: DISCARD, "discard", to="failed jobs and dead letters"),
        ChangeKind(
            "dead_letter",
            DeadLetter,
            lambda change: dead_letter_verb(change.reason),
            "dead-letter",
            to="failed jobs",
            after=lambda change: f' as "{change.reason}"',
            counted=_moved,
        ),
        ChangeKind(
            "redrive",
            Redrive,
            lambda change: redrive_verb(change.run_at, change.priority, change.queue),
            "redrive",
            to="dead letters",
            after=_redrive_to,
            counted=_redriven,
        ),
        ChangeKind("purge", Purge, lambda change: PURGE, "purge", to="dead letters", counted=_purged),
    )
}
_BY_TYPE = {kind.made_by: kind for kind in CHANGES.values()}


def kind_of(change: BatchChange) -> ChangeKind:
    """The kind of a change; raises ``TypeError`` for what is none."""
    kind = _BY_TYPE.get(type(change))
    if kind is None:
        known = ", ".join(item.made_by.__name__ for item in CHANGES.values())
        raise TypeError(f"change: one of {known} is needed, not {change!r}")
    return kind


def verb_of(change: BatchChange) -> Verb:
    """What is done to each job."""
    return kind_of(change).verb(change)


def spec_of(change: BatchChange) -> dict[str, Any]:
    """A change as it is stored."""
    spec: dict[str, Any] = {"op_kind": kind_of(change).name}
    for item in fields(change):
        value = getattr(change, item.name)
        spec[item.name] = value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
    return spec


def read_spec(op_kind: str, spec: Mapping[str, Any]) -> BatchChange:
    """The change that an operation makes; raises ``ValueError`` for one that no client writes."""
    kind = CHANGES.get(op_kind)
    if kind is None:
        raise ValueError(f"op_kind: one of {', '.join(CHANGES)} is needed, not {op_kind!r}")
    values = {item.name: spec[item.name] for item in fields(kind.made_by) if spec.get(item.name) is not None}
    if "run_at" in values:
        values["run_at"] = datetime.fromisoformat(values["run_at"])
    try:
        return kind.made_by(**values)
    except TypeError as error:
        raise ValueError(f"spec of {op_kind}: {error}") from None
