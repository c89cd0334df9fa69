"""Outcome to transition: the one table of what happens to an attempt, and the plan made from it.

Pure: no cursor, no clock. A plane's ``take`` supplies the job and the database's time,
:func:`land` says where it goes. (contract: runtime/outcomes, queue-storage/attempts section 2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from awa_django.jobs import Attempt, JsonValue, Landing, Taken
from awa_django.outcomes import (
    Cancel,
    Completed,
    DeadlineExceeded,
    Exhausted,
    Failed,
    Outcome,
    Postponed,
    Rescued,
    RetryAfter,
    Snooze,
    Terminal,
)
from awa_django.states import JobState

__all__ = ["RULES", "Event", "Rule", "Transition", "duplicate_of", "land", "land_one", "plan", "promote"]


class Event(StrEnum):
    """What listeners hear of a transition."""

    COMPLETED = "completed"
    RETRIED = "retried"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    RESCUED = "rescued"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where one kind of outcome leads.

    ``closes`` is the label on the receipt's closure. ``terminal`` marks the error entry as final.
    """

    state: JobState
    event: Event | None
    closes: str
    keeps_progress: bool = True
    refunds_attempt: bool = False
    terminal: bool = False
    finalizes: bool = True
    dlq_reason: str | None = None


RULES: Mapping[type[Outcome], Rule] = {
    Completed: Rule(JobState.COMPLETED, Event.COMPLETED, "completed", keeps_progress=False),
    RetryAfter: Rule(JobState.RETRYABLE, Event.RETRIED, "retryable"),
    Failed: Rule(JobState.RETRYABLE, Event.RETRIED, "retryable"),
    Exhausted: Rule(
        JobState.FAILED, Event.EXHAUSTED, "failed", terminal=True, dlq_reason=Exhausted.dlq_reason
    ),
    Terminal: Rule(JobState.FAILED, Event.EXHAUSTED, "failed", terminal=True, dlq_reason=Terminal.dlq_reason),
    Cancel: Rule(JobState.CANCELLED, Event.CANCELLED, "cancelled"),
    Rescued: Rule(JobState.RETRYABLE, Event.RESCUED, "rescued"),
    DeadlineExceeded: Rule(JobState.RETRYABLE, Event.RESCUED, "deadline_expired"),
    # Silent: no event, no follow-up.
    Snooze: Rule(JobState.SCHEDULED, None, "scheduled", refunds_attempt=True, finalizes=False),
    Postponed: Rule(JobState.SCHEDULED, None, "scheduled", refunds_attempt=True, finalizes=False),
}


class Transition(NamedTuple):
    """The end of one attempt, decided before any SQL runs.

    ``progress`` is the handler's last value, None when it never set one. ``metadata`` is merged into
    the stored one. ``dead_letter`` sends a final failure to the dead-letter table. ``left_state`` says that
    the worker may have written a heartbeat, progress or a lease for the attempt.
    """

    attempt: Attempt
    outcome: Outcome
    rule: Rule
    progress: JsonValue = None
    metadata: Mapping[str, Any] | None = None
    dead_letter: bool = False
    left_state: bool = True

    @property
    def closes(self) -> str:
        """The label that closes the attempt's receipt."""
        return "dlq" if self.dlq_reason else self.rule.closes

    @property
    def dlq_reason(self) -> str | None:
        """Why the job goes to the dead-letter table, or None if it does not."""
        return self.rule.dlq_reason if self.dead_letter else None


def plan(
    attempt: Attempt,
    outcome: Outcome,
    *,
    progress: JsonValue = None,
    metadata: Mapping[str, Any] | None = None,
    dead_letters: bool = False,
    retry_after_exhausts: bool = False,
    left_state: bool = True,
) -> Transition:
    """Decide where one attempt leads.

    A failure in the last attempt is final; so is a RetryAfter if ``retry_after_exhausts`` (DEC-3).
    """
    if attempt.is_last:
        if isinstance(outcome, Failed):
            outcome = Exhausted(outcome.error)
        elif isinstance(outcome, RetryAfter) and retry_after_exhausts:
            outcome = Exhausted(f"RetryAfter({outcome.seconds:g} s) in the last attempt")
    rule = RULES[type(outcome)]
    return Transition(
        attempt,
        outcome,
        rule,
        progress,
        metadata,
        dead_letters and rule.dlq_reason is not None,
        left_state,
    )


def error_entry(text: str, attempt: int, at: datetime, *, terminal: bool) -> dict[str, Any]:
    """One element of a job's ``errors`` (contract: queue-storage/layout section 3)."""
    # PostgreSQL stores no U+0000 in JSON, and an error must never be a reason to lose the outcome.
    entry: dict[str, Any] = {
        "error": text.replace("\0", "\ufffd").encode("utf-8", "replace").decode(),
        "attempt": attempt,
        "at": at.astimezone(UTC).isoformat(),
    }
    if terminal:
        entry["terminal"] = True
    return entry


def _error_text(outcome: Outcome) -> str | None:
    match outcome:
        case Failed(error) | Exhausted(error) | Terminal(error) | Rescued(error) | DeadlineExceeded(error):
            return error
        case Cancel(reason):
            return f"cancelled: {reason}"
    return None


def land_one(
    taken: Taken,
    outcome: Outcome,
    *,
    rule: Rule | None = None,
    progress: JsonValue = None,
    metadata: Mapping[str, Any] | None = None,
    dlq_reason: str | None = None,
) -> Landing:
    """Where one taken job goes. ``progress`` None keeps the stored value."""
    rule = rule or RULES[type(outcome)]
    text = _error_text(outcome)
    errors = taken.errors
    if text is not None:
        errors = (*errors, error_entry(text, taken.attempt, taken.taken_at, terminal=rule.terminal))
    kept = (progress if progress is not None else taken.progress) if rule.keeps_progress else None
    return Landing(
        taken=taken,
        state=rule.state,
        attempt=max(taken.attempt - 1, 0) if rule.refunds_attempt else taken.attempt,
        errors=errors,
        metadata={**taken.metadata, **metadata} if metadata else taken.metadata,
        progress=kept,
        delay=outcome.seconds if isinstance(outcome, RetryAfter | Snooze | Postponed) else None,
        finalized_at=taken.taken_at if rule.finalizes else None,
        dlq_reason=dlq_reason,
    )


def land(taken: Sequence[Taken], transitions: Sequence[Transition]) -> list[Landing]:
    """Pair what was taken with what was decided; transitions that took nothing are left out."""
    decided = {(item.attempt.job_id, item.attempt.run_lease): item for item in transitions}
    landings = []
    for job in taken:
        item = decided[job.job_id, job.run_lease]
        if isinstance(item.outcome, Completed):
            # A success says what its claim said, which is nothing for a compact receipt.
            job = replace(job, attempted_at=item.attempt.attempted_at)
        landings.append(
            land_one(
                job,
                item.outcome,
                rule=item.rule,
                progress=item.progress,
                metadata=item.metadata,
                dlq_reason=item.dlq_reason,
            )
        )
    return landings


def promote(taken: Taken) -> Landing:
    """A deferred job whose time has come."""
    return Landing(
        taken=taken,
        state=JobState.AVAILABLE,
        attempt=taken.attempt,
        errors=taken.errors,
        metadata=taken.metadata,
        progress=taken.progress,
    )


#: What a job says when a newer one holds its unique key.
RESCUED_DUPLICATE = "rescued as duplicate: unique claim held by a newer job"


def duplicate_of(landing: Landing, *, text: str = RESCUED_DUPLICATE) -> Landing:
    """The cancelled row that a job ends as when it may not enter its state (contract: queue-storage/rescue section 6).

    The holder keeps the key; this row keeps it only where no claim is needed for ``cancelled``.
    """
    taken = landing.taken
    entry = error_entry(text, taken.attempt, taken.taken_at, terminal=True)
    return landing.replace(
        state=JobState.CANCELLED,
        attempt=taken.attempt,
        errors=(*landing.errors, entry),
        delay=None,
        finalized_at=taken.taken_at,
        dlq_reason=None,
        keeps_unique=not taken.claims(JobState.CANCELLED),
    )
