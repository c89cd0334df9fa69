"""One line in the log for each outcome, with the attempt's fields (contract: runtime/observability section 4)."""

from __future__ import annotations

import logging

from awa_django.jobs import CALLBACK_RESULT_KEY, Landed
from awa_django.outcomes import Postponed, WaitForCallback
from awa_django.planes.base import Settlement
from awa_django.redaction import shown_text
from awa_django.states import JobState
from awa_django.telemetry import Telemetry, log_fields
from awa_django.transitions import Transition

__all__ = ["log_settlement"]

logger = logging.getLogger("awa_django.worker")


def log_settlement(settlement: Settlement, live: Telemetry) -> None:
    """Say what became of attempts, once that is durable. Successes cost nothing where INFO is off."""
    for item in settlement.stale:
        attempt = item.attempt
        # That a callback was answered before its job could wait is no trouble (DEC-8).
        answered = isinstance(item.outcome, WaitForCallback)
        logger.log(
            logging.INFO if answered else logging.WARNING,
            "job %s (%s): the outcome of attempt %d came too late; somebody else has decided",
            attempt.job_id,
            attempt.kind,
            attempt.attempt,
            extra=log_fields(attempt, "stale", live.context_of(item.pair)),
        )
    if logger.isEnabledFor(logging.INFO):
        for item in settlement.completed:
            _log_success(item, live)
    for landed, item in zip(settlement.landed, settlement.transitions, strict=True):
        if landed.landing.state is not JobState.COMPLETED:
            _log_landed(landed, item, live)
        elif logger.isEnabledFor(logging.INFO):
            _log_success(item, live)


def _log_success(item: Transition, live: Telemetry) -> None:
    attempt = item.attempt
    logger.info(
        "job %s (%s) completed in attempt %d after %.3f s",
        attempt.job_id,
        attempt.kind,
        attempt.attempt,
        item.duration,
        extra=log_fields(attempt, JobState.COMPLETED.value, live.context_of(item.pair)),
    )


def _log_landed(landed: Landed, item: Transition, live: Telemetry) -> None:
    """One line for what became of an attempt that did not succeed; what a handler raised with its traceback."""
    job, number = landed.job, item.attempt.attempt
    errors = len(job.errors) > len(landed.landing.taken.errors)
    entry = shown_text(job.kind, job.errors[-1]["error"]) if errors else ""
    when = job.run_at.isoformat(timespec="seconds")
    outcome = "duplicate" if landed.duplicate else job.state.value
    extra = log_fields(item.attempt, outcome, live.context_of(item.pair))
    if landed.duplicate:
        logger.warning("job %s (%s) ended as a duplicate: %s", job.id, job.kind, entry, extra=extra)
    elif job.state is JobState.FAILED:
        logger.error(
            "job %s (%s) failed for good in attempt %d of %d: %s",
            job.id,
            job.kind,
            number,
            job.max_attempts,
            entry,
            extra=extra,
        )
    elif job.state is JobState.RETRYABLE and errors:
        logger.warning(
            "job %s (%s) attempt %d failed, again at %s: %s",
            job.id,
            job.kind,
            number,
            when,
            entry,
            extra=extra,
        )
    elif isinstance(item.outcome, Postponed) and CALLBACK_RESULT_KEY in item.outcome.metadata:
        logger.warning(
            "job %s (%s) was resumed before it waited; it runs again at once, with the payload in metadata[%r]",
            job.id,
            job.kind,
            CALLBACK_RESULT_KEY,
            extra=extra,
        )
    elif isinstance(item.outcome, WaitForCallback) and str(item.outcome.token) != str(job.callback_id):
        logger.warning(
            "job %s (%s) waits for callback %s, the last one it registered; its handler returned another one, %s",
            job.id,
            job.kind,
            job.callback_id,
            item.outcome.token,
            extra=extra,
        )
    elif job.state in (JobState.RETRYABLE, JobState.SCHEDULED):
        logger.info(
            "job %s (%s) runs again at %s, after attempt %d", job.id, job.kind, when, number, extra=extra
        )
    else:
        logger.info("job %s (%s) is %s in attempt %d", job.id, job.kind, job.state, number, extra=extra)
