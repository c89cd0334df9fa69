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
from uuid import UUID

from awa_django.jobs import CALLBACK_RESULT_KEY, Attempt, Job, JsonValue, Landed, Landing, Taken
from awa_django.outcomes import (
    CallbackFailed,
    CallbackRetried,
    Cancel,
    Completed,
    DeadlineExceeded,
    Exhausted,
    Failed,
    MissingCallback,
    OperatorCancel,
    OperatorRetry,
    Outcome,
    Postponed,
    Rescued,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.states import JobState

__all__ = [
    "RULES",
    "Event",
    "Notice",
    "Rule",
    "Standing",
    "Transition",
    "duplicate_of",
    "instead",
    "land",
    "land_one",
    "missed_park",
    "notice_of",
    "plan",
    "promote",
    "success_notice",
]


class Event(StrEnum):
    """What listeners hear of a transition."""

    COMPLETED = "completed"
    RETRIED = "retried"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    RESCUED = "rescued"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where one kind of outcome leads.

    ``closes`` is the label on the receipt's closure. ``terminal`` marks the error entry as final, and
    ``canonical_terminal`` says whether that also goes for the canonical tables, which other clients mark less
    often. ``resets_attempt`` gives the job all its attempts again.
    """

    state: JobState
    event: Event | None
    closes: str
    keeps_progress: bool = True
    refunds_attempt: bool = False
    resets_attempt: bool = False
    terminal: bool = False
    canonical_terminal: bool = False
    finalizes: bool = True
    dlq_reason: str | None = None


def _final(dlq_reason: str) -> Rule:
    """A failure that is known to be final when the handler ends."""
    return Rule(
        JobState.FAILED,
        Event.EXHAUSTED,
        "failed",
        terminal=True,
        canonical_terminal=True,
        dlq_reason=dlq_reason,
    )


RULES: Mapping[type[Outcome], Rule] = {
    Completed: Rule(JobState.COMPLETED, Event.COMPLETED, "completed", keeps_progress=False),
    RetryAfter: Rule(JobState.RETRYABLE, Event.RETRIED, "retryable"),
    Failed: Rule(JobState.RETRYABLE, Event.RETRIED, "retryable"),
    Exhausted: Rule(
        JobState.FAILED, Event.EXHAUSTED, "failed", terminal=True, dlq_reason=Exhausted.dlq_reason
    ),
    Terminal: _final(Terminal.dlq_reason),
    MissingCallback: _final(MissingCallback.dlq_reason),
    Cancel: Rule(JobState.CANCELLED, Event.CANCELLED, "cancelled"),
    Rescued: Rule(JobState.RETRYABLE, Event.RESCUED, "rescued"),
    DeadlineExceeded: Rule(JobState.RETRYABLE, Event.RESCUED, "deadline_expired"),
    # The receipt stays open: the attempt goes on waiting under its lease.
    WaitForCallback: Rule(JobState.WAITING_EXTERNAL, Event.WAITING_FOR_CALLBACK, "", finalizes=False),
    CallbackFailed: Rule(JobState.FAILED, Event.EXHAUSTED, "failed", terminal=True),
    CallbackRetried: Rule(
        JobState.AVAILABLE, Event.RETRIED, "retryable", resets_attempt=True, finalizes=False
    ),
    # Silent: no event, no follow-up.
    OperatorCancel: Rule(JobState.CANCELLED, None, "cancelled"),
    OperatorRetry: Rule(JobState.AVAILABLE, None, "rescue", resets_attempt=True, finalizes=False),
    Snooze: Rule(JobState.SCHEDULED, None, "scheduled", refunds_attempt=True, finalizes=False),
    Postponed: Rule(JobState.SCHEDULED, None, "scheduled", refunds_attempt=True, finalizes=False),
}


class Transition(NamedTuple):
    """The end of one attempt, decided before any SQL runs.

    ``progress`` is the handler's last value, None when it never set one. ``metadata`` is merged into
    the stored one. ``dead_letters`` is the queue's policy for final failures. ``left_state`` says that
    the worker may have written a heartbeat, progress or a lease for the attempt, ``has_lease`` that it may have become
    a lease. ``notes`` are further errors to record; follow-ups of ``muted`` are not stored. ``duration`` is the
    handler's, in seconds.
    """

    attempt: Attempt
    outcome: Outcome
    rule: Rule
    progress: JsonValue = None
    metadata: Mapping[str, Any] | None = None
    dead_letters: bool = False
    left_state: bool = True
    duration: float = 0.0
    notes: tuple[str, ...] = ()
    muted: Event | None = None
    has_lease: bool = False

    def __repr__(self) -> str:
        return f"Transition({self.attempt!r}, {self.outcome!r})"

    @property
    def pair(self) -> tuple[int, int]:
        """What identifies the attempt."""
        return self.attempt.job_id, self.attempt.run_lease

    @property
    def closes(self) -> str:
        """The label that closes the attempt's receipt."""
        return "dlq" if self.dlq_reason else self.rule.closes

    @property
    def dlq_reason(self) -> str | None:
        """Why the job goes to the dead-letter table, or None if it does not."""
        return self.rule.dlq_reason if self.dead_letters else None


def plan(
    attempt: Attempt,
    outcome: Outcome,
    *,
    progress: JsonValue = None,
    metadata: Mapping[str, Any] | None = None,
    dead_letters: bool = False,
    retry_after_exhausts: bool = False,
    left_state: bool = True,
    duration: float = 0.0,
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
        dead_letters,
        left_state,
        duration,
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
        case (
            Failed(error)
            | Exhausted(error)
            | Terminal(error)
            | MissingCallback(error)
            | CallbackFailed(error)
            | Rescued(error)
            | DeadlineExceeded(error)
        ):
            return error
        case Cancel(reason):
            return f"cancelled: {reason}"
    return None


def _attempt_after(taken: Taken, rule: Rule) -> int:
    if rule.resets_attempt:
        return 0
    return max(taken.attempt - 1, 0) if rule.refunds_attempt else taken.attempt


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
        final = rule.canonical_terminal if taken.canonical else rule.terminal
        entry = error_entry(text, taken.attempt, taken.taken_at, terminal=final)
        if isinstance(outcome, CallbackFailed) and outcome.expression is not None:
            entry["expression"] = outcome.expression
        errors = (*errors, entry)
    kept = (progress if progress is not None else taken.progress) if rule.keeps_progress else None
    return Landing(
        taken=taken,
        state=rule.state,
        attempt=_attempt_after(taken, rule),
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
        landing = land_one(
            job,
            item.outcome,
            rule=item.rule,
            progress=item.progress,
            metadata=item.metadata,
            dlq_reason=item.dlq_reason,
        )
        for note in item.notes:
            entry = error_entry(note, job.attempt, job.taken_at, terminal=False)
            landing = landing.replace(errors=(*landing.errors, entry))
        landings.append(landing)
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
#: The same of a job that was on its way to the other plane.
RESCHEDULED_DUPLICATE = "rescheduled as duplicate: unique claim held by a newer job"


def duplicate_of(landing: Landing, *, text: str = RESCUED_DUPLICATE) -> Landing:
    """The cancelled row that a job ends as when it may not enter its state (contract: queue-storage/rescue section 6).

    The holder keeps the key. This row names it and does not claim it, whatever its mask said of ``cancelled``.
    """
    taken = landing.taken
    entry = error_entry(text, taken.attempt, taken.taken_at, terminal=not taken.canonical)
    return landing.replace(
        taken=taken.yielding(JobState.CANCELLED),
        state=JobState.CANCELLED,
        attempt=taken.attempt,
        errors=(*landing.errors, entry),
        delay=None,
        run_at=None,
        finalized_at=taken.taken_at,
        dlq_reason=None,
    )


class Notice(NamedTuple):
    """What happened to a job, for follow-ups and listeners: the event, and the row that the transition wrote.

    ``error`` and ``attempt`` are those of the attempt that ended, ``next_run_at`` is set for a retry, ``reason`` for a
    cancellation and a rescue, ``duration`` (seconds) for a success of a handler. ``pair`` identifies the attempt, on
    the plane it was claimed from.
    """

    event: Event
    job: Job
    attempt: int
    pair: tuple[int, int]
    error: str = ""
    reason: str = ""
    next_run_at: datetime | None = None
    duration: float = 0.0

    def __repr__(self) -> str:
        return f"Notice({self.event}, {self.job!r}, attempt={self.attempt})"


def notice_of(
    landed: Landed, outcome: Outcome, event: Event | None, *, reason: str = "", duration: float = 0.0
) -> Notice | None:
    """What there is to tell of a transition that was written; None for a silent one, and for a job that lost its key.

    ``reason`` is that of a rescue. (contract: runtime/followups-events sections 1 and 3)
    """
    if event is None or landed.duplicate:
        return None
    taken, job = landed.landing.taken, landed.job
    error = _error_text(outcome) or ""
    if isinstance(outcome, CallbackRetried) and taken.errors:
        error = str(taken.errors[-1].get("error") or "")
    return Notice(
        event,
        job,
        taken.attempt,
        taken.pair,
        error=error if event in (Event.RETRIED, Event.EXHAUSTED) else "",
        reason=outcome.reason if isinstance(outcome, Cancel) else reason,
        next_run_at=job.run_at if event is Event.RETRIED else None,
        duration=duration,
    )


def success_notice(transition: Transition, finalized_at: datetime | None) -> Notice:
    """What there is to tell of a success that was recorded without reading the job back (DEC-9)."""
    attempt = transition.attempt
    job = replace(
        attempt.job,
        state=JobState.COMPLETED,
        priority=attempt.lane_priority,
        metadata={**attempt.metadata, **(transition.metadata or {})},
        progress=None,
        deadline_at=None,
        finalized_at=finalized_at,
    )
    return Notice(Event.COMPLETED, job, attempt.attempt, transition.pair, duration=transition.duration)


class Standing(NamedTuple):
    """Where a job is now, as its plane tells somebody who lost sight of it.

    ``callback_id`` is the callback that its attempt has registered, in whatever state. ``resumed`` says that a payload
    lies ready for the attempt, which may be JSON null: ``result``.
    """

    job_id: int
    run_lease: int
    state: JobState
    callback_id: UUID | None = None
    resumed: bool = False
    result: JsonValue = None

    def __repr__(self) -> str:
        return f"Standing(job_id={self.job_id}, run_lease={self.run_lease}, state={self.state})"


def missed_park(transition: Transition, standing: Standing | None) -> Transition | None:
    """What becomes of an attempt that wanted to wait and could not be parked; None if somebody else decided.

    ``standing`` is that of its job, read afterwards, None for a job that is gone. An answer that came before the
    attempt waited is left for its next run, at once (DEC-6); an attempt that never registered anything fails
    (DEC-7). (contract: runtime/outcomes, WaitForCallback)
    """
    attempt = transition.attempt
    if standing is None or standing.state is not JobState.RUNNING or standing.run_lease != attempt.run_lease:
        return None
    if standing.callback_id is not None:
        return None
    if standing.resumed and (transition.has_lease or not attempt.is_canonical):
        # A canonical row may carry the answer of an earlier attempt, whose handler left it there.
        result = {CALLBACK_RESULT_KEY: standing.result}
        return instead(transition, Postponed(0.0, result), metadata=result)
    return instead(transition, MissingCallback())


def instead(
    transition: Transition, outcome: Outcome, *, metadata: Mapping[str, Any] | None = None
) -> Transition:
    """The end of the same attempt by another outcome."""
    rule = RULES[type(outcome)]
    return transition._replace(outcome=outcome, rule=rule, metadata=metadata, left_state=True)
