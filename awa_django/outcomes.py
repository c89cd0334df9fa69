"""What a handler may return or raise, and what else can end an attempt.

A handler returns one of :class:`RetryAfter`, :class:`Snooze`, :class:`Cancel`,
:class:`WaitForCallback`, or anything else for success. The executor turns what happened
into one :class:`Outcome`; :func:`awa_django.transitions.plan` decides where it leads.
(contract: runtime/outcomes section 1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

__all__ = [
    "CallbackFailed",
    "CallbackRetried",
    "Cancel",
    "Completed",
    "DeadlineExceeded",
    "Exhausted",
    "Failed",
    "MissingCallback",
    "OperatorCancel",
    "OperatorRetry",
    "Outcome",
    "Postponed",
    "Rescued",
    "RetryAfter",
    "Snooze",
    "Terminal",
    "WaitForCallback",
]

#: Longer delays are a mistake in units, not a plan.
MAX_DELAY_SECONDS = 100 * 365.25 * 86400


def delay_seconds(delay: float | timedelta, what: str) -> float:
    """A delay in seconds with its fraction kept; negative becomes 0.

    Raises ``ValueError`` for NaN, infinity and more than 100 years.
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not math.isfinite(seconds) or seconds > MAX_DELAY_SECONDS:
        raise ValueError(f"{what}: a delay is a finite number of seconds below 100 years, not {delay!r}")
    return max(seconds, 0.0)


class Outcome:
    """How one attempt ended."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Completed(Outcome):
    """The handler returned. ``result`` is kept only where the job asks for it."""

    result: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, init=False)
class RetryAfter(Outcome):
    """Run again after a delay; the attempt counts, no error is recorded."""

    seconds: float

    def __init__(self, delay: float | timedelta) -> None:
        object.__setattr__(self, "seconds", delay_seconds(delay, "RetryAfter"))


@dataclass(frozen=True, slots=True, init=False)
class Snooze(Outcome):
    """Run again after a delay as if this attempt had not happened."""

    seconds: float

    def __init__(self, delay: float | timedelta) -> None:
        object.__setattr__(self, "seconds", delay_seconds(delay, "Snooze"))


@dataclass(frozen=True, slots=True)
class Postponed(Outcome):
    """The worker itself puts the job off, and marks it so that operators can find it. Not for handlers."""

    seconds: float
    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cancel(Outcome):
    """Stop here; the job ends cancelled with this reason."""

    reason: str = "cancelled by handler"


@dataclass(frozen=True, slots=True)
class WaitForCallback(Outcome):
    """Park the attempt until somebody outside resolves its callback; the slot is free meanwhile.

    ``token`` is what ``register_callback`` returned. The attempt parks on whichever callback it registered last;
    without any, the job fails for good.
    """

    token: Any


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """An exception; retried with backoff while attempts are left."""

    error: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Exhausted(Outcome):
    """An exception in the last attempt."""

    error: str = field(repr=False)
    dlq_reason: ClassVar[str] = "max_attempts_exhausted"


@dataclass(frozen=True, slots=True)
class Terminal(Outcome):
    """A failure that no further attempt can mend."""

    error: str = field(repr=False)
    dlq_reason: ClassVar[str] = "terminal_error"


@dataclass(frozen=True, slots=True)
class Rescued(Outcome):
    """The worker went quiet; somebody else takes the attempt away."""

    error: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeadlineExceeded(Outcome):
    """The attempt outlived the deadline it was claimed with."""

    error: str = "hard deadline exceeded"


@dataclass(frozen=True, slots=True)
class MissingCallback(Outcome):
    """The handler wants to wait and never registered anything to wait for."""

    error: str = "WaitForCallback returned without calling register_callback"
    dlq_reason: ClassVar[str] = "wait_for_callback_contract_violation"


@dataclass(frozen=True, slots=True)
class CallbackFailed(Outcome):
    """The outside system, or an expression over its answer, says that the job has failed. Never dead-lettered.

    ``expression`` is the one that matched.
    """

    error: str = field(repr=False)
    expression: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CallbackRetried(Outcome):
    """The outside system asks for the job to run again from the start."""


@dataclass(frozen=True, slots=True)
class OperatorCancel(Outcome):
    """Somebody at the desk ends a job that has not finished. Silent, and without an error entry."""


@dataclass(frozen=True, slots=True)
class OperatorRetry(Outcome):
    """Somebody at the desk has a finished, waiting or dead job run again, with all its attempts. Silent."""
